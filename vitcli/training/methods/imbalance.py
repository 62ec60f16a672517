"""Training on classes of different sizes: weights in the loss, or images drawn in other proportions.

`objective.class_weights` multiplies the loss of an image, `data.sampling` changes how often it is drawn; both
by n^-p for a class of n images, with p = 1/2 (sqrt) or 1 (balanced), see `data.balance`.
"""

import numpy as np

from vitcli.data.balance import class_weights
from vitcli.data.sampler import ClassOrder
from vitcli.data.split import Split
from vitcli.errors import VitError
from vitcli.recipe import Recipe


def check_imbalance(train_split: Split, recipe: Recipe) -> None:
    """Refuse class weights and sampling by class where the labels of all images cannot be counted.

    Raises:
        VitError: the images have several labels each, or their labels are read with the images alone.
    """
    keys = {"data.sampling": recipe.data.sampling, "objective.class_weights": recipe.objective.class_weights}
    for key, value in keys.items():
        if value in ("uniform", "none") or not len(train_split):
            continue
        where, fix = f"recipe key {key} = {value}", f"--set {key}={'none' if 'weights' in key else 'uniform'}"
        if train_split.is_multilabel:
            problem = f"the images of {train_split.name} have several labels each, so they belong to no class"
            raise VitError(problem, where=where, fix=fix)
        if train_split.is_large:
            problem = f"{train_split.name} is read in the order of its shards, labels with the images"
            raise VitError(
                problem, where=where, fix=f"{fix}, or data.streaming=false where it fits on the disk"
            )


def loss_weights(train_split: Split, recipe: Recipe) -> tuple[float, ...]:
    """Return the weight of each class in the loss, of mean 1 over the training images; () where all are 1."""
    if recipe.objective.class_weights == "none":
        return ()
    labels_N = train_split.read_labels()
    counts_K = np.bincount(labels_N[labels_N >= 0], minlength=train_split.num_classes)
    return tuple(class_weights(counts_K, recipe.objective.class_weights).tolist())


def balance_of(recipe: Recipe) -> str:
    """Return by which rule classes of other sizes count, in the loss or by drawing; "none" for neither."""
    rules = (recipe.objective.class_weights, recipe.data.sampling)
    return next((rule for rule in rules if rule not in ("none", "uniform")), "none")


def class_order(train_split: Split, recipe: Recipe) -> ClassOrder | None:
    """Return the order of the images by `data.sampling`; None for a shuffle of all."""
    if recipe.data.sampling == "uniform":
        return None
    labels_N = np.asarray(train_split.read_labels())
    return ClassOrder(labels_N, sampling=recipe.data.sampling, seed=recipe.train.seed)
