"""Which images numbers are chosen on that are stored with the weights: none that a reported number is of."""

from collections.abc import Callable

from vitcli.data.dataset import DataSet, from_section
from vitcli.data.parts.held_out import FoldName
from vitcli.data.split import Split
from vitcli.evaluation.belief.prediction_sets import LEAST
from vitcli.recipe import Recipe

VALIDATION, TEST = "validation", "test"


def choosing_split(
    recipe: Recipe, train: Split, scored: Split, open_data: Callable[..., DataSet]
) -> Split | None:
    """Return the images to choose thresholds of several labels by; None for other runs, and without any."""
    if recipe.objective.loss != "sigmoid" or not train.has_several_labels or train.is_large:
        return None
    return _scored_or_validation(recipe, scored, open_data)


def calibration_split(
    recipe: Recipe, train: Split, scored: Split, choice: Split | None, open_data: Callable[..., DataSet]
) -> Split | None:
    """Return the images that show what may be believed of a classifier; None for other runs, and without any.

    Those to choose by within the run, if they are enough; else as for thresholds. Of a run on all images
    with folds all of them, since the models of the folds have predicted them.
    """
    if not gives_one_class(recipe, train):
        return None
    folds = FoldName.of(recipe.data.eval_split)
    if folds and folds.fold is None:
        return scored
    if choice is not None and len(choice) >= LEAST:
        return choice
    split = _scored_or_validation(recipe, scored, open_data)
    is_same = split is not None and (split.num_classes, split.class_names) == (
        train.num_classes,
        train.class_names,
    )
    return split if is_same and not split.is_large else choice


def gives_one_class(recipe: Recipe, train: Split) -> bool:
    """Return whether a run trains a network to give an image one of several classes, known beforehand."""
    gives_classes = recipe.objective.loss in ("softmax", "sigmoid")
    is_known = not (train.is_large or train.has_several_labels or train.has_numbers)
    return gives_classes and is_known and train.num_classes > 1


def _scored_or_validation(recipe: Recipe, scored: Split, open_data: Callable[..., DataSet]) -> Split | None:
    """Return the scored images, unless these are a test split: then those of the validation split, if any."""
    if not len(scored):
        return None
    if f", split {TEST}" not in scored.name:
        return scored
    data = from_section(recipe.data, open_data)
    return data.open(VALIDATION) if VALIDATION in data.split_names else None
