"""How far a run is that has no summary yet, by its plan, its metrics and its lock file."""

import math
import os
import socket
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from vitcli.output import run_folder
from vitcli.report.scan import ARMS, REPEATS, read_records

# Recipe keys whose value is a list by nature; at any other key a list is a choice to be made.
LISTS = {"data.crop_area", "data.crop_aspect", "data.randaugment", "data.mean", "data.std", "data.image_size",
         "optimizer.betas"}  # fmt: skip


@dataclass(frozen=True)
class Progress:
    """How far a run is that has no summary yet.

    Attributes:
        step, total_steps: of the run, or of the part of it that is under way; None before it has a plan.
        part: which part of a selection or of repeated runs that is, such as "lr-0.003, 3 of 5".
        seconds_left: of those steps, at the speed of the last ones.
        is_live: whether its process lives; None where that cannot be known, as on another machine.
    """

    step: int
    total_steps: int | None
    part: str = ""
    seconds_left: float | None = None
    is_live: bool | None = None

    @property
    def in_words(self) -> str:
        if self.total_steps is None:
            return "not begun"
        return f"step {self.step:,} of {self.total_steps:,}"


def members_of(path: Path, kind: str) -> list[Path]:
    """The arms or the repeated runs of a folder, in the order in which they were begun."""
    folder = path / kind
    if not folder.is_dir():
        return []
    begun = [child for child in folder.iterdir() if (child / run_folder.RECIPE).is_file()]
    return sorted(begun, key=lambda child: ((child / run_folder.RECIPE).stat().st_mtime_ns, child.name))


def progress_of(path: Path, recipe: dict[str, Any]) -> Progress:
    """Of the run in the folder, or of the arm or repeated run that is under way in it."""
    told = partial(_steps_done, is_live=_is_live(path))
    members = [*members_of(path, ARMS), *members_of(path, REPEATS)]
    if not members:
        return told(path)
    choices = [len(value) for key, value in recipe.items() if isinstance(value, list) and key not in LISTS]
    repeats = recipe.get("train.runs")
    total = (math.prod(choices) if choices else 0) + (repeats if isinstance(repeats, int) else 1)
    ends = (run_folder.SUMMARY, run_folder.DIVERGED)
    going = [member for member in members if not any((member / name).exists() for name in ends)]
    if not going:
        return told(members[-1], part=f"{len(members)} of {total} parts finished")
    return told(going[-1], part=f"{going[-1].name}, part {len(members) - len(going) + 1} of {total}")


def _steps_done(path: Path, *, is_live: bool | None, part: str = "") -> Progress:
    total = (run_folder.read_plan(path) or {}).get("total_steps")
    total = total if isinstance(total, int) and total > 0 else None
    steps = [
        record["step"] for record in read_records(path / run_folder.METRICS) if is_number(record.get("step"))
    ]
    step = int(max(steps, default=0))
    paces = [record.get("step_s") for record in read_records(path / run_folder.TIMING)]
    is_paced = total is not None and paces and is_number(paces[-1])
    return Progress(step, total, part, max(0, total - step) * paces[-1] if is_paced else None, is_live)


def _is_live(path: Path) -> bool | None:
    """Whether the process named in the lock file lives. The lock itself is not tried: a run might want it."""
    try:
        words = (path / run_folder.LOCK).read_text(errors="replace").split()
    except OSError:
        return None
    if len(words) != 4 or words[3] != socket.gethostname() or not words[1].isdigit():
        return None
    try:
        os.kill(int(words[1]), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it lives, and is somebody else's
        return True
    return True


def is_number(value: Any) -> bool:
    """Whether a value of a JSON file is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
