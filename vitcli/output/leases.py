"""Leases: which worker of a command does which part of its work, in a folder that machines share.

A worker is a process that runs the command; a part of the work is called a cell. A claim is a folder CELL.G
in OUT/.vit-cells, where G counts the claims of the cell. It comes into being whole, by a rename that fails
where it exists. Its holder counts up a number in it, several times a lease; a worker that has seen the same
number for a whole lease claims CELL.(G + 1). A holder that has not written its number for half a lease writes
nothing more, so that one that was asleep for long and wakes up changes nothing. How a claim has ended is the
end of a name beside it: CELL.G.done.

No clocks are compared: each worker measures with its own. Of the file system this needs that a rename onto a
folder that is not empty fails, and that a closed file is read whole when it is opened next, as
NFS has it; no locks, and no listing that is up to date. A claim that a listing does not show yet makes the
rename fail; the highest G of a cell stays, so an old listing never leads to a second holder.
"""

import json
import os
import random
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, unquote

import psutil

from vitcli.errors import MachineError, Stopped, VitError

HOME = ".vit-cells"
LEASE_S, BEATS = 60.0, 6  # a lease, and how often in it its holder shows that it is there
VARIABLE = "VIT_LEASE_S"
POLL_S = 0.1
MOST_READ = 8  # claims that one claim reads: of a worker that was killed and has come back, the last
BEAT, OWNER, NAMES = "beat", "owner.json", "cells.json"
WAITING, RUNNING, DONE, STOPPED, FAILED = "waiting", "running", "done", "stopped", "failed"
NO_CLAIM = (0, WAITING)
SAFE = "=, "  # in names of files, besides letters and digits

_held: list["Lease"] = []  # by this process


class Superseded(MachineError):
    """The lease of this worker expired, and another worker has its cell."""


def lease_seconds() -> float:
    """Return the seconds that VIT_LEASE_S asks for, 60 by default.

    Raises:
        VitError: it is not a number of at least 1.
    """
    asked = os.environ.get(VARIABLE) or str(LEASE_S)
    with suppress(ValueError):
        if 1 <= (seconds := float(asked)) <= 86_400:
            return seconds
    raise VitError(
        f"{asked[:40]!r} is not a number of seconds from 1 to 86400",
        where=f"environment variable {VARIABLE}",
        fix=f"leave it out for {LEASE_S:g}, the same on all machines",
    )


def fence(path: str | Path) -> None:
    """Refuse to write below a cell that this worker holds no longer.

    Raises:
        Superseded: it has been silent for half a lease, or another worker has taken over.
    """
    for lease in _over(path):
        lease.check()


def is_leased(path: str | Path) -> bool:
    """Return whether a path is below a cell that this process holds, and no other lock is needed there."""
    return bool(_over(path))


def _over(path: str | Path) -> list["Lease"]:
    place = os.path.abspath(path)
    return [lease for lease in _held if place == lease.covers or place.startswith(lease.covers + os.sep)]


@dataclass(eq=False)
class Lease:
    """A cell that this process holds, as a context: it ends as done, stopped or failed.

    Attributes:
        claim: its folder.
        rival: the folder of the next claim.
        covers: absolute path of what nobody else writes meanwhile.
        seconds: without a beat after which others take it.
    """

    name: str
    claim: Path
    rival: Path
    covers: str
    seconds: float
    _beat_at: float = field(default_factory=lambda: clock())
    _is_lost: bool = False
    _is_over: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        """Raise `Superseded` unless the cell is certainly still held; wait for a folder that has vanished."""
        while not (self._is_lost or self._is_silent()) and not self.claim.exists():
            time.sleep(POLL_S)
        if self._is_lost or self._is_silent():
            self._is_lost = True
            raise Superseded(
                f"{self.name} was left to another worker: this one was silent for too long",
                where=self.covers,
                fix="type the same command again: it takes part again",
            )

    def _is_silent(self) -> bool:
        return clock() - self._beat_at > self.seconds / 2

    def __enter__(self) -> Self:
        _held.append(self)
        threading.Thread(target=self._keep, daemon=True, name=f"lease of {self.claim.name}").start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        _held.remove(self)
        self._is_over.set()
        end = DONE if kind is None else STOPPED if issubclass(kind, Stopped | KeyboardInterrupt) else FAILED
        with suppress(OSError):  # the folder has gone, or its disk is full: found out after a lease
            _ended(self.claim, end).touch()

    def _keep(self) -> None:
        """Beat until the cell is over or lost; what cannot be written now may be at the next beat."""
        count = 0
        while not self._is_over.wait(self.seconds / BEATS) and not self._is_lost:
            before, count = clock(), count + 1
            with suppress(OSError):
                self._is_lost |= self.rival.exists()
                with open(self.claim / BEAT, "r+b") as file:
                    file.write(b"%020d" % count)
                self._beat_at = before


@dataclass(frozen=True)
class CellState:
    """What the newest claim of a cell says.

    Attributes:
        state: "waiting", "running", "done", "stopped" or "failed".
        owner: who claimed it and when, as `_owner` has them.
    """

    state: str
    owner: dict[str, Any] = field(default_factory=dict)

    @property
    def is_live(self) -> bool | None:
        """Whether its worker is at work; None if that cannot be seen from here."""
        if self.state != RUNNING:
            return False
        return not _has_ended(self.owner) if self.owner.get("place") == _place() else None


class Cells:
    """The claims in a folder. Made when a command begins; removed with its results."""

    def __init__(self, folder: Path):
        self.folder, self.home, self.seconds = folder, folder / HOME, lease_seconds()
        self._seen: dict[str, tuple[tuple, float]] = {}  # claim and number of a cell, and when first seen

    def begin(self, names: Iterable[str] = ()) -> None:
        """Make the folder of the claims, and note which cells there are."""
        self.home.mkdir(exist_ok=True)
        known = self._names()
        if missing := [name for name in names if name not in known]:
            copy = self.home / f"new-{secrets.token_hex(8)}"
            copy.write_text(json.dumps([*known, *missing]))
            os.replace(copy, self.home / NAMES)

    def end(self) -> None:
        """Remove all claims, once the results are there."""
        shutil.rmtree(self.home, ignore_errors=True)

    def claim(self, names: Sequence[str], covers: Sequence[Path]) -> Lease | None:
        """Claim the first cell that is free, or whose worker has ended or been silent for a lease.

        Args:
            covers: folder of each.
        """
        claims, folders = self._claims(), dict(zip(names, covers, strict=True))
        free = [name for name in names if claims.get(name, NO_CLAIM)[1] in (WAITING, STOPPED, FAILED)]
        free = self._abandoned(names[: names.index(free[0])] if free else names, claims) + free
        while free:
            name = free.pop(0)
            if lease := self._take(name, claims.get(name, NO_CLAIM)[0] + 1, folders[name]):
                return lease
            random.shuffle(free)  # of workers that begin at once, each looks elsewhere then
        for name in (name for name in names if name in claims):
            number, state = claims[name]
            is_left = state == RUNNING and self._is_silent(name, number)
            if is_left and (lease := self._take(name, number + 1, folders[name])):
                return lease
        return None

    def done(self, names: Sequence[str]) -> list[str]:
        """Return the cells that a worker has done."""
        claims = self._claims()
        return [name for name in names if claims.get(name, NO_CLAIM)[1] == DONE]

    def reopen(self, name: str) -> None:
        """Let a cell that was done, and whose result has been deleted since, be claimed again."""
        with suppress(OSError):
            path = self._path(name, self._claims().get(name, NO_CLAIM)[0])
            os.rename(_ended(path, DONE), _ended(path, STOPPED))

    def states(self) -> dict[str, CellState]:
        """Return what is known of each cell, in the order of the work."""
        claims = dict.fromkeys(self._names(), NO_CLAIM) | self._claims()
        owners = {name: _read_owner(self._path(name, number)) for name, (number, _) in claims.items()}
        return {name: CellState(state, owners[name]) for name, (_, state) in claims.items()}

    def _names(self) -> list[str]:
        with suppress(OSError, ValueError):
            return [str(name) for name in json.loads((self.home / NAMES).read_text())]
        return []

    def _claims(self) -> dict[str, tuple[int, str]]:
        """Return number and state of the newest claim of each cell."""
        newest: dict[str, tuple[int, str]] = {}
        with suppress(FileNotFoundError), os.scandir(self.home) as entries:
            for entry in entries:
                claim, _, end = entry.name.rpartition(".")
                claim, state = (claim, end) if end in (DONE, STOPPED, FAILED) else (entry.name, RUNNING)
                name, _, number = claim.rpartition(".")
                if name and number.isdecimal():
                    found, known = (int(number), state), newest.get(unquote(name), NO_CLAIM)
                    is_newer = found[0] > known[0] or (found[0] == known[0] and state != RUNNING)
                    newest[unquote(name)] = found if is_newer else known
        return newest

    def _path(self, name: str, number: int) -> Path:
        return self.home / f"{quote(name, safe=SAFE)}.{number}"

    def _take(self, name: str, number: int, covers: Path) -> Lease | None:
        """Make a claim; None if another worker has made it."""
        path, made = self._path(name, number), self.home / f"new-{secrets.token_hex(8)}"
        now = clock()
        try:
            made.mkdir()
            (made / BEAT).write_bytes(b"%020d" % 0)
            (made / OWNER).write_text(json.dumps(_owner()))
            os.rename(made, path)
        except OSError as error:
            shutil.rmtree(made, ignore_errors=True)
            if path.exists() or not self.home.exists():
                return None
            problem, fix = f"no work can be claimed: {error.strerror}", "make room, or choose another --out"
            raise MachineError(problem, where=str(self.home), fix=fix) from error
        earlier = self._path(name, number - 1)
        shutil.rmtree(earlier, ignore_errors=True)
        for end in (DONE, STOPPED, FAILED) if number > 1 else ():
            _ended(earlier, end).unlink(missing_ok=True)
        return Lease(name, path, self._path(name, number + 1), os.path.abspath(covers), self.seconds, now)

    def _abandoned(self, names: Sequence[str], claims: dict[str, tuple[int, str]]) -> list[str]:
        """Return cells whose worker had ended before this one came, of the last claims alone."""
        running = [name for name in names[-MOST_READ:] if claims.get(name, NO_CLAIM)[1] == RUNNING]
        new = [name for name in running if self._seen.get(name, ((0,),))[0][0] != claims[name][0]]
        return [name for name in new if self._is_silent(name, claims[name][0])]

    def _is_silent(self, name: str, number: int) -> bool:
        """Return whether the holder of a claim has ended, or shown nothing new for a lease."""
        path = self._path(name, number)
        with suppress(OSError):
            beat = (number, (path / BEAT).read_bytes())
            if self._seen.get(name, (None,))[0] != beat:
                self._seen[name] = (beat, clock())
                return _has_ended(_read_owner(path))
            return clock() - self._seen[name][1] >= self.seconds
        return False


def _ended(claim: Path, end: str) -> Path:
    return claim.with_name(f"{claim.name}.{end}")


def clock() -> float:
    """Return seconds of this machine, those of a suspended one included where the system counts them."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


def _owner() -> dict[str, Any]:
    started = psutil.Process().create_time()
    who = {"host": socket.gethostname(), "pid": os.getpid(), "started": started}
    return who | {"place": _place(), "at": time.time()}


def _place() -> str:
    """Return what tells processes with one number apart: the start of the machine and its container."""
    words = [socket.gethostname()]
    for name in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        with suppress(OSError):
            words.append(os.readlink(name) if "ns" in name else Path(name).read_text().strip())
    return " ".join(words)


def _read_owner(claim: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        owner = json.loads((claim / OWNER).read_text())
        return owner if isinstance(owner, dict) else {}
    return {}


def _has_ended(owner: dict[str, Any]) -> bool:
    """Return whether a worker ran here, in the same container, and has ended."""
    if owner.get("place") != _place():
        return False
    try:
        return abs(psutil.Process(owner["pid"]).create_time() - owner["started"]) > 1
    except psutil.NoSuchProcess:
        return True
    except (psutil.Error, KeyError, TypeError):
        return False
