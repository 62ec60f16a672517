"""`vit evaluate` with everything on: one pass, many numbers, all of them from the same rows."""

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageOps

from tests.conftest import ONE_LAYER, locked, run, vit
from tests.figures import drawn_figures, points_of
from vitcli.evaluation.files import FOLDER
from vitcli.evaluation.text import as_text
from vitcli.output.result_folder import differences

TIMED = ("images_per_s", "elapsed_s", "num_processes", "out", "saved_predictions")


def untimed(result: dict) -> dict:
    return {key: value for key, value in result.items() if key not in TIMED}


@pytest.fixture(scope="module")
def trained(unsure_run):
    return unsure_run


@pytest.fixture(scope="module")
def unsure(photos, tmp_path_factory):
    """A run whose probabilities are far from 0 and 1, so that a mirror image changes them."""
    out = tmp_path_factory.mktemp("unsure") / "run"
    words = f"finetune --recipe finetune/default {ONE_LAYER} --res 16x24 --steps 2 -q"
    assert run(*words.split(), "--batch-size", 8, "--lr", 0.1, "--dataset", photos, "--out", out).code == 0
    return out


@pytest.fixture(scope="module")
def pictures(photos, tmp_path_factory):
    """The test pictures, of which two red ones are called green, and one green one red."""
    root = tmp_path_factory.mktemp("pictures")
    for name, taken in {"green": ("green/00", "green/01", "green/02", "red/00", "red/01"),
                        "red": ("red/02", "red/03", "red/04", "green/03", "red/04")}.items():  # fmt: skip
        (root / "test" / name).mkdir(parents=True)
        for number, source in enumerate(taken):
            content = (photos / "test" / f"{source}.png").read_bytes()
            (root / "test" / name / f"{number:02}.png").write_bytes(content)
    return root


@pytest.fixture
def evaluated(trained, pictures):
    def evaluate(*words):
        return run("evaluate", "--ckpt", trained, "--dataset", pictures, "-q", *words)

    return evaluate


def test_the_numbers_follow_from_the_saved_predictions(evaluated, tmp_path):
    result = evaluated("--json", "--save-predictions", tmp_path / "p.parquet").json

    rows = pq.read_table(tmp_path / "p.parquet").to_pylist()
    right = np.array([row["top_classes"][0] == row["label"] for row in rows])
    confidences = np.array([row["top_probabilities"][0] for row in rows])
    assert len(rows) == result["num_eval_examples"] == 10
    assert right.mean() == result["top1"] and result["top5"] == 1.0
    mean_loss = np.mean([row["loss"] for row in rows])
    assert [result["loss"], result["nll"]] == pytest.approx([mean_loss] * 2, rel=1e-14)
    briers = [
        2 * (1 - sure) ** 2 if hit else 2 * sure**2 for sure, hit in zip(confidences, right, strict=True)
    ]
    assert np.mean(briers) == pytest.approx(result["brier"], rel=1e-6)  # of two classes
    bins = np.ceil(confidences * 15)
    gaps = [abs((right[bins == one] - confidences[bins == one]).sum()) / 10 for one in set(bins)]
    assert sum(gaps) == pytest.approx(result["ece"], rel=1e-9)
    told = result["reliability"]
    assert told["edges"][0] == 0 and told["edges"][-1] == 1 and len(told["edges"]) == 16
    for one in range(1, 16):
        count = int((bins == one).sum())
        assert told["counts"][one - 1] == count
        assert told["accuracy"][one - 1] == (pytest.approx(right[bins == one].mean()) if count else 0)
        assert told["confidence"][one - 1] == (pytest.approx(confidences[bins == one].mean()) if count else 0)
    assert [row["row"] for row in rows] == list(range(10)) and rows[0]["place"].endswith("00.png")
    low, high = result["intervals"]["top1"]
    assert 0 <= low <= result["top1"] <= high <= 1
    for name, label in (("green", 0), ("red", 1)):
        own = [hit for row, hit in zip(rows, right, strict=True) if row["label"] == label]
        row = result["per_class"][name]
        assert (row["top1"], row["num_examples"]) == (np.mean(own), 5)


def test_the_metrics_of_classes_follow_from_the_saved_predictions_too(evaluated, tmp_path):
    result = evaluated("--json", "--out", tmp_path / "out", "--assert", "f1_macro>=0").json
    rows = pq.read_table(tmp_path / "out/predictions.parquet").to_pylist()
    labels = np.array([row["label"] for row in rows])
    predicted = np.array([row["top_classes"][0] for row in rows])
    # Of two classes, the log-odds of the second order the images as its log-probability does.
    second = [dict(zip(row["top_classes"], row["top_probabilities"], strict=True))[1] for row in rows]
    pairs = [(a > b) + (a == b) / 2 for a, x in zip(second, labels, strict=True) if x == 1
             for b, y in zip(second, labels, strict=True) if y == 0]  # fmt: skip
    f1 = [
        2 * sum((labels == k) & (predicted == k)) / (sum(labels == k) + sum(predicted == k)) for k in (0, 1)
    ]

    assert result["f1_macro"] == pytest.approx(np.mean(f1)) and result["assertions"][0]["holds"]
    assert [result["per_class"][name]["auroc"] for name in ("green", "red")] == pytest.approx(
        [np.mean(pairs)] * 2
    )
    assert result["auroc_macro"] == pytest.approx(np.mean(pairs))
    assert result["balanced_accuracy"] == result["recall_macro"] == pytest.approx(result["top1"])  # 5 each
    table = list(csv.DictReader((tmp_path / "out/per_class.csv").open()))
    assert [float(row["auroc"]) for row in table] == pytest.approx([np.mean(pairs)] * 2)


def test_the_folder_has_the_object_the_tables_and_the_images(evaluated, tmp_path):
    out = tmp_path / "deep" / "out"
    with drawn_figures() as figures:
        result = evaluated("--json", "--out", out, "--res", "16:32:8").json

    assert json.loads((out / "evaluation.json").read_text()) == result
    assert {file.name for file in out.iterdir()} == {
        "evaluation.json",
        "per_class.csv",
        "confusion.csv",
        "confusion.png",
        "resolution.png",
        "mistakes.png",
        "mistakes.json",
        "predictions.parquet",
    }  # fmt: skip; no reliability diagram of 10 images
    for picture in out.glob("*.png"):
        assert min(Image.open(picture).size) > 200
    scores = {row["resolution"]: 100 * row["top1"] for row in result["resolutions"]}
    assert points_of(figures["resolution.png"]) == list(scores.items())
    counts = {
        (row["class"], row["predicted"]): int(row["num_examples"])
        for row in csv.DictReader((out / "confusion.csv").open())
    }
    names = ("green", "red")
    percent = [[20 * counts.get((label, predicted), 0) for predicted in names] for label in names]
    assert figures["confusion.png"].axes[0].images[0].get_array().tolist() == percent
    shown = [axes.texts[0].get_text() for axes in figures["mistakes.png"].axes if axes.texts]
    assert shown == [Path(mistake["place"]).name for mistake in result["mistakes"]]
    per_class = list(csv.DictReader((out / "per_class.csv").open()))
    assert {row["class"]: float(row["top1"]) for row in per_class} == {
        name: one["top1"] for name, one in result["per_class"].items()
    }
    pairs = list(csv.DictReader((out / "confusion.csv").open()))
    assert sum(int(row["num_examples"]) for row in pairs) == 10
    right = sum(int(row["num_examples"]) for row in pairs if row["class"] == row["predicted"])
    assert right == 10 * result["top1"]
    wrong = 10 - right
    assert len(result["mistakes"]) == wrong and not any(
        m["label"] == m["predicted"] for m in result["mistakes"]
    )


def test_the_table_tells_a_person_what_matters(evaluated):
    text = evaluated("--res", "16:24:8", "--assert", "top1>=0").out

    for word in ("top-1", "95 %:", "ECE", "Brier", "10 images", "pixels", "holds", "top1>=0"):
        assert word in text, word
    table = text[text.index("\npixels") :].splitlines()
    assert [line.split()[0] for line in table if line.lstrip().startswith(("16 ", "24 "))] == ["16", "24"]


@pytest.mark.parametrize("batch_size", [3, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 64))])
def test_the_batch_size_changes_no_bit(evaluated, tmp_path, batch_size):
    told = {
        size: evaluated(
            "--json", "--batch-size", size, "--save-predictions", tmp_path / f"{size}.parquet"
        ).json
        for size in (4, batch_size)
    }

    assert untimed(told[4]) == untimed(told[batch_size])
    assert (tmp_path / "4.parquet").read_bytes() == (tmp_path / f"{batch_size}.parquet").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_the_number_of_processes_changes_no_bit(trained, pictures, tmp_path, processes, batch_size):
    words = ("evaluate", "--ckpt", trained, "--dataset", pictures, "--batch-size", batch_size, "--json", "-q")
    alone = run(*words, "--save-predictions", tmp_path / "1.parquet").json

    together = vit(*words, "--save-predictions", tmp_path / "2.parquet", "--out", tmp_path / "out",
                   "--num-processes", processes)  # fmt: skip

    assert together.returncode == 0, together.stderr
    result = json.loads(together.stdout)
    assert result["num_processes"] == processes and untimed(result) == untimed(alone)
    assert (tmp_path / "1.parquet").read_bytes() == (tmp_path / "2.parquet").read_bytes()
    assert json.loads((tmp_path / "out/evaluation.json").read_text()) == result


@pytest.mark.slow
def test_a_failed_assertion_ends_several_processes_with_exit_code_8_after_the_result(trained, pictures):
    words = (
        "evaluate",
        "--ckpt",
        trained,
        "--dataset",
        pictures,
        "-q",
        "--num-processes",
        2,
        "--assert",
        "top1>1",
    )

    text, told = vit(*words), vit(*words, "--json")

    assert (text.returncode, told.returncode) == (8, 8)
    assert "top-1" in text.stdout and text.stderr.count("does not hold") == 1
    assert json.loads(told.stdout)["error"]["message"].endswith("does not hold")


@pytest.mark.slow
def test_several_checkpoints_and_data_sets_are_one_table_and_one_object(trained, pictures, tmp_path):
    words = ("evaluate", "--ckpt", trained, "--ckpt", trained / "model.safetensors", "--dataset", pictures,
             "--dataset", pictures / "test", "-q")  # fmt: skip

    told, text = run(*words, "--json", "--out", tmp_path / "out").json, run(*words).out

    assert told.keys() == {"command", "evaluations", "notes", "out"} and not told["notes"]
    pairs = [(one["ckpt"], one["dataset"]) for one in told["evaluations"]]
    assert pairs == [(str(ckpt), str(data)) for ckpt in (trained, trained / "model.safetensors")
                     for data in (pictures, pictures / "test")]  # fmt: skip
    alone = run("evaluate", "--ckpt", trained, "--dataset", pictures, "-q", "--json").json
    assert untimed(told["evaluations"][0]) == untimed(alone)
    assert text.count("safetensors") >= 2 and "ECE" in text.splitlines()[0]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"evaluation.json", "1", "2", "3", "4"}


def test_a_grid_is_the_evaluations_at_its_resolutions(evaluated):
    grid = evaluated("--json", "--res", "16:32:8").json
    each = {side: evaluated("--json", "--res", side).json for side in (16, 24, 32)}

    assert [one["resolution"] for one in grid["resolutions"]] == [16, 24, 32]
    for one in grid["resolutions"]:
        alone = each[one["resolution"]]
        assert {key: alone[key] for key in one} == one
    assert grid["resolution"] == 16 and grid["loss"] == each[16]["loss"]  # the weights are made for 16x24


@pytest.mark.parametrize("res", ["160:", "160:384", "32:16:8", "16:32:0", "a:b:c", "16:32:8:8", "1:9999:1"])
def test_a_malformed_grid_is_refused(evaluated, res):
    outcome = evaluated("--res", res)

    assert (
        outcome.code == 2 and "is not a range of sizes" in outcome.err and len(outcome.err.splitlines()) == 3
    )


def test_a_grid_that_patches_do_not_divide_is_refused_before_any_pass(evaluated):
    outcome = evaluated("--res", "16:28:4")

    assert outcome.code == 2 and "20x20" in outcome.err and outcome.out == ""


def test_a_failed_assertion_ends_with_exit_code_8_after_the_result(evaluated):
    text = evaluated("--assert", "top1>1", "--assert", "loss>0")
    told = evaluated("--assert", "top1>1", "--assert", "loss>0", "--json")

    assert (text.code, told.code) == (8, 8)
    assert "top-1" in text.out and "DOES NOT HOLD" in text.out
    assert len(text.err.splitlines()) == 3 and "so top1>1" in text.err and "does not hold" in text.err
    assert [one["holds"] for one in told.json["assertions"]] == [False, True]
    assert told.json["error"].keys() == {"message", "where", "fix", "code", "command"}
    assert (told.json["error"]["code"], told.json["error"]["command"]) == (8, "evaluate")
    assert told.json["top1"] <= 1


def test_what_holds_ends_with_exit_code_0(evaluated):
    outcome = evaluated("--assert", "num_eval_examples==10", "--assert", "ece<=1", "--json")

    assert outcome.code == 0 and "error" not in outcome.json


@pytest.mark.parametrize(
    "text", ["top1=>0.9", "top1>=ninety", "top9>=0.9", "real_top1>=0.9", "f1>=0.9", "f1_macro>=90"]
)
def test_a_malformed_assertion_is_refused_before_any_work(text):
    outcome = run("evaluate", "--ckpt", "nowhere", "--dataset", "nowhere", "--assert", text)

    assert outcome.code == 2 and "--assert" in outcome.err and len(outcome.err.splitlines()) == 3


def test_a_class_map_leaves_out_images_and_classes(evaluated, trained, pictures, tmp_path):
    (tmp_path / "one.toml").write_text('[classes]\nred = "red"\n')
    whole = evaluated("--json").json

    closed = evaluated("--classes", tmp_path / "one.toml", "--json").json
    open_ = evaluated("--classes", tmp_path / "one.toml", "--all-compete", "--json").json

    assert (closed["top1"], closed["num_eval_examples"], closed["num_outside_map"]) == (1.0, 5, 5)
    assert open_["top1"] == whole["per_class"]["red"]["top1"]
    assert open_["num_classes"] == 2 and open_["competing_classes"] == "all"


@pytest.mark.parametrize("classes", ["", pytest.param("[classes]\nred = 1\n", marks=pytest.mark.slow)])
def test_tta_is_the_mean_of_the_probabilities_of_an_image_and_its_mirror_image(
    unsure, pictures, tmp_path, classes
):
    """The truth: evaluations of the images and of mirror images on disk, at a size without a crop."""
    map_file, words = tmp_path / "map.toml", ("--set", "data.eval_resize=square", "--precision", "fp32")
    map_file.write_text(classes)
    words += ("--classes", map_file, "--all-compete") if classes else ()
    folders = {"plain": tmp_path / "plain", "mirrored": tmp_path / "mirrored"}
    for path in pictures.rglob("*.png"):
        image = Image.open(path).resize((24, 16))
        for name, folder in folders.items():
            copy = folder / path.relative_to(pictures)
            copy.parent.mkdir(parents=True, exist_ok=True)
            (image if name == "plain" else ImageOps.mirror(image)).save(copy)
    each = []
    for name, *more in (("plain",), ("mirrored",), ("plain", "--tta")):
        saved = ("--save-predictions", tmp_path / "p.parquet", "--overwrite", "--json", "-q")
        given = ("--ckpt", unsure, "--dataset", folders[name], *words, *saved, *more)
        result = run("evaluate", *given).json
        rows = pq.read_table(tmp_path / "p.parquet").to_pylist()
        by_class = [dict(zip(row["top_classes"], row["top_probabilities"], strict=True)) for row in rows]
        each.append((result, [[row[k] for k in sorted(row)] for row in by_class], rows))

    (plain, first_NK, rows), (_, second_NK, _), (both, found_NK, _) = each
    mean_NK = (np.array(first_NK) + np.array(second_NK)) / 2
    assert mean_NK == pytest.approx(np.array(found_NK), abs=1e-7)
    labels_N = [row["label"] for row in rows]
    losses_N = -np.log(mean_NK[np.arange(len(rows)), labels_N])
    assert both["loss"] == pytest.approx(losses_N.mean(), abs=1e-6)
    assert both["top1"] == np.mean(mean_NK.argmax(axis=1) == labels_N)
    assert (both["tta"], both["asked"]["--tta"], "tta" in plain) == ("mirror", True, False)
    assert np.abs(mean_NK - np.array(first_NK)).max() > 1e-5
    assert "mean with the mirror image" in as_text(both, verbose=True)


def test_rows_of_a_class_map_keep_their_numbers(evaluated, tmp_path):
    (tmp_path / "one.toml").write_text("[classes]\nred = 1\n")

    evaluated("--classes", tmp_path / "one.toml", "--save-predictions", tmp_path / "p.parquet")

    rows = pq.read_table(tmp_path / "p.parquet").to_pylist()
    assert [row["row"] for row in rows] == [5, 6, 7, 8, 9]
    assert all("red" in row["place"] for row in rows)


def test_an_unknown_class_in_a_map_is_reported_with_the_nearest_name(evaluated, tmp_path):
    (tmp_path / "one.toml").write_text('[classes]\nred = "redd"\n')

    outcome = evaluated("--classes", tmp_path / "one.toml")

    assert outcome.code == 3 and "did you mean 'red'" in outcome.err and len(outcome.err.splitlines()) == 3


def test_real_labels_count_labelled_images_alone(evaluated, tmp_path):
    (tmp_path / "p").mkdir()
    evaluated("--save-predictions", tmp_path / "p.parquet")
    guesses = [row["top_classes"][0] for row in pq.read_table(tmp_path / "p.parquet").to_pylist()]
    lists = [[guess] for guess in guesses[:4]] + [[1 - guess] for guess in guesses[4:5]] + [[]] * 4 + [[0, 1]]
    (tmp_path / "real.json").write_text(json.dumps(lists))

    result = evaluated("--real", tmp_path / "real.json", "--json", "--assert", "real_top1>0.8").json

    assert (result["real_top1"], result["num_real_examples"]) == (5 / 6, 6)
    assert result["real_labels_by"] == "row" and len(result["intervals"]["real_top1"]) == 2


def test_real_labels_of_another_length_or_another_set_are_refused(evaluated, tmp_path):
    (tmp_path / "short.json").write_text("[[0], [1]]")
    (tmp_path / "other.json").write_text(json.dumps([[999]] * 10))

    short, other = (evaluated("--real", tmp_path / name) for name in ("short.json", "other.json"))

    assert (short.code, other.code) == (3, 3)
    assert "2 lists of ReaL labels for 10 rows" in short.err and "class 999" in other.err


def test_options_that_go_with_others_are_refused_alone(evaluated, tmp_path):
    for words, match in {
        ("--real-index", "index"): "--real real.json as well",
        ("--all-compete",): "--classes NAME as well",
        ("--real", "r.json", "--classes", "objectnet"): "with one, then with the other",
        ("--save-predictions", "p.csv"): "does not end in .parquet",
        ("--save-predictions", "p.parquet", "--dataset", "demo"): "do not fit into one file",
    }.items():
        outcome = evaluated(*words)
        assert outcome.code == 2 and match in outcome.err, words
        assert len(outcome.err.splitlines()) == 3


def test_a_place_that_cannot_be_written_is_reported_before_the_pass(evaluated, tmp_path):
    (tmp_path / "file").write_text("")

    for words in (("--out", tmp_path / "file"), ("--save-predictions", tmp_path / "file" / "p.parquet")):
        outcome = evaluated(*words)
        assert outcome.code == 5 and outcome.out == "" and len(outcome.err.splitlines()) == 3


@pytest.fixture
def no_pass(monkeypatch):
    def fail(*_, **__):
        raise AssertionError("a pass was begun")

    monkeypatch.setattr("vitcli.evaluation.inference.predict_split", fail)


@pytest.mark.parametrize("words", [("--out", "/proc/x"), ("--save-predictions", "/proc/x/p.parquet")])
def test_a_place_whose_permissions_lie_is_tried_before_the_pass(evaluated, no_pass, words):
    outcome = evaluated(*words)

    assert outcome.code == 5 and len(outcome.err.splitlines()) == 3
    assert "/proc/x" in outcome.err and words[0] in outcome.err and ".tmp" not in outcome.err


def test_names_that_are_taken_by_folders_and_files_are_reported_before_the_pass(evaluated, no_pass, tmp_path):
    (tmp_path / "evaluation.json").mkdir()
    (tmp_path / "several").mkdir()
    (tmp_path / "several/2").write_text("")

    outcomes = (
        evaluated("--out", tmp_path),
        evaluated("--out", tmp_path / "several", "--dataset", "demo"),
    )

    for outcome in outcomes:
        assert outcome.code == 5 and len(outcome.err.splitlines()) == 3
    assert "evaluation.json is a folder" in outcomes[0].err and "2 is a file" in outcomes[1].err


def test_a_folder_that_another_evaluation_writes_is_refused(evaluated, no_pass, tmp_path):
    with locked(tmp_path / FOLDER.at(tmp_path).lock):
        outcome = evaluated("--out", tmp_path)

    assert outcome.code == 5 and "pid 1 on elsewhere" in outcome.err and len(outcome.err.splitlines()) == 3


@pytest.mark.slow
def test_the_same_evaluation_writes_again_and_another_only_with_overwrite(evaluated, pictures, tmp_path):
    out = tmp_path / "out"
    (tmp_path / "out").mkdir()
    (out / "notes.txt").write_text("mine")
    two = ("--dataset", pictures / "test")
    assert evaluated("--out", out, *two).code == 0
    assert evaluated("--out", out, *two, "--batch-size", 3).code == 0

    fewer, other = evaluated("--out", out), evaluated("--out", out, *two, "--res", 16)
    replaced = evaluated("--out", out, "--overwrite", "--json")

    assert (fewer.code, other.code, replaced.code) == (2, 2, 0)
    assert "2 evaluations there, 1 here" in fewer.err and "data.image_size not given there, 16" in other.err
    assert "--overwrite" in fewer.err and len(fewer.err.splitlines()) == 3
    assert json.loads((out / "evaluation.json").read_text()) == replaced.json
    assert (out / "notes.txt").read_text() == "mine" and not (out / "1").exists()
    assert not (out / FOLDER.at(out).lock).exists()


def test_a_file_of_predictions_is_replaced_only_with_overwrite(evaluated, tmp_path):
    file = tmp_path / "p.parquet"
    file.write_text("mine")

    refused = evaluated("--save-predictions", file)
    assert refused.code == 2 and "p.parquet already exists" in refused.err and "--overwrite" in refused.err
    assert file.read_text() == "mine"
    alone = evaluated("--overwrite")
    assert alone.code == 2 and "--save-predictions FILE" in alone.err
    replaced = evaluated("--save-predictions", file, "--overwrite")
    assert replaced.code == 0, replaced.err
    assert pq.read_table(file).num_rows == 10


def test_a_run_folder_is_refused_even_to_overwrite(evaluated, no_pass, trained):
    outcome = evaluated("--out", trained, "--overwrite")

    assert outcome.code == 2 and "that of a run" in outcome.err and str(trained / "evaluation") in outcome.err


def test_what_differs_is_named():
    asked = {"--split": "test", "model.ckpt": "a", "--res": [16, 24]}

    assert differences([asked], [asked], noun="evaluation") == []
    assert differences([asked], [{**asked, "model.ckpt": "b", "--real": "r.json"}], noun="evaluation") == [
        "model.ckpt a there, b here", "--real not given there, r.json here"
    ]  # fmt: skip


def test_real_labels_that_no_image_has_are_refused(evaluated, no_pass, tmp_path):
    (tmp_path / "real.json").write_text(json.dumps([[]] * 10))

    outcome = evaluated("--real", tmp_path / "real.json")

    assert outcome.code == 3 and "none of the 10 images" in outcome.err
    assert len(outcome.err.splitlines()) == 3


def test_the_preprocessing_is_noted_once_and_correctly(trained, pictures):
    words = ("evaluate", "--ckpt", trained, "--dataset", pictures, "--res")

    grid, own = run(*words, "16:32:8", "-v"), run(*words, "16x24")

    assert grid.err.count("16x16") == 1 and "image_size by --res" in grid.out  # the weights are of 16x24
    assert grid.err.count("resampled") == 1 and "--res" not in own.out


def result_of(number: int, num_classes: int) -> dict:
    name = f"checkpoints/of_a_long_name_that_no_table_of_eighty_columns_has_room_for_{number}"
    return {
        "ckpt": name, "dataset": "pictures", "resolution": 224, "num_eval_examples": 50_000, "top1": 1.0,
        "top5": 1.0, "loss": 12.3456, "ece": 1.0, "num_classes": num_classes, "real_top1": 1.0,
        "intervals": {"top1": [0.9, 1.0]},
    }  # fmt: skip


def test_a_table_of_eighty_columns_folds_no_number_and_has_a_legend(monkeypatch):
    result = {"evaluations": [result_of(1, 5), result_of(2, 6)], "out": "folder", "notes": ["of both"]}
    for each, more in zip(result["evaluations"], ["162 were trained on", "copies"], strict=True):
        each["notes"] = ["mapped", more]

    monkeypatch.setenv("COLUMNS", "80")
    lines = as_text(result).splitlines()
    monkeypatch.setenv("COLUMNS", "200")
    wide = as_text(result).splitlines()

    assert max(map(len, lines[:3])) <= 80 and [line.split()[0] for line in lines[:3]] == ["#", "1", "2"]
    assert all("90 to 100" in line and line.endswith("100.00%") for line in lines[1:3])
    assert lines[1].count(" - ") == 1 and " - " not in lines[2]  # top-5 of five classes says nothing
    assert lines[4].startswith("1  of_a_long") and lines[5].endswith("_2 on pictures")
    notes = ["rows 1, 2: mapped", "row 1: 162 were trained on", "row 2: copies", "of both"]
    assert [line[12:] for line in lines if line.startswith("note ")] == notes
    assert lines[-1].startswith("files       folder, folders 1 to 2")
    assert "_1  pictures" in wide[1].replace("_1 p", "_1  p") and max(map(len, wide[:3])) > 80


def test_labels_in_another_order_are_mapped_for_real_labels_too(trained, pictures, tmp_path):
    import datasets

    files = sorted((pictures / "test").rglob("*.png"))
    names = ["red", "green"]  # the checkpoint has them the other way round
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})
    labels = [names.index(file.parent.name) for file in files]
    images = [{"bytes": file.read_bytes(), "path": None} for file in files]
    (tmp_path / "data").mkdir()
    datasets.Dataset.from_dict({"image": images, "label": labels}, features=features).to_parquet(
        tmp_path / "data/test.parquet"
    )
    (tmp_path / "real.json").write_text(json.dumps([[label] for label in labels]))

    result = run("evaluate", "--ckpt", trained, "--dataset", tmp_path / "data", "--real",
                 tmp_path / "real.json", "--json", "-q").json  # fmt: skip

    assert result["classes_mapped_by_name"] and result["real_top1"] == result["top1"] < 1


def test_rows_with_several_labels_are_scored_without_tables_of_classes(trained, pictures, tmp_path):
    import datasets

    files = sorted((pictures / "test").rglob("*.png"))
    several = datasets.List(datasets.ClassLabel(names=["green", "red"]))
    features = datasets.Features({"image": datasets.Image(), "label": several})
    images = [{"bytes": file.read_bytes(), "path": None} for file in files]
    labels = [[0, 1], *[[int(file.parent.name == "red")] for file in files[1:]]]
    (tmp_path / "data").mkdir()
    datasets.Dataset.from_dict({"image": images, "label": labels}, features=features).to_parquet(
        tmp_path / "data/test.parquet"
    )

    outcome = run("evaluate", "--ckpt", trained, "--dataset", tmp_path / "data", "--json", "-q", "--out",
                  tmp_path / "out", "--save-predictions", tmp_path / "p.parquet")  # fmt: skip

    assert outcome.code == 0, outcome.out
    assert outcome.json["per_class"] is None and not (tmp_path / "out/per_class.csv").exists()
    assert pq.read_table(tmp_path / "p.parquet")["label"].to_pylist() == labels


def test_an_undecodable_image_is_in_no_number_and_its_row_in_no_file(trained, pictures, tmp_path):
    for name in ("red", "green"):
        (tmp_path / "test" / name).mkdir(parents=True)
        for picture in (pictures / "test" / name).iterdir():
            (tmp_path / "test" / name / picture.name).write_bytes(picture.read_bytes())
    (tmp_path / "test/green/03.png").write_bytes(b"no picture")
    (tmp_path / "real.json").write_text(json.dumps([[0]] * 10))

    result = run("evaluate", "--ckpt", trained, "--dataset", tmp_path, "--skip-bad",
                 "--json", "-q", "--real", tmp_path / "real.json", "--save-predictions",
                 tmp_path / "p.parquet").json  # fmt: skip

    assert (result["num_eval_examples"], result["num_real_examples"], result["num_skipped_images"]) == (
        9,
        9,
        1,
    )
    rows = pq.read_table(tmp_path / "p.parquet")["row"].to_pylist()
    assert rows == [0, 1, 2, 4, 5, 6, 7, 8, 9]


@pytest.mark.slow
def test_real_weights_get_the_known_count_of_real_labels_right(shared):
    result = run("evaluate", "--ckpt", shared / "data/checkpoints/vit_ti16_augreg_in1k.npz", "--dataset",
                 shared / "data/imagenet_val_227", "--set", "data.eval_resize=none", "--json", "-q",
                 "--real", shared / "data/imagenet_real.json.gz").json  # fmt: skip

    assert result["num_real_examples"] == 959 and result["real_labels_by"] == "file name"
    assert abs(round(result["real_top1"] * 959) - 839) <= 2
