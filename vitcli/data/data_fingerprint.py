"""What a run remembers of its images and their files, so that it does not resume on others."""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain

import xxhash

from vitcli.data.loader import check_images
from vitcli.data.split import SourceFiles, Split
from vitcli.distributed.runtime import Runtime
from vitcli.errors import DataError
from vitcli.output.text import count_of

MAX_CHECKED_IMAGES = 200_000  # decoded before the first step, at about 2,000 a second and core
MAX_HASHED_BYTES = 2 * 2**30  # of local shards, read before the first step, in seconds
NUM_THREADS = 16  # which wait for a disk or a network file system
FILES_PER_TASK = 1_000


@dataclass(frozen=True)
class SplitContents:
    """The images of a split; texts are None where that is unknown.

    Attributes:
        images: changes with any image, of too many images with the sizes of their files; a copy of the data
            has the same.
        files: where `images` cannot see every change, a text that changes whenever a file is written.
    """

    images: str | None = None
    files: str | None = None


def contents_of(
    splits: Sequence[Split], *, runtime: Runtime, num_threads: int, on_bad_image: str, decode: bool
) -> tuple[tuple[SplitContents, ...], list[str]]:
    """Check all images before the first step, not hours into the run, unless there are too many.

    Args:
        decode: as of `check_images`.

    Returns:
        What is remembered of each split, and with `decode` the places of images that cannot be decoded, each
        once.

    Raises:
        DataError: some cannot be decoded, and are not to be skipped.
    """
    contents, unreadable = list[SplitContents](), dict[str, None]()
    for split in splits:
        if len(split) > MAX_CHECKED_IMAGES or split.block_starts is not None:
            contents.append(runtime.on_main(partial(_contents_of_files, split.source_files)))
            continue
        errors, total = check_images(
            split,
            rank=runtime.rank,
            world_size=runtime.world_size,
            num_threads=num_threads,
            decode=decode,
        )
        errors, total = runtime.concatenated(errors), sum(runtime.concatenated([total])) % 2**128
        contents.append(SplitContents(f"{total:032x}" if total else None))
        if errors and on_bad_image == "error":
            count = f"{len(errors)} of {count_of(len(split), 'image')} of {split.name} cannot be read: "
            raise DataError(count + errors[0].message, where=errors[0].where, fix=errors[0].fix)
        unreadable |= dict.fromkeys(error.where for error in errors) if decode else {}
    return tuple(contents), [*unreadable]


def _contents_of_files(source: SourceFiles | None) -> SplitContents:
    """Return what files say of many images: the shards' own bytes if they are few, else sizes and times."""
    if source is None:
        return SplitContents()
    structure = xxhash.xxh3_128(source.structure.encode())
    paths = source.local_paths()
    if not paths:
        return SplitContents(structure.hexdigest() if source.structure else None, source.stamp or None)
    try:
        with ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="vit-files") as pool:
            parts = (paths[first : first + FILES_PER_TASK] for first in range(0, len(paths), FILES_PER_TASK))
            states = list(chain(*pool.map(lambda part: [os.stat(path) for path in part], parts)))
            sizes, times = ([getattr(state, name) for state in states] for name in ("st_size", "st_mtime_ns"))
            structure.update(repr(sizes).encode())
            if source.structure and sum(sizes) <= MAX_HASHED_BYTES:
                structure.update(b"".join(pool.map(_digest_of_file, paths)))
                return SplitContents(structure.hexdigest())
    except OSError as error:
        raise DataError(
            f"{os.path.basename(error.filename or paths[0])} cannot be read: {error.strerror}",
            where=str(error.filename or paths[0]),
            fix="restore the file",
        ) from error
    return SplitContents(structure.hexdigest(), xxhash.xxh3_128_hexdigest(repr(times).encode()))


def _digest_of_file(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).digest()
