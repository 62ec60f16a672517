"""`vit datasets preview` against what the network of a real run is given, and its page and mistakes."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.modules.module import register_module_forward_pre_hook

from tests.conftest import run
from vitcli import recipe as recipes
from vitcli.data import dataset
from vitcli.evaluation.setup import settle_pixels
from vitcli.training.preview import augmentation, first_part

MIXTURES = {
    "alone": (),
    "mixup": ("objective.mixup=0.8",),
    "cutmix": ("objective.cutmix=1.0", "data.random_erasing=0.5"),
    "both, later sizes": ("objective.mixup=0.8", "objective.cutmix=1.0", "schedule.image_sizes=[32, 64]"),
}


def first_images_of_a_run(photos, out, changes) -> torch.Tensor:
    """Return what the first module with images gets in the first step of training, by a hook of torch."""
    seen = []

    def watch(module, inputs):
        is_image = inputs and isinstance(inputs[0], torch.Tensor) and inputs[0].ndim == 4
        if not seen and module.training and is_image:
            seen.append(inputs[0].detach().clone())

    handle = register_module_forward_pre_hook(watch)
    try:
        sets = [word for change in changes for word in ("--set", change)]
        words = ("--ckpt", "demo", "--dataset", photos, "--recipe", "finetune/default", "--steps", 2)
        outcome = run("finetune", *words, "--batch-size", 8, *sets, "--out", out, "-q")
    finally:
        handle.remove()
    assert outcome.code == 0, outcome.err
    return seen[0]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(changes, id=name, marks=pytest.mark.slow if name in ("mixup", "cutmix") else ())
        for name, changes in MIXTURES.items()
    ],
)
def test_the_pixels_are_those_that_a_run_gives_its_network(photos, tmp_path, changes):
    given_BCHW = first_images_of_a_run(photos, tmp_path / "run", changes)
    keys = {"model.ckpt": "demo", "data.dataset": str(photos), "train.batch_size": 8}
    recipe = settle_pixels(recipes.load("finetune/default", changes, keys), "finetune")
    split, _ = dataset.open_train_and_eval(recipe.data, seed=0)
    batch, mixed_BCHW, weight = first_part(recipe, split, least=1, num_threads=2)

    mean, std = (torch.tensor(values)[:, None, None] for values in (recipe.data.mean, recipe.data.std))
    np.testing.assert_allclose(
        mixed_BCHW.float(), (given_BCHW.float() * std + mean) * 255, atol=0.51 if changes else 1e-3
    )
    assert (weight == 1) == (not changes) and len(batch.labels_B) == 8
    assert not changes or not torch.equal(mixed_BCHW, batch.images_BCHW)


def preview(*words: object):
    return run("datasets", "preview", *words, "--json", "-q")


def test_the_page_has_every_image_with_its_label(photos, tmp_path):
    page = tmp_path / "first.html"
    words = (photos, "--ckpt", "demo", "--recipe", "finetune/default", "--images", 3, "--out", page)
    outcome = preview(*words, "--set", "objective.mixup=0.5")
    text, result = page.read_text(), outcome.json

    assert (outcome.code, outcome.err) == (0, "") and result["page"] == str(page)
    assert len(result["train"]) == len(result["evaluate"]) == 3
    assert {"train_crop", "flip", "mixup"} <= {*result["augmentation"]}
    # A whole image of each, and its pixels: of training in two ways.
    assert text.count("data:image/jpeg;base64,/9j/") == 3 * 3 + 3 * 2
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", text) and "<script" not in text
    for shown in (*result["train"], *result["evaluate"]):
        assert shown["label"] in text and re.match(r"0\.\d\d \w+ \+ 0\.\d\d \w+$|\w+$", shown["label"])
    assert [shown["row"] for shown in result["evaluate"]] == [0, 3, 6]  # spread over ten
    # Each training image is mixed with the one before it, and its own label comes first.
    many = preview(*words[:-2], "--images", 12, "--out", page, "--overwrite", "--set", "objective.mixup=0.5")
    pairs = [re.findall("[a-z]+", shown["label"]) for shown in many.json["train"]]
    own = [Path(shown["place"]).parent.name for shown in many.json["train"]]
    assert [first for first, _ in pairs] == own and {*own} == {"red", "green"}
    assert [second for _, second in pairs[1:]] == own[:-1]
    again = preview(*words)
    assert (again.code, again.json["error"]["message"]) == (2, f"{page} already exists")
    screen = run("datasets", "preview", *words[:-1], tmp_path / "second.html", "--overwrite", "-q").out
    assert screen.startswith("training") and screen.splitlines()[-1].startswith("next        vit finetune")


def test_the_run_that_is_advised_leaves_out_unreadable_images_and_keeps_copies_together(photos, tmp_path):
    root, out = tmp_path / "own", tmp_path / "p.html"
    words = (root, "--ckpt", "demo", "--recipe", "finetune/default", "--out", out, "--overwrite")
    rng = np.random.default_rng(0)
    for number in range(24):
        file = root / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(file)

    def advised(*more: object) -> list[str]:
        last = run("datasets", "preview", *words, *more, "-q").out.splitlines()[-1]
        return last.split(f"--dataset {root}")[1].split()

    grouped = ["--set", "data.group_column=near_duplicates"]
    assert advised() == []
    shutil.copy(root / "a/0.png", root / "a/copy.png")
    assert advised() == grouped
    own = ["--set", "data.group_column=name:^(.*)png"]
    assert advised(*own)[1].strip("'") == own[1]
    for number in range(4):  # of 29: some are of the part that is evaluated
        for name in "ab":
            (root / name / f"broken{number}.jpg").write_bytes(b"\xff\xd8\xff no image")
    assert advised() == ["--skip-bad", *grouped]
    shown = preview(*words, "--images", 40).json
    assert not [each for part in ("train", "evaluate") for each in shown[part] if "broken" in each["place"]]
    assert (
        run("finetune", "--ckpt", "demo", "--dataset", root, *advised(), "--steps", 1, "--dry-run").code == 0
    )


def test_what_is_off_is_not_named():
    recipe = recipes.load("finetune/default", ("data.flip=false", "data.train_crop=none"), {})

    assert augmentation(recipe) == {"train_crop": "none"}


def test_labels_of_every_kind_are_in_words(photos, tmp_path):
    root = tmp_path / "set"
    (root / "images").mkdir(parents=True)
    files = sorted((photos / "train").rglob("*.png"))
    for number, file in enumerate(files):
        shutil.copy(file, root / f"images/{number}.png")
    out = tmp_path / "p.html"
    words = (root, "--ckpt", "demo", "--recipe", "finetune/default", "--out", out, "--overwrite")
    for column, cell, loss, expected in (
        ("age", "{n}.5", "regression", r"\d+\.5"),
        ("labels", "a|b", "sigmoid", "a, b"),
    ):
        rows = [f"images/{n}.png,{cell.format(n=n)}" for n in range(len(files))]
        (root / "labels.csv").write_text("\n".join([f"file,{column}", *rows]))
        outcome = preview(*words, "--set", f"objective.loss={loss}")
        assert outcome.code == 0, outcome.out
        assert all(re.fullmatch(expected, shown["label"]) for shown in outcome.json["train"]), outcome.json


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("gone/",), 3, "gone/"),
        (("",), 2, "empty"),
        (("DATA", "--ckpt", "gone.safetensors"), 4, "gone.safetensors"),
        (("DATA", "--ckpt", ""), 2, "empty"),
        (("DATA", "--out", "p.png"), 2, "does not end in .html"),
        (("DATA", "--out", "/proc/none/p.html"), 5, "--out"),
        (("DATA", "--images", "0"), 2, "--images"),
        (("DATA", "--recipe", "finetune/nothing"), 2, "nothing"),
        (("DATA", "--set", "data.filp=false"), 2, "flip"),
        (("DATA", "--set", "data.train_split=tset"), 3, "tset"),
        (("DATA", "--res", "0"), 2, "image_size"),
        (("DATA", "--ckpt", "demo", "--res", "50"), 2, "does not divide into patches of 8"),
        (("FLAT",), 3, "class folders"),
        (("BROKEN",), 3, "broken.png"),
    ],
)
def test_mistakes_are_three_lines_and_leave_nothing(photos, tmp_path, monkeypatch, words, code, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flat").mkdir()
    shutil.copy(next((photos / "train/red").iterdir()), tmp_path / "flat/0.png")
    shutil.copytree(photos, tmp_path / "broken")
    for file in (tmp_path / "broken").rglob("*.png"):
        file.write_bytes(b"no image")
        file.rename(file.with_name(f"{file.stem}-broken.png"))
    places = {"DATA": photos, "FLAT": tmp_path / "flat", "BROKEN": tmp_path / "broken"}
    words = [places.get(word, word) for word in words]
    ckpt = () if "--ckpt" in words else ("--ckpt", "demo")
    outcome = run("datasets", "preview", *words, *ckpt, "-q")

    assert (outcome.code, outcome.out) == (code, ""), outcome.err
    assert len(outcome.err.splitlines()) == 3 and told in outcome.err, outcome.err
    assert not list(tmp_path.glob("p*.*"))
