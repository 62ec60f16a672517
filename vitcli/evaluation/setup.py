"""A recipe's [data] section to the transforms, whose preprocessing counts, and the network that sees it.

Shared by commands; no command of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from vitcli.data import dataset, loader
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing, preprocessing_of
from vitcli.distributed.runtime import start as start_runtime
from vitcli.errors import VitError, WeightsError
from vitcli.evaluation.inference import EvalSettings
from vitcli.models.architecture import Architecture
from vitcli.models.build import adapted
from vitcli.output.progress import Progress
from vitcli.recipe import Recipe
from vitcli.weights.io import Weights, read_weights
from vitcli.weights.load import load

# Recipe key to the field of Preprocessing it decides.
FIELDS = {
    "data.image_size": "image_size",
    "data.eval_resize": "resize",
    "data.eval_crop_fraction": "crop_fraction",
    "data.interpolation": "interpolation",
    "data.antialias": "antialias",
    "data.mean": "mean",
    "data.std": "std",
}


def preprocessing_for(
    weights: Weights,
    recipe: Recipe,
    *,
    recipe_name: str | None,
    overrides: Sequence[str],
    shorthands: Mapping[str, Any],
) -> tuple[Preprocessing, str]:
    """The pixels these weights are to be given, and in a few words who says so.

    Weights that store their preprocessing keep it, changed only by keys that the command line names; a
    --recipe on the command line is obeyed whole. Raw weights get the recipe's, at the resolution they were
    made for.
    """
    wanted = preprocessing_of(recipe.data)
    named = {text.partition("=")[0].strip() for text in overrides}
    named |= {key for key, value in shorthands.items() if value is not None}
    if recipe_name is not None:
        return wanted, f"as recipe {recipe_name} says"
    if weights.preprocessing is None:
        if "data.image_size" not in named:
            wanted = replace(wanted, image_size=weights.architecture.image_size)
        return wanted, "by the recipe, as the weights store none"
    stored = Preprocessing.from_dict(weights.preprocessing)
    changed = {field: getattr(wanted, field) for key, field in FIELDS.items() if key in named}
    if changed.get("resize") == "square" != stored.resize:  # another rule's crop is not meant with it
        changed.setdefault("crop_fraction", wanted.crop_fraction)
    words = "as stored with the weights"
    return replace(stored, **changed), words + (f", but for {', '.join(changed)}" if changed else "")


def eval_settings(recipe: Recipe, *, workers: int | None, quiet: bool) -> EvalSettings:
    """Join the run's processes, and return the settings of a command's passes, in fp32 by default."""
    precision = recipe.precision.compute
    runtime = start_runtime("fp32" if precision == "auto" else precision)
    return EvalSettings(
        runtime=runtime,
        batch_size=recipe.eval.batch_size,
        on_bad_image=recipe.data.on_bad_image,
        num_threads=workers or loader.default_threads(runtime.processes_here),
        progress=Progress(quiet=quiet, is_main=runtime.is_main),
        precision=runtime.precision,
    )


def as_asked(
    recipe_name: str | None, overrides: Sequence[str], shorthands: Mapping[str, Any]
) -> dict[str, Any]:
    """What a command line names of a recipe, by key: two of the same ask for the same."""
    named = {"--recipe": recipe_name} | dict(shorthands)
    given = {key: value for key, value in named.items() if value is not None}
    given |= {key.strip(): value.strip() for key, _, value in (one.partition("=") for one in overrides)}
    given.pop("eval.batch_size", None)  # no result depends on it
    return given


def check_named(recipe: Recipe, command: str) -> None:
    """Refuse a command that looks at data through a checkpoint, where one of the two is not named."""
    if recipe.model.ckpt is None or recipe.data.dataset is None:
        missing = "checkpoint" if recipe.model.ckpt is None else "data set"
        raise VitError(
            f"no {missing} is named",
            where="--ckpt and --dataset",
            fix=f"vit {command} --ckpt RUN --dataset DATA, such as --ckpt demo --dataset demo:pretrain",
        )


def split_to_score(recipe: Recipe, split: str, weights: Weights) -> Split:
    """The split that is named, or the recipe's; the dev part of the weights' own run where they know one."""
    name = recipe.data.eval_split if split == "auto" else split
    return dataset.open_eval(recipe.data, name, dev_cut=weights.metadata.get("dev_cut"))


def named_weights(recipe: Recipe) -> Weights:
    """The checkpoint a recipe names, with the recipe's GELU where it names one."""
    wanted = recipe.model
    weights = read_weights(wanted.ckpt, model_name=wanted.name)
    if wanted.gelu == "auto":
        return weights
    arch = weights.architecture
    other = adapted(arch, image_size=arch.image_size, num_classes=arch.num_classes, gelu=wanted.gelu)
    other = replace(other, pre_logits=arch.pre_logits)
    return replace(weights, architecture=other, numerics=f"{wanted.gelu} GELU, as the recipe says")


def for_inference(
    weights: Weights,
    recipe: Recipe,
    preprocessing: Preprocessing,
    settings: EvalSettings,
    *,
    needs_head: bool = True,
) -> tuple[nn.Module, Architecture]:
    """The network on the machine's device, its position embedding resampled for the pictures it gets."""
    if needs_head and not weights.architecture.num_classes:
        raise WeightsError(
            "these weights have no head, so they name no classes",
            where=weights.source,
            fix="fine-tune them first: vit finetune --ckpt WEIGHTS --dataset DATA",
        )
    method = recipe.model.posemb_resample
    model, arch, report = load(weights, image_size=preprocessing.image_size, posemb_method=method)
    for line in report.lines()[1:]:
        settings.progress.note(line)
    return model.to(settings.device).eval(), arch
