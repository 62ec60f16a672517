"""`vit inspect`: the paper's pictures of what is inside a network (sections 4.5, D.7 and D.8)."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from glob import glob
from pathlib import Path
from typing import Any

from vitcli.data.image_files import as_split, find_images
from vitcli.data.split import Split, random_subset
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
from vitcli.recipe import Recipe
from vitcli.recipe.request import RecipeRequest
from vitcli.weights.io import Weights


@dataclass(frozen=True)
class InspectRequest:
    """A checkpoint to look into.

    Attributes:
        preprocessing_from: who says how its pictures are prepared.
        asked: what is named of it on the command line.
    """

    recipe: Recipe
    weights: Weights
    preprocessing: Preprocessing
    preprocessing_from: str
    asked: dict[str, Any]


def inspect(
    requests: Sequence[RecipeRequest], run: RunSettings, *, pictures: Sequence[str], split: str
) -> dict[str, Any]:
    """Look into one checkpoint, or two side by side on the same pictures; write figures, arrays and a page.

    Args:
        requests: of each checkpoint.
        pictures: files, folders and globs; none for those of the data set that the recipe names, if any.
    """
    began_at = time.perf_counter()
    name = requests[0].name or _recipe_for(requests[0], pictures)
    recipe = [request.load(default=name) for request in requests]
    out = run.out
    _check(recipe, name, pictures, split)
    if out:
        _check_apart(out, [*pictures, *filter(None, [recipe[0].data.dataset])])
        FOLDER.check_names(out, len(recipe))
    questions = [
        _open(one, request, name=name, pictures=pictures, split=split)
        for one, request in zip(recipe, requests, strict=True)
    ]
    first = questions[0]
    looked_at = open_images(first.recipe, first.weights, pictures, split)
    out = out or _new_folder(first, pictures)
    settings = eval_settings(first.recipe, run)
    runtime = settings.runtime
    asked = [question.asked for question in questions]
    with ExitStack() as held:
        runtime.on_main(lambda: FOLDER.claim(held, out, asked, overwrite=run.overwrite))
        found = []
        for question in questions:
            told = f"{question.preprocessing.summary()}, {question.preprocessing_from}"
            settings.progress.note(f"{question.weights.architecture.name}: {told}")
            seen = inspect_checkpoint(
                question.weights,
                question.recipe,
                looked_at,
                question.preprocessing,
                settings,
            )
            found.append(replace(seen, result=seen.result | {"asked": question.asked}))
        result = runtime.on_main(lambda: write_all(out, found, began_at=began_at))
    runtime.shutdown()
    return result


def _open(
    recipe: Recipe, request: RecipeRequest, *, name: str, pictures: Sequence[str], split: str
) -> InspectRequest:
    weights = read_checkpoint(recipe)
    preprocessing, origin = preprocessing_for(weights, recipe, request)
    check_image_size(replace(weights.architecture, image_size=preprocessing.image_size))
    asked = replace(request, name=name).given | ({"--images": list(pictures)} if pictures else {})
    return InspectRequest(recipe, weights, preprocessing, origin, asked | {"--split": split})


def _new_folder(question: InspectRequest, pictures: Sequence[str]) -> Path:
    looked_at = question.recipe.data.dataset or ("pictures" if pictures else "weights")
    return run_folder.new_folder("inspect", looked_at, question.weights.architecture.name)


def _recipe_for(request: RecipeRequest, pictures: Sequence[str]) -> str:
    """The demo's if nothing to look at is named."""
    named = request.given.keys() & {"model.ckpt", "data.dataset"}
    return "inspect/default" if named or pictures else "inspect/demo"


def _check(recipe: Sequence[Recipe], name: str, pictures: Sequence[str], split: str) -> None:
    """Refuse what cannot be asked for, before anything is read."""
    first = recipe[0]
    if first.inspect is None:
        fix = "take inspect/default, or extend it"
        raise VitError("the recipe has no section [inspect]", where=f"recipe {name}", fix=fix)
    if first.model.ckpt is None:
        raise VitError(
            "no checkpoint is named",
            where="--ckpt",
            fix="--ckpt RUN, a weights file, timm/NAME or demo; vit inspect alone shows the demo",
        )
    if pictures and first.data.dataset is not None:
        raise VitError(
            "pictures and a data set are both named",
            where="--images and --dataset (recipe key data.dataset)",
            fix="look at one of them, then at the other with another --out",
        )
    if split != "auto" and first.data.dataset is None:
        raise VitError(
            "a split of no data set is named", where=f"--split {split}", fix="name it with --dataset"
        )


def _check_apart(out: Path, places: Sequence[str]) -> None:
    """Refuse to draw where pictures are looked for: the same command would next look at its own figures.

    Args:
        places: folders, files and globs.
    """
    own = out.resolve()
    for place in places:
        holds_out = Path(place).is_dir() and own.is_relative_to(Path(place).resolve())
        if holds_out or any(Path(file).resolve().is_relative_to(own) for file in glob(place, recursive=True)):
            raise VitError(
                "the figures would lie among the pictures that are looked at",
                where=f"--out {out}",
                fix="choose a folder outside of them",
            )


def open_images(recipe: Recipe, weights: Weights, pictures: Sequence[str], split: str) -> Split | None:
    """The pictures to look at; of a data set so many drawn at random, of the named ones the first so many."""
    wanted = recipe.inspect
    if pictures:
        found = as_split(find_images(pictures, where="--images"))
        return found.part(0, min(wanted.num_images, len(found)), name=found.name)
    if recipe.data.dataset is None:
        return None
    found = open_eval_split(recipe, split, weights)
    if not len(found):
        raise DataError(f"{found.name} has no pictures", where="--split", fix="name another split")
    drawn = random_subset(found, min(wanted.num_images, len(found)), seed=wanted.seed)
    return replace(drawn, name=found.name)
