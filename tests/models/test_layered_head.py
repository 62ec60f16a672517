"""A head that reads several layers, against timm's own intermediate features."""

from dataclasses import replace

import pytest
import timm
import torch

from vitcli.errors import VitError
from vitcli.models import blocks, features, flops
from vitcli.models.architecture import Architecture
from vitcli.models.build import TransformerOptions, architecture, build
from vitcli.models.layered_head import can_read_layers, columns_of_token, with_layered_head
from vitcli.weights.describe import WeightsInfo
from vitcli.weights.formats import check_supported
from vitcli.weights.io import read_weights, write_weights_file
from vitcli.weights.load import load

SIZE, CLASSES, WIDTH = (16, 24), 3, 32  # a grid that is not square
OPTIONS = TransformerOptions(layers=3, hidden=WIDTH, mlp=32, heads=2)
ARCH = architecture("ViT-demo/8", image_size=SIZE, num_classes=CLASSES, options=OPTIONS)
LAYERED = replace(ARCH, head_layers=2)


@pytest.fixture
def plain() -> torch.nn.Module:
    torch.manual_seed(0)
    model = build(ARCH, dropout=0.0).eval()
    with torch.no_grad():
        for value in model.state_dict().values():
            torch.nn.init.normal_(value, std=0.2)
    return model


@pytest.fixture
def layered(plain) -> torch.nn.Module:
    """Two layers, and a head that weighs all of their columns."""
    model = with_layered_head(plain, 2).eval()
    torch.nn.init.normal_(model.head.weight, std=0.2)
    return model


IMAGES = torch.randn(2, 3, *SIZE, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def columns_by_hand(plain: torch.nn.Module, num_layers: int) -> torch.Tensor:
    """What timm says of each block, its tokens in the place of their mean and first."""
    taken = plain.forward_intermediates(IMAGES, norm=True, output_fmt="NLC", return_prefix_tokens=True)[1]
    columns = []
    for patches_BND, prefix_B1D in taken[-num_layers:]:
        columns += [prefix_B1D[:, 0], patches_BND.sum(dim=1) / 6]
    return torch.cat(columns, dim=1)


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_the_head_reads_token_and_mean_of_the_last_blocks_after_the_last_norm(plain, num_layers):
    model = with_layered_head(plain, num_layers).eval()
    torch.nn.init.normal_(model.head.weight)
    with torch.no_grad():
        read_BF = features.outputs(model, IMAGES, layer="pre_logits", with_logits=False)
        logits_BK = model(IMAGES)

    assert read_BF.shape == (2, 2 * num_layers * WIDTH)
    torch.testing.assert_close(read_BF, columns_by_hand(plain, num_layers))
    torch.testing.assert_close(logits_BK, read_BF @ model.head.weight.T + model.head.bias)


def test_a_head_that_is_widened_has_its_logits_and_its_columns(plain):
    with torch.no_grad():
        before_BK = plain(IMAGES)
        model = with_layered_head(plain, 2).eval()
        token_BD = features.outputs(plain, IMAGES, layer="token", with_logits=False)
        read_BF = features.outputs(model, IMAGES, layer="pre_logits", with_logits=False)
        logits_BK = model(IMAGES)

    torch.testing.assert_close(logits_BK, before_BK, rtol=1e-5, atol=1e-5)
    assert torch.equal(read_BF[:, columns_of_token(4 * WIDTH, 2)], token_BD)
    assert model.head.weight.abs().sum(dim=0).nonzero()[:, 0].tolist() == [*range(2 * WIDTH, 3 * WIDTH)]
    assert plain.head.weight.shape == (CLASSES, WIDTH)
    assert model.blocks[0] is plain.blocks[0] and model.cls_token is plain.cls_token


def test_other_features_are_those_of_the_ordinary_network(plain, layered):
    layout = blocks.layout_of(plain, SIZE, "all", ckpt="plain")
    with torch.no_grad():
        for layer, same in (("token", "token"), ("gap", "gap"), ("one_layer", "pre_logits")):
            ours = features.outputs(layered, IMAGES, layer=layer, with_logits=True)
            truth = features.outputs(plain, IMAGES, layer=same, with_logits=False)
            assert torch.equal(ours[:, :-CLASSES], truth)
            assert torch.equal(ours[:, -CLASSES:], layered(IMAGES))
        of_layers = blocks.read_layers(layered, IMAGES, layout)
        assert torch.equal(of_layers, blocks.read_layers(plain, IMAGES, layout))
    head = blocks.layout_of(layered, SIZE, "all", ckpt="layered").parts[-1]
    assert head == ("head", 3, 4 * WIDTH)


def test_a_file_brings_the_network_back(layered, tmp_path):
    file = tmp_path / "model.safetensors"
    about = {"preprocessing": None, "class_names": None, "metadata": {}}
    write_weights_file(file, layered.state_dict(), WeightsInfo(LAYERED, **about))
    model, arch, _ = load(read_weights(str(file)))

    assert arch == LAYERED
    with torch.no_grad():
        assert torch.equal(model.eval()(IMAGES), layered(IMAGES))
    other, arch, report = load(read_weights(str(file)), num_classes=5)
    assert arch == ARCH.with_head(5) and other.head.weight.shape == (5, WIDTH)
    assert sorted(report.replaced) == ["head.bias", "head.weight"]


def test_timm_refuses_the_weights_by_the_shape_of_the_head(layered):
    theirs = timm.create_model(ARCH.timm_name, num_classes=CLASSES, img_size=SIZE, **ARCH.model_args)

    assert [*theirs.state_dict()] == [*layered.state_dict()]
    with pytest.raises(RuntimeError, match=r"size mismatch for head\.weight"):
        theirs.load_state_dict(layered.state_dict())


def test_the_description_names_the_layers_only_where_there_are_several():
    assert ARCH.as_dict()["head_layers"] == 0 and LAYERED.as_dict()["head_layers"] == 2
    assert Architecture.from_dict(LAYERED.as_dict()) == LAYERED
    assert Architecture.from_dict(ARCH.as_dict()) == ARCH
    assert LAYERED.with_head(4) == ARCH.with_head(4)


@pytest.mark.parametrize(
    "changed",
    [
        {"head_layers": -1},
        {"head_layers": 2.0},
        {"head_layers": True},
        {"head_layers": 1_001},
        {"head_layers": 1, "pre_logits": True},
        {"head_layers": 1, "num_classes": 0},
    ],
)
def test_a_damaged_number_of_layers_is_refused(changed):
    with pytest.raises(VitError, match=r"damaged \(head_layers"):
        Architecture.from_dict(ARCH.as_dict() | changed)


@pytest.mark.parametrize(
    ("name", "num_layers"), [("ViT-demo/8", 4), ("deit_tiny_distilled_patch16_224", 2), ("resnet18", 1)]
)
def test_networks_without_a_place_for_it_are_refused(name, num_layers):
    options = OPTIONS if name == "ViT-demo/8" else TransformerOptions()
    arch = architecture(name, image_size=(32, 32), num_classes=CLASSES, options=options)

    assert not can_read_layers(build(arch, dropout=0.0), num_layers)
    with pytest.raises(VitError, match=f"cannot read {num_layers} layers") as refused:
        build(replace(arch, head_layers=num_layers), dropout=0.0)
    assert refused.value.where and refused.value.fix


def test_costs_count_the_wide_head():
    """Also of a network of Table 1, whose costs are formulas."""
    plain = architecture("ViT-Ti/16", image_size=(32, 48), num_classes=CLASSES)
    layered = replace(plain, head_layers=2)

    assert flops.num_params(layered) == sum(p.numel() for p in build(layered, dropout=0.0).parameters())
    assert flops.num_params(layered) - flops.num_params(plain) == CLASSES * 3 * 192
    assert flops.forward_macs(layered) == pytest.approx(flops.forward_macs(plain))


@pytest.mark.parametrize("format", ["timm", "npz"])
def test_formats_of_others_are_refused(format):
    with pytest.raises(VitError, match="does not support a head that reads the last 2 blocks") as refused:
        check_supported(format, LAYERED)
    assert "onnx" in refused.value.fix and "safetensors" in refused.value.fix
