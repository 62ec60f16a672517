"""A finished run stores its calibration: printed, evaluated, exported, the same after a kill."""

import itertools
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from scipy.special import softmax
from sklearn.metrics import roc_auc_score

from tests.conftest import run
from tests.data.test_loader import noise
from tests.evaluation.test_inference import settings
from tests.evaluation.test_masked_patch import PREPROCESSING
from tests.training.test_finetune import fingerprint, stopped_in_part
from vitcli.evaluation import inference
from vitcli.evaluation.calibration import selective
from vitcli.evaluation.calibration.out_of_distribution import SHRINKAGES, statistics_of
from vitcli.evaluation.calibration.stored import calibration_of
from vitcli.models.build import architecture, build
from vitcli.training.methods.calibrate import of_network, of_probe
from vitcli.training.methods.outputs import Outputs, of_rows
from vitcli.training.methods.probe_head import closed_form_head
from vitcli.weights.io import read_weights

COLOURS = {"red": (200, 40, 40), "green": (40, 200, 40), "amber": (190, 130, 40)}
COUNTS = {"train": 24, "validation": 22, "test": 8}
WORDS = ("finetune", "--recipe", "finetune/default", "--lr", 0.02, "--precision", "fp32", "--json")
LENGTH = (
    "--batch-size",
    12,
    "--per-device-batch",
    6,
    "--set",
    "train.log_every=1",
    "--set",
    "train.save_every=2",
)


@pytest.fixture(scope="module")
def colours(tmp_path_factory) -> Path:
    """Three colours under noise, of which two are alike; 66 validation images."""
    root, rng = tmp_path_factory.mktemp("colours"), np.random.default_rng(0)
    for split, count in COUNTS.items():
        for name, colour in COLOURS.items():
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                noise = rng.integers(-60, 60, (24, 24, 3)) + rng.integers(-45, 45, 3)
                pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{number:02}.png")
    return root


def words(colours: Path, ckpt: Path, out: Path, *more: object) -> tuple:
    return (*WORDS, "--ckpt", ckpt, "--dataset", colours, "--out", out, "--steps", 6, *LENGTH, *more)


def finished(*arguments: object) -> dict:
    outcome = run(*arguments)
    assert outcome.code == 0, outcome.out + outcome.err
    return outcome.json


@pytest.fixture(scope="module")
def trained(colours, ckpt, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    finished(*words(colours, ckpt, out, "-q", "--set", "data.eval_split=test"))
    return out


def unlike(folder: Path) -> Path:
    pixels = np.zeros((24, 24, 3), np.uint8)
    pixels[::2, ::3] = (0, 0, 255)
    Image.fromarray(pixels).save(folder / "stripes.png")
    return folder / "stripes.png"


def test_the_numbers_are_those_of_the_validation_split_and_not_of_the_test_split(colours, trained, tmp_path):
    summary = json.loads((trained / "summary.json").read_text())
    calibration = calibration_of(read_weights(str(trained)).metadata, 3)
    config = json.loads((trained / "config.json").read_text())["vit"]["metadata"]

    assert summary["belief"] == calibration.facts() == config["belief"]
    assert "feature_statistics" not in config  # arrays are nothing to read
    assert calibration.chosen_on.endswith("split validation") and calibration.num_images == 66
    assert calibration.sets[99] is None and calibration.flagged == pytest.approx(1 / 67)

    # From the logits and features that `vit embed` saves, by the formulas written out.
    rows = {}
    for split in ("train", "validation"):
        file = tmp_path / f"{split}.safetensors"
        finished(
            "embed", "--ckpt", trained, "--dataset", colours, "--split", split, "--out", file, "-q", "--json"
        )
        rows[split] = load_file(file)
    logits_NK, labels_N = (
        rows["validation"]["logits"].astype(np.float64),
        rows["validation"]["labels"].ravel(),
    )
    p_NK = np.exp(logits_NK / calibration.scaling.temperature)
    of_labels_N = np.sort((p_NK / p_NK.sum(axis=1, keepdims=True))[np.arange(66), labels_N])
    assert (
        calibration.sets[90] == pytest.approx(of_labels_N[5], rel=1e-5)
        and calibration.sets[90] <= of_labels_N[5]
    )
    assert calibration.sets[95] == pytest.approx(of_labels_N[2], rel=1e-5)
    confidences_NK = p_NK / p_NK.sum(axis=1, keepdims=True)
    confidences_N, is_right_N = confidences_NK.max(axis=1), logits_NK.argmax(axis=1) == labels_N
    assert len(calibration.thresholds) >= 9
    for point in calibration.thresholds:
        is_answered_N = confidences_N >= point.threshold
        counts = int(is_answered_N.sum()), int((is_answered_N & is_right_N).sum())
        assert (point.answered, point.right) == counts
    scores_N = calibration.unlike.of(calibration.statistics, rows["validation"]["features"], confidences_NK)
    assert calibration.distance == pytest.approx(scores_N.max(), rel=1e-5)
    assert (
        0 < calibration.unlike.auroc <= 1 and summary["belief"]["unlike"]["auroc"] == calibration.unlike.auroc
    )
    for k in range(3):
        mean_D = rows["train"]["features"][rows["train"]["labels"].ravel() == k].mean(axis=0)
        np.testing.assert_allclose(calibration.statistics.means_KD[k], mean_D, atol=1e-5)


def test_predict_names_the_set_and_what_is_unlike_the_training_images(colours, trained, tmp_path):
    images = (unlike(tmp_path), colours / "test/green/00.png", *sorted((colours / "test/amber").iterdir()))
    result = finished("predict", "--ckpt", trained, *images, "--json", "-q")
    text = run("predict", "--ckpt", trained, *images, "-q").out
    calibration = calibration_of(read_weights(str(trained)).metadata, 3)

    assert result["selective"] == selective.results_of(calibration.facts())
    assert f"threshold   {result['selective']['advice']}\n" in text
    own = run("predict", "--ckpt", trained, *images, "-q", "--threshold", 0.5).out
    assert "of 10, below 0.5" in own and result["selective"]["advice"] not in own
    mirrored = run("predict", "--ckpt", trained, *images, "-q", "--tta").out
    assert "threshold" not in mirrored  # nothing is known of the means
    card = " ".join((trained / "README.md").read_text().split())
    assert result["selective"]["advice"] in card

    stripes, green, *_ = result["predictions"]
    assert stripes["in_distribution"] is False and text.count("unlike training\n") == sum(
        entry["in_distribution"] is False for entry in result["predictions"]
    )
    assert green["in_distribution"] is True
    for entry in result["predictions"]:
        above = [each["class"] for each in entry["top"] if each["probability"] >= calibration.sets[95]]
        assert entry["prediction_set"] == (above or [entry["top"][0]["class"]])
        assert sum(each["probability"] for each in entry["top"]) == pytest.approx(1)
        if entry["in_distribution"] and len(entry["prediction_set"]) == 2:
            own = run("predict", "--ckpt", trained, entry["file"], "-q").out
            assert f"unsure between {' and '.join(entry['prediction_set'])}" in own
            line = next(line for line in text.splitlines() if Path(entry["file"]).name in line)
            assert line.endswith("one of 2 classes")

    table = tmp_path / "table.csv"
    assert run("predict", "--ckpt", trained, *images, "--out", table, "--skip-bad", "-q").code == 0
    header, first, *_ = table.read_text().splitlines()
    assert header.endswith("prediction_set,in_distribution,error") and first.split(",")[-2] == "no"


def test_evaluate_reports_coverage_and_the_figure_before_and_after(colours, trained, tmp_path):
    how = ("--ckpt", trained, "--dataset", colours, "--json", "-q")
    asserted = ("--assert", "coverage>=0.5", "--assert", "mean_set_size<=3", "--out", tmp_path / "e")
    result = finished("evaluate", "--split", "test", *how, *asserted)
    images = sorted((colours / "test").glob("*/*.png"))
    entries = finished("predict", *images, "--ckpt", trained, "--json", "-q")["predictions"]

    covered = [Path(entry["file"]).parent.name in entry["prediction_set"] for entry in entries]
    assert result["coverage"] == pytest.approx(np.mean(covered))
    assert result["mean_set_size"] == pytest.approx(np.mean([len(e["prediction_set"]) for e in entries]))
    assert result["prediction_sets"]["99"] == {"coverage": 1.0, "mean_size": 3.0}  # too few to promise it
    assert result["coverage"] == result["prediction_sets"]["95"]["coverage"]
    of_labels = [
        next(each["probability"] for each in e["top"] if each["class"] == Path(e["file"]).parent.name)
        for e in entries
    ]
    assert result["nll_at_temperature"] == pytest.approx(-np.log(of_labels).mean(), rel=1e-5)
    text = run("evaluate", "--split", "test", *how[:4], "-q").out
    assert "95 % sets" in text and "99 % sets: all 3 classes" in text

    failed = run("evaluate", "--split", "test", *how, "--assert", "mean_set_size<0.5")
    assert failed.code == 8 and failed.json["error"]

    # On the images that chose them, each half is judged by the other's numbers.
    again = finished("evaluate", "--split", "validation", *how)
    assert again["prediction_sets"]["95"]["coverage"] < 1 or again["mean_set_size"] > 1


def test_an_export_keeps_them_and_one_without_the_head_does_not(colours, trained, tmp_path):
    image = colours / "test/amber/01.png"
    expected = finished("predict", "--ckpt", trained, image, "--json", "-q")["predictions"]
    for out in (tmp_path / "one.safetensors", tmp_path / "folder"):
        finished("export", trained, out, "-q", "--json")
        assert finished("predict", "--ckpt", out, image, "--json", "-q")["predictions"] == expected
    finished("export", trained, tmp_path / "features.safetensors", "--no-head", "-q", "--json")
    metadata = read_weights(str(tmp_path / "features.safetensors")).metadata
    assert not {"belief", "feature_statistics"} & metadata.keys()


def test_old_weights_without_them_behave_as_before(colours, trained, tmp_path):
    with safe_open(trained / "model.safetensors", "numpy") as file:
        about = json.loads(file.metadata()["vit"])
    for key in ("belief", "feature_statistics"):
        del about["metadata"][key]
    old = tmp_path / "old.safetensors"
    save_file(load_file(trained / "model.safetensors"), old, {"vit": json.dumps(about)})

    image = colours / "test/amber/01.png"
    entry = finished("predict", "--ckpt", old, image, "--json", "-q")["predictions"][0]
    assert entry.keys() == {"file", "top"}
    how = ("--ckpt", old, "--dataset", colours, "--split", "test", "--json", "-q")
    outcome = run("evaluate", *how, "--assert", "coverage>=0.1")
    assert "coverage" not in outcome.json and outcome.code == 8
    assert "coverage is null" in outcome.json["error"]["message"]
    assert "has stored prediction sets with" in outcome.json["error"]["fix"]


def test_a_stopped_run_has_the_same_numbers_bit_for_bit(colours, ckpt, trained, tmp_path):
    out = tmp_path / "run"
    more = ("-q", "--set", "data.eval_split=test")
    with stopped_in_part(7):
        assert run(*words(colours, ckpt, out, *more)).code == 143

    finished(*words(colours, ckpt, out, *more, "--workers", 2))
    assert fingerprint(out) == fingerprint(trained)  # the weights hold all of them


def test_a_probe_knows_by_its_own_left_out_rows(colours, ckpt, tmp_path):
    more = ("-q", "--set", "model.head=probe", "--set", "data.eval_split=test")
    # So high a rate that the network is destroyed, and the probe delivered.
    arguments = [1e4 if word == 0.02 else word for word in words(colours, ckpt, tmp_path / "run", *more)]
    summary = finished(*arguments)
    calibration = summary["belief"]

    assert summary["delivered"] == "probe"
    assert calibration["num_images"] == 72 and calibration["fingerprint"] is None
    assert calibration["chosen_on"] == "training images, each left out in turn"
    assert calibration["temperature"] == 1.0  # its logits are calibrated by the same rows
    how = ("--dataset", colours, "--split", "train", "-q", "--json")
    result = finished("evaluate", "--ckpt", tmp_path / "run", *how)
    assert result["prediction_sets"]["90"]["coverage"] >= 0.85


def test_where_the_images_to_choose_by_are_too_few_the_validation_split_serves(colours, ckpt, tmp_path):
    more = ("-q", "--set", "data.eval_split=test", "--set", "train.patience=3", "--set", "eval.every=3")
    few = finished(*words(colours, ckpt, tmp_path / "few", *more))
    many = finished(*words(colours, ckpt, tmp_path / "many", *more, "--set", "data.dev_fraction=0.5"))

    assert few["belief"]["num_images"] == 66 and few["belief"]["chosen_on"].endswith("split validation")
    assert many["belief"]["num_images"] == 36 and "split train" in many["belief"]["chosen_on"]


def test_without_images_to_choose_by_one_note_says_so(colours, ckpt, tmp_path):
    for name in ("train", "test"):
        shutil.copytree(colours / name, tmp_path / "two" / name)
    outcome = run(*words(tmp_path / "two", ckpt, tmp_path / "run", "--set", "data.eval_split=test"))

    assert outcome.json["belief"] is None
    assert outcome.err.count("prediction sets") == 1 and "no calibration images" in outcome.err
    entry = finished("predict", "--ckpt", tmp_path / "run", colours / "test/red/00.png", "--json", "-q")
    assert entry["predictions"][0].keys() == {"file", "top"}


def test_with_too_few_held_out_images_each_prediction_says_that_new_classes_are_not_checked(
    colours, trained, ckpt, tmp_path
):
    folder = tmp_path / "few"
    shutil.copytree(colours / "train", folder / "train")
    for file in sorted((colours / "validation").glob("*/0[0-6].png")):
        (folder / "validation" / file.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder / "validation" / file.parent.name)
    finished(*words(folder, ckpt, tmp_path / "run", "-q"))
    ask = ("predict", unlike(tmp_path), "-q", "--ckpt")

    reason = "not checked: that takes 49 held-out images, and the run has 21 (a run by folds holds out all)"
    result = finished(*ask, tmp_path / "run", "--json", "--out", tmp_path / "page.html")
    assert result["new_classes"] == reason
    assert result["predictions"][0]["in_distribution"] is None
    assert f"<li>new classes {reason}</li>" in (tmp_path / "page.html").read_text()
    for more in ((), ("--threshold", 0.5), ("--tta",)):
        assert f"new classes {reason}\n" in run(*ask, tmp_path / "run", *more).out
    assert "new_classes" not in finished(*ask, trained, "--json")
    assert "new_classes" not in finished(*ask, ckpt, "--json")  # from elsewhere


def test_no_image_of_those_that_choose_the_distance_is_flagged_by_it_as_it_is_stored():
    rng = np.random.default_rng(0)
    means_KD = 4 * rng.normal(size=(3, 5))

    def outputs(count: int) -> Outputs:
        labels_N = np.arange(count) % 3
        features_ND = (means_KD[labels_N] + rng.normal(size=(count, 5))).astype(np.float32)
        return Outputs(features_ND, features_ND @ means_KD.T.astype(np.float32), labels_N, None)

    train, held_out = outputs(150), outputs(60)
    calibration = of_network(train, held_out, SimpleNamespace(name="dev", fingerprint="f"))

    probabilities_NK = calibration.scaling.probabilities(held_out.logits_NK)
    most = calibration.unlike.of(calibration.statistics, held_out.features_ND, probabilities_NK).max()
    assert most <= calibration.distance <= most * (1 + 1e-5)  # of 60 images the furthest, to six digits


def chosen_by_hand(features_ND, labels_N, folds) -> tuple[float, bool, float, float]:
    """Return shrinkage, whether doubt counts, and the AUROC of the score and of doubt alone.

    Args:
        folds: of each, masks of the rows that are fitted, known and unknown, and logits of the last two.
    """

    def doubts(logits_NK, classes):
        return 1 - softmax(logits_NK[:, classes], axis=1).max(axis=1)

    def auroc(lower, higher) -> float:
        return roc_auc_score(np.repeat([0, 1], [len(lower), len(higher)]), np.append(lower, higher))

    measured = []
    for fitted, known, unknown, logits_of_known, logits_of_unknown in folds:
        classes = np.unique(labels_N[fitted])
        statistics = statistics_of(features_ND[fitted], labels_N[fitted], num_classes=labels_N.max() + 1)
        of_both = [(known, logits_of_known), (unknown, logits_of_unknown)]
        measured.append([
            (
                {s: statistics.distances(features_ND[rows], shrinkage=s) for s in SHRINKAGES},
                doubts(z, classes),
            )
            for rows, z in of_both
        ])  # fmt: skip
    mean_aurocs = {}
    for has_doubt, shrinkage in itertools.product((True, False), SHRINKAGES):
        distances = np.concatenate([known[0][shrinkage] for known, _ in measured])
        weight = distances.std() / np.concatenate([known[1] for known, _ in measured]).std() * has_doubt
        scores = [[part[0][shrinkage] + weight * part[1] for part in parts] for parts in measured]
        mean_aurocs[shrinkage, has_doubt] = np.array([auroc(*parts) for parts in scores])
    first, best = (SHRINKAGES[0], True), max(mean_aurocs, key=lambda c: mean_aurocs[c].mean())
    gains = mean_aurocs[best] - mean_aurocs[first]
    best = best if gains.mean() > gains.std(ddof=1) / np.sqrt(len(gains)) else first
    return (
        *best,
        mean_aurocs[best].mean(),
        np.mean([auroc(*(part[1] for part in parts)) for parts in measured]),
    )


def outputs_of_classes(rng, num_classes: int, count: int) -> Outputs:
    """Rows of overlapping classes, with logits that know them roughly."""
    labels = np.repeat(np.arange(num_classes), count)
    features = rng.normal(size=(len(labels), 6)) + 1.5 * np.eye(num_classes, 6)[labels]
    logits = 2 * features @ np.eye(6, num_classes) + rng.normal(size=(len(labels), num_classes))
    return Outputs(features, logits, labels, None)


def test_the_score_of_a_network_is_that_which_tells_each_left_out_class_from_the_others():
    rng, split = np.random.default_rng(0), SimpleNamespace(name="dev", fingerprint="f")
    train, dev = outputs_of_classes(rng, 4, 15), outputs_of_classes(rng, 4, 20)
    features, labels = np.concatenate([train.features_ND, dev.features_ND]), np.repeat(range(4), 15)
    labels, is_dev = np.append(labels, dev.labels_N), np.arange(140) >= 60
    folds = []
    for left_out in range(4):
        known, unknown = is_dev & (labels != left_out), is_dev & (labels == left_out)
        logits = (dev.logits_NK[mask[60:]] for mask in (known, unknown))
        folds.append((~is_dev & (labels != left_out), known, unknown, *logits))

    found = of_network(train, dev, split).unlike

    shrinkage, has_doubt, auroc, of_doubt = chosen_by_hand(features, labels, folds)
    assert (found.shrinkage, found.doubt_weight > 0) == (shrinkage, has_doubt)
    assert (found.auroc, found.auroc_of_doubt) == (pytest.approx(auroc), pytest.approx(of_doubt))


def test_the_score_of_a_probe_is_chosen_by_the_closed_form_without_each_class():
    """W = (X'X + l2 I)^-1 X'Y of the rows of the other classes, X standardised as that of all."""
    rng = np.random.default_rng(1)
    train, choice = outputs_of_classes(rng, 4, 12), outputs_of_classes(rng, 4, 8)
    features = np.concatenate([train.features_ND, choice.features_ND])
    labels = np.append(train.labels_N, choice.labels_N)
    about = {"num_classes": 4, "groups_N": None}
    head = closed_form_head(torch.from_numpy(features), labels, loss="softmax", **about)
    temperature, logits = head.facts["temperature"], head.left_out[0]
    inputs = np.column_stack([(features - features.mean(0)) / (features.std(0) + 1e-5), np.full(80, 100.0)])
    row_fold = np.empty(80, dtype=int)
    row_fold[np.argsort(labels, kind="stable")] = np.arange(80) % 4
    folds = []
    for left_out in range(4):
        unknown = labels == left_out
        x, y = inputs[~unknown], 2.0 * np.eye(4)[labels[~unknown]] - 1
        weights = np.linalg.solve(x.T @ x + head.facts["l2"] * np.eye(7), x.T @ y)
        fitted = ~unknown & (row_fold != left_out)
        known = ~unknown & ~fitted
        folds.append((fitted, known, unknown, logits[known], temperature * inputs[unknown] @ weights))

    found = of_probe(train, choice, num_classes=4, loss="softmax", balance="none").unlike

    shrinkage, has_doubt, auroc, of_doubt = chosen_by_hand(features, labels, folds)
    assert temperature > 1.5  # so that it shows
    assert (found.shrinkage, found.doubt_weight > 0) == (shrinkage, has_doubt)
    assert (found.auroc, found.auroc_of_doubt) == (pytest.approx(auroc), pytest.approx(of_doubt))


def test_rows_whose_outputs_overflow_are_left_out_with_their_labels_and_groups():
    """The first logit of about half of the images is beyond the largest number of fp32."""
    torch.manual_seed(0)
    model = build(architecture("ViT-demo/8", image_size=(32, 48), num_classes=3), dropout=0.0)
    split, how = noise(count=12, bad=(5,)), (PREPROCESSING, settings())
    torch.nn.init.normal_(model.head.weight)
    about = {"num_logits": 3, "may_overflow": True}
    whole = of_rows(inference.features_and_logits(model, split, *how, **about), split)
    sorted_ND, most = np.sort(abs(whole.features_ND), axis=0), float(np.finfo(np.float32).max)
    column = int(sorted_ND[4].argmax())
    scale = most / float(sorted_ND[4:6, column].mean())  # between the fifth row and the sixth
    with torch.no_grad():
        model.head.weight[0].zero_()[column] = scale

    rows = inference.features_and_logits(model, split, *how, **about)
    some, skipped = of_rows(rows, split), rows.skipped

    kept = abs(whole.features_ND[:, column]).astype(np.float64) * scale <= most
    assert len(skipped) == 1 and len(kept) == 11 and kept.sum() == 5
    assert some.labels_N.tolist() == whole.labels_N[kept].tolist() and np.isfinite(some.logits_NK).all()
    np.testing.assert_allclose(some.features_ND, whole.features_ND[kept])
    np.testing.assert_allclose(some.logits_NK[:, 1:], whole.logits_NK[kept, 1:])
