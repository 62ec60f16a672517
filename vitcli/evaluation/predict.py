"""`vit predict`: classes and probabilities of pictures, by the same pixels as evaluation."""

from collections.abc import Sequence
from typing import Any

from vitcli.data.image_files import as_split, find_images
from vitcli.errors import VitError
from vitcli.evaluation import inference
from vitcli.evaluation.setup import (
    RunSettings,
    eval_settings,
    preprocessing_for,
    read_checkpoint,
)
from vitcli.recipe.request import RecipeRequest
from vitcli.weights.io import Weights
from vitcli.weights.load import load_for_inference


def predict(
    images: Sequence[str], request: RecipeRequest, run: RunSettings, *, topk: int | None
) -> dict[str, Any]:
    """The `topk` likeliest classes of every picture; files, folders (searched through) and globs."""
    recipe = request.load()
    if recipe.model.ckpt is None:
        raise VitError(
            "no checkpoint is named", where="--ckpt", fix="--ckpt RUN, a weights file, timm/NAME or demo"
        )
    files = find_images(images, where="IMAGES")
    settings = eval_settings(recipe, run)
    weights = read_checkpoint(recipe)
    preprocessing, origin = preprocessing_for(weights, recipe, request)
    model, arch = load_for_inference(
        weights, preprocessing.image_size, recipe.model.posemb_resample, settings.device, settings.progress
    )
    if topk and topk > arch.num_classes:
        raise VitError(
            f"the model has {arch.num_classes} classes", where=f"--topk {topk}", fix="a smaller number"
        )
    topk = topk or min(5, arch.num_classes)
    settings.progress.note(f"{arch.name}: {preprocessing.summary()}, {origin}")

    found, skipped = inference.top_predictions(model, as_split(files), preprocessing, settings, topk=topk)
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
