"""A folder that a command owns: locked, never mixed with foreign files, cleared of its own files only."""

import fcntl
import os
import shutil
import socket
import subprocess
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from vitcli.errors import MachineError, VitError
from vitcli.output import owned_folder
from vitcli.output.owned_folder import OwnedFolder, refuse_other


def study(path: Path) -> OwnedFolder:
    names = {"files": ("plan.json", "study.toml"), "folders": ("cells",), "marker": "study.toml"}
    return OwnedFolder(path, "study", lock=".lock", **names)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_second_owner_is_refused_until_the_first_is_done(tmp_path):
    with ExitStack() as held:
        study(tmp_path / "out").claim(held)
        with pytest.raises(
            MachineError, match=f"another study is writing this folder: pid {os.getpid()} on "
        ):
            study(tmp_path / "out").claim(ExitStack())
    with ExitStack() as held:
        study(tmp_path / "out").claim(held)
        (tmp_path / "out" / "study.toml").touch()

    assert names_in(tmp_path / "out") == ["study.toml"]


@pytest.mark.parametrize("written", ["", "pid {dead} on {host}\n"])
def test_the_owner_that_is_named_is_not_the_one_before_that_has_died(tmp_path, monkeypatch, written):
    """A lock is taken a moment before its file names who has taken it."""
    with subprocess.Popen(["true"]) as ended:
        pass
    file, host = tmp_path / ".lock", socket.gethostname()
    file.write_text(written.format(dead=ended.pid, host=host))
    with file.open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        naming = threading.Timer(0.1, file.write_text, [f"pid {os.getpid()} on {host}\n"])
        naming.start()
        with pytest.raises(MachineError, match=f"writing this folder: pid {os.getpid()} on "):
            study(tmp_path).claim(ExitStack())
        naming.join()
        file.write_text(written.format(dead=ended.pid, host=host))
        monkeypatch.setattr(owned_folder, "NAMED_WITHIN_S", 0.05)
        with pytest.raises(MachineError, match="writing this folder: another process"):
            study(tmp_path).claim(ExitStack())


def test_folders_that_stay_empty_are_removed_again(tmp_path):
    with ExitStack() as held:
        study(tmp_path / "deep" / "out").claim(held)

    assert names_in(tmp_path) == []


def test_a_lock_file_that_its_owner_deletes_meanwhile_is_not_the_one_to_hold(tmp_path, monkeypatch):
    flock, opened = fcntl.flock, []

    def flock_late(file, operation) -> None:
        if not opened:  # the owner before ends between our opening and our locking of the file
            (tmp_path / ".lock").unlink()
        opened.append(file)
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock_late)
    with ExitStack() as held:
        study(tmp_path).claim(held)
        assert len(opened) == 2
        with pytest.raises(MachineError, match="another study"):
            study(tmp_path).claim(ExitStack())


@pytest.mark.parametrize("names", [[], [".lock"], ["a.txt", "study.toml"]])
def test_a_folder_with_the_marker_or_nothing_but_a_lock_is_accepted(tmp_path, names):
    for name in names:
        (tmp_path / name).touch()

    study(tmp_path).refuse_foreign()
    study(tmp_path / "missing").refuse_foreign()

    assert names_in(tmp_path) == names  # and nothing is made or taken away


def test_a_folder_with_files_and_no_marker_is_refused(tmp_path):
    for name in ("a.txt", ".lock"):
        (tmp_path / name).touch()

    with pytest.raises(VitError, match=r"the folder holds other files \(a.txt\)"):
        study(tmp_path).refuse_foreign()


def test_a_link_is_no_marker(tmp_path):
    (tmp_path / "a.txt").touch()
    (tmp_path / "study.toml").symlink_to("a.txt")

    with pytest.raises(VitError, match="the folder holds other files"):
        study(tmp_path).refuse_foreign()


def test_only_what_the_command_makes_is_deleted(tmp_path):
    (tmp_path / "cells" / "a").mkdir(parents=True)
    for name in ("study.toml", "notes.txt"):
        (tmp_path / name).touch()

    study(tmp_path).clear()

    assert names_in(tmp_path) == ["notes.txt"]


@pytest.mark.parametrize(("module", "function"), [(shutil, "rmtree"), (Path, "unlink")])
def test_a_folder_is_still_known_after_an_interrupted_deletion(tmp_path, monkeypatch, module, function):
    (tmp_path / "cells").mkdir()
    for name in ("plan.json", "study.toml"):
        (tmp_path / name).touch()
    delete = getattr(module, function)

    def delete_and_stop(path, **options) -> None:
        delete(path, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, function, delete_and_stop)
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path).clear()

    assert (tmp_path / "study.toml").exists()


def test_other_content_is_refused_with_what_differs(tmp_path):
    refuse_other(tmp_path, "another study", [])
    with pytest.raises(VitError) as refusal:
        refuse_other(tmp_path, "another study", list("12345"))
    assert refusal.value.message == "the folder holds another study: 1; 2; 3; 4"
    assert "--overwrite" in refusal.value.fix and f"such as --out {tmp_path}-2," in refusal.value.fix
    (tmp_path.parent / f"{tmp_path.name}-2").touch()
    with pytest.raises(VitError) as refusal:
        refuse_other(tmp_path, "another study", ["1"])
    assert f"such as --out {tmp_path}-3," in refusal.value.fix
