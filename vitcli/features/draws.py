"""Draws of few-shot support sets: drawn from seeds or read from a file, then fitted and scored.

Shared by `vit fewshot` and the probe inside training. A draw is a set of training rows, k of each class.
Draws are named by the seed they are drawn with and by k, the number of shots: {seed: {shots: rows}}.

N training rows, T test rows, D features, K classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean, stdev
from typing import Any

import numpy as np

from vitcli.errors import DataError
from vitcli.features import classifiers, least_squares
from vitcli.io.files import parse_json, read_regular

Draws = dict[int, dict[int, np.ndarray]]


def draw_support_sets(
    labels_N: np.ndarray,
    *,
    num_classes: int,
    shots: Sequence[int],
    seeds: Sequence[int],
    groups_N: np.ndarray | None = None,
) -> Draws:
    """Draw the rows of every seed and number of shots, as the authors' evaluator does, or whole groups."""
    draw = partial(
        least_squares.draw_shots, labels_N, num_classes=num_classes, shots=shots, groups_N=groups_N
    )
    return {seed: draw(seed=seed) for seed in seeds}


def drawn_rows(draws: Draws) -> np.ndarray:
    """Return the rows of all draws, each once, in ascending order."""
    return np.unique(np.concatenate([rows for by_shots in draws.values() for rows in by_shots.values()]))


def as_json(draws: Draws) -> dict[str, dict[str, list[int]]]:
    """Return draws as the JSON object of a file of draws."""
    return {
        str(seed): {str(shots): rows.tolist() for shots, rows in by_shots.items()}
        for seed, by_shots in draws.items()
    }


def read_draws(file: str, labels_N: np.ndarray, class_names: list[str]) -> Draws:
    """Read the draws of a file, for a training split with these labels.

    Raises:
        DataError: it is not a file of draws; a row does not exist or is repeated; or a draw has no row of a
            class, or more than shots.
    """
    # The file is untrusted: JSON of a bounded size.
    try:
        seeds = parse_json(read_regular(file))
    except OSError as error:
        problem = f"{file} cannot be read: {error.strerror}"
        raise DataError(problem, where="--draws", fix="check the path") from error
    except ValueError as error:
        raise _format_error(f"is not JSON: {error}", file) from error

    # {"seed": {"shots": [rows]}}, every key a whole number and each draw once ("1" and "01" are equal).
    if not isinstance(seeds, dict) or not seeds:
        raise _format_error("is not an object of seeds", file)
    draws: Draws = {}
    for seed, by_shots in seeds.items():
        if not isinstance(by_shots, dict) or not by_shots:
            raise _format_error(f"has no object of shots for seed {seed!r}", file)
        for shots, rows in by_shots.items():
            draw = f"seed {seed}, {shots} shots"
            if not (_is_count(seed) and _is_count(shots) and int(shots)):
                raise _format_error(f"names {draw}; seeds are whole numbers from 0, shots from 1", file)
            if int(shots) in draws.setdefault(int(seed), {}):
                raise _format_error(f"names {draw} twice", file)
            checked = _checked(rows, int(shots), labels_N, class_names, where=f"{file}, {draw}")
            draws[int(seed)][int(shots)] = checked
    if len({tuple(sorted(by_shots)) for by_shots in draws.values()}) > 1:
        raise _format_error("has different shots for different seeds", file)
    return draws


def _checked(
    rows: Any, shots: int, labels_N: np.ndarray, class_names: list[str], *, where: str
) -> np.ndarray:
    """Check the rows of one draw against the training split, and return them as an array."""
    if not isinstance(rows, list) or not all(type(row) is int for row in rows) or not rows:
        raise _format_error("has no list of row numbers", where)
    fix = "use the data set and split that the draws were made of (data.train_split)"
    outside = [row for row in rows if not 0 <= row < len(labels_N)]
    if outside:
        problem = f"row {outside[0]} is not one of the {len(labels_N)} rows of the training split"
        raise DataError(problem, where=where, fix=fix)
    if len(set(rows)) < len(rows):
        repeated = next(row for row in rows if rows.count(row) > 1)
        raise _format_error(f"has row {repeated} twice", where)
    counts_K = np.bincount(labels_N[rows], minlength=len(class_names))
    for count, is_wrong_K in (("no row", counts_K == 0), (f"more than {shots} rows", counts_K > shots)):
        if is_wrong_K.any():
            names = ", ".join(class_names[label] for label in np.flatnonzero(is_wrong_K)[:5])
            raise DataError(
                f"{is_wrong_K.sum()} classes have {count} in this draw: {names}", where=where, fix=fix
            )
    return np.array(rows, dtype=np.int64)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


def _format_error(problem: str, where: str) -> DataError:
    return DataError(
        f"the file of draws {problem}",
        where=where if "," in where else f"--draws {where}",
        fix='write {"seed": {"shots": [rows of the training split]}}, as draws.json of a run folder',
    )


@dataclass(frozen=True, eq=False)
class FewshotProblem:
    """Features and labels of a data set for few-shot classification.

    Attributes:
        features_of: maps training rows to their features (n, D).
        labels_N: labels of all training rows.
        groups_N: groups of all training rows, of which none is separated; None without.
        tests_TD: test features: anything with a length that returns rows for a slice.
    """

    features_of: Callable[[np.ndarray], np.ndarray]
    labels_N: np.ndarray
    tests_TD: Any
    test_labels_T: np.ndarray
    num_classes: int
    groups_N: np.ndarray | None = None


@dataclass(frozen=True)
class DrawScore:
    """Score of one draw.

    Attributes:
        top1: fraction of correct test rows.
        chosen: l2, neighbours or C of the classifier; None for a classifier without a choice.
    """

    seed: int
    top1: float
    chosen: float | int | None


def score_draws(
    problem: FewshotProblem,
    draws: Draws,
    *,
    classifier: str,
    l2: float | str,
    balance: str = "none",
    on_draw: Callable[[int], None] = lambda num_done: None,
) -> dict[int, list[DrawScore]]:
    """Fit and score each draw, and return the scores by shots.

    Args:
        classifier: "least-squares" (paper, section 4.1), "knn", "ncm" or "logistic".
        l2: strength of least squares; "sweep" chooses it for each draw by leave-one-out, except where every
            class has a single row: these get the default.
        balance: weights of the rows in least squares, see `least_squares.solve`.
        on_draw: called after each draw with the number of scored draws.
    """
    scores: dict[int, list[DrawScore]] = {}
    for seed, by_shots in draws.items():
        for shots, rows in by_shots.items():
            top1, chosen = _fit_and_score(problem, rows, classifier=classifier, l2=l2, balance=balance)
            scores.setdefault(shots, []).append(DrawScore(seed, top1, chosen))
            on_draw(sum(map(len, scores.values())))
    return dict(sorted(scores.items()))


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and the sample standard deviation (ddof 1), None for a single value."""
    return mean(values), stdev(values) if len(values) > 1 else None


def _fit_and_score(
    problem: FewshotProblem, rows: np.ndarray, *, classifier: str, l2: float | str, balance: str
) -> tuple[float, float | int | None]:
    """Return the accuracy of one draw, and what the classifier chose."""
    features_ND, labels_N = problem.features_of(rows), problem.labels_N[rows]
    num_classes, tests_TD = problem.num_classes, problem.tests_TD
    groups_N = None if problem.groups_N is None else problem.groups_N[rows]
    if classifier != "least-squares":
        classify = classifiers.BY_NAME[classifier]
        predicted_T, chosen = classify(
            features_ND, labels_N, tests_TD, num_classes=num_classes, groups_N=groups_N
        )
        return float((predicted_T == problem.test_labels_T).mean()), chosen
    if l2 == "sweep" and not least_squares.has_others(labels_N, groups_N).any():
        l2 = least_squares.DEFAULT_L2
    strengths = least_squares.SWEEP if l2 == "sweep" else (l2,)
    solution = least_squares.solve(
        features_ND, labels_N, num_classes=num_classes, l2=strengths, groups_N=groups_N, balance=balance
    )
    solution = least_squares.at_best_l2(solution)
    (accuracy,) = least_squares.accuracies(solution, tests_TD, problem.test_labels_T)
    return float(accuracy), solution.l2[0]
