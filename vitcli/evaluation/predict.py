"""`vit predict`: class probabilities of image files, with the same preprocessing as evaluation."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from vitcli.data import loader
from vitcli.data.image_files import find_images
from vitcli.data.split import Split
from vitcli.errors import DataError
from vitcli.evaluation import inference
from vitcli.evaluation.setup import RunSettings, eval_settings, preprocessing_for, read_checkpoint
from vitcli.output.atomic import check_out, write_text
from vitcli.output.text import count_of, csv_text, first_few, json_of
from vitcli.recipe import check_names_ckpt
from vitcli.recipe.request import RecipeRequest
from vitcli.weights import imagenet
from vitcli.weights.load import load_for_inference

CSV = ".csv"
SUFFIXES = (CSV, ".jsonl")
DEFAULT_TOPK = 5


def predict(
    images: Sequence[str], request: RecipeRequest, run: RunSettings, *, topk: int | None
) -> dict[str, Any]:
    """Return the `topk` likeliest classes of every image that can be read, and the errors of the others.

    Args:
        images: files, folders (searched recursively) and globs.
        topk: None for 5; of a network with fewer classes, all of them.

    Raises:
        VitError: no checkpoint is named, or `run.out` cannot be written.
        DataError: no image is found, or none can be read.
    """
    recipe = request.load()
    check_names_ckpt(recipe, "predict")
    # Bad paths are reported before anything is downloaded or loaded.
    if run.out:
        check_out(run.out, overwrite=run.overwrite, suffixes=SUFFIXES)
    split = find_images(images, where="IMAGES")

    # The network, at the resolution and with the preprocessing of its weights.
    settings = replace(eval_settings(recipe, run), on_bad_image="skip")  # one bad file costs no other answer
    weights = read_checkpoint(recipe, quiet=run.quiet)
    preprocessing, origin = preprocessing_for(weights, recipe, request)
    model, arch = load_for_inference(
        weights, preprocessing.image_size, recipe.model.posemb_resample, settings.device, settings.progress
    )
    if topk and topk > arch.num_classes:
        settings.progress.note(f"note: --topk {topk} lists all {arch.num_classes} classes of the model")
    topk = min(topk or DEFAULT_TOPK, arch.num_classes)
    settings.progress.note(f"{arch.name}: {preprocessing.summary()}, {origin}")
    for line in split.lines:
        settings.progress.note(line)

    # The likeliest classes of each image.
    if weights.imagenet:
        settings.progress.note(imagenet.note(weights.imagenet))
    top_by_row, _ = inference.top_predictions(model, split, preprocessing, settings, topk=topk)
    unreadable = _unreadable(split, [row for row in range(len(split)) if row not in top_by_row])
    if not top_by_row:
        raise error_of(unreadable, len(split))
    result = {
        "command": "predict",
        "ckpt": recipe.model.ckpt,
        "model": arch.name,
        "preprocessing": preprocessing.summary(),
        "class_names_from": weights.imagenet or ("weights" if weights.class_names else None),
        "predictions": _predictions(split, top_by_row, weights.readable_class_names),
        "num_skipped_images": len(unreadable),
        "skipped_images": [entry["file"] for entry in unreadable],
        "unreadable": unreadable,
        "on_bad_image": recipe.data.on_bad_image,
        **split.left_out.summary(),
    }
    if run.out:
        write_text(run.out, csv_text(_csv_rows(result, topk)) if run.out.suffix == CSV else as_jsonl(result))
        result["out"] = str(run.out)
    return result


def _predictions(
    split: Split, top_by_row: dict[int, list[tuple[int, float]]], class_names: Sequence[str]
) -> list[dict[str, Any]]:
    return [
        {
            "file": split.where_is(row),
            "top": [{"class": class_names[k], "label": k, "probability": p} for k, p in top],
        }
        for row, top in top_by_row.items()
    ]


def failure(result: dict[str, Any]) -> DataError | None:
    """Return the error to end with where images cannot be read and are not to be skipped."""
    unreadable = result["unreadable"]
    if not unreadable or result["on_bad_image"] == "skip":
        return None
    return error_of(unreadable, len(unreadable) + len(result["predictions"]))


def error_of(unreadable: Sequence[dict[str, str]], num_images: int) -> DataError:
    """Return the error about images that cannot be read, of so many."""
    where, reason = first_few([entry["file"] for entry in unreadable]), unreadable[0]["message"]
    what = f"{len(unreadable):,} of {count_of(num_images, 'image')} cannot be read"
    if len(unreadable) == num_images:
        return DataError(f"{what}: {reason}", where=where, fix="check these files")
    fix = "the other images are answered; check these files, or leave such ones out with --skip-bad"
    return DataError(f"{what}: {reason}", where=where, fix=fix)


def as_jsonl(result: dict[str, Any], as_json: Callable[[Any], str] = json_of) -> str:
    """Return a JSON object a line: the prediction for each image, then the images that cannot be read."""
    failed = ({"file": entry["file"], "top": [], "error": entry["message"]} for entry in result["unreadable"])
    return "".join(f"{as_json(line)}\n" for line in (*result["predictions"], *failed))


def _csv_rows(result: dict[str, Any], topk: int) -> Iterator[list]:
    """Yield the header and a row for each image: its classes by probability, or why it cannot be read."""
    names = [("class", "probability"), *((f"class_{k}", f"probability_{k}") for k in range(2, topk + 1))]
    yield ["file", *(name for pair in names for name in pair), "error"]
    for prediction in result["predictions"]:
        pairs = ((entry["class"], entry["probability"]) for entry in prediction["top"])
        yield [prediction["file"], *(value for pair in pairs for value in pair), ""]
    for entry in result["unreadable"]:
        yield [entry["file"], *[""] * (2 * topk), entry["message"]]


def _unreadable(split: Split, rows: Sequence[int]) -> list[dict[str, str]]:
    """Return each row that was not decoded with the reason."""
    entries = []
    for row in rows:
        try:
            loader.read_example(split, row)
        except DataError as error:
            entries.append({"file": split.where_is(row), "message": error.message})
    return entries
