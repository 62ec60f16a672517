"""Removal of local paths and secrets from what is published or logged: data and weights are shown by name."""

import json
import re
from pathlib import PurePath
from typing import Any

from vitcli.io.credentials import PASSWORD

PATHS = (".", "/", "~", "file:/")  # prefixes of local paths; all else is a name or a public address
TOML_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')  # as `recipe.toml` writes strings: in JSON
QUERY = re.compile(r"(?<=\w)\?\S*$")  # of a web address, where signatures and tokens are


def is_local(name: str) -> bool:
    """Return whether a data set or checkpoint is named by a path, which means nothing on another machine."""
    return name.startswith(PATHS)


def public_name(name: str) -> str:
    """Return the last part of a path, an address without password and query, or any other name unchanged."""
    if is_local(name):
        return PurePath(name).name or "local"
    name = PASSWORD.sub("", name)
    return QUERY.sub("", name) if name.startswith("http") else name


def public_toml(text: str) -> str:
    """Replace the paths in a recipe, as `recipe.to_toml` writes it, by public names."""

    def public(match: re.Match) -> str:
        return json.dumps(public_name(json.loads(match[0])), ensure_ascii=False)

    return TOML_STRING.sub(public, text)


def public_values(value: Any) -> Any:
    """Replace the paths in a JSON value by public names."""
    match value:
        case str():
            return public_name(value)
        case list():
            return [public_values(entry) for entry in value]
        case dict():
            return {key: public_values(entry) for key, entry in value.items()}
    return value


def without_secrets(argument: str) -> str:
    """Mask tokens and passwords in an argument of the command line."""
    argument = re.sub(r"hf_[A-Za-z0-9]{8,}", "hf_***", argument)
    argument = PASSWORD.sub("***@", argument)
    argument = re.sub(r"(\w://[^\s?]*)\?\S+", r"\1?***", argument)
    return re.sub(r"(?i)((?:token|key|secret|password)=)[^&\s]+", r"\1***", argument)
