"""`vit reproduce`: rows of the paper's tables."""

from pathlib import Path
from typing import Annotated, Any

import typer

from vitcli.cli import options
from vitcli.cli.options import given_arguments, launch, shorthands, show_and_fail
from vitcli.experiments.reproduce_text import as_list, as_text
from vitcli.output import text
from vitcli.recipe.request import RecipeRequest

app = typer.Typer()


def row_names(incomplete: str) -> list[str]:
    """For shell completion."""
    from vitcli.experiments.reproduce_rows import read_rows, rows_of

    return [name for name in rows_of(read_rows(None)) if name.startswith(incomplete)]


# fmt: off
RowName = Annotated[str | None, typer.Argument(metavar="[ROW]", autocompletion=row_names,
    help="COLUMN/TASK, such as table5/b16-in21k/cifar10; with --list a part of such names, or a glob.")]
List = Annotated[bool, options.option("--list", options.RUN,
    "Show the rows, what was published, and whether the weights are public.")]
ScaleName = Annotated[str | None, options.option("--scale", options.RUN,
    "demo: the same protocol end to end on the embedded demo, in about a minute.", "NAME")]
RowsFile = Annotated[str | None, options.option("--rows", options.RUN,
    "A table of your own, in the shape of recipes/reproduce.toml.", "FILE.toml")]
Real = Annotated[str | None, options.option("--real", options.DATA,
    "ReaL labels, for the rows that they score: real.json, or real.json.gz.", "FILE")]
Ckpt = Annotated[str | None, options.option("--ckpt", options.MODEL,
    "The row's weights from elsewhere: a file, a run folder, weights of your own where none are public.",
    "WEIGHTS")]
Out = Annotated[Path | None, options.option("--out", options.RUN,
    "Run folder; runs/reproduce-ROW if left out. The same command goes on with it.", "FOLDER")]
DryRun = Annotated[bool, options.option("--dry-run", options.RUN,
    "Print the protocol and its cost; GPU-hours by ten steps where data and weights are here.")]
Measure = Annotated[bool, options.option("--measure", options.RUN,
    "With --dry-run: fetch data and weights that are not here, to time ten steps.")]
# fmt: on


@app.command(epilog="Example: vit reproduce table5/b16-in21k/cifar10 --out runs/b16-cifar10")
def reproduce(
    row: RowName = None,
    list_: List = False,
    scale: ScaleName = None,
    rows: RowsFile = None,
    real: Real = None,
    ckpt: Ckpt = None,
    out: Out = None,
    precision: options.Precision = None,
    num_processes: options.NumProcesses = None,
    per_device_batch: options.PerDeviceBatch = None,
    workers: options.Workers = None,
    exact: options.Exact = False,
    shard: options.Shard = False,
    compile: options.Compile = False,
    track: options.Track = None,
    overwrite: options.Overwrite = False,
    dry_run: DryRun = False,
    measure: Measure = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """A row of the paper's tables by its whole protocol: ours, the paper's, a verdict; exit 8 if it fails."""
    from vitcli.experiments import reproduce as command
    from vitcli.experiments.reproduce_rows import failure, find_row, read_rows

    known = read_rows(rows)
    if list_:
        return text.show(command.list_rows(known, row), as_json, as_list)
    if row is None:
        raise typer.BadParameter("which row? vit reproduce --list shows them", param_hint="ROW")
    if measure and not dry_run:
        raise typer.BadParameter("it belongs to --dry-run", param_hint="--measure")
    given = shorthands(None, None, ckpt, None, precision)
    found = find_row(known, row, scale=scale, ckpt=ckpt)
    if real or not dry_run:
        command.check_labels(found, real)
    recipes = command.resolve(found, precision=precision)
    code = launch(num_processes)
    if code is not None:
        return code
    from vitcli.training.finetune import finetune
    from vitcli.training.setup import RunOptions

    run_options = RunOptions(
        out=Path(out) if out else None,
        per_device_batch=options.count_or_auto(per_device_batch),
        workers=workers,
        exact=exact,
        shard=shard,
        compile=compile,
        arms_parallel=0,
        track=track,
        overwrite=overwrite,
        dry_run=dry_run,
        measure=measure,
        quiet=quiet,
        arguments=given_arguments,
    )
    if dry_run:
        from vitcli.experiments.reproduce_cost import plan

        return text.show(plan(found, recipes, run_options, finetune), as_json, as_text)

    from vitcli.evaluation.evaluate import EvaluateOptions, evaluate
    from vitcli.evaluation.setup import RunSettings

    def score(weights: str) -> dict[str, Any]:
        keys = given | {"data.dataset": found.dataset, "model.ckpt": weights}
        request = RecipeRequest(shorthands=keys)
        return evaluate([request], EvaluateOptions(real=real), RunSettings(workers, quiet))

    result = command.reproduce(found, recipes, run_options, real=real, finetune=finetune, evaluate=score)
    return show_and_fail(result, failure(result), as_json, as_text)
