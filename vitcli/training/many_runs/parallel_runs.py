"""Runs in parallel, one per device, each of them the ordinary command in its own process."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from vitcli.data import loader
from vitcli.distributed import launch
from vitcli.errors import NotFiniteError, ProcessError, Stopped
from vitcli.evaluation.setup import Start
from vitcli.recipe import Recipe, to_toml
from vitcli.training.setup import RunOptions

POLL_S = 0.2
SHOWN_LINES = 3
STARTS = "VIT_SWEEP_STARTS"  # for the processes of a sweep: the checkpoints that its runs start from


def run_parallel(
    command: str,
    jobs: list[tuple[Path, Recipe]],
    options: RunOptions,
    *,
    starts: Sequence[Start],
    folder: Path,
) -> list[Path]:
    """Finish every run, `options.arms_parallel` at a time, and return the folders of those that diverged.

    Args:
        jobs: run folder and recipe of each run.
        starts: checkpoints that any of the runs starts from.
        folder: of the sweep, whose command resumes it.

    Raises:
        ProcessError: a run ended with an error; the others were stopped, each with a checkpoint.
        Stopped: this process was asked to stop, and so were the runs.
    """
    waiting, running, diverged = list(reversed(jobs)), {}, []
    signals: list[int] = []
    handlers = {number: signal.signal(number, lambda number, _: signals.append(number))
                for number in (signal.SIGINT, signal.SIGTERM)}  # fmt: skip
    env = {**os.environ, STARTS: json.dumps(starts)}
    with tempfile.TemporaryDirectory(prefix="vit-") as temporary:
        try:
            while (waiting or running) and not signals:
                # Start runs on the free devices.
                free = [slot for slot in range(options.arms_parallel) if slot not in running]
                for slot in free[: len(waiting)]:
                    path, recipe = waiting.pop()
                    process = _start(command, path, recipe, options, slot, Path(temporary), env)
                    running[slot] = (path, process)

                # Collect the runs that have ended; the sweep continues without one that diverged.
                for slot, (path, process) in list(running.items()):
                    if process.poll() is not None:
                        del running[slot]
                        if process.returncode == NotFiniteError.exit_code:
                            diverged.append(path)
                        else:
                            _check(path, process.returncode, Path(temporary))
                time.sleep(POLL_S)
        finally:
            for _, process in running.values():
                process.send_signal(signal.SIGTERM)
            for _, process in running.values():
                process.wait()
            for number, handler in handlers.items():
                signal.signal(number, handler)
    if signals:
        raise Stopped(signals[0], "stopped", out=folder)
    return diverged


def _start(
    command: str,
    path: Path,
    recipe: Recipe,
    options: RunOptions,
    slot: int,
    temporary: Path,
    env: dict[str, str],
) -> subprocess.Popen:
    """Start a run on device number `slot`, with its output in files of the temporary folder."""
    file = temporary / f"{path.name}.toml"
    file.write_text(to_toml(recipe))
    words = [*launch.program(), command, "--recipe", file, "--out", path]
    words += ["--per-device-batch", options.per_device_batch] if options.per_device_batch else []
    threads = max(1, launch.cpu_count() // options.arms_parallel)
    words += ["--workers", options.workers or loader.default_threads(threads)]
    words += ["--track", options.track] if options.track else []
    words += ["--exact"] if options.exact else []
    words += [] if options.compile is None else ["--compile" if options.compile else "--no-compile"]
    # It saves and ends if this process is killed.
    env = {**env, launch.LAUNCHED: str(os.getpid()), "OMP_NUM_THREADS": str(threads)}
    if torch.cuda.is_available():
        env["CUDA_VISIBLE_DEVICES"] = _device(slot)
    with open(temporary / f"{path.name}.out", "wb") as out, open(temporary / f"{path.name}.err", "wb") as err:
        return subprocess.Popen(
            list(map(str, words)), stdout=out, stderr=err, env=env, start_new_session=True
        )


def starts_of_sweep() -> tuple[Start, ...]:
    """Return the checkpoints of the sweep that started this process; () if none did."""
    starts = os.environ.get(STARTS)
    return tuple((ckpt, name) for ckpt, name in json.loads(starts)) if starts else ()


def _device(slot: int) -> str:
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return visible[slot] if slot < len(visible) else str(slot)


def _check(path: Path, code: int, temporary: Path) -> None:
    """Raise an error with the last lines of a run's output unless it succeeded."""
    if code == 0:
        return
    lines = (temporary / f"{path.name}.err").read_text(errors="replace").strip().splitlines()
    output = " | ".join(line.strip() for line in lines[-SHOWN_LINES:]) or "nothing"
    raise ProcessError(
        f"the run {path.name} ended with exit code {code}",
        where=f"{path}; its output: {output}",
        fix="correct what it reports; the same command continues with the remaining runs",
    )
