"""A folder that a command owns: locked while it is written, cleared of nothing but the command's files."""

import os
import re
import shlex
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import count
from pathlib import Path
from typing import BinaryIO

from vitcli.errors import MachineError, VitError
from vitcli.io.files import HARD_LINK, delete_lock, irregularity, lock_file, read_regular
from vitcli.output import atomic
from vitcli.output.leases import HOME, RUNNING, Cells, is_leased

LOCKS = ".vit*.lock"  # of all commands
SUBMISSION_FILE, SUBMISSION_FOLDER = "submit.json", "submit"  # of --submit, which comes before its workers
MAX_DIFFERENCES = 4  # named in an error
CURES = {HARD_LINK: "copy the folder by cp -r, which makes files of its own"}
JOINED_WITHIN_S = 10.0  # while other workers join
NAMED_WITHIN_S = 2.0  # after the lock was taken, on a machine with other work


@dataclass(frozen=True)
class OwnedFolder:
    """A folder (--out) that a command writes, alone while it does.

    Attributes:
        path: the folder; made when it is claimed.
        noun: what it holds, for errors.
        lock: name of the lock file.
        files: names of the files that the command makes; last the one that identifies the folder, if any.
        folders: names, or globs, of the folders that it makes.
        appended: of the files, those that are written in place; others are replaced by a rename.
        marker: a file in every such folder from its first moment, by which other folders are refused; None if
            the command's files may stand beside others. If it is the lock, that file stays in the folder.
    """

    path: Path
    noun: str
    lock: str
    files: tuple[str, ...]
    folders: tuple[str, ...] = ()
    appended: tuple[str, ...] = ()
    marker: str | None = None

    def refuse_foreign(self) -> None:
        """Refuse a folder with files but without the marker; locks and claims of commands do not count.

        Raises:
            VitError: it holds something else; nothing in it was touched.
        """
        names = {entry.name for entry in self.path.iterdir()} if self.path.is_dir() else set()
        beside = {self.lock, HOME, SUBMISSION_FILE, SUBMISSION_FOLDER}
        files = sorted(name for name in names - beside if not fnmatch(name, LOCKS))
        is_marked = self.marker in names and not (self.path / self.marker).is_symlink()
        if files and not is_marked:
            raise VitError(
                f"the folder holds other files ({', '.join(files[:3])})",
                where=f"--out {self.path}",
                fix="choose a new or an empty folder",
            )

    def claim(self, held: ExitStack, *, wait_s: float = 0.0) -> None:
        """Make the folder and lock it until `held` is closed, or the process ends, however it ends.

        A folder below a cell that this process holds needs no lock: that of a worker which has been asleep
        since it was given up would stay.

        Raises:
            MachineError: the folder cannot be written, or another process holds it.
        """
        self.make(held)
        self.refuse_links()
        if is_leased(self.path):
            (self.path / self.lock).touch()
        else:
            held.enter_context(self._locked(wait_s))
        if self.lock != self.marker:
            held.callback(delete_lock, self.path / self.lock)

    def join(self, begin: Callable[[], None] = lambda: None, *, overwrite: bool = False) -> None:
        """Make the folder for one of several workers of a command, who claim the work (`leases`).

        Args:
            begin: checks what is there and writes what is known; no other worker begins meanwhile.
            overwrite: delete what the command has made in it.

        Raises:
            MachineError: it cannot be written, or another command holds it.
            VitError: it is to be overwritten, and another worker is busy in it.
        """
        cells = Cells(self.path)
        with ExitStack() as held:
            self.claim(held, wait_s=JOINED_WITHIN_S)
            busy = [name for name, cell in cells.states().items() if cell.state == RUNNING]
            if overwrite and busy:
                raise VitError(
                    f"another worker is busy with {busy[0]}",
                    where=f"--out {self.path}, --overwrite",
                    fix="leave --overwrite out to share its work, or stop it and wait for a minute",
                )
            if overwrite:
                self.clear()
                cells.end()
            begin()
            cells.begin()

    def refuse_links(self, *, is_inside: bool = False) -> None:
        """Refuse links, pipes and devices under the names that the command writes: it would follow them.

        Args:
            is_inside: this folder is itself one that the command makes, in the folder that the user named.
        """
        folders = [folder for pattern in self.folders for folder in self.path.glob(pattern)]
        folders += [self.path / pattern.partition("/")[0] for pattern in self.folders]
        folders += [self.path] * is_inside
        for path in (self.path / self.lock, *(self.path / name for name in self.files), *folders):
            in_place = path.name in (self.lock, *self.appended)
            if kind := irregularity(path, is_folder=path in folders, hard_links=not in_place):
                raise MachineError(
                    f"{path.name} is {kind}, which {self.noun}s do not write to",
                    where=f"--out {self.path}",
                    fix=f"{CURES.get(kind, 'remove it')}, or choose another folder with --out",
                )

    def make(self, held: ExitStack) -> None:
        """Make the folder; if it is still empty when `held` is closed, it is removed again."""
        held.callback(_remove_empty, [path for path in (self.path, *self.path.parents) if not path.exists()])
        atomic.make_folder(self.path, option="--out")

    def clear(self) -> None:
        """Delete what the command makes in the folder, and nothing else.

        The files go last, in their order: what a killed call leaves is still known by the last of them.
        """
        for pattern in self.folders:
            for folder in self.path.glob(pattern):
                shutil.rmtree(folder, ignore_errors=True)
        for name in self.files:
            (self.path / name).unlink(missing_ok=True)

    def _locked(self, wait_s: float) -> BinaryIO:
        """Return the open, locked lock of the folder, which names its owner."""
        try:
            lock = lock_file(self.path / self.lock, wait_s=wait_s)
        except BlockingIOError:
            raise MachineError(
                f"another {self.noun} is writing this folder: {_owner_named_in(self.path / self.lock)}",
                where=f"--out {self.path}",
                fix="wait for it, stop it, or choose another folder with --out",
            ) from None
        except OSError as error:
            raise MachineError(
                f"the folder cannot be locked: {error.strerror}",
                where=f"--out {self.path}",
                fix="choose another folder with --out, or correct its permissions",
            ) from error
        lock.truncate(0)
        lock.write(f"pid {os.getpid()} on {socket.gethostname()}\n".encode())
        return lock


def _owner_named_in(lock: Path) -> str:
    """Return who holds a lock; for a moment its file still names an owner that has died, or nobody."""
    owner, until = "", time.monotonic() + NAMED_WITHIN_S
    while time.monotonic() < until:
        with suppress(OSError):  # its owner has just ended
            owner = read_regular(lock).decode(errors="replace").strip()
        if owner and is_alive(owner) is not False:
            return owner
        time.sleep(0.01)
    return "another process"


def is_alive(owner: str) -> bool | None:
    """Return whether the process is there that a lock file names; None if it names none of this machine."""
    import psutil

    named = re.fullmatch(r"pid (\d{1,9}) on (.*)", owner)
    is_here = named and named[2] == socket.gethostname()
    return psutil.pid_exists(int(named[1])) if named and is_here else None


def refuse_other(path: Path, content: str, differing: Sequence[str], *, advice: str = "") -> None:
    """Refuse a folder whose content was made from other inputs, naming what differs.

    Args:
        content: what the folder holds instead, such as "another study".
        differing: differences in words; none accepts the folder.
        advice: what else the user may want.
    """
    if differing:
        free = f"choose another folder, such as --out {shlex.quote(_free_name(path))}"
        raise VitError(
            f"the folder holds {content}: {'; '.join(differing[:MAX_DIFFERENCES])}",
            where=f"--out {path}",
            fix=f"{free}, or replace what it holds with --overwrite{advice}",
        )


def _free_name(path: Path) -> str:
    """Return the name of a folder beside another one that is not there yet: photos-2."""
    name = os.path.normpath(path)
    return next(free for number in count(2) if not os.path.lexists(free := f"{name}-{number}"))


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # it is not empty, or another process uses it
            folder.rmdir()
