"""`--shard`: slices on every process, the numbers of the whole."""

import json
import math
import os
import random
import signal
import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from tests.conftest import run, vit
from tests.processes import of_processes
from tests.training.test_finetune import NETWORK, SMALL, fingerprint, losses, small_run, when_logged
from tests.training.test_queued_device import settings_of, two_processes
from vitcli.distributed import fsdp
from vitcli.distributed.runtime import Runtime
from vitcli.errors import VitError
from vitcli.training import checkpoint, optim
from vitcli.training.setup import check_network

# Two parts of a step on two processes, clipping, an average of the weights, evaluations of unequal batches.
ADAM = ("--set", "optimizer.name=adam")
OF_SGD = (
    *("--batch-size", 12, "--per-device-batch", 3, "--precision", "fp32", "--set", "train.log_every=1"),
    *("--set", "eval.every=4", "--set", "eval.batch_size=4", "--set", "train.save_every=3"),
    *("--set", "optimizer.average=0.9", "--set", "optimizer.clip=0.5"),
)
WORDS = (*OF_SGD, *ADAM)


def sharded_run(photos: Path, out: Path, *more: object, processes: int, steps: int = 8, **how):
    how = {"timeout": 300, **how}
    words = ("--dataset", photos, "--out", out, "--steps", steps, "--num-processes", processes)
    return vit(*SMALL, *WORDS, *words, *more, **how)


def weights_and_metrics(run_dir: Path) -> dict[str, str]:
    return {name: sha for name, sha in fingerprint(run_dir).items() if "shard-" not in name}


def of_use(tensors: dict) -> dict:
    """Return the tensors without the biases of keys: their gradients are rounding, which Adam scales up."""
    return {
        name: torch.stack([value.chunk(3)[0], value.chunk(3)[2]]) if name.endswith("attn.qkv.bias") else value
        for name, value in tensors.items()
    }


def children_of(pid: int) -> list[int]:
    stats = [path.read_text().rpartition(")") for path in Path("/proc").glob("[0-9]*/stat") if path.exists()]
    return sorted(int(head.split()[0]) for head, _, rest in stats if int(rest.split()[1]) == pid)


@pytest.mark.slow
def test_two_sharded_processes_learn_what_one_process_learns(photos, tmp_path):
    alone, sharded = tmp_path / "alone", tmp_path / "sharded"
    expected = small_run(photos, alone, *WORDS)
    ended = sharded_run(photos, sharded, "--shard", processes=2)

    assert ended.returncode == 0, ended.stderr + ended.stdout
    found = json.loads(ended.stdout)
    assert losses(sharded) == pytest.approx(losses(alone), rel=1e-5)
    assert (found["top1"], found["num_eval_examples"]) == (expected["top1"], expected["num_eval_examples"])
    mine, theirs = load_file(alone / "model.safetensors"), load_file(sharded / "model.safetensors")
    assert mine.keys() == theirs.keys()
    torch.testing.assert_close(of_use(theirs), of_use(mine), rtol=1e-3, atol=1e-4)

    slices = sorted((sharded / "checkpoints/step_0000008").glob("*.safetensors"))
    assert len(slices) == 2 and not list(sharded.rglob("*.metadata"))
    kernels = "model/blocks.0.mlp.fc1.weight"
    shapes = [safe_open(path, "pt").get_slice(kernels).get_shape() for path in slices]
    assert sum(rows for rows, _ in shapes) == mine["blocks.0.mlp.fc1.weight"].shape[0]
    together, whole = checkpoint.read(sharded, 8), checkpoint.read(alone, 8)
    assert together.tensors["optimizer"].keys() == whole.tensors["optimizer"].keys()
    for kind in ("model", "optimizer", "average"):
        pair = [of_use(state.tensors[kind]) for state in (together, whole)]
        torch.testing.assert_close(*pair, rtol=1e-3, atol=1e-4)


def test_slices_are_updated_and_updates_skipped_on_a_device_that_runs_ahead(monkeypatch):
    monkeypatch.setattr(optim, "runs_ahead", lambda device: True)

    def weights_of(name: str, runtime: Runtime | None) -> list[torch.Tensor]:
        model = nn.Linear(5, 3, bias=False)
        nn.init.ones_(model.weight)
        if runtime:
            fsdp.shard(model, runtime)
        optimizer = optim.build_optimizer(model, settings_of(name, weight_decay=0.1))
        optimizer.param_groups[0]["lr"] = 0.1
        weights = []
        for number in (math.inf, 1.0, math.nan, 2.0):  # also the first
            model.weight.grad = fsdp.sliced_like(torch.full((3, 5), number), model.weight)
            optim.update_weights(optimizer, torch.tensor(math.isfinite(number)))
            weights.append(fsdp.whole({"": model.weight.detach()}, keep=True)[""].clone())
        return weights

    import_module("torch.distributed.fsdp")  # takes a second, which the processes need not

    names = ("sgd", "adam")
    sharded, other = of_processes(2, lambda runtime: [weights_of(name, runtime) for name in names])

    torch.testing.assert_close(sharded, other, rtol=0, atol=0)
    torch.testing.assert_close(sharded, [weights_of(name, None) for name in names], rtol=1e-6, atol=0)
    for start, first, skipped, second in sharded:
        assert (start == 1).all() and (second < first).all() and (first < 1).all()
        assert torch.equal(first, skipped)


@pytest.mark.slow
@pytest.mark.parametrize("words", [OF_SGD, WORDS], ids=["sgd", "adam"])
def test_a_sharded_run_whose_numbers_are_read_late_learns_what_it_would_at_once(photos, tmp_path, words):
    words = (*words, "--steps", 8, "--dataset", photos, "--shard")
    at_once = vit(*SMALL, *words, "--out", tmp_path / "at_once", "--num-processes", 2, timeout=300)

    assert at_once.returncode == 0, at_once.stderr + at_once.stdout
    assert two_processes(*words, "--out", tmp_path / "late", late=("loop", "optim")) == [0, 0]
    assert losses(tmp_path / "late") == pytest.approx(losses(tmp_path / "at_once"), rel=1e-5)


@pytest.mark.slow
def test_a_stopped_sharded_run_ends_as_an_uninterrupted_one(photos, tmp_path):
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    dropout = ("--shard", "--set", "model.dropout=0.1")
    assert sharded_run(photos, unbroken, *dropout, processes=2, steps=40).returncode == 0

    for at in (4, 11, 17):

        def kill_soon(process, at=at):
            when_logged(broken, at, lambda: (time.sleep(0.05), os.kill(process.pid, signal.SIGTERM)))

        assert (
            sharded_run(photos, broken, *dropout, processes=2, steps=40, on_start=kill_soon).returncode == 143
        )
    ended = sharded_run(photos, broken, *dropout, processes=2, steps=40)

    assert ended.returncode == 0, ended.stderr + ended.stdout
    assert weights_and_metrics(broken) == weights_and_metrics(unbroken)
    # Where torch puts a tensor that all processes have alike differs from run to run.
    ends = [checkpoint.read(path, 40) for path in (broken, unbroken)]
    for kind in ("model", "optimizer", "average"):
        torch.testing.assert_close(*(end.tensors[kind] for end in ends), rtol=0, atol=0)


@pytest.mark.slow
def test_processes_killed_at_random_instants_change_no_bit(photos, tmp_path):
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    how = ("--shard", "--set", "model.dropout=0.1")
    assert sharded_run(photos, unbroken, *how, processes=2, steps=100).returncode == 0
    draws = random.Random(0)

    for number in range(8):
        at, delay_s, victim = 5 * number + draws.randint(1, 5), draws.uniform(0, 0.1), draws.randint(0, 1)

        def kill_one(process, at=at, delay_s=delay_s, victim=victim):
            def kill() -> None:
                time.sleep(delay_s)
                os.kill(children_of(process.pid)[victim], signal.SIGKILL)

            when_logged(broken, at, kill)

        ended = sharded_run(photos, broken, *how, processes=2, steps=100, on_start=kill_one)
        assert ended.returncode == 7, (number, ended.stderr + ended.stdout)
    ended = sharded_run(photos, broken, *how, processes=2, steps=100)

    assert ended.returncode == 0, ended.stderr + ended.stdout
    assert weights_and_metrics(broken) == weights_and_metrics(unbroken)
    assert not list(broken.rglob(".tmp*"))


@pytest.mark.slow
def test_the_processes_of_a_killed_launcher_end(photos, tmp_path):
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    assert sharded_run(photos, unbroken, "--shard", processes=2, steps=40).returncode == 0
    left: list[int] = []

    def kill_launcher(process):
        def kill() -> None:
            left.extend(children_of(process.pid))
            process.kill()

        when_logged(broken, 5, kill)

    words = ("--dataset", photos, "--out", broken, "--steps", 40, "--num-processes", 2, "--shard")
    assert vit(*SMALL, *WORDS, *words, on_start=kill_launcher).returncode == -signal.SIGKILL
    ends_at = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in left):
        assert time.monotonic() < ends_at
        time.sleep(0.1)
    ended = sharded_run(photos, broken, "--shard", processes=2, steps=40)

    assert len(left) == 2 and ended.returncode == 0, ended.stderr + ended.stdout
    assert weights_and_metrics(broken) == weights_and_metrics(unbroken)


@pytest.mark.slow
def test_sharded_and_whole_checkpoints_resume_each_other(photos, tmp_path):
    alone, changing = tmp_path / "alone", tmp_path / "changing"
    small_run(photos, alone, *WORDS, steps=40)

    for processes, at, more in ((2, 3, ["--shard"]), (1, 8, []), (4, 13, ["--shard"]), (2, 18, [])):

        def stop_soon(process, at=at):
            when_logged(changing, at, lambda: (time.sleep(0.05), os.kill(process.pid, signal.SIGTERM)))

        ended = sharded_run(photos, changing, *more, processes=processes, steps=40, on_start=stop_soon)
        assert ended.returncode == 143, ended.stderr + ended.stdout
    ended = sharded_run(photos, changing, "--shard", processes=4, steps=40)

    assert ended.returncode == 0, ended.stderr + ended.stdout
    assert losses(changing) == pytest.approx(losses(alone), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        [
            *("--set", "objective.loss=masked_patch", "--set", "objective.patch_target=mean_color"),
            *("--set", "objective.corrupted=0.5", "--set", "objective.masked=0.8"),
            *("--set", "objective.replaced=0.1", "--set", "model.grad_checkpointing=true"),
        ],
        ["--set", "model.posemb=relative", "--set", "model.grad_checkpointing=true"],
        ["--set", "model.posemb_at=every_layer_shared", "--set", "model.classifier=gap"],
    ],
    ids=["masked patches", "relative, checkpointing", "shared positions, gap"],
)
def test_every_kind_of_run_with_a_probe_learns_alike(photos, tmp_path, more):
    probe = ("--set", "eval.probe=demo", "--set", "eval.probe_every=4", "--set", "eval.probe_shots=2")
    command = ("pretrain", "--recipe", "pretrain/demo", *NETWORK, *WORDS, *more, *probe, "--steps", 6)
    command = (*command, "--dataset", photos)
    told = []
    for name, extra in (("alone", ()), ("sharded", ("--shard", "--num-processes", 2))):
        ended = vit(*command, "--out", tmp_path / name, *extra, timeout=300)
        assert ended.returncode == 0, ended.stderr + ended.stdout
        told.append(json.loads(ended.stdout))

    assert losses(tmp_path / "sharded") == pytest.approx(losses(tmp_path / "alone"), rel=1e-4)
    assert told[1]["loss"] == pytest.approx(told[0]["loss"], rel=1e-4)
    assert len(told[1]["fewshot"]["runs"]) == 3


@pytest.mark.parametrize(
    ("word", "value"), [("--exact", None), ("--per-device-batch", "auto"), ("--precision", "fp16")]
)
def test_options_that_sharding_does_not_support_are_refused(photos, tmp_path, word, value):
    ended = run(*SMALL, "--shard", word, *([value] if value else []), "--dataset", photos)

    assert ended.code == 2 and "--shard does not support" in ended.json["error"]["message"]


@pytest.mark.parametrize(
    ("option", "network", "told"),
    [
        ("shard", nn.BatchNorm2d(3), "batch norms"),
        ("exact", nn.BatchNorm2d(3), "batch norms"),
        ("shard", nn.ParameterList([nn.Parameter(torch.tensor(1.0))]), "scalar parameters"),
    ],
)
def test_networks_that_cannot_be_sharded_are_refused(option, network, told):
    options = SimpleNamespace(**{"shard": False, "exact": False, option: True})

    with pytest.raises(VitError, match=told):
        check_network(
            nn.Sequential(network), options, SimpleNamespace(world_size=2, device=torch.device("cpu"))
        )
    check_network(nn.Linear(2, 2), options, SimpleNamespace(world_size=2, device=torch.device("cpu")))


def test_one_process_cannot_shard(photos):
    ended = run(*SMALL, "--shard", "--dataset", photos)

    assert ended.code == 2 and "at least two processes" in ended.json["error"]["message"]
