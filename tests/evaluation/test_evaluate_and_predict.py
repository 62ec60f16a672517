"""The same pixels and numbers inside training, in `vit evaluate`, in `vit predict` and in timm."""

import csv
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from tests.conftest import ONE_LAYER, run, vit
from tests.folders import HEIC
from vitcli import recipe as recipes
from vitcli.data.decoding import HEIC_ADVICE, decode
from vitcli.data.transforms import Preprocessing, to_model_range
from vitcli.evaluation.evaluate import _notes_on_other_images
from vitcli.models.build import architecture, build
from vitcli.training.text import as_text
from vitcli.weights.describe import WeightsInfo
from vitcli.weights.io import write_weights


@pytest.fixture(scope="module")
def trained(unsure_run) -> Path:
    return unsure_run


def test_evaluate_gives_the_very_numbers_of_the_summary(trained, photos):
    summary = json.loads((trained / "summary.json").read_text())

    result = run("evaluate", "--ckpt", trained, "--dataset", photos, "--json", "-q").json

    for key in ("top1", "top5", "loss", "num_eval_examples", "preprocessing", "resolution"):
        assert result[key] == summary[key], key
    assert result["precision"] == "fp32"


def test_only_what_the_command_line_names_changes_the_stored_preprocessing(trained, photos):
    words = ("evaluate", "--ckpt", trained, "--dataset", photos, "--json", "-q")
    stored = run(*words).json
    changed = run(*words, "--set", "data.eval_resize=square", "--res", "16").json
    by_recipe = run(*words, "--recipe", "evaluate/default", "--res", "16").json

    assert stored["preprocessing"] == (
        "16x24, short side 17 or more, centre crop, bicubic with antialias, mean 0.5, std 0.5"
    )
    assert stored["preprocessing_from"] == "as stored with the weights"
    assert changed["preprocessing"] == "16x16, whole image resized, bicubic with antialias, mean 0.5, std 0.5"
    assert "but for" in changed["preprocessing_from"]
    assert by_recipe["preprocessing_from"] == "as recipe evaluate/default says"


def test_a_folder_with_some_classes_and_files_that_cannot_be_read_is_scored_and_says_so(
    trained, photos, tmp_path
):
    shutil.copytree(photos / "test/red", tmp_path / "photos/dev/red")
    (tmp_path / "photos/dev/red/a.HEIC").write_bytes(b"HEIC")
    words = ("evaluate", "--ckpt", trained, "--dataset", tmp_path / "photos", "--split", "dev", "--json")
    outcome, whole = run(*words), run("evaluate", "--ckpt", trained, "--dataset", photos, "--json", "-q").json
    result = outcome.json

    assert "left out: 1 file (HEIC: install pillow-heif, or convert)\n" in outcome.err
    assert any("2 classes are absent from the data" in note for note in outcome.json["notes"])
    assert (result["absent_classes"], result["num_classes"]) == (["green"], 2)
    assert (result["num_left_out_files"], result["left_out_files"]) == (1, ["dev/red/a.HEIC"])
    (red,) = result["per_class"].values()
    assert red["top1"] == whole["per_class"]["red"]["top1"] and red["num_examples"] == 5
    assert red["auroc"] is red["aupr"] is result["auroc_macro"] is None  # no image of another class
    predicted = run("predict", "--ckpt", trained, tmp_path / "photos", "--json").json
    assert (len(predicted["predictions"]), predicted["left_out_files"]) == (5, ["dev/red/a.HEIC"])


def test_the_dev_part_is_scored_again_where_no_other_split_is(photos, tmp_path):
    words = (
        "finetune --recipe finetune/default --ckpt random --model ViT-demo/8 --set model.layers=1 --res 16"
    )
    words += " --steps 2 --batch-size 8 --lr 0.01 --json -q"
    flat = ("--dataset", photos / "train", "--set", "data.dev_fraction=0.25")
    summary = run(*words.split(), *flat, "--out", tmp_path / "run").json

    again = run("evaluate", "--ckpt", tmp_path / "run", "--dataset", photos / "train", "--json", "-q").json
    bare = shutil.copy(tmp_path / "run" / "model.safetensors", tmp_path / "bare.safetensors")
    elsewhere = run("evaluate", "--ckpt", bare, "--json", "-q")
    all_of_it = run("evaluate", "--ckpt", tmp_path / "run", "--dataset", photos / "train", "--split", "train",
                    "--json", "-q").json  # fmt: skip

    assert summary["num_eval_examples"] == 6
    assert [again[key] for key in ("top1", "loss", "num_eval_examples")] == [
        summary[key] for key in ("top1", "loss", "num_eval_examples")
    ]
    assert elsewhere.code == 2 and "no data set is named" in elsewhere.json["error"]["message"]
    assert (all_of_it["num_eval_examples"], all_of_it["notes"]) == (
        24,
        ["18 of these 24 images were trained on"],
    )
    assert again["eval_fingerprint"] == summary["eval_fingerprint"] != all_of_it["eval_fingerprint"]
    assert summary["classes_not_held_out"] == [] and summary["num_held_out_copies"] == 0


def test_without_a_data_set_the_held_out_images_of_the_run_are_scored(photos, tmp_path, monkeypatch):
    shutil.copytree(photos / "train", tmp_path / "here" / "photos")
    monkeypatch.chdir(tmp_path / "here")
    words = f"finetune {ONE_LAYER} --res 16 --steps 1 --batch-size 4 --lr 0.01 --json -q"
    summary = run(*words.split(), "--dataset", "photos/", "--out", "run").json
    assert summary["dataset"] == "photos"

    evaluation = ("evaluate", "--json", "-q", "--ckpt")
    alone, named = run(*evaluation, "run").json, run(*evaluation, "run", "--dataset", "./photos").json
    monkeypatch.chdir(tmp_path)  # the name in the recipe is relative to where it was trained
    elsewhere = run(*evaluation, "here/run/model.safetensors").json
    for result in (alone, named, elsewhere):
        assert (result["top1"], result["eval_fingerprint"]) == (summary["top1"], summary["eval_fingerprint"])
    assert alone["asked"] == named["asked"]

    (tmp_path / "here" / "photos").rename(tmp_path / "moved")
    moved = run(*evaluation, "here/run")
    assert moved.code == 3 and "no longer where it was: photos" in moved.json["error"]["message"]


def test_runs_that_held_out_other_images_are_not_compared_without_a_word(photos, tmp_path):
    data = shutil.copytree(photos / "train", tmp_path / "photos")
    words = f"finetune {ONE_LAYER} --res 16 --steps 1 --batch-size 4 --lr 0.01 --json -q"
    for name, fraction in (("a", 0.1), ("b", 0.3)):
        run(
            *words.split(),
            "--dataset",
            data,
            "--out",
            tmp_path / name,
            "--set",
            f"data.dev_fraction={fraction}",
        )
    both = ("evaluate", "--ckpt", tmp_path / "a", "--ckpt", tmp_path / "b", "--dataset", data, "-q")

    table = run(*both, "--out", tmp_path / "own").out
    of_all = run(*both, "--split", "train", "--json", "--out", tmp_path / "all").json
    refused = run("compare", tmp_path / "own/1", tmp_path / "own/2")

    assert "not comparable: each run was scored on its own held-out images" in table
    assert "use --split train or a new data set" in table
    assert refused.code == 3 and len(refused.err.splitlines()) == 3
    assert "--split train scores all of the data set with both" in refused.err
    assert of_all["notes"] == [] and all(
        "were trained on" in each["notes"][0] for each in of_all["evaluations"]
    )
    assert run("compare", tmp_path / "all/1", tmp_path / "all/2").code == 0


def test_runs_that_held_out_other_images_are_to_be_compared_on_a_split_that_none_was_trained_on(photos):
    def task(fingerprint: str) -> SimpleNamespace:
        recipe = recipes.load("evaluate/default", (), {"data.dataset": str(photos)}, training=False)
        return SimpleNamespace(
            recipe=recipe, fingerprint=fingerprint, split=SimpleNamespace(dev_cut={"split": "train"})
        )

    (note,) = _notes_on_other_images([task("a"), task("b")])

    assert note.startswith(f"rows of {photos} are not comparable") and note.endswith("; use --split test")
    assert _notes_on_other_images([task("a"), task("a")]) == []


def test_after_the_folder_has_changed_the_same_images_are_scored(tmp_path):
    for number in range(20):
        place = tmp_path / "photos" / ("one", "two")[number % 2] / f"{number:02}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (number * 12, 0, 0)).save(place)
    (tmp_path / "photos" / "alone").mkdir()
    Image.new("RGB", (16, 16)).save(tmp_path / "photos" / "alone" / "99.png")
    words = f"finetune {ONE_LAYER} --res 16 --steps 2 --batch-size 4 --lr 0.01 --json -q"
    summary = run(*words.split(), "--dataset", tmp_path / "photos", "--out", tmp_path / "run").json
    assert summary["classes_not_held_out"] == ["alone"]
    assert "no held-out image of: alone" in as_text(summary)
    exported = tmp_path / "exported.safetensors"
    exported.write_bytes((tmp_path / "run" / "model.safetensors").read_bytes())
    for file in sorted((tmp_path / "photos" / "one").iterdir())[:5]:
        file.rename(file.with_name(f"x{file.name}"))
    Image.new("RGB", (16, 16), (0, 0, 9)).save(tmp_path / "photos" / "two" / "10a.png")

    for ckpt in (tmp_path / "run", exported):
        result = run("evaluate", "--ckpt", ckpt, "--dataset", tmp_path / "photos", "--json", "-q").json
        for key in ("top1", "loss", "num_eval_examples", "eval_fingerprint"):
            assert result[key] == summary[key], key
        assert "1 new image not scored" in result["notes"][0]
    assert "seen_images" not in (tmp_path / "run" / "config.json").read_text()
    words = ("evaluate", "--ckpt", tmp_path / "run", "--dataset", tmp_path / "photos", "--split", "train")
    text = run(*words, "-v")
    assert "19 of these 22 images were trained on" in text.out and "note" in text.err
    assert "19 of these 22 images were trained on" in " ".join(run(*words).out.split())
    stored = run("inspect", exported, "--summary", "--json").json["metadata"]
    assert stored["seen_images"] == {"trained_on": 19, "held_out": 2}


@pytest.mark.slow
def test_evaluation_is_the_same_on_two_processes_and_with_another_batch(trained, photos):
    alone = run("evaluate", "--ckpt", trained, "--dataset", photos, "--batch-size", 3, "--json", "-q").json

    together = vit("evaluate", "--ckpt", trained, "--dataset", photos, "--batch-size", 3, "--json", "-q",
                   "--num-processes", 2)  # fmt: skip

    assert together.returncode == 0, together.stderr
    result = json.loads(together.stdout)
    for key in ("top1", "top5", "loss", "num_eval_examples"):
        assert result[key] == alone[key], key
    assert (result["num_processes"], result["num_eval_examples"]) == (2, 10)


def test_predict_agrees_with_evaluate_image_by_image(trained, photos):
    result = run("evaluate", "--ckpt", trained, "--dataset", photos, "--json", "-q").json

    guesses = run("predict", "--ckpt", trained, photos / "test", "--json", "-q").json["predictions"]

    right = [Path(guess["file"]).parent.name == guess["top"][0]["class"] for guess in guesses]
    assert len(right) == 10
    assert sum(right) / 10 == result["top1"]


def test_probabilities_add_up_and_fall(trained, photos):
    (guess,) = run("predict", "--ckpt", trained, photos / "test/red/00.png", "--json", "-q").json[
        "predictions"
    ]

    shares = [top["probability"] for top in guess["top"]]
    assert sum(shares) == pytest.approx(1.0)
    assert shares == sorted(shares, reverse=True)


def test_timm_loads_the_run_folder_and_gives_the_same_logits(trained, photos):
    picture = photos / "test/green/01.png"
    stored = json.loads((trained / "config.json").read_text())["vit"]["preprocessing"]
    pixels = Preprocessing.from_dict(stored)(decode(picture.read_bytes(), where=str, row=0))
    image_1CHW = to_model_range(
        torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None], mean=(0.5,) * 3, std=(0.5,) * 3
    )
    model = timm.create_model(f"local-dir:{trained}", pretrained=True).eval()

    with torch.no_grad():
        shares = torch.softmax(model(image_1CHW), dim=-1)[0]

    (guess,) = run("predict", "--ckpt", trained, picture, "--json", "-q").json["predictions"]
    for top in guess["top"]:
        assert float(shares[top["label"]]) == pytest.approx(top["probability"], abs=1e-6)


def test_predict_takes_files_folders_and_globs_each_image_once(trained, photos, tmp_path):
    words = [photos / "test/red", photos / "test/red/00.png", f"{photos}/test/*/01.png"]

    lines = run("predict", "--ckpt", trained, *words, "--jsonl", "-q").out.splitlines()

    files = [json.loads(line)["file"] for line in lines]
    assert len(files) == 6 and len(set(files)) == 6


def test_a_table_shows_class_and_percentage(trained, photos):
    table = run("predict", "--ckpt", trained, photos / "test/red/00.png", "-q").out

    assert "probability" in table and "%" in table and "red" in table


def test_one_unreadable_file_costs_no_other_answer(trained, photos, tmp_path):
    whole = run("predict", "--ckpt", trained, photos / "test", "--json", "-q").json
    bad = tmp_path / "no image [1].jpg"
    bad.write_bytes(b"no image")
    words = ("predict", "--ckpt", trained, bad, photos / "test")

    stopped = run(*words, "-q", "--json", "--out", tmp_path / "all.csv")
    lines = run(*words, "-q", "--jsonl")
    skipped = run(*words, "-q", "--skip-bad", "--out", tmp_path / "all.jsonl")
    alone = run("predict", "--ckpt", trained, bad, "-q", "--out", tmp_path / "none.csv")

    assert stopped.code == 3 and stopped.json["predictions"] == whole["predictions"]
    assert stopped.json["error"]["message"].startswith("1 of 11 images cannot be read: ")
    assert "check this file, or" in stopped.json["error"]["fix"]
    assert stopped.json["error"]["where"] == str(bad) == stopped.json["unreadable"][0]["file"]
    assert lines.code == 3 and lines.err.startswith("error: 1 of 11") and len(lines.out.splitlines()) == 11
    assert skipped.code == 0 and f"left out: {bad} (" in skipped.out
    assert alone.code == 3 and not alone.out and not (tmp_path / "none.csv").exists()

    # The files have the same numbers, and a row for the image that has none.
    rows = list(csv.DictReader((tmp_path / "all.csv").open()))
    assert [(row["file"], row["class"], float(row["probability"])) for row in rows[:-1]] == [
        (each["file"], each["top"][0]["class"], each["top"][0]["probability"])
        for each in whole["predictions"]
    ]
    assert rows[-1]["file"] == str(bad) and not rows[-1]["class"] and "not a JPEG" in rows[-1]["error"]
    assert float(rows[0]["probability"]) + float(rows[0]["probability_2"]) == pytest.approx(1)
    of_file = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert of_file[:-1] == whole["predictions"] and of_file[-1]["top"] == [] and of_file[-1]["error"]
    assert run(*words, "-q", "--out", tmp_path / "all.csv").code == 2  # never replaced unasked


def test_every_named_file_is_answered_or_ends_with_exit_code_3_and_others_of_a_folder_are_counted(tmp_path):
    for name in ("a.HEIC", "b.png"):  # an image whatever it is called
        Image.new("RGB", (16, 16)).save(tmp_path / name, "PNG")
    Image.new("RGB", (16, 16)).save(tmp_path / "c.nef", "TIFF")  # as files of cameras look to a decoder
    (tmp_path / "d.heic").write_bytes(HEIC)
    named, words = sorted(tmp_path.iterdir()), ("predict", "--ckpt", "demo", "-q", "--json")

    stopped, skipped = run(*words, *named), run(*words, *named, "--skip-bad")
    walked, matched, alone = run(*words, tmp_path), run(*words, f"{tmp_path}/*"), run(*words, named[3])

    for outcome in (stopped, skipped, walked, matched):
        assert [Path(each["file"]).name for each in outcome.json["predictions"]] == ["a.HEIC", "b.png"]
    assert [outcome.code for outcome in (stopped, skipped, walked, matched, alone)] == [3, 0, 0, 0, 3]
    assert stopped.json["error"]["message"].startswith("2 of 4 images cannot be read: ")
    reasons = [(Path(each["file"]).name, each["message"]) for each in stopped.json["unreadable"]]
    assert reasons == [("c.nef", "an image cannot be read: raw files of cameras: convert"),
                       ("d.heic", f"an image cannot be read: {HEIC_ADVICE}")]  # fmt: skip
    assert walked.json["left_out_files"] == ["c.nef", "d.heic"] and walked.json["unreadable"] == []
    assert alone.json["error"]["message"].endswith(f"is not an image vit can read: {HEIC_ADVICE}")


def test_many_images_get_a_line_each_and_topk_never_exceeds_the_classes(trained, photos):
    many = run("predict", "--ckpt", trained, photos / "test")
    all_classes = run("predict", "--ckpt", trained, photos / "test", "--topk", 9)
    few = run("predict", "--ckpt", trained, photos / "test/red/00.png", "-q")

    many_out, unchecked, about = many.out.partition("new classes ")
    assert unchecked and about.startswith("not checked: ") and about.count("\n") == 1
    green, red = many_out.split("\n\n")
    for name, listing in (("green", green), ("red", red)):
        folder, header, *rows = listing.splitlines()
        assert folder == f"{photos / 'test' / name}/" and len(rows) == 5 and rows[0].startswith("00.png ")
        assert header.split() == ["image", "class", "probability", "runner-up"]
        assert all(row.count("%") == 2 and "red" in row and "green" in row for row in rows)
    assert len(all_classes.out.splitlines()) == 22 and "--topk 9 lists all 2 classes" in all_classes.err
    assert len(few.out.splitlines()) == 4
    address = run("predict", "--ckpt", trained, "https://example.org/a.jpg", "-q")
    assert address.code == 3 and "download it first" in address.err


def test_classes_in_another_order_are_mapped_by_name(trained, photos, tmp_path):
    import datasets

    files = sorted((photos / "test").rglob("*.png"))
    names = ["red", "green"]  # class folders sort the other way round
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})
    images = [{"bytes": file.read_bytes(), "path": None} for file in files]
    labels = [names.index(file.parent.name) for file in files]
    table = datasets.Dataset.from_dict({"image": images, "label": labels}, features=features)
    (tmp_path / "swapped").mkdir()
    table.to_parquet(tmp_path / "swapped/test.parquet")

    straight = run("evaluate", "--ckpt", trained, "--dataset", photos, "--json", "-q").json
    swapped = run("evaluate", "--ckpt", trained, "--dataset", tmp_path / "swapped", "--json", "-q").json

    assert swapped["classes_mapped_by_name"] and not straight["classes_mapped_by_name"]
    assert (swapped["top1"], swapped["num_eval_examples"]) == (straight["top1"], 10)


def test_other_classes_are_refused_with_both_lists(trained, photos, tmp_path):
    for name in ("red", "blue"):
        (tmp_path / "test" / name).mkdir(parents=True)
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "test" / name / "a.png")

    outcome = run("evaluate", "--ckpt", trained, "--dataset", tmp_path, "--json", "-q")

    assert outcome.code == 3
    assert "blue" in outcome.json["error"]["where"] and "green" in outcome.json["error"]["where"]


def test_an_undecodable_image_stops_evaluation_or_is_left_out_and_counted(trained, photos, tmp_path):
    for name in ("red", "green"):
        (tmp_path / "test" / name).mkdir(parents=True)
        for picture in (photos / "test" / name).iterdir():
            (tmp_path / "test" / name / picture.name).write_bytes(picture.read_bytes())
    (tmp_path / "test/red/broken.png").write_bytes(b"no picture")

    stopped = run("evaluate", "--ckpt", trained, "--dataset", tmp_path, "--json", "-q")
    skipped = run("evaluate", "--ckpt", trained, "--dataset", tmp_path, "--json", "-q",
                  "--set", "data.on_bad_image=skip")  # fmt: skip
    whole = run("evaluate", "--ckpt", trained, "--dataset", photos, "--json", "-q")

    assert stopped.code == 3 and "broken.png" in stopped.json["error"]["where"]
    assert skipped.json["num_skipped_images"] == 1 and "broken.png" in skipped.json["skipped_images"][0]
    assert (skipped.json["top1"], skipped.json["num_eval_examples"]) == (whole.json["top1"], 10)


@pytest.mark.parametrize(
    ("settings", "right"),
    [
        ((), 225),
        (("data.eval_resize=square",), 222),
        (("data.eval_resize=square", "data.interpolation=bilinear"), 219),
    ],
)
@pytest.mark.slow
def test_real_weights_get_the_known_count_of_imagenet_images_right(shared, settings, right):
    words = [word for setting in settings for word in ("--set", setting)]
    result = run("evaluate", "--ckpt", shared / "data/checkpoints/vit_ti16_augreg_in1k.npz",
                 "--dataset", shared / "data/imagenet_sample", *words, "--json", "-q").json  # fmt: skip

    assert result["num_eval_examples"] == 270
    assert abs(round(result["top1"] * 270) - right) <= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "right"), [("data.eval_resize=none", 818), ("data.eval_resize=square", 819)]
)
def test_both_formats_get_the_same_known_count_of_validation_images_right(shared, setting, right):
    results = [
        run(
            "evaluate",
            "--ckpt",
            shared / f"data/checkpoints/vit_ti16_augreg_in1k.{suffix}",
            "--dataset",
            shared / "data/imagenet_val_227",
            "--set",
            setting,
            "--json",
            "-q",
        ).json
        for suffix in ("npz", "safetensors")
    ]

    assert results[0]["loss"] == results[1]["loss"]
    assert abs(round(results[0]["top1"] * 1000) - right) <= 2


def test_equal_logits_are_the_lower_class_in_predict_as_in_evaluate(photos, tmp_path):
    arch = architecture("ViT-demo/8", image_size=(16, 16), num_classes=17)  # whose head is zero
    pixels = Preprocessing((16, 16), "square", 1.0, "bilinear", False, (0.5,) * 3, (0.5,) * 3)
    described = {"preprocessing": pixels.as_dict(), "class_names": None, "metadata": {}}
    write_weights(tmp_path, build(arch, dropout=0.0).state_dict(), WeightsInfo(arch, **described))

    predicted = run("predict", photos / "test/red", "--ckpt", tmp_path, "--json", "-q").json

    for row in predicted["predictions"]:
        assert [entry["label"] for entry in row["top"]] == [0, 1, 2, 3, 4]
        assert all(entry["probability"] == pytest.approx(1 / 17) for entry in row["top"])
