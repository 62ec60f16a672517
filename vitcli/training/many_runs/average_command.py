"""What is averaged, by which images, and where to: `vit average`, and the average at the end of a sweep."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from vitcli.data import loader
from vitcli.data.dataset import DataSet, from_section, open_held_out_dev, open_train_and_eval
from vitcli.data.image_cache import ImageCache
from vitcli.data.split import Split
from vitcli.distributed import peers
from vitcli.distributed.runtime import Runtime
from vitcli.distributed.runtime import start as start_runtime
from vitcli.errors import DataError, VitError
from vitcli.evaluation.inference import EvalSettings
from vitcli.evaluation.setup import starts_of, trained_on_by
from vitcli.output import run_folder
from vitcli.output.progress import Progress
from vitcli.recipe import Recipe
from vitcli.training.many_runs.average import (
    AUTO,
    GREEDY,
    AverageTask,
    finished,
    in_classes_of,
    make_average,
    usable_dev,
)
from vitcli.training.many_runs.average_inputs import FinishedRun, find_runs, read_runs
from vitcli.training.setup import RunOptions
from vitcli.weights.names import FRESH

PASSES = 3  # over the dev part, besides one of each run: its uniform average, greedy soup and Model Stock


@dataclass(frozen=True)
class AverageOptions:
    """Options of `vit average`.

    Attributes:
        method: "uniform", "greedy", "stock" or "auto".
        dataset: where the data set of the runs is now; None for where it was.
        split: the split to choose by; None for the dev part that the runs held out.
        out: the folder to write; None names a new one.
        workers: loader threads; None for the default.
        arguments: the command line.
    """

    method: str = AUTO
    dataset: str | None = None
    split: str | None = None
    out: Path | None = None
    overwrite: bool = False
    workers: int | None = None
    quiet: bool = False
    arguments: Sequence[str] = ()


def average(places: Sequence[str], options: AverageOptions) -> dict[str, Any]:
    """Make one model of several finished runs, and return its summary.

    Without images to choose by, it is the mean of the runs, or Model Stock, and says that it is untested.
    """
    runs = read_runs(find_runs(places))
    recipe = _with_data(runs[0], options.dataset)
    out = options.out or run_folder.new_folder("average", str(recipe.data.dataset), runs[0].arch.name)
    asked = {"method": options.method, "dataset": recipe.data.dataset, "split": options.split}
    asked |= {"runs": [run.sha256 for run in runs]}
    if earlier := finished(out, asked, overwrite=options.overwrite):
        return earlier

    # The data are opened before the processes join: a long download would time out in a collective.
    before = partial(trained_on_by, starts_of(recipe), quiet=True)
    _, reported = open_train_and_eval(recipe.data, seed=recipe.train.seed, trained_before=before)
    refuse_several_labels([reported])
    dev = None
    if options.split:
        dev = _named_split(recipe, options.split, runs)
    elif all(run.recipe.data.hold_out_dev for run in runs):
        dev = open_held_out_dev(recipe.data, kind=DataSet, trained_before=before)
    elif options.method == GREEDY:
        raise VitError(
            "a greedy soup is chosen by images that no run was trained on, and these runs held none out",
            where="--method greedy",
            fix="name such images with --split; or train them anew, and some are held out: "
            "vit finetune --ckpt CKPT --dataset DATA --runs 3 --set train.average_runs=greedy",
        )
    runtime = start_runtime("fp32", stall_minutes=recipe.train.stall_minutes)
    progress = Progress(quiet=options.quiet, is_main=runtime.is_main)
    images = ImageCache(recipe.data.cache, processes_here=runtime.processes_here)
    settings = _settings(recipe, runtime, progress, options.workers)
    parts = (dev, options.split is None, reported, settings, images)
    task = AverageTask(runs, options.method, *parts, out, asked, list(options.arguments))
    with peers.watched(runtime):
        summary = make_average(_ready(task), overwrite=options.overwrite)
    runtime.shutdown()
    return summary


def average_of_sweep(
    paths: Sequence[Path],
    method: str,
    out: Path,
    options: RunOptions,
    progress: Progress,
    runtime: Runtime,
    images: ImageCache,
    open_data: Callable[..., DataSet],
) -> dict[str, Any]:
    """Make one model of the runs of a sweep, by the dev part that they held out, and return its summary."""
    runs = read_runs(paths)
    recipe, asked = runs[0].recipe, {"method": method, "runs": [run.sha256 for run in runs]}
    if earlier := runtime.on_main(partial(finished, out, asked)):
        return earlier
    before = partial(trained_on_by, options.starts, quiet=True)
    splits = {"kind": open_data, "trained_before": before}
    _, reported = open_train_and_eval(recipe.data, seed=recipe.train.seed, **splits)
    dev = open_held_out_dev(recipe.data, **splits)
    settings = _settings(recipe, runtime, progress, options.workers)
    task = AverageTask(runs, method, dev, True, reported, settings, images, out, asked, options.arguments)
    with peers.watched(runtime):
        return make_average(_ready(task))


def refuse_to_average(command: str, recipe: Recipe, options: RunOptions) -> None:
    """Refuse before the first step to train runs that could not be averaged.

    Raises:
        VitError: there is one run, or they start from weights of their own or are too large for one process.
    """
    where = f'recipe key train.average_runs = "{recipe.train.average_runs}"'
    if recipe.train.runs == 1:
        what = "an average is of several runs, and train.runs is 1"
        raise VitError(what, where=where, fix="add --runs 3, or leave it out")
    if command != "finetune" or recipe.model.ckpt == FRESH:
        what = "runs from fresh weights have no start in common, and their average is no network"
        raise VitError(what, where=where, fix="leave it out, or fine-tune a checkpoint")
    if options.shard:
        what = "an average is made in one process, and --shard is for networks that are too large for one"
        raise VitError(what, where=f"--shard with {where}", fix="drop one of the two")


def refuse_several_labels(splits: Sequence[Split]) -> None:
    """Refuse images with several labels each, of which no image is simply right, as the paired test asks."""
    if any(split.has_several_labels for split in splits):
        raise DataError(
            "averages are compared by which images they have right, and these have several labels each",
            where=f"{splits[0].name}; recipe key train.average_runs, or vit average",
            fix="leave the average out; the runs are trained without it",
        )


def _ready(task: AverageTask) -> AverageTask:
    """Return the task with usable images, labelled as the runs number their classes and kept once decoded."""
    first, progress = task.runs[0], task.settings.progress
    keep = partial(task.images.attach, preprocessing=task.preprocessing)
    reported = keep(in_classes_of(task.eval_split, first), visits=1)
    dev = task.dev and usable_dev(in_classes_of(task.dev, first), task.runs, is_held_out=task.is_held_out)
    if dev:
        dev = keep(dev, visits=len(task.runs) + PASSES)
        progress.note(f"averages are chosen by {len(dev):,} images that no run was trained on: {dev.name}")
        for line in dev.lines:
            progress.note(line)
    else:
        progress.note("note: the runs held no images out to choose by: their average is not tested")
    return replace(task, dev=dev, eval_split=reported)


def _with_data(run: FinishedRun, dataset: str | None) -> Recipe:
    """Return the recipe of a run with its data set where it is now."""
    recipe, is_there = run_folder.recipe_of(run.path)
    if dataset:
        data = recipe.data.model_copy(update={"dataset": dataset})
        return recipe.model_copy(update={"data": data})
    if not is_there:
        raise DataError(
            f"the data set of the runs is no longer where it was: {recipe.data.dataset}",
            where=f"recipe key data.dataset in {run.path / run_folder.RECIPE}",
            fix="name it, where it is now: --dataset DATA",
        )
    return recipe


def _named_split(recipe: Recipe, name: str, runs: Sequence[FinishedRun]) -> Split:
    """Open the split that the user names to choose by; refuse the one that the runs report on."""
    opened = from_section(recipe.data).open(name)
    reported, _, rows = runs[0].summary["eval_split"].partition("[")
    if opened.name.partition("[")[0] == reported and not rows:
        raise DataError(
            "the runs report on these images, and an average that is chosen by its test images has no test",
            where=f"--split {name}",
            fix="name images that no run reports on, such as validation",
        )
    return opened


def _settings(recipe: Recipe, runtime: Runtime, progress: Progress, workers: int | None) -> EvalSettings:
    return EvalSettings(
        runtime=runtime,
        batch_size=recipe.eval.batch_size,
        on_bad_image=recipe.data.on_bad_image,
        num_threads=workers or loader.default_threads(runtime.processes_here),
        progress=progress,
        precision=recipe.precision.evaluation,
    )
