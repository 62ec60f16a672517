"""WebDataset shards: an index says where in the .tar each image lies, and what label goes with it.

Members whose path is the same up to the first dot of the file name are one sample: `000123.jpg` with
`000123.cls`, a whole number, or `000123.json` with a field "label", "cls" or "class". A member's name is a
key and never a path; links, devices and folders are passed over; nothing is ever unpacked.
"""

import json
import os
import posixpath
import re
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
from filelock import FileLock

from vitcli.data.layouts import IMAGE_SUFFIXES
from vitcli.data.shards.paths import compressed
from vitcli.data.shards.remote import Columns, Contents, RowOf, ShardFile, shown, unreadable
from vitcli.errors import DataError, MachineError, VitError
from vitcli.output.atomic import replace_file

LABEL_FIELDS = ("label", "cls", "class")
MAX_LABEL_BYTES = 2**20  # of a .cls or .json member
# Counts of samples that others leave beside shards: `widsindex create`, then timm.
COUNT_FILES = ("shardindex.json", "index.json", "_info.json", "info.json")
INDEX_VERSION = 1  # part of the name of a kept index
LOCK_WAIT_S = 600  # about what a shard of some GB takes through a slow line; then another process may hang

Member = tuple[int, int, object]  # offset, size, and what it says of the label


@dataclass(frozen=True)
class Index:
    """Where the samples of one shard lie. N samples, M labels in all.

    Attributes:
        offsets_N, sizes_N: of the encoded images in the shard, bytes.
        labels_M: sample i has those from label_ends_N[i - 1] to label_ends_N[i].
        has_many: a sample's labels were written as a list.
    """

    offsets_N: np.ndarray
    sizes_N: np.ndarray
    labels_M: np.ndarray
    label_ends_N: np.ndarray
    has_many: bool

    @property
    def num_bytes(self) -> int:
        arrays = (self.offsets_N, self.sizes_N, self.labels_M, self.label_ends_N)
        return 1_000 + sum(array.nbytes for array in arrays)

    def label(self, place: int) -> int | tuple[int, ...]:
        first = self.label_ends_N[place - 1] if place else 0
        labels = tuple(self.labels_M[first : self.label_ends_N[place]].tolist())
        return labels if self.has_many else labels[0]


def inspect_file(file: ShardFile, *, image_column: str | None, label_column: str | None) -> Contents:
    """Samples and labels of a shard, from its index, which is made where none is kept."""
    index = read_index(file, image_column=image_column, label_column=label_column)
    count = len(index.offsets_N)
    if not count:
        return Contents((0,), 0, None, None)
    columns = Columns(image_column or "", label_column or "", index.has_many, None)
    labels = (int(index.labels_M.min()), int(index.labels_M.max())) if len(index.labels_M) else None
    return Contents((count,), _block_bytes(file, index.num_bytes), columns, labels)


def trust_count(file: ShardFile, count: int) -> Contents:
    """A shard that is not looked at before it is needed, because a file beside it says what it holds."""
    return Contents((count,), _block_bytes(file, 0), None, None)


def read_block(file: ShardFile, *, columns: Columns, count: int) -> tuple[RowOf, int]:
    """A shard of `count` samples: of a remote one all bytes, of a local one the index alone."""
    index = read_index(file, image_column=columns.image or None, label_column=columns.label or None)
    if len(index.offsets_N) != count:
        raise DataError(
            f"{posixpath.basename(file.shown)} has {len(index.offsets_N)} samples, and {count} are expected",
            where=file.shown,
            fix=f"restore the shard, or remove the file beside it that counts ({', '.join(COUNT_FILES)})",
        )
    whole = None if file.is_local else file.read(0, file.size)

    def row_of(place: int) -> tuple[bytes, int | tuple[int, ...]]:
        first = int(index.offsets_N[place])
        last = first + int(index.sizes_N[place])
        return file.read(first, last) if whole is None else whole[first:last], index.label(place)

    return row_of, _block_bytes(file, index.num_bytes)


def _block_bytes(file: ShardFile, index_bytes: int) -> int:
    return index_bytes + (0 if file.is_local else file.size)


def known_counts(files: Iterable[ShardFile]) -> dict[str, int]:
    """Samples by URL, from the count files beside the shards, whose entries are compared by file name."""
    by_folder: dict[tuple, list[ShardFile]] = {}
    for file in files:
        by_folder.setdefault((file.fs, posixpath.dirname(file.path)), []).append(file)
    found = {}
    for (fs, folder), members in by_folder.items():
        counts: dict[str, int] = {}
        for name in COUNT_FILES:
            with suppress(Exception):  # not there, not ours, or not JSON: the shards themselves are read then
                counts = _counts(json.loads(fs.cat_file(f"{folder}/{name}"))) | counts
        found |= {file.url: counts[name] for file in members if counts.get(name := _name(file.path), -1) >= 0}
    return found


def _counts(told: dict) -> dict[str, int]:
    if "shardlist" in told:
        return {_name(entry["url"]): int(entry["nsamples"]) for entry in told["shardlist"]}
    splits = told["splits"].values()
    pairs = (
        pair for split in splits for pair in zip(split["filenames"], split["shard_lengths"], strict=True)
    )
    return {_name(name): int(count) for name, count in pairs}


def _name(url: str) -> str:
    return posixpath.basename(shown(url))


def read_index(file: ShardFile, *, image_column: str | None, label_column: str | None) -> Index:
    """The index that an earlier run or another process kept of this very file, or a new one.

    Raises:
        DataError: the shard is damaged, or a sample of it has no image or no label.
    """
    if not file.stamp:  # nothing would tell that the shard has changed
        return _make_index(file, image_column, label_column)
    identity = (INDEX_VERSION, file.url, file.path, file.size, file.stamp, image_column, label_column)
    name = blake2b(repr(identity).encode(), digest_size=16).hexdigest()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    kept = Path(base, "vit", "shards", f"{name}.npz").expanduser()
    if (index := _kept_index(kept)) is not None:
        return index
    with _one_at_a_time(kept):
        if (index := _kept_index(kept)) is None:  # nobody made it while this process waited
            index = _make_index(file, image_column, label_column)
            with suppress(MachineError):  # a home that cannot be written to costs time, nothing else
                replace_file(kept, lambda path: _write(path, index))
    return index


def _kept_index(kept: Path) -> Index | None:
    with suppress(Exception), np.load(kept) as arrays:  # none, or a damaged one: made anew
        return Index(**{**arrays, "has_many": bool(arrays["has_many"])})
    return None


@contextmanager
def _one_at_a_time(kept: Path) -> Iterator[None]:
    """Keep the other processes of this machine from making the same index, which may take minutes.

    Where no lock can be had (a home that cannot be written to, a file system without locks, a process that
    hangs while it holds it), each makes its own, at the cost of time.
    """
    with ExitStack() as held:
        with suppress(OSError, NotImplementedError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(FileLock(kept.with_suffix(".lock"), timeout=LOCK_WAIT_S))
        yield


def _write(path: Path, index: Index) -> None:
    with path.open("wb") as stream:
        np.savez(stream, **vars(index))


def _make_index(file: ShardFile, image_column: str | None, label_column: str | None) -> Index:
    try:
        samples = _samples(file, label_column)
    except VitError:
        raise
    except Exception as error:  # tarfile's own, and ours where the file ends too early
        if _is_compressed(file):
            raise compressed(file.url) from error
        raise unreadable(file.url, error) from error
    offsets, sizes, labels, ends, kinds = [], [], [], [], set()
    for key, members in samples.items():
        where = f"{file.shown}, sample {key!r}"
        offset, size, _ = members[_image_suffix(members, image_column, where)]
        label = _label(members, label_column, where)
        kinds.add(type(label))
        labels += label if isinstance(label, list) else [label]
        offsets.append(offset)
        sizes.append(size)
        ends.append(len(labels))
        if len(kinds) > 1:
            raise DataError(
                "a sample has a list of labels and another has one number",
                where=where,
                fix="write the labels of all samples alike",
            )
    return Index(
        *(np.array(values, dtype=np.int64) for values in (offsets, sizes, labels, ends)), list in kinds
    )


def _samples(file: ShardFile, label_column: str | None) -> dict[str, dict[str, Member]]:
    """By key and suffix: what is known of every member."""
    samples: dict[str, dict[str, Member]] = {}
    label_suffixes = {"cls", "json", label_column}
    with file.open() as stream:
        tar = tarfile.TarFile(fileobj=stream)
        while (member := tar.next()) is not None:
            tar.members.clear()  # it would keep them all
            offset, size = member.offset_data, member.size
            if not 0 <= size <= file.size - offset:
                raise ValueError(f"it ends inside member {member.name!r}")
            folder, name = posixpath.split(member.name)
            stem, _, suffix = name.partition(".")
            if not member.isreg() or member.issparse() or not stem or not suffix:
                continue
            members = samples.setdefault(posixpath.join(folder, stem), {})
            suffix = suffix.lower()
            if suffix in members:
                raise ValueError(f"two members are called {member.name!r}")
            told = None
            if suffix in label_suffixes and size <= MAX_LABEL_BYTES:
                stream.seek(offset)
                told = _told(suffix, stream.read(size), label_column)
            members[suffix] = (offset, size, told)
        # tarfile takes a damaged header, and the end of the file, for the end of the archive, which is zeros.
        stream.seek(tar.offset)
        end = stream.read(tarfile.RECORDSIZE)
        if len(end) < tarfile.BLOCKSIZE or any(end):
            raise ValueError("it is cut off, damaged in the middle, or two archives in one")
    return samples


def _image_suffix(members: dict[str, Member], wanted: str | None, where: str) -> str:
    found = [
        suffix for suffix in members if suffix == wanted or (not wanted and f".{suffix}" in IMAGE_SUFFIXES)
    ]
    if len(found) == 1:
        return found[0]
    raise DataError(
        f"a sample has {len(found) or 'no'} image{'s' * (len(found) > 1)}",
        where=f"{where}: {', '.join(map(repr, members))}",
        fix="name the suffix of the image with data.image_column, or restore the shard",
    )


def _told(suffix: str, text: bytes, wanted: str | None) -> object:
    """What a member says of the label: a whole number as such, else whatever stands there."""
    if suffix != "json":
        return int(text) if re.fullmatch(rb"\s*-?[0-9]{1,9}\s*", text) else text.decode(errors="replace")
    with suppress(ValueError, RecursionError):
        fields = json.loads(text)
        if isinstance(fields, dict):
            return next(
                (fields[name] for name in ((wanted,) if wanted else LABEL_FIELDS) if name in fields), None
            )
    return None


def _label(members: dict[str, Member], wanted: str | None, where: str) -> int | list[int]:
    suffix = wanted if wanted in members else "cls" if not wanted and "cls" in members else "json"
    label = members[suffix][2] if suffix in members else None
    if all(
        type(value) is int and abs(value) < 2**31 for value in (label if isinstance(label, list) else [label])
    ):
        return label
    raise DataError(
        "a sample has no label" if label is None else f"label {label!r:.80} is not a whole number",
        where=f"{where}: {', '.join(map(repr, members))}",
        fix="write 000123.cls with the number of the class, or name a suffix or a field of the .json with "
        "data.label_column",
    )


def _is_compressed(file: ShardFile) -> bool:
    with suppress(DataError):
        return file.read(0, min(6, file.size)).startswith(
            (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
        )
    return False


def read_labels(file: ShardFile, *, columns: Columns) -> np.ndarray:
    """All labels of a shard with one label a sample, (samples,) int64."""
    return read_index(file, image_column=columns.image or None, label_column=columns.label or None).labels_M
