"""How the gradients of a step's parts become one: as DistributedDataParallel adds them up, or exactly.

A step is G parts (micro-batches) of fixed size, of which each of P processes has a contiguous block. DDP adds
them one after the other and lets the collective decide the rest, so the last bits depend on P. `PairwiseSum`
adds them as a binary tree whose leaves are the parts in order: P processes that have whole subtrees make the
same additions as one, and get the same bits (reliability: about twice the cost of the all-reduce).
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from vitcli.distributed.runtime import Runtime
from vitcli.errors import VitError


class DdpSum:
    """Accelerate's way: gradients meet in the last part's backward pass, averaged over the processes."""

    def __init__(self, model: nn.Module, runtime: Runtime, *, parts: int):
        self.model, self.runtime, self.num_losses = model, runtime, parts

    def part(self, *, is_last: bool) -> AbstractContextManager:
        """Around the forward and backward pass of one part."""
        return nullcontext() if is_last else self.runtime.accelerator.no_sync(self.model)

    def add(self) -> None:
        """After each part; autograd has added its gradients already."""

    def finish(self) -> None:
        """After the last part; DDP has averaged."""


class ShardedSum(DdpSum):
    """The same for a sharded model: gradients meet in every part, so that no process holds them whole."""

    def part(self, *, is_last: bool) -> AbstractContextManager:
        return nullcontext()


class PairwiseSum:
    """A binary tree over the parts of all processes; `parameter.grad` holds the sum after `finish`."""

    def __init__(self, model: nn.Module, runtime: Runtime, *, parts: int):
        check_parts(parts, world_size=runtime.world_size)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.runtime, self.num_losses = runtime, parts * runtime.world_size
        self.subtrees: list[tuple[int, list[Tensor]]] = []  # level and sum, the lowest level last

    def part(self, *, is_last: bool) -> AbstractContextManager:
        """Around the forward and backward pass of one part."""
        return nullcontext()

    def add(self) -> None:
        """Take the gradients of one part; two sums of the same number of parts become one."""
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        _push(self.subtrees, 0, grads)

    def finish(self) -> None:
        """Add up the processes' subtrees and hand the sum to the optimizer."""
        if self.runtime.world_size > 1:
            ((level, mine),) = self.subtrees
            total = self._over_processes(level, torch.cat([grad.flatten() for grad in mine]))
            sums = total.split([parameter.numel() for parameter in self.parameters])
            total = [s.view_as(p) for s, p in zip(sums, self.parameters, strict=True)]
        else:
            total = _fold(self.subtrees)
        self.subtrees = []
        for parameter, grad in zip(self.parameters, total, strict=True):
            parameter.grad = grad

    def _over_processes(self, level: int, mine_N: Tensor) -> Tensor:
        """Each process adds up one slice of all, then all get every slice."""
        world_size = self.runtime.world_size
        length = -(-len(mine_N) // world_size)
        padded = torch.nn.functional.pad(mine_N, (0, length * world_size - len(mine_N)))
        slices = self.runtime.exchange(padded.view(world_size, length))
        subtrees: list[tuple[int, list[Tensor]]] = []
        for one in slices:
            _push(subtrees, level, [one.clone()])
        (total,) = _fold(subtrees)
        return self.runtime.gather(total).flatten()[: len(mine_N)]


def check_parts(parts: int, *, world_size: int) -> None:
    """Refuse a split in which a process's parts are no whole subtree."""
    if world_size == 1 or parts & (parts - 1) == 0:
        return
    num_parts = parts * world_size
    counts = [n for n in range(1, num_parts + 1) if num_parts % n == 0 and _is_power_of_two(num_parts // n)]
    raise VitError(
        f"{num_parts} parts of a step do not add up alike on 1 and on {world_size} processes",
        where="--exact, --num-processes, --per-device-batch",
        fix=f"launch {', '.join(map(str, counts))} processes, or another --per-device-batch on all of them",
    )


def exact_per_device_batch(batch_size: int, *, cap: int) -> int:
    """Images of one part, whatever the number of processes: at most `cap`, in a power of two of parts.

    Where no such number is at most `cap`, the largest divisor is.
    """
    divisors = [size for size in range(1, min(cap, batch_size) + 1) if batch_size % size == 0]
    return max((d for d in divisors if _is_power_of_two(batch_size // d)), default=divisors[-1])


def _push(subtrees: list[tuple[int, list[Tensor]]], level: int, grads: list[Tensor]) -> None:
    """Add a subtree at the right; neighbours of one level are added up, the left one in place."""
    while subtrees and subtrees[-1][0] == level:
        _, left = subtrees.pop()
        torch._foreach_add_(left, grads)
        level, grads = level + 1, left
    subtrees.append((level, grads))


def _fold(subtrees: Iterable[tuple[int, list[Tensor]]]) -> list[Tensor]:
    """Add up what is left of a number of parts that is no power of two, from the right."""
    sums = [grads for _, grads in subtrees]
    total = sums.pop()
    while sums:
        left = sums.pop()
        torch._foreach_add_(left, total)
        total = left
    return total


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0
