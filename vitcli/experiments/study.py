"""`vit study`: a grid of ordinary runs, each scored, as a table and a figure (paper, sections 4.3, 4.4, D.2).

Loads neither torch nor datasets, so that mistakes of a study are reported at once; `study_runs`, which does,
is not merged with it for this reason. Training and scoring a run are passed in as `StudyActions`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from vitcli.errors import VitError
from vitcli.experiments import study_folder, study_grid, study_schema
from vitcli.experiments.study_grid import StudyRun
from vitcli.experiments.study_schema import Score, Study, folder_name
from vitcli.output.atomic import read_json
from vitcli.output.leases import Cells
from vitcli.output.progress import Progress
from vitcli.output.shared_work import RESULTS, SharedWork, WorkCell
from vitcli.recipe import Draft, Recipe, find_for_dataset, merge
from vitcli.recipe.sweep import check_with_choices
from vitcli.recipe.validation import Problem, report

WRITE_EVERY_S = 60.0  # between updates of tables and figures while runs are in progress


@dataclass(frozen=True)
class PreparedStudy:
    """Study with its runs and their recipes, all checked.

    Attributes:
        view: "data-size" or "compute", the x axis of the figure.
        name: name of the study's file, for its folder.
        recipes: one for each cell, in their order.
    """

    view: str
    name: str
    study: Study
    cells: list[StudyRun]
    recipes: list[Recipe]


@dataclass(frozen=True)
class StudyActions:
    """Actions for the runs of a study.

    Attributes:
        check: checks the data sets of the scoring before the first run.
        settle: returns a recipe with its pixels in numbers, as its run stores it.
        plan: returns the plan of a recipe and writes nothing.
        train: trains a recipe in its run folder; returns at once if that is finished.
        score: returns the accuracy of (run folder, data set, folder for the scoring), None on processes other
            than the first; at once if it is finished.
    """

    check: Callable[[], None]
    settle: Callable[[Recipe], Recipe]
    plan: Callable[[Recipe], Mapping[str, Any]]
    train: Callable[[Recipe, Path], Any]
    score: Callable[[Path, str, Path], float | None]


def prepare(view: str, name: str, overrides: Sequence[str]) -> PreparedStudy:
    """Read the study and resolve the recipe of every run.

    Raises:
        VitError: every mistake of the study and of its recipes, in one report.
    """
    study, file = study_schema.load(name, overrides)
    cells, mistakes = study_grid.expand(study), []
    recipes = [_resolve(cell, study, file, mistakes) for cell in cells]
    for dataset in study.score.dataset or ():
        _check_scoring(study.score, dataset, file, mistakes)
    if mistakes:
        raise report(list(dict.fromkeys(mistakes)), f"study {name}", see=study_schema.SEE)
    if view == "data-size" and len({cell.axes.get("num_examples") for cell in cells}) < 2:
        problem = "all runs of this study train on the same images"
        fix = f'grid.num_examples = [1000, "all"], or vit study compute {name}'
        raise VitError(problem, where=f"{file}, grid.num_examples", fix=fix)
    return PreparedStudy(view, Path(name).stem, study, cells, recipes)


def plan(prepared: PreparedStudy, actions: StudyActions) -> dict[str, Any]:
    """Return the object of --dry-run: every run with its cost; reads no data."""
    from vitcli.distributed.runtime import shared_process_group

    with shared_process_group():
        plans = _plans(prepared, actions)
    cells = _planned(prepared, plans)
    return {
        "command": f"study {prepared.view}",
        "study": prepared.name,
        "score": _scoring(prepared.study.score),
        "cells": cells,
        "exaflops": sum(cell["exaflops"] or 0.0 for cell in cells),
    }


def run(
    prepared: PreparedStudy, actions: StudyActions, *, out: Path | None, overwrite: bool, quiet: bool
) -> dict[str, Any]:
    """Train and score every run that is not finished yet, and write tables and figures to OUT.

    Returns:
        The object of --json; {} on all processes but the first.
    """
    from vitcli.distributed.runtime import shared_process_group
    from vitcli.distributed.runtime import start as start_runtime  # loads torch

    # The default folder has no time in its name, so that the same command resumes.
    folder, score = out or Path("runs", f"study-{folder_name(prepared.name)}"), prepared.study.score
    with shared_process_group():
        runtime = start_runtime("auto")
        progress = Progress(quiet=quiet, is_main=runtime.is_main)
        prepared = replace(prepared, recipes=[actions.settle(recipe) for recipe in prepared.recipes])
        runtime.on_main(lambda: study_folder.check(folder, prepared.study, overwrite=overwrite))

        # Finished runs stay as they are, and a study that is complete needs no data.
        of_earlier = {} if overwrite else runtime.on_main(lambda: _scores(folder, prepared))
        missing = [number for number, cell in enumerate(prepared.cells) if not of_earlier.get(cell.name)]
        if missing:
            actions.check()
        earlier = runtime.on_main(lambda: None if overwrite else read_json(folder / study_folder.PLAN))
        plans = earlier or _plans(prepared, actions)
        runtime.on_main(lambda: study_folder.join(folder, prepared.study, plans, overwrite=overwrite))
        written_at = time.monotonic()

        # Each of the other runs is trained and scored; tables and figures are updated now and then.
        def train(number: int) -> dict[str, float | None]:
            cell, recipe = prepared.cells[number], prepared.recipes[number]
            progress.note(f"run {number + 1} of {len(prepared.cells)}: {cell.name}")
            run_dir = _run_dir(folder, cell)
            actions.train(recipe, run_dir)
            for name in [recipe.data.dataset] if score.by == "eval" else score.dataset:
                actions.score(run_dir, name, study_folder.score_folder(run_dir, score, name))
            return runtime.on_main(partial(study_folder.scores_of, run_dir, recipe, score))

        write_results = partial(_write_results, prepared, plans, folder)

        def on_done(index: int, run_scores: dict[str, float | None]) -> None:
            nonlocal written_at
            name = prepared.cells[missing[index]].name
            progress.note(f"{name}: " + ", ".join(f"{s:.2%} on {data}" for data, s in run_scores.items()))
            if time.monotonic() - written_at > WRITE_EVERY_S:
                runtime.on_main(write_results)
                written_at = time.monotonic()

        cells = []
        for number in missing:
            cell, recipe = prepared.cells[number], prepared.recipes[number]
            finished = partial(study_folder.scores_of, _run_dir(folder, cell), recipe, score)
            cells.append(WorkCell(cell.name, _run_dir(folder, cell), partial(train, number), finished))
        try:
            SharedWork(cells, folder, runtime, progress, on_done).run()
            finished = partial(study_folder.written_by_another, folder)
            final = WorkCell(RESULTS, folder, partial(runtime.on_main, write_results), finished)
            SharedWork([final], folder, runtime, progress).run()
            runtime.on_main(Cells(folder).end)
        finally:
            result = write_results() if runtime.is_main else {}
    return result


def _write_results(prepared: PreparedStudy, plans: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Write what all workers have finished by now; return the object of --json."""
    result = _result(prepared, plans, _scores(folder, prepared), folder)
    if result["num_finished"]:
        study_folder.write_results(folder, result)
    return result


def _scores(folder: Path, prepared: PreparedStudy) -> dict[str, dict[str, float] | None]:
    """Return the scores of finished runs, by cell; None for the others."""
    return {
        cell.name: study_folder.scores_of(_run_dir(folder, cell), recipe, prepared.study.score)
        for cell, recipe in zip(prepared.cells, prepared.recipes, strict=True)
    }


def _run_dir(folder: Path, cell: StudyRun) -> Path:
    return folder / "cells" / cell.name


def _resolve(cell: StudyRun, study: Study, file: str, mistakes: list[Problem]) -> Recipe | None:
    """Return the recipe of one run, the study's keys over the recipe's; None with mistakes."""
    draft = merge(cell.recipe)
    draft.overlay(cell.keys, {key: f"{file}, {place}" for key, place in cell.sources.items()})
    recipe = _checked(draft, f"recipe {cell.recipe}", mistakes, training=True)
    if recipe and study.score.by == "eval" and recipe.objective.loss == "masked_patch":
        fix = 'score.by = "fewshot" or "finetune"'
        mistakes.append(Problem("masked patch prediction has no top-1", f"{file}, score.by", fix))
    return recipe


def scoring_recipe(score: Score, dataset: str) -> str:
    """Return the name of the recipe that scores on a data set."""
    return score.recipe or find_for_dataset(score.by, dataset)


def _check_scoring(score: Score, dataset: str, file: str, mistakes: list[Problem]) -> None:
    draft = merge(scoring_recipe(score, dataset))
    draft.overlay(score.set | {"data.dataset": dataset}, dict.fromkeys(score.set, f"{file}, score.set"))
    recipe = _checked(draft, file, mistakes, training=score.by == "finetune")
    if recipe and score.by == "fewshot" and recipe.fewshot is None:
        problem, place = "the recipe has no section [fewshot]", f"{file}, score.recipe"
        mistakes.append(Problem(problem, place, "take fewshot/default"))


def _checked(draft: Draft, file: str, mistakes: list[Problem], *, training: bool) -> Recipe | None:
    recipe, problems = check_with_choices(draft.values, draft.sources, file=file, training=training)
    mistakes += draft.mistakes + problems
    return recipe


def _plans(prepared: PreparedStudy, actions: StudyActions) -> dict[str, dict[str, Any]]:
    """Return the plan of each point; it is the same for all seeds."""
    plans: dict[str, dict[str, Any]] = {}
    for cell, recipe in zip(prepared.cells, prepared.recipes, strict=True):
        if cell.point in plans:
            continue
        try:
            run_plan = actions.plan(recipe)
        except VitError as error:
            error.where += f"; run {cell.name} of the study"
            raise
        images_seen, num_examples = run_plan["images_seen"], run_plan["num_examples"]
        plans[cell.point] = {
            "families": list(cell.families) or [study_grid.family_of(recipe.model.name or run_plan["model"])],
            "num_examples": num_examples,
            "epochs": cell.axes.get("epochs", images_seen / num_examples),
            "steps": run_plan["total_steps"],
            **{key: run_plan[key] for key in ("params", "images_seen", "exaflops")},
        }
    return plans


def _planned(prepared: PreparedStudy, plans: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return every run with its plan, in order."""
    return [
        {
            "name": cell.name,
            "point": cell.point,
            "model": cell.model,
            "seed": recipe.train.seed,
            **plans[cell.point],
            "asked_epochs": cell.axes.get("epochs"),
            "asked_steps": cell.axes.get("steps"),
        }
        for cell, recipe in zip(prepared.cells, prepared.recipes, strict=True)
    ]


def _scoring(score: Score) -> dict[str, Any]:
    """Return the name of the accuracy, for tables and figures."""
    names = list(score.dataset or ())
    kinds = {"fewshot": f"{score.shots}-shot accuracy", "finetune": "fine-tuned accuracy", "eval": "top-1"}
    kind = kinds[score.by]
    scored_on = f", mean of {len(names)} data sets" if len(names) > 1 else f" on {''.join(names)}"
    name = "held-out top-1" if score.by == "eval" else kind + scored_on
    return {"by": score.by, "name": name, "kind": kind, "datasets": names, "shots": score.shots}


def _result(
    prepared: PreparedStudy, plans: Mapping[str, Any], scores: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
    cells = _planned(prepared, plans)
    for planned, cell in zip(cells, prepared.cells, strict=True):
        planned["score"], planned["scores"] = _mean(scores[cell.name]), scores[cell.name]
        planned["run_dir"] = str(_run_dir(folder, cell))
    points = study_grid.points(cells)
    return {
        "command": f"study {prepared.view}",
        "study": prepared.name,
        "trained_by": prepared.study.command,
        "run_dir": str(folder),
        "score": _scoring(prepared.study.score),
        "cells": cells,
        "points": points,
        "pareto": study_grid.pareto(points),
        "has_named_families": any(cell.families for cell in prepared.cells),
        "num_cells": len(cells),
        "num_finished": sum(cell["score"] is not None for cell in cells),
        "figures": [str(folder / "figures" / f"{prepared.view}.{ending}") for ending in ("png", "svg")],
        "table": str(folder / "table.md"),
    }


def _mean(scores: Mapping[str, float | None] | None) -> float | None:
    known = [score for score in (scores or {}).values() if score is not None]
    return sum(known) / len(known) if known else None
