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
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from vitcli.errors import EXIT_CODES, MachineError, ProcessError, VitError, reason_of

# In errors of collectives whose peer is gone: gloo's, and those of NCCL that are not another fault of it.
LOST_PEER = (
    "Connection (closed|reset) by (remote )?peer|Broken pipe|Timed out waiting"
    "|ncclRemoteError|remote process exit|NCCL communicator was aborted|collective operation timeout"
    "|wait timeout"
)
FAILED_GPU = (
    "CUDA error: .*(uncorrectable|hardware|illegal memory access|launch failure|timed out and was terminated"
    "|busy or unavailable|no CUDA-capable device|unknown error)"
)
LAUNCHED = "VIT_LAUNCHED"  # pid of our launcher, for the processes it started: it prints their errors
BEGAN_AT = "VIT_BEGAN_AT"  # when our launcher began, for the same
PR_SET_PDEATHSIG = 1  # linux/prctl.h
SAVING_TIME_S = 600  # for processes that are asked to stop: to finish the step and save
# Where there is such a signal: SLURM sends it before the time limit
TIME_LIMIT = getattr(signal, "SIGUSR1", signal.SIGTERM)
FORWARDED = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"  # torch's default, and SLURM's warning of the time limit
# A process that ends so much later than another one lost its connection had stalled: a launcher ended it.
LATE_S = 5.0
ASKED_TO_STOP = (130, 143, -signal.SIGTERM, -signal.SIGINT)


def program() -> list[str]:
    """Return the words that start `vit` in another process.

    Python does not look for modules in the working folder (-P), as it does for `-m vitcli`: a typer.py beside
    downloaded data would be run.
    """
    return [sys.executable, "-P", str(Path(__file__).parents[1] / "__main__.py")]


def peak_memory_of(process: int | str) -> int | None:
    """Return the largest memory of a process ("self" or a number) so far, in bytes; None outside Linux."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return None
    peak_kib = re.search(r"^VmHWM:\s*(\d+)", status, re.MULTILINE)
    return 1024 * int(peak_kib[1]) if peak_kib else None


def cpu_count() -> int:
    """Return the number of cores that this program may use."""
    return len(usable_cores())


def usable_cores() -> frozenset[int]:
    """Return the cores that this program may use, by number; on macOS, which has no affinity, all of them."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def part_of_cores(own: frozenset[int], here: list[frozenset[int]]) -> int:
    """Return how many cores a process has if those that share some with it divide them.

    SLURM gives each task cores of its own, torchrun gives all processes the same.

    Args:
        own: that this process may use.
        here: that each process of this machine may use, this one included.
    """
    sharing = [cores for cores in here if cores & own]
    return max(1, min(len(own), len(frozenset().union(*sharing)) // len(sharing)))


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
def handling(handlers: Mapping[int, Any]) -> Iterator[None]:
    """Handle signals by these handlers inside the block; Python lets the main thread alone do so."""
    is_main = threading.current_thread() is threading.main_thread()
    with ExitStack() as restored:
        for number, handler in handlers.items() if is_main else ():
            restored.callback(signal.signal, number, signal.signal(number, handler))
        yield


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
        return 143 if stopped.sigval == TIME_LIMIT else 128 + stopped.sigval
    except ChildFailedError as failed:
        return first_failure(failed.failures, num_processes)
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
    report = {"exit_code": error.exit_code, "at": time.time(), "is_printed": is_printed} | error.as_dict()
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
    if re.search(FAILED_GPU, text):
        return MachineError(
            "the GPU has failed",
            where=f"process {global_rank()}: {reason_of(error)[:160]}",
            fix="give the same command again, which resumes a run from its last checkpoint; "
            "dmesg and nvidia-smi -q show faults of a GPU",
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


def first_failure(failures: dict[int, Any], num_processes: int) -> int:
    """Raise the error of the process that failed first; the others only lost their connection to it.

    Args:
        failures: by rank, as torch's launcher collects them; of a process that ended with exit code 0, none.

    Returns:
        The exit code of the processes if they have stopped because they were asked to, or have printed why.
    """
    # An error that a process has reported is the cause, a lost connection is not.
    reports = {rank: failure.error_file_data.get("vit") for rank, failure in failures.items()
               if failure.error_file_data}  # fmt: skip
    reports = {rank: report for rank, report in reports.items() if report}
    causes = [report for report in reports.values() if report["exit_code"] != ProcessError.exit_code]
    if causes:
        first = min(causes, key=lambda report: report["at"])
        # Of an error that all have, the report of the lowest rank: the first process knows what is saved.
        same = [reports[rank] for rank in sorted(reports) if reports[rank]["message"] == first["message"]]
        if same[0].get("is_printed"):
            return same[0]["exit_code"]
        raise _reported(same[0])

    # A process that was killed, or that ended by itself, reports nothing.
    lost = sorted(reports.values(), key=lambda report: report["at"])
    late_at = lost[0]["at"] + LATE_S if lost else float("inf")
    silent: dict[int, Any] = {
        rank: failures.get(rank) for rank in range(num_processes) if rank not in reports
    }
    codes = {rank: end.exitcode if end else 0 for rank, end in silent.items()}
    asked = [rank for rank, code in codes.items() if code in ASKED_TO_STOP]
    killed = [r for r, code in codes.items() if code < 0 and r not in asked and silent[r].timestamp < late_at]
    if killed:
        raise _killed(killed[0], failures[killed[0]])
    least = 0 if lost else 1  # a process may be at its end when the others are asked to stop
    ended = {rank: code for rank, code in codes.items() if code >= least and rank not in asked}
    if ended:
        rank = max(ended, key=lambda rank: ended[rank])
        raise ProcessError(
            f"process {rank} of the run ended too early, with exit code {ended[rank]}",
            where=lost[0]["where"] if lost else f"process {rank}, without a message",
            fix="run the same command again to resume from the last checkpoint",
        )

    # One that stalls does not report a lost connection with the others.
    stalled = [*silent, *(rank for rank, report in reports.items() if report["at"] > late_at)]
    if lost and stalled:
        raise ProcessError(
            f"process {' or '.join(map(str, sorted(stalled)))} of the run stalled",
            where=lost[0]["where"],
            fix="run the same command again to resume from the last checkpoint; train.stall_minutes is how "
            "long the others wait",
        )
    if lost:
        raise _reported(lost[0])
    return 130 if 130 in codes.values() else 143


def _reported(report: dict[str, Any]) -> VitError:
    """Return the error that a process has reported."""
    kind = {code: kind for kind, code in EXIT_CODES.items()}.get(report["exit_code"], VitError)
    return kind(report["message"], where=report["where"], fix=report["fix"])


def _killed(rank: int, failure: Any) -> ProcessError:
    """Return the error of a process that a signal has ended."""
    number = signal.Signals(-failure.exitcode)
    advice = "; if it ran out of memory, lower --per-device-batch"
    if number == signal.SIGABRT:
        advice = "; torch aborts a process whose collective of GPUs does not end, see its messages above"
    return ProcessError(
        f"process {rank} of the run was killed by {number.name}",
        where=f"pid {failure.pid} on this machine",
        fix=f"run the same command again to resume from the last checkpoint{advice}",
    )
