"""`vit predict`: classes and probabilities of pictures, by the same pixels as evaluation."""

from collections.abc import Mapping, Sequence
from typing import Any

from vitcli import recipe as recipes
from vitcli.data import loader
from vitcli.data.image_files import as_split, find_images
from vitcli.distributed.runtime import start as start_runtime
from vitcli.errors import VitError
from vitcli.evaluation import inference
from vitcli.evaluation.setup import for_inference, inference_precision, named_weights, preprocessing_for
from vitcli.output.progress import Progress
from vitcli.weights.io import Weights


def predict(
    pictures: Sequence[str],
    overrides: Sequence[str],
    shorthands: Mapping[str, Any],
    *,
    topk: int | None,
    workers: int | None,
    quiet: bool,
) -> dict[str, Any]:
    """The `topk` likeliest classes of every picture; files, folders (searched through) and globs."""
    recipe = recipes.load("evaluate/default", overrides, shorthands, training=False)
    if recipe.model.ckpt is None:
        raise VitError(
            "no checkpoint is named", where="--ckpt", fix="--ckpt RUN, a weights file, timm/NAME or demo"
        )
    files = find_images(pictures, where="PICTURES")
    precision = inference_precision(recipe)
    runtime = start_runtime(precision)
    progress = Progress(quiet=quiet, is_main=runtime.is_main)
    weights = named_weights(recipe)
    preprocessing, origin = preprocessing_for(
        weights, recipe, recipe_name=None, overrides=overrides, shorthands=shorthands
    )
    model, arch = for_inference(weights, recipe, preprocessing, runtime, progress)
    if topk and topk > arch.num_classes:
        raise VitError(
            f"the model has {arch.num_classes} classes", where=f"--topk {topk}", fix="a smaller number"
        )
    topk = topk or min(5, arch.num_classes)
    progress.note(f"{arch.name}: {preprocessing.summary()}, {origin}")

    found, skipped = inference.top_predictions(
        model,
        as_split(files),
        preprocessing,
        runtime=runtime,
        topk=topk,
        batch_size=recipe.eval.batch_size,
        on_bad_image=recipe.data.on_bad_image,
        num_threads=workers or loader.default_threads(1),
        precision=precision,
        progress=progress,
    )
    return {
        "command": "predict",
        "ckpt": recipe.model.ckpt,
        "model": arch.name,
        "preprocessing": preprocessing.summary(),
        "predictions": [
            {"file": files[row], "top": [_guess(weights, label, share) for label, share in top]}
            for row, top in found.items()
        ],
        "num_skipped_images": len(skipped),
        "skipped_images": skipped,
    }


def _guess(weights: Weights, label: int, share: float) -> dict[str, Any]:
    name = weights.class_names[label] if weights.class_names else f"class {label}"
    return {"class": name, "label": label, "probability": share}
