"""Schema of a study file: networks, grid and score of the runs; closed, as that of a recipe.

Recipe keys are in tables called `set`: set.optimizer.lr = 0.01.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import Field

from vitcli import recipe
from vitcli.errors import VitError
from vitcli.output.run_folder import slug
from vitcli.recipe.schema import (
    NON_EMPTY,
    Count,
    NonNegativeInt,
    Positive,
    RecipeKeys,
    Section,
    dotted,
    either,
    key,
    one_if,
)
from vitcli.recipe.validation import Problem, report, validate

SEE = "docs/reproduce-and-study.md has every key with its meaning"
ALL = "all"

Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[tuple[Text, ...], NON_EMPTY, one_if(str)]
Counts = Annotated[tuple[Count, ...], NON_EMPTY]
CountsOrAll = Annotated[tuple[Annotated[Count | Literal["all"], either(str, '"all"')], ...], NON_EMPTY]
Seeds = Annotated[tuple[NonNegativeInt, ...], NON_EMPTY]
Durations = Annotated[tuple[Positive, ...], NON_EMPTY]


class Grid(Section):
    """Lists of values, of which every combination is one run; without a list, the recipe's value."""

    models: Texts | None = key("networks as --model takes them; with command finetune, checkpoints", None)
    num_examples: CountsOrAll | None = key("sizes of random subsets of the training images", None)
    epochs: Durations | None = key("durations in passes over the training images", None)
    steps: Counts | None = key("durations in optimizer steps; these or epochs", None)
    seeds: Seeds | None = key("random seeds, also of the subsets; gives mean and std", None)


class StudyVariant(Section):
    """Network of a study, with settings besides its name."""

    name: Text = key("name in tables and figures")
    family: Texts | None = key("points of a family are joined by a line; several: it is in all", None)
    recipe: Text | None = key("recipe of its runs (default: the study's)", None)
    num_examples: CountsOrAll | None = key("replaces the grid's", None)
    epochs: Durations | None = key("replaces the grid's", None)
    steps: Counts | None = key("replaces the grid's", None)
    set: RecipeKeys = key("recipe keys of its runs", {})


class Score(Section):
    """Accuracy by which runs are compared."""

    by: Literal["fewshot", "finetune", "eval"] = key(
        "few-shot on its features, fine-tuning, or top-1 on the run's own held-out images"
    )
    dataset: Texts | None = key("data set to score on; several: their mean", None)
    recipe: Text | None = key("recipe of the scoring (default: the data set's)", None)
    shots: Count | None = key("fewshot: images per class", None)
    set: RecipeKeys = key("recipe keys of the scoring", {})


class Study(Section):
    """Grid of ordinary runs, and an accuracy for each (paper, sections 4.3, 4.4 and D.2)."""

    command: Literal["pretrain", "finetune"] = key("command of every run")
    recipe: Text | None = key("recipe of every run whose variant has none", None)
    grid: Grid = Grid()
    variants: Annotated[tuple[StudyVariant, ...], Field(strict=False)] = ()
    set: RecipeKeys = key("recipe keys of every run", {})
    score: Score


def load(name: str, overrides: Sequence[str] = ()) -> tuple[Study, str]:
    """Read and check a study: a shipped one by name, or a path that ends in .toml.

    Args:
        overrides: "section.key=value" of recipes, laid over the study's own `set`.

    Returns:
        The study, and its file as messages name it.

    Raises:
        VitError: every mistake of file and options, in one report.
    """
    path = recipe.find_file(name, recipe.catalog.studies(), noun="study", where="FILE")
    table, file = recipe.read_toml(path), recipe.label(path)
    # The options lie over the file's own settings.
    mistakes: list[Problem] = []
    options, _ = recipe.parse_options(overrides, {}, mistakes)
    settings = dotted(table.get("set", {}))
    if options and isinstance(settings, dict):
        table["set"] = settings | options
    study, problems = validate(Study, table, noun="a study", see=SEE, file=file)
    mistakes += problems or [
        Problem(problem, f"{file}, {place}", fix) for place, problem, fix in _contradictions(study)
    ]
    if mistakes:
        raise report(mistakes, f"study {name}", see=SEE)
    return study, file


# Recipe key that a list of the grid sets, one value for each run, and keys that must not be set beside it.
SETS = {
    "num_examples": ("data.num_examples",),
    "epochs": ("schedule.epochs", "schedule.steps"),
    "steps": ("schedule.steps", "schedule.epochs"),
    "seeds": ("train.seed",),
}
OF_THE_SCORING = ("model.ckpt", "data.dataset", "fewshot.shots")
NEEDED = {"fewshot": ("dataset", "shots"), "finetune": ("dataset",), "eval": ()}
NOT_TAKEN = {"fewshot": (), "finetune": ("shots",), "eval": ("dataset", "recipe", "shots", "set")}


def network_key(command: str) -> str:
    """Return the recipe key that grid.models sets."""
    return {"pretrain": "model.name", "finetune": "model.ckpt"}[command]


def _contradictions(study: Study) -> Iterator[tuple[str, str, str]]:
    """Yield contradictions between keys, and recipes that do not exist: (place, problem, fix)."""
    grid = study.grid
    if bool(grid.models) == bool(study.variants):
        problem = "names its networks twice" if grid.models else "names no network"
        yield "grid.models", f"the study {problem}", "give either grid.models or [[variants]]"
    for place, part in {"grid": grid, **{f"variant {v.name}": v for v in study.variants}}.items():
        if part.epochs and part.steps:
            yield place, "epochs and steps are both given", "give one of them"
        for name, values in part:
            if isinstance(values, tuple) and len(set(values)) < len(values):
                yield f"{place}, {name}", f"{name} names a value twice: {list(values)}", "name each once"
    yield from _names(study)
    yield from _set_twice(study)
    yield from _scoring(study.score)
    recipes = [study.recipe, study.score.recipe, *(variant.recipe for variant in study.variants)]
    for name in dict.fromkeys(filter(None, recipes)):
        try:
            recipe.find(name)
        except VitError as error:
            yield "key recipe", error.message, error.fix


def folder_name(name: str) -> str:
    """Return the name of a study, variant or data set as part of a folder's name."""
    return slug(name).strip("-.") or "-"


def _names(study: Study) -> Iterator[tuple[str, str, str]]:
    name_by_folder: dict[str, str] = {}
    for name in [variant.name for variant in study.variants] or study.grid.models or ():
        folder = folder_name(name).lower()
        if folder in name_by_folder:
            other = name_by_folder[folder]
            yield "variants", f"{name!r} and {other!r} would use the same folder", "rename one of them"
        name_by_folder[folder] = name
    if not study.recipe:
        for variant in study.variants:
            if not variant.recipe:
                yield f"variant {variant.name}", "it has no recipe", "name one, here or for the study"
        if study.grid.models:
            example = {"pretrain": "pretrain/demo", "finetune": "finetune/default"}[study.command]
            yield "recipe", "the study has no recipe", f"name one: recipe = {example!r}"


def _set_twice(study: Study) -> Iterator[tuple[str, str, str]]:
    by_grid = {name for name in SETS if getattr(study.grid, name)}
    by_grid |= {name for variant in study.variants for name in SETS if getattr(variant, name, None)}
    list_of_key = {key: name for name in by_grid for key in SETS[name]}
    if study.grid.models:
        list_of_key[network_key(study.command)] = "models"
    tables = {"set": study.set, **{f"variant {v.name}, set": v.set for v in study.variants}}
    for place, keys in tables.items():
        for name in keys:
            if name in list_of_key:
                problem = f"{name} is set here and by the grid's {list_of_key[name]}"
                yield place, problem, "remove one of the two"


def _scoring(score: Score) -> Iterator[tuple[str, str, str]]:
    for name in NEEDED[score.by]:
        if not getattr(score, name):
            yield "score", f"score.{name} is missing", f'score.by = "{score.by}" needs it'
    for name in NOT_TAKEN[score.by]:
        if getattr(score, name):
            yield "score", f"score.by = {score.by!r} does not use score.{name}", "leave it out"
    for name in score.set:
        if name in OF_THE_SCORING:
            yield "score.set", f"{name} is set by the study for each run", "leave it out"
