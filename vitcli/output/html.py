"""Tables and figures as one HTML file, which loads nothing from elsewhere and runs no script."""

import base64
import html
import io
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vitcli import __version__
from vitcli.output.document import PageFigure, Table
from vitcli.output.text import plain

if TYPE_CHECKING:  # a page of tables does without
    import numpy as np
    from PIL.Image import Image

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
TEMPLATE, STYLE = (Path(__file__).with_name(name) for name in ("page.html.j2", "style.css"))
THUMBNAIL, QUALITY = 112, 80  # pixels of the longer side, and of JPEG


def page(
    tables: Sequence[Table],
    figures: Sequence[PageFigure],
    *,
    title: str,
    summary: Sequence[str],
    notes: Sequence[str] = (),
    base: Path | None = None,
    refresh_s: int | None = None,
    command: str,
) -> str:
    """Return the whole file.

    Args:
        summary: contents of the page, a few words each.
        notes: lines at the bottom, such as folders that were skipped; the last one says what made the page.
        base: folder the file is written to, where links to run folders start; None for no links.
        refresh_s: reload the page after this many seconds.
        command: that makes it, such as "vit report".
    """
    reloads = f", reloads every {refresh_s} s" if refresh_s else ""
    made = f"Made by vit {__version__} on {time.strftime('%Y-%m-%d %H:%M')}{reloads}."
    return macros(TEMPLATE).page(
        sections=_sections(tables, figures),
        title=title,
        summary=summary,
        notes=[*notes, made],
        base=base,
        refresh_s=refresh_s,
        generator=generator(command),
        policy=POLICY,  # nothing is loaded, which it enforces
        style=STYLE.read_text(encoding="utf-8"),
    )


def generator(command: str) -> str:
    """Return the element that distinguishes a page of this command from other HTML files."""
    return f'<meta name="generator" content="{command}">'


def text(value: object) -> str:
    """Escape anything as text of a page: names come from files and the network."""
    return html.escape(plain(value))


def name_of(value: object) -> str:
    """Escape a name that may be long: it is broken at its punctuation first."""
    return re.sub(r"([_/.:-])(?=\w)", r"\1<wbr>", text(value))


class _Section(NamedTuple):
    """A heading, its table with its number, and its figures with theirs."""

    id: str
    title: str
    table: Table | None
    number: int
    figures: list[tuple[int, PageFigure]]


def _sections(tables: Sequence[Table], figures: Sequence[PageFigure]) -> list[_Section]:
    """Return the sections: of each table with its figures, of other figures before the tables at the end."""
    headings = [(table.key, table.title, table, number) for number, table in enumerate(tables, 1)]
    keys = {table.key for table in tables}
    others = dict.fromkeys(figure.section for figure in figures if figure.section not in keys)
    end = next((at for at, table in enumerate(tables) if table.is_at_end), len(tables))
    headings[end:end] = [(heading, heading, None, 0) for heading in others]
    numbers = count(1)
    return [
        _Section(
            key.lower().replace(" ", "-"),
            *about,
            [(next(numbers), figure) for figure in figures if figure.section == key],
        )
        for key, *about in headings
    ]


@dataclass(frozen=True)
class CaptionedImage:
    """A small image and the lines below it.

    Attributes:
        jpeg: in base64.
        alternative: what it shows, in words.
        is_marked: its first line is bold.
    """

    jpeg: str
    alternative: str
    lines: tuple[str, ...]
    is_marked: bool = False


@dataclass(frozen=True)
class ImageRow:
    """An image and others to compare it with."""

    first: CaptionedImage
    others: tuple[CaptionedImage, ...]


def thumbnails(images: Sequence[CaptionedImage]) -> str:
    """Return small images with lines of text below each, as the body of a figure."""
    return macros(TEMPLATE).thumbnails(images)


def image_rows(rows: Sequence[ImageRow]) -> str:
    """Return a line of images for each row, its first one set apart, as the body of a figure."""
    return macros(TEMPLATE).image_rows(rows)


@lru_cache
def macros(template: Path) -> Any:
    """Return the macros of a template, which escape whatever is not marked as HTML."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.filters["form"] = format
    environment.filters["text"] = lambda value: Markup(text(value))
    environment.filters["name_of"] = lambda value: Markup(name_of(value))
    lines = template.read_text(encoding="utf-8").splitlines()
    return environment.from_string("".join(map(str.lstrip, lines))).module


def thumbnail(image_HWC: "np.ndarray", *, side: int = THUMBNAIL) -> str:
    """Return a small JPEG of an image in base64, `side` pixels long; equal images give equal bytes."""
    from PIL import Image

    image = Image.fromarray(image_HWC)
    image.thumbnail((side, side), Image.Resampling.BICUBIC)
    return jpeg(image, quality=QUALITY)


def jpeg(image: "Image", *, quality: int, subsampling: int = -1) -> str:
    """Return a JPEG of an image in base64; both options are Pillow's."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality, subsampling=subsampling)
    return base64.b64encode(file.getvalue()).decode("ascii")
