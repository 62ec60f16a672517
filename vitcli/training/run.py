"""One training run, from its job to a finished run folder: resume, train, evaluate, write the results."""

import secrets
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from vitcli.data import loader, seen_images
from vitcli.data.loader import Batch
from vitcli.data.sampler import TrainSampler
from vitcli.data.seen_images import SeenImages
from vitcli.data.split import Split
from vitcli.data.transforms import train_transform_of
from vitcli.distributed import launch, peers, startup
from vitcli.distributed.runtime import Runtime, peak_memory_gib
from vitcli.errors import MachineError, NotFiniteError, Stopped
from vitcli.evaluation.predictions import Predictions, scores_of_classes
from vitcli.evaluation.setup import seen_by_each
from vitcli.output import run_folder
from vitcli.output.atomic import TEMPORARY, read_json
from vitcli.output.profile import StepProfiler, marked, teacher
from vitcli.output.run_folder import RunFolder
from vitcli.output.text import lines_of
from vitcli.recipe import Recipe
from vitcli.training import checkpoint, notes
from vitcli.training.loop import LoopSettings, train
from vitcli.training.methods import resolutions
from vitcli.training.methods.imbalance import class_order, loss_weights
from vitcli.training.methods.time_limit import TimeLimit, scoring_of
from vitcli.training.objective import training_task
from vitcli.training.results import details_of, summarise, weights_description, write_results
from vitcli.training.setup import TrainingJob, describe
from vitcli.training.state import Saver, TrainingState, build_state, resume
from vitcli.training.tracking import Tracking
from vitcli.training.validation import PeriodicEvaluation
from vitcli.weights.io import write_config

MEASURED_STEPS = 10
FIRST_STEPS, FIRST_STEPS_COMPILED = 3, 5  # slow, and not measured: CUDA starts, torch.compile compiles


def run(job: TrainingJob) -> dict[str, Any]:
    """Train and score the held-out split; return the summary, or the plan with --dry-run."""
    with peers.watched(job.runtime):
        if not job.options.dry_run:
            result = TrainingRun(job).run()
        else:
            job.progress.detail(notes.of_length(job.plan, job.recipe))
            result = describe(job) | (TrainingRun(job).measure() if job.options.measure else {})
    job.runtime.shutdown()
    return result


class TrainingRun:
    """A run from its first step, or from its last checkpoint, to its end."""

    def __init__(self, job: TrainingJob):
        self._job = job
        self.recipe, self.runtime = job.recipe, job.runtime
        self.num_threads = job.options.workers or loader.default_threads(job.runtime.cores)
        weights, distill = loss_weights(job.splits.train, job.recipe), job.recipe.distill
        if distill and distill.images and not weights:  # those without a label have none
            weights = (1.0,) * job.splits.train.num_classes
        self.task = training_task(
            job.recipe.objective, job.splits.train, class_weights=weights, teacher=distill
        )
        self.path: Path | None = None
        # From the first step on.
        self.state: TrainingState | None = None
        self.evaluation: PeriodicEvaluation | None = None
        # Of the first process only.
        self.folder: RunFolder | None = None
        self.tracking: Tracking | None = None

    @property
    def job(self) -> TrainingJob:
        """What is decided of the run; methods and plans of a time limit may change it."""
        return self._job

    @job.setter
    def job(self, job: TrainingJob) -> None:
        self._job = job
        if self.evaluation:
            self.evaluation.job = job

    def run(self) -> dict[str, Any]:
        """Train, write the results into the run folder and return the summary."""
        launch.enter("the start of the run")
        self.path = self.runtime.on_main(self._open_folder)
        check_shared(self.runtime, self.path)
        try:
            # Build the model's state, or load the last checkpoint into it.
            self.state = build_state(self.job)
            if self._makes_plans:
                self._follow_recorded_plans()
            self.state.limit = self._time_limit()
            resume(self.state, self.job, self.path, self.folder)
            self.runtime.on_main(self._start_tracking)
            self.evaluation = self._evaluation(self.state)

            # Train, evaluate the final weights and write the results.
            delivery = self._train_by_methods()
            summary = self._score_and_write(delivery)
        except NotFiniteError as error:
            if self.runtime.is_main:  # which has written it, where others may be faster
                step = run_folder.newest_checkpoint_step(self.path)
                good = "none" if step is None else f"step {step}"
                error.where += f"; last good checkpoint: {good} in {self.path}"
            raise
        except Stopped as stopped:
            stopped.out = self.path
            raise
        except Exception as error:
            error.run_dir = self.path  # where a crash report goes
            raise
        finally:
            self.job.progress.end()
            for problem in self.job.images.problems():
                self.job.progress.note_once(f"note: {problem}")
            if self.tracking:
                self.tracking.close()
            if self.folder:
                self.folder.close()
        return summary

    def _train_by_methods(self) -> dict[str, Any]:
        """Train between the moments of the methods; return keys of the summary, also if they survive NaN."""
        methods, delivery, diverged = self.job.methods, {}, ""
        for method in methods:
            method.before_steps(self)
        try:
            with Saver(self.state, self.job, self.path, self.folder) as saver:
                self._train(self.state, self.evaluation, saver)
        except NotFiniteError as error:
            if not self.job.survives_divergence:
                raise
            diverged = f"{error.message} ({error.where})"
        choice = self.job.splits.choice
        of_training = {"num_choice_examples": len(choice)} if choice and not diverged else {}
        for method in methods:
            delivery |= method.after_steps(self, diverged)
        return delivery | of_training

    def _score_and_write(self, delivery: dict[str, Any]) -> dict[str, Any]:
        """Evaluate the weights to deliver, write the results and return the summary."""
        launch.enter("the final evaluation")
        job, state, evaluation = self.job, self.state, self.evaluation
        score = job.options.folds.scores if job.is_of_all_folds else evaluation.predict
        metrics, skipped, predictions = score()
        results = [method.results(self, predictions, delivery) for method in job.methods]
        class_scores = scores_of_classes(predictions) if isinstance(predictions, Predictions) else None
        probe = evaluation.few_shot_probe(job.plan.total_steps) if self.recipe.eval.probe else None
        skipped = self.runtime.union(state.skipped | set(skipped))
        seen, num_held_out = self._seen_images()
        details = num_held_out | details_of(job, metrics, predictions, skipped)
        metadata: dict[str, Any] = {seen_images.KEY: seen} if seen else {}
        for of_summary, of_weights in results:
            details, metadata = details | of_summary, metadata | of_weights
        summary = summarise(
            job,
            self.path,
            metrics,
            state.elapsed_s,
            skipped=skipped,
            probe=probe,
            class_means=class_scores.means() if class_scores else {},
            details=details | delivery,
        )
        weights = state.final_weights()
        if self.folder:
            published = self.task.published(weights)
            write_results(job, self.folder, metrics, predictions, summary, published, metadata=metadata)
        return summary

    def measure(self) -> dict[str, float]:
        """Return speed and memory of ten real steps, after the first ones; nothing is written."""
        plan = self.job.plan
        unmeasured = FIRST_STEPS_COMPILED if self.job.options.compile else FIRST_STEPS
        first = min(unmeasured, plan.total_steps - 1)
        last = min(first + MEASURED_STEPS, plan.total_steps)
        state = replace(build_state(self.job), methods=())
        try:
            for total_steps in (first, last):
                state.elapsed_s = 0.0
                self.job = replace(self.job, plan=replace(plan, total_steps=total_steps))
                self._train(state, self._evaluation(state), saver=None)
        finally:
            self.job.progress.end()
        images_per_s = (last - first) * plan.batch_size / state.elapsed_s
        return {
            "measured_images_per_s": images_per_s,
            "measured_hours": plan.images_seen / images_per_s / 3600,
            "measured_peak_memory_gib": peak_memory_gib(),
        }

    def views(self, image_size: tuple[int, int], first_step: int) -> Iterator[Batch]:
        """Load the micro-batches from `first_step` on as a teacher for images of another size sees them."""
        return batches_of(self.job, first_step, num_threads=self.num_threads, image_size=image_size)

    def _open_folder(self) -> Path:
        """Lock the run folder, refuse another run's, and write what is known before the first step."""
        options, command, model = self.job.options, self.job.command, self.job.start.arch.name
        unfinished = None if options.out else run_folder.unfinished_run(command, model, self.recipe)
        if unfinished:
            self.job.progress.note(
                f"note: {unfinished} holds an unfinished run of this recipe; --out {unfinished} resumes it"
            )
        path = options.out or run_folder.new_folder(command, self.recipe.data.dataset, model)
        self.folder = run_folder.open_run(
            path, self.recipe, options.arguments, overwrite=options.overwrite, keep_metrics=True
        )
        checkpoint.clean(path)
        if not self._makes_plans or not run_folder.checkpoint_folders(path):
            self._write_plan()
        # Weights of a checkpoint can be used before the run ends.
        description = weights_description(self.job)
        write_config(path, description)
        if description.class_names:
            self.folder.write_text(run_folder.CLASSES, lines_of(description.class_names))
        if self.job.images.placements:
            self.folder.log_timing({"decoded_images": self.job.images.record()})
        show = self.job.progress.detail if options.title else self.job.progress.note
        show(f"{notes.of_length(self.job.plan, self.recipe)}, into {path}")
        return path

    @property
    def _makes_plans(self) -> bool:
        """Whether the run decides about its length while it runs."""
        has_limit = self.recipe.schedule.max_minutes is not None
        return has_limit or any(method.decides_by_evaluations for method in self.job.methods)

    def _write_plan(self) -> None:
        plan, earlier = self.job.plan, self.job.earlier_plans
        totals = [*(plan.total_steps for _, plan in earlier[1:]), plan.total_steps]
        replans = [[end, total] for (end, _), total in zip(earlier, totals, strict=False)]
        more = {"model": self.job.start.arch.name, "compile": self.job.options.compile}
        more |= {"replans": replans} if replans else {}
        self.folder.write_json(run_folder.PLAN, asdict(plan) | more)

    def _follow_recorded_plans(self) -> None:
        """Take the plans that an earlier part of a run with a time limit has made."""
        recorded = self.runtime.on_main(lambda: read_json(self.path / run_folder.PLAN)) or {}
        for step, total_steps in recorded.get("replans", ()):
            self.job = self.job.replanned(step, total_steps)
        self.runtime.on_main(self._write_plan)

    def _time_limit(self) -> TimeLimit | None:
        """Return the clock of a run with a time limit."""
        minutes = self.recipe.schedule.max_minutes
        if minutes is None:
            return None
        return TimeLimit(
            60 * minutes,
            scoring_of(self.job),
            began_at=self.job.options.began_at,
            most_steps=self.job.part_at(0)[0].total_steps,
            is_planned=bool(self.job.earlier_plans),
            is_main=self.runtime.is_main,
        )

    def _start_tracking(self) -> None:
        options, note = self.job.options, self.job.progress.note
        if options.track:
            self.tracking = Tracking(options.track, self.folder, self.recipe, note=note, quiet=options.quiet)
            self.folder.also_log = self.tracking.log

    def _seen_images(self) -> tuple[dict[str, str] | None, dict[str, int | None]]:
        """Return the digests of this run's images, and how many held-out ones were trained on."""
        start, split = self.job.start, self.job.splits.eval
        held_out = split.rows(np.arange(0)) if self.job.is_of_all_folds else split
        of_teachers = seen_by_each([(name, None) for name in self.recipe.teachers], quiet=True)
        return seen_images.record(
            self.job.splits.train,
            held_out,
            chosen_by=self.job.splits.choice,
            before=[*([start.seen or SeenImages()] if start.origin else []), *of_teachers],
            rank=self.runtime.rank,
            world_size=self.runtime.world_size,
            concatenated=self.runtime.concatenated,
        )

    def _evaluation(self, state: TrainingState) -> PeriodicEvaluation:
        return PeriodicEvaluation(self.job, state, self.task, run_dir=self.path, num_threads=self.num_threads)

    def _train(self, state: TrainingState, evaluation: PeriodicEvaluation, saver: Saver | None) -> None:
        """Train to the end; a run with a time limit in parts, each with a plan of its own."""
        if state.limit:
            state.limit.score_s = evaluation.seconds_per_image()
        while state.step < self.job.plan.total_steps:
            plan, until = self.job.part_at(state.step)
            if not state.reason_to_end:  # as there is in a run that was stopped at its last step
                self._train_part(replace(self.job, plan=plan), until, state, evaluation, saver)
            if state.step < self.job.plan.total_steps and state.step != until:
                self._plan_again(state)
        if saver and state.reason_to_end:  # at a step that the loop did not know as the last one
            saver.save(wait=True)

    def _plan_again(self, state: TrainingState) -> None:
        """Plan the steps that are left so that the run ends on time, and record that before the first one."""
        step, limit, before = state.step, state.limit, self.job.plan.total_steps
        reason = state.reason_to_end
        total_steps = step if reason else self.runtime.on_main(lambda: limit.plan(step))
        self.job = self.job.replanned(step, total_steps)
        self.runtime.on_main(self._write_plan)
        self.job.progress.end()
        if reason:
            self.job.progress.note(f"the run ends after step {step}: {reason}")
            return
        self.job.progress.note(limit.line(step, total_steps, before=before))

    def _train_part(
        self,
        job: TrainingJob,
        until: int,
        state: TrainingState,
        evaluation: PeriodicEvaluation,
        saver: Saver | None,
    ) -> None:
        """Pass the parts of the job to the loop; with --profile the first process traces three steps."""
        plan, objective = job.plan, self.task.objective
        batches = batches_of(job, state.step, num_threads=self.num_threads)
        targets = tuple(each for method in job.methods if (each := method.targets(self)))
        profiler = None
        if self.job.options.profile and self.folder:
            left = plan.total_steps - state.step
            profiler = StepProfiler(parts=plan.accumulation_steps, total_steps=left)
            batches, objective = profiler.watch(batches), marked(objective)
            targets = tuple(marked(each, teacher) for each in targets)
        startup.keep_freed_memory()  # the activations' of a step, for the next one
        train(
            state,
            replace(loop_settings(job, until), targets=targets),
            objective,
            batches,
            evaluation=evaluation,
            saver=saver,
            folder=self.folder,
            progress=self.job.progress,
        )
        startup.release_freed_memory()  # before evaluation and figures take theirs
        if profiler:
            lines = profiler.lines(precision=self.runtime.precision, folder=self.path)
            self.job.progress.note("\n".join(lines))


def batches_of(
    job: TrainingJob, first_step: int, *, num_threads: int, image_size: tuple[int, int] | None = None
) -> Iterator[Batch]:
    """Load this process's micro-batches of all steps from `first_step` on.

    Args:
        image_size: height and width of a teacher's views; None for what is trained on.
    """
    recipe, plan, split = job.recipe, job.plan, job.splits.train
    sampler = sampler_of(split, recipe, rank=job.runtime.rank, world_size=job.runtime.world_size)
    transform, sides = train_transform_of(recipe.data), recipe.schedule.image_sizes
    if image_size:
        scale = image_size[0] / transform.image_size[0]
        transform, sides = replace(transform, image_size=image_size, distance_scale=scale), None
    batches = partial(
        loader.train_batches,
        split,
        sampler=sampler,
        per_device_batch=plan.per_device_batch,
        on_bad_image=recipe.data.on_bad_image,
        num_threads=num_threads,
    )
    if not sides:
        return batches(transform, steps=range(first_step, plan.total_steps))
    parts = resolutions.parts_of(sides, first_step=first_step, total_steps=plan.total_steps)
    return chain.from_iterable(
        batches(resolutions.at_side(transform, side), steps=steps) for side, steps in parts
    )


def sampler_of(split: Split, recipe: Recipe, *, rank: int, world_size: int) -> TrainSampler:
    """Return the order in which a run sees the rows of its training split."""
    return TrainSampler(
        num_examples=len(split),
        block_starts=split.block_starts,
        window=recipe.data.shuffle_window,
        batch_size=recipe.train.batch_size,
        seed=recipe.train.seed,
        rank=rank,
        world_size=world_size,
        by_class=class_order(split, recipe),
    )


def loop_settings(job: TrainingJob, until: int | None = None) -> LoopSettings:
    """Return the learning rates and everything else that the loop reads from the recipe."""
    recipe = job.recipe
    return LoopSettings(
        plan=job.plan,
        lr_at=job.lr_at,
        clip=recipe.optimizer.clip,
        mean=recipe.data.mean,
        std=recipe.data.std,
        seed=recipe.train.seed,
        log_every=recipe.train.log_every,
        save_every=recipe.train.save_every,
        until=until,
    )


def check_shared(runtime: Runtime, run_dir: Path) -> None:
    """Refuse a run folder that some process does not see: its part of a checkpoint would be missing."""
    file = run_dir / f"{TEMPORARY}shared"
    token = runtime.on_main(lambda: secrets.token_hex(8))
    runtime.on_main(lambda: file.write_text(token))
    try:
        is_visible = file.read_text() == token
    except OSError:
        is_visible = False
    is_missing = runtime.any(not is_visible)
    runtime.on_main(file.unlink)
    if is_missing:
        raise MachineError(
            "not every process of the run sees the run folder",
            where=f"--out {run_dir}",
            fix="put --out on a file system that all machines of the run share",
        )
