"""Thresholds of several labels: the images that they are chosen on, which no reported number is of."""

from collections.abc import Callable

from vitcli.data.dataset import DataSet, from_section
from vitcli.data.split import Split
from vitcli.recipe import Recipe

VALIDATION, TEST = "validation", "test"


def choosing_split(
    recipe: Recipe, train: Split, scored: Split, open_data: Callable[..., DataSet]
) -> Split | None:
    """Return the images to choose thresholds by; None for other runs, and where there are none.

    They are the scored ones, unless these are a test split: then those of the validation split, if any.
    """
    if (
        recipe.objective.loss != "sigmoid"
        or not train.has_several_labels
        or train.is_large
        or not len(scored)
    ):
        return None
    if f", split {TEST}" not in scored.name:
        return scored
    data = from_section(recipe.data, open_data)
    return data.open(VALIDATION) if VALIDATION in data.split_names else None
