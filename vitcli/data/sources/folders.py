"""Files below a folder: the images that can be read, and every other file, which is counted and named.

Nothing but the clutter of operating systems (SILENT_NAMES, hidden files) and a data set's own description
(README, LICENSE) is left out without a word.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from vitcli.data.decoding import BEGINNINGS, HEIC_ADVICE, IMAGE_SUFFIXES, PHOTOGRAPH_SUFFIXES
from vitcli.errors import DataError
from vitcli.io.files import open_regular
from vitcli.output import run_folder
from vitcli.output.text import count_of, first_few, plain

SYSTEM_FOLDERS = frozenset(
    ("__macosx", "@eadir", "lost+found", "$recycle.bin", "#recycle", "#snapshot", "system volume information")
)
SILENT_NAMES = frozenset(("thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r"))
# Files that a folder of ours has beside its figures: of a run, a comparison, an evaluation, an inspection.
RESULTS = ({run_folder.RECIPE, run_folder.SUMMARY}, {run_folder.SUMMARY, "table.txt"}, {"evaluation.json"},
           {"inspection.json"})  # fmt: skip
SILENT_STARTS = ("readme", "license", "licence", "citation")  # about the data set, not of it
NAMED_EACH = 3  # this many files are all named; of more the endings are counted
LISTED = 100  # files in a summary

UNREADABLE, LOOSE, UNNAMED = "unreadable", "loose", "unnamed"
BESIDE, SYSTEM, LINKED, RESULT = "beside", "system", "linked", "result"
# What a file is, and what several are, by the reason for leaving it out.
REASONS = {
    UNREADABLE: ("unsupported file", "unsupported files"),
    LOOSE: ("image outside the class folders", "images outside the class folders"),
    UNNAMED: ("image that no row of the labels names", "images that no row of the labels names"),
    BESIDE: ("file beside the tables or shards", "files beside the tables or shards"),
    SYSTEM: ("image in a system folder", "images in system folders"),
    RESULT: ("figure in a folder of results", "figures in folders of results"),
    LINKED: ("link to a folder, which is not followed", "links to folders, which are not followed"),
}
CONVERT = "raw files of cameras: convert"
ADVICE = {
    **dict.fromkeys((".heic", ".heif"), HEIC_ADVICE),
    ".avif": "AVIF: this Pillow cannot read it; convert",
    **dict.fromkeys((".cr2", ".cr3", ".nef", ".arw", ".dng", ".raf", ".orf", ".rw2"), CONVERT),
    **dict.fromkeys((".zip", ".tar", ".gz", ".7z", ".rar"), "an archive: unpack it"),
}


@dataclass(frozen=True)
class LeftOut:
    """Files of a data set that are not read.

    Attributes:
        files: the reason and the path of each, relative to the data set's folder.
    """

    files: tuple[tuple[str, str], ...] = ()

    def __or__(self, other: "LeftOut") -> "LeftOut":
        return union([self, other])

    def lines(self) -> list[str]:
        """Return one line for each reason: how many files, and which."""
        lines = []
        for reason, (singular, several) in REASONS.items():
            paths = [path for other, path in self.files if other == reason]
            if paths:
                lines.append(f"left out: {count_of(len(paths), singular, several)}: {named(paths, reason)}")
        return lines

    def count_text(self) -> str:
        """Return how many files these are, with advice on their formats or the first name; "" for none."""
        if not self.files:
            return ""
        paths = [path for reason, path in self.files if reason == UNREADABLE]
        files = count_of(len(self.files), "file")
        return f"{files} ({_advice(paths) or f'first {self.files[0][1]}'})"

    def summary(self) -> dict[str, Any]:
        """Return the keys of a command's JSON."""
        return {
            "num_left_out_files": len(self.files),
            "left_out_files": [path for _, path in self.files[:LISTED]],
        }


NOTHING = LeftOut()


def left_out_of(reason: str, paths: Iterable[str]) -> LeftOut:
    """Return files that are left out for a reason, their names made printable."""
    return LeftOut(tuple((reason, plain(path)) for path in paths))


def named(paths: Sequence[str], reason: str = UNREADABLE) -> str:
    """Return a few files by name, many by their endings and the first name; with what helps for a format."""
    advice = _advice(paths) if reason == UNREADABLE else ""
    advice = f" ({advice})" if advice else ""
    if reason != UNREADABLE or len(paths) <= NAMED_EACH:
        return first_few(paths, NAMED_EACH) + advice
    counts = Counter(suffix_of(path) or "without ending" for path in paths).most_common()
    return f"{first_few([f'{count} {suffix}' for suffix, count in counts])}, first {paths[0]}{advice}"


def _advice(paths: Sequence[str]) -> str:
    """Return what helps for the formats of files that are left out, "" for others."""
    return "; ".join(dict.fromkeys(ADVICE[s] for s in map(suffix_of, paths) if s in ADVICE))


@dataclass(frozen=True)
class Files:
    """Paths of the images below a folder and of other files, both sorted; and what was not entered."""

    images: list[str]
    others: list[str]
    not_entered: LeftOut

    def left_out(self, root: Path, *, but: Iterable[str] = ()) -> LeftOut:
        """Return everything that is not an image, except for some files that are read otherwise."""
        return self.not_entered | left_out_of(UNREADABLE, relative(sorted(set(self.others) - set(but)), root))


def list_files(folder: Path, root: Path, *, recursive: bool = True) -> Files:
    """List the files below a folder; hidden, linked, system and result folders are not entered.

    Args:
        root: the folder of the data set, which left out files are named from.

    Raises:
        DataError: a folder cannot be read; its images would be missing without a word.
    """
    images, others, system, linked, figures = (list[str]() for _ in range(5))
    for parent, folders, names in os.walk(folder, onerror=_refuse):
        if parent != str(folder) and is_result(names):
            figures += _images_in(parent)
            folders.clear()
            continue
        for name in names:
            if not is_silent(name):
                path = os.path.join(parent, name)
                (images if is_image(path) else others).append(path)
        for name in folders:
            if name.lower() in SYSTEM_FOLDERS:
                system += _images_in(os.path.join(parent, name))
        folders[:] = [name for name in folders if is_entered(name)] if recursive else []
        linked += [path for name in folders if os.path.islink(path := os.path.join(parent, name))]
    not_entered = union(
        left_out_of(reason, relative(sorted(paths), root))
        for reason, paths in ((SYSTEM, system), (LINKED, linked), (RESULT, figures))
    )
    return Files(sorted(images), sorted(others), not_entered)


def is_result(names: Iterable[str]) -> bool:
    """Return whether a folder with files of these names holds results of ours: its images are figures."""
    return any(marks <= set(names) for marks in RESULTS)


def image_files(folder: Path) -> list[str]:
    """Return all image files below a folder, sorted; hidden files and folders (".name") are ignored."""
    return list_files(folder, folder).images


def has_images(folder: Path | str) -> bool:
    """Return whether there is an image below a folder; stops at the first."""
    inner = []
    with _entries(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                inner += [entry.path] if is_entered(entry.name) else []
            elif is_image(entry.path):
                return True
    return any(map(has_images, inner))


def subfolders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted, without those of results; none of a file."""
    return [name for name in _entered(folder) if not holds_results(folder / name)]


def result_folders(folder: Path) -> LeftOut:
    """Return the figures in those folders of a folder that hold results of ours, and nothing else."""
    names = [name for name in _entered(folder) if holds_results(folder / name)]
    figures = [path for name in names for path in _images_in(str(folder / name))]
    return left_out_of(RESULT, relative(sorted(figures), folder))


def _entered(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    with _entries(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and is_entered(entry.name))


def holds_results(folder: Path) -> bool:
    """Return whether a folder is one of results, or like `runs/` has such folders and nothing else."""
    files, folders = _names_in(folder)
    if files:
        return is_result(files)
    has_results = any(is_result(_names_in(folder / name)[0]) for name in folders)
    return has_results and not list_files(folder, folder).images


def _names_in(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of the files and of the folders that are looked at."""
    with _entries(folder) as entries:
        is_folder = {entry.name: entry.is_dir() for entry in entries}
    files = [name for name in is_folder if not (is_folder[name] or is_silent(name))]
    return files, [name for name in is_folder if is_folder[name] and is_entered(name)]


@contextmanager
def _entries(folder: Path | str) -> Iterator[Iterator[os.DirEntry]]:
    """Open a folder to read its entries."""
    try:
        with os.scandir(folder) as entries:
            yield entries
    except OSError as error:
        raise _unreadable(error) from error


def _refuse(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # a class may have no folder in a split
        raise _unreadable(error) from error


def _unreadable(error: OSError) -> DataError:
    return DataError(
        f"a folder cannot be read: {error.strerror}",
        where=str(error.filename),
        fix="allow reading it (chmod u+rx), or move it out of the data set",
    )


def relative(paths: Iterable[str], root: Path) -> list[str]:
    return [os.path.relpath(path, root) for path in paths]


def suffix_of(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def is_image(path: str) -> bool:
    """Return whether a file is an image that can be read, by its name; a photograph's by its first bytes.

    A JPEG may be called .HEIC. Other files are not opened: there may be many, and photo.jpg.bak is a copy.
    """
    if os.path.basename(path).startswith("."):
        return False
    if suffix_of(path) not in PHOTOGRAPH_SUFFIXES - IMAGE_SUFFIXES:
        return suffix_of(path) in IMAGE_SUFFIXES
    try:
        with open_regular(path) as file:
            return file.read(max(map(len, BEGINNINGS))).startswith(BEGINNINGS)
    except OSError:
        return False


def advice_on(path: str) -> str | None:
    """Return what helps with a file of a known format that cannot be read; None for any other file."""
    return None if is_image(path) else ADVICE.get(suffix_of(path))


def is_silent(name: str) -> bool:
    """Return whether a file is left out without a word: hidden, of the system, or about the data set."""
    lower = name.lower()
    is_about = lower.startswith(SILENT_STARTS) and suffix_of(lower) not in IMAGE_SUFFIXES
    return is_about or lower.startswith(".") or lower in SILENT_NAMES


def is_entered(name: str) -> bool:
    return not name.startswith(".") and name.lower() not in SYSTEM_FOLDERS


def union(parts: Iterable[LeftOut]) -> LeftOut:
    """Return the files of all parts, each once; in one pass, since every class folder is a part."""
    return LeftOut(tuple(dict.fromkeys(chain.from_iterable(part.files for part in parts))))


def _images_in(folder: str) -> list[str]:
    """Return the images of a folder that is not entered; `._1.jpg` of a Mac's archive is none."""
    return [
        os.path.join(parent, name)
        for parent, _, names in os.walk(folder)
        for name in names
        if is_image(os.path.join(parent, name))
    ]
