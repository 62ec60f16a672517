"""`vit average`."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from vitcli.cli import complete, inputs, options
from vitcli.cli.help import DATA, MODEL, RUN, TRAIN
from vitcli.cli.options import Printing, command, given_arguments, launch, option

app = typer.Typer()


@command(
    app,
    panel=TRAIN,
    example="""\
vit finetune --dataset photos/ --runs 3 --out runs/photos
vit average runs/photos/runs/* --out runs/average""",
)
def average(
    *,
    runs: Annotated[list[str], typer.Argument(metavar="RUN",
        help="Folders of finished runs of vit finetune, or one with several runs.")],
    dataset: Annotated[str | None, option("--dataset", DATA,
        "Data set of the runs, if it has moved (default: where it was).", "DATA",
        autocompletion=complete.datasets)] = None,
    split: Annotated[str | None, option("--split", DATA,
        "Split to select the average on, not a test split; images that were trained on are left out "
        "(default: the dev split of the runs; without one the mean is not validated).",
        "SPLIT")] = None,
    method: Annotated[Literal["auto", "uniform", "greedy"], option("--method", MODEL,
        "uniform: the mean; greedy: of the runs that do not lower the accuracy (arXiv 2203.05482); auto: the "
        "better of the two (default: auto).", "NAME")] = "auto",
    device: options.Device = None,
    num_processes: options.NumProcesses = None,
    workers: options.Workers = None,
    out: Annotated[Path | None, option("--out", RUN,
        "Run folder of the result (default: a new one under runs/).", "FOLDER")] = None,
    overwrite: options.Overwrite = False,
    verbose: options.Verbose = False,
    printing: Printing,
) -> int:  # fmt: skip
    """Average the weights of several runs into one model.

    Of runs fine-tuned from the same weights. The average is delivered if a paired test on the dev split does
    not find it worse than the runs; else the best run is.
    """
    if dataset:
        inputs.check_dataset(dataset)
    launch(num_processes, device)
    from vitcli.training.many_runs.average import AverageOptions
    from vitcli.training.many_runs.average import average as make_average
    from vitcli.training.text import as_text

    chosen = AverageOptions(
        method, dataset, split, out, overwrite, workers, quiet=printing.quiet, arguments=given_arguments
    )
    return printing.show(make_average(runs, chosen), partial(as_text, verbose=verbose))
