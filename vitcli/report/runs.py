"""Runs of every command as a report shows them, read from their folders, finished or in progress."""

import csv
import io
import math
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from vitcli.errors import DataError, VitError
from vitcli.io.files import read_regular
from vitcli.output import run_folder
from vitcli.output.atomic import read_json, read_jsonl
from vitcli.output.leases import Cells
from vitcli.output.owned_folder import is_alive
from vitcli.output.summaries import (
    Evaluation,
    Evaluations,
    FewshotSummary,
    TrainingSummary,
    VtabSummary,
    read,
)
from vitcli.output.text import count_of, short_names
from vitcli.recipe.sweep import is_listed
from vitcli.report.scan import ARMS, EVALUATION, FOLDS, REPEATS, RunLocation, command_of, find, read_recipe

Point = tuple[float, float]
CONFUSION = "confusion.csv"


class ImageSet(NamedTuple):
    """The images that a result was scored on; as a part of a row, results on different ones stay apart.

    Attributes:
        count: number of images; None if the result does not say.
        fingerprint: of the data; None if the result does not say.
    """

    count: int | None
    fingerprint: str | None = None

    def text(self, *, has_fingerprint: bool = False) -> str:
        count = "" if self.count is None else count_of(self.count, "image")
        mark = self.fingerprint[:6] if self.fingerprint else "unknown"
        return f"{count} (set {mark})" if has_fingerprint else count


UNKNOWN_IMAGES = ImageSet(None)


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run that has no summary yet.

    Attributes:
        step, total_steps: of the run, or of the part in progress, logged or saved; None before it has a plan.
        saved_step: of the newest checkpoint, from which it resumes; None without one.
        part: the trial or repeated run in progress, such as "lr-0.003, part 3 of 5".
        seconds_left: time for the remaining steps at the speed of the last ones.
        is_live: its process is alive; None if that is unknown, as on another machine.
        command: what resumes the run; empty while its process is alive, or if it is not known.
    """

    step: int
    total_steps: int | None
    saved_step: int | None = None
    part: str = ""
    seconds_left: float | None = None
    is_live: bool | None = None
    command: str = ""

    @property
    def text(self) -> str:
        if self.total_steps is None:
            return "not started"
        if not self.step:
            return f"no step of {self.total_steps:,} yet"
        is_behind = not self.is_live and self.saved_step not in (None, self.step)
        resumes = f", checkpoint at step {self.saved_step:,}" if is_behind else ""
        return f"step {self.step:,} of {self.total_steps:,}{resumes}"


@dataclass(frozen=True)
class TrialScore:
    """A trial of a sweep: its recipe values, {"optimizer.lr": 0.003}, and its score on the dev split.

    `dev_top1` is the accuracy of the colours for masked patch prediction, the mean average precision for
    several labels; for a regression there is `dev_mae` instead. None where the loss was not finite. The
    interval is empty if it is not known.
    """

    values: dict[str, Any]
    dev_top1: float | None
    is_chosen: bool
    interval: tuple[float, ...] = ()
    num_images: int | None = None
    dev_mae: float | None = None


@dataclass(frozen=True)
class Run:
    """A run of `vit finetune` or `vit pretrain`: a single one, a sweep, or several with their own seeds.

    Attributes:
        recipe: by flat keys.
        summary: of a finished run.
        progress: of an unfinished one.
        losses, accuracies: (step, value) of training loss and held-out top-1, a curve for each seed.
        num_evaluated: images of the held-out accuracies; None before the first.
        trials: of a sweep, those that have been trained.
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
    progress: RunProgress | None
    losses: tuple[tuple[Point, ...], ...] = ()
    accuracies: tuple[tuple[Point, ...], ...] = ()
    num_evaluated: int | None = None
    trials: tuple[TrialScore, ...] = ()

    @property
    def images(self) -> ImageSet:
        """The images that the run was scored on."""
        summary = self.summary
        return ImageSet(summary.num_eval_examples, summary.eval_fingerprint) if summary else UNKNOWN_IMAGES

    @property
    def seeds(self) -> tuple[int, ...]:
        seeds = tuple(scores.seed for scores in self.summary.runs) if self.summary else ()
        seed = self.recipe.get("train.seed")
        return seeds or (seed if isinstance(seed, int) else 0,)


@dataclass(frozen=True)
class FewshotRecord:
    """A run of `vit fewshot`."""

    path: Path
    summary: FewshotSummary
    recipe: dict[str, Any]

    @property
    def dataset(self) -> str:
        return self.summary.dataset

    @property
    def images(self) -> ImageSet:
        return ImageSet(self.summary.num_test_examples, self.summary.eval_fingerprint)


@dataclass(frozen=True)
class VtabRecord:
    """All tasks of one checkpoint; `runs` are those whose folders are present."""

    path: Path
    summary: VtabSummary
    runs: tuple[Run, ...]
    dataset: str = "VTAB"
    images: ImageSet = UNKNOWN_IMAGES  # each task has its own


@dataclass(frozen=True)
class EvaluationRecord:
    """One evaluation, and its confusion as (label, prediction, count) of the pairs that occur."""

    path: Path
    summary: Evaluation
    confusion: tuple[tuple[str, str, int], ...]

    @property
    def dataset(self) -> str:
        return self.summary.dataset

    @property
    def images(self) -> ImageSet:
        return ImageSet(self.summary.num_eval_examples, self.summary.eval_fingerprint)


@dataclass(frozen=True)
class PartsRecord:
    """What `--part-rows` of a command has made by now.

    Attributes:
        num_parts: of all; `num_done` are there.
        num_examples: images in them; None before the end.
    """

    path: Path
    dataset: str
    num_parts: int
    num_done: int
    num_examples: int | None

    @property
    def state(self) -> str:
        is_whole = self.num_examples is not None
        return "finished" if is_whole else f"{self.num_done:,} of {count_of(self.num_parts, 'part')}"


AnyRecord = Run | FewshotRecord | VtabRecord | EvaluationRecord


@dataclass(frozen=True)
class RunCollection:
    """All runs of the named folders; `left_out` are folders that could not be read, and why."""

    runs: list[Run] = field(default_factory=list)
    fewshots: list[FewshotRecord] = field(default_factory=list)
    vtabs: list[VtabRecord] = field(default_factory=list)
    evaluations: list[EvaluationRecord] = field(default_factory=list)
    parts: list[PartsRecord] = field(default_factory=list)  # only listed
    left_out: list[tuple[Path, str]] = field(default_factory=list)

    @property
    def records(self) -> list[AnyRecord]:
        return [*self.runs, *self.vtabs, *self.fewshots, *self.evaluations]

    @property
    def vtab_runs(self) -> list[Run]:
        return [run for vtab in self.vtabs for run in vtab.runs]

    @property
    def unfinished(self) -> list[Run]:
        return [run for run in (*self.runs, *self.vtab_runs) if run.progress]


class Names:
    """Short names of data sets, checkpoints and run folders, each unique in the report."""

    def __init__(self, collection: RunCollection):
        evaluations = collection.evaluations
        summaries = [record.summary for record in (*collection.fewshots, *evaluations)]
        records = (*collection.runs, *collection.fewshots, *evaluations)
        folders = (*records, *collection.vtabs, *collection.vtab_runs, *collection.parts)
        self._data = short_names(result.dataset for result in (*collection.runs, *summaries))
        evaluated = (record.summary.ckpt for record in evaluations)
        ckpts = short_names([*(run.ckpt for run in collection.runs if run.ckpt), *evaluated])
        self.ckpts = _without_ending(ckpts)
        self._folders = short_names(str(record.path) for record in folders)

    def data(self, dataset: str) -> str:
        return self._data.get(dataset, dataset) or "unknown"

    def folder(self, path: Path) -> str:
        return self._folders[str(path)]


def _without_ending(names: dict[str, str]) -> dict[str, str]:
    """Return short names of weights without .safetensors, where no other name reads the same."""
    cut = {name: short.removesuffix(".safetensors") for name, short in names.items()}
    counts = Counter(cut.values())
    return {name: cut[name] if counts[cut[name]] == 1 else short for name, short in names.items()}


def collect_runs(places: Sequence[str]) -> RunCollection:
    """Read every run at and below the named folders.

    Raises:
        VitError: a place without runs, or a named folder with a damaged file. A damaged folder below a named
            one is left out instead, and the report says so.
    """
    collection = RunCollection()
    for location in find(places):
        try:
            _read_into(collection, location)
        except VitError as error:
            if location.is_named:
                raise
            collection.left_out.append((location.path, error.message))
    return collection


def _read_into(collection: RunCollection, location: RunLocation) -> None:
    path = location.path
    match location.kind:
        case "training":
            collection.runs.append(read_run(path))
        case "fewshot":
            if not (path / run_folder.SUMMARY).exists():
                fix = "run its command again, or leave the folder out"
                raise DataError("the few-shot run is not finished", where=str(path), fix=fix)
            summary = read(path / run_folder.SUMMARY, FewshotSummary)
            collection.fewshots.append(FewshotRecord(path, summary, read_recipe(path)))
        case "vtab":
            summary = read(path / run_folder.SUMMARY, VtabSummary)
            tasks = [task for task in sorted(path.iterdir()) if (task / run_folder.RECIPE).is_file()]
            collection.vtabs.append(VtabRecord(path, summary, tuple(map(read_run, tasks))))
        case "evaluation":
            collection.evaluations.extend(_read_evaluations(path))
        case "parts":
            collection.parts.append(_read_parts(path))


def _read_parts(path: Path) -> PartsRecord:
    index = read_json(path / run_folder.PARTS) or {}
    names, asked, count = index.get("parts"), index.get("asked"), index.get("num_examples")
    if not isinstance(names, list) or not isinstance(asked, dict):
        fix = "run its command again, or leave the folder out"
        raise DataError("its list of parts is damaged", where=str(path / run_folder.PARTS), fix=fix)
    done = sum((path / str(name)).is_file() for name in names)
    dataset = str(asked.get("dataset") or "the given images")
    return PartsRecord(path, dataset, len(names), done, count if isinstance(count, int) else None)


def read_run(path: Path) -> Run:
    """Read a run folder, with the trials and repeated runs inside it."""
    recipe = read_recipe(path)
    file = path / run_folder.SUMMARY
    summary = read(file, TrainingSummary) if file.exists() else None
    # The curves are those of folds, final runs, trials, the student that is delivered, or the run itself.
    kinds = (FOLDS, REPEATS, ARMS)
    parts = next(filter(None, (members_of(path, kind) for kind in kinds)), [path])
    if summary and summary.distill:
        parts = [part for part in parts if part.name == summary.distill.get("delivered")] or parts
    records = [read_jsonl(part / run_folder.METRICS) for part in parts]
    progress = None if summary else replace(progress_of(path, recipe), command=_command(path))
    # An unfinished run is described by its recipe.
    if summary:
        about = summary.model_dump(include={"command", "model", "ckpt", "dataset", "resolution"})
    else:
        ckpt, size = recipe.get("model.ckpt"), recipe.get("data.image_size")
        planned = read_json(path / run_folder.PLAN) or {}
        about = dict(
            command=command_of(path) or ("pretrain" if ckpt is None else "finetune"),
            model=str(planned.get("model") or recipe.get("model.name") or Path(str(ckpt)).name),
            ckpt=None if ckpt is None else str(ckpt),
            dataset=str(recipe.get("data.dataset", "")),
            resolution=size if is_number(size) else None,
        )
    return Run(
        path=path,
        **about,
        split=summary.split if summary else "",
        recipe=recipe,
        summary=summary,
        progress=progress,
        losses=tuple(_curve(of_part, lambda record: record.get("loss")) for of_part in records),
        accuracies=tuple(_curve(of_part, _held_out_top1) for of_part in records),
        num_evaluated=_num_evaluated(records),
        trials=_trials(path, summary),
    )


def members_of(path: Path, kind: str) -> list[Path]:
    """Return the folders of the trials or repeated runs of a run, in the order they were started."""
    folder = path / kind
    if not folder.is_dir():
        return []
    started = [child for child in folder.iterdir() if (child / run_folder.RECIPE).is_file()]
    return sorted(started, key=lambda child: ((child / run_folder.RECIPE).stat().st_mtime_ns, child.name))


def progress_of(path: Path, recipe: dict[str, Any]) -> RunProgress:
    """Return the progress of a run, or of the trial or repeated run in progress inside it."""
    steps_done = partial(_steps_done, is_live=_is_live(path))
    members = [member for kind in (ARMS, FOLDS, REPEATS) for member in members_of(path, kind)]
    if not members:
        return steps_done(path)
    # The number of parts: the trials of every combination, then the repeated runs.
    num_values = [len(value) for key, value in recipe.items() if is_listed(key, value)]
    repeats = recipe.get("train.runs")
    total = (math.prod(num_values) if num_values else 0) + (repeats if isinstance(repeats, int) else 1)
    total += recipe.get("distill.compare") is True  # the baseline
    if isinstance(folds := recipe.get("train.folds"), int) and folds:  # each with trials of its own
        total = folds + 1
    ends = (run_folder.SUMMARY, run_folder.DIVERGED)
    unfinished = [member for member in members if not any((member / name).exists() for name in ends)]
    if not unfinished:
        return steps_done(members[-1], part=f"{len(members)} of {total} parts finished")
    part = f"{unfinished[-1].name}, part {len(members) - len(unfinished) + 1} of {total}"
    return steps_done(unfinished[-1], part=part)


def _steps_done(path: Path, *, is_live: bool | None, part: str = "") -> RunProgress:
    total = (read_json(path / run_folder.PLAN) or {}).get("total_steps")
    total = total if isinstance(total, int) and total > 0 else None
    steps = (record.get("step") for record in read_jsonl(path / run_folder.METRICS))
    saved = run_folder.newest_checkpoint_step(path)
    step = max(int(max(filter(is_number, steps), default=0)), saved or 0)  # few steps may be logged
    step_times = [record.get("step_s") for record in read_jsonl(path / run_folder.TIMING)]
    is_timed = total is not None and step_times and is_number(step_times[-1])
    seconds_left = max(0, total - step) * step_times[-1] if is_timed else None
    return RunProgress(step, total, saved, part, seconds_left, is_live)


def _command(path: Path) -> str:
    """Return the command line that resumes a run, quoted for the shell: its own, with its folder as --out."""
    words = (read_json(path / run_folder.ENVIRONMENT) or {}).get("command_line")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return ""
    is_named = any(word == "--out" or word.startswith("--out=") for word in words)
    return shlex.join([*words, *([] if is_named else ["--out", str(path)])])


def _is_live(path: Path) -> bool | None:
    """Return whether a worker of many runs is alive, or the process that the lock file names."""
    if cells := Cells(path).states():
        found = {cell.is_live for cell in cells.values()}
        return True if True in found else None if None in found else False
    try:
        return is_alive(read_regular(path / run_folder.LOCK).decode(errors="replace").strip())
    except OSError:
        return None


def is_number(value: Any) -> bool:
    """Return whether a value of a JSON file is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _trials(path: Path, summary: TrainingSummary | None) -> tuple[TrialScore, ...]:
    """Return the trials from the summary, or of an unfinished sweep from metrics.jsonl."""
    if summary:
        records, chosen = summary.choices, summary.chosen
    else:
        lines = read_jsonl(path / run_folder.METRICS)
        records = [{**line["arm"], **line} for line in lines if isinstance(line.get("arm"), dict)]
        chosen = None
    trials = []
    for record in records:
        values = {key: value for key, value in record.items() if "." in key}  # scores have no dot
        accuracies = (record.get(f"dev_{name}") for name in ("mean_ap", "top1", "patch_accuracy"))
        accuracy, mae = next((x for x in accuracies if x is not None), None), record.get("dev_mae")
        if values and (accuracy is None or _is_fraction(accuracy)):
            bounds, count = record.get("dev_interval"), record.get("dev_num_examples")
            is_interval = isinstance(bounds, list) and len(bounds) == 2 and all(map(_is_fraction, bounds))
            images = count if isinstance(count, int) and count > 0 else None
            interval = tuple(bounds) if is_interval else ()
            error = mae if is_number(mae) else None
            trials.append(TrialScore(values, accuracy, values == chosen, interval, images, error))
    return tuple(trials)


def _is_fraction(value: Any) -> bool:
    return is_number(value) and 0 <= value <= 1


def _read_evaluations(path: Path) -> list[EvaluationRecord]:
    file = path / EVALUATION
    if "evaluations" not in (read_json(file) or {}):
        return [_evaluation(path, read(file, Evaluation))]
    summaries = read(file, Evaluations).evaluations
    return [_evaluation(path / str(number), summary) for number, summary in enumerate(summaries, start=1)]


def _evaluation(path: Path, summary: Evaluation) -> EvaluationRecord:
    try:
        text = read_regular(path / CONFUSION).decode()
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
        pairs = tuple((row["class"], row["predicted"], int(row["num_examples"])) for row in rows)
    except FileNotFoundError:  # rows of several labels and of numbers have no confusion
        pairs = ()
    except (OSError, KeyError, ValueError, TypeError, csv.Error) as error:
        fix = "evaluate again, or leave the folder out"
        raise DataError(f"{CONFUSION} is damaged: {error}", where=str(path / CONFUSION), fix=fix) from error
    return EvaluationRecord(path, summary, pairs)


def _curve(records: list[dict[str, Any]], value_of: Callable[[dict], Any]) -> tuple[Point, ...]:
    """Return a curve by steps. A resumed run logs steps again: the last record of a step counts."""
    pairs = [(record.get("step"), value_of(record)) for record in records]
    values = {step: value for step, value in pairs if is_number(step) and is_number(value)}
    return tuple(sorted(values.items()))


def _num_evaluated(records: list[list[dict[str, Any]]]) -> int | None:
    """Return the number of images of the last evaluation."""
    scores = [record["eval"] for part in records for record in part if isinstance(record.get("eval"), dict)]
    count = scores[-1].get("num_examples") if scores else None
    return count if isinstance(count, int) and count > 0 else None


def _held_out_top1(record: dict[str, Any]) -> Any:
    scores = record.get("eval")
    return scores.get("top1") if isinstance(scores, dict) else None
