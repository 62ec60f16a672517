"""`--assert "top1>=0.92"`: what must hold of a result, read before any work and tried after it."""

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vitcli.errors import CheckFailed, VitError, nearest

RELATIONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True)
class Assertion:
    """One thing that must hold: a key of the result, a relation, and a number."""

    key: str
    relation: str
    bound: float

    def __str__(self) -> str:
        return f"{self.key}{self.relation}{self.bound!r}"

    def holds(self, result: dict[str, Any]) -> bool:
        """Whether it holds of a result; a key without a value (null) fulfils nothing."""
        value = result[self.key]
        return value is not None and RELATIONS[self.relation](value, self.bound)


def parse(texts: Sequence[str], *, keys: Sequence[str]) -> tuple[Assertion, ...]:
    """The assertions that texts such as "top1>=0.92" make.

    Args:
        keys: of the numbers that the result will have.

    Raises:
        VitError: a text is no assertion, or about a number that there will not be.
    """
    return tuple(_parsed(text, keys) for text in texts)


def _parsed(text: str, keys: Sequence[str]) -> Assertion:
    parts = re.fullmatch(r"\s*(\w+)\s*(>=|<=|==|>|<)\s*([^\s=<>]+)\s*", text)
    where = f"--assert {text!r}"
    if parts is None:
        raise VitError(
            f"{text!r} asserts nothing",
            where=where,
            fix="a key of the JSON, one of >= > <= < ==, and a number: --assert 'top1>=0.92', in quotes",
        )
    key, relation, number = parts.groups()
    if key not in keys:
        raise VitError(
            f"the result has no number {key!r}{nearest(key, keys)}",
            where=where,
            fix=f"one of {', '.join(keys)}" + ("" if "real_top1" in keys else "; with --real also real_top1"),
        )
    try:
        bound = float(number)
    except ValueError:
        bound = math.nan
    if not math.isfinite(bound):
        raise VitError(
            f"{number!r} is not a number to compare with",
            where=where,
            fix="write accuracies as fractions: 0.92 for 92 %",
        )
    return Assertion(key, relation, bound)


def failed(
    assertions: Sequence[Assertion], results: Sequence[tuple[str, dict[str, Any]]]
) -> CheckFailed | None:
    """The error to end with if something does not hold; None if all of it does.

    Args:
        results: each with the words that tell it from the others.
    """
    broken = [
        (assertion, name, result)
        for assertion in assertions
        for name, result in results
        if not assertion.holds(result)
    ]
    if not broken:
        return None
    first, name, result = broken[0]
    more = f", and {len(broken) - 1} more did not hold" if len(broken) > 1 else ""
    return CheckFailed(
        f"{first.key} is {_shown(result[first.key])}, so {first} does not hold{more}",
        where=f"--assert {str(first)!r}, {name}",
        fix="the result itself is good and stands above; use better weights, or assert what they reach",
    )


def _shown(value: float | None) -> str:
    return "null" if value is None else repr(value)
