"""What a run says before its first step: data, length, and what is probably a mistake."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vitcli.data.seen_images import SeenImages
from vitcli.data.sources.folders import LeftOut
from vitcli.data.sources.label_values import NEEDS_NUMBERS, NUMBERS, kind_of_values
from vitcli.data.split import Split, classes_without
from vitcli.output.progress import Progress, wrapped_lines
from vitcli.output.text import count_of, cut, first_few, size_text, within
from vitcli.recipe import Recipe
from vitcli.training.schedule import Plan
from vitcli.training.splits import RunSplits, gives_one_class
from vitcli.training.text import length_text

if TYPE_CHECKING:  # it imports this module
    from vitcli.training.setup import InitialModel

NOTE = "note: "  # before a line that a user should see, where there is room
MOST_LINES = 5  # before the first step
# With fewer images, in all and of a class, fresh weights learn them by heart. Of CIFAR-100, which can be
# learned from scratch, there are 500 per class.
MANY_IMAGES, MANY_PER_CLASS = 10_000, 200
MANY_EPOCHS = 300  # more than the paper's fine-tuning has
HOLD_OUT = "--set data.eval_split=dev_fraction holds a part of train out, or add a validation split"


@dataclass(frozen=True)
class Opening:
    """What a run says before its first step.

    Attributes:
        lines: that are always printed.
        others: notes, which begin with "note: ", the most important first: as many are printed as there is
            room for; and details, for --verbose.
    """

    lines: tuple[str, ...]
    others: tuple[str, ...]

    @property
    def notes(self) -> list[str]:
        """Return the notes without their mark, for the summary."""
        return [line.removeprefix(NOTE) for line in self.others if line.startswith(NOTE)]

    def show(self, progress: Progress, *, is_first: bool) -> None:
        """Print it, of a run that is not the first of several as details: they have most of it in common."""
        if progress.is_verbose or not is_first:
            for line in (*self.lines, *self.others):
                progress.detail(line)
            return
        room = MOST_LINES - 1 - len(self.lines)  # the last line is that of the run folder
        for line in self.lines:
            progress.note(cut(line, progress.width))
        for note in _fitting(self.notes, room, progress.width):
            progress.note(note)


def _fitting(notes: Sequence[str], room: int, width: int) -> list[str]:
    """Return the notes that fit into `room` lines of a terminal; the last one says how many do not.

    The first is among them, in a few words if it is too long for the room.
    """
    shown: list[str] = []
    for number, note in enumerate(notes, 1):
        whole, others = f"{NOTE}{note}", len(notes) - number
        height = _height(whole, width)
        if height < room or (height == room and not others):
            shown.append(whole)
            room -= height
            continue
        if room > 0:
            more = f" ({others} more: -v)" if others else ""
            while _height(whole + more, width) > room and " " in note:
                note = note.rpartition(" ")[0]
                whole = f"{NOTE}{note} …"
            shown.append(whole + more)
        break
    return shown


def _height(text: str, width: int) -> int:
    return wrapped_lines(text, width).count("\n") + 1


def opening(
    command: str,
    recipe: Recipe,
    start: "InitialModel",
    plan: Plan,
    splits: RunSplits,
    unreadable: Sequence[str],
    of_choice: Sequence[str],
    *,
    is_seen: bool,
) -> Opening:
    """Return what a run says before its first step.

    Args:
        unreadable: places of images that are left out.
        of_choice: lines on labels, and on what is chosen by which images.
        is_seen: look for images that the checkpoint was trained on.
    """
    train, scored, choice = splits.train, splits.eval, splits.choice
    size, origin = size_text(recipe.data.image_size), f" from {start.origin}:" if start.origin else ","
    counts = [f"training on {count_of(len(train), 'image')}{_labels_text(recipe, train)}"]
    counts += [f"{len(choice):,} in the dev split"] if choice is not None else []
    counts += [f"{len(scored):,} to score"] if len(scored) else []  # a declared data set has no size
    left_out = train.left_out | scored.left_out
    missing = left_out_text(unreadable, left_out, recipe.data.dataset)
    return Opening(
        lines=(
            f"{start.arch.name} at {size} px{origin} {start.loaded}",
            f"{', '.join(counts)}: {recipe.data.dataset}",
            *([f"left out: {missing}"] if missing else []),
        ),
        others=(
            *(of_seen(start.seen, scored) if is_seen else []),
            *of_choice,
            *recipe.notes,
            *too_few(command, recipe, train),
            *of_repetition(plan, recipe),
            *(f"{NOTE}{note}" for note in dict.fromkeys(train.notes + scored.notes)),
            *_of_held_out(recipe, train, scored),
            *start.notes,
            *left_out.lines(),
            f"training on {train.name}, scored on {scored.name}",
        ),
    )


def left_out_text(unreadable: Sequence[str], others: LeftOut, dataset: str | None) -> str:
    """Return how many images and files are left out, with advice on them or a name; "" for none.

    Args:
        unreadable: places of images that are counted in the line before.
    """
    files = others.count_text()
    if not unreadable:
        return files
    images = f"{len(unreadable):,} of them unreadable"
    return f"{images}, {files}" if files else f"{images}, first {within(unreadable[0], dataset)}"


def _of_held_out(recipe: Recipe, train_split: Split, eval_split: Split) -> list[str]:
    """Return lines on a part of the training images that is held out to be scored."""
    lines = []
    if eval_split.dev_cut and recipe.data.eval_split == "auto":
        lines.append("there is no other split to score, so it was cut from train (data.dev_fraction)")
    if missing := classes_without(eval_split, train_split):
        lines.append(f"{NOTE}no held-out image of: {first_few(missing)}")
    if eval_split.dev_cut and recipe.data.dev_stratified and not eval_split.dev_cut.get("stratified", True):
        reason = "it is too large"
        if train_split.is_multilabel or train_split.has_numbers:
            what = "numbers and no classes" if train_split.has_numbers else "several labels"
            reason = f"its images have {what}"
        lines.append(f"{NOTE}the held-out split is random, not stratified: {reason}")
    return lines


def _labels_text(recipe: Recipe, split: Split) -> str:
    if recipe.objective.loss == "masked_patch":  # which asks for no labels
        return ""
    if not split.has_numbers:
        return f" of {count_of(split.num_classes, 'class', 'classes')}"
    numbers = split.read_labels()
    return f" of numbers ({split.class_names[0]}, {numbers.min():g} to {numbers.max():g})"


def of_labels(recipe: Recipe, splits: RunSplits) -> list[str]:
    """Return the lines of `unusual_labels`, and of the images that thresholds are chosen on."""
    if recipe.objective.loss == "masked_patch":
        return []
    return unusual_labels(splits.train) + _of_thresholds(recipe, splits.train, splits.thresholds)


def _of_thresholds(recipe: Recipe, train_split: Split, chosen_on: Split | None) -> list[str]:
    """Return a line on the images that thresholds of several labels are chosen on."""
    if recipe.objective.loss != "sigmoid" or not train_split.is_multilabel or train_split.is_large:
        return []
    if chosen_on is not None:
        return [
            f"thresholds of the classes are chosen on {count_of(len(chosen_on), 'image')}: {chosen_on.name}"
        ]
    return [f"note: class thresholds stay at 0.5: they are not tuned on a test split; {HOLD_OUT}"]


def of_calibration(recipe: Recipe, splits: RunSplits) -> list[str]:
    """Return the note that the predictions of a classifier will not be calibrated."""
    if splits.calibration is not None or not gives_one_class(recipe, splits.train):
        return []
    return [f"note: no calibration images, so the weights get no prediction sets; {HOLD_OUT}"]


def of_seen(seen: SeenImages | None, eval_split: Split) -> list[str]:
    """Return a note on the images to score on that the checkpoint has been trained on already."""
    count = seen and seen.num_trained_on(eval_split)
    if not count:
        return []
    images = f"{count:,} of the {len(eval_split):,} images to score on"
    return [f"note: the checkpoint was trained on {images}, so the accuracy will be too high"]


def of_length(plan: Plan, recipe: Recipe) -> str:
    """Return how long a run is, and by which recipe."""
    asked = recipe.schedule.epochs
    length = length_text(plan.total_steps, plan.batch_size, plan.num_examples)
    if asked and f"{asked:.3g}" != f"{plan.epochs:.3g}":
        length += f" ({asked:g} epochs in whole steps)"
    return f"{length}, by {recipe.name}" if recipe.name else length


def of_repetition(plan: Plan, recipe: Recipe) -> list[str]:
    """Return notes on how often the run sees each image."""
    notes = []
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
        or recipe.objective.loss == "masked_patch"
        or train_split.has_numbers
        or count >= MANY_IMAGES
        or count >= MANY_PER_CLASS * num_classes
    ):
        return []
    images = f"{count} images, {count / num_classes:.0f} per class,"
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
    names = [str(split.class_names[k] if split.class_names else k) for k in np.flatnonzero(counts_K)]
    is_read = len(labels) == len(split)  # of a split of declared size the classes alone are known
    if is_read and not split.is_multilabel and kind_of_values(names, len(labels)) == NUMBERS:
        notes.append(
            f"note: {len(names):,} numbers are taken as classes, in {count_of(len(labels), 'image')}; "
            f"{NEEDS_NUMBERS}"
        )
    if split.num_classes == 1:
        notes.append("note: there is only one class, so every prediction is correct")
    if empty:
        notes.append(f"note: no training image has class {first_few(empty)}")
    return notes
