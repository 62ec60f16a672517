"""Sweeps: a recipe that lists values or asks for several runs (paper, B.1.1).

Every choice is trained on the training set without its dev part and scored on the dev part; the best one is
trained again on the whole training set, once per seed, and scored on the test split. All runs below OUT/arms
and OUT/runs are ordinary resumable runs, so an interrupted sweep resumes where it was. They share the decoded
images and the network.
"""

import gc
import os
import shutil
import time
from dataclasses import replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vitcli import recipe as recipes
from vitcli.data.image_cache import ImageCache
from vitcli.data.parts.held_out import DEV_PART_OF_ALL, FoldName, choice_part
from vitcli.data.split import Split
from vitcli.distributed import launch
from vitcli.distributed.runtime import shared_process_group
from vitcli.distributed.runtime import start as start_runtime
from vitcli.errors import NotFiniteError, VitError
from vitcli.evaluation.setup import settle_pixels, starts_of
from vitcli.output import run_folder
from vitcli.output.atomic import read_json, write_json
from vitcli.output.progress import Progress
from vitcli.output.run_folder import (
    ARMS,
    AVERAGED,
    REPEATS,
    RunFolder,
    earlier_summary,
    refuse_other_recipe,
)
from vitcli.output.text import count_of, first_few
from vitcli.recipe import Recipe, auto
from vitcli.training.many_runs import parallel_runs, sweep_results
from vitcli.training.many_runs.average import average_of_sweep
from vitcli.training.many_runs.average_inputs import refuse_several_labels, refuse_to_average
from vitcli.training.many_runs.sequence import open_folder, run_all
from vitcli.training.many_runs.sweep_results import Trial
from vitcli.training.results import write_sweep_results
from vitcli.training.run import run as run_job
from vitcli.training.setup import (
    InitialModel,
    MakeModel,
    RunOptions,
    progress_of,
    set_up,
)
from vitcli.training.splits import RunData, have_changed
from vitcli.training.text import arm_line, run_line

Job = tuple[Path, Recipe]  # run folder and recipe of one run


def run(command: str, recipe: Recipe, options: RunOptions, make_model: MakeModel) -> dict[str, Any]:
    """Make the run or the runs that a recipe asks for; return the summary, or the plan with --dry-run.

    Args:
        make_model: builds the network for the recipe of one run and its training split.
    """
    data = RunData(parallel_runs.starts_of_sweep() or starts_of(recipe), quiet=options.quiet)
    plan_only = options.dry_run and not options.measure
    recipe = settle_size(recipe, data, plan_only=plan_only)
    recipe = settle_pixels(recipe, command, quiet=options.quiet)
    is_sweep, num_folds = bool(recipe.choices) or recipe.train.runs > 1, recipe.train.folds
    if options.arms_parallel and not (is_sweep or num_folds):
        fix = "list values, such as --lr 0.003,0.01, or set train.runs or train.folds; or leave it out"
        raise VitError("there is only one run", where="--arms-parallel", fix=fix)
    if options.out and not options.overwrite and not options.dry_run:
        earlier = earlier_summary(options.out, recipe)
        if earlier:
            progress = Progress(quiet=options.quiet, is_main=launch.global_rank() == 0)
            changed = "; its images have changed since, and another --out trains on them"
            is_changed = not progress.is_silent and have_changed(recipe, earlier)
            progress.note(f"{options.out} is finished, nothing is trained{changed * is_changed}")
            return earlier
    shared_parts = partial(SharedParts, command, recipe, make_model=make_model, data=data)
    if num_folds:
        from vitcli.training.many_runs.folds import CrossValidation  # whose runs may be sweeps

        with shared_process_group():
            num_runs = (num_folds + 1) * (len(recipes.trials(recipe)) * bool(recipe.choices) + 1)
            folds = CrossValidation(command, recipe, options, shared_parts(options, num_runs=num_runs))
            return folds.plan() if options.dry_run else folds.run()
    if recipe.train.average_runs != "none":
        refuse_to_average(command, recipe, options)
    if not is_sweep:
        options = replace(options, has_siblings=parallel_runs.STARTS in os.environ)
        return run_job(set_up(command, recipe, options, make_model, data=data))
    with shared_process_group():
        num_runs = len(recipes.trials(recipe)) * bool(recipe.choices) + recipe.train.runs
        sweep = Sweep(command, recipe, options, shared_parts(options, num_runs=num_runs))
        return sweep.plan() if options.dry_run else sweep.run()


def settle_size(recipe: Recipe, data: RunData, *, plan_only: bool) -> Recipe:
    """Return the recipe that the data of a recipe "auto" ask for; any other as it is."""
    if not recipe.by_size:
        return recipe
    opened = recipe
    if recipe.train.folds:  # which need no other split to score
        all_folds = {"eval_split": str(FoldName(recipe.train.folds))}
        opened = recipe.model_copy(update={"data": recipe.data.model_copy(update=all_folds)})
    train, _ = data.train_and_eval(opened, plan_only=plan_only)
    if train.has_numbers:
        return auto.choose(recipe, [len(train)])
    labels = train.read_labels()[: len(train)] if not train.is_large else []  # of all rows it takes minutes
    if len(labels) < len(train):  # large, or declared sizes alone
        counts = [len(train) // max(1, train.num_classes)]
    else:
        counts = np.bincount(labels[labels >= 0], minlength=train.num_classes).tolist()
    several = train.has_several_labels
    return auto.choose(recipe, counts, has_several_labels=several, is_large=train.is_large)


class SharedParts:
    """What the runs of one command have in common: processes, opened data, decoded images, the network.

    Args:
        num_runs: of the command in all.
    """

    def __init__(
        self,
        command: str,
        recipe: Recipe,
        options: RunOptions,
        make_model: MakeModel,
        data: RunData,
        *,
        num_runs: int,
    ):
        self.runtime = start_runtime(
            recipe.precision.compute, exact=options.exact, stall_minutes=recipe.train.stall_minutes
        )
        self.progress = progress_of(options, self.runtime)
        for note in self.runtime.notes:
            self.progress.note(note)
        self.images = ImageCache(
            recipe.data.cache,
            processes_here=self.runtime.processes_here,
            has_siblings=options.arms_parallel > 1,
            num_runs=num_runs,
        )
        self.data = data
        self.make_model = make_model if options.shard else SharedNetwork(make_model)  # slices cannot be reset
        self.set_up = partial(set_up, command, make_model=self.make_model, data=data, images=self.images)


class Sweep:
    """All runs of one recipe, one after the other, with what they share."""

    def __init__(self, command: str, recipe: Recipe, options: RunOptions, shared: SharedParts):
        self.command, self.recipe, self.options = command, recipe, options
        self.runtime, self.progress, self.images = shared.runtime, shared.progress, shared.images
        self._data, self._set_up = shared.data, shared.set_up
        self.path: Path | None = None
        self.folder: RunFolder | None = None  # open on the first process only

    def plan(self) -> dict[str, Any]:
        """Return the plan of the final run, and the totals of all runs."""
        final = run_job(self._set_up(self._final_recipe({}, 0), self.options))  # first: it may be measured
        unmeasured = replace(self.options, measure=False, quiet=True)
        arms = [run_job(self._set_up(recipe, unmeasured)) for recipe in self._arm_recipes()]
        totals = sweep_results.plan_of_all(final, arms, self.recipe.train.runs)
        return totals | {"recipe": recipes.to_toml(self.recipe)}

    def run(self) -> dict[str, Any]:
        """Make all runs, write the folder of the sweep and return its summary."""
        if self._is_averaged:
            refuse_several_labels(self._data.train_and_eval(self._final_recipe({}, 0)))
        self.path = self.runtime.on_main(self._open_folder)
        try:
            # Choose by the dev part.
            trials = self._choose()
            if trials and not any(trial.summary for trial in trials):
                raise NotFiniteError(
                    f"every one of the {len(trials)} values to choose from diverged",
                    where=f"{self.path / ARMS}",
                    fix="list smaller ones, or set optimizer.clip, in a new --out",
                )
            chosen = sweep_results.best(trials) if trials else {}

            # Train on the whole training set, once per seed.
            finals = self._train_finals(chosen)
            average = self._average(finals) if self._is_averaged else None
            summary = sweep_results.summary_of_all(trials, chosen, finals, path=self.path, average=average)
            if self.folder:
                delivered = average or finals[0]
                write_sweep_results(self.folder, recipes.to_toml(self.recipe), summary, delivered)
                self.progress.detail(f"{self.images.num_added()} images were decoded once for all runs")
        finally:
            if self.folder:
                self.folder.close()
        return summary

    def _open_folder(self) -> Path:
        """Lock the folder of the sweep and write what is known before the first run."""
        self.folder = open_folder(self.command, self.recipe, self.options)
        choices = recipes.trials(self.recipe) if self.recipe.choices else []
        values = first_few([sweep_results.values_text(choice) for choice, _ in choices])
        arms = f"{count_of(len(choices), 'arm')} ({values}), then " if choices else ""
        runs = count_of(self.recipe.train.runs, "run")
        self.progress.note(f"{arms}{runs}, into {self.folder.path}")
        return self.folder.path

    def _arm_recipes(self) -> list[Recipe]:
        if not self.recipe.choices:
            return []
        dev = choice_part(self.recipe.data.eval_split)
        of_finals = {"eval.probe": None, "train.average_runs": "none"}
        changes = {"train.runs": 1, "data.eval_split": dev, **of_finals}
        return [self._settled({**choice, **changes}) for choice, _ in recipes.trials(self.recipe)]

    def _final_recipe(self, chosen: dict[str, Any], number: int) -> Recipe:
        changes = {"train.runs": 1, "train.seed": self.recipe.train.seed + number}
        if self._is_averaged:
            changes |= {"train.average_runs": "none", "data.hold_out_dev": True}
        return self._settled({**chosen, **changes})

    @property
    def _is_averaged(self) -> bool:
        return self.recipe.train.runs > 1 and self.recipe.train.average_runs != "none"

    def _average(self, finals: list[dict[str, Any]]) -> dict[str, Any]:
        """Make one model of the final runs, in a folder of its own, and return its summary."""
        return average_of_sweep(
            [Path(final["run_dir"]) for final in finals],
            self.recipe.train.average_runs,
            self.path / AVERAGED,
            self.options,
            self.progress,
            self.runtime,
            self.images,
            self._data,
        )

    def _settled(self, changes: dict[str, Any]) -> Recipe:
        """Return the recipe of one run; its checkpoint, if there are several, decides about its pixels.

        A time limit is that of the command, of which each run has an equal part.
        """
        if minutes := self.recipe.schedule.max_minutes:
            changes = {**changes, "schedule.max_minutes": minutes / self._num_in_a_row()}
        return settle_pixels(recipes.settled(self.recipe, changes), self.command)

    def _num_in_a_row(self) -> int:
        """Return how many runs the command makes one after the other."""
        num_arms = len(list(recipes.trials(self.recipe))) if self.recipe.choices else 0
        width = max(1, self.options.arms_parallel)
        return ceil(num_arms / width) + ceil(self.recipe.train.runs / width)

    def _choose(self) -> list[Trial]:
        """Train with every choice and return the scores on the dev part."""
        choices = [choice for choice, _ in recipes.trials(self.recipe)] if self.recipe.choices else []
        paths = [self.path / ARMS / name for name in sweep_results.names_of(choices)]
        jobs = list(zip(paths, self._arm_recipes(), strict=True))
        for path in self._train_in_parallel([job for job in jobs if not _finished_arm(*job)]):
            _mark_diverged(path)
        trials: list[Trial] = []

        def add_trial(job: Job, summary: dict[str, Any]) -> None:
            path, _ = job
            self.runtime.on_main(partial(_drop_weights, path))
            run_dir = str(path.relative_to(self.path))
            trials.append(Trial(choices[len(trials)], None if "diverged" in summary else summary, run_dir))
            self._log(trials[-1].record())
            entries = [trial.entry() for trial in trials]
            self.progress.note(arm_line(entries, sweep_results.best(trials), len(jobs)))

        def finished(job: Job) -> dict[str, Any] | None:
            return self.runtime.on_main(partial(_finished_arm, *job))

        run_all(jobs, self._train_arm, self.path, finished=finished, on_done=add_trial)
        return trials

    def _train(self, job: Job, *, title: str) -> dict[str, Any]:
        path, recipe = job
        options = replace(self.options, out=path, overwrite=False, title=title, began_at=time.monotonic())
        return run_job(self._set_up(recipe, options))

    def _train_arm(self, job: Job) -> dict[str, Any]:
        """Return the summary of an arm, or its mark if it diverged: the sweep continues with the others."""
        try:
            return self._train(job, title=self._arm_line(job[1]))
        except NotFiniteError as error:
            self.progress.note(f"note: {error.message}")
        return self.runtime.on_main(partial(_mark_diverged, job[0]))

    def _arm_line(self, recipe: Recipe) -> str:
        """Return what an arm is trained and scored on, by the numbers of images."""
        recipes_of_arms = self._arm_recipes()
        number = recipes_of_arms.index(recipe)
        choice, _ = list(recipes.trials(self.recipe))[number]
        title = f"arm {number + 1} of {len(recipes_of_arms)}, {sweep_results.values_text(choice)}"
        train, dev = self._data.train_and_eval(recipe)
        line = f"{title}: trained on {len(train):,}, scored on {len(dev):,} (to choose)"
        if recipe.data.eval_split == DEV_PART_OF_ALL:  # the split to report on is the user's own choice
            return line
        _, held_out = self._data.train_and_eval(self._final_recipe(choice, 0))
        return f"{line}, {len(held_out):,} more held out"

    def _train_finals(self, chosen: dict[str, Any]) -> list[dict[str, Any]]:
        """Train with the chosen values once per seed and return the summaries."""
        recipes_by_seed = [self._final_recipe(chosen, number) for number in range(self.recipe.train.runs)]
        jobs = [(self.path / REPEATS / f"seed-{recipe.train.seed}", recipe) for recipe in recipes_by_seed]
        self._train_in_parallel([job for job in jobs if not earlier_summary(*job)])

        def log(job: Job, summary: dict[str, Any]) -> None:
            scores = summary["runs"][0]
            run_dir = str(job[0].relative_to(self.path))
            self._log({"run": {"seed": scores["seed"]}, **scores, "run_dir": run_dir})
            if len(jobs) > 1:
                self.progress.note(run_line(summary, jobs.index(job) + 1, len(jobs)))

        def train(job: Job) -> dict[str, Any]:
            return self._train(job, title=f"run {jobs.index(job) + 1} of {len(jobs)}")

        return run_all(jobs, train, self.path, finished=lambda job: earlier_summary(*job), on_done=log)

    def _train_in_parallel(self, jobs: list[Job]) -> list[Path]:
        """With --arms-parallel train the runs at the same time; return the folders of those that diverged."""
        if self.options.arms_parallel < 2 or len(jobs) < 2:
            return []
        self.progress.note(f"{len(jobs)} runs, {self.options.arms_parallel} at a time")
        return parallel_runs.run_parallel(
            self.command, jobs, self.options, starts=self._data.starts, folder=self.path
        )

    def _log(self, record: dict[str, Any]) -> None:
        if self.folder:
            self.folder.log(record)


def _finished_arm(path: Path, recipe: Recipe) -> dict[str, Any] | None:
    """Return the summary of a finished arm or the mark of a diverged one; its weights may be deleted."""
    result = run_folder.finished_summary(path) or read_json(path / run_folder.DIVERGED)
    if result is not None:
        refuse_other_recipe(path, recipe)
    return result


def _mark_diverged(path: Path) -> dict[str, Any]:
    """Write and return a mark, so that a resumed sweep does not train a diverged arm again."""
    mark = {"diverged": True}
    write_json(path / run_folder.DIVERGED, mark)
    return mark


def _drop_weights(path: Path) -> None:
    """Delete the weights of an arm, whose score is all that counts: 1.2 GB each for ViT-L/16."""
    for name in (run_folder.WEIGHTS, "config.json", "README.md"):
        (path / name).unlink(missing_ok=True)
    shutil.rmtree(path / "checkpoints", ignore_errors=True)


class SharedNetwork:
    """A network that is built and compiled once and reset for every run that needs the same one.

    Called like a `MakeModel`.
    """

    def __init__(self, make_model: MakeModel):
        self._make_model = make_model
        self._key: Any = None
        self._seed: int | None = None
        self._start: InitialModel | None = None
        self._state: dict[str, Tensor] = {}

    def __call__(self, recipe: Recipe, split: Split) -> InitialModel:
        key = (recipe.model, recipe.data.image_size, recipe.objective, split.num_classes)
        if key != self._key:
            self._start = None  # free its memory first
            self._start, self._key = self._make_model(recipe, split), key
            self._remember(self._start, recipe)
            return self._start
        gc.collect()  # the previous run, with its hooks on the parameters
        # Fresh weights and adapters depend on the seed.
        is_drawn = self._start.origin is None or recipe.model.lora_rank
        if is_drawn and recipe.train.seed != self._seed:
            self._remember(self._make_model(recipe, split), recipe)
        self._start.model.load_state_dict(self._state)
        self._start.model.zero_grad(set_to_none=True)
        return self._start

    def _remember(self, start: InitialModel, recipe: Recipe) -> None:
        self._state = {name: tensor.clone() for name, tensor in start.model.state_dict().items()}
        self._seed = recipe.train.seed
