"""Networks from names, and the initialisation of paper.md section 1.4, number by number."""

import json
import math
from dataclasses import replace

import pytest
import timm
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vitcli.errors import VitError
from vitcli.models.architecture import Architecture
from vitcli.models.build import (
    TransformerOptions,
    adapted,
    architecture,
    build,
    expected_tensors,
    last_layers,
    timm_arguments,
)
from vitcli.models.flops import activation_bytes, costs_without_head
from vitcli.models.variants import VARIANTS, num_params


def arch_of(name: str = "ViT-demo/8", *, image_size=(32, 32), num_classes=5, **options) -> Architecture:
    return architecture(
        name, image_size=image_size, num_classes=num_classes, options=TransformerOptions(**options)
    )


def fresh(arch: Architecture, *, seed: int = 0, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(seed)
    return build(arch, dropout=dropout)


def unfilled(arch: Architecture) -> nn.Module:
    """All layers and none of their numbers, which take their time to draw."""
    with torch.device("meta"):
        return build(arch, dropout=0.0, init="none")


@pytest.fixture(scope="module")
def small16() -> dict[str, torch.Tensor]:
    """A fresh S/16 with a representation layer: D 384, M 1536, P 16."""
    return fresh(arch_of("S/16", image_size=(224, 224), pre_logits=True)).state_dict()


def test_each_attention_matrix_is_xavier_uniform_on_its_own(small16):
    bound = math.sqrt(6 / (384 + 384))  # 0.125; for the fused matrix it would be 0.088
    for name in ("blocks.0.attn.qkv.weight", "blocks.11.attn.qkv.weight"):
        for matrix in small16[name].chunk(3):
            assert 0.99 * bound < matrix.abs().max() <= bound
            assert matrix.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    projection = small16["blocks.3.attn.proj.weight"]
    assert 0.99 * bound < projection.abs().max() <= bound


def test_mlp_matrices_are_xavier_uniform_and_their_biases_almost_zero(small16):
    bound = math.sqrt(6 / (384 + 1536))
    for part in ("fc1", "fc2"):
        matrix, bias = small16[f"blocks.5.mlp.{part}.weight"], small16[f"blocks.5.mlp.{part}.bias"]
        assert 0.99 * bound < matrix.abs().max() <= bound
        assert matrix.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
        assert bias.std().item() == pytest.approx(1e-6, rel=0.2)


@pytest.mark.parametrize(
    ("name", "fan_in"), [("patch_embed.proj.weight", 768), ("head.pre_logits.weight", 384)]
)
def test_patch_embedding_and_representation_layer_are_truncated_lecun_normal(small16, name, fan_in):
    std = math.sqrt(1 / fan_in)
    cut = 2 * std / 0.8796256610342398

    assert small16[name].std().item() == pytest.approx(std, rel=0.02)
    assert 0.97 * cut < small16[name].abs().max() <= cut * 1.0001


def test_position_embeddings_are_normal_and_not_truncated(small16):
    posemb = small16["pos_embed"]

    assert posemb.std().item() == pytest.approx(0.02, rel=0.02)
    assert posemb.abs().max() > 3.5 * 0.02  # 75,648 draws: a normal reaches beyond 4, a cut one ends at 2


def test_what_starts_at_zero_or_one_does(small16):
    zeros = [
        "cls_token",
        "patch_embed.proj.bias",
        "head.pre_logits.bias",
        "head.head.weight",
        "head.head.bias",
    ]
    zeros += ["blocks.0.attn.qkv.bias", "blocks.0.attn.proj.bias", "blocks.0.norm1.bias", "norm.bias"]

    assert all(torch.equal(small16[name], torch.zeros_like(small16[name])) for name in zeros)
    for name in ("blocks.0.norm1.weight", "blocks.11.norm2.weight", "norm.weight"):
        assert torch.equal(small16[name], torch.ones_like(small16[name]))


@pytest.fixture(scope="module")
def hybrid() -> dict[str, torch.Tensor]:
    """A fresh R26+S/32 with the first of its twelve blocks."""
    return fresh(arch_of("R26+S/32", image_size=(64, 64), layers=1)).state_dict()


@pytest.fixture(scope="module")
def bit() -> dict[str, torch.Tensor]:
    return fresh(arch_of("BiT-R50x1")).state_dict()


def check_lecun_normal(kernel: torch.Tensor) -> None:
    """Standard deviation and bound of flax's lecun_normal; torch's and timm's initialisations have others."""
    std = math.sqrt(1 / kernel[0].numel())
    assert kernel.std().item() == pytest.approx(std, rel=0.03)
    assert 0.9 * 2 * std / 0.8796256610342398 < kernel.abs().max() <= 2 * std / 0.8796256610342398 * 1.0001


def test_convolutions_of_a_hybrid_are_lecun_normal_and_its_blocks_start_as_their_shortcuts(hybrid):
    for name in (
        "stem.conv",
        "stages.0.blocks.0.conv2",
        "stages.3.blocks.1.conv3",
        "stages.1.blocks.0.downsample.conv",
    ):
        check_lecun_normal(hybrid[f"patch_embed.backbone.{name}.weight"])
    check_lecun_normal(hybrid["patch_embed.proj.weight"])
    norms = {name: t for name, t in hybrid.items() if ".norm" in name and "backbone" in name}
    for name, tensor in norms.items():
        expected = float(name.endswith(("norm1.weight", "norm2.weight", "norm.weight")))
        assert torch.equal(tensor, torch.full_like(tensor, expected)), name
    bound = math.sqrt(6 / (384 + 384))
    for matrix in hybrid["blocks.0.attn.qkv.weight"].chunk(3):
        assert 0.99 * bound < matrix.abs().max() <= bound


@pytest.mark.slow
def test_convolutions_of_a_bit_resnet_are_lecun_normal_and_its_head_zero(bit):
    for name in (
        "stem.conv",
        "stages.0.blocks.0.conv1",
        "stages.2.blocks.3.conv2",
        "stages.3.blocks.0.downsample.conv",
    ):
        check_lecun_normal(bit[f"{name}.weight"])
    for name, tensor in bit.items():
        if ".norm" in name or name.startswith("norm"):
            assert torch.equal(tensor, torch.full_like(tensor, float(name.endswith("weight")))), name
    assert not bit["head.fc.weight"].any() and not bit["head.fc.bias"].any()


def test_timms_own_initialisation_is_one_key_away_and_another_one():
    arch = arch_of("Ti/16", image_size=(64, 64))
    torch.manual_seed(0)
    state = build(arch, dropout=0.0, init="timm").state_dict()

    assert state["blocks.0.attn.qkv.weight"].std().item() == pytest.approx(0.02, rel=0.03)  # ours: 0.072
    assert state["cls_token"].any() and not state["head.weight"].any()


def test_weights_are_standardised_as_the_authors_do_it():
    images = torch.randn(1, 3, 64, 64)
    for name, stem in (("R26+S/32", "patch_embed.backbone.stem.conv"), ("BiT-R50x1", "stem.conv")):
        conv = unfilled(arch_of(name, image_size=(64, 64))).get_submodule(stem).to_empty(device="cpu")
        nn.init.normal_(conv.weight, std=1e-4)  # small, so that the epsilons show
        w = conv.weight.detach()
        centred = w - w.mean(dim=(1, 2, 3), keepdim=True)
        variance = centred.square().mean(dim=(1, 2, 3), keepdim=True)
        official = centred / (variance.sqrt() + 1e-5 if name != "BiT-R50x1" else (variance + 1e-10).sqrt())
        padded = nn.functional.pad(images, (2, 3, 2, 3) if name != "BiT-R50x1" else (3, 3, 3, 3))

        torch.testing.assert_close(conv(images), nn.functional.conv2d(padded, official, stride=2))


def test_group_norms_have_the_epsilon_of_each_family():
    for name, eps in (("R26+S/32", 1e-6), ("BiT-R50x1", 1e-5)):
        model = unfilled(arch_of(name, image_size=(64, 64)))
        assert {m.eps for m in model.modules() if isinstance(m, nn.GroupNorm)} == {eps}


@pytest.mark.parametrize(
    "name",
    [
        "R50+B/32",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("BiT-R152x4", "EfficientNet-L2", "R50+ViT-L/16")
        ),
    ],
)
def test_what_timm_has_no_name_for_is_built_all_the_same(name):
    arch = arch_of(name, image_size=(224, 224), num_classes=3)

    assert all(shape.numel() for shape in expected_tensors(arch).values())
    assert timm.is_model(arch.timm_name)


@pytest.mark.parametrize("device, is_kept", [("meta", False), ("cpu", True)])
def test_group_norms_get_images_channels_first_but_on_a_cpu(device, is_kept):
    """A GPU's group norm reads no other order; the loader's batches are channels last in memory."""
    with torch.device(device):
        network = build(arch_of("R+Ti/16", image_size=(64, 64)), dropout=0.0)
        images_BCHW = torch.zeros(2, 64, 64, 3).permute(0, 3, 1, 2)
    seen = []
    stem = next(module for module in network.modules() if isinstance(module, nn.Conv2d))
    stem.register_forward_hook(lambda _, inputs, output: seen.append(inputs[0].is_contiguous()))

    network.forward_features(images_BCHW)

    assert seen == [not is_kept]


def test_the_authors_padding_gives_a_hybrid_one_feature_for_each_stride():
    model = unfilled(arch_of("R26+S/32", image_size=(96, 160)))

    assert model.patch_embed.grid_size == (3, 5) == arch_of("R26+S/32", image_size=(96, 160)).patch_grid


def test_the_mean_of_all_tokens_replaces_the_class_token_after_the_norm():
    model = fresh(arch_of(classifier="gap")).eval()
    nn.init.normal_(model.head.weight)
    tokens_BTD = model.forward_features(torch.randn(2, 3, 32, 32))

    assert tokens_BTD.shape[1] == 16 and "cls_token" not in model.state_dict()
    torch.testing.assert_close(tokens_BTD.std(dim=-1, correction=0), torch.ones(2, 16), atol=1e-3, rtol=0)
    torch.testing.assert_close(
        model(torch.zeros(1, 3, 32, 32)),
        model.forward_features(torch.zeros(1, 3, 32, 32)).mean(dim=1) @ model.head.weight.T,
    )


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"posemb": "none"}, "ViT-demo/8"),
        ({"posemb": "2d"}, "ViT-demo/8"),
        ({"posemb": "relative"}, "R+Ti/16"),
        ({"posemb": "1d", "posemb_at": "every_layer"}, "ViT-demo/8"),
        ({"posemb": "2d", "posemb_at": "every_layer_shared", "classifier": "gap"}, "ViT-demo/8"),
    ],
)
def test_every_cell_of_table_8_is_a_network_with_drawn_positions(options, name):
    arch = arch_of(name, **options)
    model = fresh(arch, dropout=0.1)
    state = model.state_dict()
    drawn = [t for key, t in state.items() if "positions" in key or "relative_embed" in key]

    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 5)
    assert all(tensor.any() for tensor in drawn) and bool(drawn) == (options["posemb"] != "none")
    assert {key: t.shape for key, t in state.items()} == expected_tensors(arch)
    assert "pos_embed" not in state
    assert Architecture.from_dict(json.loads(json.dumps(arch.as_dict()))) == arch


@pytest.mark.parametrize("name", ["ViT-demo/8", "vit_tiny_patch16_224", "resnet18", "R+Ti/16"])
def test_a_fresh_network_knows_nothing_so_its_loss_is_the_log_of_the_class_count(name):
    model = fresh(arch_of(name, image_size=(32, 32), num_classes=7)).eval()
    logits_BK = model(torch.randn(2, 3, 32, 32))

    assert nn.functional.cross_entropy(logits_BK, torch.tensor([3, 6])).item() == pytest.approx(math.log(7))


def test_the_seed_alone_decides_the_numbers():
    one, again, other = (fresh(arch_of(), seed=seed).state_dict() for seed in (1, 1, 2))

    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["pos_embed"], other["pos_embed"])


def test_every_layer_norm_has_the_papers_epsilon():
    assert {m.eps for m in fresh(arch_of()).modules() if isinstance(m, nn.LayerNorm)} == {1e-6}


def test_the_gelu_is_the_tanh_form_for_the_paper_and_erf_when_asked():
    inputs = torch.linspace(-3, 3, 101)
    tanh_form = 0.5 * inputs * (1 + torch.tanh(math.sqrt(2 / math.pi) * (inputs + 0.044715 * inputs**3)))
    erf_form = 0.5 * inputs * (1 + torch.erf(inputs / math.sqrt(2)))

    for arch, expected in (
        (arch_of(), tanh_form),
        (arch_of(gelu="erf"), erf_form),
        (arch_of(gelu="timm"), erf_form),
    ):
        act = fresh(arch).blocks[0].mlp.act
        torch.testing.assert_close(act(inputs), expected, atol=1e-6, rtol=0)


def test_dropout_stands_in_the_papers_four_places_and_nowhere_else():
    model = fresh(arch_of(), dropout=0.1)
    dropping = {name for name, m in model.named_modules() if isinstance(m, nn.Dropout) and m.p == 0.1}

    per_block = {
        f"blocks.{i}.{place}" for i in range(6) for place in ("attn.proj_drop", "mlp.drop1", "mlp.drop2")
    }
    assert dropping == {"pos_drop"} | per_block


def test_without_dropout_training_and_evaluation_agree():
    model, images = fresh(arch_of()), torch.randn(1, 3, 32, 32)

    assert torch.equal(model.train().forward_features(images), model.eval().forward_features(images))


@pytest.mark.parametrize("name", [name for name, variant in VARIANTS.items() if variant.is_plain])
def test_every_variant_has_as_many_parameters_as_the_formula_says(name):
    patch = VARIANTS[name].patch_size
    arch = arch_of(name, image_size=(4 * patch, 6 * patch), num_classes=10)

    assert sum(shape.numel() for shape in expected_tensors(arch).values()) == num_params(
        VARIANTS[name], arch.image_size, 10
    )


@pytest.mark.parametrize(
    ("name", "smaller"),
    [
        ("ViT-demo/8", {}),
        ("vit_tiny_patch16_224", {}),
        ("resnet18", {"layers": (1, 1, 1, 1)}),
        ("swin_tiny_patch4_window7_224", {"embed_dim": 24, "depths": (1, 2, 1, 1)}),
        ("R+Ti/16", {}),
    ],
)
def test_the_announced_tensors_are_those_of_the_network(name, smaller):
    arch = arch_of(name, image_size=(64, 64))
    arch = replace(arch, model_args=arch.model_args | smaller)

    assert {n: t.shape for n, t in fresh(arch).state_dict().items()} == expected_tensors(arch)


def test_the_arguments_for_timm_are_json_and_make_the_same_network():
    arch = arch_of(image_size=(32, 48))
    arguments = json.loads(json.dumps(timm_arguments(arch)))
    ours = fresh(arch).eval()
    theirs = timm.create_model(arch.timm_name, num_classes=5, **arguments).eval()
    theirs.load_state_dict(ours.state_dict())
    images = torch.randn(2, 3, 32, 48)

    assert torch.equal(ours.forward_features(images), theirs.forward_features(images))


def test_a_representation_layer_is_a_dense_layer_and_a_tanh_before_the_head():
    model = fresh(arch_of(pre_logits=True)).eval()
    nn.init.normal_(model.head.head.weight)
    images = torch.randn(2, 3, 32, 32)
    cls_BD = model.forward_features(images)[:, 0]
    inner_BD = torch.tanh(cls_BD @ model.head.pre_logits.weight.T + model.head.pre_logits.bias)

    torch.testing.assert_close(model(images), inner_BD @ model.head.head.weight.T)


@pytest.mark.parametrize(
    "arch",
    [
        arch_of(),
        arch_of(pre_logits=True),
        arch_of("resnet18"),
        pytest.param(arch_of("BiT-R50x1"), marks=pytest.mark.slow),
    ],
    ids=lambda a: a.name,
)
def test_a_fresh_head_is_one_layer_of_zeros_for_the_new_classes(arch):
    arch = adapted(arch, image_size=arch.image_size, num_classes=11)
    head = build(arch, dropout=0.0, init="none").get_classifier()

    assert isinstance(head, nn.Linear | nn.Conv2d) and len(head.weight) == 11
    assert not head.weight.any() and not head.bias.any()


def test_a_network_adapts_to_other_pixels_and_classes_and_keeps_all_else():
    arch = adapted(
        arch_of("B/16", image_size=(224, 224), pre_logits=True), image_size=(384, 512), num_classes=37
    )

    assert (arch.name, arch.image_size, arch.num_classes, arch.pre_logits) == (
        "ViT-B/16",
        (384, 512),
        37,
        False,
    )
    assert arch.patch_grid == (24, 32)


@pytest.mark.parametrize(
    ("name", "size", "near"), [("H/14", (384, 378), "378 or 392"), ("B/16", (224, 8), "take 16")]
)
def test_an_image_that_does_not_divide_into_patches_is_refused_with_the_nearest_that_do(name, size, near):
    with pytest.raises(VitError) as refusal:
        arch_of(name, image_size=size)

    assert refusal.value.exit_code == 2
    assert near in refusal.value.fix


@pytest.mark.parametrize(
    ("name", "hint"),
    [("vit_base_patch16_225", "vit_base_patch16_224"), ("ViT-B/17", "ViT-B/16"), ("qqq", "no model")],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(name, hint):
    with pytest.raises(VitError, match=hint):
        arch_of(name)


def test_a_name_with_a_tag_is_sent_to_the_checkpoint_option():
    with pytest.raises(VitError) as refusal:
        arch_of("vit_base_patch16_224.orig_in21k")

    fix = (
        "vit finetune --ckpt timm/vit_base_patch16_224.orig_in21k --dataset DATA"  # not every command has it
    )
    assert fix in refusal.value.fix
    with pytest.raises(VitError) as refusal:
        arch_of("ViT-B/17")
    assert "--ckpt" not in refusal.value.fix


@pytest.mark.parametrize("options", [{"gelu": "tanh"}, {"pre_logits": True}])
def test_the_papers_own_choices_are_refused_for_timms_models(options):
    with pytest.raises(VitError, match="not a transformer of the paper"):
        arch_of("resnet18", **options)


def test_the_papers_gelu_can_be_asked_of_weights_of_the_papers_networks_alone():
    timms_vit, resnet = arch_of("vit_tiny_patch16_224"), arch_of("resnet18")

    asked = adapted(timms_vit, image_size=(32, 32), num_classes=5, gelu="tanh")
    assert fresh(asked).blocks[0].mlp.act(torch.tensor(1.0)).item() == pytest.approx(
        0.841192, abs=1e-6
    )  # erf: 0.841345
    assert adapted(timms_vit, image_size=(32, 32), num_classes=5).gelu == "timm"
    with pytest.raises(VitError, match="not a transformer of the paper"):
        adapted(resnet, image_size=(32, 32), num_classes=5, gelu="tanh")


def test_dropout_that_a_network_cannot_have_is_refused():
    with pytest.raises(VitError, match="timm cannot build resnet18"):
        build(arch_of("resnet18"), dropout=0.1)


@pytest.mark.parametrize(
    ("name", "smaller"),
    [
        pytest.param("caformer_s18", {}, marks=pytest.mark.slow),
        ("levit_128s", {}),
        ("deit_tiny_distilled_patch16_224", {"depth": 1}),
    ],
)
def test_of_a_head_of_several_layers_only_the_last_is_zero(name, smaller):
    arch = arch_of(name, image_size=(224, 224), num_classes=3)
    model = fresh(replace(arch, model_args=arch.model_args | smaller)).eval()
    layers = last_layers(model)

    assert layers and not any(parameter.any() for layer in layers for parameter in layer.parameters())
    norms = (
        [m for m in model.get_classifier().modules() if isinstance(m, nn.LayerNorm)] if name[0] == "c" else []
    )
    assert all(norm.weight.any() for norm in norms)
    assert not model(torch.randn(1, 3, 224, 224)).any()


TINY = {"embed_dim": 32, "depth": 2, "num_heads": 2}


@pytest.mark.parametrize(
    ("name", "side", "args"),
    [
        ("vit_base_patch16_siglip_224", 32, TINY),
        ("cait_xxs24_224", 32, TINY),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("naflexvit_base_patch16_map", 32, {}),
                ("vit_pe_core_tiny_patch16_384", 32, TINY),
                ("pit_ti_224", 64, {}),
                ("test_vit3", 32, {}),
            )
        ),
    ],
)
def test_the_cost_of_a_network_that_pools_with_a_learned_query_is_counted(name, side, args):
    arch = Architecture(name, name, (side, side), 7, "timm", False, args)
    cost = costs_without_head(arch)

    # With gradients, where the counter never failed
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=0, **timm_arguments(arch)).eval()
        with FlopCounterMode(display=False) as counter:
            width = model(torch.empty(1, 3, side, side)).shape[1]
    assert cost == (sum(p.numel() for p in model.parameters()), counter.get_total_flops() / 2, width)
    assert cost.macs and activation_bytes(arch, low_precision=False)


@pytest.mark.parametrize("posemb", ["1d", "2d", "relative", "sincos2d"])
def test_a_network_for_weights_draws_no_number_and_is_the_same_once_it_has_them(posemb):
    options = TransformerOptions(layers=2, hidden=32, mlp=64, heads=2, posemb=posemb)
    arch = architecture("ViT-Ti/16", image_size=(32, 48), num_classes=3, options=options)
    drawn = build(arch, dropout=0.1, drop_path=0.1)
    generator = torch.get_rng_state()
    model = build(arch, dropout=0.1, drop_path=0.1, init="none")
    if posemb == "1d":
        assert torch.equal(torch.get_rng_state(), generator)
    model.load_state_dict(drawn.state_dict())

    assert str(model) == str(drawn)
    assert all(p.requires_grad and p.is_contiguous() and p.device.type == "cpu" for p in model.parameters())
    images_BCHW = torch.randn(2, 3, 32, 48)
    assert torch.equal(model.eval()(images_BCHW), drawn.eval()(images_BCHW))


def test_the_head_of_a_network_for_weights_is_zero():
    arch = architecture("ViT-Ti/16", image_size=(32, 32), num_classes=3)

    assert not build(arch, dropout=0.0, init="none").head.weight.any()


@pytest.mark.parametrize(
    ("gelu", "model_args", "head_layers", "reads"),
    [
        ("tanh", {"depth": 12}, 0, "token"),
        ("erf", {"depth": 12, "class_token": False, "global_pool": "avg"}, 0, "gap"),
        ("timm", {"class_token": False, "global_pool": "avg"}, 0, "gap"),
        ("timm", {"global_pool": "avg"}, 0, ""),  # beside a class token: timm's own choice
        ("timm", {"class_token": False, "global_pool": "map"}, 0, ""),
        ("tanh", {"depth": 12, "global_pool": "avg"}, 0, "token"),
        ("timm", {"depth": 12}, 0, ""),
        ("none", {"layers": [3, 4, 6, 3]}, 0, ""),  # a ResNet
        ("tanh", {"depth": 12}, 4, "layers"),
    ],
)
def test_what_the_head_of_a_network_reads(gelu, model_args, head_layers, reads):
    arch = Architecture("x", "y", (32, 32), 5, gelu, False, model_args, head_layers=head_layers)

    assert arch.classifier == reads
