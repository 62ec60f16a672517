"""`train.patience`: where a run ends, and which weights it delivers, from its own log and checkpoints."""

import json
import random
import signal
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import run, vit
from tests.evaluation.test_regression import REGRESSION, ages  # noqa: F401, a fixture
from tests.evaluation.test_several_labels import SEVERAL, shapes  # noqa: F401, a fixture
from tests.training.test_finetune import SMALL, fingerprint, stopped_in_part, when_logged
from vitcli import recipe as recipes
from vitcli.data.dataset import DataSet
from vitcli.evaluation.metrics import Metrics
from vitcli.training import loop, splits
from vitcli.training.methods.early_stopping import EarlyStopping

PATIENCE, STEPS = 2, 60
KEYS = (f"train.patience={PATIENCE}", "eval.every=2", "train.save_every=2",
        "train.keep_checkpoints=99", "data.dev_fraction=0.3", "train.log_every=1",
        "schedule.decay=constant")  # fmt: skip
WORDS = (
    *SMALL[:-2],
    "--batch-size",
    10,
    "--steps",
    STEPS,
    *(word for key in KEYS for word in ("--set", key)),
)


def evaluations(folder) -> list[tuple[int, tuple[float, float]]]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
    scored = [(r["step"], (r["eval"]["top1"], -r["eval"]["loss"])) for r in records if "eval" in r]
    return scored[:-1]  # the last is of the images to report on


@pytest.mark.parametrize(
    ("average", "is_late"),
    [(0, False), *(pytest.param(0.5, late, marks=pytest.mark.slow) for late in (0, 1))],
)
def test_a_run_ends_after_its_patience_with_its_best_weights_also_over_a_stop(
    photos, tmp_path, monkeypatch, average, is_late
):
    monkeypatch.setattr(loop, "runs_ahead", lambda device: is_late)
    words = (*WORDS, "--dataset", photos, "--set", f"optimizer.average={average}", "--lr", "0.3")
    unbroken = tmp_path / "unbroken"
    outcome = run(*words, "--out", unbroken, "--json")
    assert outcome.code == 0, outcome.err

    # Found again from the log.
    scores = evaluations(unbroken)
    best = max(range(len(scores)), key=lambda k: (scores[k][1], -k))
    best_step, last_step = scores[best][0], scores[-1][0]
    assert (outcome.json["steps"], outcome.json["best_step"]) == (last_step, best_step)
    assert len(scores) - 1 - best == PATIENCE or last_step + 2 >= STEPS
    assert f"delivered: the weights of step {best_step}" in outcome.err
    name = "average" if average else "model"
    kept = load_file(unbroken / f"checkpoints/step_{best_step:07}/{name}.safetensors")
    delivered = load_file(unbroken / "model.safetensors")
    assert all(torch.equal(delivered[key], kept[key]) for key in delivered)
    assert outcome.json["num_eval_examples"] == 10  # the test split, which has decided nothing

    # Stopped in the middle, and resumed.
    seed_generators, steps = loop.seed_generators, [0]

    def seed_and_stop(*arguments):
        steps[0] += 1
        if steps[0] == 3:
            signal.raise_signal(signal.SIGTERM)
        seed_generators(*arguments)

    monkeypatch.setattr(loop, "seed_generators", seed_and_stop)
    assert run(*words, "--out", tmp_path / "stopped").code == 143
    # And again as soon as the evaluation that ends it is done, before the end is recorded.
    monkeypatch.setattr(loop, "seed_generators", seed_generators)
    observe = EarlyStopping.observe

    def observe_and_stop(self, *arguments):
        observe(self, *arguments)
        if self.reason_to_end:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(EarlyStopping, "observe", observe_and_stop)
    assert run(*words, "--out", tmp_path / "stopped").code == 143
    monkeypatch.setattr(EarlyStopping, "observe", observe)
    assert run(*words, "--out", tmp_path / "stopped").code == 0
    assert fingerprint(tmp_path / "stopped") == fingerprint(unbroken)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["several", "numbers"])
def test_several_labels_stop_by_their_precision_and_numbers_by_their_loss(request, tmp_path, kind):
    fixture, more = {"several": ("shapes", SEVERAL), "numbers": ("ages", REGRESSION)}[kind]
    words = (*WORDS, *more, "--dataset", request.getfixturevalue(fixture), "--lr", "0.3")
    outcome = run(*words, "--out", tmp_path / "run", "--json")
    assert outcome.code == 0, outcome.err

    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").open()]
    scored = [(record["step"], record["eval"]) for record in records if "eval" in record][:-1]
    ranks = [(scores.get("mean_ap", 0.0), -scores["loss"]) for _, scores in scored]
    best = max(range(len(ranks)), key=lambda k: (ranks[k], -k))
    assert (outcome.json["best_step"], outcome.json["steps"]) == (scored[best][0], scored[-1][0])
    assert len(scored) - 1 - best == PATIENCE
    kept = load_file(tmp_path / f"run/checkpoints/step_{scored[best][0]:07}/model.safetensors")
    delivered = load_file(tmp_path / "run/model.safetensors")
    assert all(torch.equal(delivered[key], kept[key]) for key in delivered)
    with stopped_in_part(best + 2):
        assert run(*words, "--out", tmp_path / "stopped").code == 143
    assert run(*words, "--out", tmp_path / "stopped").code == 0
    assert fingerprint(tmp_path / "stopped") == fingerprint(tmp_path / "run")


@pytest.mark.slow
def test_kills_and_two_processes_change_no_bit_of_a_run_that_ends_early(photos, tmp_path):
    """Kills at random steps, also while the images that decide about the end are scored."""
    per_device = ("--exact", "--per-device-batch", 5, "--precision", "fp32")
    words, draws = (*WORDS, "--dataset", photos, "--lr", "0.3", *per_device), random.Random(0)
    unbroken, killed, logged = tmp_path / "unbroken", tmp_path / "killed", 0
    assert run(*words, "--out", unbroken).code == 0
    assert vit(*words, "--num-processes", 2, "--out", tmp_path / "two", timeout=400).returncode == 0
    num_kills = 0
    for processes in (1, 2, 1, 2):
        at, delay_s = logged + draws.randint(1, 2), draws.uniform(0, 0.02)

        def kill_soon(process, at=at, delay_s=delay_s):
            when_logged(killed, at, lambda: (time.sleep(delay_s), process.kill()))

        more = ("--num-processes", processes, "--out", killed)
        num_kills += vit(*words, *more, on_start=kill_soon, timeout=400).returncode == -signal.SIGKILL
        time.sleep(1)  # processes of a launcher that is gone end by themselves, and leave the folder
        logged = (killed / "metrics.jsonl").read_bytes().count(b'"loss": ')
    assert vit(*words, "--out", killed, timeout=400).returncode == 0

    print(f"{num_kills} kills of a run with patience, alone and on two processes, Same")
    assert num_kills >= 2
    assert fingerprint(killed) == fingerprint(unbroken) == fingerprint(tmp_path / "two")


def test_patience_without_evaluations_is_refused():
    outcome = run("finetune", "--dry-run", "--set", "train.patience=3", "--set", "eval.every=0")
    assert outcome.code == 2
    assert "train.patience counts evaluations" in " ".join(outcome.err.split())


def with_patience(patience: int) -> EarlyStopping:
    return EarlyStopping(SimpleNamespace(train=SimpleNamespace(patience=patience)))


def test_an_evaluation_that_is_made_again_after_an_interruption_counts_once():
    best = with_patience(2)
    weights = {"w": torch.zeros(1)}
    best.observe(10, Metrics(0.9, 1.0, 0.5, 40), weights)
    for step in (20, 20, 20):
        best.observe(step, Metrics(0.8, 1.0, 0.5, 40), weights)
    assert (best.step, best.num_since, best.reason_to_end) == (10, 1, "")

    best.observe(30, Metrics(0.9, 1.0, 0.5, 40), weights)  # as good is no better
    assert best.reason_to_end == "no improvement in 2 evaluations"


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ([dict(top1=0.5, loss=1.0), dict(top1=0.6, loss=2.0), dict(top1=0.6, loss=2.0)], 2),  # the first
        ([dict(top1=0.5, loss=1.0), dict(top1=0.5, loss=0.9), dict(top1=0.4, loss=0.1)], 2),  # then the loss
        ([dict(top1=0.9, mean_ap=0.2, loss=1.0), dict(top1=0.1, mean_ap=0.3, loss=2.0)], 2),
        ([dict(top1=None, loss=3.0), dict(top1=None, loss=1.0), dict(top1=None, loss=2.0)], 2),  # of numbers
    ],
)
def test_the_best_is_that_of_the_highest_precision_or_accuracy_and_then_of_the_smallest_loss(scores, best):
    kept = with_patience(2)
    for step, score in enumerate(scores, start=1):
        kept.observe(step, SimpleNamespace(**score), {"w": torch.tensor(float(step))})

    assert (kept.step, float(kept.weights["w"])) == (best, best)
    assert kept.num_since == len(scores) - best and not kept.reason_to_end


@pytest.mark.parametrize(
    ("num_rows", "dev_fraction", "fraction"),
    [(200, 0.0, 0.1), (5_000, 0.0, 0.1), (20_000, 0.0, 0.025), (200, 0.3, 0.3), (10_000, 0.3, 0.05)],
)
def test_a_tenth_of_the_images_is_held_out_to_choose_by_and_never_more_than_500(
    monkeypatch, num_rows, dev_fraction, fraction
):
    monkeypatch.setattr(splits, "cut_dev", lambda train, **how: how)
    train = replace(DataSet("demo").open("train").part(0, 2, name="two"), name="many")
    train = train.rows(np.arange(num_rows) % 2)
    changes = {"train.patience": 2, "eval.every": 1, "data.dev_fraction": dev_fraction}
    recipe = recipes.settled(recipes.load("finetune/default", ["data.dataset=demo"]), changes)

    how = splits.hold_out(train, recipe)

    assert how == {"dev_fraction": pytest.approx(fraction), "split": train.name, "stratified": True}
    unstopped = recipes.settled(recipe, {"train.patience": 0})
    assert splits.hold_out(train, unstopped) == (train, None)
