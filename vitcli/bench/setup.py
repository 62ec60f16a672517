"""What the three benchmarks share: options, the machine, and the notes before they begin."""

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitcli import __version__
from vitcli.distributed import launch
from vitcli.distributed.runtime import Runtime
from vitcli.errors import VitError
from vitcli.output.progress import Progress
from vitcli.output.run_folder import library_versions
from vitcli.output.text import count_of, duration

TIMM = "timm"


@dataclass(frozen=True)
class BenchOptions:
    """Options of a benchmark besides its recipe.

    Attributes:
        steps: batches of a lap; None for as many as take about two seconds.
        repeats: laps of each side.
        compare: "timm", which then does the same work in turn; None for no comparison.
        workers: loader threads, and worker processes of the other side; None for one per core.
        per_device_batch: images per forward pass of a training step, as in training.
        cached: train on images that were decoded before, as from the second epoch on.
        out: folder to write; None writes nothing.
    """

    steps: int | None = None
    repeats: int = 3
    compare: str | None = None
    workers: int | None = None
    per_device_batch: int | str | None = None
    compile: bool = False
    cached: bool = False
    out: Path | None = None
    overwrite: bool = False
    quiet: bool = False


def machine(runtime: Runtime) -> dict[str, Any]:
    """Return what the numbers belong to."""
    device = runtime.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()
    return {
        "device": device.type,
        "device_name": name,
        "cpu_count": launch.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "vit": __version__,
        **library_versions(),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def check_one_process(runtime: Runtime) -> None:
    """Refuse to measure several processes: what one device does is the question."""
    if runtime.world_size > 1:
        raise VitError(
            "vit bench measures one process",
            where=f"{runtime.world_size} processes were started",
            fix="call it without a launcher; vit pretrain --dry-run --measure measures a run of several",
        )


def note_duration(progress: Progress, what: str, lap_s: float, options: BenchOptions, num_sides: int) -> None:
    """Say how long the laps will take, about."""
    sides = f" of {count_of(num_sides, 'side')}" if num_sides > 1 else ""
    laps = f"{count_of(options.repeats, 'lap')}{sides}"
    progress.note(f"{what}: {laps}, about {duration(lap_s * options.repeats * num_sides)}")
