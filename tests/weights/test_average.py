"""Means of networks, against brute force."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from vitcli.errors import WeightsError
from vitcli.weights.average import (
    check_names,
    fill,
    mean_of,
    opened,
)


def test_a_mean_is_the_nearest_float_to_the_exact_one():
    draws = np.random.default_rng(0)
    tensors = [draws.normal(size=50).astype(np.float32) * 10.0**k for k in (-3, 0, 3)]

    exact = [sum(map(Fraction, map(float, row))) / 3 for row in zip(*tensors, strict=True)]

    assert mean_of(tensors).tolist() == [float(np.float32(float(value))) for value in exact]
    assert mean_of(tensors).dtype == np.float32


def test_the_mean_of_one_network_has_its_bits():
    tensor = np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32)

    assert mean_of([tensor]).tobytes() == mean_of([tensor, tensor, tensor]).tobytes() == tensor.tobytes()


def test_a_network_is_filled_with_a_tensor_at_a_time_of_each_file(tmp_path):
    states = [nn.Linear(3, 2).state_dict() for _ in range(3)]
    paths = [tmp_path / f"{number}.safetensors" for number in range(3)]
    for path, state in zip(paths, states, strict=True):
        save_file(state, path)
    model = nn.Linear(3, 2)

    with opened(paths) as files:
        fill(model, lambda name: mean_of([files[number].get_tensor(name) for number in (0, 2)]))

    assert torch.equal(model.weight, (states[0]["weight"].double() + states[2]["weight"]).div(2).float())


def test_batch_norms_and_other_tensors_are_refused():
    for network in (nn.BatchNorm2d(3), nn.Sequential(nn.Conv2d(3, 3, 1), nn.Sequential(nn.BatchNorm2d(3)))):
        with pytest.raises(WeightsError, match="batch norms"):
            check_names(network.state_dict(), list(network.state_dict()), where="RUN a")
    with pytest.raises(WeightsError, match="the tensor weight"):
        check_names(nn.Linear(3, 2).state_dict(), ["bias"], where="RUN a")


def test_files_and_networks_have_the_same_tensors_either_way():
    state = {"head.weight": torch.zeros(1), "norm.bias": torch.zeros(1)}
    check_names(state, ["norm.bias", "head.weight"], where="runs")
    for stored, different in ((["norm.bias"], "head.weight"), ([*state, "old.bias"], "old.bias")):
        with pytest.raises(WeightsError, match=f"the tensor {different} is only in the file or the network"):
            check_names(state, stored, where="runs")
