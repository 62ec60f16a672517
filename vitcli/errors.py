"""Exceptions for everything that is not a bug of ours, and the exit code of each."""

import errno
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path


class VitError(Exception):
    """A mistake in the command line or a recipe.

    It is the base of the errors below.

    Args:
        message: what is wrong, with the values in it.
        where: the recipe key, option, file or row it comes from.
        fix: what works instead.
    """

    exit_code: int  # see EXIT_CODES
    rank: int  # of the process that alone has it, and so prints it; not set for an error of all
    result: object = None  # of a function of `commands`: what there is in spite of the error

    def __init__(self, message: str, *, where: str, fix: str):
        super().__init__(message)
        self.message, self.where, self.fix = message, where, fix

    def __str__(self) -> str:
        return f"error: {self.message}\n  where: {self.where}\n  fix:   {self.fix}"

    def __reduce__(self):  # so that it can cross from one process to another
        return partial(type(self), where=self.where, fix=self.fix), (self.message,)

    def as_dict(self) -> dict[str, str]:
        """Return the error as it stands in JSON."""
        return {"message": self.message, "where": self.where, "fix": self.fix}


class DataError(VitError):
    """A data set, split or image cannot be used."""


class WeightsError(VitError):
    """A checkpoint or weights file cannot be used."""


class MachineError(VitError):
    """Disk, permissions, a lock, a device or memory is in the way."""


class NotFiniteError(VitError):
    """The loss or the gradient is not a finite number."""


class ProcessError(VitError):
    """A process of the run failed or stalled."""


class CheckFailed(VitError):
    """What was checked, such as --assert or a row of the paper, does not hold."""


class InternalError(VitError):
    """A bug in vit; its traceback is saved."""


class Stopped(Exception):
    """The run was interrupted and has saved what it needs to resume; `exit_code` is 128 + the signal.

    Attributes:
        out: the folder of the command that resumes it; a command of several runs puts its own here.
    """

    def __init__(self, signal_number: int, what: str, *, out: object = None):
        super().__init__(what)
        self.exit_code = 128 + signal_number
        self.what, self.out = what, out

    @property
    def note(self) -> str:
        """Say what was saved, and how to resume."""
        if self.out is None:
            return self.what
        return f"{self.what}, saved; the same command line with --out {self.out} resumes from there"


EXIT_CODES = {
    InternalError: 1,
    VitError: 2,
    DataError: 3,
    WeightsError: 4,
    MachineError: 5,
    NotFiniteError: 6,
    ProcessError: 7,
    CheckFailed: 8,
}
READ_FAILURES = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EMFILE, errno.ENFILE}
INTERRUPTED = 130  # Ctrl-C before anything was saved; `Stopped` has 128 + its signal: 130 or 143
for _kind, _code in EXIT_CODES.items():
    _kind.exit_code = _code


def reason_of(error: BaseException) -> str:
    """Return the first line of a library's error for a message of ours, or the name of its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]  # it may quote a whole file


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for the errors of Python and torch, whose CPU and Apple allocators raise RuntimeError.

    A thread or a library for which there is no room has an error of its own.
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno == errno.ENOMEM
    texts = ("can't allocate memory", "Cannot allocate memory", "bad_alloc", "out of memory",
             "STATUS_ALLOC_FAILED", "can't start new thread", "failed to map segment")  # fmt: skip
    # Pillow's and the loader's have no number.
    is_kind = isinstance(error, RuntimeError | ImportError | OSError)
    return is_kind and any(text in str(error) for text in texts)


def is_of_machine(error: BaseException) -> bool:
    """Return True for an error of reading that says nothing about the file: memory, a disk, its network."""
    return is_out_of_memory(error) or (isinstance(error, OSError) and error.errno in READ_FAILURES)


def pip_install(package: str) -> str:
    """Return the line that installs a package for the Python that runs; `pip` may be that of another one."""
    python, name = sys.executable or "python3", os.path.basename(sys.executable)
    with suppress(OSError):  # the working folder may be gone
        if shutil.which(name) == python:
            python = name
        elif (path := Path(python)).is_relative_to(Path.cwd()):
            path = path.relative_to(Path.cwd())
            python = str(path) if path.parent.name else f"./{path}"
    return f"{shlex.quote(python)} -m pip install {shlex.quote(package)}"


def nearest(name: str, known) -> str:
    """Return `, did you mean X?` for a mistyped name, or nothing."""
    close = _closest(name, list(known))
    return f", did you mean {close!r}?" if close else ""


def nearest_path(name: str) -> str:
    """Return `, did you mean 'runs/photos'?` for a mistyped path, by the names beside it, or nothing."""
    path, beside = Path(name).expanduser(), []
    with suppress(OSError, ValueError):  # no such folder, or one that may not be listed
        beside = [entry.name for entry in path.parent.iterdir()]
    close = _closest(path.name, beside)
    return f", did you mean {str(path.with_name(close))!r}?" if close else ""


def _closest(name: str, known: Sequence[str]) -> str | None:
    """Return the most similar name; None if a typo or two would not explain the difference."""
    from difflib import get_close_matches

    least = 0.6 if len(name) <= 5 else 0.75  # one swap in "zsh" leaves two thirds of it
    return next(iter(get_close_matches(name, known, n=1, cutoff=least)), None)
