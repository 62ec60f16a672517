"""What others may see of a run: data and weights by name, not where they lay on the machine it ran on."""

import json
import re
from pathlib import PurePath
from typing import Any

PATHS = (".", "/", "~", "file:/")  # so they begin; all else is a name, or a place that others can reach
TOML_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')  # as recipe_text writes them: a JSON string


def is_local(place: str) -> bool:
    """Whether a data set or checkpoint is named by a path, which says nothing on another machine."""
    return place.startswith(PATHS)


def public_name(place: str) -> str:
    """A path by its last part, an address without the password in it, any other name as it is."""
    if is_local(place):
        return PurePath(place).name or "local"
    return re.sub(r"(?<=://)[^/@\s]+@", "", place)


def public_toml(text: str) -> str:
    """A recipe as `recipe_text.to_toml` writes it, with public names in the place of paths."""
    return TOML_STRING.sub(
        lambda found: json.dumps(public_name(json.loads(found[0])), ensure_ascii=False), text
    )


def public_values(value: Any) -> Any:
    """A JSON value, with public names in the place of paths."""
    match value:
        case str():
            return public_name(value)
        case list():
            return [public_values(one) for one in value]
        case dict():
            return {key: public_values(one) for key, one in value.items()}
    return value
