"""Blocks of remote shards in the user's cache, which the next epoch or command does not download again.

A file is the block and a checksum of it. Blocks of other data sets that were used longest ago make room;
those of the same data set do not, for a split that is larger than its room is best served by what came first.
"""

import os
import time
from collections.abc import Callable, Hashable
from hashlib import blake2b
from pathlib import Path

import xxhash

from vitcli.output import user_cache
from vitcli.output.atomic import temporary_beside

FORMAT = 1
CHECKSUM_BYTES = 16
SPARED_S = 7 * 86400.0  # blocks of the same data set may be of an earlier version after a week without use


def kept_block(dataset: str, key: Hashable, load: Callable[[], bytes]) -> bytes:
    """Return the bytes with this key from the cache, else from `load`; a cache that fails costs time only.

    Args:
        dataset: what all its shards have in common, such as their folder.
    """
    prefix = blake2b(dataset.encode(), digest_size=4).hexdigest()
    name = blake2b(repr((FORMAT, key)).encode(), digest_size=12).hexdigest()
    path = user_cache.cache_folder("shards") / f"{prefix}{name}.block"
    content = _read(path)
    if content is None:
        content = load()
        _write(path, content)
    return content


def _read(path: Path) -> bytes | None:
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            content = file.read()
    except OSError:
        return None
    user_cache.mark_used(path)
    content, checksum = content[:-CHECKSUM_BYTES], content[-CHECKSUM_BYTES:]
    return content if xxhash.xxh3_128_digest(content) == checksum else None


def _write(path: Path, content: bytes) -> None:
    """Write a block whole or not at all; after a power failure its checksum tells."""
    temporary = temporary_beside(path)
    try:
        user_cache.make_cache_folder("shards")
        recently = time.time() - SPARED_S
        prefix = path.name[:8]
        if not user_cache.make_room(
            len(content), spare=lambda other: other.path.name[:8] == prefix and other.last_used > recently
        ):
            return
        try:
            with open(temporary, "xb") as file:
                file.write(content)
                file.write(xxhash.xxh3_128_digest(content))
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError:  # full, or not to be written
        pass
