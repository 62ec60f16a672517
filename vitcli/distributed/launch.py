"""Starting the processes of a run on this machine, and hearing from them how they ended.

One process is the default. `--num-processes N` hands this very command line to torch's elastic launcher;
torchrun, `accelerate launch` and srun start the processes themselves, and nothing else differs.
"""

import ctypes
import json
import logging
import os
import re
import signal
import sys
import time
from pathlib import Path

from vitcli.errors import ProcessError, VitError

LAUNCHED = "VIT_LAUNCHED"  # pid of our own launcher, for the processes it started: it prints their errors
PR_SET_PDEATHSIG = 1  # linux/prctl.h
SAVING_TIME_S = 600  # what processes that are asked to stop have for the step and its checkpoint
FORWARDED = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"  # torch's own, and SLURM's warning of the time limit


def cpu_count() -> int:
    """Cores that this program may use; macOS has no affinity to ask for, there it is all of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def must_launch(num_processes: int) -> bool:
    """Whether this process is to start the run's processes, and not one that a launcher has started.

    Raises:
        VitError: a launcher has started another number of processes than the command line asks for.
    """
    if "RANK" not in os.environ:
        return num_processes > 1
    if int(os.environ["WORLD_SIZE"]) != num_processes:
        raise VitError(
            f"{num_processes} processes are asked for, the launcher has started {os.environ['WORLD_SIZE']}",
            where=f"--num-processes {num_processes}",
            fix="leave the option out under torchrun, accelerate launch and srun",
        )
    return False


def end_with_the_launcher() -> None:
    """Ask Linux to end this process as SIGTERM does, saving first, should our launcher be killed.

    Else it would train on, hold the run folder's lock, and the same command could not go on.
    """
    if LAUNCHED not in os.environ or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(os.environ[LAUNCHED]):  # it was gone before
        sys.exit(143)


def global_rank() -> int:
    """Rank of this process, also before it has joined the others and after."""
    return int(os.environ.get("RANK", 0))


def adopt_slurm() -> None:
    """Let `srun python -m vitcli` work without a wrapper: torch's names for what SLURM says of a job step.

    A shell of salloc knows the tasks of its job but is none, and an sbatch script is task 0 of no step: there
    nothing is started yet.
    """
    said = os.environ
    if "RANK" in said or "SLURM_PROCID" not in said or int(said.get("SLURM_STEP_NUM_TASKS", 1)) <= 1:
        return
    said["RANK"], said["LOCAL_RANK"] = said["SLURM_PROCID"], said["SLURM_LOCALID"]
    said["WORLD_SIZE"] = said["SLURM_STEP_NUM_TASKS"]
    tasks_here = tasks_on_node(said["SLURM_STEP_TASKS_PER_NODE"], int(said["SLURM_NODEID"]))
    said["LOCAL_WORLD_SIZE"] = str(tasks_here)
    said.setdefault("MASTER_ADDR", first_host(said["SLURM_STEP_NODELIST"]))
    said.setdefault("MASTER_PORT", str(20_000 + int(said["SLURM_JOB_ID"]) % 20_000))


def first_host(node_list: str) -> str:
    """The host of task 0: `node01` of SLURM's `node[01-03,7],other`."""
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", node_list).split(",")[0]


def tasks_on_node(tasks_per_node: str, node: int) -> int:
    """Tasks of the step on its node number `node`, from 0: 4, 4 and 3 of SLURM's `4(x2),3`."""
    counts = []
    for entry in tasks_per_node.split(","):
        tasks, _, num_nodes = entry.rstrip(")").partition("(x")
        counts += [int(tasks)] * int(num_nodes or 1)
    return counts[node]


def launch(num_processes: int, arguments: list[str]) -> int:
    """Run this command line in `num_processes` processes on this machine; the exit code of the first to fail.

    Raises:
        VitError: the failing process's own error, or a ProcessError if it could not say one.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.disable(logging.CRITICAL)  # the launcher's own lines; what happened is said in three of ours
    os.environ[LAUNCHED] = str(os.getpid())
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cpu_count() // num_processes)))
    # Issue pytorch#119856: by itself the launcher kills after 30 s. torch 2.11 does not know the variable.
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(SAVING_TIME_S))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_processes,
        run_id=f"vit-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",  # a free port, and nobody outside can join
        local_addr="127.0.0.1",
        max_restarts=0,
        signals_to_handle=FORWARDED,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "vitcli", *arguments)
    except SignalException as stopped:
        return 143 if stopped.sigval == signal.SIGUSR1 else 128 + stopped.sigval
    except ChildFailedError as failed:
        return _first_failure(failed.failures)
    return 0


def _first_failure(failures: dict) -> int:
    """Raise what the process that failed first has said; the others only saw it vanish."""
    told = [failure.error_file_data.get("vit") for failure in failures.values() if failure.error_file_data]
    told = sorted(
        (error for error in told if error), key=lambda error: (error["exit_code"] == 7, error["at"])
    )
    killed = [(rank, failure) for rank, failure in failures.items() if failure.exitcode < 0]
    if told and (told[0]["exit_code"] != 7 or not killed):
        first = told[0]
        kinds = {kind.exit_code: kind for kind in (*VitError.__subclasses__(), VitError)}
        raise kinds.get(first["exit_code"], VitError)(
            first["message"], where=first["where"], fix=first["fix"]
        )
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
    told = dict(
        message=error.message, where=error.where, fix=error.fix, exit_code=error.exit_code, at=time.time()
    )
    extra = {"py_callstack": "", "timestamp": str(int(time.time()))}
    Path(place).write_text(
        json.dumps({"message": {"message": error.message, "extraInfo": extra}, "vit": told})
    )
    return True


def as_process_error(error: Exception) -> ProcessError | None:
    """What a collective raises when another process is gone, as an error of the run; None for any other."""
    text = str(error)
    signs = (
        "Connection closed by peer",
        "Connection reset by peer",
        "Broken pipe",
        "Timed out waiting",
        "NCCL",
    )
    if not isinstance(error, RuntimeError) or not any(sign in text for sign in signs):
        return None
    return ProcessError(
        "another process of the run is gone or has stalled",
        where=f"process {global_rank()}: {text.strip().splitlines()[0][:120]}",
        fix="look at that process's message; the same command goes on from the last checkpoint",
    )


def free_bytes() -> float:
    """Memory that programs may still take without any other losing its own; half of all if nobody tells."""
    try:
        with open("/proc/meminfo") as lines:
            told = {line.split(":")[0]: int(line.split()[1]) for line in lines}
        return told["MemAvailable"] * 1024
    except (OSError, KeyError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2
