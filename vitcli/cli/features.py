"""`vit fewshot` and `vit embed`: the commands about frozen features."""

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from vitcli.cli import complete, inputs, options
from vitcli.cli.help import DATA, MODEL, RUN, USE
from vitcli.cli.options import command, given_arguments, launch, option
from vitcli.errors import VitError

app = typer.Typer()
Classifier = Literal["least-squares", "knn", "logistic", "ncm"]


# fmt: off
@dataclass(frozen=True)
class FewshotOptions:
    """Options of `vit fewshot` alone."""

    draws: Annotated[str | None, option("--draws", DATA,
        "Repeat the support sets of a draws.json: {seed: {shots: [rows]}} (default: draw them).",
        "FILE")] = None
    shots: Annotated[str | None, option("--shots", DATA,
        "Images per class: 5, or 1,5,10,25 (default: by the recipe; "
        "fewshot/default: 1,5,10,25). [fewshot.shots]",
        "N,...")] = None
    seeds: Annotated[str | None, option("--seeds", DATA,
        "Number of random support sets; reports mean and std over them (default: by the recipe; "
        "fewshot/default: 3). [fewshot.seeds]", "N")] = None
    l2: Annotated[str | None, option("--l2", MODEL,
        "Regularisation of least squares, or sweep: chosen on the support set (default: by the recipe). "
        "[fewshot.l2]", "L2|sweep")] = None
    classifier: Annotated[Classifier | None, option("--classifier", MODEL,
        "least-squares, knn, logistic (extra: fewshot) or ncm (default: least-squares). "
        "[fewshot.classifier]", "NAME")] = None
    layer: options.Layer = None
    layers: Annotated[str | None, option("--layers", MODEL,
        "Compare layers and poolings by leave-one-out accuracy: all, last, or numbers such as 4,8,12 "
        "(default: off; last with several checkpoints).", "LAYERS", autocompletion=complete.layers)] = None
    forecast: Annotated[bool, option("--forecast", RUN,
        "Also fit a learning curve to nested draws of all training images, l2 chosen for each: the accuracy "
        "with 2, 5 and 10 times the images, 80 % intervals, and a figure (default: no). "
        "[fewshot.forecast]")] = False

    @property
    def recipe_keys(self) -> dict[str, Any]:
        return {
            "eval.layer": self.layer, "fewshot.shots": counts(self.shots), "fewshot.seeds": self.seeds,
            "fewshot.l2": self.l2, "fewshot.classifier": self.classifier,
            "fewshot.forecast": self.forecast or None,
        }
# fmt: on


@command(
    app,
    panel=USE,
    example="""\
vit fewshot --ckpt vit_b16.npz --dataset cifar100 --shots 1,5,10,25
vit fewshot --ckpt 'weights/*.safetensors' --dataset photos/ --layers all
vit fewshot --ckpt vit_b16.npz --dataset photos/ --forecast""",
)
def fewshot(
    *,
    ckpt: Annotated[list[str] | None, option("--ckpt", MODEL,
        f"{options.WEIGHTS_HELP}. Repeatable, and a pattern such as 'weights/*.npz' or 'timm/vit_small*': "
        "several are compared on all training images, see --layers (default: by the recipe). [model.ckpt]",
        "CKPT", autocompletion=complete.ckpts)] = None,
    recipe: options.RecipeOptions,
    inference: options.InferenceOptions,
    protocol: FewshotOptions,
    num_processes: options.NumProcesses = None,
    out: Annotated[Path | None, option("--out", RUN,
        "Run folder: summary, table, recipe and the support sets (default: a new one under runs/).",
        "FOLDER")] = None,
    overwrite: options.Overwrite = False,
    verbose: options.Verbose = False,
    printing: options.Printing,
) -> int:  # fmt: skip
    """Score frozen features with few images per class.

    The protocol of the paper, section 4.1. Without options: the embedded demo.

    With several checkpoints, or --layers: which backbone, layer and pooling suits the images best.
    """
    ckpts = inputs.expand_ckpts(ckpt or ())
    which_layers = layers_of(protocol.layers) or "last"
    is_comparison = protocol.layers is not None or max(len(ckpts), len(ckpt or ())) > 1
    if is_comparison and protocol.draws:
        fix = "leave it out, or name one --ckpt and no --layers"
        raise VitError("checkpoints and layers are compared without draws", where="--draws", fix=fix)
    from vitcli.recipe import find_for_dataset

    # Mistakes come before processes are launched.
    default = "" if recipe.recipe else find_for_dataset("fewshot", recipe.dataset)
    each_recipe = [
        recipe.load(name, inference, protocol.recipe_keys, default=default, command="fewshot")
        for name in ckpts or [None]
    ]
    launch(num_processes, inference.device)
    settings = inference.settings(printing, out, overwrite, verbose=verbose)
    if is_comparison:
        from vitcli.features.compare_backbones import compare_backbones
        from vitcli.features.compare_backbones_text import as_text

        result = compare_backbones(each_recipe, settings, layers=which_layers)
        return printing.show(result, partial(as_text, verbose=verbose))
    from vitcli.features.fewshot import as_text, fewshot

    result = fewshot(each_recipe[0], settings, draws_file=protocol.draws, arguments=given_arguments)
    return printing.show(result, partial(as_text, verbose=verbose))


@command(app, panel=USE, example="vit embed --ckpt runs/pets --dataset oxford_pets --out p.safetensors")
def embed(
    *,
    ckpt: options.RequiredCkpt = None,
    recipe: options.RecipeOptions,
    inference: options.InferenceOptions,
    split: options.Split = "auto",
    layer: options.Layer = None,
    logits: Annotated[bool, option("--logits/--no-logits", MODEL,
        "Leave the logits out (default: write them too).")] = True,
    num_processes: options.NumProcesses = None,
    out: Annotated[Path | None, option("--out", RUN,
        "Required. The .safetensors file to write, or with --part-rows the folder; an interrupted call with "
        "the same --out is resumed.", "FILE")] = None,
    part_rows: options.PartRows = None,
    overwrite: options.Overwrite = False,
    printing: options.Printing,
) -> int:  # fmt: skip
    """Save the features of a split to a safetensors file.

    Features, logits, labels and row numbers. An interrupted call is resumed by the same command.
    """
    if part_rows:
        inputs.check_folder_of_parts(out, part_rows)
    elif not out or out.suffix != ".safetensors":
        raise typer.BadParameter("name the file to write: --out FEATURES.safetensors", param_hint="--out")
    loaded = recipe.load(ckpt, inference, {"eval.layer": layer}, command="embed")
    launch(num_processes, inference.device)
    from vitcli.features.embed import as_text, embed

    settings = inference.settings(printing, out, overwrite)
    return printing.show(embed(loaded, settings, split=split, logits=logits, part_rows=part_rows), as_text)


def counts(shots: str | None) -> list[int] | None:
    """Parse --shots; typer.BadParameter for anything but numbers from 1."""
    if shots is None:
        return None
    if not re.fullmatch(r"[1-9]\d{0,6}(,[1-9]\d{0,6})*", shots):
        message = f"{shots!r} is not a number of images per class, such as 5, or 1,5,10,25"
        raise typer.BadParameter(message, param_hint="--shots")
    return [int(number) for number in shots.split(",")]


def layers_of(text: str | None) -> str | tuple[int, ...] | None:
    """Parse --layers; typer.BadParameter for anything but all, last or numbers from 1."""
    if text in (None, "all", "last"):
        return text
    if not re.fullmatch(r"[1-9]\d{0,3}(,[1-9]\d{0,3})*", text):
        message = f"{text!r} is neither all, last nor numbers of layers, such as 4,8,12"
        raise typer.BadParameter(message, param_hint="--layers")
    return tuple(sorted({int(number) for number in text.split(",")}))
