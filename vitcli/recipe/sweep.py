"""Keys with a list of values, one of which a run has to choose (paper, section B.1.1)."""

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

from vitcli.recipe.schema import KEYS, Recipe, takes_list
from vitcli.recipe.toml import flat, nested, toml_value
from vitcli.recipe.validation import FIXED_IN_A_CHOICE, Problem, check

MOST_ARMS = 256
Choice = dict[str, Any]  # a value for each key that lists some


def check_with_choices(
    values: Mapping[str, Any], sources: Mapping[str, str], *, file: str, training: bool
) -> tuple[Recipe | None, list[Problem]]:
    """As `check`, for values of which any may be a list to choose from: every combination must hold."""
    listed = {key: list(value) for key, value in values.items() if is_listed(key, value)}
    if not listed:
        return check(values, sources, file=file, training=training)
    mistakes = list(_of_lists(listed, values, sources, file, training=training))
    kept = {key: items for key, items in listed.items() if items}
    plain = {key: value for key, value in values.items() if key not in listed}
    first = {key: items[0] for key, items in kept.items()}
    checked: dict[str, list[Any]] = {}
    for key, items in kept.items():
        for place, item in enumerate(items, 1):
            found = check({**plain, **first, key: item}, sources, file=file, training=training)
            mistakes += [_about_item(mistake, key, place, items) for mistake in found[1]]
            if found[0]:
                checked.setdefault(key, []).append(flat(found[0])[key])
    for values_of_one in product(*kept.values()) if not mistakes else ():
        combination = dict(zip(kept, values_of_one, strict=True))
        mistakes += check(plain | combination, sources, file=file, training=training)[1]
    mistakes = list(dict.fromkeys(mistakes))
    if mistakes:
        return None, mistakes
    recipe, _ = check(plain | first, sources, file=file, training=training)
    return recipe.with_choices({key: tuple(items) for key, items in checked.items() if len(items) > 1}), []


def trials(recipe: Recipe) -> list[tuple[Choice, Recipe]]:
    """Every combination of the listed values, in the order of the lists, and the recipe that has it alone."""
    names, lists = recipe.choices.keys(), recipe.choices.values()
    combinations = [dict(zip(names, values, strict=True)) for values in product(*lists)]
    return [(choice, settled(recipe, choice)) for choice in combinations]


def settled(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """The recipe with other values at some keys, and nothing left to choose; the values must be valid."""
    return Recipe.model_validate(nested({**flat(recipe.with_choices({})), **changes}))


def is_listed(key: str, value: Any) -> bool:
    """Whether this is a list at a key that takes one value, so that there is something to choose."""
    return isinstance(value, list | tuple) and key in KEYS and not takes_list(key)


def may_be_chosen(key: str) -> bool:
    """Whether a recipe may list values of the key to choose from."""
    return not takes_list(key) and key not in FIXED_IN_A_CHOICE


def _of_lists(
    listed: Mapping[str, list[Any]],
    values: Mapping[str, Any],
    sources: Mapping[str, str],
    file: str,
    *,
    training: bool,
) -> Iterable[Problem]:
    count = 1
    for key, items in listed.items():
        source = sources.get(key, file)
        count *= len(items) or 1
        if not items:
            yield Problem(f"{key} is [], out of its range", source, "it must have at least 1 item")
        if any(items.count(item) > 1 for item in items):
            yield Problem(f"{key} names a value twice: {toml_value(items)}", source, "name each value once")
        if key in FIXED_IN_A_CHOICE:
            yield Problem(f"{key} cannot be chosen: it is {FIXED_IN_A_CHOICE[key]}", source, "give one value")
        elif training and len(items) > 1 and not values.get("data.dev_fraction"):
            fix = "set data.dev_fraction above 0, or give one value"
            yield Problem(f"{key} lists values to choose from without a dev split", source, fix)
    if count > MOST_ARMS:
        where = " and ".join(dict.fromkeys(sources.get(key, file) for key in listed))
        yield Problem(f"{count} combinations to choose from", where, f"list fewer: at most {MOST_ARMS}")


def _about_item(mistake: Problem, key: str, place: int, items: list[Any]) -> Problem:
    """A mistake in one of several items says in which."""
    if len(items) == 1 or not mistake.what.startswith(f"{key} is "):
        return mistake
    return Problem(f"{key}, item {place}{mistake.what.removeprefix(key)}", mistake.where, mistake.fix)
