"""`vit evaluate`: top-1, top-5 and loss of a checkpoint on a split (paper, section 4.1)."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vitcli import data, inference, loader, recipe, runtime
from vitcli.commands.pixels import preprocessing_for
from vitcli.console import Console
from vitcli.errors import VitError
from vitcli.model import build
from vitcli.weights import load_into, read_weights


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
    wanted = resolved.data
    if resolved.model.ckpt is None or wanted.dataset is None:
        raise VitError(
            "nothing to evaluate" if resolved.model.ckpt is None else "no data set is named",
            where="--ckpt and --dataset",
            fix="--ckpt RUN --dataset DATA, such as --ckpt demo --dataset demo",
        )
    precision = "fp32" if resolved.precision.compute == "auto" else resolved.precision.compute
    machine = runtime.start(precision)
    console = Console(quiet=quiet, is_main=machine.is_main)
    weights = read_weights(resolved.model.ckpt, model_name=resolved.model.name)
    with machine.accelerator.main_process_first():
        found = data.open_eval(
            wanted.dataset, split, image_column=wanted.image_column, label_column=wanted.label_column
        )
    found, is_mapped = data.match_classes(
        found, weights.class_names, num_classes=weights.architecture.num_classes, ckpt=resolved.model.ckpt
    )
    preprocessing, origin = preprocessing_for(
        weights, resolved, recipe_name=recipe_name, overrides=overrides, shorthands=shorthands
    )
    arch = replace(weights.architecture, image_size=preprocessing.image_size)
    model = build(arch, dropout=0.0)
    load_into(model, arch, weights, new_head=False)
    model.to(machine.device)
    console.note(f"{arch.name} ({weights.numerics}) on {found.name}: {preprocessing.summary()}, {origin}")

    began_at = time.perf_counter()
    scores, skipped = inference.evaluate(
        model,
        found,
        preprocessing,
        runtime=machine,
        batch_size=resolved.eval.batch_size,
        on_bad_image=wanted.on_bad_image,
        num_threads=workers or loader.default_threads(machine.processes_here),
        precision=precision,
        console=console,
    )
    skipped = sorted(machine.union(set(skipped)))
    elapsed_s = time.perf_counter() - began_at
    return {
        "command": "evaluate",
        "ckpt": resolved.model.ckpt,
        "model": arch.name,
        "numerics": weights.numerics,
        "dataset": wanted.dataset,
        "split": found.name,
        "num_classes": arch.num_classes,
        "resolution": preprocessing.image_size[0]
        if len(set(preprocessing.image_size)) == 1
        else list(preprocessing.image_size),
        "preprocessing": preprocessing.summary(),
        "preprocessing_from": origin,
        "classes_mapped_by_name": is_mapped,
        "top1": scores.top1,
        "top5": scores.top5,
        "loss": scores.loss,
        "num_eval_examples": scores.num_examples,
        "num_skipped_images": len(skipped),
        "skipped_images": skipped[:100],
        "images_per_s": scores.num_examples / elapsed_s,
        "elapsed_s": elapsed_s,
        "precision": precision,
        "num_processes": machine.world_size,
    }
