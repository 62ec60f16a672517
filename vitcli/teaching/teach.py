"""`vit teach` and `vit forget`: images in and out of a closed form, exactly.

teach            adds and removes images, and writes the classifier
check_forgotten  looks for every trace of images (`traces.py`)
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitcli.cache import user_cache
from vitcli.data.dataset import from_section
from vitcli.data.image_files import find_images
from vitcli.data.seen_images import UNREADABLE, digests_of
from vitcli.data.split import Split
from vitcli.data.task import check_supports
from vitcli.errors import CheckFailed, DataError, MachineError, VitError
from vitcli.evaluation.setup import RunSettings
from vitcli.features.statistics import ClosedFormStatistics
from vitcli.output import run_folder, text
from vitcli.output.redaction import public_name
from vitcli.teaching.taught import Taught, check_folder, open_taught, write
from vitcli.teaching.traces import Found, pieces_of, search


@dataclass(frozen=True)
class Changes:
    """What is to be taught and forgotten.

    Attributes:
        add: a folder of class folders or with labels.csv, any other data set, or with `class_name` a file or
            a folder of images; None for nothing.
        class_name: of all images of `add`.
        remove: files and folders of images.
        remove_classes: names.
    """

    add: str | None = None
    class_name: str | None = None
    remove: Sequence[str] = ()
    remove_classes: Sequence[str] = ()


@dataclass
class ChangeCounts:
    """What a command has changed, for its summary."""

    num_added: int = 0
    num_already_there: int = 0
    num_removed: int = 0
    num_not_there: int = 0
    num_skipped_images: int = 0
    skipped_images: Sequence[str] = ()


def teach(ckpt: str, changes: Changes, run: RunSettings, *, in_place: bool, command: str) -> dict[str, Any]:
    """Change what a classifier was taught, and write it; return the object of --json.

    Raises:
        VitError: nothing is to be changed, or the folder cannot take the result.
        DataError: images are of another class already, or none of those to forget was taught.
    """
    began_at = time.perf_counter()
    taught = open_taught(ckpt, run)
    if in_place and taught.folder is None:
        fix = "name a new folder: --out FOLDER; from then on --in-place changes that one"
        raise VitError(f"{ckpt} is not a folder that vit teach has made", where="--in-place", fix=fix)
    name = public_name(changes.add or "images")
    default = (
        taught.folder
        if in_place
        else run_folder.new_folder("teach", name, taught.extractor.network.arch.name)
    )
    out = run.out or default
    check_folder(out, taught, overwrite=run.overwrite)

    # Forget first: what is removed from one class may be taught as another.
    statistics, counts = taught.statistics, ChangeCounts()
    removes = changes.remove or changes.remove_classes
    if removes:
        statistics, gone = _without(taught, changes, counts)
    if changes.add:
        statistics = _with(taught, statistics, changes.add, changes.class_name, counts)
    is_changed = counts.num_added or counts.num_removed or taught.is_unfinished or taught.folder is None
    if not is_changed and not counts.num_already_there:
        raise VitError("nothing is to be changed", where="RUN", fix="name images: --add FOLDER")
    if not len(statistics):
        fix = "teach others with --add in the same command, or delete the folder"
        raise DataError("no image would be left, and a classifier needs one", where="RUN", fix=fix)
    summary = {"command": command, "out": str(out), **asdict(counts)}
    summary = write(taught, statistics, out, summary, overwrite=run.overwrite)
    summary["elapsed_s"] = time.perf_counter() - began_at
    if changes.remove:
        summary["search"] = _purge(search(gone, out), lambda: search(gone, out))
    still = taught.ckpt if removes and out != taught.folder else None
    return summary | {"is_still_in": still, "next": ["vit", "predict", "--ckpt", str(out), "IMAGES"]}


def check_forgotten(
    ckpt: str, images: Sequence[str], run: RunSettings
) -> tuple[dict[str, Any], VitError | None]:
    """Look for traces of images in a taught folder and the cache; an error if there are any."""
    taught = open_taught(ckpt, run)
    split = find_images(images, where="IMAGES")
    found = search(pieces_of(split, taught), Path(ckpt))
    known_N = np.isin(digests_of(split), taught.statistics.digests_N)
    result = {
        "command": "forget",
        "run": ckpt,
        "num_images": len(split),
        "num_taught": int(known_N.sum()),
        "is_unfinished": taught.is_unfinished,
        "search": _as_dict(found),
    }
    problems = []
    if found.traces:
        num_images = len({trace.image for trace in found.traces})
        num_files = len({trace.path for trace in found.traces})
        where = text.count_of(num_files, "file")
        problems.append(f"traces of {num_images} of {len(split)} images are in {where}")
    if taught.is_unfinished:
        problems.append("a command that changed the folder was killed: repeat it")
    if not problems:
        return result, None
    fix = f"vit forget {ckpt} IMAGES --in-place; traces in the cache: vit cache clear features decoded"
    return result, CheckFailed("; ".join(problems), where=ckpt, fix=fix)


def _without(taught: Taught, changes: Changes, counts: ChangeCounts) -> tuple[ClosedFormStatistics, Any]:
    """Return the statistics without images and classes, and the pieces of the images that were named."""
    statistics, pieces = taught.statistics, None
    is_gone_N = np.zeros(len(statistics), dtype=bool)
    for name in changes.remove_classes:
        if name not in statistics.class_names:
            raise DataError(
                f"{name!r} is not a class of {taught.ckpt}",
                where="--class",
                fix=f"one of {text.first_few(statistics.class_names)}",
            )
        is_gone_N |= statistics.labels_N == statistics.class_names.index(name)
    if changes.remove:
        split = find_images(changes.remove, where="IMAGES")
        digests_N = digests_of(split)
        is_there_N = np.isin(digests_N, statistics.digests_N)
        if taught.of_network is not None and (seen_N := np.isin(digests_N, taught.of_network)).any():
            raise DataError(
                f"the network itself was trained on {_places(split, seen_N)}, and cannot forget that",
                where=taught.ckpt,
                fix="train it again without the image, and teach that",
            )
        if not is_there_N.any() and not taught.is_unfinished:
            raise DataError(
                f"{taught.ckpt} was not taught {_places(split, ~is_there_N)}",
                where="IMAGES",
                fix="name the files as they were taught: images are recognised by their bytes",
            )
        is_gone_N |= np.isin(statistics.digests_N, digests_N[is_there_N])
        counts.num_not_there = int((~is_there_N).sum())
        pieces = pieces_of(split, taught)
    counts.num_removed = int(is_gone_N.sum())
    return statistics.without(is_gone_N), pieces


def _with(
    taught: Taught, statistics: ClosedFormStatistics, add: str, class_name: str | None, counts: ChangeCounts
) -> ClosedFormStatistics:
    """Return the statistics with the images of a folder, those that are there already left as they are."""
    split, labels_N, names = _open_images(taught, add, class_name)
    digests_N = digests_of(split)
    classes_of = dict(zip(statistics.digests_N.tolist(), statistics.labels_N.tolist(), strict=True))
    classes_of = {digest: statistics.class_names[label] for digest, label in classes_of.items()}
    is_new_N = np.zeros(len(split), dtype=bool)
    for row, (digest, label) in enumerate(zip(digests_N.tolist(), labels_N.tolist(), strict=True)):
        there = classes_of.get(digest)
        if digest != UNREADABLE and there is not None and there != names[label]:
            raise DataError(
                f"{split.where_is(row)} is an image of {names[label]!r} here, and of {there!r} already",
                where=f"--add {add}",
                fix="remove it first (--remove), or correct its folder",
            )
        is_new_N[row] = there is None
        classes_of.setdefault(digest, names[label])
    counts.num_already_there = int((~is_new_N).sum())
    if not is_new_N.any():
        return statistics
    rows_N, features_ND, skipped = taught.features(split, add, np.flatnonzero(is_new_N))
    added = ClosedFormStatistics.of(features_ND, labels_N[rows_N], digests_N[rows_N], class_names=names)
    counts.num_added = len(added)
    counts.num_skipped_images, counts.skipped_images = len(skipped), skipped[:100]
    return statistics.plus(added)


def _open_images(
    taught: Taught, add: str, class_name: str | None
) -> tuple[Split, np.ndarray, tuple[str, ...]]:
    """Return the images to add, their labels, and the names of the classes."""
    if class_name is not None:
        split = find_images([add], where="--add")
        return split, np.zeros(len(split), dtype=np.int64), (class_name,)
    data = taught.extractor.recipe.data.model_copy(update={"dataset": add, "one_class": True})
    source = from_section(data)
    split = source.open(source.default_train_split() or source.only_split("--add"))
    check_supports("vit teach", split.task, name=split.name, fix="name the class of all images with --class")
    if split.is_large:
        raise DataError(f"{split.name} has too many images", where=f"--add {add}", fix="add a part of them")
    return split, split.read_labels(), tuple(split.readable_class_names)


def _purge(found: Found, again: Any) -> dict[str, Any]:
    """Delete what the cache holds of forgotten images, and return what a second search finds.

    Raises:
        MachineError: another process uses it.
    """
    in_use = [str(entry.path) for entry in found.entries if not user_cache.delete(entry.path)]
    if in_use:
        raise MachineError(
            f"the cache holds images that were forgotten, and another command uses it: {in_use[0]}",
            where="the cache",
            fix="repeat vit forget once that command has ended",
        )
    return _as_dict(again() if found.entries else found) | {"num_deleted_entries": len(found.entries)}


def _as_dict(found: Found) -> dict[str, Any]:
    return {
        "traces": [asdict(trace) for trace in found.traces],
        "unsearched": list(found.unsearched),
        "num_files": found.num_files,
        "num_bytes": found.num_bytes,
    }


def _places(split: Split, which_N: np.ndarray) -> str:
    return text.first_few([split.where_is(row) for row in np.flatnonzero(which_N)])


def as_text(result: dict[str, Any]) -> str:
    """Return the result of a change as text for a terminal."""
    changes = [f"{result[f'num_{word}']:,} {word.replace('_', ' ')}" for word in
               ("added", "removed", "already_there", "not_there") if result[f"num_{word}"]]  # fmt: skip
    accuracy, of_classes = result["left_out_top1"], text.count_of(result["num_classes"], "class", "classes")
    rows = [
        ("changed", ", ".join(changes) or "nothing"),
        ("taught", f"{text.count_of(result['num_examples'], 'image')}, {of_classes}"),
        ("left out", f"{text.percent(accuracy)} top-1, each image predicted by the others"),
        ("folder", result["out"]),
        ("statistics", result["statistics"]),
    ]  # fmt: skip
    if "search" in result:
        rows += _search_rows(result["search"])
    elif result["num_removed"]:
        rows.append(("note", "the cache is not searched for a class: name its images with --check"))
    if result["is_still_in"]:
        rows.append(("note", f"{result['is_still_in']} is as it was: it still holds what was removed"))
    return text.pairs([*rows, *text.skipped(result), *text.commands(result["next"])])


def check_as_text(result: dict[str, Any]) -> str:
    """Return the result of a search as text for a terminal."""
    rows = [
        ("images", f"{result['num_images']:,}, of which {result['num_taught']:,} taught to {result['run']}")
    ]
    rows += _search_rows(result["search"])
    return text.pairs(rows)


def _search_rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    searched = f"{text.count_of(found['num_files'], 'file')}, {text.bytes_text(found['num_bytes'])}"
    rows = [("searched", f"{searched}: the folder and the cache")]
    if deleted := found.get("num_deleted_entries"):
        rows.append(("deleted", f"{deleted} cached sets of images or features, which held them"))
    rows += [
        ("trace", f"{trace['kind']} of {trace['image']} in {trace['path']}") for trace in found["traces"]
    ]
    rows += [] if found["traces"] else [("traces", "none")]
    if found["unsearched"]:
        rows.append(("note", f"pictures cannot be searched: {text.first_few(found['unsearched'])}"))
    return rows
