"""Paths of shards: folders, patterns, URLs and Hub ids resolved to lists of files by split."""

import os
import re
from pathlib import Path
from urllib.parse import quote

from fsspec.implementations.local import LocalFileSystem

from vitcli.data.shards.remote import attempt, file_name, file_system
from vitcli.data.sources.tables import SPLIT_WORDS, split_of
from vitcli.errors import DataError
from vitcli.io.credentials import public_address
from vitcli.output.text import natural

KINDS = (".parquet", ".tar")
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
PLACES = "a folder, file, pattern (train-{0000..0146}.tar, *.parquet) or URL of Parquet or WebDataset shards"
MAX_SHARDS = 1_000_000
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?(@[\w./-]+)?")

ShardPath = tuple[str, str]  # the URL of a shard, and its path inside the data set


def find_shards(source: str) -> dict[str, list[str]]:
    """Return the URLs of shards by split, in natural order; words in their paths name the split, else train.

    Args:
        source: a local folder or file; a pattern with `*`, `[]` or braces as WebDataset writes them; a URL of
            any of these that fsspec opens; or a Hub id `owner/name[:config][@revision]`.

    Raises:
        DataError: there are none, they are of two kinds, or the source cannot be listed.
    """
    local = os.path.abspath(os.path.expanduser(source))
    if "://" not in source and os.path.exists(local):
        paths = _list(local, root=local if os.path.isdir(local) else os.path.dirname(local))
    elif "://" in source or any(mark in source for mark in "*?[{"):
        paths = _matching(source if "://" in source else local)
    elif HUB_ID.fullmatch(source):
        paths = _on_hub(source)
    else:
        raise DataError(f"there is no data at {source!r}", where="--dataset", fix=PLACES)
    by_split: dict[str, list[str]] = {}
    for url, inside in sorted(set(_of_one_kind(paths, source)), key=lambda path: natural(path[1])):
        by_split.setdefault(split_of(Path(inside)), []).append(url)
    return by_split


def kind_of(url: str) -> str | None:
    """Return the suffix of a shard: ".parquet", ".tar", one of the compressed kinds, or None."""
    name = public_address(url).lower()
    return next((suffix for suffix in (*COMPRESSED, *KINDS) if name.endswith(suffix)), None)


def compressed(url: str) -> DataError:
    return DataError(
        f"{file_name(url)} is compressed, and no row of it can be read without all before it",
        where=public_address(url),
        fix="decompress it (gunzip, unxz, unzstd): images are compressed already, a plain .tar is as small",
    )


def _of_one_kind(paths: list[ShardPath], source: str) -> list[ShardPath]:
    shards = [path for path in paths if kind_of(path[0]) in KINDS]
    kinds = {kind_of(url) for url, _ in shards}
    if len(kinds) > 1:
        raise DataError(
            f"{public_address(source)} holds both .parquet and .tar files",
            where="--dataset",
            fix=f"name one kind with a pattern, such as {public_address(source).rstrip('/')}/*.tar",
        )
    if shards:
        return shards
    for url, _ in paths:
        if kind_of(url) in COMPRESSED:
            raise compressed(url)
    is_folder = "://" not in source and os.path.isdir(os.path.expanduser(source))
    other = "leave data.streaming out: folders of images or of save_to_disk are opened without it"
    fix = other if is_folder else PLACES
    raise DataError(f"{public_address(source)} holds no shards", where="--dataset", fix=fix)


def _matching(pattern: str) -> list[ShardPath]:
    root = re.split(r"[*?\[{]", pattern)[0].rpartition("/")[0]
    paths = []
    for url in _expanded(pattern):  # in a URL a question mark begins the query
        paths += _list(url, root=root, is_glob=any(star in public_address(url) for star in "*[?"))
    return paths


def _list(url: str, *, root: str, is_glob: bool = False) -> list[ShardPath]:
    """Return the files at a URL, below it or matching it, hidden ones left out."""
    if not is_glob and kind_of(url):
        return [(url, public_address(url).removeprefix(public_address(root)))]
    fs, path = file_system(url)
    is_local = isinstance(fs, LocalFileSystem)
    list_files = fs.glob if is_glob else fs.find
    paths = attempt(lambda: list_files(path), url=url, is_local=is_local)
    start = len(file_system(root)[1])
    files = [(path if is_local else fs.unstrip_protocol(path), path[start:].strip("/")) for path in paths]
    return [file for file in files if not any(part.startswith(".") for part in file[1].split("/"))]


def _on_hub(source: str) -> list[ShardPath]:
    hub_id, _, revision = source.partition("@")
    hub_id, _, config = hub_id.partition(":")
    root = f"hf://datasets/{hub_id}" + (f"@{quote(revision, safe='')}" if revision else "")
    paths = [path for path in _list(root, root=root) if kind_of(path[0]) in KINDS]
    if any("/partial-" in f"/{inside}" for _, inside in paths):
        raise DataError(
            f"the Hub has converted only a part of {hub_id} to Parquet",
            where=f"--dataset {source}",
            fix="name the data set's own files: another revision, or a pattern hf://datasets/owner/name/*.tar",
        )
    configs = sorted({name for _, inside in paths if (name := _config_of(inside))})
    if (config and config not in configs) or (not config and len(configs) > 1):
        raise DataError(
            f"{hub_id} has no configuration {config!r}" if config else f"{hub_id} has several configurations",
            where=f"--dataset {source}",
            fix=f"one of {', '.join(f'{hub_id}:{name}' for name in configs[:10]) or hub_id}",
        )
    return [path for path in paths if not config or _config_of(path[1]) == config]


def _config_of(inside: str) -> str | None:
    """Return the folder of a file that names its configuration of a Hub data set."""
    folders = inside.split("/")[:-1]
    return next((name for name in folders if name != "data" and name.lower() not in SPLIT_WORDS), None)


def _expanded(pattern: str) -> list[str]:
    """Expand braces as a shell does: `{a,b}`, and `{000..146}` with its leading zeros."""
    braces = re.search(r"\{([^{}]*)\}", pattern)
    if not braces:
        return [pattern]
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", braces[1])
    words = braces[1].split(",")
    if numbers:
        first, last = int(numbers[1]), int(numbers[2])
        if not 0 <= last - first < MAX_SHARDS:
            raise DataError(
                f"{braces[0]} is not a range of shards",
                where=f"--dataset {public_address(pattern)}",
                fix="{0000..0146}",
            )
        words = [f"{number:0{len(numbers[1])}}" for number in range(first, last + 1)]
    before, after = pattern[: braces.start()], pattern[braces.end() :]
    return [url for word in words for url in _expanded(before + word + after)]
