"""`vit doctor`: report the environment, and prove that killed runs resume bit for bit on this machine."""

import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch

from vitcli import recipe as recipes
from vitcli.distributed import device as devices
from vitcli.distributed import launch
from vitcli.distributed.runtime import accelerators, cuda_problem, resolve_precision
from vitcli.errors import CheckFailed, VitError
from vitcli.output import run_folder
from vitcli.output.atomic import digest_of_file
from vitcli.output.progress import Progress
from vitcli.output.text import count_of, pairs

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
CORES_PER_GPU = 8  # one decodes some 500 photographs a second, of which a GPU trains thousands
RESULTS = ("model.safetensors", run_folder.METRICS)  # must have the same bytes after a resume


def check_environment() -> dict[str, Any]:
    """Return versions, devices and free disk space of this machine, and what a run would choose here."""
    environment = run_folder.environment([])
    environment.pop("command_line")
    available = accelerators()
    problem = cuda_problem() if not available and not devices.is_hidden() and devices.nvidia_gpus() else None
    result = {
        "command": "doctor",
        **environment,
        "gpu_memory_gib": [
            torch.cuda.get_device_properties(number).total_memory / 2**30
            for number in range(len(environment["gpus"]))
        ],
        "cuda_problem": problem,
        "memory_gib": psutil.virtual_memory().total / 2**30,
        "free_memory_gib": launch.free_bytes() / 2**30,
        "device": next(iter(available), None if problem else "cpu"),
        "precision": resolve_precision("auto"),
        "free_disk_gib": shutil.disk_usage(".").free / 2**30,
        "vit_data": os.environ.get("VIT_DATA"),
    }
    return result | {"slow": _slow(result)}


def _slow(machine: dict[str, Any]) -> list[str]:
    """Return what makes runs slower here than they have to be, and what to do about it."""
    lines = []
    cores, num_gpus, threads = machine["cpu_count"], len(machine["gpus"]), machine["torch_threads"]
    quota = _cores_of_container()
    if quota is not None and quota < cores:
        fewer = max(1, int(quota))
        lines.append(
            f"this container has {quota:.1f} of {cores} cores: OMP_NUM_THREADS={fewer} --workers {fewer}"
        )
    if not num_gpus and cores < CORES_PER_GPU:
        lines.append(
            f"{count_of(cores, 'core')} and no GPU: take small models, such as ViT-Ti/16, or vit fewshot"
        )
    if threads < cores and not num_gpus:
        lines.append(f"torch computes on {threads} of {cores} cores: OMP_NUM_THREADS={cores}")
    if cores < CORES_PER_GPU * num_gpus:
        lines.append(
            f"{count_of(cores, 'core')} for {count_of(num_gpus, 'GPU')}: vit bench data measures them"
        )
    if machine["precision"] == "fp32":
        lines.append("the device has no bf16, so that auto means fp32")
    if machine["simplejpeg"] == "not installed":
        lines.append("simplejpeg is not installed: Pillow decodes JPEG files more slowly")
    if not devices.has_compiler():
        lines.append("there is no C++ compiler, which --compile needs")
    if num_gpus and not _can_pin():
        lines.append("memory cannot be pinned: copies to the GPU hold up its work")
    return lines


def _cores_of_container() -> float | None:
    """Return the cores whose time a container may use, by Linux's control groups; None for no limit."""
    try:
        quota, period = CPU_QUOTA.read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _can_pin() -> bool:
    try:
        return torch.empty(2**20, dtype=torch.uint8).pin_memory().is_pinned()
    except RuntimeError:
        return False


def environment_as_text(result: dict[str, Any]) -> str:
    """Return the result of `check_environment` as lines for a terminal."""
    gpus = [
        f"{name} ({memory_gib:.0f} GiB)"
        for name, memory_gib in zip(result["gpus"], result["gpu_memory_gib"], strict=True)
    ]
    if gpus:
        gpus.append(f"CUDA {result['cuda']}, cuDNN {result['cudnn']}")
    elif result["cuda_problem"]:
        gpus = [f"not usable: {result['cuda_problem']}; runs refuse to start without --device cpu"]
    libraries = ", ".join(f"{name} {result[name]}" for name in run_folder.LIBRARIES)
    threads = count_of(result["torch_threads"], "thread")
    memory = f"{result['memory_gib']:.1f} GiB, {result['free_memory_gib']:.1f} GiB of it free"
    automatic = f"device {result['device']}, precision {result['precision']}"
    return pairs(
        [
            ("vit", f"{result['vit']} on Python {result['python']}, {result['platform']}"),
            ("libraries", libraries),
            ("GPUs", ", ".join(gpus) or "none, runs use the CPU"),
            ("CPU", f"{count_of(result['cpu_count'], 'core')}, {threads} per process"),
            ("memory", memory),
            ("auto", automatic if result["device"] else "no device: --device cpu is needed"),
            ("slow", "; ".join(result["slow"]) or "nothing stands in the way of speed"),
            ("disk", f"{result['free_disk_gib']:.1f} GiB free in this folder"),
            ("VIT_DATA", result["vit_data"] or "not set, aliases are downloaded from the Hub"),
            ("next", "vit doctor resume, to prove that a killed run resumes bit for bit"),
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
    """Run a recipe twice, once to its end and once with SIGKILLs; compare weights and metrics.

    Args:
        kills: number of SIGKILLs, each at a random moment after a random step.
        options: of the command line, for both runs, such as --num-processes 2.

    Raises:
        CheckFailed: the results differ; both run folders are kept.
        VitError: the recipe is invalid, or a run ended with an error.
    """
    recipe = recipes.load(recipe_name, overrides, shorthands)
    steps = recipe.schedule.steps
    if steps is None or steps < 2:
        raise VitError(
            "the proof needs a run of at least two steps",
            where="--steps",
            fix="--steps 30, or more for slower kills",
        )

    # Make the two runs.
    command = "finetune" if recipe.model.ckpt else "pretrain"
    progress, folder = Progress(quiet=quiet), Path(tempfile.mkdtemp(prefix="vit-doctor-"))
    (folder / "proof.toml").write_text(recipes.to_toml(recipe))
    words = [command, "--recipe", str(folder / "proof.toml"), *options]
    words += ["--set", "train.log_every=1", "--set", f"train.save_every={max(1, steps // 10)}", "--quiet"]
    progress.note(f"uninterrupted run of {steps} steps")
    _to_the_end(words, folder / "unbroken")
    killed_at = _with_kills(words, folder / "killed", steps=steps, kills=kills, progress=progress)

    # Compare their results.
    hashes = {
        name: [digest_of_file(folder / run / name).hex() for run in ("unbroken", "killed")]
        for name in RESULTS
    }
    differing = [name for name, (unbroken, killed) in hashes.items() if unbroken != killed]
    if differing:
        what = f"the killed run ended with different bits: {', '.join(differing)}"
        fix = "report it with both run folders; do not rely on resumed runs on this machine"
        if torch.cuda.is_available() and not devices.is_cpu() and "--exact" not in options:
            fix = "on GPUs, kernels may sum in another order each time: add --exact, here and to runs"
        raise CheckFailed(what, where=str(folder), fix=fix)
    shutil.rmtree(folder)
    return {
        "command": "doctor resume",
        "recipe": recipe_name,
        "steps": steps,
        "killed_at": killed_at,
        "same_bits": True,
        "sha256": {name: sha256 for name, (sha256, _) in hashes.items()},
    }


def proof_as_text(result: dict[str, Any]) -> str:
    """Return the result of `prove_resume` as lines for a terminal."""
    at = ", ".join(map(str, result["killed_at"]))
    return pairs(
        [
            ("verdict", "a killed run resumes bit for bit on this machine"),
            ("killed", f"{len(result['killed_at'])} times, after steps {at} of {result['steps']}"),
            *(
                (name.partition(".")[0], f"sha256 {sha256[:16]}, in both runs")
                for name, sha256 in result["sha256"].items()
            ),
        ]
    )


def _with_kills(words: list[str], out: Path, *, steps: int, kills: int, progress: Progress) -> list[int]:
    """Run to the end with this many kills; return the number of logged steps at each."""
    draws, killed_at = random.Random(0), []
    for number in range(kills):
        # Wait for a step, then a random moment, so that the kill is not always between two steps.
        logged = _logged(out)
        target = draws.randint(logged + 1, max(logged + 1, logged + (steps - logged) // (kills - number + 1)))
        process = subprocess.Popen(_command(words, out), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while process.poll() is None and _logged(out) < target:
            time.sleep(0.005)
        time.sleep(draws.uniform(0, 0.05))
        if process.poll() is None:
            _kill_all(process)
        errors = process.communicate()[1].decode()

        # The kill must have hit a run in progress.
        if process.returncode != -signal.SIGKILL or (out / run_folder.SUMMARY).exists():
            _check(max(process.returncode, 0), errors)
            raise CheckFailed(
                f"the run had ended before kill {number + 1} of {kills}, so nothing is proven",
                where=f"{steps} steps, {out}",
                fix="give it more --steps, or fewer --kills",
            )
        killed_at.append(_logged(out))
        progress.note(f"killed after step {killed_at[-1]}")
    _to_the_end(words, out)
    return killed_at


def _kill_all(process: subprocess.Popen) -> None:
    """Send SIGKILL to the run's processes before their launcher, which would stop them cleanly."""
    for child in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.kill()
    process.kill()


def _to_the_end(words: list[str], out: Path) -> None:
    run = subprocess.run(_command(words, out), capture_output=True, text=True)
    _check(run.returncode, run.stderr)


def _command(words: list[str], out: Path) -> list[str]:
    return [*launch.program(), *words, "--out", str(out)]


def _check(returncode: int, errors: str) -> None:
    if returncode:
        last = errors.strip().splitlines()[-3:] or [f"exit code {returncode}"]
        raise VitError(
            f"the run ended with exit code {returncode}: {last[0].removeprefix('error: ')}",
            where="vit doctor resume",
            fix=last[-1].strip().removeprefix("fix:").strip(),
        )


def _logged(out: Path) -> int:
    """Return the number of steps in metrics.jsonl; a resumed run truncates it to its last save."""
    try:
        return (out / run_folder.METRICS).read_bytes().count(b'"lr": ')
    except OSError:
        return 0
