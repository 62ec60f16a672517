"""A recipe that lists values, or asks for several runs: train with each value on train without its dev part,
choose by the dev part, train with the chosen one on all of train, score the test split (paper, B.1.1).

Shared by the commands that train; no command of its own. Every run below OUT/arms and OUT/runs is an ordinary
resumable one, so a selection goes on where it was.
"""

import gc
import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from vitcli import recipe as recipes
from vitcli.data.dataset import DEV_PART, DEV_PART_OF_ALL, DataSet
from vitcli.data.image_cache import MemoryBudget, cached
from vitcli.data.split import Split
from vitcli.distributed import launch
from vitcli.distributed.runtime import shared_process_group
from vitcli.distributed.runtime import start as start_runtime
from vitcli.errors import NotFiniteError, Stopped, VitError
from vitcli.export.model_card import model_card
from vitcli.output import plots, run_folder
from vitcli.output.atomic import read_json, replace_file, write_json
from vitcli.output.progress import Progress
from vitcli.output.run_folder import RunFolder, earlier_summary, refuse_other_recipe
from vitcli.recipe import Recipe
from vitcli.training import figures, parallel_runs, sweep_results
from vitcli.training import run as training_run
from vitcli.training.setup import InitialModel, MakeModel, RunOptions
from vitcli.training.text import as_text
from vitcli.weights.io import read_weights

ARMS, RUNS = "arms", "runs"


def run(command: str, recipe: Recipe, options: RunOptions, make_model: MakeModel) -> dict[str, Any]:
    """One run of a recipe, or all that it asks for; the summary, or the plan with --dry-run.

    Args:
        make_model: from the recipe of one run and its training split to a network.
    """
    if not recipe.choices and recipe.train.runs == 1:
        if options.arms_parallel:
            fix = "list values, such as --lr 0.003,0.01, or set train.runs; or leave it out"
            raise VitError("there is one run and nothing beside it", where="--arms-parallel", fix=fix)
        return training_run.run(command, recipe, options, make_model)
    if options.out and not options.overwrite and not options.dry_run:
        earlier = earlier_summary(options.out, recipe)
        if earlier:
            return earlier
    with shared_process_group():
        selection = Sweep(command, recipe, options, make_model)
        return selection.plan() if options.dry_run else selection.run()


class Sweep:
    """All runs of one recipe, one after the other, with what they share."""

    def __init__(self, command: str, recipe: Recipe, options: RunOptions, make_model: MakeModel):
        self.command, self.recipe, self.options = command, recipe, options
        self.runtime = start_runtime(recipe.precision.compute)
        self.progress = Progress(quiet=options.quiet, is_main=self.runtime.is_main)
        self.data = SharedDatasets(self.runtime.processes_here)
        network = make_model if options.shard else SharedNetwork(make_model)  # slices are of one run
        self._session = partial(training_run.run, command, make_model=network, open_data=self.data)
        self.path: Path | None = None
        self.folder: run_folder.RunFolder | None = None  # of the first process alone

    def plan(self) -> dict[str, Any]:
        """The plan of the last run, and what all of them come to."""
        final = self._session(self._final_recipe({}, 0), self.options)  # first, for it may be measured
        plain = replace(self.options, measure=False, quiet=True)
        arms = [self._session(one, plain) for one in self._arm_recipes()]
        num_runs = self.recipe.train.runs
        told = sweep_results.plan_of_all(final, arms, num_runs)
        return told | {"recipe": recipes.to_toml(self.recipe)}

    def run(self) -> dict[str, Any]:
        """Leave a finished folder with all runs below it; the summary of all."""
        self.path = self.runtime.on_main(self._open_folder)
        try:
            tried = self._choose()
            if tried and not any(one.summary for one in tried):
                raise NotFiniteError(
                    f"every one of the {len(tried)} values to choose from diverged",
                    where=f"{self.path / ARMS}",
                    fix="list smaller ones, or set optimizer.clip, in a new --out",
                )
            chosen = sweep_results.best(tried) if tried else {}
            finals = self._repeat(chosen)
            summary = sweep_results.summary_of_all(tried, chosen, finals, path=self.path)
            if self.folder:
                write_all(self.folder, self.recipe, summary, finals[0])
                if count := self.data.memory.num_decoded:
                    self.progress.note(f"{count} images were decoded once for all runs")
        except Stopped as stopped:  # what goes on is the whole selection
            stopped.out = self.path
            raise
        finally:
            if self.folder:
                self.folder.close()
        return summary

    def _open_folder(self) -> Path:
        model = self.recipe.model
        name = model.name or Path(str(model.ckpt)).name
        path = self.options.out or run_folder.new_folder(self.command, str(self.recipe.data.dataset), name)
        self.folder = run_folder.RunFolder(path, overwrite=self.options.overwrite)
        if (path / run_folder.RECIPE).exists():
            refuse_other_recipe(path, self.recipe)
        self.folder.rewind_metrics(0)  # a line for each run, finished ones are told again
        self.folder.write_start(recipes.to_toml(self.recipe), run_folder.environment(self.options.arguments))
        self.progress.note(f"run folder {path}")
        return path

    def _arm_recipes(self) -> list[Recipe]:
        if not self.recipe.choices:
            return []
        # Rows that only stand in for a test split have no part in choosing; a probe has none either.
        dev = DEV_PART if self.recipe.data.eval_split == "auto" else DEV_PART_OF_ALL
        changes = {"train.runs": 1, "data.eval_split": dev, "eval.probe": None}
        return [
            recipes.settled(self.recipe, {**choice, **changes}) for choice, _ in recipes.trials(self.recipe)
        ]

    def _final_recipe(self, chosen: dict[str, Any], number: int) -> Recipe:
        seed = self.recipe.train.seed + number
        return recipes.settled(self.recipe, {**chosen, "train.runs": 1, "train.seed": seed})

    def _choose(self) -> list[sweep_results.Trial]:
        """Every arm with its score on the dev part."""
        choices = [choice for choice, _ in recipes.trials(self.recipe)] if self.recipe.choices else []
        paths = [self.path / ARMS / name for name in sweep_results.names_of(choices)]
        jobs = list(zip(paths, self._arm_recipes(), strict=True))
        for path in self._side_by_side([(path, one) for path, one in jobs if not _finished_arm(path, one)]):
            _mark_diverged(path)
        tried: list[sweep_results.Trial] = []
        for choice, (path, one) in zip(choices, jobs, strict=True):
            found = self.runtime.on_main(partial(_finished_arm, path, one)) or self._arm(path, one)
            self.runtime.on_main(partial(_drop_weights, path))
            below = str(path.relative_to(self.path))
            tried.append(sweep_results.Trial(choice, None if "diverged" in found else found, below))
            self._log(tried[-1].record())
            self.progress.note(sweep_results.table_of_trials(tried, num_arms=len(jobs)))
        return tried

    def _arm(self, path: Path, one: Recipe) -> dict[str, Any]:
        """The summary of an arm; if it diverged, a mark of that, for then the others have to decide."""
        try:
            return self._session(one, replace(self.options, out=path, overwrite=False))
        except NotFiniteError as error:
            self.progress.note(f"note: {error.message}")
        return self.runtime.on_main(partial(_mark_diverged, path))

    def _repeat(self, chosen: dict[str, Any]) -> list[dict[str, Any]]:
        """The summary of every run on all of train, in the order of their seeds."""
        finals = [self._final_recipe(chosen, number) for number in range(self.recipe.train.runs)]
        jobs = [(self.path / RUNS / f"seed-{one.train.seed}", one) for one in finals]
        self._side_by_side([(path, one) for path, one in jobs if not earlier_summary(path, one)])
        finals = []
        for path, one in jobs:
            finals.append(self._session(one, replace(self.options, out=path, overwrite=False)))
            scores = finals[-1]["runs"][0]
            self._log(
                {"run": {"seed": scores["seed"]}, **scores, "run_dir": str(path.relative_to(self.path))}
            )
            self.progress.note(sweep_results.run_line(scores, len(finals), len(jobs)))
        return finals

    def _side_by_side(self, jobs: list[tuple[Path, Recipe]]) -> list[Path]:
        """Where --arms-parallel asks for it, the runs at once; the folders of those that diverged."""
        if self.options.arms_parallel < 2 or len(jobs) < 2:
            return []
        self.progress.note(f"{len(jobs)} runs, {self.options.arms_parallel} at a time")
        return parallel_runs.run_all(self.command, jobs, self.options)

    def _log(self, record: dict[str, Any]) -> None:
        if self.folder:
            self.folder.log(record)


def _finished_arm(path: Path, one: Recipe) -> dict[str, Any] | None:
    """The summary, or the mark, of an arm that needs no further step; its weights may have gone."""
    found = run_folder.finished_summary(path) or read_json(path / run_folder.DIVERGED)
    if found is not None:
        refuse_other_recipe(path, one)
    return found


def _mark_diverged(path: Path) -> dict[str, Any]:
    """Leave a mark, so that the arm is not trained up to there again."""
    mark = {"diverged": True}
    write_json(path / run_folder.DIVERGED, mark)
    return mark


def _drop_weights(path: Path) -> None:
    """An arm is there for its score: L/16 would leave 1.2 GB for each rate."""
    for name in (run_folder.WEIGHTS, "config.json", "README.md"):
        (path / name).unlink(missing_ok=True)
    shutil.rmtree(path / "checkpoints", ignore_errors=True)


def write_all(folder: RunFolder, recipe: Recipe, summary: dict[str, Any], first: dict[str, Any]) -> None:
    """What the folder of a single run has, too, so that it is a --ckpt like any other.

    Args:
        first: the summary of the first run, whose weights are those of all.
    """
    source = Path(first["run_dir"])
    for name in ("model.safetensors", "config.json"):
        replace_file(folder.path / name, lambda path, name=name: _same(source / name, path))
    pictures = folder.path / "figures"
    pictures.mkdir(exist_ok=True)
    for picture in sorted((source / "figures").glob("*.png")):
        shutil.copy(picture, pictures / picture.name)
    if summary["choices"]:
        figure = figures.selection_curve(summary["choices"], chosen=summary["chosen"])
        if figure:
            plots.save(pictures / "selection.png", figure)
    arch = read_weights(str(source)).architecture
    folder.write_text("README.md", model_card(summary, recipes.to_toml(recipe), arch))
    folder.write_text("table.txt", as_text(summary))
    folder.write_json(run_folder.SUMMARY, summary)


def _same(source: Path, target: Path) -> None:
    """The same file under a second name; its bytes once more where the file system has no such thing."""
    target.unlink()
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


SHARE_OF_MEMORY = 0.25  # of what is free, for images; divided among the processes of this machine


class SharedDatasets:
    """Opens a data set once, and reads and decodes its images once as far as there is room.

    In the place of `data.DataSet`.
    """

    def __init__(self, processes_here: int):
        self.memory = MemoryBudget(launch.free_bytes() * SHARE_OF_MEMORY / processes_here)
        self._opened: dict[str, _KeptDataSet] = {}

    def __call__(self, name: str, **options: Any) -> DataSet:
        key = repr((name, options))
        if key not in self._opened:
            self._opened[key] = _KeptDataSet(name, memory=self.memory, **options)
        return self._opened[key]


class _KeptDataSet(DataSet):
    def __init__(self, name: str, *, memory: MemoryBudget, **options: Any):
        super().__init__(name, **options)
        self._memory = memory
        self._whole: dict[str, Split] = {}

    def open_whole(self, split: str) -> Split:
        if split not in self._whole:
            self._whole[split] = cached(super().open_whole(split), self._memory)
        return self._whole[split]


class SharedNetwork:
    """Makes the network once and sets it back for the next run: one reading of its file, one compilation.

    In the place of a `MakeModel`, which makes another where the recipe asks for another.
    """

    def __init__(self, make_model: MakeModel):
        self._make_model = make_model
        self._key: Any = None
        self._seed: int | None = None
        self._start: InitialModel | None = None
        self._state: dict[str, Tensor] = {}

    def __call__(self, recipe: Recipe, split: Split) -> InitialModel:
        key = (recipe.model, recipe.data.image_size, recipe.objective, split.num_classes)
        if key != self._key:
            self._start = None  # before another takes its memory
            self._start, self._key = self._make_model(recipe, split), key
            self._remember(self._start, recipe)
            return self._start
        gc.collect()  # with the run before go its hooks on the parameters
        if self._start.origin is None and recipe.train.seed != self._seed:  # fresh weights are of a seed
            self._remember(self._make_model(recipe, split), recipe)
        self._start.model.load_state_dict(self._state)
        self._start.model.zero_grad(set_to_none=True)
        return replace(self._start, notes=[])

    def _remember(self, start: InitialModel, recipe: Recipe) -> None:
        self._state = {name: tensor.clone() for name, tensor in start.model.state_dict().items()}
        self._seed = recipe.train.seed
