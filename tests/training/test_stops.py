"""A run that is stopped at every one of its steps ends as one that is never stopped, bit for bit."""

import hashlib
import json
import os
import random
import signal
import socket
import sys
import time
from pathlib import Path
from subprocess import DEVNULL, Popen

import pytest

from tests.colours import make_images, numbers_of
from tests.conftest import REPOSITORY, run
from tests.data.shards.test_streaming import parquet  # noqa: F401, a fixture
from tests.evaluation.test_regression import REGRESSION, ages  # noqa: F401, a fixture
from tests.evaluation.test_several_labels import SEVERAL, shapes  # noqa: F401, a fixture
from tests.training.test_finetune import NETWORK, SMALL, TRICKY, fingerprint, of_layers
from vitcli.training import loop

STEPS_OF_COLOURS = 60  # of 20 of 103 images: eleven epochs and a part of the next
STEPS = int(os.environ.get("VIT_STOPS", "40"))
MORE = ("--set", "objective.mixup=0.2", "--set", "data.randaugment=[2,9]", "--set", "model.drop_path=0.1")
TRICKY = TRICKY[:-2]  # without train.save_every
# Of a second block, as the first is never skipped by model.drop_path.
SMALL, NETWORK = of_layers(SMALL, 2), of_layers(NETWORK, 2)
STREAMED = ("--set", "data.streaming=true", "--set", "data.shuffle_window=24")
KINDS = {
    "finetune": (*SMALL, *TRICKY, *MORE),
    "uneven": (
        *(*SMALL, *TRICKY, *MORE[:2], "--set", "data.sampling=sqrt", "--set", "objective.class_weights=sqrt"),
        *("--set", "objective.cutmix=1.0", "--set", "data.trivialaugment=true"),
        *("--set", "data.random_erasing=0.5"),
    ),
    "several": (*SMALL, *TRICKY, *SEVERAL, *MORE),
    "regression": (*SMALL, *TRICKY, *REGRESSION, "--set", "data.randaugment=[2,9]"),
    "streamed": (*SMALL, *TRICKY, *MORE, *STREAMED),
    "pretrain": (
        *("pretrain", "--recipe", "pretrain/demo", *NETWORK, *TRICKY),
        *("--set", "objective.loss=masked_patch", "--set", "objective.patch_target=mean_color"),
        *("--set", "objective.corrupted=0.5", "--set", "objective.masked=0.8"),
        *("--set", "objective.replaced=0.1"),
    ),
}

FIXTURES = {"streamed": "parquet", "regression": "ages", "several": "shapes"}


def state_of(run_dir: Path, step: int) -> dict[str, str]:
    """Hash the weights, the optimizer's and the averaged ones of a checkpoint."""
    files = (run_dir / f"checkpoints/step_{step:07d}").glob("*.safetensors")
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_at_every_step_changes_no_bit(request, tmp_path, monkeypatch, kind):
    dataset = request.getfixturevalue(FIXTURES.get(kind, "photos"))
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


@pytest.mark.slow
def test_every_image_is_trained_on_once_an_epoch_over_stops_and_other_threads(tmp_path, monkeypatch):
    """What reaches the network: each image has one colour, which no crop or mirror changes."""
    make_images(tmp_path / "images", 103)
    seen: dict[Path, list[int]] = {}
    to_model_range = loop.to_model_range

    def recorded(images_BCHW, **how):
        seen[out] += numbers_of(images_BCHW)
        return to_model_range(images_BCHW, **how)

    monkeypatch.setattr(loop, "to_model_range", recorded)
    words = (*SMALL, "--dataset", tmp_path / "images", "--batch-size", 10, "--precision", "fp32")
    words = (*words, "--per-device-batch", 5, "--steps", 31)  # three epochs and a part of the next
    draws, seed_generators = random.Random(0), loop.seed_generators
    for out, stops in ((tmp_path / "unbroken", ()), (tmp_path / "stopped", (3, 10, 11, 20, 29))):
        seen[out] = []
        for stop in (*stops, None):

            def seed_and_stop(*arguments, stop=stop, out=out):
                if stop and len(seen[out]) >= 10 * (stop - 1):
                    signal.raise_signal(signal.SIGTERM)
                seed_generators(*arguments)

            monkeypatch.setattr(loop, "seed_generators", seed_and_stop)
            code = run(*words, "--out", out, "--workers", draws.randint(1, 4)).code
            assert code == (143 if stop else 0)
            assert not stop or len(seen[out]) == 10 * stop

    unbroken, stopped = seen.values()
    assert stopped == unbroken
    for epoch in range(3):
        assert sorted(stopped[103 * epoch : 103 * (epoch + 1)]) == list(range(103))
    assert len({tuple(stopped[103 * epoch :][:103]) for epoch in range(3)}) == 3
    print("310 images of 31 steps, 5 stops: each once an epoch, in the order of the unbroken run")


def order_in(notes: Path) -> list[int]:
    """Return the images in the order of the steps; a step that was done again must have had the same."""
    order: dict[tuple[int, int], list[int]] = {}
    for line in notes.read_text().splitlines():
        step, part, numbers = json.loads(line)
        assert order.setdefault((step, part), numbers) == numbers, f"part {part} of step {step}"
    assert sorted(order) == [(step, part) for step in range(STEPS_OF_COLOURS) for part in range(4)]
    return [number for place in sorted(order) for number in order[place]]


@pytest.mark.slow
def test_every_image_is_trained_on_once_an_epoch_over_kills_and_other_processes(tmp_path):
    """Killed with all its processes, and begun again on another number of them with other threads."""
    make_images(tmp_path / "images", 103)
    notes, draws = tmp_path / "notes", random.Random(0)
    words = (*SMALL, "--exact", "--dataset", tmp_path / "images", "--batch-size", 20, "--precision", "fp32")
    words = (*words, "--per-device-batch", 5, "--steps", STEPS_OF_COLOURS, "--set", "train.save_every=2")

    def start(processes: int, notes: Path, out: Path) -> list[Popen]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        how = (*words, "--out", out, "--workers", draws.randint(1, 4))
        command = [sys.executable, "-m", "tests.colours", *map(str, (notes, *how))]
        sizes = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
        ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
        several = [{} if processes == 1 else ports | sizes | rank for rank in ranks]
        return [Popen(command, cwd=REPOSITORY, env=os.environ | more, stdout=DEVNULL) for more in several]

    assert [
        process.wait(300) for process in start(1, tmp_path / "unbroken.notes", tmp_path / "unbroken")
    ] == [0]
    for processes in (2, 4, 1, 4, 2):
        parts = (notes.read_text().count("\n") if notes.exists() else 0) + draws.randint(5, 40)
        running, until = start(processes, notes, tmp_path / "killed"), time.monotonic() + 200
        while not notes.exists() or notes.read_text().count("\n") < parts:
            assert time.monotonic() < until and not any(process.poll() for process in running)
            time.sleep(0.01)
        for process in running:
            process.kill()
        assert [process.wait(60) for process in running] == [-signal.SIGKILL] * processes
    assert [process.wait(300) for process in start(4, notes, tmp_path / "killed")] == [0] * 4

    order = order_in(notes)
    assert order == order_in(tmp_path / "unbroken.notes")
    for epoch in range(len(order) // 103):
        assert sorted(order[103 * epoch : 103 * (epoch + 1)]) == list(range(103))
    again = notes.read_text().count("\n") - 4 * STEPS_OF_COLOURS
    assert fingerprint(tmp_path / "killed") == fingerprint(tmp_path / "unbroken") and again > 0
    print(f"{len(order)} images, 5 kills on 1, 2 and 4 processes, {again} parts done again, Same")
