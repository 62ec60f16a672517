"""Sweeps: a recipe that lists values or asks for several runs (paper, B.1.1).

Every choice is trained on the training set without its dev split and scored on that; the best one is trained
again on the whole training set, once per seed, and scored on the test split. All runs, below OUT/arms and
OUT/runs, are ordinary resumable runs, so an interrupted sweep resumes where it was.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vitcli import recipe as recipes
from vitcli.data.parts.eval_split_names import DEV_PART_OF_ALL, FoldName, choice_part
from vitcli.distributed import launch
from vitcli.distributed.runtime import shared_process_group
from vitcli.errors import NotFiniteError, VitError
from vitcli.evaluation.setup import settle_pixels, starts_of
from vitcli.output.progress import Progress
from vitcli.output.run_folder import ARMS, AVERAGED, REPEATS, earlier_summary
from vitcli.output.text import count_of, first_few
from vitcli.recipe import Recipe, auto
from vitcli.training.many_runs import sweep_results
from vitcli.training.many_runs.average import average_of_sweep
from vitcli.training.many_runs.average_inputs import refuse_multilabel, refuse_to_average
from vitcli.training.many_runs.runs import ManyRuns, SharedParts, Stage
from vitcli.training.many_runs.students import Students, refuse_without_teacher
from vitcli.training.many_runs.sweep_results import Trial
from vitcli.training.run import run as run_job
from vitcli.training.setup import MakeModel, RunOptions, set_up
from vitcli.training.splits import RunData, have_changed
from vitcli.training.text import arm_line, run_line


def run(command: str, recipe: Recipe, options: RunOptions, make_model: MakeModel) -> dict[str, Any]:
    """Make the run or the runs that a recipe asks for; return the summary, or the plan with --dry-run."""
    refuse_without_teacher(recipe)
    data = RunData(starts_of(recipe), quiet=options.quiet)
    plan_only = options.dry_run and not options.measure
    recipe = settle_size(recipe, data, plan_only=plan_only)
    recipe = settle_pixels(recipe, command, quiet=options.quiet)
    is_sweep, num_folds = bool(recipe.choices) or recipe.train.runs > 1, recipe.train.folds
    is_compared = recipe.distill is not None and recipe.distill.compare
    if options.arms_parallel and not (is_sweep or num_folds or is_compared):
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
    num_arms = len(recipes.trials(recipe)) if recipe.choices else 0
    if num_folds:
        from vitcli.training.many_runs.folds import CrossValidation  # whose runs may be sweeps

        with shared_process_group():
            num_runs = (num_folds + 1) * (num_arms + 1)
            folds = CrossValidation(recipe, options, shared_parts(options, num_runs=num_runs))
            return folds.plan() if options.dry_run else folds.run()
    if is_compared:
        with shared_process_group():
            students = Students(recipe, options, shared_parts(options, num_runs=2))
            return students.plan() if options.dry_run else students.run()
    if recipe.train.average_runs != "none":
        refuse_to_average(command, recipe, options)
    if not is_sweep:
        return run_job(set_up(command, recipe, options, make_model, data=data))
    with shared_process_group():
        return run_or_sweep(recipe, options, shared_parts(options, num_runs=num_arms + recipe.train.runs))


def run_or_sweep(recipe: Recipe, options: RunOptions, shared: SharedParts) -> dict[str, Any]:
    """Make the run or the sweep of a recipe without folds; return the summary, or the plan with --dry-run."""
    if not recipe.choices and recipe.train.runs == 1:
        return shared.make_run(recipe, options)
    sweep = Sweep(recipe, options, shared)
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
    several = train.is_multilabel
    return auto.choose(recipe, counts, is_multilabel=several, is_large=train.is_large)


class Sweep:
    """Runs with every choice of a recipe, and those with the best one, once per seed."""

    def __init__(self, recipe: Recipe, options: RunOptions, shared: SharedParts):
        self.recipe, self.options, self.shared = recipe, options, shared
        # Value by dotted key, of each arm.
        self.choices = [choice for choice, _ in recipes.trials(recipe)] if recipe.choices else []
        counts = len(self.choices), recipe.train.runs
        self.runs = ManyRuns(recipe, options, shared, counts=counts, make_run=shared.make_run)

    def plan(self) -> dict[str, Any]:
        """Return the plan of the final run, and the totals of all runs."""
        final, arms = self.runs.plans(self._final_recipe({}, 0), self._arm_recipes())
        num_runs = self.recipe.train.runs
        counts = {"num_arms": len(arms), "num_runs": num_runs}
        return sweep_results.plan_of_all(self.recipe, final, [*arms, *[final] * num_runs], counts)

    def run(self) -> dict[str, Any]:
        """Make all runs, write the folder of the sweep and return its summary."""
        if self._is_averaged:
            refuse_multilabel(self.shared.data.train_and_eval(self._final_recipe({}, 0)))
        with self.runs.opened() as path:
            self._note_beginning(path)
            # Select on the dev split.
            trials = self._train_arms()
            if trials and not any(trial.summary for trial in trials):
                raise NotFiniteError(
                    f"every one of the {len(trials)} values to choose from diverged",
                    where=f"{path / ARMS}",
                    fix="list smaller ones, or set optimizer.clip, in a new --out",
                )
            chosen = sweep_results.best(trials) if trials else {}

            # Train on the whole training set, once per seed.
            finals = self._train_finals(chosen)

            def results() -> tuple[dict[str, Any], dict[str, Any]]:
                average = None
                if self._is_averaged:
                    out, paths = path / AVERAGED, [Path(final["run_dir"]) for final in finals]
                    method = self.recipe.train.average_runs
                    average = average_of_sweep(paths, method, out, self.options, self.shared)
                summary = sweep_results.summary_of_all(trials, chosen, finals, path=path, average=average)
                return summary, average or finals[0]

            summary = self.runs.deliver(results)
            num_added = self.shared.images.num_added()
            self.shared.progress.detail(f"{num_added} images were decoded once for all runs")
            return summary

    def _note_beginning(self, path: Path) -> None:
        values = first_few([sweep_results.values_text(choice) for choice in self.choices])
        arms = f"{count_of(len(self.choices), 'arm')} ({values}), then " if self.choices else ""
        runs = count_of(self.recipe.train.runs, "run")
        self.shared.progress.note(f"{arms}{runs}, into {path}")

    def _arm_recipes(self) -> list[Recipe]:
        dev = choice_part(self.recipe.data.eval_split)
        of_finals = {"eval.probe": None, "train.average_runs": "none"}
        changes = {"train.runs": 1, "data.eval_split": dev, **of_finals}
        return [self.runs.settled({**choice, **changes}) for choice in self.choices]

    def _final_recipe(self, chosen: Mapping[str, Any], number: int) -> Recipe:
        changes = {"train.runs": 1, "train.seed": self.recipe.train.seed + number}
        if self._is_averaged:
            changes |= {"train.average_runs": "none", "data.hold_out_dev": True}
        return self.runs.settled({**chosen, **changes})

    @property
    def _is_averaged(self) -> bool:
        return self.recipe.train.runs > 1 and self.recipe.train.average_runs != "none"

    def _train_arms(self) -> list[Trial]:
        """Train with every choice and return the scores on the dev split."""
        recipes_of_arms = self._arm_recipes()
        folders = [self.runs.path / ARMS / name for name in sweep_results.names_of(self.choices)]
        trials: list[Trial] = []

        def add_trial(number: int, summary: dict[str, Any]) -> None:
            choice, of_finite = self.choices[number], None if "diverged" in summary else summary
            trials.append(Trial(choice, of_finite))
            self.runs.log({"arm": choice, **trials[-1].scores()}, folders[number])
            entries = [trial.entry() for trial in trials]
            self.shared.progress.note(arm_line(entries, sweep_results.best(trials), len(folders)))

        jobs = list(zip(folders, recipes_of_arms, strict=True))
        self.runs.train(
            Stage(jobs, lambda number: self._arm_title(number, recipes_of_arms), add_trial, is_trial=True)
        )
        return trials

    def _arm_title(self, number: int, recipes_of_arms: list[Recipe]) -> str:
        """Return what an arm is trained and scored on, by the numbers of images."""
        choice, recipe = self.choices[number], recipes_of_arms[number]
        title = f"arm {number + 1} of {len(self.choices)}, {sweep_results.values_text(choice)}"
        train, dev = self.shared.data.train_and_eval(recipe)
        line = f"{title}: trained on {len(train):,}, scored on {len(dev):,} (dev split)"
        if recipe.data.eval_split == DEV_PART_OF_ALL:  # the split to report on is the user's own choice
            return line
        final = self._final_recipe(choice, 0)
        _, held_out = self.shared.data.train_and_eval(final)
        return f"{line}, {len(held_out):,} more held out"

    def _train_finals(self, chosen: dict[str, Any]) -> list[dict[str, Any]]:
        """Train with the chosen values once per seed and return the summaries."""
        recipes_by_seed = [self._final_recipe(chosen, number) for number in range(self.recipe.train.runs)]
        path, count = self.runs.path, len(recipes_by_seed)
        jobs = [(path / REPEATS / f"seed-{recipe.train.seed}", recipe) for recipe in recipes_by_seed]

        def log(number: int, summary: dict[str, Any]) -> None:
            scores = summary["runs"][0]
            self.runs.log({"run": {"seed": scores["seed"]}, **scores}, jobs[number][0])
            if count > 1:
                title = f"run {number + 1} of {count}, seed {scores['seed']}"
                self.shared.progress.note(run_line(title, scores, summary["num_eval_examples"]))

        return self.runs.train(Stage(jobs, lambda number: f"run {number + 1} of {count}", log))
