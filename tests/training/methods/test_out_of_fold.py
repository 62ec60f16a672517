"""The network of a run with folds is calibrated by what the networks of its folds say of unseen images."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

from tests.conftest import run
from tests.training.methods.conftest import ADAM, QUICK, begun, fine_tune
from vitcli.errors import DataError
from vitcli.evaluation.calibration import out_of_distribution
from vitcli.evaluation.calibration.prediction_sets import LEVELS
from vitcli.evaluation.calibration.stored import calibration_of
from vitcli.training.methods import out_of_fold
from vitcli.training.methods.out_of_fold import OutOfFold
from vitcli.training.methods.outputs import Outputs
from vitcli.weights.io import read_weights

NAME, NUM_FOLDS, PER_CLASS = "out_of_fold.safetensors", 3, 20
COLOURS = {"red": (200, 40, 40), "green": (40, 200, 40), "amber": (190, 130, 40)}
FOLDED = ("--folds", NUM_FOLDS, "--set", r"data.group_column=name:^(\d+)")


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """Three colours under noise, of which two are alike; two images in each group."""
    root, rng = tmp_path_factory.mktemp("colours"), np.random.default_rng(0)
    for place, (name, colour) in enumerate(COLOURS.items()):
        (root / "train" / name).mkdir(parents=True)
        for number in range(PER_CLASS):
            noise = rng.integers(-60, 60, (24, 24, 3)) + rng.integers(-45, 45, 3)
            pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
            group = 100 * place + number // 2
            Image.fromarray(pixels).save(root / "train" / name / f"{group:03}_{number}.png")
    return root


@pytest.fixture(scope="module")
def folded(ckpt, images, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("folded") / "run"
    fine_tune(*ADAM, *FOLDED, out=out, ckpt=ckpt, photos=images)
    return out


def folds_of(folder: Path) -> list[Path]:
    return [folder / f"folds/fold-{number + 1}" for number in range(NUM_FOLDS)]


def embedded(ckpt: Path, images: Path, out: Path) -> dict[str, np.ndarray]:
    """Return features, logits, labels and paths of all images by the network of a run."""
    words = ("embed", "--ckpt", ckpt, "--dataset", images, "--split", "train", "--out", out, "-q", "--json")
    assert run(*words).code == 0
    return load_file(out)


def test_the_stored_numbers_are_those_of_each_image_by_the_network_that_has_not_seen_it(
    images, folded, tmp_path
):
    """The truth: all images through the network of each fold by `vit embed`, and the formulas written out."""
    import pyarrow.parquet as pq

    calibration = calibration_of(read_weights(str(folded)).metadata, 3)
    assert calibration.facts() == json.loads((folded / "summary.json").read_text())["belief"]
    assert calibration.chosen_on == "training images, each left out in one of 3 folds with its group"
    assert (calibration.num_images, calibration.fingerprint) == (60, None)

    of_labels, distances, doubts, places = [], [], [], sorted((images / "train").glob("*/*.png"))
    for fold in folds_of(folded):
        rows = embedded(fold, images, tmp_path / f"{fold.name}.safetensors")
        held = {Path(name).name for name in pq.read_table(fold / "predictions.parquet")["place"].to_pylist()}
        is_held_N = np.array([place.name in held for place in places])
        assert not {p.name[:3] for p in places if p.name in held} & {
            p.name[:3] for p in places if p.name not in held
        }
        labels_N, features_ND = rows["labels"].ravel(), rows["features"]
        p_NK = np.exp(rows["logits"].astype(np.float64) / calibration.scaling.temperature)
        p_NK /= p_NK.sum(axis=1, keepdims=True)
        of_labels += p_NK[np.arange(60), labels_N][is_held_N].tolist()
        doubts += (1 - p_NK.max(axis=1))[is_held_N].tolist()
        others = out_of_distribution.statistics_of(
            features_ND[~is_held_N], labels_N[~is_held_N], num_classes=3
        )
        distances += others.distances(features_ND[is_held_N], shrinkage=0.5).tolist()
        stored = load_file(fold / NAME)
        np.testing.assert_allclose(stored["logits"], rows["logits"][is_held_N], rtol=1e-5, atol=1e-6)
        assert stored["labels"].tolist() == labels_N[is_held_N].tolist()
        assert not (fold / "runs").exists()

    ordered = np.sort(of_labels)
    assert len(ordered) == 60
    for level, rank in ((90, 6), (95, 3)):
        assert calibration.sets[level] == pytest.approx(ordered[rank - 1], rel=1e-5)
    assert calibration.sets[99] is None
    # No fold chooses its score: distance and doubt, which vary alike.
    weight = np.std(distances) / np.std(doubts)
    assert (calibration.unlike.shrinkage, calibration.unlike.auroc) == (0.5, None)
    assert calibration.unlike.doubt_weight == pytest.approx(weight, rel=1e-4)
    assert calibration.distance == pytest.approx(np.max(distances + weight * np.array(doubts)), rel=1e-4)
    assert calibration.flagged == pytest.approx(1 / 61)
    # The statistics are those of the network that is delivered, for all images.
    rows = embedded(folded, images, tmp_path / "all.safetensors")
    means_KD = [rows["features"][rows["labels"].ravel() == k].mean(axis=0) for k in range(3)]
    np.testing.assert_allclose(calibration.statistics.means_KD, means_KD, atol=1e-5)


def test_predict_and_the_card_use_the_numbers(images, folded):
    image = next((images / "train/amber").glob("*.png"))
    result = run("predict", "--ckpt", folded, image, "--json", "-q").json

    assert result["predictions"][0]["prediction_set"] and result["predictions"][0]["in_distribution"]
    assert "left-out training images" in result["selective"]["advice"]
    assert result["selective"]["advice"] in " ".join((folded / "README.md").read_text().split())


@pytest.mark.slow
def test_a_killed_fold_and_a_killed_last_run_store_the_same_bits(ckpt, images, folded, tmp_path):
    killed = tmp_path / "killed"
    shutil.copytree(folded, killed)
    for path in (killed, killed / "folds/fold-2", killed / "runs/seed-0"):  # before the last file
        (path / "summary.json").unlink()
    (killed / "folds/fold-2" / NAME).write_bytes(b"cut off")
    fine_tune(*ADAM, *FOLDED, out=killed, ckpt=ckpt, photos=images)

    for name in (*(f"folds/fold-{k}/{NAME}" for k in (1, 2, 3)), "model.safetensors"):
        assert (killed / name).read_bytes() == (folded / name).read_bytes(), name


@pytest.mark.slow
def test_where_a_probe_is_delivered_its_own_left_out_rows_serve(ckpt, images, tmp_path):
    # So high a rate that the networks are destroyed, and the probes delivered.
    more = ("--set", "model.head=probe")
    how = [1e4 if word == 0.02 else word for word in begun(ckpt, images)]
    outcome = run(*how, *QUICK, "--steps", 3, *ADAM, *FOLDED, *more, "--out", tmp_path / "run")
    assert outcome.code == 0, outcome.out + outcome.err
    summary = outcome.json

    assert summary["delivered"] == "probe"
    assert summary["belief"]["chosen_on"] == "training images, each left out in turn with its group"
    assert all((fold / NAME).is_file() for fold in folds_of(tmp_path / "run"))


@pytest.mark.parametrize("damage", ["missing", "cut off", "another class", "a number", "a distance", "huge"])
def test_a_file_that_no_fold_has_written_is_refused_by_name(folded, tmp_path, damage, monkeypatch):
    for fold in folds_of(folded):
        shutil.copytree(fold, tmp_path / fold.name)
    file = tmp_path / "fold-2" / NAME
    match damage:
        case "missing":
            file.unlink()
        case "cut off":
            file.write_bytes(file.read_bytes()[:-8])
        case "another class":
            save_file(load_file(file) | {"labels": np.full_like(load_file(file)["labels"], 3)}, file)
        case "a number":  # the checksum is another
            content = bytearray(file.read_bytes())
            content[-1] ^= 1
            file.write_bytes(content)
        case "a distance":
            nans_M = np.full_like(load_file(file)["distances"], np.nan)
            save_file(load_file(file) | {"distances": nans_M}, file)
        case "huge":
            monkeypatch.setattr(out_of_fold, "MOST_BYTES", 100)

    with pytest.raises(DataError, match=r"out_of_fold\.safetensors is missing or damaged") as raised:
        out_of_fold.pooled([tmp_path / fold.name for fold in folds_of(folded)], num_classes=3)
    assert damage == "huge" or "fold-2" in raised.value.where


def outputs(count: int, *, shift: float = 0.0) -> Outputs:
    rng = np.random.default_rng(count)
    labels_N = np.arange(count) % 2
    features_ND = (rng.normal(size=(count, 4)) + labels_N[:, None] + shift).astype(np.float32)
    return Outputs(features_ND, features_ND[:, :2].copy(), labels_N, None)


def test_of_many_images_each_fold_keeps_as_large_a_part(tmp_path, monkeypatch):
    monkeypatch.setattr(out_of_fold, "MOST_KEPT", 30)
    for name, count in (("one", 200), ("other", 100)):
        (tmp_path / name).mkdir()
        out_of_fold.write(tmp_path / name, outputs(40), outputs(count), num_images=300)

    stored = [load_file(tmp_path / name / NAME) for name in ("one", "other")]
    assert [len(each["labels"]) for each in stored] == [20, 10]
    whole = outputs(200)
    rows = [np.flatnonzero((whole.logits_NK == logits_K).all(axis=1))[0] for logits_K in stored[0]["logits"]]
    assert rows == sorted(set(rows)) and rows[-1] > 100  # from the whole fold, each once
    pooled = out_of_fold.pooled([tmp_path / "one", tmp_path / "other"], num_classes=2)
    assert pooled.labels_M.tolist() == [*stored[0]["labels"], *stored[1]["labels"]]
    np.testing.assert_array_equal(pooled.logits_MK[20:], stored[1]["logits"])
    # Classes without number: the logits of all folds stay within 64 MiB.
    monkeypatch.setattr(out_of_fold, "MOST_LOGITS", 30)
    out_of_fold.write(tmp_path / "one", outputs(40), outputs(200), num_images=300)
    assert len(load_file(tmp_path / "one" / NAME)["labels"]) == 10


def test_distances_of_a_fold_without_statistics_are_those_of_none(tmp_path):
    none = outputs(0)
    for name, train in (("one", outputs(40)), ("other", none)):
        (tmp_path / name).mkdir()
        out_of_fold.write(tmp_path / name, train, outputs(50), num_images=100)

    pooled = out_of_fold.pooled([tmp_path / "one", tmp_path / "other"], num_classes=2)
    assert pooled.distances_M is None and len(pooled.labels_M) == 100


def test_the_pooled_numbers_make_the_calibration(tmp_path):
    from vitcli.training.methods.calibrate import of_folds

    def models_of(pooled: OutOfFold) -> SimpleNamespace:
        return SimpleNamespace(outputs=lambda: (pooled, "some images"))

    held = outputs(120)
    distances_M = np.arange(120.0)
    calibration = of_folds(outputs(40), models_of(OutOfFold(held.logits_NK, held.labels_N, distances_M)))
    assert set(calibration.sets) == set(LEVELS) and calibration.num_images == 120
    p_NK = np.exp(held.logits_NK.astype(np.float64) / calibration.scaling.temperature)
    doubts_M = 1 - (p_NK / p_NK.sum(axis=1, keepdims=True)).max(axis=1)
    largest = (distances_M + distances_M.std() / doubts_M.std() * doubts_M).max()
    assert (calibration.distance, calibration.flagged) == (pytest.approx(largest, rel=1e-4), 0.01)  # of 120
    few = OutOfFold(held.logits_NK[:12], held.labels_N[:12], None)
    assert of_folds(outputs(40), models_of(few)) == (
        "they take 19 images that were not trained on, and there are 12"
    )
    without = of_folds(outputs(40), models_of(OutOfFold(held.logits_NK, held.labels_N, None)))
    assert without.statistics is None and without.distance is None
    assert without.facts() == replace(calibration, distance=None, flagged=None, unlike=None).facts()
