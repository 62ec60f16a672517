"""`vit datasets check --labels`: the check of the images, then labels that the features contradict."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from vitcli.data import dataset
from vitcli.data.checks import check, findings
from vitcli.data.checks.check import CheckOptions
from vitcli.data.checks.classes import read_labels
from vitcli.data.checks.near_duplicates import SplitName, index_to_train, open_splits
from vitcli.data.seen_images import SeenImages
from vitcli.data.split import Split
from vitcli.errors import DataError, VitError
from vitcli.evaluation.mistakes import places_of
from vitcli.evaluation.setup import RunSettings, read_checkpoint
from vitcli.features import suspect_files
from vitcli.features.extract import FeatureExtractor, extract, open_extractor
from vitcli.features.feature_store import open_cached
from vitcli.features.suspects import (
    LEAST_KNOWN,
    NAMED_BELOW,
    LabelProbabilities,
    find_suspects,
    nearest_rows,
)
from vitcli.output.atomic import check_out
from vitcli.recipe.reading import size_words
from vitcli.recipe.request import RecipeRequest
from vitcli.recipe.schema import Data

LISTED = 20  # in --json and on the page at the least, named or not
MOST_LISTED = 100
NUM_NEIGHBOURS = 5
CSV, PAGE = ".csv", ".html"


def check_with_labels(
    name: SplitName, against: SplitName, request: RecipeRequest, run: RunSettings, options: CheckOptions
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
    recipe = request.load()
    split = _open_labelled(name, against, recipe.data)
    weights = read_checkpoint(recipe, quiet=run.quiet)
    extractor = open_extractor(weights, recipe, request, run)

    result = check.check(name, against, recipe.data, options)
    suspects, listed = _suspects(extractor, split)
    files = {"out": None, "page": None}
    if run.out:
        files = {"out": str(run.out), "page": str(run.out.with_suffix(PAGE))}
        suspect_files.write_csv(run.out, suspects.pop("rows"))
        suspect_files.write_page(run.out.with_suffix(PAGE), split, suspects | {"listed": listed})
    suspects.pop("rows", None)
    result["suspects"] = suspects | {"listed": listed} | files
    result["findings"] = findings.find(result)
    result["reading"] += size_words(request.given)
    return result


def _open_labelled(name: SplitName, against: SplitName, section: Data) -> Split:
    """Open the split that a run would train on, with its labels."""
    opened = open_splits(name, against, section)
    part = opened[index_to_train(opened, against)]
    labels, _ = read_labels(part.data, part.name, len(part.split))
    if labels and labels.has_numbers:
        fix = "leave --labels and --ckpt out: they compare classes"
        raise DataError(f"{part.split.name} has a number to predict", where="--labels", fix=fix)
    split = dataset.from_section(part.data).open(part.name)
    if split.has_several_labels:
        fix = "name a column of one label with --set data.label_column=NAME"
        raise DataError(f"the rows of {split.name} have several labels each", where="--labels", fix=fix)
    if not split.has_labels:
        fix = "leave --labels and --ckpt out, or put the images into class folders"
        raise DataError(f"the images of {split.name} have no labels", where="--labels", fix=fix)
    if split.is_large:
        fix = "leave --labels and --ckpt out, or name a part: --split train[:10%] --against-split train[:10%]"
        raise DataError(f"{split.name} has too many labels to read them first", where="--labels", fix=fix)
    return split


def _suspects(extractor: FeatureExtractor, split: Split) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the facts of the labels with a record of each image, and the first images with neighbours."""
    computed = extract(extractor, split, np.arange(len(split)), open_cached, with_logits=False)
    extractor.settings.runtime.shutdown()
    try:
        rows_N = np.flatnonzero(computed.store.has(np.arange(len(split))))
        if not len(rows_N):
            raise DataError(f"no image of {split.name} can be read", where="--labels", fix="check its files")
        features_ND = computed.store.read(rows_N)["features"]
    finally:
        computed.store.close()
    seen = SeenImages.of(extractor.weights.metadata)
    labels_N, groups_N = split.read_labels()[rows_N], split.rows(rows_N).groups_N
    found = find_suspects(features_ND, labels_N, num_classes=split.num_classes, groups_N=groups_N)

    num_listed = min(len(found.rows_N), MOST_LISTED, max(found.num_named, LISTED))
    first = found.rows_N[:num_listed]
    nearest_MN = nearest_rows(features_ND, first, count=NUM_NEIGHBOURS, groups_N=groups_N)
    names = split.class_names or tuple(f"class {label}" for label in range(split.num_classes))
    places = places_of(split, rows_N)
    records = _records(found, rows_N, [names[label] for label in labels_N], names, places)
    listed = [
        record | {"neighbours": [
            {"row": int(rows_N[i]), "place": places[i], "label": names[labels_N[i]]} for i in nearest
        ]}
        for record, nearest in zip(records, nearest_MN, strict=False)
    ]  # fmt: skip
    return {
        "ckpt": extractor.recipe.model.ckpt,
        "model": extractor.arch.name,
        "split": split.name,
        "num_checked": len(found.rows_N),
        "num_only_of_class": len(rows_N) - len(found.rows_N),
        "num_named": found.num_named,
        "are_classes_known": found.top1 >= LEAST_KNOWN,
        "num_trained_on": seen.num_trained_on(split),
        "named_below": NAMED_BELOW,
        "l2": found.l2,
        "top1": found.top1,
        "cached_rows": computed.num_cached,
        "computed_rows": computed.num_computed,
        "rows": records,
    }, listed


def _records(
    found: LabelProbabilities,
    rows_N: np.ndarray,
    labels: Sequence[str],
    names: Sequence[str],
    places: Sequence[str],
) -> list[dict[str, Any]]:
    """Return a record of each image whose label was checked, the most suspicious first."""
    return [
        {
            "named": rank < found.num_named,
            "row": int(rows_N[i]),
            "place": places[i],
            "label": labels[i],
            "probability": float(found.label_N[rank]),
            "other": names[found.other_N[rank]],
            "other_probability": float(found.other_probability_N[rank]),
            "margin": float(found.margin_N[rank]),
        }
        for rank, i in enumerate(found.rows_N.tolist())
    ]
