"""The candidates of `vit export --fastest` as a table and as a figure."""

from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from vitcli.conversion import export
from vitcli.output.document import simple_table
from vitcli.output.plots import BLUE, GREEN, ORANGE, STYLE
from vitcli.output.text import count_of, pairs, size_text

GREY = "#888888"
Place = tuple[float, float]  # of a point, in the units of the axes
NEAR = 4  # points between a name and its mark
RADIUS = 3  # pixels of a mark
# Where a name may stand: its distance, right or left, above or below.
AROUND = tuple(product((NEAR, 12, 20, 28), (1, -1), (1, -1)))
Rows = Sequence[Mapping[str, Any]]  # `candidates` of the result


def as_text(result: Mapping[str, Any]) -> str:
    """Return a row for each candidate, then the rows of every export for the file that is kept."""
    columns = {"file": "text"} | dict.fromkeys(("ms", "img/s", "MB", "RAM", "same", "top-1"), "number")
    table = simple_table(columns | {"": "text"}, [_cells(row) for row in result["candidates"]])
    size = result["measured_on"]
    of_size = f"of {size_text(size)} pixels" if size else "of the size of each network"
    kept = next(row for row in result["candidates"] if row["kept"])
    rows = [
        ("measured", f"ms of one image {of_size}, img/s at the best batch, RAM of a process in MB"),
        ("same", "top class of the checkpoint, on training images; top-1 on held-out images"),
        ("kept", f"{kept['name']}, {kept['speed_up']:.1f} times as fast as fp32 at full size"),
        ("figure", result["figure"]),
    ]
    return f"{table.as_text()}\n{pairs(rows)}\n{export.as_text(dict(result))}"


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    def text(key: str, form: str, scale: float = 1) -> str:
        return "" if row[key] is None else form.format(scale * row[key])

    return (
        row["name"],
        text("latency_ms", "{:.3g}"),
        text("images_per_s", "{:.3g}"),
        text("num_bytes", "{:.1f}", 1e-6),
        text("peak_memory_mb", "{:.0f}"),
        text("top1_agreement", "{:.1f}", 100),
        text("top1", "{:.2f}", 100),
        "kept" if row["kept"] else row["why"],
    )


def front_of(rows: Rows, gate: Mapping[str, Any]) -> Figure:
    """Plot divergence against latency with the front, and the accuracy of those that were judged."""
    measured = sorted((row for row in rows if row["latency_ms"]), key=lambda row: row["latency_ms"])
    judged = [row for row in measured if row["top1"] is not None]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.4, 3.6), layout="constrained")
        screening, verdict = figure.subplots(1, 2)
        # All candidates, and those that none beats
        least = min((row["divergence"] for row in measured if row["divergence"] > 1e-9), default=1e-9) / 3
        places = [(row["latency_ms"], max(row["divergence"], least)) for row in measured]
        fronts: list[list[Place]] = []
        for is_student, label in ((False, "Pareto front"), (True, "Pareto front of students")):
            front = [place for row, place in zip(measured, places, strict=True)
                     if row["on_front"] and (row["ckpt"] != rows[0]["ckpt"]) == is_student]  # fmt: skip
            if front:
                fronts.append(front)
                look = {"color": BLUE, "lw": 0.9, "zorder": 0, "ls": ":" if is_student else "-"}
                screening.plot(*zip(*front, strict=True), label=label, **look)
        named: list[tuple[str, Place, str]] = []
        for row, place in zip(measured, places, strict=True):
            colour = GREEN if row["kept"] else BLUE if row["on_front"] else GREY
            screening.plot(*place, "*" if row["kept"] else "o", color=colour, ms=11 if row["kept"] else 5)
            named += [(row["name"], place, colour)] if row["on_front"] else []
        screening.set(yscale="log", xlabel="latency of one image (ms)", ylabel="divergence (nats)")
        screening.set_title(f"compared on training images: {count_of(len(measured), 'file')}", fontsize=9)
        screening.margins(x=0.15, y=0.12)
        screening.legend(fontsize=7)
        of_judged: list[tuple[str, Place, str]] = []
        bars: list[list[Place]] = []
        # Top-1, down to what is not ruled out, against what may be lost
        whole = 100 * gate["top1_checkpoint"]
        bound = whole - 100 * gate["max_drop"]
        for row in judged:
            x, y = row["latency_ms"], 100 * row["top1"]
            below = max(0.0, y - (whole - 100 * row["highest_drop"]))
            colour = GREEN if row["kept"] else BLUE if row["highest_drop"] <= gate["max_drop"] else ORANGE
            look = {"color": colour, "capsize": 3, "marker": "*" if row["kept"] else "o"}
            verdict.errorbar([x], [y], yerr=[[below], [0]], ms=11 if row["kept"] else 5, **look)
            bars.append([(x, y), (x, y - below)])
            of_judged.append((row["name"], (x, y), colour))
        verdict.axhline(bound, color=ORANGE, ls="--", lw=0.9, label="least that is accepted")
        verdict.set(xlabel="latency of one image (ms)", ylabel="top-1, and its lower bound (%)")
        verdict.set_title(f"judged on {count_of(gate['num_images'], 'held-out image')}", fontsize=9)
        verdict.margins(x=0.2)
        # A file far below would leave the others no room.
        points = 100 * gate["max_drop"]
        highest = max((100 * row["top1"] for row in judged), default=whole)
        verdict.set_ylim(max(verdict.get_ylim()[0], bound - 2 * points), highest + points / 2)
        verdict.legend(fontsize=7)
        figure.draw_without_rendering()  # places are known from then on
        _write_names(screening, named, places, fronts)
        _write_names(verdict, of_judged, [place for _, place, _ in of_judged], bars)
    return figure


def _write_names(
    axes: Axes,
    names: Sequence[tuple[str, Place, str]],
    marks: Sequence[Place],
    lines: Sequence[Sequence[Place]],
) -> None:
    """Write the names of points, each in its colour, where they touch marks, lines and each other least."""
    pixels = [axes.transData.transform(line) for line in lines]
    ends = [end for line in pixels for end in pairwise(line)]
    marks_N2 = np.concatenate([axes.transData.transform(marks), *(np.linspace(*end, 20) for end in ends)])
    written = [axes.get_legend().get_window_extent()]
    for name, place, colour in names:
        texts = [_text(axes, name, place, colour, *where) for where in AROUND]
        for text in texts:
            text.get_window_extent()  # places it
        # Without the line to its point
        boxes = [Text.get_window_extent(text).padded(RADIUS) for text in texts]
        hits = [
            4 * sum(not axes.bbox.contains(*corner) for corner in box.corners())
            + 4 * box.count_overlaps(written)
            + box.count_contains(marks_N2)
            for box in boxes
        ]
        best = hits.index(min(hits))
        written.append(boxes[best])
        for text in texts[:best] + texts[best + 1 :]:
            text.remove()


def _text(
    axes: Axes, name: str, place: Place, colour: str, distance: int, side: int, height: int
) -> Annotation:
    """Write a name left (-1) or right (1) of a point, below or above it, with a line if it is far."""
    how = {"ha": "right" if side < 0 else "left", "va": "top" if height < 0 else "bottom", "color": colour}
    line = {"arrowprops": {"arrowstyle": "-", "lw": 0.4, "color": colour}} if distance > NEAR else {}
    offset = {"xytext": (side * distance, height * distance), "textcoords": "offset points"}
    return axes.annotate(name.replace(", ", "\n"), place, fontsize=6, **offset, **how, **line)
