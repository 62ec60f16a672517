"""What to say about a file or folder that is no data set: what it holds, and what to type instead."""

import shlex
import tarfile
from contextlib import suppress
from pathlib import Path

from vitcli.data.aliases import LAYOUTS
from vitcli.data.sources.folders import (
    ADVICE,
    Files,
    has_images,
    is_image,
    list_files,
    named,
    relative,
    subfolders,
    suffix_of,
)
from vitcli.data.sources.label_files import COLUMNS_HELP
from vitcli.data.sources.label_files import SUFFIXES as TABLES
from vitcli.errors import DataError
from vitcli.output.text import count_of, first_few

UNPACK = {
    ".zip": "unzip {file} -d {folder}",
    ".tar": "mkdir {folder} && tar -xf {file} -C {folder}",
    ".7z": "7z x {file} -o{folder}",
    ".rar": "unrar x {file} {folder}/",
}
TARS = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar")
SHEETS = (".xlsx", ".xls", ".ods", ".json", ".txt")
STREAM = "--set data.streaming=true"


def not_a_data_set(path: Path, typed: str) -> DataError:
    """Return the error for a file that is no table."""
    if unpack := unpacking(typed):
        return _error(f"{typed} is an archive, which is not read", typed, unpack)
    if is_image(str(path)):
        fix = f"name a folder of class folders; of one image: vit predict --ckpt CKPT {shlex.quote(typed)}"
        return _error(f"{typed} is one image, and not a data set", typed, fix)
    if path.suffix.lower() in SHEETS:
        return _error(f"{typed} is not a data set", typed, f"save it as labels.csv: {COLUMNS_HELP}")
    return _error(f"{typed} is not a data set", typed, LAYOUTS)


def no_data_set(path: Path, typed: str) -> DataError:
    """Return the error for a folder of which no layout can be read."""
    files = list_files(path, path)
    if files.images:
        return _without_classes(path, typed, files)
    shards = [file for file in files.others if file.endswith(".tar")]
    archives = [Path(file) for file in files.others if unpacking(file)]
    tables = [file for file in files.others if suffix_of(file) in TABLES]
    if shards and _holds_samples(shards[0]):
        count = count_of(len(shards), ".tar file")
        return _error(f"{typed} holds {count}: shards, which are streamed", typed, STREAM)
    if archives:
        archive = Path(typed) / archives[0].relative_to(path)
        count = count_of(len(archives), "archive")
        fix = unpacking(str(archive))
        return _error(f"{typed} holds {count} and no images: {archive.name}", typed, fix)
    if files.others:
        count = count_of(len(files.others), "file")
        problem = f"{typed} holds no image vit can read, but {count}: {named(relative(files.others, path))}"
        fix = "put the images that it names beside it; " if tables else ""
        if any(suffix_of(file) in ADVICE for file in files.others):
            fix = "convert them to JPEG or PNG; "
        return _error(problem, typed, f"{fix}{LAYOUTS}")
    if files.not_entered.files:
        return _error(f"{typed} holds no images but: {'; '.join(files.not_entered.lines())}", typed, LAYOUTS)
    return _error(f"no images found in {typed}", typed, LAYOUTS)


def _without_classes(path: Path, typed: str, files: Files) -> DataError:
    """Return the error for images that are in no class folders."""
    problem = f"{typed} holds {count_of(len(files.images), 'image')} but no class folders"
    if splits := [name for name in subfolders(path) if has_images(path / name)]:
        folders = first_few([f"{name}/" for name in splits])
        problem = f"{typed} holds images in {folders} but no class folders there"
        fix = f"move the images of each class into {splits[0]}/CLASS/, or {_by_table(typed)}"
        return _error(problem, typed, fix)
    if tables := [Path(file).relative_to(path) for file in files.others if suffix_of(file) in TABLES]:
        table = shlex.quote(str(Path(typed) / tables[0]))
        return _error(problem, typed, f"--dataset {table}, to take the labels from that file")
    fix = f"one folder for each class, or {_by_table(typed)}"
    parent = shlex.quote(str(Path(typed).parent))
    siblings = [name for name in subfolders(path.parent) if _has_images_itself(path.parent / name)]
    if len(siblings) > 1 and parent != ".":
        fix = f"--dataset {parent} if its {len(siblings)} folders are the classes; else {fix}"
    return _error(problem, typed, fix)


def _has_images_itself(folder: Path) -> bool:
    try:
        return bool(list_files(folder, folder, recursive=False).images)
    except DataError:  # a neighbour of another user, in /tmp say
        return False


def _by_table(typed: str) -> str:
    return f"labels from a file, {shlex.quote(str(Path(typed) / 'labels.csv'))}: {COLUMNS_HELP}"


def unpacking(typed: str) -> str | None:
    """Return the command that unpacks an archive into a folder beside it; None for other files."""
    name = typed.lower()
    suffix = next((suffix for suffix in TARS if name.endswith(suffix)), suffix_of(name))
    command = UNPACK.get(".tar" if suffix in TARS else suffix)
    if command is None:
        return None
    folder = shlex.quote(typed[: -len(suffix)])
    command = command.format(file=shlex.quote(typed), folder=folder)
    return f"unpack it first: {command}; then name {folder}"


def _holds_samples(tar: str) -> bool:
    """Return whether a .tar looks like a shard: by its first members, labels lie beside images."""
    with suppress(OSError, tarfile.TarError), tarfile.open(tar, "r:") as archive:
        for _, member in zip(range(20), archive, strict=False):
            if Path(member.name).suffix.lower() in (".cls", ".json"):
                return True
    return False


def _error(problem: str, typed: str, fix: str) -> DataError:
    return DataError(problem, where=f"--dataset {typed}", fix=fix)
