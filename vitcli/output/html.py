"""A report as one HTML file: nothing in it is asked for from elsewhere, and nothing in it runs."""

import html
import os
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from itertools import count
from pathlib import Path
from urllib.parse import quote

from vitcli.output.document import Cell, Header, PageFigure, Row, Table
from vitcli.output.text import plain

GENERATOR = '<meta name="generator" content="vit report">'  # by it a report is known from another file
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
UNDER_WAY = "progress"
ABOUT_RUNS = ("selection", "costs", "runs")  # tables that stand at the end


def page(
    tables: Sequence[Table],
    pictures: Sequence[PageFigure],
    *,
    title: str,
    summary: Sequence[str],
    notes: Sequence[str] = (),
    base: Path | None,
    refresh_s: int | None = None,
    at_end: Sequence[str] = ABOUT_RUNS,
    generator: str = GENERATOR,
) -> str:
    """The whole file.

    Args:
        summary: what the report is of, a few words each.
        notes: what a reader must know besides, such as folders that were left out.
        base: the folder the file will lie in, which links to run folders start from; None for no links.
        refresh_s: the page asks for itself again after so many seconds.
        at_end: keys of the tables that come after pictures with headings of their own.
        generator: the element by which a page of its kind is known.
    """
    sections = _sections(tables, pictures, base, at_end)
    contents = "".join(f'<li><a href="#{key}">{text(name)}</a></li>' for key, name, _ in sections)
    body = "\n".join(
        f'<section id="{key}"><h2>{text(name)}</h2>{inner}</section>' for key, name, inner in sections
    )
    refresh = f'<meta http-equiv="refresh" content="{refresh_s}">' if refresh_s else ""
    facts = "".join(f"<li>{text(fact)}</li>" for fact in summary)
    told = "".join(f"<p>{text(note)}</p>" for note in notes)
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
        f"<main>{body}</main>\n<footer>{told}</footer></body></html>\n"
    )


def text(value: object) -> str:
    """Whatever it is, as text of a page: names come from files and the network."""
    return html.escape(plain(str(value)))


def _sections(
    tables: Sequence[Table], pictures: Sequence[PageFigure], base: Path | None, at_end: Sequence[str]
) -> list[tuple[str, str, str]]:
    """Id, heading and content. Pictures follow the table they belong to, or the last one about results."""
    found = [(table.key, table.title, _table(table, number, base)) for number, table in enumerate(tables, 1)]
    own = [name for name in dict.fromkeys(one.section for one in pictures) if name not in _keys(tables)]
    end = next((at for at, (key, _, _) in enumerate(found) if key in at_end), len(found))
    found[end:end] = [(name, name, "") for name in own]
    numbers = count(1)
    return [
        (
            key.lower().replace(" ", "-"),
            title,
            inner + _figures([one for one in pictures if one.section == key], numbers),
        )
        for key, title, inner in found
    ]


def _keys(tables: Sequence[Table]) -> set[str]:
    return {table.key for table in tables}


def _figures(pictures: Sequence[PageFigure], numbers: Iterator[int]) -> str:
    made = "".join(_figure(picture, next(numbers)) for picture in pictures)
    return f'<div class="figures">{made}</div>' if made else ""


def _figure(picture: PageFigure, number: int) -> str:
    keys = (
        f'<li><span class="key" style="background:{colour}"></span>{text(name)}</li>'
        for colour, name in picture.legend
    )
    legend = f'<ul class="legend">{"".join(keys)}</ul>' if picture.legend else ""
    kind = ("paper " if picture.has_paper else "") + ("wide" if picture.is_wide else "")
    return (
        f'<figure class="{kind}"><div class="picture" tabindex="0">{picture.svg}</div>{legend}'
        f"<figcaption><b>Figure {number}.</b> {text(picture.caption)}</figcaption></figure>"
    )


def _table(table: Table, number: int, base: Path | None) -> str:
    heads = "".join(f'<th scope="col">{_head(head, None, is_row=False)}</th>' for head in table.columns)
    rows = "".join(_row(line, base, has_bar=table.key == UNDER_WAY) for line in table.lines)
    label = text(f"Table {number}: {table.title}")
    return (
        f'<p class="caption" id="table-{number}"><b>Table {number}.</b> {text(table.caption)}</p>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
        f'<table class="{table.key}" aria-describedby="table-{number}">'
        f'<thead><tr><th scope="col">{text(table.corner)}</th>{heads}</tr></thead><tbody>{rows}</tbody>'
        "</table></div>"
    )


def _row(line: Row, base: Path | None, *, has_bar: bool) -> str:
    cells = (f"<td>{_cell(cell, is_bar=has_bar and at == 0)}</td>" for at, cell in enumerate(line.cells))
    kind = ' class="total"' if line.is_total else ""
    return f'<tr{kind}><th scope="row">{_head(line.head, base, is_row=True)}</th>{"".join(cells)}</tr>'


def _head(head: Header, base: Path | None, *, is_row: bool) -> str:
    name = text(head.name)
    if is_row:
        name = re.sub(r"([_/.:-])(?=\w)", r"\1<wbr>", name)  # where a long name may be broken
    if head.folder is not None and base is not None:
        name = f'<a href="{html.escape(link(head.folder, base))}">{name}</a>'
    return name + (f" <small>{text(head.detail)}</small>" if head.detail else "")


def _cell(cell: Cell, *, is_bar: bool) -> str:
    mean, plus_minus, std = cell.text.partition(" ± ")
    shown = f"<b>{text(mean)}</b>" if cell.is_best else text(mean)
    shown += f'<span class="std"> ± {text(std)}</span>' if plus_minus else ""
    if is_bar and cell.value is not None:
        shown += f'<progress max="1" value="{cell.value:.4f}"></progress>'
    return shown + (f"<small>{text(cell.note)}</small>" if cell.note else "")


def link(folder: Path, base: Path) -> str:
    """From the file's folder to a run folder, so that both can be moved together; never another scheme."""
    return f"./{quote(os.path.relpath(folder.resolve(), base.resolve()))}/"
