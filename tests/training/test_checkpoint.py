"""Checkpoints: whole or not there, every byte checked, nothing lost when a save fails."""

import errno
import json
import os
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from vitcli.errors import MachineError, NotFiniteError, WeightsError
from vitcli.output.run_folder import newest_checkpoint_step
from vitcli.training import checkpoint


@pytest.fixture
def net() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    step(model, optimizer)
    return model, optimizer


def step(model, optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(5, 3)).square().sum().backward()
    optimizer.step()


def save(run_dir, number, net, keep=2, milestone_every=0, **state) -> list[Path]:
    model, optimizer = net
    tensors = checkpoint.copy_tensors(model, optimizer, None)
    saved = checkpoint.Checkpoint(number, tensors, state)
    return checkpoint.save(run_dir, saved, keep=keep, milestone_every=milestone_every)


def put_back(run_dir) -> None:
    """Undo the renaming of damaged checkpoints."""
    for aside in (run_dir / "checkpoints").glob("damaged_*"):
        aside.rename(aside.with_name(aside.name.removeprefix("damaged_")))


def test_training_continues_the_same_from_a_checkpoint(tmp_path, net):
    model, optimizer = net
    save(tmp_path, 7, net, note="here")
    found, notes = checkpoint.read(tmp_path, 7), checkpoint.find_newest(tmp_path)[1]
    other = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    other_optimizer = torch.optim.AdamW(other.parameters(), lr=0.1)

    other.load_state_dict(found.tensors["model"])
    checkpoint.restore_optimizer(other, other_optimizer, found.tensors["optimizer"])
    step(model, optimizer)
    step(other, other_optimizer)

    assert (found.step, found.state, notes) == (7, {"note": "here"}, [])
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_only_the_newest_are_kept(tmp_path, net):
    for number in (1, 2, 3, 10):
        save(tmp_path, number, net, keep=2)

    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "step_0000003",
        "step_0000010",
    ]


def test_milestones_are_kept_for_ever(tmp_path, net):
    for number in range(1, 8):
        save(tmp_path, number, net, keep=1, milestone_every=3)

    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "step_0000003",
        "step_0000006",
        "step_0000007",
    ]


def test_a_copy_does_not_change_with_the_model(net):
    model, optimizer = net
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    copied = checkpoint.copy_tensors(model, optimizer, dict(model.state_dict()))
    step(model, optimizer)

    for kind in ("model", "average"):
        assert all(torch.equal(copied[kind][name], before[name]) for name in before)
        assert not torch.equal(copied[kind]["0.weight"], model.state_dict()["0.weight"])


def test_a_folder_without_checkpoints_has_none(tmp_path):
    assert checkpoint.find_newest(tmp_path) == (None, [])


def test_every_flipped_bit_is_found_and_the_one_before_is_used(tmp_path, net):
    save(tmp_path, 1, net)
    save(tmp_path, 2, net)
    newest = tmp_path / "checkpoints/step_0000002"
    for file in sorted(newest.iterdir()):
        whole = file.read_bytes()
        for place in range(0, len(whole), max(1, len(whole) // 40)):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            step_found, notes = checkpoint.find_newest(tmp_path)
            assert step_found == 1 and "step_0000002 is damaged" in notes[0], (file.name, place)
            put_back(tmp_path)
        file.write_bytes(whole)
    assert checkpoint.find_newest(tmp_path)[0] == 2


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]
)
def test_a_missing_shortened_or_exchanged_file_is_found(tmp_path, net, name):
    save(tmp_path, 1, net)
    step(*net)
    save(tmp_path, 2, net)
    old, new = (tmp_path / f"checkpoints/step_000000{number}" / name for number in (1, 2))
    whole = new.read_bytes()

    for damage in (
        new.unlink,
        lambda: new.write_bytes(whole[:-1]),
        lambda: new.write_bytes(old.read_bytes()),
    ):
        damage()
        assert checkpoint.find_newest(tmp_path)[0] == 1
        put_back(tmp_path)
        new.write_bytes(whole)


def test_a_file_that_does_not_belong_is_found(tmp_path, net):
    save(tmp_path, 1, net)
    (tmp_path / "checkpoints/step_0000001/extra.safetensors").write_bytes(b"")

    with pytest.raises(WeightsError, match=r"extra.safetensors does not belong"):
        checkpoint.find_newest(tmp_path)


def test_when_none_is_intact_nothing_is_loaded_and_nothing_deleted(tmp_path, net):
    save(tmp_path, 1, net)
    (tmp_path / "checkpoints/step_0000001/state.json").write_text("{}")

    with pytest.raises(WeightsError, match="no intact checkpoint"):
        checkpoint.find_newest(tmp_path)
    assert (tmp_path / "checkpoints/step_0000001/model.safetensors").exists()


def test_a_save_that_fails_keeps_what_was_there(tmp_path, net, file_size_limit):
    save(tmp_path, 1, net)
    with file_size_limit(300), pytest.raises(MachineError, match="cannot be written") as told:
        save(tmp_path, 2, net)

    assert " needed, " in told.value.where and told.value.where.endswith("iB free)")
    assert checkpoint.find_newest(tmp_path)[0] == 1
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step_0000001"]


def test_leftovers_of_an_interrupted_save_are_removed_and_nothing_else(tmp_path, net):
    save(tmp_path, 1, net)
    (tmp_path / "checkpoints/.tmp-2-99").mkdir()
    (tmp_path / "checkpoints/mine").mkdir()

    checkpoint.clean(tmp_path)

    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["mine", "step_0000001"]


def test_nothing_in_a_checkpoint_is_a_pickle(tmp_path, net):
    save(tmp_path, 1, net)

    files = {path.name: path.read_bytes() for path in (tmp_path / "checkpoints/step_0000001").iterdir()}
    assert set(files) == {"model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"}
    json.loads(files["state.json"]), json.loads(files["manifest.json"])


@pytest.fixture
def file_size_limit():
    """A disk that is full after so many bytes, without being root: writes then fail alike."""
    import resource
    import signal
    from contextlib import contextmanager

    @contextmanager
    def limit(num_bytes):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)

    return limit


def test_a_damaged_checkpoint_does_not_count_among_those_to_keep(tmp_path, net):
    for number in (1, 2):
        save(tmp_path, number, net, keep=2)
    (tmp_path / "checkpoints/step_0000002/state.json").write_text("{}")

    assert checkpoint.find_newest(tmp_path)[0] == 1
    save(tmp_path, 2, net, keep=2)

    assert sorted(path.name for path in (tmp_path / "checkpoints").glob("step_*")) == [
        "step_0000001",
        "step_0000002",
    ]
    assert checkpoint.find_newest(tmp_path) == (2, [])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e38])
def test_weights_that_are_no_longer_finite_are_not_saved(tmp_path, net, value):
    save(tmp_path, 1, net)
    net[0][0].weight.data[0, 0] = value
    net[0][0].weight.data[1, 1] = value

    with pytest.raises(NotFiniteError, match=r"model is no longer finite"):
        save(tmp_path, 2, net)
    assert newest_checkpoint_step(tmp_path) == 1


def test_a_file_that_is_not_deleted_at_first_is_deleted(tmp_path, net, monkeypatch):
    real, refused = os.unlink, []

    def unlink(path, **options):
        if not refused:
            refused.append(path)
            raise OSError(errno.EIO, "Input/output error")
        real(path, **options)

    save(tmp_path, 1, net)
    monkeypatch.setattr(os, "unlink", unlink)
    assert save(tmp_path, 2, net, keep=1) == []
    assert refused and [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step_0000002"]


@pytest.mark.parametrize("fails", ["rename", "delete"])
def test_an_old_checkpoint_that_cannot_be_deleted_is_named_and_fails_no_save(
    tmp_path, net, fails, monkeypatch
):
    save(tmp_path, 1, net)

    def refuse(path, *args, **options):
        if "step_0000001" in path.name:
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **options)

    if fails == "rename":
        real = Path.rename
        monkeypatch.setattr(Path, "rename", refuse)
    else:
        monkeypatch.setattr(checkpoint.shutil, "rmtree", lambda *args, **options: None)
    (left,) = save(tmp_path, 2, net, keep=1)
    monkeypatch.undo()

    assert "step_0000001" in left.name and left.exists()
    assert checkpoint.find_newest(tmp_path) == (2, [])
    save(tmp_path, 3, net, keep=1)
    checkpoint.clean(tmp_path)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step_0000003"]


def test_one_step_may_be_damaged_again_and_again(tmp_path, net):
    save(tmp_path, 1, net)
    for time in range(3):
        save(tmp_path, 2, net)
        (tmp_path / "checkpoints" / "step_0000002" / "state.json").write_text("{}")

        assert checkpoint.find_newest(tmp_path)[0] == 1, time

    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == [
        "damaged_step_0000002",
        "damaged_step_0000002-2",
        "damaged_step_0000002-3",
        "step_0000001",
    ]


def test_every_operation_of_a_save_is_in_its_order(tmp_path, net, monkeypatch):
    """Each byte is on disk before the rename that publishes it, and that before anything older is touched."""
    save(tmp_path, 1, net, keep=1)
    done = []

    def name_of(path: Path) -> str:
        new = re.sub(r"\.tmp-dead.*", "RETIRED", str(Path(path).relative_to(tmp_path)))
        return re.sub(r"\.tmp-2-\d+", "NEW", new).removeprefix("checkpoints/")

    def note(what: str, function):
        def noted(path, *more, **options):
            done.append(" ".join([what, *map(name_of, [path, *(one for one in more if what == "rename")])]))
            return function(path, *more, **options)

        return noted

    monkeypatch.setattr(checkpoint, "sync", note("sync", checkpoint.sync))
    monkeypatch.setattr(Path, "rename", note("rename", Path.rename))
    monkeypatch.setattr(checkpoint.shutil, "rmtree", note("delete", checkpoint.shutil.rmtree))
    save(tmp_path, 2, net, keep=1)

    assert done == [
        "sync .",
        "sync NEW/model.safetensors",
        "sync NEW/optimizer.safetensors",
        "sync NEW/state.json",
        "sync NEW/manifest.json",
        "sync NEW",
        "rename NEW step_0000002",
        "sync checkpoints",
        "rename step_0000001 RETIRED",
        "delete RETIRED",
    ]
