"""Layouts of tables of images: folders and files on this machine, and the Hugging Face Hub.

Every layout becomes one `datasets.Dataset` per split, with its image column still encoded. No code from a
data set is ever run.
"""

import glob
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path

import datasets

from vitcli.errors import DataError, reason_of

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
TABLE_SUFFIXES = {".parquet", ".arrow", ".tar"}
SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
}
LAYOUTS = (
    "a folder of class folders (with or without train/ val/ test/), of Parquet or Arrow files, "
    "or of save_to_disk"
)


@dataclass(frozen=True)
class Tables:
    """The splits of one data set.

    Attributes:
        open: by split name, a function that opens it.
        root: the folder that image paths may point into; None where rows carry their bytes.
    """

    open: Mapping[str, Callable[[], datasets.Dataset]]
    root: Path | None


def open_local(path: Path) -> Tables:
    """Find the tables of a folder or file in any layout.

    Raises:
        DataError: the layout is none of LAYOUTS.
    """
    path = Path(os.path.abspath(path.expanduser()))
    if path.is_file():
        return _table_files(path.parent, [path])
    if (path / "dataset_dict.json").exists() or (path / "state.json").exists():
        return _saved_to_disk(path)
    for suffix in (".parquet", ".arrow"):
        files = sorted(path.rglob(f"*{suffix}"))
        if files:
            return _table_files(path, files)
    splits = _class_folders(path)
    if splits:
        return Tables({name: partial(_list_images, *folders) for name, folders in splits.items()}, path)
    raise DataError(f"no images found in {path}", where="--dataset", fix=LAYOUTS)


def open_hub(hub_id: str, *, config: str | None, revision: str | None) -> Tables:
    """Return the tables of a Hub data set, downloaded when opened and then cached by `datasets`."""
    try:
        names = datasets.get_dataset_split_names(hub_id, config, revision=revision)
    except Exception as error:  # of the Hub's client, requests, httpx, or plain OS errors
        raise _unreachable(hub_id, error) from error

    def download(name: str) -> datasets.Dataset:
        try:
            return datasets.load_dataset(hub_id, config, revision=revision, split=name)
        except Exception as error:
            raise _unreachable(hub_id, error) from error

    return Tables({name: partial(download, name) for name in names}, None)


def _unreachable(hub_id: str, error: Exception) -> DataError:
    return DataError(
        f"could not download data set {hub_id} from the Hub: {reason_of(error)[:160]}",
        where="--dataset",
        fix="check the name and the network, or name a local copy (of an alias: $VIT_DATA/<alias>)",
    )


def _saved_to_disk(path: Path) -> Tables:
    folders = {"train": path}
    try:
        if (path / "dataset_dict.json").exists():
            names = json.loads((path / "dataset_dict.json").read_text())["splits"]
            folders = {name: path / name for name in names}
        for folder in folders.values():
            _check_inside(folder, path)
            state = json.loads((folder / "state.json").read_text())
            for entry in state["_data_files"]:  # the library follows ../ in these names
                _check_inside(folder / entry["filename"], path)
    except (OSError, ValueError, KeyError, TypeError) as error:  # a file is missing or has other content
        raise _unreadable(path, error) from error
    return Tables({name: partial(_load_from_disk, folder) for name, folder in folders.items()}, path)


def _load_from_disk(folder: Path) -> datasets.Dataset:
    try:
        return datasets.load_from_disk(str(folder))
    except Exception as error:
        raise _unreadable(folder, error) from error


def _table_files(root: Path, files: list[Path]) -> Tables:
    """Assign Parquet or Arrow files to splits by words in the names of files and folders."""
    builder = {".parquet": "parquet", ".arrow": "arrow"}.get(files[0].suffix)
    if builder is None:
        raise DataError(f"{files[0]} is not a data set", where="--dataset", fix=LAYOUTS)
    by_split: dict[str, list[str]] = {}
    for file in files:
        # Escaped, because the library treats brackets and stars in a name as a pattern.
        by_split.setdefault(split_of(file.relative_to(root)), []).append(glob.escape(str(file)))

    def read(name: str) -> datasets.Dataset:
        try:
            return datasets.load_dataset(builder, data_files={name: by_split[name]}, split=name)
        except Exception as error:
            raise _unreadable(root, error) from error

    return Tables({name: partial(read, name) for name in by_split}, root)


def split_of(file: Path, default: str | None = "train") -> str | None:
    """Return the split of a file by the first such word in its path inside the data set, else `default`."""
    words = [
        word for part in file.with_suffix("").parts for word in part.lower().replace("_", "-").split("-")
    ]
    return next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), default)


def _unreadable(file: Path, error: Exception) -> DataError:
    reason = reason_of(error.__cause__ or error)[:160]  # `datasets` wraps the error itself
    return DataError(f"{file.name} cannot be read: {reason}", where=str(file), fix="replace the damaged file")


def _class_folders(path: Path) -> dict[str, tuple[Path, list[str]]]:
    """Return the folder and the class names of each split; the train folder, if any, names the classes.

    A validation folder that lacks a class then still counts it, and one with an additional class is refused
    (`datasets` would renumber).
    """
    folders: dict[str, Path] = {}
    for name in _subfolders(path):
        split = SPLIT_WORDS.get(name.lower())
        if split is None or not _subfolders(path / name):
            continue
        if split in folders:
            raise DataError(
                f"{folders[split].name}/ and {name}/ both say {split}",
                where=str(path),
                fix="move one of them away",
            )
        folders[split] = path / name
    if not folders:
        folders = {"train": path} if any(image_files(path / name) for name in _subfolders(path)) else {}
    classes = _subfolders(folders["train"]) if "train" in folders else None
    for folder in folders.values():
        additional = sorted(set(_subfolders(folder)) - set(classes or _subfolders(folder)))
        if additional:
            raise DataError(
                f"{folder.name}/ has classes that train/ does not have: {', '.join(additional[:5])}",
                where=str(folder),
                fix="move those folders away, or add them to train/",
            )
    return {name: (folder, classes or _subfolders(folder)) for name, folder in folders.items()}


def _list_images(folder: Path, class_names: list[str]) -> datasets.Dataset:
    paths, labels = [], []
    for label, name in enumerate(class_names):
        files = image_files(folder / name)
        paths += files
        labels += [label] * len(files)
    features = datasets.Features(
        {"image": datasets.Image(decode=False), "label": datasets.ClassLabel(names=class_names)}
    )
    return datasets.Dataset.from_dict(
        {"image": [{"bytes": None, "path": path} for path in paths], "label": labels}, features=features
    )


def _subfolders(path: Path) -> list[str]:
    if not path.is_dir():
        return []
    return sorted(
        entry.name for entry in os.scandir(path) if entry.is_dir() and not entry.name.startswith(".")
    )


def image_files(folder: Path) -> list[str]:
    """Return all image files below a folder, sorted; hidden files and folders (".name") are ignored."""
    files = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [os.path.join(parent, name) for name in names if _is_image_name(name)]
    return sorted(files)


def _is_image_name(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES and not name.startswith(".")


def _check_inside(file: Path, root: Path) -> None:
    if not Path(os.path.realpath(file)).is_relative_to(os.path.realpath(root)):
        raise DataError(
            f"{file} is outside the data set",
            where=str(root),
            fix="put the files themselves into the folder",
        )


def state_of(path: Path) -> str:
    """Return a checksum of name, size and time of a file, or of all images and tables below a folder.

    No file is read, so a hundred thousand of them take about a second.
    """
    digest = blake2b(digest_size=16)
    files = [path]
    if path.is_dir():
        names_below = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
        files = [file for file in names_below if file.suffix.lower() in IMAGE_SUFFIXES | TABLE_SUFFIXES]
    for file in sorted(files):
        try:
            state = file.stat()
        except OSError:  # a broken link
            continue
        entry = f"{file.relative_to(path)}\0{state.st_size}\0{state.st_mtime_ns}\n"
        digest.update(entry.encode(errors="surrogateescape"))
    return digest.hexdigest()
