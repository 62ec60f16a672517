"""`vit average`."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from vitcli.cli import complete, inputs, options
from vitcli.cli.options import DATA, MODEL, RUN, TRAIN, Printing, command, given_arguments, launch, option

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
        "The data set of the runs, where it is now (default: where it was).", "DATA",
        autocompletion=complete.datasets)] = None,
    split: Annotated[str | None, option("--split", DATA,
        "Images to choose by, such as validation, which no run reports on; those that were trained on are "
        "left out (default: the dev part that the runs held out; without one the mean is taken untested).",
        "SPLIT")] = None,
    method: Annotated[Literal["auto", "uniform", "greedy", "stock"], option("--method", MODEL,
        "uniform: the mean; greedy: of the runs that do not lower the accuracy (arXiv 2203.05482); stock: "
        "Model Stock, between the start and the mean (arXiv 2403.19522); auto: the best of them (default: "
        "auto).",
        "NAME")] = "auto",
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

    Of fine-tuned runs from one start. It is delivered if a paired test says that it is not worse than they
    are; else the best run is.
    """
    if dataset:
        inputs.check_dataset(dataset)
    launch(num_processes, device)
    from vitcli.training.many_runs.average_command import AverageOptions
    from vitcli.training.many_runs.average_command import average as make_average
    from vitcli.training.text import as_text

    chosen = AverageOptions(
        method, dataset, split, out, overwrite, workers, quiet=printing.quiet, arguments=given_arguments
    )
    return printing.show(make_average(runs, chosen), partial(as_text, verbose=verbose))
