"""--device: what a process may use, settled before torch is loaded."""

import os

import pytest

from tests.conftest import run
from vitcli.distributed import device
from vitcli.errors import MachineError, VitError


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setattr(os, "environ", {k: v for k, v in os.environ.items() if k != device.VISIBLE})


@pytest.mark.parametrize(
    ("name", "inherited", "visible"),
    [
        ("cpu", None, ""),
        ("mps", None, ""),
        ("cuda", None, None),
        ("CUDA:1", None, "1"),
        ("cuda:0,2", None, "0,2"),
        ("cuda:1", "4,7", "7"),  # the second of those that SLURM leaves
        ("cuda:0,1", "GPU-a,GPU-b", "GPU-a,GPU-b"),
    ],
)
def test_the_device_is_all_that_cuda_sees(name, inherited, visible):
    if inherited:
        os.environ[device.VISIBLE] = inherited

    device.select(name)
    assert os.environ.get(device.VISIBLE) == visible
    device.select(name)  # a process that was launched with the same command line
    assert os.environ.get(device.VISIBLE) == visible
    assert device.is_cpu() == (name == "cpu")


@pytest.mark.parametrize("name", ["tpu", "cuda:", "cuda:x", "cpu:0", "mps:1", "", "cuda:0,", "0,1", "cuda 1"])
def test_what_is_no_device_is_refused_before_torch(name):
    with pytest.raises(VitError, match="is not a device"):
        device.select(name)


def test_a_gpu_that_is_not_left_to_this_process_is_refused():
    os.environ[device.VISIBLE] = "3"
    with pytest.raises(MachineError, match="no cuda:1"):
        device.select("cuda:1")


@pytest.mark.parametrize(
    ("name", "available", "processes", "message"),
    [
        ("cuda", [], 1, "there is no cuda here"),
        ("cuda", ["mps"], 1, "there is no cuda here"),
        ("mps", ["cuda:0"], 1, "there is no mps here"),
        ("cuda:5", [], 1, "there is no cuda:5 here"),
        ("cuda:0,5", ["cuda:0"], 1, "there is no cuda:0,5 here"),
        ("cuda", ["cuda:0", "cuda:1"], 3, "3 processes need a GPU each, and 2 GPUs"),
        (None, ["cuda:0"], 2, "2 processes need a GPU each, and one GPU"),
        (None, ["cuda:0", "cuda:1"], 2, None),
        (None, [], 4, None),
        ("cpu", [], 4, None),
        ("mps", ["mps"], 1, None),
        ("cuda:0,1", ["cuda:0", "cuda:1"], 2, None),
    ],
)
def test_what_torch_sees_must_be_what_was_asked_for(name, available, processes, message):
    device.select(name)
    if message is None:
        device.check_here(available, processes)
        return
    with pytest.raises(MachineError, match=message) as refused:
        device.check_here(available, processes)
    assert "cpu" in refused.value.fix


def test_a_run_on_a_device_that_is_not_here_ends_with_what_is(photos):
    outcome = run("evaluate", "--ckpt", "demo", "--dataset", "demo:pretrain", "--device", "mps", "-q")

    assert outcome.code == 5 and "fix:   use cpu" in outcome.err


@pytest.mark.parametrize(
    "words",
    ["predict --ckpt demo {photos}/test/red", "fewshot --ckpt demo --dataset {photos} --shots 1 --out {out}"],
)
def test_the_cpu_is_a_device_of_every_command(words, photos, tmp_path):
    filled = words.format(photos=photos, out=tmp_path / "few")
    assert run(*filled.split(), "--device", "cpu", "-q").code == 0


@pytest.mark.parametrize(
    ("visible", "is_hidden"),
    [(None, False), ("", True), ("-1", True), ("-1,0", True), ("NoDevFiles", True), ("0,-1", False)],
)
def test_gpus_are_hidden_by_what_cuda_takes_for_none(monkeypatch, visible, is_hidden):
    monkeypatch.delenv(device.SELECTED, raising=False)
    monkeypatch.delenv(device.VISIBLE, raising=False)
    if visible is not None:
        monkeypatch.setenv(device.VISIBLE, visible)

    assert device.is_hidden() == is_hidden


@pytest.mark.parametrize(
    ("name", "hint"),
    [("gpu", "'cuda'"), ("NVIDIA", "'cuda'"), ("1", "'cuda:1'"), ("0,2", "'cuda:0,2'"), ("tpu", None)],
)
def test_what_other_programs_call_a_device_is_answered_with_our_name(name, hint):
    with pytest.raises(VitError) as caught:
        device.select(name)
    assert caught.value.message == f"{name!r} is not a device" + (f", did you mean {hint}?" if hint else "")


def test_any_number_of_processes_may_compute_on_the_cpu_of_a_machine_with_gpus(monkeypatch):
    monkeypatch.setenv(device.SELECTED, "cpu")
    device.check_here(["cuda:0"], 4)
    monkeypatch.setenv(device.SELECTED, "cuda")
    with pytest.raises(MachineError, match="4 processes need a GPU each, and one GPU is to be used"):
        device.check_here(["cuda:0"], 4)
