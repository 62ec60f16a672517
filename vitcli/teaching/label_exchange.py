"""Labels from and for other tools: Label Studio's JSON, and plain folders of classes."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from vitcli.data.image_files import as_split
from vitcli.data.seen_images import digests_of
from vitcli.data.sources.folders import is_image, list_files
from vitcli.data.sources.tables import SPLIT_WORDS
from vitcli.data.split import Split
from vitcli.errors import DataError, VitError, reason_of
from vitcli.evaluation.sorting import check_target, copy_into
from vitcli.output.atomic import check_can_write_in, load_json, write_text
from vitcli.teaching.labels_file import class_named

JSON = ".json"
LOCAL = "/data/local-files/?d="  # how Label Studio names files of its machine
UPLOADED = re.compile(r"[0-9a-f]{8}-")  # before the name of a file that was uploaded to it


def read_labels(
    source: Path, folder: Path, names: Sequence[str], images: Split
) -> tuple[dict[str, str], dict[str, int]]:
    """Return the label of each image that a source has one for, and counts of what it has besides.

    Args:
        source: a .json file of Label Studio, or a folder of class folders.
        names: of the images, relative to their folder.

    Raises:
        DataError: it is neither, or a name of a class cannot be one.
    """
    pairs = _of_folders(source, folder, names, images) if source.is_dir() else _of_label_studio(source, names)
    labels, classes = dict[str, str](), list[str]()
    counts = {"num_unmatched": 0, "num_several": 0, "num_contradictions": 0}
    for same, choices in pairs:
        if len(choices) > 1:
            counts["num_several"] += 1
            continue
        try:
            label = class_named(choices[0], classes)
        except VitError as error:
            raise DataError(
                f"{choices[0][:60]!r}: {error.message}", where=f"--import {source}", fix="rename it"
            ) from error
        classes += [] if label in classes else [label]
        counts["num_unmatched"] += not same
        counts["num_contradictions"] += sum(labels.setdefault(name, label) != label for name in same)
    return labels, counts


def class_folder_of(name: str, folder: Path) -> str:
    """Return the class of an image by its path below a folder; "" for none.

    Raises:
        DataError: the folder is one of splits.
    """
    label, slash, _ = name.partition("/")
    if slash and label.lower() in SPLIT_WORDS:
        raise DataError(f"{label}/ is a split, not a class", where=str(folder), fix=f"name {folder / label}")
    return label if slash else ""


def _of_folders(
    source: Path, folder: Path, names: Sequence[str], images: Split
) -> Iterator[tuple[Sequence[str], list[str]]]:
    """Yield the images here that an image of a class folder is a copy of, byte by byte, and its class."""
    if source.resolve() == folder.resolve():
        yield from (([name], [label]) for name in names if (label := class_folder_of(name, folder)))
        return
    files = list_files(source, source).images
    here: dict[int, list[str]] = {}
    for name, digest in zip(names, digests_of(images).tolist(), strict=True):
        here.setdefault(digest, []).append(name)
    for file, digest in zip(files, digests_of(as_split(files)).tolist(), strict=True):
        if label := class_folder_of(Path(file).relative_to(source).as_posix(), source):
            yield here.get(digest, []), [label]


def _of_label_studio(source: Path, names: Sequence[str]) -> Iterator[tuple[Sequence[str], list[str]]]:
    """Yield the image here that a task is about, by its path or its name, and its choices."""
    by_base: dict[str, set[str]] = {}
    for name in names:
        base = os.path.basename(name)
        for same in {base, re.sub(r"[^\w.-]", "", base.replace(" ", "_"))}:  # the latter once uploaded
            by_base.setdefault(same, set()).add(name)
    try:
        for task in load_json(source):
            choices = {
                str(choice)
                for annotation in task["annotations"]
                if not annotation.get("was_cancelled")
                for result in annotation["result"]
                if result["type"] == "choices"
                for choice in result["value"]["choices"]
            }
            paths = [path for one in task["data"].values() if is_image(path := _path_in(str(one)))]
            if choices and paths:
                yield _match(paths[0], {*names}, by_base), sorted(choices)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{source} is not an export of Label Studio: {type(error).__name__} {reason_of(error)[:80]}"
        fix = "export as JSON (not JSON-MIN) a project of <Image> and <Choices>"
        raise DataError(what, where="--import", fix=fix) from error


def _match(path: str, names: Set[str], by_base: Mapping[str, Set[str]]) -> Sequence[str]:
    """Return the image that a path elsewhere stands for: the longest end of it, else its only bare name."""
    parts = path.strip("/").split("/")
    if path in names:
        return [path]
    ends = ("/".join(parts[at:]) for at in range(len(parts) - 1))
    if whole := next((end for end in ends if end in names), None):
        return [whole]
    same = by_base.get(parts[-1]) or by_base.get(UPLOADED.sub("", parts[-1], count=1)) or ()
    return [*same] if len(same) == 1 else []


def _path_in(address: str) -> str:
    parts = urlsplit(address)
    return parse_qs(parts.query).get("d", [unquote(parts.path)])[0]


def write_labels(target: Path, folder: Path, labels: Mapping[str, str]) -> None:
    """Write a .json file for Label Studio, or copies of the images in a folder for each class.

    Raises:
        VitError: there is something of that name, or it is a folder within the images.
        MachineError: it cannot be written.
    """
    where = f"--export {target}"
    if target.exists():
        raise VitError(f"{target} already exists", where=where, fix="name a new file or folder")
    if not labels:
        raise VitError("there are no labels to export", where=where, fix=f"vit label {folder}")
    check_can_write_in(target.parent, option="--export")
    if target.suffix.lower() == JSON:
        write_text(target, json.dumps([_task(name, label) for name, label in labels.items()], indent=1))
        return
    files = [str(folder / name) for name in labels]
    check_target(target, [str(folder)], files, option="--export")
    answers = [
        {"file": file, "top": [{"class": label}]} for file, label in zip(files, labels.values(), strict=True)
    ]
    copy_into(target, answers, sorted({*labels.values()}), option="--export")


def _task(name: str, label: str) -> dict[str, Any]:
    choice = {"type": "choices", "from_name": "choice", "to_name": "image", "value": {"choices": [label]}}
    return {"data": {"image": LOCAL + quote(name)}, "annotations": [{"result": [choice]}]}
