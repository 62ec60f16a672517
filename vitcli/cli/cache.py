"""`vit cache list` and `vit cache clear`."""

from typing import Annotated

import typer

from vitcli.cli.help import RUN, group
from vitcli.cli.options import Printing, command, option

app = group(
    "Show and trim what vit keeps for later commands.",
    "Examples:\nvit cache list\nvit cache clear decoded features --older-than 30d",
)


@command(app, "list", example="vit cache list")
def cache_list(printing: Printing) -> int:
    """List decoded images, features, remote shards and downloaded weights: how much, of what, last used.

    What the Hub's own client keeps is elsewhere: hf cache ls.
    """
    from vitcli.cache import listing

    return printing.show(listing.list_cache(), listing.list_as_text)


@command(app, "clear", example="vit cache clear decoded\nvit cache clear all --older-than 30d --dry-run")
def cache_clear(
    *,
    kinds: Annotated[list[str] | None, typer.Argument(metavar="KIND",
        help="decoded, features, shards, weights, or all (default: all, with --older-than or --keep).",
        autocompletion=lambda: ["decoded", "features", "shards", "weights", "all"])] = None,
    older_than: Annotated[str | None, option("--older-than", RUN,
        "Delete only entries unused for at least this long: 30d, 12h, 2w (default: any age).", "AGE")] = None,
    keep: Annotated[str | None, option("--keep", RUN,
        "Delete least recently used entries until at most this much remains: 10GB (default: 0).",
        "SIZE")] = None,
    dry_run: Annotated[bool, option("--dry-run", RUN,
        "Show what would be deleted, without deleting.")] = False,
    printing: Printing,
) -> int:  # fmt: skip
    """Delete what vit keeps for later commands.

    What a running command uses stays. Nothing outside vit's folder is touched, and no link is followed.
    """
    from vitcli.cache import listing

    options = listing.ClearOptions(tuple(kinds or ()), older_than, keep, dry_run)
    return printing.show(listing.clear_cache(options), listing.clear_as_text)
