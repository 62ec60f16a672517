"""Sums of the gradients of a step: as DistributedDataParallel has them, or exact on any process count.

A step is G micro-batches ("parts") of fixed size; each of P processes has a contiguous block of them. DDP
adds them one by one and leaves the rest to the collective, so the last bits depend on P. `PairwiseSum` adds
them as a binary tree whose leaves are the parts in order: processes that have whole subtrees make the
same additions as a single process and get the same bits, at about twice the cost of an all-reduce.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from vitcli.distributed.runtime import Runtime
from vitcli.errors import VitError


class DdpSum:
    """DDP's sum: gradients are averaged over the processes in the last part's backward pass."""

    def __init__(self, model: nn.Module, runtime: Runtime, *, parts: int):
        self.model, self.runtime, self.num_losses = model, runtime, parts

    def part(self, *, is_last: bool) -> AbstractContextManager:
        """Return the context for the forward and backward pass of one part."""
        return nullcontext() if is_last else self.runtime.accelerator.no_sync(self.model)

    def add(self) -> None:
        """Do nothing after a part: autograd has added its gradients."""

    def finish(self) -> None:
        """Do nothing after the last part: DDP has averaged."""


class ShardedSum(DdpSum):
    """The sum for a sharded model: gradients are reduced in every part, so no process holds all of them."""

    def part(self, *, is_last: bool) -> AbstractContextManager:
        return nullcontext()


class PairwiseSum:
    """A binary tree of sums over the parts of all processes; `finish` sets `parameter.grad` to the total."""

    def __init__(self, model: nn.Module, runtime: Runtime, *, parts: int):
        assert runtime.world_size == 1 or _is_power_of_two(parts), "`check_parts` refuses it"
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.runtime, self.num_losses = runtime, parts * runtime.world_size
        self.subtrees: list[tuple[int, list[Tensor]]] = []  # level and sum, the lowest level last

    def part(self, *, is_last: bool) -> AbstractContextManager:
        return nullcontext()

    def add(self) -> None:
        """Add the gradients of one part: two sums over the same number of parts become one."""
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        _push(self.subtrees, 0, grads)

    def finish(self) -> None:
        """Add the subtrees of all processes and hand the total to the optimizer."""
        if self.runtime.world_size > 1:
            sizes = [parameter.numel() for parameter in self.parameters]
            sums = self._over_processes()[: sum(sizes)].split(sizes)
            total = [s.view_as(p) for s, p in zip(sums, self.parameters, strict=True)]
        else:
            total = _fold(self.subtrees)
        self.subtrees = []
        for parameter, grad in zip(self.parameters, total, strict=True):
            parameter.grad = grad

    def _over_processes(self) -> Tensor:
        """Return the sum over the processes: each adds up one slice of all, then they exchange the sums."""
        (level, grads), world_size = self.subtrees.pop(), self.runtime.world_size
        fill = grads[0].new_zeros(-sum(grad.numel() for grad in grads) % world_size)
        flat_N = torch.cat([*(grad.flatten() for grad in grads), fill])
        del grads  # as large as the weights
        subtrees: list[tuple[int, list[Tensor]]] = []
        for slice_ in self.runtime.exchange(flat_N.view(world_size, -1)):
            _push(subtrees, level, [slice_.clone()])
        (total,) = _fold(subtrees)
        return self.runtime.gather(total).flatten()


def check_parts(batch_size: int, *, per_device_batch: int, world_size: int) -> None:
    """Refuse a split of a step in which the parts of a process are not a whole subtree.

    The micro-batches of a command line are the same on any number of processes, as its bits are; so none that
    fit are chosen here.
    """
    if world_size == 1 or _has_exact_sum(batch_size, per_device_batch, world_size):
        return
    sizes = [size for size in range(batch_size, 0, -1) if _has_exact_sum(batch_size, size, world_size)]
    sizes = [size for size in sizes if size <= per_device_batch] or sizes[-1:]
    counts = [n for n in range(1, batch_size + 1) if _has_exact_sum(batch_size, per_device_batch, n)]
    ways = [f"--per-device-batch {sizes[0]}, the same on any number of processes"] if sizes else []
    ways += [f"--num-processes {' or '.join(map(str, counts[:6]))}"] if counts else []
    raise VitError(
        f"a step of {batch_size} images has no exact sum on {world_size} processes of {per_device_batch}",
        where="--exact, --num-processes, --per-device-batch",
        fix="; or ".join(ways) or "another batch size, such as a power of two",
    )


def _has_exact_sum(batch_size: int, per_device_batch: int, world_size: int) -> bool:
    """Return True if each process has a whole subtree of the micro-batches; one process always has."""
    parts, rest = divmod(batch_size, per_device_batch * world_size)
    return rest == 0 and (world_size == 1 or _is_power_of_two(parts))


def exact_per_device_batch(batch_size: int, *, cap: int) -> int:
    """Return the largest micro-batch, at most `cap`, that splits a step into a power of two of parts.

    If there is none, return the largest divisor of `batch_size` up to `cap`.
    """
    divisors = [size for size in range(1, min(cap, batch_size) + 1) if batch_size % size == 0]
    return max((d for d in divisors if _is_power_of_two(batch_size // d)), default=divisors[-1])


def _push(subtrees: list[tuple[int, list[Tensor]]], level: int, grads: list[Tensor]) -> None:
    """Add a subtree at the right; neighbours of the same level are added, in place of the left one."""
    while subtrees and subtrees[-1][0] == level:
        _, left = subtrees.pop()
        torch._foreach_add_(left, grads)
        level, grads = level + 1, left
    subtrees.append((level, grads))


def _fold(subtrees: Iterable[tuple[int, list[Tensor]]]) -> list[Tensor]:
    """Add the subtrees that remain if the number of parts is not a power of two, from the right."""
    sums = [grads for _, grads in subtrees]
    total = sums.pop()
    while sums:
        left = sums.pop()
        torch._foreach_add_(left, total)
        total = left
    return total


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0
