"""The rows of the paper's tables as data, and when a number of ours has reproduced one of them.

Numbers in the files are percent, as the paper prints them; here accuracies are fractions.
"""

from collections.abc import Iterator, Mapping, Sequence
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

SEE = "docs/reproduce.md explains the keys; recipes/reproduce.toml has the shipped rows"


# An accuracy of 1 or less would be a fraction by mistake.
Percent = Annotated[float, Field(gt=1, le=100)]
PercentWithStd = Annotated[tuple[Percent, Annotated[float, Field(ge=0, le=50)]], Field(strict=False)]
PercentOrWithStd = either(Percent, PercentWithStd, other_if=(list, tuple))


class SharedKeys(Section):
    set: RecipeKeys = key("recipe keys of every row: {'train.runs' = 3}", {})


class PaperTask(Section):
    """What is learnt, and on what it is scored."""

    recipe: str | None = key("of vit finetune; none for vtab, whose tasks have their own", None)
    dataset: str = key("as --dataset takes it; vtab is all 19 tasks")
    labels: Literal["own", "real"] = key("real: ReaL labels score it", "own")
    test_examples: Count | None = key("scored pictures of the published number", None)


class PaperColumn(Section):
    """A network, and what was published for it."""

    about: str = key("network and pre-training data, for people")
    model: str = key("the paper's or timm's name: what a dry run counts with")
    ckpt: str | None = key("as --ckpt takes it", None)
    unreleased: str | None = key("in the place of ckpt: which of [reasons]", None)
    instead: str | None = key("the nearest column with public weights", None)
    protocol: Literal["finetune", "evaluate"] = key(
        "evaluate: the weights are scored as they are", "finetune"
    )
    set: RecipeKeys = key("recipe keys of the column", {})
    set_of: dict[str, RecipeKeys] = key("recipe keys of one recipe in it", {})
    published: dict[str, PercentOrWithStd] = key("task to percent, or [percent, standard deviation]")


class ColumnCopy(Section):
    """Other names of rows."""

    of: str = key("a column")
    tasks: list[str] = key("those of its tasks that have the other name")


class ReducedScale(Section):
    """A small run in the place of any row."""

    about: str = key("for people")
    model: str = key("as of a column")
    ckpt: str = key("as of a column")
    recipe: str = key("as of a task")
    dataset: str = key("as of a task")
    test_examples: Count | None = key("as of a task", None)
    set: RecipeKeys = key("recipe keys", {})
    published: PercentOrWithStd = key("percent, or [percent, standard deviation], measured by us")


class PaperTables(Section):
    shared: SharedKeys = SharedKeys()
    reasons: dict[str, str] = key("why weights are not to be had", {})
    tasks: dict[str, PaperTask] = key("what is learnt")
    columns: dict[str, PaperColumn] = key("networks")
    copies: dict[str, ColumnCopy] = key("other names", {})
    scales: dict[str, ReducedScale] = key("small runs", {})


def read_rows(file: str | None) -> PaperTables:
    """The shipped rows, or those of a file of one's own.

    Raises:
        VitError: every mistake of the file, in one report.
    """
    if file is not None and not Path(file).is_file():
        fix = "the path of a .toml file in the shape of recipes/reproduce.toml"
        raise VitError(f"there is no file {file}", where="--rows", fix=fix)
    path = Path(file) if file else recipe.paper_tables()
    label = recipe.label(path)
    table = recipe.read_toml(path)
    rows, problems = validate(PaperTables, table, noun="a file of rows", see=SEE, file=label)
    if problems := problems or _contradictions(rows, label):
        raise report(problems, label, see=SEE)
    return rows


def _contradictions(rows: PaperTables, label: str) -> list[Problem]:
    """What does not hold between the parts of a file that is right by its schema."""
    problems = [*_of_tasks(rows), *_of_columns(rows), *_of_copies(rows)]
    for name, scale in rows.scales.items():
        problems += _of_recipe(scale.recipe, f"scales.{name}")
    return [Problem(what, label, fix) for what, fix in problems]


def _of_tasks(rows: PaperTables) -> Iterator[tuple[str, str]]:
    for name, task in rows.tasks.items():
        if (task.recipe is None) != (task.dataset == VTAB):
            yield f"tasks.{name} has {'no' if task.recipe is None else 'a'} recipe", "vtab alone goes without"
        elif task.recipe:
            yield from _of_recipe(task.recipe, f"tasks.{name}")


def _of_columns(rows: PaperTables) -> Iterator[tuple[str, str]]:
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


def _of_copies(rows: PaperTables) -> Iterator[tuple[str, str]]:
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


def _of_recipe(name: str, place: str) -> Iterator[tuple[str, str]]:
    try:
        recipe.find(name)
    except VitError as error:
        yield f"{place}: {error.message}", error.fix


# Fractions. The paper's own deviations of three fine-tuning runs (Table 2, ViTs, without VTAB) are 0.00 to
# 0.15 points: the largest stands in where none is known. Two decimals are printed: less than 0.01 is not.
UNKNOWN_STD, LEAST_STD = 0.0015, 0.0001
PUBLISHED_RUNS = 3  # of a number with a deviation (Table 2)
WITHIN = 3.0  # standard errors, either way
REPRODUCED, NOT_REPRODUCED, OTHER_TEST_SET = "reproduced", "not reproduced", "other test set"


@dataclass(frozen=True)
class PaperRow:
    """One published number, and the protocol that is to give it again.

    Attributes:
        training: the row whose training this one shares; ReaL labels score ImageNet's.
        published, published_std: fractions; None where no deviation is given.
        unreleased: why there is no `ckpt`, or None.
        instead: the nearest row with public weights, or None.
        protocol: "finetune", or "evaluate" where released weights are scored as they are.
        settings: recipe keys in which the run differs from the recipe.
        scale: name of the small run that stands in its place, or None.
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


def rows_of(rows: PaperTables) -> dict[str, PaperRow]:
    """Every row by its name, in the order of the file."""
    found = {
        f"{column}/{task}": _row(rows, column, task)
        for column, entry in rows.columns.items()
        for task in entry.published
    }
    for name, copy in rows.copies.items():
        for task in copy.tasks:
            other = f"{name}/{task}"
            found[other] = replace(found[f"{copy.of}/{task}"], name=other, training=other)
    return found


def find_row(rows: PaperTables, name: str, *, scale: str | None, ckpt: str | None) -> PaperRow:
    """The row of a name, on a small scale or from weights of one's own where these are named.

    Raises:
        VitError: there is no such row or scale, or nobody has its weights.
    """
    known = rows_of(rows)
    name = next((one for one in known if one.lower() == name.lower()), name)
    if name not in known:
        fix = "vit reproduce --list shows them all; a name is COLUMN/TASK, such as " + next(iter(known))
        raise VitError(
            f"there is no row {name!r}{nearest(name.lower(), known)}", where="argument ROW", fix=fix
        )
    row = known[name]
    if row.unreleased and not ckpt:
        public = f"the nearest public row: vit reproduce {row.instead}; " if row.instead else ""
        raise VitError(
            f"{name} cannot be reproduced: {row.unreleased}",
            where=f"argument ROW: {row.about}",
            fix=f"{public}or name such weights of your own with --ckpt",
        )
    if scale is None:
        return replace(row, ckpt=ckpt or row.ckpt)
    if scale not in rows.scales:
        fix = f"one of {', '.join(rows.scales)}" if rows.scales else "leave it out: these rows have none"
        raise VitError(f"there is no scale {scale!r}{nearest(scale, rows.scales)}", where="--scale", fix=fix)
    if ckpt:
        raise VitError("--scale brings weights of its own", where="--ckpt", fix="leave one of the two out")
    return _on_a_small_scale(row, rows, scale)


def judge(
    accuracies: Sequence[float],
    published: float,
    published_std: float | None,
    *,
    scored: Sequence[tuple[float, int]],
    expected: int | None,
) -> dict[str, Any]:
    """Ours against the published value; reproduced if they are within three standard errors, either way.

    The standard error has three parts (docs/reproduce.md): what our runs differ by, what the published ones
    did, and what a test set of that size leaves open.

    Args:
        accuracies: of our runs, one at least.
        scored: accuracy and number of pictures of each test set; of several, the score is their mean.
        expected: pictures behind the published value; None where nobody says.

    Returns:
        Keys of the JSON object, from `ours` to `expected_test_examples`.
    """
    mean, count = fmean(accuracies), len(accuracies)
    std = stdev(accuracies) if count > 1 else None
    parts = {
        "ours": (UNKNOWN_STD if std is None else max(std, LEAST_STD)) / sqrt(count),
        "published": UNKNOWN_STD
        if published_std is None
        else max(published_std, LEAST_STD) / sqrt(PUBLISHED_RUNS),
        "test_set": sqrt(sum(p * (1 - p) / number for p, number in scored)) / len(scored),
    }
    difference, error = mean - published, hypot(*parts.values())
    z, num_scored = difference / error, sum(number for _, number in scored)
    verdict = REPRODUCED if abs(z) <= WITHIN else NOT_REPRODUCED
    return {
        "ours": {"mean": mean, "std": std, "n": count},
        "published": {"mean": published, "std": published_std},
        "difference": difference,
        "standard_error": error,
        "standard_error_parts": parts,
        "z": z,
        "within": WITHIN,
        "verdict": verdict if expected in (None, num_scored) else OTHER_TEST_SET,
        "num_test_examples": num_scored,
        "expected_test_examples": expected,
    }


def failure(result: Mapping[str, Any]) -> CheckFailed | None:
    """The error to end with where a row was not reproduced; None where it was."""
    if result["verdict"] == REPRODUCED:
        return None
    if result["verdict"] == OTHER_TEST_SET:
        expected, scored = result["expected_test_examples"], result["num_test_examples"]
        what = f"{scored:,} pictures were scored, the published value is of {expected:,}"
        fix = "score the whole test set: vit datasets show DATA says which copy is meant"
    else:
        ours, theirs = result["ours"]["mean"], result["published"]["mean"]
        what = (
            f"{ours:.2%} against {theirs:.2%} is {result['z']:+.1f} standard errors, {WITHIN:g} are allowed"
        )
        fix = "the runs themselves are good; docs/reproduce.md has the rule, and what is known to differ"
    return CheckFailed(
        f"{result['row']} is not reproduced: {what}", where=f"the runs in {result['run_dir']}", fix=fix
    )


def _row(rows: PaperTables, column: str, task: str) -> PaperRow:
    entry, learnt = rows.columns[column], rows.tasks[task]
    mean, std = _fractions(entry.published[task])
    siblings = [t for t in entry.published if rows.tasks[t].recipe == learnt.recipe and learnt.recipe]
    shared = next((t for t in siblings if rows.tasks[t].labels == "own"), task)
    instead = entry.instead and f"{entry.instead}/{task}"
    has_instead = instead and task in rows.columns[entry.instead].published
    return PaperRow(
        name=f"{column}/{task}",
        training=f"{column}/{shared if learnt.labels == 'real' else task}",
        about=entry.about,
        published=mean,
        published_std=std,
        test_examples=learnt.test_examples,
        model=entry.model,
        ckpt=entry.ckpt,
        unreleased=entry.unreleased and rows.reasons[entry.unreleased],
        instead=instead if has_instead else None,
        protocol=entry.protocol,
        recipe=learnt.recipe,
        dataset=learnt.dataset,
        labels=learnt.labels,
        settings={**rows.shared.set, **entry.set, **entry.set_of.get(learnt.recipe or "", {})},
    )


def _on_a_small_scale(row: PaperRow, rows: PaperTables, scale: str) -> PaperRow:
    """The small run in the place of the row: the same for all rows but for its name."""
    small = rows.scales[scale]
    mean, std = _fractions(small.published)
    return replace(
        row,
        training=f"{row.name}-{scale}",
        about=small.about,
        published=mean,
        published_std=std,
        test_examples=small.test_examples,
        model=small.model,
        ckpt=small.ckpt,
        protocol="finetune",
        recipe=small.recipe,
        dataset=small.dataset,
        labels="own",
        settings={**rows.shared.set, **small.set},
        scale=scale,
    )


def _fractions(published: float | tuple[float, float]) -> tuple[float, float | None]:
    mean, std = published if isinstance(published, tuple) else (published, None)
    return round(mean / 100, 10), None if std is None else round(std / 100, 10)  # 0.8862, not 0.88620...01
