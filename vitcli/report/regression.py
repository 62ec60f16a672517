"""The table of what predicts a number: errors with their intervals, of runs and of evaluations."""

from collections.abc import Sequence
from dataclasses import replace

from vitcli.output.document import Cell, Header, Row, Table, number_cell
from vitcli.output.summaries import Evaluation, TrainingSummary
from vitcli.output.text import count_of, size_text
from vitcli.report.costs import SETTINGS, settings_cells
from vitcli.report.grouping import grouped
from vitcli.report.runs import EvaluationRecord, Run, RunCollection
from vitcli.report.tables import Names

ERRORS = {"mae": "MAE", "rmse": "RMSE", "r2": "R2"}


def numbers(collection: RunCollection, names: Names) -> Table:
    """Return MAE, RMSE and R2 of each finished regression, and of each evaluation of its weights."""
    finished = [record for record in (*collection.runs, *collection.evaluations) if record.summary]
    records = [record for record in finished if record.summary.are_errors]
    best = _best(records, names)
    rows = [_row(record, names, is_best=number in best) for number, record in enumerate(records)]
    caption = (
        "Errors of predicted numbers, in their unit: mean absolute error, root of the mean squared error, "
        "and R2, the fraction of the variance that is explained. Small print: the 95 % interval over the "
        "images. Of the same number on the same images the smallest MAE is in bold."
    )
    headers = (Header("predicts", kind="text"), *map(Header, ERRORS.values()), Header("images"), *SETTINGS)
    corner = Header("run or checkpoint", kind="text")
    return Table("numbers", "Predicted numbers", caption, corner, headers, tuple(rows))


def _row(record: Run | EvaluationRecord, names: Names, *, is_best: bool) -> Row:
    summary = record.summary
    errors = [_error_cell(summary, key) for key in ERRORS]
    errors[0] = replace(errors[0], is_best=is_best)
    name, images = summary.target.name if summary.target else "", number_cell(record.images.count, "{:,}")
    if isinstance(record, Run):
        details = (record.command, record.model, names.data(record.dataset), record.split)
        header = Header(names.folder(record.path), ", ".join(filter(None, details)), record.path)
        return Row(header, (Cell(name), *errors, images, *settings_cells(record, names)))
    mirrored = "with mirror images" if summary.tta else ""
    details = ("evaluation", summary.model, names.data(summary.dataset), summary.split, mirrored)
    ckpt = names.ckpts.get(summary.ckpt, summary.ckpt)
    header = Header(ckpt, ", ".join(filter(None, details)), record.path)
    none = [Cell()] * (len(SETTINGS) - 2)
    return Row(header, (Cell(name), *errors, images, Cell(), Cell(size_text(summary.resolution)), *none))


def _error_cell(summary: TrainingSummary | Evaluation, key: str) -> Cell:
    """Return an error with its interval; of several runs the mean, which has none."""
    runs = summary.runs if isinstance(summary, TrainingSummary) else ()
    interval = summary.intervals.get(key) or ()
    note = f"{interval[0]:.4g} to {interval[1]:.4g}" if len(interval) == 2 else ""
    if len(runs) > 1:
        note = f"mean of {count_of(len(runs), 'run')}"
    cell = number_cell(getattr(summary, key))
    return replace(cell, note=note, count=max(1, len(runs))) if cell.text else cell


def _best(records: Sequence[Run | EvaluationRecord], names: Names) -> set[int]:
    """Return the places of the smallest MAE among those of one number on the same images."""

    def scored_on(place: int) -> tuple:
        record = records[place]
        return (record.summary.target, names.data(record.dataset), record.summary.split, record.images)

    is_fair = [not getattr(record.summary, "num_held_out_seen", 0) for record in records]
    places = [place for place in range(len(records)) if is_fair[place]]
    best = set()
    for group in grouped(places, scored_on).values():
        errors = {place: f"{records[place].summary.mae:.4g}" for place in group}
        smallest = min(errors.values(), key=float)
        best |= {place for place, error in errors.items() if error == smallest} if len(group) > 1 else set()
    return best
