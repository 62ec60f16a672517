"""Tables of accuracies, in the shape of the paper's Tables 2, 5, 6 and 9, of errors, and of evaluations."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vitcli.data.vtab import NUM_TASKS
from vitcli.output.document import Cell, Header, Row, Table, fraction_cell, mark_best, number_cell
from vitcli.output.scores import ERRORS, IN_REPORT, cell_of, header_of, interval_shown
from vitcli.output.summaries import LEAST_CALIBRATED, Evaluation, TrainingSummary, VtabSummary
from vitcli.output.text import count_of, size_text
from vitcli.report.grouping import (
    SEED,
    Entry,
    NetworkColumn,
    arrange,
    best_of_their_images,
    cells_of,
    compute_column,
    crossed,
    interval_note,
    of_repeats,
    row_headers,
    row_keys,
)
from vitcli.report.run_tables import SETTINGS, settings_cells
from vitcli.report.runs import EvaluationRecord, ImageSet, Names, Run, RunCollection, VtabRecord

NETWORK = Header("network", kind="text")  # of the first column
NO_CALIBRATION = (
    f"Of fewer than {LEAST_CALIBRATED} images no reliability diagram is drawn: its bins would be chance."
)
INTERVAL = "Small print: the 95 % interval over the images"
EXPLAINED = {  # by the caption of the evaluations, where they have it
    "f1_macro": " Balanced accuracy, F1 and AUROC are means over the classes.",
    "mean_ap": " Of several labels per image, mAP is the mean average precision.",
}


def transfer(collection: RunCollection, names: Names) -> list[Table]:
    """Return Tables 2 and 5, data sets by networks, and Table 6, networks by data sets with their compute.

    Of one data set neither: they would repeat the table of the runs, unless a cell is the mean of several.
    """
    finished = [
        run
        for run in collection.runs
        if run.command == "finetune" and run.summary and not run.summary.are_errors
    ]
    entries = [_run_entry(run, names) for run in finished]
    entries += [
        Entry(
            ("VTAB", f"{NUM_TASKS} tasks"),
            *_network(vtab),
            vtab.path,
            mean=vtab.summary.top1,
            exaflops=sum(run.summary.exaflops or 0.0 for run in vtab.runs if run.summary) or None,
            status=_finished_tasks(vtab.summary),
        )
        for vtab in collection.vtabs
    ]
    if not entries:
        return []
    columns = arrange(entries)
    has_several_sets = len({entry.row[0] for entry in entries}) > 1 or bool(collection.vtabs)
    has_means = any(len(cell) > 1 for column in columns for cell in column.cells.values())
    tables = _compute(columns, collection, has_several_sets=has_several_sets)
    if has_several_sets or has_means:
        repeats = of_repeats(columns, "runs with their own seeds")
        caption = (
            f"Top-1 accuracy in % on each data set (rows) of each network (columns){repeats}. {INTERVAL}. "
            "The best of a row is in bold: all of a row were scored on the same images. In the shape of the "
            "paper's Tables 2 and 5."
        )
        tables.insert(0, crossed("accuracy", "Transfer accuracy", caption, columns))
    return tables


def _compute(
    columns: Sequence[NetworkColumn], collection: RunCollection, *, has_several_sets: bool
) -> list[Table]:
    used = [sum(entry.exaflops or 0.0 for entry in column.entries) or None for column in columns]
    if not any(used):
        return []
    pretraining = [_pretraining_exaflops(column, collection.runs) for column in columns]
    if not has_several_sets and not any(pretraining):
        return []
    keys = row_keys(columns)
    costs = [("of these runs", used), *([("of pre-training", pretraining)] if any(pretraining) else [])]
    computes = [compute_column(values, detail) for detail, values in costs]
    headers = [*row_headers(keys), *(header for header, _ in computes)]
    # Each data set and each kind of compute is a column here: their cells, by network.
    lines = zip(*cells_of(columns, keys), *(cells for _, cells in computes), strict=True)
    rows = [Row(column.header, cells) for column, cells in zip(columns, lines, strict=True)]
    caption = (
        "Each network (rows) with its top-1 accuracy in % on each data set and the compute of the "
        "training runs behind the row. The best of a column is in bold. In the shape of the paper's Table 6, "
        "whose compute is that of pre-training."
    )
    return [Table("compute", "Accuracy and compute", caption, NETWORK, tuple(headers), tuple(rows))]


def _run_entry(run: Run, names: Names) -> Entry:
    summary = run.summary
    # Whether the scores are those of an average of runs, and not of runs whose average is delivered.
    is_average = summary.average and len(summary.runs) == 1
    return Entry(
        (names.data(run.dataset), run.split, run.images),
        run.model,
        run.ckpt,
        run.recipe | ({"average": summary.average.delivered} if is_average else {}),
        run.path,
        seeds=run.seeds,
        values=tuple(scores.top1 for scores in summary.runs if scores.top1 is not None),
        mean=summary.top1,
        std=summary.top1_std,
        interval=summary.intervals.get("top1"),
        resolution=run.resolution,
        exaflops=summary.exaflops,
        num_seen=summary.num_held_out_seen or 0,
    )


def _finished_tasks(summary: VtabSummary) -> str:
    return f"{sum(task.top1 is not None for task in summary.tasks.values())} of {NUM_TASKS} tasks"


def _network(vtab: VtabRecord) -> tuple[str, str | None, dict]:
    """Return model, checkpoint, and the recipe keys that have the same value in all tasks."""
    if not vtab.runs:
        return "unknown network", None, {}
    first, *others = vtab.runs
    agreed = {
        key: value
        for key, value in first.recipe.items()
        if all(run.recipe.get(key) == value for run in others) and key != SEED
    }
    return first.model, first.ckpt, agreed


def _pretraining_exaflops(column: NetworkColumn, runs: Sequence[Run]) -> float | None:
    """Return the compute of the run that made the column's checkpoint, if the report has that run."""
    ckpt = column.entries[0].ckpt
    origin = (run for run in runs if ckpt and run.summary and run.path.resolve() == Path(ckpt).resolve())
    return next((run.summary.exaflops for run in origin), None)


def vtab_tasks(collection: RunCollection) -> Table | None:
    """Return Table 9: the tasks of VTAB by networks, with the means of their groups."""
    entries = [
        Entry(
            (name, task.group, ImageSet(task.num_eval_examples)), *_network(vtab), vtab.path, mean=task.top1
        )
        for vtab in collection.vtabs
        for name, task in vtab.summary.tasks.items()
    ]
    if not entries:
        return None
    columns = arrange(entries)
    keys = list(dict.fromkeys(entry.row for entry in entries))
    cells = cells_of(columns, keys)
    rows = [Row(header, line) for header, line in zip(row_headers(keys), cells, strict=True)]
    # Below the tasks: the means of the groups that have one, then the mean of all tasks.
    by_path = {vtab.path: vtab.summary for vtab in collection.vtabs}
    summaries = [by_path[column.entries[0].folder] for column in columns]
    for group in dict.fromkeys(group for summary in summaries for group in summary.groups):
        means = mark_best([fraction_cell(summary.groups.get(group)) for summary in summaries])
        if any(cell.text for cell in means):
            rows.append(Row(Header(group, "mean of the group"), means, is_total=True))
    notes = [_finished_tasks(summary) if summary.top1 is None else "" for summary in summaries]
    means = [fraction_cell(summary.top1, note=note) for summary, note in zip(summaries, notes, strict=True)]
    rows.append(Row(Header("VTAB", f"mean of {NUM_TASKS} tasks"), mark_best(means), is_total=True))
    caption = (
        "Top-1 accuracy in % on each task; the best of a row in bold. The score is the mean of the tasks, "
        "not of the groups, and is shown once all of them are finished. In the shape of the paper's Table 9."
    )
    headers = tuple(column.header for column in columns)
    return Table("vtab", "VTAB by task", caption, Header("task", kind="text"), headers, tuple(rows))


def few_shot(collection: RunCollection, names: Names) -> Table | None:
    """Return few-shot accuracies: data sets and shots by networks (paper, section 4.1)."""
    entries = [
        Entry(
            (names.data(record.summary.dataset), record.summary.split, f"{int(shots):,}-shot", record.images),
            record.summary.model,
            record.summary.ckpt,
            record.recipe,
            record.path,
            values=tuple(scores.runs),
            mean=scores.mean,
            std=scores.std,
            resolution=record.summary.resolution,
        )
        for record in collection.fewshots
        for shots, scores in record.summary.shots.items()
    ]
    if not entries:
        return None
    columns = arrange(entries, by_ckpt=True)
    caption = (
        "Top-1 accuracy in % of a classifier fitted to the frozen features of a few images per class"
        f"{of_repeats(columns, 'draws')}. {INTERVAL}. The best of a row is in bold."
    )
    return crossed("fewshot", "Few-shot accuracy", caption, columns)


def pretraining(collection: RunCollection, names: Names) -> Table | None:
    """Return the runs from fresh weights, their accuracy and compute."""
    runs = [run for run in collection.runs if run.command == "pretrain" and run.summary]
    if not runs:
        return None
    compute, compute_cells = compute_column([run.summary.exaflops for run in runs])
    rows = []
    for run, used in zip(runs, compute_cells, strict=True):
        summary, probe = run.summary, run.summary.fewshot
        details = (summary.model, names.data(run.dataset), f"{size_text(summary.resolution)} px")
        where = ", ".join(filter(None, (*details, run.images.text())))
        probe_note = f"{probe.shots}-shot {names.data(probe.dataset)}" if probe else ""
        accuracy, note = summary.patch_accuracy, "of patch colours"
        if summary.top1 is not None:
            accuracy = summary.top1
            note = interval_note(summary.top1, run.images.count, summary.intervals.get("top1"))
        cells = (
            fraction_cell(accuracy, summary.top1_std, note=note),
            cell_of(summary, "loss"),
            fraction_cell(probe.top1 if probe else None, note=probe_note),
            number_cell(summary.steps, "{:,}"),
            number_cell(summary.steps * summary.batch_size, "{:,}"),
            used,
        )
        rows.append(Row(Header(names.folder(run.path), where, run.path), cells))
    columns = ("held-out top-1", "held-out loss", "few-shot probe", "steps", "images seen")
    caption = (
        "Runs from fresh weights: accuracies in % on the held-out split, loss in nats, and compute. "
        f"{INTERVAL}."
    )
    headers = (*map(Header, columns), compute)
    return Table("pretraining", "Pre-training", caption, Header("run", kind="text"), headers, tuple(rows))


def evaluations(collection: RunCollection, names: Names) -> list[Table]:
    """Return the results of `vit evaluate`: data sets by checkpoints, then all numbers of each."""
    records = [record for record in collection.evaluations if not record.summary.are_errors]
    if not records:
        return []
    # Several evaluations: their top-1 side by side.
    tables: list[Table] = []
    if len(records) > 1:
        caption = (
            "Top-1 accuracy in % of evaluated checkpoints (columns) on each data set (rows); rows of ReaL "
            f"use the reassessed labels of ImageNet. {INTERVAL}. The best of a row is in bold: all of a row "
            "were scored on the same images."
        )
        entries = [entry for record in records for entry in _evaluation_entries(record, names)]
        columns = arrange(entries, by_ckpt=True)
        # With each result in a row of its own the table below says as much.
        if any(len([column for column in columns if row in column.cells]) > 1 for row in row_keys(columns)):
            tables = [crossed("evaluated", "Evaluated checkpoints", caption, columns)]
    # All numbers of each evaluation.
    scores = (header_of("top1"), Header("95 %", "interval"), *map(header_of, IN_REPORT))
    headers = (Header("images"), *scores)
    caption = (
        "All numbers of each evaluation, accuracies in %. ECE is the expected calibration error, the mean "
        "difference of confidence and accuracy. Brier is the squared distance of probabilities and label."
    )
    for key, explanation in EXPLAINED.items():
        if any(getattr(record.summary, key) is not None for record in records):
            caption += explanation
    if any(not has_calibration(record) for record in records):
        caption += f" {NO_CALIBRATION}"
    rows = []
    for record in records:
        summary = record.summary
        images, top1 = number_cell(summary.num_eval_examples, "{:,}"), cell_of(summary, "top1")
        others = (cell_of(summary, key) for key in IN_REPORT)
        header = _header_of_evaluation(record, names, f"{size_text(summary.resolution)} px")
        rows.append(Row(header, (images, top1, Cell(interval_shown(summary.intervals, "top1")), *others)))
    corner = Header("checkpoint", kind="text")
    table = Table("evaluations", "Evaluations", caption, corner, headers, tuple(rows))
    return [*tables, table.without_empty()]


def has_calibration(record: EvaluationRecord) -> bool:
    """Return whether an evaluation has enough images for a reliability diagram."""
    return record.summary.num_eval_examples >= LEAST_CALIBRATED


def _evaluation_entries(record: EvaluationRecord, names: Names) -> list[Entry]:
    summary, images = record.summary, record.images
    scores = {summary.class_map or "": ("top1", summary.top1, images)}
    if summary.real_top1 is not None:
        rated = summary.num_real_examples or images.count
        scores["ReaL"] = ("real_top1", summary.real_top1, images._replace(count=rated))
    return [
        Entry(
            (names.data(summary.dataset), summary.split, labels, scored),
            summary.model,
            summary.ckpt,
            {},
            record.path,
            mean=top1,
            interval=summary.intervals.get(key),
            resolution=summary.resolution,
        )
        for labels, (key, top1, scored) in scores.items()
    ]


def _header_of_evaluation(record: EvaluationRecord, names: Names, size: str = "") -> Header:
    summary = record.summary
    kind = "evaluation" if summary.are_errors else ""
    mirrored = "with mirror images" if summary.tta else ""
    data = (names.data(summary.dataset), summary.split, summary.class_map)
    name = names.ckpts.get(summary.ckpt, summary.ckpt)
    return Header(name, ", ".join(filter(None, (kind, summary.model, *data, size, mirrored))), record.path)


def errors(collection: RunCollection, names: Names) -> Table:
    """Return MAE, RMSE and R2 of each finished regression, and of each evaluation of its weights."""
    finished = [record for record in (*collection.runs, *collection.evaluations) if record.summary]
    records = [record for record in finished if record.summary.are_errors]
    best = best_of_their_images(records, names, "mae")
    rows = tuple(_error_row(record, names, is_best=record.path in best) for record in records)
    caption = (
        "Errors of predicted numbers, in their unit: mean absolute error, root of the mean squared error, "
        "and R2, the fraction of the variance that is explained. Small print: the 95 % interval over the "
        "images. Of the same number on the same images the smallest MAE is in bold."
    )
    headers = (Header("predicts", kind="text"), *map(header_of, ERRORS), Header("images"), *SETTINGS)
    corner = Header("run or checkpoint", kind="text")
    return Table("numbers", "Predicted numbers", caption, corner, headers, rows)


def _error_row(record: Run | EvaluationRecord, names: Names, *, is_best: bool) -> Row:
    summary = record.summary
    mae, *others = (_error_cell(summary, key) for key in ERRORS)
    name, images = summary.target.name if summary.target else "", number_cell(record.images.count, "{:,}")
    if isinstance(record, Run):
        details = (record.command, record.model, names.data(record.dataset), record.split)
        header = Header(names.folder(record.path), ", ".join(filter(None, details)), record.path)
        settings = settings_cells(record, names)
    else:
        header = _header_of_evaluation(record, names)
        settings = (Cell(), Cell(size_text(summary.resolution)), *[Cell()] * (len(SETTINGS) - 2))
    return Row(header, (Cell(name), replace(mae, is_best=is_best), *others, images, *settings))


def _error_cell(summary: TrainingSummary | Evaluation, key: str) -> Cell:
    """Return an error with its interval; of several runs the mean, which has none."""
    cell, runs = cell_of(summary, key), summary.runs if isinstance(summary, TrainingSummary) else ()
    note = (
        f"mean of {count_of(len(runs), 'run')}" if len(runs) > 1 else interval_shown(summary.intervals, key)
    )
    return replace(cell, note=note, count=max(1, len(runs))) if cell.text else cell
