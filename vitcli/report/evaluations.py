"""The tables of what `vit evaluate` has said."""

from pathlib import Path

from vitcli.output.document import Cell, Head, Line, Table, number, share
from vitcli.output.text import size_text
from vitcli.report.cross import crossed
from vitcli.report.grouping import Entry, arrange
from vitcli.report.runs import Material, Scored
from vitcli.report.tables import Names


def evaluations(material: Material, names: Names) -> list[Table]:
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
    heads = [Head("images"), Head("top-1"), Head("95 %", "interval"), Head("top-5"), Head("loss", "nats")]
    heads += [Head("ECE", "%"), Head("Brier")]
    has_real = any(one.said.real_top1 is not None for one in material.scored)
    heads[4:4] = [Head("ReaL")] if has_real else []
    lines = tuple(_line_of_scored(one, names, has_real=has_real) for one in material.scored)
    caption = (
        "All numbers of each evaluation, accuracies in %. ECE is the expected calibration error: how far "
        "confidence and accuracy are apart. Brier is the squared distance of probabilities and label."
    )
    return [*tables, Table("evaluations", "Evaluations", caption, "checkpoint", tuple(heads), lines)]


def _of_scored(one: Scored) -> list[Entry]:
    said, more = one.said, one.said.class_map or ""
    network = (said.model, said.ckpt, {}, one.path)
    found = [Entry((one.dataset, one.split, more), *network, mean=said.top1, resolution=said.resolution)]
    if said.real_top1 is not None:
        row = (one.dataset, one.split, "ReaL")
        found.append(Entry(row, *network, mean=said.real_top1, resolution=said.resolution))
    return found


def _line_of_scored(one: Scored, names: Names, *, has_real: bool) -> Line:
    said = one.said
    interval = said.intervals.get("top1")
    between = f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}" if interval and len(interval) == 2 else ""
    top5 = share(said.top5) if said.num_classes > 5 else Cell("-")  # of five classes it is 1 by definition
    cells = [number(said.num_eval_examples, "{:,}"), share(said.top1), Cell(between), top5]
    cells += [share(said.real_top1)] if has_real else []
    cells += [number(said.loss, "{:.4f}"), share(said.ece), number(said.brier, "{:.4f}")]
    where = [
        said.model,
        names.data(one.dataset),
        one.split,
        said.class_map or "",
        f"{size_text(said.resolution)} px",
    ]
    name = Path(said.ckpt).name or said.ckpt
    return Line(Head(name, ", ".join(filter(None, where)), one.path), tuple(cells))
