"""All methods at once, stopped, killed, exact and sharded: the guarantees of any other run."""

import json
import random
import signal
import time

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import run, vit
from tests.training.methods.conftest import ADAM, QUICK, SAVED, begun
from tests.training.test_finetune import fingerprint, losses, when_logged
from tests.training.test_stops import state_of
from vitcli import recipe as recipes
from vitcli.output import run_folder
from vitcli.training import loop

NEW_KEYS = ("freeze", "lora_rank", "patch_dropout", "layer_decay")
DRAWN = ("--set", "model.dropout=0.1", "--set", "model.drop_path=0.2", "--set", "objective.mixup=0.2")
METHODS = (
    *("--set", "optimizer.layer_decay=0.8", "--set", "model.freeze=1", "--set", "model.patch_dropout=0.3"),
    *("--set", "schedule.image_sizes=[8,16,32]", "--set", "model.grad_checkpointing=true"),
    *("--set", "optimizer.average=0.9", "--set", "eval.every=4"),
)
LORA = ("--set", "model.lora_rank=2", "--set", "model.lora_alpha=3")
STEPS = 12


def words_for(ckpt, photos, *more: object) -> tuple[object, ...]:
    return (*begun(ckpt, photos), *QUICK, *ADAM, *DRAWN, *METHODS, "--steps", STEPS, *more)


def test_the_recipe_of_an_earlier_version_is_that_of_this_one_without_the_methods(tmp_path):
    """Resuming compares recipes: keys that were unknown when a run began are as if they were not used."""
    values = {"data.dataset": "photos", "model.ckpt": "demo", "optimizer.lr": 0.1}
    recipe = recipes.load("finetune/default", (), values)
    lines = recipes.to_toml(recipe).splitlines(keepends=True)
    earlier = [line for line in lines if not line.startswith(NEW_KEYS)]
    (tmp_path / "recipe.toml").write_text("".join(earlier))

    assert len(lines) - len(earlier) == len(NEW_KEYS)
    run_folder.refuse_other_recipe(tmp_path, recipe)


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), LORA], ids=["weights", "adapters"])
def test_a_stop_at_every_step_changes_no_bit(ckpt, photos, tmp_path, monkeypatch, more):
    words, draws = words_for(ckpt, photos, *more, "--set", "train.keep_checkpoints=12"), random.Random(0)
    unbroken, stopped = tmp_path / "unbroken", tmp_path / "stopped"
    assert run(*words, "--out", unbroken, "--set", "train.save_every=1").code == 0
    seed_generators = loop.seed_generators

    def seed_and_stop(*arguments):
        signal.raise_signal(signal.SIGTERM)
        seed_generators(*arguments)

    monkeypatch.setattr(loop, "seed_generators", seed_and_stop)
    for step in range(1, STEPS):
        outcome = run(*words, "--out", stopped, "--workers", draws.randint(1, 3))
        assert outcome.code == 143, outcome.err + outcome.out
        assert state_of(stopped, step) == state_of(unbroken, step), step
    monkeypatch.undo()
    assert run(*words, "--out", stopped).code == 0
    assert fingerprint(stopped) == fingerprint(unbroken)


@pytest.mark.slow
def test_kills_change_no_bit(ckpt, photos, tmp_path):
    words, draws, logged = words_for(ckpt, photos, *LORA, *SAVED), random.Random(1), 0
    assert run(*words, "--out", tmp_path / "unbroken").code == 0
    killed = tmp_path / "killed"
    for delay_s in (draws.uniform(0, 0.05) for _ in range(3)):

        def kill_soon(process, at=logged + 2, delay_s=delay_s):
            when_logged(killed, at, lambda: (time.sleep(delay_s), process.kill()))

        ended = vit(*words, "--out", killed, on_start=kill_soon, timeout=300)
        assert ended.returncode == -signal.SIGKILL, ended.stdout + ended.stderr
        logged = (killed / "metrics.jsonl").read_bytes().count(b'"loss": ')
    assert run(*words, "--out", killed).code == 0
    assert fingerprint(killed) == fingerprint(tmp_path / "unbroken")


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), LORA], ids=["weights", "adapters"])
def test_two_exact_processes_make_the_bits_of_one(ckpt, photos, tmp_path, more):
    for processes in (1, 2):
        words = (*words_for(ckpt, photos, *more), "--exact", "--per-device-batch", 4)
        where = ("--out", tmp_path / str(processes), "--num-processes", processes)
        ended = vit(*words, *where, timeout=300)
        assert ended.returncode == 0, ended.stdout + ended.stderr

    assert fingerprint(tmp_path / "1") == fingerprint(tmp_path / "2")


@pytest.mark.slow
def test_two_sharded_processes_learn_what_one_learns_and_leave_the_frozen_bits(ckpt, photos, tmp_path):
    words = words_for(ckpt, photos, "--per-device-batch", 4)
    assert run(*words, "--out", tmp_path / "alone").code == 0
    ended = vit(*words, "--out", tmp_path / "sharded", "--shard", "--num-processes", 2, timeout=300)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert losses(tmp_path / "sharded") == pytest.approx(losses(tmp_path / "alone"), rel=1e-4)
    assert json.loads(ended.stdout)["steps"] == STEPS
    before, alone, sharded = (
        load_file(folder / "model.safetensors") for folder in (ckpt, tmp_path / "alone", tmp_path / "sharded")
    )
    for name in before:
        is_same = torch.equal(sharded[name], before[name])
        assert is_same == name.startswith(("cls_token", "pos_embed", "patch_embed", "blocks.0.")), name
        if not name.endswith("attn.qkv.bias"):  # of keys: their gradients are rounding, which Adam scales up
            torch.testing.assert_close(sharded[name], alone[name], rtol=1e-2, atol=1e-3)
