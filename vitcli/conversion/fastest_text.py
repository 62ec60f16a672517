"""The candidates of `vit export --fastest` as a table and as a figure."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitcli.conversion import export
from vitcli.output.document import simple_table
from vitcli.output.plots import BLUE, GREEN, ORANGE, STYLE
from vitcli.output.text import count_of, pairs, size_text

GREY = "#888888"
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
        for is_student, label in ((False, "Pareto front"), (True, "Pareto front of students")):
            front = [place for row, place in zip(measured, places, strict=True)
                     if row["on_front"] and (row["ckpt"] != rows[0]["ckpt"]) == is_student]  # fmt: skip
            if front:
                look = {"color": BLUE, "lw": 0.9, "zorder": 0, "ls": ":" if is_student else "-"}
                screening.plot(*zip(*front, strict=True), label=label, **look)
        is_left = False
        for row, place in zip(measured, places, strict=True):
            colour = GREEN if row["kept"] else BLUE if row["on_front"] else GREY
            screening.plot(*place, "*" if row["kept"] else "o", color=colour, ms=11 if row["kept"] else 5)
            if row["on_front"]:
                is_left = not is_left  # names of neighbours stand on both sides of the front, which falls
                _name(screening, row, place, colour, is_left=is_left, is_below=is_left)
        screening.set(yscale="log", xlabel="latency of one image (ms)", ylabel="divergence (nats)")
        screening.set_title(f"compared on training images: {count_of(len(measured), 'file')}", fontsize=9)
        screening.margins(x=0.15, y=0.12)
        screening.legend(fontsize=7)
        # Top-1, down to what is not ruled out, against what may be lost
        whole = 100 * gate["top1_checkpoint"]
        bound = whole - 100 * gate["max_drop"]
        for number, row in enumerate(judged):
            x, y = row["latency_ms"], 100 * row["top1"]
            below = max(0.0, y - (whole - 100 * row["highest_drop"]))
            colour = GREEN if row["kept"] else BLUE if row["highest_drop"] <= gate["max_drop"] else ORANGE
            look = {"color": colour, "capsize": 3, "marker": "*" if row["kept"] else "o"}
            verdict.errorbar([x], [y], yerr=[[below], [0]], ms=11 if row["kept"] else 5, **look)
            _name(verdict, row, (x, y), colour, is_left=(len(judged) - number) % 2 == 0)
        verdict.axhline(bound, color=ORANGE, ls="--", lw=0.9, label="least that is accepted")
        verdict.set(xlabel="latency of one image (ms)", ylabel="top-1, and its lower bound (%)")
        verdict.set_title(f"judged on {count_of(gate['num_images'], 'held-out image')}", fontsize=9)
        verdict.margins(x=0.2)
        # A file far below would leave the others no room.
        points = 100 * gate["max_drop"]
        highest = max((100 * row["top1"] for row in judged), default=whole)
        verdict.set_ylim(max(verdict.get_ylim()[0], bound - 2 * points), highest + points / 2)
        verdict.legend(fontsize=7)
    return figure


def _name(
    axes: Axes,
    row: Mapping[str, Any],
    place: tuple[float, float],
    colour: str,
    *,
    is_left: bool,
    is_below: bool = False,
) -> None:
    side = {"ha": "right" if is_left else "left", "va": "top" if is_below else "bottom"}
    offset = (-4 if is_left else 5, -3 if is_below else 3)
    look = {"textcoords": "offset points", "fontsize": 6, "color": colour, "annotation_clip": True, **side}
    axes.annotate(row["name"].replace(", ", "\n", 1), place, xytext=offset, **look)
