"""A checked recipe to a job: machine, data, network and plan, before anything is written.

Shared by the commands that train; no command of its own.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from vitcli import recipe as recipes
from vitcli.data import dataset, sampler
from vitcli.data.aliases import local_copy
from vitcli.data.split import Split
from vitcli.distributed.runtime import Runtime, fix_threads, peak_memory_gib
from vitcli.distributed.runtime import start as start_runtime
from vitcli.errors import DataError, VitError
from vitcli.models import flops
from vitcli.models.architecture import Architecture
from vitcli.models.build import TransformerOptions, architecture
from vitcli.output import run_folder
from vitcli.output.atomic import read_json
from vitcli.output.progress import Progress
from vitcli.output.text import first_few, size_text
from vitcli.recipe import Recipe
from vitcli.recipe.schema import Model
from vitcli.training import tracking
from vitcli.training.auto_batch_size import find_max_batch_size
from vitcli.training.gradients import check_parts, exact_per_device_batch
from vitcli.training.objective import training_task
from vitcli.training.schedule import Plan, choose_per_device_batch, plan

# Largest forward pass chosen by itself. Small on a CPU, where it costs nothing, so that a step has several
# parts and several processes can share them without changing dropout's draws.
LARGEST_PART = {"cpu": 32}
LARGEST_PART_ON_GPU = 64
AUTO = "auto"  # --per-device-batch auto


@dataclass(frozen=True)
class RunOptions:
    """Where and how fast: what the command line says besides the recipe.

    Attributes:
        arms_parallel: how many runs of a selection go side by side, one per device; 0 is one after the other.
    """

    out: Path | None
    per_device_batch: int | str | None
    workers: int | None
    exact: bool
    shard: bool
    compile: bool
    track: str | None
    arms_parallel: int
    overwrite: bool
    dry_run: bool
    measure: bool
    quiet: bool
    arguments: list[str]


@dataclass(frozen=True)
class InitialModel:
    """A network ready to be trained.

    Attributes:
        origin: its weights as the user named them, None for fresh ones.
        notes: lines about what was loaded, for the person.
    """

    model: nn.Module
    arch: Architecture
    origin: str | None
    notes: list[str]


def check_shard(recipe: Recipe, options: RunOptions) -> None:
    """Refuse what a sharded model cannot do."""
    refused = [
        (options.exact, "--exact", "torch adds its gradients up slice by slice", "leave one of the two out"),
        (
            options.per_device_batch == AUTO,
            "--per-device-batch auto",
            "a process out of memory would leave the others waiting",
            "name a number of images",
        ),
        (
            recipe.precision.compute == "fp16",
            "--precision fp16",
            "the scaler of fp16 losses knows no slices",
            "take bf16 or fp32",
        ),
    ]
    for is_asked, option, why, fix in refused:
        if options.shard and is_asked:
            raise VitError(f"--shard does not go with {option}: {why}", where=option, fix=fix)


def check_network(model: nn.Module, options: RunOptions, runtime: Runtime) -> None:
    """Refuse networks that several processes cannot train in the way that is asked for."""
    if options.shard and runtime.world_size == 1:
        raise VitError(
            "one process has nobody to share a model with",
            where="--shard",
            fix="add --num-processes N, or leave --shard out",
        )
    if not (options.shard or options.exact) or runtime.world_size == 1:
        return
    option = "--shard" if options.shard else "--exact"
    if any(isinstance(module, _BatchNorm) for module in model.modules()):
        raise VitError(
            "this network has batch norms, whose running statistics each process would have for itself",
            where=option,
            fix=f"leave {option} out, or take a network without batch norms",
        )
    if options.shard and any(parameter.ndim == 0 for parameter in model.parameters()):
        raise VitError(
            "this network has parameters of one number, which cannot be shared out",
            where=option,
            fix="leave it out, or take another network",
        )


def fresh_architecture(
    wanted: Model, *, image_size: tuple[int, int], num_classes: int, pre_logits: bool
) -> Architecture:
    """The network that a recipe's [model] describes, for untrained weights."""
    choices = wanted.model_dump(include=set(TransformerOptions.__dataclass_fields__))
    choices |= {"gelu": None if wanted.gelu == "auto" else wanted.gelu, "pre_logits": pre_logits}
    options = TransformerOptions(**choices)
    return architecture(wanted.name, image_size=image_size, num_classes=num_classes, options=options)


def plan_of(
    recipe: Recipe, options: RunOptions, runtime: Runtime, start: InitialModel, train_split: Split
) -> Plan:
    """All derived numbers of the run on this machine."""
    batch_size = recipe.train.batch_size
    cap = LARGEST_PART.get(runtime.device.type, LARGEST_PART_ON_GPU)
    if options.per_device_batch == AUTO:
        per_device_batch = _fitting(recipe, options, runtime, start)
    elif options.per_device_batch:
        per_device_batch = options.per_device_batch
    elif options.exact:
        per_device_batch = exact_per_device_batch(batch_size, cap=cap)
    else:
        per_device_batch = choose_per_device_batch(batch_size, world_size=runtime.world_size, cap=cap)
    found = plan(
        steps=recipe.schedule.steps,
        epochs=recipe.schedule.epochs,
        warmup=recipe.schedule.warmup,
        batch_size=batch_size,
        per_device_batch=per_device_batch,
        world_size=runtime.world_size,
        num_examples=len(train_split),
        forward_macs=flops.forward_macs(start.arch),
    )
    if options.exact:
        check_parts(found.accumulation_steps, world_size=runtime.world_size)
    return found


def _fitting(recipe: Recipe, options: RunOptions, runtime: Runtime, start: InitialModel) -> int:
    """The largest part that fits; that of the run which is gone on with, for it decides about dropout."""
    earlier = options.out and runtime.on_main(lambda: read_json(options.out / run_folder.PLAN))
    share, left_over = divmod(recipe.train.batch_size, runtime.world_size)
    sizes = [size for size in range(1, share + 1) if not left_over and share % size == 0]
    if earlier and earlier["per_device_batch"] in sizes and not options.overwrite:
        return earlier["per_device_batch"]
    if not sizes:  # said with advice
        return choose_per_device_batch(recipe.train.batch_size, world_size=runtime.world_size, cap=1)
    low = runtime.precision != "fp32"
    kept, params = flops.activation_bytes(start.arch, low_precision=low), flops.num_params(start.arch)
    # Of Adam two, of SGD one; the average; and what the parts before have left.
    wanted = recipe.optimizer
    held = params * 4 * ((2 if wanted.name == "adam" else 1) + bool(wanted.average) + 1)
    return find_max_batch_size(
        start.model,
        training_task(recipe.objective).objective,
        sizes,
        image_size=start.arch.image_size,
        runtime=runtime,
        bytes_at=lambda size: params * 8 + held + kept * size,
        held_bytes=held,
    )


def declared(dataset: str, *, num_examples: int | None) -> tuple[Split, Split] | None:
    """Stand-ins for an aliased data set that is not on this disk, of the sizes recipes/datasets.toml gives.

    For plans alone: they have no rows. None where the data lie here, or no size is given.
    """
    alias = recipes.dataset_aliases().get(dataset)
    if not alias or "train_examples" not in alias or local_copy(dataset):
        return None

    def missing(row: int):
        raise DataError(f"{dataset} is not here", where=f"row {row}", fix="leave --dry-run out to open it")

    def split(count: int) -> Split:
        return Split(
            name=f"{dataset}, not here, by its declared size",
            num_examples=count,
            class_names=None,
            num_classes=alias["classes"],
            read_row=missing,
            read_labels=lambda: np.arange(alias["classes"]),
            where_is=str,
        )

    return split(num_examples or alias["train_examples"]), split(0)


MakeModel = Callable[[Recipe, Split], InitialModel]


@dataclass(frozen=True)
class TrainingJob:
    """Everything decided before the first step.

    Attributes:
        probe: training and test split of the few-shot probe, where there is one.
        lr: base learning rate.
    """

    command: str
    recipe: Recipe
    options: RunOptions
    runtime: Runtime
    progress: Progress
    train_split: Split
    eval_split: Split
    probe: tuple[Split, Split] | None
    start: InitialModel
    plan: Plan
    lr: float


def set_up(
    command: str,
    recipe: Recipe,
    options: RunOptions,
    make_model: MakeModel,
    *,
    open_data: Callable[..., dataset.DataSet] = dataset.DataSet,
) -> TrainingJob:
    """Open the data, build the network and plan the run.

    Args:
        resolved: with nothing left to choose, for one run.
        make_model: from the recipe and the training split to a network.
        open_data: makes the data set, with the arguments of `data.DataSet`.
    """
    assert not recipe.choices and recipe.train.runs == 1, "a selection is several jobs"
    check_shard(recipe, options)
    if options.track:
        tracking.check_tracker(options.track)
    # Before the processes join, so that a long download is no stalled collective; `datasets` locks its cache.
    plan_only = options.dry_run and not options.measure
    train_split, eval_split = _open_data(recipe, open_data, plan_only=plan_only)
    probe = None if plan_only else _open_probe(recipe)
    _check_labels_of(train_split, recipe)
    runtime = start_runtime(recipe.precision.compute)
    progress = Progress(quiet=options.quiet, is_main=runtime.is_main)
    if options.exact:
        fix_threads(runtime.device)
    torch.manual_seed(sampler.derive_seed(recipe.train.seed, "init"))
    # A plan of fresh weights needs no numbers: ViT-H/14 has 632 million.
    without_numbers = plan_only and command == "pretrain" and options.per_device_batch != AUTO
    with torch.device("meta") if without_numbers else nullcontext():
        start = make_model(recipe, train_split)
    check_network(start.model, options, runtime)
    _introduce(progress, recipe, start, train_split, eval_split)
    return TrainingJob(
        command=command,
        recipe=recipe,
        options=options,
        runtime=runtime,
        progress=progress,
        train_split=train_split,
        eval_split=eval_split,
        probe=probe,
        start=start,
        plan=plan_of(recipe, options, runtime, start, train_split),
        lr=recipe.optimizer.lr,
    )


def _introduce(
    progress: Progress, recipe: Recipe, start: InitialModel, train_split: Split, eval_split: Split
) -> None:
    """What is trained on what, and what is odd about it, for a person."""
    progress.note(f"{start.arch.name} at {size_text(recipe.data.image_size)} px on {train_split.name}:")
    # A plan of a declared data set knows no number of held-out images.
    scored = f", scored on {len(eval_split)} of {eval_split.name}" if len(eval_split) else ""
    progress.note(f"{len(train_split)} images of {train_split.num_classes} classes{scored}")
    for line in _oddities(train_split):
        progress.note(line)
    if eval_split.dev_cut and recipe.data.eval_split not in (dataset.DEV_PART, dataset.DEV_PART_OF_ALL):
        progress.note(
            "there is no other split to score: these were cut from the training images (data.dev_fraction)"
        )
    for line in start.notes:
        progress.note(line)


def _check_labels_of(train_split: Split, recipe: Recipe) -> None:
    """Several labels an image are several answers of yes, which the softmax cannot give."""
    if recipe.objective.loss != "softmax" or not len(train_split) or not train_split.has_several_labels:
        return
    raise VitError(
        f"the images of {train_split.name} have several labels each, and the softmax gives one answer",
        where="recipe key objective.loss",
        fix="--set objective.loss=sigmoid, or name a column of one label with data.label_column",
    )


def _oddities(split: Split) -> list[str]:
    """What is allowed and yet hardly meant."""
    if split.is_large:
        return []
    labels = split.read_labels()
    counts_K = np.bincount(labels[labels >= 0], minlength=split.num_classes)
    empty = [str(split.class_names[k] if split.class_names else k) for k in np.flatnonzero(counts_K == 0)]
    told = []
    if split.num_classes == 1:
        told.append("note: there is one class only, so every answer is right")
    if empty:
        told.append(f"note: no training image is of class {first_few(empty)}")
    return told


def describe(job: TrainingJob) -> dict[str, Any]:
    """What --dry-run says: the plan and its costs."""
    macs = flops.forward_macs(job.start.arch)
    return {
        "command": job.command,
        "model": job.start.arch.name,
        "params": flops.num_params(job.start.arch),
        "forward_gmacs": round(macs / 1e9, 3),
        **asdict(job.plan),
        "precision": job.runtime.precision,
        "estimated_peak_memory_gib": _estimated_memory_gib(job),
        "recipe": recipes.to_toml(job.recipe),
    }


def _open_data(
    recipe: Recipe, open_data: Callable[..., dataset.DataSet], *, plan_only: bool
) -> tuple[Split, Split]:
    wanted = recipe.data
    if wanted.dataset is None:
        raise VitError(
            "no data set is named",
            where="--dataset (recipe key data.dataset)",
            fix="--dataset FOLDER, or demo",
        )
    known = declared(wanted.dataset, num_examples=wanted.num_examples) if plan_only else None
    return known or dataset.open_train_and_eval(wanted, seed=recipe.train.seed, kind=open_data)


def _open_probe(recipe: Recipe) -> tuple[Split, Split] | None:
    """The data of the few-shot probe, by its usual splits."""
    if recipe.eval.probe is None:
        return None
    usual = {
        "dataset": recipe.eval.probe,
        "train_split": "auto",
        "eval_split": "auto",
        "dev_fraction": 0.1,
        "num_examples": None,
        "image_column": None,
        "label_column": None,
        "num_classes": None,
        "streaming": False,
    }
    return dataset.open_train_and_eval(recipe.data.model_copy(update=usual), seed=0)


def _estimated_memory_gib(job: TrainingJob) -> float:
    """Weights, gradients, optimizer and average, and what the backward pass of one part keeps."""
    chosen, arch = job.recipe.optimizer, job.start.arch
    copies = 2 + (2 if chosen.name == "adam" else 1) + bool(chosen.average)
    kept = flops.activation_bytes(arch, low_precision=job.runtime.precision != "fp32")
    # On a CPU the libraries themselves, loaded by now, are most of it for a small network.
    loaded_gib = peak_memory_gib() if job.runtime.device.type == "cpu" else 0.0
    slices = job.runtime.world_size if job.options.shard else 1
    weights = flops.num_params(arch) * 4 * copies / slices
    return loaded_gib + (weights + kept * job.plan.per_device_batch) / 2**30
