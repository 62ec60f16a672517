"""The recipe "auto": one of three of modern/, chosen by how many images there are of a class. Loads no torch.

All three are loaded, so that mistakes of options are reported before the data are looked at.
"""

from collections.abc import Sequence
from statistics import median

from vitcli.recipe.schema import PROBE, REFIT, Recipe

AUTO = "auto"
NAMES = {size: f"modern/finetune-{size}" for size in ("few", "some", "many")}
FEW, SOME = 10, 500  # images of a class, at most
HEAD, WEIGHTS = "model.head", "objective.class_weights"
UNEVEN = 3  # times as many of the most frequent class as of the rarest


def choose(
    recipe: Recipe, counts: Sequence[int], *, is_multilabel: bool = False, is_large: bool = False
) -> Recipe:
    """Return the recipe for training images that have `counts` of each class, with a note that says why.

    Where an image has several labels, or each class has one image, there is no closed form to start from; the
    classes of large splits are not counted, so none has a weight. Keys that options set stay as they are.

    Args:
        recipe: what `recipe.load("auto")` returns; any other is returned as it is.
        is_large: see `Split.is_large`.
    """
    if not recipe.by_size:
        return recipe
    present = [count for count in counts if count] or [0]
    typical = median(present)
    size = "few" if typical <= FEW else "some" if typical <= SOME else "many"
    spread = f"{min(present):,} to {max(present):,}" if min(present) < max(present) else f"{present[0]:,}"
    uneven = ", unevenly" if max(present) > UNEVEN * max(1, min(present)) else ""
    images = "image" if spread == "1" else "images"
    line = f"recipe {NAMES[size]}: {spread} {images} per class{uneven}; --recipe names another"
    chosen = recipe.by_size[size].with_notes(line)
    model, objective, optimizer = chosen.model, chosen.objective, chosen.optimizer
    assert objective and optimizer, "they train"
    if model.head in (PROBE, REFIT) and (is_multilabel or max(present) < 2) and HEAD not in recipe.given:
        model = model.model_copy(update={"head": "zero", "head_layers": 0})
        optimizer = optimizer.model_copy(update={"unfamiliar_lr": None})
    if is_large and WEIGHTS not in recipe.given:
        objective = objective.model_copy(update={"class_weights": "none"})
    return chosen.model_copy(update={"model": model, "objective": objective, "optimizer": optimizer})
