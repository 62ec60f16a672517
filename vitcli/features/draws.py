"""Few-shot accuracies: every draw of every number of shots fitted and scored on the same features.

Shared by `vit fewshot` and the probe inside training. N training rows, T test rows, D features.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from vitcli.errors import DataError
from vitcli.features import classifiers, least_squares

SWEEP = tuple(2.0**power for power in range(-10, 20))  # of the authors' older configurations
Draws = dict[int, dict[int, np.ndarray]]  # seed to shots to rows


@dataclass(frozen=True, eq=False)
class FewshotProblem:
    """Frozen features of a data set.

    Attributes:
        features_of: training rows to their features, (n, D).
        labels_N: of every training row.
        tests_TD: anything with a length that gives rows for a slice.
        test_labels_T: of the test rows.
        num_classes: of the data set.
    """

    features_of: Callable[[np.ndarray], np.ndarray]
    labels_N: np.ndarray
    tests_TD: Any
    test_labels_T: np.ndarray
    num_classes: int


@dataclass(frozen=True)
class DrawScore:
    """One draw, fitted.

    Attributes:
        seed: that the rows were drawn with.
        top1: share of the test rows that are right.
        chosen: what the classifier has chosen or was given: l2, neighbours or C; None where there is nothing.
    """

    seed: int
    top1: float
    chosen: float | int | None


def draw_support_sets(
    labels_N: np.ndarray, *, num_classes: int, shots: Sequence[int], seeds: Sequence[int]
) -> Draws:
    """The rows of every seed and number of shots, as the authors' evaluator draws them."""
    return {
        seed: least_squares.draw_shots(labels_N, num_classes=num_classes, shots=shots, seed=seed)
        for seed in seeds
    }


def drawn_rows(draws: Draws) -> np.ndarray:
    """Every row that is in any draw, once, in order."""
    return np.unique(np.concatenate([rows for by_shots in draws.values() for rows in by_shots.values()]))


def score_draws(
    problem: FewshotProblem,
    draws: Draws,
    *,
    classifier: str,
    l2: float | str,
    watch: Callable[[int], None] = lambda done: None,
) -> dict[int, list[DrawScore]]:
    """By shots, the accuracy of each draw.

    Args:
        classifier: "least-squares" (paper, section 4.1), "knn", "ncm" or "logistic".
        l2: of least squares; "sweep" chooses it for each draw by leaving its rows out one at a time, and is
            the default where every row is alone in its class.
        watch: told after each draw how many are done.
    """
    found: dict[int, list[DrawScore]] = {}
    for seed, by_shots in draws.items():
        for shots, rows in by_shots.items():
            top1, chosen = _fit_and_score(problem, rows, classifier=classifier, l2=l2)
            found.setdefault(shots, []).append(DrawScore(seed, top1, chosen))
            watch(sum(map(len, found.values())))
    return dict(sorted(found.items()))


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean, and standard deviation of a sample (ddof 1); None for one value."""
    return mean(values), stdev(values) if len(values) > 1 else None


def _fit_and_score(
    problem: FewshotProblem, rows: np.ndarray, *, classifier: str, l2: float | str
) -> tuple[float, float | int | None]:
    known, labels = problem.features_of(rows), problem.labels_N[rows]
    fits = {
        "knn": classifiers.nearest_neighbours,
        "ncm": classifiers.nearest_mean,
        "logistic": classifiers.logistic,
    }
    if classifier != "least-squares":
        predicted_T, chosen = fits[classifier](
            known, labels, problem.tests_TD, num_classes=problem.num_classes
        )
        return float((predicted_T == problem.test_labels_T).mean()), chosen
    if l2 == "sweep" and np.bincount(labels).max() == 1:
        l2 = least_squares.DEFAULT_L2
    strengths = SWEEP if l2 == "sweep" else (l2,)
    solution = least_squares.solve(known, labels, num_classes=problem.num_classes, l2=strengths)
    place = least_squares.choose_l2(solution) if l2 == "sweep" else 0
    found = least_squares.accuracies(solution, problem.tests_TD, problem.test_labels_T, which=[place])
    return float(found[0]), strengths[place]


LARGEST = 64 * 2**20  # bytes; 1000 classes x 25 shots x 3 seeds take 1 MB


def as_json(draws: dict[int, dict[int, np.ndarray]]) -> dict[str, dict[str, list[int]]]:
    """Draws as they are written."""
    return {
        str(seed): {str(shots): rows.tolist() for shots, rows in by_shots.items()}
        for seed, by_shots in draws.items()
    }


def read_draws(file: str, labels_N: np.ndarray, class_names: list[str]) -> dict[int, dict[int, np.ndarray]]:
    """The draws of a file, for a training split with these labels.

    Raises:
        DataError: it is no such file, names a row that is not there or twice, or a class has no row in a
            draw, or more of them than shots.
    """
    try:
        if Path(file).stat().st_size > LARGEST:
            raise ValueError("it is too large")
        told = json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"{file} cannot be read: {error.strerror}", where="--draws", fix="check the path"
        ) from error
    except (ValueError, RecursionError) as error:
        raise _wrong(f"is no JSON: {error}", file) from error
    if not isinstance(told, dict) or not told:
        raise _wrong("is no object of seeds", file)
    draws: dict[int, dict[int, np.ndarray]] = {}
    for seed, by_shots in told.items():
        if not isinstance(by_shots, dict) or not by_shots:
            raise _wrong(f"has no object of shots for seed {seed!r}", file)
        for shots, rows in by_shots.items():
            place = f"seed {seed}, {shots} shots"
            if not (_is_count(seed) and _is_count(shots) and int(shots)):
                raise _wrong(f"names {place}, which are not whole numbers from 1, seeds from 0", file)
            checked = _checked(rows, int(shots), labels_N, class_names, file=file, place=place)
            if int(shots) in draws.setdefault(int(seed), {}):
                raise _wrong(f"names {place} twice", file)
            draws[int(seed)][int(shots)] = checked
    if len({tuple(sorted(by_shots)) for by_shots in draws.values()}) > 1:
        raise _wrong("has other numbers of shots for one seed than for another", file)
    return draws


def _checked(
    rows: Any, shots: int, labels_N: np.ndarray, class_names: list[str], *, file: str, place: str
) -> np.ndarray:
    if not isinstance(rows, list) or not all(type(row) is int for row in rows) or not rows:
        raise _wrong("has no list of row numbers", f"{file}, {place}")
    outside = [row for row in rows if not 0 <= row < len(labels_N)]
    if outside:
        raise DataError(
            f"row {outside[0]} is none of the {len(labels_N)} rows of the training split",
            where=f"{file}, {place}",
            fix="repeat these draws on the data set and split they were made of (data.train_split)",
        )
    if len(set(rows)) < len(rows):
        twice = next(row for row in rows if rows.count(row) > 1)
        raise _wrong(f"has row {twice} twice", f"{file}, {place}")
    counts_K = np.bincount(labels_N[rows], minlength=len(class_names))
    for what, wrong_K in (("no row", counts_K == 0), (f"more than {shots} rows", counts_K > shots)):
        if wrong_K.any():
            names = ", ".join(class_names[label] for label in np.flatnonzero(wrong_K)[:5])
            raise DataError(
                f"{wrong_K.sum()} classes have {what} in this draw: {names}",
                where=f"{file}, {place}",
                fix="repeat these draws on the data set and split they were made of (data.train_split)",
            )
    return np.array(rows, dtype=np.int64)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


def _wrong(what: str, where: str) -> DataError:
    return DataError(
        f"the file of draws {what}",
        where=where if "," in where else f"--draws {where}",
        fix='write {"seed": {"shots": [rows of the training split]}}, as draws.json of a run folder has it',
    )
