"""Processes, devices and precision: the only place that builds an `Accelerator` or talks to other processes.

One process is the default. `--num-processes N` hands this very command line to torch's elastic launcher;
torchrun, `accelerate launch` and srun start the processes themselves, and nothing else differs.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs
from torch import nn

from vitcli import order
from vitcli.errors import MachineError, ProcessError, VitError

COLLECTIVE_TIMEOUT = timedelta(minutes=10)  # a process that stalls longer ends the run
LAUNCHED = "VIT_LAUNCHED"  # set for processes that our own launcher started: it prints their errors


@dataclass(frozen=True)
class Runtime:
    """This process among the processes of the run.

    Attributes:
        accelerator: Accelerate's, with nothing of ours but model and optimizer prepared.
        precision: "fp32", "bf16" or "fp16": what the training's matrix products are computed in. Accelerate is
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

    def on_main(self, action: Callable[[], Any]) -> Any:
        """Run `action` on the first process; every process gets its result, or raises what it raised."""
        if self.world_size == 1:
            return action()
        outcome: list[Any] = [None, None]
        if self.is_main:
            try:
                outcome[0] = action()
            except VitError as error:
                outcome[1] = error
        dist.broadcast_object_list(outcome, src=0, group=self.control)
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]

    def union(self, mine: set[str]) -> set[str]:
        """All members of every process's set."""
        if self.world_size == 1:
            return mine
        everyones: list[Any] = [None] * self.world_size
        dist.all_gather_object(everyones, mine, group=self.control)
        return set().union(*everyones)

    def sum_over_processes(self, values: torch.Tensor) -> torch.Tensor:
        """Elementwise sum of a CPU tensor of every process, in place."""
        if self.world_size > 1:
            dist.all_reduce(values, group=self.control)
        return values


def start(precision: str, *, track: str | None = None, project_dir: Path | None = None) -> Runtime:
    """Join the run's processes, or be the only one, and settle device and precision.

    Args:
        precision: "auto", "fp32", "bf16" or "fp16".
        track: an experiment tracker that Accelerate knows; it writes below `project_dir` where it writes files.

    Raises:
        MachineError: the device cannot compute in this precision.
    """
    resolved = resolve_precision(precision)
    accelerator = Accelerator(
        mixed_precision="no",
        cpu=not torch.accelerator.is_available(),
        step_scheduler_with_optimizer=False,
        log_with=track,
        project_dir=project_dir,
        kwargs_handlers=[
            InitProcessGroupKwargs(timeout=COLLECTIVE_TIMEOUT),
            DistributedDataParallelKwargs(broadcast_buffers=False, gradient_as_bucket_view=True),
        ],
    )
    several = accelerator.num_processes > 1
    control = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT) if several else None
    scaler = torch.amp.GradScaler(accelerator.device.type, enabled=resolved == "fp16")
    return Runtime(accelerator, resolved, scaler, control)


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


def seed_model_draws(seed: int, *, step: int, part: int) -> None:
    """Seed dropout for one micro-batch: a function of (seed, step, number of the micro-batch in the step)."""
    torch.manual_seed(order.derive_seed(seed, "model", step, part))


def release_memory() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def peak_memory_gib() -> float:
    """Most memory this process has held: of the GPU where one is used, else of the machine."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB on Linux


# ---------------------------------------------------------------- launching


def is_launched() -> bool:
    """Whether a launcher has already given this process its rank."""
    return "RANK" in os.environ or int(os.environ.get("SLURM_NTASKS", 1)) > 1


def global_rank() -> int:
    """Rank of this process, also before, and after, it has joined the others."""
    return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", 0)))


def adopt_slurm() -> None:
    """Let `srun -m vitcli` work without a wrapper: torch's names for what SLURM says."""
    if "RANK" in os.environ or int(os.environ.get("SLURM_NTASKS", 1)) <= 1:
        return
    os.environ["RANK"] = os.environ["SLURM_PROCID"]
    os.environ["WORLD_SIZE"] = os.environ["SLURM_NTASKS"]
    os.environ["LOCAL_RANK"] = os.environ["SLURM_LOCALID"]
    os.environ.setdefault("MASTER_ADDR", os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"))
    os.environ.setdefault("MASTER_PORT", str(20_000 + int(os.environ["SLURM_JOB_ID"]) % 20_000))


def launch(num_processes: int, arguments: list[str]) -> int:
    """Run this command line in `num_processes` processes on this machine; the exit code of the first to fail.

    Raises:
        VitError: the failing process's own error, or a ProcessError if it could not say one.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ[LAUNCHED] = "1"
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // num_processes)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_processes,
        run_id=f"vit-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",  # a free port, and nobody outside can join
        local_addr="127.0.0.1",
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "vitcli", *arguments)
    except SignalException as stopped:
        return 128 + stopped.sigval
    except ChildFailedError as failed:
        return _first_failure(failed.failures)
    return 0


def _first_failure(failures: dict) -> int:
    """Raise what the process that failed first has said; the others only saw it vanish."""
    told = [failure.error_file_data.get("vit") for failure in failures.values() if failure.error_file_data]
    told = sorted((error for error in told if error), key=lambda error: (error["exit_code"] == 7, error["at"]))
    killed = [(rank, failure) for rank, failure in failures.items() if failure.exitcode < 0]
    if told and (told[0]["exit_code"] != 7 or not killed):
        kind = next(kind for kind in (VitError, *VitError.__subclasses__()) if kind.exit_code == told[0]["exit_code"])
        raise kind(told[0]["message"], where=told[0]["where"], fix=told[0]["fix"])
    if killed:
        rank, failure = killed[0]
        raise ProcessError(
            f"process {rank} of the run was killed by {signal.Signals(-failure.exitcode).name}",
            where=f"pid {failure.pid} on this machine",
            fix="run the same command again to go on from the last checkpoint; if the memory ran out, "
            "lower --per-device-batch",
        )
    stopped = [failure.exitcode for failure in failures.values() if failure.exitcode in (130, 143)]
    return stopped[0] if stopped else next(iter(failures.values())).exitcode


def report_to_launcher(error: VitError) -> bool:
    """Leave `error` where our launcher finds it; whether there is such a launcher to print it."""
    place = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not place or LAUNCHED not in os.environ:
        return False
    told = dict(message=error.message, where=error.where, fix=error.fix, exit_code=error.exit_code, at=time.time())
    extra = {"py_callstack": "", "timestamp": str(int(time.time()))}
    Path(place).write_text(json.dumps({"message": {"message": error.message, "extraInfo": extra}, "vit": told}))
    return True


def as_process_error(error: Exception) -> ProcessError | None:
    """What a collective raises when another process is gone, as an error of the run; None for any other."""
    text = str(error)
    signs = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out waiting", "NCCL")
    if not isinstance(error, RuntimeError | dist.DistError) or not any(sign in text for sign in signs):
        return None
    return ProcessError(
        "another process of the run is gone or has stalled",
        where=f"process {global_rank()}: {text.strip().splitlines()[0][:120]}",
        fix="look at that process's message; the same command goes on from the last checkpoint",
    )


def unwrap(model: nn.Module) -> nn.Module:
    """The bare module inside DDP's, and torch.compile's, wrapper."""
    model = getattr(model, "module", model)
    return getattr(model, "_orig_mod", model)
