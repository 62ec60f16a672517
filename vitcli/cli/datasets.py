"""The commands below `vit datasets`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from vitcli.cli import options
from vitcli.output import text

# Of the pairs of CIFAR-10's test and train that were looked at, all 72 up to 6 bits are copies, half of those
# of 8 and few of those of 10. A JPEG of quality 30, half the size or 30 grey levels more change at most 6 of
# them in 99 % of its pictures (docs/datasets.md).
DISTANCE = 6

app = typer.Typer(help="List and show data sets; find pictures that two of them share.", no_args_is_help=True)

DatasetArgument = Annotated[
    str,
    typer.Argument(
        autocompletion=options.dataset_names,
        metavar="DATA",
        help="As for --dataset: an alias, folder, Hub id.",
    ),
]
NAME = typer.Argument(autocompletion=options.dataset_names, metavar="NAME", help="An alias, or demo.")
# fmt: off
Against = Annotated[str | None, options.option("--against", options.DATA,
    "The data set to compare with; another split of DATA if left out.", "DATA",
    autocompletion=options.dataset_names)]
Split = Annotated[str, options.option("--split", options.DATA,
    "Of DATA; its test split is found if left out.", "SPLIT")]
AgainstSplit = Annotated[str, options.option("--against-split", options.DATA,
    "Of --against; its train split is found if left out.", "SPLIT")]
Distance = Annotated[int, options.option("--distance", options.RUN,
    "Of 64 bits, how many may differ between near duplicates; 6 if left out.", "BITS", min=0, max=32)]
Out = Annotated[Path | None, options.option("--out", options.RUN,
    "Write all pairs to this file.", "FILE.csv")]
# fmt: on


@app.command("list")
def datasets_list(
    as_json: options.Json = False, quiet: options.Quiet = False, debug: options.Debug = False
) -> int:
    """Every data set with a short name, and whether a copy lies in $VIT_DATA."""
    from vitcli.data import listing

    return text.show({"datasets": listing.list_datasets()}, as_json, partial(listing.render, "list"))


@app.command("show")
def datasets_show(
    name: Annotated[str, NAME],
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """All that is known of a data set with a short name."""
    from vitcli.data import listing

    return text.show(listing.show(name), as_json, partial(listing.render, "show"))


@app.command(
    "check", epilog="Example: vit datasets check oxford_pets --split test --against ./photos --out pairs.csv"
)
def datasets_check(
    dataset: DatasetArgument,
    against: Against = None,
    split: Split = "auto",
    against_split: AgainstSplit = "auto",
    distance: Distance = DISTANCE,
    out: Out = None,
    workers: options.Workers = None,
    overwrite: options.OverwriteFile = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """Exact and near duplicates of one split in another: pictures that were trained on must not be scored.

    Pictures that cannot be read are counted and left out. A split is compared with itself only if --split and
    --against-split both name it.
    """
    from vitcli.data import listing
    from vitcli.data.near_duplicates import SplitName, check

    result = check(
        SplitName(dataset, split),
        SplitName(against, against_split),
        distance=distance,
        out=Path(out) if out else None,
        overwrite=overwrite,
        num_threads=workers,
        quiet=quiet,
    )
    return text.show(result, as_json, partial(listing.render, "check"))
