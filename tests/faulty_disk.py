"""A disk that fails on demand, see faulty_disk.c: for processes that tests start, and forks of those.

A sweep lets operation 1, 2, 3 ... of a command fail, until a command ends untouched. As each command is a
fork of a process that has loaded torch, it takes what the command itself takes.
"""

import ctypes
import errno
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Timer

import pytest

FOR_EVER = 10**9
MOST_FAULTS = int(os.environ.get("VIT_FAULTS", "40"))  # of one kind in one sweep of whole commands; 0 is all


@dataclass(frozen=True)
class Fault:
    """What happens to operations number `first` to `last`; numbers as in faulty_disk.c."""

    action: int
    error: int = 0
    first: int = 0
    last: int = 0

    def at(self, number: int) -> "Fault":
        """Return the fault from an operation on: that one alone, unless it lasts."""
        return replace(self, first=number, last=max(number, self.last))


NONE, KILL = Fault(0), Fault(1)
ONCE = {name: Fault(2, getattr(errno, name)) for name in ("ENOSPC", "EIO", "EROFS", "ESTALE")}
FULL = Fault(3, last=FOR_EVER)  # from some operation on, until room is made
READ_ONLY = Fault(2, errno.EROFS, last=FOR_EVER)
LATE = Fault(4)  # a full network file system, which says so on fsync or close
SLOW = Fault(5, 300, 1, FOR_EVER)  # ms
FAULTS = {"kill": KILL, **ONCE, "full": FULL, "read-only": READ_ONLY, "late": LATE}


@pytest.fixture(scope="session")
def faulty_disk(tmp_path_factory) -> dict[str, str]:
    """The environment of a process with a faulty disk; its forks call `arm`."""
    compiler = shutil.which("cc")
    if platform.system() != "Linux" or not compiler:
        pytest.skip("a faulty disk needs Linux and a C compiler")
    library, source = tmp_path_factory.mktemp("disk") / "faulty_disk.so", Path(__file__).with_suffix(".c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}


def of_a_process(fault: Fault, folder: Path) -> dict[str, str]:
    """Return the environment that arms a process from its start."""
    return {"FAULTY_DISK": f"{fault.action} {fault.error} {fault.first} {fault.last} {folder}"}


def arm(fault: Fault, folder: Path, log: Path | str = "") -> None:
    """Let the disk below a folder fail in this process from now on; a log gets a line per operation."""
    library, numbers = ctypes.CDLL(None), (fault.action, fault.error, fault.first, fault.last)
    numbers = [ctypes.c_int(number) for number in numbers[:2]] + [ctypes.c_long(n) for n in numbers[2:]]
    library.faulty_disk_arm(os.fsencode(folder), *numbers, os.fsencode(log))


def script(environment: dict[str, str], module: str, *words: object, timeout: float = 3600) -> str:
    """Run a module with a faulty disk, all else as in tests; return what it prints."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    ended = subprocess.run(
        [sys.executable, "-m", module, *map(str, words)],
        env={**os.environ, **threads, "HF_HUB_OFFLINE": "0", **environment},  # downloads from a local server
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert ended.returncode == 0, ended.stdout[-1000:] + ended.stderr[-3000:]
    return ended.stdout


def in_a_fork(action: Callable[[], int], output: Path, *, kill_after_s: float | None = None) -> int:
    """Run a function in a fork of this process; return its exit code, or minus the signal that ended it."""
    reading, writing = os.pipe()  # whose bytes no limit of the child counts
    child = os.fork()
    if child:
        os.close(writing)
        killer = Timer(FOR_EVER if kill_after_s is None else kill_after_s, os.kill, (child, signal.SIGKILL))
        if kill_after_s is not None:
            killer.start()
        with os.fdopen(reading, "rb") as said:
            output.write_bytes(said.read())
        killer.cancel()  # before the number of the process is free for another
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 99
    try:
        with os.fdopen(writing, "w") as file, redirect_stdout(file), redirect_stderr(file):
            try:
                code = action()
            except BaseException:
                import traceback

                traceback.print_exc()
    finally:
        os._exit(code)


def command(words: list[object]) -> Callable[[], int]:
    """Return a function that runs a command line of `vit` in this process."""

    def run() -> int:
        from vitcli.cli import app

        try:
            app.main([str(word) for word in words])
        except SystemExit as ended:
            return ended.code or 0
        return 0

    return run


@dataclass(frozen=True)
class Struck:
    """What a fault has done to a command.

    Attributes:
        number: of the operation.
        operation: its kind and its path.
    """

    number: int
    operation: str
    code: int
    output: str

    def problems(self) -> list[str]:
        """Say what is wrong with the end of a command: not 0, nor 5 with three lines."""
        if self.code == -signal.SIGKILL:
            return []
        if self.code not in (0, 5):
            return [f"exit code {self.code}: {self.output[-600:]}"]
        error = self.output[self.output.find("error: ") :].strip().splitlines() if self.code else []
        labels = [line.split(":")[0].strip() for line in error]
        is_right = labels == (["error", "where", "fix"] if self.code else [])
        return [] if is_right and "Traceback" not in self.output else [f"it says {self.output[-600:]}"]


def sweep(
    action: Callable[[], int], fault: Fault, folder: Path, scratch: Path, *, numbers: Iterator[int]
) -> Iterator[Struck]:
    """Run an action, in forks, with the fault at each operation; end where one is untouched.

    The caller brings the folder back to where it was before it asks for the next.
    """
    log, output = scratch / "operations", scratch / "output"
    for number in numbers:
        log.unlink(missing_ok=True)

        def struck(at=number) -> int:
            arm(fault.at(at), folder, log)
            return action()

        code = in_a_fork(struck, output)
        operations = log.read_text().splitlines() if log.exists() else []
        operation = next((line for line in operations if line.startswith(f"{number} ")), None)
        if operation is None:
            return
        yield Struck(number, operation, code, output.read_text())


def num_operations(action: Callable[[], int], fault: Fault, folder: Path, scratch: Path) -> int:
    """Return how many operations a fault can strike, of an action that nothing strikes."""
    log = scratch / "operations"
    log.unlink(missing_ok=True)

    def counted() -> int:
        arm(replace(fault, first=FOR_EVER, last=FOR_EVER), folder, log)
        return action()

    code = in_a_fork(counted, scratch / "output")
    assert code == 0, (scratch / "output").read_text()
    return len(log.read_text().splitlines())


def spread(count: int, most: int = MOST_FAULTS) -> list[int]:
    """Return numbers from 1 to `count`, all of them or `most` at equal distances."""
    if not most or count <= most:
        return list(range(1, count + 1))
    return sorted({1 + round(k * (count - 1) / max(1, most - 1)) for k in range(most)})


def remove(folder: Path) -> None:
    """Delete a folder or a file, if it is there."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.unlink(missing_ok=True)
