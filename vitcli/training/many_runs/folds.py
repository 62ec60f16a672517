"""Folds: every training image is predicted once, by a model that has not seen it (`vit finetune --folds 5`).

Each fold is an ordinary resumable run, or sweep, below OUT/folds: trained without its images and scored on
them. A last run below OUT/runs is trained on all images with the same settings and is what the folder
delivers; its scores, its predictions and its calibration are those of the folds. Values to choose from are
chosen within each fold, on a dev part of what it is trained on, so that no image has a say in its own score.
"""

import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import ceil
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch

from vitcli import recipe as recipes
from vitcli.data import dataset
from vitcli.data.dataset import FoldedSplit
from vitcli.data.parts.held_out import FoldName
from vitcli.data.split import base_of
from vitcli.data.transforms import preprocessing_of
from vitcli.errors import VitError
from vitcli.evaluation import inference, predictions
from vitcli.evaluation.metrics import Metrics, metrics_of
from vitcli.evaluation.predictions import Predictions
from vitcli.evaluation.setup import settings_of_run, settle_pixels
from vitcli.features.folds import fold_accuracy
from vitcli.output import run_folder
from vitcli.output.run_folder import FOLDS, PREDICTIONS, REPEATS, RunFolder, earlier_summary
from vitcli.output.summaries import FoldScores, FoldsSummary, FrozenScores, TrainingSummary
from vitcli.output.text import count_of
from vitcli.recipe import Recipe
from vitcli.training.many_runs import parallel_runs
from vitcli.training.many_runs.sequence import open_folder, run_all
from vitcli.training.many_runs.sweep import Job, SharedParts, Sweep
from vitcli.training.methods import out_of_fold
from vitcli.training.methods.calibrate import OutOfFold
from vitcli.training.results import write_sweep_results
from vitcli.training.run import run as run_job
from vitcli.training.setup import RunOptions, initial_model
from vitcli.training.text import fold_line

SUMMED = ("elapsed_s", "exaflops")  # over all runs; unknown if that of any run is
SEEN = ("num_held_out_copies", "num_held_out_seen")


class CrossValidation:
    """The runs of all folds and that on all images, one after the other, with what they share."""

    def __init__(self, command: str, recipe: Recipe, options: RunOptions, shared: SharedParts):
        self.command, self.recipe, self.options, self.shared = command, recipe, options, shared
        self.runtime, self.progress = self.shared.runtime, self.shared.progress
        self.path: Path | None = None
        self.folder: RunFolder | None = None  # open on the first process only

    def plan(self) -> dict[str, Any]:
        """Return the plan of the run on all images, and the totals of all runs."""
        unmeasured = replace(self.options, measure=False, quiet=True)
        final = self._plan_of(self._final_recipe(), self.options)  # first: it may be measured
        plans = [final, *(self._plan_of(recipe, unmeasured) for recipe in self._fold_recipes())]
        exaflops = [plan.get("all_exaflops", plan["exaflops"]) for plan in plans]
        totals = {
            "num_folds": self.recipe.train.folds,
            "all_steps": sum(plan.get("all_steps", plan["total_steps"]) for plan in plans),
            "all_images_seen": sum(plan.get("all_images_seen", plan["images_seen"]) for plan in plans),
            "all_exaflops": None if None in exaflops else sum(exaflops),
        }
        if "measured_images_per_s" in final:
            totals["all_measured_hours"] = totals["all_images_seen"] / final["measured_images_per_s"] / 3600
        return {**final, **totals, "recipe": recipes.to_toml(self.recipe)}

    def _plan_of(self, recipe: Recipe, options: RunOptions) -> dict[str, Any]:
        if recipe.choices:
            return Sweep(self.command, recipe, options, self.shared).plan()
        return run_job(self.shared.set_up(recipe, options))

    def run(self) -> dict[str, Any]:
        """Make all runs, write the folder that holds them and return its summary."""
        folded = self._folded  # data that cannot be divided are refused before anything is written
        self.path = self.runtime.on_main(self._open_folder)
        self._note_beginning(folded)
        try:
            folds = self._train_folds(folded)
            frozen = self._frozen_scores()
            final = self._train_final()
            summary = self._summary(folds, final, frozen)
            if self.folder:
                write_sweep_results(self.folder, recipes.to_toml(self.recipe), summary, final)
        finally:
            if self.folder:
                self.folder.close()
        return summary

    @cached_property
    def _folded(self) -> FoldedSplit:
        settings = self.recipe.data, self.recipe.train.folds
        folded = dataset.open_folds(*settings, seed=self.recipe.train.seed, kind=self.shared.data.kind)
        if folded.train.has_several_labels:
            raise VitError(
                f"folds are scored by top-1, and the images of {folded.train.name} have several labels each",
                where="--folds (recipe key train.folds)",
                fix="leave it out: data.dev_fraction holds out a part",
            )
        return folded

    def _open_folder(self) -> Path:
        """Lock the folder and write what is known before the first run."""
        self.folder = open_folder(self.command, self.recipe, self.options)
        return self.folder.path

    def _note_beginning(self, folded: FoldedSplit) -> None:
        """Say how the images are divided, and what is not scored."""
        counts = np.bincount(folded.folds_N, minlength=self.recipe.train.folds)
        groups = f" in {count_of(folded.num_groups, 'group')}" if folded.num_groups else ""
        sizes = f"{counts.min():,} to {counts.max():,}" if counts.min() < counts.max() else f"{counts[0]:,}"
        num_images = len(folded.folds_N)
        folds = f"{len(counts)} folds of {sizes} images{groups}, then all {num_images:,} images"
        self.progress.note(f"{folds}, into {self.path}")
        source = dataset.from_section(self.recipe.data, self.shared.data.kind)
        if test := source.default_eval_split(besides=base_of(folded.train_split)):
            name = shlex.quote(str(self.options.out or "RUN"))
            self.progress.detail(f"split {test} is not scored: vit evaluate --ckpt {name} --split {test}")

    def _fold_recipes(self) -> list[Recipe]:
        num_folds = self.recipe.train.folds
        names = [str(FoldName(num_folds, fold)) for fold in range(1, num_folds + 1)]
        return [self._changed({"data.eval_split": name, "eval.probe": None}) for name in names]

    def _final_recipe(self) -> Recipe:
        """Return the recipe of the run on all images, of which none is held out to be evaluated."""
        return self._changed({"data.eval_split": str(FoldName(self.recipe.train.folds)), "eval.every": 0})

    def _changed(self, changes: dict[str, Any]) -> Recipe:
        if minutes := self.recipe.schedule.max_minutes:  # of which each run has an equal part
            in_a_row = ceil(self.recipe.train.folds / max(1, self.options.arms_parallel)) + 1
            changes = {**changes, "schedule.max_minutes": minutes / in_a_row}
        changed = recipes.settled(self.recipe, {"train.folds": 0, **changes})
        return settle_pixels(changed.with_choices(self.recipe.choices), self.command)

    @property
    def _fold_paths(self) -> list[Path]:
        return [self.path / FOLDS / f"fold-{number + 1}" for number in range(self.recipe.train.folds)]

    def _train_folds(self, folded: FoldedSplit) -> list[dict[str, Any]]:
        """Train without each fold and return the summaries."""
        jobs = list(zip(self._fold_paths, self._fold_recipes(), strict=True))
        unfinished = [job for job in jobs if not earlier_summary(*job)]
        if self.options.arms_parallel > 1 and len(unfinished) > 1:
            self.progress.note(f"{len(unfinished)} folds, {self.options.arms_parallel} at a time")
            parallel_runs.run_parallel(
                self.command, unfinished, self.options, starts=self.shared.data.starts, folder=self.path
            )

        def train(job: Job) -> dict[str, Any]:
            number = jobs.index(job)
            num_held = int((folded.folds_N == number).sum())
            title = f"fold {number + 1} of {len(jobs)}: trained on {len(folded.folds_N) - num_held:,}, "
            return self._train(job, title=f"{title}scored on {num_held:,}")

        def log(job: Job, summary: dict[str, Any]) -> None:
            number = jobs.index(job) + 1
            run_dir = str(job[0].relative_to(self.path))
            self._log({"fold": number, **_scores_of(summary), "run_dir": run_dir})
            self.progress.note(fold_line(summary, number, len(jobs)))

        return run_all(jobs, train, self.path, finished=lambda job: earlier_summary(*job), on_done=log)

    def _train_final(self) -> dict[str, Any]:
        """Train on all images; return the summary, whose scores are those of the folds."""
        seed = self.recipe.train.seed
        job = self.path / REPEATS / f"seed-{seed}", self._final_recipe()
        train = partial(self._train, title=f"trained on all {len(self._folded.train):,} images")

        def log(job: Job, summary: dict[str, Any]) -> None:
            self._log({"run": {"seed": seed}, "run_dir": str(job[0].relative_to(self.path))})

        return run_all([job], train, self.path, finished=lambda job: earlier_summary(*job), on_done=log)[0]

    def _train(self, job: Job, *, title: str) -> dict[str, Any]:
        path, recipe = job
        options = replace(
            self.options,
            out=path,
            overwrite=False,
            title=title,
            scores_of_folds=self._scores_of_folds,
            outputs_of_folds=self._outputs_of_folds,
            began_at=time.monotonic(),
        )
        if recipe.choices:
            return Sweep(self.command, recipe, options, self.shared).run()
        return run_job(self.shared.set_up(recipe, options))

    def _scores_of_folds(self) -> tuple[Metrics, list[str], Predictions]:
        """Return what the models of the folds predict of all images, each of those that it has not seen."""
        files = [path / PREDICTIONS for path in self._fold_paths]
        rows = [np.flatnonzero(self._folded.folds_N == number) for number in range(len(files))]
        pooled = predictions.pooled(files, rows)
        metrics = metrics_of(torch.from_numpy(pooled.ranks_N), torch.from_numpy(pooled.losses_N))
        predicted = set(pooled.rows_N.tolist())
        train = self._folded.train
        skipped = [train.where_is(row) for row in range(len(train)) if row not in predicted]
        return metrics, skipped, pooled

    def _outputs_of_folds(self) -> tuple[OutOfFold, str]:
        """Return what the models of the folds say of images that they have not seen, and name these."""
        outputs = out_of_fold.pooled(self._fold_paths, num_classes=self._folded.train.num_classes)
        chosen_on = f"training images, each left out in one of {len(self._fold_paths)} folds"
        return outputs, chosen_on + (" with its group" if self._folded.num_groups else "")

    def _frozen_scores(self) -> dict[str, Any] | None:
        """Return the accuracy of frozen features in closed form over these folds, and over random ones.

        Their difference is what a random split flatters by. None without groups.
        """
        folded = self._folded
        if folded.random_folds_N is None or folded.train.has_several_labels:
            return None
        _, recipe = recipes.trials(self._final_recipe())[0]
        start = initial_model(self.shared.make_model, recipe, folded.train)
        model = start.model.to(self.runtime.device).eval()
        settings = settings_of_run(recipe, self.runtime, self.progress, workers=self.options.workers)
        features_ND, labels_N, rows_N = inference.features(
            model, folded.train, preprocessing_of(recipe.data), settings
        )
        rows_N = rows_N.numpy()
        score = partial(fold_accuracy, features_ND, labels_N, num_classes=folded.train.num_classes)
        by_groups = score(folds_N=folded.folds_N[rows_N], groups_N=folded.train.groups_N[rows_N])
        at_random = score(folds_N=folded.random_folds_N[rows_N], groups_N=None)
        return FrozenScores.written({"by_groups": by_groups, "at_random": at_random})

    def _summary(
        self, folds: Sequence[dict[str, Any]], final: dict[str, Any], frozen: dict[str, Any] | None
    ) -> dict[str, Any]:
        """Return the object of summary.json: that of the final run, with what is known of the folds."""
        each = [_scores_of(summary) for summary in folds]
        accuracies = [scores["top1"] for scores in each]
        of_folds = {
            "count": len(folds),
            "mean": mean(accuracies),
            "std": stdev(accuracies),
            "runs": each,
            "group_column": self.recipe.data.group_column,
            "num_groups": self._folded.num_groups,
            "frozen": frozen,
        }
        everything = [*folds, final]
        known = {key: [summary.get(key) for summary in everything] for key in SUMMED}
        seen = {key: [summary.get(key) for summary in folds] for key in SEEN}
        return TrainingSummary.written(
            {
                **final,
                "run_dir": str(self.path),
                "folds": FoldsSummary.written(of_folds),
                **{key: None if None in values else sum(values) for key, values in {**known, **seen}.items()},
                "peak_memory_gib": max(summary["peak_memory_gib"] for summary in everything),
                "weights": str(self.path / run_folder.WEIGHTS),
            }
        )

    def _log(self, record: dict[str, Any]) -> None:
        if self.folder:
            self.folder.log(record)


def _scores_of(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of a fold on its images, and the values that were chosen for it, if any."""
    chosen = {"chosen": summary["chosen"]} if summary.get("chosen") else {}
    scores = {key: summary[key] for key in ("top1", "loss")}
    return FoldScores.written({**scores, "num_examples": summary["num_eval_examples"], **chosen})
