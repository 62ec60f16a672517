"""`vit compare A B`: the difference of two networks on the same images, from saved predictions."""

from pathlib import Path
from typing import Any

import numpy as np

from vitcli.data.split import base_of
from vitcli.errors import DataError
from vitcli.evaluation import intervals
from vitcli.evaluation.predictions import SavedPredictions, read_predictions

CHANGES_SHOWN = 10


def compare(a_path: str, b_path: str) -> dict[str, Any]:
    """Return the difference B - A in top-1, with a paired interval and the exact McNemar test.

    Raises:
        DataError: a file holds no predictions, or the two differ in rows, labels or classes.
    """
    # Two files of the same images, labels and classes.
    a, b = read_predictions(a_path), read_predictions(b_path)
    fix = "evaluate both checkpoints on the same split, with the same --classes"
    if not len(a.rows_N):
        raise DataError("there are no predictions to compare", where=a.path, fix=fix)
    difference = _difference(a, b)
    if difference:
        where = f"{a.path} and {b.path}"
        of_a, of_b = (file.about.get("dataset") for file in (a, b))
        if of_a and of_b and Path(of_a).name != Path(of_b).name:
            message = f"the two files are of different data sets, {of_a} and {of_b}"
            raise DataError(message, where=where, fix=fix)
        raise DataError(
            f"the two files have different {difference}", where=where, fix=_common_images(a, b) or fix
        )
    # Counts of examples by which network has them right.
    is_right_a, is_right_b = a.ranks_N == 0, b.ranks_N == 0
    count = len(a.rows_N)
    only_a, only_b = int((is_right_a & ~is_right_b).sum()), int((~is_right_a & is_right_b).sum())
    both, neither = int((is_right_a & is_right_b).sum()), int((~is_right_a & ~is_right_b).sum())
    return {
        "command": "compare",
        "a": _file_entry(a, is_right_a),
        "b": _file_entry(b, is_right_b),
        "eval_split": a.about.get("eval_split"),
        "num_examples": count,
        "difference": (only_b - only_a) / count,
        "interval": list(intervals.paired_interval(only_a, only_b, count)),
        "mcnemar_p": intervals.mcnemar(only_a, only_b),
        "counts": {"both": both, "only_a": only_a, "only_b": only_b, "neither": neither},
        "per_class": _changes(a, is_right_a, is_right_b),
    }


def _common_images(a: SavedPredictions, b: SavedPredictions) -> str:
    """Return how to score the same images with both, where a file is of those that its run held out."""
    cuts = [cut for cut in (a.about.get("dev_cut"), b.about.get("dev_cut")) if isinstance(cut, dict)]
    if not cuts:
        return ""
    split = base_of(str(cuts[0].get("split")))
    scored = "vit evaluate --ckpt A --ckpt B --out BOTH --split"
    then = "; then vit compare BOTH/1 BOTH/2"
    # A file without a cut is of a split of its own, such as test.
    for file in (a, b):
        other = str(file.about.get("eval_split")).rpartition(", split ")[2].partition(", ")[0]
        if not file.about.get("dev_cut") and not {*other.split("+")} & {*split.split("+")}:
            return f"score images that neither run was trained on: {scored} {other}{then}"
    return (
        f"each run held out images of its own: {scored} {split} scores all of the data set with both{then}; "
        "a --dataset of images that neither was trained on is fairer"
    )


def _difference(a: SavedPredictions, b: SavedPredictions) -> str | None:
    """Return in words which images, labels or classes of two files differ; None if they are the same."""
    if not np.array_equal(a.rows_N, b.rows_N):
        only_a, only_b = np.setdiff1d(a.rows_N, b.rows_N), np.setdiff1d(b.rows_N, a.rows_N)
        return f"rows: {len(only_a)} are only in the first, {len(only_b)} only in the second"
    # Rows of a slice are counted from its start, so only places distinguish two slices or two data sets.
    places = zip(a.places, b.places, strict=True)
    pairs = [pair for pair in places if Path(pair[0]).name != Path(pair[1]).name]
    if pairs:
        return f"images in {len(pairs)} of {len(a.places)} rows, first {' and '.join(pairs[0])}"
    if a.about.get("class_names") != b.about.get("class_names"):
        return "classes"
    labels = zip(a.rows_N.tolist(), a.labels_N, b.labels_N, strict=True)
    rows = [row for row, label_a, label_b in labels if label_a != label_b]
    return f"labels in {len(rows)} rows, first in row {rows[0]}" if rows else None


def _file_entry(saved: SavedPredictions, is_right_N: np.ndarray) -> dict[str, Any]:
    about = {key: saved.about.get(key) for key in ("ckpt", "model", "resolution")}
    return {"file": saved.path, **about, "top1": int(is_right_N.sum()) / len(is_right_N)}


def _changes(a: SavedPredictions, is_right_a: np.ndarray, is_right_b: np.ndarray) -> list[dict[str, Any]]:
    """Return the classes whose top-1 changed most; of equal changes, the class with more images first."""
    if any(isinstance(label, tuple) for label in a.labels_N):
        return []
    labels_N, names = np.array(a.labels_N), a.about["class_names"]
    counts_K = np.bincount(labels_N, minlength=len(names))
    right_a_K, right_b_K = (
        np.bincount(labels_N, weights=right, minlength=len(names)) for right in (is_right_a, is_right_b)
    )
    gains_K = (right_b_K - right_a_K) / np.maximum(counts_K, 1)
    changed = sorted(np.flatnonzero(gains_K), key=lambda label: (-abs(gains_K[label]), -counts_K[label]))
    return [
        {
            "class": names[label],
            "num_examples": int(counts_K[label]),
            "a": float(right_a_K[label] / counts_K[label]),
            "b": float(right_b_K[label] / counts_K[label]),
            "difference": float(gains_K[label]),
        }
        for label in changed[:CHANGES_SHOWN]
    ]
