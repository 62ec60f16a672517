"""The tanh-GELU of training in bf16 on a CPU, against the paper's formula and its derivative in float64."""

import copy
import math

import pytest
import torch
from timm.layers.activations import GELUTanh
from torch import nn

from vitcli.models import kernels


@pytest.fixture(autouse=True)
def native_bf16(monkeypatch):
    monkeypatch.setattr(kernels, "HAS_BF16", True)


def by_formula(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def activation() -> nn.Module:
    model = nn.Sequential(GELUTanh())
    kernels.choose_gelu(model)
    return model


def test_values_and_derivatives_are_those_of_the_formula():
    x = torch.linspace(-12, 12, 100_001).bfloat16().requires_grad_()
    exact = x.detach().double().requires_grad_()

    outputs, expected = activation()(x), by_formula(exact)
    outputs.sum().backward()
    expected.sum().backward()

    # bf16 rounds 1 by 0.004: in the value, and in 1 - s, which is 0 from x = 4 on, in the derivative.
    assert (outputs - expected).abs().max() < 0.04
    assert ((outputs - expected).abs() < 0.008 * expected.abs() + 0.002).all()
    assert (x.grad - exact.grad).abs().max() < 0.02
    assert abs((x.grad - exact.grad).mean()) < 1e-3 and abs((outputs - expected).mean()) < 1e-3


def test_it_is_timms_bit_for_bit_without_gradients_in_fp32_and_elsewhere(monkeypatch):
    x = torch.randn(1_000)
    for rows in (x.bfloat16(), x.clone().requires_grad_()):
        assert torch.equal(activation()(rows), GELUTanh()(rows))
    trained = x.bfloat16().requires_grad_()
    assert not torch.equal(activation()(trained), GELUTanh()(trained))
    monkeypatch.setattr(kernels, "HAS_BF16", False)
    assert torch.equal(activation()(trained), GELUTanh()(trained))


def test_a_copy_has_the_choice_too_and_a_second_choice_changes_nothing():
    model = copy.deepcopy(activation())
    kernels.choose_gelu(model)

    assert type(model[0]) is kernels.ChoosesGelu


def test_in_float64_the_kernel_is_torchs_tanh_form_and_its_derivative():
    """Where nothing is rounded, any other constant shows."""
    xs = [torch.linspace(-8, 8, 2_001, dtype=torch.float64).requires_grad_() for _ in range(2)]
    values = kernels._Gelu.apply(xs[0]), nn.functional.gelu(xs[1], approximate="tanh")
    for value in values:
        value.sum().backward()

    torch.testing.assert_close(*values, rtol=0, atol=1e-14)
    torch.testing.assert_close(xs[0].grad, xs[1].grad, rtol=0, atol=1e-14)
