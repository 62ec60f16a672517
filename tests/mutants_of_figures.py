"""Deliberate breaks of figures: a wrong curve with right labels is seen by nobody."""

_TRAINING = "tests/training/test_figures.py::test_"
_EVALUATION = "tests/evaluation/test_figures.py::test_"

# By file and tests: what each break does, the text before and after it.
OF_FIGURES = {
    (
        "vitcli/training/figures.py",
        f"{_TRAINING}curves_have_the_values_of_the_records_at_their_steps",
    ): {
        "the curve of the loss runs backwards": (
            'axes, at, losses, BLUE, "training")',
            'axes, at, losses[::-1], BLUE, "training")',
        ),
        "the held-out loss is the training loss": (
            '_plot(axes, evals_at, [record["eval"]["loss"] for record in evals], ORANGE, "held out")',
            '_plot(axes, at, losses, ORANGE, "held out")',
        ),
        "top-5 has the curve of top-1": (
            "values = [100 * scores[key] for _, scores in evals]",
            "values = [100 * scores[kinds[0]] for _, scores in evals]",
        ),
    },
    (
        "vitcli/training/figures.py",
        f"{_TRAINING}a_selection_shows_every_trial_at_its_value_and_marks_the_chosen_one",
    ): {
        "scores stand at the value tried at their place": (
            'points = sorted((choice[key], 100 * choice["dev_top1"]) for choice in scored)',
            'points = list(zip(sorted(values), [100 * choice["dev_top1"] for choice in scored]))',
        ),
    },
    (
        "vitcli/training/results.py",
        "tests/training/test_finetune.py::test_a_run_writes_its_whole_folder_and_prints_its_summary",
    ): {
        "the curves of a run lack its last record": (
            "records = read_jsonl(folder.path / run_folder.METRICS)",
            "records = read_jsonl(folder.path / run_folder.METRICS)[:-1]",
        ),
    },
    (
        "vitcli/evaluation/figures.py",
        f"{_EVALUATION}bars_are_accuracies_points_are_at_mean_confidences_and_counts_stand_below",
    ): {
        "bars are confidences": (
            "upper.bar(middles_M[bins_M], accuracy_M[bins_M],",
            "upper.bar(middles_M[bins_M], confidence_M[bins_M],",
        ),
        "points stand in the middle of their bin": (
            "upper.plot(confidence_M[many_M], accuracy_M[many_M],",
            "upper.plot(middles_M[many_M], accuracy_M[many_M],",
        ),
        "the calibrated curve is the one before": (
            "values = 100 * calibrated.confidence_M[kept_M], 100 * calibrated.accuracy_M[kept_M]",
            "values = confidence_M[kept_M], accuracy_M[kept_M]",
        ),
    },
    ("vitcli/evaluation/figures.py", f"{_EVALUATION}predicted_numbers_stand_above_the_true_ones"): {
        "true numbers stand above the predicted ones": (
            'axes.plot(targets_N, values_N, "o"',
            'axes.plot(values_N, targets_N, "o"',
        ),
    },
    (
        "vitcli/evaluation/figures.py",
        f"{_EVALUATION}a_confusion_matrix_has_labels_in_rows_in_percent_of_their_examples",
    ): {
        "predictions are the rows of a confusion matrix": (
            "percent_SS[index_of[label], index_of[predicted]] =",
            "percent_SS[index_of[predicted], index_of[label]] =",
        ),
    },
    (
        "vitcli/evaluation/figures.py",
        f"{_EVALUATION}accuracies_by_resolution_have_intervals_on_an_axis_of_a_sensible_span",
    ): {
        "the accuracy of the smallest image stands at the largest": (
            "axes.errorbar(sides, 100 * np.array(values), bars, **look)",
            "axes.errorbar(sides, 100 * np.array(values[::-1]), bars, **look)",
        ),
    },
    (
        "vitcli/evaluation/figures.py",
        f"{_EVALUATION}a_mistake_has_the_end_of_its_file_name_and_strange_letters_do_no_harm",
    ): {
        "mistakes stand below each other's images": (
            "zip(grid.flat, images, mistakes, strict=False)",
            "zip(grid.flat, images[::-1], mistakes, strict=False)",
        ),
    },
    (
        "vitcli/evaluation/files.py",
        "tests/evaluation/test_evaluate.py::test_the_folder_has_the_object_the_tables_and_the_images",
    ): {
        "the curve of top-1 by resolution is that of top-5": (
            'for key in ("resolution", "top1", "top5"))',
            'for key in ("resolution", "top5", "top1"))',
        ),
    },
    (
        "vitcli/evaluation/files.py",
        "tests/evaluation/test_regression.py::test_a_run_reports_errors_and_evaluate_and_predict_agree_with_it",
    ): {
        "the figure of numbers has the targets twice": (
            "figures.predicted_numbers(numbers.targets_N, numbers.values_N,",
            "figures.predicted_numbers(numbers.targets_N, numbers.targets_N,",
        ),
    },
    (
        "vitcli/features/forecast.py",
        "tests/features/test_forecast.py::test_a_flat_curve_is_near_its_floor_and_a_steep_one_is_not",
    ): {
        "the curve of a forecast ends at its lower bounds": (
            '            ahead, bounds["accuracy"], color=ORANGE, marker="o"',
            '            ahead, bounds["low"], color=ORANGE, marker="o"',
        ),
        "the floor of a forecast is its best prediction": (
            'ceiling = 100 * (1 - result["floor"]["error"])',
            'ceiling = 100 * predictions[-1]["accuracy"]',
        ),
        "the band of a forecast has no upper end": (
            'axes.fill_between(ahead, bounds["low"], bounds["high"],',
            'axes.fill_between(ahead, bounds["low"], bounds["accuracy"],',
        ),
    },
    (
        "vitcli/features/compare_backbones_text.py",
        "tests/features/test_compare_backbones.py::test_a_second_call_computes_nothing_and_a_stopped_one_is_resumed",
    ): {
        "a layer is drawn at its number in the place of its speed": (
            '[(e["images_per_s"], 100 * e["top1"], depth) for',
            '[(1.0 + depth, 100 * e["top1"], depth) for',
        ),
    },
    (
        "vitcli/inspection/figures.py",
        "tests/inspection/test_figures.py::test_each_head_is_at_its_distance_and_each_layer_at_its_mean",
    ): {
        "the mean over heads is the farthest head": (
            "axes.plot(x_LA.mean(axis=1), mean_LA.mean(axis=1), **line)",
            "axes.plot(x_LA.mean(axis=1), mean_LA.max(axis=1), **line)",
        ),
    },
    (
        "vitcli/experiments/study_figures.py",
        "tests/experiments/test_study_figures.py::test_the_front_is_a_line_with_a_ring_around_each_of_its_points",
    ): {
        "the Pareto front joins all networks": (
            "front = list(zip(*(places[name] for name in panel.front), strict=True))",
            "front = list(zip(*(places[name] for name in places), strict=True))",
        ),
    },
    (
        "vitcli/report/figures.py",
        "tests/report/test_figures.py::test_a_chart_has_the_points_bars_and_rings_of_its_lines",
    ): {
        "the curves of a report run backwards": (
            "axes.plot(at, values, color=colour, markersize=4,",
            "axes.plot(at, values[::-1], color=colour, markersize=4,",
        ),
        "a bar of a report has twice its length": (
            "middle, half = (low + high) / 2, (high - low) / 2",
            "middle, half = (low + high) / 2, high - low",
        ),
    },
}
