"""The runs of a command that makes several: each an ordinary resumable run in a folder of its own.

They come in stages, whose runs the workers of the command share (`output.shared_work`). All runs of a worker
share the processes, the opened data, the decoded images and the network.
"""

import gc
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from torch import Tensor

from vitcli import recipe as recipes
from vitcli.data.image_cache import ImageCache
from vitcli.data.split import Split
from vitcli.errors import NotFiniteError
from vitcli.evaluation.setup import settle_pixels
from vitcli.output import run_folder
from vitcli.output.atomic import read_json, write_json, write_text
from vitcli.output.leases import Cells
from vitcli.output.run_folder import RunFolder, earlier_summary, refuse_other_recipe
from vitcli.output.shared_work import RESULTS, SharedWork, WorkCell
from vitcli.output.text import json_of
from vitcli.recipe import Recipe
from vitcli.training.many_runs.workers import beside
from vitcli.training.results import write_sweep_results
from vitcli.training.run import run as run_job
from vitcli.training.setup import InitialModel, MakeModel, RunOptions, join_processes, set_up
from vitcli.training.splits import RunData

Job = tuple[Path, Recipe]  # run folder and recipe of one run
MakeRun = Callable[[Recipe, RunOptions], dict[str, Any]]  # to its summary, or its plan with --dry-run


@dataclass(frozen=True)
class Stage:
    """Runs of a command that do not depend on each other.

    Attributes:
        jobs: in order.
        title: of the run with this number, counted from 0, for the terminal.
        on_done: takes the number and the summary of each run, in order.
        is_trial: whether a score is all that a run is for: its weights are deleted, and if it diverges, the
            others go on, and {"diverged": True} stands for its summary.
    """

    jobs: Sequence[Job]
    title: Callable[[int], str]
    on_done: Callable[[int, dict[str, Any]], None]
    is_trial: bool = False


class SharedParts:
    """What the runs of one command have in common: processes, opened data, decoded images, the network.

    Args:
        num_runs: of the command in all.
    """

    def __init__(
        self,
        command: str,
        recipe: Recipe,
        options: RunOptions,
        make_model: MakeModel,
        data: RunData,
        *,
        num_runs: int,
    ):
        self.runtime, self.progress = join_processes(recipe, options)
        self.images = ImageCache(
            recipe.data.cache,
            processes_here=self.runtime.processes_here,
            has_siblings=options.arms_parallel > 1,
            num_runs=num_runs,
        )
        self.data = data
        self.make_model = make_model if options.shard else SharedNetwork(make_model)  # slices cannot be reset
        self.command = command

    def make_run(self, recipe: Recipe, options: RunOptions) -> dict[str, Any]:
        """Make one run and return its summary, or its plan with --dry-run."""
        job = set_up(self.command, recipe, options, self.make_model, data=self.data, images=self.images)
        return run_job(job)


class ManyRuns:
    """The runs of one command, and the folder that holds them and delivers what one of them does.

    Args:
        counts: the number of runs in each stage.
        make_run: makes one of them, which may be a sweep of its own.

    Attributes:
        path: the folder, once it is open.
    """

    def __init__(
        self,
        recipe: Recipe,
        options: RunOptions,
        shared: SharedParts,
        *,
        counts: Sequence[int],
        make_run: MakeRun,
    ):
        self.recipe, self.options, self.shared = recipe, options, shared
        self._counts, self._make_run = counts, make_run
        self.path: Path | None = None
        self._metrics: list[Mapping[str, Any]] = []

    def settled(self, changes: Mapping[str, Any], *, has_choices: bool = False) -> Recipe:
        """Return the recipe of one run; its checkpoint, if there are several, decides about its pixels.

        A time limit is that of the command, of which each run that follows another has an equal part.

        Args:
            has_choices: whether the run makes the choices of the command's recipe itself.
        """
        if minutes := self.recipe.schedule.max_minutes:
            width = max(1, self.options.arms_parallel)
            num_in_a_row = sum(ceil(count / width) for count in self._counts)
            changes = {**changes, "schedule.max_minutes": minutes / num_in_a_row}
        changed = recipes.settled(self.recipe, changes)
        return settle_pixels(
            changed.with_choices(self.recipe.choices) if has_choices else changed, self.shared.command
        )

    def plans(self, final: Recipe, others: Sequence[Recipe]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the plan of a final run, which may be measured, and those of other runs."""
        plan = self._make_run(final, self.options)
        unmeasured = replace(self.options, measure=False, quiet=True)
        return plan, [self._make_run(recipe, unmeasured) for recipe in others]

    @contextmanager
    def opened(self) -> Iterator[Path]:
        """Open the folder beside other workers, some of which may be started here."""
        self.path = self.shared.runtime.on_main(self._join)
        with beside(self.shared.command, self.recipe, self.options, self.path, self.shared.progress):
            yield self.path

    def _join(self) -> Path:
        recipe, options = self.recipe, self.options
        name = recipe.model.name or Path(str(recipe.model.ckpt)).name
        path = options.out or run_folder.new_folder(self.shared.command, str(recipe.data.dataset), name)
        run_folder.join_runs(path, recipe, options.arguments, overwrite=options.overwrite)
        return path

    def train(self, stage: Stage) -> list[dict[str, Any]]:
        """Make the runs of a stage that no worker has finished; return the summaries of all in order."""
        jobs, on_main = stage.jobs, self.shared.runtime.on_main
        look_up = _finished_trial if stage.is_trial else earlier_summary

        def train(number: int) -> dict[str, Any]:
            path, recipe = jobs[number]
            title, began_at = stage.title(number), time.monotonic()
            alone = replace(self.options, out=path, overwrite=False, arms_parallel=0)
            options = replace(alone, title=title, began_at=began_at)
            try:
                return self._make_run(recipe, options)
            except NotFiniteError as error:
                if not stage.is_trial:
                    raise
                self.shared.progress.note(f"note: {error.message}")
            mark = {"diverged": True}  # so that a resumed sweep does not train it again
            on_main(partial(write_json, path / run_folder.DIVERGED, mark))
            return mark

        def on_done(number: int, summary: dict[str, Any]) -> None:
            if stage.is_trial:
                on_main(partial(_drop_weights, jobs[number][0]))
            stage.on_done(number, summary)

        cells = []
        for number, (path, recipe) in enumerate(jobs):
            name, finished = str(path.relative_to(self.path)), partial(look_up, path, recipe)
            cells.append(WorkCell(name, path, partial(train, number), finished))
        return self._share(cells, on_done)

    def log(self, record: Mapping[str, Any], run_dir: Path) -> None:
        """Add a line on a run to metrics.jsonl, unless another worker has written the results by now."""
        self._metrics.append({**record, "run_dir": str(run_dir.relative_to(self.path))})
        if self.shared.runtime.is_main and Cells(self.path).home.exists():
            lines = "".join(f"{json_of(record)}\n" for record in self._metrics)
            write_text(self.path / run_folder.METRICS, lines)

    def deliver(self, results: Callable[[], tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
        """Write the folder's own results, unless another worker does; return the summary of all runs.

        Args:
            results: returns that summary, and the summary of the run to deliver.
        """

        def write() -> dict[str, Any]:
            summary, delivered = results()
            self.shared.runtime.on_main(lambda: self._write(summary, delivered))
            return summary

        finished = partial(earlier_summary, self.path, self.recipe)
        (summary,) = self._share([WorkCell(RESULTS, self.path, write, finished)])
        self.shared.runtime.on_main(Cells(self.path).end)
        return summary

    def _share(
        self, cells: Sequence[WorkCell], on_done: Callable[[int, Any], None] = lambda number, result: None
    ) -> list[dict[str, Any]]:
        return SharedWork(cells, self.path, self.shared.runtime, self.shared.progress, on_done).run()

    def _write(self, summary: dict[str, Any], delivered: dict[str, Any]) -> None:
        with closing(RunFolder(self.path)) as folder:
            folder.rewind_metrics(0)
            for record in self._metrics:
                folder.log(record)
            write_sweep_results(folder, recipes.to_toml(self.recipe), summary, delivered)


def _finished_trial(path: Path, recipe: Recipe) -> dict[str, Any] | None:
    """Return the summary of a finished trial or the mark of a diverged one; its weights may be deleted."""
    result = run_folder.finished_summary(path) or read_json(path / run_folder.DIVERGED)
    if result is not None:
        refuse_other_recipe(path, recipe)
    return result


def _drop_weights(path: Path) -> None:
    """Delete the weights of a trial, whose score is all that counts: 1.2 GB each for ViT-L/16."""
    for name in (run_folder.WEIGHTS, "config.json", "README.md"):
        (path / name).unlink(missing_ok=True)
    shutil.rmtree(path / "checkpoints", ignore_errors=True)


class SharedNetwork:
    """A network that is built and compiled once and reset for every run that needs the same one.

    Called like a `MakeModel`.
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
            self._start = None  # free its memory first
            self._start, self._key = self._make_model(recipe, split), key
            self._remember(self._start, recipe)
            return self._start
        gc.collect()  # the previous run, with its hooks on the parameters
        # Fresh weights and adapters depend on the seed.
        is_drawn = self._start.origin is None or recipe.model.lora_rank
        if is_drawn and recipe.train.seed != self._seed:
            self._remember(self._make_model(recipe, split), recipe)
        self._start.model.load_state_dict(self._state)
        self._start.model.zero_grad(set_to_none=True)
        return self._start

    def _remember(self, start: InitialModel, recipe: Recipe) -> None:
        self._state = {name: tensor.clone() for name, tensor in start.model.state_dict().items()}
        self._seed = recipe.train.seed
