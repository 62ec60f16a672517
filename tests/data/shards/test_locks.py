"""Indices of .tar shards made by one reader at a time or without a lock, and whose fault a failed read is."""

import errno
import fcntl
import os
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from tests.data.shards.test_rows import Far, expected, opened, parquet, rows, samples, tar
from tests.data.shards.test_rows import (
    _places as _places,  # the stand-in for a remote place, for every test here
)
from vitcli.cache import row_store
from vitcli.data.shards import block_cache
from vitcli.errors import MachineError
from vitcli.io.files import lock_file


def damage_blocks(cache):
    """Damage all that is stored of shards; return the lock of the one block."""
    (rows,) = cache.rglob("rows-*")
    num_bytes = rows.stat().st_size  # most of them a hole
    os.truncate(rows, 0)
    os.truncate(rows, num_bytes)
    (index,) = cache.rglob("index")
    stamps = np.frombuffer(index.read_bytes(), np.uint64)[:: row_store.RECORD_BYTES // 8]
    return index.with_name(f"{int(stamps.max()):016x}.lock")


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def test_many_that_open_a_shard_at_once_read_it_once_in_all(monkeypatch):
    url = tar("far://pets/0.tar", samples(range(20)))
    monkeypatch.setattr(Far, "seconds_a_read", 0.1)
    with ThreadPoolExecutor(6) as pool:  # a lock keeps threads apart just as it does processes
        splits = list(pool.map(opened, [url] * 6))

    assert [len(split) for split in splits] == [20] * 6
    assert len(Far.reads) == 1
    assert rows(splits[5]) == expected(range(20))


def test_different_shards_are_read_side_by_side(monkeypatch):
    urls = [tar(f"far://pets/{number}.tar", samples(range(4))) for number in range(8)]
    monkeypatch.setattr(Far, "seconds_a_read", 0.3)
    started_at = time.perf_counter()

    assert len(opened(*urls)) == 32
    assert time.perf_counter() - started_at < 8 * 0.3


def test_an_index_that_another_cannot_make_is_made_by_the_next(monkeypatch):
    url = tar("far://pets/0.tar", samples(range(4)))
    monkeypatch.setattr(Far, "seconds_a_read", 0.02)
    Far.failures[:] = [OSError("connection reset")] * 4  # the tries of the first

    def try_to_open(_) -> str:
        try:
            return str(len(opened(url)))
        except MachineError as error:
            return error.message

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(try_to_open, range(3)))
    assert sorted(found) == ["0.tar cannot be read: connection reset", "4", "4"]


def test_a_lock_that_is_never_let_go_is_not_waited_for_for_ever(cache, monkeypatch):
    url = tar("far://pets/0.tar", samples(range(4)))
    opened(url)
    monkeypatch.setattr(block_cache, "LOCK_WAIT_S", 0.2)
    with lock_file(damage_blocks(cache)):
        split = opened(url)

    assert rows(split) == expected(range(4))
    Far.reads.clear()
    opened(url)
    assert not Far.reads  # the index was stored


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_costs_time_only(cache, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    url = tar("far://pets/0.tar", samples(range(4)))

    assert rows(opened(url)) == expected(range(4))
    Far.reads.clear()
    opened(url)
    assert not Far.reads  # the index was stored


def test_a_lock_file_that_cannot_be_opened_costs_time_only(cache):
    url = tar("far://pets/0.tar", samples(range(4)))
    opened(url)
    damage_blocks(cache).mkdir()

    assert rows(opened(url)) == expected(range(4))


@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_a_network_that_fails_is_never_called_a_damaged_shard(kind):
    url = (
        tar("far://pets/0.tar", samples(range(4))) if kind == "tar" else parquet("far://pets/0.parquet", [1])
    )
    Far.failures[:] = [OSError("connection reset")] * 4

    with pytest.raises(MachineError, match="connection reset") as caught:
        opened(url)
    assert caught.value.message.count("cannot be read") == 1
    assert "network" in caught.value.fix


@pytest.mark.parametrize("client", ["aiohttp", "httpx"])
@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_wants_somebody_else_to_ask_is_not_asked_again(client, status):
    refusal = OSError("Client Error")
    if client == "aiohttp":
        refusal.status = status
    else:
        refusal.response = SimpleNamespace(status_code=status)
    url = parquet("far://pets/0.parquet", [1])
    Far.failures[:] = [refusal]

    with pytest.raises(MachineError, match=f"refuses it with status {status}") as caught:
        opened(url)
    assert "log in" in caught.value.fix
