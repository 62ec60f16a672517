"""Pictures of a report, in the look of `figures`, as SVG that takes its ink from the page around it."""

import hashlib
import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from vitcli.evaluation import figures
from vitcli.evaluation.statistics import Reliability
from vitcli.output.document import PageFigure
from vitcli.output.plots import COLORS, STYLE
from vitcli.output.svg import to_svg
from vitcli.output.text import plain
from vitcli.report.runs import Choice, EvaluationRecord, Point, Run, RunCollection, is_number
from vitcli.report.tables import Names

MOST_LINES = len(COLORS)  # of one picture
MOST_TICKS = 8
MOST_POINTS = 240  # of one line: as many as can be seen


@dataclass(frozen=True)
class Curve:
    """A line of a picture: `strands` of one colour, such as the seeds of a run; `marked` points have a ring.

    Attributes:
        errors: for each point of the one strand, its standard deviation; or none.
    """

    name: str
    colour: str
    strands: tuple[tuple[Point, ...], ...]
    marked: tuple[Point, ...] = ()
    errors: tuple[float, ...] = ()


def curves(
    lines: Sequence[Curve], *, x: str, y: str, is_log: bool = False, has_points: bool = False
) -> Figure:
    """Lines over one another; the page names them beside it, where names of any length have room."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.8, 3.0), layout="constrained")
        axes = figure.add_subplot()
        for line in lines:
            for strand in line.strands:
                at, values = zip(*strand, strict=True) if strand else ((), ())
                dot = "o" if has_points or len(strand) < 3 else ""
                axes.plot(at, values, color=line.colour, marker=dot, markersize=4, alpha=0.9)
                if line.errors:
                    axes.errorbar(
                        at, values, line.errors, color=line.colour, fmt="none", capsize=3, linewidth=1
                    )
            for at, value in line.marked:
                axes.plot(
                    [at], [value], "o", markersize=9, fillstyle="none", color=line.colour, markeredgewidth=1.4
                )
        axes.set(xlabel=x, ylabel=y)
        if is_log:
            axes.set_xscale("log")
        if has_points:
            ticks = sorted({at for line in lines for strand in line.strands for at, _ in strand})
            axes.set_xticks(ticks[:: -(-len(ticks) // MOST_TICKS)])
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_locator(NullLocator())
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, steps=[1, 2, 5, 10]))
    return figure


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> tuple[Point, ...]:
    """At most so many points, among them the lowest and highest of each stretch: no spike is lost."""
    if len(points) <= most:
        return tuple(points)
    stretches = np.array_split(np.arange(1, len(points) - 1), (most - 2) // 2)
    values = [value for _, value in points]
    kept = {0, len(points) - 1}
    for stretch in stretches:
        kept |= {min(stretch, key=values.__getitem__), max(stretch, key=values.__getitem__)}
    return tuple(points[at] for at in sorted(kept))


MOST_CLASSES = 2_000  # of a confusion that is drawn
FEW_CLASSES = 12  # whose confusion is read well at half the width of a page


def figures_of(material: RunCollection, names: Names) -> list[PageFigure]:
    """All pictures that have something to show, in reading order."""
    found: list[PageFigure] = []
    for dataset in dict.fromkeys(run.dataset for run in material.runs):
        runs = [run for run in material.runs if run.dataset == dataset]
        found += _learning_curves(runs, names)
    for dataset in dict.fromkeys(run.dataset for run in material.runs):
        found += _selection([run for run in material.runs if run.dataset == dataset], names)
    found += _shots(material, names)
    found += _resolutions(material.scored, names)
    for one in material.scored:
        found += _calibration(one, names)
    for one in material.scored:
        found += _confusion(one, names)
    return found


def _learning_curves(runs: Sequence[Run], names: Names) -> Iterable[PageFigure]:
    """Training loss and held-out accuracy by step; lines of one colour are seeds of one run."""
    kinds = (
        ("training loss in nats", "Training loss", [run.losses for run in runs], 1),
        ("held-out top-1 in %", "Held-out accuracy", [run.accuracies for run in runs], 100),
    )
    for unit, title, strands, scale in kinds:
        lines = [
            (_name(run, names), tuple(_scaled(thinned(strand), scale) for strand in own if strand))
            for run, own in zip(runs, strands, strict=True)
        ]
        # One without a curve keeps its place, and so each run its colour in both pictures.
        lines = [(name, own if any(len(strand) > 1 for strand in own) else ()) for name, own in lines]
        seeds = "; lines of one colour are its seeds" if any(len(own) > 1 for _, own in lines) else ""
        caption = f"{title} on {names.data(runs[0].dataset)} by optimizer step{seeds}."
        yield from _charts("Learning curves", caption, lines, x="step", y=unit)


def _selection(runs: Sequence[Run], names: Names) -> Iterable[PageFigure]:
    """Dev accuracy by the value of the one key that was chosen; other selections are in their table."""
    by_key: dict[str, list[tuple]] = {}
    for run in runs:
        tried = [choice for choice in run.choices if choice.dev_top1 is not None]
        points = sorted(pair for choice in tried if (pair := _value_and_top1(choice)))
        if len(points) == len(tried) > 1:
            (key,) = run.choices[0].keys
            chosen = tuple(pair for one in tried if one.is_chosen and (pair := _value_and_top1(one)))
            by_key.setdefault(key, []).append((_name(run, names), (tuple(points),), chosen))
    for key, lines in by_key.items():
        is_log = all(at > 0 for _, (strand,), _ in lines for at, _ in strand)
        what = {"optimizer.lr": "base learning rate"}.get(key, key)
        caption = (
            f"Top-1 on the dev split of {names.data(runs[0].dataset)} by {what}; the ring is what was chosen."
        )
        yield from _charts(
            "selection", caption, lines, x=what, y="dev top-1 in %", is_log=is_log, has_points=True
        )


def _shots(material: RunCollection, names: Names) -> Iterable[PageFigure]:
    """Few-shot accuracy by the number of images a class."""
    by_data: dict[tuple[str, str], list[tuple]] = {}
    for one in material.fewshots:
        found = sorted((int(shots), said) for shots, said in one.summary.shots.items() if shots.isdecimal())
        if len(found) < 2:
            continue
        strand = tuple((shots, 100 * said.mean) for shots, said in found)
        errors = tuple(100 * (said.std or 0.0) for _, said in found)
        label = f"{one.summary.model}, {names.folder(one.path)}"
        by_data.setdefault((one.dataset, one.split), []).append((label, (strand,), (), errors))
    for (dataset, split), lines in by_data.items():
        where = f"{names.data(dataset)}{', ' if split else ''}{split}"
        caption = f"Few-shot top-1 on {where} by images of each class; bars are one standard deviation."
        yield from _charts(
            "fewshot", caption, lines, x="images a class", y="top-1 in %", is_log=True, has_points=True
        )


def _resolutions(scored: Sequence[EvaluationRecord], names: Names) -> Iterable[PageFigure]:
    by_data: dict[str, list[tuple]] = {}
    for one in scored:
        squares = [found for found in one.said.resolutions if isinstance(found.resolution, int)]
        if len(squares) > 1:
            strand = tuple((found.resolution, 100 * found.top1) for found in squares)
            by_data.setdefault(one.dataset, []).append(
                (f"{one.said.model}, {names.folder(one.path)}", (strand,))
            )
    for dataset, lines in by_data.items():
        caption = f"Top-1 on {names.data(dataset)} by the side of its pictures."
        yield from _charts("Resolution", caption, lines, x="pixels", y="top-1 in %", has_points=True)


def _charts(section: str, caption: str, lines: Sequence[tuple], **axes) -> Iterable[PageFigure]:
    """Pictures of as many lines as there are colours; `lines` are (name, strands, marked, errors)."""
    parts = [lines[first : first + MOST_LINES] for first in range(0, len(lines), MOST_LINES)]
    for number, part in enumerate(parts, start=1):
        every = [Curve(name, colour, *rest) for (name, *rest), colour in zip(part, COLORS, strict=False)]
        drawn = tuple(line for line in every if line.strands)
        if not drawn:
            continue
        told = f"{caption} Part {number} of {len(parts)}." if len(parts) > 1 else caption
        ends = "; ".join(f"{line.name} ends at {line.strands[0][-1][1]:.4g}" for line in drawn)
        svg = _chart(drawn, f"{told} {ends}.", **axes)
        yield PageFigure(section, told, svg, tuple((line.colour, line.name) for line in drawn))


@lru_cache(maxsize=256)  # a page that is served is drawn again and again
def _chart(lines: tuple[Curve, ...], label: str, **axes) -> str:
    return to_svg(curves(lines, **axes), key=_key(lines, label), label=html.escape(plain(label)))


def _calibration(one: EvaluationRecord, names: Names) -> Iterable[PageFigure]:
    bins = one.said.reliability
    if bins is None:
        return
    caption = (
        f"Reliability of {_about(one, names)}: the share that is right (bars) in each bin of confidence, and "
        f"below it how many examples the bin has. ECE {one.said.ece:.2%}."
    )
    yield PageFigure("Calibration", caption, _reliability(bins.model_dump_json(), caption))


@lru_cache(maxsize=256)
def _reliability(bins: str, label: str) -> str:
    said = json.loads(bins)
    found = Reliability(*(np.array(said[name]) for name in ("edges", "counts", "confidence", "accuracy")))
    figure = figures.reliability_diagram(found, title="")
    return to_svg(figure, key=_key(bins, label), label=html.escape(plain(label)))


def _confusion(one: EvaluationRecord, names: Names) -> Iterable[PageFigure]:
    met = [name for truth, guess, _ in one.confusion for name in (truth, guess)]
    classes = dict.fromkeys([*(one.said.per_class or {}), *met])
    if not one.confusion or len(classes) > MOST_CLASSES:
        return
    caption = (
        f"Confusion of {_about(one, names)}: of each class's examples (rows), what they were taken for "
        "(columns). The deeper, the more; the diagonal is right."
    )
    svg = _matrix(one.confusion, tuple(classes), caption)
    yield PageFigure("Confusion", caption, svg, has_paper=True, is_wide=len(classes) > FEW_CLASSES)


@lru_cache(maxsize=256)
def _matrix(pairs: tuple[tuple[str, str, int], ...], classes: tuple[str, ...], label: str) -> str:
    number = {name: at for at, name in enumerate(classes)}
    columns = np.array([(number[truth], number[guess], count) for truth, guess, count in pairs]).T
    figure = figures.confusion_matrix(*columns, classes)
    return to_svg(figure, key=_key(pairs, label), label=html.escape(plain(label)), has_paper=True)


def _name(run: Run, names: Names) -> str:
    return f"{run.model}, {names.folder(run.path)}"


def _about(one: EvaluationRecord, names: Names) -> str:
    return f"{one.said.model}, {names.folder(one.path)}, on {names.data(one.dataset)}"


def _scaled(points: Iterable[Point], scale: float) -> tuple[Point, ...]:
    return tuple((step, scale * value) for step, value in points)


def _value_and_top1(choice: Choice) -> Point | None:
    """A point of a selection curve, where one number was chosen."""
    values = list(choice.keys.values())
    return (values[0], 100 * choice.dev_top1) if len(values) == 1 and is_number(values[0]) else None


def _key(*what: object) -> str:
    """The same for the same picture, another for another."""
    return "p" + hashlib.sha256(repr(what).encode()).hexdigest()[:8]
