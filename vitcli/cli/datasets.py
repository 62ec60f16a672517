"""`vit datasets list`, `show` and `check`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from vitcli.cli import complete, options
from vitcli.cli.help import VitGroup
from vitcli.cli.options import DATA, RUN, Printing, command, option

app = typer.Typer(
    cls=VitGroup,
    help="List data sets; find duplicates between splits.",
    epilog="Examples:\nvit datasets list\nvit datasets check photos/",
    no_args_is_help=True,
)


@command(app, "list", example="vit datasets list")
def datasets_list(printing: Printing) -> int:
    """List the data sets that have an alias, and those with a copy in $VIT_DATA."""
    from vitcli.data import listing

    return printing.show({"datasets": listing.list_datasets()}, partial(listing.render, "list"))


@command(app, "show", example="vit datasets show oxford_pets")
def datasets_show(
    *,
    name: Annotated[str, typer.Argument(autocompletion=complete.datasets, metavar="NAME",
        help="An alias, or demo.")],
    printing: Printing,
) -> int:  # fmt: skip
    """Show what is known about a data set."""
    from vitcli.data import listing

    return printing.show(listing.show(name), partial(listing.render, "show"))


@command(app, "check", example="vit datasets check oxford_pets --against ./photos --out pairs.csv")
def datasets_check(
    *,
    dataset: Annotated[str, typer.Argument(autocompletion=complete.datasets, metavar="DATA",
        help="As for --dataset: an alias, a folder, a Hub id.")],
    against: Annotated[str | None, option("--against", DATA,
        "Data set to compare with (default: another split of DATA).", "DATA",
        autocompletion=complete.datasets)] = None,
    split: Annotated[str, option("--split", DATA,
        "Split of DATA (default: its test split).", "SPLIT")] = "auto",
    against_split: Annotated[str, option("--against-split", DATA,
        "Split of --against (default: its train split).", "SPLIT")] = "auto",
    distance: Annotated[int, option("--distance", RUN,
        "Largest distance of near duplicates, in bits of a 64-bit hash (default: 6).", "BITS",
        min=0, max=32)] = 6,  # recipe.group_rule.NEAR_DISTANCE, which would load pydantic
    out: Annotated[Path | None, option("--out", RUN,
        "Write all pairs to this .csv file (default: print the first).", "FILE")] = None,
    workers: options.Workers = None,
    overwrite: options.Overwrite = False,
    printing: Printing,
) -> int:  # fmt: skip
    """Find exact and near duplicates between two splits.

    Images that were trained on must not be scored. Images that cannot be read are counted and left out. A
    split is compared with itself if --split and --against-split both name it, or if it is the only one.
    """
    from vitcli.data import listing
    from vitcli.data.near_duplicates import SplitName, check

    a, b = SplitName(dataset, split), SplitName(against, against_split)
    result = check(
        a, b, distance=distance, out=out, overwrite=overwrite, num_threads=workers, quiet=printing.quiet
    )
    return printing.show(result, partial(listing.render, "check"))
