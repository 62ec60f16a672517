"""Deliberate breaks of scores and features: closed forms, draws, intervals, calibration."""

# By file and tests: what each break does, the text before and after it.
OF_SCORES = {
    ("vitcli/evaluation/calibration/selective.py", "tests/evaluation/calibration/test_selective.py"): {
        "thirty answered images are too few": ("if point.answered >= LEAST]", "if point.answered > LEAST]"),
    },
    ("vitcli/evaluation/calibration/scaling.py", "tests/evaluation/calibration/test_scaling.py"): {
        "scores of small numbers are taken for chance": (
            "MOST_SCALE, LEAST_SCALE = 1e3, 1e-3",
            "MOST_SCALE, LEAST_SCALE = 1e1, 1e-3",
        ),
    },
    ("vitcli/evaluation/diagnosis.py", "tests/evaluation/test_diagnosis.py"): {
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
        "scores of predictions are logits": (
            "log_probabilities_BK.float()",
            "part_BK",
        ),
        "logits are averaged and not probabilities": (
            "torch.logaddexp(one_BK.log_softmax(dim=-1), other_BK.log_softmax(dim=-1))",
            "(one_BK.log_softmax(dim=-1) + other_BK.log_softmax(dim=-1)) / 2",
        ),
    },
    ("vitcli/evaluation/calibration/stored.py", "tests/evaluation/calibration/test_stored.py"): {
        "a fingerprint may be a number": (
            (
                "    if fingerprint is not None and not isinstance(fingerprint, str):\n"
                '        raise ValueError("the fingerprint is not text")\n'
            ),
            "",
        ),
        "more are right than answered": ("0 <= right <= answered <= num_images", "0 <= right <= num_images"),
        "statistics without a threshold": (
            "is_known = distance is not None and",
            "is_known =",
        ),
    },
    ("vitcli/features/label_errors.py", "tests/features/test_suspects.py"): {
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
        "vitcli/features/compare_backbones.py",
        "tests/features/test_compare_backbones.py::test_of_equal_accuracies_the_earliest_layer_and_then_the_fewest_features_are_best",
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
    (
        "vitcli/evaluation/calibration/scaling.py",
        "tests/evaluation/calibration/test_scaling.py::test_ten_right_answers_are_no_reason_to_be_less_sure",
    ): {
        "ten right answers make a network less sure": (
            "return scaling if gain_N.sum() > 0 else Scaling()",
            "return scaling",
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
        "vitcli/evaluation/calibration/out_of_distribution.py",
        "tests/evaluation/calibration/test_out_of_distribution.py::test_statistics_of_more_than_16_megabytes_are_not_kept",
    ): {
        "a covariance of any size is stored": (
            "num_classes * width + width * (width + 1) // 2 > MOST_NUMBERS",
            "num_classes * width + width > MOST_NUMBERS",
        ),
    },
    (
        "vitcli/features/label_errors.py",
        "tests/features/test_suspects.py::test_features_that_know_fewer_than_four_in_five_images_name_no_label",
    ): {
        "features that know no class name labels": ("if top1 >= LEAST_KNOWN else 0", "if top1 > 0 else 0"),
    },
    ("vitcli/evaluation/intervals.py", "tests/evaluation/test_intervals.py"): {
        "the accuracy of ten images is resampled": ("FEWEST_OF_EACH = 50, 10", "FEWEST_OF_EACH = 5, 10"),
        "a single mistake is resampled": ("FEWEST_OF_EACH = 50, 10", "FEWEST_OF_EACH = 50, 1"),
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
        "vitcli/evaluation/multilabel.py",
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
        "vitcli/evaluation/calibration/selective.py",
        "tests/evaluation/calibration/test_selective.py::test_below_the_goal_the_most_accurate_threshold_is_recommended_and_of_equals_the_lowest",
    ): {
        "the highest of equal thresholds is recommended": (
            "(point.accuracy, -point.threshold)",
            "(point.accuracy, point.threshold)",
        ),
    },
    (
        "vitcli/evaluation/calibration/scaling.py",
        "tests/evaluation/calibration/test_scaling.py::test_a_temperature_counts_only_where_rows_show_it",
    ): {
        "a temperature has two digits": ("DIGITS = 6", "DIGITS = 2"),
    },
    (
        "vitcli/evaluation/calibration/results.py",
        "tests/evaluation/calibration/test_results.py::test_each_half_of_the_rows_or_groups_is_judged_by_the_numbers_of_the_other",
    ): {
        "the calibration error is that without the temperature": (
            "bins = reliability(calibrated_NK.max(axis=1), calibrated_NK.argmax(axis=1) == labels_N)",
            "bins = reliability(np.exp(log_p_NK).max(axis=1), calibrated_NK.argmax(axis=1) == labels_N)",
        ),
    },
    (
        "vitcli/features/label_errors.py",
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
        "a forecast may be above 100 %": (
            ").clip(0, 1)",
            ")",
        ),
        "twice the images decide how near the floor is": (
            "predictions[str(max(times))]",
            "predictions[str(min(times))]",
        ),
    },
    (
        "vitcli/features/least_squares.py",
        "tests/features/test_compare_backbones.py::test_of_strengths_that_have_all_rows_right_the_largest_is_chosen",
    ): {
        "the first of several l2 is taken": (
            "choose_l2(solution) if len(solution.l2) > 1 else 0",
            "0",
        ),
    },
    (
        "vitcli/features/layers.py",
        "tests/features/test_compare_backbones.py::test_rows_are_drawn_once_each_and_in_ascending_order",
    ): {
        "an image is drawn twice": (
            "return np.sort(np.random.default_rng(SEED).choice(num_rows, most, replace=False))",
            "return np.random.default_rng(SEED).choice(num_rows, most, replace=True)",
        ),
    },
    (
        "vitcli/evaluation/calibration/out_of_distribution.py",
        "tests/evaluation/calibration/test_out_of_distribution.py::test_as_many_whole_hundredths_lie_above_the_threshold_as_fit",
    ): {
        "a begun hundredth of images lies above the threshold": (
            "rank = max(1, math.floor((len(scores_N) + 1) * FLAGGED + 1e-9))",
            "rank = max(1, math.ceil((len(scores_N) + 1) * FLAGGED))",
        ),
    },
    (
        "vitcli/evaluation/calibration/out_of_distribution.py",
        "tests/evaluation/calibration/test_out_of_distribution.py::test_another_score_has_to_be_better_by_more_than_the_error_of_a_mean_of_few",
    ): {
        "the error of a mean over folds is that of a population": ("gains_F.std(ddof=1)", "gains_F.std()"),
    },
    (
        "vitcli/evaluation/calibration/prediction_sets.py",
        "tests/evaluation/calibration/test_prediction_sets.py",
    ): {
        "sets of 90 % are shown as those of 95 %": ("SHOWN = 95", "SHOWN = 90"),
    },
    (
        "vitcli/evaluation/calibration/selective.py",
        "tests/evaluation/calibration/test_selective.py::test_a_table_has_each_number_of_answered_images_once",
    ): {
        "thresholds that answer the same images have a row each": (
            "if point.answered not in (0, answered):",
            "if point.answered not in (0,):",
        ),
    },
    ("vitcli/evaluation/calibration/results.py", "tests/evaluation/calibration/test_stored.py"): {
        "an image at the distance is unlike": (
            "probabilities_NK) <= stored.distance",
            "probabilities_NK) < stored.distance",
        ),
    },
    (
        "vitcli/features/label_errors.py",
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
        "vitcli/features/compare_backbones.py",
        "tests/features/test_compare_backbones.py::test_a_choice_is_scored_on_tests_by_a_fit_to_all_rows_with_its_own_strength",
    ): {
        "a choice is scored with another l2": (
            "replace(problem, strengths=(chosen.l2,))",
            "replace(problem, strengths=(1.0,))",
        ),
    },
    (
        "vitcli/features/layers.py",
        "tests/features/test_compare_backbones.py::test_layers_are_fused_from_the_last_down_until_there_are_few_enough_features",
    ): {
        "the last layer alone is fused": ("MOST_FUSED = 6144", "MOST_FUSED = 600"),
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
        "vitcli/evaluation/multilabel.py",
        "tests/evaluation/test_several_labels.py::test_images_that_thresholds_were_chosen_on_are_judged_by_halves_and_others_by_the_thresholds",
    ): {
        "thresholds are judged by the images that chose them": (
            "if stored.fingerprint == fingerprint:",
            "if stored.fingerprint != fingerprint:",
        ),
    },
    (
        "vitcli/evaluation/compare.py",
        "tests/evaluation/test_compare.py::test_losses_and_gains_are_sorted_by_size_and_equal_ones_by_the_images_of_the_class",
    ): {
        "classes that lost most come last": ("(-abs(gains_K[label]), ", "(-gains_K[label], "),
    },
    (
        "vitcli/evaluation/regression.py",
        "tests/evaluation/test_regression.py::test_a_damaged_scale_is_refused",
    ): {
        "a scale may be a thousand times as large": (
            "if abs(mean) <= LARGEST_NUMBER and 0 < std <= LARGEST_NUMBER:",
            "if abs(mean) <= 1e3 * LARGEST_NUMBER and 0 < std <= 1e3 * LARGEST_NUMBER:",
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
        "vitcli/features/least_squares.py",
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
        "vitcli/evaluation/calibration/selective.py",
        "tests/evaluation/calibration/test_selective.py::test_the_accuracy_is_of_the_answered_images",
    ): {
        "one right answer is half right": (
            "return self.right / max(1, self.answered)",
            "return self.right / max(2, self.answered)",
        ),
    },
    (
        "vitcli/features/compare_backbones.py",
        "tests/features/test_compare_backbones.py::test_a_layer_that_loses_five_images_alone_is_a_tie_and_one_that_loses_six_is_none",
    ): {
        "a layer that is worse at 5 % is a tie": ("LEVEL = 0.05", "LEVEL = 0.01"),
    },
    (
        "vitcli/features/classifiers.py",
        "tests/features/test_draws.py::test_of_equally_near_rows_the_first_is_the_neighbour_and_of_equal_numbers_the_smallest_is_chosen",
    ): {
        "of equally near rows the last is the neighbour": (
            'np.argsort(-cosine_TN, axis=1, kind="stable")[:, :most]',
            'np.argsort(cosine_TN, axis=1, kind="stable")[:, ::-1][:, :most]',
        ),
        "of equal numbers of neighbours the largest is chosen": (
            "chosen = counts[int(np.argmax(num_correct))]",
            "chosen = counts[len(counts) - 1 - int(np.argmax(num_correct[::-1]))]",
        ),
    },
    (
        "vitcli/features/classifiers.py",
        "tests/features/test_draws.py::test_three_far_neighbours_outvote_two_near_ones",
    ): {
        "long features outvote others": (
            "        cosine_TN = _unit(tests_TD[rows]) @ unit_ND.T",
            "        cosine_TN = np.asarray(tests_TD[rows], dtype=np.float64) @ unit_ND.T",
        ),
    },
    (
        "vitcli/features/classifiers.py",
        "tests/features/test_draws.py::test_a_logistic_regression_does_not_depend_on_the_numbers_of_the_classes",
    ): {
        "classes without rows shift the likelihoods": (
            "columns_N = np.searchsorted(fit.classes_, labels_N)",
            "columns_N = np.minimum(labels_N, len(fit.classes_) - 1)",
        ),
    },
    (
        "vitcli/features/draws.py",
        "tests/features/test_draws.py::test_rows_of_several_draws_are_read_once",
    ): {
        "rows of several draws are read again": (
            "return np.unique(np.concatenate([rows for",
            "return np.sort(np.concatenate([rows for",
        ),
    },
    (
        "vitcli/features/forecast.py",
        "tests/features/test_forecast.py::test_draws_are_nested_and_keep_the_proportions_of_the_classes",
    ): {
        "a curve lacks its smallest part": (
            "num_sizes = 1 + math.floor(2 * math.log2(1 / SMALLEST_PART))",
            "num_sizes = math.floor(2 * math.log2(1 / SMALLEST_PART))",
        ),
    },
    (
        "vitcli/evaluation/calibration/results.py",
        "tests/evaluation/calibration/test_results.py::test_an_image_just_as_far_as_the_threshold_is_like_the_training_images",
    ): {
        "an image at the threshold is unlike the others": (
            "features_ND, probabilities_NK) <= stored.distance",
            "features_ND, probabilities_NK) < stored.distance",
        ),
    },
    (
        "vitcli/evaluation/regression.py",
        "tests/evaluation/test_regression.py::test_the_file_of_predicted_numbers_has_them_as_they_are_in_order",
    ): {
        "targets of a file are rounded": (
            '"target": self.targets_N,',
            '"target": self.targets_N.astype("float32").astype("float64"),',
        ),
    },
    (
        "vitcli/features/compare_backbones.py",
        "tests/features/test_compare_backbones.py::test_the_advice_is_the_shallowest_tie_of_the_best_checkpoint_and_how_much_faster_it_is",
    ): {
        "a shallow layer is so many times slower": (
            "_rate(backbone, first.combination) / backbone.speed.images_per_s[0]",
            "backbone.speed.images_per_s[0] / _rate(backbone, first.combination)",
        ),
        "the most accurate tie is advised": (
            "key=lambda score: (score.combination.depth, -score.accuracy)",
            "key=lambda score: (-score.accuracy, score.combination.depth)",
        ),
        "the last layer is advised in place of itself": (
            "and score.combination.depth < last",
            "and score.combination.depth <= last",
        ),
        "the rate of a layer is that of the one before": (
            "return rates[0 if depth == backbone.layout.num_layers else depth]",
            "return rates[0 if depth == backbone.layout.num_layers else depth - 1]",
        ),
    },
    (
        "vitcli/features/embed.py",
        "tests/features/test_embed.py::test_a_plain_folder_is_named_without_a_split_and_lines_fit_into_80_columns",
    ): {
        "the lines that read features name no file": (
            'load_file({result["out"]!r})',
            "load_file()",
        ),
    },
}
