"""Kinds of values that the keys of a recipe take: numbers in a range, and one or several of them."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, StringConstraints, Tag

Count = Annotated[int, Field(gt=0)]
CountOrZero = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
PositiveOrZero = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
PartOrZero = Annotated[float, Field(ge=0, le=1)]
PartOfOne = Annotated[float, Field(gt=0, le=1)]
Percent = Annotated[str, StringConstraints(pattern=r"^(100|\d{1,2}(\.\d+)?)%$")]
PerChannel = Annotated[tuple[float, float, float], Field(strict=False)]  # not strict: TOML has lists only


def _is_list(value: Any) -> str:
    return "list" if isinstance(value, list | tuple) else "one"


def _is_text(value: Any) -> str:
    return "list" if isinstance(value, str) else "one"


# the discriminators choose one branch, so that a mistake is reported once and not for each branch
SideOrHeightWidth = Annotated[
    Annotated[Count, Tag("one")] | Annotated[tuple[Count, Count], Field(strict=False), Tag("list")],
    Discriminator(_is_list),
]
StepsOrPercent = Annotated[
    Annotated[CountOrZero, Tag("one")] | Annotated[Percent, Tag("list")], Discriminator(_is_text)
]
Counts = Annotated[
    tuple[Count, ...],
    Field(strict=False, min_length=1),
    BeforeValidator(lambda value: [value] if isinstance(value, int) else value),
]
NumberOrSweep = Annotated[
    Annotated[Positive, Tag("one")] | Annotated[Literal["sweep"], Tag("list")], Discriminator(_is_text)
]
# Of the rows of `vit reproduce`: an accuracy of 1 or less would be a fraction by mistake.
Percent = Annotated[float, Field(gt=1, le=100)]
PercentOrWithStd = Annotated[
    Annotated[Percent, Tag("one")]
    | Annotated[tuple[Percent, Annotated[float, Field(ge=0, le=50)]], Field(strict=False), Tag("list")],
    Discriminator(_is_list),
]
