"""`vit pretrain`: train from fresh weights (paper, sections 3.1, 4.1 and 4.6)."""

from typing import Any

from torch import nn

from vitcli import recipe as recipes
from vitcli.data.split import Split
from vitcli.errors import VitError
from vitcli.models.build import last_layers
from vitcli.models.masked_patch import MaskedPatchModel
from vitcli.recipe import Recipe
from vitcli.training.many_runs.sweep import run
from vitcli.training.methods.partial import refuse_for_fresh_weights
from vitcli.training.setup import InitialModel, RunOptions, fresh_model


def pretrain(recipe: Recipe, options: RunOptions) -> dict[str, Any]:
    """Build fresh weights with the pre-training head, and train by the recipe."""
    models = [trial.model for _, trial in recipes.trials(recipe)]
    if any(model.name is None or model.ckpt is not None for model in models):
        raise VitError(
            "pre-training starts from fresh weights of a named network",
            where="recipe keys model.name and model.ckpt",
            fix="name a network with --model; to start from a checkpoint use vit finetune",
        )

    if any(model.head != "zero" for model in models):
        raise VitError(
            "fresh weights have no head to keep",
            where="recipe key model.head",
            fix="leave it out; it belongs to vit finetune",
        )

    for model in models:
        refuse_for_fresh_weights(model)
    return run("pretrain", recipe, options, initial_model)


def initial_model(recipe: Recipe, split: Split) -> InitialModel:
    """Build fresh weights with the head that the recipe's objective needs."""
    settings, objective, data = recipe.model, recipe.objective, recipe.data
    predicts_patches = objective.loss == "masked_patch"
    model, arch = fresh_model(
        settings,
        image_size=data.image_hw,
        num_classes=0 if predicts_patches else split.num_classes,
        pre_logits=settings.pre_logits and not predicts_patches,
    )
    if predicts_patches:
        # With the head of masked patch prediction (paper, appendix B.1.2).
        model = MaskedPatchModel(
            model,
            target=objective.patch_target,
            corrupted=objective.corrupted,
            masked=objective.masked,
            replaced=objective.replaced,
            mean=data.mean,
            std=data.std,
        )
        return InitialModel(model, arch, None, "fresh weights")
    for layer in last_layers(model) if objective.head_bias else ():
        nn.init.constant_(layer.bias, objective.head_bias)
    return InitialModel(model, arch, None, "fresh weights")
