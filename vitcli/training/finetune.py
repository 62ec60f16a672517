"""`vit finetune`: fine-tune a checkpoint on another data set (paper, section 3.2)."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from vitcli import recipe as recipes
from vitcli.data.seen_images import SeenImages
from vitcli.data.split import Split
from vitcli.errors import VitError, WeightsError
from vitcli.evaluation.regression import target_of
from vitcli.evaluation.setup import notes_on_pixels
from vitcli.models.build import last_layers
from vitcli.models.features import TimmNetwork
from vitcli.recipe import Recipe
from vitcli.recipe.schema import Model, Objective
from vitcli.training.many_runs.sweep import run
from vitcli.training.methods.partial import BACKBONE, adapt, refuse_for_fresh_weights
from vitcli.training.objective import training_task
from vitcli.training.setup import InitialModel, RunOptions, fresh_model
from vitcli.weights import licences
from vitcli.weights.files import checksum_of
from vitcli.weights.io import Weights, read_weights
from vitcli.weights.load import keep_head, load, with_first_blocks
from vitcli.weights.names import FRESH

ONLY_FRESH = ("classifier", "posemb", "posemb_at", "init", "hidden", "mlp", "heads", "patch_size")


def finetune(recipe: Recipe, options: RunOptions) -> dict[str, Any]:
    """Replace the head by zeros, resample the position embedding to the new grid, and train by the recipe."""
    recipes.check_names_ckpt(recipe, "finetune")
    for _, trial in recipes.trials(recipe):
        _check(trial.model, trial.objective)

    return run("finetune", recipe, options, partial(initial_model, quiet=options.quiet))


def initial_model(recipe: Recipe, split: Split, *, quiet: bool) -> InitialModel:
    """Read the checkpoint that a recipe names, with the head that it asks for; or build fresh weights."""
    settings, image_size = recipe.model, recipe.data.image_hw
    if settings.ckpt == FRESH:
        model, arch = fresh_model(
            settings, image_size=image_size, num_classes=split.num_classes, pre_logits=False
        )
        return InitialModel(model, arch, None, "fresh weights")

    # Load the checkpoint at the resolution of the recipe, with a head of zeros or its own.
    gelu = None if settings.gelu == "auto" else settings.gelu
    weights = read_weights(settings.ckpt, model_name=settings.name, gelu=gelu, quiet=quiet)
    if settings.layers:
        weights = with_first_blocks(weights, settings.layers)
    keeps_head = settings.head == "keep"
    model, arch, report = load(
        weights,
        image_size=image_size,
        num_classes=None if keeps_head else split.num_classes,
        dropout=settings.dropout,
        drop_path=settings.drop_path,
        patch_dropout=settings.patch_dropout,
        posemb_method=settings.posemb_resample,
    )
    if keeps_head:
        report = replace(report, kept_head=_keep_head(model, weights, recipe, split))
    digest = checksum_of(model.state_dict(), "")  # before a method adds to the network
    adapt(model, settings)
    kind = "" if weights.format == settings.ckpt else f" ({weights.format})"
    details = [f"weights {settings.ckpt}{kind}; activation: {weights.numerics}", *report.lines()]
    details += notes_on_pixels(weights, recipe) + licences.note_on(weights.licence, "the weights")
    seen = SeenImages.of(weights.metadata)
    return InitialModel(
        model,
        arch,
        origin=settings.ckpt,
        loaded=report.summary(),
        notes=details,
        seen=seen,
        fetched_from=weights.fetched_from,
        licence=weights.licence,
        digest=digest,
    )


def _keep_head(model: TimmNetwork, weights: Weights, recipe: Recipe, split: Split) -> str:
    """Fit the head of the weights to the data, in place; return how. Numbers get the scale of the data."""
    if not split.has_numbers:
        return keep_head(
            model, weights, split.class_names, num_classes=split.num_classes, data_name=split.name
        )
    old, new = target_of(weights.metadata), training_task(recipe.objective, split).target
    if old is None:
        raise WeightsError(
            "these weights have no head for numbers to keep",
            where="--keep-head (recipe key model.head), objective.loss regression",
            fix="leave it out: the head of a regression starts at the mean of the numbers",
        )
    with torch.no_grad():
        for layer in last_layers(model):
            layer.weight.mul_(old.std / new.std)
            layer.bias.copy_((layer.bias * old.std + old.mean - new.mean) / new.std)
    return f"the head is kept: it predicts {old.name}"


def _check(model: Model, objective: Objective) -> None:
    """Refuse settings that do not apply to fine-tuning."""
    if model.ckpt == FRESH and model.name is None:
        raise VitError(
            "fresh weights need the name of a network",
            where="--ckpt random",
            fix="add --model, such as --model ViT-B/16",
        )
    if model.ckpt == FRESH and model.head == "keep":
        raise VitError(
            "fresh weights have no head to keep",
            where="--keep-head (recipe key model.head)",
            fix="leave it out, or name a checkpoint with --ckpt",
        )
    if model.ckpt == FRESH:
        refuse_for_fresh_weights(model)
    if model.lora_rank and model.freeze == BACKBONE:
        raise VitError(
            "with the whole backbone frozen there is nothing for LoRA to correct",
            where="recipe keys model.freeze and model.lora_rank",
            fix="leave one of them out, or freeze a number of blocks",
        )
    if model.pre_logits or objective.head_bias:
        raise VitError(
            "fine-tuning replaces the head by one layer of zeros (paper, section 3.2)",
            where="recipe keys model.pre_logits and objective.head_bias",
            fix="leave them out; they belong to vit pretrain",
        )
    changed = [key for key in ONLY_FRESH if getattr(model, key) != Model.model_fields[key].default]
    if changed and model.ckpt != FRESH:
        raise VitError(
            f"a checkpoint has its own {' and '.join(changed)}",
            where=", ".join(f"recipe key model.{key}" for key in changed),
            fix="leave them out; they are for fresh networks (vit pretrain, or --ckpt random)",
        )
