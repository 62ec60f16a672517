"""Matplotlib figures as SVG elements for the middle of an HTML page."""

import io
import re

import matplotlib
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure

from vitcli.output.plots import saving

INK = {
    "#000000": "currentColor",
    "black": "currentColor",
    "#444444": "currentColor",
    "#e4e4e4": "var(--grid)",
}


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
