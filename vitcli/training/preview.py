"""`vit datasets preview`: the images of the first training step and of evaluation, as the network gets them.

The rows, crops and draws are those of `vit finetune` with the same recipe and seed.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitcli import recipe as recipes
from vitcli.data import loader
from vitcli.data.parts.groups import groups_of_copies
from vitcli.data.parts.image_hashes import hash_images
from vitcli.data.sampler import seed_of_part
from vitcli.data.split import Split
from vitcli.data.transforms import preprocessing_of, train_transform_of
from vitcli.distributed.transfer import seed_generators
from vitcli.errors import DataError, VitError
from vitcli.evaluation.mistakes import places_of
from vitcli.evaluation.setup import settle_pixels, starts_of
from vitcli.models.build import check_image_size
from vitcli.output import html
from vitcli.output import text as output_text
from vitcli.output.atomic import check_out, write_text
from vitcli.output.document import PageFigure
from vitcli.output.text import short_paths
from vitcli.recipe import Recipe
from vitcli.recipe.group_rule import NEAR_DISTANCE, NEAR_DUPLICATES
from vitcli.recipe.reading import data_words
from vitcli.recipe.schema import Data
from vitcli.training.many_runs.sweep import settle_size
from vitcli.training.methods import resolutions
from vitcli.training.objective import draw_mixing
from vitcli.training.run import sampler_of
from vitcli.training.setup import MAX_MICRO_BATCH
from vitcli.training.splits import RunData, check_labels, hold_out
from vitcli.weights.io import read_description
from vitcli.weights.names import FRESH

QUALITY = 92  # of JPEG: the pixels are to look at
MOST_READ = 5_000  # images that are all read, in seconds, for the advice on a run with them
AUGMENTATION = (
    "train_crop", "crop_area", "flip", "randaugment", "trivialaugment", "random_erasing",
)  # fmt: skip


@dataclass(frozen=True)
class PreviewOptions:
    """How many images are shown, and where.

    Attributes:
        out: the page, in .html.
        num_images: of each split at most.
    """

    out: Path
    num_images: int
    overwrite: bool
    workers: int | None
    quiet: bool


@dataclass(frozen=True)
class Shown:
    """One image of the preview.

    Attributes:
        label: in words, mixed ones with their weights.
        pixels: named images of (H, W, 3) uint8, as the network gets them.
    """

    split: Split
    row: int
    place: str
    label: str
    pixels: Mapping[str, np.ndarray]


def preview(recipe: Recipe, options: PreviewOptions) -> dict[str, Any]:
    """Write the page and return what it shows.

    Raises:
        DataError: an image cannot be read, or the data have no labels.
        WeightsError: the checkpoint whose pixels are asked for cannot be read.
        VitError: the images do not divide into its patches.
    """
    check_out(options.out, overwrite=options.overwrite, suffixes=(".html",))
    # The recipe of the first run, with numbers for what the data and the weights decide.
    data = RunData(starts_of(recipe), quiet=options.quiet)
    recipe = settle_pixels(settle_size(recipe, data, plan_only=False), "finetune", quiet=options.quiet)
    (_, recipe), *_ = recipes.trials(recipe)
    if recipe.model.ckpt == FRESH and recipe.model.name is None:
        what = "fresh weights need the name of a network"
        raise VitError(what, where="--ckpt random", fix="--set model.name=ViT-B/16, or another network")
    if recipe.model.ckpt not in (None, FRESH):
        arch = read_description(recipe.model.ckpt, model_name=recipe.model.name, quiet=True).architecture
        check_image_size(replace(arch, image_size=tuple(recipe.data.image_hw)))
    whole, eval_split = data.train_and_eval(recipe)
    train_split, _ = hold_out(whole, recipe)
    check_labels(train_split, recipe)

    trained, image_size = _trained(recipe, train_split, options)
    evaluated = list(_evaluated(recipe, eval_split, options))
    _write_page(recipe, trained, evaluated, image_size, options.out)
    return {
        "command": "datasets preview",
        "ckpt": recipe.model.ckpt,
        "dataset": recipe.data.dataset,
        "split": train_split.name,
        "eval_split": eval_split.name,
        "image_size": image_size,
        "eval_image_size": list(recipe.data.image_hw),
        "batch_size": recipe.train.batch_size,
        "mean": list(recipe.data.mean),
        "std": list(recipe.data.std),
        "augmentation": augmentation(recipe),
        "data_words": _to_train(recipe.data, [whole, eval_split], options),
        "train": [_record(shown) for shown in trained],
        "evaluate": [_record(shown) for shown in evaluated],
        "page": str(options.out),
    }


def _to_train(data: Data, splits: Sequence[Split], options: PreviewOptions) -> list[str]:
    """Return the words of a run on these images: unreadable ones are left out, copies kept together."""
    if any(split.is_large for split in splits) or sum(map(len, splits)) > MOST_READ:
        return data_words(data)
    hashes = [hash_images(each, num_threads=options.workers, progress=lambda num: None) for each in splits]
    copies_N = np.concatenate(groups_of_copies(hashes, [*map(len, splits)], distance=NEAR_DISTANCE))
    rule = NEAR_DUPLICATES if len(np.unique(copies_N)) < len(copies_N) else None
    keys = {"on_bad_image": "skip" if any(part.unreadable for part in hashes) else "error"}
    return data_words(data.model_copy(update=keys | {"group_column": data.group_column or rule}))


def augmentation(recipe: Recipe) -> dict[str, Any]:
    """Return the keys of a recipe that change training images at random, without those that are off."""
    values = {key: getattr(recipe.data, key) for key in AUGMENTATION}
    values |= {"mixup": recipe.objective.mixup, "cutmix": recipe.objective.cutmix}
    if values["train_crop"] != "inception":
        values.pop("crop_area")
    values = {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
    return {key: value for key, value in values.items() if value}


def first_part(
    recipe: Recipe, split: Split, *, least: int, num_threads: int
) -> tuple[loader.Batch, Tensor, float]:
    """Return the first images of step 0, these mixed with each other in uint8, and the weight of each label.

    They are as many as a CPU passes through a network at once by default, or `least` if that is more.
    """
    transform, sides = train_transform_of(recipe.data), recipe.schedule.image_sizes
    count = min(recipe.train.batch_size, max(least, MAX_MICRO_BATCH["cpu"]))
    batches = loader.train_batches(
        split,
        resolutions.at_side(transform, sides[0]) if sides else transform,
        sampler_of(split, recipe, rank=0, world_size=1),
        steps=range(1),
        per_device_batch=count,
        on_bad_image=recipe.data.on_bad_image,
        num_threads=num_threads,
    )
    with closing(batches):
        batch = next(batches)
    mixup, cutmix = recipe.objective.mixup, recipe.objective.cutmix
    if not (mixup or cutmix):
        return batch, batch.images_BCHW, 1.0
    # Seeded as the first micro-batch of a run; to mix before or after the range is scaled is the same.
    seed_generators(seed_of_part(recipe.train.seed, 0, 0), torch.device("cpu"))
    mixing = draw_mixing(batch.images_BCHW.shape[-2:], mixup=mixup, cutmix=cutmix)
    return batch, mixing.mix(batch.images_BCHW.float()).round().to(torch.uint8), mixing.weight


def _trained(recipe: Recipe, split: Split, options: PreviewOptions) -> tuple[list[Shown], list[int]]:
    """Return training images, with the pixels of the first step and those of evaluation, and their size."""
    threads = options.workers or loader.default_threads()
    batch, images_BCHW, weight = first_part(recipe, split, least=options.num_images, num_threads=threads)
    labels = [label_text(split, label) for label in batch.labels_B]
    rows_N = batch.rows_B[: options.num_images].numpy()
    preprocessing = preprocessing_of(recipe.data)
    shown = []
    for i, (row, place) in enumerate(zip(rows_N.tolist(), places_of(split, rows_N), strict=True)):
        label = labels[i] if weight == 1 else f"{weight:.2f} {labels[i]} + {1 - weight:.2f} {labels[i - 1]}"
        image, _ = loader.open_example(split, row, split.read_row, decode=preprocessing.decode)
        pixels = {
            "first training step": images_BCHW[i].permute(1, 2, 0).numpy(),
            "evaluation": preprocessing(image),
        }
        shown.append(Shown(split, row, place, label, pixels))
    return shown, list(images_BCHW.shape[-2:])


def _evaluated(recipe: Recipe, split: Split, options: PreviewOptions) -> Iterator[Shown]:
    """Yield images of the split to report on, spread over it, with the pixels of evaluation."""
    preprocessing = preprocessing_of(recipe.data)
    count = min(len(split), options.num_images)
    rows_N = np.arange(count) * len(split) // count
    for row, place in zip(rows_N.tolist(), places_of(split, rows_N), strict=True):
        with suppress(DataError):  # which the advice leaves out
            image, label = loader.open_example(split, row, split.read_row, decode=preprocessing.decode)
            yield Shown(split, row, place, label_text(split, label), {"evaluation": preprocessing(image)})


def label_text(split: Split, label: Any) -> str:
    """Return the label of an image in words: a class, several with commas, or a number."""
    values = np.atleast_1d(np.asarray(label))
    if split.has_numbers:
        return f"{float(values[0]):g}"
    names = [split.readable_class_names[int(value)] for value in values if value >= 0]
    return ", ".join(names) or "no class"


def _record(shown: Shown) -> dict[str, Any]:
    return {"row": shown.row, "place": shown.place, "label": shown.label}


def _write_page(
    recipe: Recipe, trained: Sequence[Shown], evaluated: Sequence[Shown], size: Sequence[int], out: Path
) -> None:
    """Write rows of images: the whole one with its label, then the pixels that the network gets."""
    places = [shown.place for shown in (*trained, *evaluated)]
    short = dict(zip(places, short_paths(places), strict=True))
    data = recipe.data
    changes = ", ".join(f"{key} {value}" for key, value in augmentation(recipe).items())
    parts = {
        "Training": (trained, f"Images of the first step: whole, as trained on ({changes}), as evaluated."),
        "Evaluation": (evaluated, "Images of the split to report on: whole, and as evaluated."),
    }
    figures = [
        PageFigure(section, caption, html.image_rows([_row(each, short) for each in shown]), is_wide=True)
        for section, (shown, caption) in parts.items()
    ]
    facts = [
        f"training {size[0]} x {size[1]} pixels, evaluation {data.image_hw[0]} x {data.image_hw[1]}",
        f"batches of {recipe.train.batch_size}",
        f"mean {', '.join(f'{value:g}' for value in data.mean)}",
        f"std {', '.join(f'{value:g}' for value in data.std)}",
    ]
    page = html.page(
        [], figures, title="What does the network see?", summary=facts, command="vit datasets preview"
    )
    write_text(out, page)


def _row(shown: Shown, short: Mapping[str, str]) -> html.ImageRow:
    whole, _ = loader.read_example(shown.split, shown.row)
    first = html.CaptionedImage(
        html.thumbnail(whole), f"labelled {shown.label}", (shown.label, short[shown.place])
    )
    pixels = []
    for name, image_HWC in shown.pixels.items():
        image = Image.fromarray(np.ascontiguousarray(image_HWC))
        jpeg = html.jpeg(image, quality=QUALITY, subsampling=0)
        pixels.append(html.CaptionedImage(jpeg, f"pixels of {name}", (name,)))
    return html.ImageRow(first, tuple(pixels))


def as_text(result: dict[str, Any]) -> str:
    """Return the result for a terminal."""
    changes = ", ".join(f"{key} {value}" for key, value in result["augmentation"].items())
    height, width = result["image_size"]
    eval_height, eval_width = result["eval_image_size"]
    return output_text.pairs(
        [
            ("training", f"{result['split']}, {height} x {width} pixels, {changes or 'unchanged'}"),
            ("evaluation", f"{result['eval_split']}, {eval_height} x {eval_width} pixels"),
            ("page", result["page"]),
            *output_text.commands(("vit", "finetune", "--ckpt", result["ckpt"], *result["data_words"])),
        ]
    )
