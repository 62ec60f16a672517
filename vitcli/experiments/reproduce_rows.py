"""Rows of the paper's tables: schema of their file, lookup, and the test whether a row is reproduced.

Numbers in the file are percent, as the paper prints them; in the code accuracies are fractions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any, Literal

from pydantic import Field

from vitcli import recipe
from vitcli.data.vtab import VTAB
from vitcli.errors import CheckFailed, VitError, nearest
from vitcli.recipe.schema import Count, RecipeKeys, Section, either, key
from vitcli.recipe.validation import Problem, report, validate

SEE = "docs/reproduce-and-study.md explains the keys; recipes/reproduce.toml has the shipped rows"

# An accuracy of 1 or less is a fraction by mistake.
Percent = Annotated[float, Field(gt=1, le=100)]
PercentWithStd = Annotated[tuple[Percent, Annotated[float, Field(ge=0, le=50)]], Field(strict=False)]
PercentOrWithStd = Annotated[Percent | PercentWithStd, either(list | tuple, "[mean, std]")]


class SharedKeys(Section):
    set: RecipeKeys = key("recipe keys of every row: {'train.runs' = 3}", {})


class PaperTask(Section):
    """Task of a table: training recipe and test set."""

    recipe: str | None = key("recipe of vit finetune; none for vtab, whose tasks have their own", None)
    dataset: str = key("data set as --dataset takes it; vtab is all 19 tasks")
    labels: Literal["own", "real"] = key("labels of the test set: its own or ReaL", "own")
    test_examples: Count | None = key("test images behind the published number", None)


class PaperColumn(Section):
    """Network of a table, with its published numbers."""

    about: str = key("network and pre-training data, as text")
    model: str = key("the paper's or timm's name, for the cost of a dry run")
    ckpt: str | None = key("weights as --ckpt takes them", None)
    unreleased: str | None = key("in place of ckpt: one of [reasons]", None)
    instead: str | None = key("nearest column with public weights", None)
    protocol: Literal["finetune", "evaluate"] = key(
        "evaluate: the weights are scored without training", "finetune"
    )
    set: RecipeKeys = key("recipe keys of the column", {})
    set_of: dict[str, RecipeKeys] = key("recipe keys of the column, by recipe", {})
    published: dict[str, PercentOrWithStd] = key("task to percent, or [percent, standard deviation]")


class ColumnCopy(Section):
    """Further names of rows."""

    of: str = key("a column")
    tasks: list[str] = key("its tasks that have the further name")


class ReducedScale(Section):
    """Small run in place of any row."""

    about: str = key("network and pre-training data, as text")
    model: str = key("as of a column")
    ckpt: str = key("as of a column")
    recipe: str = key("as of a task")
    dataset: str = key("as of a task")
    test_examples: Count | None = key("as of a task", None)
    set: RecipeKeys = key("recipe keys", {})
    published: PercentOrWithStd = key("percent, or [percent, standard deviation], measured by us")


class PaperTables(Section):
    shared: SharedKeys = SharedKeys()
    reasons: dict[str, str] = key("reasons why weights are not public", {})
    tasks: dict[str, PaperTask] = key("tasks of the tables")
    columns: dict[str, PaperColumn] = key("networks of the tables")
    copies: dict[str, ColumnCopy] = key("further names of rows", {})
    scales: dict[str, ReducedScale] = key("small runs", {})


def read_rows(file: str | None) -> PaperTables:
    """Read the shipped rows, or those of a file.

    Raises:
        VitError: every mistake of the file, in one report.
    """
    if file is not None and not Path(file).is_file():
        fix = "the path of a .toml file with the keys of recipes/reproduce.toml"
        raise VitError(f"there is no file {file}", where="--rows", fix=fix)
    path = Path(file) if file else recipe.catalog.paper_tables()
    label = recipe.label(path)
    table = recipe.read_toml(path)
    rows, problems = validate(PaperTables, table, noun="a file of rows", see=SEE, file=label)
    if problems := problems or [Problem(problem, label, fix) for problem, fix in _contradictions(rows)]:
        raise report(problems, label, see=SEE)
    return rows


def _contradictions(rows: PaperTables) -> Iterator[tuple[str, str]]:
    """Yield contradictions between parts of a file that fits the schema: (problem, fix)."""
    # Tasks and their recipes.
    for name, task in rows.tasks.items():
        if (task.recipe is None) != (task.dataset == VTAB):
            yield f"tasks.{name} has {'no' if task.recipe is None else 'a'} recipe", "only vtab has none"
        elif task.recipe:
            yield from _recipe_problems(task.recipe, f"tasks.{name}")
    # Columns, and the names in them.
    recipes = {task.recipe for task in rows.tasks.values()}
    for name, column in rows.columns.items():
        place = f"columns.{name}"
        if (column.ckpt is None) == (column.unreleased is None):
            yield f"{place} has {'neither' if column.ckpt is None else 'both'}", "one of ckpt and unreleased"
        yield from _unknown_names([column.unreleased], rows.reasons, f"{place}.unreleased")
        yield from _unknown_names([column.instead], rows.columns, f"{place}.instead")
        yield from _unknown_names(column.published, rows.tasks, f"{place}.published")
        yield from _unknown_names(column.set_of, recipes, f"{place}.set_of")
        if column.protocol == "evaluate" and (column.set or column.set_of or VTAB in column.published):
            yield f"{place} is scored without training", "leave set, set_of and vtab out"
    # Copies of columns, and small runs.
    for name, copy in rows.copies.items():
        yield from _unknown_names([copy.of], rows.columns, f"copies.{name}.of")
        if copy.of in rows.columns:
            yield from _unknown_names(copy.tasks, rows.columns[copy.of].published, f"copies.{name}.tasks")
    for name, scale in rows.scales.items():
        yield from _recipe_problems(scale.recipe, f"scales.{name}")


def _unknown_names(
    names: Iterable[str | None], known: Iterable[str | None], place: str
) -> Iterator[tuple[str, str]]:
    known = [name for name in known if name]
    for name in names:
        if name is not None and name not in known:
            problem = f"{place} names {name!r}, which does not exist{nearest(name, known)}"
            yield problem, f"one of {', '.join(known)}"


def _recipe_problems(name: str, place: str) -> Iterator[tuple[str, str]]:
    try:
        recipe.find(name)
    except VitError as error:
        yield f"{place}: {error.message}", error.fix


# Fractions. The paper's own deviations of three fine-tuning runs (Table 2, ViTs, without VTAB) are 0.00 to
# 0.15 points: the largest is used where none is known. The paper prints two decimals: below 0.01 is rounding.
UNKNOWN_STD, LEAST_STD = 0.0015, 0.0001
PUBLISHED_RUNS = 3  # behind a number with a deviation (Table 2)
WITHIN = 3.0  # standard errors, above or below
REPRODUCED, NOT_REPRODUCED, OTHER_TEST_SET = "reproduced", "not reproduced", "other test set"


@dataclass(frozen=True)
class PaperRow:
    """Published number, with the protocol that reproduces it.

    Attributes:
        training: the row whose runs are scored, ImageNet's for ReaL labels.
        published, published_std: fractions; None without a deviation.
        unreleased: the reason why there is no `ckpt`, or None.
        instead: the nearest row with public weights, or None.
        protocol: "finetune", or "evaluate" for released weights that are scored without training.
        settings: recipe keys that override the recipe.
        scale: name of the small run in its place, or None.
    """

    name: str
    training: str
    about: str
    published: float
    published_std: float | None
    test_examples: int | None
    model: str
    ckpt: str | None
    unreleased: str | None
    instead: str | None
    protocol: str
    recipe: str | None
    dataset: str
    labels: str
    settings: Mapping[str, Any]
    scale: str | None = None


def rows_of(tables: PaperTables) -> dict[str, PaperRow]:
    """Return all rows by name, in the order of the file."""
    rows = {
        f"{column}/{task}": _row(tables, column, task)
        for column, entry in tables.columns.items()
        for task in entry.published
    }
    for name, copy in tables.copies.items():
        for task in copy.tasks:
            row_name = f"{name}/{task}"
            rows[row_name] = replace(rows[f"{copy.of}/{task}"], name=row_name, training=row_name)
    return rows


def find_row(tables: PaperTables, name: str, *, scale: str | None, ckpt: str | None) -> PaperRow:
    """Return a row by name, at a small scale or with other weights if these are given.

    Raises:
        VitError: there is no such row or scale, or its weights are not public.
    """
    # The row, or weights in its place.
    rows = rows_of(tables)
    name = next((key for key in rows if key.lower() == name.lower()), name)
    if name not in rows:
        problem = f"there is no row {name!r}{nearest(name.lower(), rows)}"
        fix = "vit reproduce --list shows all rows; a name is COLUMN/TASK, such as " + next(iter(rows))
        if any(key.startswith(f"{name.lower()}/") for key in rows):
            problem = f"{name} is not one row but several"
            fix = f"vit reproduce --list '{name.lower()}/*' shows them"
        elif name.lower().startswith("fig"):
            fix = "figures are studies: vit study data-size figure4-jft, vit study compute figure5-jft"
        raise VitError(problem, where="argument ROW", fix=fix)
    row = rows[name]
    if row.unreleased and not ckpt:
        public = f"the nearest public row: vit reproduce {row.instead}; " if row.instead else ""
        raise VitError(
            f"{name} cannot be reproduced: {row.unreleased}",
            where=f"argument ROW: {row.about}",
            fix=f"{public}or give your own weights with --ckpt",
        )
    # The small run in its place.
    if scale is None:
        return replace(row, ckpt=ckpt or row.ckpt)
    if scale not in tables.scales:
        problem = f"there is no scale {scale!r}{nearest(scale, tables.scales)}"
        fix = f"one of {', '.join(tables.scales)}" if tables.scales else "leave it out: these rows have none"
        raise VitError(problem, where="--scale", fix=fix)
    if ckpt:
        raise VitError("--scale has its own weights", where="--ckpt", fix="leave one of the two out")
    # It is the same for all rows except for its name.
    small = tables.scales[scale]
    mean, std = _fractions(small.published)
    return replace(
        row,
        **small.model_dump(exclude={"set", "published"}),
        training=f"{row.name}-{scale}",
        published=mean,
        published_std=std,
        protocol="finetune",
        labels="own",
        settings={**tables.shared.set, **small.set},
        scale=scale,
    )


def judge(
    accuracies: Sequence[float],
    published: float,
    published_std: float | None,
    *,
    scored: Sequence[tuple[float, int]],
    expected: int | None,
) -> dict[str, Any]:
    """Compare accuracies with the published value: reproduced within three standard errors.

        error^2 = std^2 / n                          of our n runs
                  + published_std^2 / 3              of the published runs, or UNKNOWN_STD^2
                  + sum_i p_i (1 - p_i) / N_i / T^2  of T test sets with N_i images and accuracy p_i

    docs/reproduce-and-study.md explains the three parts.

    Args:
        accuracies: one for each run.
        scored: accuracy and number of images of each test set; the score is the mean over test sets.
        expected: images behind the published value; None if unknown.

    Returns:
        Keys of the JSON object, from `ours` to `expected_test_examples`.
    """
    mean, count = fmean(accuracies), len(accuracies)
    std = stdev(accuracies) if count > 1 else None
    # The three parts of the error.
    ours = (UNKNOWN_STD if std is None else max(std, LEAST_STD)) / sqrt(count)
    paper = UNKNOWN_STD if published_std is None else max(published_std, LEAST_STD) / sqrt(PUBLISHED_RUNS)
    test_set = sqrt(sum(p * (1 - p) / number for p, number in scored)) / len(scored)
    # The verdict.
    difference, error = mean - published, hypot(ours, paper, test_set)
    z, num_scored = difference / error, sum(number for _, number in scored)
    verdict = REPRODUCED if abs(z) <= WITHIN else NOT_REPRODUCED
    return {
        "ours": {"mean": mean, "std": std, "n": count},
        "published": {"mean": published, "std": published_std},
        "difference": difference,
        "standard_error": error,
        "standard_error_parts": {"ours": ours, "published": paper, "test_set": test_set},
        "z": z,
        "within": WITHIN,
        "verdict": verdict if expected in (None, num_scored) else OTHER_TEST_SET,
        "num_test_examples": num_scored,
        "expected_test_examples": expected,
    }


def failure(result: Mapping[str, Any]) -> CheckFailed | None:
    """Return the error for a row that is not reproduced, or None."""
    if result["verdict"] == REPRODUCED:
        return None
    if result["verdict"] == OTHER_TEST_SET:
        expected, scored = result["expected_test_examples"], result["num_test_examples"]
        problem = f"{scored:,} images were scored, the published value is for {expected:,}"
        fix = "score the whole test set: vit datasets show DATA names the right copy"
    else:
        ours, published = result["ours"]["mean"], result["published"]["mean"]
        difference = f"{ours:.2%} against {published:.2%} is {result['z']:+.1f} standard errors"
        problem = f"{difference}, {WITHIN:g} are allowed"
        fix = "the runs are valid; docs/reproduce-and-study.md has the rule and the known differences"
    problem = f"{result['row']} is not reproduced: {problem}"
    return CheckFailed(problem, where=f"the runs in {result['run_dir']}", fix=fix)


def _row(tables: PaperTables, column: str, task: str) -> PaperRow:
    entry, paper_task = tables.columns[column], tables.tasks[task]
    mean, std = _fractions(entry.published[task])
    # Rows with ReaL labels score the runs of the task with the same recipe and its own labels.
    trained = task
    if paper_task.labels == "real" and paper_task.recipe:
        siblings = (name for name in entry.published if tables.tasks[name].recipe == paper_task.recipe)
        trained = next((name for name in siblings if tables.tasks[name].labels == "own"), task)
    has_instead = entry.instead and task in tables.columns[entry.instead].published
    return PaperRow(
        **entry.model_dump(include={"about", "model", "ckpt", "protocol"}),
        **paper_task.model_dump(),
        name=f"{column}/{task}",
        training=f"{column}/{trained}",
        published=mean,
        published_std=std,
        unreleased=entry.unreleased and tables.reasons[entry.unreleased],
        instead=f"{entry.instead}/{task}" if has_instead else None,
        settings={**tables.shared.set, **entry.set, **entry.set_of.get(paper_task.recipe or "", {})},
    )


def _fractions(published: float | tuple[float, float]) -> tuple[float, float | None]:
    mean, std = published if isinstance(published, tuple) else (published, None)
    return round(mean / 100, 10), None if std is None else round(std / 100, 10)  # 0.8862, not 0.88620...01
