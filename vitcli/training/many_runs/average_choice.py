"""Which average of runs to deliver, if any, by their predictions of the dev part. Loads no torch.

Letters: N images of the dev part.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitcli.evaluation.statistics import mcnemar, paired_interval

SIGNIFICANT = 0.05  # p-value of McNemar's test below which an average is worse than the best run


@dataclass(frozen=True)
class DevScore:
    """Predictions of one network on the dev part.

    Attributes:
        is_right_N: whether the likeliest class is right.
        loss: mean cross-entropy in nats.
    """

    is_right_N: np.ndarray
    loss: float

    @property
    def num_right(self) -> int:
        return int(self.is_right_N.sum())

    @property
    def top1(self) -> float:
        return self.num_right / len(self.is_right_N)

    @property
    def rank_key(self) -> tuple[int, float]:
        """Rank by accuracy, then by the smaller loss; largest is best."""
        return self.num_right, -self.loss


@dataclass(frozen=True)
class Candidate:
    """An average that may be delivered.

    Attributes:
        method: "uniform", "greedy" or "stock".
        members: numbers of the runs in it.
        score: on the dev part; None where there is none.
        ratio: of Model Stock, the mean over the layers of its distance from the start, 1 for the mean of the
            runs; None for other methods.
    """

    method: str
    members: tuple[int, ...]
    score: DevScore | None = None
    ratio: float | None = None

    def weights(self, num_runs: int) -> list[float]:
        """Return the weight of each run in the average."""
        weight = (1.0 if self.ratio is None else self.ratio) / len(self.members)
        return [weight if number in self.members else 0.0 for number in range(num_runs)]


def best_run(runs: Sequence[DevScore]) -> int:
    """Return the number of the best run on the dev part; the first of equals."""
    return max(range(len(runs)), key=lambda number: runs[number].rank_key)


def greedy_members(
    runs: Sequence[DevScore], score_of: Callable[[tuple[int, ...]], DevScore]
) -> tuple[tuple[int, ...], DevScore]:
    """Return the runs of the greedy soup and its score (arXiv 2203.05482, recipe 1).

    From the best run down, each is added if the accuracy of the mean does not fall.

    Args:
        score_of: scores the mean of these runs.
    """
    order = sorted(range(len(runs)), key=lambda number: runs[number].rank_key, reverse=True)
    members, score = (order[0],), runs[order[0]]
    for number in order[1:]:
        trial = tuple(sorted((*members, number)))
        trial_score = score_of(trial)
        if trial_score.num_right >= score.num_right:
            members, score = trial, trial_score
    return members, score


def paired_test(score: DevScore, runs: Sequence[DevScore]) -> dict[str, Any]:
    """Return how an average compares with its runs on the dev part, and whether it is accepted.

    It is, if it has at least as many images right as the runs have in the mean, and McNemar's test does not
    find it worse than the best of them, which has been chosen by the same images and so is flattered.
    """
    best = runs[best_run(runs)]
    only_best = int((best.is_right_N & ~score.is_right_N).sum())
    only_average = int((~best.is_right_N & score.is_right_N).sum())
    p_value = mcnemar(only_best, only_average)
    is_worse_than_best = only_average < only_best and p_value < SIGNIFICANT
    is_below_mean = score.num_right * len(runs) < sum(run.num_right for run in runs)
    return {
        "difference_to_best": (only_average - only_best) / len(score.is_right_N),
        "interval": list(paired_interval(only_best, only_average, len(score.is_right_N))),
        "mcnemar_p": p_value,
        "accepted": not (is_worse_than_best or is_below_mean),
    }


def best_candidate(candidates: Sequence[Candidate]) -> Candidate:
    """Return the candidate with the best score on the dev part; the first of equals, or the only one."""
    if len(candidates) == 1:
        return candidates[0]
    return max(candidates, key=lambda candidate: candidate.score.rank_key)
