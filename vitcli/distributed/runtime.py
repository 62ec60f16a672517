"""Processes, devices and precision: the only place that builds an `Accelerator` or talks to other processes.

How the processes came to be, by `launching` or by torchrun, `accelerate launch` or srun, makes no difference
here.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs
from torch import nn

from vitcli.errors import MachineError, VitError

COLLECTIVE_TIMEOUT = timedelta(minutes=10)  # a process that stalls longer ends the run
_staying: list[bool] = []  # not empty inside `one_after_another`


@dataclass(frozen=True)
class Runtime:
    """This process among the processes of the run.

    Attributes:
        accelerator: Accelerate's, with nothing of ours but model and optimizer prepared.
        precision: "fp32", "bf16" or "fp16": what the training's matrix products are computed in. Accelerate
            is
            not told: it would patch the model's forward pass, and evaluation is to be free of it.
        scaler: of the loss, for fp16; passes everything through otherwise.
        control: process group for small CPU messages, None in a run of one process.
    """

    accelerator: Accelerator
    precision: str
    scaler: torch.amp.GradScaler
    control: Any

    @property
    def device(self) -> torch.device:
        return self.accelerator.device

    @property
    def rank(self) -> int:
        return self.accelerator.process_index

    @property
    def world_size(self) -> int:
        return self.accelerator.num_processes

    @property
    def processes_here(self) -> int:
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.world_size))

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def shutdown(self) -> None:
        """Close the tracker and part from the other processes, once all have come here."""
        if self.world_size > 1:
            dist.barrier(group=self.control)
        if not _staying:
            self.accelerator.end_training()
            return
        self.close_trackers()

    def close_trackers(self) -> None:
        """Let another run have a tracker in this process."""
        for tracker in self.accelerator.trackers:
            tracker.finish()

    @contextmanager
    def local_errors(self) -> Iterator[None]:
        """Mark what is raised inside as known to this process alone, so that it is the one to say it."""
        try:
            yield
        except VitError as error:
            error.rank = self.rank
            raise

    def on_main(self, action: Callable[[], Any]) -> Any:
        """Run `action` on the first process; every process gets its result, or raises what it raised."""
        if self.world_size == 1:
            return action()
        outcome: list[Any] = [None, None]
        if self.is_main:
            try:
                outcome[0] = action()
            except Exception as error:
                outcome[1] = error
        dist.broadcast_object_list(outcome, src=0, group=self.control)
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]

    def concatenated(self, mine: list) -> list:
        """Every process's list, one after the other."""
        if self.world_size == 1:
            return mine
        everyones: list[Any] = [None] * self.world_size
        dist.all_gather_object(everyones, mine, group=self.control)
        return [member for one in everyones for member in one]

    def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        """Make them the first process's, in place, where they are."""
        for tensor in tensors if self.world_size > 1 else ():
            dist.broadcast(tensor, src=0, group=self._group_for(tensor))

    def union(self, mine: set[str]) -> set[str]:
        """All members of every process's set."""
        return set(self.concatenated(sorted(mine)))

    def any(self, mine: bool) -> bool:
        """Whether it is so on any process."""
        return bool(self.gather(torch.tensor(mine)).any())

    def gather(self, mine: torch.Tensor) -> torch.Tensor:
        """Every process's tensor, stacked in the order of the ranks, where `mine` is."""
        if self.world_size == 1:
            return mine[None]
        everyones = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(everyones, mine, group=self._group_for(mine))
        return torch.stack(everyones)

    def exchange(self, mine: torch.Tensor) -> torch.Tensor:
        """Row r of the result is the row for this process of process r's tensor; one row for each process."""
        received = torch.empty_like(mine)
        dist.all_to_all_single(received, mine.contiguous(), group=self._group_for(mine))
        return received

    def _group_for(self, tensor: torch.Tensor) -> Any:
        return self.control if tensor.device.type == "cpu" else None

    def sum_over_processes(self, values: torch.Tensor) -> torch.Tensor:
        """Elementwise sum of a CPU tensor of every process, in place."""
        if self.world_size > 1:
            dist.all_reduce(values, group=self.control)
        return values


def start(precision: str) -> Runtime:
    """Join the run's processes, or be the only one, and settle device and precision.

    Args:
        precision: "auto", "fp32", "bf16" or "fp16".

    Raises:
        MachineError: the device cannot compute in this precision.
    """
    recipe = resolve_precision(precision)
    accelerator = Accelerator(
        mixed_precision="no",
        cpu=not torch.accelerator.is_available(),
        step_scheduler_with_optimizer=False,
        kwargs_handlers=[
            InitProcessGroupKwargs(timeout=COLLECTIVE_TIMEOUT),
            DistributedDataParallelKwargs(gradient_as_bucket_view=True),
        ],
    )
    several = accelerator.num_processes > 1
    control = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT) if several else None
    scaler = torch.amp.GradScaler(accelerator.device.type, enabled=recipe == "fp16")
    return Runtime(accelerator, recipe, scaler, control)


@contextmanager
def shared_process_group() -> Iterator[None]:
    """Runs inside the block share one process group, which is left at its end.

    Joined again, a group would find the addresses of the one before in the launcher's store ("connection
    refused").
    """
    _staying.append(True)
    try:
        yield
    finally:
        _staying.pop()
    if dist.is_initialized() and not _staying:
        dist.destroy_process_group()


def fix_threads(device: torch.device) -> None:
    """Compute with one thread on a CPU: sums over several differ in their last bits from number to number.

    Each of several processes has its share of the cores, so one thread is all that is the same for all of
    them; who wants to use more cores launches more processes.
    """
    if device.type == "cpu":
        torch.set_num_threads(1)


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Matrix products in `precision` inside the block; the weights stay in fp32."""
    low = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    return torch.autocast(device.type, dtype=low, enabled=low is not None)


def resolve_precision(precision: str) -> str:
    """`auto` is bf16 where the device computes it natively, fp32 elsewhere."""
    has_gpu = torch.cuda.is_available()
    if precision == "fp16" and not has_gpu:
        raise MachineError(
            "this machine has no GPU, and no CPU trains in fp16",
            where="--precision (recipe key precision.compute)",
            fix="auto, bf16 or fp32",
        )
    if precision != "auto":
        return precision
    if has_gpu:
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    return "bf16" if cpu_has_bf16() and not torch.accelerator.is_available() else "fp32"


def cpu_has_bf16() -> bool:
    """Whether the CPU multiplies bf16 natively (AVX512-BF16 or AMX); elsewhere it is emulated, and slower."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def peak_memory_gib() -> float:
    """Most memory this process has held: of the GPU where one is used, else of the machine."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB on Linux


def unwrap(model: nn.Module) -> nn.Module:
    """The bare module inside DDP's, and torch.compile's, wrapper."""
    model = getattr(model, "module", model)
    return getattr(model, "_orig_mod", model)
