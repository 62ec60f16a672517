"""`vit inspect`: what is inside a checkpoint."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from vitcli.cli import inputs, options
from vitcli.cli.help import DATA, MODEL, RUN, UNDERSTAND
from vitcli.cli.options import command, launch, option

app = typer.Typer()


@command(
    app,
    panel=UNDERSTAND,
    example="""\
vit inspect --ckpt ViT-L_16.npz --images photos/ --out figures/
vit inspect runs/photos                     # what it is, in a few lines""",
)
def inspect(
    *,
    ckpt: options.Ckpt = None,
    recipe: options.RecipeOptions,
    inference: options.InferenceOptions,
    checkpoint: Annotated[str | None, typer.Argument(metavar="CKPT",
        help="As --ckpt. Alone: print what it is, as with --summary.")] = None,
    images: Annotated[list[str] | None, option("--images", DATA,
        "Images to analyse: a file, folder or glob (default: of the data set). Repeatable.",
        "IMAGES")] = None,
    split: options.Split = "auto",
    compare_res: Annotated[str | None, option("--compare-res", DATA,
        "Image size of the second checkpoint (default: as the first).", "PX")] = None,
    compare: Annotated[str | None, option("--compare", MODEL,
        "Second checkpoint, shown side by side with the first on the same images (default: none).",
        "CKPT")] = None,
    out: Annotated[Path | None, option("--out", RUN,
        "Folder for figures (PNG, SVG), arrays, numbers and inspection.html (default: a new one under "
        "runs/).", "FOLDER")] = None,
    summary: Annotated[bool, option("--summary", RUN,
        "Plot nothing: print what the checkpoint is, whether it is intact, and which commands take "
        "it.")] = False,
    overwrite: options.Overwrite = False,
    printing: options.Printing,
) -> int:  # fmt: skip
    """Plot filters, position embeddings and attention.

    The figures of the paper for any network. Without options: the embedded demo.
    """
    # Mistakes are reported before any work.
    if checkpoint is not None and ckpt is not None:
        raise typer.BadParameter("the checkpoint is named twice", param_hint="CKPT and --ckpt")
    ckpt = ckpt if checkpoint is None else checkpoint
    plotting = {
        "--images": images, "--dataset": recipe.dataset, "--split": split != "auto", "--res": recipe.res,
        "--set": recipe.set_, "--compare": compare, "--compare-res": compare_res, "--out": out,
        "--batch-size": inference.batch_size, "--recipe": recipe.recipe, "--precision": inference.precision,
        "--workers": inference.workers, "--overwrite": overwrite,
    }  # fmt: skip
    ignored = [name for name, value in plotting.items() if value]
    if summary and (ignored or ckpt is None):
        message = f"it ignores {ignored[0]}: drop one of them" if ignored else "name the checkpoint, as CKPT"
        raise typer.BadParameter(message, param_hint="--summary")
    # What a run does about images that cannot be read holds for those to look at, too.
    keys = inputs.policy_of_run(ckpt) if images and not recipe.skip_bad else {}

    # A summary needs no forward pass.
    if summary or (checkpoint is not None and not ignored):
        recipe.shorthands(ckpt, None)  # refuses a name of nothing
        options.load_libraries()
        from vitcli.weights import summary as weights_summary

        result = weights_summary.summarise(ckpt, model_name=recipe.model, quiet=printing.quiet)
        return printing.show(result, weights_summary.as_text) or (0 if result["usable"] else 4)

    if compare_res is not None and compare is None:
        message = "it belongs to --compare CKPT, which may be the same"
        raise typer.BadParameter(message, param_hint="--compare-res")
    keys_set = {override.partition("=")[0].strip() for override in recipe.set_ or ()}
    is_named = ckpt or recipe.dataset or images or keys_set & {"model.ckpt", "data.dataset"}
    default = "inspect/default" if is_named else "inspect/demo"
    recipes = [recipe.load(ckpt, inference, recipe.without_given(keys), default=default)]
    if compare is not None:
        second = replace(recipe, res=compare_res or recipe.res)
        recipes.append(second.load(compare, inference, default=default))
    launch(None, inference.device)
    from vitcli.inspection.inspect import inspect
    from vitcli.inspection.text import as_text

    settings = inference.settings(printing, out, overwrite)
    return printing.show(inspect(recipes, settings, image_patterns=images or (), split=split), as_text)
