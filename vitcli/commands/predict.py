"""`vit predict`: classes and probabilities of pictures, by the same pixels as evaluation."""

import glob
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitcli import data_files, inference, loader, recipe, runtime
from vitcli.commands.pixels import for_inference, named_weights, preprocessing_for
from vitcli.console import Console
from vitcli.errors import DataError, VitError
from vitcli.split import Split
from vitcli.weights import Weights


def predict(
    pictures: Sequence[str],
    overrides: Sequence[str],
    shorthands: Mapping[str, Any],
    *,
    topk: int | None,
    workers: int | None,
    quiet: bool,
) -> dict[str, Any]:
    """The `topk` likeliest classes of every picture; files, folders (searched through) and globs."""
    resolved = recipe.load("evaluate/default", overrides, shorthands, training=False)
    if resolved.model.ckpt is None:
        raise VitError(
            "no checkpoint is named", where="--ckpt", fix="--ckpt RUN, a weights file, timm/NAME or demo"
        )
    files = find_pictures(pictures)
    precision = "fp32" if resolved.precision.compute == "auto" else resolved.precision.compute
    machine = runtime.start(precision)
    console = Console(quiet=quiet, is_main=machine.is_main)
    weights = named_weights(resolved)
    preprocessing, origin = preprocessing_for(
        weights, resolved, recipe_name=None, overrides=overrides, shorthands=shorthands
    )
    model, arch = for_inference(weights, resolved, preprocessing, machine)
    if topk and topk > arch.num_classes:
        raise VitError(
            f"the model has {arch.num_classes} classes", where=f"--topk {topk}", fix="a smaller number"
        )
    topk = topk or min(5, arch.num_classes)
    console.note(f"{arch.name}: {preprocessing.summary()}, {origin}")

    found, skipped = inference.likeliest(
        model,
        _as_split(files),
        preprocessing,
        runtime=machine,
        topk=topk,
        batch_size=resolved.eval.batch_size,
        on_bad_image=resolved.data.on_bad_image,
        num_threads=workers or loader.default_threads(1),
        precision=precision,
        console=console,
    )
    return {
        "command": "predict",
        "ckpt": resolved.model.ckpt,
        "model": arch.name,
        "preprocessing": preprocessing.summary(),
        "predictions": [
            {"file": files[row], "top": [_guess(weights, label, share) for label, share in top]}
            for row, top in found.items()
        ],
        "num_skipped_images": len(skipped),
        "skipped_images": skipped,
    }


def _guess(weights: Weights, label: int, share: float) -> dict[str, Any]:
    name = weights.class_names[label] if weights.class_names else f"class {label}"
    return {"class": name, "label": label, "probability": share}


def find_pictures(pictures: Sequence[str]) -> list[str]:
    """Every picture that files, folders and globs name, each once, in the order given.

    Raises:
        DataError: a name that leads to no picture.
    """
    found: dict[str, None] = {}
    for name in pictures:
        if name and Path(name).is_dir():
            here = [file for file in data_files.image_files(Path(name)) if os.path.isfile(file)]
        elif Path(name).is_file():
            here = [name]
        else:
            here = sorted(path for path in glob.glob(name, recursive=True) if Path(path).is_file())
        if not here:
            raise DataError(
                f"no picture is found under {name!r}",
                where="PICTURES",
                fix="a file, a folder of pictures, or a glob",
            )
        found.update(dict.fromkeys(here))
    return list(found)


def _as_split(files: list[str]) -> Split:
    """Unlabelled files in the form that evaluation reads, so that both see the same pixels."""

    def read_row(row: int) -> tuple[bytes, int]:
        try:
            return Path(files[row]).read_bytes(), 0
        except OSError as error:
            raise DataError(
                f"a picture cannot be read: {error.strerror}", where=files[row], fix="check it"
            ) from error

    return Split(
        name="the given pictures",
        num_examples=len(files),
        class_names=None,
        num_classes=1,
        read_row=read_row,
        read_labels=lambda: np.zeros(len(files), dtype=np.int64),
        where_is=lambda row: files[row],
    )
