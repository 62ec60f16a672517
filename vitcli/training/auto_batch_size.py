"""How many images of one forward and backward pass a device's memory holds: tried, not guessed."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from vitcli.distributed import launch
from vitcli.distributed.runtime import Runtime, autocast
from vitcli.errors import MachineError
from vitcli.training.objective import Objective


def find_max_batch_size(
    model: nn.Module,
    objective: Objective,
    sizes: Sequence[int],
    *,
    image_size: tuple[int, int],
    runtime: Runtime,
    bytes_at: Callable[[int], float],
    held_bytes: int,
) -> int:
    """The largest of `sizes` that every process's device takes; the model is left as it was.

    A GPU is asked, by passes over blank images until one does not run out of memory. A CPU would take from
    the other programs before it refuses, so there `bytes_at` is compared with the memory that is free.

    Args:
        bytes_at: memory that a run with parts of this size takes.
        held_bytes: what a run holds besides weights and the gradients of one part: optimizer and average.

    Raises:
        MachineError: not even the smallest fits.
    """
    descending = sorted(sizes, reverse=True)
    if runtime.device.type == "cpu":
        free = launch.free_bytes() / runtime.processes_here
        fitting = next((size for size in descending if bytes_at(size) < free), 0)
    else:
        model.to(runtime.device)
        kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
        held = torch.empty(held_bytes, dtype=torch.uint8, device=runtime.device)
        fits = (size for size in descending if _runs(model, objective, size, image_size, runtime))
        fitting = next(fits, 0)
        del held
        for name, buffer in model.named_buffers():
            buffer.copy_(kept[name])
    smallest = int(runtime.gather(torch.tensor(fitting)).min())
    if not smallest:
        raise MachineError(
            f"not even {descending[-1]} images of {image_size[0]}x{image_size[1]} fit into memory",
            where=f"--per-device-batch auto, {runtime.device}",
            fix="set model.grad_checkpointing=true, or take a smaller model or smaller images",
        )
    return smallest


def _runs(
    model: nn.Module, objective: Objective, size: int, image_size: tuple[int, int], runtime: Runtime
) -> bool:
    """Whether one pass of that many blank images fits, with the gradients of all weights."""
    images_BCHW = torch.zeros(size, 3, *image_size)
    try:
        with autocast(runtime.device, runtime.precision):
            loss = objective(
                model, images_BCHW.to(runtime.device), torch.zeros(size, dtype=torch.int64).to(runtime.device)
            )
        loss.backward()
    except torch.OutOfMemoryError:
        return False
    finally:
        model.zero_grad(set_to_none=True)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return True
