"""Tables of a report as text: for a terminal, as Markdown, as CSV, as JSON."""

import csv
import html
import io
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

from vitcli.output.document import Cell, Header, Table
from vitcli.output.text import plain, printed

MARK = "<!-- made by vit report -->"  # by it a Markdown report is known from another file
HEADER = (
    "table",
    "row",
    "row_detail",
    "column",
    "column_detail",
    "text",
    "value",
    "std",
    "num_runs",
    "is_best",
)


def as_text(tables: Sequence[Table], notes: Sequence[str] = ()) -> str:
    """For a terminal: the best of a row has a star."""
    from rich.table import Table as RichTable

    parts = []
    for table in tables:
        shown = RichTable(box=None, pad_edge=False, header_style="bold")
        shown.add_column(table.corner, overflow="fold")
        for head in table.columns:
            shown.add_column(_one_line(head), justify="right", overflow="fold")
        for line in table.lines:
            shown.add_row(_one_line(line.head), *(_shown(cell) for cell in line.cells))
        counts = {cell.count for line in table.lines for cell in line.cells if cell.std is not None}
        of_several = f", mean ± standard deviation of {counts.pop()}" if len(counts) == 1 else ""
        parts.append(f"{table.title}{of_several}\n{printed(shown)}")
    has_best = any(cell.is_best for table in tables for line in table.lines for cell in line.cells)
    notes = [
        *(["* the best of its row or column, or what was chosen; accuracies in %"] if has_best else []),
        *notes,
    ]
    return "\n".join([*parts, "".join(f"{plain(note)}\n" for note in notes)])


def as_markdown(tables: Sequence[Table], *, title: str, notes: Sequence[str], base: Path) -> str:
    """With links to run folders from the folder `base`."""
    parts = [MARK, f"# {_escaped(title)}"]
    for table in tables:
        heads = [table.corner, *(_one_line(head) for head in table.columns)]
        rows = [f"| {' | '.join(map(_escaped, heads))} |", "|---" + "|---:" * len(table.columns) + "|"]
        for line in table.lines:
            cells = (_marked(cell) for cell in line.cells)
            rows.append(f"| {' | '.join([_linked(line.head, base), *cells])} |")
        parts += [f"## {_escaped(table.title)}", _escaped(table.caption), "\n".join(rows)]
    return "\n\n".join([*parts, *map(_escaped, notes)]) + "\n"


def as_csv(tables: Sequence[Table]) -> str:
    """One line for each value of each table, with the number as it is; shares are fractions."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    for table in tables:
        for line in table.lines:
            for head, cell in zip(table.columns, line.cells, strict=True):
                if cell.text or cell.note:
                    row, column = line.head, head
                    names = (
                        table.key,
                        row.name,
                        row.detail,
                        column.name,
                        column.detail,
                        cell.text or cell.note,
                    )
                    numbers = (cell.value, cell.std, cell.count if cell.value is not None else None)
                    writer.writerow([*map(plain, names), *numbers, int(cell.is_best)])
    return text.getvalue()


def as_json(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """The tables as objects; a cell without a value is null, or says why."""
    return [
        {
            "table": table.key,
            "title": table.title,
            "caption": table.caption,
            "columns": [{"name": head.name, "detail": head.detail} for head in table.columns],
            "rows": [
                {
                    "name": line.head.name,
                    "detail": line.head.detail,
                    "run_dir": str(line.head.folder) if line.head.folder else None,
                    "cells": [asdict(cell) if cell.text or cell.note else None for cell in line.cells],
                }
                for line in table.lines
            ],
        }
        for table in tables
    ]


def _one_line(head: Header) -> str:
    return plain(f"{head.name}, {head.detail}" if head.detail else head.name)


def _shown(cell: Cell) -> str:
    text = cell.text + ("*" if cell.is_best else "")
    return plain(f"{text} ({cell.note})" if cell.text and cell.note else text or cell.note)


def _marked(cell: Cell) -> str:
    text = _escaped(cell.text)
    mean, plus_minus, std = text.partition(" ± ")
    text = f"**{mean}**{plus_minus}{std}" if cell.is_best else text
    note = _escaped(cell.note)
    return f"{text} ({note})" if text and note else text or note


def _linked(head: Header, base: Path) -> str:
    name = _escaped(head.name)
    if head.folder is not None:
        name = f"[{name}](./{quote(os.path.relpath(head.folder.resolve(), base.resolve()))})"
    return f"{name}, {_escaped(head.detail)}" if head.detail else name


def _escaped(text: str) -> str:
    """Nothing of it is Markdown or HTML."""
    return "".join(f"\\{c}" if c in "\\`*_[]|#" else c for c in html.escape(plain(text), quote=False))
