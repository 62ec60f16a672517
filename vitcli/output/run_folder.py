"""The run folder: one writer, plain files, and nothing in metrics.jsonl that a clock made."""

import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vitcli import recipe as recipes
from vitcli.distributed import launch
from vitcli.errors import MachineError, VitError
from vitcli.output.atomic import TEMPORARY, lock_folder, read_json, write_json, write_text
from vitcli.recipe import Recipe

METRICS, TIMING, SUMMARY, RECIPE = "metrics.jsonl", "timing.jsonl", "summary.json", "recipe.toml"
PLAN, ENVIRONMENT = "plan.json", "environment.json"
DIVERGED = "diverged.json"  # in the place of the summary of an arm whose loss was no number
WEIGHTS = "model.safetensors"
LOCK = ".vit.lock"
CHECKOUT = Path(__file__).parents[2]  # the repository, where the package runs from one
FILES = (METRICS, TIMING, SUMMARY, RECIPE, PLAN, ENVIRONMENT, "README.md", "config.json",
         WEIGHTS, "draws.json", "table.txt", "reproduce.json", "reproduce-real.json")  # fmt: skip
FOLDERS = ("checkpoints", "figures", "arms")
REPETITIONS = "runs/seed-*"
LIBRARIES = (
    "torch",
    "torchvision",
    "timm",
    "accelerate",
    "datasets",
    "safetensors",
    "pillow",
    "simplejpeg",
    "numpy",
)


class RunFolder:
    """A run folder held by this process until it ends.

    Args:
        path: made if it is not there.
        overwrite: delete an earlier run in it first.

    Raises:
        MachineError: it cannot be written, or another live process holds it.
        VitError: it holds something that is not a run.
    """

    def __init__(self, path: Path, *, overwrite: bool = False):
        self.path = path
        self.also_log: Callable[[dict[str, Any]], None] = lambda record: (
            None
        )  # a tracker, where one is wanted
        try:
            _refuse_foreign(path)
            path.mkdir(parents=True, exist_ok=True)
            self._lock = lock_folder(path / LOCK, noun="run", where=str(path))
            _clean(path)
            if overwrite:
                _empty(path)
            self._metrics = open(path / METRICS, "ab")  # noqa: SIM115, open as long as the run
            self._timing = open(path / TIMING, "ab")  # noqa: SIM115
        except OSError as error:
            raise MachineError(
                f"the run folder cannot be written: {error.strerror}",
                where=str(path),
                fix="choose another folder with --out, or mend its permissions",
            ) from error

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Let another process have the folder."""
        for file in (self._metrics, self._timing, self._lock):
            file.close()

    def write_start(self, recipe_toml: str, environment: dict[str, Any]) -> None:
        """The resolved recipe and the machine, before step 0."""
        self.write_text(RECIPE, recipe_toml)
        self.write_json(ENVIRONMENT, environment)

    def log(self, record: dict[str, Any]) -> None:
        """One line of metrics.jsonl. A value that depends on time or speed belongs in `log_timing`."""
        _append(self._metrics, record)
        self.also_log(record)

    def log_timing(self, record: dict[str, Any]) -> None:
        _append(self._timing, record)

    def metrics_bytes(self) -> int:
        """Length of metrics.jsonl, on disk: a checkpoint remembers it."""
        self._metrics.flush()
        os.fsync(self._metrics.fileno())
        return os.fstat(self._metrics.fileno()).st_size

    def rewind_metrics(self, num_bytes: int) -> None:
        """Forget what was logged after the checkpoint that is resumed."""
        os.truncate(self.path / METRICS, num_bytes)

    def write_json(self, name: str, value: dict[str, Any]) -> None:
        write_json(self.path / name, value)

    def write_text(self, name: str, text: str) -> None:
        write_text(self.path / name, text)


def new_folder(command: str, dataset: str, model: str) -> Path:
    """Return the default run folder, below runs/, named after what is run and when."""
    words = (command, Path(dataset).name, model, time.strftime("%Y%m%d-%H%M%S"))
    return Path("runs", "-".join(slug(word, merge=False).strip("-.") for word in words))


def slug(text: str, *, keep: str = ".", merge: bool = True) -> str:
    """Return a text as part of a folder's name: all but letters, digits, "_" and `keep` becomes "-".

    Runs are resumed by these names, so a caller never changes its arguments.

    Args:
        merge: replace adjacent characters by one "-"; otherwise each by its own.
    """
    return re.sub(rf"[^\w{re.escape(keep)}]{'+' if merge else ''}", "-", text)


def finished_summary(path: Path) -> dict[str, Any] | None:
    """Return the summary of the run in a folder: written last, so None before its end."""
    return read_json(path / SUMMARY)


def environment(arguments: list[str]) -> dict[str, Any]:
    """Versions, hardware, command line and code revision of this run, and no environment variable."""
    import torch

    from vitcli import __version__

    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {
        "command_line": ["vit", *map(_without_secrets, arguments)],
        "vit": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
        "platform": platform.platform(),
        "cpu_count": launch.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "gpus": gpus,
        "git_revision": _git_revision(),
    }


def _refuse_foreign(path: Path) -> None:
    """Never mix a run into what is not a run. Every run folder has our lock file from its first moment."""
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    if names and LOCK not in names:
        raise VitError(
            f"the folder holds other files ({', '.join(sorted(names)[:3])})",
            where=f"--out {path}",
            fix="choose a new or an empty folder",
        )


def _clean(path: Path) -> None:
    """Remove what an interrupted write has left."""
    for leftover in path.glob(f"{TEMPORARY}*"):
        leftover.unlink()


def _empty(path: Path) -> None:
    """Delete an earlier run, and nothing that a run does not make."""
    for name in FILES:
        (path / name).unlink(missing_ok=True)
    for name in FOLDERS:
        shutil.rmtree(path / name, ignore_errors=True)
    for folder in path.glob(REPETITIONS):  # and no other run, should somebody's runs/ lie here
        shutil.rmtree(folder, ignore_errors=True)


def _append(file, record: dict[str, Any]) -> None:
    file.write(json.dumps(record).encode() + b"\n")
    file.flush()


def _without_secrets(argument: str) -> str:
    argument = re.sub(r"hf_[A-Za-z0-9]{8,}", "hf_***", argument)
    argument = re.sub(r"(?<=://)[^/@\s]+@", "***@", argument)
    return re.sub(r"(?i)((?:token|key|secret|password)=)[^&\s]+", r"\1***", argument)


def _git_revision() -> str | None:
    """Of the checkout this package runs from; an installed one has none."""
    if not (CHECKOUT / ".git").exists():
        return None
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, cwd=CHECKOUT
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None


def earlier_summary(path: Path, recipe: Recipe) -> dict[str, Any] | None:
    """The summary of a finished run of this very recipe in the folder; None if none is finished there."""
    summary = finished_summary(path)
    if summary is None or not all((path / name).exists() for name in (RECIPE, WEIGHTS)):
        return None
    refuse_other_recipe(path, recipe)
    return summary | {"run_dir": str(path), "weights": str(path / WEIGHTS)}  # it may have been moved


def refuse_other_recipe(path: Path, recipe: Recipe) -> None:
    """Refuse a folder that holds a run of another recipe, naming the keys that differ."""
    earlier = recipes.load(str(path / RECIPE), training=False)
    differing = recipes.differences(_with_whole_paths(earlier), _with_whole_paths(recipe))
    if differing:
        raise VitError(
            f"the folder holds a run of another recipe: {'; '.join(differing[:4])}",
            where=f"--out {path}",
            fix="choose another folder, or --overwrite to delete that run",
        )


def _with_whole_paths(recipe: Recipe) -> Recipe:
    """However a path was typed, it names the same data and weights."""

    def whole(name: str | None) -> str | None:
        return str(Path(name).resolve()) if name and Path(name).exists() else name

    data_section = recipe.data.model_copy(update={"dataset": whole(recipe.data.dataset)})
    model_section = recipe.model.model_copy(update={"ckpt": whole(recipe.model.ckpt)})
    return recipe.model_copy(update={"data": data_section, "model": model_section})
