"""A recipe as a command line names it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitcli.io.credentials import without_credentials
from vitcli.recipe import Recipe, catalog, load


@dataclass(frozen=True)
class RecipeRequest:
    """A recipe and the changes to it that a command line asks for; for commands that do not train.

    Attributes:
        name: a shipped recipe or the path of a .toml file; None for the command's default.
        overrides: "section.key=value", as given to --set.
        shorthands: values of options by recipe key; None where the option is not given.
    """

    name: str | None = None
    overrides: Sequence[str] = ()
    shorthands: Mapping[str, Any] = field(default_factory=dict)

    def load(self, default: str = "evaluate/default", *, command: str | None = None) -> Recipe:
        """Load the named recipe, or `default`; see `recipe.load` for `command`.

        Raises:
            VitError: every mistake of the files and options, in one report.
        """
        return load(self.name or default, self.overrides, self.shorthands, training=False, command=command)

    @property
    def given(self) -> dict[str, Any]:
        """Values given on the command line by recipe key, and --recipe: the same request, the same values."""
        values = {"--recipe": self.name} | dict(self.shorthands)
        values = {key: value for key, value in values.items() if value is not None}
        pairs = (override.partition("=") for override in self.overrides)
        values |= {key.strip(): value.strip() for key, _, value in pairs}
        values.pop("eval.batch_size", None)  # no result depends on it
        for key, value in values.items():
            values[key] = without_credentials(value) if isinstance(value, str) else value
        return catalog.with_tidy_paths(values)
