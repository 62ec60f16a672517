"""`vit finetune`: carry a checkpoint over to another data set (paper, section 3.2)."""

from typing import Any

from vitcli import recipe as recipes
from vitcli.data.split import Split
from vitcli.errors import VitError
from vitcli.models.build import build
from vitcli.recipe import Recipe
from vitcli.recipe.schema import Model
from vitcli.training.setup import InitialModel, RunOptions, fresh_architecture
from vitcli.training.sweep import run
from vitcli.weights.io import read_weights
from vitcli.weights.load import load

FRESH = "random"  # --ckpt random: the same protocol from untrained weights, to compare with


def finetune(recipe: Recipe, options: RunOptions) -> dict[str, Any]:
    """Head replaced by zeros, position embedding resampled to the new grid, then trained by the recipe."""
    for _, one in recipes.trials(recipe):
        _check(one)

    def make_model(recipe: Recipe, split: Split) -> InitialModel:
        wanted, image_size = recipe.model, recipe.data.image_hw
        if wanted.ckpt == FRESH:
            num_classes = split.num_classes
            arch = fresh_architecture(
                wanted, image_size=image_size, num_classes=num_classes, pre_logits=False
            )
            model = build(arch, dropout=wanted.dropout, drop_path=wanted.drop_path, init=wanted.init)
            return InitialModel(model, arch, None, ["fresh weights"])
        weights = read_weights(wanted.ckpt, model_name=wanted.name)
        model, arch, report = load(
            weights,
            image_size=image_size,
            num_classes=split.num_classes,
            gelu=None if wanted.gelu == "auto" else wanted.gelu,
            dropout=wanted.dropout,
            drop_path=wanted.drop_path,
            posemb_method=wanted.posemb_resample,
        )
        notes = [f"{wanted.ckpt}: {weights.format}, {weights.numerics}", *report.lines()]
        return InitialModel(model, arch, wanted.ckpt, notes)

    return run("finetune", recipe, options, make_model)


def _check(recipe: Recipe) -> None:
    """Refuse what fine-tuning cannot honour."""
    wanted = recipe.model
    if wanted.ckpt is None:
        raise VitError(
            "no checkpoint is named to fine-tune",
            where="--ckpt (recipe key model.ckpt)",
            fix="--ckpt FILE, a run folder, timm/NAME or demo; or --ckpt random with --model NAME",
        )
    if wanted.ckpt == FRESH and wanted.name is None:
        raise VitError(
            "fresh weights of which network?",
            where="--ckpt random",
            fix="add --model, such as --model ViT-B/16",
        )
    if wanted.pre_logits or recipe.objective.head_bias:
        raise VitError(
            "fine-tuning puts one layer of zeros in the place of the head (paper, section 3.2)",
            where="recipe keys model.pre_logits and objective.head_bias",
            fix="leave them out; they belong to vit pretrain",
        )
    of_fresh_ones = (
        "classifier",
        "posemb",
        "posemb_at",
        "init",
        "layers",
        "hidden",
        "mlp",
        "heads",
        "patch_size",
    )
    changed = [key for key in of_fresh_ones if getattr(wanted, key) != Model.model_fields[key].default]
    if changed and wanted.ckpt != FRESH:
        raise VitError(
            f"a checkpoint has its own {' and '.join(changed)}",
            where=", ".join(f"recipe key model.{key}" for key in changed),
            fix="leave them out; they are for fresh networks (vit pretrain, or --ckpt random)",
        )
