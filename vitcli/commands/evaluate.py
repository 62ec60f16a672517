"""`vit evaluate`: top-1, top-5 and loss of a checkpoint on a split (paper, section 4.1)."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from vitcli import class_lists, data, inference, loader, recipe, runtime
from vitcli.commands.pixels import for_inference, named_weights, preprocessing_for
from vitcli.console import Console
from vitcli.errors import VitError
from vitcli.metrics import Scores
from vitcli.recipe import Recipe
from vitcli.split import Split
from vitcli.weights import Weights


def evaluate(
    recipe_name: str | None,
    overrides: Sequence[str],
    shorthands: Mapping[str, Any],
    *,
    split: str,
    workers: int | None,
    quiet: bool,
) -> dict[str, Any]:
    """Score a split with the pixels the weights were trained to see, or the recipe's if they do not say.

    Every example counts once, in fp32 unless another precision is asked for, on any number of processes.
    """
    resolved = recipe.load(recipe_name or "evaluate/default", overrides, shorthands, training=False)
    _check_named(resolved)
    weights = named_weights(resolved)
    # Before the processes join, so that a long download is no stalled collective; `datasets` locks its cache.
    found, is_mapped = _open_split(resolved, split, weights)
    precision = "fp32" if resolved.precision.compute == "auto" else resolved.precision.compute
    machine = runtime.start(precision)
    console = Console(quiet=quiet, is_main=machine.is_main)
    preprocessing, origin = preprocessing_for(
        weights, resolved, recipe_name=recipe_name, overrides=overrides, shorthands=shorthands
    )
    model, arch = for_inference(weights, resolved, preprocessing, machine, console)
    console.note(f"{arch.name} ({weights.numerics}) on {found.name}: {preprocessing.summary()}, {origin}")
    began_at = time.perf_counter()
    scores, skipped = inference.evaluate(
        model,
        found,
        preprocessing,
        runtime=machine,
        batch_size=resolved.eval.batch_size,
        on_bad_image=resolved.data.on_bad_image,
        num_threads=workers or loader.default_threads(machine.processes_here),
        precision=precision,
        console=console,
    )
    skipped = sorted(machine.union(set(skipped)))
    elapsed_s = time.perf_counter() - began_at
    machine.leave()
    return {
        "command": "evaluate",
        "ckpt": resolved.model.ckpt,
        "model": arch.name,
        "numerics": weights.numerics,
        "dataset": resolved.data.dataset,
        "eval_split": found.name,
        "num_classes": arch.num_classes,
        "resolution": preprocessing.resolution,
        "preprocessing": preprocessing.summary(),
        "preprocessing_from": origin,
        "classes_mapped_by_name": is_mapped,
        **_counted(scores, skipped),
        "images_per_s": scores.num_examples / elapsed_s,
        "elapsed_s": elapsed_s,
        "precision": precision,
        "num_processes": machine.world_size,
    }


def _counted(scores: Scores, skipped: list[str]) -> dict[str, Any]:
    return {
        "top1": scores.top1,
        "top5": scores.top5,
        "loss": scores.loss,
        "num_eval_examples": scores.num_examples,
        "num_skipped_images": len(skipped),
        "skipped_images": skipped[:100],
    }


def _check_named(resolved: Recipe) -> None:
    if resolved.model.ckpt is None or resolved.data.dataset is None:
        missing = "checkpoint" if resolved.model.ckpt is None else "data set"
        raise VitError(
            f"no {missing} is named to evaluate",
            where="--ckpt and --dataset",
            fix="--ckpt RUN --dataset DATA, such as --ckpt demo --dataset demo:pretrain",
        )


def _open_split(resolved: Recipe, split: str, weights: Weights) -> tuple[Split, bool]:
    """The split with its labels in the checkpoint's order, and whether that moved any."""
    wanted = resolved.data
    found = data.open_eval(
        wanted.dataset,
        wanted.eval_split if split == "auto" else split,
        image_column=wanted.image_column,
        label_column=wanted.label_column,
        dev_cut=weights.metadata.get("dev_cut"),
        num_classes=wanted.num_classes,
        streaming=wanted.streaming,
    )
    num_classes = weights.architecture.num_classes
    return class_lists.match_classes(
        found, weights.class_names, num_classes=num_classes, ckpt=resolved.model.ckpt
    )
