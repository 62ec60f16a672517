"""Locks of files by processes: released at the end of a process; only a plain file of ours is locked."""

import errno
import fcntl
import os
import signal
import socket
import stat
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil  # noqa: F401  # once, not in each process
import pytest

from tests.output.test_owned_folder import study
from vitcli.cache import row_store, user_cache
from vitcli.errors import MachineError
from vitcli.io import files
from vitcli.io.files import delete_lock, lock_file
from vitcli.output.owned_folder import OwnedFolder

AT_ONCE = pytest.mark.parametrize("count", [10, pytest.param(50, marks=pytest.mark.slow)])
held = ExitStack()  # by each of the processes
PIXELS = np.full((4, 4, 3), 7, np.uint8)


@contextmanager
def started(count: int, work: Callable[[int], bytes]) -> Iterator[list[bytes]]:
    """Yield what processes that start at once say, a byte each; they then wait for their SIGKILL."""
    gate, opener = os.pipe()
    reading, saying = os.pipe()
    pids = []
    for number in range(count):
        pids.append(os.fork())
        if not pids[-1]:
            try:
                os.close(opener)
                os.read(gate, 1)  # until the parent lets all of them go
                answer = work(number)
            except BaseException:
                traceback.print_exc()
                answer = b"!"
            os.write(saying, answer)
            signal.pause()
            os._exit(1)
    os.close(opener)
    os.close(saying)
    try:
        answers = b""
        while len(answers) < count:
            more = os.read(reading, count)
            assert more, "one has ended without an answer"
            answers += more
        yield [bytes([answer]) for answer in answers]
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for end in (gate, reading):
            os.close(end)


def claimed(folder: OwnedFolder) -> bytes:
    """Claim a folder as long as this process runs; return whether it was free."""
    try:
        folder.claim(held)
    except MachineError as error:
        return b"0" if "another study is writing this folder" in error.message else b"?"
    return b"1"


def store_at(tmp_path: Path, monkeypatch) -> row_store.RowStore:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return opened()


def opened() -> row_store.RowStore:
    return row_store.open_cached("decoded", {"name": "noise"}, 60, limit_bytes=1e9)


def entry() -> Path:
    (folder,) = user_cache.cache_folder("decoded").iterdir()
    return folder


@AT_ONCE
def test_of_many_starts_at_once_one_has_the_folder_and_its_kill_gives_it_back(tmp_path, count):
    with started(count, lambda _: claimed(study(tmp_path))) as answers:
        assert sorted(answers) == [b"0"] * (count - 1) + [b"1"]
        assert claimed(study(tmp_path)) == b"0"

    with ExitStack() as mine:
        study(tmp_path).claim(mine)  # in spite of the line that names its dead owner


@AT_ONCE
def test_many_processes_use_a_cache_entry_at_once_and_it_stays_until_the_last_is_killed(
    tmp_path, monkeypatch, count
):
    store_at(tmp_path, monkeypatch).close()

    def use(number: int) -> bytes:
        store = held.enter_context(closing(opened()))
        return b"1" if store.add(number, 5, PIXELS) else b"0"

    with started(count, use) as answers:
        assert answers == [b"1"] * count
        assert user_cache.is_in_use(entry()) and not user_cache.delete(entry())
        assert len(list(entry().glob("use-*.lock"))) == count
    store = opened()
    assert all(np.array_equal(store.get(row, 5), PIXELS) for row in range(count))
    store.close()
    assert len(list(entry().glob("use-*.lock"))) == count  # the dead ones' are taken again
    assert user_cache.delete(entry()) and not list(user_cache.cache_folder("decoded").iterdir())


def test_an_entry_is_there_as_long_as_it_is_used_whoever_deletes_meanwhile(tmp_path, monkeypatch):
    store_at(tmp_path, monkeypatch).close()
    until = time.monotonic() + 0.3

    def work(number: int) -> bytes:
        while time.monotonic() < until:
            if number % 2:
                for folder in user_cache.cache_folder("decoded").glob("[0-9a-f]*"):
                    user_cache.delete(folder)
                continue
            try:
                store = opened()
            except OSError as error:  # it was deleted ten times in a row
                assert "cannot be locked" in str(error)
                continue
            folder, index = user_cache.cache_folder("decoded"), os.fstat(store._index_file.fileno())
            if not any(os.path.samestat(index, path.stat()) for path in folder.glob("[0-9a-f]*/index")):
                return b"0"
            store.close()
        return b"1"

    with started(4, work) as answers:
        assert answers == [b"1"] * 4


def test_an_entry_that_is_being_deleted_is_not_begun_to_be_used(tmp_path, monkeypatch):
    monkeypatch.setattr(user_cache, "USE_WAIT_S", 0.05)
    with lock_file(tmp_path / user_cache.LOCK), pytest.raises(BlockingIOError):
        user_cache.lock_use(tmp_path)


def test_a_lock_is_waited_for_as_long_as_asked(tmp_path):
    with lock_file(tmp_path / "lock"):
        started_at = time.monotonic()
        with pytest.raises(BlockingIOError, match="another process holds its lock"):
            lock_file(tmp_path / "lock", wait_s=0.1)
    assert 0.1 <= time.monotonic() - started_at < 5
    lock_file(tmp_path / "lock").close()


def test_a_lock_file_deleted_between_its_opening_and_its_locking_is_held_by_nobody(tmp_path, monkeypatch):
    """The same with a new file in its place, which another process may hold."""
    flock, path, calls = fcntl.flock, tmp_path / "lock", []

    def flock_late(file, operation) -> None:
        calls.append(file)
        if len(calls) == 1:
            path.unlink()
            path.touch()
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock_late)
    with lock_file(path) as lock:
        assert os.path.samestat(os.fstat(lock.fileno()), path.stat()) and len(calls) == 2


def put(kind: str, path: Path) -> None:
    match kind:
        case "link":
            path.with_name("mine").write_text("kept")
            path.symlink_to("mine")
        case "dangling link":
            path.symlink_to("nothing")
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)


@pytest.mark.parametrize("has_no_follow", [True, False])
@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("link", errno.ELOOP),
        ("dangling link", errno.ELOOP),
        ("folder", errno.EISDIR),
        ("pipe", errno.EINVAL),
    ],
)
def test_only_a_plain_file_is_locked(tmp_path, monkeypatch, kind, number, has_no_follow):
    if not has_no_follow:  # Windows
        monkeypatch.setattr(files, "NO_LINK", 0)
        monkeypatch.setattr(files, "UPDATE", os.O_RDWR | os.O_CREAT)
    put(kind, tmp_path / "lock")
    before = sorted(os.listdir(tmp_path))

    with pytest.raises(OSError) as refusal:
        lock_file(tmp_path / "lock", wait_s=60)
    assert refusal.value.errno == number
    assert sorted(os.listdir(tmp_path)) == before
    assert kind != "link" or (tmp_path / "mine").read_text() == "kept"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_lock_file_that_cannot_be_made_is_an_error_of_the_folder(tmp_path, monkeypatch, number):
    open_file = os.open

    def refuse(path, flags, *rest, **options) -> int:
        if str(path).endswith(".lock") and flags & os.O_CREAT:
            raise OSError(number, os.strerror(number), str(path))
        return open_file(path, flags, *rest, **options)

    (tmp_path / "study.toml").write_text("kept")
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(MachineError, match=f"the folder cannot be locked: {os.strerror(number)}"):
        study(tmp_path).claim(ExitStack())
    assert (tmp_path / "study.toml").read_text() == "kept"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_folder_on_a_file_system_without_locks_is_refused_and_no_stand_in_is_left(
    tmp_path, monkeypatch, number
):
    def refuse(*_):
        raise OSError(number, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(MachineError, match="the folder cannot be locked: no locks here"):
        study(tmp_path).claim(ExitStack())
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [0]


def test_a_folder_that_goes_meanwhile_is_an_error_and_not_waited_for(tmp_path):
    with pytest.raises(FileNotFoundError):
        lock_file(tmp_path / "gone" / "lock", wait_s=60)

    mine = ExitStack()
    study(tmp_path / "out").claim(mine)
    (tmp_path / "out" / ".lock").unlink()
    (tmp_path / "out").rmdir()
    mine.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("line", ["pid {dead} on {host}\n", "pid 1 on elsewhere\n", "", "\xff\0" * 4000])
def test_a_line_that_a_dead_owner_has_left_keeps_nobody_out(tmp_path, line):
    with subprocess.Popen(["true"]) as ended:
        pass
    (tmp_path / ".lock").write_text(line.format(dead=ended.pid, host=socket.gethostname()))

    with ExitStack() as mine:
        study(tmp_path).claim(mine)
        assert (tmp_path / ".lock").read_text() == f"pid {os.getpid()} on {socket.gethostname()}\n"


def test_a_lock_that_cannot_be_deleted_stays_and_is_taken_again(tmp_path, monkeypatch):
    """As on Windows, where no open file is deleted."""

    def refuse(path, **_) -> None:
        raise PermissionError(errno.EACCES, "it is open", str(path))

    for _ in range(2):
        with monkeypatch.context() as patched, ExitStack() as mine:
            study(tmp_path).claim(mine)
            patched.setattr(Path, "unlink", refuse)
            delete_lock(tmp_path / ".lock")
            mine.close()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_files_of_ours_are_for_us_alone_and_locks_for_all(tmp_path, monkeypatch):
    store_at(tmp_path, monkeypatch).close()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in entry().iterdir()}

    assert modes["index"] == modes["about.json"] == 0o600
    with suppress(FileNotFoundError):
        delete_lock(tmp_path / "never")
