"""`--dataset vtab`: the 19 tasks of VTAB-1k, or some of them (paper, 4.1 and B.1.1).

Every task is an ordinary resumable run in its own folder below --out; the score is the mean over tasks. Loads
neither torch nor datasets, which commands load after they know which tasks are named.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from vitcli import recipe
from vitcli.data.aliases import local_copy
from vitcli.data.vtab import GROUPS, NUM_TASKS, VTAB
from vitcli.errors import DataError, VitError, WeightsError, nearest
from vitcli.output import run_folder, text
from vitcli.output.atomic import write_json
from vitcli.output.document import simple_table
from vitcli.output.leases import Cells
from vitcli.output.owned_folder import OwnedFolder
from vitcli.output.progress import Progress
from vitcli.output.run_folder import earlier_summary
from vitcli.output.shared_work import SharedWork, WorkCell
from vitcli.output.summaries import VtabSummary, VtabTask
from vitcli.recipe import Recipe

MOST_NAMED = 4


def tasks_of(dataset: str | None) -> dict[str, str]:
    """Return the tasks that --dataset names, with their groups; {} for any other data set.

    "vtab" is all 19, "vtab/dtd,vtab/svhn" a list; "vtab/dtd" alone is a data set like any other.
    """
    names = [name.strip() for name in (dataset or "").split(",")]
    if names != [VTAB] and not (len(names) > 1 and all(name.startswith(f"{VTAB}/") for name in names)):
        return {}
    entries = recipe.dataset_aliases().items()
    known = {alias.removeprefix(f"{VTAB}/"): entry[VTAB] for alias, entry in entries if VTAB in entry}
    if names == [VTAB]:
        return known
    tasks = [name.removeprefix(f"{VTAB}/") for name in names]
    for task in tasks:
        if task not in known or tasks.count(task) > 1:
            problem = "is named twice" if task in known else f"is not a task of VTAB{nearest(task, known)}"
            fix = f"{VTAB} for all, or some of {', '.join(known)}"
            raise VitError(f"{VTAB}/{task} {problem}", where="--dataset", fix=fix)
    return {task: known[task] for task in tasks}


def resolve(
    tasks: Sequence[str], recipe_name: str | None, overrides: Sequence[str], shorthands: Mapping[str, Any]
) -> dict[str, Recipe]:
    """Return the recipe of each task: the named one for all, or the default of the task."""
    recipes = {}
    for task in tasks:
        alias = f"{VTAB}/{task}"
        name = recipe_name or recipe.find_for_dataset("finetune", alias)
        recipes[task] = recipe.load(name, overrides, {**shorthands, "data.dataset": alias})
    return recipes


def finetune_tasks(
    groups: Mapping[str, str],
    recipes: Mapping[str, Recipe],
    finetune: Callable[[Recipe, Path], dict[str, Any]],
    *,
    out: Path | None,
    dry_run: bool,
    quiet: bool = False,
) -> dict[str, Any]:
    """Fine-tune the tasks that no other worker of the command does, resuming where it was interrupted.

    Args:
        groups: the group of each task, in order.
        finetune: trains a recipe in a run folder and returns the summary; at once if that is finished.

    Returns:
        The object of --json, also written to OUT/summary.json after each task.
    """
    # The default folder is without the time, so that the same command resumes.
    model = next(iter(recipes.values())).model
    word = Path(model.ckpt or "").name + (f"-{model.name}" if model.name else "")
    folder = out or Path("runs", f"finetune-{VTAB}-{run_folder.slug(word, merge=False)}")
    run_folder.refuse_run(folder, VTAB)

    def run(task: str) -> dict[str, Any]:
        return finetune(recipes[task], folder / task)

    from vitcli.distributed import runtime  # loads torch

    # A dry run returns the plans alone.
    if dry_run:
        with runtime.shared_process_group():
            return {"command": "finetune", "dataset": VTAB, "plans": {task: run(task) for task in groups}}

    # Missing data is reported before the first task.
    _check_data([task for task in groups if not run_folder.finished_summary(folder / task)], recipes)
    owned = OwnedFolder(folder, "VTAB run", lock=f".vit-{VTAB}.lock", files=(run_folder.SUMMARY,))

    # The tasks of a worker run in one process group.
    with runtime.shared_process_group():
        worker = runtime.start("auto")

        def write_summary(*_: Any) -> None:
            worker.on_main(lambda: write_json(folder / run_folder.SUMMARY, _so_far(groups, folder)))

        worker.on_main(owned.join)
        cells = []
        for task in groups:
            finished = partial(earlier_summary, folder / task, recipes[task])
            cells.append(WorkCell(task, folder / task, partial(run, task), finished))
        SharedWork(cells, folder, worker, Progress(quiet=quiet), write_summary).run()
        worker.on_main(Cells(folder).end)
        return worker.on_main(partial(_so_far, groups, folder))


def _so_far(groups: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """Return the object of --json from what all workers have finished, tasks that are not listed included."""
    everything = tasks_of(VTAB)
    found = {task: run_folder.finished_summary(folder / task) for task in everything}
    summaries = {task: summary for task, summary in found.items() if summary}
    known = {task: group for task, group in everything.items() if task in groups or task in summaries}
    return _result("finetune", known, summaries, folder)


def evaluate_tasks(
    groups: Mapping[str, str], ckpt: str, evaluate: Callable[[str, str], dict[str, Any]]
) -> dict[str, Any]:
    """Evaluate the checkpoint of each finished task below the folder `ckpt`."""
    folder = Path(ckpt)
    finished = [task for task in groups if (folder / task / run_folder.WEIGHTS).is_file()]
    if not finished:
        fix = "the --out of vit finetune --dataset vtab, which has a folder for each task"
        raise WeightsError("no task of VTAB is finished in this folder", where=f"--ckpt {ckpt}", fix=fix)
    from vitcli.distributed import runtime  # loads torch

    with runtime.shared_process_group():
        scores = {task: evaluate(f"{VTAB}/{task}", str(folder / task)) for task in finished}
    return _result("evaluate", groups, scores, folder)


def render(result: dict[str, Any]) -> str:
    """Return the table of all tasks, or of their plans, as text for a terminal."""
    if "plans" in result:
        return _render_plans(result["plans"])
    columns = {"task": "id", "group": "id", "top-1": "number", "images": "number", "run folder": "text"}
    cells = []
    for task, entry in result["tasks"].items():
        count = "" if entry["top1"] is None else str(entry["num_eval_examples"])
        cells.append((task, entry["group"], text.percent(entry["top1"]), count, entry["run_dir"]))
    table = simple_table(columns, cells).as_text()
    rows = [(name, text.percent(mean)) for name, mean in result["groups"].items()]
    count, mean = result["num_finished"], text.percent(result["mean_of_finished"])
    missing = NUM_TASKS - count
    score = f"{missing} of {NUM_TASKS} tasks are missing" if missing else text.percent(result["top1"])
    rows += [("VTAB", score), ("mean of", f"{mean} ({count} finished task{'s' * (count != 1)})")]
    return f"{table}\n{text.pairs(rows)}"


def _render_plans(plans: Mapping[str, dict[str, Any]]) -> str:
    """Return a table of the plans; --json has the full plans and recipes."""
    is_measured = any("measured_hours" in plan for plan in plans.values())
    numbers = ["steps", "batch", "GMACs", "GiB", "exaFLOPs", *(["hours"] if is_measured else [])]
    cells = []
    for task, plan in plans.items():
        costs = [f"{plan['total_steps']:,}", f"{plan['batch_size']:,}", f"{plan['forward_gmacs']:,.3g}"]
        costs += [f"{plan['estimated_peak_memory_gib']:.2g}", text.exaflops(plan["exaflops"])]
        costs += [f"{plan['measured_hours']:.2f}"] if is_measured else []
        cells.append((f"{VTAB}/{task}", *costs))
    table = simple_table({"task": "id", **dict.fromkeys(numbers, "number")}, cells).as_text()
    first = next(iter(plans.values()))
    processes = text.count_of(first["world_size"], "process", "processes")
    counts = [plan["exaflops"] for plan in plans.values()]
    total = "not counted" if None in counts else f"{text.compute_text(sum(counts))} in total"
    rows = [
        ("model", f"{first['model']}, {first['precision']} on {processes}"),
        ("compute", total),
        ("columns", "GMACs of one image's forward pass, estimated GiB per process"),
        ("more", "--json: the recipe and the plan of each task"),
    ]
    return f"{table}\n{text.pairs(rows)}"


def _result(
    command: str, groups: Mapping[str, str], summaries: Mapping[str, dict[str, Any]], folder: Path
) -> dict[str, Any]:
    # Every task with its score, None for those that are not finished.
    entries = {}
    for task, group in groups.items():
        scores = {key: summaries.get(task, {}).get(key) for key in ("top1", "num_eval_examples")}
        entries[task] = VtabTask.written({"group": group, **scores, "run_dir": str(folder / task)})
    # The means; the score needs all 19 tasks, a list of some has none.
    top1 = {task: summary["top1"] for task, summary in summaries.items()}
    result = {"command": command, "dataset": VTAB, "run_dir": str(folder), "tasks": entries}
    result |= vtab_scores(top1, tasks_of(VTAB))
    result |= {"mean_of_finished": sum(top1.values()) / len(top1), "num_finished": len(top1)}
    return VtabSummary.written(result)


def vtab_scores(top1_by_task: Mapping[str, float], group_of: Mapping[str, str]) -> dict[str, Any]:
    """Return the mean accuracy of each group and of all tasks in `group_of`; None where a task is missing.

    The score is the plain mean of the 19 tasks (77.63 for ViT-H/14, Table 9), in which the groups of 7, 4 and
    8 weigh by their size, and not the mean of the three group means (79.57).
    """

    def mean(tasks: list[str]) -> float | None:
        is_whole = tasks and all(task in top1_by_task for task in tasks)
        return fmean(top1_by_task[task] for task in tasks) if is_whole else None

    groups = {name: mean([task for task, group in group_of.items() if group == name]) for name in GROUPS}
    return {"groups": groups, "top1": mean(list(group_of))}


def _check_data(tasks: Sequence[str], recipes: Mapping[str, Recipe]) -> None:
    """Check the data of all tasks before the first one, so that none is found missing after hours."""
    from vitcli.data.dataset import DataSet
    from vitcli.data.sources.tables import Choices

    missing: dict[str, DataError] = {}
    is_offline = False
    for task in tasks:
        data = recipes[task].data
        is_remote = "hub" in recipe.dataset_aliases()[data.dataset]
        if is_offline and is_remote and not local_copy(data.dataset):
            continue  # the Hub is offline, and asking it takes half a minute
        try:
            DataSet(data.dataset, Choices(streaming=data.streaming))
        except DataError as error:
            missing[task] = error
            is_offline |= is_remote
    if missing:
        names = [f"{VTAB}/{task}" for task in missing]
        first = next(iter(missing.values()))
        raise DataError(
            f"{'at least ' if is_offline else ''}{len(names)} of {len(tasks)} tasks have no data here: "
            f"{text.first_few(names, MOST_NAMED)}",
            where=f"the first task: {first.message}",
            fix="put their data below $VIT_DATA, or list the other tasks: --dataset vtab/dtd,vtab/svhn",
        )
