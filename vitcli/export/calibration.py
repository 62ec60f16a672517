"""The images whose activations give the scales of int8: some of those that the network was trained on."""

from collections.abc import Iterator, Sequence

import numpy as np
from torch import Tensor

from vitcli.data import dataset, loader
from vitcli.data.image_files import find_images
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing, to_model_range
from vitcli.errors import VitError
from vitcli.output import run_folder
from vitcli.weights.io import Weights

NUM_IMAGES, BATCH_SIZE = 128, 16


def evenly(split: Split, most: int) -> Split:
    """Return at most so many rows, evenly spread: a split is often sorted by class."""
    if len(split) <= most:
        return split
    return split.rows(np.linspace(0, len(split) - 1, most).round().astype(np.int64))


def open_images(weights: Weights, given: Sequence[str]) -> Split:
    """Open the images that are given, else training images of the run that the weights are of.

    Raises:
        VitError: the weights are of no run whose data are there.
    """
    if given:
        return evenly(find_images(given, where="--calibrate"), NUM_IMAGES)
    folder = run_folder.folder_of(weights.source)
    recipe, is_there = run_folder.recipe_of(folder) if folder else (None, False)
    if not is_there or not recipe.data.dataset:
        raise VitError(
            "int8 needs the ranges of activations, and the training images of these weights are not here",
            where="--precision int8",
            fix=f"--calibrate FOLDER of training images; {NUM_IMAGES} are enough",
        )
    source = dataset.from_section(recipe.data)
    name = recipe.data.train_split
    name = source.default_train_split() if name == "auto" else name
    return evenly(source.open(name), NUM_IMAGES)


def batches(split: Split, preprocessing: Preprocessing) -> Iterator[Tensor]:
    """Yield the images as the network gets them, (B, 3, h, w)."""
    settings = {"batch_size": BATCH_SIZE, "on_bad_image": "skip", "num_threads": loader.default_threads(1)}
    for batch in loader.eval_batches(split, preprocessing, rank=0, world_size=1, **settings):
        yield to_model_range(batch.images_BCHW, mean=preprocessing.mean, std=preprocessing.std)
