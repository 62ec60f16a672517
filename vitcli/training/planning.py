"""Where and how fast a run goes, and what its recipe comes to there: steps, parts, costs.

Shared by the commands that train; no command of its own.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from vitcli import recipe
from vitcli.data.split import Split
from vitcli.distributed.runtime import Runtime
from vitcli.errors import DataError, VitError
from vitcli.models import flops
from vitcli.models.architecture import Architecture
from vitcli.models.build import architecture
from vitcli.output import run_folder
from vitcli.recipe import Recipe
from vitcli.recipe.sections import Model
from vitcli.training.auto_batch_size import largest_that_fits
from vitcli.training.gradients import check_parts, exact_per_device_batch
from vitcli.training.schedule import Plan, choose_per_device_batch, plan
from vitcli.training.task import task_of

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
class Start:
    """A network ready to be trained.

    Attributes:
        origin: its weights as the user named them, None for fresh ones.
        notes: lines about what was loaded, for the person.
    """

    model: nn.Module
    arch: Architecture
    origin: str | None
    notes: list[str]


def check_shard(resolved: Recipe, options: RunOptions) -> None:
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
            resolved.precision.compute == "fp16",
            "--precision fp16",
            "the scaler of fp16 losses knows no slices",
            "take bf16 or fp32",
        ),
    ]
    for is_asked, option, why, fix in refused:
        if options.shard and is_asked:
            raise VitError(f"--shard does not go with {option}: {why}", where=option, fix=fix)


def check_network(model: nn.Module, options: RunOptions, machine: Runtime) -> None:
    """Refuse networks that several processes cannot train in the way that is asked for."""
    if options.shard and machine.world_size == 1:
        raise VitError(
            "one process has nobody to share a model with",
            where="--shard",
            fix="add --num-processes N, or leave --shard out",
        )
    if not (options.shard or options.exact) or machine.world_size == 1:
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
    return architecture(
        wanted.name,
        image_size=image_size,
        num_classes=num_classes,
        gelu=None if wanted.gelu == "auto" else wanted.gelu,
        pre_logits=pre_logits,
        classifier=wanted.classifier,
        posemb=wanted.posemb,
        posemb_at=wanted.posemb_at,
        layers=wanted.layers,
        hidden=wanted.hidden,
        mlp=wanted.mlp,
        heads=wanted.heads,
        patch_size=wanted.patch_size,
    )


def plan_of(
    resolved: Recipe, options: RunOptions, machine: Runtime, start: Start, train_split: Split
) -> Plan:
    """All derived numbers of the run on this machine."""
    batch_size = resolved.train.batch_size
    cap = LARGEST_PART.get(machine.device.type, LARGEST_PART_ON_GPU)
    if options.per_device_batch == AUTO:
        per_device_batch = _fitting(resolved, options, machine, start)
    elif options.per_device_batch:
        per_device_batch = options.per_device_batch
    elif options.exact:
        per_device_batch = exact_per_device_batch(batch_size, cap=cap)
    else:
        per_device_batch = choose_per_device_batch(batch_size, world_size=machine.world_size, cap=cap)
    found = plan(
        steps=resolved.schedule.steps,
        epochs=resolved.schedule.epochs,
        warmup=resolved.schedule.warmup,
        batch_size=batch_size,
        per_device_batch=per_device_batch,
        world_size=machine.world_size,
        num_examples=len(train_split),
        forward_macs=flops.forward_macs(start.arch),
    )
    if options.exact:
        check_parts(found.accumulation_steps, world_size=machine.world_size)
    return found


def _fitting(resolved: Recipe, options: RunOptions, machine: Runtime, start: Start) -> int:
    """The largest part that fits; that of the run which is gone on with, for it decides about dropout."""
    earlier = options.out and machine.on_main(lambda: run_folder.read_plan(options.out))
    share, left_over = divmod(resolved.train.batch_size, machine.world_size)
    sizes = [size for size in range(1, share + 1) if not left_over and share % size == 0]
    if earlier and earlier["per_device_batch"] in sizes and not options.overwrite:
        return earlier["per_device_batch"]
    if not sizes:  # said with advice
        return choose_per_device_batch(resolved.train.batch_size, world_size=machine.world_size, cap=1)
    low = machine.precision != "fp32"
    kept, params = flops.activation_bytes(start.arch, low_precision=low), flops.num_params(start.arch)
    # Of Adam two, of SGD one; the average; and what the parts before have left.
    wanted = resolved.optimizer
    held = params * 4 * ((2 if wanted.name == "adam" else 1) + bool(wanted.average) + 1)
    return largest_that_fits(
        start.model,
        task_of(resolved).objective,
        sizes,
        image_size=start.arch.image_size,
        runtime=machine,
        bytes_at=lambda size: params * 8 + held + kept * size,
        held_bytes=held,
    )


def declared(dataset: str, *, num_examples: int | None) -> tuple[Split, Split] | None:
    """Stand-ins for an aliased data set that is not on this disk, of the sizes recipes/datasets.toml gives.

    For plans alone: they have no rows. None where the data lie here, or no size is given.
    """
    alias = recipe.dataset_aliases().get(dataset)
    if not alias or "train_examples" not in alias or Path(os.environ.get("VIT_DATA", "."), dataset).exists():
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
