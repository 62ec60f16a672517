"""Folder of a study: its file, its plan, a folder for each run, tables and figures."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitcli import recipe as recipes
from vitcli.experiments import study_schema, study_text
from vitcli.experiments.study_schema import Score, Study, folder_name
from vitcli.output import run_folder
from vitcli.output.atomic import TEMPORARY, read_json, write_json, write_text
from vitcli.output.leases import HOME, is_leased
from vitcli.output.owned_folder import OwnedFolder, refuse_other
from vitcli.output.run_folder import refuse_other_recipe
from vitcli.recipe import Recipe

STUDY, PLAN, CELLS, FIGURES = "study.toml", "plan.json", "cells", "figures"
FILES = (PLAN, run_folder.SUMMARY, "table.md", "table.csv", STUDY)


def owned(folder: Path) -> OwnedFolder:
    """Return the folder of a study, with the names of everything that `vit study` writes."""
    folders = (CELLS, FIGURES, HOME)
    return OwnedFolder(folder, "study", lock=".vit-study.lock", files=FILES, folders=folders, marker=STUDY)


def check(folder: Path, study: Study, *, overwrite: bool) -> None:
    """Refuse a folder that holds something else or, without `overwrite`, another study; touch nothing."""
    path = folder / STUDY
    if not path.exists():
        run_folder.refuse_run(folder, "study")
    owned(folder).refuse_foreign()
    if path.exists() and not overwrite:
        earlier, _ = study_schema.load(str(path))
        refuse_other(folder, "another study", recipes.differences(earlier, study))


def join(folder: Path, study: Study, plans: Mapping[str, Any], *, overwrite: bool) -> None:
    """Open the folder for one of several workers: write the study and the plans of its runs.

    Raises:
        MachineError: the folder cannot be written, or another command holds it.
        VitError: as `check`; or it is to be overwritten, and another worker is busy in it.
    """

    def begin() -> None:
        check(folder, study, overwrite=overwrite)
        write_text(folder / STUDY, recipes.to_toml(study))
        write_json(folder / PLAN, plans)

    owned(folder).join(begin, overwrite=overwrite)


def scores_of(run_dir: Path, recipe: Recipe, score: Score) -> dict[str, float] | None:
    """Return the accuracies of a finished and scored run, by data set, or None.

    Raises:
        VitError: the folder holds a run of another recipe.
    """
    run_summary = run_folder.finished_summary(run_dir)
    if run_summary is None:
        return None
    refuse_other_recipe(run_dir, recipe)
    if score.by == "eval":
        return {run_summary["dataset"]: run_summary["top1"]}
    folders = {name: score_folder(run_dir, score, name) for name in score.dataset}
    summaries = {name: run_folder.finished_summary(folder) for name, folder in folders.items()}
    if not all(summaries.values()):
        return None
    if score.by == "finetune":
        return {name: summary["top1"] for name, summary in summaries.items()}
    return {name: summary["shots"][str(score.shots)]["mean"] for name, summary in summaries.items()}


def score_folder(run_dir: Path, score: Score, dataset: str) -> Path:
    """Return the folder with the scoring of a run on a data set."""
    return run_dir / ("score" if len(score.dataset or ()) < 2 else f"score-{folder_name(dataset)}")


def written_by_another(folder: Path) -> dict[str, Any] | None:
    """Return the summary of a study whose claims another worker has removed at its end."""
    return None if (folder / HOME).exists() else read_json(folder / run_folder.SUMMARY)


def write_results(folder: Path, result: Mapping[str, Any]) -> None:
    """Write figures, tables and, last, the summary, unless the summary is up to date."""
    if is_leased(folder):  # nobody else writes here: what killed workers have left can go
        for leftover in (*folder.glob(f"{TEMPORARY}*"), *folder.glob(f"{FIGURES}/{TEMPORARY}*")):
            leftover.unlink(missing_ok=True)
    if read_json(folder / run_folder.SUMMARY) == json.loads(json.dumps(result)):
        return
    from vitcli.experiments.study_figures import draw  # loads Matplotlib

    draw(folder / FIGURES, result)
    write_text(folder / "table.md", study_text.as_markdown(result))
    write_text(folder / "table.csv", study_text.as_csv(result))
    write_json(folder / run_folder.SUMMARY, result)
