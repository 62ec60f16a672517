"""The images of an export: those that it is compared on, a gate's, and those that give int8 its scales."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitcli.data import dataset, demo, loader
from vitcli.data.classes import match_class_names
from vitcli.data.dataset import DataSet
from vitcli.data.image_files import find_images
from vitcli.data.seen_images import SeenImages, digests_of, never_trained_on
from vitcli.data.split import Split
from vitcli.data.task import check_supports
from vitcli.errors import DataError, VitError
from vitcli.evaluation.multilabel import task_of
from vitcli.evaluation.setup import open_eval_split
from vitcli.output import run_folder
from vitcli.output.progress import Progress
from vitcli.output.text import count_of
from vitcli.recipe import Recipe, load_for_inference
from vitcli.recipe.reading import HOW_TO_READ, reading_keys
from vitcli.weights.io import Weights
from vitcli.weights.production.program import ProgramForm

NUM_IMAGES, MAX_IMAGES = 32, 256  # where none are named: for outputs that are equal in fp32, and for others
NUM_FOR_SCALES = 128  # calibration images for int8 quantization


def evenly(split: Split, most: int) -> Split:
    """Return at most this many rows, evenly spread: a split is often sorted by class."""
    if len(split) <= most:
        return split
    return split.rows(np.linspace(0, len(split) - 1, most).round().astype(np.int64))


@dataclass(frozen=True)
class Images:
    """Images to compare two networks on.

    Attributes:
        are_held_out: by the run of the checkpoint: their labels count, and damaged ones are left out.
    """

    split: Split
    are_held_out: bool = False

    @property
    def to_publish(self) -> Split:
        """Return those that may go with a file: the run's own are its owner's, and nobody has named them."""
        return of_the_demo().split if self.are_held_out else self.split


def open_named(images: Sequence[str], progress: Progress) -> Images:
    """Open files, folders and globs."""
    files = find_images(images, where="--images")
    for line in files.lines:
        progress.note(line)
    if len(files) > MAX_IMAGES:
        progress.note(f"comparing on the first {MAX_IMAGES} of {len(files)} images")
    return Images(files.part(0, min(MAX_IMAGES, len(files)), name=files.name))


def open_images(weights: Weights, gate_split: Split | None, progress: Progress, *, precision: str) -> Images:
    """Open images where none are named: the gate's, else those that the run held out, else the demo's."""
    if gate_split:
        return Images(evenly(gate_split, MAX_IMAGES))
    try:
        held_out = _open_held_out(weights)
    except VitError as error:
        progress.note(f"note: the images that the run held out cannot be compared on: {error.message}")
        held_out = None
    if not held_out:
        return of_the_demo()
    most = NUM_IMAGES if precision == "fp32" else MAX_IMAGES
    return Images(evenly(held_out, most), are_held_out=True)


def check_decodable(images: Images) -> None:
    """Decode all, but those of which damaged ones are left out.

    Raises:
        DataError: one cannot be decoded.
    """
    for row in range(0 if images.are_held_out else len(images.split)):
        loader.read_example(images.split, row)


def of_the_demo() -> Images:
    return Images(DataSet("demo").open(f"test[:{NUM_IMAGES}]"))


def open_labelled(dataset: str, split: str, weights: Weights) -> Split:
    """Open the images of the gate, with labels in the order of the checkpoint's classes.

    Args:
        split: its name; "auto" is what `vit evaluate` scores by itself.

    Raises:
        VitError: the network has no accuracy: no head, several labels, or a number.
        DataError: the data cannot be read, have no labels, or other classes.
    """
    _check_has_accuracy(weights, "--gate")
    keys = {"model.ckpt": weights.source, "data.dataset": dataset}
    of_run = _recipe_of_run(weights)
    if of_run and run_folder.is_data_of(of_run, dataset):
        keys |= reading_keys(of_run.data, HOW_TO_READ)
    recipe = load_for_inference(None, (), keys, command="evaluate")
    try:
        opened = open_eval_split(recipe, split, weights)
    except DataError as error:
        error.fix = error.fix.replace("--set data.label_column=NAME, or ", "")  # an export takes no keys
        raise
    return _to_judge(opened, weights, "--gate, --split")


def _check_has_accuracy(weights: Weights, option: str) -> None:
    num_classes = weights.architecture.num_classes
    if not num_classes:
        fix = "leave it out, or fine-tune them first: vit finetune --ckpt WEIGHTS"
        raise VitError("weights without a head have no accuracy", where=option, fix=fix)
    check_supports(option, task_of(weights.metadata, num_classes), name=weights.source, kind=VitError)


def _open_held_out(weights: Weights) -> Split | None:
    """Open the images that the run of these weights was scored on; None if they are not on this machine.

    Raises:
        VitError: they cannot be read, or have other classes.
    """
    recipe = _recipe_of_run(weights)
    name = recipe and recipe.data.dataset
    if not name or not (name in demo.SETS or Path(name).exists()):
        return None
    has_head = weights.architecture.num_classes > 0
    opened = open_eval_split(recipe, "auto", weights, needs_labels=has_head)
    has_classes = has_head and not (opened.has_numbers or opened.is_multilabel)
    return _to_judge(opened, weights, "the run of CKPT") if has_classes else opened


def _recipe_of_run(weights: Weights) -> Recipe | None:
    """Return the recipe of the run that the weights are of; None if there is none, or its data are gone."""
    folder = run_folder.folder_of(weights.source)
    recipe, is_there = run_folder.recipe_of(folder) if folder else (None, False)
    return recipe if is_there else None


def _to_judge(split: Split, weights: Weights, option: str) -> Split:
    """Return the images that the weights were not trained on, with labels in the order of their classes.

    Raises:
        DataError: they were trained on all, or have other classes.
    """
    num_classes = weights.architecture.num_classes
    split, _ = match_class_names(split, weights.class_names, num_classes=num_classes, ckpt=weights.source)
    trained_on = SeenImages.of(weights.metadata).ever_trained_on
    if trained_on is None:
        return split
    unseen = never_trained_on(replace(split, notes=()), trained_on, is_held_out=True)
    if not len(unseen):
        raise DataError(
            f"{weights.source} was trained on all images of {split.name}",
            where=option,
            fix="--gate DATA names images that it was not trained on",
        )
    return unseen


def open_for_scales(weights: Weights, given: Sequence[str], judged: Split | None) -> Split:
    """Open the images that are given, else training images of the run that the weights are of.

    Args:
        judged: images that a verdict is based on, none of which is among those of the run.

    Raises:
        VitError: the weights are of no run whose data are there.
    """
    split = _open_training(weights, given, "calibration", "--precision int8")
    return evenly(split, NUM_FOR_SCALES) if given or not judged else without(split, judged, NUM_FOR_SCALES)


def open_for_screening(weights: Weights, given: Sequence[str], judged: Split, *, most: int) -> Split:
    """Open images as `open_for_scales` does, none of which is among those that a verdict is based on."""
    return without(_open_training(weights, given, "the screening of candidates", "--fastest"), judged, most)


def without(split: Split, judged: Split, most: int) -> Split:
    """Return at most this many rows, evenly spread, without the images of another split.

    Raises:
        VitError: there are no others.
    """
    split = evenly(split, 2 * most)  # some may be held out
    is_free_N = ~np.isin(digests_of(split), digests_of(judged))
    if not is_free_N.any():
        raise VitError(
            f"all images of {split.name} are among those that the verdict is based on",
            where="--calibrate and --gate",
            fix="name others: --calibrate FOLDER",
        )
    return evenly(split.rows(np.flatnonzero(is_free_N)), most)


def _open_training(weights: Weights, given: Sequence[str], purpose: str, option: str) -> Split:
    if given:
        return find_images(given, where="--calibrate")
    recipe = _recipe_of_run(weights)
    if not recipe or not recipe.data.dataset:
        raise VitError(
            f"{purpose} needs images, and the training images of these weights are not here",
            where=option,
            fix=f"--calibrate FOLDER of training images; {NUM_FOR_SCALES} are enough",
        )
    source = dataset.from_section(recipe.data)
    name = recipe.data.train_split
    return source.open(source.default_train_split() if name == "auto" else name)


def open_for_verdict(weights: Weights, gate: str | None, split: str) -> Split:
    """Open labelled images that decide which file is kept: of `gate`, else all that the run held out.

    Raises:
        VitError: there are none, or the network has no accuracy.
    """
    _check_has_accuracy(weights, "--fastest")
    if gate:
        return open_labelled(gate, split, weights)
    if held_out := _open_held_out(weights):
        return held_out
    raise VitError(
        "the accuracy of candidates needs labelled images, and no held-out images of the run are here",
        where="--fastest",
        fix="--gate DATA names images with labels that the weights were not trained on",
    )


def images_for_scales(split: Split, form: ProgramForm) -> Iterator[Tensor]:
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
            f"{count_of(num_skipped, 'image')} to calibrate int8 by, and none can be decoded",
            where=split.name,
            fix="--calibrate other images; vit datasets check says what is wrong with these",
        )
