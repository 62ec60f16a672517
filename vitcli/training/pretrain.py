"""`vit pretrain`: train from fresh weights (paper, sections 3.1, 4.1 and 4.6)."""

from typing import Any

from torch import nn

from vitcli import recipe as recipes
from vitcli.data.split import Split
from vitcli.errors import VitError
from vitcli.models.build import build, last_layers
from vitcli.models.masked_patch import MaskedPatchModel
from vitcli.recipe import Recipe
from vitcli.training.setup import InitialModel, RunOptions, fresh_architecture
from vitcli.training.sweep import run


def pretrain(recipe: Recipe, options: RunOptions) -> dict[str, Any]:
    """Fresh weights and the pre-training head, then trained by the recipe."""
    if any(one.model.name is None or one.model.ckpt is not None for _, one in recipes.trials(recipe)):
        raise VitError(
            "pre-training starts from fresh weights of a named network",
            where="recipe keys model.name and model.ckpt",
            fix="name a network with --model; to start from a checkpoint use vit finetune",
        )

    def make_model(recipe: Recipe, split: Split) -> InitialModel:
        wanted, predicts_patches = recipe.model, recipe.objective.loss == "masked_patch"
        arch = fresh_architecture(
            wanted,
            image_size=recipe.data.image_hw,
            num_classes=0 if predicts_patches else split.num_classes,
            pre_logits=wanted.pre_logits and not predicts_patches,
        )
        model = build(arch, dropout=wanted.dropout, drop_path=wanted.drop_path, init=wanted.init)
        if predicts_patches:
            return InitialModel(_predicting_patches(model, recipe), arch, None, [])
        for layer in last_layers(model) if recipe.objective.head_bias else ():
            nn.init.constant_(layer.bias, recipe.objective.head_bias)
        return InitialModel(model, arch, None, [])

    return run("pretrain", recipe, options, make_model)


def _predicting_patches(model: nn.Module, recipe: Recipe) -> MaskedPatchModel:
    wanted = recipe.objective
    return MaskedPatchModel(
        model,
        target=wanted.patch_target,
        corrupted=wanted.corrupted,
        masked=wanted.masked,
        replaced=wanted.replaced,
        mean=recipe.data.mean,
        std=recipe.data.std,
    )
