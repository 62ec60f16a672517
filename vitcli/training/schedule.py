"""Durations, learning rates and batch splits: from a recipe's words to the numbers of the loop."""

import math
from dataclasses import dataclass, replace

from vitcli.errors import VitError

PROCESS_COUNTS = (1, 2, 4, 8, 16, 32, 64)  # tried when advising how many processes to launch


@dataclass(frozen=True)
class Plan:
    """All derived numbers of a run on its data set and machine, written into the run folder before step 0.

    Attributes:
        accumulation_steps: micro-batches of `per_device_batch` images per process and step.
        exaflops: compute of the whole run; None if the network's cost is unknown.
    """

    total_steps: int
    warmup_steps: int
    batch_size: int
    per_device_batch: int
    accumulation_steps: int
    world_size: int
    num_examples: int
    images_seen: int
    exaflops: float | None

    @property
    def epochs(self) -> float:
        """Passes over the training images; the last one may be a part."""
        return self.images_seen / self.num_examples


def plan(
    *,
    steps: int | None,
    epochs: float | None,
    warmup: int | str,
    batch_size: int,
    per_device_batch: int,
    world_size: int,
    num_examples: int,
    forward_macs: float | None,
) -> Plan:
    """Return all derived numbers of a run.

    Args:
        steps, epochs: the duration, exactly one of them.
        warmup: in steps, or as a fraction of the run such as "10%".
        batch_size: images per optimizer step over all processes.
        per_device_batch: images per forward pass of one process.
        num_examples: images of the training split.
        forward_macs: multiply-adds of one forward pass of one image; None leaves `exaflops` None.

    Raises:
        VitError: the batch does not split evenly, or the warm-up is longer than the run.
    """
    total_steps = duration_steps(steps=steps, epochs=epochs, num_examples=num_examples, batch_size=batch_size)
    images_seen = total_steps * batch_size
    return Plan(
        total_steps=total_steps,
        warmup_steps=warmup_steps(warmup, total_steps),
        batch_size=batch_size,
        per_device_batch=per_device_batch,
        accumulation_steps=split_global_batch(
            batch_size, per_device_batch=per_device_batch, world_size=world_size
        ),
        world_size=world_size,
        num_examples=num_examples,
        images_seen=images_seen,
        exaflops=None if forward_macs is None else exaflops(forward_macs, images_seen),
    )


def with_total_steps(plan: Plan, total_steps: int) -> Plan:
    """Return the plan of a run of another length, with the same fraction of warm-up."""
    scale = total_steps / plan.total_steps
    return replace(
        plan,
        total_steps=total_steps,
        warmup_steps=round(plan.warmup_steps * scale),
        images_seen=total_steps * plan.batch_size,
        exaflops=None if plan.exaflops is None else plan.exaflops * scale,
    )


def duration_steps(*, steps: int | None, epochs: float | None, num_examples: int, batch_size: int) -> int:
    """Return the duration in optimizer steps; epochs are rounded to the nearest step, at least one."""
    assert (steps is None) != (epochs is None), "the recipe schema requires exactly one of them"
    if steps is not None:
        return steps
    return max(1, round(epochs * num_examples / batch_size))


def warmup_steps(warmup: int | str, total_steps: int) -> int:
    """Return the steps of linear warm-up; a fraction of the run ("10%") is rounded to the nearest step.

    Raises:
        VitError: the warm-up is longer than the run.
    """
    steps = round(float(warmup.removesuffix("%")) / 100 * total_steps) if isinstance(warmup, str) else warmup
    if steps > total_steps:
        raise VitError(
            f"a warm-up of {steps} steps is longer than the run of {total_steps} steps",
            where="recipe keys schedule.warmup and schedule.steps or schedule.epochs",
            fix='train longer, or give the warm-up as a fraction of the run: --set schedule.warmup="10%"',
        )
    return steps


def lr_at_step(
    step: int, *, base_lr: float, total_steps: int, warmup_steps: int, decay: str, end_lr: float
) -> float:
    """Return the learning rate of update number `step`, counted from 0.

        progress = (step - warmup_steps) / (total_steps - warmup_steps), within [0, 1]
        lr       = end_lr + (base_lr - end_lr) * decay(progress)
        lr       = lr * min(1, step / warmup_steps)

    With a warm-up, update 0 has rate 0. Source: the authors' code (paper, appendix B.1 names only the kinds).

    Args:
        decay: "cosine", "linear" or "constant"; the last ignores `end_lr`.
    """
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    progress = min(1.0, max(0.0, progress))
    match decay:
        case "cosine":
            factor = 0.5 * (1.0 + math.cos(math.pi * progress))
        case "linear":
            factor = 1.0 - progress
        case "constant":
            factor = 1.0
        case _:
            raise AssertionError(f"the recipe schema has no decay {decay!r}")
    lr = end_lr + (base_lr - end_lr) * factor
    return lr * min(1.0, step / warmup_steps) if warmup_steps else lr


def split_global_batch(batch_size: int, *, per_device_batch: int, world_size: int) -> int:
    """Return the forward passes per process and step, so that a step sees exactly `batch_size` images.

    Raises:
        VitError: the batch does not split evenly; it is never rounded.
    """
    images_per_pass = per_device_batch * world_size
    if batch_size % images_per_pass:
        counts = [n for n in PROCESS_COUNTS if batch_size % (per_device_batch * n) == 0]
        advice = f"launch {', '.join(map(str, counts))} processes" if counts else "lower --per-device-batch"
        raise VitError(
            f"a step of {batch_size} images does not split over {world_size} processes of {per_device_batch}",
            where="recipe key train.batch_size, option --per-device-batch",
            fix=f"{advice}; the batch size belongs to the recipe and is never rounded",
        )
    return batch_size // images_per_pass


def choose_per_device_batch(batch_size: int, *, world_size: int, cap: int) -> int:
    """Return the largest per-device batch, at most `cap`, that splits `batch_size` evenly.

    Raises:
        VitError: `batch_size` is not a multiple of `world_size`.
    """
    assert cap >= 1, cap
    if batch_size % world_size:
        counts = [n for n in PROCESS_COUNTS if batch_size % n == 0]
        raise VitError(
            f"a step of {batch_size} images does not split over {world_size} processes",
            where="recipe key train.batch_size, option --num-processes",
            fix=f"launch {', '.join(map(str, counts))} processes; the batch size belongs to the recipe "
            "and is never rounded",
        )
    per_process = batch_size // world_size
    return next(size for size in range(min(cap, per_process), 0, -1) if per_process % size == 0)


def exaflops(forward_macs: float, images_seen: int) -> float:
    """Return the compute of training in 1e18 floating point operations, as the paper's Table 6 counts it.

    A multiply-add is two operations, and forward with backward costs three times the forward pass.
    """
    return 6 * forward_macs * images_seen / 1e18
