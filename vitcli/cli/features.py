"""The commands about frozen features: fewshot, embed."""

from pathlib import Path

import typer

from vitcli.cli import options
from vitcli.cli.options import given_arguments, launch, shorthands
from vitcli.output import text
from vitcli.recipe.request import RecipeRequest

app = typer.Typer()


@app.command(epilog="Example: vit fewshot --ckpt vit_b16.npz --dataset cifar100 --shots 1,5,10,25 --json")
def fewshot(
    dataset: options.Dataset = None,
    res: options.Res = None,
    draws: options.Draws = None,
    ckpt: options.Ckpt = None,
    model: options.Model = None,
    shots: options.Shots = None,
    seeds: options.Seeds = None,
    l2: options.L2 = None,
    classifier: options.Classifier = None,
    layer: options.Layer = None,
    batch_size: options.EvalBatchSize = None,
    recipe: options.RecipeName = None,
    set_: options.Set = None,
    out: options.FewshotOut = None,
    precision: options.EvalPrecision = None,
    num_processes: options.NumProcesses = None,
    workers: options.Workers = None,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """Accuracy from a few images a class (paper, section 4.1). Without options: the embedded demo."""
    counted = options.counts(shots)
    code = launch(num_processes)
    if code is not None:
        return code
    from vitcli.evaluation.setup import RunSettings
    from vitcli.features.fewshot import as_text, fewshot

    keys = shorthands(dataset, res, ckpt, model, precision) | {
        "eval.batch_size": batch_size,
        "eval.layer": layer,
        "fewshot.shots": counted,
        "fewshot.seeds": seeds,
        "fewshot.l2": l2,
        "fewshot.classifier": classifier,
    }
    result = fewshot(
        RecipeRequest(recipe, set_ or (), keys),
        RunSettings(workers, quiet, Path(out) if out else None, overwrite),
        draws_file=draws,
        arguments=given_arguments,
    )
    return text.show(result, as_json, as_text)


@app.command(epilog="Example: vit embed --ckpt runs/pets --dataset oxford_pets --out pets.safetensors")
def embed(
    dataset: options.Dataset = None,
    split: options.Split = "auto",
    res: options.Res = None,
    ckpt: options.Ckpt = None,
    model: options.Model = None,
    layer: options.Layer = None,
    logits: options.Logits = True,
    batch_size: options.EvalBatchSize = None,
    recipe: options.RecipeName = None,
    set_: options.Set = None,
    out: options.EmbedOut = None,
    precision: options.EvalPrecision = None,
    num_processes: options.NumProcesses = None,
    workers: options.Workers = None,
    overwrite: options.OverwriteFile = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """Features, logits, labels and row numbers of a split to one safetensors file; goes on after a kill."""
    if not out:
        raise typer.BadParameter("name the file to write: --out FEATURES.safetensors", param_hint="--out")
    code = launch(num_processes)
    if code is not None:
        return code
    from vitcli.evaluation.setup import RunSettings
    from vitcli.features.embed import as_text, embed

    keys = shorthands(dataset, res, ckpt, model, precision) | {
        "eval.batch_size": batch_size,
        "eval.layer": layer,
    }
    result = embed(
        RecipeRequest(recipe, set_ or (), keys),
        RunSettings(workers, quiet, Path(out), overwrite),
        split=split,
        logits=logits,
    )
    return text.show(result, as_json, as_text)
