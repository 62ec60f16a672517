"""Tables and figures as one HTML file, which loads nothing from elsewhere and runs no script."""

import base64
import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from vitcli.output.document import Cell, Header, PageFigure, Row, Table
from vitcli.output.text import plain

if TYPE_CHECKING:  # a page of tables does without
    import numpy as np

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
THUMBNAIL, QUALITY = 112, 80  # pixels of the longer side, and of JPEG
FEW_COLUMNS = 3  # of a table that does not need the whole width
WITH_PROGRESS_BAR = "progress"  # key of the table whose first column is a fraction of a run


def page(
    tables: Sequence[Table],
    figures: Sequence[PageFigure],
    *,
    title: str,
    summary: Sequence[str],
    notes: Sequence[str] = (),
    base: Path | None,
    refresh_s: int | None = None,
    generator: str,
) -> str:
    """Return the whole file.

    Args:
        summary: contents of the page, a few words each.
        notes: lines at the bottom, such as folders that were skipped.
        base: folder the file is written to, where links to run folders start; None for no links.
        refresh_s: reload the page after this many seconds.
        generator: element that distinguishes a page of this kind from other HTML files.
    """
    # The parts of the page, in reading order.
    sections = _sections(tables, figures, base)
    contents = "".join(f'<li><a href="#{key}">{text(name)}</a></li>' for key, name, _ in sections)
    body = "\n".join(
        f'<section id="{key}"><h2>{text(name)}</h2>{inner}</section>' for key, name, inner in sections
    )
    refresh = f'<meta http-equiv="refresh" content="{refresh_s}">' if refresh_s else ""
    facts = "".join(f"<li>{text(fact)}</li>" for fact in summary)
    footer = "".join(f"<p>{text(note)}</p>" for note in notes)
    # Nothing is loaded, which the policy enforces; the empty icon saves a request for favicon.ico.
    style = files("vitcli.output").joinpath("style.css").read_text(encoding="utf-8")
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8">{generator}'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">{refresh}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{text(title)}</title><style>{style}</style></head>\n<body>"
        f'<header><h1>{text(title)}</h1><ul class="facts">{facts}</ul></header>'
        f'<nav aria-label="Contents"><ol>{contents}</ol></nav>\n'
        f"<main>{body}</main>\n<footer>{footer}</footer></body></html>\n"
    )


def text(value: object) -> str:
    """Escape anything as text of a page: names come from files and the network."""
    return html.escape(plain(value))


def name_of(value: object) -> str:
    """Escape a name that may be long: it is broken at its punctuation first."""
    return re.sub(r"([_/.:-])(?=\w)", r"\1<wbr>", text(value))


def _sections(
    tables: Sequence[Table], figures: Sequence[PageFigure], base: Path | None
) -> list[tuple[str, str, str]]:
    """Return id, heading and content of each section; a figure follows the table of its section."""
    sections = [
        (table.key, table.title, _table(table, number, base)) for number, table in enumerate(tables, 1)
    ]
    small = {table.key for table in tables if len(table.columns) <= FEW_COLUMNS}
    keys = {table.key for table in tables}
    headings = dict.fromkeys(figure.section for figure in figures if figure.section not in keys)
    end = next((at for at, table in enumerate(tables) if table.is_at_end), len(tables))
    sections[end:end] = [(heading, heading, "") for heading in headings]
    numbers, numbered = count(1), []
    for key, title, inner in sections:
        shown = [_figure(figure, next(numbers)) for figure in figures if figure.section == key]
        if shown:
            both = f'<div>{inner}</div><div class="figures">{"".join(shown)}</div>'
            # A small table and its only figure stand side by side where there is room.
            inner = f'<div class="pair">{both}</div>' if key in small and len(shown) == 1 else both
        numbered.append((key.lower().replace(" ", "-"), title, inner))
    return numbered


def _figure(figure: PageFigure, number: int) -> str:
    shape = "key dot" if figure.has_dots else "key"
    keys = (
        f'<li><span class="{shape}" style="background:{colour}"></span>{text(name)}</li>'
        for colour, name in figure.legend
    )
    legend = f'<ul class="legend">{"".join(keys)}</ul>' if figure.legend else ""
    kind = ("paper " if figure.has_paper else "") + ("wide" if figure.is_wide else "")
    return (
        f'<figure class="{kind}"><div class="plot" tabindex="0">{figure.body}</div>{legend}'
        f"<figcaption><b>Figure {number}.</b> {text(figure.caption)}</figcaption></figure>"
    )


def thumbnails(images: Sequence[tuple[str, str, Sequence[str]]]) -> str:
    """Return small images with lines of text below each, as the body of a figure.

    Args:
        images: a JPEG in base64, its text alternative, and the lines below it, of which the first is bold.
    """
    items = []
    for jpeg, alternative, (first, *more) in images:
        lines = f"<b>{text(first)}</b>" + "".join(f"<span>{text(line)}</span>" for line in more)
        source = f"data:image/jpeg;base64,{html.escape(jpeg)}"
        items.append(f'<li><img src="{source}" alt="{text(alternative)}" loading="lazy">{lines}</li>')
    return f'<ul class="thumbnails">{"".join(items)}</ul>'


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


def image_rows(rows: Sequence[ImageRow]) -> str:
    """Return a line of images for each row, its first one set apart, as the body of a figure."""
    items = []
    for row in rows:
        others = "".join(f"<li>{_captioned(image)}</li>" for image in row.others)
        items.append(f'<li><div>{_captioned(row.first)}</div><ul class="thumbnails">{others}</ul></li>')
    return f'<ol class="image-rows">{"".join(items)}</ol>'


def _captioned(image: CaptionedImage) -> str:
    tag = "b" if image.is_marked else "span"
    first, *more = image.lines
    lines = f"<{tag}>{text(first)}</{tag}>" + "".join(f"<span>{text(line)}</span>" for line in more)
    source = f"data:image/jpeg;base64,{html.escape(image.jpeg)}"
    return f'<img src="{source}" alt="{text(image.alternative)}" loading="lazy">{lines}'


def _table(table: Table, number: int, base: Path | None) -> str:
    heads = "".join(
        f'<th scope="col" class="{column.kind}">{_header(column, None, is_row=False)}</th>'
        for column in table.columns
    )
    few = " few" if len(table.columns) <= FEW_COLUMNS else ""
    rows = "".join(_row(row, base, table) for row in table.rows)
    label = text(f"Table {number}: {table.title}")
    return (
        f'<p class="caption" id="table-{number}"><b>Table {number}.</b> {text(table.caption)}</p>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
        f'<table class="{table.key}{few}" aria-describedby="table-{number}">'
        f'<thead><tr><th scope="col">{text(table.corner.name)}</th>{heads}</tr></thead><tbody>{rows}</tbody>'
        "</table></div>"
    )


def _row(row: Row, base: Path | None, table: Table) -> str:
    has_bar = table.key == WITH_PROGRESS_BAR
    shown = (
        _cell(cell, is_bar=has_bar and at == 0, is_command=column.kind == "command")
        for at, (cell, column) in enumerate(zip(row.cells, table.columns, strict=True))
    )
    cells = "".join(f"<td>{cell}</td>" for cell in shown)
    kind = ' class="total"' if row.is_total else ""
    return f'<tr{kind}><th scope="row">{_header(row.head, base, is_row=True)}</th>{cells}</tr>'


def _header(header: Header, base: Path | None, *, is_row: bool) -> str:
    name = name_of(header.name) if is_row else text(header.name)
    if link := header.link(base):
        name = f'<a href="{html.escape(link)}/">{name}</a>'
    return name + (f" <small>{text(header.detail)}</small>" if header.detail else "")


def _cell(cell: Cell, *, is_bar: bool, is_command: bool) -> str:
    if is_command:
        return f"<code>{text(cell.text)}</code>" if cell.text else ""
    mean, plus_minus, std = cell.text.partition(" ± ")
    shown = f"<b>{text(mean)}</b>" if cell.is_best else text(mean)
    shown += f'<span class="std"> ± {text(std)}</span>' if plus_minus else ""
    if is_bar and cell.value is not None:
        shown += f'<progress max="1" value="{cell.value:.4f}"></progress>'
    return shown + (f"<small>{text(cell.note)}</small>" if cell.note else "")


def thumbnail(image_HWC: "np.ndarray", *, side: int = THUMBNAIL) -> str:
    """Return a small JPEG of an image in base64, `side` pixels long; equal images give equal bytes."""
    from PIL import Image

    image = Image.fromarray(image_HWC)
    image.thumbnail((side, side), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=QUALITY)
    return base64.b64encode(file.getvalue()).decode("ascii")
