"""`--assert "top1>=0.92"`: conditions on a result, parsed before any work and checked after it."""

import json
import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vitcli.data.task import Task
from vitcli.errors import CheckFailed, VitError, nearest
from vitcli.output.scores import ERRORS, OF_CLASSES, OF_MULTILABEL, SHOWN, keys_of
from vitcli.output.summaries import PERCENT

RELATIONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}

# Scores by what they are of, with other numbers of a result; of calibration, where the weights store it.
OF_CALIBRATION = ("coverage", "mean_set_size", "ece_at_temperature", "nll_at_temperature")
ALWAYS = (*keys_of("all"), "num_eval_examples", "num_skipped_images", "images_per_s", "elapsed_s")
OF_LABELS = (*keys_of("labels"), "nll")
NUMBERS = (*OF_LABELS, *ALWAYS, *OF_MULTILABEL, *OF_CLASSES, *OF_CALIBRATION)
OF_NUMBERS = (*ERRORS, "mae_of_mean")
OF_REAL = (*keys_of("real"), "num_real_examples")
# The keys of each kind of labels, besides ALWAYS, and what a result of it is of
KINDS = {
    Task.NUMBER: (OF_NUMBERS, "these weights predict a number and no classes"),
    Task.ONE_CLASS: (
        (*OF_LABELS, *OF_CLASSES, *OF_CALIBRATION, *OF_REAL), "each image has one label, the name of a class"
    ),
    Task.MULTILABEL: ((*OF_LABELS, *OF_MULTILABEL, *OF_REAL), "these images have several labels each"),
}  # fmt: skip
FRACTIONS = {"coverage", "ece_at_temperature", *OF_CLASSES,
             *(key for key, shown in SHOWN.items() if shown.form == PERCENT)}  # fmt: skip


@dataclass(frozen=True)
class Assertion:
    """A condition on a result: a key, a relation and a number."""

    key: str
    relation: str
    bound: float

    def __str__(self) -> str:
        return f"{self.key}{self.relation}{self.bound!r}"

    def holds(self, result: dict[str, Any]) -> bool:
        """Return whether the condition holds for a result; a null or missing value never holds."""
        value = result.get(self.key)
        return value is not None and RELATIONS[self.relation](value, self.bound)

    def outcome(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return the entry of the result's "assertions"."""
        return {"assertion": str(self), "value": result.get(self.key), "holds": self.holds(result)}


def parse(text: str, *, keys: Sequence[str]) -> Assertion:
    """Parse a text such as "top1>=0.92".

    Args:
        keys: numbers that the result will have.

    Raises:
        VitError: the text is not an assertion, or its key is not one of `keys`.
    """
    where = f"--assert {text!r}"
    # A key, a relation and a number.
    parts = re.fullmatch(r"\s*(\w+)\s*(>=|<=|==|>|<)\s*([^\s=<>]+)\s*", text)
    if parts is None:
        raise VitError(
            f"{text!r} is not an assertion",
            where=where,
            fix="a key of the JSON, one of >= > <= < ==, and a number: --assert 'top1>=0.92', in quotes",
        )
    key, relation, number = parts.groups()
    # The result will have the key.
    if key not in keys:
        raise VitError(
            f"the result has no number {key!r}{nearest(key, keys)}", where=where, fix=_choices(keys)
        )
    # No relation to NaN ever holds, and every number is less than infinity.
    try:
        bound = float(number.removesuffix("%"))
    except ValueError:
        bound = math.nan
    if not math.isfinite(bound):
        raise VitError(
            f"{number!r} is not a finite number",
            where=where,
            fix="write accuracies as fractions: 0.92 for 92 %",
        )
    # A bound in percent would hold never, or always.
    is_percent = number.endswith("%")
    if is_percent or (key in FRACTIONS and not 0 <= bound <= 1):
        meant = f"{key}{relation}{bound / 100:g}" if is_percent or 1 < bound <= 100 else f"{key}{relation}0.9"
        raise VitError(
            f"{key} is a fraction: {meant}?", where=where, fix="write a bound from 0 to 1: 0.92 for 92 %"
        )
    return Assertion(key, relation, bound)


def _choices(keys: Sequence[str]) -> str:
    """Return the keys with what a result of some has them, before anything is read."""
    groups = {
        "multilabel also": OF_MULTILABEL,
        "of numbers": OF_NUMBERS,
        "with stored prediction sets": OF_CALIBRATION,
    }
    some = {key for group in groups.values() for key in group}
    parts = [f"one of {', '.join(key for key in keys if key not in some)}"]
    parts += [f"{when} {', '.join(group)}" for when, group in groups.items() if {*group} <= {*keys}]
    return "; ".join(parts + ([] if "real_top1" in keys else ["with --real also real_top1"]))


def check_apply(asserted: Sequence[Assertion], task: Task) -> None:
    """Refuse, before any pass, a key that the result of labels of this kind has not.

    Raises:
        VitError: it has none of that name.
    """
    apply, what = KINDS[task]
    for assertion in asserted:
        if assertion.key not in (*apply, *ALWAYS):
            raise VitError(
                f"{what}, so the result has no {assertion.key}",
                where=f"--assert {str(assertion)!r}",
                fix=f"one of {', '.join(key for key in apply if key not in OF_REAL)}",
            )


def failed(
    assertions: Sequence[Assertion], results: Sequence[tuple[str, dict[str, Any]]]
) -> CheckFailed | None:
    """Return the error to raise if an assertion does not hold; None if all hold."""
    broken = [
        (assertion, name, result)
        for assertion in assertions
        for name, result in results
        if not assertion.holds(result)
    ]
    if not broken:
        return None
    first, name, result = broken[0]
    more = f"; {len(broken) - 1} more do not hold" if len(broken) > 1 else ""
    of_images = first.key.startswith("num_")
    other = "score other images" if of_images else "use better weights"
    if first.key in OF_CALIBRATION and result.get(first.key) is None:
        other = "use weights that `vit finetune` has stored prediction sets with"
    return CheckFailed(
        f"{first.key} is {json.dumps(result.get(first.key))}, so {first} does not hold{more}",
        where=f"--assert {str(first)!r}, {name}",
        fix=f"the evaluation is complete, see above; {other}, or assert a value that they reach",
    )
