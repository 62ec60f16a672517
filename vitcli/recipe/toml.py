"""Recipes and other TOML files as text: flatten, compare and write them, and parse single values."""

import errno
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vitcli.io.files import read_regular
from vitcli.recipe.schema import KEYS, Recipe, Section, is_text, table_in

MOST_BYTES = 2**20  # of a file
MOST_DOTS = 100  # in a line: tomllib takes memory by the square of the parts of a key


def read_text(path: Path) -> str:
    """Return the text of a TOML file.

    Raises:
        OSError: it cannot be read.
        ValueError: it has more bytes than any recipe, or is not UTF-8.
    """
    try:
        return read_regular(path, MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not TOML: {error}") from error
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise ValueError(error.strerror) from error
        raise


def parse(text: str) -> dict[str, Any]:
    """Return the tables of TOML, from whomever it is.

    Raises:
        ValueError: it is not TOML, or a line of it could take much memory.
    """
    for number, line in enumerate(text.split("\n"), start=1):
        if (dots := line.count(".")) > MOST_DOTS:
            raise ValueError(f"line {number} has {dots:,} dots, more than {MOST_DOTS}")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of 5,000 digits
        raise ValueError(f"not TOML: {error}") from error


def flat(model: Section) -> dict[str, Any]:
    """Return every value by dotted key, in the schema's order; tables that are absent are left out.

    Tables of a list go by their names. A key of a recipe that lists values to choose from has all of them.
    """
    return {f"{prefix}{name}": value for _, prefix, table in _tables(model) for name, value in table.items()}


def differences(a: Section, b: Section) -> list[str]:
    """Return the keys in which two files differ, as "optimizer.lr: 0.01 against 0.03"."""
    left, right = flat(a), flat(b)
    pairs = {name: (toml_value(left.get(name)), toml_value(right.get(name))) for name in {**left, **right}}
    return [f"{name}: {first} against {second}" for name, (first, second) in pairs.items() if first != second]


def to_toml(model: Section) -> str:
    """Write the complete file in the schema's order, unset keys left out; loading it gives the same model."""
    return _as_text(_tables(model), {})


def toml_text(values: Mapping[str, Any], remarks: Mapping[str, str]) -> str:
    """Write values of a recipe by dotted key, in the schema's order, None left out.

    Args:
        remarks: by dotted key, a comment to set behind the value, aligned.
    """
    in_order = nested({key: values[key] for key in KEYS if key in values})
    return _as_text(((f"[{name}]", f"{name}.", table) for name, table in in_order.items()), remarks)


def nested(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return values by dotted key as one table for each section."""
    tables: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, _, name = key.partition(".")
        tables.setdefault(section, {})[name] = value
    return tables


Table = tuple[str, str, dict[str, Any]]  # its TOML header, the prefix of its dotted keys, its values by name


def _tables(model: Section) -> Iterator[Table]:
    choices = model.choices if isinstance(model, Recipe) else {}
    yield "", "", _own_values(model)
    for name, value in model:
        if isinstance(value, Section):
            values = _own_values(value)
            values = {key: choices.get(f"{name}.{key}", values[key]) for key in values}
            yield f"[{name}]", f"{name}.", values
        elif table_in(type(model).model_fields[name].annotation):
            for table in value or ():
                yield f"[[{name}]]", f"{name}.{table.name}.", _own_values(table)


def _own_values(table: Section) -> dict[str, Any]:
    """Return the values of one table without the tables inside it; keys of `set` count as its own."""
    values: dict[str, Any] = {}
    for name, value in table:
        if isinstance(value, dict):
            values |= {f"{name}.{key}": item for key, item in value.items()}
        elif not table_in(type(table).model_fields[name].annotation):
            values[name] = value
    return values


def _as_text(tables: Iterable[Table], remarks: Mapping[str, str]) -> str:
    lines = [
        (header, [(f"{name} = {toml_value(value)}", remarks.get(f"{prefix}{name}")) for name, value in given])
        for header, prefix, values in tables
        if (given := [(name, value) for name, value in values.items() if value is not None])
    ]
    width = max((len(line) for _, table in lines for line, _ in table), default=0)
    text = []
    for header, table in lines:
        text += ["", header] if header else []
        text += [f"{line:<{width}}  # {remark}" if remark else line for line, remark in table]
    return "\n".join(text).lstrip("\n") + "\n"


def toml_value(value: Any) -> str:
    """Write a value as TOML does; None, which TOML lacks, as none."""
    match value:
        case None:
            return "none"
        case list() | tuple():
            return f"[{', '.join(map(toml_value, value))}]"
        case str() | bool():  # a JSON string is a TOML string but for the delete character
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case _:
            return str(value)


def typed_value(key: str, text: str) -> Any:
    """Parse a value from the command line for a key: TOML, 384x512 for an image size, or bare words."""
    if key == "data.image_size" and (sides := re.fullmatch(r"(\d+)[xX](\d+)", text)):
        return [int(side) for side in sides.groups()]
    # A list may be typed without its brackets, but 96,128 would look like two sizes of an image.
    may_be_list = "," in text and key != "data.image_size"
    for candidate in (text, f"[{text}]") if may_be_list else (text,):
        try:
            table = tomllib.loads(f"value = {candidate}")
        except (ValueError, RecursionError):  # also a number of 5,000 digits
            continue
        if set(table) == {"value"} and (isinstance(table["value"], str) or not is_text(key)):
            return table["value"]
    return text
