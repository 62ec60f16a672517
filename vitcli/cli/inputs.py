"""A look at the names on a command line before torch is loaded: is there such a checkpoint, such data?

What is not there is refused in a fraction of a second. What a file holds is checked when it is read.
"""

import glob
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitcli.errors import DataError, VitError, WeightsError, nearest_path
from vitcli.output.text import count_of

if TYPE_CHECKING:
    from vitcli.recipe import Recipe

MOST_OF_A_PATTERN = 64  # checkpoints: one slip of the pen would download hundreds
GLOB = set("*?[")


def check_ckpt(ckpt: str, option: str = "--ckpt") -> None:
    """Refuse a checkpoint that names nothing; timm's and the Hub's are resolved when they are read."""
    from vitcli.weights.names import check

    try:
        check(ckpt)
    except WeightsError as error:
        raise WeightsError(error.message, where=option, fix=error.fix) from error


def is_fewshot_run(ckpt: str) -> bool:
    """Return whether this is the folder of a few-shot run."""
    from vitcli.output.run_folder import DRAWS, RECIPE

    return all((Path(ckpt) / name).is_file() for name in (DRAWS, RECIPE))


def expand_ckpts(names: Sequence[str]) -> list[str]:
    """Return checkpoints in their order, each once, with what patterns match in their places.

    A pattern is one of local files and run folders, or of timm's names, with timm/ in front or without a
    folder.

    Raises:
        WeightsError: a pattern matches nothing, or more than MOST_OF_A_PATTERN.
    """
    expanded: dict[str, None] = {}
    for name in names:
        if not GLOB & set(name) or "://" in name or Path(name).exists():
            expanded[name] = None
            continue
        matching = _matching(name)
        where = f"--ckpt {name}"
        if not matching:
            fix = "check the path, or see vit models --pretrained PATTERN; in the shell, quote the pattern"
            raise WeightsError("no weights here and none of timm match the pattern", where=where, fix=fix)
        if len(matching) > MOST_OF_A_PATTERN:
            what = f"{len(matching):,} weights match the pattern, more than {MOST_OF_A_PATTERN}"
            raise WeightsError(what, where=where, fix="narrow it, such as 'timm/vit_small*in21k'")
        expanded |= dict.fromkeys(matching)
    return list(expanded)


def _matching(pattern: str) -> list[str]:
    """Return the weights that match a pattern: local ones, else timm's."""
    from vitcli.models.variants import matches
    from vitcli.weights.catalog import known_weights
    from vitcli.weights.names import check_local

    local = []
    for path in sorted(glob.glob(pattern, recursive=True)):
        with suppress(WeightsError):  # a README among the weights
            check_local(Path(path))
            local.append(path)
    is_timms = pattern.startswith("timm/") or "/" not in pattern
    if local or not is_timms:
        return local
    return [
        f"timm/{known.name}"
        for known in known_weights()
        if matches(known.name, pattern.removeprefix("timm/"))
    ]


def check_dataset(name: str) -> None:
    """Refuse a data set that is not here, and whose name is of no data set elsewhere.

    A dry run needs no images of an alias, so an alias is looked up when it is opened.
    """
    from vitcli.data.aliases import check_name
    from vitcli.experiments import vtab
    from vitcli.recipe import dataset_aliases

    is_elsewhere = "://" in name or GLOB & set(name) or name in dataset_aliases()
    if not is_elsewhere and not vtab.tasks_of(name):
        check_name(name)


def remembered(ckpt: str | None, dataset: str | None, *, keeps_head: bool = False) -> dict[str, Any]:
    """Return the recipe keys that a command takes from the run of its checkpoint: how to read the same data.

    {} for other data, and for a checkpoint of no run.

    Args:
        keeps_head: also whether images are mirrored, and (of any data) the loss that its head was trained by.
    """
    from vitcli.output import run_folder
    from vitcli.recipe.reading import HOW_TO_READ, TO_TRAIN_ON, reading_keys

    recipe = _recipe_of_run(ckpt)
    if recipe is None:
        return {}
    names = TO_TRAIN_ON if keeps_head else HOW_TO_READ
    keys = reading_keys(recipe.data, names) if run_folder.is_data_of(recipe, dataset) else {}
    is_trained = keeps_head and recipe.objective is not None
    return keys | ({"objective.loss": recipe.objective.loss} if is_trained else {})


def keys_of_student(teachers: Sequence[str], ckpt: str | None, dataset: str | None) -> dict[str, Any]:
    """Return the recipe keys of a student where nothing else says them: teachers, data and checkpoint.

    By default it starts from the first teacher, and on the images of that run. On its data it holds out what
    the teacher did, so that the same images can test both.

    Raises:
        WeightsError, VitError: there is no such teacher.
    """
    from vitcli.output import run_folder
    from vitcli.recipe.reading import HELD_OUT, TRAINED_ON, reading_keys

    for name in teachers:
        (check_file if name.endswith(".onnx") else check_ckpt)(name, "--teacher")
    keys: dict[str, Any] = {"distill.teacher": list(teachers)} if teachers else {}
    first = next((name for name in teachers if not name.endswith(".onnx")), None)
    recipe = _recipe_of_run(first)
    if first and recipe and dataset is None:
        keys |= data_of_run(first) | reading_keys(recipe.data, TRAINED_ON)
        dataset = keys.get("data.dataset")
    if recipe and run_folder.is_data_of(recipe, dataset):
        keys |= reading_keys(recipe.data, HELD_OUT)
    keys |= remembered(first, dataset, keeps_head=ckpt is None)
    return keys | ({"model.ckpt": first} if first and ckpt is None else {})


def policy_of_run(ckpt: str | None) -> dict[str, Any]:
    """Return what the run of a checkpoint does about images that cannot be read, unless it is the default."""
    from vitcli.recipe.reading import reading_keys

    recipe = _recipe_of_run(ckpt)
    return reading_keys(recipe.data, ("on_bad_image",)) if recipe else {}


def _recipe_of_run(ckpt: str | None) -> "Recipe | None":
    """Return the recipe of the run of a checkpoint; None if it is of no run, or the recipe is damaged."""
    from vitcli.output import run_folder

    folder = run_folder.folder_of(ckpt) if ckpt else None
    with suppress(VitError):
        return run_folder.recipe_of(folder)[0] if folder else None
    return None


def data_of_run(ckpt: str) -> dict[str, Any]:
    """Return the recipe keys of the data that the run of a checkpoint was scored on; {} if it is of no run.

    Its held-out part is recognised by the weights themselves.
    """
    from vitcli.output import run_folder
    from vitcli.recipe.reading import WHICH_DATA, reading_keys

    folder = run_folder.folder_of(ckpt)
    return reading_keys(run_folder.recipe_with_data(folder).data, WHICH_DATA) if folder else {}


def check_recipe(recipe: "Recipe") -> None:
    """Refuse a recipe whose checkpoint or data set is not there."""
    if recipe.model.ckpt:
        check_ckpt(recipe.model.ckpt, "recipe key model.ckpt")
    if recipe.data.dataset:
        check_dataset(recipe.data.dataset)


def check_images(names: Sequence[str], option: str) -> None:
    """Refuse files and folders of images that do not exist; globs are expanded later."""
    for name in names:
        if not name or not (GLOB & set(name) or "://" in name or Path(name).exists()):
            what = f"{name} does not exist{nearest_path(name)}" if name else "the name of an image is empty"
            raise DataError(what, where=option, fix="a file, a folder or a glob")


def check_file(name: str, option: str) -> None:
    """Refuse a file or folder that does not exist."""
    if not Path(name).exists():
        raise VitError(f"there is no {name}{nearest_path(name)}", where=option, fix="check the path")


def check_folder_of_parts(out: Path | None, part_rows: int) -> None:
    """Refuse --part-rows without a folder.

    Raises:
        VitError: --out is missing, or names a file.
    """
    if out is None or out.suffix in (".safetensors", ".csv", ".jsonl", ".html") or out.is_file():
        where = f"--out {out}" if out else "--part-rows"
        fix = f"--out {out.with_suffix('') if out else 'FOLDER'}, or leave --part-rows out"
        what = f"parts of {count_of(part_rows, 'image')} are files in a folder"
        raise VitError(what, where=where, fix=fix)
