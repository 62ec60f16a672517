"""`vit label FOLDER`: labels for the images of a folder, given on a page that guesses along.

opened           the images and their labels, checked and locked
label            the page: features, near copies, and a session on them
exchange         labels from and for other tools
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from vitcli.data.image_files import as_split, find_images
from vitcli.data.parts.groups import groups_of_copies
from vitcli.data.parts.image_hashes import ImageHashes, hash_images
from vitcli.data.sources.folders import LeftOut
from vitcli.data.sources.label_files import find_label_files
from vitcli.data.sources.label_values import kind_of_values
from vitcli.data.split import Split
from vitcli.errors import DataError, MachineError, nearest_path
from vitcli.evaluation.inference import nothing_decoded
from vitcli.evaluation.setup import RunSettings, read_checkpoint
from vitcli.features.extract import features_of_rows, open_extractor
from vitcli.features.feature_store import open_cached
from vitcli.io.files import delete_lock, lock_file
from vitcli.output.atomic import check_can_write_in
from vitcli.output.progress import Progress
from vitcli.output.text import commands, count_of, first_few, is_text, pairs
from vitcli.recipe import Recipe
from vitcli.teaching import label_exchange, label_server
from vitcli.teaching.labelling import Labelling
from vitcli.teaching.labels_file import LabelsFile, class_named, problem_of

# Bits of 64: fewer than those of `group_rule.NEAR_DISTANCE`, at which drawings of two classes were taken for
# copies. One that is missed costs a click, a false one gets a label unseen.
COPY_DISTANCE = 3
LABELS, NONE_OF_THESE, LOCK = "labels.csv", ".vit-none.csv", ".vit-label.lock"


@dataclass(frozen=True, eq=False)
class LabelledFolder:
    """A folder that this process alone labels.

    Attributes:
        names: of the images, relative to the folder.
        none: the file of images that are of no class.
    """

    path: Path
    names: list[str]
    images: Split
    labels: LabelsFile
    none: LabelsFile

    def result(self, ckpt: str | None = None, unreadable: Sequence[str] = ()) -> dict[str, Any]:
        """Return the object of --json: the counts, and what to type next."""
        labels = self.labels.labels
        classes = dict(Counter(labels.values()))
        words: list[str] = ["vit", "label", str(self.path)]
        if len(classes) > 1 and min(classes.values()) > 1:
            words = ["vit", "finetune", "--ckpt", ckpt or "CKPT", "--dataset", str(self.path)]
            words += ["--skip-bad"] if labels.keys() & {*unreadable} else []
            words += ["--set", "data.label_column=label"] if kind_of_values(classes, len(labels)) else []
        return {
            "command": "label",
            "folder": str(self.path),
            "labels": str(self.labels.path) if self.labels.path.exists() else None,
            "num_images": len(self.names),
            "num_labels": len(labels),
            "num_none": len(self.none.labels),
            "classes": classes,
            "unreadable": [*unreadable],
            "next": words,
        }


@contextmanager
def opened(folder: Path) -> Iterator[LabelledFolder]:
    """Open a folder of images with its labels, and hold it against another `vit label`.

    Raises:
        DataError: it has no images, or labels that `vit finetune` reads as something else.
        MachineError: another `vit label` has it, or nothing can be written there.
    """
    if not folder.is_dir():
        is_there = f"{folder} is a file" if folder.exists() else f"there is no folder {folder}"
        raise DataError(is_there + nearest_path(str(folder)), where="FOLDER", fix="name a folder of images")
    found = find_images([str(folder)], where="FOLDER")
    files = [found.where_is(row) for row in range(len(found))]
    names = [file.removeprefix(os.path.join(folder, "")).replace(os.sep, "/") for file in files]
    check_can_write_in(folder, option="FOLDER")
    try:
        lock = lock_file(folder / LOCK)
    except BlockingIOError as error:
        fix = "use its page, or stop it"
        raise MachineError("another vit label has this folder", where=str(folder), fix=fix) from error
    with lock:
        try:
            labels = LabelsFile(folder / LABELS)
            _check(labels, folder, names)
            # Features are found again by names, sizes and times of the files.
            stats = (os.stat(file) if os.path.exists(file) else os.lstat(file) for file in files)
            states = [(stat.st_size, stat.st_mtime_ns) for stat in stats]
            identity = blake2b(repr((names, states)).encode(), digest_size=16).hexdigest()
            left_out = LeftOut(tuple(pair for pair in found.left_out.files if pair[1] != LABELS))
            images = replace(as_split(files, left_out), identity=identity)
            yield LabelledFolder(folder, names, images, labels, LabelsFile(folder / NONE_OF_THESE))
        finally:
            delete_lock(folder / LOCK)


def _check(labels: LabelsFile, folder: Path, names: Sequence[str]) -> None:
    """Refuse names that labels.csv cannot hold, and labels of no image or of no class."""
    where = str(labels.path)
    if odd := next((name for name in names if not is_text(name) or name != name.strip()), None):
        raise DataError(f"{LABELS} cannot hold the name {odd!r}", where=str(folder), fix="rename the file")
    if others := [file for file in find_label_files(folder) if file != labels.path]:
        fix = f"move it away, or write it as {LABELS}"
        raise DataError(f"{others[0].name} has labels, too", where=str(others[0]), fix=fix)
    known = {*names}
    missing = [name for name in labels.labels if name not in known and not (folder / name).is_file()]
    if missing:
        what = f"{count_of(len(missing), 'row')} of {LABELS} name no file: {first_few(missing, 3)}"
        raise DataError(what, where=where, fix=f"write paths from {folder}, or remove the rows")
    for name, label in labels.labels.items():
        if problem := problem_of(label):
            raise DataError(
                f"the label of {name} cannot be a class: {problem}", where=where, fix="correct it"
            )


def exchange(folder: Path, source: Path | None, target: Path | None) -> dict[str, Any]:
    """Read labels of a source, then write those of the folder to a target; return the object of --json.

    A label that is there stays; arguments and errors as of `label_exchange`.
    """
    with opened(folder) as place:
        counts: dict[str, Any] = {}
        if source:
            read, counts = label_exchange.read_labels(source, folder, place.names, place.images)
            known = place.labels.labels
            place.labels.set({name: label for name, label in read.items() if name not in known})
            num_kept = sum(known.get(name, label) != label for name, label in read.items())
            counts = {"num_imported": len(read), "num_kept": num_kept, **counts}
        if target:
            label_exchange.write_labels(target, folder, place.labels.labels)
            counts["exported"] = str(target)
        return place.result() | counts


def label(
    folder: Path,
    recipe: Recipe,
    run: RunSettings,
    *,
    classes: Sequence[str],
    is_review: bool,
    port: int,
    ready: Callable[[str], None],
) -> dict[str, Any]:
    """Serve the page until Ctrl-C, and return the object of --json.

    Args:
        classes: known before there is a label.
        is_review: show only labels that the others contradict; without labels.csv those of class folders.
        port, ready: as of `report.server.serve_replies`.
    """
    names_of_classes: list[str] = []
    for name in classes:
        names_of_classes.append(class_named(name, names_of_classes))
    with opened(folder) as place:
        if is_review and not place.labels.labels:
            of_folders = {name: label_exchange.class_folder_of(name, folder) for name in place.names}
            none = place.none.labels
            known = list[str]()
            for label in sorted({*of_folders.values()} - {""}):
                known.append(class_named(label, known))  # one that labels.csv cannot have is refused
            place.labels.assume(
                {name: label for name, label in of_folders.items() if label and name not in none}
            )
        extractor = open_extractor(read_checkpoint(recipe, quiet=run.quiet), recipe, run)
        progress = extractor.network.settings.progress
        for line in place.images.left_out.lines():
            progress.note(line)
        rows_N, features_ND, _ = features_of_rows(extractor, place.images, np.arange(len(place.names)))
        if not len(rows_N):
            raise nothing_decoded(place.images)
        groups_N = near_copies(place.images, progress, run.workers)[rows_N]
        session = Labelling(
            [place.names[row] for row in rows_N],
            features_ND,
            place.labels,
            place.none,
            classes=names_of_classes,
            groups_N=groups_N,
            is_review=is_review,
        )
        try:
            label_server.serve(session, place.images.rows(rows_N), port=port, ready=ready)
        except KeyboardInterrupt:
            session.state()  # after a click that is being written
        return place.result(recipe.model.ckpt, sorted({*place.names} - {*session.names}))


def near_copies(images: Split, progress: Progress, num_threads: int | None) -> np.ndarray:
    """Return the group of near copies of each image, (N,) int64; their hashes are cached."""
    store = open_cached({"hashes": 1, "data": images.fingerprint, "num_examples": len(images)}, len(images))
    is_there_N = store.has(np.arange(len(images)))
    if len(missing_N := np.flatnonzero(~is_there_N)):
        with progress.bar("near copies", len(missing_N)):
            hashes = hash_images(images.rows(missing_N), num_threads=num_threads, progress=progress.update)
        missing_N, looks_N1 = missing_N[hashes.rows_N], hashes.looks_N.view(np.int64)[:, None]
        store.append(missing_N, looks_N1, np.zeros((len(missing_N), 1), np.float32), num_logits=0)
        is_there_N[missing_N] = True
    rows_N = np.flatnonzero(is_there_N)
    looks_N = store.read(rows_N)["labels"][:, 0].view(np.uint64)
    store.close()
    hashes = ImageHashes(rows_N, looks_N, looks_N, looks_N, np.zeros((len(rows_N), 2), np.int64), ())
    return groups_of_copies([hashes], [len(images)], distance=COPY_DISTANCE)[0]


def as_text(result: dict[str, Any]) -> str:
    """Return the result as text for a terminal."""
    images = count_of(result["num_images"], "image")
    rows = [
        ("labels", f"{result['num_labels']:,} of {images}, in {result['labels'] or 'the names of folders'}")
    ]
    rows += [("classes", first_few([f"{name} {count:,}" for name, count in result["classes"].items()], 8))]
    rows += [("none", f"{count_of(result['num_none'], 'image')} of none of these classes")]
    if "num_imported" in result:
        words = {
            "num_kept": "kept as they were",
            "num_unmatched": "of no image here",
            "num_several": "of several choices",
            "num_contradictions": "given twice",
        }
        more = [f"{result[key]:,} {word}" for key, word in words.items() if result[key]]
        rows.append(("imported", ", ".join([f"{result['num_imported']:,}", *more])))
    rows += [("exported", result.get("exported", ""))]
    rows += [
        ("left out", f"cannot be read: {first_few(result['unreadable'], 3)}" if result["unreadable"] else "")
    ]
    empty = {"", "0 images of none of these classes"}
    return pairs([*(row for row in rows if row[1] not in empty), *commands(result["next"])])
