"""`vit doctor`: what is usable on this machine, and a proof that runs resume exactly on it."""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from vitcli import recipe as recipes
from vitcli.distributed.runtime import resolve_precision
from vitcli.errors import CheckFailed, VitError
from vitcli.output import run_folder
from vitcli.output.progress import Progress
from vitcli.output.text import pairs

RESULTS = ("model.safetensors", run_folder.METRICS)  # what a resume must not change


def check_environment() -> dict[str, Any]:
    """Versions, devices and memory that a run would find."""
    about = run_folder.environment([])
    about.pop("command_line")
    precision = resolve_precision("auto")
    disk = shutil.disk_usage(".")
    return {
        "command": "doctor",
        **about,
        "precision": precision,
        "free_disk_gib": disk.free / 2**30,
        "vit_data": os.environ.get("VIT_DATA"),
    }


def environment_as_text(result: dict[str, Any]) -> str:
    """For a person."""
    gpus = ", ".join(result["gpus"]) or "none: runs go on the CPU"
    libraries = ", ".join(f"{name} {result[name]}" for name in run_folder.LIBRARIES)
    return pairs(
        [
            ("vit", f"{result['vit']} on Python {result['python']}, {result['platform']}"),
            ("libraries", libraries),
            ("GPUs", gpus),
            ("CPU", f"{result['cpu_count']} cores, {result['torch_threads']} threads a process"),
            ("precision", f"auto means {result['precision']} here"),
            ("disk", f"{result['free_disk_gib']:.1f} GiB free in this folder"),
            ("VIT_DATA", result["vit_data"] or "not set: aliases are looked for on the Hub"),
            ("next", "vit doctor resume, to see that a killed run goes on bit for bit here"),
        ]
    )


def prove_resume(
    recipe_name: str,
    overrides: Sequence[str],
    shorthands: dict[str, Any],
    *,
    kills: int,
    options: Sequence[str],
    quiet: bool,
) -> dict[str, Any]:
    """Run a recipe twice, once unbroken and once killed at random steps; compare weights and metrics.

    Args:
        kills: SIGKILLs at random instants after random steps.
        options: of the command line, for both runs, such as --num-processes 2.

    Raises:
        CheckFailed: the results differ; both run folders are kept and named.
        VitError: the recipe's own mistakes, or a run that ends by itself with an error.
    """
    recipe = recipes.load(recipe_name, overrides, shorthands)
    steps = recipe.schedule.steps
    if steps is None or steps < 2:
        raise VitError(
            "a proof needs a run of a few steps", where="--steps", fix="--steps 30, or more for slower kills"
        )
    command = "finetune" if recipe.model.ckpt else "pretrain"
    progress, folder = Progress(quiet=quiet), Path(tempfile.mkdtemp(prefix="vit-doctor-"))
    (folder / "proof.toml").write_text(recipes.to_toml(recipe))
    words = [command, "--recipe", str(folder / "proof.toml"), *options]
    words += ["--set", "train.log_every=1", "--set", f"train.save_every={max(1, steps // 10)}", "--quiet"]
    progress.note(f"unbroken run of {steps} steps")
    _to_the_end(words, folder / "unbroken")
    killed_at = _with_kills(words, folder / "killed", steps=steps, kills=kills, progress=progress)
    hashes = {name: [_sha256(folder / run / name) for run in ("unbroken", "killed")] for name in RESULTS}
    differing = [name for name, (one, other) in hashes.items() if one != other]
    if differing:
        raise CheckFailed(
            f"a killed run ended with other bits: {', '.join(differing)}",
            where=str(folder),
            fix="please report it with both run folders; until then do not trust resumes on this machine",
        )
    shutil.rmtree(folder)
    return {
        "command": "doctor resume",
        "recipe": recipe_name,
        "steps": steps,
        "killed_at": killed_at,
        "same_bits": True,
        "sha256": {name: one for name, (one, _) in hashes.items()},
    }


def proof_as_text(result: dict[str, Any]) -> str:
    """For a person."""
    at = ", ".join(map(str, result["killed_at"]))
    return pairs(
        [
            ("verdict", "a killed run goes on bit for bit on this machine"),
            ("killed", f"{len(result['killed_at'])} times, after steps {at} of {result['steps']}"),
            *(
                (name.partition(".")[0], f"sha256 {code[:16]}, twice")
                for name, code in result["sha256"].items()
            ),
        ]
    )


def _with_kills(words: list[str], out: Path, *, steps: int, kills: int, progress: Progress) -> list[int]:
    """Run to the end in spite of so many kills; the steps that had been logged at each."""
    draws, killed_at = random.Random(0), []
    for number in range(kills):
        # By progress, then a moment more, so that it is not always between two steps.
        logged = _logged(out)
        wanted = draws.randint(logged + 1, max(logged + 1, logged + (steps - logged) // (kills - number + 1)))
        process = subprocess.Popen(_command(words, out), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while process.poll() is None and _logged(out) < wanted:
            time.sleep(0.005)
        time.sleep(draws.uniform(0, 0.05))
        if process.poll() is None:
            _kill_all(process)
        told = process.communicate()[1].decode()
        if process.returncode != -signal.SIGKILL or (out / run_folder.SUMMARY).exists():
            _check(max(process.returncode, 0), told)
            raise CheckFailed(
                f"the run had ended before kill {number + 1} of {kills}, so nothing is proved",
                where=f"{steps} steps, {out}",
                fix="give it more --steps, or fewer --kills",
            )
        killed_at.append(_logged(out))
        progress.note(f"killed after step {killed_at[-1]}")
    _to_the_end(words, out)
    return killed_at


def _kill_all(process: subprocess.Popen) -> None:
    """SIGKILL to the run's own processes first, so that none can say goodbye to its launcher."""
    for child in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.kill()
    process.kill()


def _to_the_end(words: list[str], out: Path) -> None:
    ended = subprocess.run(_command(words, out), capture_output=True, text=True)
    _check(ended.returncode, ended.stderr)


def _command(words: list[str], out: Path) -> list[str]:
    return [sys.executable, "-m", "vitcli", *words, "--out", str(out)]


def _check(returncode: int, told: str) -> None:
    if returncode:
        last = told.strip().splitlines()[-3:] or [f"exit code {returncode}"]
        raise VitError(
            f"the run ended with exit code {returncode}: {last[0].removeprefix('error: ')}",
            where="vit doctor resume",
            fix=last[-1].strip().removeprefix("fix:").strip(),
        )


def _logged(out: Path) -> int:
    """Steps in metrics.jsonl, which are kept up to the last save when a run goes on."""
    try:
        return (out / run_folder.METRICS).read_bytes().count(b'"lr": ')
    except OSError:
        return 0


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
