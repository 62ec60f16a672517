"""More workers of a command with many runs on this machine, one per device: `--arms-parallel`."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from vitcli.data import loader
from vitcli.distributed import launch
from vitcli.output.progress import Progress
from vitcli.recipe import Recipe, to_toml
from vitcli.training.setup import RunOptions

WORKER = "VIT_WORKER"  # marks a process that was started here
SHOWN_LINES = 3


@contextmanager
def beside(
    command: str, recipe: Recipe, options: RunOptions, out: Path, progress: Progress
) -> Iterator[None]:
    """Start the other workers of this command, one for each further device; they end with it.

    One that fails is reported, and another one takes over its run.
    """
    if options.arms_parallel < 2 or WORKER in os.environ:
        yield
        return
    progress.note(f"{options.arms_parallel} workers, one per device")
    with tempfile.TemporaryDirectory(prefix="vit-") as folder:
        start = partial(_start, command, recipe, options, out, folder=Path(folder))
        others = [start(number) for number in range(1, options.arms_parallel)]
        torch.set_num_threads(min(torch.get_num_threads(), _threads(options)))
        try:
            yield
            for process in others:
                process.wait()
        finally:
            for process in others:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
            for number, process in enumerate(others, start=1):
                if process.wait() not in (0, 128 + signal.SIGTERM):
                    lines = (Path(folder) / f"{number}.err").read_text(errors="replace").strip().splitlines()
                    said = " | ".join(line.strip() for line in lines[-SHOWN_LINES:]) or "nothing"
                    progress.note(f"note: worker {number + 1} ended with code {process.returncode}: {said}")


def _start(
    command: str, recipe: Recipe, options: RunOptions, out: Path, number: int, *, folder: Path
) -> subprocess.Popen:
    """Start a worker on a device, with what it prints in files of a temporary folder."""
    file = folder / f"{number}.toml"
    file.write_text(to_toml(recipe))
    words = [*launch.program(), command, "--recipe", file, "--out", out, "--quiet", "--arms-parallel"]
    words += ["--num-processes", options.arms_parallel]
    words += ["--per-device-batch", options.per_device_batch] if options.per_device_batch else []
    words += ["--workers", options.workers or loader.default_threads(_threads(options))]
    words += ["--exact"] if options.exact else []
    words += ["--track", options.track] if options.track else []
    words += [] if options.compile is None else ["--compile" if options.compile else "--no-compile"]
    # It saves and ends if this process is killed.
    env = {**os.environ, launch.LAUNCHED: str(os.getpid()), WORKER: str(number)}
    env["OMP_NUM_THREADS"] = str(_threads(options))
    if torch.cuda.is_available():
        env["CUDA_VISIBLE_DEVICES"] = _device(number)
    with open(folder / f"{number}.out", "wb") as stdout, open(folder / f"{number}.err", "wb") as stderr:
        return subprocess.Popen(
            list(map(str, words)), stdout=stdout, stderr=stderr, env=env, start_new_session=True
        )


def _threads(options: RunOptions) -> int:
    return max(1, launch.cpu_count() // options.arms_parallel)


def _device(number: int) -> str:
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return visible[number] if number < len(visible) else str(number)
