"""Figures of a report as SVG: learning curves, selection, few-shot, resolution, calibration and confusion."""

import hashlib
import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from vitcli.evaluation import figures
from vitcli.evaluation.predictions import Reliability
from vitcli.output import html as html_page
from vitcli.output.document import PageFigure
from vitcli.output.plots import COLORS, STYLE, percent_limits, to_svg
from vitcli.output.summaries import ResultSummary
from vitcli.output.text import plain
from vitcli.report.accuracy import has_calibration
from vitcli.report.grouping import grouped, interval_of
from vitcli.report.predicted import Predicted, by_class, mistakes_caption, same_of
from vitcli.report.runs import EvaluationRecord, Names, Point, Run, RunCollection, TrialScore, is_number

MAX_LINES = len(COLORS)  # of one figure
MAX_TICKS = 8
FEW_POINTS = 3  # fewer are not a curve
MAX_POINTS = 240  # of one line, a point per pixel
MAX_CLASSES = 2_000  # of a confusion matrix that is drawn
MISTAKES_SHOWN = 10  # of a result, about 4 KB each
FEW_CLASSES = 12  # of a confusion matrix that fits into half the width of a page


@dataclass(frozen=True)
class Line:
    """A line of a chart before it has a colour.

    Attributes:
        strands: curves of the same colour, such as the seeds of a run.
        marked: points with a ring.
        bars: (x, lowest, highest) of error bars.
    """

    name: str
    strands: tuple[tuple[Point, ...], ...]
    marked: tuple[Point, ...] = ()
    bars: tuple[tuple[float, float, float], ...] = ()


def figures_of(
    collection: RunCollection, names: Names, predicted: Sequence[Predicted]
) -> Iterable[PageFigure]:
    """Yield all figures that have data, in reading order."""
    by_dataset = grouped(collection.runs, lambda run: run.dataset)
    for runs in by_dataset.values():
        yield from _learning_curves(runs, names)
    for runs in by_dataset.values():
        yield from _selection(runs, names)
    yield from _shots(collection, names)
    yield from _resolutions(collection.evaluations, names)
    for record in collection.evaluations:
        yield from _calibration(record, names)
    # Below the table of accuracies by class, if there is one.
    section = "classes" if by_class(predicted, names) else "Confusion"
    # A run and its own evaluation have the same matrix and mistakes: they are drawn once.
    for results in grouped(predicted, lambda result: tuple(sorted(result.confusion))).values():
        yield from _confusion(results, section)
    for images, results in grouped(predicted, _images_of_mistakes).items():
        if images:
            result, *others = results
            caption = mistakes_caption(result, len(images), others)
            yield PageFigure("Mistakes", caption, html_page.thumbnails(images), is_wide=True)


def _learning_curves(runs: Sequence[Run], names: Names) -> Iterable[PageFigure]:
    """Yield training loss and held-out accuracy by step; lines of one colour are the seeds of a run."""
    predict_numbers = any(run.recipe.get("objective.loss") == "regression" for run in runs)
    loss = "training loss" if predict_numbers else "training loss in nats"
    kinds = (
        (loss, "Training loss", [run.losses for run in runs], 1),
        ("held-out top-1 in %", "Held-out accuracy", [run.accuracies for run in runs], 100),
    )
    for unit, title, curves, scale in kinds:
        lines, is_accuracy = [], scale == 100
        for run, strands in zip(runs, curves, strict=True):
            # A run without a curve keeps its place, so that it has the same colour in both figures.
            has_curve = any(len(strand) > 1 for strand in strands)
            drawn = (thinned(strand) for strand in strands if strand and has_curve)
            scaled = tuple(tuple((step, scale * value) for step, value in strand) for strand in drawn)
            ends = [strand[-1] for strand in scaled] if is_accuracy else []
            bars = tuple(bar for end in ends[:1] for bar in _interval_bar(*end, run.num_evaluated))
            lines.append(Line(_name(run.path, run, names), scaled, bars=bars))
        has_seeds = any(len(line.strands) > 1 for line in lines)
        seeds = "; lines of the same colour are runs with different seeds" if has_seeds else ""
        bars = "; bars at the ends are 95 % intervals" if any(line.bars for line in lines) else ""
        caption = f"{title} on {names.data(runs[0].dataset)} by optimizer step{seeds}{bars}."
        yield from _charts("Learning curves", caption, lines, x="step", y=unit)


def _selection(runs: Sequence[Run], names: Names) -> Iterable[PageFigure]:
    """Yield dev accuracy by the value of the key that was swept; sweeps of several keys have only a table."""
    by_key: dict[str, list[Line]] = {}
    for run in runs:
        scored = [trial for trial in run.trials if trial.dev_top1 is not None]
        points = {_value_and_top1(trial): trial.is_chosen for trial in scored}
        if len(points) > 1 and None not in points:
            (key,) = run.trials[0].values
            chosen = tuple(point for point, is_chosen in points.items() if is_chosen)
            strand = tuple(sorted(points))
            bars = tuple(
                bar
                for trial in scored
                for bar in _interval_bar(*_value_and_top1(trial), trial.num_images, trial.interval)
            )
            by_key.setdefault(key, []).append(Line(_name(run.path, run, names), (strand,), chosen, bars))
    for key, lines in by_key.items():
        is_log = all(value > 0 for line in lines for value, _ in line.strands[0])
        noun = {"optimizer.lr": "base learning rate"}.get(key, key)
        dataset = names.data(runs[0].dataset)
        intervals = ", bars are 95 % intervals" if any(line.bars for line in lines) else ""
        has_several = any(run.summary and run.summary.mean_ap is not None for run in runs)
        score = "mAP" if has_several else "top-1"
        caption = (
            f"The {score} on the dev split of {dataset} by {noun}; the ring is the chosen value{intervals}."
        )
        axes = dict(x=noun, y=f"dev {score} in %", is_log=is_log, has_points=True)
        yield from _charts("selection", caption, lines, **axes)


def _shots(collection: RunCollection, names: Names) -> Iterable[PageFigure]:
    """Yield few-shot accuracy by the number of images per class."""
    by_data: dict[tuple[str, str], list[Line]] = {}
    for record in collection.fewshots:
        scores = sorted((int(shots), of_shots) for shots, of_shots in record.summary.shots.items())
        if len(scores) < 2:
            continue
        strand = tuple((shots, 100 * of_shots.mean) for shots, of_shots in scores)
        bars = tuple(
            (shots, 100 * (of_shots.mean - of_shots.std), 100 * (of_shots.mean + of_shots.std))
            for shots, of_shots in scores
            if of_shots.std
        )
        name = _name(record.path, record.summary, names)
        data = (record.summary.dataset, record.summary.split)
        by_data.setdefault(data, []).append(Line(name, (strand,), bars=bars))
    for (dataset, split), lines in by_data.items():
        where = f"{names.data(dataset)}{', ' if split else ''}{split}"
        caption = f"Few-shot top-1 on {where} by images per class; bars are one standard deviation."
        axes = dict(x="images per class", y="top-1 in %", is_log=True, has_points=True)
        yield from _charts("fewshot", caption, lines, **axes)


def _resolutions(records: Sequence[EvaluationRecord], names: Names) -> Iterable[PageFigure]:
    """Yield top-1 by resolution of the evaluations at several square ones."""
    by_dataset: dict[str, list[Line]] = {}
    for record in records:
        squares = [score for score in record.summary.resolutions if isinstance(score.resolution, int)]
        if len(squares) > 1:
            strand = tuple((score.resolution, 100 * score.top1) for score in squares)
            count = record.images.count
            bars = tuple(bar for point in strand for bar in _interval_bar(*point, count))
            name = _name(record.path, record.summary, names)
            by_dataset.setdefault(record.summary.dataset, []).append(Line(name, (strand,), bars=bars))
    for dataset, lines in by_dataset.items():
        caption = f"Top-1 on {names.data(dataset)} by image resolution; bars are 95 % intervals."
        yield from _charts("Resolution", caption, lines, x="pixels", y="top-1 in %", has_points=True)


def _charts(section: str, caption: str, lines: Sequence[Line], **axes) -> Iterable[PageFigure]:
    """Yield figures of as many lines as there are colours."""
    parts = [lines[first : first + MAX_LINES] for first in range(0, len(lines), MAX_LINES)]
    for number, part in enumerate(parts, start=1):
        drawn = tuple((line, colour) for line, colour in zip(part, COLORS, strict=False) if line.strands)
        if not drawn:
            continue
        text = f"{caption} Part {number} of {len(parts)}." if len(parts) > 1 else caption
        ends = "; ".join(f"{line.name} ends at {line.strands[0][-1][1]:.4g}" for line, _ in drawn)
        svg = _chart(drawn, f"{text} {ends}.", **axes)
        legend = tuple((colour, line.name) for line, colour in drawn)
        # Lines of so few points are drawn as points, and so is their key.
        has_curve = any(len(strand) >= FEW_POINTS for line, _ in drawn for strand in line.strands)
        yield PageFigure(section, text, svg, legend, has_dots=not has_curve)


@lru_cache(maxsize=256)  # a served page draws the same figures again and again
def _chart(
    lines: tuple[tuple[Line, str], ...], label: str, *, x: str, y: str, is_log=False, has_points=False
) -> str:
    """Draw lines in their colours, without a legend: the page has room for names of any length."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.8, 3.0), layout="constrained")
        axes = figure.add_subplot()
        for line, colour in lines:
            for strand in line.strands:
                at, values = zip(*strand, strict=True) if strand else ((), ())
                is_curve = len(strand) >= FEW_POINTS  # nothing is known between two points
                look = {"marker": "o" if has_points or not is_curve else "", "ls": "-" if is_curve else ""}
                axes.plot(at, values, color=colour, markersize=4, alpha=0.9, **look)
            for at, low, high in line.bars:
                middle, half = (low + high) / 2, (high - low) / 2
                axes.errorbar([at], [middle], [half], color=colour, fmt="none", capsize=3, linewidth=1)
            for point in line.marked:
                ring = dict(markersize=9, fillstyle="none", markeredgewidth=1.4)
                axes.plot(*point, "o", color=colour, **ring)
        axes.set(xlabel=x, ylabel=y)
        if y.endswith("%"):
            values = [value for line, _ in lines for strand in line.strands for _, value in strand]
            values += [bound for line, _ in lines for _, *bounds in line.bars for bound in bounds]
            axes.set_ylim(percent_limits(values))
        if is_log:
            axes.set_xscale("log")
        if has_points:  # a tick at each point, or at every second, third ... of many
            ticks = sorted({at for line, _ in lines for strand in line.strands for at, _ in strand})
            axes.set_xticks(ticks[:: -(-len(ticks) // MAX_TICKS)])
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_locator(NullLocator())
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, steps=[1, 2, 5, 10]))
    return _svg(figure, label, lines)


def _interval_bar(at: float, top1: float, count: int | None, known: Sequence[float] = ()) -> tuple:
    """Return the error bar of an accuracy in percent: its 95 % interval, if it is known."""
    interval = interval_of(top1 / 100, count, known)
    return ((at, *(100 * bound for bound in interval)),) if interval else ()


def thinned(points: tuple[Point, ...]) -> tuple[Point, ...]:
    """Return at most MAX_POINTS, with the lowest and highest of each stretch: no spike is lost."""
    if len(points) <= MAX_POINTS:
        return points
    stretches = np.array_split(np.arange(1, len(points) - 1), (MAX_POINTS - 2) // 2)
    values = [value for _, value in points]
    kept = {0, len(points) - 1}
    for stretch in stretches:
        kept |= {min(stretch, key=values.__getitem__), max(stretch, key=values.__getitem__)}
    return tuple(points[at] for at in sorted(kept))


def _calibration(record: EvaluationRecord, names: Names) -> Iterable[PageFigure]:
    bins = record.summary.reliability
    if bins is None or not has_calibration(record):
        return
    name = f"{_name(record.path, record.summary, names)}, on {names.data(record.dataset)}"
    caption = (
        f"Reliability diagram of {name}: accuracy (bars) in each bin of "
        f"confidence, and below it the number of examples in the bin. ECE {record.summary.ece:.2%}."
    )
    yield PageFigure("Calibration", caption, _reliability(bins.model_dump_json(), caption))


@lru_cache(maxsize=256)
def _reliability(bins: str, label: str) -> str:
    diagram = figures.reliability_diagram(Reliability.of_json(json.loads(bins)), title="")
    return _svg(diagram, label, bins)


def _confusion(results: Sequence[Predicted], section: str) -> Iterable[PageFigure]:
    """Yield the confusion matrix of results that have the same one."""
    result, *others = results
    if not result.confusion or len(result.classes) > MAX_CLASSES:
        return
    weakest = f" Weakest: {result.weakest}." if result.weakest else ""
    caption = (
        f"Confusion matrix of {result.name}: labels in rows, predictions in columns{same_of(others)}. "
        "Darker cells have more of the row's examples; correct predictions are on the diagonal."
        f"{weakest}"
    )
    svg = _matrix(result.confusion, result.classes, caption)
    yield PageFigure(section, caption, svg, has_paper=True, is_wide=len(result.classes) > FEW_CLASSES)


def _images_of_mistakes(result: Predicted) -> tuple[html_page.CaptionedImage, ...]:
    """Return the most confident mistakes, as a page shows them."""
    return tuple(
        html_page.CaptionedImage(
            mistake.thumbnail,
            f"{mistake.label}, predicted {mistake.predicted}",
            (
                f"{mistake.predicted} {mistake.probability:.0%}",
                f"label: {mistake.label}",
                str(Path(*Path(mistake.place).parts[-2:])),  # folder and name of the file, or the row
            ),
            is_marked=True,
        )
        for mistake in result.mistakes[:MISTAKES_SHOWN]
    )


@lru_cache(maxsize=256)
def _matrix(pairs: tuple[tuple[str, str, int], ...], classes: tuple[str, ...], label: str) -> str:
    index = {name: at for at, name in enumerate(classes)}
    columns = np.array([(index[name], index[prediction], count) for name, prediction, count in pairs]).T
    return _svg(figures.confusion_matrix(*columns, classes), label, pairs, has_paper=True)


def _svg(figure: Figure, label: str, content: object, *, has_paper: bool = False) -> str:
    """Return the figure as SVG, with ids that follow from its content: a figure has the same bytes always."""
    key = "p" + hashlib.sha256(repr((content, label)).encode()).hexdigest()[:8]
    return to_svg(figure, key=key, label=html.escape(plain(label)), has_paper=has_paper)


def _name(folder: Path, run: Run | ResultSummary, names: Names) -> str:
    return f"{run.model}, {names.folder(folder)}"


def _value_and_top1(trial: TrialScore) -> Point | None:
    """Return a point of a selection curve if the sweep is over one key with numbers."""
    values = list(trial.values.values())
    has_number = len(values) == 1 and is_number(values[0])
    return (values[0], 100 * trial.dev_top1) if has_number else None
