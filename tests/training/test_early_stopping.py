"""`train.patience`: where a run ends, and which weights it delivers, from its own log and checkpoints."""

import json
import signal

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import run
from tests.training.test_finetune import SMALL, fingerprint
from vitcli.training import loop

PATIENCE, STEPS = 2, 60
KEYS = (f"train.patience={PATIENCE}", "eval.every=2", "train.save_every=2", "train.keep_checkpoints=99",
        "data.dev_fraction=0.3", "train.log_every=1", "schedule.decay=constant")  # fmt: skip
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


@pytest.mark.parametrize("average", [0, 0.5])
def test_a_run_ends_after_its_patience_with_its_best_weights_also_over_a_stop(
    photos, tmp_path, monkeypatch, average
):
    words = (*WORDS, "--dataset", photos, "--set", f"optimizer.average={average}", "--lr", "0.3")
    unbroken = tmp_path / "unbroken"
    outcome = run(*words, "--out", unbroken, "--json")
    assert outcome.code == 0, outcome.err

    # Found again from the log.
    scores = evaluations(unbroken)
    best = max(range(len(scores)), key=lambda k: (scores[k][1], -k))
    best_step, last_step = scores[best][0], scores[-1][0]
    assert outcome.json["steps"] == last_step
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
    assert run(*words, "--out", tmp_path / "stopped").code == 0
    assert fingerprint(tmp_path / "stopped") == fingerprint(unbroken)


def test_patience_without_evaluations_is_refused():
    outcome = run("finetune", "--dry-run", "--set", "train.patience=3", "--set", "eval.every=0")
    assert outcome.code == 2
    assert "train.patience counts evaluations" in " ".join(outcome.err.split())
