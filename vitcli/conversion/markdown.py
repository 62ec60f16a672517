"""Markdown blocks of a model card; what is untrusted in them is escaped."""

import functools
import json
import re
import shlex
import textwrap
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from vitcli.evaluation.calibration import selective
from vitcli.evaluation.intervals import ENOUGH_TO_RESAMPLE, NUM_RESAMPLES
from vitcli.output.redaction import public_name
from vitcli.output.text import (
    average_lines,
    compute_text,
    count_of,
    delivery_text,
    percent,
    plain,
    size_text,
    students_text,
)
from vitcli.weights import licences


def rendered(template: str, **values: object) -> str:
    """Return a template of this folder with its holes filled; values are never read as a template."""
    return _templates().get_template(template).render(values)


@functools.cache  # the environment keeps the templates that it has compiled
def _templates() -> Environment:
    env = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters = (paragraph, code, cell, fenced, plain, percent, public_name, repr)
    env.filters |= {function.__name__: function for function in filters}
    env.filters |= {"form": format, "json": json.dumps, "quote": shlex.quote}
    texts = (average_lines, compute_text, count_of, delivery_text, size_text, students_text)
    env.globals |= {function.__name__: function for function in (*texts, licences.is_non_commercial)}
    env.globals |= {"threshold_rows": selective.table_rows, "UNKNOWN_LICENCE": licences.UNKNOWN}
    env.globals |= {"NUM_RESAMPLES": NUM_RESAMPLES, "ENOUGH_TO_RESAMPLE": ENOUGH_TO_RESAMPLE}
    return env


def paragraph(text: str) -> str:
    """Wrap the lines of a paragraph; those of a list item are indented under its dash."""
    text = " ".join(line for line in map(str.strip, text.split("\n")) if line)
    indent = "  " if text.startswith("- ") else ""
    wrapped = textwrap.fill(
        text, 110, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return f"{wrapped}\n"


def code(value: object) -> str:
    """Return an untrusted value as inline code, in which nothing is read as markup."""
    text = plain(str(value))
    ticks = "`" * (_longest_run(text) + 1)
    return f"{ticks} {text} {ticks}" if "`" in text else f"`{text}`"


def fenced(text: str, language: str = "") -> str:
    """Return a code block, fenced by more backticks than any in it."""
    ticks = "`" * max(3, _longest_run(text) + 1)
    return f"{ticks}{language}\n{text.rstrip()}\n{ticks}\n"


def cell(text: str) -> str:
    """Return Markdown for a table, in which a bar would end the cell."""
    return text.replace("|", "\\|")


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
