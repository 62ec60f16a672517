"""A job to a run folder: prepare, go on from the last checkpoint, train, evaluate, write.

Shared by the commands that train; no command of its own.
"""

import secrets
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from vitcli import recipe as recipes
from vitcli.data import loader
from vitcli.data.dataset import DataSet
from vitcli.data.sampler import TrainSampler
from vitcli.data.transforms import preprocessing_of, train_transform_of
from vitcli.distributed.runtime import peak_memory_gib
from vitcli.errors import DataError, MachineError, NotFiniteError, Stopped, VitError
from vitcli.evaluation.metrics import Metrics, PatchMetrics
from vitcli.export.model_card import card_of
from vitcli.output import plots, run_folder
from vitcli.output.atomic import TEMPORARY, read_jsonl
from vitcli.output.redaction import public_name
from vitcli.output.run_folder import RunFolder, earlier_summary, refuse_other_recipe
from vitcli.recipe import Recipe
from vitcli.training import checkpoint, figures, tracking
from vitcli.training.checkpoint import Saver
from vitcli.training.loop import RunCounters, train
from vitcli.training.objective import TrainingTask, training_task
from vitcli.training.schedule import lr_at_step
from vitcli.training.setup import MakeModel, RunOptions, TrainingJob, describe, set_up
from vitcli.training.state import TrainingState
from vitcli.training.validation import PeriodicEvaluation
from vitcli.weights.io import write_weights

MEASURED_STEPS = 10
CHECKED_IMAGES = 200_000  # looked at before the first step, some ten seconds' worth


def run(
    command: str,
    recipe: Recipe,
    options: RunOptions,
    make_model: MakeModel,
    *,
    open_data: Callable[..., DataSet] = DataSet,
) -> dict[str, Any]:
    """Train by a recipe and score the held-out split; the run's summary, or its plan with --dry-run."""
    if options.out and not options.overwrite and not options.dry_run:
        earlier = earlier_summary(options.out, recipe)
        if earlier:
            return earlier
    if options.measure and not options.dry_run:
        raise VitError("--measure belongs to --dry-run", where="--measure", fix="--dry-run --measure")
    job = set_up(command, recipe, options, make_model, open_data=open_data)
    if options.dry_run:
        result = describe(job) | (TrainingRun(job).measure() if options.measure else {})
    else:
        result = TrainingRun(job).run()
    job.runtime.shutdown()
    return result


class TrainingRun:
    """One sitting of a run: from its first step or its last checkpoint to its end."""

    def __init__(self, job: TrainingJob):
        self.job = job
        self.recipe, self.runtime = job.recipe, job.runtime
        self.num_threads = job.options.workers or loader.default_threads(job.runtime.processes_here)
        self.state: TrainingState | None = None
        self.folder: run_folder.RunFolder | None = None  # of the first process alone
        self.path: Path | None = None

    def run(self) -> dict[str, Any]:
        """Train and leave a finished run folder."""
        self.path = self.runtime.on_main(self._open_folder)
        self._check_shared()
        saver = Saver(
            self.runtime,
            take=lambda: self.state.copied(self.folder),
            write=lambda copied: self.state.write(self.path, copied),
            every_minutes=self.recipe.train.save_minutes,
        )
        try:
            self.state = TrainingState(self.job)
            self.state.resume(self.path, self.folder)
            if self.state.counters.step == 0:
                self._check_images()
            task = training_task(self.recipe)
            watch = self._watch(task)
            self._train(task, watch, saver)
            scores, skipped = watch.evaluate()
            probed = watch.probe(self.job.plan.total_steps) if self.recipe.eval.probe else None
            skipped = self.runtime.union(self.state.counters.skipped | set(skipped))
            summary = summarise(
                self.job, self.path, scores, self.state.counters, skipped=skipped, probed=probed
            )
            weights = self.state.final_weights()
            if self.folder:
                write_results(self.job, self.folder, scores, summary, task.kept(weights))
        except NotFiniteError as error:
            saver.close()
            step = checkpoint.newest_step(self.path)
            self.runtime.close_trackers()  # an arm that diverges is not the end of the command
            error.where += (
                f"; last good checkpoint: {'none' if step is None else f'step {step}'} in {self.path}"
            )
            raise
        except Stopped as stopped:
            stopped.out = self.path
            raise
        except Exception as error:
            error.run_dir = self.path  # where a crash report goes
            raise
        finally:
            saver.close()
            self.job.progress.end()
            if self.folder:
                self.folder.close()
        return summary

    def measure(self) -> dict[str, float]:
        """Speed and memory of ten real steps; nothing is written."""
        images_seen = self.job.plan.images_seen
        steps = min(MEASURED_STEPS, self.job.plan.total_steps)
        self.job = replace(self.job, plan=replace(self.job.plan, total_steps=steps))
        self.state = TrainingState(self.job)
        try:
            saver = Saver(self.runtime, take=lambda: None, write=lambda _: None, every_minutes=None)
            task = training_task(self.recipe)
            self._train(task, self._watch(task), saver)
        finally:
            self.job.progress.end()
        images_per_s = steps * self.job.plan.batch_size / self.state.counters.elapsed_s
        return {
            "measured_images_per_s": images_per_s,
            "measured_hours": images_seen / images_per_s / 3600,
            "measured_peak_memory_gib": peak_memory_gib(),
        }

    def _open_folder(self) -> Path:
        options = self.job.options
        path = options.out or run_folder.new_folder(
            self.job.command, self.recipe.data.dataset, self.job.start.arch.name
        )
        self.folder = run_folder.RunFolder(path, overwrite=options.overwrite)
        if (path / run_folder.RECIPE).exists():
            refuse_other_recipe(path, self.recipe)
        checkpoint.clean(path)
        self.folder.write_start(recipes.to_toml(self.recipe), run_folder.environment(options.arguments))
        self.folder.write_json("plan.json", asdict(self.job.plan))
        self.job.progress.note(f"run folder {path}")
        if options.track:
            self.folder.also_log = tracking.start_tracker(
                self.runtime, options.track, path, recipes.flat(self.recipe)
            )
        return path

    def _check_shared(self) -> None:
        """Refuse a folder that some process does not see: its part of a checkpoint would lie elsewhere."""
        token = self.path / f"{TEMPORARY}shared"
        told = self.runtime.on_main(lambda: secrets.token_hex(8))
        self.runtime.on_main(lambda: token.write_text(told))
        try:
            sees_it = token.read_text() == told
        except OSError:
            sees_it = False
        is_apart = self.runtime.any(not sees_it)
        self.runtime.on_main(token.unlink)
        if is_apart:
            raise MachineError(
                "not every process of the run sees the run folder",
                where=f"--out {self.path}",
                fix="put --out on a file system that all machines of the run share",
            )

    def _check_images(self) -> None:
        """Stop for a bad picture before the first step and not after hours, unless there are too many."""
        for split in (self.job.train_split, self.job.eval_split):
            if len(split) > CHECKED_IMAGES or split.block_starts is not None:  # shards may be far away
                continue
            errors = self.runtime.concatenated(
                loader.check_images(
                    split,
                    rank=self.runtime.rank,
                    world_size=self.runtime.world_size,
                    num_threads=self.num_threads,
                )
            )
            if errors and self.recipe.data.on_bad_image == "error":
                count = f"{len(errors)} of the {len(split)} images of {split.name} cannot be read, such as: "
                raise DataError(count + errors[0].message, where=errors[0].where, fix=errors[0].fix)
            if errors:
                self.job.progress.note(f"{len(errors)} images of {split.name} are undecodable and left out")

    def _watch(self, task: TrainingTask) -> PeriodicEvaluation:
        return PeriodicEvaluation(self.job, self.state, task, path=self.path, num_threads=self.num_threads)

    def _sampler(self) -> TrainSampler:
        return TrainSampler(
            num_examples=len(self.job.train_split),
            block_starts=self.job.train_split.block_starts,
            window=self.recipe.data.shuffle_window,
            batch_size=self.job.plan.batch_size,
            seed=self.recipe.train.seed,
            rank=self.runtime.rank,
            world_size=self.runtime.world_size,
        )

    def _train(self, task: TrainingTask, watch: PeriodicEvaluation, saver: Saver) -> None:
        wanted, plan = self.recipe, self.job.plan
        batches = loader.train_batches(
            self.job.train_split,
            train_transform_of(wanted.data),
            self._sampler(),
            steps=range(self.state.counters.step, plan.total_steps),
            per_device_batch=plan.per_device_batch,
            on_bad_image=wanted.data.on_bad_image,
            num_threads=self.num_threads,
        )
        lr_at = partial(
            lr_at_step,
            base_lr=self.job.lr,
            total_steps=plan.total_steps,
            warmup_steps=plan.warmup_steps,
            decay=wanted.schedule.decay,
            end_lr=wanted.schedule.end_lr,
        )
        train(
            runtime=self.runtime,
            model=self.state.wrapped,
            optimizer=self.state.optimizer,
            average=self.state.average,
            batches=batches,
            objective=task.objective,
            mean=wanted.data.mean,
            std=wanted.data.std,
            plan=plan,
            gradients=self.state.gradients,
            lr_at=lr_at,
            seed=wanted.train.seed,
            clip=wanted.optimizer.clip,
            log_every=wanted.train.log_every,
            save_every=wanted.train.save_every,
            watch=watch.after,
            saver=saver,
            folder=self.folder,
            progress=self.job.progress,
            counters=self.state.counters,
        )


def summarise(
    job: TrainingJob,
    path: Path,
    scores: Metrics | PatchMetrics,
    counters: RunCounters,
    *,
    skipped: set[str],
    probed: dict[str, Any] | None,
) -> dict[str, Any]:
    """The object of summary.json and --json."""
    wanted, images = job.recipe, job.plan.images_seen
    run_scores = {name: value for name, value in asdict(scores).items() if name != "num_examples"}
    return {
        "command": job.command,
        "run_dir": str(path),
        "model": job.start.arch.name,
        "ckpt": job.start.origin,
        "dataset": wanted.data.dataset,
        "train_split": job.train_split.name,
        "num_train_examples": job.plan.num_examples,
        "num_classes": job.train_split.num_classes,
        "resolution": wanted.data.image_size,
        "steps": job.plan.total_steps,
        "batch_size": job.plan.batch_size,
        "lr": job.lr,
        "dev_top1_by_lr": None,
        **run_scores,
        "top1_std": None,
        "runs": [{"seed": wanted.train.seed, **run_scores}],
        "num_eval_examples": scores.num_examples,
        "eval_split": job.eval_split.name,
        "fewshot": probed,
        "preprocessing": preprocessing_of(wanted.data).summary(),
        "num_skipped_images": len(skipped),
        "skipped_images": sorted(skipped)[:100],
        "images_per_s": images / counters.elapsed_s if counters.elapsed_s else None,
        "elapsed_s": counters.elapsed_s,
        "exaflops": job.plan.exaflops,
        "peak_memory_gib": peak_memory_gib(),
        "precision": job.runtime.precision,
        "num_processes": job.runtime.world_size,
        "weights": str(path / "model.safetensors"),
    }


def write_results(
    job: TrainingJob,
    folder: RunFolder,
    scores: Metrics | PatchMetrics,
    summary: dict[str, Any],
    weights: dict[str, Tensor],
) -> None:
    """Everything a finished run leaves; a folder with a summary is a finished one."""
    folder.log({"step": job.plan.total_steps, "eval": asdict(scores)})
    if summary["fewshot"]:
        folder.log({"step": job.plan.total_steps, "probe": summary["fewshot"]})
    write_weights(
        folder.path,
        weights,
        job.start.arch,
        preprocessing=preprocessing_of(job.recipe.data).as_dict(),
        class_names=job.train_split.class_names if job.start.arch.num_classes else None,
        metadata={
            "trained_by": job.command,
            "from": job.start.origin and public_name(job.start.origin),
            "steps": job.plan.total_steps,
            "averaged": bool(job.recipe.optimizer.average),
            "dev_cut": job.eval_split.dev_cut,
            **({"top1": scores.top1} if isinstance(scores, Metrics) else {}),
        },
    )
    for name, figure in figures.training_curves(read_jsonl(folder.path / run_folder.METRICS)).items():
        plots.save(folder.path / "figures" / f"{name}.png", figure)
    folder.write_text("README.md", card_of(summary, job.recipe, job.start.arch))
    folder.write_json(run_folder.SUMMARY, summary)
