"""`vit datasets check` without `--labels`: one look at the images of a data set before training.

Every image is read once. Copies are searched for within each split and between any two; sizes and labels are
counted.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from vitcli.data.checks import findings
from vitcli.data.checks.near_duplicates import (
    DuplicatePairs,
    ExaminedSplit,
    NamedSplit,
    SplitName,
    index_to_train,
    open_splits,
)
from vitcli.data.checks.splits import describe_labels, describe_sizes, read_labels
from vitcli.data.parts.image_hashes import hash_images
from vitcli.data.sources.class_folders import alike_classes
from vitcli.data.sources.folders import union
from vitcli.io.credentials import without_credentials
from vitcli.output.atomic import check_out, replace_file
from vitcli.output.progress import Progress
from vitcli.recipe.reading import reading_words
from vitcli.recipe.schema import Data

# Of a split: all pairs of its images take 3 s with 100,000 images, and 9 minutes with those of ImageNet.
MOST_WITHIN = 100_000


@dataclass(frozen=True)
class CheckOptions:
    """How a data set is checked.

    Attributes:
        distance: perceptual hashes that differ in at most this many of their 64 bits count as near.
        pairs_out: a CSV file for all pairs of the first two splits.
    """

    distance: int
    pairs_out: Path | None = None
    overwrite: bool = False
    num_threads: int | None = None
    quiet: bool = False


def check(
    name: SplitName, against: SplitName, section: Data, options: CheckOptions
) -> tuple[dict[str, Any], ExaminedSplit]:
    """Find duplicates, leaks and bad labels; images that cannot be read are listed and left out.

    Args:
        name: whose test split is checked by default.
        against: another data set (None: the same), whose train split is searched by default.
        section: the columns of the data set and what else a recipe says of it.

    Returns:
        The object of --json, and the split that a run would train on.
    """
    if options.pairs_out:
        check_out(options.pairs_out, overwrite=options.overwrite)
    began_at = time.perf_counter()
    opened = open_splits(name, against, section)
    progress = Progress(quiet=options.quiet)
    for line in dict.fromkeys(line for part in opened for line in part.split.lines):
        progress.note(line)
    examined = [_examined(part, options, progress) for part in opened]
    # Compare all pairs, and write those of the first two splits while they are counted.
    compared = list(_compared(examined, is_named="auto" not in (name.split, against.split), options=options))
    for pairs in compared:
        if options.pairs_out and pairs is compared[0]:
            replace_file(options.pairs_out, pairs.write)
        else:
            pairs.count()
    trained = examined[index_to_train(examined, against)]
    result = _result(examined, compared, trained=trained)
    result |= {"distance": options.distance, "findings": findings.find(result)}
    result["pairs_file"] = str(options.pairs_out) if options.pairs_out else None
    return result | {"elapsed_s": time.perf_counter() - began_at}, trained


def _examined(part: NamedSplit, options: CheckOptions, progress: Progress) -> ExaminedSplit:
    """Read all images of a split, and its labels."""
    with progress.bar(f"reading {part.split.name}", len(part.split)):
        hashes = hash_images(part.split, num_threads=options.num_threads, progress=progress.update)
    return ExaminedSplit(*part, hashes, *read_labels(part.data, part.name, len(part.split)))


def _compared(
    examined: Sequence[ExaminedSplit], *, is_named: bool, options: CheckOptions
) -> Iterator[DuplicatePairs]:
    """Return the pairs between any two splits, the first two first, then those within each."""
    for one, other in combinations(examined, 2):
        yield DuplicatePairs(one, other, options.distance)
    for one in examined:
        if len(one.split) <= MOST_WITHIN or (len(examined) == 1 and is_named):
            yield DuplicatePairs(one, one, options.distance)


def _result(
    examined: Sequence[ExaminedSplit], compared: Sequence[DuplicatePairs], *, trained: ExaminedSplit
) -> dict[str, Any]:
    """Return the object of --json, without findings and times."""
    one, other = examined[0], examined[min(1, len(examined) - 1)]
    comparisons = [
        {
            "split": pairs.one.split.name,
            "against": pairs.other.split.name,
            "within": pairs.within,
            "num_images": len(pairs.one.split),
            **pairs.result(),
        }
        for pairs in compared
    ]
    class_names = [name for part in examined for name in (part.labels.class_names if part.labels else ())]
    return {
        "command": "datasets check",
        "dataset": without_credentials(one.data.dataset or ""),
        "reading": reading_words(one.data.model_copy(update={"on_bad_image": "error"})),
        "split": one.split.name,
        "against": other.split.name,
        "num_images": len(one.split),
        "num_against": len(other.split),
        **_of_first(comparisons),
        "comparisons": comparisons,
        "splits": [
            {
                "split": part.split.name,
                "num_images": len(part.split),
                "is_trained_on": part is trained,
                "sizes": describe_sizes(part.split, part.hashes),
                "labels": describe_labels(part.labels),
                "no_labels": part.no_labels and part.no_labels.reason,
                "labels_stop": bool(part.no_labels and part.no_labels.stops),
            }
            for part in examined
        ],
        "alike_classes": alike_classes(class_names),
        "unreadable": [place for part in examined for place in part.hashes.unreadable],
        **union(part.split.left_out for part in examined).summary(),
    }


def _of_first(comparisons: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return counts and closest pairs of the first comparison; zeros of a single split that is too large."""
    keys = ("num_same_file", "num_same_pixels", "num_near", "num_images_exact", "num_images_near", "pairs")
    if not comparisons:
        return dict.fromkeys(keys[:-1], 0) | {"pairs": []}
    return {key: comparisons[0][key] for key in keys}
