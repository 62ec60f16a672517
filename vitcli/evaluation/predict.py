"""`vit predict`: class probabilities or numbers of image files, with the same preprocessing as evaluation."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitcli.data import loader, video
from vitcli.data.image_files import find_images
from vitcli.data.split import Split
from vitcli.data.task import Task, check_supports
from vitcli.errors import DataError, VitError
from vitcli.evaluation import contact_sheet, inference, regression, sorting
from vitcli.evaluation.calibration import selective
from vitcli.evaluation.calibration.results import calibrated
from vitcli.evaluation.calibration.stored import Calibration, calibration_of, why_unchecked
from vitcli.evaluation.contact_sheet import ContactSheet
from vitcli.evaluation.multilabel import Multilabel, multilabel_of, task_of
from vitcli.evaluation.parts import Parts
from vitcli.evaluation.setup import LoadedNetwork, RunSettings, eval_settings, load_network, read_checkpoint
from vitcli.io.files import open_regular
from vitcli.models import features
from vitcli.models.features import TimmNetwork
from vitcli.output.atomic import check_out, write_text
from vitcli.output.text import count_of, csv_text, first_few, json_of
from vitcli.recipe import Recipe
from vitcli.weights import imagenet
from vitcli.weights.io import Weights, digest_of

CSV = ".csv"
PAGE = ".html"
SUFFIXES = (CSV, ".jsonl", PAGE)
DEFAULT_TOPK = 5
Network = Callable[[Tensor], Tensor]  # of images to outputs
OnImage = Callable[[int, dict[str, Any], np.ndarray], None]  # row, prediction, pixels (C, H, W)
CALIBRATED = ("prediction_set", "in_distribution")  # of predictions by weights that store a calibration


@dataclass(frozen=True)
class PredictOptions:
    """What `vit predict` does besides naming the top classes.

    Attributes:
        topk: classes of each image; None for 5, or all of a network with fewer.
        threshold: probability below which the top class is unsure; None for none.
        mirrored: the mean of the probabilities of each image and its mirror image.
        sort_into: a folder for copies of the images, in a folder for each class; None for none.
        every: of the frames of a video; None for `video.EVERY`.
        part_rows: images of each .jsonl below the folder --out, see `parts`; None for one file.
    """

    topk: int | None = None
    threshold: float | None = None
    mirrored: bool = False
    sort_into: Path | None = None
    every: int | None = None
    part_rows: int | None = None


def predict(
    images: Sequence[str], recipe: Recipe, run: RunSettings, options: PredictOptions
) -> dict[str, Any]:
    """Return the top classes of every image that can be read, and the errors of the others.

    Args:
        images: files, folders (searched recursively) and globs; or videos.

    Raises:
        VitError: `run.out` cannot be written.
        DataError: no image is found, or none can be read.
    """
    # Bad paths are reported before anything is downloaded or loaded.
    if not options.part_rows:
        check_output(run)
    split = _open(images, options)

    # The network, at the resolution and with the preprocessing of its weights.
    settings = eval_settings(recipe, run)
    network = load_network(read_checkpoint(recipe, quiet=run.quiet), recipe, settings)
    if options.part_rows:
        return _predict_parts(network, split, recipe, run, options)
    return predict_with(network, split, recipe, run, options)


def _predict_parts(
    network: LoadedNetwork, split: Split, recipe: Recipe, run: RunSettings, options: PredictOptions
) -> dict[str, Any]:
    """Write the predictions of each part that no other worker writes; return the object of --json."""

    def write(part: Split, first: int, file: Path) -> None:
        result = predict_with(network, part, recipe, replace(run, out=None), options)
        write_text(file, as_jsonl(result))

    def read(file: Path) -> dict[str, Any]:
        with open_regular(file) as lines:
            num_lines, failed = 0, []
            for line in lines:
                num_lines += 1
                failed += [value] if b'"error"' in line and "error" in (value := json.loads(line)) else []
        return {"num_examples": num_lines - len(failed), "skipped_images": failed}

    assert run.out and options.part_rows, "checked before"
    weights = network.weights
    about = _about(network, recipe)
    asked = {key: value for key, value in recipe.asked.items() if key != "data.on_bad_image"}
    asked |= about | {"precision": network.settings.precision, "weights": digest_of(weights.state)}
    asked |= {"metadata": json.loads(json.dumps(weights.metadata)), "class_names": weights.class_names}
    asked = json.loads(json.dumps(asked))
    asked |= {"topk": options.topk, "threshold": options.threshold, "tta": options.mirrored}
    names = "\n".join(map(split.where_is, range(len(split))))
    asked["images"] = blake2b(names.encode(errors="surrogateescape"), digest_size=16).hexdigest()
    parts = Parts(run.out, options.part_rows, asked, ".jsonl", write, read)
    counts, _ = parts.make(split, network.settings, overwrite=run.overwrite)
    unreadable = [{"file": line["file"], "message": line["error"]} for line in counts["skipped_images"]]
    counts |= {"skipped_images": [entry["file"] for entry in unreadable], "unreadable": unreadable}
    result = about | counts | {"on_bad_image": recipe.data.on_bad_image} | split.left_out.summary()
    if not counts["num_examples"]:
        raise error_of(result)
    return result


def _about(network: LoadedNetwork, recipe: Recipe) -> dict[str, Any]:
    weights = network.weights
    return {
        "command": "predict",
        "ckpt": recipe.model.ckpt,
        "model": network.arch.name,
        "preprocessing": network.preprocessing.summary(),
        "class_names_from": weights.imagenet or ("weights" if weights.class_names else None),
    }


def check_output(run: RunSettings) -> None:
    """Raise VitError or MachineError where the file of --out cannot be written."""
    if run.out:
        check_out(run.out, overwrite=run.overwrite, suffixes=SUFFIXES)


def predict_with(
    network: LoadedNetwork,
    split: Split,
    recipe: Recipe,
    run: RunSettings,
    options: PredictOptions,
    on_image: OnImage | None = None,
) -> dict[str, Any]:
    """Return what `predict` does, by a network that is loaded.

    Args:
        on_image: gets each prediction with the pixels that the network saw.
    """
    weights, arch, settings = network.weights, network.arch, network.settings
    settings = replace(settings, on_bad_image="skip")  # one bad file costs no other answer
    target = regression.target_of(weights.metadata)
    calibration = calibration_of(weights.metadata, arch.num_classes)
    task = task_of(weights.metadata, arch.num_classes)
    _check_applies(task, options, weights.readable_class_names)
    notes = []
    if not target and not weights.class_names:
        notes = [imagenet.note(weights.imagenet, arch.num_classes)]
    if not target and options.topk and options.topk > arch.num_classes:
        notes.append(f"note: --topk {options.topk} lists all {arch.num_classes} classes of the model")
    about = f"{arch.name}: {network.preprocessing.summary()}, {network.preprocessing_from}"
    for line in [about, *split.lines, *notes]:
        settings.progress.note_once(line)

    # The top classes of each image, or its number.
    topk = min(options.topk or DEFAULT_TOPK, arch.num_classes)
    outputs_of, predicted = _reading(network.model, weights, calibration, topk, is_mirrored=options.mirrored)
    sheet = ContactSheet() if run.out and run.out.suffix == PAGE else None
    readers = [read for read in (sheet.add if sheet else None, on_image) if read]
    predictions = _predictions(replace(network, settings=settings), split, outputs_of, predicted, readers)
    unreadable = _unreadable(split, [row for row in range(len(split)) if row not in predictions])
    result = {
        **_about(network, recipe),
        "predictions": [*predictions.values()],
        **(target.as_metadata() if target else {}),
        "num_skipped_images": len(unreadable),
        "skipped_images": [entry["file"] for entry in unreadable],
        "unreadable": unreadable,
        "on_bad_image": recipe.data.on_bad_image,
        **split.left_out.summary(),
    }
    if not predictions and not options.part_rows:
        raise error_of(result)
    is_of_classes = task is Task.ONE_CLASS and arch.num_classes > 1
    if calibration and not options.mirrored:  # known of images as they are
        result["selective"] = selective.results_of(calibration.facts())
    if is_of_classes and (reason := why_unchecked(weights.metadata, calibration)):
        result["new_classes"] = reason
    _decide(result, options, weights.readable_class_names)
    if run.out:
        if sheet:
            contact_sheet.write(run.out, result, list(predictions), sheet)
        else:
            is_table = run.out.suffix == CSV
            write_text(run.out, csv_text(_csv_rows(result, topk)) if is_table else as_jsonl(result))
        result["out"] = str(run.out)
    return result


def _open(images: Sequence[str], options: PredictOptions) -> Split:
    """Open the images or the videos that are named.

    Raises:
        VitError: an option does not apply to them.
    """
    if videos := video.videos_of(images):
        if options.sort_into:
            what = "the frames of a video are not files, which --sort-into copies"
            raise VitError(
                what, where=f"--sort-into {options.sort_into}", fix="leave it out; --out writes a table"
            )
        return video.frames_of(videos, every=options.every or video.EVERY)
    if options.every:
        what = "--every is for videos, and none of the names is one"
        raise VitError(
            what, where=f"--every {options.every}", fix="leave it out, or name a video such as .mp4"
        )
    split = find_images(images, where="IMAGES")
    if options.sort_into:
        sorting.check_target(options.sort_into, images, [split.where_is(row) for row in range(len(split))])
    return split


def _check_applies(task: Task, options: PredictOptions, class_names: Sequence[str]) -> None:
    """Refuse what needs classes, of weights that predict something else, and links in place of folders."""
    fix = "leave it out; --out writes a table"
    if options.threshold is not None:
        check_supports("--threshold", task, name="the checkpoint", fix=fix, kind=VitError)
    if options.sort_into:
        check_supports("--sort-into", task, name="the checkpoint", fix=fix, kind=VitError)
        sorting.refuse_links(options.sort_into, class_names)


def _decide(result: dict[str, Any], options: PredictOptions, class_names: Sequence[str]) -> None:
    """Mark what is unsure, and copy the images into the folders of their classes."""
    if options.threshold is not None:
        result["threshold"] = options.threshold
        for prediction in result["predictions"]:
            prediction[sorting.UNSURE] = prediction["top"][0]["probability"] < options.threshold
    result |= {"tta": "mirror"} if options.mirrored else {}
    if options.sort_into:
        counts = sorting.copy_into(options.sort_into, result["predictions"], class_names)
        result |= {"sorted_into": str(options.sort_into), "sorted_counts": counts}


def _reading(
    model: TimmNetwork, weights: Weights, calibration: Calibration | None, topk: int, *, is_mirrored: bool
) -> tuple[Network | None, Callable[[Tensor], dict[str, Any]]]:
    """Return a function of images to outputs, None for the model's, and one of outputs to a prediction."""
    names = weights.readable_class_names
    mirror = partial(inference.mirrored, model) if is_mirrored else lambda mean: None
    if target := regression.target_of(weights.metadata):
        number = mirror(inference.mean_number)
        return number, lambda out_1: {"top": [], "value": float(target.numbers_of(out_1)[0])}
    if multilabel := multilabel_of(weights.metadata, weights.architecture.num_classes):
        return mirror(inference.mean_of_labels), partial(_multilabel, multilabel, names, topk)
    network = mirror(inference.mean_of_classes)
    if calibration:
        return _features_and_logits(model, network), partial(_calibrated, calibration, names, topk)
    return network, partial(_classes, names, topk)


def _predictions(
    network: LoadedNetwork,
    split: Split,
    outputs_of: Network | None,
    predicted: Callable[[Tensor], dict[str, Any]],
    readers: Sequence[OnImage],
) -> dict[int, dict[str, Any]]:
    """Return what is predicted for each image that can be read, by row; `readers` get it with its pixels."""
    settings, preprocessing = network.settings, network.preprocessing
    outputs = inference.outputs_of(
        network.model,
        settings.batches(split, preprocessing, all_rows=True),
        preprocessing,
        settings.device,
        settings.precision,
        network=outputs_of,
    )
    outputs = inference.report_progress(outputs, settings, "predict", len(split), all_rows=True)
    predictions = {}
    for batch, outputs_BO in outputs:
        rows = zip(batch.rows_B.tolist(), batch.images_BCHW, outputs_BO, strict=True)
        for row, image_CHW, outputs_O in rows:
            predictions[row] = {"file": split.where_is(row), **predicted(outputs_O)}
            for read in readers:
                read(row, predictions[row], image_CHW.numpy())
    return predictions


def _multilabel(multilabel: Multilabel, names: Sequence[str], topk: int, logits_K: Tensor) -> dict[str, Any]:
    """Return the top classes of an image, and those that reach their thresholds.

    "margin" is the distance of the nearest probability to the threshold of its class.
    """
    probabilities_K = logits_K.double().sigmoid()
    order_K = probabilities_K.argsort(descending=True, stable=True)
    margins_K = probabilities_K - torch.tensor(multilabel.thresholds, dtype=torch.float64)
    reaching = [k for k in order_K.tolist() if margins_K[k] >= 0]
    return {
        "top": _top(order_K[:topk], probabilities_K, names),
        "labels": [names[k] for k in reaching],
        "label_probabilities": [float(probabilities_K[k]) for k in reaching],
        "margin": float(margins_K.abs().min()),
    }


def _calibrated(
    calibration: Calibration, names: Sequence[str], topk: int, outputs_O: Tensor
) -> dict[str, Any]:
    """Return the top classes by calibrated probabilities, with the prediction set."""
    features_D, logits_K = outputs_O[: -len(names)].numpy(), outputs_O[-len(names) :]
    answer = calibrated(logits_K[None].numpy(), features_D[None], calibration)
    order_K = calibration.scaling.scaled(logits_K.double()).argsort(descending=True, stable=True)
    return {
        "top": _top(order_K[:topk], torch.from_numpy(answer.probabilities_NK[0]), names),
        "prediction_set": [names[k] for k in order_K.tolist() if answer.is_in_NK[0, k]],
        "in_distribution": None if answer.is_like_N is None else bool(answer.is_like_N[0]),
    }


def _classes(names: Sequence[str], topk: int, logits_K: Tensor) -> dict[str, Any]:
    # Of equal logits the lower class comes first, as where they are scored; topk has no such order.
    order_K = logits_K.argsort(descending=True, stable=True)
    return {"top": _top(order_K[:topk], torch.softmax(logits_K, dim=-1), names)}


def _top(classes_T: Tensor, probabilities_K: Tensor, names: Sequence[str]) -> list[dict[str, Any]]:
    pairs = zip(classes_T.tolist(), probabilities_K[classes_T].tolist(), strict=True)
    return [{"class": names[k], "label": k, "probability": p} for k, p in pairs]


def _features_and_logits(model: TimmNetwork, mirrored: Network | None) -> Network:
    """Return a function of images to their features and logits; logits of `mirrored`, if any."""

    def outputs(images_BCHW: Tensor) -> Tensor:
        if mirrored is None:
            return features.outputs(model, images_BCHW, layer="one_layer", with_logits=True)
        features_BD = features.outputs(model, images_BCHW, layer="one_layer", with_logits=False)
        return torch.cat([features_BD.float(), mirrored(images_BCHW)], dim=1)

    return outputs


def failure(result: dict[str, Any]) -> DataError | None:
    """Return the error to end with where images cannot be read and are not to be skipped."""
    has_failed = result["num_skipped_images"] and result["on_bad_image"] != "skip"
    return error_of(result) if has_failed else None


def error_of(result: dict[str, Any]) -> DataError:
    """Return the error about images that cannot be read."""
    unreadable, count = result["unreadable"], result["num_skipped_images"]
    num_right = result["num_examples"] if "num_parts" in result else len(result["predictions"])
    where, reason = first_few([entry["file"] for entry in unreadable], total=count), unreadable[0]["message"]
    what = f"{count:,} of {count_of(count + num_right, 'image')} cannot be read"
    files = "this file" if count == 1 else "these files"
    if not num_right:
        return DataError(f"{what}: {reason}", where=where, fix=f"check {files}")
    fix = f"the other images are answered; check {files}, or leave such ones out with --skip-bad"
    return DataError(f"{what}: {reason}", where=where, fix=fix)


def as_jsonl(result: dict[str, Any], as_json: Callable[[Any], str] = json_of) -> str:
    """Return a JSON object a line: the prediction for each image, then the images that cannot be read."""
    failed = ({"file": entry["file"], "top": [], "error": entry["message"]} for entry in result["unreadable"])
    return "".join(f"{as_json(line)}\n" for line in (*result["predictions"], *failed))


def _csv_rows(result: dict[str, Any], topk: int) -> Iterator[list]:
    """Yield the header and a row for each image: its classes by probability, or why it cannot be read."""
    if target := result.get("target"):
        yield ["file", target["name"], "error"]
        yield from ([entry["file"], entry["value"], ""] for entry in result["predictions"])
        yield from ([entry["file"], "", entry["message"]] for entry in result["unreadable"])
        return
    has_labels = any("labels" in entry for entry in result["predictions"])
    names = [("class", "probability"), *((f"class_{k}", f"probability_{k}") for k in range(2, topk + 1))]
    labels = ["labels"] if has_labels else []
    unsure = [sorting.UNSURE] if "threshold" in result else []
    calibrated = [*CALIBRATED] if any(CALIBRATED[0] in entry for entry in result["predictions"]) else []
    yield ["file", *labels, *(name for pair in names for name in pair), *unsure, *calibrated, "error"]
    for prediction in result["predictions"]:
        pairs = ((entry["class"], entry["probability"]) for entry in prediction["top"])
        labels = ["|".join(prediction["labels"])] if has_labels else []
        is_unsure = ["yes" if prediction[sorting.UNSURE] else "no"] if unsure else []
        of_set = []
        if calibrated:
            classes, is_like = (prediction[key] for key in CALIBRATED)
            of_set = ["|".join(classes), {True: "yes", False: "no", None: ""}[is_like]]
        marks = [*is_unsure, *of_set, ""]
        yield [prediction["file"], *labels, *(value for pair in pairs for value in pair), *marks]
    num_marks = len(unsure) + len(calibrated)
    for entry in result["unreadable"]:
        yield [entry["file"], *[""] * (2 * topk + has_labels + num_marks), entry["message"]]


def _unreadable(split: Split, rows: Sequence[int]) -> list[dict[str, str]]:
    """Return each row that was not decoded with the reason."""
    entries = []
    for row in rows:
        try:
            loader.read_example(split, row)
        except DataError as error:
            entries.append({"file": split.where_is(row), "message": error.message})
    return entries
