"""The tables of accuracies, in the shape of the paper's Tables 2, 5, 6 and 9."""

from collections.abc import Sequence
from pathlib import Path

from vitcli.data.vtab import NUM_TASKS
from vitcli.output.document import Cell, Header, Row, Table, fraction_cell, mark_best, number_cell
from vitcli.output.summaries import VtabSummary
from vitcli.output.text import size_text, top5_is_informative
from vitcli.report.grouping import SEED, Entry, NetworkColumn, arrange
from vitcli.report.runs import EvaluationRecord, Run, RunCollection, Vtab
from vitcli.report.tables import Names, cells_of, crossed, repeated, rows_of

SEEDS = "runs with their own seeds"
NETWORK = Header("network", kind="text")  # of the first column


def results(material: RunCollection, names: Names) -> list[Table]:
    """Tables 2 and 5: data sets by networks; Table 6: networks by data sets, with their compute."""
    entries = [_of_run(run, material.runs) for run in material.runs if run.command == "finetune"]
    entries += [_of_vtab(vtab) for vtab in material.vtabs]
    if not entries:
        return []
    columns = arrange(entries)
    caption = (
        f"Top-1 accuracy in % on each data set (rows) of each network (columns){repeated(columns, SEEDS)}. "
        "The best of a row is in bold. In the shape of the paper's Tables 2 and 5."
    )
    accuracy = crossed("accuracy", "Transfer accuracy", caption, columns, names)
    return [accuracy, *_compute(columns, material, names)]


def _compute(columns: Sequence[NetworkColumn], material: RunCollection, names: Names) -> list[Table]:
    spent = [sum(entry.exaflops or 0.0 for entry in column.entries) or None for column in columns]
    if not any(spent):
        return []
    before = [_pretraining_exaflops(column, material.runs) for column in columns]
    rows = rows_of(columns)
    heads = [*map(names.row, rows), Header("exaFLOPs", "of these runs")]
    heads += [Header("exaFLOPs", "of pre-training")] if any(before) else []
    by_row, lines = cells_of(columns, rows), []
    for at, column in enumerate(columns):
        own = [cells[at] for cells in by_row] + [number_cell(spent[at])]
        own += [number_cell(before[at])] if any(before) else []
        lines.append(Row(Header(column.name, column.detail), tuple(own)))
    caption = (
        "Each network (rows) with its top-1 accuracy in % on each data set and the compute of the "
        "training runs behind the row. The best of a column is in bold. In the shape of the paper's Table 6, "
        "whose compute is that of pre-training."
    )
    return [Table("compute", "Accuracy and compute", caption, NETWORK, tuple(heads), tuple(lines))]


def vtab_tasks(material: RunCollection, names: Names) -> Table | None:
    """Table 9: the tasks of VTAB by networks, with the means of their groups."""
    entries = [
        Entry((task, said.group), *_network(vtab), vtab.path, mean=said.top1)
        for vtab in material.vtabs
        for task, said in vtab.summary.tasks.items()
    ]
    if not entries:
        return None
    columns = arrange(entries)
    rows = list(dict.fromkeys(entry.row for entry in entries))
    lines = [Row(Header(*row), own) for row, own in zip(rows, cells_of(columns, rows), strict=True)]
    by_path = {vtab.path: vtab.summary for vtab in material.vtabs}
    said = [by_path[column.entries[0].folder] for column in columns]
    for group in dict.fromkeys(group for one in said for group in one.groups):
        means = mark_best([fraction_cell(one.groups.get(group)) for one in said])
        if any(cell.text for cell in means):
            lines.append(Row(Header(group, "mean of the group"), means, is_total=True))
    means = mark_best(
        [fraction_cell(one.top1, note=_finished(one) if one.top1 is None else "") for one in said]
    )
    lines.append(Row(Header("VTAB", f"mean of {NUM_TASKS} tasks"), means, is_total=True))
    return Table(
        "vtab",
        "VTAB, task by task",
        "Top-1 accuracy in % on each task; the best of a row in bold. The score is the mean of the "
        "tasks, not of the groups, and is open until all are finished. In the shape of the paper's Table 9.",
        Header("task", kind="text"),
        tuple(Header(column.name, column.detail) for column in columns),
        tuple(lines),
    )


def few_shot(material: RunCollection, names: Names) -> Table | None:
    """Few-shot accuracy: data sets and shots by networks (paper, section 4.1)."""
    entries = [
        Entry(
            (one.dataset, one.split, f"{int(shots):,}-shot"),
            one.summary.model,
            one.summary.ckpt,
            one.recipe,
            one.path,
            values=tuple(found.runs),
            mean=found.mean,
            std=found.std,
            resolution=one.summary.resolution,
        )
        for one in material.fewshots
        for shots, found in one.summary.shots.items()
    ]
    if not entries:
        return None
    columns = arrange(entries)
    caption = (
        "Top-1 accuracy in % of a classifier fitted to a few pictures of each class, features frozen"
        f"{repeated(columns, 'draws')}. The best of a row is in bold."
    )
    return crossed("fewshot", "Few-shot accuracy", caption, columns, names)


def pretraining(material: RunCollection, names: Names) -> Table | None:
    """What was trained from fresh weights, and what it cost."""
    finished = [run for run in material.runs if run.command == "pretrain" and run.summary]
    if not finished:
        return None
    lines = []
    for run in finished:
        said, probed = run.summary, run.summary.fewshot
        where = f"{names.data(run.dataset)}, {size_text(said.resolution)} px"
        note = f"{probed.shots}-shot {names.data(probed.dataset)}" if probed else ""
        right = said.top1 if said.top1 is not None else said.patch_accuracy
        kind = "of patch colours" if said.patch_accuracy is not None else ""
        cells = (
            fraction_cell(right, said.top1_std, note=kind), number_cell(said.loss, "{:.4f}"),
            fraction_cell(probed.top1 if probed else None, note=note), number_cell(said.steps, "{:,}"),
            number_cell(said.steps * said.batch_size, "{:,}"), number_cell(said.exaflops),
        )  # fmt: skip
        lines.append(Row(Header(said.model, where, run.path), cells))
    columns = ("held-out top-1", "held-out loss", "few-shot probe", "steps", "images seen", "exaFLOPs")
    caption = (
        "Runs from fresh weights: accuracies in % on the held-out split, loss in nats, and what they took."
    )
    heads = tuple(Header(column) for column in columns)
    return Table("pretraining", "Pre-training", caption, NETWORK, heads, tuple(lines))


def _of_run(run: Run, runs: Sequence[Run]) -> Entry:
    said, row = run.summary, (run.dataset, run.split)
    model = run.model
    if said is None:  # neither the split nor a checkpoint's network is known yet: others may tell
        finished = [one for one in runs if one.summary]
        row = (run.dataset, next((one.split for one in finished if one.dataset == run.dataset), ""))
        model = next((one.model for one in finished if run.ckpt and one.ckpt == run.ckpt), model)
    return Entry(
        row,
        model,
        run.ckpt,
        run.recipe,
        run.path,
        seeds=run.seeds,
        values=tuple(one.top1 for one in said.runs if one.top1 is not None) if said else (),
        mean=said.top1 if said else None,
        std=said.top1_std if said else None,
        resolution=run.resolution,
        exaflops=said.exaflops if said else None,
        told=run.progress.in_words if run.progress else "",
    )


def _of_vtab(vtab: Vtab) -> Entry:
    spent = [run.summary.exaflops or 0.0 for run in vtab.runs if run.summary]
    return Entry(
        ("VTAB", f"{NUM_TASKS} tasks"),
        *_network(vtab),
        vtab.path,
        mean=vtab.summary.top1,
        exaflops=sum(spent) or None,
        told=_finished(vtab.summary),
    )


def _finished(said: VtabSummary) -> str:
    return f"{sum(task.top1 is not None for task in said.tasks.values())} of {NUM_TASKS} tasks"


def _network(vtab: Vtab) -> tuple[str, str | None, dict]:
    """Model, checkpoint, and what the recipes of all tasks agree on."""
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
    """Of the run that has made the column's checkpoint, where it is among those reported."""
    ckpt = column.entries[0].ckpt
    made = [run for run in runs if ckpt and run.summary and run.path.resolve() == Path(ckpt).resolve()]
    return made[0].summary.exaflops if made else None


def evaluations(material: RunCollection, names: Names) -> list[Table]:
    """Checkpoints that vit evaluate has scored: data sets by checkpoints, then all numbers of each."""
    if not material.scored:
        return []
    tables = []
    entries = [entry for one in material.scored for entry in _of_scored(one)]
    if len(material.scored) > 1:
        caption = (
            "Top-1 accuracy in % of finished checkpoints (columns) on each data set (rows); ReaL, where "
            "there is such a row, by the reassessed labels of ImageNet. The best of a row is in bold."
        )
        tables = [crossed("evaluated", "Evaluated checkpoints", caption, arrange(entries), names)]
    heads = [
        Header("images"),
        Header("top-1"),
        Header("95 %", "interval"),
        Header("top-5"),
        Header("loss", "nats"),
    ]
    heads += [Header("ECE", "%"), Header("Brier")]
    has_real = any(one.said.real_top1 is not None for one in material.scored)
    heads[4:4] = [Header("ReaL")] if has_real else []
    lines = tuple(_line_of_scored(one, names, has_real=has_real) for one in material.scored)
    caption = (
        "All numbers of each evaluation, accuracies in %. ECE is the expected calibration error: how far "
        "confidence and accuracy are apart. Brier is the squared distance of probabilities and label."
    )
    return [
        *tables,
        Table("evaluations", "Evaluations", caption, Header("checkpoint", kind="text"), tuple(heads), lines),
    ]


def _of_scored(one: EvaluationRecord) -> list[Entry]:
    said, more = one.said, one.said.class_map or ""
    network = (said.model, said.ckpt, {}, one.path)
    found = [Entry((one.dataset, one.split, more), *network, mean=said.top1, resolution=said.resolution)]
    if said.real_top1 is not None:
        row = (one.dataset, one.split, "ReaL")
        found.append(Entry(row, *network, mean=said.real_top1, resolution=said.resolution))
    return found


def _line_of_scored(one: EvaluationRecord, names: Names, *, has_real: bool) -> Row:
    said = one.said
    interval = said.intervals.get("top1")
    between = f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}" if interval and len(interval) == 2 else ""
    top5 = (
        fraction_cell(said.top5) if top5_is_informative(said.num_classes) else Cell("-")
    )  # of five classes it is 1 by definition
    cells = [number_cell(said.num_eval_examples, "{:,}"), fraction_cell(said.top1), Cell(between), top5]
    cells += [fraction_cell(said.real_top1)] if has_real else []
    cells += [number_cell(said.loss, "{:.4f}"), fraction_cell(said.ece), number_cell(said.brier, "{:.4f}")]
    where = [
        said.model,
        names.data(one.dataset),
        one.split,
        said.class_map or "",
        f"{size_text(said.resolution)} px",
    ]
    name = Path(said.ckpt).name or said.ckpt
    return Row(Header(name, ", ".join(filter(None, where)), one.path), tuple(cells))
