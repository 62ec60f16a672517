"""Cost of a row of the paper's tables: trainings, images, exaFLOPs, and hours if steps can be measured.

Not merged with `reproduce`, which loads no torch so that mistakes are reported at once; this module loads it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from vitcli.data.aliases import local_copy
from vitcli.data.demo import SETS
from vitcli.errors import DataError, WeightsError
from vitcli.evaluation.setup import settle_pixels
from vitcli.experiments.reproduce import Finetune, num_arms
from vitcli.experiments.reproduce_rows import PaperRow
from vitcli.models.build import architecture
from vitcli.models.flops import forward_macs
from vitcli.recipe import Recipe, dataset_aliases, settled, to_toml
from vitcli.recipe.schema import WEIGHTS
from vitcli.training.schedule import duration_steps, exaflops
from vitcli.training.setup import RunOptions
from vitcli.weights.download import is_here
from vitcli.weights.names import resolve


def plan(
    row: PaperRow, recipes: Mapping[str, Recipe], options: RunOptions, finetune: Finetune
) -> dict[str, Any]:
    """Return the cost of a protocol by its recipes, and its time if ten steps can be measured here."""
    # Images and compute follow from the recipes, with the pixels that weights on this machine state.
    recipes = {
        task: recipe if _missing_weights(recipe.model.ckpt) else settle_pixels(recipe, "finetune")
        for task, recipe in recipes.items()
    }
    costs = [_cost(row.model, recipe) for recipe in recipes.values()]
    first = next(iter(recipes.values()), None)
    is_known = all(cost["exaflops"] is not None for cost in costs)
    has_steps = all(cost["steps"] is not None for cost in costs)
    images = sum(cost["images_seen"] for cost in costs) if has_steps else None
    # The time follows from the speed of ten steps.
    measured, not_measured = _measured(first, options, finetune) if first else (None, "no training")
    times = {"measured_images_per_s": None, "hours": None, "gpu_hours": None}
    if measured and images:
        speed = measured["measured_images_per_s"]
        hours = images / speed / 3600
        gpu_hours = hours * measured["world_size"] if torch.cuda.is_available() else None
        times = {"measured_images_per_s": speed, "hours": hours, "gpu_hours": gpu_hours}
    return {
        "command": "reproduce",
        "row": row.name,
        "about": row.about,
        "scale": row.scale,
        "dry_run": True,
        "published": {"mean": row.published, "std": row.published_std},
        "ckpt": row.ckpt,
        "tasks": len(costs),
        **{key: costs[0][key] if costs else 0 for key in ("arms", "runs", "steps")},
        "batch_size": first.train.batch_size if first else None,
        "trainings": sum(cost["arms"] + cost["runs"] for cost in costs),
        "images_seen": images,
        "exaflops": sum(cost["exaflops"] for cost in costs) if is_known else None,
        **times,
        "not_measured": not_measured,
        "recipe": to_toml(first) if first else None,
    }


def _cost(model: str, recipe: Recipe) -> dict[str, Any]:
    """Return trainings of one recipe and their cost; None where it depends on data or weights elsewhere."""
    schedule = recipe.schedule
    num_examples = dataset_aliases().get(recipe.data.dataset, {}).get("train_examples")
    arms, runs = num_arms(recipe), recipe.train.runs
    cost = {"arms": arms, "runs": runs, "steps": None, "images_seen": 0, "exaflops": None}
    if schedule.steps is None and num_examples is None:
        return cost
    batch_size = recipe.train.batch_size
    cost["steps"] = duration_steps(
        steps=schedule.steps, epochs=schedule.epochs, num_examples=num_examples or 0, batch_size=batch_size
    )
    cost["images_seen"] = cost["steps"] * batch_size * (arms + runs)
    if recipe.data.image_size == WEIGHTS:
        return cost
    arch = architecture(model, image_size=recipe.data.image_hw, num_classes=0)
    return cost | {"exaflops": exaflops(forward_macs(arch), cost["images_seen"])}


def _measured(
    recipe: Recipe, options: RunOptions, finetune: Finetune
) -> tuple[dict[str, Any] | None, str | None]:
    """Return the plan of one training with the speed of ten steps; or None, and the reason."""
    missing = _missing(recipe)
    if missing and not options.measure:
        return None, f"{missing}; --measure downloads it if possible and measures ten steps"
    options = replace(options, dry_run=True, measure=True, out=None)
    try:
        return finetune(settled(recipe, {"train.runs": 1}), options), None
    except (DataError, WeightsError) as error:
        return None, error.message


def _missing(recipe: Recipe) -> str | None:
    """Name the data or weights that are missing on this machine, without asking the Hub."""
    dataset = recipe.data.dataset
    if dataset not in SETS and not local_copy(dataset):
        return f"there is no copy of {dataset} in $VIT_DATA"
    return _missing_weights(recipe.model.ckpt)


def _missing_weights(ckpt: str) -> str | None:
    return None if is_here(resolve(ckpt)) else f"the weights {ckpt} are not on this machine"
