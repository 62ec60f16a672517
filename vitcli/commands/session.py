"""A job to a run folder: prepare, go on from the last checkpoint, train, evaluate, write.

Shared by the commands that train; no command of its own.
"""

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from vitcli import __version__, checkpoint, inference, loader, losses, optim, recipe, runlog, runtime
from vitcli.commands.job import (
    Job,
    RunOptions,
    Start,
    default_folder,
    describe,
    earlier_summary,
    make_job,
    refuse_other_recipe,
)
from vitcli.commands.pixels import preprocessing_of, train_transform_of
from vitcli.commands.results import summarise, write_results
from vitcli.errors import DataError, NotFiniteError, Stopped, VitError
from vitcli.metrics import Scores
from vitcli.recipe import Recipe
from vitcli.schedule import lr_at_step
from vitcli.split import Split
from vitcli.train import Progress, train

MEASURED_STEPS = 10
CHECKED_IMAGES = 200_000  # looked at before the first step, some ten seconds' worth


def run(
    command: str, resolved: Recipe, options: RunOptions, make_model: Callable[[Split, tuple[int, int]], Start]
) -> dict[str, Any]:
    """Train by a recipe and score the held-out split; the run's summary, or its plan with --dry-run."""
    if options.out and not options.overwrite and not options.dry_run:
        earlier = earlier_summary(options.out, resolved)
        if earlier:
            return earlier
    if options.measure and not options.dry_run:
        raise VitError("--measure belongs to --dry-run", where="--measure", fix="--dry-run --measure")
    job = make_job(command, resolved, options, make_model)
    if options.dry_run:
        result = describe(job) | (Session(job).measure() if options.measure else {})
    else:
        result = Session(job).run()
    job.machine.leave()
    return result


class Session:
    """One sitting of a run: from its first step or its last checkpoint to its end."""

    def __init__(self, job: Job):
        self.job = job
        self.recipe, self.machine = job.recipe, job.machine
        self.num_threads = job.options.workers or loader.default_threads(job.machine.processes_here)
        self.progress = Progress()
        self.folder: runlog.RunFolder | None = None  # of the first process alone
        self.path: Path | None = None

    def run(self) -> dict[str, Any]:
        """Train and leave a finished run folder."""
        self.path = self.machine.on_main(self._open_folder)
        try:
            self._prepare()
            self._resume()
            if self.progress.step == 0:
                self._check_images()
            self._train(save=self._save)
            scores, skipped = self._evaluate()
            skipped = self.machine.union(self.progress.skipped | set(skipped))
            summary = summarise(self.job, self.path, scores, self.progress, skipped=skipped)
            if self.folder:
                weights = self.average.tensors if self.average else self.model.state_dict()
                write_results(self.job, self.folder, scores, summary, weights)
        except NotFiniteError as error:
            step = checkpoint.newest_step(self.path)
            error.where += (
                f"; last good checkpoint: {'none' if step is None else f'step {step}'} in {self.path}"
            )
            raise
        except Stopped as stopped:
            stopped.note += f", saved; the same command line with --out {self.path} goes on from there"
            raise
        except Exception as error:
            error.run_dir = self.path  # where a crash report goes
            raise
        finally:
            self.job.console.end()
            if self.folder:
                self.folder.close()
        return summary

    def measure(self) -> dict[str, float]:
        """Speed and memory of ten real steps; nothing is written."""
        images_seen = self.job.plan.images_seen
        steps = min(MEASURED_STEPS, self.job.plan.total_steps)
        self.job = replace(self.job, plan=replace(self.job.plan, total_steps=steps))
        self._prepare()
        try:
            self._train(save=lambda: None)
        finally:
            self.job.console.end()
        images_per_s = steps * self.job.plan.batch_size / self.progress.elapsed_s
        return {
            "measured_images_per_s": images_per_s,
            "measured_hours": images_seen / images_per_s / 3600,
            "measured_peak_memory_gib": runtime.peak_memory_gib(),
        }

    def _open_folder(self) -> Path:
        options = self.job.options
        path = options.out or default_folder(self.job)
        self.folder = runlog.RunFolder(path, overwrite=options.overwrite)
        if (path / runlog.RECIPE).exists():
            refuse_other_recipe(path, self.recipe)
        checkpoint.clean(path)
        self.folder.write_start(recipe.to_toml(self.recipe), runlog.environment(options.arguments))
        self.folder.write_json("plan.json", asdict(self.job.plan))
        self.job.console.note(f"run folder {path}")
        if options.track:
            self.folder.also_log = runtime.start_tracker(
                self.machine, options.track, path, recipe.flat(self.recipe)
            )
        return path

    def _check_images(self) -> None:
        """Stop for a bad picture before the first step and not after hours, unless there are too many."""
        for split in (self.job.train_split, self.job.eval_split):
            if len(split) > CHECKED_IMAGES:
                continue
            errors = self.machine.concatenated(
                loader.check_images(
                    split,
                    rank=self.machine.rank,
                    world_size=self.machine.world_size,
                    num_threads=self.num_threads,
                )
            )
            if errors and self.recipe.data.on_bad_image == "error":
                count = f"{len(errors)} of the {len(split)} images of {split.name} cannot be read, such as: "
                raise DataError(count + errors[0].message, where=errors[0].where, fix=errors[0].fix)
            if errors:
                self.job.console.note(f"{len(errors)} images of {split.name} are undecodable and left out")

    def _prepare(self) -> None:
        """Model and optimizer on their device: `self.model` stays bare, `self.wrapped` is Accelerate's."""
        wanted = self.recipe.optimizer
        self.model = self.job.start.model
        optimizer = optim.build_optimizer(
            self.model,
            name=wanted.name,
            momentum=wanted.momentum,
            betas=wanted.betas,
            eps=wanted.eps,
            weight_decay=wanted.weight_decay,
            decay_on=wanted.decay_on,
        )
        if self.job.options.compile:
            self.model.compile()
        self.wrapped, self.optimizer = self.machine.accelerator.prepare(self.model, optimizer)
        self.average = optim.WeightAverage(self.model, factor=wanted.average) if wanted.average else None

    def _resume(self) -> None:
        step, notes = self.machine.on_main(lambda: checkpoint.find_newest(self.path))
        for note in notes:
            self.job.console.note(f"{note}, using the one before it")
        found = None if step is None else checkpoint.read(self.path, step)
        if found is not None:
            self._compare_fingerprints(found.state["fingerprint"])
            self.model.load_state_dict(found.model)
            checkpoint.restore_optimizer(self.model, self.optimizer, found.optimizer)
            if self.average:
                self.average.restore(found.average)
            self.machine.scaler.load_state_dict(found.state["scaler"])
            self.progress = Progress(found.step, found.state["elapsed_s"], set(found.state["skipped"]))
            self.job.console.note(f"going on from step {found.step}")
        if self.folder:
            self.folder.rewind_metrics(found.state["metrics_bytes"] if found else 0)

    def _compare_fingerprints(self, before: dict[str, Any]) -> None:
        now = self._fingerprint()
        for key in ("train_data", "eval_data"):
            if before[key] != now[key]:
                raise VitError(
                    "the data set has changed since this run began",
                    where=f"{self.recipe.data.dataset}, {key.replace('_', ' ')}",
                    fix="restore the data set, or start a new run in another folder",
                )
        changed = [f"{key} {before.get(key)} -> {now[key]}" for key in now if before.get(key) != now[key]]
        if changed:
            self.job.console.note(f"no longer bit-exact with the start of the run: {', '.join(changed)}")

    def _fingerprint(self) -> dict[str, Any]:
        """What besides the recipe decides about the bits of a run."""
        return {
            "train_data": self.job.train_split.fingerprint,
            "eval_data": self.job.eval_split.fingerprint,
            "per_device_batch": self.job.plan.per_device_batch,
            "num_processes": self.machine.world_size,
            "precision": self.machine.precision,
            "device": self.machine.device.type,
            "threads": torch.get_num_threads(),
            **{name: version(name) for name in runlog.LIBRARIES},
            "vit": __version__,
        }

    def _train(self, *, save: Callable[[], None]) -> None:
        wanted, plan = self.recipe, self.job.plan
        batches = loader.train_batches(
            self.job.train_split,
            train_transform_of(wanted),
            start_step=self.progress.step,
            total_steps=plan.total_steps,
            batch_size=plan.batch_size,
            per_device_batch=plan.per_device_batch,
            seed=wanted.train.seed,
            rank=self.machine.rank,
            world_size=self.machine.world_size,
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
            runtime=self.machine,
            model=self.wrapped,
            optimizer=self.optimizer,
            average=self.average,
            batches=batches,
            loss_fn=losses.loss_fn(wanted.objective.loss, label_smoothing=wanted.objective.label_smoothing),
            mean=wanted.data.mean,
            std=wanted.data.std,
            plan=plan,
            lr_at=lr_at,
            seed=wanted.train.seed,
            clip=wanted.optimizer.clip,
            log_every=wanted.train.log_every,
            eval_every=wanted.eval.every,
            save_every=wanted.train.save_every,
            evaluate=lambda: asdict(self._evaluate()[0]),
            save=save,
            folder=self.folder,
            console=self.job.console,
            progress=self.progress,
        )

    def _save(self) -> None:
        skipped = self.machine.union(self.progress.skipped)

        def write() -> None:
            checkpoint.save(
                self.path,
                self.progress.step,
                model=self.model,
                optimizer=self.optimizer,
                average=self.average.tensors if self.average else None,
                state={
                    "fingerprint": self._fingerprint(),
                    "metrics_bytes": self.folder.metrics_bytes(),
                    "elapsed_s": self.progress.elapsed_s,
                    "skipped": sorted(skipped),
                    "scaler": self.machine.scaler.state_dict(),
                },
                keep=self.recipe.train.keep_checkpoints,
            )

        self.machine.on_main(write)

    def _evaluate(self) -> tuple[Scores, list[str]]:
        """Scores of the weights the run would leave behind now: the averaged ones where there are any."""
        scored = partial(
            inference.evaluate,
            self.model,
            self.job.eval_split,
            preprocessing_of(self.recipe),
            runtime=self.machine,
            batch_size=self.recipe.eval.batch_size,
            on_bad_image=self.recipe.data.on_bad_image,
            num_threads=self.num_threads,
            console=self.job.console,
        )
        if not self.average:
            return scored()
        with self.average.swapped_in(self.model):
            return scored()
