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
OF_TIMM = FAMILIES | {"Swin": ("swin_tiny_patch4_window7_224.ms_in1k", SWIN)}


@pytest.mark.parametrize("family", OF_TIMM)
def test_every_family_of_timm_is_decayed_and_slowed_as_timm_groups_it(family):
    name, args = OF_TIMM[family]
    with torch.device("meta"):
        network = timm.create_model(name, num_classes=2, **(args if family == "Swin" else SMALL | args))
    of = {id(parameter): name for name, parameter in network.named_parameters()}
    spared = network.no_weight_decay()

    def by_name(groups) -> dict[str, tuple]:
        return {of[id(p)]: (g["weight_decay"], g.get("lr_scale", 1.0)) for g in groups for p in g["params"]}

    ours = partial(parameter_groups, network, weight_decay=0.1, decay_on="matrices")
    theirs = param_groups_weight_decay(network, 0.1, no_weight_decay_list=spared)
    assert by_name(ours(layer_decay=1.0)) == by_name(theirs)
    theirs = param_groups_layer_decay(network, 0.1, no_weight_decay_list=spared, layer_decay=0.7)
    assert by_name(ours(layer_decay=0.7)) == by_name(theirs)


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
        1e-8,
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
