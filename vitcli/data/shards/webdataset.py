"""WebDataset shards: an index of the images in a .tar and of their labels, made once and cached.

Members whose path is the same up to the first dot of the file name are one sample: `000123.jpg` with
`000123.cls`, an integer, or `000123.json` with a field "label", "cls" or "class". A member's name is a key
and never a path; links, devices and folders are ignored; nothing is ever unpacked.
"""

import json
import posixpath
import re
import tarfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
import xxhash

from vitcli.data.columns import PATHS
from vitcli.data.decoding import IMAGE_SUFFIXES
from vitcli.data.shards.paths import compressed
from vitcli.data.shards.remote import Columns, Contents, RowOf, ShardFile, file_name, unreadable
from vitcli.errors import DataError, VitError, is_of_machine
from vitcli.io.files import MOST_TEXT_BYTES, parse_json

LABEL_FIELDS = ("label", "cls", "class")
MAX_LABEL_BYTES = 2**20  # of a .cls or .json member
COMPRESSED_MAGIC = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")  # gzip, bzip2, xz, zstd
# Counts of samples that other tools write beside shards: `widsindex create`, then timm.
COUNT_FILES = ("shardindex.json", "index.json", "_info.json", "info.json")
LEAST_SAMPLE_BYTES = 2 * tarfile.BLOCKSIZE  # the header of an image, and a block of it
INDEX_VERSION = 2  # part of the key of a cached index

Member = tuple[int, int, object]  # offset, size, and the label it holds, if any
NO_MEMBER: Member = (0, 0, None)


@dataclass(frozen=True)
class Index:
    """Positions and labels of the samples of one shard. N samples, M labels in all.

    Attributes:
        offsets_N, sizes_N: of the encoded images in the shard, bytes.
        labels_M: sample i has those from label_ends_N[i - 1] to label_ends_N[i].
        has_many: whether the labels of a sample are written as a list.
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

    def digest(self) -> str:
        """Hash the places, sizes and labels of all samples."""
        arrays = (self.offsets_N, self.sizes_N, self.labels_M, self.label_ends_N)
        return xxhash.xxh3_128_hexdigest(b"".join(array.tobytes() for array in arrays))

    def packed(self) -> bytes:
        """Return it as whole numbers of 8 bytes. An .npz would need Python's parser, which threads share."""
        counts = [len(self.offsets_N), len(self.labels_M), self.has_many]
        return np.concatenate(
            [counts, self.offsets_N, self.sizes_N, self.labels_M, self.label_ends_N], dtype=np.int64
        ).tobytes()

    def label(self, sample: int) -> int | tuple[int, ...]:
        first = self.label_ends_N[sample - 1] if sample else 0
        labels = tuple(self.labels_M[first : self.label_ends_N[sample]].tolist())
        return labels if self.has_many else labels[0]


def inspect_file(
    file: ShardFile, *, image_column: str | None, label_column: str | None, counts: Mapping[str, int]
) -> Contents:
    """Return samples and labels of a shard from its index; one in `counts` is read later."""
    if file.url in counts:
        return Contents((counts[file.url],), _block_bytes(file, 0), None, None)
    index = read_index(file, image_column=image_column, label_column=label_column)
    count = len(index.offsets_N)
    if not count:
        return Contents((0,), 0, None, None)
    columns = Columns(image_column or "", label_column or "", index.has_many, None)
    labels = (int(index.labels_M.min()), int(index.labels_M.max())) if len(index.labels_M) else None
    return Contents((count,), _block_bytes(file, index.num_bytes), columns, labels, index.digest())


def read_block(file: ShardFile, *, columns: Columns, count: int) -> tuple[RowOf, int]:
    """Return a shard of `count` samples: all bytes of a remote one, only the index of a local one."""
    index = read_index(file, image_column=columns.image or None, label_column=columns.label or None)
    if len(index.offsets_N) != count:
        raise DataError(
            f"{file_name(file.url)} has {len(index.offsets_N)} samples, and {count} are expected",
            where=file.shown,
            fix=f"restore the shard, or remove the count file beside it ({', '.join(COUNT_FILES)})",
        )
    whole = None if file.is_local else file.read_cached(0, file.size)

    def row_of(sample: int) -> tuple[bytes, int | tuple[int, ...]]:
        first = int(index.offsets_N[sample])
        last = first + int(index.sizes_N[sample])
        return file.read(first, last) if whole is None else whole[first:last], index.label(sample)

    return row_of, _block_bytes(file, index.num_bytes)


def _block_bytes(file: ShardFile, index_bytes: int) -> int:
    return index_bytes + (0 if file.is_local else file.size)


def known_counts(files: Iterable[ShardFile]) -> dict[str, int]:
    """Return the samples of each URL that count files beside the shards give, matched by file name.

    Raises:
        DataError: a shard is too short for as many.
    """
    by_folder: dict[tuple, list[ShardFile]] = {}
    for file in files:
        by_folder.setdefault((file.fs, posixpath.dirname(file.path)), []).append(file)
    counts_by_url = {}
    for (fs, folder), shards in by_folder.items():
        counts: dict[str, int] = {}
        for name in COUNT_FILES:
            with suppress(Exception):  # missing, of another format, or not JSON: the shards are read then
                content = fs.cat_file(f"{folder}/{name}", end=MOST_TEXT_BYTES)
                counts = _counts_in(parse_json(content)) | counts
        for file in shards:
            count = counts.get(file_name(file.path), -1)
            if count > file.size // LEAST_SAMPLE_BYTES:
                raise DataError(
                    f"{file_name(file.path)} has {file.size:,} bytes, and {count:,} samples are expected",
                    where=file.url,
                    fix=f"restore the shard, or remove the count file beside it ({', '.join(COUNT_FILES)})",
                )
            if count >= 0:
                counts_by_url[file.url] = count
    return counts_by_url


def _counts_in(table: dict) -> dict[str, int]:
    if "shardlist" in table:
        return {file_name(entry["url"]): int(entry["nsamples"]) for entry in table["shardlist"]}
    return {
        file_name(name): int(count)
        for split in table["splits"].values()
        for name, count in zip(split["filenames"], split["shard_lengths"], strict=True)
    }


def read_index(file: ShardFile, *, image_column: str | None, label_column: str | None) -> Index:
    """Return the index of a shard, cached by an earlier run or another process, or a new one.

    Raises:
        DataError: the shard is damaged, or a sample of it has no image or no label.
    """
    if file.stored is None:
        return _make_index(file, image_column, label_column)
    key = file.key("index", INDEX_VERSION, image_column, label_column)
    packed = file.stored.get_slow(key, lambda: _make_index(file, image_column, label_column).packed())
    samples, labels, has_many, *_ = numbers = np.frombuffer(packed, np.int64)
    offsets_N, sizes_N, labels_M, label_ends_N = np.split(numbers[3:], np.cumsum([samples, samples, labels]))
    return Index(offsets_N, sizes_N, labels_M, label_ends_N, bool(has_many))


def _make_index(file: ShardFile, image_column: str | None, label_column: str | None) -> Index:
    # All members by sample.
    try:
        samples = _samples(file, label_column)
    except VitError:
        raise
    except Exception as error:  # of tarfile, and ValueError of _samples
        if is_of_machine(error):
            raise
        if _is_compressed(file):
            raise compressed(file.url) from error
        raise unreadable(file.url, error) from error
    # The image and the labels of each.
    offsets, sizes, labels, ends = (list[int]() for _ in range(4))
    kinds = set[type]()
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
                "some samples have a list of labels and others one number",
                where=where,
                fix="write the labels of all samples alike",
            )
    offsets_N, sizes_N, labels_M, ends_N = (np.array(a, np.int64) for a in (offsets, sizes, labels, ends))
    return Index(offsets_N, sizes_N, labels_M, ends_N, has_many=list in kinds)


def _samples(file: ShardFile, label_column: str | None) -> dict[str, dict[str, Member]]:
    """Return offset, size and label of every member, by the key of its sample and its suffix."""
    samples: dict[str, dict[str, Member]] = {}
    label_suffixes = {"cls", "json", label_column}
    with file.open() as stream:
        tar = tarfile.TarFile(fileobj=stream)
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # not in its types: all members that it keeps
            offset, size = member.offset_data, member.size
            if not 0 <= size <= file.size - offset:
                raise ValueError(f"it ends inside member {member.name!r}")
            # A member belongs to the sample of its path up to the first dot; anything but files is ignored.
            folder, name = posixpath.split(member.name)
            stem, _, suffix = name.partition(".")
            if not member.isreg() or member.issparse() or not stem or not suffix:
                continue
            members = samples.setdefault(posixpath.join(folder, stem), {})
            suffix = suffix.lower()
            if suffix in members:
                raise ValueError(f"two members are called {member.name!r}")
            label = None
            if suffix in label_suffixes and size <= MAX_LABEL_BYTES:
                stream.seek(offset)
                label = _parse_label(suffix, stream.read(size), label_column)
            members[suffix] = (offset, size, label)
        # tarfile ends at a damaged header or the end of the file too; only zeros are the end of an archive.
        stream.seek(tar.offset)
        end = stream.read(tarfile.RECORDSIZE)
        if len(end) < tarfile.BLOCKSIZE or any(end):
            raise ValueError("it is cut off, damaged in the middle, or two archives in one")
    return samples


def _image_suffix(members: dict[str, Member], image_column: str | None, where: str) -> str:
    suffixes = [name for name in members if f".{name}" in IMAGE_SUFFIXES]
    if image_column:
        suffixes = [name for name in members if name == image_column]
    if len(suffixes) == 1:
        return suffixes[0]
    raise DataError(
        f"a sample has {len(suffixes) or 'no'} image{'s' * (len(suffixes) > 1)}",
        where=f"{where}: {', '.join(map(repr, members))}",
        fix="name the suffix of the image with data.image_column, or restore the shard",
    )


def _parse_label(suffix: str, text: bytes, label_column: str | None) -> object:
    """Return the label in a member: an integer if it is one, else its content; None if a .json has none."""
    if suffix != "json":
        return int(text) if re.fullmatch(rb"\s*-?[0-9]{1,9}\s*", text) else text.decode(errors="replace")
    with suppress(ValueError, RecursionError):
        fields = json.loads(text)
        if isinstance(fields, dict):
            names = (label_column,) if label_column else LABEL_FIELDS
            return next((fields[name] for name in names if name in fields), None)
    return None


def _label(members: dict[str, Member], label_column: str | None, where: str) -> int | list[int]:
    suffix = label_column if label_column in members else "json"
    if not label_column and "cls" in members:
        suffix = "cls"
    label = members[suffix][2] if suffix in members else None
    values = label if isinstance(label, list) else [label]
    numbers = [value for value in values if type(value) is int and abs(value) < 2**31]
    if len(numbers) == len(values):
        return numbers if isinstance(label, list) else numbers[0]
    is_alone = len(members) == 1 and not label_column
    raise DataError(
        "a sample has no label" if label is None else f"label {label!r:.80} is not an integer",
        where=f"{where}: {', '.join(map(repr, members))}",
        fix="write 000123.cls with the number of the class, or name a suffix or a field of the .json with "
        "data.label_column" + ("; unpack a .tar of class folders, and name the folder" if is_alone else ""),
    )


def _is_compressed(file: ShardFile) -> bool:
    with suppress(DataError):
        return file.read(0, min(6, file.size)).startswith(COMPRESSED_MAGIC)
    return False


def read_labels(file: ShardFile, *, columns: Columns) -> np.ndarray:
    """Return all labels of a shard with one label per sample, (samples,) int64."""
    return read_index(file, image_column=columns.image or None, label_column=columns.label or None).labels_M


def read_column(file: ShardFile, name: str, *, columns: Columns) -> list:
    """Return for all samples of a shard what the member with this suffix holds, or this field of the .json.

    Args:
        name: `data.columns.PATHS` for the names of the image members.

    Raises:
        KeyError: no sample has it.
    """
    samples = _samples(file, name)
    if name == PATHS:
        image_suffix = partial(_image_suffix, image_column=columns.image or None, where=file.shown)
        return [f"{key}.{image_suffix(members)}" for key, members in samples.items()]
    values = [members.get(name, members.get("json", NO_MEMBER))[2] for members in samples.values()]
    if all(value is None for value in values):
        raise KeyError(name)
    return values
