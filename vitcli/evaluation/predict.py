"""`vit predict`: class probabilities of image files, with the same preprocessing as evaluation."""

from collections.abc import Sequence
from typing import Any

from vitcli.data.image_files import find_images
from vitcli.errors import VitError
from vitcli.evaluation import inference
from vitcli.evaluation.setup import RunSettings, eval_settings, preprocessing_for, read_checkpoint
from vitcli.recipe.request import RecipeRequest
from vitcli.weights.load import load_for_inference


def predict(
    images: Sequence[str], request: RecipeRequest, run: RunSettings, *, topk: int | None
) -> dict[str, Any]:
    """Return the `topk` likeliest classes of every image.

    Args:
        images: files, folders (searched recursively) and globs.
        topk: None for 5, or all classes of a network that has fewer.

    Raises:
        VitError: no checkpoint is named, or `topk` exceeds the number of classes.
    """
    recipe = request.load()
    if recipe.model.ckpt is None:
        raise VitError(
            "no checkpoint is named", where="--ckpt", fix="--ckpt RUN, a weights file, timm/NAME or demo"
        )
    # Bad paths are reported before anything is downloaded or loaded.
    split = find_images(images, where="IMAGES")

    # The network, at the resolution and with the preprocessing of its weights.
    settings = eval_settings(recipe, run)
    weights = read_checkpoint(recipe)
    preprocessing, origin = preprocessing_for(weights, recipe, request)
    model, arch = load_for_inference(
        weights, preprocessing.image_size, recipe.model.posemb_resample, settings.device, settings.progress
    )
    if topk and topk > arch.num_classes:
        raise VitError(
            f"the model has {arch.num_classes} classes",
            where=f"--topk {topk}",
            fix=f"choose 1 to {arch.num_classes}",
        )
    topk = topk or min(5, arch.num_classes)
    settings.progress.note(f"{arch.name}: {preprocessing.summary()}, {origin}")
    for line in split.lines:
        settings.progress.note(line)

    # The likeliest classes of each image.
    class_names = weights.class_names or tuple(f"class {k}" for k in range(arch.num_classes))
    top_by_row, skipped = inference.top_predictions(model, split, preprocessing, settings, topk=topk)
    return {
        "command": "predict",
        "ckpt": recipe.model.ckpt,
        "model": arch.name,
        "preprocessing": preprocessing.summary(),
        "predictions": [
            {
                "file": split.where_is(row),
                "top": [{"class": class_names[k], "label": k, "probability": p} for k, p in top],
            }
            for row, top in top_by_row.items()
        ],
        "num_skipped_images": len(skipped),
        "skipped_images": skipped,
        **split.left_out.summary(),
    }
