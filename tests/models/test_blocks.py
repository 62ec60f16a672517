"""Features after every block: those of timm, and of the last layer those of `models.features`."""

import pytest
import timm
import torch

from vitcli.errors import VitError
from vitcli.models import features
from vitcli.models.blocks import layout_of, num_blocks, read_layers

SIZE = (32, 32)
SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 4, "num_heads": 2, "num_classes": 5}
KINDS = {
    "token": ("vit_tiny_patch16_224", SMALL),
    "gap": ("vit_tiny_patch16_224", SMALL | {"global_pool": "avg"}),
    "map": ("vit_tiny_patch16_224", SMALL | {"global_pool": "map", "class_token": False}),
    "registers": ("vit_tiny_patch16_224", SMALL | {"reg_tokens": 3}),
    "distilled": ("deit_tiny_distilled_patch16_224", SMALL),
    "eva": ("eva02_tiny_patch14_224", SMALL),
}


@pytest.fixture(params=KINDS, scope="module")
def model(request):
    torch.manual_seed(0)
    name, sizes = KINDS[request.param]
    network = timm.create_model(name, **sizes).eval()
    for parameter in network.parameters():  # norms and tables that are not 1 and 0
        torch.nn.init.normal_(parameter, std=0.3)
    return network


def test_layers_are_those_of_timms_forward_intermediates(model):
    images = torch.randn(8, 3, *SIZE)
    layout = layout_of(model, SIZE, "all", ckpt="x")
    with torch.no_grad():
        rows = read_layers(model, images, layout)
        taken = model.forward_intermediates(
            images, norm=True, output_fmt="NLC", return_prefix_tokens=True, intermediates_only=True
        )

    assert layout.num_layers == 4 and layout.layers == (1, 2, 3, 4)
    assert rows.shape == (8, layout.width)
    for layer, of_layer in enumerate(taken, start=1):
        patches, prefix = of_layer if isinstance(of_layer, tuple) else (of_layer, None)
        assert torch.equal(rows[:, layout.slices["mean", layer]], patches.mean(dim=1))
        if ("token", layer) in layout.slices:
            assert torch.equal(rows[:, layout.slices["token", layer]], prefix[:, 0])
    assert ("token", 1) in layout.slices or getattr(model, "cls_token", None) is None


def test_the_last_layer_is_that_of_the_existing_path(model):
    images = torch.randn(8, 3, *SIZE)
    last = layout_of(model, SIZE, "last", ckpt="x")
    of = {}
    with torch.no_grad():
        rows = read_layers(model, images, last)
        for layer in ("pre_logits", *(["token", "gap"] if features.has_normed_token(model) else [])):
            of[layer] = features.outputs(model, images, layer=layer, with_logits=False)

    if "token" in of:
        assert torch.equal(rows[:, last.slices["token", 4]], of["token"])
        assert torch.equal(rows[:, last.slices["mean", 4]], of["gap"])
    head = ("head", 4) if ("head", 4) in last.slices else ("token", 4)
    assert torch.equal(rows[:, last.slices[head]], of["pre_logits"])
    assert last.layers == (4,) and not any(block._forward_hooks for block in model.blocks)


def test_some_layers_are_the_same_numbers_as_all(model):
    images = torch.randn(4, 3, *SIZE)
    every, some = (layout_of(model, SIZE, which, ckpt="x") for which in ("all", (3, 1)))
    with torch.no_grad():
        of_all, of_some = (read_layers(model, images, layout) for layout in (every, some))

    assert some.layers == (1, 3)
    for part in some.slices:
        assert torch.equal(of_some[:, some.slices[part]], of_all[:, every.slices[part]])


@pytest.mark.parametrize(
    "name",
    [
        "resnet10t",
        pytest.param("cait_xxs24_224", marks=pytest.mark.slow),
        "test_convnext",
        "test_efficientnet",
    ],
)
def test_a_network_without_such_blocks_has_the_input_of_its_head_alone(name):
    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 8} if name.startswith("cait") else {}
    model = timm.create_model(name, num_classes=3, **sizes).eval()

    layout = layout_of(model, SIZE, "last", ckpt="x")
    images = torch.randn(4, 3, *SIZE)
    with torch.no_grad():
        rows = read_layers(model, images, layout)
        expected = model.forward_head(model.forward_features(images), pre_logits=True)

    assert num_blocks(model, SIZE) == 0 and layout.slices.keys() == {("head", 0)}
    assert torch.equal(rows, expected)
    for layers in ("all", (1,)):
        with pytest.raises(VitError, match="no transformer blocks") as refused:
            layout_of(model, SIZE, layers, ckpt="weights.pth")
        assert "weights.pth" in refused.value.where and "last" in refused.value.fix


def test_a_layer_that_is_not_there_is_refused_with_the_number_of_layers():
    model = timm.create_model("vit_tiny_patch16_224", **SMALL).eval()

    with pytest.raises(VitError, match="no layer 5: the network has 4"):
        layout_of(model, SIZE, (2, 5), ckpt="x")
