"""`vit finetune` from end to end, on pictures of two colours and a small network."""

import base64
import hashlib
import json
import math
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from tests.conftest import run, vit, write_photos
from tests.figures import drawn_figures, points_of
from vitcli.data.sampler import rows_at
from vitcli.evaluation import inference
from vitcli.evaluation.assertions import OF_CLASSES
from vitcli.output.run_folder import newest_checkpoint_step
from vitcli.training import loop
from vitcli.training.text import as_text, compute_text

NETWORK = (
    *("--model", "ViT-demo/8", "--set", "model.layers=1", "--res", "16", "--lr", "0.02"),
    *("--quiet", "--json"),
)
SMALL = ("finetune", "--recipe", "finetune/default", "--ckpt", "random", *NETWORK)
# All that could break a resume: dropout, augmentation, averaging, parts of a step, an epoch's end inside one.
TRICKY = (
    *("--batch-size", 10, "--per-device-batch", 5, "--precision", "fp32"),
    *("--set", "model.dropout=0.1", "--set", "optimizer.average=0.9", "--set", "train.log_every=1"),
    *("--set", "eval.every=4", "--set", "train.save_every=3"),
)


def of_layers(words: Sequence[object], layers: int | None) -> tuple[object, ...]:
    """Return the words with another number of layers; None leaves it to the name or the weights."""
    at = words.index("model.layers=1")
    chosen = () if layers is None else ("--set", f"model.layers={layers}")
    return (*words[: at - 1], *chosen, *words[at + 1 :])


def small_run(photos: Path, out: Path, *more: object, steps: int = 8) -> dict:
    outcome = run(*SMALL, "--dataset", photos, "--out", out, "--steps", steps, *more)
    assert outcome.code == 0, outcome.err + outcome.out
    return outcome.json


def fingerprint(run_dir: Path) -> dict[str, str]:
    """Hash of everything a resume must not change."""
    (newest, *_) = sorted(run_dir.glob("checkpoints/step_*"), reverse=True)
    files = [run_dir / "model.safetensors", run_dir / "metrics.jsonl", *newest.glob("*.safetensors")]
    return {str(file.relative_to(run_dir)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def losses(run_dir: Path) -> list[float]:
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if "loss" in record]


@pytest.fixture(scope="module")
def unbroken(photos, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("unbroken") / "run"
    small_run(photos, path, *TRICKY)
    return path


def test_a_run_writes_its_whole_folder_and_prints_its_summary(photos, tmp_path):
    with drawn_figures() as figures:
        summary = small_run(
            photos, tmp_path / "run", "--batch-size", 8, "--set", "train.log_every=1", steps=3
        )

    assert json.loads((tmp_path / "run/summary.json").read_text()) == summary
    for name in ("recipe.toml", "environment.json", "metrics.jsonl", "timing.jsonl", "model.safetensors",
                 "config.json", "README.md", "checkpoints/step_0000003/manifest.json", "figures/loss.png",
                 "figures/accuracy.png", "figures/learning_rate.png"):  # fmt: skip
        assert (tmp_path / "run" / name).is_file(), name
    assert not list((tmp_path / "run").rglob(".tmp*"))
    assert summary["num_eval_examples"] == 10
    scores = {key: summary[key] for key in ("top1", "top5", "loss", *OF_CLASSES)}
    assert summary["runs"] == [{"seed": 0, **scores}]
    assert set(summary) >= {
        "command", "run_dir", "model", "ckpt", "dataset", "num_classes", "resolution", "steps", "batch_size",
        "lr", "dev_top1_by_lr", "top1", "top1_std", "runs", "num_eval_examples", "images_per_s", "elapsed_s",
        "exaflops", "peak_memory_gib", "precision", "num_processes", "weights",
    }  # fmt: skip
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if "loss" in record]
    (scored,) = (record for record in records if "eval" in record)
    assert points_of(figures["loss.png"]) == [(record["step"], record["loss"]) for record in steps]
    assert points_of(figures["loss.png"], 1) == [(scored["step"], scored["eval"]["loss"])]
    rates = [(record["step"], pytest.approx(record["lr"])) for record in steps]
    assert points_of(figures["learning_rate.png"]) == rates and len(rates) == 3
    assert points_of(figures["accuracy.png"]) == [(3, 100 * summary["top1"])]


def test_a_run_keeps_the_predictions_behind_its_numbers(photos, unbroken, tmp_path):
    """The truth is another command, which reads the weights again: `vit evaluate` on the held-out images."""
    summary = json.loads((unbroken / "summary.json").read_text())
    saved = tmp_path / "evaluated.parquet"
    words = ("--ckpt", unbroken, "--dataset", photos, "--save-predictions", saved, "--out", tmp_path / "out")
    evaluated = run("evaluate", *words, "--json").json

    kept, again = (pq.read_table(file) for file in (unbroken / "predictions.parquet", saved))
    assert kept.to_pylist() == again.to_pylist() and len(kept) == summary["num_eval_examples"]
    assert {key: summary[key] for key in OF_CLASSES} == {key: evaluated[key] for key in OF_CLASSES}
    hits = [row["top_classes"][0] == row["label"] for row in kept.to_pylist()]
    assert sum(hits) / len(hits) == summary["top1"]
    assert summary["eval_fingerprint"] == evaluated["eval_fingerprint"]
    # The mistakes with their small images are those of the evaluation, too.
    mistakes = json.loads((unbroken / "mistakes.json").read_text())["mistakes"]
    assert mistakes == json.loads((tmp_path / "out/mistakes.json").read_text())["mistakes"]
    assert len(mistakes) == hits.count(False)
    assert all(base64.b64decode(one["thumbnail"])[:3] == b"\xff\xd8\xff" for one in mistakes)
    # Two runs are compared by their folders.
    assert run("compare", unbroken, unbroken, "--json").json["counts"]["only_a"] == 0


def test_a_run_is_scored_in_the_precision_that_its_recipe_names(photos, tmp_path):
    """In bf16 as `vit evaluate --precision bf16` scores it, and told so; the training is the same."""
    words = ("--batch-size", 8, "--set", "eval.every=1")
    summaries = {
        precision: small_run(
            photos, tmp_path / precision, *words, "--set", f"precision.evaluation={precision}", steps=2
        )
        for precision in ("fp32", "bf16")
    }

    for precision, summary in summaries.items():
        asked = ("--ckpt", tmp_path / precision, "--dataset", photos, "--precision", precision, "--json")
        evaluated = run("evaluate", *asked).json
        assert [evaluated[key] for key in ("top1", "loss")] == [summary[key] for key in ("top1", "loss")]
    assert summaries["bf16"]["loss"] != summaries["fp32"]["loss"]
    assert (summaries["bf16"]["eval_precision"], "eval_precision" in summaries["fp32"]) == ("bf16", False)
    fp32, bf16 = (load_file(tmp_path / precision / "model.safetensors") for precision in summaries)
    assert all(torch.equal(fp32[name], bf16[name]) for name in fp32)
    assert "test, in bf16\n" in as_text(summaries["bf16"], verbose=True)


def test_a_precision_that_the_device_has_not_is_refused_for_scores_too(photos, tmp_path):
    words = ("--dataset", photos, "--out", tmp_path / "run", "--steps", 1, "--device", "cpu")
    refused = run(*SMALL, *words, "--set", "precision.evaluation=fp16")

    assert refused.code == 5 and refused.json["error"]["where"] == "recipe key precision.evaluation"
    assert not (tmp_path / "run").exists()


def test_the_zero_head_makes_the_first_loss_the_logarithm_of_the_classes(unbroken):
    assert losses(unbroken)[0] == pytest.approx(math.log(2), rel=1e-6)


def test_two_colours_are_learnt(photos, tmp_path):
    summary = small_run(photos, tmp_path / "run", "--batch-size", 8, "--set", "schedule.warmup=2", steps=30)

    assert summary["top1"] == 1.0


def test_a_run_is_trained_on_with_its_own_head(photos, unbroken, tmp_path):
    words = ("finetune", "--ckpt", unbroken, "--dataset", photos, "--res", 16, "--lr", 0.001, "--json")
    more = ("--steps", 2, "--set", "train.log_every=1", "--batch-size", 24, "--precision", "fp32")
    more = (*more, "--recipe", "finetune/default")  # whose loss has no smoothing
    directions = (*more, "--set", "data.flip=false")
    outcome = run(*words, *directions, "--keep-head", "-v", "--out", tmp_path / "on")
    assert outcome.code == 0, outcome.err

    # The first loss over all images is that of the weights as `vit evaluate` finds it, far from ln 2
    evaluated = run("evaluate", "--ckpt", unbroken, "--dataset", photos, "--split", "train", "--json").json
    assert losses(tmp_path / "on")[0] == pytest.approx(evaluated["loss"], rel=0.05)
    assert abs(evaluated["loss"] - math.log(2)) > 0.01
    assert "the head is kept: its 2 classes are those of the data, by name" in outcome.err
    # Trained on once more it still mirrors no image; a fresh head may have another task
    once_more = ("finetune", "--ckpt", tmp_path / "on", "--dataset", photos, "--dry-run", "--json")
    assert "flip = false" in run(*once_more, "--keep-head").json["recipe"]
    assert "flip = true" in run(*once_more).json["recipe"]
    # The same folder again names the way to go on
    refused = run(*words, *more, "--out", unbroken)
    assert refused.code == 2 and f"--ckpt {unbroken} --keep-head --out" in refused.json["error"]["fix"]
    # Fresh weights have no head
    assert run(*SMALL, "--dataset", photos, "--keep-head", "--out", tmp_path / "x").code == 2


def test_the_metrics_hold_no_clock(unbroken):
    keys = {key for line in (unbroken / "metrics.jsonl").read_text().splitlines() for key in json.loads(line)}

    assert keys == {"step", "loss", "lr", "grad_norm", "eval"}


def test_the_same_command_again_prints_the_summary_and_trains_nothing(photos, unbroken):
    before = fingerprint(unbroken), (unbroken / "timing.jsonl").read_text()

    again = small_run(photos, unbroken, *TRICKY)

    assert again == json.loads((unbroken / "summary.json").read_text())
    os.rename(unbroken / "predictions.parquet", unbroken / "moved")  # runs of earlier versions have none
    assert small_run(photos, unbroken, *TRICKY) == again
    os.rename(unbroken / "moved", unbroken / "predictions.parquet")
    assert (fingerprint(unbroken), (unbroken / "timing.jsonl").read_text()) == before


def test_a_finished_run_is_known_again_however_its_paths_are_typed_and_wherever_it_has_been_moved(
    photos, unbroken, tmp_path
):
    shutil.copytree(unbroken, tmp_path / "moved")
    words = [*SMALL, "--dataset", f"{photos}/", "--out", tmp_path / "moved", "--steps", 8, *TRICKY]

    again = run(*words).json
    told = run(*[word for word in words if word != "--quiet"]).err
    (tmp_path / "moved/model.safetensors").unlink()
    mended = run(*words).json

    assert told == f"{tmp_path / 'moved'} is finished, nothing is trained\n"
    assert again["weights"] == mended["weights"] == str(tmp_path / "moved/model.safetensors")
    assert fingerprint(tmp_path / "moved") == fingerprint(unbroken)


def test_a_finished_run_says_when_its_images_have_changed_since(tmp_path):
    write_photos(tmp_path / "photos")
    once = small_run(tmp_path / "photos", tmp_path / "run", steps=1)
    shutil.copy(tmp_path / "photos/train/red/00.png", tmp_path / "photos/test/red/new.png")

    aloud = [word for word in SMALL if word != "--quiet"]
    again = run(*aloud, "--dataset", tmp_path / "photos", "--out", tmp_path / "run", "--steps", 1)

    assert "nothing is trained; its images have changed since" in again.err and again.json == once


def test_a_folder_with_another_recipe_is_refused_with_the_keys_that_differ(photos, unbroken):
    outcome = run(*SMALL, "--dataset", photos, "--out", unbroken, "--steps", 9, *TRICKY)

    assert outcome.code == 2
    assert "schedule.steps" in outcome.json["error"]["message"]


@pytest.mark.parametrize("at", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_a_run_stopped_by_sigterm_resumes_bit_for_bit(photos, unbroken, tmp_path, at):
    out = tmp_path / "run"
    when_logged(out, at, lambda: os.kill(os.getpid(), signal.SIGTERM))
    stopped = run(*SMALL, "--dataset", photos, "--out", out, "--steps", 8, *TRICKY)

    assert stopped.code == 143
    assert "resumes from there" in stopped.json["error"]["message"]
    assert not (out / "summary.json").exists()
    with (out / "metrics.jsonl").open("a") as lines:  # as of a run that is killed after its last save
        lines.write('{"step": 7, "loss": 0.5}\n')
    small_run(photos, out, *TRICKY, "--workers", 3)
    assert fingerprint(out) == fingerprint(unbroken)


def test_a_run_stopped_within_an_evaluation_resumes_into_it_bit_for_bit(photos, tmp_path, monkeypatch):
    words = (*TRICKY, "--set", "eval.batch_size=2")  # evaluated at step 4, saved at 3
    small_run(photos, tmp_path / "unbroken", *words)
    out, scored, losses_of = tmp_path / "run", [], inference.metrics.example_losses

    def stop_at_the_second_batch(*args):
        scored.append(len(args[1]))
        if len(scored) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return losses_of(*args)

    monkeypatch.setattr(inference.metrics, "example_losses", stop_at_the_second_batch)
    for _ in range(2):  # the second stop is in the evaluation that the resumed run begins with
        scored.clear()
        stopped = run(*SMALL, "--dataset", photos, "--out", out, "--steps", 8, *words)
        assert (stopped.code, scored) == (143, [2, 2])
        assert newest_checkpoint_step(out) == 4
    monkeypatch.undo()

    small_run(photos, out, *words)
    assert fingerprint(out) == fingerprint(tmp_path / "unbroken")


def test_a_run_is_not_resumed_with_one_other_image_and_is_with_a_copy_of_the_data(tmp_path, monkeypatch):
    data, rng = tmp_path / "data", np.random.default_rng(0)
    for number in range(103):
        file = data / "train" / ("red" if number % 2 else "green") / f"{number:03}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (9, 9, 3), dtype=np.uint8)).save(file)
    shutil.copytree(data / "train", data / "test")
    out = tmp_path / "run"
    words = (*SMALL, "--dataset", data, "--out", out, "--steps", 4, "--set", "train.log_every=1")
    when_logged(out, 2, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert run(*words, "--batch-size", 8).code == 143

    sampled = np.linspace(0, 102, 32).astype(int)  # by a fingerprint of labels and some images
    for split, row in (("train", 8), ("test", 49)):  # of those of one class, which come second
        assert 52 + row not in sampled
        file = sorted((data / split / "red").iterdir())[row]
        content = file.read_bytes()
        Image.new("RGB", (9, 9)).save(file)
        refused = run(*words, "--batch-size", 8)
        assert refused.code == 2 and "the data set has changed" in refused.json["error"]["message"]
        file.write_bytes(content)
    data.rename(tmp_path / "before")
    shutil.copytree(tmp_path / "before", data)
    assert run(*words, "--batch-size", 8).code == 0


def test_of_very_many_images_files_of_other_sizes_are_refused_and_written_ones_noted(
    photos, tmp_path, monkeypatch
):
    monkeypatch.setattr("vitcli.data.data_fingerprint.MAX_CHECKED_IMAGES", 5)
    data, out = tmp_path / "data", tmp_path / "run"
    shutil.copytree(photos, data)
    words = (*SMALL, "--dataset", data, "--out", out, "--steps", 12, "--set", "train.log_every=1")
    when_logged(out, 2, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert run(*words).code == 143

    file = data / "train" / "red" / "05.png"
    content = file.read_bytes()
    file.write_bytes(content + b"\0")
    refused = run(*words)
    assert refused.code == 2 and "the data set has changed" in refused.json["error"]["message"]
    file.write_bytes(content)
    resumed = run(*(word for word in words if word != "--quiet"))
    assert resumed.code == 0 and "have been written again since this run began" in resumed.err
    assert "no longer bit-exact" not in resumed.err


def test_an_unreadable_image_before_a_stop_is_counted_by_the_run_that_goes_on(photos, tmp_path):
    data, out = shutil.copytree(photos, tmp_path / "data"), tmp_path / "run"
    files = sorted((data / "train").rglob("*.png"))
    for row in rows_at(range(24), num_examples=24, seed=0)[::2]:  # none is seen again in 24 images
        files[row].write_bytes(b"no image")
    words = (*SMALL, "--dataset", data, "--out", out, "--steps", 3, "--batch-size", 8, "--skip-bad")
    when_logged(out, 1, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert run(*words, "--set", "train.log_every=1", "--workers", 1).code == 143

    summary = run(*words, "--set", "train.log_every=1").json
    assert summary["num_skipped_images"] == len(set(summary["skipped_images"])) == 12
    assert summary["skipped_images"] == sorted(summary["skipped_images"])
    assert "--folds 5 scores all 12 images" in summary["findings"]["advice"]


@pytest.mark.slow
def test_two_processes_stop_together_within_an_evaluation(tmp_path):
    words = [*SMALL[:1], "--dataset", "demo", "--steps", 4, "--batch-size", 16, "--per-device-batch", 8,
             "--set", "eval.every=2", "--set", "eval.batch_size=1", "--set", "train.log_every=1", "--quiet",
             "--precision", "fp32", "--num-processes", 2, "--out"]  # fmt: skip
    out, asked_at = tmp_path / "run", []

    def stop_soon(process) -> None:  # 600 batches of one image take some seconds
        def stop() -> None:
            time.sleep(0.3)
            asked_at.append(time.monotonic())
            process.terminate()

        when_logged(out, 2, stop)

    stopped = vit(*words, out, on_start=stop_soon)
    took_s = time.monotonic() - asked_at[0]

    assert (stopped.returncode, newest_checkpoint_step(out)) == (143, 2)
    assert took_s < 20 and "eval" not in (out / "metrics.jsonl").read_text()
    for path in (out, tmp_path / "unbroken"):
        assert vit(*words, path).returncode == 0
    assert fingerprint(out) == fingerprint(tmp_path / "unbroken")


@pytest.mark.slow
def test_a_killed_run_resumes_bit_for_bit(photos, unbroken, tmp_path):
    out = tmp_path / "run"
    words = [*SMALL, "--dataset", photos, "--out", out, "--steps", 8, *TRICKY]
    killer = Killer(out, at=4)
    killed = vit(*words, on_start=killer.start)

    assert killed.returncode == -signal.SIGKILL
    small_run(photos, out, *TRICKY)
    assert fingerprint(out) == fingerprint(unbroken)


def test_a_damaged_checkpoint_is_skipped_with_a_note(photos, unbroken, tmp_path):
    out = tmp_path / "run"
    when_logged(out, 7, lambda: os.kill(os.getpid(), signal.SIGTERM))
    run(*SMALL, "--dataset", photos, "--out", out, "--steps", 8, *TRICKY)
    (newest, *_) = sorted(out.glob("checkpoints/step_*"), reverse=True)
    weights = bytearray((newest / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (newest / "model.safetensors").write_bytes(weights)

    words = [word for word in SMALL if word != "--quiet"]
    outcome = run(*words, "--dataset", photos, "--out", out, "--steps", 8, *TRICKY)

    assert outcome.code == 0
    assert f"{newest.name} is damaged (model.safetensors has changed), using the one before it" in outcome.err
    assert fingerprint(out) == fingerprint(unbroken)


@pytest.mark.slow
def test_parts_of_a_step_add_up_to_the_whole_step(photos, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    small_run(photos, whole, "--batch-size", 12, "--per-device-batch", 12, "--precision", "fp32", steps=5)
    small_run(photos, parts, "--batch-size", 12, "--per-device-batch", 3, "--precision", "fp32", steps=5)

    one, other = load_file(whole / "model.safetensors"), load_file(parts / "model.safetensors")
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_several_processes_give_the_run_of_one(photos, tmp_path, processes):
    words = ("--batch-size", 16, "--per-device-batch", 4, "--precision", "fp32", "--steps", 20,
             "--set", "model.dropout=0.1", "--set", "train.log_every=1")  # fmt: skip
    alone, several = tmp_path / "one", tmp_path / "several"
    expected = small_run(photos, alone, *words, steps=20)

    together = vit(
        *SMALL, "--dataset", photos, "--out", several, *words, "--num-processes", processes, timeout=400
    )

    assert together.returncode == 0, together.stderr
    summary = json.loads(together.stdout)
    differences = [abs(a - b) for a, b in zip(losses(several), losses(alone), strict=True)]
    print(f"{processes} processes: losses of 20 steps differ by {max(differences):.1e} at most")
    assert max(differences) <= 1e-6
    assert summary["num_processes"] == processes
    assert (summary["top1"], summary["num_eval_examples"]) == (expected["top1"], 10)


def test_a_non_finite_loss_stops_the_run_and_keeps_the_last_checkpoint(photos, tmp_path):
    out = tmp_path / "run"
    outcome = run(*SMALL, "--dataset", photos, "--out", out, "--steps", 20, "--batch-size", 8, "--lr", "1e38",
                  "--set", "optimizer.clip=0", "--set", "train.save_every=1")  # fmt: skip

    assert outcome.code == 6
    assert "last good checkpoint" in outcome.json["error"]["where"]
    for weights in out.glob("checkpoints/*/model.safetensors"):
        assert all(torch.isfinite(value).all() for value in load_file(weights).values())


def test_a_folder_in_use_is_refused_with_its_owner(photos, tmp_path):
    from vitcli.output.run_folder import RunFolder

    held = RunFolder(tmp_path / "run")
    outcome = run(*SMALL, "--dataset", photos, "--out", tmp_path / "run", "--steps", 2, "--batch-size", 8)

    assert outcome.code == 5
    assert f"pid {os.getpid()}" in outcome.json["error"]["message"]
    del held


def test_a_dry_run_prints_the_plan_and_touches_nothing(photos, tmp_path):
    outcome = run(*SMALL, "--dataset", photos, "--out", tmp_path / "run", "--steps", 7, "--batch-size", 8,
                  "--per-device-batch", 2, "--dry-run")  # fmt: skip

    plan = outcome.json
    assert not (tmp_path / "run").exists()
    assert (plan["total_steps"], plan["images_seen"], plan["accumulation_steps"]) == (7, 56, 4)
    embedding, block, norm_and_head = 192 * 96 + 96 + (4 + 1) * 96 + 96, 12 * 96**2 + 13 * 96, 2 * 96 + 2 * 97
    assert plan["params"] == embedding + block + norm_and_head and plan["estimated_peak_memory_gib"] > 0
    assert plan["epochs"] == 56 / 24
    assert "7 steps of 8 images = 2.33 epochs\n" in as_text(plan)
    # The plan stands alone, in minutes; epochs that are not whole steps, and large batches, are said.
    assert "[optimizer]" not in as_text(plan) and " GFLOPs" in as_text(plan)
    units = {2e-6: "2,000 GFLOPs", 0.002: "0.002 exaFLOPs", 4258.2: "4,258 exaFLOPs", None: "not counted"}
    assert {count: compute_text(count) for count in units} == units
    measured = {"measured_images_per_s": 0.5, "measured_hours": 0.03, "measured_peak_memory_gib": 1.0}
    assert "0.5 images/s, 2 min, 1.0 GiB" in as_text(plan | measured)


def test_runs_and_unreadable_images_have_options_of_their_own(photos):
    plan = run(*SMALL, "--dataset", photos, "--runs", 2, "--skip-bad", "--steps", 3, "--dry-run").json

    assert (plan["num_runs"], plan["all_steps"]) == (2, 6)
    assert 'on_bad_image = "skip"' in plan["recipe"] and "runs = 2" in plan["recipe"]


def test_epochs_are_whole_steps_and_a_batch_beyond_the_images_is_noted(photos):
    words = [word for word in SMALL if word != "--quiet"]
    outcome = run(*words, "--dataset", photos, "--epochs", 3, "--batch-size", 32, "--dry-run", "-v")

    assert outcome.json["total_steps"] == 2 and outcome.json["epochs"] == 64 / 24
    assert "2 steps of 32 images = 2.67 epochs (3 epochs in whole steps)" in outcome.err
    assert "a step of 32 images sees some images more than once" in outcome.err
    assert "shortens the run" not in outcome.err
    assert "24 training images, not read yet" in as_text(outcome.json)

    long = run(*words, "--dataset", photos, "--steps", 300, "--batch-size", 32, "--dry-run")
    assert "each image is seen 400 times; --epochs or --steps shortens the run" in long.err


def when_logged(run_dir: Path, num_lines: int, action) -> None:
    """Do something, from another thread, once the run has logged so many steps."""

    def watch() -> None:
        deadline = time.monotonic() + 300  # on a busy machine
        while time.monotonic() < deadline:
            metrics = run_dir / "metrics.jsonl"
            if metrics.exists() and metrics.read_bytes().count(b'"loss": ') >= num_lines:
                return action()
            time.sleep(0.002)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def stopped_in_part(number: int) -> Iterator[None]:
    """Send SIGTERM to this process in the micro-batch of this number, counted from 1, of the run inside."""
    seed_generators, calls = loop.seed_generators, []

    def seed_and_stop(*arguments):
        calls.append(arguments)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGTERM)
        seed_generators(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "seed_generators", seed_and_stop)
        yield


class Killer:
    """SIGKILL for a process once its run has logged `at` steps."""

    def __init__(self, run_dir: Path, at: int):
        self.run_dir, self.at = run_dir, at

    def start(self, process) -> None:
        when_logged(self.run_dir, self.at, process.kill)


def test_pretraining_has_a_recipe_for_any_folder_and_says_when_it_has_few_images(photos):
    outcome = run("pretrain", "--dataset", photos / "train", "--dry-run", "--json")

    assert outcome.json["num_examples"] == 22
    assert "note: 22 images, 11 per class, are too few to train from scratch" in outcome.err
    assert f"vit finetune --ckpt WEIGHTS --dataset {photos / 'train'}" in outcome.err


def test_a_short_run_keeps_the_share_of_the_recipe_s_warm_up(photos):
    words = (
        "--recipe",
        "finetune/cifar10",
        "--ckpt",
        "demo",
        "--dataset",
        photos,
        "--res",
        "32",
        "--lr",
        "0.01",
    )
    outcome = run("finetune", *words, "--steps", "40", "--batch-size", "8", "--dry-run", "--json", "-v")

    assert (outcome.json["total_steps"], outcome.json["warmup_steps"]) == (40, 2)
    assert "warm-up: 5% of the 40 steps, as 500 of 10000 in recipes/finetune/cifar10.toml" in outcome.err
