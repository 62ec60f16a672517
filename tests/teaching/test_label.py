"""`vit label` as a command: what it refuses, what it prints, what other tools give and get, and kills."""

import json
import multiprocessing
import os
import shutil
import signal
import threading
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import Outcome, locked, run
from vitcli.features import extract
from vitcli.teaching import label
from vitcli.teaching.label import LABELS, LOCK
from vitcli.teaching.labels_file import LabelsFile


@pytest.fixture
def folder(photos, tmp_path) -> Path:
    """24 images in red/ and green/, and one more that cannot be read."""
    root = Path(shutil.copytree(photos / "train", tmp_path / "my photos"))
    (root / "red/damaged.png").write_bytes((root / "red/00.png").read_bytes()[:200])
    return root


def labels(folder: Path) -> dict[str, str]:
    return LabelsFile(folder / LABELS).labels


def ask(address: str, **click: object) -> dict:
    """Get the state, or what a click makes of it."""
    if not click:
        return json.load(urllib.request.urlopen(f"{address}state", timeout=20))
    body = json.dumps({"state": ask(address)["state"], **click}).encode()
    request = urllib.request.Request(f"{address}click", body, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=20))


@pytest.fixture
def on_page(monkeypatch) -> Callable[..., Outcome]:
    """Run the command while a person is on its page, who then presses Ctrl-C."""

    def run_with(person: Callable[[str], None], *words: object) -> Outcome:
        said: list[Exception] = []

        def visit(address: str) -> None:
            try:
                person(address)
            except Exception as error:
                said.append(error)
            os.kill(os.getpid(), signal.SIGINT)

        def echo(text: str, *, err: bool) -> None:
            threading.Thread(target=visit, args=[text.split()[0]]).start()

        monkeypatch.setattr("vitcli.cli.label.typer.echo", echo)
        outcome = run("label", *words)
        assert not said, said
        return outcome

    return run_with


def test_a_person_labels_and_the_next_line_trains_on_it_as_typed(folder, on_page):
    def person(address: str) -> None:
        while shown := ask(address)["shown"]:
            ask(address, label=shown["name"].partition("/")[0])

    outcome = on_page(person, folder, "--json", "-q")
    assert (outcome.code, outcome.json["num_images"], outcome.json["num_labels"]) == (0, 25, 24)
    assert outcome.json["classes"] in ({"red": 12, "green": 12}, {"green": 12, "red": 12})
    assert outcome.json["unreadable"] == ["red/damaged.png"] and not (folder / LOCK).exists()
    words = outcome.json["next"]
    assert words == ["vit", "finetune", "--ckpt", "demo", "--dataset", str(folder)]
    trained = run(*words[1:], "--dry-run", "--json", "-q")
    assert trained.code == 0 and trained.json["num_examples"] == 22, trained.err

    shown = on_page(lambda address: None, folder, "-q")
    assert f"24 of 25 images, in {folder / LABELS}" in shown.out and "red/damaged.png" in shown.out
    assert f"--dataset '{folder}'" in shown.out and "--skip-bad" not in shown.out


def test_a_review_begins_with_class_folders_and_writes_all_of_them_with_the_first_correction(folder, on_page):
    (folder / "green/00.png").rename(folder / "red/moved.png")

    def look(address: str) -> None:
        shown = ask(address)["shown"]
        assert (shown["name"], shown["label"], shown["guess"][0]["class"]) == (
            "red/moved.png",
            "red",
            "green",
        )
        assert not (folder / LABELS).exists()

    on_page(look, folder, "--review", "-q")
    assert not (folder / LABELS).exists()
    on_page(lambda address: ask(address, label="green") and None, folder, "--review", "-q")
    assert labels(folder)["red/moved.png"] == "green" and len(labels(folder)) == 25
    # A damaged image has the label of its folder, and is left out in training, as without labels.csv.
    outcome = on_page(lambda address: None, folder, "--review", "--json", "-q")
    assert "--skip-bad" in outcome.json["next"]


def test_near_copies_and_features_are_kept_for_the_next_start(folder, on_page, monkeypatch):
    blobs = Image.fromarray(np.random.default_rng(0).integers(0, 255, (4, 5, 3), dtype=np.uint8))
    for name in ("one.png", "two.jpg", "red/three.bmp"):
        blobs.resize((200, 160), Image.Resampling.BICUBIC).save(folder / name)
    hashed, computed = [], []
    for module, name, calls, place in (
        (label, "hash_images", hashed, 0), (extract, "fill_store", computed, 1)
    ):  # fmt: skip
        real = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *a, r=real, c=calls, p=place, **k: c.append(len(a[p])) or r(*a, **k)
        )

    def person(address: str) -> None:
        for _ in range(27):
            if (shown := ask(address)["shown"])["num_copies"]:
                break
            ask(address, skip=True)
        assert shown["num_copies"] == 2
        ask(address, label="blobs")

    on_page(person, folder, "-q")
    assert labels(folder) == dict.fromkeys(("one.png", "red/three.bmp", "two.jpg"), "blobs")
    on_page(lambda address: None, folder, "-q")
    assert hashed == computed == [28, 1], "the second time only the damaged one, again"


def test_labels_go_to_label_studio_and_to_class_folders_and_come_back(folder, tmp_path):
    Image.new("RGB", (9, 9), "blue").save(folder / "a b, c.png")
    given = {"a b, c.png": "x, y & <z>", "red/00.png": "red", "green/00.png": "grün", "green/01.png": "grün"}
    LabelsFile(folder / LABELS).set(given)
    for name in ("project.json", "sorted"):
        outcome = run("label", folder, "--export", tmp_path / name, "--json", "-q")
        assert outcome.code == 0 and outcome.json["exported"] == str(tmp_path / name)
        again = run("label", folder, "--export", tmp_path / name)
        assert again.code == 2 and "already exists" in again.err

    tasks = json.loads((tmp_path / "project.json").read_text())
    assert tasks[0]["data"] == {"image": "/data/local-files/?d=a%20b%2C%20c.png"}
    assert {path.parent.name for path in (tmp_path / "sorted").rglob("*.png")} == {
        "x, y & _z_",
        "red",
        "grün",
    }
    (folder / LABELS).unlink()
    outcome = run("label", folder, "--import", tmp_path / "project.json", "--json", "-q")
    assert labels(folder) == given and outcome.json["num_imported"] == 4
    (folder / LABELS).unlink()
    outcome = run("label", folder, "--import", folder, "-q")
    assert len(labels(folder)) == 25 and {*labels(folder).values()} == {"red", "green"}
    # Copies are known by their bytes, whatever they are called; what is there stays.
    (tmp_path / "sorted/red/00.png").rename(tmp_path / "sorted/red/01.png")
    outcome = run("label", folder, "--import", tmp_path / "sorted", "--json", "-q")
    assert [outcome.json[key] for key in ("num_imported", "num_kept", "num_unmatched")] == [4, 2, 0]
    outcome = run("label", folder, "--import", tmp_path / "project.json", "--json", "-q")
    assert outcome.json["num_kept"] == 3 and labels(folder)["green/00.png"] == "green"


def test_an_image_with_the_name_of_one_below_it_comes_back(folder, tmp_path):
    Image.new("RGB", (9, 9), "blue").save(folder / "00.png")
    given = {"00.png": "blue", "red/00.png": "red"}
    LabelsFile(folder / LABELS).set(given)
    run("label", folder, "--export", tmp_path / "p.json", "-q")
    (folder / LABELS).unlink()
    run("label", folder, "--import", tmp_path / "p.json", "-q")

    assert labels(folder) == given


def test_a_link_to_nothing_is_left_out(folder, tmp_path):
    (folder / "gone.png").symlink_to(tmp_path / "nowhere.png")
    outcome = run("label", folder, "--export", tmp_path / "sorted", "--json", "-q")

    assert "No such file" not in outcome.out


def test_what_label_studio_writes_itself_is_understood(folder):
    def task(image: str, *choices: str, **more: object) -> dict:
        result = [
            {"type": "rectanglelabels", "value": {}},
            {"type": "choices", "value": {"choices": [*choices]}},
        ]
        annotation = {"result": result if choices else [], "was_cancelled": False, **more}
        return {
            "id": 1,
            "data": {"image": image, "text": "x"},
            "annotations": [annotation],
            "predictions": [],
        }

    for number, name in enumerate(("one.png", "two words.png", "three.png", "four.png", "five.png")):
        shutil.copy(folder / f"red/0{number}.png", folder / name)
    tasks = [
        task("/data/upload/1/0a1b2c3d-one.png", "cat"),
        task("/data/upload/1/0a1b2c3d-two_words.png", "dog"),
        task("s3://bucket/photos/three.png?versionId=1", "cat"),
        task("four.png", "cat", was_cancelled=True),
        task("five.png", "cat", "dog"),
        task("/data/upload/1/0a1b2c3d-00.png", "cat"),  # red or green?
        task("https://host/data/green/00.png", "dog"),
        task("/data/local-files/?d=photos/red/two%20words.png", "bird"),  # beside two words.png
        task("elsewhere.png", "cat"),
        task("red/01.png"),
    ]
    shutil.copy(folder / "red/09.png", folder / "red/two words.png")
    (folder / "tasks.json").write_text(json.dumps(tasks))

    outcome = run("label", folder, "--import", folder / "tasks.json", "--json", "-q")
    assert labels(folder) == {
        "one.png": "cat", "three.png": "cat", "green/00.png": "dog", "red/two words.png": "bird",
    }  # fmt: skip
    assert [outcome.json[key] for key in ("num_unmatched", "num_several")] == [3, 1]


REFUSED = {
    "no such folder": (lambda folder: folder.rename(folder.with_name("away")), [], 3, "there is no folder"),
    "a file": (lambda folder: (shutil.rmtree(folder), folder.write_text("x")), [], 3, "is a file"),
    "no images": (lambda folder: (shutil.rmtree(folder), folder.mkdir()), [], 3, "name a file, a folder"),
    "a run": (
        lambda folder: [(folder / name).write_text("{}") for name in ("recipe.toml", "summary.json")],
        [], 3, "folder of results",
    ),
    "a folder of that name": (lambda folder: (folder / LABELS).mkdir(), [], 5, "labels are not written"),
    "latin": (
        lambda folder: (folder / LABELS).write_bytes("file,label\nred/00.png,grün\n".encode("latin-1")),
        [], 3, "save it again as CSV in UTF-8",
    ),
    "unknown files": (
        lambda folder: (folder / LABELS).write_text("file,label\nblue/00.png,blue\n"), [], 3, "blue/00.png",
    ),
    "several labels": (
        lambda folder: (folder / LABELS).write_text("file,label\nred/00.png,red|green\n"),
        [], 3, "several labels",
    ),
    "no label": (lambda folder: (folder / LABELS).write_text("file,label\nred/00.png,\n"), [], 3, "is empty"),
    "two files of labels": (
        lambda folder: (folder / "metadata.csv").write_text("file_name,label\nred/00.png,red\n"),
        [], 3, "metadata.csv",
    ),
    "a blank in front": (
        lambda folder: (folder / "red/00.png").rename(folder / " 0.png"), [], 3, "rename the file",
    ),
    "an empty class": (lambda folder: None, ["--classes", "cat,,dog"], 2, "the name is empty"),
    "a long class": (lambda folder: None, ["--classes", "x" * 10_000], 2, "more than 200"),
    "a port": (lambda folder: None, ["--port", "70000"], 2, "--port"),
    "no such weights": (lambda folder: None, ["--ckpt", "none.npz"], 4, "none.npz"),
    "both": (lambda folder: None, ["--import", "x", "--review"], 2, "leave --review out"),
    "all": (lambda folder: None, ["--import", "x", "--export", "y"], 2, "leave --export out"),
    "splits": (
        lambda folder: (folder / "red").rename(folder / "val"), ["--import", "FOLDER"], 3, "is a split",
    ),
    "nothing to import": (lambda folder: None, ["--import", "none.json"], 3, "not an export of Label Studio"),
    "a split": (
        lambda folder: (folder / "red").rename(folder / "test"), ["--review"], 3, "is a split",
    ),
    "nothing to export": (lambda folder: None, ["--export", "none.json"], 2, "no labels to export"),
    "JSON-MIN": (
        lambda folder: (folder / "min.json").write_text('[{"image": "a.png", "choice": "cat"}]'),
        ["--import", "FOLDER/min.json"], 3, "not JSON-MIN",
    ),
    "within": (
        lambda folder: LabelsFile(folder / LABELS).set({"red/00.png": "red"}),
        ["--export", "FOLDER/sorted"], 2, "is within the folder of images",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_labelled_is_refused_in_three_lines_and_nothing_changes(case, folder, in_ten_seconds):
    prepare, words, code, text = REFUSED[case]
    prepare(folder)
    before = (
        {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} if folder.is_dir() else {}
    )

    outcome = run("label", folder, *(word.replace("FOLDER", str(folder)) for word in words), "-q")

    assert outcome.code == code, outcome.err
    lines = outcome.err.splitlines()
    assert [line.split()[0] for line in lines] == ["error:", "where:", "fix:"] and text in outcome.err
    after = (
        {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} if folder.is_dir() else {}
    )
    assert after == before


def test_a_second_vit_label_of_the_folder_is_refused(folder):
    with locked(folder / LOCK):
        outcome = run("label", folder, "-q")

    assert outcome.code == 5 and "another vit label has this folder" in outcome.err


@pytest.mark.slow
def test_a_hundred_kills_lose_no_label_and_double_none(tmp_path):
    """Each process is killed at a random moment while labels are clicked; what was answered is there."""
    folder, rng = tmp_path / "many", np.random.default_rng(0)
    folder.mkdir()
    for row in range(1_500):
        pixels = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{row}, a.png")
    answered, num_kills, forks = {}, 0, multiprocessing.get_context("fork")
    while num_kills < 100:
        ours, theirs = forks.Pipe()
        process = forks.Process(target=serve_folder, args=[folder, theirs.send])
        process.start()
        address = ours.recv()
        timer = threading.Timer(rng.uniform(0.02, 0.2), process.kill)
        timer.start()
        with suppress(OSError, ValueError, HTTPException):
            state = ask(address)
            while True:
                name, label = state["shown"]["name"], f"class {len(answered) % 3}"
                state = ask(address, **({"undo": True} if rng.random() < 0.1 else {"label": label}))
                if state["undo"] == name:
                    answered[name] = label
                else:
                    answered.pop(state["shown"]["name"], None)
        process.join()
        num_kills += 1
        lines = (folder / LABELS).read_text().splitlines() if (folder / LABELS).exists() else []
        found = labels(folder)
        assert len(found) == len({line.rpartition('","')[0] for line in lines[1:]}) == max(0, len(lines) - 1)
        # The last click may have been written and not answered.
        differing = {name for name in {*found, *answered} if found.get(name) != answered.get(name)}
        assert len(differing) <= 1, (num_kills, differing)
        answered = found
    assert len(answered) > 100


def serve_folder(folder: Path, ready: Callable[[str], None]) -> None:
    """Serve the page of a folder of images whose features are drawn: what a kill hits is the writing."""
    from vitcli.teaching import label_server
    from vitcli.teaching.label import opened
    from vitcli.teaching.labelling import Labelling

    with opened(folder) as place:
        features_ND = np.random.default_rng(0).normal(size=(len(place.names), 8)).astype(np.float32)
        groups_N = np.arange(len(place.names))
        session = Labelling(place.names, features_ND, place.labels, place.none, groups_N=groups_N)
        label_server.serve(session, place.images, port=0, ready=ready)
