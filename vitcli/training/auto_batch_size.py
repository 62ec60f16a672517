"""The largest per-device batch that fits into memory (--per-device-batch auto), measured on a GPU."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from vitcli.data.transforms import to_model_range
from vitcli.distributed import launch
from vitcli.distributed.runtime import Runtime, autocast, fits_in_memory, last_that_fits, reset_peak_memory
from vitcli.errors import MachineError
from vitcli.training.objective import Objective

SPARE_FRACTION = 0.05  # of a GPU's memory, for NCCL's buffers and the optimizer's temporaries
MAX_PART, MAX_PART_ON_LARGE = 256, 512  # images: more gain no speed
LARGE_BYTES = 80 * 2**30


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

    On a GPU, sizes are tried on blank images, from the smallest, until one is too large. A CPU would push
    other programs out of memory first, so there the estimate `bytes_at` is compared with the free memory.

    Args:
        bytes_at: estimated memory of a run with micro-batches of this size.
        held_bytes: memory besides the weights and the gradients of one micro-batch: optimizer and average.

    Raises:
        MachineError: not even the smallest size fits.
    """
    ascending = sorted(sizes)
    if runtime.device.type == "cpu":
        free = launch.free_bytes() / runtime.processes_here
        largest = last_that_fits(ascending, lambda size: bytes_at(size) < free)
    else:
        model.to(runtime.device)
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        largest = last_that_fits(
            ascending, lambda size: _fits(model, objective, size, image_size, runtime, held_bytes)
        )
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
        reset_peak_memory()  # that of the trials is not the run's

    # All processes use the same size.
    largest = int(runtime.gather(torch.tensor(largest)).min())
    if not largest:
        raise MachineError(
            f"not even {ascending[0]} images of {image_size[0]}x{image_size[1]} fit into memory",
            where=f"--per-device-batch auto, {runtime.device}",
            fix="set model.grad_checkpointing=true, or take a smaller model or smaller images",
        )
    return largest


def _fits(
    model: nn.Module,
    objective: Objective,
    size: int,
    image_size: tuple[int, int],
    runtime: Runtime,
    held_bytes: int,
) -> bool:
    """Return True if forward and backward of that many blank images leave SPARE_FRACTION of the memory free.

    The images come as bytes and are normalised on the device, as those of a run.
    """

    def trial() -> None:
        try:
            held = torch.empty(held_bytes, dtype=torch.uint8, device=runtime.device)
            images_BCHW = torch.zeros(size, 3, *image_size, dtype=torch.uint8).to(runtime.device)
            labels_B = torch.zeros(size, dtype=torch.int64, device=runtime.device)
            with autocast(runtime.device, runtime.precision):
                pixels_BCHW = to_model_range(images_BCHW, mean=(0.5,) * 3, std=(0.5,) * 3)
                loss = objective(model, pixels_BCHW, labels_B)
            loss.backward()
            del held
        finally:
            model.zero_grad(set_to_none=True)

    reset_peak_memory()
    return fits_in_memory(trial) and _spare_fraction(runtime.device) >= SPARE_FRACTION


def _spare_fraction(device: torch.device) -> float:
    """Return the fraction of a GPU's memory that was left when this process used the most.

    What torch's allocator holds beyond that, after a trial or to avoid fragments, it gives back when it must.
    """
    if device.type != "cuda":
        return 1.0
    free, total = torch.cuda.mem_get_info(device)
    return (free + torch.cuda.memory_reserved(device) - torch.cuda.max_memory_allocated(device)) / total


def max_part_on_gpu(activation_bytes: float, device: torch.device) -> int:
    """Return the default micro-batch, the largest whose activations take half of the GPU's memory."""
    total = torch.cuda.get_device_properties(device).total_memory
    most = MAX_PART if total <= LARGE_BYTES else MAX_PART_ON_LARGE
    return max(1, min(most, int(total / 2 / activation_bytes)))
