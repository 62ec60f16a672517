"""Run folders to what a report shows: plain values, the same whether a run is finished or goes on."""

import csv
import math
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from vitcli.errors import DataError, VitError
from vitcli.output import run_folder
from vitcli.output.atomic import read_json, read_jsonl
from vitcli.output.summaries import Evaluation, Evaluations, FewshotSummary, TrainingSummary, VtabSummary
from vitcli.recipe.sweep import is_listed
from vitcli.report.scan import (
    ARMS,
    EVALUATION,
    REPEATS,
    RunLocation,
    command_of,
    find,
    read,
    read_recipe,
)


@dataclass(frozen=True)
class UnfinishedProgress:
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


def progress_of(path: Path, recipe: dict[str, Any]) -> UnfinishedProgress:
    """Of the run in the folder, or of the arm or repeated run that is under way in it."""
    told = partial(_steps_done, is_live=_is_live(path))
    members = [*members_of(path, ARMS), *members_of(path, REPEATS)]
    if not members:
        return told(path)
    choices = [len(value) for key, value in recipe.items() if is_listed(key, value)]
    repeats = recipe.get("train.runs")
    total = (math.prod(choices) if choices else 0) + (repeats if isinstance(repeats, int) else 1)
    ends = (run_folder.SUMMARY, run_folder.DIVERGED)
    going = [member for member in members if not any((member / name).exists() for name in ends)]
    if not going:
        return told(members[-1], part=f"{len(members)} of {total} parts finished")
    return told(going[-1], part=f"{going[-1].name}, part {len(members) - len(going) + 1} of {total}")


def _steps_done(path: Path, *, is_live: bool | None, part: str = "") -> UnfinishedProgress:
    total = (read_json(path / run_folder.PLAN) or {}).get("total_steps")
    total = total if isinstance(total, int) and total > 0 else None
    steps = [
        record["step"] for record in read_jsonl(path / run_folder.METRICS) if is_number(record.get("step"))
    ]
    step = int(max(steps, default=0))
    paces = [record.get("step_s") for record in read_jsonl(path / run_folder.TIMING)]
    is_paced = total is not None and paces and is_number(paces[-1])
    return UnfinishedProgress(
        step, total, part, max(0, total - step) * paces[-1] if is_paced else None, is_live
    )


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


Point = tuple[float, float]
CONFUSION = "confusion.csv"


@dataclass(frozen=True)
class Choice:
    """One choice of a selection, {"optimizer.lr": 0.003}, and its accuracy on the dev split.

    `dev_top1` is None where the loss stopped being finite; of masked patches it is that of their colours.
    """

    keys: dict[str, Any]
    dev_top1: float | None
    is_chosen: bool


@dataclass(frozen=True)
class Run:
    """A run of `vit finetune` or `vit pretrain`, be it one, a selection or several with their own seeds.

    Attributes:
        recipe: by flat keys.
        summary: of a finished run.
        progress: of one that is not.
        losses, accuracies: (step, value) of training loss and held-out top-1, a curve for each seed.
        choices: of a selection, those that have been tried.
    """

    path: Path
    command: str
    model: str
    ckpt: str | None
    dataset: str
    split: str
    resolution: int | list[int] | None
    recipe: dict[str, Any]
    summary: TrainingSummary | None
    progress: UnfinishedProgress | None
    losses: tuple[tuple[Point, ...], ...] = ()
    accuracies: tuple[tuple[Point, ...], ...] = ()
    choices: tuple[Choice, ...] = ()

    @property
    def seeds(self) -> tuple[int, ...]:
        own = [one.seed for one in self.summary.runs] if self.summary else []
        seed = self.recipe.get("train.seed")
        return tuple(own) or (seed if isinstance(seed, int) else 0,)


@dataclass(frozen=True)
class FewshotRecord:
    """A run of `vit fewshot`."""

    path: Path
    summary: FewshotSummary
    split: str
    recipe: dict[str, Any]

    @property
    def dataset(self) -> str:
        return self.summary.dataset


@dataclass(frozen=True)
class Vtab:
    """All tasks of one checkpoint; `runs` are those whose folders are there."""

    path: Path
    summary: VtabSummary
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class EvaluationRecord:
    """One evaluation, and its confusion as (label, predicted, count) of the pairs that occur."""

    path: Path
    said: Evaluation
    split: str
    confusion: tuple[tuple[str, str, int], ...]

    @property
    def dataset(self) -> str:
        return self.said.dataset


@dataclass(frozen=True)
class RunCollection:
    """All that the named folders hold.

    Attributes:
        left_out: folders met below a named one that could not be read, and why.
    """

    runs: list[Run] = field(default_factory=list)
    fewshots: list[FewshotRecord] = field(default_factory=list)
    vtabs: list[Vtab] = field(default_factory=list)
    scored: list[EvaluationRecord] = field(default_factory=list)
    left_out: list[tuple[Path, str]] = field(default_factory=list)

    @property
    def unfinished(self) -> list[Run]:
        everything = [*self.runs, *(run for vtab in self.vtabs for run in vtab.runs)]
        return [run for run in everything if run.progress]


def gather(places: Sequence[str]) -> RunCollection:
    """Read every run at and below the named folders.

    Raises:
        VitError: a place without runs, or a named folder with a damaged file. One that is met below a named
            folder is left out, and the report says so.
    """
    material = RunCollection()
    for found in find(places):
        try:
            _read_into(material, found)
        except VitError as error:
            if found.is_named:
                raise
            material.left_out.append((found.path, error.message))
    return material


def _read_into(material: RunCollection, found: RunLocation) -> None:
    path = found.path
    match found.kind:
        case "training":
            material.runs.append(read_run(path))
        case "fewshot":
            if not (path / run_folder.SUMMARY).exists():
                raise DataError(
                    "a few-shot run that is not finished",
                    where=str(path),
                    fix="give its command line again, or leave the folder out",
                )
            summary = read(path / run_folder.SUMMARY, FewshotSummary)
            material.fewshots.append(
                FewshotRecord(path, summary, _split_of(summary.eval_split), read_recipe(path))
            )
        case "vtab":
            material.vtabs.append(_read_vtab(path))
        case "evaluation":
            material.scored.extend(_read_evaluations(path))


def read_run(path: Path) -> Run:
    """One run folder; parts of a selection and repeated runs are read with it."""
    recipe = read_recipe(path)
    has_ended = (path / run_folder.SUMMARY).exists()
    summary = read(path / run_folder.SUMMARY, TrainingSummary) if has_ended else None
    parts = members_of(path, REPEATS) or members_of(path, ARMS)
    records = [read_jsonl(part / run_folder.METRICS) for part in parts or [path]]
    told = dict(
        path=path,
        recipe=recipe,
        losses=tuple(_points(one, lambda record: record.get("loss")) for one in records),
        accuracies=tuple(_points(one, _held_out) for one in records),
        choices=_choices(path, summary),
    )
    if summary:
        return Run(
            command=summary.command,
            model=summary.model,
            ckpt=summary.ckpt,
            dataset=summary.dataset,
            split=_split_of(summary.eval_split),
            resolution=summary.resolution,
            summary=summary,
            progress=None,
            **told,
        )
    ckpt, size = recipe.get("model.ckpt"), recipe.get("data.image_size")
    return Run(
        command=command_of(path) or ("pretrain" if ckpt is None else "finetune"),
        model=str(recipe.get("model.name") or Path(str(ckpt)).name),
        ckpt=None if ckpt is None else str(ckpt),
        dataset=str(recipe.get("data.dataset", "")),
        split="",
        resolution=size if is_number(size) else None,
        summary=None,
        progress=progress_of(path, recipe),
        **told,
    )


def _choices(path: Path, summary: TrainingSummary | None) -> tuple[Choice, ...]:
    """By the summary, or while a selection goes on by the arms that metrics.jsonl says are finished."""
    if summary:
        tried = summary.choices
        chosen = summary.chosen
    else:
        records = read_jsonl(path / run_folder.METRICS)
        tried = [{**record["arm"], **record} for record in records if isinstance(record.get("arm"), dict)]
        chosen = None
    found = []
    for one in tried:
        keys = {key: value for key, value in one.items() if "." in key}
        right = one.get("dev_top1", one.get("dev_patch_accuracy"))
        if keys and (right is None or (is_number(right) and 0 <= right <= 1)):
            found.append(Choice(keys, right, keys == chosen))
    return tuple(found)


def _read_vtab(path: Path) -> Vtab:
    summary = read(path / run_folder.SUMMARY, VtabSummary)
    tasks = [child for child in sorted(path.iterdir()) if (child / run_folder.RECIPE).is_file()]
    return Vtab(path, summary, tuple(read_run(task) for task in tasks))


def _read_evaluations(path: Path) -> list[EvaluationRecord]:
    file = path / EVALUATION
    if "evaluations" not in (read_json(file) or {}):
        return [_scored(path, read(file, Evaluation))]
    several = read(file, Evaluations).evaluations
    return [_scored(path / str(number), said) for number, said in enumerate(several, start=1)]


def _scored(path: Path, said: Evaluation) -> EvaluationRecord:
    try:
        with open(path / CONFUSION, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        pairs = tuple((row["class"], row["predicted"], int(row["num_examples"])) for row in rows)
    except FileNotFoundError:  # rows of several labels have no confusion
        pairs = ()
    except (OSError, KeyError, ValueError, TypeError, csv.Error) as error:
        fix = "evaluate again, or leave the folder out"
        raise DataError(f"{CONFUSION} is damaged: {error}", where=str(path / CONFUSION), fix=fix) from error
    return EvaluationRecord(path, said, _split_of(said.eval_split), pairs)


def _points(records: list[dict[str, Any]], value_of: Callable[[dict], Any]) -> tuple[Point, ...]:
    """A curve by steps. Of a step that was logged twice the last counts: a resumed run goes over it again."""
    pairs = [(record.get("step"), value_of(record)) for record in records]
    values = {step: value for step, value in pairs if is_number(step) and is_number(value)}
    return tuple(sorted(values.items()))


def _held_out(record: dict[str, Any]) -> Any:
    scores = record.get("eval")
    return scores.get("top1") if isinstance(scores, dict) else None


def _split_of(eval_split: str) -> str:
    """The split alone: `test` of "demo, split test"."""
    return eval_split.rpartition(", split ")[2]
