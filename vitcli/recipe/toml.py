"""Recipes and their values as text: the complete TOML of one, and what is typed on a command line."""

import json
import re
import tomllib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from vitcli.recipe.schema import KEYS, SECTIONS, Recipe, is_text

NO_REMARKS: Mapping[str, str] = MappingProxyType({})


def to_toml(recipe: Recipe) -> str:
    """The complete recipe in the schema's order, unset keys left out; loading it gives the same recipe."""
    return toml_text(flat(recipe))


def toml_text(values: Mapping[str, Any], remarks: Mapping[str, str] = NO_REMARKS) -> str:
    """TOML of values by dotted key, in the schema's order, None left out.

    Args:
        remarks: by dotted key, a comment to set behind the value, aligned.
    """
    lines = {
        name: f"{name.partition('.')[2]} = {toml_value(values[name])}"
        for name in KEYS
        if values.get(name) is not None
    }
    width = max(map(len, lines.values()), default=0)
    text = []
    for section in SECTIONS:
        mine = [name for name in lines if name.partition(".")[0] == section]
        text += ["", f"[{section}]"] if mine else []
        text += [f"{lines[n]:<{width}}  # {remarks[n]}" if n in remarks else lines[n] for n in mine]
    return "\n".join(text[1:]) + "\n"


def differences(a: Recipe, b: Recipe) -> list[str]:
    """Keys in which two recipes differ, as "optimizer.lr: 0.01 against 0.03"."""
    left, right = flat(a), flat(b)
    return [
        f"{name}: {toml_value(left.get(name))} against {toml_value(right.get(name))}"
        for name in KEYS
        if left.get(name) != right.get(name)
    ]


def flat(recipe: Recipe) -> dict[str, Any]:
    """Every value by dotted key, in the schema's order; sections that are not there are left out.

    A key that lists values to choose from has all of them.
    """
    sections = {section: getattr(recipe, section) for section in SECTIONS}
    present = {section: keys for section, keys in sections.items() if keys is not None}
    values = {f"{section}.{name}": value for section, keys in present.items() for name, value in keys}
    return values | recipe.choices


def toml_value(value: Any) -> str:
    """A value as TOML writes it; None, which TOML lacks, as none."""
    match value:
        case None:
            return "none"
        case list() | tuple():
            return f"[{', '.join(map(toml_value, value))}]"
        case str() | bool():  # a JSON string is a TOML string but for the delete character
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case _:
            return str(value)


def typed_value(name: str, text: str) -> Any:
    """The value that `text` on a command line means for a key: TOML, 384x512 for a size, or bare words."""
    if name == "data.image_size" and (sides := re.fullmatch(r"(\d+)[xX](\d+)", text)):
        return [int(side) for side in sides.groups()]
    for candidate in (text, f"[{text}]") if "," in text else (text,):
        try:
            table = tomllib.loads(f"value = {candidate}")
        except tomllib.TOMLDecodeError:
            continue
        if set(table) == {"value"} and (isinstance(table["value"], str) or not is_text(name)):
            return table["value"]
    return text
