"""What a figure shows and looks like, measured after it was drawn."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from vitcli.output import plots
from vitcli.training import figures as training_figures

SLACK = 2  # pixels


@contextmanager
def drawn_figures(*names: str) -> Iterator[dict[str, Figure]]:
    """Let commands draw figures, which `conftest.py` else leaves white; yield all of them by file name.

    Args:
        names: of the files that are drawn; none means all.
    """
    figures, save, draw = {}, plots.save, Figure.savefig.__wrapped__
    curves = training_figures.training_curves

    def save_and_keep(path: Path, figure: Figure) -> None:
        figures[path.name] = figure
        if names and path.name not in names:
            return save(path, figure)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Figure, "savefig", draw)
            save(path, figure)
        assert path.stat().st_size > 1_000

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "save", save_and_keep)
        patch.setattr(training_figures, "training_curves", getattr(curves, "__wrapped__", curves))
        yield figures


def points_of(figure: Figure, number: int = 0, *, axes: int = 0) -> list[tuple[float, float]]:
    """Return the points of a line of a figure, in its order; the caps of error bars are no lines."""
    lines = [line for line in figure.axes[axes].lines if line.get_marker() not in ("_", "|")]
    return [tuple(point) for point in lines[number].get_xydata().tolist()]


def assert_labels_fit(figure: Figure) -> list[Bbox]:
    """Draw a figure: no text leaves it, and no two ticks of an axis overlap. Return the boxes of its axes."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    for axes in figure.axes:
        on = (axes.xaxis, axes.yaxis) if axes.axison else ()
        texts = [axes.title, axes._left_title, *axes.texts, *(part.label for part in on)]
        for axis, side in zip(on, ("x", "y"), strict=False):
            low, high = sorted(axis.get_view_interval())
            ticks = [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            boxes = sorted(
                (label.get_window_extent() for label in ticks if label.get_text() and label.get_visible()),
                key=lambda box: getattr(box, f"{side}0"),
            )
            for one, next_one in pairwise(boxes):
                assert getattr(one, f"{side}1") <= getattr(next_one, f"{side}0") + SLACK, "ticks overlap"
            texts += [*ticks, axis.get_offset_text()]
        for text in texts:
            if text.get_text() and text.get_visible():
                box = text.get_window_extent()
                inside = figure.bbox.padded(SLACK)
                assert inside.x0 <= box.x0 and box.x1 <= inside.x1, text.get_text()
                assert inside.y0 <= box.y0 and box.y1 <= inside.y1, text.get_text()
    return [axes.get_position() for axes in figure.axes]
