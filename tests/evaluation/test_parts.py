"""--part-rows: parts make what one file holds, whoever makes them, and only what is left is made again."""

import json
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

import vitcli
from tests.conftest import run, vit
from vitcli.errors import VitError
from vitcli.evaluation import inference
from vitcli.evaluation.text import predictions_as_text
from vitcli.output import shared_work
from vitcli.output.leases import Cells
from vitcli.results import PredictionResult

EMBED = ("embed", "--ckpt", "demo", "--split", "train", "--json", "-q")
PREDICT = ("predict", "--ckpt", "demo", "--json", "-q")
SPEEDS = ("out", "elapsed_s", "images_per_s")


def made(*words: object, code: int = 0) -> dict:
    outcome = run(*words)
    assert outcome.code == code, outcome.err
    return outcome.json


@pytest.fixture(scope="module")
def embedded(photos, tmp_path_factory) -> Path:
    """A folder with one.safetensors and the same 24 images in parts of seven."""
    folder = tmp_path_factory.mktemp("parts")
    made(*EMBED, "--dataset", photos, "--out", folder / "one.safetensors")
    counts = made(*EMBED, "--dataset", photos, "--out", folder / "parts", "--part-rows", 7)
    assert (counts["num_parts"], counts["num_examples"], counts["part_rows"]) == (4, 24, 7)
    return folder


def test_the_parts_hold_what_one_file_holds(embedded, photos):
    one, parts = load_file(embedded / "one.safetensors"), vitcli.load_features(embedded / "parts")

    assert parts.keys() == one.keys() == {"features", "logits", "labels", "rows"}
    for name, values in one.items():
        assert np.array_equal(np.asarray(parts[name]), values), name
        assert parts[name].shape == values.shape
    index = json.loads((embedded / "parts/parts.json").read_text())
    assert [len(load_file(embedded / "parts" / name)["rows"]) for name in index["parts"]] == [7, 7, 7, 3]
    assert index["asked"]["split"].endswith("split train") and index["num_examples"] == 24
    assert sorted(file.name for file in (embedded / "parts").iterdir()) == ["parts", "parts.json"]


def random_rows(draw: np.random.Generator) -> object:
    """An index of 24 rows, of each kind that NumPy takes."""
    first, last, step = draw.integers(-30, 30, 3).tolist()
    some = draw.integers(-24, 24, draw.integers(0, 30))
    kinds = (int(draw.integers(-24, 24)), slice(first, last, step or None), some, draw.random(24) < 0.3)
    return kinds[draw.integers(len(kinds))]


@pytest.mark.parametrize("seed", range(60))
def test_rows_of_the_parts_are_indexed_as_those_of_an_array(embedded, seed):
    one, parts = load_file(embedded / "one.safetensors"), vitcli.load_features(embedded / "parts")
    rows = random_rows(np.random.default_rng(seed))

    for name in ("features", "rows"):
        found = parts[name][rows]
        assert np.array_equal(found, one[name][rows]) and found.dtype == one[name].dtype


def test_rows_beyond_the_end_and_a_folder_without_parts_are_refused(embedded, photos, tmp_path):
    parts = vitcli.load_features(embedded / "parts")
    copy = shutil.copytree(embedded / "parts", tmp_path / "copy")
    (copy / "parts/000000000014.safetensors").unlink()
    (tmp_path / "text.safetensors").write_text("text")

    for rows in ([24], [-25], 24):
        with pytest.raises(IndexError, match="rows of 0 to 23 are there"):
            parts["features"][rows]
    for place in (copy, photos, tmp_path / "none", tmp_path / "text.safetensors"):
        with pytest.raises(VitError, match="the features cannot be read"):
            vitcli.load_features(place)


def test_only_parts_that_are_missing_or_damaged_are_made_again(embedded, photos, tmp_path, monkeypatch):
    words = (*EMBED, "--dataset", photos, "--out", tmp_path / "parts", "--part-rows", 7)
    shutil.copytree(embedded / "parts", tmp_path / "parts")
    files = sorted((tmp_path / "parts/parts").glob("0*"))
    contents = [file.read_bytes() for file in files]
    files[1].unlink()
    files[3].write_bytes(contents[3][:100])
    (tmp_path / "parts/parts/.tmp-000000000007.safetensors-0123456789abcdef").write_bytes(contents[1])
    seen = []
    monkeypatch.setattr(
        inference, "check_finite", lambda outputs, batch, **more: seen.append(len(batch.rows_B))
    )

    assert made(*words)["num_examples"] == 24
    assert sum(seen) == 7 + 3
    assert [file.read_bytes() for file in files] == contents


def test_predictions_of_the_parts_follow_each_other_as_in_one_file(photos, tmp_path):
    words = (*PREDICT, photos / "test", photos / "train/red")
    one = vitcli.predict([photos / "test", photos / "train/red"], ckpt="demo", out=tmp_path / "one.jsonl")

    counts = made(*words, "--out", tmp_path / "parts", "--part-rows", 5)
    again = vitcli.predict(
        [photos / "test", photos / "train/red"], ckpt="demo", out=tmp_path / "parts", part_rows=5, quiet=True
    )
    files = sorted((tmp_path / "parts/parts").iterdir())
    assert "".join(file.read_text() for file in files) == (tmp_path / "one.jsonl").read_text()
    assert [len(file.read_text().splitlines()) for file in files] == [5, 5, 5, 5, 2]
    assert (counts["num_examples"], counts["num_parts"]) == (22, 5) and "predictions" not in counts
    assert isinstance(again, PredictionResult) and list(again.predictions) == one.predictions
    assert again._repr_html_().count("<img") == one._repr_html_().count("<img")


def test_images_that_cannot_be_read_are_named_and_fill_a_part(photos, tmp_path):
    images = [tmp_path / f"{number}.png" for number in range(6)]
    for number, image in enumerate(images):
        Image.new("RGB", (9, 9)).save(image) if number < 3 else image.write_bytes(b"no image")
    words = (*PREDICT, *images, "--out", tmp_path / "parts", "--part-rows", 2)

    error = made(*words, code=3)["error"]
    assert "3 of 6 images cannot be read" in error["message"]
    counts = made(*words, "--skip-bad")
    assert (counts["num_examples"], counts["num_skipped_images"]) == (3, 3)
    assert counts["skipped_images"] == list(map(str, images[3:]))
    lines = (tmp_path / "parts/parts/000000000004.jsonl").read_text().splitlines()
    assert [json.loads(line)["file"] for line in lines] == list(map(str, images[4:]))
    assert "left out    3 images that cannot be read" in predictions_as_text(counts)
    words = (*PREDICT, *images[3:], "--out", tmp_path / "none", "--part-rows", 2, "--skip-bad")
    assert "3 of 3 images cannot be read" in made(*words, code=3)["error"]["message"]


def test_features_of_a_part_without_any_image_that_can_be_read_are_none(photos, tmp_path):
    folder = shutil.copytree(photos / "train", tmp_path / "photos/train").parent
    for image in sorted((folder / "train/green").iterdir())[:6]:
        image.write_bytes(b"no image")
    words = (*EMBED, "--dataset", folder, "--out", tmp_path / "parts", "--part-rows", 4, "--skip-bad")

    counts = made(*words)
    parts = vitcli.load_features(tmp_path / "parts")
    assert (counts["num_examples"], counts["num_skipped_images"]) == (18, 6)
    assert parts["rows"][:].tolist() == list(range(6, 24)) and parts["features"].shape == (18, 96)
    assert parts["logits"].shape == (18, 24)
    for image in (folder / "train").rglob("*.png"):
        image.write_bytes(b"no image")
    message = made(*words[:-1], "--overwrite", "--skip-bad", code=3)["error"]["message"]
    assert message.startswith("no image of") and message.endswith("can be decoded")


def test_an_evaluation_in_parts_is_that_of_all_rows(unsure_run, photos, tmp_path):
    words = ("evaluate", "--ckpt", unsure_run, "--dataset", photos, "--json", "-q", "--res", "16:32:16")

    one = made(*words, "--out", tmp_path / "one")
    parts = made(*words, "--out", tmp_path / "parts", "--part-rows", 4)
    assert {key: one[key] for key in one if key not in SPEEDS} == {
        key: parts[key] for key in parts if key not in SPEEDS
    }
    for file in (tmp_path / "one").iterdir():
        if file.name != "evaluation.json":
            assert file.read_bytes() == (tmp_path / "parts" / file.name).read_bytes(), file.name
    assert sorted(each.name for each in (tmp_path / "parts/passes").iterdir()) == ["16", "32"]
    other = made(*words, "--out", tmp_path / "parts", "--part-rows", 5, code=2)
    assert "another --part-rows" in other["error"]["message"]


def test_parts_of_an_evaluation_that_are_damaged_or_have_no_readable_image_do_no_harm(
    unsure_run, photos, tmp_path
):
    folder = shutil.copytree(photos / "test", tmp_path / "photos/test").parent
    images = sorted((folder / "test").rglob("*.png"))
    for image in images[4:8]:
        image.write_bytes(b"no image")
    words = ("evaluate", "--ckpt", unsure_run, "--dataset", folder, "--json", "-q")
    parts = ("--out", tmp_path / "parts", "--part-rows", 2)

    assert made(*words, *parts, code=3)["error"]
    passes = next((tmp_path / "parts/passes").iterdir()) / "parts"
    kept = passes / "000000000000.npz"
    before = kept.stat().st_mtime_ns
    one, several = made(*words, "--skip-bad"), made(*words, *parts, "--skip-bad")
    assert {key: one[key] for key in one if key not in SPEEDS} == {
        key: several[key] for key in one if key not in SPEEDS
    }
    assert kept.stat().st_mtime_ns == before  # of the call that was not told to skip
    for number, damage in enumerate((b"", kept.read_bytes()[:200], b"PK\x03\x04")):
        (passes / f"{2 * number:012}.npz").write_bytes(damage)
    shutil.copy(passes / "000000000008.npz", passes / ".tmp-000000000008.npz-0123456789abcdef")
    again = made(*words, *parts, "--skip-bad")
    assert (again["top1"], again["num_eval_examples"]) == (one["top1"], one["num_eval_examples"])


@pytest.mark.slow
def test_two_processes_make_the_same_parts(embedded, unsure_run, photos, tmp_path):
    evaluate = ("evaluate", "--ckpt", unsure_run, "--dataset", photos, "--json", "-q", "--res", "16:32:16")
    two, out = ("--num-processes", 2), tmp_path / "parts"

    for words in ((*EMBED, "--dataset", photos), evaluate):
        outcome = vit(*words, *two, "--out", out, "--part-rows", 7)
        assert outcome.returncode == 0, outcome.stderr
        if words is not evaluate:
            for file in (embedded / "parts/parts").iterdir():
                assert file.read_bytes() == (out / "parts" / file.name).read_bytes()
            out = tmp_path / "evaluation"
    one = made(*evaluate)
    keys = one.keys() - {*SPEEDS, "num_processes"}
    assert {key: json.loads(outcome.stdout)[key] for key in keys} == {key: one[key] for key in keys}


def test_a_request_that_has_left_no_part_gives_way_to_another(photos, tmp_path):
    out = tmp_path / "parts"
    made(*PREDICT, photos / "test", "--out", out, "--part-rows", 4)
    shutil.rmtree(out / "parts")

    assert made(*PREDICT, photos / "test", "--out", out, "--part-rows", 5)["num_parts"] == 2
    (out / "parts.json").write_text("damaged")
    error = made(*PREDICT, photos / "test", "--out", out, "--part-rows", 4, code=2)["error"]
    assert "the folder holds other parts" in error["message"]


def test_a_worker_leaves_what_another_one_makes_and_has_all_in_the_end(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(shared_work, "POLL_S", 0.01)
    words, out = (*PREDICT, photos / "test"), tmp_path / "parts"
    made(*words, "--out", tmp_path / "all", "--part-rows", 4)
    (out / "parts").mkdir(parents=True)
    shutil.copy(tmp_path / "all/parts.json", out / "parts.json")
    other, name = Cells(out), "000000000004.jsonl"
    other.begin(["0", "4", "8"])
    lease = other.claim(["4"], [out / "parts" / name])

    def make() -> None:
        with lease:
            while len(list((out / "parts").iterdir())) < 2:
                time.sleep(0.01)
            assert not (out / "parts" / name).exists()
            shutil.copy(tmp_path / "all/parts" / name, out / "parts" / name)

    thread = threading.Thread(target=make)
    thread.start()
    counts = made(*words, "--out", out, "--part-rows", 4)
    thread.join()

    assert (counts["num_examples"], counts["num_parts"]) == (10, 3)
    for file in (tmp_path / "all/parts").iterdir():
        assert file.read_bytes() == (out / "parts" / file.name).read_bytes()
    assert not other.home.exists()


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        (PREDICT, ("--part-rows", 5), "parts of 5 images are files in a folder"),
        (PREDICT, ("--part-rows", 5, "--out", "a.csv"), "--out a, or leave --part-rows out"),
        (PREDICT, ("--part-rows", 0, "--out", "a"), "--part-rows must be greater"),
        (PREDICT, ("--part-rows", "many", "--out", "a"), "--part-rows"),
        (PREDICT, ("--part-rows", 5, "--out", "a", "--why", "w.html"), "--why needs all images at once"),
        (PREDICT, ("--part-rows", 5, "--out", "a", "--sort-into", "s"), "--sort-into needs all images"),
        (PREDICT, ("--part-rows", 5, "--out", "OTHER"), "the folder holds other files (notes.txt)"),
        (PREDICT, ("--part-rows", 5, "--out", "PARTS"), "the folder holds other parts: another --part-rows"),
        (PREDICT, ("--part-rows", 4, "--out", "PARTS", "--topk", 2), "other parts: another topk"),
        (PREDICT, ("--part-rows", 4, "--out", "PARTS", "--precision", "bf16"), "another precision"),
        (EMBED, ("--part-rows", 5, "--out", "a.safetensors"), "parts of 5 images are files in a folder"),
        (EMBED, ("--part-rows", 4, "--out", "PARTS"), "the folder holds other parts: another"),
        (EMBED, ("--part-rows", 4, "--out", "/proc/parts"), "/proc"),
        (("evaluate", "--ckpt", "demo", "--json"), ("--part-rows", 5), "--out FOLDER as well"),
    ],
)
def test_what_makes_no_parts_is_refused_and_loses_nothing(photos, tmp_path, command, words, message):
    place = {"PARTS": tmp_path / "parts", "OTHER": tmp_path / "other"}
    place["OTHER"].mkdir()
    (place["OTHER"] / "notes.txt").write_text("mine")
    data = (photos / "test",) if command is PREDICT else ("--dataset", photos)
    if "PARTS" in words:
        made(*PREDICT, photos / "test", "--out", place["PARTS"], "--part-rows", 4)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}

    outcome = run(*command, *data, *(place.get(word, word) for word in words))

    assert outcome.code in (2, 5), outcome.err
    error = outcome.json["error"]
    assert message in " | ".join((error["message"], error["where"], error["fix"])), error
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_a_list_of_runs_shows_who_makes_which_part(embedded, tmp_path):
    out = shutil.copytree(embedded / "parts", tmp_path / "parts")
    index = json.loads((out / "parts.json").read_text())
    (out / "parts.json").write_text(json.dumps({**index, "num_examples": None}))
    (out / index["parts"][2]).unlink()
    cells = Cells(out)
    cells.begin(["0", "7", "14", "21"])
    with cells.claim(["0"], [out / index["parts"][0]]):
        pass
    with cells.claim(["14"], [out / index["parts"][2]]):
        text = run("report", "--list", out).out

    lines = {line.split()[0]: line for line in text.splitlines() if line}
    assert "3 of 4 parts" in lines["parts"] and "photos" in lines["parts"]
    assert "running on" in lines["parts/14"] and not {"parts/0", "parts/7"} & lines.keys()
    shutil.rmtree(cells.home)
    (out / "parts.json").write_text(json.dumps(index))
    assert "finished" in run("report", "--list", out).out
    (out / "parts.json").write_text("{}")
    assert run("report", "--list", out).code == 3
