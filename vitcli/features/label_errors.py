"""`vit datasets check --labels`: the check of the images, then labels that the other images contradict.

The score of an image is what the closed form predicts for it when it, or its group, is left out
(`least_squares.left_out_scores`), at the l2 of the highest leave-one-out accuracy; copies are a group, unless
others are asked for. The probability of a class follows from how the left-out scores of its images lie:

    m_k     = (n_k mean of the left-out scores of class k + PRIOR ideal_k) / (n_k + PRIOR)
    logit_k = t (s_i m_k - |m_k|^2 / 2)        t: one inverse temperature, by maximum likelihood

These are Gaussian classes of one width around m_k. A class that is often mistaken for another one has a mean
that says so; ideal_k has the mean of all scores of the own class at k and that of all others elsewhere, which
gives back the calibrated scores of the closed form where a class has few images. The label of an image is
suspicious as its probability is small.

The probabilities are of labels, wrong ones included: with 5 % of wrong labels a correct one has 95 % at most.

N rows, D features, K classes, M neighbours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitcli.data import dataset
from vitcli.data.checks import check, findings
from vitcli.data.checks.check import CheckOptions
from vitcli.data.checks.near_duplicates import SplitName, index_to_train, open_splits
from vitcli.data.checks.splits import read_labels
from vitcli.data.parts.groups import groups_of_copies
from vitcli.data.seen_images import SeenImages
from vitcli.data.split import Grouping, Split
from vitcli.data.task import Task, check_supports
from vitcli.errors import DataError, VitError
from vitcli.evaluation.calibration.scaling import softmax_scale
from vitcli.evaluation.mistakes import places_of, thumbnail_of
from vitcli.evaluation.setup import RunSettings, read_checkpoint
from vitcli.features.extract import FeatureExtractor, features_of_rows, open_extractor
from vitcli.features.least_squares import (
    SWEEP,
    at_best_l2,
    has_others,
    left_out_accuracies,
    left_out_scores,
    solve,
)
from vitcli.output import html
from vitcli.output.atomic import check_out, write_text
from vitcli.output.document import PageFigure
from vitcli.output.text import count_of, csv_text, short_paths
from vitcli.recipe import Recipe
from vitcli.recipe.group_rule import NEAR_DUPLICATES
from vitcli.recipe.reading import size_words
from vitcli.recipe.schema import Data

PRIOR = 50.0  # images that the ideal mean of a class counts as
NAMED_BELOW = 0.05  # probability of a label below which it is named as suspicious
LEAST_KNOWN = 0.8  # leave-one-out accuracy below which features know the classes too badly to judge a label
STRENGTHS = SWEEP[::2]
MOST_SIMILARITIES = 2**24  # float64 values: 128 MB
LISTED = 20  # in --json and on the page at the least, named or not
MOST_LISTED = 100
NUM_NEIGHBOURS = 5
CSV, PAGE = ".csv", ".html"
COLUMNS = (
    "named", "row", "place", "label", "probability", "other", "other_probability", "margin",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class LabelProbabilities:
    """What the other images say about the label of each image.

    Attributes:
        rows_N: all rows whose class has another row, or another group; the most suspicious first. Only these
            have a number.
        label_N: probability of the label of each of `rows_N`.
        other_N: the most probable of the other classes.
        margin_N: left-out score of the label minus the highest of another class, before calibration.
        num_named: how many of `rows_N`, from the first, are named as suspicious; none by features that do not
            know the classes, see LEAST_KNOWN.
        l2, top1: strength that was chosen, and its leave-one-out accuracy.
    """

    rows_N: np.ndarray
    label_N: np.ndarray
    other_N: np.ndarray
    other_probability_N: np.ndarray
    margin_N: np.ndarray
    num_named: int
    l2: float
    top1: float


def check_with_labels(
    name: SplitName, against: SplitName, recipe: Recipe, run: RunSettings, options: CheckOptions
) -> dict[str, Any]:
    """Return what `check.check` does, and "suspects": labels by their probability according to the others.

    Args:
        run: its `out` is a .csv file for the labels of all images; a page lies beside it.

    Raises:
        DataError: the images have no labels, several labels each, or a number.
    """
    if run.out:
        check_out(run.out, overwrite=run.overwrite, suffixes=(CSV,), folder_error=VitError)
        check_out(run.out.with_suffix(PAGE), overwrite=run.overwrite)
    # Labels and weights that cannot be used are refused before all images are read.
    split = _open_labelled(name, against, recipe.data)
    extractor = open_extractor(read_checkpoint(recipe, quiet=run.quiet), recipe, run)

    result, trained = check.check(name, against, recipe.data, options)
    if split.grouping is None and len(split) == len(trained.split) <= check.MOST_WITHIN:
        # Copies by the hashes of the check, so that no image is read again.
        (copies_N,) = groups_of_copies([trained.hashes], [len(split)], distance=options.distance)
        if len(np.unique(copies_N)) < len(split) and has_others(split.read_labels(), copies_N).any():
            split = replace(split, grouping=Grouping(NEAR_DUPLICATES, lambda: copies_N))
    suspects, listed = _suspects(extractor, split)
    files = {"out": None, "page": None}
    if run.out:
        files = {"out": str(run.out), "page": str(run.out.with_suffix(PAGE))}
        # A line for each image, the most suspicious label first; yes and no are 1 and 0.
        rows = [record.values() for record in suspects.pop("rows")]
        lines = [[int(cell) if isinstance(cell, bool) else cell for cell in row] for row in rows]
        write_text(run.out, csv_text([COLUMNS, *lines]))
        write_page(run.out.with_suffix(PAGE), split, suspects | {"listed": listed})
    suspects.pop("rows", None)
    result["suspects"] = suspects | {"listed": listed} | files
    result["findings"] = findings.find(result)
    result["reading"] += size_words(recipe.given)
    return result


def _open_labelled(name: SplitName, against: SplitName, section: Data) -> Split:
    """Open the split that a run would train on, with its labels."""
    opened = open_splits(name, against, section)
    part = opened[index_to_train(opened, against)]
    labels, _ = read_labels(part.data, part.name, len(part.split))
    if labels and labels.has_numbers:
        fix = "leave --labels and --ckpt out: they compare classes"
        check_supports("--labels", Task.NUMBER, name=part.split.name, fix=fix)
    split = dataset.from_section(part.data).open(part.name)
    fix = "name a column of one label with --set data.label_column=NAME"
    check_supports("--labels", split.task, name=split.name, fix=fix)
    if not split.has_labels:
        fix = "leave --labels and --ckpt out, or put the images into class folders"
        raise DataError(f"the images of {split.name} have no labels", where="--labels", fix=fix)
    if split.is_large:
        fix = "leave --labels and --ckpt out, or name a part: --split train[:10%] --against-split train[:10%]"
        raise DataError(f"{split.name} has too many labels to read them first", where="--labels", fix=fix)
    return split


def _suspects(extractor: FeatureExtractor, split: Split) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the facts of the labels with a record of each image, and the first images with neighbours."""
    rows_N, features_ND, computed = features_of_rows(extractor, split, np.arange(len(split)))
    extractor.network.settings.runtime.shutdown()
    if not len(rows_N):
        raise DataError(f"no image of {split.name} can be read", where="--labels", fix="check its files")
    seen = SeenImages.of(extractor.network.weights.metadata)
    labels_N, groups_N = split.read_labels()[rows_N], split.rows(rows_N).groups_N
    found = find_suspects(features_ND, labels_N, num_classes=split.num_classes, groups_N=groups_N)

    num_listed = min(len(found.rows_N), MOST_LISTED, max(found.num_named, LISTED))
    first = found.rows_N[:num_listed]
    nearest_MN = nearest_rows(features_ND, first, count=NUM_NEIGHBOURS, groups_N=groups_N)
    names = split.readable_class_names
    places = places_of(split, rows_N)
    records = [
        {
            "named": rank < found.num_named,
            "row": int(rows_N[i]),
            "place": places[i],
            "label": names[labels_N[i]],
            "probability": float(found.label_N[rank]),
            "other": names[found.other_N[rank]],
            "other_probability": float(found.other_probability_N[rank]),
            "margin": float(found.margin_N[rank]),
        }
        for rank, i in enumerate(found.rows_N.tolist())
    ]
    listed = [
        record | {"neighbours": [
            {"row": int(rows_N[i]), "place": places[i], "label": names[labels_N[i]]} for i in nearest
        ]}
        for record, nearest in zip(records, nearest_MN, strict=False)
    ]  # fmt: skip
    return {
        "ckpt": extractor.recipe.model.ckpt,
        "model": extractor.network.arch.name,
        "split": split.name,
        "num_checked": len(found.rows_N),
        "num_only_of_class": len(rows_N) - len(found.rows_N),
        "num_named": found.num_named,
        "are_classes_known": found.top1 >= LEAST_KNOWN,
        "leaves_copies_out": split.grouping is not None and split.grouping.rule == NEAR_DUPLICATES,
        "num_trained_on": seen.num_trained_on(split),
        "named_below": NAMED_BELOW,
        "l2": found.l2,
        "top1": found.top1,
        "cached_rows": computed.num_cached,
        "computed_rows": computed.num_computed,
        "rows": records,
    }, listed


def find_suspects(
    features_ND: np.ndarray, labels_N: np.ndarray, *, num_classes: int, groups_N: np.ndarray | None
) -> LabelProbabilities:
    """Return the probability of every label by all other images.

    Args:
        groups_N: of each row, whose images say nothing about each other; None without groups.

    Raises:
        DataError: fewer than two classes have an image, no class has two, or a feature is not finite.
    """
    num_classes_here = len(np.unique(labels_N))
    if num_classes_here < 2 or not has_others(labels_N, groups_N).any():
        most = np.bincount(labels_N).max()
        of_one = " of one group each" if groups_N is not None else ""
        raise DataError(
            f"{num_classes_here} classes of at most {most} images{of_one} say nothing about a label",
            where="the labels",
            fix="take data of two classes or more, and of several images in each",
        )
    # Exact left-out scores, of the rows whose class is known without them.
    solution = solve(features_ND, labels_N, num_classes=num_classes, l2=STRENGTHS, groups_N=groups_N)
    solution = at_best_l2(solution)
    rows_N = np.flatnonzero(solution.is_scored_N)
    scores_NK = left_out_scores(solution)[rows_N]
    (top1,) = left_out_accuracies(solution).tolist()
    return by_left_out_scores(rows_N, scores_NK, labels_N[rows_N], l2=solution.l2[0], top1=top1)


def by_left_out_scores(
    rows_N: np.ndarray, scores_NK: np.ndarray, labels_N: np.ndarray, *, l2: float, top1: float
) -> LabelProbabilities:
    """Return the probability of the labels of some rows, each by scores of which it was left out.

    Args:
        l2, top1: of the solution, and its leave-one-out accuracy.
    """
    # Probabilities, and how the label compares with the top other class.
    scores_NK, log_NK = scores_NK.copy(), log_probabilities(scores_NK, labels_N)
    every = np.arange(len(rows_N))
    label_N, score_N = log_NK[every, labels_N].copy(), scores_NK[every, labels_N].copy()
    log_NK[every, labels_N] = scores_NK[every, labels_N] = -np.inf
    other_N = log_NK.argmax(axis=1)
    order_N = np.argsort(label_N, kind="stable")
    return LabelProbabilities(
        rows_N=rows_N[order_N],
        label_N=np.exp(label_N[order_N]),
        other_N=other_N[order_N],
        other_probability_N=np.exp(log_NK[every, other_N][order_N]),
        margin_N=(score_N - scores_NK.max(axis=1))[order_N],
        num_named=int((label_N < np.log(NAMED_BELOW)).sum()) if top1 >= LEAST_KNOWN else 0,
        l2=l2,
        top1=top1,
    )


def log_probabilities(scores_NK: np.ndarray, labels_N: np.ndarray) -> np.ndarray:
    """Return the log probability of each class (N, K) from left-out scores; see the top of the file.

    A class without a row keeps its ideal mean.
    """
    num_classes = scores_NK.shape[1]
    is_own_KK = np.eye(num_classes, dtype=bool)
    counts_K1 = np.bincount(labels_N, minlength=num_classes)[:, None]
    sums_KK = np.zeros((num_classes, num_classes))
    np.add.at(sums_KK, labels_N, scores_NK)
    means_KK = sums_KK / np.maximum(counts_K1, 1)
    # The mean score of the own class and of another one, over the classes that have rows.
    has_rows_K = counts_K1[:, 0] > 0
    own = means_KK[is_own_KK][has_rows_K].mean()
    other = means_KK[has_rows_K][~is_own_KK[has_rows_K]].mean()
    ideal_KK = np.where(is_own_KK, own, other)
    means_KK = (counts_K1 * means_KK + PRIOR * ideal_KK) / (counts_K1 + PRIOR)

    logits_NK = scores_NK @ means_KK.T - np.square(means_KK).sum(axis=1) / 2
    scale = softmax_scale(logits_NK, labels_N)
    logits_NK = scale * (logits_NK - logits_NK.max(axis=1, keepdims=True))
    return logits_NK - np.log(np.exp(logits_NK).sum(axis=1, keepdims=True))


def nearest_rows(
    features_ND: np.ndarray, rows: Sequence[int], *, count: int, groups_N: np.ndarray | None
) -> np.ndarray:
    """Return the rows of the M = `count` images most similar to each of `rows`, by cosine, (len(rows), M).

    An image is not a neighbour of itself, nor of those of its group; M is smaller where fewer are left.
    """
    directions_ND = np.asarray(features_ND, dtype=np.float64)
    norms_N1 = np.linalg.norm(directions_ND, axis=1, keepdims=True)
    directions_ND = directions_ND / np.maximum(norms_N1, np.finfo(np.float64).tiny)
    rows = np.asarray(rows, dtype=np.int64)
    groups_N = np.arange(len(directions_ND)) if groups_N is None else groups_N
    largest = np.unique(groups_N, return_counts=True)[1].max()
    count = min(count, len(directions_ND) - largest)
    found = [np.empty((0, count), dtype=np.int64)]
    for part in np.array_split(rows, -(-len(rows) * len(directions_ND) // MOST_SIMILARITIES) or 1):
        cosine_MN = directions_ND[part] @ directions_ND.T
        cosine_MN[groups_N[part, None] == groups_N] = -np.inf
        found.append(np.argsort(-cosine_MN, axis=1, kind="stable")[:, :count])
    return np.concatenate(found)


def write_page(path: Path, split: Split, suspects: Mapping[str, Any]) -> None:
    """Write the page: each image with its label, what the others say, and the most similar images."""
    listed, num_named = suspects["listed"], suspects["num_named"]
    places = [each["place"] for one in listed for each in (one, *one["neighbours"])]
    short = dict(zip(places, short_paths(places), strict=True))
    rows = [_row(split, one, short) for one in listed]
    parts = {
        "Suspicious labels": (
            rows[:num_named],
            f"Images whose label has a probability below {suspects['named_below']:.0%} according to all "
            "other images, the least probable first. Each is followed by the images most like it; a label "
            "that differs from that of the first image is in bold.",
        ),
        "The next ones": (
            rows[num_named:],
            "Not named as suspicious: the labels with the next smallest probabilities.",
        ),
    }
    figures = [
        PageFigure(section, caption, html.image_rows(some), is_wide=True)
        for section, (some, caption) in parts.items()
        if some
    ]
    facts = [
        f"{num_named:,} of {count_of(suspects['num_checked'], 'label')} suspicious",
        suspects["split"],
        f"features of {suspects['model']} ({suspects['ckpt']})",
        f"leave-one-out accuracy {suspects['top1']:.1%}",
    ]
    notes = [
        f"Probabilities by leave-one-out of regularised least squares, l2 {suspects['l2']:g}.",
        "Copies of an image are left out with it." if suspects["leaves_copies_out"] else "",
        f"{num_named - len(listed):,} more are in the .csv file." if num_named > len(listed) else "",
    ]
    page = html.page(
        [],
        figures,
        title="Which labels are wrong?",
        summary=facts,
        notes=[note for note in notes if note],
        command="vit datasets check --labels",
    )
    write_text(path, page)


def _row(split: Split, one: Mapping[str, Any], short: Mapping[str, str]) -> html.ImageRow:
    """Return an image and the images most like it, with lines of text."""
    lines = (
        f"label: {one['label']} ({one['probability']:.1%})",
        f"others: {one['other']} ({one['other_probability']:.0%})",
        short[one["place"]],
    )
    first = html.CaptionedImage(thumbnail_of(split, one["row"]), f"labelled {one['label']}", lines)
    like = [
        html.CaptionedImage(
            thumbnail_of(split, each["row"]),
            f"similar image, labelled {each['label']}",
            (each["label"], short[each["place"]]),
            is_marked=each["label"] != one["label"],
        )
        for each in one["neighbours"]
    ]
    return html.ImageRow(first, tuple(like))
