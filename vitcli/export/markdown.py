"""Markdown blocks of a model card; what is untrusted in them is escaped."""

import re
import textwrap
from collections.abc import Iterable, Sequence

from vitcli.output.text import plain


def paragraph(text: str) -> str:
    """Wrap a paragraph; the lines of a list item are indented under its dash."""
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(text, 110, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def code(value: object) -> str:
    """Return an untrusted value as inline code, in which nothing is read as markup."""
    text = plain(str(value))
    ticks = "`" * (_longest_run(text) + 1)
    return f"{ticks} {text} {ticks}" if "`" in text else f"`{text}`"


def fenced(text: str, language: str = "") -> str:
    """Return a code block, fenced by more backticks than any in it."""
    ticks = "`" * max(3, _longest_run(text) + 1)
    return f"{ticks}{language}\n{text.rstrip()}\n{ticks}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; the cells are Markdown, their bars are escaped."""
    lines = [header, ["---"] * len(header), *rows]
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
