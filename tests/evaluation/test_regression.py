"""Predicted numbers: against scikit-learn, hand values, and from a run to its predictions."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image, ImageOps
from sklearn import metrics as sklearn_metrics

from tests.conftest import run
from tests.figures import drawn_figures, points_of
from tests.training.test_finetune import SMALL, TRICKY, fingerprint, of_layers, stopped_in_part
from vitcli.data.dataset import DataSet
from vitcli.data.sources.tables import Choices
from vitcli.data.split import LARGEST_NUMBER
from vitcli.errors import DataError, WeightsError
from vitcli.evaluation import regression
from vitcli.evaluation.predict import _csv_rows
from vitcli.evaluation.predictions import write_predictions
from vitcli.evaluation.regression import (
    NumberPredictions,
    RegressionTarget,
    details_of,
    intervals_of,
    metrics_of,
    target_of,
)
from vitcli.output.run_folder import newest_checkpoint_step
from vitcli.training.objective import squared_error, target_of_split

REGRESSION = ("--set", "objective.loss=regression", "--set", "data.label_column=age")


def predictions(targets, values, *, mean: float = 0.0, std: float = 1.0) -> NumberPredictions:
    target, rows_N = RegressionTarget("x", mean, std), np.arange(len(targets))
    return NumberPredictions(target, rows_N, np.array(targets, float), np.array(values, float))


@pytest.mark.parametrize("seed", range(20))
def test_errors_are_those_of_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    count, scale = int(rng.integers(2, 300)), 10 ** rng.uniform(-6, 9)
    targets = scale * (rng.normal(size=count) + rng.normal() * 100)
    numbers = predictions(targets, targets + scale * rng.normal(size=count), mean=3.0, std=scale)
    metrics = metrics_of(numbers)

    pair = numbers.targets_N, numbers.values_N
    assert metrics.mae == pytest.approx(sklearn_metrics.mean_absolute_error(*pair), rel=1e-12)
    assert metrics.rmse == pytest.approx(sklearn_metrics.root_mean_squared_error(*pair), rel=1e-12)
    assert metrics.r2 == pytest.approx(sklearn_metrics.r2_score(*pair), rel=1e-9)
    standardised = [(values - 3.0) / scale for values in pair]
    assert metrics.loss == pytest.approx(sklearn_metrics.mean_squared_error(*standardised), rel=1e-9)


def test_equal_numbers_have_no_r2():
    assert metrics_of(predictions([2, 2], [1, 3])).r2 is None
    assert "r2" not in intervals_of(predictions([2, 2], [1, 3]))


@pytest.mark.parametrize(
    ("most_draws", "resamples", "outlier"),
    [(100_000_000, 2_000, 0.0), (40 * 300, 300, 0.0), (40 * 7, 200, 0.0), (40 * 300, 300, 100.0)],
)
def test_intervals_are_quantiles_of_resampled_errors(monkeypatch, most_draws, resamples, outlier):
    monkeypatch.setattr(regression, "MOST_DRAWS", most_draws)
    rng = np.random.default_rng(0)
    targets = rng.normal(size=40)
    targets[3] += outlier  # which is in two of three resamples
    numbers = predictions(targets, targets + rng.normal(size=40))
    draws, scores = np.random.default_rng(0), []
    for _ in range(resamples):
        rows = draws.integers(40, size=40)
        pair = numbers.targets_N[rows], numbers.values_N[rows]
        errors = pair[1] - pair[0]
        r2 = 1 - (errors**2).sum() / ((pair[0] - pair[0].mean()) ** 2).sum()
        scores.append((np.abs(errors).mean(), np.sqrt((errors**2).mean()), r2))
    expected = np.quantile(scores, (0.025, 0.975), axis=0)

    found = intervals_of(numbers)
    assert np.allclose([found[key] for key in ("mae", "rmse", "r2")], expected.T, rtol=1e-9)


def test_the_loss_of_a_zero_head_is_1_and_its_prediction_the_mean():
    numbers = torch.tensor([1e9, 1e9 + 2, 1e9 + 4], dtype=torch.float64)  # more digits than float32 has
    target = RegressionTarget("x", 1e9 + 2, float(np.std(numbers.numpy())))
    head = torch.nn.Linear(1, 1)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)

    assert squared_error(head, torch.ones(3, 1), numbers, target=target).item() == pytest.approx(1)
    assert target.numbers_of(torch.zeros(2)).tolist() == [1e9 + 2] * 2
    assert target.numbers_of(target.standardised(numbers)).tolist() == pytest.approx(numbers.tolist())


@pytest.mark.parametrize(
    "stored",
    [
        3,
        {},
        {"name": "x", "mean": 0, "std": 0},
        {"name": "x", "mean": float("nan"), "std": 1},
        {"name": "x", "mean": 0, "std": 1e300},
        {"name": "x", "mean": -2 * LARGEST_NUMBER, "std": 1},
        {"name": 7, "mean": 0, "std": 1},
        {"name": "x", "mean": 0, "std": -1},
    ],
)
def test_a_damaged_scale_is_refused(stored):
    with pytest.raises(WeightsError, match="scale of the predicted number is damaged"):
        target_of({"target": stored})


@pytest.fixture(scope="module")
def ages(tmp_path_factory) -> Path:
    """24 training and 10 test images, each with its brightness as a number."""
    root = tmp_path_factory.mktemp("ages")
    rng = np.random.default_rng(0)
    lines = ["file,age,split"]
    for number in range(34):
        grey = int(rng.integers(30, 226))
        pixels = np.clip(grey + rng.integers(-20, 20, (24, 20, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(root / f"{number}.png")
        lines.append(f"{number}.png,{grey / 10},{'train' if number < 24 else 'test'}")
    (root / "labels.csv").write_text("\n".join(lines))
    return root


def words(ages: Path, out: Path, *more: object) -> tuple:
    return (*SMALL, *REGRESSION, "--dataset", ages, "--out", out, "--steps", 8, *TRICKY, *more)


@pytest.fixture(scope="module")
def trained(ages, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "run"
    outcome = run(*words(ages, path))
    assert outcome.code == 0, outcome.err + outcome.out
    return path


def test_a_run_reports_errors_and_evaluate_and_predict_agree_with_it(ages, trained, tmp_path):
    summary = json.loads((trained / "summary.json").read_text())
    numbers = DataSet(str(ages), Choices(label_column="age", numbers=True)).open("train").read_labels()

    assert summary["target"] == {"name": "age", "mean": pytest.approx(numbers.mean()), "std": numbers.std()}
    assert (trained / "classes.txt").read_text() == "age\n" and "top1" not in summary
    with drawn_figures() as figures:
        again = run("evaluate", "--ckpt", trained, "--json", "-q", "--out", tmp_path / "evaluation").json
    for key in ("mae", "rmse", "r2", "loss", "intervals", "target"):
        assert again[key] == summary[key], key
    assert again["intervals"]["mae"][0] < again["mae"] < again["intervals"]["mae"][1]
    true, predicted = np.array(points_of(figures["numbers.png"], 1)).T
    assert (
        true.tolist()
        == DataSet(str(ages), Choices(label_column="age", numbers=True)).open("test").read_labels().tolist()
    )
    assert np.abs(predicted - true).mean() == pytest.approx(again["mae"])

    report = run("report", trained, tmp_path / "evaluation", "--json").json
    (table,) = (each for each in report["tables"] if each["table"] == "numbers")
    assert [row["cells"][1]["value"] for row in table["rows"]] == [summary["mae"], again["mae"]]

    # The predictions of files are those of the evaluation, in the unit of the labels.
    predicted = run("predict", "--ckpt", trained, ages, "--json", "-q").json["predictions"]
    by_file = {Path(entry["file"]).name: entry["value"] for entry in predicted}
    test = DataSet(str(ages), Choices(label_column="age", numbers=True)).open("test")
    errors = [abs(by_file[f"{24 + row}.png"] - age) for row, age in enumerate(test.read_labels())]
    assert np.mean(errors) == pytest.approx(summary["mae"], abs=1e-6)

    # With mirror images: the mean of the two numbers of each.
    for path in ages.glob("*.png"):
        ImageOps.mirror(Image.open(path)).save(tmp_path / path.name)
    square = ("--set", "data.eval_resize=square")  # and no crop, which would be one pixel aside
    values = []
    for images in (ages / "*.png", tmp_path / "*.png"):
        predicted = run("predict", "--ckpt", trained, images, *square, "--json", "-q").json["predictions"]
        of_file = {Path(entry["file"]).name: entry["value"] for entry in predicted}
        values.append(np.array([of_file[f"{24 + row}.png"] for row in range(10)]))
    errors = np.abs(np.mean(values, axis=0) - test.read_labels())
    both = run("evaluate", "--ckpt", trained, "--tta", *square, "--json", "-q").json
    assert both["mae"] == pytest.approx(np.mean(errors), abs=1e-6) and both["tta"] == "mirror"

    table = tmp_path / "ages.csv"
    assert run("predict", "--ckpt", trained, ages / "30.png", "--out", table, "-q").code == 0
    header, line = table.read_text().splitlines()
    assert header == "file,age,error" and float(line.split(",")[1]) == by_file["30.png"]
    # Of other data the column that was trained on.
    (tmp_path / "new").mkdir()
    for number in range(3):
        shutil.copy(ages / f"{number}.png", tmp_path / "new")
    (tmp_path / "new/broken.png").write_bytes(b"no image")  # which is left out with its number
    lines = ["file,height,age", "broken.png,1,500", *(f"{n}.png,1,{n}" for n in range(3))]
    (tmp_path / "new/labels.csv").write_text("\n".join(lines))
    of_new = ("--dataset", tmp_path / "new", "--split", "train", "--skip-bad", "--json")
    new = run("evaluate", "--ckpt", trained, *of_new).json
    assert new["num_skipped_images"] == 1
    parts = run("evaluate", "--ckpt", trained, *of_new, "--out", tmp_path / "parts", "--part-rows", 2).json
    assert (parts["mae"], parts["num_skipped_images"], parts["num_eval_examples"]) == (new["mae"], 1, 3)
    assert new["mae"] == pytest.approx(np.mean([abs(by_file[f"{n}.png"] - n) for n in range(3)]))
    text = run("evaluate", "--ckpt", trained, "-q").out
    assert f"MAE         {summary['mae']:.4g}" in text and "always its mean gives MAE" in text
    exported = run("export", trained, tmp_path / "ages.safetensors", "--images", ages)
    assert "head        a number\n" in exported.out, exported.err
    assert "number, `age`" in (trained / "README.md").read_text()


@pytest.mark.slow
def test_a_stopped_regression_resumes_bit_for_bit(ages, trained, tmp_path):
    out = tmp_path / "run"
    with stopped_in_part(11):
        assert run(*words(ages, out)).code == 143 and newest_checkpoint_step(out) == 6

    assert run(*words(ages, out, "--workers", 3)).code == 0
    assert fingerprint(out) == fingerprint(trained)


def test_a_head_that_is_kept_predicts_the_same_numbers_in_the_scale_of_other_images(ages, trained, tmp_path):
    summary = json.loads((trained / "summary.json").read_text())
    # The objective and the column of numbers are those of the run.
    kept = run("finetune", "--keep-head", "--ckpt", trained, "--dataset", ages, "--out", tmp_path / "on",
               "--steps", 1, "--lr", 1e-12, "--batch-size", 10, "--set", "data.num_examples=10",
               "--set", "schedule.warmup=0", "--json", "-q")  # fmt: skip

    assert kept.code == 0, kept.out
    assert kept.json["target"]["std"] != pytest.approx(summary["target"]["std"], rel=0.01)
    for key in ("mae", "rmse", "r2"):
        assert kept.json[key] == pytest.approx(summary[key], rel=1e-4)


def test_what_cannot_be_is_said_before_the_first_step(ages, trained, tmp_path):
    out = tmp_path / "run"
    (ages / "equal.csv").write_text("file,age\n" + "".join(f"{n}.png,7\n" for n in range(9)))
    refusals = {
        ("--set", "objective.mixup=0.2"): (2, "objective.mixup is for classes"),
        ("--set", "objective.label_smoothing=0.1"): (2, "objective.label_smoothing is for classes"),
        ("--keep-head", "--ckpt", "demo"): (4, "no head for numbers to keep"),
        ("--dataset", "demo"): (3, "has classes and no numbers"),
        ("--dataset", str(ages / "equal.csv"), "--set", "data.dev_fraction=0.3"): (
            3,
            "numbers to predict are 7",
        ),
    }
    for more, (code, message) in refusals.items():
        outcome = run(*_without(words(ages, out), more), *more)
        assert (outcome.code, message in outcome.out) == (code, True), outcome.out
    assert not out.exists()
    (ages / "equal.csv").unlink()
    asserted = run("evaluate", "--ckpt", trained, "--assert", "top1>=0.5", "-q")
    assert asserted.code == 2 and "a number and no classes, so the result has no top1" in asserted.err
    assert run("evaluate", "--ckpt", trained, "--assert", "mae<1e-9", "-q").code == 8


def _without(given: tuple, more: tuple) -> list:
    """Drop the options that `more` has, and their values."""
    pairs, names = list(given), {word for word in more if word in ("--dataset", "--ckpt")}
    for name in names:
        at = pairs.index(name)
        del pairs[at : at + 2]
    return list(of_layers(pairs, None)) if "--ckpt" in names else pairs


def test_the_scale_of_the_largest_numbers_is_read():
    stored = {"name": "x", "mean": -LARGEST_NUMBER, "std": LARGEST_NUMBER}
    assert target_of({"target": stored}) == RegressionTarget("x", -LARGEST_NUMBER, LARGEST_NUMBER)
    assert target_of({}) is None


def test_files_that_cannot_be_read_follow_the_numbers_in_a_table():
    result = {
        "target": {"name": "age"},
        "predictions": [{"file": "a.png", "value": 41.5}],
        "unreadable": [{"file": "b.png", "message": "cannot be decoded"}],
    }

    assert [*_csv_rows(result, 5)] == [
        ["file", "age", "error"],
        ["a.png", 41.5, ""],
        ["b.png", "", "cannot be decoded"],
    ]


def test_all_numbers_equal_are_refused(ages):
    split = DataSet(str(ages), Choices(label_column="age", numbers=True)).open("train").rows(np.array([3, 3]))

    with pytest.raises(DataError, match="all 2 numbers to predict are"):
        target_of_split(split)


def test_a_network_is_compared_with_always_the_mean_of_the_training_images():
    numbers = predictions([30.0, 40.0], [30.0, 40.0], mean=20.0, std=4.0)  # their own is wrong by 5

    assert details_of(numbers)["mae_of_mean"] == 15.0


def test_the_file_of_predicted_numbers_has_them_as_they_are_in_order(tmp_path):
    targets, values = np.array([0.1, 1e9 + 0.25, -3.0]), np.array([1 / 3, 2.0**-40, -2.5])
    predictions = NumberPredictions(RegressionTarget("x", 0, 1), np.array([0, 2, 5]), targets, values)
    path = tmp_path / "n.parquet"

    write_predictions(str(path), predictions, np.array([7, 9, 12]), ["a", "b", "c"], {"target": "age"})

    table = pq.read_table(path)
    assert table.to_pydict() == {
        "row": [7, 9, 12],
        "place": ["a", "b", "c"],
        "target": targets.tolist(),
        "prediction": values.tolist(),
    }
    assert json.loads(table.schema.metadata[b"vit"]) == {"target": "age"}
