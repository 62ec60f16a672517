"""A study file: what is trained, over which grid, and how each run is scored; a closed schema, as a recipe's.

Recipe keys stand in tables called `set`, as in a recipe: set.optimizer.lr = 0.01.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from vitcli import recipe
from vitcli.errors import VitError
from vitcli.output.run_folder import slug
from vitcli.recipe.schema import (
    Count,
    NonNegativeInt,
    Positive,
    RecipeKeys,
    Section,
    dotted,
    either,
    key,
    list_of,
    one_or_several,
)
from vitcli.recipe.validation import Problem, report, validate

SEE = "docs/study.md has every key with its meaning"
ALL = "all"


Text = Annotated[str, Field(min_length=1)]
Texts = one_or_several(Text, one_if=str)
CountOrAll = either(Count, Literal["all"], other_if=str)


class Grid(Section):
    """Every combination is one run; a list that is left out is what the recipe says."""

    models: Texts | None = key("networks as --model takes them; of command finetune, checkpoints", None)
    num_examples: list_of(CountOrAll) | None = key("sizes of random subsets of the training images", None)
    epochs: list_of(Positive) | None = key("durations in passes over the training images", None)
    steps: list_of(Count) | None = key("durations in optimizer steps; these or epochs", None)
    seeds: list_of(NonNegativeInt) | None = key(
        "of everything drawn, the subset too; gives mean and std", None
    )


class StudyVariant(Section):
    """A network of the study that is more than a name."""

    name: Text = key("what tables and pictures call it")
    family: Texts | None = key("points of one family are joined by a line; several: it is in all", None)
    recipe: Text | None = key("its own recipe; that of the study if left out", None)
    num_examples: list_of(CountOrAll) | None = key("its own instead of the grid's", None)
    epochs: list_of(Positive) | None = key("its own instead of the grid's", None)
    steps: list_of(Count) | None = key("its own instead of the grid's", None)
    set: RecipeKeys = key("recipe keys of its runs", {})


class Score(Section):
    """One accuracy for each run."""

    by: Literal["fewshot", "finetune", "eval"] = key(
        "few-shot on its features, fine-tuning, or top-1 on the run's own held-out images"
    )
    dataset: Texts | None = key("to score on; several: their mean", None)
    recipe: Text | None = key("of the scoring; found by the data set if left out", None)
    shots: Count | None = key("fewshot: images a class", None)
    set: RecipeKeys = key("recipe keys of the scoring", {})


class Study(Section):
    """A grid of ordinary runs, and an accuracy for each (paper, 4.3, 4.4 and D.2)."""

    command: Literal["pretrain", "finetune"] = key("how a run is made")
    recipe: Text | None = key("of every run that has none of its own", None)
    grid: Grid = Grid()
    variants: Annotated[tuple[StudyVariant, ...], Field(strict=False)] = ()
    set: RecipeKeys = key("recipe keys of every run", {})
    score: Score


def load(name: str, overrides: Sequence[str] = ()) -> tuple[Study, str]:
    """Read and check a study: a shipped one by its name, or a path that ends in .toml.

    Args:
        overrides: "section.key=value" of recipes, laid over the study's own `set`.

    Returns:
        The study, and its file as people should see it.

    Raises:
        VitError: every mistake of file and options, in one report.
    """
    path = recipe.find_file(name, recipe.studies(), noun="study", where="FILE")
    table, file = recipe.read_toml(path), recipe.label(path)
    # The options lie over the file's own settings.
    mistakes: list[Problem] = []
    options, _ = recipe.parse_options(overrides, {}, mistakes)
    settings = dotted(table.get("set", {}))
    if options and isinstance(settings, dict):
        table["set"] = settings | options
    study, problems = validate(Study, table, noun="a study", see=SEE, source=lambda _: file)
    if mistakes := mistakes + (problems or _problems(study, file)):
        raise report(mistakes, f"study {name}", see=SEE)
    return study, file


def _problems(study: Study, file: str) -> list[Problem]:
    """List what the schema cannot see: recipes that do not exist, and contradictions between keys."""
    problems = [Problem(what, f"{file}, {place}", fix) for place, what, fix in contradictions(study)]
    recipes = [study.recipe, study.score.recipe, *(variant.recipe for variant in study.variants)]
    for name in dict.fromkeys(filter(None, recipes)):
        try:
            recipe.find(name)
        except VitError as error:
            problems.append(Problem(error.message, f"{file}, key recipe", error.fix))
    return problems


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


def folder_name(name: str) -> str:
    """Return the name of a study, variant or data set as part of a folder's name."""
    return slug(name).strip("-.") or "-"


def _names(study: Any) -> Iterator[tuple[str, str, str]]:
    seen: dict[str, str] = {}
    for name in [one.name for one in study.variants] or study.grid.models or ():
        if folder_name(name).lower() in seen:
            other = seen[folder_name(name).lower()]
            yield "variants", f"{name!r} and {other!r} would share a folder", "give them names of their own"
        seen[folder_name(name).lower()] = name
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
        for name in keys:
            if name in taken:
                yield place, f"{name} is set here and by the grid's {taken[name]}", "leave one of the two out"


def _scoring(score: Any) -> Iterator[tuple[str, str, str]]:
    for name in NEEDED[score.by]:
        if not getattr(score, name):
            yield "score", f"score.{name} is missing", f'score.by = "{score.by}" needs it'
    for name in NOT_TAKEN[score.by]:
        if getattr(score, name):
            yield "score", f"score.{name} means nothing to score.by = {score.by!r}", "leave it out"
    for name in score.set:
        if name in OF_THE_SCORING:
            yield "score.set", f"{name} is what the study sets for each run", "leave it out"
