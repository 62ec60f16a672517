"""`vit average` and `train.average_runs`: what is averaged, by which images, and what is refused."""

import hashlib
import json
import random
import shutil
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.conftest import Outcome, run, vit
from tests.evaluation.test_regression import REGRESSION, ages  # noqa: F401, a fixture
from tests.evaluation.test_several_labels import SEVERAL, shapes  # noqa: F401, a fixture
from tests.training.test_finetune import stopped_in_part
from vitcli import load_model
from vitcli.data.dataset import DataSet
from vitcli.data.seen_images import SeenImages, digests_of
from vitcli.evaluation.intervals import mcnemar
from vitcli.weights.average import START
from vitcli.weights.io import read_weights

TUNE = ("finetune", "--recipe", "finetune/default",
        "--ckpt", "demo", "--res", 16, "--quiet", "--json", "--batch-size", 8,
        "--per-device-batch", 4, "--precision", "fp32", "--lr", 0.003, "--steps", 3,
        "--set", "schedule.warmup=1",
        "--set", "data.dev_fraction=0.3", "--set", "train.save_every=1")  # fmt: skip
THREE = (*TUNE, "--runs", 3, "--set", "train.average_runs=auto")


def tensors_of(folder: Path) -> dict[str, np.ndarray]:
    with safe_open(folder / "model.safetensors", "numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping


def sha256_of(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def averaged(photos, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("averaged") / "all"
    outcome = run(*THREE, "--dataset", photos, "--out", path)
    assert outcome.code == 0, outcome.err + outcome.out
    return path


@pytest.fixture(scope="module")
def summary(averaged) -> dict:
    return json.loads((averaged / "summary.json").read_text())


@pytest.fixture
def runs(averaged, tmp_path) -> list[Path]:
    """Copies of the runs, to be damaged."""
    shutil.copytree(averaged / "runs", tmp_path / "runs")
    return sorted((tmp_path / "runs").iterdir())


def average(*words: object) -> Outcome:
    return run("average", *words, "--quiet", "--json")


def error_of(*words: object, code: int) -> dict:
    outcome = average(*words)
    assert outcome.code == code, outcome
    error = outcome.json["error"]
    assert all(error[key] and "\n" not in error[key] for key in ("message", "where", "fix")), error
    return error


def test_the_dev_part_is_of_no_run_and_not_of_the_test_images(photos, averaged, summary):
    train, test = (set(digests_of(DataSet(str(photos)).open(name)).tolist()) for name in ("train", "test"))
    seen = [SeenImages.of(read_weights(str(path)).metadata) for path in sorted((averaged / "runs").iterdir())]
    trained_on = set().union(*(run.trained_on.tolist() for run in seen))

    assert trained_on < train and not trained_on & test
    assert summary["average"]["num_dev_examples"] == len(train) - len(trained_on) == 7  # 0.3 of 24
    assert "dev part" in summary["average"]["dev_split"] and summary["eval_split"].endswith("split test")
    merged = SeenImages.of(read_weights(str(averaged)).metadata)
    assert set(merged.trained_on.tolist()) == trained_on


def test_the_folder_holds_the_average_that_won_on_the_dev_part(averaged, summary):
    record = summary["average"]
    inner = json.loads((averaged / "average/summary.json").read_text())

    assert record == inner["average"] and record["top1"] == inner["top1"]
    assert summary["top1"] == pytest.approx(np.mean([entry["top1"] for entry in summary["runs"]]))
    assert sha256_of(averaged) == sha256_of(averaged / "average")
    best = max(record["candidates"], key=lambda entry: (entry["dev_top1"], -entry["dev_loss"]))
    assert record["tried"] == best["method"]
    assert {entry["method"] for entry in record["candidates"]} == {"uniform", "greedy"}
    for entry, path in zip(record["runs"], sorted((averaged / "runs").iterdir()), strict=True):
        assert (entry["run_dir"], entry["sha256"]) == (str(path), sha256_of(path))
    scored = run("evaluate", "--ckpt", averaged, "--precision", "fp32", "--json", "-q").json
    assert (scored["top1"], scored["loss"]) == (record["top1"], inner["loss"])


def rows_of_dev(photos: Path, averaged: Path) -> np.ndarray:
    """Rows of the training images that no run was trained on."""
    seen = SeenImages.of(read_weights(str(averaged)).metadata)
    return np.flatnonzero(~np.isin(digests_of(DataSet(str(photos)).open("train")), seen.trained_on))


def test_accuracy_and_loss_of_a_run_are_the_means_over_the_dev_part(photos, averaged, summary):
    rows = rows_of_dev(photos, averaged).tolist()
    files = sorted((photos / "train").glob("*/*.png"))  # of 12 images of "green", then of "red"
    for entry in summary["average"]["runs"]:
        model, transform, _ = load_model(entry["run_dir"])
        with torch.no_grad():
            logits_NK = model(torch.stack([transform(files[row]) for row in rows]))
        labels_N = torch.tensor([row // 12 for row in rows])
        assert entry["dev_top1"] == (logits_NK.argmax(dim=1) == labels_N).float().mean().item()
        loss = (logits_NK.logsumexp(dim=1) - logits_NK[range(len(rows)), labels_N]).mean().item()
        assert entry["dev_loss"] == pytest.approx(loss, rel=1e-3)


def test_images_that_cannot_be_decoded_are_counted_once_over_all_passes(photos, averaged, runs, tmp_path):
    shutil.copytree(photos, tmp_path / "data")
    files = sorted((tmp_path / "data/train").glob("*/*.png"))
    damaged = files[rows_of_dev(photos, averaged)[0]], tmp_path / "data/test/red/03.png"
    for file in damaged:
        file.write_bytes(b"no image")
    for folder in runs:
        text = (folder / "recipe.toml").read_text()
        assert 'on_bad_image = "error"' in text
        (folder / "recipe.toml").write_text(text.replace('on_bad_image = "error"', 'on_bad_image = "skip"'))

    result = average(*runs, "--dataset", tmp_path / "data", "--out", tmp_path / "out").json

    assert (result["average"]["num_dev_examples"], result["num_eval_examples"]) == (6, 9)
    assert result["num_skipped_images"] == len(result["skipped_images"]) == 2
    for file, place in zip(damaged, sorted(result["skipped_images"], reverse=True), strict=True):
        assert str(file.relative_to(tmp_path)) in place


@pytest.mark.parametrize("method", [pytest.param("uniform", marks=pytest.mark.slow), "greedy"])
def test_each_method_is_the_arithmetic_of_its_paper(runs, tmp_path, method):
    for number, (path, top1) in enumerate(zip(runs, (0.5, 0.9, 1.0), strict=True), start=1):
        summary = json.loads((path / "summary.json").read_text())  # all have every image right
        summary |= {"top1": top1, "elapsed_s": 10.0 * number, "exaflops": 0.25 * number}
        (path / "summary.json").write_text(json.dumps(summary))
    if method == "greedy":  # with the first run, whose classes are exchanged, the accuracy falls
        rewrite(runs[0], lambda about, state: [state[f"head.{name}"].mul_(-9) for name in ("weight", "bias")])
    result = average(*runs, "--method", method, "--out", tmp_path / "out")
    assert result.code == 0, result.out
    record, delivered = result.json["average"], tensors_of(tmp_path / "out")
    each = [tensors_of(path) for path in runs]
    assert record["mean_top1"] == pytest.approx(0.8) and record["top1"] == 1
    assert [entry["top1"] for entry in record["runs"]] == [0.5, 0.9, 1.0]
    assert (result.json["elapsed_s"], result.json["exaflops"]) == (60.0, 1.5)
    stored = read_weights(str(tmp_path / "out")).metadata["average"]
    assert [entry["weight"] for entry in stored["runs"]] == [entry["weight"] for entry in record["runs"]]

    if record["delivered"] == "run":
        (number,) = [k for k, entry in enumerate(record["runs"]) if entry["weight"]]
        assert all((delivered[name] == each[number][name]).all() for name in delivered)
    else:
        members = [k for k, entry in enumerate(record["runs"]) if entry["weight"]]
        assert members == ([1, 2] if method == "greedy" else [0, 1, 2])
        for name, tensor in delivered.items():
            expected = np.mean([each[k][name].astype(np.float64) for k in members], axis=0)
            assert tensor.tobytes() == expected.astype(np.float32).tobytes(), name


@pytest.mark.slow
def test_the_paired_test_is_that_of_saved_predictions(photos, averaged, summary, tmp_path):
    """Predictions of the dev part by `vit evaluate`, of the best run and of the average that was tried."""
    record = summary["average"]
    tried = next(entry for entry in record["candidates"] if entry["method"] == record["tried"])
    dev_rows = json.loads((averaged / "average/average.json").read_text())
    assert dev_rows["num_dev_examples"] == 7
    right = []
    for folder in (record["best_run"], averaged):
        predictions = tmp_path / f"{len(right)}.parquet"
        words = (
            "--dataset",
            photos,
            "--split",
            "train",
            "--save-predictions",
            predictions,
            "--precision",
            "fp32",
        )
        assert run("evaluate", "--ckpt", folder, *words, "--json", "-q").code == 0
        right.append(is_right_on_dev(photos, averaged, predictions))
    only_best, only_average = (right[0] & ~right[1]).sum(), (right[1] & ~right[0]).sum()

    assert record["delivered"] != "run"
    assert tried["dev_top1"] == right[1].mean()
    assert tried["mcnemar_p"] == pytest.approx(mcnemar(int(only_best), int(only_average)))


def is_right_on_dev(photos: Path, averaged: Path, predictions: Path) -> np.ndarray:
    import pyarrow.parquet as pq

    ranks_N = pq.read_table(predictions)["rank"].to_numpy()
    return ranks_N[rows_of_dev(photos, averaged)] == 0


def test_the_same_command_continues_without_its_last_files_and_ends_with_the_same_bits(
    photos, averaged, tmp_path
):
    out = tmp_path / "all"
    shutil.copytree(averaged, out)
    before = sha256_of(out)
    for name in ("summary.json", "average/summary.json", "average/model.safetensors"):
        (out / name).unlink()

    again = run(*THREE, "--dataset", photos, "--out", out)

    assert again.code == 0, again.err
    assert sha256_of(out) == sha256_of(out / "average") == before
    assert run(*THREE, "--dataset", photos, "--out", out).json == again.json
    assert (
        again.json["average"]["top1"]
        == json.loads((averaged / "summary.json").read_text())["average"]["top1"]
    )


@pytest.mark.slow
def test_an_average_is_a_run_folder_for_other_commands(photos, averaged, tmp_path):
    out = tmp_path / "out"
    first = average(averaged / "runs/seed-0", averaged / "runs/seed-1", "--out", out)
    assert first.code == 0
    assert average(averaged / "runs/seed-0", averaged / "runs/seed-1", "--out", out).json == first.json

    card = (out / "README.md").read_text()
    assert "were averaged" in card and first.json["average"]["runs"][1]["sha256"][:16] in card
    assert run("report", out, "--out", tmp_path / "page.html", "-q").code == 0
    assert run("predict", "--ckpt", out, photos / "test/red/00.png", "--json", "-q").code == 0
    other = error_of(averaged / "runs/seed-0", averaged / "runs/seed-2", "--out", out, code=2)
    assert "another average" in other["message"]
    tuned = run(*TUNE, "--dataset", photos, "--out", out)
    assert tuned.code == 2 and "an average of runs" in tuned.json["error"]["message"]


@pytest.mark.slow
def test_runs_that_held_nothing_out_have_an_untested_mean(photos, averaged, tmp_path):
    plain = tmp_path / "plain"
    assert run(*TUNE, "--dataset", photos, "--runs", 2, "--out", plain).code == 0

    record = average(plain, "--out", tmp_path / "out").json["average"]

    assert (record["delivered"], record["accepted"], record["num_dev_examples"]) == ("uniform", None, 0)
    assert (
        "held none out"
        in error_of(plain, "--method", "greedy", "--out", tmp_path / "none", code=2)["message"]
    )
    named = error_of(plain, "--split", "test", "--out", tmp_path / "none", code=3)
    assert "the runs report on these images" in named["message"]
    trained = error_of(plain, "--split", "train", "--out", tmp_path / "none", code=3)
    assert "images were trained on" in trained["message"]
    assert not (tmp_path / "none").exists()


def rewrite(folder: Path, change) -> None:
    """Write the weights of a run again with changed metadata."""
    file = folder / "model.safetensors"
    with safe_open(file, "pt") as opened:
        about = json.loads(opened.metadata()["vit"])
    state = load_file(file)
    change(about, state)
    save_file(state, file, {"format": "pt", "vit": json.dumps(about)})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vit": about}))


BAD_WEIGHTS = {
    "another start": (lambda about, state: about["metadata"].update({START: "0" * 32}), "different weights"),
    "another order": (lambda about, state: about["class_names"].reverse(), "another order"),
    "fresh": (lambda about, state: about["metadata"].update({"from": None}), "no common initialization"),
    "other pixels": (
        lambda about, state: about["preprocessing"].update({"interpolation": "bicubic"}),
        "different pixels",
    ),
    "other network": (
        lambda about, state: about["architecture"].update({"gelu": "erf"}),
        "different networks: gelu",
    ),
    "not finite": (lambda about, state: state["head.bias"].fill_(float("nan")), ""),
}


@pytest.mark.parametrize("kind", BAD_WEIGHTS)
def test_networks_without_a_common_start_are_refused(runs, tmp_path, kind):
    change, words = BAD_WEIGHTS[kind]
    rewrite(runs[1], change)

    assert words in error_of(*runs, "--out", tmp_path / "out", code=4)["message"]
    assert not (tmp_path / "out").exists()


def test_what_is_no_finished_run_is_refused(photos, averaged, runs, tmp_path):
    (tmp_path / "empty").mkdir()
    (runs[2] / "summary.json").unlink()
    cases = {
        (tmp_path / "nothing", runs[0]): "there is no folder",
        (runs[0] / "model.safetensors", runs[1]): "is a file",
        (tmp_path / "empty", runs[0]): "is not the folder of a run",
        (runs[0],): "at least two runs",
        (runs[0], runs[0]): "named twice",
        (runs[0], runs[2]): "has not finished",
    }
    for places, words in cases.items():
        assert words in error_of(*places, "--out", tmp_path / "out", code=2)["message"], places
    is_a_run = error_of(runs[0], runs[1], "--out", averaged / "runs/seed-2", "--overwrite", code=2)
    assert "the folder is that of a run" in is_a_run["message"]
    (runs[1] / "summary.json").write_text("[]")
    assert error_of(runs[0], runs[1], "--out", tmp_path / "out", code=2)
    (runs[1] / "summary.json").write_text('{"command": "finetune"}')
    assert error_of(runs[0], runs[1], "--out", tmp_path / "out", code=3)
    moved = error_of(averaged, "--dataset", tmp_path / "moved", "--out", tmp_path / "out", code=3)
    assert "moved" in moved["message"] + moved["where"]
    assert run("average").code == 2
    unknown = run("average", *runs[:2], "--method", "model-stock", "--json")
    assert unknown.code == 2 and "'model-stock'" in unknown.json["error"]["message"], unknown
    assert not (tmp_path / "out").exists()


def test_runs_that_cannot_be_averaged_are_refused_before_the_first_step(photos, tmp_path):
    words = ("--dataset", photos, "--out", tmp_path / "out", "--set", "train.average_runs=auto")
    fresh = run(*TUNE, *words, "--ckpt", "random", "--model", "ViT-demo/8", "--runs", 2)
    nothing = run(*TUNE[:-4], *words, "--set", "data.dev_fraction=0", "--runs", 2)
    unknown = run(*TUNE, *words[:-1], "train.average_runs=mean", "--runs", 2)
    alone = run(*TUNE, *words)
    layered = ("--set", "model.head=refit", "--set", "model.head_layers=2", "--set", "data.num_examples=20")
    unlike = run(*TUNE, *words, *layered, "--runs", 2)

    for outcome, message in (
        (fresh, "no common initialization"),
        (nothing, "held out"),
        (unknown, "train.average_runs"),
        (alone, "train.runs is 1"),
        (unlike, "draws other images"),
    ):
        assert outcome.code == 2 and message in outcome.json["error"]["message"], outcome
    assert not (tmp_path / "out").exists()


METHODS = {
    "probe head": ("model.head=probe",),
    "LoRA": ("model.lora_rank=2",),
    "patience": ("train.patience=1", "eval.every=1"),
    "all": ("model.head=probe", "model.lora_rank=2", "model.freeze=1", "train.patience=1", "eval.every=1"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_runs_with_other_methods_are_averaged_also_over_a_stop(photos, tmp_path, name):
    keys = (*METHODS[name], "train.average_runs=uniform")
    words = (*TUNE, "--dataset", photos, "--runs", 3, *(word for key in keys for word in ("--set", key)))
    unbroken, stopped = tmp_path / "unbroken", tmp_path / "stopped"
    outcome = run(*words, "--out", unbroken)
    assert outcome.code == 0, outcome.err + outcome.out
    with stopped_in_part(9):  # within the second run: each has three steps of two parts
        assert run(*words, "--out", stopped).code == 143
    assert run(*words, "--out", stopped).code == 0

    # What is delivered is the weighted mean of what the runs deliver, and is scored as that.
    record, paths = outcome.json["average"], sorted((unbroken / "runs").iterdir())
    each, weights = [tensors_of(path) for path in paths], [entry["weight"] for entry in record["runs"]]
    assert sum(weights) == pytest.approx(1) and len(set(map(sha256_of, paths))) == 3
    for key, tensor in tensors_of(unbroken).items():
        expected = sum(
            weight * state[key].astype(np.float64) for weight, state in zip(weights, each, strict=True)
        )
        np.testing.assert_allclose(tensor, expected, rtol=1e-6, atol=1e-7)
        assert (tensors_of(stopped)[key] == tensor).all(), key
    scored = run("evaluate", "--ckpt", unbroken, "--precision", "fp32", "--json", "-q").json
    assert (scored["top1"], scored["num_eval_examples"]) == (record["top1"], 10)

    # The images to choose the average by are none that a run was trained on, or chose its weights by.
    train = set(digests_of(DataSet(str(photos)).open("train")).tolist())
    for path in paths:
        seen = SeenImages.of(read_weights(str(path)).metadata)
        of_run = json.loads((path / "summary.json").read_text())
        assert len(train - set(seen.trained_on.tolist())) == record["num_dev_examples"] == 7
        assert of_run["num_train_examples"] == (17 if name == "LoRA" else 12)


@pytest.mark.slow
@pytest.mark.parametrize("more", [REGRESSION, SEVERAL])
def test_runs_of_numbers_and_of_several_labels_are_refused_before_the_first_step(request, tmp_path, more):
    folder = request.getfixturevalue("ages" if more is REGRESSION else "shapes")
    words = (*TUNE, *more, "--dataset", folder, "--runs", 2, "--set", "train.average_runs=auto")
    outcome = run(*words, "--out", tmp_path / "all")

    assert outcome.code in (2, 3) and "average" in outcome.json["error"]["where"], outcome
    assert not (tmp_path / "all/runs").exists()


@pytest.mark.slow
def test_two_processes_end_with_the_bits_of_one(photos, tmp_path):
    for number in (1, 2):
        words = (*THREE, "--exact", "--num-processes", number, "--dataset", photos)
        outcome = vit(*words, "--out", tmp_path / str(number), timeout=600)
        assert outcome.returncode == 0, outcome.stderr
        alone = vit(
            "average", tmp_path / "1", "--num-processes", number, "--out", tmp_path / f"again-{number}", "-q"
        )
        assert alone.returncode == 0, alone.stderr

    folders = [tmp_path / name for name in ("1", "2", "1/average", "2/average", "again-1", "again-2")]
    states = [tensors_of(folder) for folder in folders]
    assert all(state[name].tobytes() == states[0][name].tobytes() for state in states for name in state)


@pytest.mark.slow
def test_kills_within_and_between_runs_and_while_averaging_change_no_bit(photos, averaged, tmp_path):
    """SIGKILLs as soon as a file of a run or of the average is there, and a random moment later."""
    out, draws = tmp_path / "all", random.Random(0)
    moments = (
        "runs/seed-0/checkpoints/step_0000001",
        "runs/seed-0/summary.json",
        "runs/seed-1/checkpoints/step_0000002",
        "runs/seed-2/model.safetensors",
        "runs/seed-2/summary.json",
        "average/average.json",
        "average/average.json",
        "average/model.safetensors",
        "average/summary.json",
    )
    killed = 0
    for moment in moments:
        delay_s = draws.uniform(0, 0.3)

        def kill_soon(process, moment=moment, delay_s=delay_s):
            thread = threading.Thread(
                target=_kill_when_there, args=(process, out / moment, delay_s), daemon=True
            )
            thread.start()

        ended = vit(*THREE, "--dataset", photos, "--out", out, on_start=kill_soon, timeout=600)
        assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
        killed += ended.returncode != 0

    assert run(*THREE, "--dataset", photos, "--out", out).code == 0
    assert killed >= len(moments) - 2  # the last may have ended before
    for folder in (".", "average", *(f"runs/seed-{seed}" for seed in range(3))):
        states = tensors_of(out / folder), tensors_of(averaged / folder)
        assert all(states[0][name].tobytes() == states[1][name].tobytes() for name in states[1]), folder
    assert not list(out.rglob(".tmp*"))


def _kill_when_there(process, path: Path, delay_s: float) -> None:
    while not path.exists() and process.poll() is None:
        time.sleep(0.01)
    time.sleep(delay_s)
    process.kill()
