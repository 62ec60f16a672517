"""What must hold between the keys of a study, whatever each of them is by itself."""

import re
from collections.abc import Iterator
from typing import Any

# the recipe keys that a list of the grid sets, one value for each run
SETS = {
    "num_examples": ("data.num_examples",),
    "epochs": ("schedule.epochs", "schedule.steps"),
    "steps": ("schedule.epochs", "schedule.steps"),
    "seeds": ("train.seed",),
}
OF_THE_SCORING = ("model.ckpt", "data.dataset", "fewshot.shots")
NEEDED = {"fewshot": ("dataset", "shots"), "finetune": ("dataset",), "eval": ()}
NOT_TAKEN = {"fewshot": (), "finetune": ("shots",), "eval": ("dataset", "recipe", "shots", "set")}


def network_key(command: str) -> str:
    """The recipe key that grid.models sets."""
    return {"pretrain": "model.name", "finetune": "model.ckpt"}[command]


def contradictions(study: Any) -> Iterator[tuple[str, str, str]]:
    """Everything that does not hold in a checked `Study`: where, what is wrong, what works."""
    grid = study.grid
    if bool(grid.models) == bool(study.variants):
        what = "names its networks twice" if grid.models else "names no network"
        yield "grid.models", f"the study {what}", "give either grid.models or [[variants]]"
    for place, part in {"grid": grid, **{f"variant {one.name}": one for one in study.variants}}.items():
        if part.epochs and part.steps:
            yield place, "epochs and steps are both given", "give one of them"
        for name, values in part:
            if isinstance(values, tuple) and len(set(values)) < len(values):
                yield f"{place}, {name}", f"{name} names a value twice: {list(values)}", "name each once"
    yield from _names(study)
    yield from _set_twice(study)
    yield from _scoring(study.score)


def slug(name: str) -> str:
    """A name as a part of a folder's."""
    return re.sub(r"[^\w.]+", "-", name).strip("-.") or "-"


def _names(study: Any) -> Iterator[tuple[str, str, str]]:
    seen: dict[str, str] = {}
    for name in [one.name for one in study.variants] or study.grid.models or ():
        if slug(name).lower() in seen:
            other = seen[slug(name).lower()]
            yield "variants", f"{name!r} and {other!r} would share a folder", "give them names of their own"
        seen[slug(name).lower()] = name
    if not study.recipe:
        for one in study.variants:
            if not one.recipe:
                yield f"variant {one.name}", "there is no recipe for it", "name one, here or for the study"
        if study.grid.models:
            yield "recipe", "there is no recipe to train by", "name one: recipe = 'pretrain/demo'"


def _set_twice(study: Any) -> Iterator[tuple[str, str, str]]:
    by_grid = {name for name in SETS if getattr(study.grid, name)}
    by_grid |= {name for one in study.variants for name in SETS if getattr(one, name, None)}
    taken = {key: name for name in by_grid for key in SETS[name]}
    if study.grid.models:
        taken[network_key(study.command)] = "models"
    tables = {"set": study.set, **{f"variant {one.name}, set": one.set for one in study.variants}}
    for place, keys in tables.items():
        for key in keys:
            if key in taken:
                yield place, f"{key} is set here and by the grid's {taken[key]}", "leave one of the two out"


def _scoring(score: Any) -> Iterator[tuple[str, str, str]]:
    for name in NEEDED[score.by]:
        if not getattr(score, name):
            yield "score", f"score.{name} is missing", f'score.by = "{score.by}" needs it'
    for name in NOT_TAKEN[score.by]:
        if getattr(score, name):
            yield "score", f"score.{name} means nothing to score.by = {score.by!r}", "leave it out"
    for key in score.set:
        if key in OF_THE_SCORING:
            yield "score.set", f"{key} is what the study sets for each run", "leave it out"
