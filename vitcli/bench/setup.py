"""What the three benchmarks share: options, the machine, the laps of their sides and what these say."""

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch

from vitcli import __version__
from vitcli.bench import limits
from vitcli.bench.measure import Lap, rates, ratio
from vitcli.data import loader
from vitcli.data.loader import Batch
from vitcli.data.split import Split
from vitcli.data.transforms import preprocessing_of
from vitcli.distributed import launch
from vitcli.distributed.runtime import Runtime, peak_memory, reset_peaks
from vitcli.errors import VitError
from vitcli.output.progress import Progress
from vitcli.output.run_folder import library_versions
from vitcli.output.text import count_of, duration
from vitcli.recipe.schema import Data


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

    @property
    def num_workers(self) -> int:
        return self.workers or loader.default_threads()


@dataclass(eq=False)
class Benchmark:
    """Laps of several sides that do the same work in turn, on one device.

    Attributes:
        laps: of each side, in the order of time.
        peaks: largest memory of the first lap, before another side is built.
        best_limit: highest rate of matrix products so far, in operations per second.
    """

    runtime: Runtime
    options: BenchOptions
    laps: dict[str, list[Lap]] = field(default_factory=dict)
    peaks: dict[str, float | None] = field(default_factory=dict)
    best_limit: float = 0.0

    def announce(self, progress: Progress, what: str, lap_s: float, num_sides: int) -> None:
        """Note how long the laps will take, about, and begin to watch the memory."""
        sides = f" of {count_of(num_sides, 'side')}" if num_sides > 1 else ""
        laps = f"{count_of(self.options.repeats, 'lap')}{sides}"
        progress.note(f"{what}: {laps}, about {duration(lap_s * self.options.repeats * num_sides)}")
        reset_peaks()

    def add(self, side: str, lap: Lap) -> None:
        """Count a lap of a side."""
        self.peaks = self.peaks or peak_memory()
        self.laps.setdefault(side, []).append(lap)

    def take_turns(self, sides: dict[str, Callable[[], Lap]]) -> None:
        """Make one lap of each side in turn, as often as the options say."""
        for _ in range(self.options.repeats):
            for side, lap in sides.items():
                self.add(side, lap())

    def limit(self, shapes: limits.Shapes) -> float:
        """Measure matrix products, and return the highest rate so far, in operations per second."""
        rate = limits.matmul_flops_per_s(shapes, self.runtime.device, self.runtime.precision)
        self.best_limit = max(self.best_limit, rate)
        return self.best_limit

    def peer(self, work: str, *, ours: str = "ours") -> dict[str, Any] | None:
        """Return timm's rates, and how many times these our side has; None without a comparison.

        Args:
            work: which of timm's loops was measured, a key of `timm_peer.DIFFERENCES`.
        """
        if not self.options.compare:
            return None
        from vitcli.bench import timm_peer

        return {
            "peer": timm_peer.version(),
            **rates(self.laps["timm"]),
            **ratio(self.laps[ours], self.laps["timm"]),
            "differences": timm_peer.DIFFERENCES[work],
        }


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


def endless_eval_batches(split: Split, data: Data, batch_size: int, num_threads: int) -> Iterator[Batch]:
    """Yield the batches of our loader for evaluation, pass after pass; without end."""
    return chain.from_iterable(
        loader.eval_batches(
            split,
            preprocessing_of(data),
            batch_size=batch_size,
            rank=0,
            world_size=1,
            on_bad_image=data.on_bad_image,
            num_threads=num_threads,
        )
        for _ in count()
    )


def check_one_process(runtime: Runtime) -> None:
    """Refuse to measure several processes: what one device does is the question."""
    if runtime.world_size > 1:
        raise VitError(
            "vit bench measures one process",
            where=f"{runtime.world_size} processes were started",
            fix="call it without a launcher; vit pretrain --dry-run --measure measures a run of several",
        )
