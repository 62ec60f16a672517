"""Launching the processes of a run on this machine, passing on their errors; cores and free memory.

One process is the default. `--num-processes N` gives the same command line to torch's elastic launcher;
torchrun, `accelerate launch` and srun start the processes themselves, and nothing else differs. Loads no
torch by itself.
"""

import ctypes
import json
import logging
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vitcli.distributed import failures
from vitcli.errors import MachineError, ProcessError, VitError, reason_of

# In errors of collectives whose peer is gone: gloo's, and those of NCCL that are no other fault of it.
LOST_PEER = (
    "Connection (closed|reset) by (remote )?peer|Broken pipe|Timed out waiting"
    "|ncclRemoteError|remote process exit|NCCL communicator was aborted|collective operation timeout"
    "|wait timeout"
)
LAUNCHED = "VIT_LAUNCHED"  # pid of our launcher, for the processes it started: it prints their errors
BEGAN_AT = "VIT_BEGAN_AT"  # when our launcher began, for the same
PR_SET_PDEATHSIG = 1  # linux/prctl.h
SAVING_TIME_S = 600  # for processes that are asked to stop: to finish the step and save
FORWARDED = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"  # torch's default, and SLURM's warning of the time limit


def program() -> list[str]:
    """Return the words that start `vit` in another process.

    Python does not look for modules in the working folder (-P), as it does for `-m vitcli`: a typer.py beside
    downloaded data would be run.
    """
    return [sys.executable, "-P", str(Path(__file__).parents[1] / "__main__.py")]


def cpu_count() -> int:
    """Return the number of cores that this program may use; on macOS, which has no affinity, all of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def must_launch(num_processes: int) -> bool:
    """Return True if this process must start the processes of the run, False if a launcher has done so.

    Raises:
        VitError: a launcher has started a different number of processes.
    """
    if "RANK" not in os.environ:
        return num_processes > 1
    if int(os.environ["WORLD_SIZE"]) != num_processes:
        raise VitError(
            f"{num_processes} processes are asked for, the launcher has started {os.environ['WORLD_SIZE']}",
            where=f"--num-processes {num_processes}",
            fix="drop the option under torchrun, accelerate launch and srun",
        )
    return False


def end_with_the_launcher() -> None:
    """Have Linux send SIGTERM to this process if our launcher is killed, so that it saves and ends.

    Otherwise it would train on and hold the lock of the run folder, and the same command could not resume.
    """
    if LAUNCHED not in os.environ or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(os.environ[LAUNCHED]):  # it was killed before
        sys.exit(143)


@contextmanager
def sigterm_ignored() -> Iterator[None]:
    """Finish what is inside the block; SIGKILL follows where a launcher does not wait so long."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


_place = "the start"


def enter(place: str) -> None:
    """Remember what this process does from now on, such as "step 5", for its errors."""
    global _place
    _place = place


def place(rank: int | None = None) -> str:
    """Return what this process does, and which it is; another `rank` does the same."""
    return f"process {global_rank() if rank is None else rank}, {_place}"


def global_rank() -> int:
    """Return the rank of this process, also before it joins and after it leaves the process group."""
    return int(os.environ.get("RANK", 0))


def processes_here() -> int:
    """Return how many processes of this command are on this machine, as their launcher says."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def adopt_slurm() -> None:
    """Set torch's environment variables from SLURM's, so that `srun python -m vitcli` needs no wrapper.

    Only in a job step of several tasks: in a shell of salloc or an sbatch script nothing is started yet.
    """
    environ = os.environ
    if "RANK" in environ or "SLURM_PROCID" not in environ or int(environ.get("SLURM_STEP_NUM_TASKS", 1)) <= 1:
        return
    environ["RANK"], environ["LOCAL_RANK"] = environ["SLURM_PROCID"], environ["SLURM_LOCALID"]
    environ["WORLD_SIZE"] = environ["SLURM_STEP_NUM_TASKS"]
    tasks_here = tasks_on_node(environ["SLURM_STEP_TASKS_PER_NODE"], int(environ["SLURM_NODEID"]))
    environ["LOCAL_WORLD_SIZE"] = str(tasks_here)
    environ.setdefault("MASTER_ADDR", first_host(environ["SLURM_STEP_NODELIST"]))
    environ.setdefault("MASTER_PORT", str(20_000 + int(environ["SLURM_JOB_ID"]) % 20_000))


def first_host(node_list: str) -> str:
    """Return the host of task 0: `node01` for SLURM's `node[01-03,7],other`."""
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", node_list).split(",")[0]


def tasks_on_node(tasks_per_node: str, node: int) -> int:
    """Return the tasks of the step on node number `node`, from 0: 4, 4 and 3 for SLURM's `4(x2),3`."""
    counts = []
    for entry in tasks_per_node.split(","):
        tasks, _, num_nodes = entry.rstrip(")").partition("(x")
        counts += [int(tasks)] * int(num_nodes or 1)
    return counts[node]


def launch(num_processes: int, arguments: list[str]) -> int:
    """Run this command line in `num_processes` processes here; return the first non-zero exit code.

    Raises:
        VitError: the error of the process that failed first, or a ProcessError if it left none.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ[BEGAN_AT] = repr(began_at())
    logging.disable(logging.CRITICAL)  # of torch's launcher; our own three lines report errors
    os.environ[LAUNCHED] = str(os.getpid())
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cpu_count() // num_processes)))
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # our lines tell of time limits
    # Issue pytorch#119856: the default is to kill after 30 s. Torch 2.11 does not know the variable.
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(SAVING_TIME_S))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_processes,
        run_id=f"vit-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",  # a free port, closed to other machines
        local_addr="127.0.0.1",
        max_restarts=0,
        signals_to_handle=FORWARDED,
    )
    try:
        interpreter, *words = program()
        elastic_launch(config, interpreter)(*words, *arguments)
    except SignalException as stopped:
        return 143 if stopped.sigval == signal.SIGUSR1 else 128 + stopped.sigval
    except ChildFailedError as failed:
        return failures.first_failure(failed.failures, num_processes)
    return 0


def began_at() -> float:
    """Return when the command of this process, or its launcher, began, by `time.monotonic`."""
    now = time.monotonic()
    return float(os.environ.get(BEGAN_AT, now)) if LAUNCHED in os.environ else now


def report_to_launcher(error: VitError, *, is_printed: bool = False) -> bool:
    """Write `error` where our launcher reads and prints it; return False if there is no such launcher.

    Args:
        is_printed: this process has printed it, and the launcher only ends with its exit code.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or LAUNCHED not in os.environ:
        return False
    report = dict(
        message=error.message,
        where=error.where,
        fix=error.fix,
        exit_code=error.exit_code,
        at=time.time(),
        is_printed=is_printed,
    )
    extra = {"py_callstack": "", "timestamp": str(int(time.time()))}
    Path(path).write_text(
        json.dumps({"message": {"message": error.message, "extraInfo": extra}, "vit": report})
    )
    return True


def print_error(error: VitError) -> None:
    """Print an error of this process outside its main thread; the command line sets its own way to do it."""
    if not report_to_launcher(error):
        print(error, file=sys.stderr, flush=True)


def as_process_error(error: Exception) -> ProcessError | None:
    """Return the error of a collective whose peer is gone as a ProcessError; None for any other error."""
    if not isinstance(error, RuntimeError) or not re.search(LOST_PEER, str(error)):
        return None
    return lost_peer(reason_of(error))


def lost_peer(reason: str) -> ProcessError:
    """Return the error of this process after another one is gone; `reason` is gloo's, NCCL's or ours."""
    reason = re.sub(r"^\[\S+\] |\. This is typically caused by.*", "", reason)
    return ProcessError(
        "another process of the run has ended or stalled",
        where=f"{place()}: {reason[:120]}",
        fix="see the message of that process; the same command resumes from the last checkpoint",
    )


def as_device_error(error: Exception) -> VitError | None:
    """Return what torch says of the GPUs as an error for the user; None for any other error."""
    text = str(error)
    if not isinstance(error, RuntimeError):
        return None
    kernel, sign, _ = text.partition(" does not have a deterministic implementation")
    if sign:
        return VitError(
            f"the GPU has no deterministic kernel for {kernel.split()[-1]}, which this run needs",
            where="--exact",
            fix="drop --exact, or add --device cpu",
        )
    if "NCCL error" in text or type(error).__name__ == "DistBackendError":
        reason = text.strip().splitlines()[-1].strip()  # below "Last error:"
        return MachineError(
            "NCCL cannot connect the GPUs of this run",
            where=f"process {global_rank()}: {reason[:160]}",
            fix="NCCL_DEBUG=INFO in the environment shows why; one GPU needs no NCCL",
        )
    return None


def free_bytes() -> float:
    """Return the memory that is free without pushing other programs out, in this container if it is one."""
    import psutil

    return min(psutil.virtual_memory().available, _free_in_container())


def _free_in_container(root: str = "/sys/fs/cgroup") -> float:
    """Return what the control group of this process has left, with what the kernel could drop."""
    for limit, used, droppable in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            bound, taken = (int(Path(root, name).read_text()) for name in (limit, used))
            counts = dict(
                line.split() for line in Path(root, limit).with_name("memory.stat").read_text().splitlines()
            )
        except (OSError, ValueError):  # no such file, or "max"
            continue
        return max(0.0, bound - taken + int(counts.get(droppable, 0)))
    return math.inf
