"""What to say of a file or folder that is not a data set: what it holds, and what a data set is."""

import shlex
import tarfile
from contextlib import suppress
from pathlib import Path

from vitcli.data.aliases import LAYOUTS
from vitcli.data.sources.folders import advice_on, is_image, list_files, named, relative, suffix_of
from vitcli.data.sources.label_files import COLUMNS_HELP
from vitcli.data.sources.label_files import SUFFIXES as TABLES
from vitcli.errors import DataError
from vitcli.output.text import count_of


def not_a_data_set(path: Path, typed: str) -> DataError:
    """Return the error for a file that is not a table."""
    what = "is one image, and not a data set" if is_image(str(path)) else "is not a data set"
    advice = advice_on(str(path))
    return _error(f"{typed} {what}" + (f" ({advice})" if advice else ""), typed, LAYOUTS)


def no_data_set(path: Path, typed: str) -> DataError:
    """Return the error for a folder of which no layout can be read."""
    files = list_files(path, path)
    tables = [file for file in files.others if suffix_of(file) in TABLES]
    shards = [file for file in files.others if suffix_of(file) == ".tar"]
    if files.images:
        problem = f"{typed} holds {count_of(len(files.images), 'image')} but no class folders"
        if tables:
            table = shlex.quote(str(Path(typed) / Path(tables[0]).relative_to(path)))
            return _error(problem, typed, f"--dataset {table}, to take the labels from that file")
        return _error(problem, typed, f"one folder for each class, or labels.csv: {COLUMNS_HELP}")
    if shards and _holds_samples(shards[0]):
        problem = f"{typed} holds {count_of(len(shards), '.tar file')}: shards, which are streamed"
        return _error(problem, typed, "--set data.streaming=true")
    if files.others:
        count, names = count_of(len(files.others), "file"), named(relative(files.others, path))
        return _error(f"{typed} holds no image vit can read, but {count}: {names}", typed, LAYOUTS)
    if files.not_entered.files:
        return _error(f"{typed} holds no images but: {'; '.join(files.not_entered.lines())}", typed, LAYOUTS)
    return _error(f"no images found in {typed}", typed, LAYOUTS)


def _holds_samples(tar: str) -> bool:
    """Return whether a .tar looks like a shard: by its first members, labels lie beside images."""
    with suppress(OSError, tarfile.TarError), tarfile.open(tar, "r:") as archive:
        for _, member in zip(range(20), archive, strict=False):
            if Path(member.name).suffix.lower() in (".cls", ".json"):
                return True
    return False


def _error(problem: str, typed: str, fix: str) -> DataError:
    return DataError(problem, where=f"--dataset {typed}", fix=f"{fix} (docs/data.md)")
