"""Results of commands as text for a person; the same dictionary is what --json prints."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from pathlib import PurePath
from typing import Any

from vitcli.distributed import launch


def show(result: dict[str, Any], as_json: bool, render: Callable[[dict[str, Any]], str]) -> int:
    """Print a command's result, on the first process alone, as JSON or by `render`; return exit code 0."""
    if as_json:
        return show_json(result)
    if launch.global_rank() == 0:
        write(render(result))
    return 0


def show_json(result: dict[str, Any]) -> int:
    """Print a command's result as one JSON object, on the first process alone; return exit code 0."""
    if launch.global_rank() == 0:
        write(json.dumps(result, indent=2))
    return 0


def write(text: str) -> None:
    """The result of a command, on standard output."""
    try:
        print(text.rstrip("\n"), flush=True)
    except BrokenPipeError:  # the reader of a pipe has gone: nothing is left to say, at the exit neither
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def skipped(result: dict[str, Any]) -> list[tuple[str, str]]:
    """The line about undecodable images, where there were any."""
    count = result["num_skipped_images"]
    return [("left out", f"{count} undecodable, first {result['skipped_images'][0]}")] if count else []


def speed(result: dict[str, Any]) -> str:
    """How fast, how long, on what."""
    rate = result["images_per_s"]
    per_s = f"{rate:.1f} images/s, " if rate else ""
    return f"{per_s}{result['elapsed_s']:.0f} s, {result['precision']}, {result['num_processes']} process(es)"


def size_text(resolution: int | Sequence[int]) -> str:
    return str(resolution) if isinstance(resolution, int) else "x".join(map(str, resolution))


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """One line for each name and value."""
    return "".join(f"{name:<11} {plain(value)}\n" for name, value in rows)


def plain(text: str) -> str:
    """Without control characters: names come from files and the network."""
    return "".join(c if c.isprintable() else "�" for c in str(text))


def printed(table) -> str:
    """A table of Rich's as text."""
    import shutil

    from rich.console import Console

    # A pipe has no width: give it lines as long as they are.
    width = shutil.get_terminal_size((200, 24)).columns
    text = StringIO()
    Console(file=text, width=width, markup=False, highlight=False, emoji=False).print(table)
    return "".join(line.rstrip() + "\n" for line in text.getvalue().splitlines())


def short_names(names: Iterable[str]) -> dict[str, str]:
    """The last part of each path or Hub id, with as many before it as tell it from others; no bare number."""
    parts = {name: PurePath(name).parts or (name,) for name in names}
    short = {}
    for name, own in parts.items():
        others = [other for other_name, other in parts.items() if other_name != name]
        least = next(
            (k for k in range(1, len(own)) if not any(own[-k:] == one[-k:] for one in others)), len(own)
        )
        is_alias = len(own) == 2 and own[0] == "vtab"  # its pet pictures are not the pets of another task
        least = max(least, 2) if own[-1].isdecimal() else least
        short[name] = name if is_alias else str(PurePath(*own[-least:]))
    return short
