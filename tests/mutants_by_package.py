"""Deliberate breaks that nobody noticed at first, by package: what turned each of them red came later."""

# By file and tests: what each break does, the text before and after it.
BY_PACKAGE = {
    # A head that the closed form on the tuned features joins.
    ("vitcli/training/methods/refit.py", "tests/training/methods/test_refit.py"): {
        "the closed form takes the place of the tuned head": (
            "tuned[name] + fitted[name].to(tuned[name].device)",
            "fitted[name].to(tuned[name].device)",
        ),
        "each pass takes the time of the steps": ("int(PART_OF_RUN * plan.images_seen)", "plan.images_seen"),
    },
    ("vitcli/training/run.py", "tests/training/methods/test_refit.py"): {
        "labels are checked by the features that know them": (
            "refit.facts_of(state.frozen_head or None, after)",
            "refit.facts_of(after.facts, after)",
        ),
        "the head is refitted on weights that are not delivered": (
            "            state.average = None\n        if num_layers",
            "            pass\n        if num_layers",
        ),
    },
    # A head that reads several layers.
    ("vitcli/models/layered_head.py", "tests/models/test_layered_head.py"): {
        "a layered head reads the patches without the last norm": (
            "            norm=True,",
            "            norm=False,",
        ),
        "a layered head reads means before tokens": (
            "(prefix_BSD[:, :1], x_BND.mean(dim=1, keepdim=True))",
            "(x_BND.mean(dim=1, keepdim=True), prefix_BSD[:, :1])",
        ),
        "an ordinary head is put into the columns of the last mean": (
            "return slice(num_features - 2 * width, num_features - width)",
            "return slice(num_features - width, num_features)",
        ),
        "a widened head forgets its bias": ("nn.Parameter(bias_K.clone())", "nn.Parameter(0 * bias_K)"),
        "a network with fewer blocks gets a layered head": (
            "0 < num_layers <= len(model.blocks)",
            "0 < num_layers",
        ),
        "a widened network changes the one it is made of": (
            '"_modules": dict(model._modules)',
            '"_modules": model._modules',
        ),
    },
    ("vitcli/models/features.py", "tests/models/test_layered_head.py"): {
        "the mean of the patches counts what a layered head reads": (
            "tokens_of(model, encoded)[:, model.num_prefix_tokens :]",
            "encoded[:, model.num_prefix_tokens :]",
        ),
    },
    ("vitcli/models/architecture.py", "tests/models/test_layered_head.py"): {
        "a new head reads several layers": (
            '"representation_size": 0, "head_layers": 0}',
            '"representation_size": 0}',
        ),
        "a layered network counts as plain": (
            'parts == ("1d", "stem", False, 0)',
            'parts[:3] == ("1d", "stem", False)',
        ),
    },
    ("vitcli/training/methods/refit.py", "tests/training/methods/test_layered_refit.py"): {
        "familiar images are trained on at the higher rate": ("FAMILIAR = 0.6", "FAMILIAR = 0.7"),
        "several layers need not be ahead by more than nothing": ("AHEAD = 0.1", "AHEAD = 0.0"),
        "the rate is chosen by the features of several layers": (
            'before.get("one_layer_top1", before.get("left_out_top1"))',
            'before.get("left_out_top1")',
        ),
    },
    ("vitcli/training/run.py", "tests/training/methods/test_layered_refit.py"): {
        "a layered head is not described": (
            "self.job = evaluation.job = self.job.with_layered_head(num_layers)",
            "pass",
        ),
        "the higher rate is not taken": ("self.job = evaluation.job = self.job.with_lr(lr)", "pass"),
    },
    ("vitcli/weights/locate.py", "tests/training/methods/test_layered_refit.py"): {
        "checkpoints are read with the head of the end": (
            "if metadata.pop(LAYERED, False)",
            "if False",
        ),
    },
    ("vitcli/recipe/validation.py", "tests/training/methods/test_layered_refit.py"): {
        "layers are asked for of a head of zeros": (
            "for key in OF_REFIT if head != REFIT else ():",
            "for key in ():",
        ),
        "a rate that is asked for gives way": (
            'if key == UNFAMILIAR_LR and "optimizer.lr" in layer:',
            "if False:",
        ),
    },
    ("vitcli/training/many_runs/average_inputs.py", "tests/training/methods/test_layered_refit.py"): {
        "heads of other layers are averaged": (
            "architectures = asdict(one.arch), asdict(other.arch)",
            "architectures = other.arch.with_head(2).as_dict(), one.arch.with_head(2).as_dict()",
        ),
    },
    # Data: orders, parts, what a split is known by, and how folders and files are read.
    ("vitcli/data/sampler.py", "tests/data/test_sampler.py"): {
        "classes come in the same order in every epoch": (
            'key = derive_seed(self.seed, "order", epoch)\n        places_N = permute',
            'key = derive_seed(self.seed, "order")\n        places_N = permute',
        ),
        "a window is rounded down to whole steps": (
            "self.window = -(-window // batch_size) * batch_size",
            "self.window = max(1, window // batch_size) * batch_size",
        ),
    },
    ("vitcli/data/parts/assignment.py", "tests/data/parts/test_assignment.py"): {
        "the largest group stands in for the smallest": (
            "groups.order_G[among_G[groups.order_G]][-1]",
            "groups.order_G[among_G[groups.order_G]][0]",
        ),
        "what was trained on is held out though others could be": ("may_move_G &= ~last_G", "pass"),
    },
    ("vitcli/data/parts/cuts.py", "tests/data/test_dataset.py"): {
        "a stratified part is another after an upgrade": (
            'key = sampler.derive_seed(0, "dev split", len(train))\n    return sampler',
            "key = 0\n    return sampler",
        ),
        "a stratified part has its rows by class": (
            "np.flatnonzero(is_dev_N) if order_N is None else dev_rows",
            "dev_rows",
        ),
    },
    ("vitcli/data/split.py", "tests/data/test_split.py"): {
        "a fingerprint without the last image": (
            "np.linspace(0, self.num_examples - 1, min(32",
            "np.linspace(0, self.num_examples - 2, min(32",
        ),
        "a fingerprint of 16 images": (
            "min(32, self.num_examples)).astype",
            "min(16, self.num_examples)).astype",
        ),
        "a streamed label one too high": (
            "max(labels) >= split.num_classes",
            "max(labels) > split.num_classes",
        ),
    },
    ("vitcli/data/contents.py", "tests/data/test_contents.py"): {
        "terabytes of shards are read before a run": (
            "MAX_HASHED_BYTES = 2 * 2**30",
            "MAX_HASHED_BYTES = 2 * 2**40",
        ),
    },
    ("vitcli/data/sources/tables.py", "tests/data/sources/test_folders.py"): {
        "the last word for a split counts": (
            'for part in file.with_suffix("").parts for word',
            'for part in file.with_suffix("").parts[::-1] for word',
        ),
    },
    ("vitcli/data/sources/folders.py", "tests/data/sources/test_folders.py"): {
        "a file is left out twice": (
            "return LeftOut(tuple(dict.fromkeys(chain",
            "return LeftOut(tuple((chain",
        ),
        "two left-out files are named": ("len(paths) <= NAMED_EACH", "len(paths) < NAMED_EACH"),
        "readme.png is no image": (
            "is_about = lower.startswith(SILENT_STARTS) and suffix_of(lower) not in IMAGE_SUFFIXES",
            "is_about = lower.startswith(SILENT_STARTS)",
        ),
        "links are followed in search of images": ("entry.is_dir(follow_symlinks=False)", "entry.is_dir()"),
    },
    ("vitcli/data/sources/class_folders.py", "tests/data/sources/test_folders.py"): {
        "images beside the splits are not named": (
            "outside.append(list_files(self.root, self.root, recursive=False))",
            "pass",
        ),
        "two classes one level down are one class": (
            "if inner == folder or len(names) < 2:",
            "if inner == folder or len(names) < 3:",
        ),
        "accents in another encoding are another class": (
            'unicodedata.normalize("NFC", name).casefold()',
            "name.casefold()",
        ),
    },
    ("vitcli/data/sources/layouts.py", "tests/data/sources/test_layouts.py"): {
        "changed times of files change no key": (
            "{state.st_size}\\0{state.st_mtime_ns}\\n",
            "{state.st_size}\\0\\n",
        ),
        "changed sizes of files change no key": ("{inside}\\0{state.st_size}\\0", "{inside}\\0"),
        "a copied folder has another key": ("inside = file.removeprefix(str(path))", "inside = file"),
    },
    ("vitcli/data/sources/class_folders.py", "tests/data/sources/test_layouts.py"): {
        "one class of folders speaks for all": (
            "min(map(len, inner), default=0) < 2",
            "max(map(len, inner), default=0) < 2",
        ),
    },
    ("vitcli/data/sources/hub.py", "tests/data/test_dataset.py"): {
        "the Hub is asked though that is forbidden": (
            "datasets_config.HF_HUB_OFFLINE = before or bool(outage)",
            "datasets_config.HF_HUB_OFFLINE = bool(outage)",
        ),
    },
    ("vitcli/data/sources/label_files.py", "tests/data/sources/test_label_files.py"): {
        "one word makes a column of splits": (
            "if all(row[c].lower() in SPLIT_WORDS for row in rows)",
            "if any(row[c].lower() in SPLIT_WORDS for row in rows)",
        ),
        "one of two files of labels is taken": ("    if len(files) > 1:\n", "    if len(files) > 2:\n"),
    },
    ("vitcli/data/vtab_splits.py", "tests/data/test_vtab_splits.py"): {
        "a label too many is a class of a task": (
            '<= range_of["max"] < num_classes',
            '<= range_of["max"] <= num_classes',
        ),
    },
    # Checks of data.
    ("vitcli/data/checks/findings.py", "tests/data/checks/test_findings.py"): {
        "five images of a class are few": ("if 0 < count < FEW_IMAGES}", "if 0 < count <= FEW_IMAGES}"),
        "copies within a test split are nothing to look at": (
            '"look" if exact or is_trained_on else "know"',
            '"look" if is_trained_on else "know"',
        ),
    },
    ("vitcli/data/checks/near_duplicates.py", "tests/data/checks/test_findings.py"): {
        "one image of a pair is counted": (
            "            if self.within:\n                self.has_pair",
            "            if False:\n                self.has_pair",
        ),
    },
    ("vitcli/data/checks/sizes.py", "tests/data/checks/test_findings.py"): {
        "width and height of odd images are exchanged": (
            "{width_N[i]}x{height_N[i]}",
            "{height_N[i]}x{width_N[i]}",
        ),
    },
    ("vitcli/data/checks/classes.py", "tests/data/checks/test_findings.py"): {
        "the median of numbers is their mean": ("np.median(numbers_N)", "np.mean(numbers_N)"),
    },
    ("vitcli/data/checks/text.py", "tests/data/checks/test_findings.py"): {
        "the speed is of the first split": (
            'num_seen = sum(part["num_images"] for part in result["splits"])',
            'num_seen = result["num_images"]',
        ),
        "what comes next stops at unreadable images": (
            'words += ["--skip-bad"] if "unreadable_images" in names else []',
            "pass",
        ),
    },
    # Shards.
    ("vitcli/data/shards/remote.py", "tests/data/shards/test_rows.py"): {
        "kept ranges are told apart by their beginnings": (
            "self.stamp, first, last)\n        return",
            "self.stamp, first)\n        return",
        ),
    },
    ("vitcli/data/shards/webdataset.py", "tests/data/shards/test_rows.py"): {
        "a shard may have more samples than counted": (
            "if len(index.offsets_N) != count:",
            "if len(index.offsets_N) < count:",
        ),
    },
    ("vitcli/data/shards/rows.py", "tests/data/shards/test_rows.py"): {
        "shards of other sizes are the same data": (
            "(file_name(file.url), file.size, counts)",
            "(file_name(file.url), counts)",
        ),
    },
    # Several processes.
    ("vitcli/distributed/runtime.py", "tests/distributed/test_runtime.py"): {
        "memory is a thousand times as large": (
            '2**30 if sys.platform == "darwin" else 2**20)  # in bytes',
            '2**30 if sys.platform == "darwin" else 2**10)  # in bytes',
        ),
    },
    ("vitcli/distributed/numerics.py", "tests/distributed/test_runtime.py"): {
        "a CPU has one thread in every run": (
            'if device.type == "cpu" and exact:',
            'if device.type == "cpu":',
        ),
    },
    ("vitcli/distributed/device.py", "tests/distributed/test_device.py"): {
        "-1 hides no GPU": ('in ("", "-1", "NoDevFiles")', 'in ("", "NoDevFiles")'),
    },
    # Scores, and how far they can be believed.
    ("vitcli/evaluation/belief/selective.py", "tests/evaluation/belief/test_selective.py"): {
        "thirty answered images are too few": ("if point.answered >= LEAST]", "if point.answered > LEAST]"),
    },
    ("vitcli/evaluation/belief/temperature.py", "tests/evaluation/belief/test_temperature.py"): {
        "scores of small numbers are taken for chance": (
            "MOST_SCALE, LEAST_SCALE = 1e3, 1e-3",
            "MOST_SCALE, LEAST_SCALE = 1e1, 1e-3",
        ),
    },
    ("vitcli/evaluation/findings.py", "tests/evaluation/test_findings.py"): {
        "half the median is few": ('row["num_train"] < FEW * middle', 'row["num_train"] <= FEW * middle'),
        "a larger side cuts patches": ("s % (patch_size or 1) == 0", "True"),
        "the side of an image is its longer one": ("sides.append(min(size))", "sides.append(max(size))"),
        "a mistake at 95 % is not sure": (
            "predictions.confidences_N[wrong] >= SURE",
            "predictions.confidences_N[wrong] > SURE",
        ),
    },
    ("vitcli/evaluation/sorting.py", "tests/evaluation/test_sorting.py"): {
        "cat and Cat share a folder": ("if name.casefold() not in taken", "if name not in taken"),
    },
    ("vitcli/evaluation/inference.py", "tests/evaluation/test_inference.py"): {
        "logits are averaged and not probabilities": (
            "torch.logaddexp(one_BK.log_softmax(dim=-1), other_BK.log_softmax(dim=-1))",
            "(one_BK.log_softmax(dim=-1) + other_BK.log_softmax(dim=-1)) / 2",
        ),
    },
    ("vitcli/evaluation/belief/stored.py", "tests/evaluation/belief/test_stored.py"): {
        "a fingerprint may be a number": (
            (
                "    if fingerprint is not None and not isinstance(fingerprint, str):\n"
                '        raise ValueError("the fingerprint is no text")\n'
            ),
            "",
        ),
        "more are right than answered": ("0 <= right <= answered <= num_images", "0 <= right <= num_images"),
        "statistics without a threshold": (
            "packed is not None and distance is not None and",
            "packed is not None and",
        ),
    },
    # Exported files.
    ("vitcli/export/agreement.py", "tests/export/test_agreement.py"): {
        "images are shrunk as no file does": (
            'exact = replace(preprocessing, decode="exact")',
            "exact = preprocessing",
        ),
        "an output that is too small does not differ": (
            "float((exported_NK - outputs_NK).abs().max())",
            "float((exported_NK - outputs_NK).max())",
        ),
    },
    ("vitcli/export/speed.py", "tests/export/test_speed.py"): {
        "the throughput is that of the slowest batch size": (
            "max(seconds, key=lambda batch_size: batch_size / seconds[batch_size])",
            "min(seconds, key=lambda batch_size: batch_size / seconds[batch_size])",
        ),
        "batches are measured for minutes": (
            "> MOST_S:\n            break",
            "> 100 * MOST_S:\n            break",
        ),
        "a latency in seconds": ('"latency_ms": 1000 * seconds[1]', '"latency_ms": seconds[1]'),
        "the first run of a turn counts": (
            "for _ in range(RUNS_OF_A_TURN)][1:]",
            "for _ in range(RUNS_OF_A_TURN)]",
        ),
    },
    ("vitcli/export/usage.py", "tests/export/test_usage.py"): {
        "a revision is forgotten in how to load": ('at = f"@{revision}" if revision else ""', 'at = ""'),
    },
    # Features.
    ("vitcli/features/suspects.py", "tests/features/test_suspects.py"): {
        "a class of few images is taken at its word": ("PRIOR = 50.0", "PRIOR = 5.0"),
        "classes without images have a say": (
            "other = means_KK[has_rows_K][~is_own_KK[has_rows_K]].mean()",
            "other = means_KK[~is_own_KK].mean()",
        ),
    },
    ("vitcli/features/draws.py", "tests/features/test_draws.py"): {
        "the deviation of draws is that of a population": (
            "stdev(values) if len(values) > 1 else None",
            "float(np.std(values)) if len(values) > 1 else None",
        ),
    },
    ("vitcli/features/least_squares.py", "tests/features/test_least_squares.py"): {
        "an l2 within the rounding": (
            "if value + eigenvalues_R[0] <= rounding",
            "if value + eigenvalues_R[0] < 0",
        ),
        "groups that just fill the shots are left out": (
            'np.searchsorted(np.cumsum(sizes[order]), count, side="right")',
            'np.searchsorted(np.cumsum(sizes[order]), count, side="left")',
        ),
    },
    ("vitcli/features/forecast.py", "tests/features/test_forecast.py"): {
        "draws of a curve vary too little": ("np.var(point.errors, ddof=1)", "np.var(point.errors)"),
    },
    (
        "vitcli/features/left_out.py",
        "tests/features/test_choose.py::test_of_equal_accuracies_the_earliest_layer_and_then_the_fewest_features_are_best",
    ): {
        "the deepest of equal layers is best": (
            "(-s.accuracy, s.combination.depth, s.num_features)",
            "(-s.accuracy, -s.combination.depth, s.num_features)",
        ),
    },
    ("vitcli/features/classifiers.py", "tests/features/test_draws.py"): {
        "near neighbours outvote more far ones": (
            "vote_T = 2 * most + 1 + cosine_TN",
            "vote_T = 0 * most + 1 + cosine_TN",
        ),
    },
    # Attention and reasons.
    ("vitcli/inspection/analysis.py", "tests/inspection/test_analysis.py"): {
        "an image is lit by the maps of others": (
            "maps_Bhw.flatten(1).double().quantile(full_at, dim=1, keepdim=True)",
            "maps_Bhw.flatten().double().quantile(full_at).expand(len(maps_Bhw), 1)",
        ),
        "maps are compared at the size of the smaller": ("size = max((map_MHW", "size = min((map_MHW"),
        "a rollout goes from the first layer to the last": ("mean_BTT @ below_BTT", "below_BTT @ mean_BTT"),
    },
    (
        "vitcli/inspection/why.py",
        "tests/inspection/test_why.py::test_a_group_is_shown_by_its_image_of_most_influence "
        "tests/inspection/test_why.py::test_fifty_images_are_explained_and_one_more_is_refused",
    ): {
        "a group is shown by its first image": (
            "np.where(group_of_row_N == group, influences_N, -np.inf).argmax()",
            "np.flatnonzero(group_of_row_N == group)[0]",
        ),
        "51 images are explained": ("> MOST_IMAGES:", "> MOST_IMAGES + 1:"),
    },
    # Networks.
    ("vitcli/models/masked_patch.py", "tests/models/test_masked_patch.py"): {
        "registers are patches": (
            "[:, self.vit.num_prefix_tokens :]\n        outputs",
            "[:, 1:]\n        outputs",
        ),
    },
    (
        "vitcli/models/image_sizes.py",
        "tests/training/methods/test_resolutions.py::test_networks_of_timm_take_other_sizes_or_are_refused",
    ): {
        "rotary angles of the first other size are kept": ("if grids[1] not in ropes:", "if not ropes:"),
    },
    # Results on a screen and on a disk.
    ("vitcli/output/plots.py", "tests/output/test_plots.py"): {
        "an axis shows twenty points": (
            "missing = max(0.0, LEAST_SPAN - (high - low)) / 2",
            "missing = max(0.0, LEAST_SPAN - (high - low))",
        ),
    },
    ("vitcli/output/user_cache.py", "tests/output/test_user_cache.py"): {
        "a cache of another user is written to": ("if folder.stat().st_uid != os.geteuid():", "if False:"),
    },
    ("vitcli/output/result_folder.py", "tests/output/test_result_folder.py"): {
        "a value that is no longer given is no difference": (
            "for key in (*new, *(old.keys() - new.keys()))",
            "for key in new",
        ),
    },
    ("vitcli/output/text.py", "tests/output/test_text.py"): {
        "a long screen has no command": ("][: MOST_LINES - 1]", "][:MOST_LINES]"),
    },
    # Weights.
    ("vitcli/weights/interpolate.py", "tests/weights/test_interpolate.py"): {
        "the best of several tables speaks for all": (
            "{k: min(s[k] for s in similarities)",
            "{k: max(s[k] for s in similarities)",
        ),
    },
    # Training.
    ("vitcli/training/schedule.py", "tests/training/test_schedule.py"): {
        "a warm-up in percent is rounded down": (
            'round(float(warmup.removesuffix("%")) / 100 * total_steps)',
            'int(float(warmup.removesuffix("%")) / 100 * total_steps)',
        ),
    },
    (
        "vitcli/training/methods/imbalance.py",
        "tests/training/methods/test_imbalance.py::test_a_last_class_without_images_has_a_weight_of_its_own",
    ): {
        "a last class without images has no weight": ("minlength=train_split.num_classes", "minlength=0"),
    },
    # Experiments.
    ("vitcli/experiments/reproduce_rows.py", "tests/experiments/test_reproduce_rows.py"): {
        "more images than published are the same test set": (
            "if expected in (None, num_scored) else",
            "if expected in (None, num_scored) or num_scored > expected else",
        ),
        "a published percentage is not rounded": ("round(mean / 100, 10), None", "mean / 100, None"),
    },
    (
        "vitcli/experiments/reproduce.py",
        "tests/experiments/test_reproduce.py::test_the_time_of_runs_scored_by_other_labels_is_that_of_training_and_scoring",
    ): {
        "the time to score runs is forgotten": (
            'summary["elapsed_s"] + rescored["elapsed_s"]',
            'summary["elapsed_s"]',
        ),
    },
    # Recipes.
    ("vitcli/recipe/__init__.py", "tests/recipe/test_recipe.py"): {
        "a warm-up is a fraction of the steps that are left": (
            "100 * warmup / steps_of_file",
            "100 * warmup / steps",
        ),
    },
    ("vitcli/recipe/sweep.py", "tests/recipe/test_recipe.py"): {
        "256 combinations are too many": ("if count <= MOST_TRIALS:", "if count < MOST_TRIALS:"),
    },
    ("vitcli/recipe/auto.py", "tests/recipe/test_auto.py"): {
        "one large class decides which recipe it is": (
            "typical = median(present)",
            "typical = sum(present) / len(present)",
        ),
    },
    # Reports.
    ("vitcli/report/grouping.py", "tests/report/test_grouping.py"): {
        "runs of a cell count by their folders": (
            "values = [value for entry in finished for value in entry.values or (entry.mean,)]",
            "values = [entry.mean for entry in finished]",
        ),
    },
    ("vitcli/report/regression.py", "tests/report/test_grouping.py"): {
        "errors of different numbers are compared": (
            "return (record.summary.target, names.data",
            "return (names.data",
        ),
        "a run that has seen the images is the best": (
            '[not getattr(record.summary, "num_held_out_seen", 0) for record in records]',
            "[True for record in records]",
        ),
    },
    # Benchmarks, commands and several runs.
    ("vitcli/bench/measure.py", "tests/bench/test_bench.py::test_the_sides_take_turns_lap_by_lap"): {
        "one side has all its laps first": (
            "    for _ in range(repeats):\n        for name, run in sides.items():\n",
            "    for name, run in (each for each in sides.items() for _ in range(repeats)):\n        if 1:\n",
        ),
    },
    ("vitcli/training/many_runs/sweep_results.py", "tests/training/test_sweep_results.py"): {
        "two arms have one folder": ("is_usable = len(set(names)) == len(names) and", "is_usable ="),
    },
    (
        "vitcli/training/methods/time_limit.py",
        "tests/training/test_time_limit.py::test_a_run_scores_what_it_reports_on_and_what_it_chooses_by",
    ): {
        "patience scores nothing at the end": ("+ (recipe.train.patience > 0)", ""),
    },
    (
        "vitcli/cli/exit_codes.py",
        "tests/cli/test_app.py::test_a_report_of_a_bug_is_written_through_no_link",
    ): {
        "a report of a bug is written through a link": ('report.open("x")', 'report.open("w")'),
    },
    # The second round: packages that had fewer than ten breaks.
    ("vitcli/report/scan.py", "tests/report/test_runs.py"): {
        "hidden folders are searched for runs": ('if not name.startswith(".") and', "if"),
        "a folder of figures outside a run is passed over": (
            "not (kind and name in INNER)",
            "not (name in INNER)",
        ),
        "links back up are followed": ("if folder.resolve() in visited:", "if folder in visited:"),
        "a recipe alone is a run": ("is_known and has_begun else None", "is_known else None"),
        "runs are searched for six folders deep": (
            "if depth == MAX_DEPTH or",
            "if depth == MAX_DEPTH + 1 or",
        ),
    },
    (
        "vitcli/report/predicted.py",
        "tests/report/test_predicted.py::test_classes_of_one_image_or_without_a_mistake_are_not_among_the_three_weakest",
    ): {
        "a class of one image is the weakest": ("if count >= ENOUGH and accuracy < 1", "if accuracy < 1"),
    },
    (
        "vitcli/report/grouping.py",
        "tests/report/test_grouping.py::test_networks_of_no_known_size_come_in_the_order_that_a_person_counts_in",
    ): {
        "the tenth network comes before the ninth": ("natural(column.name, ignore_case=True)", "column.name"),
    },
    (
        "vitcli/output/text.py",
        "tests/output/test_text.py::test_a_list_of_names_says_how_many_more_there_are_also_of_those_that_were_never_listed",
    ): {
        "names that are not listed are not counted": (
            "more = (total or len(names)) - len(shown)",
            "more = len(names) - len(shown)",
        ),
    },
    (
        "vitcli/recipe/catalog.py",
        "tests/recipe/test_shipped.py::test_recipes_that_only_serve_as_a_base_are_those_that_name_no_data_set",
    ): {
        "an extended recipe with a data set is no recipe to run": (
            'if "dataset" not in tables[name].get("data", {})}',
            "}",
        ),
    },
    ("vitcli/recipe/auto.py", "tests/recipe/test_auto.py::test_the_images_of_a_class_choose"): {
        "three times as many images are uneven": (
            "> UNEVEN * max(1, min(present))",
            ">= UNEVEN * max(1, min(present))",
        ),
    },
    (
        "vitcli/recipe/__init__.py",
        "tests/recipe/test_recipe.py::test_a_base_in_a_folder_beside_the_file_is_looked_up_from_there_and_not_from_where_vit_is_started",
    ): {
        "a base is looked up from where vit is started": (
            'base_path = sibling if sibling.suffix == ".toml" and sibling.is_file() else find(str(base))',
            'base_path = find(str(base)) if not str(base).startswith(".") and "/" in str(base) else sibling',
        ),
    },
    (
        "vitcli/bench/limits.py",
        "tests/bench/test_bench.py::test_the_limit_is_that_of_the_fastest_round_after_the_first",
    ): {
        "the slowest round is the limit": ("return num_flops / min(times)", "return num_flops / max(times)"),
    },
    (
        "vitcli/bench/data.py",
        "tests/bench/test_bench.py::test_a_second_epoch_begins_when_every_image_was_read_once",
    ): {
        "the second epoch is the first": (
            "for _ in range(-(-len(few) // batch_size) + 1):",
            "for _ in range(0):",
        ),
    },
    (
        "vitcli/bench/infer.py",
        "tests/bench/test_bench.py::test_on_a_cpu_the_images_that_fit_follow_from_the_memory_that_one_more_takes",
    ): {
        "an image takes a part of what the network takes": (
            "(large - small) / (SLOPE_SIZES[1] - SLOPE_SIZES[0])",
            "large / SLOPE_SIZES[1]",
        ),
    },
    (
        "vitcli/training/methods/believing.py",
        "tests/training/methods/test_believing.py::test_no_image_of_those_that_choose_the_distance_is_flagged_by_it_as_it_is_stored",
    ): {
        "a stored distance is rounded down": ("-_rounded_down(-chosen[0])", "_rounded_down(chosen[0])"),
    },
    ("vitcli/training/methods/thresholds.py", "tests/training/methods/test_thresholds.py"): {
        "images of other classes calibrate a network": (
            "return split if is_same and not split.is_large else choice",
            "return split",
        ),
    },
    (
        "vitcli/training/many_runs/parallel_runs.py",
        "tests/training/test_sweep.py::test_runs_side_by_side_are_each_on_a_gpu_of_its_own_among_those_that_may_be_used",
    ): {
        "all runs are on the first GPU": (
            "visible[slot] if slot < len(visible) else str(slot)",
            "visible[0] if visible else str(slot)",
        ),
    },
    (
        "vitcli/training/many_runs/sweep_results.py",
        "tests/training/test_sweep_results.py::test_intervals_that_touch_cannot_be_told_apart",
    ): {
        "intervals that touch are told apart": (
            'choice["dev_interval"][1] >= best["dev_interval"][0]',
            'choice["dev_interval"][1] > best["dev_interval"][0]',
        ),
    },
    (
        "vitcli/training/many_runs/folds.py",
        "tests/training/many_runs/test_folds.py::test_a_limit_of_time_is_shared_by_the_runs_that_follow_one_another",
    ): {
        "the run on all images has no part of the time": (
            "ceil(self.recipe.train.folds / max(1, self.options.arms_parallel)) + 1",
            "ceil(self.recipe.train.folds / max(1, self.options.arms_parallel))",
        ),
    },
    (
        "vitcli/cli/exit_codes.py",
        "tests/cli/test_app.py::test_an_error_of_all_processes_is_printed_by_the_first_and_one_of_a_single_process_by_that_one",
    ): {
        "every process prints the same error": (
            'if os.environ.get("LOCAL_RANK", "0") == "0" or hasattr(error, "rank")',
            "if True",
        ),
    },
    (
        "vitcli/cli/exit_codes.py",
        "tests/test_credentials.py::test_a_report_of_a_bug_has_the_traceback_without_a_password",
    ): {
        "a password is in the report of a bug": (
            'file.write(hide_credentials("".join(traceback.format_exception(error))))',
            'file.write("".join(traceback.format_exception(error)))',
        ),
    },
    (
        "vitcli/cli/checkpoints.py",
        "tests/cli/test_app.py::test_the_points_that_a_gate_allows_to_be_lost_are_hundredths_of_the_images",
    ): {
        "a gate lets half of the images be lost": (
            "max_drop=(0.5 if max_drop is None else max_drop) / 100",
            "max_drop=(0.5 if max_drop is None else max_drop)",
        ),
    },
    (
        "vitcli/cli/checkpoints.py",
        "tests/cli/test_app.py::test_what_belongs_to_a_gate_is_refused_without_one",
    ): {
        "a split without a gate is ignored": (
            "if gate is None and (split, max_drop) != (None, None)",
            "if gate is None and max_drop is not None",
        ),
    },
    ("vitcli/weights/imagenet.py", "tests/weights/test_imagenet.py::test_only_an_imagenet_head_is_one"): {
        "train1k is ImageNet-1k": ("(?<![a-z0-9])(in1k", "(in1k"),
    },
    (
        "vitcli/weights/timm.py",
        "tests/weights/test_timm.py::test_timm_crops_what_we_crop_and_the_whole_where_we_resize_nothing",
    ): {
        "timm crops what is not resized": (
            '"crop_pct": 1.0 if preprocessing["resize"] == "none" else preprocessing["crop_fraction"]',
            '"crop_pct": preprocessing["crop_fraction"]',
        ),
    },
    (
        "vitcli/experiments/reproduce.py",
        "tests/experiments/test_reproduce.py::test_vtab_is_the_mean_over_tasks_run_by_run",
    ): {
        "the time of 19 tasks is that of the longest": (
            'sum(summary["elapsed_s"] for summary in summaries.values())',
            'max(summary["elapsed_s"] for summary in summaries.values())',
        ),
    },
    # Drawn at random over all packages.
    (
        "vitcli/data/checks/near_duplicates.py",
        "tests/data/checks/test_near_duplicates.py::test_a_run_would_train_on_what_is_searched_unless_that_is_other_data",
    ): {
        "other data are what a run would train on": (
            "return 0 if against.dataset else min(1, len(opened) - 1)",
            "return min(1, len(opened) - 1)",
        ),
    },
    (
        "vitcli/data/checks/near_duplicates.py",
        "tests/data/checks/test_near_duplicates.py::test_the_closest_of_all_pairs_are_shown_whichever_block_they_are_found_in",
    ): {
        "the pairs found first are the closest": (
            "self.closest = sorted([*self.closest, *map(tuple, first.tolist())])[:SHOWN_PAIRS]",
            "self.closest = [*self.closest, *map(tuple, first.tolist())][:SHOWN_PAIRS]",
        ),
    },
    (
        "vitcli/evaluation/belief/temperature.py",
        "tests/evaluation/belief/test_temperature.py::test_ten_right_answers_are_no_reason_to_be_less_sure",
    ): {
        "ten right answers make a network less sure": (
            "return temperature if gain_N.sum() > 0 else 1.0",
            "return temperature",
        ),
    },
    (
        "vitcli/evaluation/regression.py",
        "tests/evaluation/test_regression.py::test_a_network_is_compared_with_always_the_mean_of_the_training_images",
    ): {
        "a network is compared with the mean of its test images": (
            "np.abs(predictions.targets_N - target.mean).mean()",
            "np.abs(predictions.targets_N - predictions.targets_N.mean()).mean()",
        ),
    },
    (
        "vitcli/training/many_runs/average_inputs.py",
        "tests/training/many_runs/test_average_choice.py::test_runs_come_in_the_order_of_their_seeds",
    ): {
        "seed 10 comes before seed 9": (
            "key=lambda path: (len(path.name), path.name)",
            "key=lambda path: path.name",
        ),
    },
    (
        "vitcli/export/images.py",
        "tests/export/test_calibration.py::test_networks_are_compared_on_images_from_the_whole_of_a_split",
    ): {
        "int8 is compared on few images": (
            'most = NUM_IMAGES if precision == "fp32" else MAX_IMAGES',
            "most = NUM_IMAGES",
        ),
        "a file is compared on the first class of a gate": (
            "return Images(evenly(gate_split, MAX_IMAGES))",
            "return Images(gate_split.part(0, min(MAX_IMAGES, len(gate_split)), name=gate_split.name))",
        ),
    },
    (
        "vitcli/training/many_runs/sweep_results.py",
        "tests/training/test_sweep_results.py::test_held_out_images_that_every_arm_had_seen_are_counted_once",
    ): {
        "images that all arms have seen count for each arm": (
            'max((arm.get("num_held_out_seen") or 0 for arm in arms), default=0)',
            'sum(arm.get("num_held_out_seen") or 0 for arm in arms)',
        ),
    },
    (
        "vitcli/distributed/transfer.py",
        "tests/training/test_queued_device.py::test_a_computation_waits_for_its_batch_whose_memory_stays_until_the_computation_is_done",
    ): {
        "a computation waits for no copy": ("        computing.wait_stream(self._stream)\n", ""),
    },
    (
        "vitcli/recipe/toml.py",
        "tests/recipe/test_recipe.py::test_a_section_that_one_of_two_recipes_lacks_is_a_difference_either_way",
    ): {
        "a section that the first of two recipes lacks is no difference": (
            "for name in {**left, **right}}",
            "for name in left}",
        ),
    },
    (
        "vitcli/recipe/__init__.py",
        "tests/recipe/test_recipe.py::test_a_value_of_a_section_that_a_recipe_lacks_comes_from_nowhere",
    ): {
        "sections that a recipe lacks have values": (
            "(set(SECTIONS) - set(OPTIONAL_SECTIONS))",
            "set(SECTIONS)",
        ),
    },
    (
        "vitcli/output/text.py",
        "tests/training/test_probe_head.py::test_a_line_tells_the_parts_of_a_mixture_in_the_order_of_their_names",
    ): {
        "the parts of a mixture are exchanged": (
            "{1 - alpha:.0%} probe head, {alpha:.0%} fine-tuned",
            "{alpha:.0%} probe head, {1 - alpha:.0%} fine-tuned",
        ),
    },
    (
        "vitcli/export/usage.py",
        "tests/export/test_usage.py::test_transformers_loads_a_network_without_classes_as_one_that_gives_features",
    ): {
        "a network without classes is loaded as a classifier": (
            '"AutoModelForImageClassification" if has_classes else "AutoModel"',
            '"AutoModelForImageClassification"',
        ),
    },
    (
        "vitcli/distributed/failures.py",
        "tests/distributed/test_launch.py::test_a_run_that_ctrl_c_has_stopped_ends_with_130_whichever_process_got_it",
    ): {
        "Ctrl-C ends several processes with 143": (
            "return 130 if 130 in codes.values() else 143",
            "return 143",
        ),
    },
    (
        "vitcli/distributed/failures.py",
        "tests/distributed/test_launch.py::test_of_two_killed_processes_the_first_is_named",
    ): {
        "the last of two killed processes is named": (
            "raise _killed(killed[0], failures[killed[0]])",
            "raise _killed(killed[-1], failures[killed[-1]])",
        ),
    },
    (
        "vitcli/weights/pretrained.py",
        "tests/weights/test_pretrained.py::test_a_tag_tells_the_images_of_its_paper_in_the_order_of_training",
    ): {
        "DINO was trained on ImageNet-21k": ('"dino": "in1k"', '"dino": "in21k"'),
    },
    (
        "vitcli/models/flops.py",
        "tests/models/test_variants.py::test_the_activations_of_vit_b_16_are_17_values_a_token_with_its_class_token",
    ): {
        "the class token takes no memory": (
            "(height * width + 1) * variant.hidden",
            "(height * width) * variant.hidden",
        ),
    },
    (
        "vitcli/output/cache_listing.py",
        "tests/output/test_user_cache.py::test_what_is_kept_is_what_was_there_without_what_went",
    ): {
        "what was deleted is kept": (
            "sum(entry.num_bytes for entry in entries if entry not in deleted)",
            "sum(entry.num_bytes for entry in entries)",
        ),
    },
    (
        "vitcli/distributed/runtime.py",
        "tests/distributed/test_runtime.py::test_bf16_is_of_a_cpu_that_multiplies_it",
    ): {
        "any AVX512 multiplies bf16": (
            '"avx512_bf16" in flags or "amx_bf16" in flags',
            '"avx512" in flags or "amx_bf16" in flags',
        ),
    },
    (
        "vitcli/export/calibration.py",
        "tests/export/test_calibration.py::test_the_scales_of_int8_are_measured_on_training_images",
    ): {
        "the scales of int8 are measured on test images": (
            "name = recipe.data.train_split",
            "name = recipe.data.eval_split",
        ),
    },
    (
        "vitcli/experiments/study.py",
        "tests/experiments/test_study.py::test_the_compute_of_a_plan_is_that_of_all_runs_that_are_counted",
    ): {
        "the compute of a study is that of its largest run": (
            'sum(cell["exaflops"] or 0.0 for cell in cells)',
            'max(cell["exaflops"] or 0.0 for cell in cells)',
        ),
    },
    (
        "vitcli/distributed/fsdp.py",
        "tests/distributed/test_fsdp.py::test_what_is_gathered_by_itself_is_each_block_of_a_network",
    ): {
        "all blocks are gathered at once": (
            'name.split(".")[-2:-1] == ["blocks"]',
            'name.split(".")[-1:] == ["blocks"]',
        ),
    },
    (
        "vitcli/training/methods/early_stopping.py",
        "tests/training/test_early_stopping.py::test_an_evaluation_that_is_made_again_after_an_interruption_counts_once",
    ): {
        "an evaluation made again counts again": ("if step == self.last_step:", "if False:"),
    },
    (
        "vitcli/cli/hints.py",
        "tests/cli/test_app.py::test_an_option_of_other_programs_is_answered_with_ours_if_the_command_has_it",
    ): {
        "--batch is the batch of a device": ('"--batch": "--batch-size"', '"--batch": "--per-device-batch"'),
        "an option is answered with one that the command lacks": (
            "elif OPTIONS.get(name_here) in options:",
            "elif OPTIONS.get(name_here):",
        ),
    },
    (
        "vitcli/weights/average.py",
        "tests/weights/test_average.py::test_files_and_networks_have_the_same_tensors_either_way",
    ): {
        "a tensor of the file alone is dropped from an average": (
            "sorted(set(state) ^ set(weights_names))",
            "sorted(set(state) - set(weights_names))",
        ),
    },
    (
        "vitcli/evaluation/belief/familiar.py",
        "tests/evaluation/belief/test_familiar.py::test_statistics_of_more_than_16_megabytes_are_not_kept",
    ): {
        "a covariance of any size is stored": (
            "num_classes * width + width * (width + 1) // 2 > MOST_NUMBERS",
            "num_classes * width + width > MOST_NUMBERS",
        ),
    },
    (
        "vitcli/data/shards/rows.py",
        "tests/data/shards/test_rows.py::test_every_row_is_in_one_block_and_no_other_row_in_any",
    ): {
        "there is a row behind the last": ("if not 0 <= row < starts[-1]:", "if not 0 <= row <= starts[-1]:"),
    },
    (
        "vitcli/training/many_runs/sweep_results.py",
        "tests/training/test_sweep_results.py::test_the_speed_of_several_runs_is_all_their_images_by_all_their_time",
    ): {
        "the memory of several runs is that of the first": (
            'max(summary["peak_memory_gib"] for summary in summaries)',
            'summaries[0]["peak_memory_gib"]',
        ),
        "the speed of several runs is by the time of one": (
            'seconds = sum(final["elapsed_s"] for final in finals)',
            'seconds = finals[0]["elapsed_s"]',
        ),
    },
    (
        "vitcli/data/shards/remote.py",
        "tests/data/shards/test_rows.py::test_bytes_of_a_server_that_never_tells_of_a_change_are_not_kept",
    ): {
        "bytes that may change unseen are kept": ("if self.is_local or not self.stamp:", "if self.is_local:"),
    },
    (
        "vitcli/output/user_cache.py",
        "tests/output/test_user_cache.py::test_no_more_is_deleted_than_what_is_too_much",
    ): {
        "a cache of the size to keep loses an entry": (
            "if keep_bytes is not None and used <= keep_bytes:",
            "if keep_bytes is not None and used < keep_bytes:",
        ),
    },
    (
        "vitcli/training/methods/delivery.py",
        "tests/training/test_probe_head.py::test_weights_that_are_always_wrong_come_before_weights_whose_outputs_are_no_numbers",
    ): {
        "outputs that are no numbers are as good as wrong ones": (
            "-1.0 if scores[alpha] is None else scores[alpha]",
            "0.0 if scores[alpha] is None else scores[alpha]",
        ),
    },
    (
        "vitcli/features/suspects.py",
        "tests/features/test_suspects.py::test_features_that_know_fewer_than_four_in_five_images_name_no_label",
    ): {
        "features that know no class name labels": ("if top1 >= LEAST_KNOWN else 0", "if top1 > 0 else 0"),
    },
    (
        "vitcli/data/checks/findings.py",
        "tests/data/checks/test_findings.py::test_classes_of_one_to_four_images_are_small_and_those_of_none_are_empty",
    ): {
        "classes without images are small ones": ("if 0 < count < FEW_IMAGES}", "if count < FEW_IMAGES}"),
    },
    (
        "vitcli/data/checks/near_duplicates.py",
        "tests/data/checks/test_near_duplicates.py::test_an_image_with_an_exact_copy_is_not_one_with_a_near_copy_as_well",
    ): {
        "an image with an exact copy has a near one as well": (
            "(self.has_pair[2] & ~is_exact_N).sum()",
            "self.has_pair[2].sum()",
        ),
    },
    (
        "vitcli/data/checks/near_duplicates.py",
        "tests/data/checks/test_near_duplicates.py::test_equal_images_contradict_each_other_by_the_names_of_their_classes",
    ): {
        "images that are merely alike contradict each other": (
            'block_P4[block_P4[:, 0] < KINDS.index("near")]',
            "block_P4",
        ),
        "classes of two splits are compared by their numbers": (
            "np.array([codes[name] for name in labels.class_names])[labels.labels] for labels",
            "labels.labels for labels",
        ),
    },
    ("vitcli/data/checks/sizes.py", "tests/data/checks/test_sizes.py"): {
        "one image in four is among the smallest 5 %": (
            "(0.0, 0.05, 0.5, 0.95, 1.0)",
            "(0.0, 0.25, 0.5, 0.75, 1.0)",
        ),
        "unreadable images shift the places of odd ones": (
            "split.where_is(int(hashes.rows_N[i]))",
            "split.where_is(int(i))",
        ),
    },
    ("vitcli/data/checks/classes.py", "tests/data/checks/test_classes.py"): {
        "all labels of a stream are read": ("if opened.is_large:", "if False:"),
        "labels that are no classes are called no numbers": (
            "return None, reasons[0]",
            "return None, reasons[-1]",
        ),
        "labels of another table are taken": ("if len(opened) != num_images:", "if False:"),
    },
    (
        "vitcli/data/checks/check.py",
        "tests/data/checks/test_findings.py::test_pairs_within_a_large_split_are_searched_for_only_if_asked",
    ): {
        "a large split that is named is not compared with itself": (
            "len(one.split) <= MOST_WITHIN or (len(examined) == 1 and is_named)",
            "len(one.split) <= MOST_WITHIN",
        ),
    },
    (
        "vitcli/data/checks/text.py",
        "tests/data/checks/test_findings.py::test_numbers_and_several_labels_are_described",
    ): {
        "several labels are to be trained by the softmax": (
            '{"several": "sigmoid", "number": "regression"}',
            '{"several": "softmax", "number": "regression"}',
        ),
    },
    (
        "vitcli/data/shards/remote.py",
        "tests/data/shards/test_rows.py::test_a_refusal_is_not_tried_again_and_a_failure_three_times",
    ): {
        "a server that forbids is asked four times": ("REFUSALS = (401, 403)", "REFUSALS = (401,)"),
    },
    (
        "vitcli/data/shards/remote.py",
        "tests/data/shards/test_rows.py::test_a_shard_is_missing_where_the_server_says_so_and_not_where_it_fails",
    ): {
        "a shard that is gone for good is looked for again": ("MISSING = (404, 410)", "MISSING = (404,)"),
    },
    (
        "vitcli/data/shards/kept_blocks.py",
        "tests/data/shards/test_rows.py::test_a_link_in_the_place_of_a_kept_block_is_not_followed",
    ): {
        "a link in the cache is followed": (
            "os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC",
            "os.O_RDONLY | os.O_CLOEXEC",
        ),
    },
    (
        "vitcli/data/shards/webdataset.py",
        "tests/data/shards/test_rows.py::test_a_shard_of_no_samples_by_its_count_file_is_not_read",
    ): {
        "shards without samples are read all the same": ("if count >= 0:", "if count > 0:"),
    },
    (
        "vitcli/data/shards/webdataset.py",
        "tests/data/shards/test_rows.py::test_of_two_count_files_the_first_to_be_looked_for_is_right",
    ): {
        "the last of two count files is right": (
            "counts = _counts_in(parse_json(content)) | counts",
            "counts |= _counts_in(parse_json(content))",
        ),
    },
    (
        "vitcli/data/shards/parquet.py",
        "tests/data/shards/test_rows.py::test_a_row_group_of_any_place_must_fit_into_the_cache",
    ): {
        "the smallest row group has to fit into the cache": ("    largest = max(\n", "    largest = min(\n"),
    },
    (
        "vitcli/data/shards/rows.py",
        "tests/data/shards/test_rows.py::test_a_label_that_is_read_late_is_one_of_the_classes_or_refused_by_its_row",
    ): {
        "a label that is read late may be one too high": (
            "if not all(value is not None and 0 <= value < self.num_classes for value in labels):",
            ("if not all(value is not None and 0 <= value <= self.num_classes for value in labels):"),
        ),
    },
    (
        "vitcli/distributed/launch.py",
        "tests/distributed/test_launch.py::test_the_cores_are_shared_by_the_processes_unless_their_threads_are_given",
    ): {
        "every process takes the threads of all": ("max(1, cpu_count() // num_processes)", "cpu_count()"),
    },
    (
        "vitcli/distributed/launch.py",
        "tests/distributed/test_launch.py::test_the_memory_of_a_container_counts_by_its_bound",
    ): {
        "a container that is too full has a byte left": ("max(0.0, bound - taken", "max(1.0, bound - taken"),
    },
    (
        "vitcli/distributed/launch.py",
        "tests/distributed/test_launch.py::test_free_memory_is_what_is_available_here_and_in_the_container",
    ): {
        "memory in use is free": ("psutil.virtual_memory().available", "psutil.virtual_memory().total"),
    },
    (
        "vitcli/distributed/runtime.py",
        "tests/distributed/test_runtime.py::test_after_the_end_of_a_run_a_process_is_the_only_one_on_its_device",
    ): {
        "the only process has the rank that it had": (
            "device=self.device, process_index=0, num_processes=1,",
            "device=self.device, process_index=self.rank, num_processes=1,",
        ),
    },
    (
        "vitcli/distributed/runtime.py",
        "tests/distributed/test_runtime.py::test_a_cpu_computes_in_bf16_by_itself_where_it_multiplies_it",
    ): {
        "a CPU is given fp16": ('if precision == "fp16" and not has_gpu:', "if False:"),
    },
    (
        "vitcli/distributed/accelerate_settings.py",
        "tests/distributed/test_accelerate_settings.py::test_what_changes_no_number_stays_and_all_other_settings_are_taken_out",
    ): {
        "the cores that accelerate gives are forgotten": (
            ('HARMLESS = {"ACCELERATE_DEBUG_MODE", "ACCELERATE_CPU_AFFINITY", "ACCELERATE_LOG_LEVEL"}'),
            'HARMLESS = {"ACCELERATE_DEBUG_MODE", "ACCELERATE_LOG_LEVEL"}',
        ),
    },
    (
        "vitcli/distributed/accelerate_settings.py",
        "tests/distributed/test_accelerate_settings.py::test_a_switch_is_on_by_the_words_of_accelerate",
    ): {
        'a switch of accelerate that is on by "yes" is off': (
            '("true", "1", "yes", "y", "t", "on")',
            '("true", "1")',
        ),
    },
    (
        "vitcli/distributed/transfer.py",
        "tests/training/test_queued_device.py::test_a_constant_is_a_float32_product_of_float32_numbers",
    ): {
        "means of pixels are rounded once and not twice": (
            "(torch.tensor(values, dtype=torch.float32) * scale)",
            "(torch.tensor(values, dtype=torch.float64) * scale).float()",
        ),
    },
    (
        "vitcli/distributed/peers.py",
        "tests/distributed/test_peers.py::test_another_process_is_waited_for_as_long_as_is_said",
    ): {
        "beats go on when all processes have left": ("num_left = int(left)", "num_left = 0"),
        "a silent process is waited for as long as the main thread works": (
            "if max(silent_s, waited_s) > self.longest_s",
            "if min(silent_s, waited_s) > self.longest_s",
        ),
    },
    ("vitcli/evaluation/statistics.py", "tests/evaluation/test_statistics.py"): {
        "the accuracy of ten images is resampled": ("ENOUGH_TO_RESAMPLE = 50", "ENOUGH_TO_RESAMPLE = 5"),
        "the images of a fraction are rounded down": (
            "round(accuracy * num_examples)",
            "int(accuracy * num_examples)",
        ),
    },
    (
        "vitcli/evaluation/regression.py",
        "tests/evaluation/test_regression.py::test_a_run_reports_errors_and_evaluate_and_predict_agree_with_it",
    ): {
        "numbers of images that were left out shift the others": (
            "targets_N = split.read_labels()[rows_N]",
            "targets_N = split.read_labels()[: len(rows_N)]",
        ),
    },
    (
        "vitcli/evaluation/regression.py",
        "tests/evaluation/test_regression.py::test_intervals_are_quantiles_of_resampled_errors",
    ): {
        "resamples of nearly equal numbers have no R2": ("1e-12 * max(", "1e-2 * max("),
        "errors of a million images have a hundred resamples": (
            "np.clip(MOST_DRAWS // count, FEWEST_RESAMPLES, RESAMPLES)",
            "np.clip(MOST_DRAWS // count, 1, RESAMPLES)",
        ),
    },
    (
        "vitcli/evaluation/several_labels.py",
        "tests/evaluation/test_several_labels.py::test_average_precision_and_f1_are_those_of_scikit_learn",
    ): {
        "a class without images has an F1 of 0": (
            "return np.where(hot_NK.any(axis=0), 2 * hits",
            "return np.where(hot_NK.any(axis=0) | True, 2 * hits",
        ),
    },
    (
        "vitcli/evaluation/predict.py",
        "tests/evaluation/test_several_labels.py::test_classes_are_given_by_their_thresholds_the_likeliest_first",
    ): {
        "a class whose threshold is just reached is not given": (
            "if margins_K[k] >= 0]",
            "if margins_K[k] > 0]",
        ),
        "the margin is that of the farthest class": (
            '"margin": float(margins_K.abs().min())',
            '"margin": float(margins_K.abs().max())',
        ),
    },
    (
        "vitcli/evaluation/inference.py",
        "tests/evaluation/test_inference.py::test_processes_ask_whether_to_stop_as_often_as_the_one_with_the_fewest_batches",
    ): {
        "a process asks whether to stop when others are done": (
            "math.ceil(len(split) / self.batch_size) // world_size",
            "math.ceil(len(split) / self.batch_size)",
        ),
    },
    (
        "vitcli/evaluation/belief/selective.py",
        "tests/evaluation/belief/test_selective.py::test_below_the_goal_the_most_accurate_threshold_is_recommended_and_of_equals_the_lowest",
    ): {
        "the highest of equal thresholds is recommended": (
            "(point.accuracy, -point.threshold)",
            "(point.accuracy, point.threshold)",
        ),
    },
    (
        "vitcli/evaluation/belief/temperature.py",
        "tests/evaluation/belief/test_temperature.py::test_a_temperature_counts_only_where_rows_show_it",
    ): {
        "a temperature has two digits": ("DIGITS = 6", "DIGITS = 2"),
    },
    (
        "vitcli/evaluation/belief/results.py",
        "tests/evaluation/belief/test_results.py::test_each_half_of_the_rows_or_groups_is_judged_by_the_numbers_of_the_other",
    ): {
        "the calibration error is that without the temperature": (
            "bins = reliability(calibrated_NK.max(axis=1), predictions.is_right_N)",
            "bins = reliability(np.exp(log_p_NK).max(axis=1), predictions.is_right_N)",
        ),
    },
    (
        "vitcli/export/golden.py",
        "tests/export/test_onnx_file.py::test_golden_answers_are_those_of_vit_predict_and_are_repeated",
    ): {
        "golden images are the first of a split": (
            "np.unique(np.linspace(0, len(split) - 1, NUM_IMAGES).round().astype(int))",
            "np.arange(min(NUM_IMAGES, len(split)))",
        ),
    },
    (
        "vitcli/export/images.py",
        "tests/export/test_onnx_file.py::test_a_gate_is_for_weights_that_have_an_accuracy",
    ): {
        "a gate is opened for several labels": (
            (
                "    elif several_labels_of(weights.metadata, arch.num_classes):\n"
                '        kind = "several labels per image"\n'
            ),
            "",
        ),
    },
    ("vitcli/export/calibration.py", "tests/export/test_calibration.py"): {
        "scales of int8 are measured on a dozen images": ("NUM_IMAGES = 128", "NUM_IMAGES = 12"),
        "all images that are named are measured for int8": (
            'return evenly(find_images(given, where="--calibrate"), NUM_IMAGES)',
            'return find_images(given, where="--calibrate")',
        ),
        "scales of int8 are measured on pixels that the file does not take": (
            'image_HWC if form.input == "images" else form.preprocessing(image_HWC)',
            "image_HWC",
        ),
    },
    (
        "vitcli/export/usage.py",
        "tests/export/test_usage.py::test_a_section_between_its_marks_is_replaced_and_all_else_is_kept",
    ): {
        "two sections on loading are both replaced": (
            "return changed if count == 1 else None",
            "return changed if count else None",
        ),
    },
    (
        "vitcli/export/usage.py",
        "tests/export/test_usage.py::test_the_card_says_what_the_conversion_may_have_lost",
    ): {
        "a drop is a hundred times too small in a card": (
            "at most {verdict['highest_drop']:.2%}",
            "at most {verdict['highest_drop']:.2f} %",
        ),
    },
    (
        "vitcli/export/onnx_process.py",
        "tests/export/test_onnx_file.py::test_a_process_for_an_onnx_file_writes_nothing_and_ends_in_time",
    ): {
        "an ONNX file may compute ten times as long": (
            "resource.RLIMIT_CPU: seconds * num_threads",
            "resource.RLIMIT_CPU: 10 * seconds * num_threads",
        ),
        "an ONNX file may write files": ("resource.RLIMIT_FSIZE: 0, ", ""),
    },
    (
        "vitcli/features/wrong_labels.py",
        "tests/features/test_wrong_labels.py::test_unreadable_files_and_copies_are_named_beside_the_suspects",
    ): {
        "unreadable images are the only ones of their class": (
            '"num_only_of_class": len(rows_N) - len(found.rows_N)',
            '"num_only_of_class": len(split) - len(found.rows_N)',
        ),
        "unreadable images shift the rows of wrong labels": (
            ('"row": int(rows_N[i]),\n            "place"'),
            ('"row": int(i),\n            "place"'),
        ),
    },
    (
        "vitcli/features/classifiers.py",
        "tests/features/test_draws.py::test_the_nearest_mean_is_that_of_unit_features",
    ): {
        "a class without images is nearer than an opposite one": (
            "cosine_TK[:, is_empty_K] = -np.inf",
            "pass",
        ),
    },
    (
        "vitcli/features/forecast.py",
        "tests/features/test_forecast.py::test_a_flat_curve_is_near_its_floor_and_a_steep_one_is_not",
    ): {
        "twice the images decide how near the floor is": (
            "predictions[str(max(times))]",
            "predictions[str(min(times))]",
        ),
    },
    (
        "vitcli/features/left_out.py",
        "tests/features/test_choose.py::test_of_strengths_that_have_all_rows_right_the_largest_is_chosen",
    ): {
        "the smallest of equally good l2 is chosen": (
            "(hits_NL[:, i].sum(), solution.l2[i])",
            "(hits_NL[:, i].sum(), -solution.l2[i])",
        ),
    },
    (
        "vitcli/features/left_out.py",
        "tests/features/test_choose.py::test_rows_without_tokens_are_not_scored_and_the_others_by_queries_of_the_other_half",
    ): {
        "queries are scored by the images that taught them": (
            "left_out(queries.pool(tokens_MTD), of_tokens, half_M != half)",
            "left_out(queries.pool(tokens_MTD), of_tokens, half_M == half)",
        ),
    },
    (
        "vitcli/features/layers.py",
        "tests/features/test_choose.py::test_rows_are_drawn_once_each_and_in_ascending_order",
    ): {
        "an image is drawn twice": (
            "return np.sort(np.random.default_rng(SEED).choice(num_rows, most, replace=False))",
            "return np.random.default_rng(SEED).choice(num_rows, most, replace=True)",
        ),
    },
    (
        "vitcli/features/attentive.py",
        "tests/features/test_choose.py::test_tokens_are_standardised_by_those_that_queries_are_learnt_from",
    ): {
        "tokens are divided by their size and not their deviation": (
            "np.sqrt(np.maximum(sums_2D[1] / count - mean_D**2, 0)) + STD_ADDED",
            "np.sqrt(np.maximum(sums_2D[1] / count, 0)) + STD_ADDED",
        ),
    },
    (
        "vitcli/inspection/collect.py",
        "tests/inspection/test_analysis.py::test_uniform_attention_is_given_to_every_token_and_looks_nowhere_at_those_before_the_patches",
    ): {
        "uniform attention knows one token besides the patches": (
            "num_patches / (num_patches + layout.num_prefix)",
            "num_patches / (num_patches + 1)",
        ),
    },
    (
        "vitcli/inspection/why.py",
        "tests/inspection/test_why.py::test_the_head_of_a_few_shot_run_has_the_scores_of_the_closed_form",
    ): {
        "the runner-up is the unlikeliest class": (
            "next(k for k in logits_K.argsort(descending=True, stable=True)",
            "next(k for k in logits_K.argsort(stable=True)",
        ),
    },
    ("vitcli/models/masked_patch.py", "tests/models/test_corruption.py"): {
        "all images have the same patches corrupted": (
            "torch.Generator().manual_seed(seed))",
            "torch.Generator().manual_seed(0))",
        ),
    },
    (
        "vitcli/output/text.py",
        "tests/output/test_text.py::test_a_duration_has_the_unit_a_person_would_take",
    ): {
        "minutes are rounded down": ("minutes = round(seconds / 60)", "minutes = int(seconds / 60)"),
    },
    (
        "vitcli/output/text.py",
        "tests/output/test_text.py::test_folds_say_what_a_random_split_would_have_flattered_by",
    ): {
        "a random split that flatters is shown to do the opposite": (
            "100 * (at_random - by_groups):+.1f",
            "100 * (by_groups - at_random):+.1f",
        ),
    },
    (
        "vitcli/recipe/__init__.py",
        "tests/recipe/test_recipe.py::test_a_run_shorter_than_its_warmup_keeps_the_fraction_that_the_recipe_has",
    ): {
        "a warm-up that was asked for is shortened": (
            'if sources[WARMUP].startswith("option ") or not',
            "if not",
        ),
    },
    (
        "vitcli/recipe/group_rule.py",
        "tests/data/parts/test_groups.py::test_images_of_up_to_six_differing_bits_are_one_group",
    ): {
        "images of ten differing bits are one group": ("NEAR_DISTANCE = 6", "NEAR_DISTANCE = 10"),
    },
    (
        "vitcli/report/costs.py",
        "tests/report/test_report.py::test_whether_a_run_lives_is_told_by_its_lock_file_on_this_machine",
    ): {
        "a run that has stopped will end in some minutes": (
            'duration(now.seconds_left) if now.is_live is not False else ""',
            "duration(now.seconds_left)",
        ),
    },
    (
        "vitcli/report/accuracy.py",
        "tests/report/test_report.py::test_vtab_is_one_row_and_its_tasks_a_table",
    ): {
        "the score of VTAB is that of natural images": (
            "fraction_cell(summary.top1, note=note)",
            "fraction_cell(summary.groups.get('natural'), note=note)",
        ),
    },
    (
        "vitcli/training/optim.py",
        "tests/training/test_optim.py::test_adam_steps_are_those_of_the_formula_with_decay_apart_from_the_gradient",
    ): {
        "Adam's epsilon is that of torch": (
            "lr=0.0, betas=betas, eps=eps, fused=fused",
            "lr=0.0, betas=betas, fused=fused",
        ),
    },
    (
        "vitcli/training/gradients.py",
        "tests/training/test_gradients.py::test_what_is_left_of_a_tree_is_added_from_the_right",
    ): {
        "what is left of a tree of sums is added from the left": (
            ("total = sums.pop()\n    while sums:\n        left = sums.pop()"),
            ("total = sums.pop(0)\n    while sums:\n        left = sums.pop(0)"),
        ),
    },
    (
        "vitcli/training/results.py",
        "tests/training/test_finetune.py::test_an_unreadable_image_before_a_stop_is_counted_by_the_run_that_goes_on",
    ): {
        "ten of the images that were left out are named": (
            '"skipped_images": sorted(skipped)[:100]',
            '"skipped_images": sorted(skipped)[:10]',
        ),
    },
    (
        "vitcli/training/methods/believing.py",
        "tests/training/methods/test_groups_left_out.py::test_the_groups_of_the_data_reach_the_head_and_what_is_believed_of_it",
    ): {
        "images without labels show what may be believed": ('& (columns["labels"] >= 0)', ""),
    },
    (
        "vitcli/training/methods/imbalance.py",
        "tests/training/methods/test_imbalance.py::test_the_rule_of_classes_is_that_of_the_loss_and_else_that_of_drawing",
    ): {
        "weights of classes in the loss are no balance": (
            "rules = (recipe.objective.class_weights, recipe.data.sampling)",
            "rules = (recipe.data.sampling,)",
        ),
    },
    (
        "vitcli/training/methods/time_limit.py",
        "tests/training/test_time_limit.py::test_a_run_is_planned_again_if_it_ends_a_hundredth_late_or_three_early",
    ): {
        "a run may end a third of its time early": (
            "late_s < -EARLY * self.limit_s",
            "late_s < -10 * EARLY * self.limit_s",
        ),
    },
    (
        "vitcli/training/methods/time_limit.py",
        "tests/training/test_time_limit.py::test_a_run_that_is_killed_loses_a_twentieth_of_its_time_or_five_seconds",
    ): {
        "a killed run of an hour has saved every five seconds": (
            "max(LEAST_SAVED_S, self.limit_s * SAVED_AFTER)",
            "min(LEAST_SAVED_S, self.limit_s * SAVED_AFTER)",
        ),
    },
    (
        "vitcli/training/many_runs/average.py",
        "tests/training/many_runs/test_average.py::test_each_method_is_the_arithmetic_of_its_paper",
    ): {
        "the mean accuracy of runs is their best": (
            'mean(run.summary["top1"] for run in task.runs)',
            'max(run.summary["top1"] for run in task.runs)',
        ),
    },
    (
        "vitcli/training/many_runs/folds.py",
        "tests/training/many_runs/test_folds.py::test_what_all_folds_took_is_added_and_their_deviation_is_that_of_a_sample",
    ): {
        "the deviation of folds is that of a population": (
            '"std": stdev(accuracies)',
            '"std": float(np.std(accuracies))',
        ),
    },
    (
        "vitcli/training/many_runs/parallel_runs.py",
        "tests/training/test_sweep.py::test_runs_side_by_side_share_the_cores_and_have_the_options_of_the_sweep",
    ): {
        "runs side by side each take all cores": (
            "max(1, launch.cpu_count() // options.arms_parallel)",
            "launch.cpu_count()",
        ),
    },
    (
        "vitcli/weights/interpolate.py",
        "tests/weights/test_interpolate.py::test_the_tokens_and_operations_of_a_network_are_counted_by_hand",
    ): {
        "a billion operations are 2^30": ("forward_macs(arch) / 1e9", "forward_macs(arch) / 2**30"),
    },
    (
        "vitcli/weights/licences.py",
        "tests/weights/test_licences.py::test_a_run_of_vit_is_asked_first_then_its_start_then_the_files_beside_the_weights",
    ): {
        "the licence of the start counts before that of the run": (
            (
                "        lambda: _name(metadata.get(KEY)),\n"
                '        lambda: licence_of_name(metadata.get("from")),'
            ),
            (
                '        lambda: licence_of_name(metadata.get("from")),\n'
                "        lambda: _name(metadata.get(KEY)),"
            ),
        ),
    },
    ("vitcli/weights/timm.py", "tests/weights/test_timm.py"): {
        "a config without classes has no head": (
            'stored.get("num_classes", 1000)',
            'stored.get("num_classes", 0)',
        ),
        "images are padded in silence": (
            'stored.get("crop_mode") == "border" or float',
            'stored.get("crop_mode") == "borders" or float',
        ),
        "registers are taken to have rows": (
            "is_ambiguous = num_prefix > 1 and is_square_without",
            "is_ambiguous = False",
        ),
        "two poolings are one network": (
            ('    if "fc_norm.weight" in shapes:\n        raise'),
            ('    if "fc_norm.weights" in shapes:\n        raise'),
        ),
        "the paper's sizes have any number of heads": ("heads in (None, v.heads))", "True)"),
        "the tag of a copied repository is not read": (
            'tag = tag or str(stored.get("tag") or "")',
            "tag = tag",
        ),
        "weights that timm loads by default have the authors' GELU": ('if key != "tag"}', "}"),
        "timm's images are wide before they are high": (
            'list(stored.get("input_size", (3, 224, 224)))[1:]',
            'list(stored.get("input_size", (3, 224, 224)))[:0:-1]',
        ),
        "a distillation token is a patch": (
            '("cls_token", "dist_token", "reg_token")',
            '("cls_token", "reg_token")',
        ),
    },
    (
        "vitcli/weights/pretrained.py",
        "tests/weights/test_pretrained.py::test_a_family_is_summed_up_with_the_network_nearest_to_25_million",
    ): {
        "a family is shown by its largest network": (
            'abs((row["params"] or 0) - 25e6)',
            '-(row["params"] or 0)',
        ),
    },
    ("vitcli/bench/measure.py", "tests/bench/test_bench.py::test_ratios_are_of_neighbouring_laps"): {
        "CPU time is compared by the time on the wall": (
            "(a.images / getattr(a, key)) / (b.images",
            "(a.images / a.wall_s) / (b.images",
        ),
    },
    (
        "vitcli/bench/measure.py",
        "tests/bench/test_bench.py::test_a_lap_takes_two_seconds_but_two_steps_at_least_and_500_at_most",
    ): {
        "a lap may have thousands of steps": (
            "min(MOST_STEPS, max(2, round(LAP_S / max(step_s, 1e-6))))",
            "max(2, round(LAP_S / max(step_s, 1e-6)))",
        ),
    },
    (
        "vitcli/cli/exit_codes.py",
        "tests/test_credentials.py::test_an_error_names_an_address_without_its_password_for_people_and_as_json",
    ): {
        "an error as JSON has the password of an address": (
            "as_dict = {key: hide_credentials(text) for key, text in as_dict.items()}",
            "pass",
        ),
    },
    (
        "vitcli/data/checks/findings.py",
        "tests/data/checks/test_findings.py::test_copies_within_matter_most_where_a_part_of_their_split_is_held_out",
    ): {
        "images of a test split are to be kept on one side": (
            'keeps them on one side of a cut" if is_trained_on else ""',
            'keeps them on one side of a cut"',
        ),
    },
    (
        "vitcli/data/checks/findings.py",
        "tests/data/checks/test_findings.py::test_labels_that_are_not_read_spoil_a_number_where_they_would_stop_a_run",
    ): {
        "labels that are merely not read spoil a number": (
            'level = "spoils" if part["labels_stop"] else "look"',
            'level = "spoils"',
        ),
    },
    (
        "vitcli/data/checks/findings.py",
        "tests/data/checks/test_findings.py::test_images_of_no_class_are_counted",
    ): {
        "one image of no class is no finding": (
            'if classes["num_unlabelled"]:',
            'if classes["num_unlabelled"] > 1:',
        ),
    },
    (
        "vitcli/data/checks/findings.py",
        "tests/data/checks/test_findings.py::test_a_page_of_wrong_labels_is_to_be_opened_where_there_is_one",
    ): {
        "a page of wrong labels has no name": ("fix or f\"open {suspects['page']}\"", 'fix or "open it"'),
    },
    (
        "vitcli/data/checks/findings.py",
        "tests/data/checks/test_findings.py::test_three_names_are_shown_and_the_others_counted",
    ): {
        "an image without a file is named with its data set": (
            'if ", file " in place else file.rpartition(", split ")[2]',
            'if ", file " in place else file',
        ),
    },
    (
        "vitcli/data/checks/check.py",
        "tests/data/checks/test_findings.py::test_a_single_split_that_is_too_large_has_no_pairs",
    ): {
        "a single large split has pairs to show": (
            ('    if not comparisons:\n        return dict.fromkeys(keys[:-1], 0) | {"pairs": []}\n'),
            "",
        ),
    },
    (
        "vitcli/data/checks/text.py",
        "tests/data/checks/test_findings.py::test_nothing_is_found_in_clean_images_and_the_facts_are_right",
    ): {
        "classes of one size have extremes": ("elif counts[largest] == counts[smallest]:", "elif False:"),
    },
    (
        "vitcli/data/checks/text.py",
        "tests/data/checks/test_findings.py::test_sizes_are_a_range_unless_all_images_have_the_same",
    ): {
        "short sides alone tell that all images have one shape": (
            'if short["min"] == short["max"] and aspect["min"] == aspect["max"]:',
            'if short["min"] == short["max"]:',
        ),
    },
    (
        "vitcli/data/checks/text.py",
        "tests/data/checks/test_findings.py::test_what_comes_next_follows_from_labels_and_findings",
    ): {
        "data of which one split has no labels are not trained on": (
            "if kinds == {None}:",
            "if None in kinds:",
        ),
        "groups of their own are replaced by near duplicates": (
            'if "copies_within" in names and not has_groups else []',
            'if "copies_within" in names else []',
        ),
        "labels that were checked are to be checked": (
            'has_classes = "class" in kinds and "num_checked" not in suspects',
            'has_classes = "class" in kinds',
        ),
    },
    (
        "vitcli/data/shards/remote.py",
        "tests/data/shards/test_rows.py::test_an_error_of_this_machine_says_nothing_of_a_shard",
    ): {
        "a disk that fails is a damaged shard": (
            (
                "        if is_of_machine(error):\n"
                "            raise\n"
                "        raise unreadable(url, error) from error"
            ),
            "        raise unreadable(url, error) from error",
        ),
    },
    (
        "vitcli/data/shards/remote.py",
        "tests/data/shards/test_rows.py::test_reading_by_ranges_is_reading_a_file",
    ): {
        "a shard is read from before its start": (
            "self.position = max(0, start + offset)",
            "self.position = start + offset",
        ),
    },
    (
        "vitcli/data/shards/remote.py",
        "tests/data/shards/test_rows.py::test_without_the_network_the_hub_is_asked_once",
    ): {
        "the Hub is asked four times though that is forbidden": (
            'if type(error).__name__ == "OfflineModeIsEnabled":',
            "if False:",
        ),
    },
    (
        "vitcli/data/shards/kept_blocks.py",
        "tests/data/shards/test_rows.py::test_blocks_of_the_same_data_make_room_after_a_week_without_use",
    ): {
        "blocks of the same data make room after a day": ("SPARED_S = 7 * 86400.0", "SPARED_S = 86400.0"),
    },
    (
        "vitcli/data/shards/webdataset.py",
        "tests/data/shards/test_rows.py::test_a_label_may_stand_in_json_as_a_number_or_as_several",
    ): {
        "a sample has the first label of the next one": (
            "labels_M[first : self.label_ends_N[sample]]",
            "labels_M[first : self.label_ends_N[sample] + 1]",
        ),
    },
    (
        "vitcli/data/shards/webdataset.py",
        "tests/data/shards/test_rows.py::test_a_sample_without_image_or_label_is_refused_by_shard_and_key",
    ): {
        "a label of a gigabyte is read": ("MAX_LABEL_BYTES = 2**20", "MAX_LABEL_BYTES = 2**30"),
        "labels need 64 bits": ("abs(value) < 2**31", "abs(value) < 2**63"),
    },
    (
        "vitcli/data/shards/webdataset.py",
        "tests/data/shards/test_rows.py::test_a_count_is_believed_up_to_what_the_bytes_of_a_shard_can_hold",
    ): {
        "a sample may be of a single block": (
            "LEAST_SAMPLE_BYTES = 2 * tarfile.BLOCKSIZE",
            "LEAST_SAMPLE_BYTES = tarfile.BLOCKSIZE",
        ),
    },
    (
        "vitcli/data/shards/webdataset.py",
        "tests/data/shards/test_rows.py::test_links_and_devices_in_a_tar_are_never_followed",
    ): {
        "a sparse member of a tar is an image": (
            "not member.isreg() or member.issparse() or not stem",
            "not member.isreg() or not stem",
        ),
    },
    (
        "vitcli/data/shards/webdataset.py",
        "tests/data/shards/test_rows.py::test_of_a_tar_on_this_disk_only_the_index_is_kept",
    ): {
        "a tar on this disk has to fit into the cache": (
            "return index_bytes + (0 if file.is_local else file.size)",
            "return index_bytes + file.size",
        ),
    },
    (
        "vitcli/data/shards/parquet.py",
        "tests/data/shards/test_rows.py::test_an_empty_row_group_has_no_labels_that_could_be_wrong",
    ): {
        "an empty row group hides the range of labels": (
            ("        if not group.num_rows:\n            continue\n"),
            "",
        ),
    },
    (
        "vitcli/data/shards/parquet.py",
        "tests/data/shards/test_rows.py::test_columns_of_which_two_may_be_the_image_or_the_label_are_to_be_named",
    ): {
        "the first of two columns is taken": (
            "return matches[0] if len(matches) == 1 else None",
            "return matches[0] if matches else None",
        ),
    },
    (
        "vitcli/data/shards/parquet.py",
        "tests/data/shards/test_rows.py::test_several_labels_in_words_are_refused_as_one_is",
    ): {
        "lists of words are labels": (
            "return name == label_column or name in LABEL_NAMES or",
            "return name == label_column or",
        ),
    },
    (
        "vitcli/data/shards/rows.py",
        "tests/data/shards/test_rows.py::test_shards_without_statistics_need_the_number_of_classes",
    ): {
        "one shard tells the classes of all": (
            "if known is None and all(ranges):",
            "if known is None and any(ranges):",
        ),
    },
    (
        "vitcli/data/shards/rows.py",
        "tests/data/shards/test_rows.py::test_shards_of_which_one_may_change_unseen_have_no_stamp",
    ): {
        "shards that may change unseen have a stamp": (
            'if stamps and all(stamps) else ""',
            'if stamps else ""',
        ),
    },
    (
        "vitcli/distributed/launch.py",
        "tests/distributed/test_launch.py::test_an_error_names_the_process_and_what_it_did",
    ): {
        "gloo's guess at a cause is passed on": (
            'r"^\\[\\S+\\] |\\. This is typically caused by.*"',
            'r"^\\[\\S+\\] "',
        ),
        "every process is this one in a message": (
            "global_rank() if rank is None else rank",
            "global_rank()",
        ),
    },
    (
        "vitcli/distributed/launch.py",
        "tests/distributed/test_launch.py::test_what_may_not_be_interrupted_ignores_sigterm_and_no_longer",
    ): {
        "SIGTERM is ignored for good": ("        signal.signal(signal.SIGTERM, handler)\n", "        pass\n"),
    },
    (
        "vitcli/distributed/launch.py",
        "tests/distributed/test_launch.py::test_processes_of_a_run_are_never_started_again_and_listen_to_this_machine_alone",
    ): {
        "processes that failed are started again": ("max_restarts=0", "max_restarts=1"),
    },
    (
        "vitcli/distributed/launch.py",
        "tests/distributed/test_launch.py::test_a_process_whose_launcher_is_gone_ends_as_one_that_was_asked_to",
    ): {
        "a process without its launcher ends as if all was well": (
            ("        sys.exit(143)\n\n\n@contextmanager"),
            ("        sys.exit(0)\n\n\n@contextmanager"),
        ),
    },
    (
        "vitcli/distributed/failures.py",
        "tests/distributed/test_launch.py::test_of_processes_that_ended_by_themselves_the_one_with_the_highest_code_is_named",
    ): {
        "the lowest exit code is the cause": (
            "rank = max(ended, key=ended.get)",
            "rank = min(ended, key=ended.get)",
        ),
    },
    (
        "vitcli/distributed/runtime.py",
        "tests/distributed/test_runtime.py::test_losses_are_scaled_in_fp16_alone_and_torch_aborts_a_minute_after_the_run_ends",
    ): {
        "torch aborts before the run can end": ("ABORTED_AFTER * bool(available)", "ABORTED_AFTER * 0"),
        "losses are scaled in bf16": ('enabled=precision == "fp16"', 'enabled=precision != "fp32"'),
    },
    (
        "vitcli/distributed/runtime.py",
        "tests/distributed/test_runtime.py::test_the_processes_of_a_machine_are_those_that_its_launcher_has_counted",
    ): {
        "all processes are on this machine": (
            'int(os.environ.get("LOCAL_WORLD_SIZE", self.world_size))',
            "self.world_size",
        ),
    },
    (
        "vitcli/distributed/runtime.py",
        "tests/distributed/test_runtime.py::test_an_error_of_one_process_says_which_it_was",
    ): {
        "an error of one process has no rank": (
            ("            error.rank = self.rank\n            raise"),
            "            raise",
        ),
        "a bug of the first process has no rank": (
            ("            if not isinstance(outcome[1], VitError):\n                outcome[1].rank = 0"),
            ("            if isinstance(outcome[1], VitError):\n                outcome[1].rank = 0"),
        ),
    },
    (
        "vitcli/distributed/runtime.py",
        "tests/distributed/test_runtime.py::test_a_network_is_taken_out_of_all_its_wrappers",
    ): {
        "a compiled network is its wrapper": ('return getattr(model, "_orig_mod", model)', "return model"),
    },
    (
        "vitcli/distributed/runtime.py",
        "tests/distributed/test_runtime.py::test_accelerators_have_numbers_where_there_may_be_several",
    ): {
        "Apple's GPU has a number": (
            'return [kind] if kind == "mps" else',
            'return [kind] if kind == "xpu" else',
        ),
        "a GPU that emulates bf16 computes in it by itself": (
            "is_bf16_supported(including_emulation=False)",
            "is_bf16_supported()",
        ),
        "the bf16 of the CPU is that of a GPU without CUDA": (
            "has_bf16 and (has_gpu or not torch.accelerator.is_available())",
            "has_bf16",
        ),
    },
    (
        "vitcli/distributed/runtime.py",
        "tests/distributed/test_runtime.py::test_a_signal_ends_a_process_that_waits_for_others_unless_it_is_ignored",
    ): {
        "an ignored signal ends a process that waits": (
            ("        if handler is not signal.SIG_IGN:\n            signal.signal(number, signal.SIG_DFL)"),
            "        signal.signal(number, signal.SIG_DFL)",
        ),
    },
    (
        "vitcli/distributed/accelerate_settings.py",
        "tests/distributed/test_accelerate_settings.py::test_what_asks_for_nothing_else_is_taken_out_without_a_word",
    ): {
        '"auto" is another number of micro-batches': ('(("1", "auto"), "--per', '(("1",), "--per'),
    },
    (
        "vitcli/distributed/transfer.py",
        "tests/training/test_queued_device.py::test_a_device_without_float64_is_given_float32",
    ): {
        "Apple's GPUs are given float64": (
            'if device.type == "mps" and tensor.dtype == torch.float64:',
            "if False:",
        ),
    },
    (
        "vitcli/distributed/peers.py",
        "tests/distributed/test_peers.py::test_what_is_being_written_is_waited_for_as_long_as_a_process_may_save",
    ): {
        "a file that is never written keeps a process for ever": (
            "(_unfinished and waited_s < launch.SAVING_TIME_S)",
            "_unfinished",
        ),
    },
    (
        "vitcli/evaluation/belief/familiar.py",
        "tests/evaluation/belief/test_familiar.py::test_as_many_whole_hundredths_lie_above_the_threshold_as_fit",
    ): {
        "a begun hundredth of images lies above the threshold": (
            "rank = max(1, math.floor((len(scores_N) + 1) * FLAGGED + 1e-9))",
            "rank = max(1, math.ceil((len(scores_N) + 1) * FLAGGED))",
        ),
    },
    (
        "vitcli/evaluation/belief/familiar.py",
        "tests/evaluation/belief/test_familiar.py::test_another_score_has_to_be_better_by_more_than_the_error_of_a_mean_of_few",
    ): {
        "the error of a mean over folds is that of a population": ("gains_F.std(ddof=1)", "gains_F.std()"),
    },
    ("vitcli/evaluation/belief/prediction_sets.py", "tests/evaluation/belief/test_prediction_sets.py"): {
        "sets of 90 % are shown as those of 95 %": ("SHOWN = 95", "SHOWN = 90"),
    },
    (
        "vitcli/evaluation/belief/selective.py",
        "tests/evaluation/belief/test_selective.py::test_a_table_has_each_number_of_answered_images_once",
    ): {
        "thresholds that answer the same images have a row each": (
            "if point.answered not in (0, answered):",
            "if point.answered not in (0,):",
        ),
    },
    ("vitcli/evaluation/belief/results.py", "tests/evaluation/belief/test_stored.py"): {
        "an image at the distance is unlike": (
            "probabilities_NK) <= stored.distance",
            "probabilities_NK) < stored.distance",
        ),
    },
    ("vitcli/export/golden.py", "tests/export/test_onnx_file.py::test_a_tie_is_no_other_class"): {
        "a tie that rounding decides is another class": (
            'if golden["output"] == "probabilities" and not surplus <= golden["tolerance"]:',
            'if golden["output"] == "probabilities" and not surplus <= 0:',
        ),
    },
    (
        "vitcli/export/usage.py",
        "tests/export/test_usage.py::test_a_path_of_the_data_is_a_place_to_fill_in_and_a_public_name_stays",
    ): {
        "a path of three folders is a name of the Hub": (
            'dataset.count("/") == 1 and not',
            'dataset.count("/") >= 1 and not',
        ),
    },
    (
        "vitcli/export/usage.py",
        "tests/export/test_usage.py::test_what_the_libraries_do_otherwise_is_said_and_features_predict_nothing",
    ): {
        "a network without classes is to predict": (
            'lines = [f"vit predict --ckpt {ckpt} IMAGES"] if has_classes else []',
            'lines = [f"vit predict --ckpt {ckpt} IMAGES"]',
        ),
        "what the libraries do otherwise is kept back": (
            'parts += [f"In timm and transformers, {caveat}." for',
            'parts += ["" for',
        ),
    },
    ("vitcli/export/images.py", "tests/export/test_calibration.py"): {
        "a run's own images are published": (
            "return of_the_demo().split if self.are_held_out else self.split",
            "return self.split",
        ),
        "thousands of images are compared": ("min(MAX_IMAGES, len(files))", "len(files)"),
    },
    ("vitcli/export/gate.py", "tests/export/test_gate.py::test_a_drop_that_is_just_allowed_is_accepted"): {
        "a drop that is just allowed is refused": (
            "return self.highest_drop <= self.max_drop",
            "return self.highest_drop < self.max_drop",
        ),
    },
    (
        "vitcli/export/onnx_process.py",
        "tests/export/test_onnx_file.py::test_a_process_has_memory_and_time_by_the_bytes_of_its_weights",
    ): {
        "an ONNX file has the memory of its bytes": (
            "MEMORY_MB + MEMORY_PER_BYTE * num_bytes // 2**20",
            "MEMORY_MB + num_bytes // 2**20",
        ),
        "large ONNX files have a minute": ("MOST_S + num_bytes // BYTES_IN_A_SECOND", "MOST_S"),
    },
    (
        "vitcli/features/suspects.py",
        "tests/features/test_suspects.py::test_a_label_is_named_below_five_percent_by_features_that_know_the_classes",
    ): {
        "labels of 10 % are suspicious": ("NAMED_BELOW = 0.05", "NAMED_BELOW = 0.1"),
    },
    (
        "vitcli/features/classifiers.py",
        "tests/features/test_draws.py::test_classes_far_apart_need_no_regularisation_and_noise_all_there_is",
    ): {
        "logistic regression is always held back": (
            "STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)",
            "STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)",
        ),
    },
    (
        "vitcli/features/classifiers.py",
        "tests/features/test_draws.py::test_logistic_regression_of_one_class_says_that_class",
    ): {
        "logistic regression of one class says the first": (
            "np.full(len(tests_TD), labels_N[0])",
            "np.full(len(tests_TD), 0)",
        ),
    },
    (
        "vitcli/features/forecast.py",
        "tests/features/test_forecast.py::test_of_ten_later_accuracies_eight_are_within_the_interval_by_the_mixture_itself",
    ): {
        "intervals of a forecast hold 60 %": (
            "tails = ((1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2)",
            "tails = ((1 - LEVEL), 0.5, LEVEL)",
        ),
    },
    (
        "vitcli/features/forecast.py",
        "tests/features/test_forecast.py::test_the_deviation_of_a_point_is_that_of_a_sample_and_of_one_draw_unknown",
    ): {
        "the deviation of a curve is that of a population": (
            "float(np.std(point.errors, ddof=1)) if len",
            "float(np.std(point.errors)) if len",
        ),
    },
    (
        "vitcli/features/forecast.py",
        "tests/features/test_forecast.py::test_few_test_images_tell_nothing_of_the_floor",
    ): {
        "fifty test images are too few": (
            'if result["num_test_examples"] < LEAST_TESTED:',
            'if result["num_test_examples"] <= LEAST_TESTED:',
        ),
    },
    (
        "vitcli/features/forecast.py",
        "tests/features/test_forecast.py::test_four_images_a_class_in_the_mean_are_enough",
    ): {
        "four images a class are too few": (
            "if num_images < LEAST_PER_CLASS * num_classes:",
            "if num_images <= LEAST_PER_CLASS * num_classes:",
        ),
    },
    (
        "vitcli/features/left_out.py",
        "tests/features/test_choose.py::test_a_choice_is_scored_on_tests_by_a_fit_to_all_rows_with_its_own_strength",
    ): {
        "labels of tests are those of the first ones": (
            "labels_T = labels_T[tests.has_tokens_N]",
            "labels_T = labels_T[: int(tests.has_tokens_N.sum())]",
        ),
        "a choice is scored with another l2": (
            "replace(problem, strengths=chosen.l2[:1])",
            "replace(problem, strengths=(1.0,))",
        ),
    },
    (
        "vitcli/features/layers.py",
        "tests/features/test_choose.py::test_layers_are_fused_from_the_last_down_until_there_are_few_enough_features",
    ): {
        "the last layer alone is fused": ("MOST_FUSED = 6144", "MOST_FUSED = 600"),
    },
    (
        "vitcli/features/attentive.py",
        "tests/features/test_choose.py::test_a_large_group_counts_as_many_rows_as_it_has",
    ): {
        "a large group counts as one row": (
            "in_half[half_of[group], label] += sizes[group]",
            "in_half[half_of[group], label] += 1",
        ),
    },
    (
        "vitcli/training/methods/time_limit.py",
        "tests/training/test_time_limit.py::test_a_run_that_slows_down_is_planned_again_after_a_quarter_of_the_time_that_is_left",
    ): {
        "the end of a run is looked at again after half the time": (
            "CHECKED_AFTER = 1 / 4",
            "CHECKED_AFTER = 1 / 2",
        ),
    },
    (
        "vitcli/training/methods/time_limit.py",
        "tests/training/test_time_limit.py::test_too_short_a_time_is_an_error_of_the_first_plan_alone",
    ): {
        "half a minute is advised as a whole one": (
            "math.ceil(needed_s / 30) / 2",
            "math.ceil(needed_s / 60)",
        ),
    },
    (
        "vitcli/training/methods/time_limit.py",
        "tests/training/test_time_limit.py::test_the_last_two_steps_are_made_as_they_were_planned",
    ): {
        "the last steps are planned again": ("total_steps - step > FEWEST_STEPS", "True"),
    },
    (
        "vitcli/training/methods/time_limit.py",
        "tests/training/test_time_limit.py::test_a_new_plan_is_told_with_the_speed_and_the_time_that_scoring_takes",
    ): {
        "a run that ends on time is said to be late": (
            "is_on_time = end_s <= (1 + LATE) * self.limit_s",
            "is_on_time = end_s <= self.limit_s / 2",
        ),
    },
    (
        "vitcli/training/methods/imbalance.py",
        "tests/training/methods/test_imbalance.py::test_weights_in_the_loss_are_by_the_sizes_of_the_classes_and_1_in_the_mean",
    ): {
        "classes have weights where none are asked for": (
            ('if recipe.objective.class_weights == "none":\n        return ()'),
            ('if recipe.objective.class_weights == "balanced":\n        return ()'),
        ),
    },
    (
        "vitcli/training/gradients.py",
        "tests/training/test_gradients.py::test_a_part_is_the_largest_that_leaves_a_tree_and_else_the_largest_that_divides",
    ): {
        "a step that makes no tree has parts of one image": ("default=divisors[-1])", "default=divisors[0])"),
    },
    (
        "vitcli/training/many_runs/sweep_results.py",
        "tests/training/test_sweep_results.py::test_values_beyond_the_edge_go_up_or_down_by_about_three",
    ): {
        "a rate that is hardly another one is advised": (
            "if step > 1.5 * value][:2]",
            "if step > 1.0 * value][:2]",
        ),
    },
    (
        "vitcli/training/many_runs/parallel_runs.py",
        "tests/training/test_sweep.py::test_a_run_that_ended_with_an_error_is_named_with_the_end_of_its_output",
    ): {
        "a run that failed beside others is passed over": (
            ("    if code == 0:\n        return\n"),
            ("    if code >= 0:\n        return\n"),
        ),
    },
    (
        "vitcli/weights/licences.py",
        "tests/weights/test_licences.py::test_names_of_weights_have_the_licence_of_timms_registry",
    ): {
        "the authors' own addresses have no licence": (
            'f"{STORAGE}/bit_models/", "gs://vit_models/"',
            'f"{STORAGE}/bit_models/"',
        ),
    },
    (
        "vitcli/bench/measure.py",
        "tests/bench/test_bench.py::test_items_that_settle_are_pulled_before_a_lap_and_not_counted",
    ): {
        "what was prepared before a lap counts": (
            ("for _ in range(self._settle):\n            next(self._items)"),
            ("for _ in range(0):\n            next(self._items)"),
        ),
    },
    (
        "vitcli/cli/exit_codes.py",
        "tests/test_credentials.py::test_an_error_is_the_exit_code_alone_where_standard_error_is_closed",
    ): {
        "a closed standard error is a bug": (
            ("with suppress(OSError):\n            text = hide"),
            ("if True:\n            text = hide"),
        ),
    },
    (
        "vitcli/output/text.py",
        "tests/output/test_text.py::test_a_size_has_the_unit_of_which_it_has_one_at_least",
    ): {
        "a GiB is 1,024 MiB": ("if number >= 2**30:", "if number > 2**30:"),
    },
    (
        "vitcli/output/text.py",
        "tests/output/test_text.py::test_images_that_a_checkpoint_had_seen_make_an_accuracy_too_high",
    ): {
        "images to choose by that were trained on are kept back": (
            'if seen := result.get("num_choice_seen"):',
            "if False:",
        ),
    },
    (
        "vitcli/report/accuracy.py",
        "tests/report/test_report.py::test_pre_training_compute_stands_beside_when_its_run_is_reported_too",
    ): {
        "a checkpoint by another path is of another run": (
            "run.path.resolve() == Path(ckpt).resolve()",
            "run.path == Path(ckpt)",
        ),
    },
    ("vitcli/report/costs.py", "tests/report/test_report.py::test_a_run_under_way_tells_its_step"): {
        "a run under way has no fraction": (
            "fraction = now.step / now.total_steps if now.total_steps else None",
            "fraction = None",
        ),
        "a loss has two digits": (
            'number_cell(_last(run.losses), "{:.4f}")',
            'number_cell(_last(run.losses), "{:.2f}")',
        ),
    },
    (
        "vitcli/evaluation/inference.py",
        "tests/evaluation/test_inference.py::test_a_network_sees_whole_fours_of_images_of_which_the_last_may_be_blank",
    ): {
        "a network sees batches of any size": ("MULTIPLE = 4", "MULTIPLE = 1"),
    },
    (
        "vitcli/evaluation/inference.py",
        "tests/evaluation/test_inference.py::test_progress_counts_undecodable_images_and_those_of_the_other_processes",
    ): {
        "undecodable images are not passed by": (
            "(len(batch.rows_B) + len(batch.skipped)) * num_processes, total)",
            "len(batch.rows_B) * num_processes, total)",
        ),
    },
    (
        "vitcli/evaluation/predict.py",
        "tests/evaluation/test_regression.py::test_files_that_cannot_be_read_follow_the_numbers_in_a_table",
    ): {
        "files that cannot be read are in no table of numbers": (
            'yield from ([entry["file"], "", entry["message"]] for entry in result["unreadable"])',
            "yield from ()",
        ),
    },
    (
        "vitcli/evaluation/several_labels.py",
        "tests/evaluation/test_several_labels.py::test_images_that_thresholds_were_chosen_on_are_judged_by_halves_and_others_by_the_thresholds",
    ): {
        "thresholds are judged by the images that chose them": (
            "if stored.fingerprint == fingerprint:",
            "if stored.fingerprint != fingerprint:",
        ),
    },
    (
        "vitcli/evaluation/regression.py",
        "tests/evaluation/test_regression.py::test_a_damaged_scale_is_refused",
    ): {
        "a scale may be a thousand times as large": (
            "abs(n) <= LARGEST_NUMBER",
            "abs(n) <= 1e3 * LARGEST_NUMBER",
        ),
    },
    (
        "vitcli/features/least_squares.py",
        "tests/features/test_least_squares.py::test_of_accuracies_that_differ_by_rounding_the_largest_l2_is_chosen",
    ): {
        "rounding errors choose an l2": (
            "left_out_accuracies(solution).round(12)",
            "left_out_accuracies(solution)",
        ),
    },
    (
        "vitcli/features/least_squares.py",
        "tests/features/test_least_squares.py::test_parts_are_consecutive_and_end_with_the_last_row",
    ): {
        "parts go on behind the last row": ("min(first + size, count)", "first + size"),
    },
    (
        "vitcli/features/least_squares.py",
        "tests/features/test_least_squares.py::test_an_l2_within_the_rounding_of_the_largest_eigenvalue_is_refused",
    ): {
        "an l2 within the rounding of many rows is taken": (
            "np.finfo(np.float64).eps * eigenvalues_R[-1] * len(eigenvalues_R)",
            "np.finfo(np.float64).eps * eigenvalues_R[-1]",
        ),
    },
    (
        "vitcli/features/draws.py",
        "tests/features/test_draws.py::test_the_sweep_has_every_power_of_two_of_the_authors",
    ): {
        "the authors' largest l2 is not tried": ("range(-10, 20)", "range(-10, 19)"),
    },
    (
        "vitcli/features/draws.py",
        "tests/features/test_draws.py::test_a_draw_that_is_named_twice_is_refused",
    ): {
        "a draw is named twice in other digits": (
            "if int(shots) in draws.setdefault(int(seed), {}):",
            "if draws.setdefault(int(seed), {}) is None:",
        ),
    },
    (
        "vitcli/features/draws.py",
        "tests/features/test_draws.py::test_where_each_class_is_one_group_the_authors_l2_is_taken",
    ): {
        "an l2 is chosen though each class is one group": (
            'if l2 == "sweep" and not least_squares.has_others(labels_N, groups_N).any():',
            'if l2 == "sweep" and not least_squares.has_others(labels_N, None).any():',
        ),
    },
    (
        "vitcli/report/grouping.py",
        "tests/report/test_grouping.py::test_a_size_is_that_of_the_pixels_and_a_key_that_is_not_set_has_no_name",
    ): {
        "the size of the weights is no number of pixels": (
            "if key == SIZE and entry.resolution is not None:",
            "if False:",
        ),
        "a key that is not set names a column": ("if key != SIZE and value != UNSET]", "if key != SIZE]"),
    },
    (
        "vitcli/report/grouping.py",
        "tests/report/test_grouping.py::test_a_network_that_starts_from_nothing_says_so_beside_one_that_does_not",
    ): {
        "fresh weights have no name beside others": (
            'if ckpt else "from fresh weights"]',
            'if ckpt else "from"]',
        ),
    },
    (
        "vitcli/distributed/device.py",
        "tests/distributed/test_device.py::test_what_other_programs_call_a_device_is_answered_with_our_name",
    ): {
        '"nvidia" is answered with nothing': ('in ("gpu", "nvidia") else ""', 'in ("gpu",) else ""'),
    },
    (
        "vitcli/distributed/device.py",
        "tests/distributed/test_device.py::test_any_number_of_processes_may_compute_on_the_cpu_of_a_machine_with_gpus",
    ): {
        "a CPU has as many processes as GPUs": (
            'if available and kind != "cpu" and available',
            "if available and available",
        ),
    },
    (
        "vitcli/distributed/numerics.py",
        "tests/distributed/test_runtime.py::test_every_kind_of_max_pooling_is_refused_with_exact",
    ): {
        "max pooling in one dimension is deterministic": (
            "(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)",
            "(nn.MaxPool2d, nn.MaxPool3d)",
        ),
    },
    (
        "vitcli/distributed/numerics.py",
        "tests/distributed/test_runtime.py::test_no_kernel_of_a_gpu_rounds_fp32_and_none_fills_what_is_read_later",
    ): {
        "recurrent networks compute in TF32": (
            "torch.backends.cudnn.conv, torch.backends.cudnn.rnn)",
            "torch.backends.cudnn.conv)",
        ),
        "new tensors on a GPU are filled with NaN": (
            "fill_uninitialized_memory = False",
            "fill_uninitialized_memory = True",
        ),
    },
    (
        "vitcli/distributed/memory.py",
        "tests/distributed/test_runtime.py::test_the_peak_memory_of_a_process_is_in_gib",
    ): {
        "the memory of a process is in MiB": ("return int(kib) / 2**20", "return int(kib) / 2**10"),
    },
    (
        "vitcli/data/shards/parquet.py",
        "tests/data/shards/test_rows.py::test_a_column_is_told_from_those_whose_names_begin_with_its_own",
    ): {
        "columns are told apart by how their names begin": (
            'return path == column or path.startswith(f"{column}.")',
            "return path.startswith(column)",
        ),
    },
    (
        "vitcli/evaluation/belief/selective.py",
        "tests/evaluation/belief/test_selective.py::test_the_accuracy_is_of_the_answered_images",
    ): {
        "one right answer is half right": (
            "return self.right / max(1, self.answered)",
            "return self.right / max(2, self.answered)",
        ),
    },
    (
        "vitcli/export/golden.py",
        "tests/export/test_onnx_file.py::test_images_of_a_golden_file_are_256_pixels_wide_or_high_at_most",
    ): {
        "golden images have any size": ("    image.thumbnail((MOST_SIDE, MOST_SIDE))\n", ""),
    },
    (
        "vitcli/features/left_out.py",
        "tests/features/test_choose.py::test_a_layer_that_loses_five_images_alone_is_a_tie_and_one_that_loses_six_is_none",
    ): {
        "a layer that is worse at 5 % is a tie": ("LEVEL = 0.05", "LEVEL = 0.01"),
    },
}
