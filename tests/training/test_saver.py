"""Saves in the background: what is said to be on disk is, and no error of theirs is lost."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from vitcli.distributed.runtime import start as start_runtime
from vitcli.errors import MachineError
from vitcli.output.run_folder import newest_checkpoint_step
from vitcli.training import checkpoint, state
from vitcli.training.gradients import DdpSum
from vitcli.training.state import Saver, TrainingState


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def saver(tmp_path, notes, monkeypatch) -> Saver:
    """A saver of a small network, which keeps one checkpoint; a save takes a while."""
    model, runtime, save = nn.Linear(2, 2), start_runtime("fp32"), checkpoint.save
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["fused"] = False
    train = SimpleNamespace(save_minutes=None, save_every=1, keep_checkpoints=1, milestone_every=0)
    job = SimpleNamespace(recipe=SimpleNamespace(train=train), progress=SimpleNamespace(note=notes.append))

    def save_slowly(*args, **options) -> list[Path]:
        time.sleep(0.05)
        return save(*args, **options)

    monkeypatch.setattr(checkpoint, "save", save_slowly)
    monkeypatch.setattr(state, "fingerprint", lambda job: {})
    training = TrainingState(runtime, model, model, optimizer, DdpSum(model, runtime, parts=1))
    return Saver(training, job, tmp_path, None)


def test_a_save_that_is_waited_for_is_on_disk_and_another_one_is_at_the_end(saver, tmp_path):
    with saver:
        saver.state.step = 1
        saver.save(wait=True)
        assert newest_checkpoint_step(tmp_path) == 1
        saver.state.step = 2
        saver.save(wait=False)
        assert newest_checkpoint_step(tmp_path) == 1

    assert newest_checkpoint_step(tmp_path) == 2


def test_a_save_that_fails_ends_the_run_at_once_or_with_the_next_step(saver, monkeypatch):
    def fail(*_, **__) -> list[Path]:
        raise MachineError("the checkpoint cannot be written", where="here", fix="make room")

    monkeypatch.setattr(checkpoint, "save", fail)
    with saver:
        with pytest.raises(MachineError, match="cannot be written"):
            saver.save(wait=True)
        assert not saver.is_due(), "the error has been raised"
        saver.save(wait=False)
        deadline = time.monotonic() + 10
        while not saver.is_due():
            assert time.monotonic() < deadline, "the loop never learns of the error"
            time.sleep(0.01)
        with pytest.raises(MachineError, match="cannot be written"):
            saver.save(wait=False)


def test_what_cannot_be_deleted_is_named_once(saver, notes, tmp_path, monkeypatch):
    saver.state.step = 1
    saver.save(wait=True)
    monkeypatch.setattr(checkpoint.shutil, "rmtree", lambda *_, **__: None)
    for saver.state.step in (2, 3):
        saver.save(wait=True)

    left = [note.partition(" ")[0] for note in notes]
    assert len(left) == len(set(left)) == 2 and all("step_000000" in name for name in left)


def test_the_error_of_the_first_process_ends_the_others_too(saver):
    def on_main(_) -> None:
        raise MachineError("the first process has no room", where="here", fix="make room")

    saver.state.runtime = SimpleNamespace(on_main=on_main)  # of a process that writes nothing itself
    with pytest.raises(MachineError, match="the first process has no room"):
        saver.save(wait=False)
