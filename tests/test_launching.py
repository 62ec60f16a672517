"""Starting processes, and telling which of them failed first and why."""

import json
from types import SimpleNamespace

import pytest

from vitcli import launching
from vitcli.errors import DataError, ProcessError, VitError


def failure(exitcode: int, told: dict | None = None):
    return SimpleNamespace(exitcode=exitcode, pid=7, error_file_data={"vit": told} if told else {})


def told(code: int, message: str, at: float = 1.0) -> dict:
    return {"exit_code": code, "message": message, "where": "here", "fix": "this", "at": at}


def test_the_first_error_that_is_not_an_echo_wins():
    failures = {
        0: failure(7, told(7, "a peer is gone", at=1.0)),
        1: failure(3, told(3, "a bad image", at=2.0)),
    }

    with pytest.raises(DataError, match="a bad image") as raised:
        launching._first_failure(failures)
    assert raised.value.where == "here"


def test_a_killed_process_is_named_even_if_its_peers_complain():
    failures = {0: failure(7, told(7, "a peer is gone")), 1: failure(-9)}

    with pytest.raises(ProcessError, match="process 1 of the run was killed by SIGKILL"):
        launching._first_failure(failures)


def test_processes_that_stopped_politely_give_their_exit_code():
    assert launching._first_failure({0: failure(143), 1: failure(143)}) == 143


def test_an_error_left_for_the_launcher_is_what_it_finds(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    monkeypatch.setenv(launching.LAUNCHED, "1")

    assert launching.report_to_launcher(DataError("bad", where="row 3", fix="mend it"))

    left = json.loads((tmp_path / "error.json").read_text())
    with pytest.raises(DataError, match="bad"):
        launching._first_failure({0: SimpleNamespace(exitcode=3, pid=1, error_file_data=left)})


def test_without_our_launcher_a_process_speaks_for_itself(monkeypatch):
    monkeypatch.delenv(launching.LAUNCHED, raising=False)

    assert not launching.report_to_launcher(VitError("x", where="y", fix="z"))


def test_another_number_of_processes_than_the_launchers_is_refused(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")

    assert not launching.must_launch(4)
    with pytest.raises(VitError, match="2 processes are asked for, the launcher has started 4"):
        launching.must_launch(2)


def test_srun_needs_no_wrapper(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    values = {"SLURM_NTASKS": "8", "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "123456"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)

    launching.adopt_slurm()

    import os

    assert (os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"]) == ("5", "8", "1")
    assert 1024 < int(os.environ["MASTER_PORT"]) < 65536


def test_a_lost_connection_is_an_error_of_the_run_and_others_are_not():
    assert launching.as_process_error(RuntimeError("... Connection closed by peer [127.0.0.1]:1"))
    assert launching.as_process_error(RuntimeError("shapes do not match")) is None
