"""Runs with kept images: bit for bit those without, on any number of processes, killed or not."""

import json

import pytest
from safetensors.numpy import load_file

from tests.conftest import ONE_LAYER, run, vit

WORDS = ("finetune", "--recipe", "finetune/default",
         *ONE_LAYER.split(), "--res", 16, "--steps", 6, "--batch-size", 8, "--set", "data.randaugment=[1,5]",
         "--set", "eval.every=3", "--quiet", "--json")  # fmt: skip


@pytest.fixture(autouse=True)
def cache_of_this_test(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("vitcli.data.columns.CLOCK_TICK_NS", 0)


def trained(photos, out, mode: str, *more):
    outcome = run(*WORDS, "--dataset", photos, "--out", out, "--set", f"data.cache={mode}", *more)
    assert outcome.code == 0, outcome.err
    return result_of(out)


def result_of(out) -> tuple[dict, str]:
    weights = {name: x.tobytes() for name, x in load_file(out / "model.safetensors").items()}
    return weights, (out / "metrics.jsonl").read_text()


def test_training_with_kept_images_is_bit_for_bit_training_without(photos, tmp_path):
    expected = trained(photos, tmp_path / "off", "off")

    for mode in ("disk", "auto"):  # at last from what is on disk
        assert trained(photos, tmp_path / mode, mode) == expected
    timing = [json.loads(line) for line in (tmp_path / "auto" / "timing.jsonl").read_text().splitlines()]
    (kept,) = [record["decoded_images"] for record in timing if "decoded_images" in record]
    assert [each["place"] for each in kept.values()] == ["disk", "disk"]
    assert "decoded" not in (tmp_path / "auto" / "summary.json").read_text()


@pytest.mark.slow
def test_training_with_images_kept_in_memory_is_bit_for_bit_training_without(photos, tmp_path):
    assert trained(photos, tmp_path / "ram", "ram") == trained(photos, tmp_path / "off", "off")


def test_a_run_resumes_with_another_cache_as_the_same_run(photos, tmp_path):
    trained(photos, tmp_path / "run", "disk")
    again = run(*WORDS, "--dataset", photos, "--out", tmp_path / "run", "--set", "data.cache=off")

    assert again.code == 0 and again.json["steps"] == 6


@pytest.mark.slow
def test_two_processes_share_what_they_decode_and_a_killed_run_resumes_to_the_same_bits(photos, tmp_path):
    expected = trained(photos, tmp_path / "off", "off", "--exact", "--steps", 40)
    words = [*WORDS, "--dataset", photos, "--set", "data.cache=disk", "--exact", "--steps", 40]
    words += ["--num-processes", 2, "--per-device-batch", 1]

    killed = vit(*words, "--out", tmp_path / "two", on_start=_kill_after(tmp_path / "two", 5))
    assert killed.returncode
    assert vit(*words, "--out", tmp_path / "two").returncode == 0
    alone = trained(photos, tmp_path / "one", "off", "--exact", "--steps", 40, "--per-device-batch", 1)
    assert result_of(tmp_path / "two") == alone
    assert expected[1].count("\n") == alone[1].count("\n")


def _kill_after(out, lines: int):
    from tests.training.test_finetune import Killer

    return Killer(out, lines).start
