"""`vit recipes`: list, show, check and copy recipes; their JSON Schema. Imports no torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitcli import recipe
from vitcli.errors import MachineError, VitError
from vitcli.recipe import catalog
from vitcli.recipe.sweep import may_be_chosen
from vitcli.recipe.toml import toml_text


def list_recipes() -> list[dict[str, Any]]:
    """Return name, base flag and first comment line of every shipped recipe."""
    shipped = recipe.available()
    return [{"name": name, "base": catalog.is_base(name), "about": about} for name, about in shipped]


def show(name: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return the resolved values by dotted key, the origin of each, and TOML with the origins as comments.

    A base may be incomplete; any other recipe must be valid.
    """
    if catalog.is_base(name) and not overrides:
        values = recipe.merge(name).values
    else:
        values = recipe.flat(recipe.load(name, overrides, training=False))
    origins = {key: source for key, source in recipe.origins(name, overrides).items() if key in values}
    toml = toml_text(values, {key: f"from {source}" for key, source in origins.items()})
    return {"name": name, "values": values, "origins": origins, "toml": toml}


def check(names: Sequence[str] = ()) -> dict[str, Any]:
    """Validate recipes: shipped ones or files; without names, all shipped ones.

    Returns:
        "ok" for all of them, and per recipe its name, kind and error. A shipped base is checked through the
        recipes that extend it.
    """
    checked = [_check_one(name) for name in names or [name for name, _ in recipe.available()]]
    return {"ok": all(entry["error"] is None for entry in checked), "recipes": checked}


def _check_one(name: str) -> dict[str, Any]:
    if catalog.is_base(name):
        return {"name": name, "kind": "base", "error": None}
    try:
        loaded = recipe.load(name, training=False)
    except VitError as error:
        return {"name": name, "kind": None, "error": error.as_dict()}
    return {"name": name, "kind": "training" if loaded.train else "evaluation", "error": None}


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a recipe file, with which editors complete and check .toml files."""
    document = recipe.Recipe.model_json_schema()
    for section, kind in recipe.SECTIONS.items():
        properties = document["$defs"][kind.__name__]["properties"]
        for name in [name for name in properties if may_be_chosen(f"{section}.{name}")]:
            properties[name] = _or_list(properties[name])
    document["properties"]["extends"] = {
        "type": "string",
        "description": "a shipped recipe, or a .toml file in the same folder, that this file changes",
    }
    return document


def _or_list(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a key that also takes a list of values to choose from on the dev split."""
    about = {key: value for key, value in schema.items() if key in ("default", "description", "title")}
    kind = {key: value for key, value in schema.items() if key not in about}
    return about | {"anyOf": [kind, {"type": "array", "items": kind, "minItems": 1}]}


def copy(name: str, destination: Path) -> dict[str, Any]:
    """Copy a shipped recipe with its comments to a .toml file or into a folder; overwrite nothing."""
    source = recipe.find(name)
    target = destination / source.name if destination.is_dir() else destination
    if target.suffix != ".toml":
        raise VitError(
            f"{target} does not end in .toml, as recipe files do",
            where="argument TO",
            fix=f"write {target}.toml, or name a folder that exists",
        )
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(source.read_text(encoding="utf-8"))
    except FileExistsError as error:
        raise VitError(f"{target} already exists", where="argument TO", fix="choose another name") from error
    except OSError as error:
        fix = "choose a folder that exists and is writable"
        what = f"{target} cannot be written: {error.strerror}"
        raise MachineError(what, where="argument TO", fix=fix) from error
    return {"name": name, "path": str(target)}


def list_as_text(result: dict[str, Any]) -> str:
    """Render the result of `vit recipes list`: names and first lines."""
    width = max(len(entry["name"]) for entry in result["recipes"])
    return "\n".join(f"{entry['name']:<{width}}  {entry['about']}" for entry in result["recipes"])


def check_as_text(result: dict[str, Any]) -> str:
    """Render the result of `vit recipes check`: a line for a valid recipe, the error of an invalid one."""
    lines = []
    for entry in result["recipes"]:
        verdict = "a base, checked through others" if entry["kind"] == "base" else "ok"
        if entry["error"]:
            verdict = f"invalid\n{VitError(**entry['error'])}"
        lines.append(f"{entry['name']}: {verdict}")
    return "\n".join(lines)


def copy_as_text(result: dict[str, Any]) -> str:
    """Render the result of `vit recipes copy`."""
    return f"{result['path']}: a copy of {result['name']}; use it with --recipe {result['path']}"
