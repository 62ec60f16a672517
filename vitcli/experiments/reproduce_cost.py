"""What a row of the paper's tables costs: trainings, images, exaFLOPs, and hours where they can be tried.

Part of `vit reproduce`; no command of its own.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vitcli.data.aliases import local_copy
from vitcli.data.demo import SETS
from vitcli.errors import DataError, WeightsError
from vitcli.experiments.reproduce import Finetune, num_arms
from vitcli.experiments.reproduce_rows import PaperRow
from vitcli.models.build import architecture
from vitcli.models.flops import forward_macs
from vitcli.recipe import Recipe, dataset_aliases, settled, to_toml
from vitcli.training.schedule import duration_steps, exaflops
from vitcli.training.setup import RunOptions


def plan(
    row: PaperRow, recipes: Mapping[str, Recipe], options: RunOptions, finetune: Finetune
) -> dict[str, Any]:
    """The cost of a protocol by its recipes alone; its time too, where ten steps can be tried here."""
    each = [_cost(row.model, one) for one in recipes.values()]
    first = next(iter(recipes.values()), None)
    known = [cost for cost in each if cost["exaflops"] is not None]
    measured, why_not = _measured(first, options, finetune) if first else (None, "nothing is trained")
    of_ten_steps = {"measured_images_per_s": None, "hours": None, "gpu_hours": None}
    images = sum(cost["images_seen"] for cost in known) if len(known) == len(each) else None
    if measured and images:
        hours = images / measured["measured_images_per_s"] / 3600
        of_ten_steps = {
            "measured_images_per_s": measured["measured_images_per_s"],
            "hours": hours,
            "gpu_hours": hours * measured["world_size"] if torch.cuda.is_available() else None,
        }
    return {
        "command": "reproduce",
        "row": row.name,
        "about": row.about,
        "scale": row.scale,
        "dry_run": True,
        "published": {"mean": row.published, "std": row.published_std},
        "ckpt": row.ckpt,
        "tasks": len(each),
        "arms": each[0]["arms"] if each else 0,
        "runs": each[0]["runs"] if each else 0,
        "steps": each[0]["steps"] if each else 0,
        "batch_size": first.train.batch_size if first else None,
        "trainings": sum(cost["arms"] + cost["runs"] for cost in each),
        "images_seen": images,
        "exaflops": None if images is None else sum(cost["exaflops"] for cost in known),
        **of_ten_steps,
        "not_measured": why_not,
        "recipe": to_toml(first) if first else None,
    }


def _cost(model: str, recipe: Recipe) -> dict[str, Any]:
    """Trainings of one recipe and their cost; None where a data set decides whose size nobody knows."""
    wanted = recipe.schedule
    num_examples = dataset_aliases().get(recipe.data.dataset, {}).get("train_examples")
    arms, runs = num_arms(recipe), recipe.train.runs
    counted = {
        "arms": arms if arms > 1 else 0,
        "runs": runs,
        "steps": None,
        "images_seen": 0,
        "exaflops": None,
    }
    if wanted.steps is None and num_examples is None:
        return counted
    batch_size = recipe.train.batch_size
    counted["steps"] = duration_steps(
        steps=wanted.steps, epochs=wanted.epochs, num_examples=num_examples or 0, batch_size=batch_size
    )
    counted["images_seen"] = counted["steps"] * batch_size * (counted["arms"] + runs)
    arch = architecture(model, image_size=recipe.data.image_hw, num_classes=0)
    return counted | {"exaflops": exaflops(forward_macs(arch), counted["images_seen"])}


def _measured(
    recipe: Recipe, options: RunOptions, finetune: Finetune
) -> tuple[dict[str, Any] | None, str | None]:
    """The plan of one training with the speed of ten steps; or None, and why there is none."""
    missing = _missing(recipe)
    if missing and not options.measure:
        return None, f"{missing}; --measure fetches what it can and tries ten steps"
    one = settled(recipe, {"train.runs": 1})
    try:
        return finetune(one, replace(options, dry_run=True, measure=True, out=None)), None
    except (DataError, WeightsError) as error:
        return None, error.message


def _missing(recipe: Recipe) -> str | None:
    """What of data and weights does not lie here, without asking the hub."""
    dataset, ckpt = recipe.data.dataset, recipe.model.ckpt
    if dataset not in SETS and not local_copy(dataset):
        return f"there is no copy of {dataset} in $VIT_DATA"
    if ckpt == "demo" or Path(ckpt).exists():
        return None
    from huggingface_hub import try_to_load_from_cache

    kept = try_to_load_from_cache(ckpt.removeprefix("hf-hub:").partition("@")[0], "model.safetensors")
    return None if isinstance(kept, str) else f"the weights {ckpt} are not on this machine"
