"""A head that starts at its optimum: the closed form of `vit fewshot` as the last layer of a network.

The closed form (`features/least_squares.py`) predicts the class with the largest score, a linear function of
the features. Its targets are -1 and 1, so its scores are not log probabilities. One temperature t, fitted on
the scores of rows that were left out (Guo et al., arXiv 1706.04599), makes them so:

    softmax:  logits = t score,          t minimises the cross-entropy
    sigmoid:  logits = t score + c,      both minimise the binary cross-entropy (Platt, 1999)

A scale and an offset change no ranking, so the head has the accuracy of the closed form.

N rows, D features, E = D + 1 inputs of the closed form, K classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from vitcli.distributed.transfer import single_core_pool
from vitcli.evaluation.calibration.scaling import DIGITS, LEAST_SCALE, MOST_SCALE, softmax_scale
from vitcli.features import least_squares
from vitcli.features.least_squares import DEFAULT_L2, SWEEP, Solution, has_others

Solved = TypeVar("Solved")
STRENGTHS = SWEEP[::2]  # half of those that `vit fewshot` tries: as good, and half the time with many classes


@dataclass(frozen=True, eq=False)
class ClosedFormHead:
    """A linear layer from features to logits, and how it came about.

    Attributes:
        weight_KD, bias_K: float32, on the CPU.
        facts: as JSON: "l2", "temperature", "offset", "num_examples" fitted, their "num_groups" (None without
            groups), and "left_out_top1", the accuracy on rows that were left out with their group; None where
            every class has a single row or group.
        left_out: logits (M, K) and labels of the M rows whose class has a row in another group, each by the
            layer that is fitted without its group; None where there are none.
    """

    weight_KD: Tensor
    bias_K: Tensor
    facts: dict[str, Any]
    left_out: tuple[np.ndarray, np.ndarray] | None = None


def closed_form_head(
    features_ND: Tensor,
    labels_N: np.ndarray,
    groups_N: np.ndarray | None,
    *,
    num_classes: int,
    loss: str,
    balance: str = "none",
) -> ClosedFormHead:
    """Return the closed form on these features as a layer, its strength chosen by leaving one group out.

    The bits depend on no number of threads: the layer is solved again on one core, at the chosen strength.

    Args:
        loss: "softmax" or "sigmoid", for which the logits are calibrated.
        groups_N: of each row; None for groups of one row.
        balance: weights of rows by the size of their class, see `data.balance`.
    """
    solution, facts, left_out = chosen_solution(
        features_ND, labels_N, groups_N, num_classes=num_classes, loss=loss, balance=balance
    )
    weights_EK = on_one_core(lambda: solve_at(solution, 0))
    scale, offset = facts["temperature"], facts["offset"]
    layer = least_squares.as_layer(solution, weights_EK, scale=scale, offset=offset)
    return ClosedFormHead(*least_squares.in_float32(*layer), facts, left_out)


def chosen_solution(
    features_ND: Tensor | np.ndarray,
    labels_N: np.ndarray,
    groups_N: np.ndarray | None,
    *,
    num_classes: int,
    loss: str,
    balance: str = "none",
    l2: Sequence[float] = STRENGTHS,
) -> tuple[Solution, dict[str, Any], tuple[np.ndarray, np.ndarray] | None]:
    """Return the solution at the l2 that leaving a group out prefers, and `facts` and `left_out` of it.

    Args:
        l2: to choose from, where rows can be left out.
    """
    can_leave_out = has_others(labels_N, groups_N).any()
    solution = least_squares.solve(
        features_ND,
        labels_N,
        num_classes=num_classes,
        l2=l2 if can_leave_out else (DEFAULT_L2,),
        groups_N=groups_N,
        balance=balance,
    )
    temperature, offset, accuracy, left_out = 1.0, 0.0, None, None
    if can_leave_out:
        solution = least_squares.at_best_l2(solution)
        accuracy = float(least_squares.left_out_accuracies(solution)[0])
        is_scored_N = solution.is_scored_N
        scores_MK = least_squares.left_out_scores(solution)[is_scored_N]
        temperature, offset = calibration(scores_MK, labels_N[is_scored_N], loss=loss)
        left_out = (temperature * scores_MK + offset, labels_N[is_scored_N])
    facts = {"l2": solution.l2[0], "temperature": temperature, "offset": offset}
    num_groups = None if groups_N is None else len(np.unique(groups_N))
    facts |= {"num_examples": len(labels_N), "num_groups": num_groups, "left_out_top1": accuracy}
    return solution, facts, left_out


def solve_at(solution: Solution, which: int) -> np.ndarray:
    """Return `solution.weights(which)` by another way, a Cholesky factorisation in torch.

    NumPy's eigenvectors differ in their last bits with its number of threads, which cannot be set while a
    process runs; torch's can.
    """
    inputs_NE = torch.from_numpy(solution.inputs_NE)
    is_class_NK = solution.labels_N[:, None] == np.arange(solution.num_classes)
    targets_NK = torch.from_numpy(solution.root_weights_N1 * (2.0 * is_class_NK - 1))
    square_RR = inputs_NE.T @ inputs_NE if solution.is_tall else inputs_NE @ inputs_NE.T
    square_RR.diagonal().add_(solution.l2[which])
    factor_RR = torch.linalg.cholesky(square_RR)
    if solution.is_tall:
        return torch.cholesky_solve(inputs_NE.T @ targets_NK, factor_RR).numpy()
    return (inputs_NE.T @ torch.cholesky_solve(targets_NK, factor_RR)).numpy()


def calibration(scores_NK: np.ndarray, labels_N: np.ndarray, *, loss: str) -> tuple[float, float]:
    """Return the temperature and the offset that calibrate scores, rounded to DIGITS digits.

    Targets are those of Platt's scaling, which keep a finite temperature where all rows are right: a row
    counts as 1 - 1/(N + 2) of its class for the softmax; for the sigmoid the P pairs of a row and its class
    count as 1 - 1/(P + 2), the Q other pairs as 1/(Q + 2).
    """
    if loss == "softmax":
        temperature, offset = softmax_scale(scores_NK, labels_N), 0.0
    else:
        temperature, offset = _sigmoid_scale(scores_NK, labels_N)
    return float(f"{temperature:.{DIGITS}g}"), float(f"{offset:.{DIGITS}g}")


def _sigmoid_scale(scores_NK: np.ndarray, labels_N: np.ndarray) -> tuple[float, float]:
    """Return Platt's two parameters by Newton's method, over all pairs of a row and a class."""
    is_class_NK = labels_N[:, None] == np.arange(scores_NK.shape[1])
    num_right, num_pairs = int(is_class_NK.sum()), is_class_NK.size
    targets_NK = np.where(is_class_NK, 1 - 1 / (num_right + 2), 1 / (num_pairs - num_right + 2))
    scores_P, targets_P = scores_NK.ravel(), targets_NK.ravel()
    t, c = 0.0, float(np.log(targets_P.mean() / (1 - targets_P.mean())))

    def value(t: float, c: float) -> float:
        logits_P = t * scores_P + c
        return float((np.logaddexp(0, logits_P) - targets_P * logits_P).mean())

    for _ in range(100):
        chances_P = 1 / (1 + np.exp(-(t * scores_P + c)))
        errors_P, curves_P = chances_P - targets_P, chances_P * (1 - chances_P)
        gradient = np.array([(errors_P * scores_P).mean(), errors_P.mean()])
        cross = (curves_P * scores_P).mean()
        curvature = np.array([[(curves_P * scores_P**2).mean(), cross], [cross, curves_P.mean()]])
        step_t, step_c = np.linalg.solve(curvature + 1e-12 * np.eye(2), gradient)
        size, now = 1.0, value(t, c)
        while value(t - size * step_t, c - size * step_c) > now and size > 1e-6:
            size /= 2
        t, c = t - size * step_t, c - size * step_c
        if abs(size * step_t) < 1e-10 and abs(size * step_c) < 1e-10:
            break
    return float(np.clip(t, LEAST_SCALE, MOST_SCALE)), float(c)


def on_one_core(function: Callable[[], Solved]) -> Solved:
    """Return what a function computes with one thread of torch, so that its last bits are always the same."""
    with single_core_pool(1, "vit-probe-head") as pool:
        return pool.submit(function).result()
