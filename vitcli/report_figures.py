"""Pictures of a report, in the look of `figures`, as SVG that takes its ink from the page around it."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from vitcli.figures import COLOURS, STYLE, saving

MOST_LINES = len(COLOURS)  # of one picture
MOST_TICKS = 8
MOST_POINTS = 240  # of one line: as many as can be seen
INK = {
    "#000000": "currentColor",
    "black": "currentColor",
    "#444444": "currentColor",
    "#e4e4e4": "var(--grid)",
}
Point = tuple[float, float]


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


def to_svg(figure: Figure, *, key: str, label: str, has_paper: bool = False, dpi: int = 100) -> str:
    """An <svg> element for the middle of a page: no address of anything outside it, no id of another picture.

    Args:
        key: begins the ids in it; one of its own for each picture of a page.
        label: what it shows, for those who do not see it, escaped for an attribute.
        has_paper: keep black text black, for a picture on white.
        dpi: dots an inch of the pictures in it.
    """
    for axes in figure.axes:
        for mesh in axes.collections:
            if isinstance(mesh, QuadMesh):  # a colour bar of 256 paths
                mesh.set_rasterized(True)
    text = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with saving(key), matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(text, format="svg", transparent=not has_paper, dpi=dpi, metadata=nothing)
    svg = text.getvalue()
    return _tidied(svg[svg.index("<svg") :], key, label, has_paper)


def _tidied(svg: str, key: str, label: str, has_paper: bool) -> str:
    head, _, body = svg.partition(">")
    box = re.search(r'viewBox="[^"]*"', head).group()
    width = float(re.search(r'width="([\d.]+)pt"', head).group(1))
    body = re.sub(
        r"<defs>\s*<style.*?</style>\s*</defs>", "", body, flags=re.DOTALL
    )  # it would be the page's too
    body = re.sub(r" font-family: [^;\"]*;?", "", body)  # the page's own
    body = re.sub(r' (?:d|x|y|transform)="[^"]*"', lambda m: re.sub(r"(\.\d\d)\d+", r"\1", m[0]), body)
    body = body.replace(' transform="rotate(-0 ', ' data-at="').replace("xlink:href=", "href=")
    body = re.sub(r' data-at="[^"]*"', "", body)
    referred = set(re.findall(r'(?:href="|url\()#([\w-]+)', body))
    body = re.sub(r' id="([^"]*)"', lambda m: f' id="{key}-{m[1]}"' if m[1] in referred else "", body)
    body = re.sub(r'(href="|url\()#', rf"\1#{key}-", body)
    if not has_paper:
        for ink, own in INK.items():
            body = re.sub(rf"((?:fill|stroke): ){ink}\b", rf"\1{own}", body)
    body = re.sub(r">\s+<", "><", body)
    body = re.sub(r"base64,[^\"]*", lambda m: re.sub(r"\s", "", m[0]), body)
    return f'<svg {box} role="img" aria-label="{label}" style="max-width:{1.6 * width:.0f}px">{body}'
