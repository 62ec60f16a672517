"""Markdown that holds whatever a data set, a path or a class is called."""

import re
import textwrap
from collections.abc import Iterable, Sequence

from vitcli.output.text import plain


def paragraph(text: str) -> str:
    """Its lines not longer than ours are; a point of a list is indented under its dash."""
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(text, 110, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def code(value: object) -> str:
    """As code, on one line: nothing in it is taken for markup."""
    text = plain(str(value))
    ticks = "`" * (_longest_run(text) + 1)
    return f"{ticks} {text} {ticks}" if "`" in text else f"`{text}`"


def fenced(text: str, language: str = "") -> str:
    """A block of code, fenced by more backticks than any in it."""
    ticks = "`" * max(3, _longest_run(text) + 1)
    return f"{ticks}{language}\n{text.rstrip()}\n{ticks}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are Markdown, in which a bar is a bar."""
    lines = [head, ["---"] * len(head), *rows]
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
