"""`vit predict` with --threshold, --tta and --sort-into, through the command line."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import run


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Two images of the network's own size, and the mirror image of the first."""
    folder = tmp_path_factory.mktemp("images")
    pixels = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "1.png")
    Image.fromarray(pixels[:, ::-1]).save(folder / "2.png")
    Image.fromarray(np.full_like(pixels, 90)).save(folder / "3.png")
    return folder


def probabilities(outcome) -> list[dict[int, float]]:
    assert outcome.code == 0, outcome.err
    predictions = outcome.json["predictions"]
    return [{top["label"]: top["probability"] for top in each["top"]} for each in predictions]


def test_tta_is_the_mean_of_an_image_and_its_mirror_image(images):
    words = ("predict", "--ckpt", "demo", images, "--json", "--quiet", "--topk", 12)
    first, second, _ = probabilities(run(*words))
    assert first != pytest.approx(second, abs=1e-3)
    mirrored = probabilities(run(*words, "--tta"))
    for both in mirrored[:2]:
        assert both == pytest.approx({k: (first[k] + second[k]) / 2 for k in first}, abs=1e-6)


def test_a_run_in_the_place_of_images_is_refused_and_no_advice_repeats_it(tmp_path):
    folder = tmp_path / "runs" / "a"
    (folder / "figures").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(folder / "figures" / "loss.png")
    for name in ("recipe.toml", "summary.json", "model.safetensors"):
        (folder / name).write_text("{}")

    for place in (folder, folder.parent):
        refused = run("predict", "--ckpt", "demo", place)
        assert (
            refused.code == 3 and f"{place} is a folder of results, whose images are figures" in refused.err
        )
    assert run("predict", "--ckpt", "demo", folder / "figures").code == 0
    (folder.parent / "photos").mkdir()
    Image.new("RGB", (8, 8)).save(folder.parent / "photos" / "photo.png")
    below = run("predict", "--ckpt", "demo", folder.parent, "--json")
    assert [Path(entry["file"]).name for entry in below.json["predictions"]] == ["photo.png"]
    assert "left out: 1 figure in a folder of results: a/figures/loss.png" in below.err
    twice = run("predict", folder, folder)
    assert twice.code == 2 and f"fix:   vit predict --ckpt {folder} IMAGES\n" in twice.err


def test_what_is_below_the_threshold_is_unsure_and_sorted_apart(images, tmp_path):
    words = ("predict", "--ckpt", "demo", images, "--quiet")
    likeliest = sorted(max(each.values()) for each in probabilities(run(*words, "--json")))
    threshold = (likeliest[0] + likeliest[-1]) / 2
    more = ("--threshold", threshold, "--sort-into", tmp_path / "sorted", "--out", tmp_path / "out.csv")
    outcome = run(*words, *more, "--json")
    assert outcome.code == 0, outcome.err
    unsure = {each["file"]: each["unsure"] for each in outcome.json["predictions"]}
    expected = {
        each["file"]: each["top"][0]["probability"] < threshold for each in outcome.json["predictions"]
    }
    assert unsure == expected
    assert 0 < sum(unsure.values()) < 3
    assert len(list((tmp_path / "sorted/unsure").iterdir())) == sum(unsure.values())
    assert len(list((tmp_path / "sorted").glob("*/*.png"))) == 3
    with (tmp_path / "out.csv").open() as file:
        assert {row["file"]: row["unsure"] == "yes" for row in csv.DictReader(file)} == unsure

    # Below is not equal: an image with exactly this probability is decided.
    equal = run(*words, "--threshold", likeliest[1], "--json").json["predictions"]
    assert sorted(each["unsure"] for each in equal) == [False, False, True]

    shown = run(*words, *more[:2], "--sort-into", tmp_path / "sorted again").out
    assert f"unsure {sum(unsure.values())}" in shown.partition("copied")[2]
    assert shown.count("unsure: ") == sum(unsure.values())
    assert f"{sum(unsure.values())} of 3, below" in shown
    assert run(*words, "--sort-into", images / "sorted").code == 2
    assert not (images / "sorted").exists()
