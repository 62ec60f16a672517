"""The style of all figures, and the one way to save them. Other packages draw; commands save."""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.typing import RcKeyType

from vitcli.output.atomic import replace_file

# The eight colors of Okabe and Ito, distinct for color-blind readers too; yellow last: it is pale on paper.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#888888", "#C9B800")
BLUE, ORANGE, GREEN = COLORS[:3]
STYLE: dict[RcKeyType, Any] = {
    "figure.figsize": (5.0, 3.2),
    "figure.dpi": 160,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
}


LEAST_SPAN = 10  # points of an axis of accuracies: on a shorter one, a single image looks like a canyon


def percent_limits(values: Iterable[float]) -> tuple[float, float]:
    """Return the limits of an axis of accuracies in percent: around the values, and LEAST_SPAN at least."""
    values = list(values)
    low, high = min(values), max(values)
    missing = max(0.0, LEAST_SPAN - (high - low)) / 2
    low, high = low - missing, high + missing
    # What is missing is added on the inner side where the values are near 0 or 100.
    low, high = (low + 100 - high, 100) if high > 100 else (0, high - low) if low < 0 else (low, high)
    margin = 0.05 * (high - low)
    return low - margin, high + margin


@contextmanager
def saving(key: str) -> Iterator[None]:
    """Make figures saved inside the block reproducible: SVG ids are derived from `key`, not drawn at random.

    Letters that the font lacks become boxes in a PNG, without a warning on standard error.
    """
    with matplotlib.rc_context({"svg.hashsalt": key}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from font")
        yield


ENDINGS = ("png", "svg")


def save(path: Path, figure: Figure) -> None:
    """Write a figure to a .png or .svg file, whole or not at all; the same figure gives the same bytes.

    Raises:
        MachineError: the file cannot be written.
    """
    ending = path.suffix.removeprefix(".")
    more = {"metadata": {"Date": None}} if ending == "svg" else {}
    with saving(path.name):
        replace_file(path, lambda file: figure.savefig(file, format=ending, **more))
