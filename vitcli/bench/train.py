"""`vit bench train`: the steps of a recipe in the real loop, against the machine's limit and timm's step."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from statistics import median
from typing import Any

import torch

from vitcli.bench import limits, synthetic
from vitcli.bench.measure import (
    Clock,
    Lap,
    Stream,
    TimedBatches,
    built_late,
    rates,
    ratio,
    steps_of_a_lap,
    synchronize,
)
from vitcli.bench.setup import Benchmark, BenchOptions, check_one_process, machine
from vitcli.data.dataset import DataSet
from vitcli.data.loader import Batch, default_threads
from vitcli.data.transforms import to_model_range
from vitcli.distributed.runtime import autocast
from vitcli.evaluation.setup import settle_pixels, starts_of
from vitcli.models.build import last_layers
from vitcli.models.masked_patch import MaskedPatchModel
from vitcli.output.progress import Progress
from vitcli.recipe import Recipe, settled, trials
from vitcli.training import finetune, pretrain
from vitcli.training.loop import train
from vitcli.training.objective import training_task
from vitcli.training.run import batches_of, loop_settings
from vitcli.training.setup import InitialModel, RunOptions, TrainingJob, set_up
from vitcli.training.splits import RunData
from vitcli.training.state import TrainingState, build_state

SETTLE_STEPS = 2  # before each lap, not timed: the first after a pause are slower
BARE_STEPS = 3  # of forward, backward and optimizer alone, to choose the length of a lap


def measure_train(recipe: Recipe, options: BenchOptions) -> dict[str, Any]:
    """Return the speed of a recipe's training step; nothing is written, and the learning rate is 0."""
    job = _job(recipe, options)
    check_one_process(job.runtime)
    bench, state = Benchmark(job.runtime, options), build_state(job)
    shapes = limits.linear_shapes(job.start.arch, job.plan.per_device_batch, job.runtime.device.type)
    bare = BareStep(job, state)

    # How long a lap is to be, and the job with as many steps.
    bench.limit(shapes)
    steps = options.steps or steps_of_a_lap(bare.step_s())
    lap_s = (steps + SETTLE_STEPS) * bare.step_s()
    what = (
        f"{job.start.arch.name} on {job.recipe.data.dataset} images, {steps} steps of {job.plan.batch_size}"
    )
    bench.announce(Progress(quiet=options.quiet), what, lap_s, 3 if options.compare else 2)
    total_steps = options.repeats * (steps + SETTLE_STEPS) + 1
    job = replace(job, plan=replace(job.plan, total_steps=total_steps))
    timm = built_late(partial(_timm_side, job, steps, options))

    def others_after(lap: Lap) -> None:
        bench.add("ours", lap)
        bench.add("bare", bare.lap(steps))
        if options.compare:
            bench.add("timm", timm())

    # Ours in the real loop; where a lap of it ends, the others have their turn.
    _run_loop(job, state, steps, others_after, options)
    limit, ours, recipe = bench.limit(shapes), bench.laps["ours"], job.recipe
    return {
        "command": "bench train",
        "model": job.start.arch.name,
        "ckpt": job.start.origin,
        "dataset": recipe.data.dataset,
        "cached": recipe.data.cache == "ram",
        "resolution": recipe.data.image_size,
        "batch_size": job.plan.batch_size,
        "per_device_batch": job.plan.per_device_batch,
        "precision": job.runtime.precision,
        "compile": job.options.compile,
        "optimizer": recipe.optimizer.name,
        "workers": job.options.workers or default_threads(),
        "flops_per_image": limits.training_flops(job.start.arch),
        "steps": steps,
        "repeats": options.repeats,
        **rates(ours),
        "step_s": median(lap.wall_s / steps for lap in ours),
        "limit_flops_per_s": limit,
        "fraction_of_limit": limits.training_flops(job.start.arch) * rates(ours)["images_per_s"] / limit,
        "overhead_fraction": 1 - ratio(ours, bench.laps["bare"])["ratio"],
        **bench.peaks,
        "compare": bench.peer("train"),
        "machine": machine(job.runtime),
    }


def _job(recipe: Recipe, options: BenchOptions) -> TrainingJob:
    """Return the job of a recipe's first run; its head is not zero, since a GPU multiplies zeros faster."""
    command = "pretrain" if recipe.model.ckpt is None else "finetune"
    (_, recipe), *_ = trials(settle_pixels(recipe, command, quiet=options.quiet))
    cache = "ram" if options.cached else "off"
    recipe = settled(recipe, {"train.runs": 1, "data.cache": cache})
    run_options = RunOptions(
        per_device_batch=options.per_device_batch,
        workers=options.workers,
        exact=False,
        shard=False,
        compile=options.compile,
        dry_run=True,
        measure=True,  # with the weights and the data, but without a folder
        quiet=True,
        arguments=[],
    )
    of_command = {
        "finetune": partial(finetune.initial_model, quiet=options.quiet),
        "pretrain": pretrain.initial_model,
    }

    def make_model(recipe: Recipe, split) -> InitialModel:
        start = of_command[command](recipe, split)
        if not isinstance(start.model, MaskedPatchModel):
            for layer in last_layers(start.model):
                torch.nn.init.normal_(layer.weight, std=0.02)
        return start

    is_synthetic = recipe.data.dataset == synthetic.NAME
    data_set = synthetic.SyntheticDataSet if is_synthetic else DataSet
    data = RunData(starts_of(recipe), quiet=True, data_set=data_set)
    job = set_up(command, recipe, run_options, make_model, data=data)
    if options.cached:  # every image is read once
        limits.decode_lap(job.splits.train, len(job.splits.train), options.num_workers)
    return job


def _synthetic_batches(job: TrainingJob) -> Iterator[Batch]:
    image_size, num_classes = job.recipe.data.image_hw, job.splits.train.num_classes
    return synthetic.batches(job.plan.per_device_batch, image_size, num_classes)


def _run_loop(
    job: TrainingJob,
    state: TrainingState,
    steps: int,
    on_lap: Callable[[Lap], None],
    options: BenchOptions,
) -> None:
    """Train in the real loop, and report each lap of it."""
    parts = job.plan.accumulation_steps
    if job.recipe.data.dataset == synthetic.NAME:
        batches = islice(_synthetic_batches(job), job.plan.total_steps * parts)
    else:
        batches = batches_of(job, 0, num_threads=options.num_workers)
    timed = TimedBatches(
        batches, job.runtime.device, settle=SETTLE_STEPS * parts, per_lap=steps * parts, on_lap=on_lap
    )
    settings = replace(loop_settings(job), lr_at=lambda step: 0.0)  # noise as images would end in infinities
    objective = training_task(job.recipe.objective).objective
    train(
        state,
        settings,
        objective,
        iter(timed),
        evaluation=None,
        saver=None,
        folder=None,
        progress=job.progress,
    )


class BareStep:
    """Forward, backward and optimizer alone, on images that are on the device: what no loop can beat."""

    def __init__(self, job: TrainingJob, state: TrainingState):
        self._job, self._state = job, state
        self._objective = training_task(job.recipe.objective).objective
        batch, device = next(_synthetic_batches(job)), job.runtime.device
        mean, std = job.recipe.data.mean, job.recipe.data.std
        self._images_BCHW = to_model_range(batch.images_BCHW.to(device), mean=mean, std=std)
        self._labels_B = batch.labels_B.to(device)
        self._step_s: float | None = None

    def step(self) -> None:
        state, runtime, parts = self._state, self._job.runtime, self._job.plan.accumulation_steps
        for _ in range(parts):
            with autocast(runtime.device, runtime.precision):
                loss = self._objective(state.wrapped, self._images_BCHW, self._labels_B)
            (loss / parts).backward()
        state.optimizer.step()
        state.optimizer.zero_grad()

    def step_s(self) -> float:
        """Return the seconds of a step, measured once."""
        if self._step_s is None:
            self._state.wrapped.train()
            for group in self._state.optimizer.param_groups:
                group["lr"] = 0.0
            self.step()
            synchronize(self._job.runtime.device)
            began_at = time.perf_counter()
            for _ in range(BARE_STEPS):
                self.step()
            synchronize(self._job.runtime.device)
            self._step_s = (time.perf_counter() - began_at) / BARE_STEPS
        return self._step_s

    def lap(self, steps: int) -> Lap:
        self.step()
        clock = Clock(self._job.runtime.device)
        for _ in range(steps):
            self.step()
        return clock.lap(steps * self._job.plan.batch_size)


def _timm_side(job: TrainingJob, steps: int, options: BenchOptions) -> Callable[[], Lap]:
    """Return a lap of timm's training step on the same device, network, images and precision."""
    from vitcli.bench import timm_peer

    recipe, runtime, batch_size = job.recipe, job.runtime, job.plan.batch_size
    settings = recipe.model
    model = timm_peer.network(job.start.arch, dropout=settings.dropout, drop_path=settings.drop_path)
    model.to(runtime.device)
    batches = timm_peer.batches(
        None if recipe.data.dataset == synthetic.NAME else job.splits.train,
        recipe.data,
        batch_size=batch_size,
        num_classes=job.splits.train.num_classes,
        num_workers=options.num_workers,
        is_training=True,
        device=runtime.device,
    )
    work = timm_peer.train_steps(model, batches, recipe, runtime.device, runtime.precision)
    return Stream(work, runtime.device, images_of=int, settle=SETTLE_STEPS, per_lap=steps).lap
