"""What a run says before its first step: data, length, and what is probably a mistake."""

import shlex

import numpy as np

from vitcli.data.seen_images import SeenImages
from vitcli.data.split import Split, classes_without
from vitcli.output.progress import Progress
from vitcli.output.text import count_of, first_few, size_text
from vitcli.recipe import Recipe
from vitcli.training.methods.thresholds import gives_one_class
from vitcli.training.schedule import Plan
from vitcli.training.text import length_text

# With fewer images, in all and of a class, fresh weights learn them by heart. Of CIFAR-100, which can be
# learnt from scratch, there are 500 a class.
MANY_IMAGES, MANY_PER_CLASS = 10_000, 200
MANY_EPOCHS = 300  # more than the paper's fine-tuning has


def note_data(
    progress: Progress, recipe: Recipe, model_name: str, train_split: Split, eval_split: Split
) -> None:
    """Print what is trained on which data."""
    progress.note(f"{model_name} at {size_text(recipe.data.image_size)} px")
    images = f"{count_of(len(train_split), 'image')} of {_labels_text(train_split)}"
    progress.note(f"training on {images}: {train_split.name}")
    if len(eval_split):  # that of a declared data set has no size
        progress.note(f"scored on {count_of(len(eval_split), 'image')}: {eval_split.name}")
    for line in dict.fromkeys(train_split.lines + eval_split.lines):
        progress.note(line)
    if eval_split.dev_cut and recipe.data.eval_split == "auto":
        progress.note("there is no other split to score, so it was cut from train (data.dev_fraction)")
    if missing := classes_without(eval_split, train_split):
        progress.note(f"note: no held-out image of: {first_few(missing)}")
    if eval_split.dev_cut and recipe.data.dev_stratified and not eval_split.dev_cut.get("stratified", True):
        reason = "it is too large"
        if train_split.has_several_labels or train_split.has_numbers:
            what = "numbers and no classes" if train_split.has_numbers else "several labels"
            reason = f"its images have {what}"
        progress.note(f"note: what is held out was drawn at random, not by class: {reason}")


def _labels_text(split: Split) -> str:
    if not split.has_numbers:
        return count_of(split.num_classes, "class", "classes")
    numbers = split.read_labels()
    return f"numbers ({split.class_names[0]}, {numbers.min():g} to {numbers.max():g})"


def of_labels(recipe: Recipe, train_split: Split, chosen_on: Split | None) -> list[str]:
    """Return the lines of `unusual_labels`, and of the images that thresholds are `chosen_on`."""
    return unusual_labels(train_split) + _of_thresholds(recipe, train_split, chosen_on)


def _of_thresholds(recipe: Recipe, train_split: Split, chosen_on: Split | None) -> list[str]:
    """Return a line on the images that thresholds of several labels are chosen on."""
    if recipe.objective.loss != "sigmoid" or not train_split.has_several_labels or train_split.is_large:
        return []
    if chosen_on is not None:
        return [
            f"thresholds of the classes are chosen on {count_of(len(chosen_on), 'image')}: {chosen_on.name}"
        ]
    fix = "--set data.eval_split=dev_fraction holds a part of train out, or add a validation split"
    return [f"note: the thresholds of all classes stay 0.5, since a test split is not to choose by; {fix}"]


def of_belief(recipe: Recipe, train_split: Split, chosen_on: Split | None) -> list[str]:
    """Return the note that nothing will be known about believing the predictions of a classifier."""
    if chosen_on is not None or not gives_one_class(recipe, train_split):
        return []
    fix = "--set data.eval_split=dev_fraction holds a part of train out, or add a validation split"
    return [f"note: no images to calibrate by, so the weights get no prediction sets; {fix}"]


def note_seen(progress: Progress, seen: SeenImages | None, eval_split: Split) -> None:
    """Say how many of the images to score on the checkpoint has been trained on already."""
    if count := seen and seen.num_trained_on(eval_split):
        progress.note(
            f"note: the checkpoint was trained on {count:,} of the {len(eval_split):,} images to score on, "
            "so the accuracy will be too high"
        )


def notes_on_length(plan: Plan, recipe: Recipe) -> list[str]:
    """Return lines on how often the run sees each image."""
    asked = recipe.schedule.epochs
    length = length_text(plan.total_steps, plan.batch_size, plan.num_examples)
    if asked and f"{asked:.3g}" != f"{plan.epochs:.3g}":
        length += f" ({asked:g} epochs in whole steps)"
    notes = [length]
    if plan.epochs > MANY_EPOCHS and recipe.schedule.max_minutes is None:
        notes.append(
            f"note: each image is seen {plan.epochs:,.0f} times; --epochs or --steps shortens the run"
        )
    if plan.batch_size > plan.num_examples:
        notes.append(
            f"note: a step of {plan.batch_size:,} images sees some images more than once: there are fewer"
        )
    return notes


def too_few(command: str, recipe: Recipe, train_split: Split) -> list[str]:
    """Return the note that there are too few images to train from scratch, if that is so."""
    count, num_classes = len(train_split), max(1, train_split.num_classes)
    if (
        command != "pretrain"
        or train_split.has_numbers
        or count >= MANY_IMAGES
        or count >= MANY_PER_CLASS * num_classes
    ):
        return []
    images = f"{count} images, {count / num_classes:.0f} a class,"
    instead = f"vit finetune --ckpt WEIGHTS --dataset {shlex.quote(recipe.data.dataset)}"
    return [f"note: {images} are too few to train from scratch; {instead} starts from trained weights"]


def unusual_labels(split: Split) -> list[str]:
    """Return notes on labels that are allowed but probably a mistake."""
    if split.is_large or split.has_numbers:
        return []
    labels = split.read_labels()
    counts_K = np.bincount(labels[labels >= 0], minlength=split.num_classes)
    empty = [str(split.class_names[k] if split.class_names else k) for k in np.flatnonzero(counts_K == 0)]
    notes = []
    if split.num_classes == 1:
        notes.append("note: there is only one class, so every prediction is correct")
    if empty:
        notes.append(f"note: no training image has class {first_few(empty)}")
    return notes
