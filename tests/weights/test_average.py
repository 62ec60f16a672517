"""Means of networks and Model Stock, against brute force and the geometry of the paper."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from vitcli.errors import WeightsError
from vitcli.weights.average import (
    WeightsFiles,
    check_names,
    fill,
    mean_cosine,
    mean_of,
    model_stock,
    stock_ratio,
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


@pytest.mark.parametrize(
    ("cosine", "count", "ratio"),
    [(1, 2, 1), (0, 2, 0), (0.5, 2, 2 / 3), (0.5, 3, 0.75), (-0.2, 2, 0), (1 + 1e-12, 3, 1)],
)
def test_the_ratio_of_model_stock(cosine, count, ratio):
    assert stock_ratio(cosine, count) == pytest.approx(ratio)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_model_stock_is_the_point_between_start_and_mean_nearest_to_the_centre(count):
    """Networks on a sphere around a centre in directions at right angles, as the paper observes them."""
    centre, radius, distance = np.random.default_rng(0).normal(size=8), 0.7, 1.3
    axes = np.eye(8)
    start = centre + distance * axes[0]
    networks = [centre + radius * axes[number] for number in range(1, count + 1)]

    averaged, ratio = model_stock(networks, start)

    mean = np.mean(networks, axis=0)
    grid = np.linspace(0, 1, 100_001)
    distances = np.linalg.norm(start + grid[:, None] * (mean - start) - centre, axis=1)
    assert ratio == pytest.approx(grid[distances.argmin()], abs=1e-5)
    assert averaged == pytest.approx(start + ratio * (mean - start))


def test_angles_are_of_all_pairs():
    moves = [np.array([1.0, 0.0]), np.array([0.0, 2.0]), np.array([3.0, 3.0])]

    assert mean_cosine(moves) == pytest.approx((0 + 2 * 0.5**0.5) / 3)
    assert mean_cosine([*moves, np.zeros(2)]) is None


def test_a_new_head_and_a_layer_that_has_not_moved_are_averaged():
    draws = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)

    head, ratio = model_stock(list(draws), np.zeros(4, np.float32))
    assert ratio == 1 and head.tobytes() == mean_of(list(draws)).tobytes()
    frozen, ratio = model_stock([draws[0], draws[0]], draws[0])
    assert ratio == 1 and frozen.tobytes() == draws[0].tobytes()


def test_a_network_is_filled_with_a_tensor_at_a_time_of_each_file(tmp_path):
    states = [nn.Linear(3, 2).state_dict() for _ in range(3)]
    paths = [tmp_path / f"{number}.safetensors" for number in range(3)]
    for path, state in zip(paths, states, strict=True):
        save_file(state, path)
    model = nn.Linear(3, 2)

    with WeightsFiles(paths) as files:
        fill(model, lambda name: mean_of(files.tensors(name, (0, 2))))

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
