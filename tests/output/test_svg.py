"""A fixed figure becomes the SVG stored beside this file: regular expressions rewrite matplotlib's text.

Write it anew after a change that is meant: `python -m tests.output.test_svg`, then look at the difference.
"""

import re
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest
from matplotlib.figure import Figure

from vitcli.output.plots import STYLE, _for_page, to_svg

GOLDEN = Path(__file__).with_name("golden.svg")


def figure_of_all_kinds() -> Figure:
    """Lines, markers, a grid, texts at angles, a text of another font and a colour mesh."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3, 2))
        axes = figure.add_axes((0.2, 0.25, 0.45, 0.6))
        axes.plot([0, 1, 2], [0.123456, 0.9, 0.4], marker="o", color="#0072B2")
        axes.axhline(0.5, color="#444444")
        axes.text(1, 0.2, "serif", family="serif", color="black")
        axes.set(xlabel="step <a & b>", ylabel="loss", xticks=[0, 2], yticks=[0.1234567])
        mesh = figure.add_axes((0.75, 0.25, 0.2, 0.6))
        mesh.pcolormesh([[0, 1], [2, 3]])
        mesh.set(xticks=[], yticks=[])
    return figure


def normalised(svg: str) -> str:
    """Without what another version of matplotlib may place, name or compress otherwise; an element a line.

    A number is 0, or 0.000 if it has more than two decimals; an id is numbered in the order of its first use.
    """
    ids: dict[str, str] = {}
    svg = re.sub(r"\b[mp][0-9a-f]{10}\b", lambda m: ids.setdefault(m[0], f"id{len(ids)}"), svg)
    svg = re.sub(r"base64,[\w+/=]*", "base64,IMAGE", svg)
    values = re.compile(r' (?:d|x|y|transform|viewBox|width|height)="[^"]*"')
    number = re.compile(r"-?\d+(?:\.(\d+))?")
    svg = values.sub(lambda m: number.sub(lambda n: "0" if len(n[1] or "") <= 2 else "0.000", m[0]), svg)
    svg = re.sub(r'"[^"]*"', lambda m: re.sub(r"\s+", " ", m[0]), svg)
    return svg.replace("><", ">\n<").rstrip() + "\n"


def golden() -> str:
    both = (
        to_svg(figure_of_all_kinds(), key="k", label="a &amp; b", has_paper=paper) for paper in (False, True)
    )
    return "".join(map(normalised, both))


def test_a_figure_becomes_the_stored_svg():
    assert golden() == GOLDEN.read_text()


@pytest.mark.parametrize("has_paper", [False, True])
def test_the_svg_is_well_formed_and_refers_only_to_itself(has_paper):
    svg = to_svg(figure_of_all_kinds(), key="k", label="x", has_paper=has_paper)
    elements = list(ElementTree.fromstring(svg).iter())

    ids = {element.get("id") for element in elements} - {None}
    targets = {element.get("href").removeprefix("#") for element in elements if element.tag == "use"}
    assert targets and targets <= ids and all(name.startswith("k-") for name in ids)
    assert not re.search(r'(?:href="|url\()(?!#k-|data:image/png)', svg) and "<style" not in svg


def test_the_font_of_an_older_matplotlib_is_the_pages_too():
    text = """<text style="font: 700 10px 'DejaVu Sans', sans-serif; text-anchor: end">x</text>"""
    svg = f'<svg width="10pt" viewBox="0 0 1 1">{text}</svg>'

    assert '<text style="font-size: 10px; text-anchor: end">' in _for_page(svg, "k", "x", has_paper=True)


if __name__ == "__main__":
    GOLDEN.write_text(golden())
