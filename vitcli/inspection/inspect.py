"""`vit inspect`: the paper's figures of the inside of a network (sections 4.5, D.7 and D.8)."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from glob import glob
from pathlib import Path
from typing import Any

from vitcli.data.image_files import find_images
from vitcli.data.parts.splitting import random_subset
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing
from vitcli.errors import DataError, VitError
from vitcli.evaluation.setup import (
    RunSettings,
    eval_settings,
    open_eval_split,
    preprocessing_for,
    read_checkpoint,
)
from vitcli.inspection.collect import inspect_checkpoint
from vitcli.inspection.files import FOLDER, write_all
from vitcli.models.build import check_image_size
from vitcli.output import run_folder
from vitcli.recipe import Recipe, check_names_ckpt
from vitcli.weights.io import Weights


@dataclass(frozen=True)
class InspectRequest:
    """A checkpoint to inspect.

    Attributes:
        preprocessing_from: the origin of the preprocessing, in words.
        asked: the values given on the command line that the result depends on.
    """

    recipe: Recipe
    weights: Weights
    preprocessing: Preprocessing
    preprocessing_from: str
    asked: dict[str, Any]


def inspect(
    recipes: Sequence[Recipe], run: RunSettings, *, image_patterns: Sequence[str], split: str
) -> dict[str, Any]:
    """Inspect one checkpoint, or two on the same images; write figures, arrays and a page.

    Args:
        recipes: one for each checkpoint.
        image_patterns: files, folders and globs; none for the images of the recipe's data set, if it has one.
    """
    began_at = time.perf_counter()
    # What cannot be inspected, or written, is refused before anything is read.
    first, out = recipes[0], run.out
    _check(first, image_patterns, split)
    if out:
        _check_apart(out, [*image_patterns, *filter(None, [first.data.dataset])])
        FOLDER.check_names(out, len(recipes))

    # Checkpoints and images are opened, the images by the first checkpoint's recipe.
    checkpoints: list[InspectRequest] = []
    for recipe in recipes:
        opened = _open(recipe, image_patterns=image_patterns, split=split, quiet=run.quiet)
        checkpoints.append(at_size_of(checkpoints[0], opened) if checkpoints else opened)
    images = open_images(first, checkpoints[0].weights, image_patterns, split)
    if out is None:
        source = first.data.dataset or ("pictures" if image_patterns else "weights")
        out = run_folder.new_folder("inspect", source, checkpoints[0].weights.architecture.name)

    # Each checkpoint is inspected, and all results are written at the end.
    settings = eval_settings(first, run)
    runtime, asked = settings.runtime, [checkpoint.asked for checkpoint in checkpoints]
    with ExitStack() as held:
        runtime.on_main(lambda: FOLDER.claim(held, out, asked, overwrite=run.overwrite))
        for line in images.lines if images else ():
            settings.progress.note(line)
        inspections = []
        for checkpoint in checkpoints:
            weights, preprocessing = checkpoint.weights, checkpoint.preprocessing
            origin = f"{preprocessing.summary()}, {checkpoint.preprocessing_from}"
            settings.progress.note(f"{weights.architecture.name}: {origin}")
            inspection = inspect_checkpoint(weights, checkpoint.recipe, images, preprocessing, settings)
            result = inspection.result | {"asked": checkpoint.asked}
            inspections.append(replace(inspection, result=result))
        result = runtime.on_main(lambda: write_all(out, inspections, began_at=began_at))
    runtime.shutdown()
    return result


def _open(recipe: Recipe, *, image_patterns: Sequence[str], split: str, quiet: bool) -> InspectRequest:
    weights = read_checkpoint(recipe, quiet=quiet)
    preprocessing, origin = preprocessing_for(weights, recipe)
    check_image_size(replace(weights.architecture, image_size=preprocessing.image_size))
    asked = {"--recipe": recipe.name} | recipe.asked
    asked |= ({"--images": list(image_patterns)} if image_patterns else {}) | {"--split": split}
    return InspectRequest(recipe, weights, preprocessing, origin, asked)


def at_size_of(first: InspectRequest, second: InspectRequest) -> InspectRequest:
    """Return the second checkpoint at the image size of the first.

    It keeps its own where one is given to it, and where its patches do not fill that of the first.
    """
    size = first.preprocessing.image_size
    if "data.image_size" in second.asked or size == second.preprocessing.image_size:
        return second
    try:
        check_image_size(replace(second.weights.architecture, image_size=size))
    except VitError:
        return second
    preprocessing = replace(second.preprocessing, image_size=size)
    origin = f"{second.preprocessing_from}, but for image_size: that of the first"
    return replace(second, preprocessing=preprocessing, preprocessing_from=origin)


def _check(recipe: Recipe, image_patterns: Sequence[str], split: str) -> None:
    """Refuse requests that cannot be answered."""
    if recipe.inspect is None:
        fix = "take inspect/default, or extend it"
        raise VitError("the recipe has no section [inspect]", where=f"recipe {recipe.name}", fix=fix)
    check_names_ckpt(recipe, "inspect")
    if image_patterns and recipe.data.dataset is not None:
        raise VitError(
            "both images and a data set are given",
            where="--images and --dataset (recipe key data.dataset)",
            fix="inspect one of them, then the other with another --out",
        )
    if split != "auto" and recipe.data.dataset is None:
        raise VitError(
            "a split is named without a data set", where=f"--split {split}", fix="name it with --dataset"
        )


def _check_apart(out: Path, places: Sequence[str]) -> None:
    """Refuse to write figures among the input images: the same command would read them the next time."""
    folder = out.resolve()
    for place in places:
        holds_out = Path(place).is_dir() and folder.is_relative_to(Path(place).resolve())
        files = (Path(file).resolve() for file in glob(place, recursive=True))
        if holds_out or any(file.is_relative_to(folder) for file in files):
            fix = "choose a folder outside of them"
            raise VitError("the figures would be among the input images", where=f"--out {out}", fix=fix)


def open_images(recipe: Recipe, weights: Weights, image_patterns: Sequence[str], split: str) -> Split | None:
    """Open the first of the given images, or random ones of the data set, `inspect.num_images` at most."""
    options = recipe.inspect
    if image_patterns:
        images = find_images(image_patterns, where="--images")
        return images.part(0, min(options.num_images, len(images)), name=images.name)
    if recipe.data.dataset is None:
        return None
    images = open_eval_split(recipe, split, weights, needs_labels=False)
    if not len(images):
        raise DataError(f"{images.name} has no images", where="--split", fix="name another split")
    subset = random_subset(images, min(options.num_images, len(images)), seed=options.seed)
    return replace(subset, name=images.name)
