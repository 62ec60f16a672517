"""Images to choose by within a run: neither trained on nor reported on, cut from the training images."""

import numpy as np

from vitcli.data.parts.cuts import cut_dev
from vitcli.data.split import Split
from vitcli.errors import VitError
from vitcli.recipe import Recipe
from vitcli.recipe.schema import PROBE

FRACTION, MOST = 0.1, 500  # of the training images, where the recipe names no fraction; never more


def hold_out(train: Split, recipe: Recipe) -> tuple[Split, Split | None]:
    """Return the images to train on, and those to choose by; None for a recipe that chooses nothing.

    A run with a probe head chooses what it delivers, one with `train.patience` its end and its best weights.
    Of every class with two images one is held out at least; groups of `data.group_column` are not separated.

    Raises:
        VitError: there are too few images, or none has a class.
    """
    has_probe = recipe.model.head == PROBE
    if not (has_probe or recipe.train.patience):
        return train, None
    if has_probe and (train.has_several_labels or train.has_numbers):
        raise VitError(
            "the closed form of a probe head predicts one class of an image",
            where="recipe key model.head",
            fix="--set model.head=zero",
        )
    has_classes = not (train.is_large or train.has_several_labels or train.has_numbers)
    if has_classes and np.bincount(train.read_labels()).max() < 2:
        raise VitError(
            f"each class of {train.name} has one image, so none can be held out to choose by",
            where="recipe keys model.head and train.patience",
            fix="add images, or --set model.head=zero without train.patience",
        )
    fraction = min(recipe.data.dev_fraction or FRACTION, MOST / len(train))
    return cut_dev(train, dev_fraction=fraction, split=train.name, stratified=True)
