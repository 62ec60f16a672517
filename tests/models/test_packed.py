"""Passes without gradients: rows in blocks; in bf16 weights cast and packed once, the class token alone."""

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.distributed.runtime import cpu_has_bf16
from vitcli.models import features, kernels
from vitcli.models.build import TransformerOptions, architecture, build

CPU = torch.device("cpu")
onednn = pytest.mark.skipif(not (cpu_has_bf16() and kernels._has_onednn()), reason="packs in native bf16")


def small(**options) -> nn.Module:
    torch.manual_seed(0)
    arch = architecture(
        "ViT-demo/8", image_size=(32, 32), num_classes=7, options=TransformerOptions(layers=2, **options)
    )
    model = build(arch, dropout=0.1).eval()
    for parameter in model.parameters():  # biases and the head are not zero
        nn.init.normal_(parameter, std=0.3) if parameter.ndim < 2 else None
    nn.init.normal_(model.get_classifier().weight)
    return model


def images(count: int = 4) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def in_bf16(function, *args) -> Tensor:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        return function(*args)


def with_weights_cast_once(model: nn.Module, function, *args) -> Tensor:
    with kernels.dense_layers(model, CPU, "bf16"):
        return in_bf16(function, *args)


@pytest.mark.parametrize("is_packed", [pytest.param(True, marks=onednn), False])
def test_products_with_weights_cast_once_have_the_bits_of_autocast(is_packed, monkeypatch):
    monkeypatch.setattr(kernels, "HAS_BF16", is_packed)
    model = nn.Sequential(nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, 8, bias=False))
    for rows in (torch.randn(5, 24), torch.randn(3, 9, 24)[:, :1], torch.randn(0, 24)):
        result = with_weights_cast_once(model, model, rows)

        assert torch.equal(result, in_bf16(model, rows)) and result.dtype == torch.bfloat16


@onednn
@pytest.mark.parametrize("act_layer, form", [("gelu_tanh", "tanh"), ("gelu", "none")])
def test_a_gelu_within_the_product_is_that_of_the_formula(act_layer, form):
    activation = timm.layers.get_act_layer(act_layer)
    mlp = timm.layers.Mlp(24, 96, act_layer=activation).eval()
    rows = 3 * torch.randn(64, 24).bfloat16()
    weights = [x.detach().bfloat16().double() for x in mlp.parameters()]

    hidden = F.gelu(F.linear(rows.double(), *weights[:2]), approximate=form)
    result = with_weights_cast_once(mlp, mlp, rows)

    expected = F.linear(hidden, *weights[2:])
    assert (result - expected).norm() < 0.005 * expected.norm()


@onednn
def test_outputs_do_not_depend_on_the_other_images_of_the_batch():
    model = small()
    whole = with_weights_cast_once(model, features.logits, model, images(12))

    part = with_weights_cast_once(model, features.logits, model, images(12)[4:8])

    assert torch.equal(whole[4:8], part)


def test_the_network_is_as_before_after_the_pass_and_after_an_error():
    model = small()
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    expected = model(images())

    with pytest.raises(ZeroDivisionError), kernels.dense_layers(model, CPU, "bf16"):
        assert "forward" in vars(model.blocks[0].mlp.fc1)
        raise ZeroDivisionError

    assert {name: set(vars(module)) for name, module in model.named_modules()} == before
    assert torch.equal(model(images()), expected)


def test_in_fp32_every_product_is_that_of_the_network():
    model, block = small(), images(kernels.BLOCK_ROWS)
    expected = model(block)

    with torch.no_grad(), kernels.dense_layers(model, CPU, "fp32"):
        assert torch.equal(features.logits(model, block), expected)


@pytest.mark.parametrize("choices", [{}, {"posemb": "sincos2d", "posemb_at": "stem"}, {"gelu": "erf"}])
def test_the_class_token_alone_has_the_logits_and_features_of_all_tokens(choices):
    model, sizes = small(**choices), []
    model.blocks[-1].mlp.register_forward_hook(lambda _, args, __: sizes.append(args[0].shape[1]))

    def by_all_tokens(layer):
        encoded = model.forward_features(images())
        return torch.cat([features.features_at(model, encoded, layer), model.forward_head(encoded)], dim=1)

    for layer in ("pre_logits", "token", "gap"):
        expected = in_bf16(by_all_tokens, layer)
        result = in_bf16(lambda: features.outputs(model, images(), layer=layer, with_logits=True))  # noqa: B023
        assert (result - expected).norm() < 0.01 * expected.norm()
    logits, expected = in_bf16(features.logits, model, images()), in_bf16(model, images())
    assert (logits - expected).norm() < 0.01 * expected.norm()

    assert sizes == [17, 1, 17, 1, 17, 17, 1, 17]


@pytest.mark.parametrize("choices", [{"classifier": "gap"}, {"posemb": "relative"}])
def test_other_readings_and_attentions_compute_all_tokens(choices):
    model = small(**choices)

    assert torch.equal(in_bf16(features.logits, model, images()), in_bf16(model, images()))


def test_a_network_of_two_tokens_is_left_alone():
    torch.manual_seed(0)
    model = timm.create_model("deit_tiny_distilled_patch16_224", img_size=32, depth=1).eval()

    assert torch.equal(in_bf16(features.logits, model, images()), in_bf16(model, images()))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(192, 10), (1024, 1000), (64, 1)])
def test_no_bit_of_a_row_in_fp32_depends_on_the_rows_around_it(shape, threads):
    layer, rows = nn.Linear(*shape), torch.randn(150, shape[0])
    torch.set_num_threads(threads)
    try:
        with kernels.dense_layers(layer, CPU, "fp32"), torch.no_grad():
            alone = torch.cat([layer(row[None]) for row in rows])
            of_some = {count: layer(rows[:count]) for count in (4, 37, 150)}
            no_rows = layer(rows[:0])
    finally:
        torch.set_num_threads(1)

    assert all(torch.equal(result, alone[:count]) for count, result in of_some.items())
    assert torch.allclose(alone, layer(rows), atol=1e-5) and no_rows.shape == (0, shape[1])
    assert "forward" not in vars(layer)
