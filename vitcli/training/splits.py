"""The images of a run: what is trained on, what is reported on, and the data of the few-shot probe."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from vitcli import recipe as recipes
from vitcli.data import dataset
from vitcli.data.aliases import local_copy
from vitcli.data.seen_images import MOST_IMAGES, SeenImages
from vitcli.data.split import Split
from vitcli.errors import DataError, VitError
from vitcli.evaluation.setup import starts_of, trained_on_by
from vitcli.recipe import Recipe
from vitcli.recipe.schema import Data
from vitcli.weights.io import read_description

if TYPE_CHECKING:  # it imports this module
    from vitcli.training.setup import RunOptions


def open_splits(
    recipe: Recipe, options: "RunOptions", open_data: Callable[..., dataset.DataSet], *, plan_only: bool
) -> tuple[Split, Split]:
    """Open the splits of one run; with `plan_only` those of declared sizes where the data are not here."""
    settings = recipe.data
    if settings.dataset is None:
        raise VitError(
            "no data set is named",
            where="--dataset (recipe key data.dataset)",
            fix="--dataset FOLDER, or demo",
        )
    declared = declared_splits(settings.dataset, num_examples=settings.num_examples) if plan_only else None
    return declared or open_train_and_eval(recipe, options, open_data)


def open_train_and_eval(
    recipe: Recipe, options: "RunOptions", kind: Callable[..., dataset.DataSet]
) -> tuple[Split, Split]:
    """Open the splits of one run; all runs of a sweep hold out the same images."""
    starts = options.starts or starts_of(recipe)
    before = partial(trained_on_by, starts, quiet=options.quiet)
    if recipe.objective.loss == "regression":
        kind = partial(kind, numbers=True)
    if recipe.objective.loss == "masked_patch":  # any folder of images will do
        kind = partial(kind, needs_labels=False)
    return dataset.open_train_and_eval(recipe.data, seed=recipe.train.seed, kind=kind, trained_before=before)


def declared_splits(dataset: str, *, num_examples: int | None) -> tuple[Split, Split] | None:
    """Return splits without rows, of the sizes in recipes/datasets.toml, to plan without the data.

    None if the data set is on this disk, or if its size is not declared.
    """
    alias = recipes.dataset_aliases().get(dataset)
    if not alias or "train_examples" not in alias or local_copy(dataset):
        return None

    def read_row(row: int):
        raise DataError(f"{dataset} is not on this disk", where=f"row {row}", fix="drop --dry-run to open it")

    def split(count: int) -> Split:
        return Split(
            name=f"{dataset} (not opened, declared size)",
            num_examples=count,
            class_names=None,
            num_classes=alias["classes"],
            read_row=read_row,
            read_labels=lambda: np.arange(alias["classes"]),
            where_is=str,
        )

    return split(num_examples or alias["train_examples"]), split(0)


def open_probe(recipe: Recipe) -> tuple[Split, Split] | None:
    """Open the data set of the few-shot probe, with the default settings of [data]."""
    if recipe.eval.probe is None:
        return None
    keys = ("train_split", "eval_split", "num_examples", "image_column", "label_column", "num_classes")
    keys = (*keys, "streaming", "one_class", "group_column")
    changes = {key: Data.model_fields[key].default for key in keys}
    changes |= {"dataset": recipe.eval.probe, "dev_fraction": 0.1, "dev_stratified": True}
    return dataset.open_train_and_eval(recipe.data.model_copy(update=changes), seed=0)


def check_labels(train_split: Split, recipe: Recipe) -> None:
    """Refuse the softmax for images with several labels: it predicts a single class."""
    if recipe.objective.loss != "softmax" or not len(train_split) or not train_split.has_several_labels:
        return
    raise VitError(
        f"the images of {train_split.name} have several labels each, and the softmax predicts one",
        where="recipe key objective.loss",
        fix="--set objective.loss=sigmoid, or name a column of one label with data.label_column",
    )


def have_changed(recipe: Recipe, summary: dict[str, Any]) -> bool:
    """Return whether the images of a finished run are others now, as far as a look at some of them tells.

    They are not looked at where that may take long: remote ones, and more than are recognised by content.
    """
    data, num_images = recipe.data, summary.get("num_train_examples") or 0
    if not 0 < num_images <= MOST_IMAGES or data.num_examples or local_copy(str(data.dataset)) is None:
        return False
    with suppress(VitError):  # such as a data set that is gone
        cut = SeenImages.of(read_description(summary["weights"], quiet=True).metadata).cut
        loss = recipe.objective.loss
        kinds = {"needs_labels": loss != "masked_patch", "numbers": loss == "regression"}
        split = dataset.open_eval(data, cut["split"] if cut else data.eval_split, **kinds)
        if cut:
            return split.fingerprint != cut["fingerprint"]
        then = summary.get("eval_fingerprint")
        return split.name == summary["eval_split"] and then not in (None, split.fingerprint)
    return False
