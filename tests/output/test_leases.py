"""Leases: one worker for each cell, whatever dies or sleeps, by files alone; a late one writes nothing."""

import heapq
import json
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from vitcli.errors import MachineError, Stopped, VitError
from vitcli.output import leases
from vitcli.output.atomic import write_text
from vitcli.output.leases import BEAT, DONE, RUNNING, Cells, Lease, Superseded, fence
from vitcli.output.owned_folder import OwnedFolder
from vitcli.output.run_folder import RunFolder


@pytest.fixture
def now(monkeypatch):
    """A clock that stands still: a list of its one reading."""
    reading = [1000.0]
    monkeypatch.setattr(leases, "clock", lambda: reading[0])
    return reading


@pytest.fixture
def cells(tmp_path) -> Cells:
    (tmp_path / "out").mkdir()
    begun = Cells(tmp_path / "out")
    begun.begin()
    return begun


def claim(cells: Cells, *names: str) -> Lease | None:
    return cells.claim(names, [cells.folder / name for name in names])


def states(cells: Cells) -> dict[str, str]:
    return {name: cell.state for name, cell in cells.states().items()}


def test_cells_are_claimed_in_order_and_none_twice(cells):
    first, second = claim(cells, "arms/lr=0.1", "b", "c"), claim(Cells(cells.folder), "arms/lr=0.1", "b", "c")

    assert (first.name, second.name) == ("arms/lr=0.1", "b")
    assert claim(Cells(cells.folder), "arms/lr=0.1", "b") is None
    assert states(cells) == {"arms/lr=0.1": "running", "b": "running"}
    assert sorted(os.listdir(cells.home)) == ["arms%2Flr=0.1.1", "b.1"]


@pytest.mark.parametrize(
    ("error", "state", "next_one"),
    [(None, "done", None), (Stopped(15, "stopped"), "stopped", "a.2"), (KeyError("x"), "failed", "a.2")],
)
def test_what_has_ended_undone_is_claimed_again_at_once(cells, error, state, next_one):
    try:
        with claim(cells, "a"):
            if error:
                raise error
    except type(error or KeyError()):
        pass

    assert states(cells) == {"a": state} and cells.done(["a", "b"]) == ["a"] * (state == "done")
    again = claim(Cells(cells.folder), "a")
    assert (again and again.claim.name) == next_one
    assert sorted(os.listdir(cells.home)) == ([next_one] if next_one else ["a.1", "a.1.done"])


def test_a_done_cell_whose_result_has_gone_can_be_opened_again(cells):
    with claim(cells, "a"):
        pass
    cells.reopen("a")
    cells.reopen("never claimed")

    assert states(cells) == {"a": "stopped"} and claim(cells, "a").claim.name == "a.2"


def test_a_silent_worker_loses_its_cell_after_a_lease_and_writes_nothing_from_half_of_one(cells, now):
    other, held = Cells(cells.folder), claim(cells, "a")
    leases._held.append(held)
    try:
        assert claim(other, "a") is None  # looks for the first time
        write_text(cells.folder / "a/file", "mine")
        now[0] += held.seconds / 2
        fence(cells.folder / "a/file")
        now[0] += 0.25
        with pytest.raises(Superseded, match="a was left to another worker"):
            write_text(cells.folder / "a/file", "late")
        fence(cells.folder / "b")
        fence(cells.folder / "ab")
        now[0] += held.seconds / 2 - 0.5
        assert claim(other, "a") is None
        now[0] += 0.25
        taken = claim(other, "a")

        assert taken.claim.name == "a.2" and sorted(os.listdir(cells.home)) == ["a.2"]
        assert os.listdir(cells.folder / "a") == ["file"] and (cells.folder / "a/file").read_text() == "mine"
    finally:
        leases._held.remove(held)
    now[0] -= held.seconds  # lost is lost
    with pytest.raises(Superseded):
        held.check()


def test_a_worker_that_beats_is_left_alone_and_one_whose_beats_cannot_be_written_goes_on(
    cells, now, monkeypatch
):
    held, other = claim(cells, "a"), Cells(cells.folder)
    beats = []

    def wait(_):
        beats.append((held.claim / BEAT).read_bytes() if cells.home.exists() else b"")
        now[0] += held.seconds / 6
        there, gone = cells.home, cells.folder / "gone"
        if len(beats) in (2, 4):
            there.rename(gone) if len(beats) == 2 else gone.rename(there)
        if len(beats) not in (2, 3):
            assert claim(other, "a") is None
            held.check()
        return len(beats) == 20

    monkeypatch.setattr(held._is_over, "wait", wait)
    held._keep()

    assert beats[:2] == [b"%020d" % 0, b"%020d" % 1] and beats[-1] == b"%020d" % 19


def test_a_write_waits_for_a_folder_that_has_vanished_and_makes_no_other_one(cells, now, monkeypatch):
    held, gone = claim(cells, "a"), cells.folder.with_name("gone")
    monkeypatch.setattr(leases.time, "sleep", lambda _: gone.rename(cells.folder))
    monkeypatch.setattr(leases, "_held", [held])
    cells.folder.rename(gone)

    write_text(cells.folder / "a/file", "mine")
    assert (cells.folder / "a/file").read_text() == "mine"

    cells.folder.rename(gone)
    monkeypatch.setattr(leases.time, "sleep", lambda s: now.append(now.pop() + held.seconds))
    with pytest.raises(Superseded):
        write_text(cells.folder / "a/file", "late")
    assert not cells.folder.exists()


def test_a_worker_whose_successor_is_there_finds_that_at_its_next_beat(cells, now):
    held = claim(cells, "a")
    held.rival.mkdir()
    waits = iter([False, False])
    held._is_over.wait = lambda _: next(waits)
    held._keep()

    with pytest.raises(Superseded):
        held.check()


def test_a_worker_of_this_machine_that_has_ended_is_not_waited_for(cells):
    code = f"from pathlib import Path; from vitcli.output.leases import *; p = Path({str(cells.folder)!r})"
    code += "; Cells(p).claim(['a'], [p])"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert states(cells) == {"a": "running"}

    elsewhere = claim(Cells(cells.folder), "a")
    assert elsewhere.claim.name == "a.2"
    owner = elsewhere.claim / "owner.json"
    owner.write_text(json.dumps(json.loads(owner.read_text()) | {"place": "another", "pid": 1 << 22}))
    assert claim(Cells(cells.folder), "a") is None


def test_workers_that_start_at_once_have_no_cell_twice(cells):
    names, taken, at_once = [f"cell {number}" for number in range(40)], [], threading.Barrier(200)

    def work() -> None:
        mine = Cells(cells.folder)
        at_once.wait()
        while lease := claim(mine, *names):
            taken.append(lease.name)

    threads = [threading.Thread(target=work) for _ in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(taken) == sorted(names) and sorted(os.listdir(cells.home)) == sorted(
        f"{n}.1" for n in names
    )


def test_a_claim_among_ten_thousand_reads_few_other_ones(cells, monkeypatch):
    for number in range(10_000):
        (cells.home / f"cell-{number}.1").mkdir()
    names = [f"cell-{number}" for number in range(10_001)]
    read = []
    monkeypatch.setattr(Cells, "_is_silent", lambda self, name, number: read.append(name))

    assert claim(cells, *names).name == "cell-10000"
    assert read == names[10_000 - leases.MOST_READ : 10_000]


def test_a_killed_worker_that_comes_back_goes_on_where_it_was(cells):
    code = f"from pathlib import Path; from vitcli.output.leases import *; p = Path({str(cells.folder)!r})"
    code += "; Cells(p).claim(['b'], [p])"
    subprocess.run([sys.executable, "-c", code], check=True)
    mine = Cells(cells.folder)

    assert [claim(mine, "a", "b", "c").name for _ in range(3)] == ["a", "b", "c"]
    other = Cells(cells.folder)
    other.end(), other.begin()
    with claim(other, "a"):
        pass
    subprocess.run([sys.executable, "-c", code], check=True)
    assert claim(Cells(cells.folder), "a", "b", "c").name == "b"


def test_a_worker_that_wakes_late_cuts_only_its_own_copy_of_the_metrics(cells, monkeypatch):
    held = claim(cells, "a")
    monkeypatch.setattr(leases, "_held", [held])
    asleep = RunFolder(cells.folder / "a")
    asleep.log({"step": 1})
    awake = RunFolder(cells.folder / "a")  # of the worker that has taken over
    awake.log({"step": 2})

    asleep.rewind_metrics(0)

    lines = (cells.folder / "a/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
    asleep.close()
    awake.close()


def test_in_a_cell_that_is_held_no_lock_is_taken_and_the_folder_is_marked(cells):
    folder = OwnedFolder(cells.folder / "a", "run", lock=".vit.lock", files=(), marker=".vit.lock")
    with ExitStack() as asleep, ExitStack() as awake, claim(cells, "a"):
        folder.claim(asleep)
        folder.claim(awake)  # of the worker that has taken over
    with ExitStack() as alone, ExitStack() as another, pytest.raises(MachineError, match="another run"):
        folder.claim(alone)
        folder.claim(another)
    assert (cells.folder / "a/.vit.lock").exists()


@pytest.mark.parametrize("asked", ["0", "0.5", "-1", "nan", "inf", "1e9", "a minute", "60s", "0x10", "1,5"])
def test_what_is_no_lease_is_refused(tmp_path, monkeypatch, asked):
    monkeypatch.setenv("VIT_LEASE_S", asked)

    with pytest.raises(VitError, match="is not a number of seconds from 1 to 86400"):
        Cells(tmp_path)


def test_a_folder_that_takes_no_claims_is_an_error_of_the_machine(cells, monkeypatch):
    monkeypatch.setattr(
        os, "rename", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )

    with pytest.raises(MachineError, match="no work can be claimed: No space left on device"):
        claim(cells, "a")
    assert os.listdir(cells.home) == []
    cells.end()
    assert claim(cells, "a") is None  # another worker has written the results


class World:
    """A file system in memory, whose listings are late by as much as each worker's machine is."""

    def __init__(self, lags: list[float]):
        self.claims: dict[tuple[str, int], Worker] = {}
        self.newest: dict[str, int] = {}
        self.views = [{} for _ in lags]
        self.lags, self.seen, self.events, self.now = lags, [0] * len(lags), [], 0.0

    def view(self, number: int) -> dict[str, tuple[int, str]]:
        while self.seen[number] < len(self.events):
            at, name, claim = self.events[self.seen[number]]
            if at + self.lags[number] > self.now:
                break
            if claim[0] > self.views[number].get(name, (0, ""))[0] or claim[1] == DONE:
                self.views[number][name] = claim
            self.seen[number] += 1
        return self.views[number]


class FakePath:
    def __init__(self, world: World, key: tuple[str, int], leaf: str = ""):
        self.world, self.key, self.leaf = world, key, leaf

    def __truediv__(self, leaf: str) -> "FakePath":
        return FakePath(self.world, self.key, leaf)

    def read_bytes(self) -> bytes:
        if self.key not in self.world.claims or self.world.newest[self.key[0]] != self.key[1]:
            raise FileNotFoundError
        return b"%d" % self.world.claims[self.key].beats

    def read_text(self) -> str:
        raise FileNotFoundError


class FakeCells(Cells):
    def __init__(self, worker: "Worker"):
        self.worker, self.seconds, self._seen = worker, 60.0, {}

    def _claims(self) -> dict[str, tuple[int, str]]:
        return self.worker.world.view(self.worker.machine)

    def _path(self, name: str, number: int) -> FakePath:
        return FakePath(self.worker.world, (name, number))

    def _take(self, name: str, number: int, covers: Path) -> Lease | None:
        world = self.worker.world
        if world.newest.get(name, 0) >= number:  # the rename fails
            return None
        world.newest[name] = number
        world.claims[name, number] = self.worker
        world.events.append((world.now, name, (number, RUNNING)))
        return Lease(name, Path("/"), Path("rival"), "/", self.seconds, world.now)


class Worker:
    """Claims, works and publishes; may die, or sleep for any time, at any moment."""

    def __init__(self, world: World, number: int, draw: random.Random):
        self.world, self.draw, self.machine, self.beats = world, draw, number % len(world.lags), 0
        self.cells, self.lease, self.is_dead = FakeCells(self), None, False

    def act(self, names: list[str], published: Counter) -> float:
        """Do the next thing and return how long it takes; inf for one that has died."""
        if self.lease is None:
            some = [names[self.draw.randrange(len(names))] for _ in range(20)]
            some = [name for name in dict.fromkeys(some) if not published[name]]
            self.lease = self.cells.claim(some, [Path("/")] * len(some)) if some else None
            return self.draw.uniform(1, 30) if self.lease else 5.0
        fate = self.draw.random()
        if fate < 0.05:
            return float("inf")
        if fate < 0.15:  # asleep, without a beat
            return self.draw.uniform(1, 300)
        try:
            self.lease.check()
            published[self.lease.name] += 1
            claim = (self.world.newest[self.lease.name], DONE)
            self.world.events.append((self.world.now, self.lease.name, claim))
        except Superseded:
            pass
        self.lease = None
        return 0.1


@pytest.mark.parametrize(
    ("num_workers", "num_cells"), [(100, 1_000), pytest.param(1_000, 100_000, marks=pytest.mark.slow)]
)
def test_in_a_simulation_with_deaths_sleep_and_late_listings_each_cell_is_published_once(
    num_workers, num_cells, monkeypatch
):
    draw, world = random.Random(0), World([0.0, 0.5, 3.0, 20.0, 60.0, 200.0])
    monkeypatch.setattr(leases, "clock", lambda: world.now)
    names, published = [f"cell-{number}" for number in range(num_cells)], Counter()
    workers = [Worker(world, number, draw) for number in range(num_workers)]
    queue = [(draw.uniform(0, 1), number) for number in range(num_workers)]
    heapq.heapify(queue)

    left = list(names)
    while left:
        world.now, number = heapq.heappop(queue)
        worker = workers[number]
        before = worker.lease
        takes_s = worker.act(left, published)
        is_asleep = worker.lease is not None and worker.lease is before
        if takes_s == float("inf"):  # another one is started in its place
            workers[number], takes_s = Worker(world, number, draw), 10.0
        elif worker.lease and not is_asleep:  # beats while it works
            worker.beats += 1
            worker.lease._beat_at = world.now + takes_s
        heapq.heappush(queue, (world.now + takes_s, number))
        if draw.random() < 0.02:
            left = [name for name in left if not published[name]]

    assert set(published.values()) == {1} and len(published) == num_cells
    assert max(world.newest.values()) > 1  # cells were taken over


def test_the_simulation_finds_a_worker_that_writes_late(monkeypatch):
    monkeypatch.setattr(Lease, "check", lambda self: None)

    with pytest.raises(AssertionError):
        test_in_a_simulation_with_deaths_sleep_and_late_listings_each_cell_is_published_once(
            100, 1_000, monkeypatch
        )
