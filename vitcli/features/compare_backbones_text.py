"""The comparison of checkpoints and layers for a terminal, and its figure."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from vitcli.features.layers import FUSED
from vitcli.output import text
from vitcli.output.document import simple_table
from vitcli.output.plots import COLORS, STYLE, percent_limits

MOST_GRIDS = 3  # checkpoints whose layers are all shown in a terminal
POOLINGS = ("token", "mean", "both", "head")


def as_text(result: Mapping[str, Any], *, verbose: bool = False) -> str:
    """Return the best of each checkpoint and the choice; with `verbose` accuracy by layer and more, too."""
    names = text.short_names([about["ckpt"] for about in result["ckpts"]])
    if not verbose:
        return f"{_checkpoints(result, names)}\n{_choice(result, names)}"
    parts = [_checkpoints(result, names)]
    shown = [about for about in result["ckpts"] if about["num_layers"]]
    if len(shown) > MOST_GRIDS:
        shown = [about for about in shown if about["ckpt"] == result["best"]["ckpt"]]
    parts += [grid for about in shown if (grid := _grid(result, about["ckpt"], names))]
    return "\n".join([*parts, text.pairs(_facts(result, names))])


def _checkpoints(result: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Return a row for each checkpoint with its best combination."""
    about = {entry["ckpt"]: entry for entry in result["ckpts"]}
    firsts = {candidate["ckpt"]: candidate for candidate in reversed(result["candidates"])}
    rows = [
        (
            names[ckpt],
            where_text(best),
            text.percent(best["top1"]),
            text.interval_text(best["interval"]),
            verdict(best, result["best"]),
            text.rate_text(best["images_per_s"]),
            f"{about[ckpt]['peak_memory_gib']:.2f}",
            f"{about[ckpt]['params'] / 1e6:.1f}",
            about[ckpt]["license"] + (" (!)" if about[ckpt]["non_commercial"] else ""),
        )
        for ckpt, best in sorted(firsts.items(), key=lambda item: result["candidates"].index(item[1]))
    ]
    columns = {"checkpoint": "id", "layer and pooling": "text"}
    columns |= dict.fromkeys(("left out", "95 %"), "number") | {"against the best": "text"}
    columns |= dict.fromkeys(("img/s", "GiB", "10^6 par."), "number") | {"licence": "text"}
    return simple_table(columns, rows).as_text()


def _grid(result: Mapping[str, Any], ckpt: str, names: Mapping[str, str]) -> str:
    """Return the accuracy of a checkpoint by layer and pooling; "" of a single layer and pooling."""
    found = [entry for entry in result["candidates"] if entry["ckpt"] == ckpt and entry["pooling"] != FUSED]
    poolings = [name for name in POOLINGS if any(entry["pooling"] == name for entry in found)]
    by_place = {(entry["layers"][-1], entry["pooling"]): entry for entry in found}
    layers = sorted({layer for layer, _ in by_place})
    best = result["best"]

    def cell(layer: int, pooling: str) -> str:
        entry = by_place.get((layer, pooling))
        return "" if entry is None else f"{100 * entry['top1']:.2f}{_mark(entry, best) or ' '}"

    rates = {entry["layers"][-1]: entry["images_per_s"] for entry in found}
    rows = [
        (str(layer), *(cell(layer, pooling) for pooling in poolings), text.rate_text(rates[layer]))
        for layer in layers
    ]
    columns = {f"layer of {names[ckpt]}": "text"} | dict.fromkeys((*poolings, "img/s"), "number")
    return simple_table(columns, rows).as_text()


def _mark(entry: Mapping[str, Any], best: Mapping[str, Any]) -> str:
    return "*" if entry == best else "=" if entry["is_tie"] else ""


def where_text(entry: Mapping[str, Any]) -> str:
    """Return the layers and the pooling of a combination."""
    layers = entry["layers"]
    if layers == [0]:
        return "input of its head"
    if entry["pooling"] == FUSED:
        return f"{len(layers)} layers fused"
    return f"layer {layers[-1]}, {entry['pooling']}"


def verdict(entry: Mapping[str, Any], best: Mapping[str, Any]) -> str:
    """Return how a combination compares with the best one."""
    if entry == best:
        return "best"
    p = entry["mcnemar_p"]
    if entry["is_tie"]:
        return f"tie (p {p:.2f})"
    points = 100 * (entry["top1"] - best["top1"])
    return f"{points:+.1f} points (p {p:.1g})"


def _facts(result: Mapping[str, Any], names: Mapping[str, str]) -> list[tuple[str, str]]:
    best, count = result["best"], result["num_scored"]
    left_out = "each left out of the closed form in turn"
    if result["group_column"]:
        left_out = f"each group of {result['group_column']} left out of the closed form in turn"
    l2 = "chosen for each combination" if result["l2"] == "sweep" else f"{result['l2']:g}"
    rows = [
        ("left out", f"{text.count_of(count, 'image')} of {result['train_split']}, {left_out}; l2 {l2}"),
        ("marks", "* the best, = a tie with it: McNemar's test on the same images, p of 0.05 or more"),
    ]
    if any(entry["pooling"] == FUSED for entry in result["candidates"]):
        fused = [entry for entry in result["candidates"] if entry["pooling"] == FUSED]
        accuracies = ", ".join(
            f"{names[e['ckpt']]} {100 * e['top1']:.2f}{_mark(e, best)}" for e in fused[:MOST_GRIDS]
        )
        rows.append(("fused", f"token and mean of {len(fused[0]['layers'])} layers: {accuracies}"))
    rows += _of_choice(result, names)
    computed = f"computed {result['computed_rows']}, from cache {result['cached_rows']}"
    rows += [("features", computed), *text.skipped(result), *(("note", note) for note in result["notes"])]
    rows += [("run folder", result["run_dir"]), *text.commands(result["next"])]
    return rows


def _choice(result: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Return what was chosen, its score on images that had no say in it, and what to type next."""
    rows = [*_of_choice(result, names), *(("note", text.Folded(note)) for note in result["notes"])]
    return text.brief([*rows, *text.skipped(result)], [result["next"]])


def _of_choice(result: Mapping[str, Any], names: Mapping[str, str]) -> list[tuple[str, str]]:
    best = result["best"]
    rows = [("chosen", f"{names[best['ckpt']]}, {where_text(best)}: {text.percent(best['top1'])}")]
    if advice := result["layer_advice"]:
        layer = f"layer {advice['layer']} of {advice['num_layers']} ({advice['pooling']})"
        faster = f"{advice['speed_up']:.1f} times the images/s of all layers"
        rows.append(("layer", text.Folded(f"{layer} is a tie with it, at {faster}")))
    if test := result["test"]:
        accuracy = text.accuracy_text(test["top1"], test["interval"], test["num_examples"])
        rows.append(("test", f"{accuracy} of {test['split']}, not used for the choice"))
    return rows


def accuracy_by_speed(result: Mapping[str, Any]) -> Figure:
    """Plot the best accuracy of each layer against images per second, and the Pareto front over all."""
    names = text.short_names([about["ckpt"] for about in result["ckpts"]])
    with matplotlib.rc_context(STYLE):
        figure = Figure(layout="constrained", figsize=(5.6, 3.6))
        axes = figure.add_subplot()
        points = []
        for number, (ckpt, name) in enumerate(names.items()):
            by_depth: dict[int, Mapping[str, Any]] = {}
            for entry in result["candidates"]:  # the best comes first
                if entry["ckpt"] == ckpt:
                    by_depth.setdefault(entry["layers"][-1], entry)
            of_ckpt = [(e["images_per_s"], 100 * e["top1"], depth) for depth, e in sorted(by_depth.items())]
            points += of_ckpt
            look = {"color": COLORS[number % len(COLORS)], "label": text.plain(name)}
            x, y, depths = zip(*of_ckpt, strict=True)
            axes.plot(x, y, marker="o", markersize=4, linewidth=0.9, **look)
            for rate, accuracy, depth in of_ckpt if depths != (0,) else ():
                offset = {"xytext": (3, 4), "textcoords": "offset points"}
                axes.annotate(str(depth), (rate, accuracy), fontsize=6, color=look["color"], **offset)
        front = pareto([(rate, accuracy) for rate, accuracy, _ in points])
        x, y = zip(*front, strict=True)
        look = {"color": "#444444", "linestyle": "--", "linewidth": 0.9, "zorder": 0}
        axes.plot(x, y, drawstyle="steps-pre", label="Pareto front", **look)
        best = result["best"]
        # An outline: the point within keeps the colour of its checkpoint.
        look = {"color": "#000000", "markerfacecolor": "none", "markersize": 14, "label": "chosen"}
        axes.plot(best["images_per_s"], 100 * best["top1"], "*", **look)
        axes.set_ylim(percent_limits([accuracy for _, accuracy, _ in points]))
        xlabel = "images per second up to the numbered layer"
        axes.set(xscale="log", xlabel=xlabel, ylabel="left-out accuracy (%)")
        # Less than a decade has labels between its powers of ten, which are 20 and not 2 x 10^1.
        for set_formatter in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
            set_formatter(LogFormatter(minor_thresholds=(1, 0.4)))
        axes.legend(fontsize=7)
    return figure


def pareto(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points (speed, accuracy) than which no other is both faster and more accurate, by speed."""
    front: list[tuple[float, float]] = []
    for speed, accuracy in sorted(points, reverse=True):
        if not front or accuracy > front[-1][1]:
            front.append((speed, accuracy))
    return front[::-1]
