"""`vit reproduce`: rows of the paper's tables."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from vitcli.cli import complete, options, submit
from vitcli.cli.help import ADVANCED, DATA, MODEL, RUN, UNDERSTAND
from vitcli.cli.options import command, launch, option
from vitcli.experiments.reproduce_text import as_list, as_text

app = typer.Typer()


@command(
    app,
    panel=UNDERSTAND,
    example="""\
vit reproduce --list 'table5/b16*'
vit reproduce table5/b16-in21k/cifar10 --out runs/b16-cifar10""",
    no_args_is_help=True,
)
def reproduce(
    *,
    devices: options.DeviceOptions,
    row: Annotated[str | None, typer.Argument(metavar="ROW", autocompletion=complete.rows,
        help="COLUMN/TASK, such as table5/b16-in21k/cifar10; with --list a part of such names, or a glob.",
        )] = None,
    real: Annotated[str | None, option("--real", DATA,
        "ReaL labels, for the rows scored by them: real.json or real.json.gz; without FILE, timm's copy of "
        "the published ones (default: none).",
        "FILE")] = None,
    ckpt: Annotated[str | None, option("--ckpt", MODEL,
        "Weights to use in place of the row's, such as your own where none are public (default: the row's).",
        "CKPT", autocompletion=complete.ckpts)] = None,
    precision: options.Precision = None,
    list_: Annotated[bool, option("--list", RUN,
        "List the rows, the published values, and whether the weights are public.")] = False,
    scale: Annotated[Literal["demo"] | None, option("--scale", RUN,
        "demo: run the same protocol on the embedded demo, in about a minute (default: the paper's).",
        "NAME")] = None,
    rows: Annotated[str | None, option("--rows", RUN,
        "Rows of your own: a .toml file in the format of recipes/reproduce.toml (default: the shipped rows).",
        "FILE")] = None,
    out: Annotated[Path | None, option("--out", RUN,
        "Run folder; an unfinished run in it is resumed (default: runs/reproduce-ROW).", "FOLDER")] = None,
    track: options.Track = None,
    overwrite: options.Overwrite = False,
    dry_run: Annotated[bool, option("--dry-run", RUN,
        "Print the protocol and its cost; GPU-hours are timed over ten steps if data and weights are "
        "here.")] = False,
    measure: Annotated[bool, option("--measure", ADVANCED,
        "With --dry-run: download missing data and weights, to time ten steps.")] = False,
    printing: options.Printing,
) -> int:  # fmt: skip
    """Reproduce a row of the paper's tables.

    Runs the whole protocol and compares the result with the published value; exit code 8 if it is not
    reproduced.
    """
    from vitcli.experiments import reproduce as experiment
    from vitcli.experiments.reproduce_rows import failure, find_row, read_rows

    # Mistakes are reported before torch is loaded.
    known_rows = read_rows(rows)
    if list_:
        return printing.show(experiment.list_rows(known_rows, row), as_list)
    if row is None:
        raise typer.BadParameter("no row is named; vit reproduce --list shows them", param_hint="ROW")
    if measure and not dry_run:
        raise typer.BadParameter("it belongs to --dry-run", param_hint="--measure")
    submit.print_file(devices, out, printing)
    recipe_keys = options.RecipeOptions().shorthands(ckpt, precision)
    paper_row = find_row(known_rows, row, scale=scale, ckpt=ckpt)
    if real or not dry_run:
        experiment.check_labels(paper_row, real)
    recipes = experiment.resolve(paper_row, precision=precision)
    submit.hand_over(devices, out, printing)

    launch(devices.num_processes, devices.device)
    from vitcli.training.finetune import finetune

    quiet = printing.quiet
    run_options = devices.run_options(
        out=out, track=track, overwrite=overwrite, dry_run=dry_run, measure=measure, quiet=quiet
    )
    if dry_run:
        from vitcli.experiments.reproduce_cost import plan

        return printing.show(plan(paper_row, recipes, run_options, finetune), as_text)
    from vitcli.evaluation.evaluate import EvaluateOptions, evaluate
    from vitcli.evaluation.setup import RunSettings
    from vitcli.recipe import load_for_inference

    def score(weights: str) -> dict[str, Any]:
        keys = recipe_keys | {"data.dataset": paper_row.dataset, "model.ckpt": weights}
        settings = RunSettings(devices.workers, quiet)
        recipe = load_for_inference(None, (), keys, command="evaluate")
        return evaluate([recipe], EvaluateOptions(real=real), settings)

    result = experiment.reproduce(
        paper_row, recipes, run_options, real=real, finetune=finetune, evaluate=score
    )
    return printing.show_and_fail(result, failure(result), as_text)
