"""`vit finetune`: carry a checkpoint over to another data set (paper, section 3.2)."""

from typing import Any

from vitcli.commands.job import RunOptions, Start
from vitcli.commands.session import run
from vitcli.errors import VitError
from vitcli.model import adapted, architecture, build
from vitcli.recipe import Recipe
from vitcli.split import Split
from vitcli.weights import load_into, read_weights

FRESH = "random"  # --ckpt random: the same protocol from untrained weights, to compare with


def finetune(resolved: Recipe, options: RunOptions) -> dict[str, Any]:
    """Head replaced by zeros, position embedding resampled to the new grid, then trained by the recipe."""
    if resolved.model.ckpt is None:
        raise VitError(
            "no checkpoint is named to fine-tune",
            where="--ckpt (recipe key model.ckpt)",
            fix="--ckpt FILE, a run folder, timm/NAME or demo; or --ckpt random with --model NAME",
        )
    if resolved.model.pre_logits or resolved.objective.head_bias:
        raise VitError(
            "fine-tuning puts one layer of zeros in the place of the head (paper, section 3.2)",
            where="recipe keys model.pre_logits and objective.head_bias",
            fix="leave them out; they belong to vit pretrain",
        )

    def make_model(split: Split, image_size: tuple[int, int]) -> Start:
        wanted = resolved.model
        gelu = None if wanted.gelu == "auto" else wanted.gelu
        if wanted.ckpt == FRESH:
            if wanted.name is None:
                raise VitError(
                    "fresh weights of which network?",
                    where="--ckpt random",
                    fix="add --model, such as --model ViT-B/16",
                )
            arch = architecture(wanted.name, image_size=image_size, num_classes=split.num_classes, gelu=gelu)
            return Start(build(arch, dropout=wanted.dropout), arch, None, ["fresh weights"])
        weights = read_weights(wanted.ckpt, model_name=wanted.name)
        arch = adapted(weights.architecture, image_size=image_size, num_classes=split.num_classes, gelu=gelu)
        model = build(arch, dropout=wanted.dropout)
        report = load_into(model, arch, weights, new_head=True)
        return Start(
            model,
            arch,
            wanted.ckpt,
            [f"{wanted.ckpt}: {weights.format}, {weights.numerics}", *report.lines()],
        )

    return run("finetune", resolved, options, make_model)
