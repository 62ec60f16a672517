"""`vit recipes`: what recipes there are, what is in them and whether they hold. Never imports torch."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitcli import recipe
from vitcli.errors import MachineError, VitError


def list_recipes() -> list[dict[str, Any]]:
    """Every shipped recipe: name, whether it is only a base for others, and its first line."""
    return [
        {"name": name, "base": recipe.is_base(name), "about": about} for name, about in recipe.available()
    ]


def show(name: str, overrides: Sequence[str] = (), origin: bool = True) -> dict[str, Any]:
    """The resolved recipe by dotted key, where each value comes from, and its TOML with that as comments.

    A base is shown as far as it goes; anything else must be whole.
    """
    if not (recipe.is_base(name) and not overrides):
        recipe.load(name, overrides, training=False)
    draft = recipe.merge(name, overrides)
    origins = recipe.origins(name, overrides)
    values = recipe.resolved_values(draft)
    remarks = {key: f"from {source}" for key, source in origins.items()} if origin else {}
    return {"name": name, "values": values, "origins": origins, "toml": recipe.toml_text(values, remarks)}
