"""A recipe as a closed, typed schema; its sections are in `recipe_sections`."""

from functools import cache
from typing import Annotated, Any, get_args

from pydantic import PrivateAttr, TypeAdapter

from vitcli.recipe.sections import (
    Data,
    Eval,
    Fewshot,
    Inspect,
    Model,
    Objective,
    Optimizer,
    Precision,
    Schedule,
    Section,
    Train,
)


class Recipe(Section):
    """A recipe of `vit`. Evaluation does without the sections objective, optimizer, schedule and train.

    Only `vit fewshot` needs the section fewshot, only `vit inspect` the section inspect.
    """

    model: Model = Model()
    data: Data
    objective: Objective | None = None
    optimizer: Optimizer | None = None
    schedule: Schedule | None = None
    train: Train | None = None
    eval: Eval
    fewshot: Fewshot | None = None
    inspect: Inspect | None = None
    precision: Precision = Precision()
    _choices: dict[str, tuple[Any, ...]] = PrivateAttr(default_factory=dict)

    @property
    def choices(self) -> dict[str, tuple[Any, ...]]:
        """By dotted key, the values that a run chooses from on the dev split; the section has the first."""
        return self._choices

    def with_choices(self, choices: dict[str, tuple[Any, ...]]) -> "Recipe":
        """The same recipe with these and no other values to choose from."""
        changed = self.model_copy()
        changed._choices = choices
        return changed


SECTIONS: dict[str, type[Section]] = {
    "model": Model,
    "data": Data,
    "objective": Objective,
    "optimizer": Optimizer,
    "schedule": Schedule,
    "train": Train,
    "eval": Eval,
    "fewshot": Fewshot,
    "inspect": Inspect,
    "precision": Precision,
}
TRAINING_SECTIONS = ("objective", "optimizer", "schedule", "train")
OPTIONAL_SECTIONS = (*TRAINING_SECTIONS, "fewshot", "inspect")
KEYS = {
    f"{name}.{field}": info for name, kind in SECTIONS.items() for field, info in kind.model_fields.items()
}


def accepts_none(key: str) -> bool:
    return key in KEYS and type(None) in get_args(KEYS[key].annotation)


@cache
def takes_list(key: str) -> bool:
    """Whether one value of the key may be a list, such as [height, width]; else a list is a choice."""
    schema = TypeAdapter(Annotated[KEYS[key].annotation, KEYS[key]]).json_schema()
    return any(
        one.get("type") == "array" for one in (schema, *schema.get("anyOf", ()), *schema.get("oneOf", ()))
    )


def is_text(key: str) -> bool:
    """Whether any text is a value of the key, so that 2012 or true on the command line stay text."""
    return KEYS[key].annotation in (str, str | None)
