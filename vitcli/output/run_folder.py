"""The folder of a run: its name, its files, its lock, and the recipe it belongs to.

metrics.jsonl holds nothing that depends on time: a resumed run writes the same bytes as an unbroken one.
"""

import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from typing import Any

from vitcli import recipe as recipes
from vitcli.distributed import launch
from vitcli.errors import DataError, VitError
from vitcli.output import profile, summaries
from vitcli.output.atomic import TEMPORARY, read_json, temporary_beside, write_json, write_text
from vitcli.output.leases import HOME, Superseded, fence, is_leased
from vitcli.output.owned_folder import OwnedFolder, refuse_other
from vitcli.output.redaction import without_secrets
from vitcli.output.text import json_of
from vitcli.recipe import Recipe

METRICS, TIMING, SUMMARY, RECIPE = "metrics.jsonl", "timing.jsonl", "summary.json", "recipe.toml"
PLAN, ENVIRONMENT = "plan.json", "environment.json"
TRACKING = "tracking.json"  # how far a tracker has been sent the metrics
DATASET_PATH, CKPT_PATH, TEACHER_PATHS = "dataset_path", "ckpt_path", "teacher_paths"  # in environment.json
# Keys that a run may be resumed with other values of: no weight and no result depends on them.
OF_NO_RESULT = {"data.cache": "auto", "train.log_every": 1, "train.save_every": 0, "train.save_minutes": None,
                "train.keep_checkpoints": 1, "train.milestone_every": 0, "train.stall_minutes": 10.0,
                "eval.batch_size": 1}  # fmt: skip
DIVERGED = "diverged.json"  # instead of the summary of a trial whose loss was not finite
WEIGHTS = "model.safetensors"
PREDICTIONS, MISTAKES = "predictions.parquet", "mistakes.json"  # of the final evaluation
NUMBERS = "numbers.parquet"  # instead, of a regression
PARTS, PARTS_FOLDER = "parts.json", "parts"  # of --part-rows: the list of the files, and their folder
OUT_OF_FOLD = "out_of_fold.safetensors"  # of a run that is scored on a fold: logits for calibration
CLASSES = "classes.txt"  # a name on each line, in the order of the head's outputs
AVERAGE = "average.json"  # of an average of runs: of which, by which images, and what was asked for
LOCK = ".vit.lock"
CHECKPOINTS = "checkpoints"
# Below the folder of several runs: the trials of a sweep, its runs with several seeds, and folds.
ARMS, REPEATS, FOLDS = "arms", "runs", "folds"
DRAWS = "draws.json"  # of a few-shot run: the rows it was fitted to
CLOSED_FORM = "closed_form.safetensors"  # the statistics of a classifier that `vit teach` can change
AVERAGED = "average"  # of a sweep, the average of its runs
CHECKOUT = Path(__file__).parents[2]  # the repository, if the package runs from one
FILES = (METRICS, TIMING, SUMMARY, RECIPE, PLAN, ENVIRONMENT, TRACKING, "README.md", "config.json",
         WEIGHTS, PREDICTIONS, NUMBERS, OUT_OF_FOLD, CLASSES, MISTAKES, AVERAGE, DRAWS, CLOSED_FORM,
         "table.txt", "reproduce.json", "reproduce-real.json", *profile.FILES)  # fmt: skip
# Of runs/ only the repetitions: the default folder of all runs has that name, too.
FOLDERS = (CHECKPOINTS, "figures", ARMS, f"{ARMS}/*", f"{REPEATS}/seed-*", AVERAGED, FOLDS, f"{FOLDS}/*",
           HOME, "tensorboard", "wandb", "mlflow")  # fmt: skip
LIBRARIES = ("torch", "torchvision", "timm", "accelerate", "datasets", "safetensors", "pillow", "simplejpeg",
             "numpy")  # fmt: skip


def _owned(path: Path) -> OwnedFolder:
    appended = (METRICS, TIMING)
    return OwnedFolder(path, "run", lock=LOCK, marker=LOCK, files=FILES, folders=FOLDERS, appended=appended)


class RunFolder:
    """A run folder that this process has locked until it ends.

    Args:
        path: made if it does not exist.
        overwrite: delete an earlier run in it first.

    Raises:
        MachineError: it cannot be written, or another live process has locked it.
        VitError: it holds something that is not a run.
    """

    def __init__(self, path: Path, *, overwrite: bool = False):
        self.path = path
        self.also_log: Callable[[dict[str, Any]], None] = lambda record: None  # of a tracker, if any
        self._held = ExitStack()
        folder = _owned(path)
        folder.refuse_foreign()
        self._owned, self._is_new = folder, overwrite or not (path / LOCK).exists()
        folder.claim(self._held)
        fence(path)
        # Remove what an interrupted write has left, then what an earlier run has.
        for pattern in (f"{TEMPORARY}*", f"figures/{TEMPORARY}*"):
            for leftover in path.glob(pattern):
                if leftover.is_symlink() or leftover.is_file():
                    leftover.unlink()
        if overwrite:
            folder.clear()
        if is_leased(path):
            for name in folder.appended:
                _renew(path / name)
        self._metrics = self._held.enter_context((path / METRICS).open("ab"))
        self._timing = self._held.enter_context((path / TIMING).open("ab"))

    def close(self) -> None:
        """Release the folder for other processes."""
        self._held.close()

    @contextmanager
    def discarded_on_error(self) -> Iterator[None]:
        """Leave nothing in a folder in which only this run began, if it fails before it has a result."""
        try:
            yield
        except BaseException:
            with suppress(Superseded):  # another worker's, by now
                fence(self.path)
                if self._is_new:
                    self._owned.clear()
                    (self.path / LOCK).unlink(missing_ok=True)
            self.close()  # removes the folder, too, if it was made for this run
            raise

    def log(self, record: dict[str, Any]) -> None:
        """Append a record to metrics.jsonl; values that depend on time or speed go to `log_timing`."""
        fence(self.path)
        _append(self._metrics, record)
        self.also_log(record)

    def log_timing(self, record: dict[str, Any]) -> None:
        """Append a record to timing.jsonl."""
        fence(self.path)
        _append(self._timing, record)

    def metrics_bytes(self) -> int:
        """Flush metrics.jsonl to disk and return its length, which a checkpoint stores."""
        self._metrics.flush()
        os.fsync(self._metrics.fileno())
        return os.fstat(self._metrics.fileno()).st_size

    def rewind_metrics(self, num_bytes: int) -> None:
        """Cut metrics.jsonl to the length it had at the checkpoint that is resumed.

        Raises:
            DataError: it is shorter.
        """
        if os.fstat(self._metrics.fileno()).st_size < num_bytes:
            fix = "restore it, or start again with --overwrite"
            raise DataError(f"{METRICS} is shorter than its checkpoint says", where=str(self.path), fix=fix)
        self._metrics.truncate(num_bytes)  # the open file: by its name a late worker would cut another's

    def write_json(self, name: str, value: dict[str, Any]) -> None:
        write_json(self.path / name, value)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Mark the run as finished, with every line of metrics.jsonl on disk: nothing writes them again."""
        self.metrics_bytes()
        self.write_json(SUMMARY, summary)

    def write_text(self, name: str, text: str) -> None:
        write_text(self.path / name, text)


def open_run(
    path: Path, recipe: Recipe, arguments: Sequence[str], *, overwrite: bool, keep_metrics: bool = False
) -> RunFolder:
    """Open the folder of a run, new or to be resumed, and write its recipe and environment.

    Args:
        keep_metrics: leave metrics.jsonl for a checkpoint to rewind; otherwise it is written again.

    Raises:
        VitError: it holds something else, or a run of another recipe.
    """
    folder = RunFolder(path, overwrite=overwrite)
    if (path / RECIPE).exists():
        refuse_other_recipe(path, recipe)
    if not keep_metrics:
        folder.rewind_metrics(0)
    write_origin(folder, recipe, arguments)
    return folder


def join_runs(path: Path, recipe: Recipe, arguments: Sequence[str], *, overwrite: bool) -> None:
    """Open the folder of many runs, new or to be resumed, for one of several workers.

    Raises:
        MachineError: it cannot be written, or another command holds it.
        VitError: it holds something else, or runs of another recipe; or it is to be overwritten, and another
            worker is busy in it.
    """
    folder = _owned(path)

    def begin() -> None:
        if (path / RECIPE).exists():
            refuse_other_recipe(path, recipe)
        write_text(path / RECIPE, recipes.to_toml(recipe))
        write_json(path / ENVIRONMENT, _origin(recipe, arguments))

    folder.refuse_foreign()
    folder.join(begin, overwrite=overwrite)


def write_origin(folder: RunFolder, recipe: Recipe, arguments: Sequence[str]) -> None:
    """Write the recipe and the environment of a run."""
    folder.write_text(RECIPE, recipes.to_toml(recipe))
    folder.write_json(ENVIRONMENT, _origin(recipe, arguments))


def _origin(recipe: Recipe, arguments: Sequence[str]) -> dict[str, Any]:
    paths = {DATASET_PATH: _path_of(recipe.data.dataset), CKPT_PATH: _path_of(recipe.model.ckpt)}
    of_teachers = {TEACHER_PATHS: [_path_of(name) for name in recipe.teachers]} if recipe.teachers else {}
    return environment(arguments) | paths | of_teachers


def new_folder(command: str, dataset: str, model: str) -> Path:
    """Return the default run folder, below runs/, named after what is run and when; numbered if it exists."""
    name = f"{_name_of(command, dataset, model)}-{time.strftime('%Y%m%d-%H%M%S')}"
    folders = (Path("runs", name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(folder for folder in folders if not folder.exists())


def _name_of(command: str, dataset: str, model: str) -> str:
    return "-".join(slug(word, merge=False).strip("-.") for word in (command, Path(dataset).name, model))


def unfinished_run(command: str, model: str, recipe: Recipe) -> Path | None:
    """Return the newest folder of a default name with an unfinished run of this recipe, if any."""
    pattern = f"{_name_of(command, str(recipe.data.dataset), model)}-*"
    for folder in sorted(Path("runs").glob(pattern), reverse=True):
        if not any((folder / "checkpoints").glob("step_*")) or finished_summary(folder):
            continue
        with suppress(VitError):  # a recipe of another version
            earlier = recipes.load(str(folder / RECIPE), training=False)
            if not recipes.differences(_of_results(earlier), _of_results(recipe)):
                return folder
    return None


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


def checkpoint_folders(path: Path) -> list[Path]:
    """Return the folders of a run's saved checkpoints, the newest first."""
    return sorted((path / CHECKPOINTS).glob("step_" + "[0-9]" * 7), reverse=True)


def step_of_checkpoint(folder: Path) -> int:
    return int(folder.name.removeprefix("step_"))


def newest_checkpoint_step(path: Path) -> int | None:
    """Return the step of the newest checkpoint of a run without reading it."""
    return next(map(step_of_checkpoint, checkpoint_folders(path)), None)


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that pixels and numbers may depend on."""
    return {name: _version(name) for name in LIBRARIES}


@cache
def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # simplejpeg, on a platform without a wheel
        return "not installed"


def environment(arguments: Sequence[str]) -> dict[str, Any]:
    """Return versions, hardware, command line and code revision of this run; no environment variables."""
    import torch

    from vitcli import __version__

    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {
        "command_line": ["vit", *map(without_secrets, arguments)],
        "vit": __version__,
        "python": platform.python_version(),
        **library_versions(),
        "platform": platform.platform(),
        "cpu_count": launch.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "gpus": gpus,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "git_revision": _git_revision(),
    }


def _renew(path: Path) -> None:
    """Make another file of the same bytes: a worker that was asleep too long has the present one open."""
    if path.exists():
        copy = temporary_beside(path)
        shutil.copyfile(path, copy)
        os.replace(copy, path)


def _append(file, record: dict[str, Any]) -> None:
    file.write(json_of(record).encode() + b"\n")
    file.flush()


@cache
def _git_revision() -> str | None:
    """Return the commit of the checkout that the package runs from; None for an installed package."""
    if not (CHECKOUT / ".git").exists():
        return None
    try:
        result = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, cwd=CHECKOUT
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None if result.returncode == 0 else None


def folder_of(ckpt: str) -> Path | None:
    """Return the folder of the run that made a checkpoint: this, or what it is in."""
    path = Path(ckpt)
    candidates = (path, path.parent, path.parent.parent) if path.exists() else ()
    return next((folder for folder in candidates if (folder / RECIPE).is_file()), None)


def recipe_of(folder: Path) -> tuple[Recipe, bool]:
    """Return the recipe of a run with the present paths of its files, and whether its data set is there.

    Raises:
        VitError: it is of another version.
    """
    recipe = recipes.load(str(folder / RECIPE), training=False)
    environment = read_json(folder / ENVIRONMENT) or {}
    ckpt, _ = _where_it_is(recipe.model.ckpt, environment.get(CKPT_PATH))
    dataset, is_there = _where_it_is(recipe.data.dataset, environment.get(DATASET_PATH))
    data, model, distill = recipe.data, recipe.model, recipe.distill
    data, model = data.model_copy(update={"dataset": dataset}), model.model_copy(update={"ckpt": ckpt})
    if distill and (paths := environment.get(TEACHER_PATHS)):
        teachers = [_where_it_is(name, then)[0] for name, then in zip(recipe.teachers, paths, strict=False)]
        distill = distill.model_copy(update={"teacher": tuple(teachers)})
    return recipe.model_copy(update={"data": data, "model": model, "distill": distill}), is_there


def recipe_with_data(folder: Path) -> Recipe:
    """Return the recipe of a run as `recipe_of` does; DataError if its data set is not there."""
    recipe, is_there = recipe_of(folder)
    if not is_there:
        raise DataError(
            f"the data set of the run is no longer where it was: {recipe.data.dataset}",
            where=f"recipe key data.dataset in {folder / RECIPE}",
            fix="name it, where it is now: --dataset DATA",
        )
    return recipe


def is_data_of(recipe: Recipe, dataset: str | None) -> bool:
    """Return whether a name of a data set is that of a run, whose recipe `recipe_of` has returned."""
    if dataset is None or recipe.data.dataset is None:
        return False
    return _absolute(dataset) == _absolute(recipe.data.dataset)


def _absolute(name: str) -> str:
    return str(Path(name).resolve()) if Path(name).exists() else name


def _where_it_is(name: str | None, then: object) -> tuple[str | None, bool]:
    """Return the path that a name of a recipe meant `then`, or the name, and whether something is there."""
    if not name or not isinstance(then, str) or then == _path_of(name):
        return name, True
    if not Path(then).exists():  # moved, perhaps together with the folder of the run
        return name, Path(name).exists()
    return then, True


def _path_of(name: str | None) -> str | None:
    """Return the absolute path of a local data set; None for a name."""
    return os.path.abspath(name) if name and Path(name).exists() else None


def earlier_summary(path: Path, recipe: Recipe) -> dict[str, Any] | None:
    """Return the summary of a finished run of this recipe in the folder; None if no run has finished there.

    Raises:
        VitError: the run that has finished there is of another recipe.
        DataError: its summary is damaged.
    """
    summary = finished_summary(path)
    if summary is None or not all((path / name).exists() for name in (RECIPE, WEIGHTS)):
        return None
    if (path / AVERAGE).exists():
        refuse_other(path, "an average of runs", ["vit average made it"])
    refuse_other_recipe(path, recipe)
    summaries.read(path / SUMMARY, summaries.TrainingSummary)  # it is shown
    return summary | {"run_dir": str(path), "weights": str(path / WEIGHTS)}  # it may have been moved


def refuse_other_recipe(path: Path, recipe: Recipe) -> None:
    """Refuse a folder that holds a run of another recipe, naming the keys that differ."""
    earlier, _ = recipe_of(path)
    differing = recipes.differences(_of_results(earlier), _of_results(recipe))
    advice = f"; to resume it as it was begun, --recipe {path / RECIPE}"
    if (path / WEIGHTS).is_file():
        advice = f"; to train its result on, --ckpt {path} --keep-head --out ANOTHER"
    refuse_other(path, "a run of another recipe", differing, advice=advice)


def refuse_run(folder: Path, name: str) -> None:
    """Refuse the folder of a run to a command that needs a folder of its own, such as one called `name`."""
    if (folder / RECIPE).is_file():
        fix = f"choose a folder of its own, such as --out {folder / name}"
        raise VitError("the folder is that of a run", where=f"--out {folder}", fix=fix)


def _of_results(recipe: Recipe) -> Recipe:
    """Return the recipe with absolute paths, and one value for every key on which no result depends."""

    named = {"data.dataset": recipe.data.dataset, "model.ckpt": recipe.model.ckpt}
    values = {key: name and _absolute(name) for key, name in named.items()}
    sections = recipes.nested(values | OF_NO_RESULT)
    there = {name: section for name in sections if (section := getattr(recipe, name))}
    return recipe.model_copy(
        update={name: section.model_copy(update=sections[name]) for name, section in there.items()}
    )
