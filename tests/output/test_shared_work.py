"""Cells that several workers share: each done once, results in order for every worker."""

import json
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from vitcli.errors import Stopped
from vitcli.output import leases, shared_work
from vitcli.output.leases import Cells, Superseded
from vitcli.output.shared_work import SharedWork, WorkCell

ALONE = SimpleNamespace(on_main=lambda action: action(), world_size=1)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(shared_work, "POLL_S", 0.01)


def worker(folder: Path, names: list[str], train, notes: list[str] | None = None, told=None) -> SharedWork:
    def finished(name: str):
        with suppress(OSError):
            return json.loads((folder / name / "result").read_text())

    def write(name: str):
        result = train(name)
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "result").write_text(json.dumps(result))
        return result

    cells = [
        WorkCell(name, folder / name, lambda name=name: write(name), lambda name=name: finished(name))
        for name in names
    ]
    note = (notes if notes is not None else []).append
    on_done = (told if told is not None else []).append
    return SharedWork(
        cells, folder, ALONE, SimpleNamespace(note=note), lambda number, result: on_done((number, result))
    )


def test_two_workers_do_each_cell_once_and_both_have_all_results_in_order(tmp_path):
    names, done_by, told = [f"run-{number}" for number in range(12)], [], {}

    def work(who: str) -> None:
        def train(name: str) -> dict:
            done_by.append((name, who))
            time.sleep(0.01)
            return {"of": name}

        told[who] = ([], [])
        told[who][1].extend(worker(tmp_path, names, train, told=told[who][0]).run())

    threads = [threading.Thread(target=work, args=(who,)) for who in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(name for name, _ in done_by) == sorted(names) and {who for _, who in done_by} == {"a", "b"}
    for events, results in told.values():
        assert results == [{"of": name} for name in names]
        assert events == list(enumerate(results))


def test_what_was_finished_before_is_not_trained_and_what_a_worker_stopped_is_resumed(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/result").write_text('{"of": "earlier"}')

    def stop(name: str):
        raise Stopped(15, "stopped", out=tmp_path / name)

    with pytest.raises(Stopped) as stopped:
        worker(tmp_path, ["a", "b"], stop).run()
    assert stopped.value.out == tmp_path

    results = worker(tmp_path, ["a", "b"], lambda name: {"of": name}).run()
    assert results == [{"of": "earlier"}, {"of": "b"}]


def test_a_worker_waits_for_the_cells_of_others_says_so_once_and_takes_what_they_leave(tmp_path):
    claims, notes = Cells(tmp_path), []
    claims.begin()
    held = claims.claim(["a"], [tmp_path / "a"])
    held.__enter__()
    threading.Timer(0.3, held.__exit__, (KeyError, None, None)).start()

    results = worker(tmp_path, ["a", "b"], lambda name: {"of": name}, notes).run()

    assert results == [{"of": "a"}, {"of": "b"}]
    assert notes == ["waiting for 1 run of other workers"]


def test_a_worker_that_was_asleep_leaves_its_cell_to_the_other_and_goes_on(tmp_path, monkeypatch):
    others, notes, trained = Cells(tmp_path), [], []

    def train(name: str) -> dict:
        trained.append(name)
        if name == "a" and len(trained) == 1:  # asleep: another takes over and finishes
            late = next(lease for lease in leases._held if lease.name == "a")
            late._is_lost = True
            with others._take("a", 2, tmp_path / "a"):
                (tmp_path / "a").mkdir()
                (tmp_path / "a/result").write_text('{"of": "the other"}')
            late.check()
        return {"of": name}

    results = worker(tmp_path, ["a", "b"], train, notes).run()

    assert trained == ["a", "b"] and results == [{"of": "the other"}, {"of": "b"}]
    assert notes == ["note: a was left to another worker: this one was silent for too long"]


def test_what_another_worker_has_written_since_this_one_began_is_not_trained_again(tmp_path):
    """It was killed between its result and the end of its claim."""
    trained = []

    def train(name: str) -> dict:
        trained.append(name)
        (tmp_path / "b").mkdir()
        (tmp_path / "b/result").write_text('{"of": "the other"}')
        return {"of": name}

    assert worker(tmp_path, ["a", "b"], train).run() == [{"of": "a"}, {"of": "the other"}]
    assert trained == ["a"]


def test_in_several_processes_a_lost_cell_ends_the_worker(tmp_path):
    def train(name: str) -> dict:
        raise Superseded("a was left to another worker", where="here", fix="again")

    several = worker(tmp_path, ["a"], train)
    several.runtime = SimpleNamespace(on_main=lambda action: action(), world_size=2)
    with pytest.raises(Superseded):
        several.run()


def test_a_cell_that_was_done_and_whose_result_was_deleted_is_done_again(tmp_path, monkeypatch):
    monkeypatch.setenv("VIT_LEASE_S", "1")
    claims = Cells(tmp_path)
    claims.begin()
    with claims.claim(["a"], [tmp_path / "a"]):
        pass
    assert claims.done(["a"]) == ["a"]

    assert worker(tmp_path, ["a"], lambda name: {"of": name}).run() == [{"of": "a"}]


def test_where_another_worker_has_written_everything_and_removed_the_claims_the_results_are_read(tmp_path):
    claims = Cells(tmp_path)
    claims.begin()
    held = claims.claim(["a"], [tmp_path / "a"])

    def end():
        (tmp_path / "a").mkdir()
        (tmp_path / "a/result").write_text('{"of": "the other"}')
        claims.end()

    threading.Timer(0.2, end).start()
    results = worker(tmp_path, ["a"], lambda name: pytest.fail("it is another's")).run()

    assert results == [{"of": "the other"}] and held.name == "a"
