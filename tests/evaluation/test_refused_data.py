"""What has no right figure has none: labels that are none, images and weights that are damaged."""

import io
import re
import shutil
from pathlib import Path

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from datasets import ClassLabel, Sequence, Value
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.conftest import run

NAMED = ClassLabel(names=["green", "red"])
RIGHT = [row % 2 for row in range(8)]
# Labels of eight images, green and red in turn, their type, and what scoring them as a table and as shards
# gives: a fraction that is right, or the words of a refusal.
LABELS = {
    "right": (RIGHT, NAMED, 1.0, 1.0),
    "none at all": ([-1] * 8, NAMED, "8 of 8 rows .* have no label", "go from -1 to -1"),
    "one missing": ([0, 1, -1, *RIGHT[3:]], NAMED, "row 2: label -1", "go from -1 to 1"),
    "one null": ([0, 1, None, *RIGHT[3:]], NAMED, "row 2: label -1", "no label .*row 2"),
    "numbers": (RIGHT, Value("int64"), "different classes", 1.0),
    "numbers, none": ([-1] * 8, Value("int64"), "8 of 8 rows .* have no label", "from -1 to -1"),
    "numbers, a null": ([0, None, *RIGHT[2:]], Value("int64"), "row 1", "row 1"),
    "too large": ([0, 1, 5, *RIGHT[3:]], Value("int64"), "different classes", "has 6 classes"),
    "far too large": ([2**40] * 8, Value("int64"), "different classes", "has 1099511627777 classes"),
    "fractions": ([float(label) for label in RIGHT], Value("float64"), "no label column", "float64"),
    "not a number": ([0.0, float("nan")] * 4, Value("float64"), "no label column", "float64"),
    "words": (["green", "red"] * 4, Value("string"), 1.0, "are text"),
    "other words": (["cat", "dog"] * 4, Value("string"), "in the data: cat, dog", "are text"),
    "one other word": (["green", "dog"] * 4, Value("string"), "in the data: dog", "are text"),
    "no word": (["green", ""] * 4, Value("string"), "different classes", "are text"),
    "no column": (RIGHT, None, "no label column", "no label column"),
    "no row": ([], NAMED, "cannot be read", "has no rows"),
    "one class": ([0] * 8, ClassLabel(names=["green"]), 0.5, 0.5),
    "one of two classes": ([0] * 8, NAMED, 0.5, 0.5),
    "one image a class": ([0, 1], NAMED, 1.0, 1.0),
    "another order": ([1 - label for label in RIGHT], ClassLabel(names=["red", "green"]), 1.0, 1.0),
    "some classes": ([0] * 8, ClassLabel(names=["red"]), 0.5, 0.5),
    "more classes": (RIGHT, ClassLabel(names=["green", "red", "blue"]), 1.0, "in the data: blue"),
    "other names": (RIGHT, ClassLabel(names=["a", "b"]), "in the data: a, b", "in the data: a, b"),
    "other letters": (RIGHT, ClassLabel(names=["Green", "Red"]), "data: Green, Red", "data: Green, Red"),
    "a space more": (RIGHT, ClassLabel(names=["green", "red "]), "different classes", "different classes"),
    "lists": ([[label] for label in RIGHT], Sequence(Value("int64")), 1.0, "several labels"),
}


@pytest.fixture(scope="module")
def trained(plain_run) -> Path:
    return plain_run


def picture(row: int) -> dict:
    colour = ((40, 200, 40), (200, 40, 40))[row % 2]
    noise = np.random.default_rng(row).integers(-40, 40, (40, 48, 3))
    file = io.BytesIO()
    Image.fromarray(np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def table(folder: Path, images: list[dict], columns: dict[str, tuple[list, object]]) -> Path:
    features = {"image": datasets.Image(), **{name: kind for name, (_, kind) in columns.items()}}
    values = {"image": images, **{name: labels for name, (labels, _) in columns.items()}}
    folder.mkdir()
    rows = datasets.Dataset.from_dict(values, features=datasets.Features(features))
    rows.to_parquet(str(folder / "test-0.parquet"))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["table", "shards"])
def test_labels_are_scored_right_or_refused(trained, tmp_path, kind):
    words = ("--set", "data.streaming=true") if kind == "shards" else ()
    for number, (name, (labels, label_type, *expected)) in enumerate(LABELS.items()):
        columns = {"label": (labels, label_type)} if label_type else {}
        data = table(tmp_path / str(number), [picture(row) for row in range(len(labels))], columns)
        scored = run("evaluate", "--ckpt", trained, "--dataset", data, "--split", "test", "--json", *words)
        result = expected[kind == "shards"]
        if isinstance(result, float):
            assert (scored.code, scored.json["top1"]) == (0, result), (name, scored)
            assert scored.json["num_eval_examples"] == len(labels)
        else:
            _refused(scored, 3, result)
    both = table(tmp_path / "both", [picture(0)], {"label": ([0], NAMED), "class": ([0], NAMED)})
    scored = run("evaluate", "--ckpt", trained, "--dataset", both, "--split", "test", "--json", *words)
    _refused(scored, 3, "2 columns that may be the label: label, class")
    print(f"{kind}: {len(LABELS) + 1} kinds of labels")


def _refused(outcome, code: int, words: str) -> None:
    assert outcome.code == code, (words, outcome)
    error = outcome.json["error"]
    assert list(outcome.json) == ["error"] and "Traceback" not in outcome.err
    assert re.search(words, error["message"] + " " + error["where"], re.DOTALL), error


@pytest.mark.slow
@pytest.mark.parametrize("bad", [{3}, {0, 4, 9}, set(range(10))])
@pytest.mark.parametrize("kind", ["table", "shards"])
def test_damaged_images_change_no_other_prediction(trained, tmp_path, bad, kind):
    images = [picture(row) for row in range(10)]
    words = ("--set", "data.streaming=true") if kind == "shards" else ()
    damaged = [{"bytes": image["bytes"][:90], "path": None} if row in bad else image
               for row, image in enumerate(images)]  # fmt: skip
    whole, broken = (
        table(tmp_path / name, rows, {"label": ([row % 2 for row in range(10)], NAMED)})
        for name, rows in (("whole", images), ("broken", damaged))
    )

    def scored(data: Path, *more: object):
        asked = ("--ckpt", trained, "--dataset", data, "--split", "test", "--batch-size", 3, *words, *more)
        return run("evaluate", *asked, "--save-predictions", f"{data}.parquet", "--json")

    assert scored(whole).code == 0
    truth = _predictions(whole)
    _refused(scored(broken), 3, f"^{len(bad)} of 10|row {min(bad)}")
    assert not Path(f"{broken}.parquet").exists()
    skipped = scored(broken, "--skip-bad")
    if len(bad) == 10:
        _refused(skipped, 3, "")
        return
    assert skipped.json["num_eval_examples"] == 10 - len(bad)
    assert skipped.json["num_skipped_images"] == len(bad)
    assert _predictions(broken) == [prediction for prediction in truth if prediction["row"] not in bad]
    print(f"{kind}: {len(bad)} of 10 damaged")


def _predictions(data: Path) -> list[dict]:
    return pq.read_table(f"{data}.parquet").drop_columns("place").to_pylist()  # which names the folder


@pytest.mark.slow
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("is_all", [False, True])
def test_weights_that_are_not_finite_have_no_figure(trained, photos, tmp_path, value, is_all):
    shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    file = tmp_path / "run/model.safetensors"
    weights = load_file(file)
    for tensor in weights.values() if is_all else [weights["head.weight"]]:
        (tensor if is_all else tensor.view(-1)[:1]).fill_(value)
    save_file(weights, file)
    commands = (
        ("evaluate", "--ckpt", file.parent, "--dataset", photos),
        ("predict", photos / "test", "--ckpt", file.parent),
        ("fewshot", "--ckpt", file.parent, "--dataset", photos, "--shots", 1),
        ("embed", "--ckpt", file.parent, "--dataset", photos, "--out", tmp_path / "e.safetensors"),
    )
    for words in commands:
        _refused(run(*words, "--json"), 4, "non-finite numbers")
    print(f"{value}: {len(commands)} commands")


@pytest.mark.slow
def test_a_head_of_zeros_scores_the_frequency_of_the_first_class(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    file = tmp_path / "run/model.safetensors"
    weights = load_file(file)
    for name in ("head.weight", "head.bias"):
        weights[name].zero_()
    save_file(weights, file)
    data = table(tmp_path / "data", [picture(row) for row in range(8)], {"label": ([0] * 3 + [1] * 5, NAMED)})
    result = run("evaluate", "--ckpt", file.parent, "--dataset", data, "--split", "test", "--json").json
    assert (result["top1"], result["num_eval_examples"]) == (3 / 8, 8)
