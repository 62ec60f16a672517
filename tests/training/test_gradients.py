"""Sums of gradients as one tree: the same bits however the parts lie on processes, and the right mean."""

import itertools
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import nn

from vitcli.errors import VitError
from vitcli.training.gradients import PairwiseSum, check_parts, exact_per_device_batch

SHAPES = ((3, 5), (7,), (2, 2, 2))


def leaves(count: int) -> list[list[torch.Tensor]]:
    """Gradients of each part, of sizes so different that the order of additions shows in the last bits."""
    torch.manual_seed(0)
    return [[torch.randn(shape) * 10.0 ** (part % 5) for shape in SHAPES] for part in range(count)]


class Process(NamedTuple):
    """One of the processes of a run, in a thread; `exchange` and `gather` by their definitions."""

    rank: int
    world_size: int
    sent: list
    barrier: threading.Barrier

    def _all(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        self.sent[self.rank] = tensor.clone()
        self.barrier.wait(10)
        received = list(self.sent)
        self.barrier.wait(10)
        return received

    def exchange(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.stack([sent[self.rank] for sent in self._all(rows)])

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._all(tensor))


def together(parts: list[list[torch.Tensor]], world_size: int) -> list[list[torch.Tensor]]:
    """Return the sum that each of several processes gets."""
    barrier, sent, count = threading.Barrier(world_size), [None] * world_size, len(parts) // world_size

    def total(rank: int) -> list[torch.Tensor]:
        return summed(parts[rank * count :][:count], Process(rank, world_size, sent, barrier))

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(total, range(world_size)))


def alone(parts: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    return summed(parts, SimpleNamespace(world_size=1))


def summed(parts: list[list[torch.Tensor]], runtime) -> list[torch.Tensor]:
    model = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in SHAPES])
    total = PairwiseSum(model, runtime, parts=len(parts))
    for grads in parts:
        for parameter, grad in zip(model, grads, strict=True):
            parameter.grad = grad.clone()
        total.add()
    total.finish()
    return [parameter.grad for parameter in model]


@pytest.mark.parametrize(
    ("num_parts", "world_size"), [(2, 2), (4, 2), (8, 2), (8, 4), (8, 8), (6, 3), (12, 3), (24, 3), (6, 6)]
)
def test_several_processes_make_the_additions_of_one(num_parts, world_size):
    parts = leaves(num_parts)
    one = alone(parts)

    for total in together(parts, world_size):
        assert all(map(torch.equal, total, one))


def test_the_order_of_additions_shows_in_the_bits_so_that_the_test_above_can_fail():
    parts = leaves(8)
    in_a_row = parts[0][0].clone()
    for grads in parts[1:]:
        in_a_row += grads[0]

    assert not torch.equal(in_a_row, alone(parts)[0])


@pytest.mark.parametrize("num_parts", [1, 2, 3, 5, 7, 8, 13])
def test_any_number_of_parts_adds_up(num_parts):
    parts = leaves(num_parts)
    exact = [sum(Fraction(float(grads[1][i])) for grads in parts) for i in range(7)]

    torch.testing.assert_close(
        alone(parts)[1], torch.tensor([float(value) for value in exact]), rtol=1e-4, atol=1e-3
    )


def test_what_is_left_of_a_tree_is_added_from_the_right():
    """Of seven parts four, two and one: ((0 + 1) + (2 + 3)) + ((4 + 5) + 6)."""
    g = [grads[1] for grads in leaves(7)]
    other_order = (((g[0] + g[1]) + (g[2] + g[3])) + (g[4] + g[5])) + g[6]

    found = alone(leaves(7))[1]
    assert torch.equal(found, ((g[0] + g[1]) + (g[2] + g[3])) + ((g[4] + g[5]) + g[6]))
    assert not torch.equal(found, other_order)


def test_a_parameter_without_a_gradient_counts_as_zero():
    model = nn.ParameterList([nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))])
    total = PairwiseSum(model, SimpleNamespace(world_size=1), parts=2)
    for _ in range(2):
        model[0].grad = torch.ones(2)
        total.add()
    total.finish()

    assert model[0].grad.tolist() == [2, 2] and model[1].grad.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("batch_size", "per_device_batch", "world_size", "advice"),
    [
        (32, 8, 2, None),
        (24, 8, 3, None),
        (24, 8, 1, None),
        (32, 32, 2, "--per-device-batch 16, the same on any number of processes; or --num-processes 1"),
        (
            12,
            2,
            2,
            "--per-device-batch 3, the same on any number of processes; or --num-processes 1 or 3 or 6",
        ),
        (
            6,
            1,
            2,
            "--per-device-batch 3, the same on any number of processes; or --num-processes 1 or 3 or 6",
        ),
        (32, 32, 3, "--num-processes 1"),
        (7, 2, 2, "another batch size, such as a power of two"),
    ],
)
def test_only_whole_subtrees_are_given_to_a_process(batch_size, per_device_batch, world_size, advice):
    if advice is None:
        return check_parts(batch_size, per_device_batch=per_device_batch, world_size=world_size)
    with pytest.raises(VitError) as refusal:
        check_parts(batch_size, per_device_batch=per_device_batch, world_size=world_size)
    assert refusal.value.fix == advice


def test_what_is_advised_for_an_exact_sum_works():
    for batch_size, size, world_size in itertools.product(range(1, 40), (1, 2, 5, 8, 32), (2, 3, 4, 5)):
        try:
            check_parts(batch_size, per_device_batch=size, world_size=world_size)
        except VitError as refusal:
            for option, value in re.findall(r"--(\S+) (\d+)", refusal.fix):
                better = {"per_device_batch": size, "world_size": world_size}
                better["world_size" if option == "num-processes" else "per_device_batch"] = int(value)
                check_parts(batch_size, **better)
                assert batch_size % (better["per_device_batch"] * better["world_size"]) == 0


@pytest.mark.parametrize(
    ("batch_size", "cap", "size"),
    [(32, 8, 8), (48, 32, 24), (96, 64, 48), (7, 8, 7), (50, 8, 5), (50, 30, 25), (13, 5, 1), (4096, 64, 64)],
)
def test_a_part_is_the_largest_that_leaves_a_tree_and_else_the_largest_that_divides(batch_size, cap, size):
    assert exact_per_device_batch(batch_size, cap=cap) == size


def test_the_size_of_a_part_does_not_depend_on_the_number_of_processes_and_leaves_a_tree():
    for batch_size, cap in itertools.product((32, 48, 96, 512, 4096, 7, 50), (8, 32, 64)):
        size = exact_per_device_batch(batch_size, cap=cap)
        parts = batch_size // size
        assert size <= cap and batch_size % size == 0
        odd = batch_size // (batch_size & -batch_size)
        assert parts & (parts - 1) == 0 or odd > cap, (batch_size, cap, size)
