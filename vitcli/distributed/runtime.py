"""Processes, devices and precision: the only module that builds an `Accelerator` or calls collectives.

It does not matter who started the processes: `launch`, torchrun, `accelerate launch` or srun.
"""

import gc
import os
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs
from torch import nn

from vitcli.distributed import accelerate_settings, launch, numerics
from vitcli.distributed import device as devices
from vitcli.errors import MachineError, VitError, is_out_of_memory, reason_of
from vitcli.recipe.schema import STALL_MINUTES

LOW_PRECISION = {"bf16": torch.bfloat16, "fp16": torch.float16}
# Of collectives on GPUs, at which torch aborts the process: `peers` ends it in a better way before.
ABORTED_AFTER = timedelta(minutes=1)
EMULATED = "note: this CPU emulates bf16, a hundred times slower than it computes fp32: --precision fp32"
warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated")  # torch 2.11 has no other word for it
_shared_blocks: list[bool] = []  # not empty inside `shared_process_group`


@dataclass(frozen=True)
class Runtime:
    """This process among the processes of the run.

    Attributes:
        accelerator: prepares model and optimizer, nothing else.
        precision: "fp32", "bf16" or "fp16", of the matrix products in training. Accelerate is not given it,
            since it would patch the model's forward pass, which evaluation uses too.
        scaler: loss scaler for fp16; does nothing otherwise.
        control: process group for small CPU tensors and objects; None in a run of one process.
        stall_timeout: how long to wait for another process before the run ends.
        notes: settings of `accelerate launch` that are not used, for the terminal.
        hardware: what else than its kind may change the last bits on a GPU, by name; empty on a CPU.
        cores: of this process, see `launch.part_of_cores`.
    """

    accelerator: Accelerator
    precision: str
    scaler: torch.amp.GradScaler
    control: Any
    stall_timeout: timedelta
    notes: tuple[str, ...] = ()
    hardware: dict[str, Any] = field(default_factory=dict)
    cores: int = 1

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
        """Wait for all processes, then close the process group unless it is shared."""
        if self.world_size > 1:
            dist.barrier(group=self.control)
        if not _shared_blocks:
            self.accelerator.end_training()

    def alone(self) -> "Runtime":
        """Return this process as the only one, for what the first does after `shutdown`."""
        only = SimpleNamespace(
            device=self.device, process_index=0, num_processes=1, end_training=lambda: None
        )
        return replace(self, accelerator=only, control=None)

    @contextmanager
    def local_errors(self) -> Iterator[None]:
        """Mark an error raised inside as that of this process alone, so that this process prints it."""
        try:
            yield
        except VitError as error:
            error.rank = self.rank
            raise

    def on_main(self, action: Callable[[], Any]) -> Any:
        """Run `action` on the first process; return its result, or raise its error, on every process."""
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
            if not isinstance(outcome[1], VitError):
                outcome[1].rank = 0  # for the report of a bug
            raise outcome[1]
        return outcome[0]

    def concatenated(self, items: list) -> list:
        """Return the lists of all processes joined in the order of the ranks."""
        return [item for items in _of_all(items, self.control, self.world_size) for item in items]

    def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        """Overwrite the tensors of every process with those of the first one, in place."""
        for tensor in tensors if self.world_size > 1 else ():
            dist.broadcast(tensor, src=0, group=self._group_for(tensor))

    def union(self, members: set[str]) -> set[str]:
        """Return the union of the sets of all processes."""
        return set(self.concatenated(sorted(members)))

    def any(self, flag: bool) -> bool:
        """Return True on every process if the flag is set on any."""
        return bool(self.gather(torch.tensor(flag)).any())

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensors of all processes, stacked in the order of the ranks, on the tensor's device."""
        if self.world_size == 1:
            return tensor[None]
        rows = tensor.new_empty((self.world_size, *tensor.shape))
        dist.all_gather(list(rows), tensor, group=self._group_for(tensor))
        return rows

    def exchange(self, rows: torch.Tensor) -> torch.Tensor:
        """Send row r to process r, and return the rows received, in the order of the ranks."""
        received = torch.empty_like(rows)
        dist.all_to_all_single(received, rows.contiguous(), group=self._group_for(rows))
        return received

    def _group_for(self, tensor: torch.Tensor) -> Any:
        return self.control if tensor.device.type == "cpu" else None

    def sum_over_processes(self, values: torch.Tensor) -> torch.Tensor:
        """Sum a CPU tensor elementwise over the processes, in place."""
        if self.world_size > 1:
            dist.all_reduce(values, group=self.control)
        return values


def start(precision: str, *, exact: bool = False, stall_minutes: float = STALL_MINUTES) -> Runtime:
    """Join the processes of the run and choose device and precision.

    Args:
        precision: "auto", "fp32", "bf16" or "fp16".
        exact: the same bits each time, on any number of processes.
        stall_minutes: how long to wait for another process before the run ends.

    Raises:
        MachineError: the device is not here or has another process, or does not support this precision.
        VitError: `accelerate launch` is set up for what vit does not use.
    """
    # Settle what this process may use, before CUDA starts.
    if accelerate_settings.wants_cpu():
        devices.select("cpu")
    available = accelerators()
    if not available:
        devices.check_no_gpu_is_left_out(cuda_problem)
    # Processes of other launchers may see a GPU each; `refuse_one_gpu_twice` checks them.
    processes_here = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if launch.LAUNCHED in os.environ else 1
    devices.check_here(available, processes_here)
    notes = accelerate_settings.take_out(resolve_precision(precision))
    # Accelerate would give DDP the GPU number LOCAL_RANK, which a process that sees one GPU does not have.
    os.environ["ACCELERATE_BYPASS_DEVICE_MAP"] = "true"

    # Join the others.
    stall_timeout = timedelta(minutes=stall_minutes)
    with _ended_by_signals():
        accelerator = Accelerator(
            mixed_precision="no",
            cpu=devices.is_cpu() or not torch.accelerator.is_available(),
            step_scheduler_with_optimizer=False,
            kwargs_handlers=[
                InitProcessGroupKwargs(timeout=stall_timeout + ABORTED_AFTER * bool(available)),
                DistributedDataParallelKwargs(gradient_as_bucket_view=True, broadcast_buffers=False),
            ],
        )
        device, several = accelerator.device, accelerator.num_processes > 1
        control = dist.new_group(backend="gloo", timeout=stall_timeout) if several else None

    # Agree on what they compute with.
    numerics.use_full_fp32()
    numerics.fix_order_of_sums(device, exact=exact)
    own = (resolve_precision(precision), launch.usable_cores(), socket.gethostname(), *_gpu(device))
    everywhere = _of_all(own, control, accelerator.num_processes)
    gpus = [gpu for _, _, *gpu in everywhere]
    if device.type == "cuda":
        devices.refuse_one_gpu_twice(gpus)
    resolved = {each for each, *_ in everywhere}
    precision = resolved.pop() if len(resolved) == 1 else "fp32"  # GPUs with and without bf16
    if precision == "bf16" and device.type == "cpu" and not cpu_has_bf16():
        notes.append(EMULATED)
    hardware = _hardware(gpus) if device.type == "cuda" else {}
    cores = launch.part_of_cores(own[1], [cores for _, cores, machine, *_ in everywhere if machine == own[2]])
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
    return Runtime(accelerator, precision, scaler, control, stall_timeout, tuple(notes), hardware, cores)


def _ended_by_signals() -> AbstractContextManager[None]:
    """Let a signal end this process while it waits for the others, in C, where Python handles none."""
    is_alone = int(os.environ.get("WORLD_SIZE", 1)) == 1
    numbers = () if is_alone else (signal.SIGTERM, signal.SIGINT)
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    return launch.handling(dict.fromkeys(heard, signal.SIG_DFL))


def _of_all(value: Any, control: Any, world_size: int) -> list[Any]:
    """Return the values of all processes, in the order of the ranks."""
    values: list[Any] = [value] * world_size
    if control is not None:
        dist.all_gather_object(values, value, group=control)
    return values


def _gpu(device: torch.device) -> tuple[str, str]:
    """Return unique id and name of a GPU; nothing for other devices."""
    if device.type != "cuda":
        return "", ""
    properties = torch.cuda.get_device_properties(device)
    return f"GPU-{properties.uuid}", properties.name


def _hardware(gpus: list[tuple[str, str, str]]) -> dict[str, Any]:
    """Return what a run on these GPUs depends on to the last bit; the collectives, on GPUs per machine."""
    machines = [machine for machine, _, _ in gpus]
    return {
        "gpu": ", ".join(sorted({name for _, _, name in gpus})),
        "gpus_per_machine": [machines.count(machine) for machine in dict.fromkeys(machines)],
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }


def cuda_problem() -> str:
    """Return why torch cannot use the NVIDIA GPUs of this machine."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return reason_of(error)
    return "CUDA finds no GPU"


def accelerators() -> list[str]:
    """Return the accelerators that this process sees: ["cuda:0", "cuda:1"], ["mps"], or none."""
    with warnings.catch_warnings():  # of a driver that is too old: `cuda_problem` says it in our words
        warnings.simplefilter("ignore")
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if device is None:
        return []
    kind, count = device.type, torch.accelerator.device_count()
    return [kind] if kind == "mps" else [f"{kind}:{number}" for number in range(count)]


@contextmanager
def shared_process_group() -> Iterator[None]:
    """Keep one process group for all runs inside the block, and close it at the end; blocks may be nested.

    A second group would find the addresses of the first one in the launcher's store ("connection refused").
    """
    _shared_blocks.append(True)
    try:
        yield
    finally:
        _shared_blocks.pop()
    if dist.is_initialized() and not _shared_blocks:
        dist.destroy_process_group()


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Return the context in which matrix products are computed in `precision`; the weights stay in fp32."""
    return torch.autocast(device.type, dtype=LOW_PRECISION.get(precision), enabled=precision in LOW_PRECISION)


def resolve_precision(precision: str, *, where: str = "--precision (recipe key precision.compute)") -> str:
    """Resolve "auto" to bf16 where the device computes it natively, and to fp32 elsewhere.

    Raises:
        MachineError: the device does not compute in the precision that is asked for.
    """
    has_gpu = torch.cuda.is_available()
    if precision == "fp16" and not has_gpu:
        problem = "fp16 needs a GPU, and this machine has none"
        raise MachineError(problem, where=where, fix="auto, bf16 or fp32")
    # Older GPUs emulate bf16, more slowly than they compute fp32.
    has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False) if has_gpu else cpu_has_bf16()
    if precision == "bf16" and has_gpu and not has_bf16:
        problem = f"{torch.cuda.get_device_name()} does not compute in bf16"
        raise MachineError(problem, where=where, fix="auto, fp32 or fp16; GPUs from Ampere on have bf16")
    if precision != "auto":
        return precision
    return "bf16" if has_bf16 and (has_gpu or not torch.accelerator.is_available()) else "fp32"


def cpu_has_bf16() -> bool:
    """Return True if the CPU multiplies bf16 natively (AVX512-BF16 or AMX); emulation is slower than fp32."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def peak_memory_gib() -> float:
    """Return the peak memory of this process: on the GPU if there is one, else in main memory."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    return _largest_resident_gib()


def _largest_resident_gib() -> float:
    if sys.platform == "win32":
        import psutil

        memory = psutil.Process().memory_info()
        return getattr(memory, "peak_wset", memory.rss) / 2**30
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)  # in bytes on macOS, else in KiB


def reserved_memory_gib() -> dict[str, float]:
    """Return what torch's allocator held of a GPU at its peak, used or not; nothing without a GPU."""
    if not torch.cuda.is_available():
        return {}
    return {"reserved_gib": torch.cuda.max_memory_reserved() / 2**30}


def reset_peak_memory() -> None:
    """Count the peak of a GPU's memory from now on, not that of earlier runs and trials in this process."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def reset_peaks() -> None:
    """Forget the largest memory so far; that of the process where the system allows it (Linux)."""
    reset_peak_memory()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> dict[str, float | None]:
    """Return the largest memory since the last reset, in GiB: of this process, and of its GPU."""
    has_gpu, num_bytes = torch.cuda.is_available(), launch.peak_memory_of("self")
    return {
        "host_peak_memory_gib": num_bytes / 2**30 if num_bytes else _largest_resident_gib(),
        "device_peak_memory_gib": peak_memory_gib() if has_gpu else None,
    }


def fits_in_memory(attempt: Callable[[], None]) -> bool:
    """Return whether something can be computed without running out of memory."""
    try:
        attempt()
        return True
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        free_memory()


def last_that_fits(sizes: Iterable[int], fits: Callable[[int], bool]) -> int:
    """Return the last of the ascending sizes before the first that does not fit; 0 for none."""
    return max(takewhile(fits, sizes), default=0)


def free_memory() -> None:
    """Give back what nothing uses any more, also the memory that the allocator of a GPU keeps."""
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()


def unwrap(model: nn.Module) -> nn.Module:
    """Return the bare module inside the wrappers of DDP and torch.compile."""
    model = getattr(model, "module", model)
    return getattr(model, "_orig_mod", model)
