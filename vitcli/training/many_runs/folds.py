"""K-fold cross-validation (`vit finetune --folds 5`): every training image is scored once, as held out.

Each fold is an ordinary resumable run, or sweep, below OUT/folds: trained without its images and scored on
them. A last run below OUT/runs is trained on all images with the same settings and is what the folder
delivers; its scores, its predictions and its calibration are those of the folds. Values to choose from are
chosen within each fold, on a dev split of what it is trained on, so that no image has a say in its own score.
"""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from vitcli import recipe as recipes
from vitcli.data import dataset
from vitcli.data.dataset import FoldedSplit
from vitcli.data.parts.eval_split_names import FoldName
from vitcli.data.split import base_of
from vitcli.data.transforms import preprocessing_of
from vitcli.errors import VitError
from vitcli.evaluation import inference, predictions
from vitcli.evaluation.metrics import Metrics, metrics_of
from vitcli.evaluation.predictions import Predictions
from vitcli.evaluation.setup import settings_of_run
from vitcli.features.least_squares import fold_accuracy
from vitcli.output import run_folder
from vitcli.output.run_folder import FOLDS, PREDICTIONS, REPEATS
from vitcli.output.summaries import FoldScores, FoldsSummary, FrozenScores, TrainingSummary
from vitcli.output.text import count_of
from vitcli.recipe import Recipe
from vitcli.training.many_runs.runs import ManyRuns, SharedParts, Stage
from vitcli.training.many_runs.sweep import run_or_sweep
from vitcli.training.many_runs.sweep_results import plan_of_all, totals_of
from vitcli.training.methods import out_of_fold
from vitcli.training.methods.out_of_fold import OutOfFold
from vitcli.training.setup import RunOptions, initial_model
from vitcli.training.text import run_line

SEEN = ("num_held_out_copies", "num_held_out_seen")


class CrossValidation:
    """The runs of all folds and that on all images."""

    def __init__(self, recipe: Recipe, options: RunOptions, shared: SharedParts):
        self.recipe, self.options, self.shared = recipe, options, shared
        counts = recipe.train.folds, 1
        self.runs = ManyRuns(recipe, options, shared, counts=counts, make_run=self._make_run)

    def _make_run(self, recipe: Recipe, options: RunOptions) -> dict[str, Any]:
        return run_or_sweep(recipe, replace(options, folds=self), self.shared)

    def plan(self) -> dict[str, Any]:
        """Return the plan of the run on all images, and the totals of all runs."""
        final, folds = self.runs.plans(self._final_recipe(), self._fold_recipes())
        return plan_of_all(self.recipe, final, [final, *folds], {"num_folds": len(folds)})

    def run(self) -> dict[str, Any]:
        """Make all runs, write the folder that holds them and return its summary."""
        folded = self._folded  # data that cannot be divided are refused before anything is written
        with self.runs.opened() as path:
            self._note_beginning(folded, path)
            folds, final = self._train_folds(folded), self._train_final()

            def results() -> tuple[dict[str, Any], dict[str, Any]]:
                summary = summary_of_folds(
                    folds,
                    final,
                    path=path,
                    group_column=self.recipe.data.group_column,
                    num_groups=folded.num_groups,
                    frozen=self._frozen_scores(),
                )
                return summary, final

            return self.runs.deliver(results)

    @cached_property
    def _folded(self) -> FoldedSplit:
        data, train = self.recipe.data, self.recipe.train
        source = self.shared.data.source_of(data)
        folded = dataset.open_folds(data, train.folds, seed=train.seed, source=source)
        if folded.train.is_multilabel:
            raise VitError(
                f"folds are scored by top-1, and the images of {folded.train.name} have several labels each",
                where="--folds (recipe key train.folds)",
                fix="leave it out: data.dev_fraction holds out a part",
            )
        return folded

    def _note_beginning(self, folded: FoldedSplit, path: Path) -> None:
        """Say how the images are divided, and what is not scored."""
        counts = np.bincount(folded.folds_N, minlength=self.recipe.train.folds)
        groups = f" in {count_of(folded.num_groups, 'group')}" if folded.num_groups else ""
        sizes = f"{counts.min():,} to {counts.max():,}" if counts.min() < counts.max() else f"{counts[0]:,}"
        num_images = len(folded.folds_N)
        folds = f"{len(counts)} folds of {sizes} images{groups}, then all {num_images:,} images"
        self.shared.progress.note(f"{folds}, into {path}")
        source = self.shared.data.source_of(self.recipe.data)
        if test := source.default_eval_split(besides=base_of(folded.train_split)):
            name = shlex.quote(str(self.options.out or "RUN"))
            self.shared.progress.detail(
                f"split {test} is not scored: vit evaluate --ckpt {name} --split {test}"
            )

    def _fold_recipes(self) -> list[Recipe]:
        num_folds = self.recipe.train.folds
        names = [str(FoldName(num_folds, fold)) for fold in range(1, num_folds + 1)]
        return [self._changed({"data.eval_split": name, "eval.probe": None}) for name in names]

    def _final_recipe(self) -> Recipe:
        """Return the recipe of the run on all images, of which none is held out to be evaluated."""
        return self._changed({"data.eval_split": str(FoldName(self.recipe.train.folds)), "eval.every": 0})

    def _changed(self, changes: dict[str, Any]) -> Recipe:
        return self.runs.settled({"train.folds": 0, **changes}, has_choices=True)

    @property
    def _fold_paths(self) -> list[Path]:
        folders = range(1, self.recipe.train.folds + 1)
        return [self.runs.path / FOLDS / f"fold-{number}" for number in folders]

    def _train_folds(self, folded: FoldedSplit) -> list[dict[str, Any]]:
        """Train without each fold and return the summaries."""
        paths, num_images = self._fold_paths, len(folded.folds_N)
        held_F = np.bincount(folded.folds_N, minlength=len(paths))

        def title(number: int) -> str:
            num_held = int(held_F[number])
            images = f"trained on {num_images - num_held:,}, scored on {num_held:,}"
            return f"fold {number + 1} of {len(paths)}: {images}"

        def log(number: int, summary: dict[str, Any]) -> None:
            self.runs.log({"fold": number + 1, **_scores_of(summary)}, paths[number])
            fold, count = f"fold {number + 1} of {len(paths)}", summary["num_eval_examples"]
            self.shared.progress.note(run_line(fold, summary, count))

        return self.runs.train(Stage(list(zip(paths, self._fold_recipes(), strict=True)), title, log))

    def _train_final(self) -> dict[str, Any]:
        """Train on all images; return the summary, whose scores are those of the folds."""
        seed = self.recipe.train.seed
        path = self.runs.path / REPEATS / f"seed-{seed}"

        def log(number: int, summary: dict[str, Any]) -> None:
            self.runs.log({"run": {"seed": seed}}, path)

        title = f"trained on all {len(self._folded.train):,} images"
        return self.runs.train(Stage([(path, self._final_recipe())], lambda _: title, log))[0]

    def scores(self) -> tuple[Metrics, list[str], Predictions]:
        """Return what the models of the folds predict of all images, each of those that it has not seen."""
        files = [path / PREDICTIONS for path in self._fold_paths]
        rows = [np.flatnonzero(self._folded.folds_N == number) for number in range(len(files))]
        pooled = predictions.pooled(files, rows)
        metrics = metrics_of(pooled.ranks_N, pooled.losses_N)
        predicted = set(pooled.rows_N.tolist())
        train = self._folded.train
        skipped = [train.where_is(row) for row in range(len(train)) if row not in predicted]
        return metrics, skipped, pooled

    def outputs(self) -> tuple[OutOfFold, str]:
        """Return what the models of the folds say of images that they have not seen, and name these."""
        outputs = out_of_fold.pooled(self._fold_paths, num_classes=self._folded.train.num_classes)
        chosen_on = f"training images, each left out in one of {len(self._fold_paths)} folds"
        return outputs, chosen_on + (" with its group" if self._folded.num_groups else "")

    def _frozen_scores(self) -> dict[str, Any] | None:
        """Return the accuracy of frozen features in closed form over these folds, and over random ones.

        Their difference is the bias of a random split. None without groups.
        """
        folded = self._folded
        if folded.random_folds_N is None or folded.train.is_multilabel:
            return None
        _, recipe = recipes.trials(self._final_recipe())[0]
        start = initial_model(self.shared.make_model, recipe, folded.train)
        model = start.model.to(self.shared.runtime.device).eval()
        progress, workers = self.shared.progress, self.options.workers
        settings = settings_of_run(recipe, self.shared.runtime, progress, workers=workers)
        rows = inference.features_and_logits(model, folded.train, preprocessing_of(recipe.data), settings)
        features_ND, labels_N, rows_N = rows.features_ND, rows.labels_N, rows.rows_N.numpy()
        score = partial(fold_accuracy, features_ND, labels_N, num_classes=folded.train.num_classes)
        by_groups = score(folds_N=folded.folds_N[rows_N], groups_N=folded.train.groups_N[rows_N])
        at_random = score(folds_N=folded.random_folds_N[rows_N], groups_N=None)
        return FrozenScores.written({"by_groups": by_groups, "at_random": at_random})


def summary_of_folds(
    folds: Sequence[dict[str, Any]],
    final: dict[str, Any],
    *,
    path: Path,
    group_column: str | None,
    num_groups: int | None,
    frozen: dict[str, Any] | None,
) -> dict[str, Any]:
    """Return the object of summary.json: that of the final run, with what is known of the folds.

    Args:
        frozen: accuracy of frozen features, by folds of groups and of single images.
    """
    each = [_scores_of(summary) for summary in folds]
    accuracies = [scores["top1"] for scores in each]
    of_folds = {
        "count": len(folds),
        "mean": mean(accuracies),
        "std": stdev(accuracies),
        "runs": each,
        "group_column": group_column,
        "num_groups": num_groups,
        "frozen": frozen,
    }
    everything = [*folds, final]
    return TrainingSummary.written(
        {
            **final,
            "run_dir": str(path),
            "folds": FoldsSummary.written(of_folds),
            **totals_of(everything),
            **totals_of(folds, SEEN),
            "peak_memory_gib": max(summary["peak_memory_gib"] for summary in everything),
            "weights": str(path / run_folder.WEIGHTS),
        }
    )


def _scores_of(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of a fold on its images, and the values that were chosen for it, if any."""
    chosen = {"chosen": summary["chosen"]} if summary.get("chosen") else {}
    scores = {key: summary[key] for key in ("top1", "loss")}
    return FoldScores.written({**scores, "num_examples": summary["num_eval_examples"], **chosen})
