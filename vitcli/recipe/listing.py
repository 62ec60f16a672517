"""`vit recipes`: list, show, check and copy recipes; their JSON Schema. Imports no torch."""

from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from textwrap import indent
from typing import Any

from vitcli import recipe
from vitcli.errors import MachineError, VitError, nearest
from vitcli.recipe import auto, catalog
from vitcli.recipe.sweep import may_be_chosen
from vitcli.recipe.toml import toml_text

# What recipes are for, in the order of `vit recipes list`.
NEEDS = OWN_IMAGES, DEMO, SCRATCH, PAPERS_TRANSFER, PAPERS_FEWSHOT, PAPERS_PRETRAINING, OTHER, BASE = (
    "your own images", "the demo", "from scratch", "the paper, transfer",
    "the paper, few-shot", "the paper, pre-training", "other", "a base to extend",
)  # fmt: skip
OF_FOLDER = {
    "modern": SCRATCH, "finetune": PAPERS_TRANSFER, "fewshot": PAPERS_FEWSHOT, "pretrain": PAPERS_PRETRAINING,
}  # fmt: skip


def list_recipes(pattern: str | None = None) -> list[dict[str, Any]]:
    """Return name, need, base flag and first comment line of shipped recipes, grouped by need.

    Args:
        pattern: a part of names or comments, or a glob of names, case-insensitive; None for all.

    Raises:
        VitError: nothing matches.
    """
    entries = [
        {"name": name, "base": catalog.is_base(name), "about": about, "need": need_of(name)}
        for name, about in recipe.available()
        if pattern is None or matches(name, about, pattern)
    ]
    if pattern and not entries:
        names = [name for name, _ in recipe.available()]
        raise VitError(
            f"no recipe matches {pattern!r}{nearest(pattern, names)}",
            where="PATTERN",
            fix="vit recipes list shows all of them; a glob such as 'finetune/*' works too",
        )
    return sorted(entries, key=lambda entry: (NEEDS.index(entry["need"]), entry["name"]))


def need_of(name: str) -> str:
    """Return what a shipped recipe is for, one of NEEDS."""
    command, _, variant = name.partition("/")
    if name in auto.NAMES.values():
        return OWN_IMAGES
    if catalog.is_base(name) and variant != "default":
        return BASE
    return {"default": OWN_IMAGES, "demo": DEMO}.get(variant) or OF_FOLDER.get(command, OTHER)


def matches(name: str, about: str, pattern: str) -> bool:
    """Return whether a recipe's name fits the glob, or its name or comment has the part."""
    pattern = pattern.lower()
    if any(mark in pattern for mark in "*?["):
        return fnmatch(name.lower(), pattern)
    return pattern in f"{name} {about}".lower()


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


def copy(name: str, destination: Path, *, overwrite: bool = False) -> dict[str, Any]:
    """Copy a shipped recipe with its comments to a .toml file or into a folder."""
    source = recipe.find(name)
    target = destination / source.name if destination.is_dir() else destination
    if target.suffix != ".toml":
        raise VitError(
            f"{target} does not end in .toml, as recipe files do",
            where="argument TO",
            fix=f"write {target}.toml, or name a folder that exists",
        )
    try:
        with target.open("w" if overwrite else "x", encoding="utf-8") as file:
            file.write(source.read_text(encoding="utf-8"))
    except FileExistsError as error:
        fix = "choose another name, or --overwrite"
        raise VitError(f"{target} already exists", where="argument TO", fix=fix) from error
    except OSError as error:
        fix = "choose a folder that exists and is writable"
        what = f"{target} cannot be written: {error.strerror}"
        raise MachineError(what, where="argument TO", fix=fix) from error
    return {"name": name, "path": str(target)}


def mistakes(result: dict[str, Any]) -> VitError | None:
    """Return the mistakes of all recipes that were checked as one error; None if there are none."""
    errors = [(entry["name"], entry["error"]) for entry in result["recipes"] if entry["error"]]
    if len(errors) < 2:
        return VitError(**errors[0][1]) if errors else None
    lines = [f"  {name}\n{indent(str(VitError(**error)), '    ')}" for name, error in errors]
    message = "\n".join([f"{len(errors)} of {len(result['recipes'])} recipes have mistakes", *lines])
    return VitError(message, where=", ".join(name for name, _ in errors), fix="correct them as said above")


def check_as_text(result: dict[str, Any]) -> str:
    """Render the result of `vit recipes check`: a line for each recipe; `mistakes` has what is wrong."""
    verdicts = {"base": "a base, checked through others"}
    lines = []
    for entry in result["recipes"]:
        name = "".join(c if c.isprintable() else "\ufffd" for c in entry["name"])  # that of a file
        lines.append(f"{name}: {'invalid' if entry['error'] else verdicts.get(entry['kind'], 'ok')}")
    return "\n".join(lines)


def copy_as_text(result: dict[str, Any]) -> str:
    """Render the result of `vit recipes copy`."""
    return f"{result['path']}: a copy of {result['name']}; use it with --recipe {result['path']}"
