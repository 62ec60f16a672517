"""`vit skill`, and the pages of docs/reference: what the commands take and print, from their own help."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import typer
from typer.core import TyperGroup

from vitcli.cli import help as pages
from vitcli.cli.help import MANAGE
from vitcli.cli.options import command
from vitcli.errors import EXIT_CODES
from vitcli.output import text

app = typer.Typer()
RECIPES_OF_USE = Path(__file__).with_name("skill.md")
EVERYWHERE = ("--json", "--quiet, -q", "--debug", "--help, -h")  # said once


@command(app, panel=MANAGE, example="vit skill > SKILL.md")
def skill() -> int:
    """Print one Markdown file from which an agent or a script can use vit.

    Commands with all options, exit codes, JSON keys, and ten recipes of use.
    """
    text.write(skill_file())
    return 0


def skill_file() -> str:
    """Return the file of `vit skill`."""
    parts = {"exit_codes": exit_codes(), "json_keys": json_keys(level=3), "commands": commands(level=3)}
    page = RECIPES_OF_USE.read_text(encoding="utf-8")
    return re.sub(r"\{\{ (\w+) \}\}", lambda match: parts[match[1]].rstrip("\n"), page)


def commands(*, level: int) -> str:
    """Return every command with its purpose, examples and options, as Markdown below headings of a level."""
    from vitcli.cli.app import app as whole

    root = typer.main.get_command(whole)
    sections = [_command(name, command, ctx, level) for name, command, ctx in _walk(root)]
    everywhere = ", ".join(f"`{name}`" for name in EVERYWHERE)
    return f"Every command also takes {everywhere}.\n\n" + "\n".join(sections)


def _walk(root: TyperGroup) -> Iterator[tuple[str, Any, typer.Context]]:
    """Yield every command with its name and context, those of a group after it."""
    context = typer.Context(root, info_name="vit")
    for name in root.list_commands(context):
        found = root.get_command(context, name)
        ctx = typer.Context(found, info_name=name, parent=context)
        if not isinstance(found, TyperGroup) or found.invoke_without_command:
            yield f"vit {name}", found, ctx
        if isinstance(found, TyperGroup):
            for inner in found.list_commands(ctx):
                below = found.get_command(ctx, inner)
                yield f"vit {name} {inner}", below, typer.Context(below, info_name=inner, parent=ctx)


def _command(name: str, found: Any, ctx: typer.Context, level: int) -> str:
    purpose = (found.help or "").replace("\\[", "[")
    examples = [line for line in (found.epilog or "").split("\n") if line.startswith("vit ")]
    lines = [f"{'#' * level} {name}", "", purpose, "", "```text", f"{name} {pages.usage(found, ctx)}", "```"]
    if examples:
        lines += ["", "```", *examples, "```"]
    for panel, rows in pages.options_by_panel(found, ctx).items():
        rows = [f"- `{typed}`: {does}" for typed, does in rows if typed not in EVERYWHERE]
        lines += ["", f"{panel}:", "", *rows] if rows else []
    return "\n".join([*lines, ""])


def exit_codes() -> str:
    """Return the exit codes as a Markdown table."""
    meanings = {
        0: "Done.",
        **{code: (kind.__doc__ or "").split("\n")[0] for kind, code in EXIT_CODES.items()},
    }
    meanings |= {130: "Stopped by Ctrl-C; a run has saved a checkpoint.", 143: "The same by SIGTERM."}
    rows = [f"| {code} | {meaning} |" for code, meaning in meanings.items()]
    return "\n".join(["| exit code | meaning |", "|---|---|", *rows, ""])


def json_keys(*, level: int) -> str:
    """Return the keys of the results that `vit report` reads too, as Markdown."""
    from vitcli.output import summaries

    results = {
        "vit finetune, vit pretrain, vit distill": summaries.TrainingSummary,
        "vit evaluate": summaries.Evaluation,
        "vit fewshot": summaries.FewshotSummary,
    }
    lines = []
    for names, model in results.items():
        schema, labels = model.model_json_schema(), _labels(model)
        known = [
            f"- `{name}`: {_kind(of)}{labels.get(name, '')}" for name, of in schema["properties"].items()
        ]
        others = ", ".join(f"`{name}`" for name in sorted(model.UNREAD))
        lines += [f"{'#' * level} JSON of {names}", "", *sorted(known), f"- also: {others}", ""]
    return "\n".join(lines)


def _labels(model: Any) -> dict[str, str]:
    """Return how scores are called on screens, in brackets."""
    from vitcli.output.summaries import ScoreFormat

    formats = [(name, each) for name, field in model.model_fields.items() for each in field.metadata]
    return {name: f" ({each.label})" for name, each in formats if isinstance(each, ScoreFormat)}


def _kind(schema: dict[str, Any]) -> str:
    """Return the type of a value in words; a number between 0 and 1 is a fraction."""
    if "anyOf" in schema:
        return " or ".join(map(_kind, schema["anyOf"]))
    if "$ref" in schema:
        return "object"
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}" if schema.get("items") else "list"
    if schema.get("maximum") == 1:
        return "fraction"
    values = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    return " or ".join(f'"{value}"' for value in values) or schema.get("type", "any")


def recipe_keys() -> str:
    """Return the keys of a recipe with types, defaults and meanings, as Markdown."""
    from vitcli.recipe.schema import Recipe

    lines = []
    for section, field in Recipe.model_fields.items():
        (model,) = [
            kind for kind in (field.annotation, *get_args(field.annotation)) if hasattr(kind, "model_fields")
        ]
        lines += [f"## {section}", "", (model.__doc__ or "").split("\n")[0], ""]
        for name, key in model.model_fields.items():
            default = "required" if key.is_required() else f"default: `{_as_typed(key.default)}`"
            lines.append(f"- `{section}.{name}` ({default}): {key.description}")
        lines.append("")
    return "\n".join(lines)


def _as_typed(value: Any) -> str:
    """Return a value as `--set` takes it, "none" for what is unset."""
    if value is None or isinstance(value, str):
        return value or "none"
    return json.dumps(value)
