"""Deliberate breaks of files that are exported to be fast, and of their readers; see `mutants.py`."""

# By file and tests: what each break does, the text before and after it.
OF_EXPORTS = {
    ("vitcli/conversion/fastest_text.py", "tests/conversion/test_fastest.py"): {
        "names in the figure of the front touch each other": ("best = hits.index(min(hits))", "best = 0"),
    },
    ("vitcli/conversion/fastest.py", "tests/conversion/test_fastest.py"): {
        "after a refusal faster files are judged": (
            'other.why = f"{NOT_JUDGED}: {trial.name} was refused"\n        return',
            'other.why = f"{NOT_JUDGED}: {trial.name} was refused"',
        ),
        "a student is judged by images that it was trained on": (
            "_check_unseen(student, judged, progress)",
            "pass",
        ),
        "the fastest file is judged first": ("for trial in reversed(best):", "for trial in best:"),
        "a file that diverges more is on the front": (
            "if best and trial.divergence >= best[-1].divergence:",
            "if False:",
        ),
        "a hair faster is faster": ("LEAST_GAIN = 0.05", "LEAST_GAIN = 0.0"),
        "the slowest of the accepted files is kept": (
            "trial.is_accepted), key=lambda each: each.latency_ratio",
            "trial.is_accepted), key=lambda each: -each.latency_ratio",
        ),
        "a budget is for nothing": (
            "if budget_ms is not None and latency_ms > budget_ms:",
            "if False:",
        ),
        "students are judged with all of the error": (
            "ALPHA / (2 if has_students else 1)",
            "ALPHA / (1 if has_students else 1)",
        ),
        "classes of a student keep their own order": (
            "[weights.class_names.index(name) for name in reference.class_names]",
            "[*range(len(weights.class_names))]",
        ),
        "a run is a student of every other": (
            "if any((run_folder.folder_of(name)",
            "if True or any((run_folder.folder_of(name)",
        ),
        "a precision that is slower is multiplied": ("if ratio < 1 - LEAST_GAIN)", "if ratio < 9)"),
        "no images are too few": ("    if len(judged) < enough:", "    if False:"),
        "students that nobody named make images too few": (
            "if beside and not named and len(judged) < enough:",
            "if False:",
        ),
        "a student is tried twice": ("path.parent if path.name == run_folder.WEIGHTS else path", "ckpt"),
        "outputs that are not finite end the search": (
            "        except NotFinite:\n",
            "        except OSError:\n",
        ),
        "a file whose memory cannot be measured is lost": (
            "suppress(VitError),  # a large image",
            "suppress(OSError),  # a large image",
        ),
    },
    ("vitcli/conversion/images.py", "tests/conversion/test_fastest.py"): {
        "candidates are compared on images that judge them": (
            "is_free_N = ~np.isin(digests_of(split), digests_of(judged))",
            "is_free_N = np.ones(len(split), dtype=bool)",
        ),
        "images that were trained on judge": ("if trained_on is None:", "if True:"),
        "a table is read as other data": (
            "if of_run and run_folder.is_data_of(of_run, dataset):",
            "if False:",
        ),
        "damaged images are found after the search": (
            "range(0 if images.are_held_out else len(images.split))",
            "range(0)",
        ),
    },
    ("vitcli/conversion/images.py", "tests/conversion/test_calibration.py"): {
        "a gate is on images of the calibration": ("if given or not judged else", "if True else"),
    },
    ("vitcli/conversion/comparison.py", "tests/conversion/test_speed.py"): {
        "large photographs are measured in batches": ("if batch_size > 1 and", "if batch_size > 99 and"),
    },
    ("vitcli/conversion/comparison.py", "tests/conversion/test_gate.py"): {
        "the advice of a search is of another level": (
            "enough_images(verdict.max_drop, z=verdict.z)",
            "enough_images(verdict.max_drop)",
        ),
    },
    ("vitcli/conversion/comparison.py", "tests/conversion/test_fastest.py"): {
        "the divergence is that of the checkpoint from the file": (
            "(log_p_NK.exp() * (log_p_NK - log_q_NK))",
            "(log_q_NK.exp() * (log_q_NK - log_p_NK))",
        ),
        "images without a change are enough at any level": (
            "math.ceil(z**2 * (1 - max_drop) / max_drop)",
            "math.ceil((1 - max_drop) / max_drop)",
        ),
    },
    ("vitcli/conversion/export.py", "tests/conversion/test_executorch.py"): {
        "a .pte file of images of any size is begun": (
            'if format == "pte" and options.input != "pixels":',
            'if format == "pte" and options.input == "pixels":',
        ),
    },
    ("vitcli/weights/production/session.py", "tests/conversion/test_openvino.py"): {
        "OpenVINO loads its telemetry": (
            '        sys.modules.setdefault("openvino_telemetry", None)',
            '        sys.modules.setdefault("openvino_telemetri", None)',
        ),
    },
    ("vitcli/weights/production/program.py", "tests/conversion/test_openvino.py"): {
        "the size before a crop is that of the long side": (
            "(preprocessing.short_side, sides_2.min())",
            "(preprocessing.short_side, sides_2.max())",
        ),
    },
    ("vitcli/conversion/golden.py", "tests/conversion/test_onnx_file.py"): {
        "pixels that are not resized may differ by a twentieth": (
            'if runtime == "openvino" and isinstance(process.input_shape[1], str):',
            'if runtime == "openvino":',
        ),
    },
    ("vitcli/weights/production/program.py", "tests/conversion/test_onnx_file.py"): {
        "attention is exported as the fused function": ("    with WrittenOut(), ", "    with "),
    },
    ("vitcli/weights/onnx.py", "tests/conversion/test_onnx_file.py"): {
        "a network is exported again for each precision": (
            'if fp32 and form.precision != "fp16" and not is_large:',
            "if False:",
        ),
    },
}
