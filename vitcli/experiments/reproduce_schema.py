"""The schema of recipes/reproduce.toml and files of its shape: closed, all mistakes in one report."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from vitcli import recipe
from vitcli.errors import VitError, nearest
from vitcli.recipe.schema import KEYS
from vitcli.recipe.sections import Section, key
from vitcli.recipe.types import Count, PercentOrWithStd
from vitcli.recipe.validation import Mistake, refused, report, unknown

VTAB = "vtab"  # the data set that is all 19 tasks
SEE = "docs/reproduce.md explains the keys; recipes/reproduce.toml has the shipped rows"


class Shared(Section):
    set: dict[str, Any] = key("recipe keys of every row: {'train.runs' = 3}", {})


class Task(Section):
    """What is learnt, and on what it is scored."""

    recipe: str | None = key("of vit finetune; none for vtab, whose tasks have their own", None)
    dataset: str = key("as --dataset takes it; vtab is all 19 tasks")
    labels: Literal["own", "real"] = key("real: ReaL labels score it", "own")
    test_examples: Count | None = key("scored pictures of the published number", None)


class Column(Section):
    """A network, and what was published for it."""

    about: str = key("network and pre-training data, for people")
    model: str = key("the paper's or timm's name: what a dry run counts with")
    ckpt: str | None = key("as --ckpt takes it", None)
    unreleased: str | None = key("in the place of ckpt: which of [reasons]", None)
    instead: str | None = key("the nearest column with public weights", None)
    protocol: Literal["finetune", "evaluate"] = key(
        "evaluate: the weights are scored as they are", "finetune"
    )
    set: dict[str, Any] = key("recipe keys of the column", {})
    set_of: dict[str, dict[str, Any]] = key("recipe keys of one recipe in it", {})
    published: dict[str, PercentOrWithStd] = key("task to percent, or [percent, standard deviation]")


class Copy(Section):
    """Other names of rows."""

    of: str = key("a column")
    tasks: list[str] = key("those of its tasks that have the other name")


class Scale(Section):
    """A small run in the place of any row."""

    about: str = key("for people")
    model: str = key("as of a column")
    ckpt: str = key("as of a column")
    recipe: str = key("as of a task")
    dataset: str = key("as of a task")
    test_examples: Count | None = key("as of a task", None)
    set: dict[str, Any] = key("recipe keys", {})
    published: PercentOrWithStd = key("percent, or [percent, standard deviation], measured by us")


class Rows(Section):
    shared: Shared = Shared()
    reasons: dict[str, str] = key("why weights are not to be had", {})
    tasks: dict[str, Task] = key("what is learnt")
    columns: dict[str, Column] = key("networks")
    copies: dict[str, Copy] = key("other names", {})
    scales: dict[str, Scale] = key("small runs", {})


KINDS = {"shared": Shared, "tasks": Task, "columns": Column, "copies": Copy, "scales": Scale}


def read_rows(file: str | None) -> Rows:
    """The shipped rows, or those of a file of one's own.

    Raises:
        VitError: every mistake of the file, in one report.
    """
    if file is not None and not Path(file).is_file():
        fix = "the path of a .toml file in the shape of recipes/reproduce.toml"
        raise VitError(f"there is no file {file}", where="--rows", fix=fix)
    path = Path(file) if file else recipe.paper_tables()
    label = recipe.label(path)
    try:
        rows = Rows.model_validate(recipe.read_toml(path))
    except ValidationError as refusal:
        raise report([_translated(error, label) for error in refusal.errors()], label, see=SEE) from None
    if mistakes := _contradictions(rows, label):
        raise report(mistakes, label, see=SEE)
    return rows


def _translated(error: Mapping[str, Any], label: str) -> Mistake:
    """One refusal of pydantic in the words of a file of rows."""
    names = [str(part) for part in error["loc"] if isinstance(part, str) and part not in ("one", "list")]
    items = [part for part in error["loc"] if isinstance(part, int)]
    place = ".".join(names) + (f", item {items[-1] + 1}" if items else "")
    match error["type"]:
        case "extra_forbidden":
            known = list(_kind_at(names[:-1]).model_fields)
            what = f"{place} is not a key of the rows{nearest(names[-1], known)}"
            return Mistake(what, label, f"the keys there are {', '.join(known)}")
        case "missing":
            return Mistake(f"{place} is missing", label, SEE)
    return refused(error, place, label)


def _kind_at(names: list[str]) -> type[BaseModel]:
    """The section that a path such as columns, table5/b16-in21k leads to."""
    return KINDS.get(names[0], Rows) if names else Rows


def _contradictions(rows: Rows, label: str) -> list[Mistake]:
    """What does not hold between the parts of a file that is right by its schema."""
    found = [*_of_tasks(rows), *_of_columns(rows), *_of_copies(rows)]
    for name, scale in rows.scales.items():
        found += [*_of_recipe(scale.recipe, f"scales.{name}"), *_of_keys(scale.set, f"scales.{name}.set")]
    return [Mistake(what, label, fix) for what, fix in (*found, *_of_keys(rows.shared.set, "shared.set"))]


def _of_tasks(rows: Rows) -> Iterator[tuple[str, str]]:
    for name, task in rows.tasks.items():
        if (task.recipe is None) != (task.dataset == VTAB):
            yield f"tasks.{name} has {'no' if task.recipe is None else 'a'} recipe", "vtab alone goes without"
        elif task.recipe:
            yield from _of_recipe(task.recipe, f"tasks.{name}")


def _of_columns(rows: Rows) -> Iterator[tuple[str, str]]:
    for name, column in rows.columns.items():
        place = f"columns.{name}"
        if (column.ckpt is None) == (column.unreleased is None):
            yield f"{place} has {'neither' if column.ckpt is None else 'both'}", "one of ckpt and unreleased"
        yield from _of_names(
            [column.unreleased] if column.unreleased else [], rows.reasons, f"{place}.unreleased"
        )
        yield from _of_names([column.instead] if column.instead else [], rows.columns, f"{place}.instead")
        yield from _of_names(column.published, rows.tasks, f"{place}.published")
        yield from _of_names(column.set_of, {task.recipe for task in rows.tasks.values()}, f"{place}.set_of")
        if column.protocol == "evaluate" and (column.set or column.set_of or VTAB in column.published):
            yield f"{place} is scored as it is, without training", "leave set, set_of and vtab out"
        for settings in (column.set, *column.set_of.values()):
            yield from _of_keys(settings, f"{place}.set")


def _of_copies(rows: Rows) -> Iterator[tuple[str, str]]:
    for name, copy in rows.copies.items():
        yield from _of_names([copy.of], rows.columns, f"copies.{name}.of")
        if copy.of in rows.columns:
            yield from _of_names(copy.tasks, rows.columns[copy.of].published, f"copies.{name}.tasks")


def _of_names(names, known, place: str) -> Iterator[tuple[str, str]]:
    known = [one for one in known if one]
    for name in names:
        if name not in known:
            yield (
                f"{place} names {name!r}, which is not there{nearest(name, known)}",
                f"one of {', '.join(known)}",
            )


def _of_keys(settings: Mapping[str, Any], place: str) -> Iterator[tuple[str, str]]:
    for name in settings:
        if name not in KEYS:
            mistake = unknown(name, "")
            yield f"{place}: {mistake.what}", mistake.fix


def _of_recipe(name: str, place: str) -> Iterator[tuple[str, str]]:
    try:
        recipe.find(name)
    except VitError as error:
        yield f"{place}: {error.message}", error.fix
