"""A report as text for a terminal, as Markdown, and as CSV."""

from collections.abc import Sequence
from pathlib import Path

from vitcli.output.document import CSV_HEADER, Table
from vitcli.output.text import csv_text, escape_markdown, plain

MARK = "<!-- made by vit report -->"  # distinguishes a report from other Markdown files
BEST = "* the best of its row or column, or what was chosen; accuracies in %"


def as_text(tables: Sequence[Table], notes: Sequence[str] = ()) -> str:
    """Return the tables under their titles, for a terminal."""
    parts = []
    for table in tables:
        counts = {cell.count for row in table.rows for cell in row.cells if cell.std is not None}
        of_several = f", mean ± standard deviation of {counts.pop()}" if len(counts) == 1 else ""
        parts.append(f"{table.title}{of_several}\n{table.as_text()}")
    has_best = any(cell.is_best for table in tables for row in table.rows for cell in row.cells)
    notes = [*([BEST] if has_best else []), *notes]
    return "\n".join([*parts, "".join(f"{plain(note)}\n" for note in notes)])


def as_markdown(tables: Sequence[Table], *, title: str, notes: Sequence[str], base: Path) -> str:
    """Return the tables with their captions, with links to run folders from the folder `base`."""
    parts = [MARK, f"# {escape_markdown(title)}"]
    for table in tables:
        parts += [f"## {escape_markdown(table.title)}", escape_markdown(table.caption)]
        parts.append(table.as_markdown(base=base).rstrip("\n"))
    return "\n\n".join([*parts, *map(escape_markdown, notes)]) + "\n"


def as_csv(tables: Sequence[Table]) -> str:
    """Return one line for each value of each table."""
    return csv_text([CSV_HEADER, *(row for table in tables for row in table.as_csv())])
