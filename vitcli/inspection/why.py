"""`vit predict --why`: the training images and the patches behind an answer, and the runner-up class.

    predict_why      answers as `vit predict`, each with its reasons, and the page
    _of_fewshot      a few-shot run: its network with the closed form of its first draw as head
    _of_training     a trained run: its network, and the closed form on the features of its training images

Influences are those of the closed form (`least_squares.influences`). In a few-shot run it is the answer's own
head. A fine-tuned head has no closed form: there it is fitted to the features of the finished network, and
what it answers itself is said. Patches are those of the network's own logits in both cases.

N training images, D features, E = D + 1, K classes, I x J patches.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitcli.data.image_files import find_images
from vitcli.data.parts.eval_split_names import FoldName
from vitcli.data.split import Split
from vitcli.data.task import check_supports
from vitcli.data.transforms import to_model_range
from vitcli.errors import DataError, VitError
from vitcli.evaluation import predict as predictions
from vitcli.evaluation.calibration.scaling import softmax_scale
from vitcli.evaluation.mistakes import places_of, thumbnail_of
from vitcli.evaluation.multilabel import task_of
from vitcli.evaluation.predict import PredictOptions
from vitcli.evaluation.setup import LoadedNetwork, RunSettings, read_checkpoint
from vitcli.evaluation.text import predictions_as_text
from vitcli.features import forecast, least_squares
from vitcli.features.draws import read_draws
from vitcli.features.extract import FeatureExtractor, features_of_rows, open_extractor
from vitcli.features.fewshot import open_splits
from vitcli.features.least_squares import SWEEP, Solution, influences
from vitcli.inspection.analysis import attention_overlay
from vitcli.inspection.attention import AttentionLayout, patch_relevance, probe_attention_layout
from vitcli.models import features
from vitcli.models.build import put_last_layer
from vitcli.output import html, run_folder
from vitcli.output.atomic import check_out, write_text
from vitcli.output.document import PageFigure
from vitcli.output.text import Verbatim, count_of, pairs, percent, short_names
from vitcli.recipe import Recipe, load_for_inference
from vitcli.recipe.schema import Fewshot
from vitcli.weights.io import Weights

MOST_IMAGES = 50  # a page; each image takes as long as some dozen predictions
NUM_REASONS = 3
PAGE = ".html"
RUNS = "name the folder of a run of vit fewshot or vit finetune, whose recipe names its training images"
OTHER_HEAD = (
    "The network answers by its own last layer; the closed form is another one on its features, fitted by "
    "least squares, so that between close classes the two can differ."
)
FULL_AT = 0.95  # quantile of the patches from which on the image keeps its brightness
DARKEST = 0.15  # of the brightness, where a patch does not count
CAPTION = (
    "Left: the image as the network sees it, with its answer and the runner-up class. Then the patches "
    "that carry the answer; dark ones do not. Then the training images with the largest influence on the "
    "lead of the answer over the next class: what that lead loses without the image, in scores of the "
    "closed form. They are not probabilities: the closed form is fitted to give an image 1 for its own class "
    "and -1 for every other, so that a perfect lead is 2. A label other than the answer is in bold."
)


@dataclass(frozen=True, eq=False)
class TrainingImages:
    """The training images of a run, and the closed form fitted to their features.

    Attributes:
        rows_N: of the split, in the order of the fitted rows.
        solution: of one l2.
        about: of the JSON.
    """

    split: Split
    rows_N: np.ndarray
    solution: Solution
    layer: str
    about: dict[str, Any]


def predict_why(
    images: Sequence[str], recipe: Recipe, run: RunSettings, options: PredictOptions, page: Path
) -> dict[str, Any]:
    """Return what `vit predict` does, each prediction with its "why", and write the page.

    Raises:
        VitError: the checkpoint is not a run that names its training images, or an option has no reasons.
        DataError: the training images are gone, or have other classes.
    """
    split = _open_images(images, options)
    folder, of_run = _run_of(recipe)
    # What has no reasons is refused first: another name of the page would not help it.
    if (folder / run_folder.DRAWS).is_file():
        fewshot = _closed_form_of(of_run, folder)
        load = partial(_of_fewshot, recipe, of_run, run, folder, fewshot)
    else:
        weights = _weights_of_classes(recipe, quiet=run.quiet)
        load = partial(_of_training, recipe, of_run, run, folder, weights)
    check_out(page, overwrite=run.overwrite, option="--why", suffixes=(PAGE,))
    predictions.check_output(run)

    # The network that answers, and the closed form on its features of the training images.
    network, training = load()
    pixels: list[np.ndarray] = []  # (H, W, C) of each prediction

    def keep(row: int, prediction: dict[str, Any], image_CHW: np.ndarray) -> None:
        pixels.append(np.ascontiguousarray(image_CHW.transpose(1, 2, 0)))

    result = predictions.predict_with(network, split, recipe, run, options, keep)
    return _explained(result, pixels, network, training, page)


def _open_images(images: Sequence[str], options: PredictOptions) -> Split:
    """Open the images; refuse what has no reasons, and more images than a page is for."""
    if options.mirrored or options.every or options.sort_into:
        name = "--tta" if options.mirrored else "--every" if options.every else "--sort-into"
        what = f"--why cannot be combined with {name}"
        raise VitError(what, where="--why", fix="leave one of them out")
    split = find_images(images, where="IMAGES")
    if len(split) > MOST_IMAGES:
        raise VitError(
            f"--why is for {MOST_IMAGES} images at the most, not {len(split):,}",
            where="IMAGES",
            fix="name those whose answers are surprising",
        )
    return split


def _run_of(recipe: Recipe) -> tuple[Path, Recipe]:
    """Return the folder and the recipe of the run whose weights these are, with its training images."""
    folder = run_folder.folder_of(recipe.model.ckpt)
    if folder is None:
        problem = f"{recipe.model.ckpt} does not say which images it was trained on"
        raise VitError(problem, where="--why", fix=RUNS)
    of_run, is_there = run_folder.recipe_of(folder)
    if not (is_there and of_run.data.dataset):
        raise DataError(
            f"the training images of {folder} are gone: {of_run.data.dataset}",
            where="--why",
            fix="put them where its recipe.toml says",
        )
    return folder, of_run


def _closed_form_of(of_run: Recipe, folder: Path) -> Fewshot:
    """Return the settings of a few-shot run; refuse another classifier, and features no last layer takes."""
    fewshot = of_run.fewshot
    if fewshot is None or fewshot.classifier != "least-squares" or of_run.eval.layer != "pre_logits":
        raise VitError(
            "only the closed form on the input of the last layer has exact influences",
            where=f"recipe of {folder}",
            fix="repeat vit fewshot with --classifier least-squares, without --layer",
        )
    return fewshot


def _weights_of_classes(recipe: Recipe, *, quiet: bool) -> Weights:
    """Read the weights; refuse those that predict numbers, several labels or nothing."""
    weights = read_checkpoint(recipe, quiet=quiet)
    num_classes = weights.architecture.num_classes
    if not num_classes:
        raise VitError("these weights have no classes", where=recipe.model.ckpt, fix="leave --why out")
    check_supports("--why", task_of(weights.metadata, num_classes), name=recipe.model.ckpt, kind=VitError)
    return weights


def _of_fewshot(
    recipe: Recipe, of_run: Recipe, run: RunSettings, folder: Path, fewshot: Fewshot
) -> tuple[LoadedNetwork, TrainingImages]:
    """Return the network of a few-shot run by its own recipe, with the closed form of its first draw as head.

    Of several numbers of shots the largest counts.
    """
    places = {"model.ckpt": of_run.model.ckpt, "data.dataset": of_run.data.dataset}
    name = str(folder / run_folder.RECIPE)
    recipe = load_for_inference(name, (), recipe.given | places, command="fewshot")
    weights = read_checkpoint(recipe, quiet=run.quiet)
    train = _open(recipe, seed=0)
    names = train.readable_class_names
    draws = read_draws(str(folder / run_folder.DRAWS), train.read_labels(), list(names))
    seed, by_shots = min(draws.items())
    shots, rows_N = max(by_shots.items())
    extractor = open_extractor(weights, recipe, run)
    rows_N, solution = _fitted(extractor, train, rows_N, l2=fewshot.l2, balance=fewshot.balance)
    what = f"{count_of(shots, 'image')} per class, draw {seed}"
    about = {"run": str(folder), "split": train.name, "draw": {"seed": seed, "shots": shots}, "what": what}
    training = TrainingImages(train, rows_N, solution, of_run.eval.layer, about)
    network = extractor.network
    put_head(network.model, solution, name=network.arch.name)
    arch = replace(network.arch, num_classes=train.num_classes)
    weights = replace(weights, architecture=arch, class_names=names, metadata={}, imagenet="")
    return replace(network, weights=weights, arch=arch), training


def _of_training(
    recipe: Recipe, of_run: Recipe, run: RunSettings, folder: Path, weights: Weights
) -> tuple[LoadedNetwork, TrainingImages]:
    """Return the network of a run, and the closed form on its training images, up to `forecast.MOST_ROWS`."""
    num_classes = weights.architecture.num_classes
    train = training_images(of_run, weights, needed_by="--why")
    # Images that the run has left out are left out here.
    policy = of_run.data.on_bad_image if recipe.data.on_bad_image == "error" else recipe.data.on_bad_image
    data = recipe.data.model_copy(update={"dataset": of_run.data.dataset, "on_bad_image": policy})
    extractor = open_extractor(weights, recipe.model_copy(update={"data": data}), run)
    rows_N = forecast.sample_rows(train.read_labels(), num_classes=num_classes)
    rows_N, solution = _fitted(extractor, train, rows_N, l2="sweep", balance="none")
    about = {"run": str(folder), "split": train.name, "draw": None, "what": train.name}
    return extractor.network, TrainingImages(train, rows_N, solution, recipe.eval.layer, about)


def training_images(of_run: Recipe, weights: Weights, *, needed_by: str) -> Split:
    """Open the images that the weights of a training run were trained on."""
    if folds := of_run.train.folds:  # what is delivered is trained on all images, not on those without a cut
        all_folds = of_run.data.model_copy(update={"eval_split": str(FoldName(folds))})
        of_run = of_run.model_copy(update={"data": all_folds})
    train = _open(of_run, seed=of_run.train.seed, needed_by=needed_by)
    num_classes = weights.architecture.num_classes
    if train.num_classes != num_classes or weights.class_names not in (None, train.class_names):
        raise DataError(
            f"{train.name} has other classes than these weights",
            where=of_run.data.dataset,
            fix="restore the data set that they were trained on",
        )
    return train


def _open(recipe: Recipe, *, seed: int, needed_by: str = "--why") -> Split:
    """Open the training split of a run, of one label per image."""
    train, _ = open_splits(recipe, seed=seed, needed_by=needed_by)
    if train.is_large:
        what = f"{train.name} has too many labels to read them first"
        raise VitError(what, where=needed_by, fix="take a run with fewer images")
    return train


def _fitted(
    extractor: FeatureExtractor, train: Split, rows_N: np.ndarray, *, l2: float | str, balance: str
) -> tuple[np.ndarray, Solution]:
    """Return those of the rows that can be decoded, and the closed form fitted to their features.

    Args:
        l2: its strength, or "sweep" for that of the highest leave-one-out accuracy.
    """
    rows_N, features_ND, _ = features_of_rows(extractor, train, rows_N)
    if not len(rows_N):
        raise DataError(f"no image of {train.name} can be read", where="--why", fix="check its files")
    labels_N, groups_N = train.read_labels()[rows_N], train.rows(rows_N).groups_N
    if not least_squares.has_others(labels_N, groups_N).any():
        units = "images" if groups_N is None else "groups"
        raise VitError(
            f"calibration needs at least two {units} per class",
            where="--why",
            fix="repeat vit fewshot with --shots 5, or more",
        )
    solution = least_squares.solve(
        features_ND,
        labels_N,
        num_classes=train.num_classes,
        l2=SWEEP if l2 == "sweep" else (float(l2),),
        groups_N=groups_N,
        balance=balance,
    )
    return rows_N, least_squares.at_best_l2(solution)


def put_head(model: nn.Module, solution: Solution, *, name: str) -> None:
    """Put the closed form into a network as its last layer: logits are its scores times one factor.

    The factor is the one that makes probabilities of left-out scores most likely; it changes no ranking.
    """
    counted_N = solution.is_scored_N
    left_out_NK = least_squares.left_out_scores(solution)
    scale = softmax_scale(left_out_NK[counted_N], solution.labels_N[counted_N])
    layer = least_squares.as_layer(solution, solution.weights(0), scale=scale)
    put_last_layer(model, *least_squares.in_float32(*layer), name=name, option="--why")


def _explained(
    result: dict[str, Any],
    pixels: Sequence[np.ndarray],
    network: LoadedNetwork,
    training: TrainingImages,
    page: Path,
) -> dict[str, Any]:
    """Add the reasons to the predictions, and write the page.

    Args:
        pixels: (H, W, C) uint8 of each prediction, as the network saw them.
    """
    model, preprocessing = network.model.cpu().requires_grad_(False), network.preprocessing
    names = network.weights.class_names or training.split.readable_class_names
    layout = probe_attention_layout(model, network.arch)
    layout = None if isinstance(layout, str) else layout  # without one grid of patches
    for prediction, image_HWC in zip(result["predictions"], pixels, strict=True):
        image_1CHW = torch.from_numpy(image_HWC).permute(2, 0, 1)[None]
        image_1CHW = to_model_range(image_1CHW, mean=preprocessing.mean, std=preprocessing.std)
        answer = prediction["top"][0]["label"]
        prediction["why"] = _why(model, image_1CHW, answer, training, names, layout)
    result["why"] = training.about | {
        "num_training_images": len(training.rows_N),
        "l2": training.solution.l2[0],
        "page": str(page),
    }
    _write_page(page, result, training.split, pixels)
    return result


def _why(
    model: nn.Module,
    image_1CHW: Tensor,
    answer: int,
    training: TrainingImages,
    names: Sequence[str],
    layout: AttentionLayout | None,
) -> dict[str, Any]:
    """Return the runner-up, the training images and the patches of one answer."""
    with torch.no_grad():
        outputs_O = features.outputs(model, image_1CHW, layer=training.layer, with_logits=True)[0]
    features_D, logits_K = outputs_O[: -len(names)], outputs_O[-len(names) :]
    second = next(k for k in logits_K.argsort(descending=True, stable=True).tolist() if k != answer)

    # What each training image adds to the lead of the answer over the runner-up.
    solution = training.solution
    inputs_1E = solution.inputs(features_D[None].numpy())
    scores_K = (inputs_1E @ solution.weights(0))[0]
    lead_1K = np.zeros((1, len(names)))
    lead_1K[0, answer], lead_1K[0, second] = 1, -1
    reasons = _reasons(influences(solution, inputs_1E, lead_1K)[0], training, names)
    patches = None
    if layout is not None:
        relevance_1IJ = patch_relevance(model, layout, image_1CHW, lambda logits_1K: logits_1K[:, answer])
        patches = [[round(value, 6) for value in row] for row in relevance_1IJ[0].tolist()]
    return {
        "class": names[answer],
        "runner_up": names[second],
        "closed_form": {
            "class": names[int(scores_K.argmax())],
            "lead": float(scores_K[answer] - scores_K[second]),
        },
        "reasons": reasons,
        "patches": patches,
    }


def _reasons(
    influences_N: np.ndarray, training: TrainingImages, names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the images with the largest influence; a group has one entry, by its foremost image."""
    solution, split = training.solution, training.split
    _, group_of_row_N, sizes_G = np.unique(solution.groups_N, return_inverse=True, return_counts=True)
    influences_G = np.bincount(group_of_row_N, weights=influences_N)
    groups = np.argsort(-influences_G, kind="stable")[:NUM_REASONS]
    most = [int(np.where(group_of_row_N == group, influences_N, -np.inf).argmax()) for group in groups]
    places = places_of(split, training.rows_N[most])
    return [
        {
            "row": int(training.rows_N[i]),
            "place": place,
            "label": names[solution.labels_N[i]],
            "influence": float(influences_G[group]),
            "num_images": int(sizes_G[group]),
        }
        for group, i, place in zip(groups, most, places, strict=True)
    ]


def _write_page(path: Path, result: Mapping[str, Any], split: Split, images: Sequence[np.ndarray]) -> None:
    """Write the page.

    Args:
        result: of `predict_why`.
        split: of the training images.
        images: as the network sees them, one for each prediction.
    """
    explained, about = result["predictions"], result["why"]
    places = [reason["place"] for one in explained for reason in one["why"]["reasons"]]
    short = short_names([*places, *(one["file"] for one in explained)])
    rows = [_row(split, one, image_HWC, short) for one, image_HWC in zip(explained, images, strict=True)]
    page = html.page(
        [],
        [PageFigure("Answers and their reasons", CAPTION, html.image_rows(rows), is_wide=True)],
        title="Why these answers?",
        summary=[
            count_of(len(explained), "image"),
            f"{result['model']} ({result['ckpt']})",
            f"{count_of(about['num_training_images'], 'training image')}: {about['what']}",
        ],
        notes=[
            "Influences are exact for the closed form on the features, "
            f"l2 {about['l2']:g}: the difference of two fits, with the standardisation of all images.",
            *([] if about["draw"] else [OTHER_HEAD]),  # of a few-shot run it is the last layer itself
        ],
        command="vit predict --why",
    )
    write_text(path, page)


def _row(
    split: Split, prediction: Mapping[str, Any], image_HWC: np.ndarray, short: Mapping[str, str]
) -> html.ImageRow:
    """Return an image, its patches and its reasons."""
    why, first = prediction["why"], prediction["top"][0]
    second = [one for one in prediction["top"] if one["class"] == why["runner_up"]]
    likely = f" ({percent(second[0]['probability'])})" if second else ""
    lines = [
        f"{first['class']} ({percent(first['probability'])})",
        f"next: {why['runner_up']}{likely}",
        short[prediction["file"]],
    ]
    if why["closed_form"]["class"] != first["class"]:
        lines.append(f"the closed form says {why['closed_form']['class']}")
    others = []
    if why["patches"]:
        shown = html.thumbnail(overlay(image_HWC, why["patches"]))
        others.append(html.CaptionedImage(shown, "patches that carry the answer", ("patches",)))
    others += [
        html.CaptionedImage(
            thumbnail_of(split, reason["row"]),
            f"training image, labelled {reason['label']}",
            (reason["label"], f"adds {reason['influence']:+.3f}{_of_group(reason)}", short[reason["place"]]),
            is_marked=reason["label"] != first["class"],
        )
        for reason in why["reasons"]
    ]
    shown = html.CaptionedImage(
        html.thumbnail(image_HWC), f"answer: {first['class']}", tuple(lines), is_marked=True
    )
    return html.ImageRow(shown, tuple(others))


def _of_group(reason: Mapping[str, Any]) -> str:
    others = reason["num_images"] - 1
    return f" (with {count_of(others, 'other image')} of its group)" if others else ""


def as_text(result: Mapping[str, Any], *, is_brief: bool | None = None) -> str:
    """Return the predictions as `vit predict` shows them, then the reasons of each, for a terminal."""
    places = [reason["place"] for each in result["predictions"] for reason in each["why"]["reasons"]]
    short = short_names(places)
    rows = []
    for prediction in result["predictions"]:
        why = prediction["why"]
        rows.append(("image", prediction["file"]))
        rows.append(("runner-up", why["runner_up"]))
        if why["closed_form"]["class"] != why["class"]:
            rows.append(("closed form", f"{why['closed_form']['class']}, not {why['class']}"))
        lead = why["closed_form"]["lead"]
        rows += [
            (
                "reason",
                f"{one['influence']:+.3f} of a lead of {lead:.3f}: {one['label']}, {short[one['place']]}"
                f"{_of_group(one)}",
            )
            for one in why["reasons"]
        ]
    rows.append(("page", Verbatim(result["why"]["page"])))
    return predictions_as_text(dict(result), is_brief=is_brief) + "\n" + pairs(rows)


def overlay(image_HWC: np.ndarray, patches: Sequence[Sequence[float]]) -> np.ndarray:
    """Return the image (H, W, 3), uint8, darkened where a patch does not carry the answer."""
    relevance_1IJ = torch.tensor([patches], dtype=torch.float64)
    image_1HWC = torch.from_numpy(image_HWC)[None]
    return attention_overlay(image_1HWC, relevance_1IJ, full_at=FULL_AT, darkest=DARKEST)[0].numpy()
