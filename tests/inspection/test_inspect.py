"""`vit inspect` from the command line: what it leaves, what it says, and what it refuses."""

import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from safetensors.numpy import load_file

from tests.browser import Browser, find
from tests.conftest import SHARED, run
from tests.figures import drawn_figures
from tests.pages import SHAPES, Page, assert_fetches_nothing
from vitcli import recipe as recipes
from vitcli.data.transforms import Preprocessing, to_model_range
from vitcli.inspection import analysis
from vitcli.inspection import files as inspection_files
from vitcli.inspection.attention import record_attention
from vitcli.inspection.collect import Inspection
from vitcli.inspection.inspect import InspectRequest, at_size_of, open_images
from vitcli.inspection.text import as_text, caption
from vitcli.models.build import TransformerOptions, architecture, build
from vitcli.weights.describe import WeightsInfo
from vitcli.weights.io import read_weights, write_weights
from vitcli.weights.load import load

FIGURES = ["filters", "position_similarity", "attention_distance", "rollout", "attention_by_head",
           "attention_by_layer", "patch_features"]  # fmt: skip
SMALL = dict(layers=2, hidden=48, heads=3, mlp=64)
REAL = SHARED / "data" / "checkpoints" / "vit_ti16_augreg_in1k.npz"


def stored(folder: Path, name: str = "ViT-Ti/16", size: tuple[int, int] = (32, 48), **more) -> Path:
    """Weights of a small network, with their preprocessing."""
    torch.manual_seed(0)
    arch = architecture(name, image_size=size, num_classes=2, options=TransformerOptions(**more))
    pixels = Preprocessing(size, "square", 1.0, "bilinear", False, (0.5,) * 3, (0.5,) * 3)
    state = build(arch, dropout=0.0).state_dict()
    write_weights(
        folder,
        state,
        WeightsInfo(arch, preprocessing=pixels.as_dict(), class_names=("green", "red"), metadata={}),
    )
    return folder


@pytest.fixture(scope="module")
def vit_weights(tmp_path_factory) -> Path:
    return stored(tmp_path_factory.mktemp("weights") / "vit", **SMALL)


@pytest.fixture(scope="module")
def inspected(vit_weights, photos, tmp_path_factory):
    """One inspection: its folder and its result."""
    out = tmp_path_factory.mktemp("inspected") / "figures"
    with drawn_figures():
        outcome = run("inspect", "--ckpt", vit_weights, "--dataset", photos, "--out", out, "--json", "-q")
    assert outcome.code == 0, outcome.err
    return out, outcome.json


def test_figures_arrays_numbers_and_a_page_are_there(inspected):
    out, result = inspected

    figures = {f"{name}.{ending}" for name in FIGURES for ending in ("png", "svg")}
    assert {file.name for file in out.iterdir()} == figures | {
        "arrays.safetensors", "inspection.html", "inspection.json"
    }  # fmt: skip
    assert json.loads((out / "inspection.json").read_text()) == result
    assert sorted(result["figures"]) == sorted(FIGURES)
    for name in FIGURES:
        with Image.open(out / f"{name}.png") as picture:
            assert picture.format == "PNG"
        assert (out / f"{name}.svg").read_text().lstrip().startswith("<?xml")


def test_the_numbers_are_those_of_the_arrays(inspected):
    out, result = inspected
    arrays = load_file(out / "arrays.safetensors")

    assert {name: array.shape for name, array in arrays.items()} == {
        "filters": (28, 3, 16, 16), "position_similarity": (2, 3, 2, 3), "attention_distance": (10, 2, 3),
        "images": (8, 32, 48, 3), "rollout": (8, 2, 3), "attention_by_head": (8, 2, 3, 2, 3),
        "patch_colours": (8, 2, 3, 3),
    }  # fmt: skip
    said, per_image = result["attention_distance"], arrays["attention_distance"]
    np.testing.assert_allclose(said["mean"], per_image.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(said["std_over_images"], per_image.std(axis=0, ddof=1), rtol=1e-12)
    np.testing.assert_allclose(said["by_layer"], per_image.mean(axis=(0, 2)), rtol=1e-12)
    assert said["uniform"] == pytest.approx(float(analysis.patch_distances((2, 3), 16).mean()))
    assert (said["unit"], said["renormalised"], said["prefix_tokens"]) == ("pixels", True, 1)
    assert result["filters"]["num_filters"] == 48 and len(result["filters"]["variance_shares"]) == 28
    assert result["rollout"] == {"residual": True, "full_at": 1.0, "read_from": "class token"}
    assert (result["num_images"], len(result["shown"]), result["left_out"]) == (10, 8, {})
    assert (result["resolution"], result["patch_grid"], result["patch_size"]) == ([32, 48], [2, 3], 16)


def test_each_image_shown_has_its_label_and_what_the_network_says(inspected, vit_weights):
    out, result = inspected
    images = torch.from_numpy(load_file(out / "arrays.safetensors")["images"]).permute(0, 3, 1, 2)
    model, _, _ = load(read_weights(str(vit_weights)))
    with torch.no_grad():
        logits = model.eval()(to_model_range(images, mean=(0.5,) * 3, std=(0.5,) * 3))
    probabilities, predicted = logits.softmax(dim=1).max(dim=1)

    said = result["predictions"]
    assert [one["predicted"] for one in said] == [("green", "red")[k] for k in predicted.tolist()]
    assert [one["probability"] for one in said] == pytest.approx(probabilities.tolist(), abs=1e-5)
    assert [one["label"] in place for one, place in zip(said, result["shown"], strict=True)] == [True] * 8
    captions = re.findall(r"<!-- (\w+) \d+%, (?:right|label: \w+) -->", (out / "rollout.svg").read_text())
    assert captions == [one["predicted"] for one in said]  # below the images


def test_every_array_has_its_patches_in_rows_and_columns(inspected, vit_weights):
    """The patch in row 1 and column 2 of 2x3 is the sixth token, or the seventh with the class token."""
    out, _ = inspected
    arrays = load_file(out / "arrays.safetensors")
    model, _, _ = load(read_weights(str(vit_weights)))
    images = torch.from_numpy(arrays["images"]).permute(0, 3, 1, 2)
    layers: list[torch.Tensor] = []
    with torch.no_grad(), record_attention(model.eval(), lambda _, weights: layers.append(weights)):
        encoded = model.forward_features(to_model_range(images, mean=(0.5,) * 3, std=(0.5,) * 3))
    rolled = torch.eye(7)
    for weights in layers:
        rolled = (weights.mean(1) + torch.eye(7)) / 2 @ rolled
    positions = torch.nn.functional.normalize(model.pos_embed[0].detach(), dim=-1)
    by_head = torch.stack(layers, dim=1)[..., 0, 1:]
    colours, _ = analysis.feature_colours(encoded[:, 1:])

    close = {"rtol": 1e-4, "atol": 1e-6}
    np.testing.assert_allclose(arrays["rollout"][:, 1, 2], rolled[:, 0, 6], **close)
    np.testing.assert_allclose(arrays["rollout"][:, 0, 1], rolled[:, 0, 2], **close)
    np.testing.assert_allclose(arrays["attention_by_head"][..., 1, 2], by_head[..., 5], **close)
    np.testing.assert_allclose(arrays["attention_by_head"][..., 0, 1], by_head[..., 1], **close)
    np.testing.assert_allclose(arrays["patch_colours"][:, 1, 2], colours[:, 5], rtol=0, atol=1e-3)
    np.testing.assert_allclose(arrays["patch_colours"][:, 0, 1], colours[:, 1], rtol=0, atol=1e-3)
    np.testing.assert_allclose(
        arrays["position_similarity"][1, 2, 0, 1], positions[6] @ positions[2], atol=1e-6
    )


def test_figures_show_the_arrays_and_listen_to_the_keys(inspected):
    out, result = inspected
    arrays = load_file(out / "arrays.safetensors")
    arrays["rollout"][:, 0, 0] = 1.0  # one patch that draws it all

    def figures(full_at: float) -> dict[str, Figure]:
        changed = result | {"rollout": result["rollout"] | {"full_at": full_at}}
        return inspection_files.figures_of(Inspection(changed, arrays), width=7.0)

    usual, bright = figures(1.0), figures(0.5)

    lit, brighter = (np.asarray(one["rollout"].axes[0].images[0].get_array()) for one in (usual, bright))
    assert brighter.mean() > 1.2 * lit.mean()
    layers = [text.get_text() for text in usual["attention_by_layer"].axes[0].get_xticklabels()]
    assert layers == ["input", "1", "2"]  # not its three heads
    shown = [image.get_array() for axes in usual["attention_by_head"].axes for image in axes.images]
    assert any(np.array_equal(image, arrays["images"][0]) for image in shown)


def test_the_page_shows_every_figure_with_a_caption_and_fetches_nothing(inspected):
    out, _ = inspected
    text = (out / "inspection.html").read_text()
    page = Page(text)

    assert_fetches_nothing(text)
    assert page.count("figure") == page.count("figcaption") == page.count("svg") == len(FIGURES)
    assert page.count("table") == 1
    assert re.findall(r"<b>Figure (\d+)\.", text) == [str(n) for n in range(1, 8)]
    for told in ("Figure 7, left", "Figure 7, centre, and Figure 10", "Figure 7, right, and Figure 11",
                 "Figures 6 and 14"):  # fmt: skip
        assert f"Paper, {told}." in text


def test_the_text_for_a_person_has_a_line_for_each_layer(inspected):
    out, result = inspected

    text = as_text(result)

    assert text.startswith("network     vit: ")
    assert "at 32x48 px, 2x3 patches of 16" in text
    layers = [line.split() for line in text.splitlines() if re.match(r" *\d ", line)]
    lowest = min(result["attention_distance"]["mean"][0])
    assert [line[0] for line in layers] == ["1", "2"]
    assert layers[0][1] == f"{lowest:.1f}"
    assert str(out / "inspection.html") in text


def digests(folder: Path) -> dict[str, str]:
    """Of all files but the two that say when."""
    files = (file for file in folder.iterdir() if file.suffix not in (".json", ".html"))
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.parametrize(
    "looks_at",
    [(), pytest.param(("--images", "PHOTOS"), marks=pytest.mark.slow)],
    ids=["weights", "pictures"],
)
def test_the_same_command_leaves_the_same_bytes(vit_weights, photos, tmp_path, looks_at):
    out = tmp_path / "out"
    looks_at = [str(photos / "test") if word == "PHOTOS" else word for word in looks_at]
    words = ("inspect", "--ckpt", vit_weights, *looks_at, "--out", out, "-q")
    assert run(*words).code == 0
    before = digests(out)

    assert run(*words).code == 0

    assert digests(out) == before and "filters.svg" in before


def test_another_question_does_not_replace_the_answer_unless_told_to(vit_weights, tmp_path):
    words = ["inspect", "--ckpt", vit_weights, "--out", tmp_path / "out", "-q"]
    assert run(*words).code == 0

    other = run(*words, "--set", "inspect.components=3")
    replaced = run(*words, "--set", "inspect.components=3", "--overwrite", "--json")

    assert other.code == 2
    assert "another inspection: inspect.components not given there, 3 here" in other.err
    assert len(replaced.json["filters"]["variance_shares"]) == 3


@pytest.mark.slow
def test_two_checkpoints_have_a_folder_each_and_one_page(vit_weights, tmp_path):
    out = tmp_path / "out"

    outcome = run(
        "inspect",
        "--ckpt",
        vit_weights,
        "--compare",
        vit_weights,
        "--compare-res",
        "64x96",
        "--out",
        out,
        "-q",
    )

    result = json.loads((out / "inspection.json").read_text())
    assert [one["patch_grid"] for one in result["inspections"]] == [[2, 3], [4, 6]]
    assert [one["out"] for one in result["inspections"]] == [str(out / "1"), str(out / "2")]
    assert {"filters.png", "arrays.safetensors"} <= {file.name for file in (out / "2").iterdir()}
    page = Page((out / "inspection.html").read_text())
    assert page.count("figure") == 4 and f"4 in {out}" in outcome.out
    assert "1: vit: ViT-2x48/16 at 32x48 px" in outcome.out and "2: vit: " in outcome.out


def test_two_checkpoints_are_compared_at_one_size_unless_told_or_impossible(vit_weights, tmp_path):
    def opened(weights: Path) -> InspectRequest:
        read = read_weights(str(weights))
        return InspectRequest(None, read, Preprocessing.from_dict(read.preprocessing), "stored", {})

    small, large, other = (
        opened(stored(tmp_path / name, name=network, size=size, **SMALL))
        for name, network, size in (
            ("small", "ViT-Ti/16", (32, 48)),
            ("large", "ViT-Ti/16", (64, 96)),
            ("other", "ViT-demo/8", (40, 24)),
        )
    )
    asked = replace(small, asked={"data.image_size": "32x48"})

    assert at_size_of(large, small).preprocessing.image_size == (64, 96)
    assert "that of the first" in at_size_of(large, small).preprocessing_from
    assert at_size_of(large, asked) is asked
    assert at_size_of(other, small) is small  # 40 pixels are no number of patches of 16


@pytest.mark.slow
def test_two_checkpoints_stand_side_by_side_on_the_same_pictures(vit_weights, photos, tmp_path):
    out = tmp_path / "out"
    outcome = run(
        "inspect", "--ckpt", vit_weights, "--compare", vit_weights, "--compare-res", "64x96",
        "--images", photos / "test", "--out", out, "--json", "-q",
    )  # fmt: skip

    first, second = outcome.json["inspections"]
    assert (first["resolution"], second["resolution"]) == ([32, 48], [64, 96])
    assert first["shown"] == second["shown"]
    assert second["patch_grid"] == [4, 6]
    compared = outcome.json["compared"]
    for one, shares in zip((first, second), compared["distance_of_uniform_by_layer"], strict=True):
        said = one["attention_distance"]
        assert shares == pytest.approx([value / said["uniform"] for value in said["by_layer"]])
    assert len(compared["rollout_correlation"]) == 8
    assert (out / "distances_compared.png").is_file() and (out / "2" / "rollout.svg").is_file()
    page = Page((out / "inspection.html").read_text())
    assert page.count("figure") == 2 * len(FIGURES) + 1
    text = as_text(outcome.json)
    assert "1: vit: ViT-2x48/16 at 32x48 px" in text and "2: vit: ViT-2x48/16 at 64x96 px" in text
    assert "layer  1: shortest  1: mean  1: longest  2: shortest  2: mean  2: longest" in text
    assert "15 in " in text and page.count("figure") == 15


def test_without_pictures_the_weights_alone_are_looked_at(vit_weights, tmp_path):
    result = run("inspect", "--ckpt", vit_weights, "--out", tmp_path / "out", "--json", "-q").json

    assert result["figures"] == ["filters", "position_similarity"]
    assert set(result["left_out"].values()) == {"no images are given: --images IMAGES or --dataset DATA"}


def test_a_resnet_has_filters_and_features_and_a_word_on_the_rest(photos, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    weights = stored(tmp_path / "resnet", "resnet10t", (32, 64))

    outcome = run("inspect", "--ckpt", weights, "--images", photos / "test", "--out", tmp_path / "out", "-q")
    result = json.loads((tmp_path / "out" / "inspection.json").read_text())

    assert result["figures"] == ["filters", "patch_features"]
    assert result["left_out"] == {
        "position_similarity": "no table of position embeddings is added to its patches",
        **dict.fromkeys(
            ("attention_distance", "rollout", "attention_by_head", "attention_by_layer"),
            "resnet10t has no blocks of one self-attention each over patches",
        ),
    }
    assert result["filters"]["size"] == [3, 3]
    assert all(len(line) <= 80 for line in outcome.out.splitlines() if str(tmp_path) not in line)
    told = " ".join(outcome.out.split())
    assert "attention distance, attention rollout, attention by head, attention by layer: resnet10t" in told
    assert "has no blocks of one self-attention" in (tmp_path / "out" / "inspection.html").read_text()


@pytest.mark.slow
def test_less_precision_is_the_networks_alone(vit_weights, photos, tmp_path, inspected):
    out, _ = inspected
    words = ["inspect", "--ckpt", vit_weights, "--dataset", photos, "--out", tmp_path / "out", "-q"]
    assert run(*words, "--precision", "bf16").code == 0

    here, there = (load_file(place / "arrays.safetensors") for place in (out, tmp_path / "out"))
    np.testing.assert_allclose(there["attention_distance"], here["attention_distance"], atol=0.5)
    np.testing.assert_allclose(there["rollout"], here["rollout"], rtol=0.05)


@pytest.mark.slow
def test_a_picture_of_one_patch_has_no_distances_to_compare(photos, tmp_path):
    weights = stored(tmp_path / "one", size=(16, 16), **SMALL)

    outcome = run(
        "inspect", "--ckpt", weights, "--compare", weights, "--images", photos / "test" / "red",
        "--out", tmp_path / "out", "--json", "-q",
    )  # fmt: skip

    assert outcome.err == ""
    strict = json.loads(outcome.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert strict["compared"]["distance_of_uniform_by_layer"] is None
    assert "with that of every patch. Rows" in (tmp_path / "out" / "inspection.html").read_text()


def test_distances_of_nothing_are_not_compared():
    some, one_patch = ({"attention_distance": {"uniform": far, "by_layer": [far]}} for far in (9.0, 0.0))

    def compared(*results: dict) -> list | None:
        found = [Inspection(result, {}) for result in results]
        return inspection_files.compared(found)["distance_of_uniform_by_layer"]

    assert compared(some, some) == [[1.0], [1.0]]
    assert compared(some, one_patch) is compared(one_patch, one_patch) is compared(some, {}) is None


def test_rollout_is_compared_picture_by_picture():
    maps = torch.rand(2, 4, 4, generator=torch.Generator().manual_seed(0)).numpy()

    def correlation(first: np.ndarray, second: np.ndarray) -> list | None:
        return inspection_files.compared([Inspection({}, {"rollout": one}) for one in (first, second)])[
            "rollout_correlation"
        ]

    by_numpy = [np.corrcoef(maps[0].ravel(), maps[1].ravel())[0, 1]]
    assert correlation(maps, maps) == pytest.approx([1, 1])
    assert correlation(maps[:1], maps[1:]) == pytest.approx(by_numpy)
    assert correlation(maps, maps[:1]) is None  # a picture that one of them could not decode


@pytest.mark.parametrize(
    ("prefix_tokens", "has_class_token", "renormalised", "expected"),
    [
        (0, False, True, "over 4 images. Dashed"),
        (1, True, True, "over 4 images. The class token is left out. Dashed"),
        (1, False, True, "over 4 images. Tokens without a patch are left out. Dashed"),
        (5, True, False, "Tokens without a patch are left out; attention to them counts as distance 0."),
        (1, True, False, "The class token is left out; attention to it counts as distance 0."),
    ],
)
def test_the_caption_tells_which_tokens_are_left_out(prefix_tokens, has_class_token, renormalised, expected):
    said = {
        "by_layer": [5.0], "std_over_images": None, "uniform": 9.0, "prefix_tokens": prefix_tokens,
        "has_class_token": has_class_token, "renormalised": renormalised,
    }  # fmt: skip

    assert expected in caption("attention_distance", {"attention_distance": said, "num_images": 4})


@pytest.mark.slow
def test_a_key_chooses_the_other_reading_of_the_paper(vit_weights, photos, tmp_path, inspected):
    _, usual = inspected
    other = run(
        "inspect", "--ckpt", vit_weights, "--dataset", photos, "--out", tmp_path / "out", "--json", "-q",
        "--set", "inspect.renormalise=false", "--set", "inspect.num_shown=2",
        "--set", "inspect.components=3", "--set", "inspect.residual=false",
    ).json  # fmt: skip

    here, there = (one["attention_distance"]["by_layer"] for one in (usual, other))
    assert all(less < more for less, more in zip(there, here, strict=True))
    assert len(other["shown"]) == 2 and len(other["filters"]["variance_shares"]) == 3
    with_residual, bare = (
        load_file(Path(one["out"]) / "arrays.safetensors")["rollout"][:2] for one in (usual, other)
    )
    assert other["rollout"]["residual"] is False
    assert other["attention_distance"]["uniform"] == pytest.approx(
        usual["attention_distance"]["uniform"] * 6 / 7  # the class token gets a seventh
    )
    assert (bare.sum(axis=(1, 2)) > with_residual.sum(axis=(1, 2))).all()  # the token itself has less


def looked_at(
    weights: Path, *keys: str, dataset: Path | None = None, images: Path | None = None
) -> list[str]:
    """Names of the pictures that would be looked at, class folder and file."""
    shorthands = {"model.ckpt": str(weights), "data.dataset": dataset and str(dataset)}
    recipe = recipes.load("inspect/default", keys, shorthands, training=False)
    split = open_images(recipe, read_weights(str(weights)), [str(images)] if images else [], "auto")
    return ["/".join(Path(split.where_is(row)).parts[-2:]) for row in range(len(split))]


def test_pictures_of_a_data_set_are_drawn_and_named_ones_are_taken_in_order(vit_weights, photos):
    few = "inspect.num_images=4"
    drawn = looked_at(vit_weights, few, dataset=photos)

    assert len(set(drawn)) == 4
    assert drawn == looked_at(vit_weights, few, dataset=photos)
    assert drawn != looked_at(vit_weights, few, "inspect.seed=1", dataset=photos)
    assert sorted(looked_at(vit_weights, dataset=photos)) == sorted(
        looked_at(vit_weights, images=photos / "test")
    )
    assert looked_at(vit_weights, few, images=photos / "test" / "red") == [
        f"red/{n:02}.png" for n in range(4)
    ]


REFUSED = {
    "no checkpoint": ("--images", "PHOTOS"),
    "no such checkpoint": ("--ckpt", "nowhere.npz", "--images", "PHOTOS"),
    "no such pictures": ("--ckpt", "VIT", "--images", "nowhere/"),
    "both images and a data set": ("--ckpt", "VIT", "--images", "PHOTOS", "--dataset", "demo"),
    "no such data set": ("--ckpt", "VIT", "--dataset", "./nowhere"),
    "no such split": ("--ckpt", "VIT", "--dataset", "PHOTOS", "--split", "tset"),
    "a split of nothing": ("--ckpt", "VIT", "--split", "test"),
    "a size that patches do not divide": ("--ckpt", "VIT", "--images", "PHOTOS", "--res", "33"),
    "no size": ("--ckpt", "VIT", "--images", "PHOTOS", "--res", "large"),
    "a key that is not there": ("--ckpt", "VIT", "--images", "PHOTOS", "--set", "inspect.residul=true"),
    "a value out of range": ("--ckpt", "VIT", "--images", "PHOTOS", "--set", "inspect.full_at=1.5"),
    "no pictures at all": ("--ckpt", "VIT", "--images", "PHOTOS", "--set", "inspect.num_images=0"),
    "a recipe without the section": ("--ckpt", "VIT", "--images", "PHOTOS", "--recipe", "evaluate/default"),
    "a folder that is a file": ("--ckpt", "VIT", "--images", "PHOTOS", "--out", "VIT/config.json"),
    "a second size without a second": ("--ckpt", "VIT", "--images", "PHOTOS", "--compare-res", "64"),
    "a summary with pictures": ("--ckpt", "VIT", "--images", "PHOTOS", "--summary"),
    "a summary of nothing": ("--summary",),
    "two first checkpoints": ("VIT", "--ckpt", "VIT"),
    "an empty variable": ("--ckpt", "", "--images", "PHOTOS"),
}
CODES = {"no such checkpoint": 4, "no such pictures": 3, "no such data set": 3, "no such split": 3,
         "a folder that is a file": 5}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_asked_for_is_refused_in_three_lines(what, vit_weights, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    places = {"VIT": str(vit_weights), "PHOTOS": str(photos)}
    words = [re.sub("VIT|PHOTOS", lambda found: places[found[0]], word) for word in REFUSED[what]]

    outcome = run("inspect", *words, "-q")

    assert outcome.code == CODES.get(what, 2), outcome.err
    first, *rest = outcome.err.strip().splitlines()
    assert first.startswith("error: ")
    assert rest[0].startswith("  where: ") and rest[1].startswith("  fix:   ") and len(rest) == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_picture_that_is_none_is_refused_or_left_out(vit_weights, photos, tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "a.png").write_bytes(b"no picture")
    (folder / "b.png").write_bytes((photos / "test" / "red" / "00.png").read_bytes())
    words = ["inspect", "--ckpt", vit_weights, "--images", folder, "--out", tmp_path / "out", "-q"]

    refused = run(*words)
    told = run(*words, "--skip-bad")

    assert refused.code == 3 and "a.png" in refused.err
    assert told.code == 0 and "1" in told.out and "a.png" in told.out


@pytest.mark.parametrize("out", [".", "figures"])
def test_figures_are_not_drawn_among_the_pictures(vit_weights, photos, tmp_path, out):
    """The second time the same command would take its own figures for photographs."""
    pictures = shutil.copytree(photos / "test", tmp_path / "pictures")
    words = ("inspect", "--ckpt", vit_weights, "--out", pictures / out, "-q")

    for asked in (["--images", pictures], ["--dataset", pictures]):
        refused = run(*words, *asked)
        assert refused.code == 2 and "among the input images" in refused.err


def test_figures_of_an_earlier_command_are_not_looked_at_by_a_glob(vit_weights, photos, tmp_path):
    (tmp_path / "out").mkdir()
    shutil.copy(photos / "test" / "red" / "00.png", tmp_path / "out" / "filters.png")

    refused = run(
        "inspect", "--ckpt", vit_weights, "--images", tmp_path / "**" / "*.png", "--out", tmp_path / "out"
    )

    assert refused.code == 2 and "among the input images" in refused.err


def test_files_of_other_people_are_not_replaced_unless_told_to(vit_weights, tmp_path):
    (tmp_path / "filters.png").write_text("mine")
    words = ("inspect", "--ckpt", vit_weights, "--out", tmp_path, "-q")

    refused = run(*words)

    assert (
        refused.code == 2 and "filters.png already exists, and belongs to no known inspection" in refused.err
    )
    assert (tmp_path / "filters.png").read_text() == "mine"
    assert run(*words, "--overwrite").code == 0


@pytest.mark.slow
def test_a_command_that_is_refused_late_leaves_no_folder(vit_weights, tmp_path):
    (tmp_path / "a.png").write_bytes(b"no picture")

    refused = run(
        "inspect", "--ckpt", vit_weights, "--images", tmp_path / "a.png", "--out", tmp_path / "deep" / "out"
    )

    assert refused.code == 3
    assert [file.name for file in tmp_path.iterdir()] == ["a.png"]


def test_a_killed_command_can_be_given_again(vit_weights, tmp_path, monkeypatch):
    words = ("inspect", "--ckpt", vit_weights, "--out", tmp_path / "out", "-q")
    with monkeypatch.context() as patched:
        patched.setattr(inspection_files, "write_safetensors", lambda *_: 1 / 0)  # as good as a kill
        assert run(*words).code == 1
    assert (tmp_path / "out" / "filters.png").exists()

    assert run(*words).code == 0


def test_the_folder_of_a_run_is_not_drawn_into(vit_weights, tmp_path):
    (tmp_path / "recipe.toml").write_text("")
    (tmp_path / "checkpoints").mkdir()

    outcome = run("inspect", "--ckpt", vit_weights, "--out", tmp_path, "-q")

    assert outcome.code == 2
    assert f"such as --out {tmp_path / 'inspection'}" in outcome.err


@pytest.mark.slow
def test_the_demo_needs_no_options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    outcome = run("inspect", "-q")

    assert outcome.code == 0, outcome.err
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("inspect-demo-ViT-demo-8-")
    assert (folder / "inspection.html").is_file()
    assert "demo: ViT-demo/8 at 64 px, 8x8 patches of 8" in outcome.out
    assert "128 images of demo, split test" in outcome.out


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_file(), reason="real weights are not here; VIT_TEST_DATA names their folder")
def test_real_weights_know_the_grid_and_look_farther_with_depth(tmp_path):
    sample = SHARED / "data" / "imagenet_sample"
    result = run(
        "inspect", "--ckpt", REAL, "--dataset", sample, "--out", tmp_path / "out", "--json", "-q",
        "--set", "inspect.num_images=12", "--set", "inspect.num_shown=1",
    ).json  # fmt: skip

    alike, by_layer = result["position_similarity"], result["attention_distance"]["by_layer"]
    assert alike["same_row"] > 0.4 and alike["same_column"] > 0.35 and abs(alike["elsewhere"]) < 0.1
    assert np.corrcoef(range(12), by_layer)[0, 1] > 0.9
    assert result["attention_distance"]["uniform"] == pytest.approx(116.49, abs=0.005)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "is_dark"), [(1280, False), (390, False), (1280, True)])
def test_a_browser_shows_every_picture_and_asks_for_nothing(inspected, tmp_path, width, is_dark):
    out, _ = inspected
    page = out / "inspection.html"
    find()
    with Browser(tmp_path / "profile") as browser:
        browser.open(f"file://{page}", width=width, is_dark=is_dark)
        shapes = json.loads(browser.value(SHAPES))
        asked = [url for url in browser.requests() if not url.startswith("data:")]
        browser.screenshot(tmp_path / "page.png")

    assert asked == [f"file://{page}"]
    assert [tag.lower() for tag, _, _ in shapes["boxes"]].count("svg") == len(FIGURES)
    assert all(box_width > 150 and height > 60 for _, box_width, height in shapes["boxes"])
    # Tiles of six figures, the picture beside the heads, and three colour bars.
    assert len(shapes["images"]) == 10 and min(shapes["images"]) > 5
    assert shapes["reach"] <= shapes["width"] == width
    assert shapes["cut"] == 0
    pixels = np.asarray(Image.open(tmp_path / "page.png").convert("L"), dtype=float)
    assert (pixels.mean() < 128) == is_dark
    for part in np.array_split(pixels, 8):
        assert part.std() > 3
