"""The calibration of a finished classifier, by images that it was not fitted to.

Temperature and prediction sets are chosen on the logits of these images, the distance of an image that is
unlike the training ones on their features. They are the dev split within the run, if it has LEAST images;
else those that it is scored on, unless that is a test split; else the validation split. A delivered probe is
fitted on the dev split too. Its own left-out logits are known in closed form, so all training images serve.
So they do for any other network of a run with folds, by what the networks of the folds say of them, see
`out_of_fold`.

M calibration rows, N training rows, D features, K classes.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vitcli.data.split import Split
from vitcli.distributed import launch
from vitcli.evaluation.calibration import out_of_distribution, selective
from vitcli.evaluation.calibration.out_of_distribution import (
    WEAK,
    FeatureStatistics,
    LeftOutRows,
    UnlikeScore,
)
from vitcli.evaluation.calibration.prediction_sets import LEAST
from vitcli.evaluation.calibration.results import fitted
from vitcli.evaluation.calibration.stored import Calibration
from vitcli.evaluation.predictions import Predictions
from vitcli.features import least_squares
from vitcli.features.least_squares import has_others
from vitcli.recipe import Recipe
from vitcli.recipe.schema import PROBE, REFIT
from vitcli.training.methods import out_of_fold
from vitcli.training.methods.imbalance import balance_of
from vitcli.training.methods.method import Keys, Method, Results
from vitcli.training.methods.out_of_fold import OF_FOLDS, FoldModels, rounded_down, statistics_of_rows
from vitcli.training.methods.outputs import MOST_KEPT, Outputs, num_rows
from vitcli.training.methods.probe_head import ClosedFormHead, closed_form_head
from vitcli.training.splits import RunSplits, gives_one_class

if TYPE_CHECKING:  # they import this module
    from vitcli.training.run import TrainingRun
    from vitcli.training.setup import TrainingJob


class CalibratedWeights(Method):
    """Temperature, prediction sets and a score of what is unlike the training images, stored with weights."""

    @staticmethod
    def is_asked_for(command: str, recipe: Recipe, splits: RunSplits) -> bool:
        return command == "finetune" and gives_one_class(recipe, splits.train)

    def num_scored(self, job: "TrainingJob") -> int:
        """Count images of training and those that calibrate, unless another pass over them serves."""
        splits, head = job.splits, self.recipe.model.head
        if splits.calibration is None:
            return 0
        scored = [] if job.is_of_all_folds or splits.calibration is splits.eval else [splits.calibration]
        scored = [] if head == PROBE and splits.calibration is splits.choice else scored
        needs_eval = job.is_of_one_fold or splits.calibration is splits.eval
        scored += [splits.eval] if needs_eval and len(splits.eval) > MOST_KEPT else []
        num_train = num_rows(splits.train, job.plan)
        counts = [*map(len, scored), 0 if head == REFIT and num_train <= MOST_KEPT else num_train]
        return sum(min(MOST_KEPT, count) for count in counts)

    def results(self, run: "TrainingRun", predictions: Predictions | None, summary: Keys) -> Results:
        stored = self._calibrate(run, is_probe=summary.get("delivered_alpha") == 0)
        return {"belief": stored and stored.facts()}, stored.as_metadata() if stored else {}

    def _calibrate(self, run: "TrainingRun", *, is_probe: bool) -> Calibration | None:
        """Return the calibration of the network that is delivered; None where nothing can be said.

        What the network of a fold says of it is written into the run folder.

        Args:
            is_probe: whether that is the closed form on training images and the dev split.
        """
        job, splits = run.job, run.job.splits
        if splits.calibration is None:
            return None
        launch.enter("the calibration pass")
        outputs_for = run.evaluation.outputs_for
        # A probe is fitted again, to the rows that it was fitted to.
        train = outputs_for(splits.train, MOST_KEPT if is_probe else num_rows(splits.train, job.plan))
        if is_probe:
            about = {"loss": self.recipe.objective.loss, "balance": balance_of(self.recipe)}
            choice, num_classes = outputs_for(splits.choice), job.start.arch.num_classes
            fit = partial(of_probe, train, choice, num_classes=num_classes, **about)
        elif job.is_of_all_folds:
            fit = partial(of_folds, train, job.options.folds)
        else:
            held_out = outputs_for(splits.calibration, with_logits=True)
            fit = partial(of_network, train, held_out, splits.calibration)
        calibration = run.runtime.on_main(fit)  # computed once, so that all processes have the same bits
        if job.is_of_one_fold:
            fold, num_images = outputs_for(splits.eval, with_logits=True), sum(map(len, splits.own))
            run.runtime.on_main(partial(out_of_fold.write, run.path, train, fold, num_images=num_images))
        if isinstance(calibration, str):
            job.progress.detail(f"no prediction sets are stored with the weights: {calibration}")
            return None
        unlike = calibration.unlike
        if unlike is not None and unlike.auroc is not None and unlike.auroc < WEAK:
            few = "what is unlike the training images is hard to tell from these images"
            job.progress.detail(f"{few}: images of a class left out rank above others in {unlike.auroc:.0%}")
        return calibration


def of_network(train: Outputs, held_out: Outputs, split: Split) -> Calibration | str:
    """Return what the held-out rows of `split` show of a network that was fitted on others."""
    unlike, num_classes = None, held_out.logits_NK.shape[1]
    if len(train.labels_N) and len(held_out.labels_N):
        # The network has seen all classes: a left-out one is in no statistics, and its logits are not read.
        is_train_N = np.repeat([True, False], [len(train.labels_N), len(held_out.labels_N)])
        labels_N = np.append(train.labels_N, held_out.labels_N)
        features_ND = np.concatenate([train.features_ND, held_out.features_ND])
        logits_NK = np.zeros((len(labels_N), num_classes))
        logits_NK[~is_train_N] = held_out.logits_NK  # others are not judged
        fold_N = np.full(len(labels_N), -1)
        rows = LeftOutRows(features_ND, labels_N, fold_N, is_train_N, ~is_train_N, logits_NK, logits_NK)
        fold_K = out_of_distribution.folds_of_classes(train.labels_N, num_classes=num_classes)
        score = out_of_distribution.left_out_classes(rows, fold_K)
        statistics = statistics_of_rows(train, num_classes)
        if statistics is not None:
            distances_M = statistics.distances(held_out.features_ND, shrinkage=score.shrinkage)
            unlike = _Unlike(score, statistics, distances_M, held_out.logits_NK)
    return _calibration(held_out.logits_NK, held_out.labels_N, unlike, split.name, split.fingerprint)


def of_folds(train: Outputs, folds: FoldModels) -> Calibration | str:
    """Return what the networks of folds show of one that was fitted, as they were, to all images."""
    pooled, chosen_on = folds.outputs()
    unlike, distances_M = None, pooled.distances_M
    statistics = statistics_of_rows(train, pooled.logits_MK.shape[1])
    if distances_M is not None and statistics is not None:
        unlike = _Unlike(OF_FOLDS, statistics, distances_M, pooled.logits_MK)
    return _calibration(pooled.logits_MK, pooled.labels_M, unlike, chosen_on, None)


def of_probe(
    train: Outputs, choice: Outputs, *, num_classes: int, loss: str, balance: str
) -> Calibration | str:
    """Return what the rows of both splits show of the closed form on them, each left out with its group."""
    rows = train + choice
    features_ND, labels_N, groups_N = rows.features_ND, rows.labels_N, rows.groups_N
    how: dict[str, Any] = {"num_classes": num_classes, "balance": balance}
    head = closed_form_head(torch.from_numpy(features_ND), labels_N, groups_N, loss=loss, **how)
    if head.left_out is None:
        return f"no class has two {'images' if groups_N is None else 'groups'}"
    unlike = _unlike_of_probe(features_ND, labels_N, head, groups_N=groups_N, **how)
    chosen_on = "training images, each left out in turn"
    chosen_on += "" if groups_N is None else " with its group"
    logits_MK, labels_M = head.left_out
    return _calibration(logits_MK, labels_M, unlike, chosen_on, None)


@dataclass(frozen=True, eq=False)
class _Unlike:
    """The score of what is unlike before its weight, and distances and logits of rows to choose that by."""

    score: UnlikeScore
    statistics: FeatureStatistics
    distances_M: np.ndarray
    logits_MK: np.ndarray


def _unlike_of_probe(
    features_ND: np.ndarray,
    labels_N: np.ndarray,
    head: ClosedFormHead,
    *,
    num_classes: int,
    groups_N: np.ndarray | None,
    balance: str,
) -> _Unlike | None:
    """Return the score that leaving classes out chooses, and rows left out with their group."""
    statistics = out_of_distribution.statistics_of(features_ND, labels_N, num_classes=num_classes)
    if statistics is None:
        return None
    logits_NK = np.zeros((len(labels_N), num_classes))
    is_judged_N = has_others(labels_N, groups_N)
    logits_NK[is_judged_N] = head.left_out[0]
    score = UnlikeScore(doubt_weight=1.0)
    fold_K = out_of_distribution.folds_of_classes(labels_N, num_classes=num_classes)
    if fold_K is not None:
        # Scores of each row by the closed form on the classes of other folds, without a refit.
        solution = least_squares.solve(
            features_ND,
            labels_N,
            num_classes=num_classes,
            l2=(head.facts["l2"],),
            groups_N=fold_K[labels_N],
            balance=balance,
        )
        of_unknown_NK = head.facts["temperature"] * least_squares.left_out_scores(solution)
        fold_N = out_of_distribution.folds_of_rows(labels_N, groups_N, num_folds=int(fold_K.max()) + 1)
        fitted_N = np.ones(len(labels_N), dtype=bool)
        rows = LeftOutRows(features_ND, labels_N, fold_N, fitted_N, is_judged_N, logits_NK, of_unknown_NK)
        score = out_of_distribution.left_out_classes(rows, fold_K)
    distances_N = out_of_distribution.left_out_distances(
        features_ND, labels_N, num_classes=num_classes, groups_N=groups_N, shrinkage=score.shrinkage
    )
    is_known_N = is_judged_N & ~np.isnan(distances_N)
    return _Unlike(score, statistics, distances_N[is_known_N], logits_NK[is_known_N])


def _calibration(
    logits_MK: np.ndarray,
    labels_M: np.ndarray,
    unlike: _Unlike | None,
    chosen_on: str,
    fingerprint: str | None,
) -> Calibration | str:
    if len(labels_M) < LEAST:
        return f"they take {LEAST} images that were not trained on, and there are {len(labels_M)}"
    scaling, sets = fitted(logits_MK, labels_M)
    points = selective.operating_points(scaling.probabilities(logits_MK), labels_M)
    # Rounded so that no set gets smaller, and no image like those is flagged.
    sets = {level: None if least is None else rounded_down(least) for level, least in sets.items()}
    stored = Calibration(scaling, sets, points, len(labels_M), chosen_on, fingerprint)
    if unlike is None:
        return stored
    doubts_M = out_of_distribution.doubts(scaling.probabilities(unlike.logits_MK))
    score = unlike.score.weighted(unlike.distances_M, doubts_M)
    chosen = out_of_distribution.threshold_of(unlike.distances_M + score.doubt_weight * doubts_M)
    if chosen is None:
        return stored
    distance, flagged = -rounded_down(-chosen[0]), chosen[1]
    return replace(stored, distance=distance, flagged=flagged, unlike=score, statistics=unlike.statistics)
