"""`vit reproduce`: a row of the paper's tables by its whole protocol, ours against the published value.

The protocol is the paper's (4.1 and B.1.1): each learning rate of Table 4 is tried on a dev split, the chosen
one trained on the whole training set three times, and the test set scored. ReaL labels score the very runs of
the ImageNet row; VTAB is the mean over its 19 tasks, run by run. Loads neither torch nor datasets by itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from vitcli.distributed import launch
from vitcli.errors import VitError, nearest
from vitcli.experiments import vtab
from vitcli.experiments.reproduce_rows import PaperRow, PaperTables, judge, rows_of
from vitcli.output.atomic import write_json
from vitcli.output.progress import Progress
from vitcli.output.run_folder import slug
from vitcli.recipe import Recipe, trials
from vitcli.recipe import load as load_recipe

if TYPE_CHECKING:  # which loads torch; mistakes are told before that
    from vitcli.training.setup import RunOptions

RESULT, REAL_RESULT = "reproduce.json", "reproduce-real.json"  # one run folder has the numbers of two rows
Finetune = Callable[[Recipe, "RunOptions"], dict[str, Any]]
Evaluate = Callable[[str], dict[str, Any]]


def list_rows(rows: PaperTables, pattern: str | None) -> dict[str, Any]:
    """Every row whose name fits: a part of it, or a glob, in any case; None for all."""
    known = rows_of(rows)
    wanted = (pattern or "").lower()
    glob = wanted if any(mark in wanted for mark in "*?[") else f"*{wanted}*"
    fitting = [row for name, row in known.items() if fnmatch(name.lower(), glob)]
    if not fitting:
        told = f"no row fits {pattern!r}{nearest(pattern, known)}"
        raise VitError(told, where="argument ROW", fix="vit reproduce --list shows all of them")
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
        for row in fitting
    ]
    return {"command": "reproduce", "rows": entries}


def resolve(row: PaperRow, *, precision: str | None) -> dict[str, Recipe]:
    """The recipes of a row: one by its data set, of VTAB one by each task, of weights as they are none."""
    if row.protocol == "evaluate":
        return {}
    given = {**row.settings, "model.ckpt": row.ckpt}
    given |= {"precision.compute": precision} if precision else {}
    try:
        tasks = vtab.tasks_of(row.dataset)
        if tasks:
            return vtab.resolve(list(tasks), row.recipe, (), given)
        return {row.dataset: load_recipe(row.recipe, (), {**given, "data.dataset": row.dataset})}
    except VitError as error:  # it names options that nobody has given
        raise VitError(error.message, where=f"the keys that row {row.name} sets", fix=error.fix) from error


def check_labels(row: PaperRow, real: str | None) -> None:
    """Refuse a row of ReaL labels without their file, and the file where another row is meant."""
    if row.labels == "real" and not real:
        raise VitError(
            f"{row.name} is scored by ReaL labels, and no file of them is named",
            where="--real",
            fix="--real real.json, of github.com/google-research/reassessed-imagenet",
        )
    if real and row.labels != "real":
        on = f" on the {row.scale} scale" if row.scale else ""
        fix = "leave it out, or name a row that ends in -real"
        raise VitError(f"{row.name}{on} is not scored by ReaL labels", where="--real", fix=fix)


def reproduce(
    row: PaperRow,
    recipes: Mapping[str, Recipe],
    options: "RunOptions",
    *,
    real: str | None,
    finetune: Finetune,
    evaluate: Evaluate,
) -> dict[str, Any]:
    """Run the protocol of a row, going on where an earlier call was interrupted, and judge its number.

    Args:
        recipes: as `resolve` gives them.
        real: file of ReaL labels, for the rows they score.
        finetune, evaluate: the commands; the latter knows data set and labels and takes a checkpoint.

    Returns:
        What --json prints; it is also written to OUT/reproduce.json.
    """
    from vitcli.evaluation import real_labels

    if real:
        real_labels.read_real(real)  # a damaged file is told before days of training
    folder = options.out or default_folder(row)
    options = replace(options, out=folder)
    Progress(quiet=options.quiet, is_main=launch.global_rank() == 0).note(_introduction(row, recipes))
    if row.protocol == "evaluate":
        folder.mkdir(parents=True, exist_ok=True)
        found = _scored([evaluate(row.ckpt)], row)
    elif vtab.tasks_of(row.dataset):
        found = _vtab(row, recipes, options, finetune)
    else:
        from vitcli.distributed.runtime import shared_process_group

        with shared_process_group():
            found = _finetuned(row, recipes[row.dataset], options, finetune, evaluate)
    accuracies = [run["top1"] for run in found["runs"]]
    judged = judge(
        accuracies, row.published, row.published_std, scored=found["scored"], expected=row.test_examples
    )
    judged["ours"]["runs"] = found["runs"]
    result = {
        "command": "reproduce",
        "row": row.name,
        "about": row.about,
        "scale": row.scale,
        "ckpt": row.ckpt,
        "dataset": row.dataset,
        "labels": row.labels,
        **judged,
        "lr": found["lr"],
        "elapsed_s": found["elapsed_s"],
        "run_dir": str(folder),
    }
    if launch.global_rank() == 0:
        name = REAL_RESULT if row.labels == "real" else RESULT
        write_json(folder / name, result)
    return result


def _finetuned(
    row: PaperRow, recipe: Recipe, options: "RunOptions", finetune: Finetune, evaluate: Evaluate
) -> dict[str, Any]:
    """Selection and runs in one run folder; with ReaL labels the weights of each run are scored again."""
    summary = finetune(recipe, options)
    if row.labels == "own":
        runs = [{"seed": run["seed"], "top1": run["top1"]} for run in summary["runs"]]
        scored = [(summary["top1"], summary["num_eval_examples"])]
        return {"runs": runs, "scored": scored, "lr": summary["lr"], "elapsed_s": summary["elapsed_s"]}
    seeds = [run["seed"] for run in summary["runs"]]
    own = [options.out / "runs" / f"seed-{seed}" for seed in seeds]
    places = own if own[0].exists() else [options.out]  # a single run is the folder itself
    found = _scored([evaluate(str(place)) for place in places], row)
    for run, seed in zip(found["runs"], seeds, strict=True):
        run["seed"] = seed
    return found | {"lr": summary["lr"], "elapsed_s": summary["elapsed_s"] + found["elapsed_s"]}


def _scored(evaluations: list[dict[str, Any]], row: PaperRow) -> dict[str, Any]:
    """What evaluations of checkpoints come to, one a run."""
    name, count = (
        ("real_top1", "num_real_examples") if row.labels == "real" else ("top1", "num_eval_examples")
    )
    runs = [{"seed": None, "top1": one[name]} for one in evaluations]
    mean = fmean(run["top1"] for run in runs)
    elapsed_s = sum(one["elapsed_s"] for one in evaluations)
    return {"runs": runs, "scored": [(mean, evaluations[0][count])], "lr": None, "elapsed_s": elapsed_s}


def _vtab(
    row: PaperRow, recipes: Mapping[str, Recipe], options: "RunOptions", finetune: Finetune
) -> dict[str, Any]:
    """The 19 tasks; run r of all of them is run r of the score, a plain mean (paper, Table 9)."""
    summaries: dict[str, dict[str, Any]] = {}

    def one_task(recipe: Recipe, out: Path) -> dict[str, Any]:
        summaries[out.name] = finetune(recipe, replace(options, out=out))
        return summaries[out.name]

    vtab.finetune_tasks(vtab.tasks_of(row.dataset), recipes, one_task, out=options.out, dry_run=False)
    each = list(summaries.values())
    by_run = zip(*(summary["runs"] for summary in each), strict=True)
    return {
        "runs": [{"seed": run[0]["seed"], "top1": fmean(one["top1"] for one in run)} for run in by_run],
        "scored": [(summary["top1"], summary["num_eval_examples"]) for summary in each],
        "lr": each[0]["lr"],
        "elapsed_s": sum(summary["elapsed_s"] for summary in each),
    }


def _introduction(row: PaperRow, recipes: Mapping[str, Recipe]) -> str:
    if not recipes:
        return f"{row.name}: {row.ckpt} on {row.dataset}, as it is"
    first = next(iter(recipes.values()))
    selection = f"{num_arms(first)} choices tried on a dev split, then " if first.choices else ""
    many = f" of each of {len(recipes)} tasks" if len(recipes) > 1 else ""
    return f"{row.name}: {row.ckpt} on {row.dataset}: {selection}{first.train.runs} run(s){many}"


def num_arms(recipe: Recipe) -> int:
    """Trainings among which a recipe chooses."""
    return len(trials(recipe)) if recipe.choices else 0


def default_folder(row: PaperRow) -> Path:
    """Return the default folder of a row, without the time, so that the same command resumes."""
    return Path("runs", f"reproduce-{slug(row.training, merge=False)}")
