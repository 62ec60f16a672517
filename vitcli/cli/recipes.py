"""`vit recipes list`, `show`, `check`, `schema` and `copy`."""

import json
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import typer

from vitcli.cli import complete, options
from vitcli.cli.help import group
from vitcli.cli.options import Printing, command

app = group(
    "List, show, check and copy recipes.",
    "Examples:\nvit recipes list cifar\nvit recipes show finetune/default",
)

# fmt: off
RecipeArgument = Annotated[str, typer.Argument(autocompletion=complete.recipes, metavar="RECIPE",
    help="A shipped name or a .toml file.")]
SomeRecipes = Annotated[list[str] | None, typer.Argument(autocompletion=complete.recipes,
    metavar="RECIPE", help="Shipped names or .toml files (default: all shipped ones).")]
# fmt: on


@command(app, "list", example="vit recipes list cifar\nvit recipes list 'finetune/*'")
def recipes_list(
    *,
    pattern: Annotated[
        str | None,
        typer.Argument(
            metavar="PATTERN", help="Part of a name or of its first line, or a glob (default: all)."
        ),
    ] = None,
    printing: Printing,
) -> int:
    """List the shipped recipes, by what they are for."""
    from vitcli.recipe import listing

    return printing.show({"recipes": listing.list_recipes(pattern)}, list_as_text)


@command(app, "show", example="vit recipes show finetune/default --set schedule.epochs=10")
def recipes_show(*, name: RecipeArgument, set_: options.Set = None, printing: Printing) -> int:
    """Show the resolved values of a recipe and the origin of each."""
    from vitcli.recipe import listing

    return printing.show(listing.show(name, set_ or ()), itemgetter("toml"))


@command(app, "check", example="vit recipes check my.toml")
def recipes_check(*, names: SomeRecipes = None, printing: Printing) -> int:
    """Validate recipes against the schema.

    Exit code 2 if one has a mistake.
    """
    from vitcli.recipe import listing

    result = listing.check(names or ())
    return printing.show_and_fail(result, listing.mistakes(result), listing.check_as_text)


@command(app, "schema", example="vit recipes schema > recipe.schema.json")
def recipes_schema(printing: Printing) -> int:
    """Print the JSON Schema of a recipe, for editors.

    Write `#:schema recipe.schema.json` as the first line of your recipe: editors with Taplo, such as VS Code
    with Even Better TOML, complete its keys and underline mistakes.
    """
    from vitcli.recipe import listing

    return printing.show(listing.schema(), partial(json.dumps, indent=2))


@command(app, "copy", example="vit recipes copy finetune/default my.toml")
def recipes_copy(
    *,
    name: RecipeArgument,
    destination: Annotated[
        Path, typer.Argument(metavar="TO", help="A .toml file, or a folder (default: this folder).")
    ] = Path(),
    overwrite: options.Overwrite = False,
    printing: Printing,
) -> int:
    """Copy a shipped recipe to a file of your own."""
    from vitcli.recipe import listing

    return printing.show(listing.copy(name, destination, overwrite=overwrite), listing.copy_as_text)


def list_as_text(result: dict[str, Any]) -> str:
    """Render the result of `vit recipes list`: under each need the names and their meaning."""
    from vitcli.output.document import simple_table

    rows, need = [], None
    for entry in result["recipes"]:
        rows += [(f"{entry['need']}:", "")] if entry["need"] != need else []
        rows.append((f"  {entry['name']}", entry["about"]))
        need = entry["need"]
    return simple_table({"recipe": "text", "what it is": "text"}, rows).as_text()
