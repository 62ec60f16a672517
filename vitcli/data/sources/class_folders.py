"""Folders of class folders, with or without train/ val/ test/: one table of images per split."""

import shlex
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from vitcli.data.sources.folders import (
    LOOSE,
    Files,
    LeftOut,
    has_images,
    left_out_of,
    list_files,
    relative,
    result_folders,
    subfolders,
    union,
)
from vitcli.data.sources.tables import SPLIT_WORDS, Tables, check_names, table_of
from vitcli.errors import DataError
from vitcli.output.text import first_few

if TYPE_CHECKING:
    import datasets  # which takes time to load, and the names in this file are needed without it


class AdditionalClasses(DataError):
    """A split has classes that train/ does not have."""


def open_class_folders(path: Path, *, typed: str, one_class: bool) -> Tables | None:
    """Return a table for each split; None if no folder of `path` holds images.

    Args:
        typed: the path as the user wrote it, for errors.
        one_class: take a folder of folders of images as a single class, and not as one level too high.

    Raises:
        DataError: two folders for one split, classes that train/ lacks, or folders one level too high.
    """
    folders = _split_folders(path)
    if not folders:
        names = [name for name in subfolders(path) if has_images(path / name)]
        if not names or all(name.lower() in SPLIT_WORDS for name in names):
            return None  # of train/ and test/ without class folders, these are not classes
        folders = {"train": path}
    if not one_class:
        for folder in folders.values():
            _check_level(folder, path, typed)
    classes = subfolders(folders["train"]) if "train" in folders else []
    for folder in folders.values() if classes else ():
        check_no_more_classes(
            subfolders(folder),
            classes,
            split=f"{folder.name}/",
            train="train/",
            where=str(folder),
            fix="move those folders away, or add them to train/",
        )
    check_names(classes)
    splits = {
        name: _SplitFolder(path, folder, tuple(classes or subfolders(folder)))
        for name, folder in folders.items()
    }
    return Tables(
        {name: split.table for name, split in splits.items()},
        path,
        left_out=lambda name: splits[name].left_out,
        notes=alike_notes([name for split in splits.values() for name in split.classes])
        + _folders_in_classes(next(iter(folders.values())), path, typed),
    )


@dataclass(frozen=True)
class _SplitFolder:
    """The class folders of one split; its files are listed once, when they are first asked for."""

    root: Path
    folder: Path
    classes: tuple[str, ...]

    @cached_property
    def files(self) -> list[Files]:
        return [list_files(self.folder / name, self.root) for name in self.classes]

    @cached_property
    def left_out(self) -> LeftOut:
        """Return what is in no class folder, and what is not an image."""
        outside = [list_files(self.folder, self.root, recursive=False)]
        if self.folder != self.root:
            outside.append(list_files(self.root, self.root, recursive=False))
            others = [name for name in subfolders(self.root) if not _is_split_folder(self.root / name)]
            outside += [list_files(self.root / name, self.root) for name in others]
        loose = [path for files in outside for path in files.images]
        parts = [files.left_out(self.root) for files in [*outside, *self.files]]
        return union([left_out_of(LOOSE, relative(loose, self.root)), result_folders(self.root), *parts])

    def table(self) -> "datasets.Dataset":
        import datasets

        paths = [path for files in self.files for path in files.images]
        labels = [label for label, files in enumerate(self.files) for _ in files.images]
        label = datasets.ClassLabel(names=list(self.classes))
        return table_of(paths, {"label": labels}, {"label": label})


def _is_split_folder(folder: Path) -> bool:
    return folder.name.lower() in SPLIT_WORDS and bool(subfolders(folder))


def _split_folders(path: Path) -> dict[str, Path]:
    """Return the folders called train, val, test and the like that hold folders, by split."""
    folders: dict[str, Path] = {}
    for name in subfolders(path):
        if not _is_split_folder(path / name):
            continue
        split = SPLIT_WORDS[name.lower()]
        if split in folders:
            raise DataError(
                f"{folders[split].name}/ and {name}/ are both the {split} split",
                where=str(path),
                fix="rename one of them",
            )
        folders[split] = path / name
    return folders


def _check_level(folder: Path, path: Path, typed: str) -> None:
    """Refuse a folder whose only class is a folder of class folders: the right one is a level below."""
    inner, names = folder, _with_images(folder)
    while len(names) == 1 and not list_files(inner / names[0], path, recursive=False).images:
        inner, names = inner / names[0], _with_images(inner / names[0])
    if inner == folder or len(names) < 2:
        return
    below = inner.relative_to(path)
    there = shlex.quote(f"{typed.rstrip('/')}/{below}")
    is_split = folder != path
    raise DataError(
        f"{below}/ holds {len(names)} folders with images"
        + ("" if is_split else f", did you mean --dataset {there}?"),
        where=f"{typed}: its only class would be {_with_images(folder)[0]}",
        fix=f"move the folders in {below}/ up into {folder.name}/"
        if is_split
        else f"--dataset {there}; a data set of this one class needs --set data.one_class=true",
    )


def _with_images(folder: Path) -> list[str]:
    return [name for name in subfolders(folder) if has_images(folder / name)]


def check_no_more_classes(
    names: Iterable[str], classes: Iterable[str], *, split: str, train: str, where: str, fix: str
) -> None:
    """Refuse classes of a split that train does not have, naming one there that is spelled alike."""
    additional = sorted(set(names) - set(classes))
    if not additional:
        return
    similar = {loosely(name): name for name in classes}
    twin = next((similar[loosely(name)] for name in additional if loosely(name) in similar), None)
    raise AdditionalClasses(
        f"{split} has classes that {train} does not have: {first_few(additional, 5)}"
        + (f" ({train} has {twin!r})" if twin else ""),
        where=where,
        fix=fix,
    )


def loosely(name: str) -> str:
    """Return a name without what people overlook: case, blanks, and how accents are encoded."""
    return "".join(unicodedata.normalize("NFC", name).casefold().split())


def alike_classes(class_names: Iterable[str]) -> list[list[str]]:
    """Return groups of names that are equal but for case, blanks and the encoding of accents."""
    by_name: dict[str, list[str]] = {}
    for name in sorted(set(class_names)):
        by_name.setdefault(loosely(name), []).append(name)
    return [names for names in by_name.values() if len(names) > 1]


def alike_notes(class_names: Iterable[str]) -> tuple[str, ...]:
    """Note classes whose names are easily taken for one another."""
    return tuple(
        f"the classes {' and '.join(map(repr, names))} differ only in case, blanks or accents"
        for names in alike_classes(class_names)
    )


def _folders_in_classes(folder: Path, path: Path, typed: str) -> tuple[str, ...]:
    """Note that some class is a folder of several folders, which may be classes themselves, and no images."""
    inner = {name: _with_images(folder / name) for name in _with_images(folder)}
    deep = [name for name, names in inner.items() if len(names) > 1]
    if (
        not deep
        or 1 in map(len, inner.values())
        or any(list_files(folder / name, path, recursive=False).images for name in deep)
    ):
        return ()
    which = "every class" if len(deep) == len(inner) else f"the class {deep[0]!r}"
    example = f"{deep[0]}/{inner[deep[0]][0]}/"
    there = shlex.quote(f"{typed.rstrip('/')}/{(folder / deep[0]).relative_to(path)}")
    return (
        f"{which} holds folders of images ({example}); did you mean one level deeper? "
        f"--dataset {there} takes them as classes",
    )
