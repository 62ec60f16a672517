"""`--device`: what a process and the processes it launches compute on, settled before torch is loaded.

Loads no torch by itself.
"""

import os
import re
from collections.abc import Sequence

from vitcli.errors import MachineError, VitError

SELECTED = "VIT_SELECTED_DEVICE"  # --device as given, for the processes that we launch
VISIBLE = "CUDA_VISIBLE_DEVICES"
FORMS = "cpu, cuda, cuda:1 (or cuda:0,2), mps"


def select(device: str | None, num_processes: int | None = None) -> None:
    """Restrict this process, and those it launches, to the devices of `--device`; None leaves all to it.

    Raises:
        VitError: the name is no device, or there are fewer of them than processes.
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


def is_cpu() -> bool:
    """Return whether --device asks for the CPU."""
    return os.environ.get(SELECTED, "").lower() == "cpu"


def check_here(available: Sequence[str], processes_here: int) -> None:
    """Refuse a device that this machine lacks, and more processes than it has GPUs.

    Args:
        available: accelerators as torch sees them now, such as ["cuda:0", "cuda:1"], or ["mps"].
        processes_here: processes of the run on this machine.
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
