"""Checkpoints whose hashes are right and whose contents are not those of the run: none is continued from."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.conftest import run
from tests.training.test_finetune import SMALL, TRICKY, fingerprint, small_run, stopped_in_part
from vitcli.training import checkpoint

Change = Callable[[dict], object]
ONE = torch.zeros(1)


@pytest.fixture(scope="module")
def stopped(photos, tmp_path_factory) -> Path:
    """A run that was stopped after step 5; only its newest checkpoint is left."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    with stopped_in_part(10):  # the second half of step 5
        assert run(*SMALL, "--dataset", photos, "--out", out, "--steps", 8, *TRICKY).code == 143
    return out


def sign_again(folder: Path) -> None:
    """Write a manifest for changed files, and name the folder by the step in them."""
    (folder / "manifest.json").unlink()
    state = json.loads((folder / "state.json").read_text())
    is_renamed = isinstance(state, dict) and state.pop("as named", False)
    step = state["step"] if is_renamed else int(folder.name[5:])
    saved = folder.rename(folder.with_name(f".tmp-{step}-1"))
    checkpoint.write_manifest(saved)
    saved.rename(folder.with_name(f"step_{step:07}"))


def of_state(change: Change) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        state = json.loads((folder / "state.json").read_text())
        change(state)
        (folder / "state.json").write_text(json.dumps(state))

    return apply


def of_tensors(kind: str, change: Change) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / f"{kind}.safetensors")
        change(tensors)
        save_file(tensors, folder / f"{kind}.safetensors")

    return apply


FORGERIES = {
    "a step beyond the end": of_state(lambda state: state.update(step=10**9)),
    "a step beyond the end, as its name says": of_state(lambda s: s.update({"step": 9, "as named": True})),
    "another step": of_state(lambda state: state.update(step=4)),
    "a step in words": of_state(lambda state: state.update(step="5")),
    "no step": of_state(lambda state: state.pop("step")),
    "no fingerprint": of_state(lambda state: state.update(fingerprint=[])),
    "a negative length": of_state(lambda state: state.update(metrics_bytes=-1)),
    "too large a length": of_state(lambda state: state.update(metrics_bytes=10**9)),
    "time without end": of_state(lambda state: state.update(elapsed_s=float("inf"))),
    "a list of facts before training": of_state(lambda state: state.update(frozen_head=[])),
    "a word of facts before training": of_state(lambda state: state.update(frozen_head="x")),
    "skipped is a number": of_state(lambda state: state.update(skipped=5)),
    "fused is a word": of_state(lambda state: state.update(fused="yes")),
    "no word on the evaluation": of_state(lambda state: state.pop("evaluation_due")),
    "another format": of_state(lambda state: state.update(format=2)),
    "state.json is a list": lambda folder: (folder / "state.json").write_text("[1]"),
    "weights of nothing": of_tensors("model", dict.clear),
    "weights of another shape": of_tensors("model", lambda t: t.update({"head.bias": torch.zeros(9)})),
    "weights in halves": of_tensors("model", lambda t: t.update({"head.bias": t["head.bias"].half()})),
    "one weight more": of_tensors("model", lambda t: t.update({"more": torch.zeros(1)})),
    "weights that are no number": of_tensors("model", lambda t: t["head.bias"].fill_(torch.nan)),
    "no average": lambda folder: (folder / "average.safetensors").unlink(),
    "an empty average": of_tensors("average", dict.clear),
    "an empty optimizer": of_tensors("optimizer", dict.clear),
    "no optimizer": lambda folder: (folder / "optimizer.safetensors").unlink(),
    "a momentum of another shape": of_tensors(
        "optimizer", lambda t: t.update({"head.bias/momentum_buffer": torch.zeros(9)})
    ),
    "a momentum of no parameter": of_tensors(
        "optimizer", lambda t: t.update({"x/momentum_buffer": t.popitem()[1]})
    ),
    "a slot that SGD lacks": of_tensors(
        "optimizer", lambda t: t.update({"head.bias/exp_avg": torch.zeros(2)})
    ),
}


@pytest.mark.at_once  # read late, it stops a step later
def test_a_checkpoint_names_all_that_decides_the_bits_of_its_run(stopped):
    (folder,) = (stopped / "checkpoints").glob("step_0000005")
    stored = json.loads((folder / "state.json").read_text())["fingerprint"]

    data = {"train_data", "eval_data", "train_images", "eval_images", "train_files", "eval_files"}
    steps = {
        "per_device_batch",
        "num_processes",
        "sharded",
        "exact",
        "compile",
        "precision",
        "device",
        "threads",
    }
    assert stored.keys() >= data | steps | {"torch", "timm", "vit"}
    assert stored["precision"] == "fp32" and stored["device"] == "cpu" and stored["exact"] is False
    assert stored["train_data"] != stored["eval_data"] and stored["train_images"] != stored["eval_images"]


@pytest.mark.at_once  # read late, it stops a step later
def test_no_forged_checkpoint_is_continued_from(stopped, photos, tmp_path):
    words = (*SMALL, "--dataset", photos, "--steps", 8, *TRICKY)
    for name, forge in FORGERIES.items():
        out = tmp_path / name
        shutil.copytree(stopped, out)
        (folder,) = (out / "checkpoints").glob("step_0000005")
        for older in (out / "checkpoints").glob("step_000000[0-4]"):
            shutil.rmtree(older)
        forge(folder)
        sign_again(folder)

        outcome = run(*words, "--out", out)

        assert outcome.code in (3, 4), (name, outcome.code, outcome.err)
        assert not (out / "summary.json").exists(), name
    small_run(photos, stopped, *TRICKY)
    assert json.loads((stopped / "summary.json").read_text())["steps"] == 8
    assert fingerprint(stopped)
