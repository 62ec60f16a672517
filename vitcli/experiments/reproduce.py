"""`vit reproduce`: a row of the paper's tables by its full protocol, compared with the published value.

The protocol is the paper's (sections 4.1 and B.1.1): each learning rate of Table 4 is tried on a dev split,
the best one is trained on the whole training set three times, and the test set is scored. ReaL labels score
the same runs as the ImageNet row; VTAB is the mean over its 19 tasks, run by run.

Loads neither torch nor datasets, so that mistakes are reported at once; `reproduce_cost`, which does, is not
merged with it for this reason.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from vitcli.distributed import launch
from vitcli.errors import VitError, nearest
from vitcli.experiments import vtab
from vitcli.experiments.reproduce_rows import PaperRow, PaperTables, judge, rows_of
from vitcli.models.variants import matches
from vitcli.output.atomic import write_json
from vitcli.output.leases import Cells
from vitcli.output.owned_folder import OwnedFolder
from vitcli.output.progress import Progress
from vitcli.output.run_folder import finished_summary, slug
from vitcli.output.text import count_of
from vitcli.recipe import Recipe, trials
from vitcli.recipe import load as load_recipe

if TYPE_CHECKING:  # loads torch
    from vitcli.training.setup import RunOptions

RESULT, REAL_RESULT = "reproduce.json", "reproduce-real.json"  # two rows share one run folder
LOCK = ".vit-reproduce.lock"
Finetune = Callable[[Recipe, "RunOptions"], dict[str, Any]]
Evaluate = Callable[[str], dict[str, Any]]


def list_rows(rows: PaperTables, pattern: str | None) -> dict[str, Any]:
    """List the rows whose name matches a part of a name or a glob, case-insensitive; None for all."""
    rows_by_name = rows_of(rows)
    matching = [row for name, row in rows_by_name.items() if matches(name, pattern or "")]
    if not matching:
        problem = f"no row matches {pattern!r}{nearest(pattern, rows_by_name)}"
        raise VitError(problem, where="argument ROW", fix="vit reproduce --list shows all rows")
    entries = [
        {
            "row": row.name,
            "about": row.about,
            "published": {"mean": row.published, "std": row.published_std},
            "released": row.unreleased is None,
            "why": row.unreleased,
            "ckpt": row.ckpt,
            "recipe": row.recipe,
            "dataset": row.dataset,
        }
        for row in matching
    ]
    return {"command": "reproduce", "rows": entries}


def resolve(row: PaperRow, *, precision: str | None) -> dict[str, Recipe]:
    """Return the recipes of a row by data set, for VTAB by task; {} without training."""
    if row.protocol == "evaluate":
        return {}
    given = {**row.settings, "model.ckpt": row.ckpt}
    given |= {"precision.compute": precision} if precision else {}
    try:
        tasks = vtab.tasks_of(row.dataset)
        if tasks:
            return vtab.resolve(list(tasks), row.recipe, (), given)
        return {row.dataset: load_recipe(row.recipe, (), {**given, "data.dataset": row.dataset})}
    except VitError as error:  # its place would be options that were not given
        raise VitError(error.message, where=f"the keys that row {row.name} sets", fix=error.fix) from error


def check_labels(row: PaperRow, real: str | None) -> None:
    """Refuse a row of ReaL labels without their file, and the file with any other row."""
    if row.labels == "real" and not real:
        raise VitError(
            f"{row.name} is scored by ReaL labels, but their file is not given",
            where="--real",
            fix="--real real.json, from github.com/google-research/reassessed-imagenet",
        )
    if real and row.labels != "real":
        scale = f" at scale {row.scale}" if row.scale else ""
        fix = "leave it out, or name a row that ends in -real"
        raise VitError(f"{row.name}{scale} is not scored by ReaL labels", where="--real", fix=fix)


def reproduce(
    row: PaperRow,
    recipes: Mapping[str, Recipe],
    options: "RunOptions",
    *,
    real: str | None,
    finetune: Finetune,
    evaluate: Evaluate,
) -> dict[str, Any]:
    """Run or resume the protocol of a row, and compare its accuracy with the published value.

    Args:
        recipes: as returned by `resolve`.
        real: file of ReaL labels, for the rows they score.
        finetune, evaluate: the commands; the latter takes a checkpoint.

    Returns:
        The object of --json, also written to OUT/reproduce.json.

    Raises:
        MachineError: another process reproduces a row in the folder, or it cannot be written.
    """
    if real:
        from vitcli.evaluation.real_labels import read_real

        read_real(real)  # a damaged file is refused before days of training
    # The default folder has no time in its name, so that the same command resumes.
    folder = options.out or Path("runs", f"reproduce-{slug(row.training, merge=False)}")
    options = replace(options, out=folder)
    Progress(quiet=options.quiet, is_main=launch.global_rank() == 0).note(_introduction(row, recipes))

    # The folder is that of this command's workers until the comparison is written.
    from vitcli.distributed import runtime  # loads torch

    owned = OwnedFolder(folder, "reproduction", lock=LOCK, files=(RESULT, REAL_RESULT))

    with runtime.shared_process_group():
        runtime.start("auto").on_main(owned.join)

        # Evaluate the weights alone, fine-tune 19 tasks, or fine-tune one data set.
        if row.protocol == "evaluate":
            runs = _scored([evaluate(row.ckpt)], row)
        elif vtab.tasks_of(row.dataset):
            runs = _vtab(row, recipes, options, finetune)
        else:
            runs = _finetuned(row, recipes[row.dataset], options, finetune, evaluate)

        # Compare with the published value, and write both.
        result = _compared(row, runs, folder)
        if launch.global_rank() == 0:
            write_json(folder / (REAL_RESULT if row.labels == "real" else RESULT), result)
            Cells(folder).end()
    return result


def _compared(row: PaperRow, runs: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the object of --json: the accuracy of the runs beside the published value, with a verdict."""
    scored, accuracies = runs["scored"], [run["top1"] for run in runs["runs"]]
    verdict = judge(accuracies, row.published, row.published_std, scored=scored, expected=row.test_examples)
    verdict["ours"]["runs"] = runs["runs"]
    return {
        "command": "reproduce",
        "row": row.name,
        "about": row.about,
        "scale": row.scale,
        "ckpt": row.ckpt,
        "dataset": row.dataset,
        "labels": row.labels,
        **verdict,
        "lr": runs["lr"],
        "elapsed_s": runs["elapsed_s"],
        "run_dir": str(folder),
    }


def _finetuned(
    row: PaperRow, recipe: Recipe, options: "RunOptions", finetune: Finetune, evaluate: Evaluate
) -> dict[str, Any]:
    """Fine-tune in one run folder; with ReaL labels, evaluate the weights of each run again."""
    summary = finetune(recipe, options)
    if row.labels == "own":
        runs = [{"seed": run["seed"], "top1": run["top1"]} for run in summary["runs"]]
        scored = [(summary["top1"], summary["num_eval_examples"])]
        return {"runs": runs, "scored": scored, "lr": summary["lr"], "elapsed_s": summary["elapsed_s"]}
    seeds = [run["seed"] for run in summary["runs"]]
    folders = [options.out / "runs" / f"seed-{seed}" for seed in seeds]
    folders = folders if folders[0].exists() else [options.out]  # a single run is the folder itself
    rescored = _scored([evaluate(str(folder)) for folder in folders], row)
    for run, seed in zip(rescored["runs"], seeds, strict=True):
        run["seed"] = seed
    return rescored | {"lr": summary["lr"], "elapsed_s": summary["elapsed_s"] + rescored["elapsed_s"]}


def _scored(evaluations: list[dict[str, Any]], row: PaperRow) -> dict[str, Any]:
    """Summarise evaluations of checkpoints, one for each run."""
    is_real = row.labels == "real"
    runs = [{"seed": None, "top1": each["real_top1" if is_real else "top1"]} for each in evaluations]
    num_images = evaluations[0]["num_real_examples" if is_real else "num_eval_examples"]
    scored = [(fmean(run["top1"] for run in runs), num_images)]
    elapsed_s = sum(evaluation["elapsed_s"] for evaluation in evaluations)
    return {"runs": runs, "scored": scored, "lr": None, "elapsed_s": elapsed_s}


def _vtab(
    row: PaperRow, recipes: Mapping[str, Recipe], options: "RunOptions", finetune: Finetune
) -> dict[str, Any]:
    """Fine-tune the 19 tasks; run r of the score is the plain mean of run r of all tasks (paper, Table 9)."""
    tasks, how = vtab.tasks_of(row.dataset), {"out": options.out, "dry_run": False, "quiet": options.quiet}
    vtab.finetune_tasks(
        tasks, recipes, lambda recipe, out: finetune(recipe, replace(options, out=out)), **how
    )
    summaries = {task: finished_summary(options.out / task) for task in tasks}  # of all workers
    by_run = zip(*(summary["runs"] for summary in summaries.values()), strict=True)
    return {
        "runs": [{"seed": run[0]["seed"], "top1": fmean(task["top1"] for task in run)} for run in by_run],
        "scored": [(summary["top1"], summary["num_eval_examples"]) for summary in summaries.values()],
        "lr": next(iter(summaries.values()))["lr"],
        "elapsed_s": sum(summary["elapsed_s"] for summary in summaries.values()),
    }


def _introduction(row: PaperRow, recipes: Mapping[str, Recipe]) -> str:
    if not recipes:
        return f"{row.name}: {row.ckpt} on {row.dataset}, without training"
    first = next(iter(recipes.values()))
    selection = f"{num_arms(first)} choices tried on a dev split, then " if first.choices else ""
    many = f" of each of {len(recipes)} tasks" if len(recipes) > 1 else ""
    return f"{row.name}: {row.ckpt} on {row.dataset}: {selection}{count_of(first.train.runs, 'run')}{many}"


def num_arms(recipe: Recipe) -> int:
    """Return the number of trials of a recipe's sweep."""
    return len(trials(recipe)) if recipe.choices else 0
