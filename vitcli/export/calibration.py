"""The images whose activations give the scales of int8: some of those that the network was trained on."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from vitcli.data import dataset, loader
from vitcli.data.image_files import find_images
from vitcli.data.split import Split
from vitcli.errors import DataError, VitError
from vitcli.output import run_folder
from vitcli.output.text import count_of
from vitcli.weights.io import Weights
from vitcli.weights.production.program import ProgramForm

NUM_IMAGES = 128


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


def images(split: Split, form: ProgramForm) -> Iterator[Tensor]:
    """Yield those that can be decoded as the file takes them, uint8 (1, H, W, 3).

    Raises:
        DataError: none can be decoded.
    """
    num_skipped = 0
    for row in range(len(split)):
        try:
            image_HWC, _ = loader.read_example(split, row)
        except DataError:
            num_skipped += 1
            continue
        image_HWC = image_HWC if form.input == "images" else form.preprocessing(image_HWC)
        yield torch.from_numpy(image_HWC)[None]
    if num_skipped == len(split):
        raise DataError(
            f"{count_of(num_skipped, 'image')} for the scales of int8, and none can be decoded",
            where=split.name,
            fix="--calibrate other images; vit datasets check says what is wrong with these",
        )
