"""Arrays to pictures, one look for all. Functions return matplotlib figures; commands save them."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from vitcli.output.atomic import replace_file

# Okabe and Ito's eight, told apart by everybody, yellow last: it is pale on paper. Black is the page's ink.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#888888", "#C9B800")
BLUE, ORANGE = COLORS[:2]
STYLE = {
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


@contextmanager
def saving(key: str) -> Iterator[None]:
    """While a figure is written: the same one always to the same bytes, `key` in the place of drawn ids.

    Letters that its font has not are boxes in a PNG; that is nothing to tell on standard error.
    """
    with matplotlib.rc_context({"svg.hashsalt": key}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from font")
        yield


ENDINGS = ("png", "svg")


def save(path: Path, figure: Figure) -> None:
    """Write one file, a PNG or an SVG.

    Raises:
        MachineError: it cannot be written.
    """
    ending = path.suffix.removeprefix(".")
    more = {"metadata": {"Date": None}} if ending == "svg" else {}
    with saving(path.name):
        replace_file(path, lambda file: figure.savefig(file, format=ending, **more))
