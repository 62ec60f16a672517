"""Scores of combinations by leaving one out, and which of them tie with the best.

N rows, M of them with tokens, D features, T test rows, E inputs of the
closed form, K classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vitcli.evaluation.statistics import mcnemar
from vitcli.features import attentive
from vitcli.features.draws import SWEEP
from vitcli.features.layers import ATTENTIVE, Combination, LayerFeatures
from vitcli.features.least_squares import Solution, has_others, left_out_hits, parts, solve

LEVEL = 0.05  # p below which a difference from the best is no tie


@dataclass(frozen=True, eq=False)
class LeftOutProblem:
    """Labels and groups of the rows that are scored; `strengths` of l2 to choose from."""

    labels_N: np.ndarray
    groups_N: np.ndarray
    num_classes: int
    strengths: tuple[float, ...] = SWEEP

    def part(self, which_N: np.ndarray) -> "LeftOutProblem":
        """Return the problem of some of the rows."""
        return LeftOutProblem(
            self.labels_N[which_N], self.groups_N[which_N], self.num_classes, self.strengths
        )


@dataclass(frozen=True, eq=False)
class LeftOutScore:
    """A combination of one checkpoint and the images that it has right when they are left out.

    Attributes:
        ckpt: its number in the command.
        l2: chosen; of learnt queries, for each half.
        scored_N, hits_N: which rows are scored, and which of these are right.
    """

    ckpt: int
    combination: Combination
    num_features: int
    l2: tuple[float, ...]
    scored_N: np.ndarray
    hits_N: np.ndarray

    @property
    def accuracy(self) -> float:
        return int(self.hits_N.sum()) / int(self.scored_N.sum())


def score(
    features: LayerFeatures,
    combination: Combination,
    problem: LeftOutProblem,
    *,
    ckpt: int,
    on_epoch: Callable[[], None] = lambda: None,
) -> LeftOutScore:
    """Fit the closed form to the rows, and score each without itself or its group."""
    if combination.pooling == ATTENTIVE:
        return _score_attentive(features, combination, problem, ckpt=ckpt, on_epoch=on_epoch)
    features_ND = features.read(combination)
    l2, hits_N = left_out(features_ND, problem)
    scored_N = has_others(problem.labels_N, problem.groups_N)
    return LeftOutScore(ckpt, combination, features_ND.shape[1], (l2,), scored_N, hits_N)


def left_out(
    features_ND: np.ndarray, problem: LeftOutProblem, which_N: np.ndarray | None = None
) -> tuple[float, np.ndarray]:
    """Return the l2 with the most rows right, the largest of equals, and which rows (N,) are right with it.

    Args:
        which_N: the rows that count, (N,) bool; the others are fitted and not scored.
    """
    solution = fitted(features_ND, problem)
    hits_NL = left_out_hits(solution)
    if which_N is not None:
        hits_NL &= which_N[:, None]
    best = max(range(len(solution.l2)), key=lambda i: (hits_NL[:, i].sum(), solution.l2[i]))
    return solution.l2[best], hits_NL[:, best]


def fitted(features_ND: np.ndarray, problem: LeftOutProblem) -> Solution:
    """Return the closed form of all rows."""
    about = {"num_classes": problem.num_classes, "l2": problem.strengths, "groups_N": problem.groups_N}
    return solve(features_ND, problem.labels_N, **about)


def _score_attentive(
    features: LayerFeatures,
    combination: Combination,
    problem: LeftOutProblem,
    *,
    ckpt: int,
    on_epoch: Callable[[], None],
) -> LeftOutScore:
    """Score learnt queries: those of one half of the rows on the other half, see `attentive`."""
    places = np.flatnonzero(features.has_tokens_N)
    tokens_MTD, of_tokens = features.read_tokens(), problem.part(features.has_tokens_N)
    half_M = attentive.halves(of_tokens.labels_N, of_tokens.groups_N)
    chosen, hits_M = [], np.zeros(len(places), dtype=bool)
    for half in (0, 1):
        queries = attentive.learn_queries(
            tokens_MTD,
            of_tokens.labels_N,
            np.flatnonzero(half_M == half),
            num_classes=problem.num_classes,
            on_epoch=on_epoch,
        )
        l2, hits = left_out(queries.pool(tokens_MTD), of_tokens, half_M != half)
        chosen.append(l2)
        hits_M |= hits
    scored_N, hits_N = np.zeros((2, len(problem.labels_N)), dtype=bool)
    scored_N[places] = has_others(of_tokens.labels_N, of_tokens.groups_N)
    hits_N[places] = hits_M
    num_features = attentive.NUM_QUERIES * tokens_MTD.shape[2]
    return LeftOutScore(ckpt, combination, num_features, tuple(chosen), scored_N, hits_N)


def hits_on(
    chosen: LeftOutScore,
    train: LayerFeatures,
    problem: LeftOutProblem,
    tests: LayerFeatures,
    labels_T: np.ndarray,
) -> np.ndarray:
    """Fit a combination to all rows of `train`, and return whether it has each row of `tests` right, (T,).

    Learnt queries are learnt from all rows with tokens; tests without tokens are then left out of the T.
    """
    if chosen.combination.pooling == ATTENTIVE:
        tokens_MTD, problem = train.read_tokens(), problem.part(train.has_tokens_N)
        queries = attentive.learn_queries(
            tokens_MTD, problem.labels_N, np.arange(len(tokens_MTD)), num_classes=problem.num_classes
        )
        features_ND, features_TD = queries.pool(tokens_MTD), queries.pool(tests.read_tokens())
        labels_T = labels_T[tests.has_tokens_N]
    else:
        features_ND, features_TD = train.read(chosen.combination), tests.read(chosen.combination)
    solution = fitted(features_ND, replace(problem, strengths=chosen.l2[:1]))
    weights_EK = solution.weights(0)
    best = [
        (solution.inputs(features_TD[rows], rows.start) @ weights_EK).argmax(axis=1)
        for rows in parts(len(labels_T), len(weights_EK))
    ]
    return np.concatenate(best) == labels_T


def best_of(scores: Sequence[LeftOutScore]) -> LeftOutScore:
    """Return the most accurate; of equals the one of the shallowest layer, then with the fewest features."""
    return min(scores, key=lambda s: (-s.accuracy, s.combination.depth, s.num_features))


def against(best: LeftOutScore, other: LeftOutScore) -> float:
    """Return the p-value of the exact McNemar test of two scores, on the rows that both have."""
    both_N = best.scored_N & other.scored_N
    only_best = int((best.hits_N & ~other.hits_N & both_N).sum())
    return mcnemar(only_best, int((other.hits_N & ~best.hits_N & both_N).sum()))
