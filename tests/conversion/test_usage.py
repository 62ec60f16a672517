"""A card's section on loading is true: its Python is run in the folder, and gives our outputs three times."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.conversion.test_export import GAP, NAMES, SIZE, bit, distance, hybrid, images, network, vit
from vitcli.conversion.model_card import BEGIN, END, HERE, how_to_load, on_the_hub, replace_section
from vitcli.models.architecture import Architecture
from vitcli.weights.describe import WeightsInfo
from vitcli.weights.formats import caveats
from vitcli.weights.io import write_weights


def folder_of(arch: Architecture, folder: Path) -> torch.nn.Module:
    model = network(arch)
    preprocessing = {
        "image_size": list(arch.image_size), "resize": "square", "crop_fraction": 1.0, "antialias": True,
        "interpolation": "bilinear", "mean": [0.5, 0.4, 0.3], "std": [0.5, 0.6, 0.7], "decoder": "any",
    }  # fmt: skip
    names = NAMES if arch.num_classes else None
    state, about = model.state_dict(), {"preprocessing": preprocessing, "class_names": names, "metadata": {}}
    write_weights(folder, state, WeightsInfo(arch, **about))
    Image.new("RGB", (40, 30), (200, 40, 40)).save(folder / "image.jpg")
    return model


def blocks(arch: Architecture) -> tuple[str, str, str]:
    """The Python of the section: with vit, timm and transformers."""
    text = how_to_load(HERE, arch, dataset=None)
    ours, timms, transformers = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return ours, timms, transformers


def run(code: str) -> dict:
    names: dict = {}
    exec(code, names)
    return names


def test_what_timm_does_not_know_by_itself_is_imported_first():
    assert not any("vitcli.backbones" in block for block in blocks(vit()))
    for arch in (hybrid(), bit()):
        _, timms, transformers = blocks(arch)
        assert "import vitcli.backbones" in timms and "import vitcli.backbones" in transformers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "tolerance"),
    [
        (vit(), 0),
        (vit((16, 48)), 0),
        (vit(gelu="erf"), 0),
        (vit(args=SIZE | GAP), 0),
        (hybrid(), 1e-4),  # timm's group norms have another epsilon
        (bit(), 1e-4),
    ],
    ids=["tanh", "oblong", "erf", "gap", "hybrid", "bit"],
)
def test_vit_timm_and_transformers_load_the_folder_as_its_card_says(arch, tolerance, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    expected, pixels = folder_of(arch, tmp_path)(images(*arch.image_size)), images(*arch.image_size)
    ours, timms, transformers = blocks(arch)
    monkeypatch.chdir(tmp_path)

    with torch.no_grad():
        assert torch.equal(run(ours)["model"](pixels), expected)
        assert distance(run(timms)["model"](pixels), expected) <= tolerance
        theirs = run(transformers)
        assert distance(theirs["model"](pixels).logits, expected) <= tolerance
    assert theirs["model"].config.id2label == dict(enumerate(NAMES))
    shown = theirs["processor"](Image.open("image.jpg"), return_tensors="pt")["pixel_values"]
    assert shown.shape == (1, 3, *arch.image_size)
    assert distance(shown[0].mean((1, 2)), run(ours)["transform"]("image.jpg").mean((1, 2))) < 0.02


@pytest.mark.slow
def test_features_are_features_in_all_three(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    arch = replace(vit(), num_classes=0)
    expected, pixels = folder_of(arch, tmp_path)(images()), images()
    ours, timms, transformers = blocks(arch)
    monkeypatch.chdir(tmp_path)

    with torch.no_grad():
        assert torch.equal(run(ours)["model"](pixels), expected)
        assert torch.equal(run(timms)["model"](pixels), expected)
        assert torch.equal(run(transformers)["model"](pixels).pooler_output, expected)


@pytest.mark.parametrize(
    ("dataset", "shown"),
    [
        ("my photos/", "'PATH/TO/my photos'"),
        ("photos", "PATH/TO/photos"),
        ("data/photos/", "PATH/TO/photos"),
        ("../data/photos", "PATH/TO/photos"),
        ("oxford_pets", "oxford_pets"),
        ("demo", "demo"),
        ("owner/name", "owner/name"),
        ("animals/small/cats", "PATH/TO/cats"),
        ("vtab/caltech101", "vtab/caltech101"),
        ("s3://user:secret@bucket/shards", "s3://bucket/shards"),
    ],
)
def test_a_path_of_the_data_is_a_place_to_fill_in_and_a_public_name_stays(dataset, shown):
    assert f"--dataset {shown}\n" in how_to_load(HERE, vit(), dataset=dataset)


@pytest.mark.parametrize(
    ("precision", "agreement", "row"), [("int8", 0.895, "89.50%"), ("int8", None, None), ("fp32", 1.0, None)]
)
def test_the_card_says_how_often_a_file_in_another_precision_gives_the_same_class(precision, agreement, row):
    speed = {"threads": 2}
    speed |= {side: {"latency_ms": 1.0, "images_per_s": 2.0} for side in ("exported", "pytorch")}
    result = {"out": "pets.onnx", "precision": precision, "input": "images", "resolution": [32, 32]}
    result |= {"num_images": 200, "max_rel_difference": 0.7, "top1_agreement": agreement}
    result |= {"speed": speed, "snippet": "code"}
    card = how_to_load(on_the_hub("ann/pets"), vit(), dataset=None, of_onnx=result)

    (shown,) = [line for line in card.splitlines() if "same class" in line] or [None]
    assert shown == (row and f"| same class | {row} of these images |")


def test_the_card_says_what_the_conversion_may_have_lost():
    speed = {"threads": 2, "exported": {"latency_ms": 12.34, "images_per_s": 81.0}}
    speed |= {"pytorch": {"latency_ms": 20.0, "images_per_s": 1234.0}}
    gate = {"drop": 0.0125, "highest_drop": 0.0307, "top1_exported": 0.8975, "num_images": 400}
    result = {"out": "a/pets.onnx", "precision": "int8", "input": "pixels", "resolution": [32, 48]}
    result |= {"num_images": 200, "max_rel_difference": 0.0712, "top1_agreement": 0.995, "gate": gate}
    result |= {"speed": speed, "snippet": "run('a/pets.onnx')"}

    lines = how_to_load(HERE, vit(), dataset=None, of_onnx=result).splitlines()

    for line in (
        "### pets.onnx",
        "| outputs differ by | 0.071 of the largest, on 200 images |",
        "| top-1 | 89.75% of 400 images; lost to the conversion 1.25%, at most 3.07% with 95 % confidence |",
        "| onnxruntime | 12.3 ms per image, 81 images/s at best |",
        "| PyTorch | 20 ms per image, 1.23e+03 images/s at best |",
        "run('pets.onnx')",
    ):
        assert line in lines, line
    assert any(line.startswith("| takes | images of 32x48 pixels, as bytes") for line in lines)


def test_a_section_between_its_marks_is_replaced_and_all_else_is_kept():
    old, new = (how_to_load(HERE, vit(), dataset=data) for data in ("demo", "oxford_pets"))
    card = "# Mine\n\n{}\n\nmore of mine\n"

    assert replace_section(card.format(old.rstrip()), new) == card.format(new.rstrip())
    assert replace_section("# Mine\n", new) is None
    assert replace_section(card.format(old + old), new) is None  # which of them is no guess of ours
    assert replace_section(f"{BEGIN} a \\1 b {END}", f"{BEGIN} \\1 {END}") == f"{BEGIN} \\1 {END}"


@pytest.mark.parametrize("num_classes", [0, 5])
def test_what_the_libraries_do_otherwise_is_said_and_features_predict_nothing(num_classes):
    num_caveats = 0
    for arch in (vit(), vit(gelu="erf"), hybrid(), bit()):
        arch = replace(arch, num_classes=num_classes)
        lines = how_to_load(HERE, arch, dataset="demo").splitlines()
        for caveat in caveats("timm", arch):
            assert f"In timm and transformers, {caveat}." in lines
            num_caveats += 1
        assert ("vit predict --ckpt . IMAGES" in lines) == (num_classes > 0)
        assert "vit evaluate --ckpt . --dataset demo" in lines
    assert num_caveats


def test_a_revision_is_part_of_every_name_on_the_hub():
    plain, of_branch = on_the_hub("me/photos"), on_the_hub("me/photos", "v1")

    assert (plain.ckpt, plain.timm, plain.transformers) == (*["hf-hub:me/photos"] * 2, '"me/photos"')
    assert of_branch.ckpt == of_branch.timm == "hf-hub:me/photos@v1"
    assert of_branch.transformers == '"me/photos", revision="v1"'


def test_transformers_loads_a_network_without_classes_as_one_that_gives_features():
    kinds = [re.findall("AutoModel[A-Za-z]*", blocks(replace(vit(), num_classes=k))[2]) for k in (0, 5)]

    assert set(kinds[0]) == {"AutoModel"} and set(kinds[1]) == {"AutoModelForImageClassification"}
