"""What the embedded checkpoint claims: it was made by its recipe, and carries over to classes new to it."""

import json
from pathlib import Path

import pytest

import vitcli
from tests.conftest import run

WEIGHTS = Path(vitcli.__file__).parent / "demo_weights"


def stored() -> dict:
    return json.loads((WEIGHTS / "config.json").read_text())["vit"]


def test_the_shipped_weights_say_how_they_were_made():
    assert stored()["metadata"]["trained_by"] == "pretrain"
    assert stored()["architecture"]["name"] == "ViT-demo/8"
    assert len(stored()["class_names"]) == 24


@pytest.mark.slow
def test_the_demo_runs_without_a_word_of_advice(tmp_path):
    outcome = run("finetune", "--steps", "3", "--out", tmp_path / "run", "--json", "-q")

    assert outcome.code == 0
    assert (outcome.json["ckpt"], outcome.json["dataset"], outcome.json["num_classes"]) == (
        "demo",
        "demo",
        12,
    )


@pytest.mark.slow
def test_the_shipped_weights_score_what_they_say_on_their_own_classes():
    result = run("evaluate", "--ckpt", "demo", "--dataset", "demo:pretrain", "--json", "-q").json

    assert result["num_eval_examples"] == 1_200
    assert abs(result["top1"] - stored()["metadata"]["top1"]) <= 2 / 1_200


@pytest.mark.slow
def test_the_demo_transfers_and_random_weights_do_not(tmp_path):
    words = ("finetune", "--json", "-q", "--precision", "fp32")
    ours = run(*words, "--out", tmp_path / "demo").json
    fresh = run(*words, "--out", tmp_path / "fresh", "--ckpt", "random", "--model", "ViT-demo/8").json

    assert ours["top1"] >= 0.95
    assert ours["top1"] - fresh["top1"] >= 0.2
