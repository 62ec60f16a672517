"""Setup of a training run: recipe and command-line options become a job with data, network and plan."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import nn

from vitcli import recipe as recipes
from vitcli.data import loader, sampler
from vitcli.data.data_fingerprint import SplitContents, contents_of
from vitcli.data.image_cache import ImageCache
from vitcli.data.parts.eval_split_names import FoldName
from vitcli.data.seen_images import SeenImages
from vitcli.data.split import Split
from vitcli.data.transforms import preprocessing_of
from vitcli.distributed import numerics
from vitcli.distributed.device import has_compiler
from vitcli.distributed.runtime import Runtime, peak_memory_gib, resolve_precision
from vitcli.distributed.runtime import start as start_runtime
from vitcli.errors import VitError
from vitcli.evaluation.predictions import unique_names
from vitcli.evaluation.setup import starts_of
from vitcli.models import flops
from vitcli.models.architecture import Architecture
from vitcli.models.build import TransformerOptions, architecture, build
from vitcli.models.pos_embed import method_for
from vitcli.output import run_folder
from vitcli.output.atomic import read_json
from vitcli.output.progress import Progress
from vitcli.recipe import Recipe
from vitcli.recipe.schema import Model
from vitcli.training import notes, schedule, tracking
from vitcli.training.auto_batch_size import find_max_batch_size, max_part_on_gpu
from vitcli.training.gradients import check_parts, exact_per_device_batch
from vitcli.training.methods import resolutions
from vitcli.training.methods.imbalance import check_imbalance
from vitcli.training.methods.known import methods_of
from vitcli.training.methods.method import Method
from vitcli.training.methods.out_of_fold import FoldModels
from vitcli.training.methods.partial import depths_of
from vitcli.training.objective import training_task
from vitcli.training.schedule import Plan, choose_per_device_batch
from vitcli.training.splits import RunData, RunSplits, check_labels
from vitcli.training.teacher import bytes_of_teachers, licence_of_student

# Largest micro-batch chosen by default. Small on a CPU, where it costs nothing, so that a step has several
# micro-batches and several processes can divide them without changing dropout.
MAX_MICRO_BATCH = {"cpu": 32}
MAX_MICRO_BATCH_ON_GPU = 64
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
COMPILED_FROM = 0.1  # exaFLOPs: six minutes of an H100, of which a compiled network saves a quarter
AUTO = "auto"  # --per-device-batch auto
OPENING = "opening"  # as what the runs of one command print once


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of the command line besides the recipe: where and how a run trains, not what.

    Attributes:
        out: the run folder; None names a new one.
        per_device_batch: images per forward pass, "auto", or None for the default.
        workers: loader threads per process; None for the default.
        exact: the same bits on any number of processes.
        shard: divide model, gradients and optimizer among the processes.
        compile: train with torch.compile; None for the rule of `is_compiled`.
        track: a tracker, see `tracking.TRACKERS`.
        arms_parallel: runs of a sweep to train at the same time, one per device; 0 for one after the other.
        measure: with `dry_run`, measure the speed of a few steps.
        arguments: the command line, for the record.
        noted: lines that runs of one command print once.
        title: which run of several this is.
        began_at: when the command or this run of it began, by `time.monotonic`.
        folds: of a run on all images, the models of folds, which score and calibrate it.
    """

    out: Path | None = None
    per_device_batch: int | str | None
    workers: int | None
    exact: bool
    shard: bool
    compile: bool | None
    track: str | None = None
    arms_parallel: int = 0
    overwrite: bool = False
    dry_run: bool = False
    measure: bool = False
    profile: bool = False
    quiet: bool
    verbose: bool = False
    arguments: list[str]
    title: str | None = None
    noted: set[str] = field(default_factory=set)
    began_at: float = field(default_factory=time.monotonic)
    folds: FoldModels | None = None


@dataclass(frozen=True)
class InitialModel:
    """A network before its first step.

    Attributes:
        origin: the checkpoint as the user named it; None for fresh weights.
        loaded: what was loaded, in a few words.
        notes: lines for the terminal about it, see `notes.Opening`.
        fetched_from: the repository of the Hub or the address behind `origin`; "" for local files.
        seen: the images of the run that made the checkpoint, as far as it knows.
        licence: of the checkpoint, or "unknown"; None for fresh weights.
        digest: of all tensors; "" for fresh weights, whose runs have no start in common.
    """

    model: nn.Module
    arch: Architecture
    origin: str | None
    loaded: str
    notes: list[str] = field(default_factory=list)
    seen: SeenImages | None = None
    fetched_from: str = ""
    licence: str | None = None
    digest: str = ""


MakeModel = Callable[[Recipe, Split], InitialModel]  # from a recipe and its training split


@dataclass(frozen=True)
class TrainingJob:
    """Everything that is decided before the first step.

    Attributes:
        recipe: of one run, without choices.
        images: the decoded images that are kept.
        contents: of training and held-out images, see `data.data_fingerprint`.
        notes: what a reader of the result should know, see `notes.Opening`.
        methods: what the recipe asks for besides the steps of the loop.
        plan: that of the last step; of a run with a time limit it is made while it runs.
        earlier_plans: those before it, each with the number of the update at which the next one began.
    """

    command: str
    recipe: Recipe
    options: RunOptions
    runtime: Runtime
    progress: Progress
    splits: RunSplits
    start: InitialModel
    plan: Plan
    images: ImageCache
    contents: tuple[SplitContents, ...] = (SplitContents(), SplitContents())
    notes: tuple[str, ...] = ()
    methods: tuple[Method, ...] = ()
    earlier_plans: tuple[tuple[int, Plan], ...] = ()

    def replanned(self, step: int, total_steps: int) -> "TrainingJob":
        """Return the job with a plan of `total_steps` from update number `step` on."""
        first = self.earlier_plans[0][1] if self.earlier_plans else self.plan
        plan = schedule.with_total_steps(first, total_steps)
        return replace(self, plan=plan, earlier_plans=(*self.earlier_plans, (step, self.plan)))

    def with_layered_head(self, num_layers: int) -> "TrainingJob":
        """Return the job whose network is delivered with a head that reads this many layers."""
        arch = replace(self.start.arch, head_layers=num_layers)
        return replace(self, start=replace(self.start, arch=arch))

    def with_lr(self, lr: float) -> "TrainingJob":
        """Return the job with another base learning rate."""
        optimizer = self.recipe.optimizer.model_copy(update={"lr": lr})
        return replace(self, recipe=self.recipe.model_copy(update={"optimizer": optimizer}))

    def part_at(self, step: int) -> tuple[Plan, int]:
        """Return the plan of update number `step`, and the number of the update at which another begins."""
        earlier = ((plan, end) for end, plan in self.earlier_plans if step < end)
        return next(earlier, (self.plan, self.plan.total_steps))

    @property
    def names_of_classes(self) -> tuple[str, ...]:
        """A name of each output, each unique."""
        numbered = [f"class {number}" for number in range(self.start.arch.num_classes)]
        return unique_names(self.splits.train.class_names or numbered)

    @property
    def survives_divergence(self) -> bool:
        """Whether something is delivered if training diverges."""
        return any(method.survives_divergence for method in self.methods)

    @property
    def is_of_all_folds(self) -> bool:
        """Whether every image is trained on, and the scores are those of the models of folds."""
        folds = FoldName.of(self.recipe.data.eval_split)
        return folds is not None and folds.fold is None

    @property
    def is_of_one_fold(self) -> bool:
        """Whether the images to report on are a fold of the training images."""
        folds = FoldName.of(self.recipe.data.eval_split)
        return folds is not None and folds.fold is not None and not folds.is_choice

    def lr_at(self, step: int) -> float:
        """Return the learning rate of update number `step`, counted from 0."""
        plan, _ = self.part_at(step)
        return schedule.lr_at_step(
            step,
            base_lr=self.recipe.optimizer.lr,
            total_steps=plan.total_steps,
            warmup_steps=plan.warmup_steps,
            decay=self.recipe.schedule.decay,
            end_lr=self.recipe.schedule.end_lr,
        )


def set_up(
    command: str,
    recipe: Recipe,
    options: RunOptions,
    make_model: MakeModel,
    *,
    data: RunData | None = None,
    images: ImageCache | None = None,
) -> TrainingJob:
    """Open the data, build the network and plan the run; nothing is written.

    Args:
        data: opens the splits, also of the other runs of the command; None where there is only this one.
        images: the decoded images that are kept for several runs; None for those of this one.
    """
    assert not recipe.choices and recipe.train.runs == 1, "a sweep is several jobs"
    _check_options(recipe, options)

    # Open the data before the processes join: a long download would time out in a collective.
    plan_only = options.dry_run and not options.measure
    calibrates = command == "finetune" and not plan_only
    data = data or RunData(starts_of(recipe), quiet=options.quiet)
    splits = data.splits_of(recipe, plan_only=plan_only, calibrates=calibrates)
    check_labels(splits.train, recipe)
    check_imbalance(splits.train, recipe)
    methods = methods_of(command, recipe, splits)
    for method in methods:
        method.check(splits)

    # Join the other processes.
    runtime, progress = join_processes(recipe, options)
    resolve_precision(recipe.precision.evaluation, where="recipe key precision.evaluation")
    contents, unreadable = _look_at_images(splits, recipe, options, runtime)

    # Build the network. The plan of a fresh one needs no values: ViT-H/14 has 632 million.
    is_empty = plan_only and command == "pretrain" and options.per_device_batch != AUTO
    with torch.device("meta") if is_empty else nullcontext():
        start = initial_model(make_model, recipe, splits.train)
    check_network(start.model, options, runtime)
    _prepare_for_methods(start, recipe, options)

    plan = plan_run(recipe, options, runtime, start, splits.train)
    options = replace(options, compile=is_compiled(recipe, options, plan, runtime.device.type))
    of_choice = notes.of_labels(recipe, splits)
    of_choice += notes.of_calibration(recipe, splits) if calibrates else []
    is_seen = runtime.is_main and not plan_only
    opening = notes.opening(command, recipe, start, plan, splits, unreadable, of_choice, is_seen=is_seen)
    if options.title:
        progress.detail(options.title)
    opening.show(progress, is_first=progress.is_first(OPENING))
    images = images or ImageCache(recipe.data.cache, processes_here=runtime.processes_here)
    shown = tuple(opening.notes)
    job = TrainingJob(
        command, recipe, options, runtime, progress, splits, start, plan, images, contents, shown, methods
    )
    return job if plan_only else _with_cached_images(job)


def initial_model(make_model: MakeModel, recipe: Recipe, train_split: Split) -> InitialModel:
    """Build a network whose fresh weights are a function of the recipe's seed."""
    torch.manual_seed(sampler.derive_seed(recipe.train.seed, "init"))
    start = make_model(recipe, train_split)
    return replace(start, licence=licence_of_student(start.licence, recipe))


def _with_cached_images(job: TrainingJob) -> TrainingJob:
    """Return the job with images that are kept once decoded: for training whole, for evaluation prepared."""
    recipe, splits, images, every = job.recipe, job.splits, job.images, job.recipe.eval.every
    prepared = partial(images.attach, preprocessing=preprocessing_of(recipe.data))
    # Each crop of a JPEG that is shrunk as it is decoded has pixels of its own.
    is_exact = recipe.data.decode == "exact"
    visits = job.plan.epochs + sum(method.feature_passes for method in job.methods)
    train = images.attach(splits.train, visits=visits) if is_exact else splits.train
    passes = 1 + (job.plan.total_steps // every if every else 0)
    scored = prepared(splits.eval, visits=passes)
    if images.num_runs > 1 and scored.dev_cut:  # its images are trained on in the final runs
        scored = images.attach(scored, visits=passes)
    choice = splits.choice and prepared(splits.choice, visits=1 + passes)
    if line := images.line():
        job.progress.detail(line)
    return replace(job, splits=splits.replaced(train=train, eval=scored, choice=choice))


def _look_at_images(
    splits: RunSplits, recipe: Recipe, options: RunOptions, runtime: Runtime
) -> tuple[tuple[SplitContents, ...], list[str]]:
    """Find unreadable images before anything is loaded or written; return `contents`, and their places."""
    if options.dry_run:
        return (SplitContents(), SplitContents()), []
    out = None if options.overwrite else options.out
    return contents_of(
        splits.own,
        runtime=runtime,
        num_threads=options.workers or loader.default_threads(runtime.cores),
        on_bad_image=recipe.data.on_bad_image,
        decode=not runtime.on_main(lambda: out and run_folder.newest_checkpoint_step(out) is not None),
    )


def join_processes(recipe: Recipe, options: RunOptions) -> tuple[Runtime, Progress]:
    """Join the processes of a command that trains; return them, and the notes and progress of this one."""
    precision, stall_minutes = recipe.precision.compute, recipe.train.stall_minutes
    runtime = start_runtime(precision, exact=options.exact, stall_minutes=stall_minutes)
    progress = Progress(
        quiet=options.quiet, verbose=options.verbose, noted=options.noted, is_main=runtime.is_main
    )
    for note in runtime.notes:
        progress.note(note)
    return runtime, progress


def _check_options(recipe: Recipe, options: RunOptions) -> None:
    """Refuse options that do not go together, or with the recipe."""
    check_shard(recipe, options)
    if options.profile and options.dry_run:
        fix = "drop one of the two; vit bench train measures a step and writes nothing"
        raise VitError("a dry run has no steps to trace", where="--profile with --dry-run", fix=fix)
    if options.measure and not options.dry_run:
        raise VitError("--measure belongs to --dry-run", where="--measure", fix="--dry-run --measure")
    if options.track:
        tracking.check_tracker(options.track)
    folds = FoldName.of(recipe.data.eval_split)
    if folds and folds.fold is None and not (options.folds or options.dry_run):
        raise VitError(
            "this value needs the models of the folds",
            where=f"recipe key data.eval_split = {recipe.data.eval_split!r}",
            fix=f"--set data.eval_split=auto --folds {folds.num_folds} makes all of them",
        )


def check_shard(recipe: Recipe, options: RunOptions) -> None:
    """Refuse options that --shard does not support."""
    unsupported = {
        "--exact: torch sums sharded gradients itself": options.exact,
        "--per-device-batch auto: the others would wait for a process out of memory": (
            options.per_device_batch == AUTO
        ),
        "model.lora_rank: adapters are merged for each evaluation": recipe.model.lora_rank > 0,
        "train.patience: the best weights are kept whole": recipe.train.patience > 0,
        "--precision fp16: its loss scaler cannot see sharded gradients": recipe.precision.compute == "fp16",
    }
    for reason, is_given in unsupported.items():
        if options.shard and is_given:
            option = reason.partition(":")[0]
            raise VitError(
                f"--shard does not support {reason}", where=option, fix=f"drop --shard or {option}"
            )


def check_network(model: nn.Module, options: RunOptions, runtime: Runtime) -> None:
    """Refuse networks that --shard cannot train, or --exact on a GPU or on several processes."""
    if options.exact:
        numerics.check_deterministic(model, runtime.device)
    if options.shard and runtime.world_size == 1:
        raise VitError(
            "--shard needs at least two processes",
            where="--shard",
            fix="add --num-processes N, or drop --shard",
        )
    if not (options.shard or options.exact) or runtime.world_size == 1:
        return
    option = "--shard" if options.shard else "--exact"
    if any(isinstance(module, BATCH_NORMS) for module in model.modules()):
        raise VitError(
            "this network has batch norms, whose running statistics differ between processes",
            where=option,
            fix=f"drop {option}, or take a network without batch norms",
        )
    if options.shard and any(parameter.ndim == 0 for parameter in model.parameters()):
        raise VitError(
            "this network has scalar parameters, which FSDP cannot shard",
            where=option,
            fix="drop it, or take another network",
        )


def _prepare_for_methods(start: InitialModel, recipe: Recipe, options: RunOptions) -> None:
    """Prepare the network for what the recipe does beyond the paper, or refuse that."""
    if recipe.optimizer.layer_decay != 1:
        depths_of(start.model)
    if sides := recipe.schedule.image_sizes:
        if options.compile:
            raise VitError(
                "a network that is compiled takes images of one size",
                where="--compile with recipe key schedule.image_sizes",
                fix="drop one of the two",
            )
        method = method_for(start.arch, recipe.model.posemb_resample)
        resolutions.prepare(start.model, start.arch, sides, method=method)


def fresh_model(
    settings: Model, *, image_size: tuple[int, int], num_classes: int, pre_logits: bool
) -> tuple[nn.Module, Architecture]:
    """Build the network that a recipe's [model] section describes, with untrained weights."""
    choices = settings.model_dump(include=set(TransformerOptions.__dataclass_fields__))
    choices |= {"gelu": None if settings.gelu == "auto" else settings.gelu, "pre_logits": pre_logits}
    options = TransformerOptions(**choices)
    arch = architecture(settings.name, image_size=image_size, num_classes=num_classes, options=options)
    model = build(
        arch,
        dropout=settings.dropout,
        drop_path=settings.drop_path,
        patch_dropout=settings.patch_dropout,
        init=settings.init,
    )
    return model, arch


def plan_run(
    recipe: Recipe, options: RunOptions, runtime: Runtime, start: InitialModel, train_split: Split
) -> Plan:
    """Return all derived numbers of the run on this machine."""
    batch_size, world_size = recipe.train.batch_size, runtime.world_size
    cap = _max_micro_batch(recipe, options, runtime, start)
    if options.per_device_batch == AUTO:
        per_device_batch = _auto_per_device_batch(recipe, options, runtime, start)
    elif options.per_device_batch:
        per_device_batch = options.per_device_batch
    elif options.exact:
        per_device_batch = exact_per_device_batch(batch_size, cap=cap)
    else:
        per_device_batch = choose_per_device_batch(batch_size, world_size=world_size, cap=cap)
    if options.exact:
        check_parts(batch_size, per_device_batch=per_device_batch, world_size=world_size)
    plan = schedule.plan(
        steps=recipe.schedule.steps,
        epochs=recipe.schedule.epochs,
        warmup=recipe.schedule.warmup,
        batch_size=batch_size,
        per_device_batch=per_device_batch,
        world_size=world_size,
        num_examples=len(train_split),
        forward_macs=_mean_forward_macs(recipe, start.arch),
    )
    resolutions.check_steps(recipe.schedule.image_sizes or (), plan.total_steps)
    return plan


def is_compiled(recipe: Recipe, options: RunOptions, plan: Plan, device: str) -> bool:
    """Return whether a run trains with torch.compile: as it is asked to, else if it is long and on CUDA.

    A rule of the plan and never a timing, so that a resumed run has the same bits.
    """
    if options.compile is not None:
        return options.compile
    is_long = plan.exaflops is not None and plan.exaflops >= COMPILED_FROM
    return is_long and device == "cuda" and not recipe.schedule.image_sizes and has_compiler()


def _mean_forward_macs(recipe: Recipe, arch: Architecture) -> float | None:
    """Return the multiply-adds of a training image's forward pass, averaged over the run.

    None where a step does not cost three of them: parts are frozen, adapters trained, patches left out.
    """
    model, sides = recipe.model, recipe.schedule.image_sizes
    if model.freeze or model.lora_rank or model.patch_dropout:
        return None
    if not sides:
        return flops.forward_macs(arch)
    return mean(flops.forward_macs(replace(arch, image_size=(side, side))) for side in sides)


def _max_micro_batch(recipe: Recipe, options: RunOptions, runtime: Runtime, start: InitialModel) -> int:
    """Return the default micro-batch, the largest that fits.

    On a GPU as large as its memory allows, but for the bits of --exact, which are the same on any GPU.
    """
    if runtime.device.type != "cuda" or options.exact:
        return MAX_MICRO_BATCH.get(runtime.device.type, MAX_MICRO_BATCH_ON_GPU)
    if earlier := _earlier_part(options, runtime):
        return earlier
    largest = max_part_on_gpu(_activation_bytes(recipe, runtime, start.arch), runtime.device)
    return int(runtime.gather(torch.tensor(largest)).min())  # the processes' GPUs may differ


def _earlier_part(options: RunOptions, runtime: Runtime) -> int | None:
    """Return the micro-batch of the run to resume, if any: dropout masks depend on it."""
    if options.out is None or options.overwrite:
        return None
    earlier = runtime.on_main(lambda: read_json(options.out / run_folder.PLAN))
    return earlier and earlier["per_device_batch"]


def _activation_bytes(recipe: Recipe, runtime: Runtime, arch: Architecture) -> float:
    """Estimate the memory that an image's forward pass keeps for the backward pass of this run."""
    low_precision, checkpointed = runtime.precision != "fp32", recipe.model.grad_checkpointing
    return flops.activation_bytes(arch, low_precision=low_precision, checkpointed=checkpointed)


def _auto_per_device_batch(recipe: Recipe, options: RunOptions, runtime: Runtime, start: InitialModel) -> int:
    """Return the largest per-device batch that fits; a resumed run keeps its own."""
    batch_size, world_size = recipe.train.batch_size, runtime.world_size
    if batch_size % world_size:  # raises, with advice
        return choose_per_device_batch(batch_size, world_size=world_size, cap=1)
    per_process = batch_size // world_size
    sizes = [size for size in range(1, per_process + 1) if per_process % size == 0]
    earlier = _earlier_part(options, runtime)
    if earlier in sizes:
        return earlier

    # Held through the step: optimizer and average, the gradients of the earlier micro-batches, and teachers.
    params = flops.num_params(start.arch)
    held = int(params * 4 * (_tensors_per_weight(recipe) + 1) + bytes_of_teachers(recipe))
    activations = _activation_bytes(recipe, runtime, start.arch)
    if recipe.model.grad_checkpointing:  # the trial is to take no more than the run
        start.model.set_grad_checkpointing(True)
    return find_max_batch_size(
        start.model,
        training_task(recipe.objective).objective,
        sizes,
        image_size=start.arch.image_size,
        runtime=runtime,
        bytes_at=lambda size: params * 8 + held + activations * size,
        held_bytes=held,
    )


def _tensors_per_weight(recipe: Recipe) -> int:
    """Return how many values optimizer and weight average store per weight: two for Adam, one for SGD."""
    return (2 if recipe.optimizer.name == "adam" else 1) + bool(recipe.optimizer.average)


def _estimated_memory_gib(job: TrainingJob) -> float:
    """Estimate weights, gradients, optimizer, average, teachers, and the activations of one micro-batch."""
    arch = job.start.arch
    slices = job.runtime.world_size if job.options.shard else 1
    weights = flops.num_params(arch) * 4 * (2 + _tensors_per_weight(job.recipe)) / slices
    weights += bytes_of_teachers(job.recipe)
    activations = _activation_bytes(job.recipe, job.runtime, arch)
    # On a CPU the loaded libraries take most of the memory of a small network.
    loaded_gib = peak_memory_gib() if job.runtime.device.type == "cpu" else 0.0
    return loaded_gib + (weights + activations * job.plan.per_device_batch) / 2**30


def describe(job: TrainingJob) -> dict[str, Any]:
    """Return the plan and its costs, as --dry-run prints them."""
    macs = flops.forward_macs(job.start.arch)
    return {
        "command": job.command,
        "model": job.start.arch.name,
        "params": flops.num_params(job.start.arch),
        "forward_gmacs": round(macs / 1e9, 3),
        **asdict(job.plan),
        "compile": job.options.compile,
        "epochs": job.plan.epochs,
        **({"max_minutes": minutes} if (minutes := job.recipe.schedule.max_minutes) else {}),
        "candidates": [choice for method in job.methods for choice in method.candidates()],
        "precision": job.runtime.precision,
        "estimated_peak_memory_gib": _estimated_memory_gib(job),
        "recipe_name": job.recipe.name,
        "recipe": recipes.to_toml(job.recipe),
    }
