"""A number that is not finite, of one process or of all: every process stops, and nothing is overwritten."""

import json
import os
import shutil
import signal
import threading
import time

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import run, vit
from tests.distributed import faults
from tests.training.test_finetune import SMALL, fingerprint
from vitcli.errors import ProcessError
from vitcli.output.run_folder import newest_checkpoint_step
from vitcli.training import checkpoint, loop

WORDS = (
    *("--steps", 6, "--batch-size", 8, "--per-device-batch", 4, "--precision", "fp32"),
    *("--set", "train.log_every=1", "--set", "train.save_every=2", "--set", "optimizer.average=0.9"),
)
MODES = {"plain": (), "exact": ("--exact",), "shard": ("--shard",)}


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("phase", "factor"), [("forward", "nan"), ("backward", "inf")])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_number_that_is_not_finite_on_one_process_stops_all_before_they_save(
    photos, tmp_path, mode, phase, factor, rank
):
    words = (*SMALL, "--dataset", photos, *WORDS, *MODES[mode], "--num-processes", 2, "--out")
    shutil.copy(faults.__file__, tmp_path / "sitecustomize.py")
    out, paths = tmp_path / "run", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}"
    # In step 4, after which a checkpoint is due.
    fault = {"VIT_FAULT": f"{rank} {phase} {factor} 4 -", "PYTHONPATH": paths}

    ended = vit(*words, out, env=fault, timeout=300)

    assert ended.returncode == 6, ended.stdout + ended.stderr
    error = json.loads(ended.stdout)["error"]
    assert f"the {'loss' if phase == 'forward' else 'gradient'} is not a finite number" in error["message"]
    assert error["where"].startswith("step 4, ") and "last good checkpoint: step 2" in error["where"]
    assert newest_checkpoint_step(out) == 2 and '"step": 4' not in (out / "metrics.jsonl").read_text()
    for file in out.glob("checkpoints/*/*.safetensors"):
        assert all(torch.isfinite(value).all() for value in load_file(file).values()), file

    for path in (out, tmp_path / "unbroken"):
        assert vit(*words, path, timeout=300).returncode == 0
    names = [name for name in fingerprint(out) if mode != "shard" or "shard-" not in name]
    resumed, unbroken = fingerprint(out), fingerprint(tmp_path / "unbroken")
    assert [resumed[name] for name in names] == [unbroken[name] for name in names]


def test_a_save_in_progress_ends_though_a_launcher_stops_the_process_for_the_error_of_another(
    photos, tmp_path, monkeypatch
):
    save, seed_generators, calls = checkpoint.save, loop.seed_generators, []

    def save_slowly(*arguments, **keywords):
        time.sleep(0.4)
        return save(*arguments, **keywords)

    def lose_another_in_step_5(*arguments):
        calls.append(arguments)
        if len(calls) == 5:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
            raise ProcessError("another process has ended", where="here", fix="this")
        seed_generators(*arguments)

    monkeypatch.setattr(checkpoint, "save", save_slowly)
    monkeypatch.setattr(loop, "seed_generators", lose_another_in_step_5)
    words = ("--steps", 8, "--batch-size", 8, "--set", "train.save_every=4", "--out", tmp_path / "run")
    ended = run(*SMALL, "--dataset", photos, *words)

    assert ended.code == 7, ended.out + ended.err
    assert newest_checkpoint_step(tmp_path / "run") == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lr", "more"), [("1e9", ()), ("1e9", ("optimizer.clip=0",)), ("1e38", ("optimizer.clip=0",))]
)
def test_an_absurd_learning_rate_leaves_no_weights_that_are_not_finite(photos, tmp_path, lr, more):
    words = ("--steps", 12, "--batch-size", 8, "--lr", lr, "--set", "train.save_every=1")
    settings = [word for setting in more for word in ("--set", setting)]
    ended = run(*SMALL[:-4], "--json", "--dataset", photos, *words, *settings, "--out", tmp_path / "run")

    print(f"learning rate {lr}, {more}: exit code {ended.code}")
    assert ended.code in (0, 4, 6), ended.out
    for file in (tmp_path / "run").rglob("*.safetensors"):
        assert all(torch.isfinite(value).all() for value in load_file(file).values()), file
    assert (tmp_path / "run/summary.json").exists() == (ended.code == 0)


@pytest.mark.parametrize("lr", ["0", "-1", "nan", "inf"])
def test_a_learning_rate_that_is_none_is_refused(photos, tmp_path, lr):
    ended = run(
        "finetune",
        "--recipe",
        "finetune/default",
        "--ckpt",
        "random",
        "--dataset",
        photos,
        "--lr",
        lr,
        "--out",
        tmp_path / "run",
    )

    assert ended.code == 2 and not (tmp_path / "run").exists()
    assert "lr" in ended.err and ended.err.count("\n") <= 5
