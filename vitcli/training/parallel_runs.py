"""Runs side by side, one on each device: each is the ordinary command in a process of its own.

No command of its own.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from vitcli import recipe
from vitcli.distributed import launch
from vitcli.errors import NotFiniteError, ProcessError, Stopped
from vitcli.recipe import Recipe
from vitcli.training.setup import RunOptions

POLL_S = 0.2
SHOWN_LINES = 3


def run_all(command: str, jobs: list[tuple[Path, Recipe]], options: RunOptions) -> list[Path]:
    """Finish every run, `options.arms_parallel` of them at a time; the folders of those that diverged.

    Raises:
        ProcessError: a run ended with an error; the others have been stopped, each with a checkpoint.
        Stopped: this process was asked to stop, and so were the runs.
    """
    waiting, running, diverged = list(reversed(jobs)), {}, []
    asked: list[int] = []
    before = {number: signal.signal(number, lambda number, _: asked.append(number))
              for number in (signal.SIGINT, signal.SIGTERM)}  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="vit-") as place:
        try:
            while (waiting or running) and not asked:
                free = [slot for slot in range(options.arms_parallel) if slot not in running]
                for slot in free[: len(waiting)]:
                    path, one = waiting.pop()
                    running[slot] = (path, _start(command, path, one, options, slot, Path(place)))
                for slot, (path, process) in list(running.items()):
                    if process.poll() is not None:
                        del running[slot]
                        if process.returncode == NotFiniteError.exit_code:  # for the others to decide
                            diverged.append(path)
                        else:
                            _check(path, process.returncode, Path(place))
                time.sleep(POLL_S)
        finally:
            for _, process in running.values():
                process.send_signal(signal.SIGTERM)
            for _, process in running.values():
                process.wait()
            for number, handler in before.items():
                signal.signal(number, handler)
    if asked:
        raise Stopped(asked[0], "stopped", out=jobs[0][0])
    return diverged


def _start(
    command: str, path: Path, one: Recipe, options: RunOptions, slot: int, place: Path
) -> subprocess.Popen:
    file = place / f"{path.name}.toml"
    file.write_text(recipe.to_toml(one))
    words = [sys.executable, "-m", "vitcli", command, "--recipe", file, "--out", path]
    words += ["--per-device-batch", options.per_device_batch] if options.per_device_batch else []
    words += ["--workers", options.workers] if options.workers else []
    words += ["--track", options.track] if options.track else []
    words += [f"--{name}" for name in ("exact", "compile") if getattr(options, name)]
    env = {**os.environ, launch.LAUNCHED: str(os.getpid())}  # it ends, saving, if this process is killed
    if torch.cuda.is_available():
        env["CUDA_VISIBLE_DEVICES"] = _device(slot)
    else:
        env["OMP_NUM_THREADS"] = str(max(1, launch.cpu_count() // options.arms_parallel))
    with open(place / f"{path.name}.out", "wb") as out, open(place / f"{path.name}.err", "wb") as err:
        return subprocess.Popen(
            list(map(str, words)), stdout=out, stderr=err, env=env, start_new_session=True
        )


def _device(slot: int) -> str:
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return named[slot] if slot < len(named) else str(slot)


def _check(path: Path, code: int, place: Path) -> None:
    if code == 0:
        return
    told = (place / f"{path.name}.err").read_text(errors="replace").strip().splitlines()
    said = " | ".join(line.strip() for line in told[-SHOWN_LINES:]) or "nothing"
    raise ProcessError(
        f"the run {path.name} ended with exit code {code}",
        where=f"{path}; it said: {said}",
        fix="mend what it says; the same command goes on with the runs that are left",
    )
