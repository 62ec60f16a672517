"""`vit evaluate`, `vit predict` and `vit compare`."""

import json
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

from vitcli.cli import options
from vitcli.cli.options import launch, shorthands, show_and_fail
from vitcli.output import text
from vitcli.recipe.request import RecipeRequest

app = typer.Typer()
NUMBERS = (
    "top1", "top5", "loss", "nll", "brier", "ece", "num_eval_examples", "num_skipped_images", "images_per_s",
    "elapsed_s",
)  # fmt: skip
OF_REAL = ("real_top1", "num_real_examples")
Overwrite = Annotated[
    bool, options.option("--overwrite", options.RUN, "Replace another evaluation in --out.")
]
Predictions = Annotated[str, typer.Argument(help="A file of vit evaluate --save-predictions.")]


@app.command(epilog="Example: vit predict --ckpt runs/pets photos/ 'more/*.jpg'")
def predict(
    pictures: Annotated[list[str], typer.Argument(metavar="PICTURES", help="Files, folders and globs.")],
    ckpt: options.Ckpt = None,
    model: options.Model = None,
    res: options.Res = None,
    topk: options.Topk = None,
    batch_size: options.EvalBatchSize = None,
    set_: options.Set = None,
    precision: options.EvalPrecision = None,
    workers: options.Workers = None,
    jsonl: options.JsonLines = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """The likeliest classes of pictures, from the very pixels that evaluation sees."""
    if jsonl and as_json:
        raise typer.BadParameter("--json prints one object, --jsonl one a picture: name one of them")
    from vitcli.evaluation.predict import predict
    from vitcli.evaluation.setup import RunSettings
    from vitcli.evaluation.text import predictions_as_text

    recipe_keys = shorthands(None, res, ckpt, model, precision) | {"eval.batch_size": batch_size}
    request = RecipeRequest(None, set_ or (), recipe_keys)
    result = predict(pictures, request, RunSettings(workers, quiet), topk=topk)
    if jsonl:
        text.write("\n".join(json.dumps(prediction) for prediction in result["predictions"]))
        return 0
    return text.show(result, as_json, predictions_as_text)


@app.command(epilog="Example: vit evaluate --ckpt runs/pets --dataset oxford_pets --assert 'top1>=0.92'")
def evaluate(
    dataset: options.Datasets = None,
    split: options.Split = "auto",
    real: options.Real = None,
    real_index: options.RealIndex = None,
    classes: options.Classes = None,
    all_compete: options.AllCompete = False,
    res: options.ResOrGrid = None,
    ckpt: options.Ckpts = None,
    model: options.Model = None,
    batch_size: options.EvalBatchSize = None,
    recipe: options.RecipeName = None,
    set_: options.Set = None,
    out: options.EvaluationOut = None,
    overwrite: Overwrite = False,
    save_predictions: options.SavePredictions = None,
    assert_: options.Assert = None,
    precision: options.EvalPrecision = None,
    num_processes: options.NumProcesses = None,
    workers: options.Workers = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """Accuracy, ReaL, calibration, intervals, mistakes: checkpoints on splits, every example exactly once."""
    from vitcli.evaluation import assertions

    known = NUMBERS + (OF_REAL if real else ())
    asserted = assertions.parse(assert_ or (), keys=known)  # mistakes are told before any work
    sides = options.resolution_range(res)
    pairs = list(product(ckpt or [None], dataset or [None]))
    each = [
        shorthands(data, None if sides else res, weights, model, precision) | {"eval.batch_size": batch_size}
        for weights, data in pairs
    ]
    from vitcli.experiments import vtab

    groups = next(filter(None, map(vtab.tasks_of, dataset or ())), {})
    more = (sides, real, real_index, classes, all_compete, out, overwrite, save_predictions, asserted)
    if groups and (len(pairs) > 1 or any(more)):
        raise typer.BadParameter(
            "the tasks of vtab go with one --ckpt, no other --dataset and nothing but scores"
        )
    code = launch(num_processes)
    if code is not None:
        return code
    from vitcli.evaluation.evaluate import EvaluateOptions, evaluate
    from vitcli.evaluation.setup import RunSettings

    extras = EvaluateOptions(
        split=split,
        real=real,
        real_index=real_index,
        classes=classes,
        all_compete=all_compete,
        sides=sides,
        save_predictions=save_predictions,
        asserted=asserted,
    )
    run = RunSettings(workers, quiet, Path(out) if out else None, overwrite)
    if groups and ckpt:

        def score(task: str, weights: str) -> dict[str, Any]:
            own = each[0] | {"data.dataset": task, "model.ckpt": weights}
            return evaluate([RecipeRequest(recipe, set_ or (), own)], extras, run)

        return text.show(vtab.evaluate_tasks(groups, ckpt[0], score), as_json, vtab.render)
    requests = [RecipeRequest(recipe, set_ or (), keys) for keys in each]
    return _tell(evaluate(requests, extras, run), asserted, as_json)


@app.command(epilog="Example: vit compare b16.parquet l16.parquet")
def compare(
    a: Predictions,
    b: Predictions,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """Two sets of saved predictions: B - A in top-1, a paired interval, McNemar's test, the classes."""
    from vitcli.evaluation.compare import compare
    from vitcli.evaluation.text import comparison_as_text

    return text.show(compare(a, b), as_json, comparison_as_text)


def _tell(result: dict[str, Any], asserted: tuple, as_json: bool) -> int:
    """Print the result, whatever was asserted, and end with what did not hold."""
    from vitcli.evaluation import assertions
    from vitcli.evaluation.text import as_text

    named = [(f"{one['ckpt']} on {one['dataset']}", one) for one in result.get("evaluations", [result])]
    error = assertions.failed(asserted, named)
    return show_and_fail(result, error, as_json, as_text)
