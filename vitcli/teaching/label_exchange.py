"""Labels from and for other tools: Label Studio's JSON, and plain folders of classes."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from vitcli.data.sources.folders import is_image, list_files
from vitcli.errors import DataError, VitError, reason_of
from vitcli.evaluation.sorting import check_target, copy_into
from vitcli.output.atomic import check_can_write_in, load_json, write_text
from vitcli.teaching.labels_file import problem_of

JSON = ".json"
LOCAL = "/data/local-files/?d="  # how Label Studio names files of its machine
UPLOADED = re.compile(r"[0-9a-f]{8}-")  # before the name of a file that was uploaded to it


def read_labels(source: Path, names: Sequence[str]) -> tuple[dict[str, str], dict[str, int]]:
    """Return the label of each image that a source has one for, and how many labels find no image.

    Args:
        source: a .json file of Label Studio, or a folder of class folders.
        names: of the images, relative to their folder.

    Raises:
        DataError: it is neither, or a name of a class cannot be one.
    """
    pairs = [*(_of_folders(source) if source.is_dir() else _of_label_studio(source))]
    by_base: dict[str, set[str]] = {}
    for name in names:
        for base in {os.path.basename(name), _uploaded_name(name)}:
            by_base.setdefault(base, set()).add(name)
    known, labels, counts = {*names}, dict[str, str](), {"num_unmatched": 0, "num_contradictions": 0}
    for address, label in pairs:
        if problem := problem_of(label):
            raise DataError(
                f"{label[:60]!r} cannot be a class: {problem}", where=f"--import {source}", fix="rename it"
            )
        name = address if address in known else _match(_path_in(address), by_base)
        if name is None:
            counts["num_unmatched"] += 1
        elif labels.setdefault(name, label) != label:
            counts["num_contradictions"] += 1
    return labels, counts


def _match(path: str, by_base: Mapping[str, set[str]]) -> str | None:
    """Return the image that a path elsewhere stands for; None for none, or one of several."""
    base = os.path.basename(path)
    names = by_base.get(base) or by_base.get(UPLOADED.sub("", base, count=1)) or set()
    same = [name for name in names if f"/{path}".endswith(f"/{name}")] or names
    return next(iter(same)) if len(same) == 1 else None


def _uploaded_name(name: str) -> str:
    return re.sub(r"[^\w.-]", "", os.path.basename(name).replace(" ", "_"))


def _path_in(address: str) -> str:
    parts = urlsplit(address)
    return parse_qs(parts.query).get("d", [unquote(parts.path)])[0]


def _of_folders(source: Path) -> Iterator[tuple[str, str]]:
    for file in list_files(source, source).images:
        path = Path(file).relative_to(source)
        if len(path.parts) > 1:
            yield path.as_posix(), path.parts[0]


def _of_label_studio(source: Path) -> Iterator[tuple[str, str]]:
    """Yield the address and the choice of each task that has one."""
    try:
        tasks = load_json(source)
        for task in tasks:
            choices = {
                choice
                for annotation in task["annotations"]
                if not annotation.get("was_cancelled")
                for result in annotation["result"]
                if result["type"] == "choices"
                for choice in result["value"]["choices"]
            }
            addresses = [
                one for one in task["data"].values() if isinstance(one, str) and is_image(_path_in(one))
            ]
            if len(choices) == 1 and addresses:
                yield addresses[0], str(*choices)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{source} is not an export of Label Studio: {type(error).__name__} {reason_of(error)[:80]}"
        fix = "export as JSON (not JSON-MIN) a project of <Image> and <Choices>"
        raise DataError(what, where="--import", fix=fix) from error


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
