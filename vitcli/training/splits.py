"""The images of a run by what they are for: training, evaluation, dev split, calibration."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from operator import attrgetter
from typing import Any

import numpy as np

from vitcli import recipe as recipes
from vitcli.data import dataset
from vitcli.data.aliases import local_copy
from vitcli.data.dataset import DataSet, OpenDataSet
from vitcli.data.image_files import find_images
from vitcli.data.parts.eval_split_names import FoldName, choice_part
from vitcli.data.parts.splitting import cut_dev
from vitcli.data.seen_images import MOST_IMAGES, SeenImages, digests_of
from vitcli.data.split import Split
from vitcli.errors import DataError, VitError
from vitcli.evaluation.calibration.prediction_sets import LEAST
from vitcli.evaluation.setup import Start, trained_on_by
from vitcli.output.text import count_of
from vitcli.recipe import Recipe
from vitcli.recipe.schema import PROBE, Data
from vitcli.weights.io import read_description

VALIDATION, TEST = "validation", "test"
# The dev split of the training images where the recipe names no fraction; never more.
CHOICE_FRACTION, MOST_TO_CHOOSE_BY = 0.1, 500


@dataclass(frozen=True)
class RunSplits:
    """The images of one run.

    Attributes:
        choice: the dev split within the run, neither trained on nor reported on; None if the recipe has
            nothing to choose.
        thresholds: chooses the thresholds of several labels; None for other runs, and without such images.
        calibration: calibrates a classifier; None for other runs, and without such images.
        probe: training and test split of the few-shot probe, if the recipe has one.
    """

    train: Split
    eval: Split
    choice: Split | None = None
    thresholds: Split | None = None
    calibration: Split | None = None
    probe: tuple[Split, Split] | None = None

    @property
    def own(self) -> list[Split]:
        """The images that are cut or named for this run alone: training, evaluation and dev split."""
        return [split for split in (self.train, self.eval, self.choice) if split is not None]

    def replaced(self, *, train: Split, eval: Split, choice: Split | None) -> "RunSplits":
        """Return the splits with others in the place of the run's own, wherever these serve."""
        others = {id(self.eval): eval, id(self.choice): choice}
        thresholds, calibration = (
            others.get(id(split), split) for split in (self.thresholds, self.calibration)
        )
        return RunSplits(train, eval, choice, thresholds, calibration, self.probe)


class RunData:
    """The data of the runs of one command: every data set, split and image file is opened once.

    Args:
        starts: checkpoints that the runs start from; what they were trained on is held out last.
        data_set: called in the place of `DataSet`.
    """

    def __init__(self, starts: Sequence[Start], *, quiet: bool, data_set: OpenDataSet = DataSet):
        self.starts, self._data_set = tuple(starts), cache(data_set)
        self.trained_before = cache(partial(trained_on_by, self.starts, quiet=quiet))
        self._opened = cache(self._open)

    def splits_of(self, recipe: Recipe, *, plan_only: bool, calibrates: bool) -> RunSplits:
        """Open the splits of one run; with `plan_only` those of declared sizes where the data are not here.

        Args:
            calibrates: whether the weights of a classifier are stored with its calibration.
        """
        train, scored = self.train_and_eval(recipe, plan_only=plan_only)
        names = (recipe.distill and recipe.distill.images) or ()
        if plan_only:
            thresholds = choosing_split(recipe, train, scored, self)
            return RunSplits(with_unlabelled(train, names, ()), scored, thresholds=thresholds)
        train, choice = hold_out(train, recipe)
        dev = self.held_out_dev(recipe) if names and recipe.data.hold_out_dev else None
        calibration = calibration_split(recipe, train, scored, choice, self) if calibrates else None
        return RunSplits(
            with_unlabelled(train, names, (scored, choice, dev, calibration)),
            scored,
            choice,
            probe=open_probe(recipe, self),
            thresholds=choosing_split(recipe, train, scored, self),
            calibration=calibration,
        )

    def source_of(self, data: Data, *, needs_labels: bool = True, numbers: bool = False) -> DataSet:
        """Return the data set of a [data] section, see `dataset.from_section`."""
        return dataset.from_section(data, needs_labels=needs_labels, numbers=numbers, data_set=self._data_set)

    def train_and_eval(self, recipe: Recipe, *, plan_only: bool = False) -> tuple[Split, Split]:
        """Open what one run is trained and reported on; all runs of a sweep hold out the same images."""
        settings = recipe.data
        if settings.dataset is None:
            raise VitError(
                "no data set is named",
                where="--dataset (recipe key data.dataset)",
                fix="--dataset FOLDER, or demo",
            )
        if plan_only and (declared := declared_splits(settings.dataset, settings.num_examples)):
            return declared
        return self._opened(settings, recipe.train.seed, recipe.objective.loss)

    def _open(self, settings: Data, seed: int, loss: str) -> tuple[Split, Split]:
        needs_labels = loss != "masked_patch"  # for which any folder of images will do
        source = self.source_of(settings, needs_labels=needs_labels, numbers=loss == "regression")
        return dataset.open_train_and_eval(
            settings, seed=seed, source=source, trained_before=self.trained_before
        )

    def held_out_dev(self, recipe: Recipe) -> Split:
        """Open the images that `data.hold_out_dev` keeps out of training: the same ones for every seed."""
        data = recipe.data
        changes = {"eval_split": choice_part(data.eval_split), "num_examples": None, "hold_out_dev": False}
        return self._open(data.model_copy(update=changes), 0, recipe.objective.loss)[1]


def declared_splits(dataset: str, num_examples: int | None) -> tuple[Split, Split] | None:
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


def hold_out(train: Split, recipe: Recipe) -> tuple[Split, Split | None]:
    """Return the images to train on, and the dev split within the run; None if the recipe chooses nothing.

    A run with a probe head chooses what it delivers, one with `train.patience` its end and its best weights.
    Of every class with two images one is held out at least; groups of `data.group_column` are not separated.

    Raises:
        VitError: there are too few images, or none has a class.
    """
    has_probe = recipe.model.head == PROBE
    if not (has_probe or recipe.train.patience):
        return train, None
    if has_probe and (train.is_multilabel or train.has_numbers):
        raise VitError(
            "the closed form of a probe head predicts one class per image",
            where="recipe key model.head",
            fix="--set model.head=zero",
        )
    has_classes = not (train.is_large or train.is_multilabel or train.has_numbers)
    if has_classes and np.bincount(train.read_labels()).max() < 2:
        raise VitError(
            f"every class of {train.name} has a single image, so no dev split can be held out",
            where="recipe keys model.head and train.patience",
            fix="add images, or --set model.head=zero without train.patience",
        )
    fraction = min(recipe.data.dev_fraction or CHOICE_FRACTION, MOST_TO_CHOOSE_BY / len(train))
    return cut_dev(train, dev_fraction=fraction, split=train.name, stratified=True)


def with_unlabelled(train: Split, names: Sequence[str], held_out: Sequence[Split | None]) -> Split:
    """Return the training images and, without labels, those that are named and not held out.

    Raises:
        DataError: a name matches no image.
    """
    if not names:
        return train
    others = find_images(names, where="recipe key distill.images")
    digests = [digests_of(split) for split in held_out if split is not None and len(split)]
    is_held_N = (
        np.isin(digests_of(others), np.concatenate(digests)) if digests else np.zeros(len(others), bool)
    )
    if is_held_N.any():
        note = f"{count_of(int(is_held_N.sum()), 'image')} of distill.images are held out, and left out"
        others = replace(others.rows(np.flatnonzero(~is_held_N)), notes=(note,))
    return train.with_unlabelled(others)


def choosing_split(recipe: Recipe, train: Split, scored: Split, opened: RunData) -> Split | None:
    """Return the images to choose thresholds of several labels by; None for other runs, and without any."""
    if recipe.objective.loss != "sigmoid" or not train.is_multilabel or train.is_large:
        return None
    return _scored_or_validation(recipe, scored, opened)


def calibration_split(
    recipe: Recipe, train: Split, scored: Split, choice: Split | None, opened: RunData
) -> Split | None:
    """Return the images that calibrate a classifier; None for other runs, and without any.

    The dev split within the run, if it is large enough; else as for thresholds. Of a run on all images
    with folds all of them, since the models of the folds have predicted them.
    """
    if not gives_one_class(recipe, train):
        return None
    folds = FoldName.of(recipe.data.eval_split)
    if folds and folds.fold is None:
        return scored
    if choice is not None and len(choice) >= LEAST:
        return choice
    split = _scored_or_validation(recipe, scored, opened)
    classes_of = attrgetter("num_classes", "class_names")
    is_same = split is not None and classes_of(split) == classes_of(train)
    return split if is_same and not split.is_large else choice


def gives_one_class(recipe: Recipe, train: Split) -> bool:
    """Return whether a run trains a network to give an image one of several classes, known beforehand."""
    gives_classes = recipe.objective.loss in ("softmax", "sigmoid")
    is_known = not (train.is_large or train.is_multilabel or train.has_numbers)
    return gives_classes and is_known and train.num_classes > 1


def _scored_or_validation(recipe: Recipe, scored: Split, opened: RunData) -> Split | None:
    """Return the scored images, unless these are a test split: then those of the validation split, if any."""
    if not len(scored):
        return None
    if f", split {TEST}" not in scored.name:
        return scored
    data = opened.source_of(recipe.data)
    return data.open(VALIDATION) if VALIDATION in data.split_names else None


def open_probe(recipe: Recipe, opened: RunData) -> tuple[Split, Split] | None:
    """Open the data set of the few-shot probe, with the default settings of [data]."""
    if recipe.eval.probe is None:
        return None
    keys = ("train_split", "eval_split", "num_examples", "image_column", "label_column", "num_classes")
    keys = (*keys, "streaming", "one_class", "group_column")
    changes = {key: Data.model_fields[key].default for key in keys}
    changes |= {"dataset": recipe.eval.probe, "dev_fraction": 0.1, "dev_stratified": True}
    data = recipe.data.model_copy(update=changes)
    return dataset.open_train_and_eval(data, seed=0, source=opened.source_of(data))


def check_labels(train_split: Split, recipe: Recipe) -> None:
    """Refuse the softmax for images with several labels: it predicts a single class."""
    if recipe.objective.loss != "softmax" or not len(train_split) or not train_split.is_multilabel:
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
        split = dataset.open_eval(
            data,
            cut["split"] if cut else data.eval_split,
            needs_labels=loss != "masked_patch",
            numbers=loss == "regression",
        )
        if cut:
            return split.fingerprint != cut["fingerprint"]
        then = summary.get("eval_fingerprint")
        return split.name == summary["eval_split"] and then not in (None, split.fingerprint)
    return False
