"""Deliberate breaks that a review misses: a sign, a dropped argument, a rule off by one; see `mutants.py`."""

# By file and tests: what each break does, the text before and after it.
OF_PARTS = {
    # Images of a group are left out together.
    ("vitcli/training/methods/initial_head.py", "tests/training/methods/test_groups_left_out.py"): {
        "a probe head knows no groups": (
            "fitted(torch.from_numpy(rows.features_ND), rows.labels_N, rows.groups_N)",
            "fitted(torch.from_numpy(rows.features_ND), rows.labels_N, None)",
        ),
    },
    ("vitcli/training/methods/calibrate.py", "tests/training/methods/test_groups_left_out.py"): {
        "prediction sets know no groups": (
            "features_ND, labels_N, groups_N = rows.features_ND, rows.labels_N, rows.groups_N",
            "features_ND, labels_N, groups_N = rows.features_ND, rows.labels_N, None",
        ),
    },
    ("vitcli/training/methods/outputs.py", "tests/training/methods/test_outputs.py"): {
        "rows of a second split come from the first": (
            "else other.place_of(row - count)",
            "else self.place_of(row - count)",
        ),
    },
    ("vitcli/training/methods/wise_ft.py", "tests/training/methods/test_outputs.py"): {
        "outputs of another candidate are kept": (
            "evaluation.keep(job.splits.choice, outputs[delivery.alpha])",
            "evaluation.keep(job.splits.choice, outputs[0.5])",
        ),
        "a probe is calibrated by another pass": ("elif self.frozen:", "elif False:"),
    },
    ("vitcli/training/methods/refit.py", "tests/training/methods/test_outputs.py"): {
        "all layers that a head reads are the features": (
            "        if num_layers:\n            columns",
            "        if False:\n            columns",
        ),
    },
    (
        "vitcli/evaluation/calibration/out_of_distribution.py",
        "tests/training/methods/test_groups_left_out.py",
    ): {
        "distances of an image beside its copies": (
            "groups_N = np.arange(len(labels_N)) if groups_N is None else groups_N",
            "groups_N = np.arange(len(labels_N))",
        ),
    },
    (
        "vitcli/evaluation/calibration/out_of_distribution.py",
        "tests/evaluation/calibration/test_out_of_distribution.py",
    ): {
        "images of a left-out class are in the statistics": (
            "(rows.fold_N != fold) & ~is_unknown_N",
            "(rows.fold_N != fold)",
        ),
        "the column of a left-out class is read": ("[:, has_rows_K]", ""),
        "the first is never given up": (
            "        return 0\n    return best",
            "        return 0\n    return 0",
        ),
    },
    ("vitcli/data/split.py", "tests/data/parts/test_groups.py"): {
        "a part has the groups of the first rows": (
            "lambda: grouping.groups_N[all_rows()])",
            "lambda: grouping.groups_N)",
        ),
    },
    ("vitcli/features/label_errors.py", "tests/features/test_suspects.py"): {
        "copies vouch for a label": ("l2=STRENGTHS, groups_N=groups_N", "l2=STRENGTHS, groups_N=None"),
    },
    ("vitcli/features/draws.py", "tests/features/test_draws.py"): {
        "neighbours of the own group are counted": (
            "tests_TD, num_classes=num_classes, groups_N=groups_N",
            "tests_TD, num_classes=num_classes, groups_N=None",
        ),
        "the l2 of a draw knows no groups": (
            "l2=strengths, groups_N=groups_N,",
            "l2=strengths, groups_N=None,",
        ),
    },
    ("vitcli/inspection/why.py", "tests/inspection/test_why.py"): {
        "the reasons of an answer know no groups": (
            "groups_N=groups_N,\n        balance=balance",
            "groups_N=None,\n        balance=balance",
        ),
    },
    # Security.
    ("vitcli/data/sources/label_files.py", "tests/data/sources/test_label_files.py"): {
        "a folder of a name that begins alike is read": (
            "not path.startswith(self.root + os.sep)",
            "not (path.startswith(self.root) and path != self.root)",
        ),
    },
    # Several processes.
    ("vitcli/distributed/runtime.py", "tests/distributed/test_collectives.py"): {
        "the largest of all processes is their sum": (
            "dist.all_reduce(values, group=self.control)",
            "dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self.control)",
        ),
    },
    ("vitcli/distributed/launch.py", "tests/distributed/test_launch.py"): {
        "the last error is the cause": ("first = min(causes, ", "first = max(causes, "),
    },
    # What is chosen, and by which images.
    ("vitcli/evaluation/calibration/results.py", "tests/evaluation/calibration/test_results.py"): {
        "coverage of the rows that chose the sets": (
            "fitted(log_p_NK[~half_N], labels_N[~half_N])",
            "fitted(log_p_NK[half_N], labels_N[half_N])",
        ),
        "halves of the rows separate groups": (
            "rows_N if split.groups_N is None else split.groups_N[rows_N]",
            "rows_N",
        ),
    },
    ("vitcli/features/least_squares.py", "tests/training/many_runs/test_folds.py"): {
        "the l2 of folds knows no groups": (
            "groups = None if groups_N is None else groups_N[rest]",
            "groups = None",
        ),
    },
    ("vitcli/data/parts/splitting.py", "tests/data/parts/test_groups.py"): {
        "a group that just fits is left out": ("if sizes_G[group] <= left:", "if sizes_G[group] < left:"),
    },
    ("vitcli/evaluation/predict.py", "tests/evaluation/test_predict_options.py"): {
        "what equals the threshold is unsure": (
            '["probability"] < options.threshold',
            '["probability"] <= options.threshold',
        ),
    },
    # Weights and pixels.
    ("vitcli/weights/average.py", "tests/weights/test_average.py"): {
        "batch norms are averaged": ('name.endswith("running_mean")', 'name == "running_mean"'),
    },
    ("vitcli/weights/download.py", "tests/weights/test_download.py"): {
        "a download of another length": (
            'is_whole = size == int(headers.get("content-length", size))',
            "is_whole = True",
        ),
    },
    ("vitcli/data/image_cache.py", "tests/data/test_image_cache.py"): {
        "decoded images outlive their decoder": (', "decoders": decoders}', "}"),
    },
    ("vitcli/data/video.py", "tests/data/test_video.py"): {
        "a video is turned the other way": ("pixels_HWC, quarters)", "pixels_HWC, -quarters)"),
    },
    ("vitcli/training/methods/time_limit.py", "tests/training/test_time_limit.py"): {
        "an evaluation counts as steps": (
            "self.used_s() - first_s - self._scored_s",
            "self.used_s() - first_s",
        ),
    },
    # Exported files.
    ("vitcli/conversion/images.py", "tests/conversion/test_calibration.py"): {
        "scales of the first images": (
            "np.linspace(0, len(split) - 1, most).round().astype(np.int64)",
            "np.arange(most)",
        ),
    },
    ("vitcli/conversion/golden.py", "tests/conversion/test_onnx_file.py"): {
        "a golden file has the largest outputs": ("np.argsort(-np.abs(outputs_K)", "np.argsort(-outputs_K"),
    },
    # Commands on other machines.
    ("vitcli/submission/submission.py", "tests/submission/test_printed.py"): {
        "a worker submits again": ("        if name not in OPTIONS:", "        if True:"),
        "a file lists the values of --submit-set as words of the command": (
            "            next(left)\n",
            "            pass\n",
        ),
    },
    ("vitcli/submission/worker.py", "tests/submission/test_slurm.py"): {
        "the whole array comes back": (
            '"requeue", element.job_id]',
            '"requeue", element.raw_job_id]',
        ),
        "what is cancelled comes back": (
            "bool(received) and signal.SIGTERM not in received",
            "bool(received)",
        ),
        "the code of a command is not that of its element": (
            "            code = process.wait()\n",
            "            code = 143\n",
        ),
    },
    ("vitcli/submission/cluster.py", "tests/submission/test_local.py"): {
        "another process with the number of a worker is stopped": ("process.cmdline()[-2:] == ours and ", ""),
    },
    ("vitcli/submission/k8s.j2", "tests/submission/test_printed.py"): {
        "a pod that stopped and saved does not start again": ("values: [143]", "values: [144]"),
    },
    ("vitcli/submission/hf.j2", "tests/submission/test_printed.py"): {
        "options of vit are those of hf": ("    -- {{ image", "    {{ image"),
    },
}
