"""The commands below `vit recipes`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from vitcli.cli import options
from vitcli.output import text

app = typer.Typer(help="List, show, check and copy recipes.", no_args_is_help=True)

RecipeArgument = Annotated[
    str,
    typer.Argument(
        autocompletion=options.recipe_names, metavar="RECIPE", help="A shipped name or a .toml file."
    ),
]
SomeRecipes = Annotated[
    list[str] | None,
    typer.Argument(
        autocompletion=options.recipe_names, metavar="[RECIPE...]", help="All shipped ones if left out."
    ),
]


@app.command("list")
def recipes_list(
    as_json: options.Json = False, quiet: options.Quiet = False, debug: options.Debug = False
) -> int:
    """Every shipped recipe, and which row of the paper it is."""
    from vitcli.recipe import listing

    return text.show(
        {"recipes": listing.list_recipes()}, as_json, lambda found: listing.render("list", found["recipes"])
    )


@app.command("show")
def recipes_show(
    name: RecipeArgument,
    set_: options.Set = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """A recipe with everything filled in, each value with where it comes from."""
    from vitcli.recipe import listing

    return text.show(listing.show(name, set_ or ()), as_json, partial(listing.render, "show"))


@app.command("check")
def recipes_check(
    names: SomeRecipes = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """Read recipes against the schema; exit 2 if one has a mistake."""
    from vitcli.recipe import listing

    found = listing.check(names or ())
    text.show(found, as_json, partial(listing.render, "check"))
    return 0 if found["ok"] else 2


@app.command("schema")
def recipes_schema(
    as_json: options.Json = True, quiet: options.Quiet = False, debug: options.Debug = False
) -> int:
    """The JSON Schema of a recipe, for editors."""
    from vitcli.recipe import listing

    return text.show_json(listing.schema())


@app.command("copy")
def recipes_copy(
    name: RecipeArgument,
    destination: Annotated[
        Path, typer.Argument(metavar="TO", help="A file or folder; nothing is overwritten.")
    ],
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """A recipe as a file of your own."""
    from vitcli.recipe import listing

    return text.show(listing.copy(name, destination), as_json, partial(listing.render, "copy"))
