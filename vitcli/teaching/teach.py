"""`vit teach` and `vit forget`: images in and out of a closed form, exactly.

teach            adds and removes images, and writes the classifier
check_forgotten  looks for every trace of images (`traces.py`)
"""

import shlex
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
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
from vitcli.output.atomic import TEMPORARY
from vitcli.output.owned_folder import refuse_other
from vitcli.output.redaction import public_name
from vitcli.output.run_folder import CLOSED_FORM, WEIGHTS
from vitcli.teaching.labels_file import class_named
from vitcli.teaching.taught import FILES, Taught, claim, folder_of_weights, open_taught, write
from vitcli.teaching.traces import CACHES, Pieces, pieces_of, search

CHANGES = ("added", "removed", "already_there", "not_there")


@dataclass(frozen=True)
class Changes:
    """What is to be taught and forgotten.

    Attributes:
        add: a folder of class folders or with labels.csv, any other data set, or with `class_name` a file or
            a folder of images; None for nothing.
        class_name: of all images of `add`.
        remove: files and folders of images.
    """

    add: str | None = None
    class_name: str | None = None
    remove: Sequence[str] = ()
    remove_classes: Sequence[str] = ()


def teach(ckpt: str, changes: Changes, run: RunSettings, *, in_place: bool, command: str) -> dict[str, Any]:
    """Change what a classifier was taught, and write it; return the object of --json.

    Raises:
        VitError: nothing is to be changed, or the folder cannot take the result.
        DataError: images are of another class already, or none of those to forget was taught.
        MachineError: another process writes the folder, or uses what the cache holds.
    """
    began_at, removes = time.perf_counter(), bool(changes.remove or changes.remove_classes)
    start = folder_of_weights(ckpt)
    in_place = in_place or (run.out is not None and run.out.resolve() == start.resolve())
    with ExitStack() as held:
        if in_place:  # before it is read: what another command changes meanwhile would be lost
            if not all((start / name).is_file() for name in (CLOSED_FORM, WEIGHTS)):
                fix = "name a new folder: --out FOLDER; from then on --in-place changes that one"
                what = f"{start} is not a folder that vit teach has made"
                raise VitError(what, where="--in-place", fix=fix)
            claim(start, held)
        taught = open_taught(ckpt, run)
        out = start if in_place else run.out
        if out is None:
            name = public_name(changes.add or "images")
            out = run_folder.new_folder("teach", name, taught.extractor.network.arch.name)
        if not in_place:
            claim(out, held)

        # Forget first: what is removed from one class may be taught as another.
        statistics, counts, pieces, skipped = taught.statistics, Counter[str](), None, list[str]()
        if removes:
            statistics, counts, pieces = _without(taught, changes)
        if changes.add:
            statistics, added, skipped = _with(taught, statistics, changes.add, changes.class_name)
            counts.update(added)
        _check_result(taught, statistics, changes, out, overwrite=run.overwrite)
        summary = {"command": command, "out": str(out), **{f"num_{what}": counts[what] for what in CHANGES}}
        summary |= {"num_skipped_images": len(skipped), "skipped_images": skipped[:100]}
        num_deleted = _empty_cache() if removes else 0
        summary = write(taught, statistics, out, summary)
        if removes:
            summary |= {"num_deleted_entries": num_deleted}
        if pieces:
            summary |= {"search": asdict(search(pieces, out))}
    next_line = ["vit", "predict", "--ckpt", str(out), "IMAGES"]
    summary |= {"is_still_in": ckpt if removes and not in_place else None, "next": next_line}
    return summary | {"elapsed_s": time.perf_counter() - began_at}


def check_forgotten(ckpt: str, images: Sequence[str], run: RunSettings) -> dict[str, Any]:
    """Look for traces of images in a taught folder or a few-shot run, and in the cache."""
    if not (Path(ckpt) / CLOSED_FORM).is_file():
        fix = "name a folder of vit teach, or of a run of vit fewshot"
        raise VitError(f"{ckpt} has no statistics of a closed form to check", where="RUN", fix=fix)
    taught, split = open_taught(ckpt, run), find_images(images, where="IMAGES")
    return {
        "command": "forget",
        "out": ckpt,
        "num_images": len(split),
        "num_taught": int(np.isin(digests_of(split), taught.statistics.digests_N).sum()),
        "is_unfinished": taught.is_unfinished,
        "search": asdict(search(pieces_of(split, taught), Path(ckpt))),
    }


def failure_of(result: dict[str, Any]) -> VitError | None:
    """Return the error of a result whose search has found traces, or whose folder is between two states."""
    traces, problems = result.get("search", {}).get("traces", ()), []
    if traces:
        num_images = text.count_of(len({trace["image"] for trace in traces}), "image")
        num_files = text.count_of(len({trace["path"] for trace in traces}), "file")
        problems.append(f"traces of {num_images} are in {num_files}")
    if result.get("is_unfinished"):
        problems.append("a command that changed the folder was killed")
    if not problems:
        return None
    files = [trace["path"] for trace in traces if Path(trace["path"]).name not in FILES]
    fix = f"delete {text.first_few([*dict.fromkeys(files)])}" if files else "repeat that command"
    if any(trace["path"].startswith(result["out"]) and Path(trace["path"]).name in FILES for trace in traces):
        fix = f"vit forget {shlex.quote(result['out'])} IMAGES --in-place (of a few-shot run, --out FOLDER)"
    return CheckFailed("; ".join(problems), where=result["out"], fix=fix)


def _check_result(
    taught: Taught, statistics: ClosedFormStatistics, changes: Changes, out: Path, *, overwrite: bool
) -> None:
    """Refuse a request that changes nothing or leaves nothing, and a folder with another classifier."""
    asks = changes.add or changes.remove or changes.remove_classes or taught.is_unfinished
    if not asks and taught.folder is not None:
        raise VitError("nothing is to be changed", where="RUN", fix="name images: --add FOLDER")
    if not len(statistics):
        fix = "teach others with --add in the same command, or delete the folder"
        raise DataError("no image would be left, and a classifier needs one", where="RUN", fix=fix)
    if out != taught.folder and (out / CLOSED_FORM).is_file() and not overwrite:
        is_other = ClosedFormStatistics.read(out / CLOSED_FORM)[0].digest != statistics.digest
        refuse_other(out, "another taught classifier", ["other images"] * is_other)


def _without(taught: Taught, changes: Changes) -> tuple[ClosedFormStatistics, Counter[str], Pieces | None]:
    """Return the statistics without images and classes, counts, and the pieces of images that are named."""
    statistics, pieces, num_not_there = taught.statistics, None, 0
    is_gone_N = np.zeros(len(statistics), dtype=bool)
    of_network = () if taught.of_network is None else taught.of_network
    for name in changes.remove_classes:
        if name not in statistics.class_names:
            if taught.is_unfinished:  # which a repeated command finishes
                continue
            fix = f"one of {text.first_few(statistics.class_names)}"
            raise DataError(f"{name!r} is not a class of {taught.ckpt}", where="--class", fix=fix)
        is_gone_N |= statistics.labels_N == statistics.class_names.index(name)
    if changes.remove:
        split = find_images(changes.remove, where="IMAGES")
        digests_N, pieces = digests_of(split), pieces_of(split, taught)
        if (seen_N := np.isin(digests_N, of_network)).any():
            raise _of_network(taught, _places(split, seen_N))
        is_there_N = np.isin(digests_N, statistics.digests_N)
        is_gone_N |= np.isin(statistics.digests_N, digests_N)
        num_not_there = int((~is_there_N).sum())
        if not (is_there_N.any() or changes.add or taught.is_unfinished):  # which a repeated command finishes
            raise DataError(
                f"{taught.ckpt} was not taught {_places(split, ~is_there_N)}",
                where="IMAGES",
                fix="name the files as they were taught: images are recognised by their bytes",
            )
    if np.isin(statistics.digests_N[is_gone_N], of_network).any():
        raise _of_network(taught, f"images of {' and '.join(changes.remove_classes)}")
    counts = Counter(removed=int(is_gone_N.sum()), not_there=num_not_there)
    return statistics.without(is_gone_N), counts, pieces


def _of_network(taught: Taught, images: str) -> DataError:
    what = f"the network itself was trained on {images}, and cannot forget that"
    fix = "train it again without the image, and teach that"
    return DataError(what, where=taught.ckpt, fix=fix)


def _with(
    taught: Taught, statistics: ClosedFormStatistics, add: str, class_name: str | None
) -> tuple[ClosedFormStatistics, Counter[str], list[str]]:
    """Return the statistics with the images of a folder too, counts, and the places of the skipped."""
    split, labels_N, names = _open_images(taught, add, class_name)
    digests_N = digests_of(split)
    labels = zip(statistics.digests_N.tolist(), statistics.labels_N.tolist(), strict=True)
    classes_of = {digest: statistics.class_names[label] for digest, label in labels}
    known, is_new_N = {*classes_of}, np.ones(len(split), dtype=bool)
    for row, (digest, label) in enumerate(zip(digests_N.tolist(), labels_N.tolist(), strict=True)):
        if digest == UNREADABLE:
            continue
        there = classes_of.setdefault(digest, names[label])
        if there != names[label]:
            raise DataError(
                f"{split.where_is(row)} is an image of {names[label]!r} here, and of {there!r} already",
                where=f"--add {add}",
                fix="remove it first (--remove), or correct its folder",
            )
        is_new_N[row] = digest not in known
    counts = Counter(already_there=int((~is_new_N).sum()))
    rows_N, features_ND, skipped = taught.features(split, add, np.flatnonzero(is_new_N))
    if len(rows_N):
        of_rows = (features_ND, labels_N[rows_N], digests_N[rows_N])
        added = ClosedFormStatistics.of(*of_rows, class_names=names)
        statistics, counts["added"] = statistics.plus(added), len(added)
    elif is_new_N.all():
        fix = "check its files"
        raise DataError(f"no image of {split.name} can be read", where=f"--add {add}", fix=fix)
    return statistics, counts, skipped


def _open_images(
    taught: Taught, add: str, class_name: str | None
) -> tuple[Split, np.ndarray, tuple[str, ...]]:
    """Return the images to add, their labels, and the names of the classes."""
    if class_name is not None:
        split = find_images([add], where="--add")
        names = (class_named(class_name, taught.statistics.class_names),)
        return split, np.zeros(len(split), dtype=np.int64), names
    data = taught.extractor.recipe.data.model_copy(update={"dataset": add, "one_class": True})
    source = from_section(data)
    split = source.open(source.default_train_split() or source.only_split("--add"))
    check_supports("vit teach", split.task, name=split.name, fix="name the class of all images with --class")
    if split.is_large:
        raise DataError(f"{split.name} has too many images", where=f"--add {add}", fix="add a part of them")
    return split, split.read_labels(), tuple(split.readable_class_names)


def _empty_cache() -> int:
    """Delete all decoded images and features of the cache, and return how many sets there were.

    Images of other sizes, features of other networks and hashes are traces, too, and a set does not say of
    which images it is.

    Raises:
        MachineError: another process uses one; nothing else has been changed.
    """
    entries = user_cache.all_entries(CACHES)
    in_use = [str(entry.path) for entry in entries if not user_cache.delete(entry.path)]
    if in_use:
        fix = "repeat the command once that one has ended; the classifier is unchanged"
        raise MachineError(
            "the cache may hold the images, and another command uses it", where=in_use[0], fix=fix
        )
    for kind in CACHES:  # of deletions that were killed
        for leftover in user_cache.cache_folder(kind).glob(f"{TEMPORARY}*"):
            shutil.rmtree(leftover, ignore_errors=True)
    return len(entries)


def _places(split: Split, which_N: np.ndarray) -> str:
    return text.first_few([split.where_is(row) for row in np.flatnonzero(which_N)])


def as_text(result: dict[str, Any]) -> str:
    """Return the result of a change as text for a terminal."""
    changes = [
        f"{result[f'num_{what}']:,} {what.replace('_', ' ')}" for what in CHANGES if result[f"num_{what}"]
    ]
    accuracy, of_classes = result["left_out_top1"], text.count_of(result["num_classes"], "class", "classes")
    rows = [
        ("changed", ", ".join(changes) or "nothing"),
        ("taught", f"{text.count_of(result['num_examples'], 'image')}, {of_classes}"),
        ("left out", f"{text.percent(accuracy)} top-1, each image predicted by the others"),
        ("folder", result["out"]),
        ("statistics", result["statistics"]),
    ]
    if deleted := result.get("num_deleted_entries"):
        rows.append(("cache", f"{text.count_of(deleted, 'set')} of decoded images and features deleted"))
    rows += _search_rows(result["search"]) if "search" in result else []
    if result["is_still_in"]:
        rows.append(("note", f"{result['is_still_in']} is unchanged: it still holds what was removed"))
    return text.pairs([*rows, *text.skipped(result), *text.commands(result["next"])])


def check_as_text(result: dict[str, Any]) -> str:
    """Return the result of a search as text for a terminal."""
    images = f"{result['num_images']:,}, of which {result['num_taught']:,} taught to {result['out']}"
    return text.pairs([("images", images), *_search_rows(result["search"])])


def _search_rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    searched = f"{text.count_of(found['num_files'], 'file')}, {text.bytes_text(found['num_bytes'])}"
    rows = [("searched", f"{searched}: the folder and the cache")]
    rows += [
        ("trace", f"{trace['kind']} of {trace['image']} in {trace['path']}") for trace in found["traces"]
    ]
    rows += [] if found["traces"] else [("traces", "none")]
    if found["unsearched"]:
        rows.append(("note", f"cannot be searched: {text.first_few(found['unsearched'])}"))
    return rows
