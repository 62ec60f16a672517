"""Names of ImageNet's classes for published heads that store none, and for no other head."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from tests.conftest import run
from vitcli.errors import WeightsError
from vitcli.models.architecture import Architecture
from vitcli.models.build import architecture, build
from vitcli.models.variants import vit_args
from vitcli.weights.authors_npz import to_official
from vitcli.weights.describe import WeightsInfo
from vitcli.weights.files import write_npz
from vitcli.weights.imagenet import class_names, subset_of
from vitcli.weights.io import read_weights, write_weights

SIZE = vit_args(layers=1, hidden=48, mlp=96, heads=3, patch_size=16)


def timm_folder(folder, *, tag: str, num_classes: int = 1000, likeliest: int = 324, **config) -> str:
    arch = Architecture("x", "vit_tiny_patch16_224", (32, 32), num_classes, "timm", False, SIZE)
    state = {name: torch.zeros(t.shape) for name, t in build(arch, dropout=0.0).state_dict().items()}
    state["head.bias"][likeliest] = 5.0
    folder.mkdir()
    save_file(state, folder / "model.safetensors")
    cfg = {"input_size": [3, 32, 32], "num_classes": num_classes, "tag": tag}
    config |= {"architecture": "vit_tiny_patch16_224", "num_classes": num_classes, "pretrained_cfg": cfg}
    (folder / "config.json").write_text(json.dumps(config | {"model_args": {**SIZE, "img_size": 32}}))
    return str(folder)


def test_the_lists_have_the_names_of_the_published_orders():
    # By the authors' ilsvrc2012_wordnet_lemmas.txt and WordNet
    first = class_names("imagenet-1k")
    assert (len(first), first[0], first[324], first[999]) == (
        1000, "tench, Tinca tinca", "cabbage butterfly",
        "toilet tissue, toilet paper, bathroom tissue",
    )  # fmt: skip
    assert len(class_names("imagenet-21k-goog")) == 21843 and class_names("imagenet-21k-goog")[1] == "benthos"
    assert len(class_names("imagenet-12k")) == 11821 and class_names("imagenet-12k")[0] == "benthos"


@pytest.mark.parametrize(
    ("num_classes", "name", "subset"),
    [
        (1000, "augreg_in21k_ft_in1k", "imagenet-1k"),
        (1000, "openai_ft_in1k", "imagenet-1k"),
        (1000, "ann/vit-small-imagenet1k", "imagenet-1k"),
        (1000, "ann/vit-imagenet-1k-384", "imagenet-1k"),
        (1000, "ViT-B_16-224.npz", "imagenet-1k"),
        (1000, "B_16-i21k-300ep-lr_0.001--imagenet2012-steps_20k-lr_0.01-res_224.npz", "imagenet-1k"),
        (1000, "in12k", ""),
        (1000, "", ""),
        (1000, "photos.npz", ""),
        (1000, "ann/main1kinds", ""),
        (1000, "ann/train1k", ""),
        (999, "in1k", ""),
        (21843, "", "imagenet-21k-goog"),
        (21841, "ms_in22k", "imagenet-22k"),
        (11821, "", "imagenet-12k"),
        (0, "in1k", ""),
    ],
)
def test_only_an_imagenet_head_is_one(num_classes, name, subset):
    assert subset_of(num_classes, ["", name]) == subset


@pytest.mark.parametrize(("tag", "named"), [("augreg_in1k", "cabbage butterfly"), ("insects", "class 324")])
def test_predict_shows_the_names_of_imagenets_classes_and_says_so(tmp_path, tag, named):
    Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(tmp_path / "x.png")
    outcome = run(
        "predict", "--ckpt", timm_folder(tmp_path / "w", tag=tag), tmp_path / "x.png", "--topk", 1, "--json"
    )

    assert outcome.json["predictions"][0]["top"][0]["class"] == named
    is_known = tag != "insects"
    assert outcome.json["class_names_from"] == ("imagenet-1k" if is_known else None)
    assert ("class names: ImageNet-1k's, as the weights store none" in outcome.err) == is_known
    assert ("1,000 classes without names; if they are ImageNet's: --model" in outcome.err) != is_known


def test_stored_names_come_first_and_matching_by_name_knows_no_others(tmp_path):
    own = [f"beetle {k}" for k in range(1000)]
    weights = read_weights(timm_folder(tmp_path / "a", tag="augreg_in1k", label_names=own))
    assert weights.readable_class_names == tuple(own) and weights.imagenet == ""
    weights = read_weights(timm_folder(tmp_path / "b", tag="augreg_in1k"))
    assert weights.class_names is None and weights.readable_class_names[324] == "cabbage butterfly"
    numbers = read_weights(timm_folder(tmp_path / "n", tag="augreg_in1k", label_names=[*range(1000)]))
    assert numbers.class_names[999] == "999"
    broken = timm_folder(tmp_path / "s", tag="augreg_in1k", label_names=[*own[1:], "\ud800"])
    with pytest.raises(WeightsError, match="a class has a name that UTF-8 cannot express"):
        read_weights(broken)
    # A copy in our format knows it too
    write_weights(
        tmp_path / "c", weights.state, WeightsInfo(weights.architecture, class_names=None,
        preprocessing=weights.preprocessing, metadata=weights.metadata),
    )  # fmt: skip
    assert read_weights(str(tmp_path / "c")).imagenet == "imagenet-1k"
    # A run of one's own with 1,000 classes does not
    write_weights(
        tmp_path / "d", weights.state, WeightsInfo(weights.architecture, class_names=None,
        preprocessing=weights.preprocessing, metadata={}),
    )  # fmt: skip
    assert read_weights(str(tmp_path / "d")).readable_class_names[324] == "class 324"


@pytest.mark.parametrize(
    ("file", "num_classes", "subset"),
    [("ViT-B_16.npz", 1000, "imagenet-1k"), ("mine.npz", 1000, ""), ("mine.npz", 21843, "imagenet-21k-goog")],
)
def test_the_authors_files_are_known_by_their_names(tmp_path, file, num_classes, subset):
    arch = architecture("ViT-demo/8", image_size=(32, 32), num_classes=num_classes)
    state = {name: torch.zeros(t.shape) for name, t in build(arch, dropout=0.0).state_dict().items()}
    write_npz(tmp_path / file, to_official(state, heads=3, spelling="published"))

    weights = read_weights(str(tmp_path / file))
    assert (weights.imagenet, replace(weights, imagenet="").readable_class_names[0]) == (subset, "class 0")
