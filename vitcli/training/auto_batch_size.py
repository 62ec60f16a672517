"""The largest per-device batch that fits into memory (--per-device-batch auto), measured on a GPU."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from vitcli.distributed import launch
from vitcli.distributed.runtime import Runtime, autocast
from vitcli.errors import MachineError, is_out_of_memory
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
    """Return the largest of `sizes` that fits on the device of every process; the model is left unchanged.

    On a GPU, sizes are tried on blank images until one does not run out of memory. A CPU would push other
    programs out of memory first, so there the estimate `bytes_at` is compared with the free memory.

    Args:
        bytes_at: estimated memory of a run with micro-batches of this size.
        held_bytes: memory besides the weights and the gradients of one micro-batch: optimizer and average.

    Raises:
        MachineError: not even the smallest size fits.
    """
    descending = sorted(sizes, reverse=True)
    if runtime.device.type == "cpu":
        free = launch.free_bytes() / runtime.processes_here
        largest = next((size for size in descending if bytes_at(size) < free), 0)
    else:
        model.to(runtime.device)
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        held = torch.empty(held_bytes, dtype=torch.uint8, device=runtime.device)
        fitting = (size for size in descending if _fits(model, objective, size, image_size, runtime))
        largest = next(fitting, 0)
        del held
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])

    # All processes use the same size.
    largest = int(runtime.gather(torch.tensor(largest)).min())
    if not largest:
        raise MachineError(
            f"not even {descending[-1]} images of {image_size[0]}x{image_size[1]} fit into memory",
            where=f"--per-device-batch auto, {runtime.device}",
            fix="set model.grad_checkpointing=true, or take a smaller model or smaller images",
        )
    return largest


def _fits(
    model: nn.Module, objective: Objective, size: int, image_size: tuple[int, int], runtime: Runtime
) -> bool:
    """Return True if forward and backward of that many blank images do not run out of memory."""
    images_BCHW = torch.zeros(size, 3, *image_size)
    try:
        with autocast(runtime.device, runtime.precision):
            loss = objective(
                model, images_BCHW.to(runtime.device), torch.zeros(size, dtype=torch.int64).to(runtime.device)
            )
        loss.backward()
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        model.zero_grad(set_to_none=True)
        if torch.accelerator.is_available():
            torch.accelerator.empty_cache()
    return True
