"""The command that looks inside a checkpoint: inspect."""

from pathlib import Path
from typing import Annotated

import typer

from vitcli.cli import options
from vitcli.cli.options import shorthands
from vitcli.output import text
from vitcli.recipe.request import RecipeRequest

app = typer.Typer()
CkptArgument = Annotated[
    str | None,
    typer.Argument(metavar="CKPT", help="As --ckpt. Alone: say what it is, as with --summary."),
]
Overwrite = Annotated[
    bool, options.option("--overwrite", options.RUN, "Replace another inspection in --out.")
]


@app.command(epilog="Example: vit inspect --ckpt ViT-L_16.npz --images photos/ --out figures/")
def inspect(
    checkpoint: CkptArgument = None,
    images: options.Pictures = None,
    dataset: options.Dataset = None,
    split: options.Split = "auto",
    res: options.Res = None,
    compare_res: options.CompareRes = None,
    ckpt: options.Ckpt = None,
    model: options.Model = None,
    compare: options.Compare = None,
    batch_size: options.EvalBatchSize = None,
    recipe: options.RecipeName = None,
    set_: options.Set = None,
    out: options.InspectionOut = None,
    precision: options.EvalPrecision = None,
    workers: options.Workers = None,
    summary: options.Summary = False,
    overwrite: Overwrite = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """The paper's pictures of a network: filters, positions, attention. Without options: the demo."""
    if checkpoint is not None and ckpt is not None:
        raise typer.BadParameter("the checkpoint is named twice", param_hint="CKPT and --ckpt")
    ckpt = ckpt if checkpoint is None else checkpoint
    draws = {
        "--images": images, "--dataset": dataset, "--split": split != "auto", "--res": res, "--set": set_,
        "--compare": compare, "--compare-res": compare_res, "--batch-size": batch_size, "--recipe": recipe,
        "--out": out, "--precision": precision, "--workers": workers, "--overwrite": overwrite,
    }  # fmt: skip
    given = [name for name, value in draws.items() if value]
    if summary and (given or ckpt is None):
        told = (
            f"it draws nothing, so {given[0]} would go unheard" if given else "name the checkpoint, as CKPT"
        )
        raise typer.BadParameter(told, param_hint="--summary")
    keys = shorthands(dataset, res, ckpt, model, precision) | {"eval.batch_size": batch_size}
    if summary or (checkpoint is not None and not given):
        from vitcli.weights import summary as weights_summary

        result = weights_summary.summarise(ckpt, model_name=model)
        return text.show(result, as_json, weights_summary.as_text) or (0 if result["usable"] else 4)
    if compare_res is not None and compare is None:
        raise typer.BadParameter(
            "it belongs to --compare CKPT, which may be the same", param_hint="--compare-res"
        )
    each = [keys]
    if compare is not None:
        each.append(keys | shorthands(dataset, compare_res or res, compare, model, precision))
    from vitcli.evaluation.setup import RunSettings
    from vitcli.inspection.inspect import inspect
    from vitcli.inspection.text import as_text

    result = inspect(
        [RecipeRequest(recipe, set_ or (), keys) for keys in each],
        RunSettings(workers, quiet, Path(out) if out else None, overwrite),
        image_patterns=images or (),
        split=split,
    )
    return text.show(result, as_json, as_text)
