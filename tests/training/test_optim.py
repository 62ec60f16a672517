"""Parameter groups, single optimizer steps, clipping and the weight average, against the formulas."""

import math
from functools import partial

import numpy as np
import pytest
import timm
import torch
from timm.optim import param_groups_layer_decay, param_groups_weight_decay
from torch import nn

from tests.training.test_families import FAMILIES, SMALL
from vitcli.models.build import TransformerOptions, architecture, build
from vitcli.models.variants import VARIANTS
from vitcli.recipe.schema import Optimizer
from vitcli.training.optim import WeightAverage, build_optimizer, clip_by_global_norm, parameter_groups


@pytest.fixture(scope="module")
def vit():
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=32, embed_dim=12, depth=2, num_heads=3, num_classes=5
    )


def one_weight(value: list[float]) -> nn.Linear:
    """A single matrix with these numbers and no bias."""
    layer = nn.Linear(len(value), 1, bias=False)
    layer.weight.data = torch.tensor([value], dtype=torch.float64)
    return layer


def steps(model: nn.Linear, optimizer: torch.optim.Optimizer, *, lr: float, gradients: list[list[float]]):
    for gradient in gradients:
        for group in optimizer.param_groups:
            group["lr"] = lr
        model.weight.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
    return model.weight.data[0].tolist()


def with_gradients(*values: list[float]) -> list[nn.Parameter]:
    parameters = [nn.Parameter(torch.zeros(len(value))) for value in values]
    for parameter, value in zip(parameters, values, strict=True):
        parameter.grad = torch.tensor(value)
    return parameters


def test_matrices_are_decayed_and_biases_norms_class_token_and_position_embedding_are_not(vit):
    decayed, spared = parameter_groups(vit, weight_decay=0.3, decay_on="matrices", layer_decay=1.0)
    names = {id(parameter): name for name, parameter in vit.named_parameters()}
    layers = ["attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"]
    matrices = {f"blocks.{i}.{layer}.weight" for i in range(2) for layer in layers}

    assert {names[id(p)] for p in decayed["params"]} == matrices | {"patch_embed.proj.weight", "head.weight"}
    assert {"cls_token", "pos_embed", "head.bias", "norm.weight"} < {names[id(p)] for p in spared["params"]}
    assert len(decayed["params"]) + len(spared["params"]) == len(names)
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.3, 0)


SWIN = dict(img_size=64, window_size=2, embed_dim=12, depths=(1, 2), num_heads=(2, 2))
# With the families of test_families.py a network of every kind that timm groups in a way of its own.
OF_TIMM = {name: (network, SMALL | args) for name, (network, args) in FAMILIES.items()} | {
    "Swin": ("swin_tiny_patch4_window7_224.ms_in1k", SWIN),
    "Swin v2": ("swinv2_tiny_window8_256.ms_in1k", SWIN | {"img_size": 64}),
    "CaiT": ("cait_xxs24_224.fb_dist_in1k", SMALL),
    "XCiT": ("xcit_nano_12_p16_224.fb_in1k", SMALL),
    "DeiT": ("deit_tiny_patch16_224.fb_in1k", SMALL),
    "hybrid": ("vit_tiny_r_s16_p8_224.augreg_in21k", SMALL),
    "BiT": ("resnetv2_50x1_bit.goog_in21k", {}),
    "convolutions with attention": ("botnet26t_256.c1_in1k", {}),  # tables below a module `pos_embed`
    "EfficientNet": ("tf_efficientnet_b0.ns_jft_in1k", {}),
    "MaxViT": ("maxvit_nano_rw_256.sw_in1k", {}),
    "Hiera": ("hiera_tiny_224.mae", {}),
    "ConvNeXt": ("convnext_atto.d2_in1k", {}),
}
QUICK = (
    "AugReg",
    "DeiT, distilled",
    "EVA-02",
    "BEiT",
    "NaFlexViT",
    "relative, shared",
    "Swin",
    "CaiT",
    "hybrid",
    "BiT",
)
MARKED = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in OF_TIMM]


def as_grouped(network: nn.Module, groups: list[dict]) -> dict[str, tuple[float, float]]:
    """Return the weight decay and the fraction of the learning rate of each parameter by name."""
    of = {id(parameter): name for name, parameter in network.named_parameters()}
    return {of[id(p)]: (g["weight_decay"], g.get("lr_scale", 1.0)) for g in groups for p in g["params"]}


def check_groups(network: nn.Module, *, besides: tuple[str, ...] = ()) -> int:
    """Compare decay and rates with timm's; return of how many parameters.

    Args:
        besides: parts of the names of parameters that timm does not know, and gives to the last layer.
    """
    spared = network.no_weight_decay() if hasattr(network, "no_weight_decay") else ()
    ours = partial(parameter_groups, network, weight_decay=0.1, decay_on="matrices")
    theirs = {1.0: param_groups_weight_decay(network, 0.1, no_weight_decay_list=spared)}
    theirs[0.7] = param_groups_layer_decay(network, 0.1, no_weight_decay_list=spared, layer_decay=0.7)
    for layer_decay, groups in theirs.items():
        expected, found = as_grouped(network, groups), as_grouped(network, ours(layer_decay=layer_decay))
        known = {name for name in expected if not any(part in name.split(".") for part in besides)}
        assert {name: found[name] for name in known} == {name: expected[name] for name in known}
        assert found.keys() == expected.keys() == {name for name, _ in network.named_parameters()}
        assert all(found[name][0] == 0 for name in expected.keys() - known)
    return len(known)


@pytest.mark.parametrize("family", MARKED)
def test_every_family_of_timm_is_decayed_and_slowed_as_timm_groups_it(family):
    name, args = OF_TIMM[family]
    with torch.device("meta"):
        network = timm.create_model(name, num_classes=2, **args)
    assert check_groups(network) == len(list(network.parameters()))


# What recipes change in a network of the paper, and how many parameters of it timm does not know.
OF_THE_PAPER = {
    "2-D positions": ({"posemb": "2d"}, 3),
    "fixed positions": ({"posemb": "sincos2d"}, 0),
    "positions at every layer": ({"posemb_at": "every_layer"}, 2),
    "2-D positions at every layer, shared": ({"posemb": "2d", "posemb_at": "every_layer_shared"}, 3),
    "relative positions": ({"posemb": "relative"}, 2),
    "mean of tokens": ({"classifier": "gap"}, 0),
    "a layer before the head": ({"pre_logits": True}, 0),
}


@pytest.mark.parametrize("option", OF_THE_PAPER)
def test_the_papers_options_are_grouped_as_timm_groups_the_rest_of_the_network(option):
    """timm knows no module `positions` and no `relative_embed`: they are embeddings, and never decayed.

    It would give `positions` the rate of the head. Here they have that of the patch embedding, beside whose
    tokens they stand (test_depth.py); `relative_embed` has the rate of its block.
    """
    changes, num_own = OF_THE_PAPER[option]
    options = TransformerOptions(layers=2, hidden=32, heads=2, **changes)
    arch = architecture("ViT-demo/8", image_size=(32, 32), num_classes=2, options=options)
    network = build(arch, dropout=0.0)

    num_known = check_groups(network, besides=("positions", "relative_embed"))
    assert num_known == len(list(network.parameters())) - num_own


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_network_of_the_papers_tables_is_grouped_as_timm_groups_it(variant):
    arch = architecture(variant, image_size=(224, 224), num_classes=2)
    with torch.device("meta"):
        network = build(arch, dropout=0.0)

    assert check_groups(network) == len(list(network.parameters()))


def test_decay_on_all_means_every_parameter(vit):
    (group,) = parameter_groups(vit, weight_decay=0.1, decay_on="all", layer_decay=1.0)

    assert [id(parameter) for parameter in group["params"]] == [id(p) for p in vit.parameters()]
    assert group["weight_decay"] == 0.1


def test_adam_steps_are_those_of_the_formula_with_decay_apart_from_the_gradient():
    start, gradients, lr, decay, (b1, b2), eps = (
        [1.0, -2.0],
        [[0.5, 0.1], [-1.0, 0.1]],
        0.01,
        0.3,
        (0.9, 0.99),
        0.05,  # large enough to show
    )
    model = one_weight(start)
    optimizer = build_optimizer(
        model,
        Optimizer.model_construct(
            name="adam", momentum=None, betas=(b1, b2), eps=eps, weight_decay=decay, decay_on="matrices"
        ),
    )

    w, m, v = np.array(start), 0, 0
    for t, g in enumerate(np.array(gradients), start=1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        w = w - lr * decay * w - lr * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)
    assert steps(model, optimizer, lr=lr, gradients=gradients) == pytest.approx(w.tolist(), rel=1e-12)


def test_the_first_adam_step_by_hand():
    model = one_weight([1.0, -2.0])
    optimizer = build_optimizer(
        model,
        Optimizer.model_construct(
            name="adam", momentum=None, betas=(0.9, 0.999), eps=0.0, weight_decay=0.5, decay_on="matrices"
        ),
    )

    # Each weight shrinks by lr * decay = 5 % and goes lr against the sign of its gradient.
    result = steps(model, optimizer, lr=0.1, gradients=[[3.0, -0.001]])
    assert result == pytest.approx([0.95 - 0.1, -1.9 + 0.1])


def test_sgd_has_heavy_ball_momentum_without_nesterov_or_dampening():
    model = one_weight([1.0])
    optimizer = build_optimizer(
        model,
        Optimizer.model_construct(
            name="sgd", momentum=0.9, betas=None, eps=None, weight_decay=0.0, decay_on="matrices"
        ),
    )

    # Velocities 1, 1.9 and 2.71, times 0.1.
    result = steps(model, optimizer, lr=0.1, gradients=[[1.0]] * 3)
    assert result == pytest.approx([1 - 0.561])


def test_the_decay_of_sgd_joins_the_gradient_as_in_bit():
    model = one_weight([2.0])
    optimizer = build_optimizer(
        model,
        Optimizer.model_construct(
            name="sgd", momentum=0.5, betas=None, eps=None, weight_decay=0.1, decay_on="matrices"
        ),
    )

    # Velocities 1 + 0.2 and 0.6 + 1 + 0.1 * 1.88.
    result = steps(model, optimizer, lr=0.1, gradients=[[1.0]] * 2)
    assert result == pytest.approx([2 - 0.12 - 0.1788])


def test_gradients_are_scaled_to_exactly_the_largest_norm():
    parameters = with_gradients([3.0, 0.0], [0.0, 4.0])

    assert float(clip_by_global_norm(parameters, 1.0)) == 5
    assert [parameter.grad.tolist() for parameter in parameters] == [
        pytest.approx([0.6, 0], rel=1e-7),
        pytest.approx([0, 0.8], rel=1e-7),  # torch's own clip would give 0.79999984
    ]


def test_a_tiny_limit_is_kept_exactly_too():
    (parameter,) = with_gradients([3e-6, 4e-6])
    clip_by_global_norm([parameter], 1e-6)

    assert float(parameter.grad.norm()) == pytest.approx(1e-6, rel=1e-6)  # torch's own clip: 0.83e-6


@pytest.mark.parametrize("max_norm", [5.0, 6.0, 0.0])
def test_gradients_within_the_limit_and_without_one_stay_bit_for_bit(max_norm):
    parameters = with_gradients([3.0], [4.0])

    assert float(clip_by_global_norm(parameters, max_norm)) == 5
    assert [parameter.grad.item() for parameter in parameters] == [3.0, 4.0]


def test_zero_gradients_stay_zero_and_frozen_parameters_are_skipped():
    frozen = nn.Parameter(torch.ones(2))
    (parameter,) = with_gradients([0.0, 0.0])

    assert float(clip_by_global_norm([frozen, parameter], 1.0)) == 0
    assert parameter.grad.tolist() == [0, 0] and frozen.grad is None


@pytest.mark.parametrize("factor", [0.5, 0.9, 0.9999])
def test_the_average_is_the_weighted_sum_of_all_weights_since_the_first_update(factor):
    weights = np.random.default_rng(0).normal(size=(50, 3))
    model = one_weight([100.0, 100.0, 100.0])  # before training; must leave no trace
    average = WeightAverage(model, factor=factor)
    for number, value in enumerate(weights, start=1):
        model.weight.data = torch.from_numpy(value)[None]
        average.update(num_updates=number)

    shares = factor ** np.arange(49, -1, -1.0)
    expected = (shares[:, None] * weights).sum(axis=0) / shares.sum()
    np.testing.assert_allclose(average.tensors["weight"][0], expected, rtol=1e-9)


def test_after_the_first_update_the_average_is_the_weights_themselves():
    model = one_weight([100.0])
    average = WeightAverage(model, factor=0.9999)
    model.weight.data.fill_(0.3)
    average.update(num_updates=1)

    assert average.tensors["weight"].tolist() == [[0.3]]


def test_a_restored_average_continues_as_the_original_would():
    model = one_weight([1.0])
    unbroken = WeightAverage(model, factor=0.9)
    unbroken.update(num_updates=1)
    resumed = WeightAverage(model, factor=0.9)
    resumed.tensors["weight"].fill_(7.0)
    resumed.restore(unbroken.tensors)

    model.weight.data.fill_(4.0)
    for average in (unbroken, resumed):
        average.update(num_updates=2)
    assert resumed.tensors["weight"].item() == unbroken.tensors["weight"].item() != 4.0


def test_a_counter_among_the_weights_is_copied_and_not_averaged():
    model = nn.BatchNorm1d(2)
    average = WeightAverage(model, factor=0.9)
    for number in (1, 2, 3):
        model(torch.randn(8, 2))
        average.update(num_updates=number)

    assert average.tensors["num_batches_tracked"].item() == 3


def test_the_model_has_the_average_inside_the_block_and_its_own_weights_after_it():
    model = one_weight([1.0])
    average = WeightAverage(model, factor=0.5)
    model.weight.data.fill_(3.0)

    with pytest.raises(RuntimeError), average.swapped_in(model):
        assert model.weight.item() == 1
        raise RuntimeError("even when an evaluation fails")
    assert model.weight.item() == 3
    assert average.tensors["weight"].item() == 1


def test_the_average_does_not_share_memory_with_the_model():
    model = one_weight([1.0])
    average = WeightAverage(model, factor=0.5)
    with average.swapped_in(model):
        model.weight.data.fill_(math.pi)

    assert average.tensors["weight"].item() == 1
