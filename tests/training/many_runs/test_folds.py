"""Folds: every image is scored once by a model that has not seen it, by ordinary runs that can be killed."""

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path
from statistics import mean, stdev
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.conftest import run, vit
from tests.training.test_finetune import SMALL, fingerprint, when_logged
from vitcli import recipe
from vitcli.training.many_runs import folds
from vitcli.training.many_runs import runs as many_runs
from vitcli.training.many_runs.folds import CrossValidation
from vitcli.training.text import as_text

STEPS = int(os.environ.get("VIT_FOLD_STEPS", "6"))
KILLS = int(os.environ.get("VIT_KILLS", "10"))
HOW = ("--batch-size", 8, "--per-device-batch", 4, "--precision", "fp32",
       "--set", "model.dropout=0.1", "--set", "train.log_every=1", "--set", "train.save_every=1")  # fmt: skip
TIMED = ("elapsed_s", "images_per_s", "peak_memory_gib", "run_dir", "weights")


@pytest.fixture(scope="module")
def objects(photos, tmp_path_factory) -> Path:
    """The training photos as one table without a test split, three of each of eight objects."""
    folder = tmp_path_factory.mktemp("objects")
    files = sorted((photos / "train").rglob("*.png"))
    columns = {
        "image": pa.array(
            [{"bytes": file.read_bytes(), "path": f"{file.parent.name}-{file.name}"} for file in files]
        ),
        "label": [file.parent.name for file in files],
        "object": [number // 3 for number in range(len(files))],
    }
    pq.write_table(pa.table(columns), folder / "train.parquet")
    return folder


def words(dataset: Path, *more: object, folds: int = 3, steps: int = STEPS) -> tuple:
    label = ("--set", "data.label_column=label", "--set", "data.group_column=object")
    return (*SMALL, "--dataset", dataset, *label, "--folds", folds, "--steps", steps, *HOW, *more)


@pytest.fixture(scope="module")
def folded(objects, tmp_path_factory) -> Path:
    """The folder of three folds, stopped within the second and resumed."""
    path = tmp_path_factory.mktemp("folded") / "all"
    when_logged(path / "folds/fold-2", 3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    stopped = run(*words(objects), "--out", path)
    assert stopped.code == 143 and f"--out {path} resumes" in stopped.json["error"]["message"]
    timed = (path / "folds/fold-1/timing.jsonl").read_bytes()
    outcome = run(*words(objects), "--out", path)
    assert outcome.code == 0, outcome.err + outcome.out
    assert (path / "folds/fold-1/timing.jsonl").read_bytes() == timed, "a finished fold is trained once"
    return path


def summary_of(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def predicted(folder: Path) -> list[dict]:
    return pq.read_table(folder / "predictions.parquet").to_pylist()


def untimed(summary: dict) -> dict:
    return {key: value for key, value in summary.items() if key not in TIMED}


def test_every_image_is_scored_once_by_the_model_that_has_not_seen_it(objects, folded, tmp_path):
    """The truth: `vit evaluate` of each fold's weights on all images, of which only the fold's count."""
    table = pq.read_table(objects / "train.parquet")
    names = [image["path"] for image in table["image"].to_pylist()]
    fold_of = {}
    truth = {}
    for number in (1, 2, 3):
        fold = folded / f"folds/fold-{number}"
        held = [row["place"] for row in predicted(fold)]
        fold_of |= {table["object"].to_pylist()[names.index(Path(place).name)]: number for place in held}
        saved = tmp_path / f"{number}.parquet"
        scored = run("evaluate", "--ckpt", fold, "--dataset", objects, "--split", "train", "--precision",
                     "fp32", "--save-predictions", saved, "--json", "-q")  # fmt: skip
        assert scored.code == 0, scored.err + scored.out
        for row in pq.read_table(saved).to_pylist():
            if row["place"] in held:
                truth[row["row"]] = row

    pooled = predicted(folded)
    assert [row["row"] for row in pooled] == list(range(24)) and len(fold_of) == 8
    same = ("row", "place", "label", "rank", "loss", "top_classes", "top_probabilities")
    for row in pooled:
        assert all(row[key] == pytest.approx(truth[row["row"]][key]) for key in same), row

    summary, hits = summary_of(folded), [row["rank"] == 0 for row in pooled]
    each = [summary_of(folded / f"folds/fold-{number}") for number in (1, 2, 3)]
    assert summary["top1"] == mean(hits) and summary["num_eval_examples"] == 24
    accuracies = [one["top1"] for one in each]
    folds = summary["folds"]
    assert [fold["top1"] for fold in folds["runs"]] == accuracies
    assert (folds["mean"], folds["std"], folds["num_groups"]) == (mean(accuracies), stdev(accuracies), 8)
    assert sum(fold["num_examples"] for fold in folds["runs"]) == 24
    assert summary["intervals"]["top1"][0] <= summary["top1"] <= summary["intervals"]["top1"][1]


def test_a_resumed_fold_has_the_bits_of_an_ordinary_run_and_the_last_one_is_trained_on_all_images(
    objects, folded, tmp_path
):
    alone = tmp_path / "alone"
    how = [word for word in words(objects) if word not in ("--folds", 3)]
    assert run(*how, "--set", "data.eval_split=fold 2 of 3", "--out", alone).code == 0

    assert fingerprint(alone) == fingerprint(folded / "folds/fold-2")
    assert summary_of(folded)["num_train_examples"] == 24
    weights = [(folder / "model.safetensors").read_bytes() for folder in (folded, folded / "runs/seed-0")]
    assert weights[0] == weights[1]
    # The model has seen all images, and says so instead of a score; a fold's model is scored on its own.
    refused = run("evaluate", "--ckpt", folded, "--dataset", objects, "--json", "-q")
    assert "24 of the 24 images" in refused.json["error"]["message"]
    fix = refused.json["error"]["fix"]
    assert fix.startswith(f"the accuracy by folds is top1 in {folded / 'summary.json'}; ")
    assert fix.endswith("(--split train scores all 24, of which 24 were trained on)")
    again = run("evaluate", "--ckpt", alone, "--json", "-q", "--precision", "fp32").json
    assert again["top1"] == summary_of(alone)["top1"] and again["num_eval_examples"] < 24


def test_the_run_on_all_images_has_the_same_bits_after_a_kill_before_its_first_step(
    objects, folded, tmp_path
):
    """The network was then built for the frozen features, with whatever the generator was at."""
    killed = tmp_path / "killed"
    shutil.copytree(folded, killed)
    shutil.rmtree(killed / "runs")
    (killed / "summary.json").unlink()
    torch.manual_seed(99)

    assert run(*words(objects), "--out", killed).code == 0
    assert fingerprint(killed / "runs/seed-0") == fingerprint(folded / "runs/seed-0")
    assert summary_of(killed)["folds"] == summary_of(folded)["folds"]


def test_the_folder_is_read_by_compare_and_report_with_random_against_group_split(folded, tmp_path):
    assert run("compare", folded, folded, "--json").json["num_examples"] == 24
    page = run("report", folded)
    frozen = summary_of(folded)["folds"]["frozen"]

    assert page.code == 0 and "random against group split" in page.out
    assert f"{frozen['at_random']:.2%} on random folds" in page.out
    text = as_text(summary_of(folded), verbose=True)
    for card in (folded / "README.md", folded / "runs/seed-0/README.md"):
        assert "this model was trained on all of them" in " ".join(card.read_text().split())
    assert "mean and std" in text and "8 groups of object" in text
    assert (folded / "table.txt").read_text() == as_text(summary_of(folded), verbose=True, width=10**9)


def test_the_same_command_trains_nothing_again_and_another_number_of_folds_is_refused(objects, folded):
    before = sorted((path, path.stat().st_mtime_ns) for path in folded.rglob("*"))

    assert run(*words(objects), "--out", folded).json == summary_of(folded)
    other = run(*words(objects, folds=4), "--out", folded)
    assert "train.folds: 3 against 4" in other.json["error"]["message"]
    assert sorted((path, path.stat().st_mtime_ns) for path in folded.rglob("*")) == before


def test_a_dry_run_counts_all_runs(objects):
    plan = run(*words(objects), "--dry-run").json

    assert (plan["num_folds"], plan["all_steps"], plan["num_examples"]) == (3, 4 * STEPS, 24)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--folds", 1), "one fold would hold out every image"),
        (("--folds", 9), "too few for 9 folds"),
        (("--folds", 3, "--runs", 2), "train.runs is 2"),
        (("--folds", 3, "--eval-split", "train[:5]"), "data.eval_split is 'train[:5]'"),
        (("--folds", 3, "--set", "data.streaming=true"), "streamed shards"),
        (("--folds", -1), "train.folds is -1"),
        (("--set", "data.eval_split=3 folds"), "needs the models of the folds"),
        (("--set", "data.eval_split=fold 4 of 3"), "no split"),
    ],
)
def test_what_folds_cannot_be_is_refused_before_anything_is_written(objects, tmp_path, more, message):
    how = (*SMALL, "--dataset", objects, "--set", "data.label_column=label", "--set",
           "data.group_column=object", "--steps", 2)  # fmt: skip
    more = tuple("--set" if word == "--eval-split" else word for word in more)
    more = tuple(f"data.eval_split={word}" if word == "train[:5]" else word for word in more)
    outcome = run(*how, *more, "--out", tmp_path / "out")

    assert outcome.code in (2, 3) and message in outcome.json["error"]["message"], outcome.out
    assert not (tmp_path / "out/folds").exists()


@pytest.mark.parametrize(("at_a_time", "minutes"), [(1, 10), (2, 15), (5, 30)])
def test_a_limit_of_time_is_shared_by_the_runs_that_follow_one_another(monkeypatch, at_a_time, minutes):
    monkeypatch.setattr(many_runs, "settle_pixels", lambda recipe, command: recipe)
    words = ["train.folds=5", "schedule.max_minutes=60", "data.dataset=photos", "model.ckpt=demo"]
    options = SimpleNamespace(arms_parallel=at_a_time)
    runs = CrossValidation(recipe.load("finetune/default", words), options, SimpleNamespace(
        command="finetune", runtime=None, progress=None))  # fmt: skip

    each = [*runs._fold_recipes(), runs._final_recipe()]  # five folds in turns, then one on all images
    assert {one.schedule.max_minutes for one in each} == {minutes} and len(each) == 6


def test_what_all_folds_took_is_added_and_their_deviation_is_that_of_a_sample(monkeypatch, tmp_path):
    monkeypatch.setattr(folds.TrainingSummary, "written", lambda summary: summary)

    def of_run(top1: float, elapsed_s: float, peak_gib: float, exaflops: float | None = 0.5) -> dict:
        about = {"top1": top1, "loss": 1 - top1, "num_eval_examples": 10, "elapsed_s": elapsed_s}
        return about | {"peak_memory_gib": peak_gib, "exaflops": exaflops, "num_held_out_seen": 2}

    each = [of_run(0.5, 10.0, 1.0), of_run(0.7, 20.0, 4.0), of_run(0.9, 30.0, 2.0)]
    about = {"path": tmp_path, "group_column": "object", "num_groups": 8, "frozen": None}
    largest = [folds.summary_of_folds(each, of_run(0.6, 40.0, peak), **about) for peak in (3.0, 5.0)]
    summary = largest[0]

    assert (summary["folds"]["mean"], summary["folds"]["std"]) == (pytest.approx(0.7), pytest.approx(0.2))
    assert [fold["top1"] for fold in summary["folds"]["runs"]] == [0.5, 0.7, 0.9]
    assert (summary["elapsed_s"], summary["peak_memory_gib"], summary["exaflops"]) == (100.0, 4.0, 2.0)
    assert largest[1]["peak_memory_gib"] == 5.0  # of the run on all images
    assert summary["num_held_out_seen"] == 6  # of the folds, which are scored on different images
    unknown = folds.summary_of_folds(each, of_run(0.6, 1.0, 1.0, exaflops=None), **about)
    assert unknown["exaflops"] is None


@pytest.mark.slow
def test_values_are_chosen_within_each_fold(objects, tmp_path):
    how = [word for word in words(objects, "--set", "data.dev_fraction=0.3") if word not in ("--lr", "0.02")]
    outcome = run(*how, "--lr", "0.0001,0.05", "--out", tmp_path / "all")

    assert outcome.code == 0, outcome.err + outcome.out
    summary = outcome.json
    assert all("optimizer.lr" in fold["chosen"] for fold in summary["folds"]["runs"])
    for number in (1, 2, 3):
        fold = tmp_path / f"all/folds/fold-{number}"
        held = {row["place"] for row in predicted(fold)}
        for arm in fold.glob("arms/*"):
            assert held.isdisjoint(row["place"] for row in predicted(arm))
    assert [row["row"] for row in predicted(tmp_path / "all")] == list(range(24))
    assert summary["chosen"] and len(summary["choices"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [("--num-processes", 2, "--exact"), ("--arms-parallel", "--num-processes", 2)]
)
def test_several_processes_and_folds_side_by_side_give_the_same_bits(objects, tmp_path, how):
    exact = ("--exact",) if "--exact" in how else ()
    assert run(*words(objects), *exact, "--out", tmp_path / "one").code == 0
    ended = vit(*words(objects), *how, "--out", tmp_path / "several", timeout=400)

    assert ended.returncode == 0, ended.stderr
    one, several = tmp_path / "one", tmp_path / "several"
    assert predicted(one) == predicted(several)
    assert (one / "model.safetensors").read_bytes() == (several / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_five_folds_killed_ten_times_end_with_the_same_bits(objects, tmp_path):
    unbroken, killed, draws = tmp_path / "unbroken", tmp_path / "killed", random.Random(0)
    parts = [*(f"folds/fold-{k}" for k in range(1, 6)), "runs/seed-0"]
    steps = 1 + 4 * KILLS  # so that no kill of a part comes after its end
    how = words(objects, "--set", "train.keep_checkpoints=2", folds=5, steps=steps)
    assert run(*how, "--out", unbroken).code == 0
    # Two kills in some folds, and one in the run on all images.
    places = sorted([*draws.choices(range(5), k=KILLS - 1), 5])
    for number, place in enumerate(places):
        at, delay_s = 1 + 3 * places[:number].count(place) + draws.randint(0, 1), draws.uniform(0, 0.02)

        def kill_soon(process, place=place, at=at, delay_s=delay_s):
            when_logged(killed / parts[place], at, lambda: (time.sleep(delay_s), process.kill()))

        ended = vit(*how, "--out", killed, on_start=kill_soon, timeout=300)
        assert ended.returncode == -signal.SIGKILL, f"kill {number} of {places}: {ended.stderr}"
        assert not (killed / parts[place] / "summary.json").exists(), f"kill {number} came after its fold"
    assert run(*how, "--out", killed).code == 0
    print(f"{KILLS} kills in parts {places} of five folds, Same")

    assert predicted(killed) == predicted(unbroken)
    assert untimed(summary_of(killed)) == untimed(summary_of(unbroken))
    for part in parts:
        assert fingerprint(killed / part) == fingerprint(unbroken / part)


@pytest.mark.parametrize("has_groups", [False, True])
def test_frozen_features_are_scored_with_the_l2_that_is_best_on_the_other_folds(has_groups):
    """Written out: for each fold every l2 is tried by really leaving each row, or each group, out."""
    from vitcli.features import least_squares

    rng = np.random.default_rng(11)  # the l2 with the most rows right is another one without groups
    labels, strengths = rng.integers(0, 3, 36), (0.5, 1024.0)
    groups = rng.integers(0, 9, 36) if has_groups else np.arange(36)
    features = rng.normal(size=(36, 5)) + labels[:, None]
    folds = groups % 3

    def predicted_rows(fitted, scored, l2, about):
        mean_D, std_D = features[about].mean(axis=0), features[about].std(axis=0) + least_squares.STD_ADDED
        x = np.c_[(features - mean_D) / std_D, np.full(36, least_squares.BIAS)]
        y = 2.0 * (labels[fitted, None] == np.arange(3)) - 1
        weights = np.linalg.solve(x[fitted].T @ x[fitted] + l2 * np.eye(6), x[fitted].T @ y)
        return (x[scored] @ weights).argmax(axis=1)

    right = 0
    for fold in range(3):
        rest, held = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        hits = [
            sum(
                (predicted_rows(np.setdiff1d(rest, out), out, l2, rest) == labels[out]).sum()
                for out in (rest[groups[rest] == group] for group in set(groups[rest].tolist()))
            )
            for l2 in strengths
        ]
        best = max(range(2), key=lambda i: (hits[i], strengths[i]))
        right += (predicted_rows(rest, held, strengths[best], rest) == labels[held]).sum()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(least_squares, "SWEEP", strengths)
        found = least_squares.fold_accuracy(
            features, labels, folds, num_classes=3, groups_N=groups if has_groups else None
        )
    assert found == pytest.approx(right / 36)
