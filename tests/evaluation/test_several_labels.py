"""Several labels an image: average precision and F1 against scikit-learn, thresholds by brute force."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from sklearn import metrics as sklearn_metrics

from tests.conftest import run
from tests.evaluation.test_parts import SPEEDS
from tests.training.test_finetune import SMALL, TRICKY, fingerprint, stopped_in_part
from vitcli.errors import WeightsError
from vitcli.evaluation.inference import mean_of_labels
from vitcli.evaluation.multilabel import (
    EVEN,
    Multilabel,
    average_precisions,
    best_thresholds,
    f1_scores,
    given_at,
    given_by_other_half,
    mean_average_precision,
    multilabel_of,
    results_of,
)
from vitcli.evaluation.predict import _multilabel
from vitcli.evaluation.predictions import Predictions


def random_case(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, with many equal ones in every other case, and labels; some classes have no row."""
    rng = np.random.default_rng(seed)
    count, num_classes = int(rng.integers(2, 60)), int(rng.integers(1, 8))
    probabilities_NK = rng.random((count, num_classes))
    if seed % 2:
        probabilities_NK = np.round(probabilities_NK, 1)
    hot_NK = rng.random((count, num_classes)) < rng.choice([0.02, 0.3, 0.9], num_classes)
    return probabilities_NK, hot_NK


@pytest.mark.parametrize("seed", range(40))
def test_average_precision_and_f1_are_those_of_scikit_learn(seed):
    probabilities_NK, hot_NK = random_case(seed)
    has_rows_K = hot_NK.any(axis=0)
    found_K = average_precisions(probabilities_NK, hot_NK)
    given_NK = given_at(probabilities_NK, np.linspace(0.2, 0.8, hot_NK.shape[1]))

    assert np.isnan(found_K).tolist() == (~has_rows_K).tolist()
    expected = [
        sklearn_metrics.average_precision_score(hot_NK[:, k], probabilities_NK[:, k])
        for k in np.flatnonzero(has_rows_K)
    ]
    assert np.allclose(found_K[has_rows_K], expected, rtol=1e-12, atol=0)
    mean = mean_average_precision(probabilities_NK, hot_NK)
    assert mean == (pytest.approx(np.mean(expected)) if expected else None)
    f1_K = sklearn_metrics.f1_score(hot_NK, given_NK, average=None, zero_division=0.0)
    assert np.isnan(f1_scores(given_NK, hot_NK)).tolist() == (~has_rows_K).tolist()
    if hot_NK.shape[1] > 1:
        assert np.allclose(f1_scores(given_NK, hot_NK)[has_rows_K], np.atleast_1d(f1_K)[has_rows_K])


@pytest.mark.parametrize("seed", range(40))
def test_no_threshold_has_a_higher_f1_than_the_chosen_one(seed):
    probabilities_NK, hot_NK = random_case(seed)
    thresholds_K = best_thresholds(probabilities_NK, hot_NK)
    f1_K = f1_scores(given_at(probabilities_NK, thresholds_K), hot_NK)

    for k, threshold in enumerate(thresholds_K):
        if not hot_NK[:, k].any():
            assert threshold == EVEN
            continue
        candidates = np.unique(np.concatenate([probabilities_NK[:, k], [0.0, 1.0, EVEN]]))
        given_NT = probabilities_NK[:, k, None] >= candidates
        hits_T = (given_NT & hot_NK[:, k, None]).sum(axis=0)
        f1_T = 2 * hits_T / (given_NT.sum(axis=0) + hot_NK[:, k].sum())
        assert f1_K[k] == pytest.approx(f1_T.max(), abs=1e-12)


def test_a_threshold_stands_in_the_middle_and_above_what_it_leaves_out():
    hot_N1 = np.array([[True], [True], [False], [False]])
    assert best_thresholds(np.array([[0.9], [0.7], [0.3], [0.1]]), hot_N1).tolist() == [0.5]
    assert best_thresholds(np.array([[0.9], [0.8], [0.7], [0.6]]), ~hot_N1).tolist() == [0.3]
    close = np.nextafter(0.7, 1)
    (threshold,) = best_thresholds(np.array([[0.9], [close], [0.7], [0.1]]), hot_N1)
    assert 0.7 < threshold <= close


def test_rows_are_judged_by_thresholds_of_the_other_half():
    rng = np.random.default_rng(0)
    noise_NK, hot_NK = rng.random((60, 3)), rng.random((60, 3)) < 0.3
    own = f1_scores(given_at(noise_NK, best_thresholds(noise_NK, hot_NK)), hot_NK).mean()

    assert f1_scores(given_by_other_half(noise_NK, hot_NK), hot_NK).mean() < own  # of noise, chosen here
    changed_NK = noise_NK.copy()
    changed_NK[0] = 1.0 - changed_NK[0]  # changes no decision on its own half but its own
    before, after = given_by_other_half(noise_NK, hot_NK), given_by_other_half(changed_NK, hot_NK)
    is_first_N = np.random.default_rng(0).permutation(60) % 2 == 0
    same_half_N = is_first_N == is_first_N[0]
    same_half_N[0] = False
    assert (before[same_half_N] == after[same_half_N]).all()


@pytest.mark.parametrize(
    "stored", [3, {}, {"thresholds": [0.5]}, {"thresholds": [0.5, 1.5]}, {"thresholds": "ab"}]
)
def test_damaged_thresholds_are_refused(stored):
    with pytest.raises(WeightsError, match="stored thresholds of the classes are damaged"):
        multilabel_of({"several_labels": stored}, 2)


SEVERAL = ("--set", "objective.loss=sigmoid", "--set", "data.eval_split=validation")


@pytest.fixture(scope="module")
def shapes(tmp_path_factory) -> Path:
    """24 training, 12 validation and 8 test images: each may be red, bright, both or neither."""
    root = tmp_path_factory.mktemp("shapes")
    rng = np.random.default_rng(0)
    for split, count in (("train", 24), ("validation", 12), ("test", 8)):
        (root / split).mkdir()
        lines = []
        for number in range(count):
            names = [name for name in ("red", "bright") if rng.random() < 0.5]
            colour = np.full(3, 150 if "bright" in names else 60)
            colour[0] += 90 * ("red" in names)
            pixels = np.clip(colour + rng.integers(-20, 20, (24, 20, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / split / f"{number}.png")
            lines.append(json.dumps({"file_name": f"{number}.png", "labels": names}))
        (root / split / "metadata.jsonl").write_text("\n".join(lines))
    return root


def words(shapes: Path, out: Path, *more: object) -> tuple:
    return (*SMALL, "--dataset", shapes, "--out", out, "--steps", 8, *TRICKY, *SEVERAL, *more)


@pytest.fixture(scope="module")
def trained(shapes, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "run"
    outcome = run(*words(shapes, path))
    assert outcome.code == 0, outcome.err + outcome.out
    return path


def labels_of(shapes: Path, split: str) -> np.ndarray:
    lines = (shapes / split / "metadata.jsonl").read_text().splitlines()
    names = [json.loads(line)["labels"] for line in lines]
    return np.array([[name in labels for name in ("bright", "red")] for labels in names])


def predicted(trained: Path, folder: Path, *more: object) -> tuple[np.ndarray, list[list[str]]]:
    entries = run("predict", "--ckpt", trained, folder, *more, "--json", "-q").json["predictions"]
    entries.sort(key=lambda entry: int(Path(entry["file"]).stem))
    by_class = [{each["class"]: each["probability"] for each in entry["top"]} for entry in entries]
    return np.array([[row["bright"], row["red"]] for row in by_class]), [entry["labels"] for entry in entries]


def _asserting(texts: tuple[str, ...]) -> list[str]:
    return [word for text in texts for word in ("--assert", text)]


def test_a_run_chooses_thresholds_that_evaluate_and_predict_use(shapes, trained, tmp_path):
    summary = json.loads((trained / "summary.json").read_text())
    stored = json.loads((trained / "config.json").read_text())["vit"]["metadata"]["several_labels"]
    probabilities_NK, _ = predicted(trained, shapes / "validation")
    hot_NK = labels_of(shapes, "validation")

    # The thresholds are the best ones on the validation split, and its scores those of scikit-learn.
    assert stored["thresholds"] == pytest.approx(best_thresholds(probabilities_NK, hot_NK).tolist())
    assert (trained / "classes.txt").read_text() == "bright\nred\n"
    expected = sklearn_metrics.average_precision_score(hot_NK, probabilities_NK)
    assert summary["mean_ap"] == pytest.approx(expected)
    halves = f1_scores(given_by_other_half(probabilities_NK, hot_NK), hot_NK).mean()
    assert summary["f1_at_thresholds"] == pytest.approx(halves)
    again = run("evaluate", "--ckpt", trained, "--json", "-q", "--out", tmp_path / "evaluation").json
    for key in ("mean_ap", "f1_at_thresholds", "thresholds_chosen_on", "top1", "loss"):
        assert again[key] == summary[key], key
    assert again["per_label"]["red"]["threshold"] == stored["thresholds"][1]

    # On images that had no part in it.
    probabilities_NK, labels = predicted(trained, shapes / "test")
    given_NK = probabilities_NK >= np.array(stored["thresholds"])
    assert [sorted(names) for names in labels] == [
        [name for name, is_given in zip(("bright", "red"), row, strict=True) if is_given] for row in given_NK
    ]
    words = ("evaluate", "--ckpt", trained, "--split", "test", "--json", "-q")
    tested = run(*words).json
    parts = run(*words, "--out", tmp_path / "parts", "--part-rows", 7).json
    assert {key: parts[key] for key in tested if key not in SPEEDS} == {
        key: tested[key] for key in tested if key not in SPEEDS
    }
    hot_NK = labels_of(shapes, "test")
    assert tested["f1_at_thresholds"] == pytest.approx(
        sklearn_metrics.f1_score(hot_NK, given_NK, average="macro", zero_division=0.0)
    )
    assert tested["mean_ap"] == pytest.approx(
        sklearn_metrics.average_precision_score(hot_NK, probabilities_NK)
    )
    table = tmp_path / "labels.csv"
    assert run("predict", "--ckpt", trained, shapes / "test/0.png", "--out", table, "-q").code == 0
    header, line = table.read_text().splitlines()
    assert header.startswith("file,labels,class,probability") and line.split(",")[1] == "|".join(labels[0])
    asserted = ("mean_ap>=0", "f1_at_thresholds>=0"), ("f1_macro>=0",)
    codes = [run("evaluate", "--ckpt", trained, "-q", *_asserting(texts)).code for texts in asserted]
    assert codes == [0, 2]
    text = run("evaluate", "--ckpt", trained, "-q").out
    assert f"mAP         {100 * summary['mean_ap']:.2f}" in text and "chosen on" in text


def test_tta_is_the_mean_of_the_probabilities_of_each_class(shapes, trained, tmp_path):
    (tmp_path / "mirrored").mkdir()
    for path in (shapes / "test").glob("*.png"):
        ImageOps.mirror(Image.open(path)).save(tmp_path / "mirrored" / path.name)
    how = ("--ckpt", trained, "--set", "data.eval_resize=square", "--json", "-q")
    plain_NK, _ = predicted(trained, shapes / "test", *how[2:4])
    mirrored_NK, _ = predicted(trained, tmp_path / "mirrored", *how[2:4])
    entries = run("predict", shapes / "test", "--tta", *how).json["predictions"]
    result = run("evaluate", "--split", "test", "--tta", *how).json

    mean_NK = (plain_NK + mirrored_NK) / 2
    for entry in entries:
        red = {each["class"]: each["probability"] for each in entry["top"]}["red"]
        assert red == pytest.approx(mean_NK[int(Path(entry["file"]).stem), 1], abs=1e-6)
    hot_NK = labels_of(shapes, "test")
    assert result["tta"] == "mirror"
    assert result["mean_ap"] == pytest.approx(sklearn_metrics.average_precision_score(hot_NK, mean_NK))
    logits = torch.tensor([[-40.0, 20.0, 0.5], [-30.0, 25.0, -2.0]])
    expected = ((logits[0].double().sigmoid() + logits[1].double().sigmoid()) / 2).logit()
    torch.testing.assert_close(mean_of_labels(*logits).double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_stopped_run_of_several_labels_resumes_bit_for_bit(shapes, trained, tmp_path):
    out = tmp_path / "run"
    with stopped_in_part(11):
        assert run(*words(shapes, out)).code == 143

    assert run(*words(shapes, out, "--workers", 3)).code == 0
    assert fingerprint(out) == fingerprint(trained)


def test_a_test_split_chooses_no_threshold(shapes, tmp_path):
    more = [*SMALL, "--dataset", shapes, "--steps", 1, "--set", "objective.loss=sigmoid"]
    summary = run(*more, "--set", "data.eval_split=test", "--out", tmp_path / "run").json
    assert summary["thresholds_chosen_on"].endswith("split validation")

    for name in ("train", "test"):
        shutil.copytree(shapes / name, tmp_path / "two" / name)
    more[more.index("--dataset") + 1] = tmp_path / "two"
    outcome = run(*(word for word in more if word != "--quiet"), "--out", tmp_path / "even")
    assert outcome.json["thresholds_chosen_on"] is None
    assert "class thresholds stay at 0.5" in outcome.err


def test_the_softmax_is_refused_for_several_labels(shapes, tmp_path):
    outcome = run(*SMALL, "--dataset", shapes, "--steps", 1, "--out", tmp_path / "run")

    assert outcome.code == 2 and "objective.loss=sigmoid" in outcome.json["error"]["fix"]


def test_data_with_one_label_each_are_scored_by_weights_of_several(shapes, trained, tmp_path):
    for name in ("red", "bright"):
        shutil.copytree(shapes / "test", tmp_path / "photos" / name, ignore=lambda *_: ["metadata.jsonl"])

    result = run("evaluate", "--ckpt", trained, "--dataset", tmp_path / "photos", "--json", "-q").json
    assert set(result["per_label"]) == {"red", "bright"} and result["f1_at_thresholds"] > 0


@pytest.mark.parametrize(
    ("thresholds", "labels", "margin"),
    [
        ((0.5, 0.2, 0.8), ["a", "b"], 0.0),  # what reaches its threshold is given
        ((0.6, 0.2, 0.7), ["c", "b"], 0.05),
        ((0.9, 0.9, 0.9), [], 0.15),
    ],
)
def test_classes_are_given_by_their_thresholds_the_likeliest_first(thresholds, labels, margin):
    logits_K = torch.tensor([0.0, -np.log(3), np.log(3)])  # of 1/2, 1/4 and 3/4

    found = _multilabel(Multilabel(thresholds), ("a", "b", "c"), 2, logits_K)

    assert [(each["class"], each["label"]) for each in found["top"]] == [("c", 2), ("a", 0)]
    assert [each["probability"] for each in found["top"]] == pytest.approx([0.75, 0.5])
    each = dict(zip("abc", (0.5, 0.25, 0.75), strict=True))
    assert found["label_probabilities"] == pytest.approx([each[name] for name in labels])
    assert found["labels"] == labels and found["margin"] == pytest.approx(margin, abs=1e-7)


def test_images_that_thresholds_were_chosen_on_are_judged_by_halves_and_others_by_the_thresholds():
    rng = np.random.default_rng(1)
    hot_NK = rng.random((60, 3)) < 0.3
    hot_NK[:, 2] = False  # a class that no image has
    labels = np.where(hot_NK[:, :2], np.arange(2), -1)
    logits_NK = rng.normal(size=(60, 3)).astype(np.float32)
    none_N = np.zeros(60)
    predictions = Predictions(np.arange(60), labels, *[none_N] * 2, labels, labels, logits_NK=logits_NK)
    probabilities_NK = 1 / (1 + np.exp(-logits_NK.astype(float)))
    thresholds = tuple(best_thresholds(probabilities_NK, hot_NK))
    stored = Multilabel(thresholds, "data, split validation", "abc")

    own, others = (results_of(predictions, stored, "xyz", fingerprint=name) for name in ("abc", "def"))

    by_halves = given_by_other_half(probabilities_NK, hot_NK)
    for result, given_NK in ((own, by_halves), (others, probabilities_NK >= thresholds)):
        f1 = [sklearn_metrics.f1_score(hot_NK[:, k], given_NK[:, k]) for k in range(2)]
        assert result["f1_at_thresholds"] == pytest.approx(np.mean(f1))
        of_classes = result["per_label"].values()
        assert [row["f1"] for row in of_classes] == pytest.approx(f1) and [*result["per_label"]] == ["x", "y"]
        assert [row["num_examples"] for row in of_classes] == hot_NK.sum(axis=0)[:2].tolist()
        assert result["thresholds_chosen_on"] == "data, split validation"
    assert own["f1_at_thresholds"] < others["f1_at_thresholds"]
    assert "f1_at_thresholds" not in results_of(predictions, None, "xyz", fingerprint="abc")
