"""Layouts of tables of images: folders and files on this machine.

Every layout becomes one `datasets.Dataset` per split, with its image column still encoded. No code from a
data set is ever run.
"""

import glob
import os
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from vitcli.data.columns import may_be_image
from vitcli.data.decoding import IMAGE_SUFFIXES, PHOTOGRAPH_SUFFIXES
from vitcli.data.sources import label_files
from vitcli.data.sources.class_folders import open_class_folders
from vitcli.data.sources.folders import BESIDE, NOTHING, LeftOut, left_out_of, list_files, relative, suffix_of
from vitcli.data.sources.tables import AS_FOUND, Choices, Tables, open_without_labels, split_of
from vitcli.data.sources.wrong_layouts import no_data_set, not_a_data_set
from vitcli.errors import DataError, reason_of
from vitcli.io.files import open_regular
from vitcli.output.atomic import load_json

BUILDERS = {".parquet": "parquet", ".arrow": "arrow"}


def open_local(path: Path, choices: Choices = AS_FOUND) -> Tables:
    """Find the tables of a folder or file in any layout.

    Raises:
        DataError: the layout is none of LAYOUTS, or what it holds is not enough.
    """
    typed, path = str(path), Path(os.path.abspath(path.expanduser()))
    if path.is_file():
        if path.suffix.lower() in BUILDERS:
            return _table_files(path.parent, [path])
        if path.suffix.lower() in label_files.SUFFIXES:
            return label_files.open_label_files([path], path.parent, choices, one_hot=True, of_folder=False)
        raise not_a_data_set(path, typed)
    if (path / "dataset_dict.json").exists() or (path / "state.json").exists():
        return _saved_to_disk(path)
    files = list_files(path, path)
    for suffix in BUILDERS:
        tables = [Path(file) for file in files.others if suffix_of(file) == suffix]
        if files.images:
            tables = list(filter(_may_hold_images, tables))
        if tables:
            other_tables = [file for file in files.others if suffix_of(file) in {*BUILDERS} - {suffix}]
            beside = relative(files.images + other_tables, path)
            return _table_files(path, tables, left_out_of(BESIDE, beside))
    opened = _open_folder(path, typed, choices)
    if opened is None:
        raise no_data_set(path, typed)
    return opened


def _may_hold_images(table: Path) -> bool:
    """Return whether a table has a column that may hold images; a file of predictions has none."""
    if table.suffix.lower() != ".parquet":
        return True
    try:
        with open_regular(table) as file:
            features = datasets.Features.from_arrow_schema(pq.read_schema(file))
    except (OSError, ValueError, pa.ArrowException):  # a damaged one is named when it is opened
        return True
    return any(map(may_be_image, features.values()))


def _open_folder(path: Path, typed: str, choices: Choices) -> Tables | None:
    """Open images by a file of labels, else by class folders, else without labels where none are needed."""
    no_column = None
    if files := label_files.find_label_files(path):
        try:
            return label_files.open_label_files(files, path, choices)
        except label_files.NoColumn as error:  # a file of captions or sizes, say
            no_column = error
    opened = _open_without_label_file(path, typed, choices)
    if no_column is None:
        return opened
    if opened is None:
        return label_files.open_label_files(files, path, choices, one_hot=True)
    return replace(opened, notes=(f"{no_column.message}, so the folders name the classes", *opened.notes))


def _open_without_label_file(path: Path, typed: str, choices: Choices) -> Tables | None:
    try:
        opened = open_class_folders(path, typed=typed, one_class=choices.one_class)
    except DataError:
        if choices.needs_labels:
            raise
        opened = None
    return opened if opened or choices.needs_labels else open_without_labels(path)


def _saved_to_disk(path: Path) -> Tables:
    folders = {"train": path}
    try:
        if (path / "dataset_dict.json").exists():
            names = load_json(path / "dataset_dict.json")["splits"]
            folders = {name: path / name for name in names}
        for folder in folders.values():
            _check_inside(folder, path)
            state = load_json(folder / "state.json")
            for entry in state["_data_files"]:  # the library follows ../ in these names
                _check_inside(folder / entry["filename"], path)
                open_regular(folder / entry["filename"]).close()  # the library would wait for a pipe
    except (OSError, ValueError, KeyError, TypeError) as error:  # a file is missing or has other content
        raise _unreadable(path, error) from error
    return Tables({name: partial(_load_from_disk, folder) for name, folder in folders.items()}, path)


def _load_from_disk(folder: Path) -> datasets.Dataset:
    try:
        return datasets.load_from_disk(str(folder))
    except Exception as error:
        raise _unreadable(folder, error) from error


def _table_files(root: Path, files: list[Path], left_out: LeftOut = NOTHING) -> Tables:
    """Assign Parquet or Arrow files to splits by words in the names of files and folders."""
    builder = BUILDERS[files[0].suffix.lower()]
    by_split: dict[str, list[str]] = {}
    for file in files:
        # Escaped, because the library treats brackets and stars in a name as a pattern.
        by_split.setdefault(split_of(file.relative_to(root)), []).append(glob.escape(str(file)))

    def read(name: str) -> datasets.Dataset:
        try:
            return datasets.load_dataset(builder, data_files={name: by_split[name]}, split=name)
        except Exception as error:
            raise _unreadable(root, error) from error

    return Tables({name: partial(read, name) for name in by_split}, root, left_out=lambda split: left_out)


def _unreadable(file: Path, error: Exception) -> DataError:
    reason = reason_of(error.__cause__ or error)[:160]  # `datasets` wraps the error itself
    return DataError(f"{file.name} cannot be read: {reason}", where=str(file), fix="replace the damaged file")


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
    files, labels = [str(path)], set(label_files.NAMES)
    if path.is_file() and path.suffix.lower() in label_files.SUFFIXES:
        path, labels = path.parent, {path.name}  # with the images that it names
    if path.is_dir():
        read = IMAGE_SUFFIXES | PHOTOGRAPH_SUFFIXES | {*BUILDERS, ".tar"}
        files = [
            os.path.join(folder, name)
            for folder, _, names in os.walk(path)
            for name in names
            if suffix_of(name) in read or name in labels
        ]
    for file in sorted(files, key=lambda file: file.split(os.sep)):
        try:
            state = os.stat(file)
        except OSError:  # a broken link
            continue
        inside = file.removeprefix(str(path)).lstrip(os.sep) or "."
        digest.update(f"{inside}\0{state.st_size}\0{state.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()
