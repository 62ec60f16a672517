"""Sweeps: keys that list several values, of which the best on the dev split is chosen (paper, B.1.1)."""

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import product
from math import prod
from typing import Any

from vitcli.recipe.schema import KEYS, Recipe, takes_list
from vitcli.recipe.toml import flat, nested, toml_value
from vitcli.recipe.validation import FIXED_IN_A_CHOICE, MOST_MISTAKES, Problem, check

MOST_TRIALS = 256
Choice = dict[str, Any]  # one value for each key that lists several


def check_with_choices(
    values: Mapping[str, Any], sources: Mapping[str, str], *, file: str, training: bool
) -> tuple[Recipe | None, list[Problem]]:
    """Check values as `check` does, where any may be a list; every combination must be valid."""
    check_one = partial(check, sources=sources, file=file, training=training)
    lists = {key: list(value) for key, value in values.items() if is_listed(key, value)}
    if not lists:
        return check_one(values)
    if too_many := _too_many(lists, sources, file=file):  # also to be looked at one by one
        return None, [too_many]
    problems = list(_list_problems(lists, values, sources, file=file, training=training))
    lists = {key: items for key, items in lists.items() if items}
    first = {key: value for key, value in values.items() if not is_listed(key, value)}
    first |= {key: items[0] for key, items in lists.items()}
    # Each item alone, with the first of all other lists, so that a message can name it ...
    checked: dict[str, list[Any]] = {}
    for key, items in lists.items():
        for number, item in enumerate(items, 1):
            if len(problems) > MOST_MISTAKES:  # more would not be named, and may take minutes
                return None, problems
            recipe, item_problems = check_one(first | {key: item})
            problems += [_about_item(problem, key, number, items) for problem in item_problems]
            if recipe:
                checked.setdefault(key, []).append(flat(recipe)[key])
    # Addresses that differ in their credentials alone, which no recipe holds, would be one value.
    for key, values_of_key in checked.items():
        if not problems and len(set(values_of_key)) < len(values_of_key):
            what = f"{key} names addresses that differ only behind their ?, or in their passwords"
            problems.append(Problem(what, sources.get(key, file), "download the files, and name their paths"))
    # ... then the items together.
    for combination in product(*lists.values()) if not problems else ():
        problems += check_one(first | dict(zip(lists, combination, strict=True)))[1]
    recipe, _ = check_one(first)
    if problems or recipe is None:
        return None, list(dict.fromkeys(problems))
    return recipe.with_choices({key: tuple(items) for key, items in checked.items() if len(items) > 1}), []


def trials(recipe: Recipe) -> list[tuple[Choice, Recipe]]:
    """Return every combination of the listed values, in the order of the lists, with its recipe."""
    choices = [dict(zip(recipe.choices, values, strict=True)) for values in product(*recipe.choices.values())]
    return [(choice, settled(recipe, choice)) for choice in choices]


def settled(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """Return the recipe with other, valid values at some keys and nothing left to choose."""
    changed = Recipe.model_validate(nested({**flat(recipe.with_choices({})), **changes}))
    return changed.with_name(recipe.name).with_notes(*recipe.notes)


def is_listed(key: str, value: Any) -> bool:
    """Return whether a value is a list at a key that takes one value: a list to choose from."""
    return isinstance(value, list | tuple) and key in KEYS and not takes_list(key)


def may_be_chosen(key: str) -> bool:
    """Return whether a recipe may list several values of the key to choose from."""
    return not takes_list(key) and key not in FIXED_IN_A_CHOICE


def _list_problems(
    lists: dict[str, list[Any]], values: Mapping, sources: Mapping[str, str], *, file: str, training: bool
) -> Iterable[Problem]:
    for key, items in lists.items():
        source = sources.get(key, file)
        if not items:
            yield Problem(f"{key} is [], out of its range", source, "it must have at least 1 item")
        if any(items.count(item) > 1 for item in items):
            yield Problem(f"{key} names a value twice: {toml_value(items)}", source, "name each value once")
        if key in FIXED_IN_A_CHOICE:
            yield Problem(f"{key} cannot be chosen: it is {FIXED_IN_A_CHOICE[key]}", source, "give one value")
        elif training and len(items) > 1 and not values.get("data.dev_fraction"):
            fix = "set data.dev_fraction above 0, or give one value"
            yield Problem(f"{key} lists values to choose from without a dev split", source, fix)


def _too_many(lists: dict[str, list[Any]], sources: Mapping[str, str], *, file: str) -> Problem | None:
    count = prod(len(items) or 1 for items in lists.values())
    if count <= MOST_TRIALS:
        return None
    where = " and ".join(dict.fromkeys(sources.get(key, file) for key in lists))
    return Problem(f"{count} combinations to choose from", where, f"list fewer: at most {MOST_TRIALS}")


def _about_item(problem: Problem, key: str, number: int, items: list[Any]) -> Problem:
    """Name the item that a problem is about, if there are several."""
    if len(items) == 1 or not problem.what.startswith(f"{key} is "):
        return problem
    return Problem(f"{key}, item {number}{problem.what.removeprefix(key)}", problem.where, problem.fix)
