"""`--device`: what a process and the processes it launches compute on, settled before torch is loaded.

Loads no torch by itself.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from vitcli.errors import MachineError, VitError

SELECTED = "VIT_SELECTED_DEVICE"  # --device as given, for the processes that we launch
VISIBLE = "CUDA_VISIBLE_DEVICES"
DEVICE_FILES = Path("/dev")
COMPILERS = ("g++", "c++", "clang++", "clang", "gcc", "cc")
FORMS = "cpu, cuda, cuda:1 (or cuda:0,2), mps"


def select(device: str | None, num_processes: int | None = None) -> None:
    """Restrict this process, and those it launches, to the devices of `--device`; None leaves all to it.

    Raises:
        VitError: the name is not a device, or there are fewer of them than processes.
    """
    if device is None or os.environ.get(SELECTED) == device:  # a process that we launched
        return
    form = re.fullmatch(r"(cpu|mps|xpu|cuda)(?::(\d+(?:,\d+)*))?", device.lower())
    if form is None or (form[2] and form[1] != "cuda"):
        is_number = re.fullmatch(r"\d+(,\d+)*", device)
        meant = f"cuda:{device}" if is_number else "cuda" if device.lower() in ("gpu", "nvidia") else ""
        hint = f", did you mean {meant!r}?" if meant else ""
        raise VitError(f"{device!r} is not a device{hint}", where="--device", fix=f"one of {FORMS}")
    if form[1] in ("cpu", "mps"):
        os.environ[VISIBLE] = ""
    elif form[2]:
        numbers = [int(number) for number in form[2].split(",")]
        _check_each_process_has_one(num_processes, len(numbers), f"--device {device}")
        os.environ[VISIBLE] = ",".join(_visible(number) for number in numbers)
    os.environ[SELECTED] = device


def check_gpus_suffice(num_processes: int) -> None:
    """Refuse more processes than GPUs before any is started; `check_here` knows it only with torch loaded.

    Raises:
        MachineError: there are GPUs, and fewer than processes.
    """
    gpus = [] if is_hidden() else nvidia_gpus()
    visible = os.environ.get(VISIBLE)
    num_gpus = len(visible.split(",")) if visible else len(gpus)
    if gpus:
        _check_each_process_has_one(num_processes, num_gpus, f"--num-processes {num_processes}")


def is_cpu() -> bool:
    """Return whether --device asks for the CPU."""
    return os.environ.get(SELECTED, "").lower() == "cpu"


def has_compiler() -> bool:
    """Return whether there is a C++ compiler, which torch.compile needs."""
    return any(map(shutil.which, filter(None, (os.environ.get("CXX"), *COMPILERS))))


def check_here(available: Sequence[str], processes_here: int) -> None:
    """Refuse a device that this machine lacks, and more processes than it has GPUs.

    Args:
        available: accelerators as torch sees them now, such as ["cuda:0", "cuda:1"], or ["mps"].
        processes_here: processes of the run that see these accelerators.
    """
    asked = os.environ.get(SELECTED, "")
    kind = asked.lower().partition(":")[0]
    is_missing = kind not in ("", "cpu") and not any(name.startswith(kind) for name in available)
    num_visible = len(os.environ.get(VISIBLE, "").split(","))  # CUDA hides what does not exist
    if is_missing or (":" in asked and len(available) < num_visible):
        raise MachineError(
            f"there is no {asked} here",
            where="--device",
            fix=f"use {' or '.join([*available, 'cpu'])}; vit doctor says more",
        )
    if available and kind != "cpu" and available[0].startswith("cuda"):
        _check_each_process_has_one(processes_here, len(available), f"--num-processes {processes_here}")


def check_no_gpu_is_left_out(problem: Callable[[], str]) -> None:
    """Refuse to compute on the CPU of a machine whose NVIDIA GPUs torch cannot use, unless asked to."""
    gpus = [] if is_hidden() else nvidia_gpus()
    if gpus:
        count = "an NVIDIA GPU" if len(gpus) == 1 else f"{len(gpus)} NVIDIA GPUs"
        raise MachineError(
            f"this machine has {count} that torch cannot use",
            where=f"{gpus[0]}: {problem()}",
            fix="install a driver and a torch that fit together; --device cpu computes on the CPU",
        )


def is_hidden() -> bool:
    """Return whether the GPUs of this machine are not to be used, by --device or by the environment."""
    visible = os.environ.get(VISIBLE)
    return is_cpu() or (visible is not None and visible.split(",")[0] in ("", "-1", "NoDevFiles"))


@cache
def nvidia_gpus() -> list[str]:
    """Return the NVIDIA GPUs that this process may open, whether or not torch can use them."""
    files = sorted(DEVICE_FILES.glob("nvidia[0-9]*"))
    if files:
        return [str(file) for file in files if _may_open(file)]
    try:  # Windows' Linux has no such files
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line for line in listed.splitlines() if line.startswith("GPU ")]


def _may_open(file: Path) -> bool:
    """Return whether the scheduler has left a device to this process: SLURM's control groups deny others."""
    with suppress(OSError):
        os.close(os.open(file, os.O_RDWR))
        return True
    return False


def refuse_one_gpu_twice(gpus: Sequence[tuple[str, str, str]]) -> None:
    """Refuse two processes on one GPU, which NCCL cannot connect.

    Args:
        gpus: (machine, unique id, name) of each process's GPU, by rank.
    """
    ranks: dict[str, int] = {}
    for rank, (machine, unique_id, name) in enumerate(gpus):
        if unique_id in ranks:
            raise MachineError(
                f"processes {ranks[unique_id]} and {rank} of the run have the same GPU",
                where=f"{name}, {unique_id}, on {machine}",
                fix="start one process per GPU, and let each see its own (SLURM: --gpus-per-task=1) or all",
            )
        ranks[unique_id] = rank


def _check_each_process_has_one(num_processes: int | None, num_devices: int, where: str) -> None:
    if (num_processes or 1) > num_devices:
        gpus = "one GPU is" if num_devices == 1 else f"{num_devices} GPUs are"
        raise MachineError(
            f"{num_processes} processes need a GPU each, and {gpus} to be used",
            where=where,
            fix=f"--num-processes {num_devices}, more GPUs such as --device cuda:0,1, or --device cpu",
        )


def _visible(number: int) -> str:
    """Return the name of a GPU among those that the environment leaves to this process."""
    names = os.environ.get(VISIBLE)
    if names is None:
        return str(number)
    listed = [name for name in names.split(",") if name]
    if number >= len(listed):
        raise MachineError(
            f"there is no cuda:{number} among the GPUs that {VISIBLE}={names} leaves",
            where="--device",
            fix="unset the variable, or count from cuda:0 among those it names",
        )
    return listed[number]
