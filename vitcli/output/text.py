"""Text that commands print: results as lines of names and values, and the formats of numbers and names."""

import csv
import html
import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any

NO_LIMIT = 10_000  # columns of a pipe, which has no width: its lines are as long as they need to be


def write(text: str) -> None:
    """Print the result of a command on standard output."""
    try:
        print(text.rstrip("\n"), flush=True)
    except BrokenPipeError:  # the reader is gone: keep Python from failing again when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def terminal_width() -> int:
    return shutil.get_terminal_size((NO_LIMIT, 24)).columns


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """Return one line for each name and value."""
    return "".join(f"{name:<11} {plain(value)}\n" for name, value in rows)


def wrapped(name: str, value: str) -> list[tuple[str, str]]:
    """Break a long value into rows for `pairs` that fit into 80 columns; words and paths stay whole."""
    lines = textwrap.wrap(plain(value), 68, break_long_words=False, break_on_hyphens=False)
    return [("" if number else name, line) for number, line in enumerate(lines)]


def skipped(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the row about undecodable images, if there were any."""
    count = result["num_skipped_images"]
    return [("skipped", f"{count} undecodable, first {result['skipped_images'][0]}")] if count else []


def speed(result: dict[str, Any]) -> str:
    """Return throughput, time, precision and processes of a run."""
    rate = result["images_per_s"]
    per_s = f"{rate:.1f} images/s, " if rate else ""
    return f"{per_s}{result['elapsed_s']:.0f} s, {result['precision']}, {result['num_processes']} process(es)"


def percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{fraction:.2%}"


def exaflops(count: float | None) -> str:
    """Return a compute count with three digits, or all digits before the point from 100 on."""
    return "-" if count is None else f"{count:,.0f}" if count >= 100 else f"{count:.3g}"


def first_few(names: Sequence[str], most: int = 5, *, total: int | None = None) -> str:
    """Return the first names, "a, b and 7 more", of a list that may be the start of one of `total`."""
    shown = names[:most]
    more = (total or len(names)) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def value_text(value: Any) -> str:
    """Return a value of a recipe as a person writes it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def top5_is_informative(num_classes: int) -> bool:
    """Return whether to report top-5: of five classes or fewer it is 100 % by definition."""
    return num_classes > 5


def size_text(resolution: int | Sequence[int]) -> str:
    return str(resolution) if isinstance(resolution, int) else "x".join(map(str, resolution))


def plain(text: object) -> str:
    """Replace control characters: names come from files and the network."""
    return "".join(c if c.isprintable() else "�" for c in str(text))


def escape_markdown(text: str) -> str:
    """Escape whatever Markdown or HTML would read as markup; underscores inside words are none."""
    text = re.sub(r"([\\`*\[\]|#])", r"\\\1", html.escape(plain(text), quote=False))
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Shorten each path or Hub id to its last part, with as many before it as make it unique.

    A bare number keeps the part before it, and a task of VTAB its prefix: its data are not those of the
    data set of the same name.
    """
    parts_of = {name: PurePath(name).parts or (name,) for name in names}
    short = {}
    for name, parts in parts_of.items():
        others = [other for other_name, other in parts_of.items() if other_name != name]
        unique_from = (k for k in range(1, len(parts)) if all(parts[-k:] != other[-k:] for other in others))
        least = next(unique_from, len(parts))
        least = max(least, 2) if parts[-1].isdecimal() else least
        is_vtab_task = len(parts) == 2 and parts[0] == "vtab"
        short[name] = name if is_vtab_task else str(PurePath(*parts[-least:]))
    return short


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Write rows, the header among them, as CSV with Unix line ends."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
