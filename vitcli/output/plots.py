"""The style of all figures, and the one way to save them, or to put them into a page. Other packages draw."""

import io
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.collections import QuadMesh
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


def printable(text: str, most: int) -> str:
    """Return a text on one line of a figure: what cannot be printed as "?", cut after `most` characters."""
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


@contextmanager
def saving(key: str) -> Iterator[None]:
    """Make figures saved inside the block reproducible: SVG ids are derived from `key`, not drawn at random.

    Letters that the font lacks become boxes in a PNG, without a warning on standard error.
    """
    with matplotlib.rc_context({"svg.hashsalt": key}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from font")
        yield


ENDINGS = ("png", "svg")
_kept: dict[str, Figure] | None = None  # by name, where Python asks for them


@contextmanager
def figures_kept() -> Iterator[dict[str, Figure]]:
    """Keep the figures that a command draws, by their names; for callers in Python."""
    global _kept
    before, _kept = _kept, {}
    try:
        yield _kept
    finally:
        _kept = before


def save(path: Path, figure: Figure) -> None:
    """Write a figure to a .png or .svg file, whole or not at all; the same figure gives the same bytes.

    Raises:
        MachineError: the file cannot be written.
    """
    if _kept is not None:
        _kept[path.stem] = figure
    ending = path.suffix.removeprefix(".")
    metadata = {"Date": None} if ending == "svg" else None
    with saving(path.name):
        replace_file(path, lambda file: figure.savefig(file, format=ending, metadata=metadata))


# Colours of our plots that follow the page's light or dark theme.
THEME = {
    "#000000": "currentColor",
    "black": "currentColor",
    "#444444": "currentColor",
    "#e4e4e4": "var(--grid)",
}


def to_svg(figure: Figure, *, key: str, label: str, has_paper: bool = False, dpi: int = 100) -> str:
    """Return an <svg> element without addresses of anything outside it.

    Args:
        key: prefix of the ids in it, unique on the page.
        label: text alternative of the figure, escaped for an attribute.
        has_paper: keep black text black, for a figure on a white background.
        dpi: resolution of the images in it.
    """
    for axes in figure.axes:
        for mesh in axes.collections:
            if isinstance(mesh, QuadMesh):  # as an image: a colour bar would be 256 paths
                mesh.set_rasterized(True)
    text = io.StringIO()
    no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with saving(key), matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(text, format="svg", transparent=not has_paper, dpi=dpi, metadata=no_metadata)
    svg = text.getvalue()
    return _for_page(svg[svg.index("<svg") :], key, label, has_paper)


def _for_page(svg: str, key: str, label: str, has_paper: bool) -> str:
    """Rewrite matplotlib's SVG for the body of a page (tests/output/golden.svg has an example)."""
    head, _, body = svg.partition(">")
    box = re.search(r'viewBox="[^"]*"', head).group()
    width = float(re.search(r'width="([\d.]+)pt"', head).group(1))
    # Style and fonts are the page's: a style sheet in here would apply to all of it.
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, flags=re.DOTALL)
    body = re.sub(r" font-family: [^;\"]*;?", "", body)
    body = re.sub(r"font: [^;\"]*?([\d.]+px)[^;\"]*", r"font-size: \1", body)  # matplotlib before 3.10
    # Save bytes: hundredths of a point, no rotation by zero, no space between elements.
    body = re.sub(r' (?:d|x|y|transform)="[^"]*"', lambda m: re.sub(r"(\.\d\d)\d+", r"\1", m[0]), body)
    body = re.sub(r' transform="rotate\(-0 [^"]*"', "", body)
    body = re.sub(r">\s+<", "><", body)
    body = re.sub(r"base64,[^\"]*", lambda m: re.sub(r"\s", "", m[0]), body)
    # Keep the ids that are referred to, and make them unique on the page.
    body = body.replace("xlink:href=", "href=")
    referred = set(re.findall(r'(?:href="|url\()#([\w-]+)', body))
    body = re.sub(r' id="([^"]*)"', lambda m: f' id="{key}-{m[1]}"' if m[1] in referred else "", body)
    body = re.sub(r'(href="|url\()#', rf"\1#{key}-", body)
    if not has_paper:
        for ink, themed in THEME.items():
            body = re.sub(rf"((?:fill|stroke): ){ink}\b", rf"\1{themed}", body)
    return f'<svg {box} role="img" aria-label="{label}" style="max-width:{1.6 * width:.0f}px">{body}'
