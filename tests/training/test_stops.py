"""A run that is stopped at every one of its steps ends as one that is never stopped, bit for bit."""

import hashlib
import os
import random
import signal
from pathlib import Path

import pytest

from tests.conftest import run
from tests.data.shards.test_streaming import parquet  # noqa: F401, a fixture
from tests.training.test_finetune import SMALL, TRICKY, fingerprint
from vitcli.training import loop

STEPS = int(os.environ.get("VIT_STOPS", "40"))
MORE = ("--set", "objective.mixup=0.2", "--set", "data.randaugment=[2,9]", "--set", "model.drop_path=0.1")
TRICKY = TRICKY[:-2]  # without train.save_every
STREAMED = ("--set", "data.streaming=true", "--set", "data.shuffle_window=24")
KINDS = {
    "finetune": (*SMALL, *TRICKY, *MORE),
    "streamed": (*SMALL, *TRICKY, *MORE, *STREAMED),
    "pretrain": (
        *("pretrain", "--recipe", "pretrain/demo", *SMALL[3:], *TRICKY),
        *("--set", "objective.loss=masked_patch", "--set", "objective.patch_target=mean_color"),
        *("--set", "objective.corrupted=0.5", "--set", "objective.masked=0.8"),
        *("--set", "objective.replaced=0.1"),
    ),
}


def state_of(run_dir: Path, step: int) -> dict[str, str]:
    """Hash the weights, the optimizer's and the averaged ones of a checkpoint."""
    files = (run_dir / f"checkpoints/step_{step:07d}").glob("*.safetensors")
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_at_every_step_changes_no_bit(request, tmp_path, monkeypatch, kind):
    dataset = request.getfixturevalue("parquet" if kind == "streamed" else "photos")
    words = (*KINDS[kind], "--dataset", dataset, "--steps", STEPS, "--set", f"train.keep_checkpoints={STEPS}")
    unbroken, stopped = tmp_path / "unbroken", tmp_path / "stopped"
    outcome = run(*words, "--out", unbroken, "--set", "train.save_every=1")
    assert outcome.code == 0, outcome.err + outcome.out
    draws, seed_generators = random.Random(0), loop.seed_generators

    for step in range(1, STEPS):
        parts = [0] * draws.randint(1, 2)  # the signal comes in the first or second micro-batch of the step

        def seed_and_stop(*arguments, parts=parts):
            parts.pop()
            if not parts:
                signal.raise_signal(signal.SIGTERM)
                parts.extend([0] * 9)
            seed_generators(*arguments)

        monkeypatch.setattr(loop, "seed_generators", seed_and_stop)
        outcome = run(*words, "--out", stopped, "--workers", draws.randint(1, 3))
        assert outcome.code == 143, outcome.err + outcome.out
        assert state_of(stopped, step) == state_of(unbroken, step), step
    monkeypatch.undo()
    assert run(*words, "--out", stopped).code == 0

    print(f"{kind}: {STEPS - 1} stops of {STEPS} steps, Same")
    assert fingerprint(stopped) == fingerprint(unbroken)
