"""Tables about the runs themselves: progress, trials of sweeps, resources used, and settings."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from vitcli.output import run_folder
from vitcli.output.document import Cell, Header, Row, Table, fraction_cell, number_cell
from vitcli.output.leases import FAILED, RUNNING, Cells
from vitcli.output.scores import SHOWN, cell_of, header_of, shown
from vitcli.output.summaries import AverageRecord, ResultSummary
from vitcli.output.text import count_of, duration, interval_text, size_text, value_text
from vitcli.report.grouping import best_of_their_images, compute_column, interval_note, word
from vitcli.report.runs import (
    AnyRecord,
    FewshotRecord,
    Names,
    Point,
    Run,
    RunCollection,
    TrialScore,
    is_number,
)
from vitcli.report.scan import EVALUATION

RUN = Header("run", kind="text")  # of the first column
SETTINGS = (Header("from", kind="text"), *map(Header, ("px", "steps", "batch", "lr")))  # of finished runs
STATES = {True: "running", False: "stopped", None: "unknown"}


def progress(collection: RunCollection, names: Names) -> Table:
    """Return the runs that have no summary yet."""
    rows = []
    for run in collection.unfinished:
        now, top1 = run.progress, _last(run.accuracies)
        fraction = now.step / now.total_steps if now.total_steps else None
        left = duration(now.seconds_left) if now.is_live is not False else ""
        interval = interval_note(top1, run.num_evaluated)
        images = f"{interval}, {count_of(run.num_evaluated, 'image')}" if interval else ""
        cells = (
            Cell(now.text, fraction, note=now.part),
            Cell(STATES[now.is_live]),
            Cell(left, now.seconds_left),
            number_cell(_last(run.losses), "{:.4f}"),
            fraction_cell(top1, note=images),
            Cell("" if now.is_live else now.command),
        )
        rows.append(Row(_header(run.path, run, names), cells))
    caption = (
        "Runs without a summary yet: the last step logged or saved, the time for the remaining steps, the "
        "last training loss and held-out top-1 in % with its 95 % interval. A stopped run resumes with its "
        "own command line, at its newest checkpoint."
    )
    numbers = map(Header, ("left", "training loss", "held-out top-1"))
    command = Header("resume with", kind="command")
    headers = (Header("progress"), Header("process", kind="text"), *numbers, command)
    return Table("progress", "Unfinished", caption, RUN, headers, tuple(rows))


def trials(collection: RunCollection, names: Names) -> Table:
    """Return the trials of each sweep and what was chosen on the dev split (paper, appendix B.1.1)."""
    sweeps = [run for run in collection.runs if run.trials]
    columns = [trial_name(values) for values in _in_order([t.values for run in sweeps for t in run.trials])]
    rows = []
    for run in sweeps:
        by_name = {trial_name(trial.values): trial for trial in run.trials}
        cells = tuple(_trial_cell(by_name.get(name)) for name in columns)
        counts = {trial.num_images for trial in run.trials if trial.num_images}
        header = _header(run.path, run, names)
        scored = f", scored on {count_of(counts.pop(), 'image')}" if len(counts) == 1 else ""
        rows.append(Row(replace(header, detail=header.detail + scored), cells))
    caption = (
        "Top-1 accuracy in % of each trial on the dev split, which is cut from the training split; the "
        "chosen one in bold. Small print: the 95 % interval over the images. Several labels are chosen by "
        "mean average precision, numbers by the loss."
    )
    headers = tuple(map(Header, columns))
    title = "Selection on the dev split"
    return Table("selection", title, caption, RUN, headers, tuple(rows), is_at_end=True)


def costs(collection: RunCollection, names: Names) -> Table:
    """Return the resources that each finished run has used."""
    trained = (*collection.runs, *collection.vtab_runs)
    records = (*trained, *collection.fewshots, *collection.evaluations)
    finished = [(record.path, record.summary) for record in records if record.summary]
    compute, compute_cells = compute_column([used.exaflops for _, used in finished])
    has_compute = any(used.exaflops for _, used in finished)  # few-shot runs and evaluations train nothing
    rows = []
    for (path, used), computed in zip(finished, compute_cells, strict=True):
        cells = (
            number_cell(used.images_per_s, "{:,.1f}"),
            Cell(duration(used.elapsed_s), used.elapsed_s),
            *([computed] if has_compute else []),
            number_cell(used.peak_memory_gib, "{:.2f}"),
            number_cell(used.num_processes, "{}"),
            Cell(used.precision or ""),
        )
        rows.append(Row(_header(path, used, names), cells))
    caption = (
        "Resources that each run has used: throughput and time of all its processes, the compute of training "
        "as the paper counts it (for each image 6 times the multiply-adds of a forward pass), and the peak "
        "memory of a process."
    )
    numbers = (*map(Header, ("images/s", "time")), *([compute] if has_compute else []))
    settings = (Header("memory", "GiB"), Header("processes"), Header("precision", kind="text"))
    headers = (*numbers, *settings)
    return Table("costs", "Costs", caption, RUN, headers, tuple(rows), is_at_end=True)


def runs(collection: RunCollection, names: Names, *, is_at_end: bool) -> Table:
    """Return the settings of each finished training run, its accuracy, and that of every seed.

    Args:
        is_at_end: behind the figures, where tables of data sets by networks have the accuracies, too.
    """
    finished = [run for run in collection.runs if run.summary and not run.summary.are_errors]
    best = best_of_their_images(finished, names, "top1")
    has_seeds = any(len(run.summary.runs) > 1 for run in finished)
    rows = []
    for run in finished:
        summary = run.summary
        accuracy = fraction_cell(summary.top1, summary.top1_std, count=max(1, len(summary.runs)))
        top1s = [f"{100 * of.top1:.2f} (seed {of.seed})" for of in summary.runs if of.top1 is not None]
        cells = (
            replace(accuracy, is_best=run.path in best),
            Cell(interval_note(summary.top1, run.images.count, summary.intervals.get("top1"))),
            cell_of(summary, "mean_ap"),
            number_cell(run.images.count, "{:,}"),
            *settings_cells(run, names),
            Cell(", ".join(top1s) if has_seeds else ""),
            Cell(average_text(summary.average)),
        )
        header = _header(run.path, run, names)
        where = ", ".join(filter(None, (header.detail, run.split)))
        rows.append(Row(replace(header, detail=where), cells))
    caption = (
        "Every finished training run with its folder: held-out top-1 in %, its 95 % interval over the images "
        "and their number. Of runs scored on the same images the best is in bold."
    )
    if any(run.summary.mean_ap is not None for run in finished):
        caption += " Of several labels per image, mAP is the mean average precision."
    if any(run.summary.average for run in finished):
        caption += " An average of several runs is made of their weights; its own top-1 stands behind it."
    scores = (header_of("top1"), Header("95 %", "interval"), header_of("mean_ap"), Header("images"))
    texts = (Header(name, kind="text") for name in ("top-1 of each run", "delivered"))
    headers = (*scores, *SETTINGS, *texts)
    table = Table("runs", "Training runs", caption, RUN, headers, tuple(rows), is_at_end=is_at_end)
    return table.without_empty()


def settings_cells(run: Run, names: Names) -> tuple[Cell, ...]:
    """Return the cells of the columns SETTINGS of a finished run."""
    summary = run.summary
    return (
        Cell(names.ckpts[run.ckpt] if run.ckpt else "fresh weights"),
        Cell(size_text(run.resolution) if run.resolution else ""),
        _value_cell(summary.steps),
        _value_cell(summary.batch_size),
        _value_cell(summary.lr if summary.lr is not None else run.recipe.get("optimizer.lr")),
    )


def average_text(average: AverageRecord | None) -> str:
    """Return what was made of several runs, and its accuracy; empty where there is no average."""
    if average is None:
        return ""
    count, members = len(average.runs), sum(run.weight != 0 for run in average.runs)
    made = {
        "uniform": f"mean of {count} runs",
        "greedy": f"mean of {members} of {count} runs",
        "run": f"best of {count} runs, no average",
    }
    tested = ", untested" if average.accepted is None else ""
    return f"{made[average.delivered]}, {100 * average.top1:.2f}{tested}"


def without_shared(table: Table) -> tuple[str, Table]:
    """Return what the small print of all runs of a table has in common, ": finetune, demo", and the rest."""
    details = [row.head.detail.split(", ") for row in table.rows]
    shared = [part for part in details[0] if part and all(part in parts for parts in details)]
    if table.corner != RUN or not shared:
        return "", table
    rows = [
        replace(row, head=replace(row.head, detail=", ".join(part for part in parts if part not in shared)))
        for row, parts in zip(table.rows, details, strict=True)
    ]
    return f": {', '.join(shared)}", replace(table, rows=tuple(rows))


def listing(collection: RunCollection, names: Names, *, now: float) -> Table:
    """Return a line for each run and evaluation: state, accuracy, data and age, the newest first.

    Args:
        now: seconds since the epoch, as `time.time` returns them.
    """
    ages = {record.path: max(0.0, now - _changed_at(record.path)) for record in collection.records}
    rows = []
    for record in sorted(collection.records, key=lambda record: ages[record.path]):
        if isinstance(record, Run) and record.progress:
            state = f"{STATES[record.progress.is_live]}, {record.progress.text}"
            top1, count, known = _last(record.accuracies), record.num_evaluated, None
        else:
            average = record.summary.average if isinstance(record, Run) and record.summary else None
            state = f"finished, {average_text(average)}" if average else "finished"
            count = record.images.count
            top1 = getattr(record.summary, "top1", None)
            known = getattr(record.summary, "intervals", {}).get("top1")
        note = ""
        if isinstance(record, FewshotRecord) and record.summary.shots:  # the most images per class
            shots, of_shots = max(record.summary.shots.items(), key=lambda entry: int(entry[0]))
            top1, note = of_shots.mean, f"{shots}-shot"
        note = note or _other_score(record)
        age = ages[record.path]
        cells = (
            Cell(state),
            fraction_cell(top1, note=note),
            Cell(interval_note(top1, count, known)),
            number_cell(count, "{:,}"),
            Cell(names.data(record.dataset)),
            Cell(duration(age), age),
        )
        rows.append(Row(Header(names.folder(record.path), folder=record.path), cells))
        rows += _cell_rows(names.folder(record.path), record.path, now)
    for parts in sorted(collection.parts, key=lambda parts: -parts.path.stat().st_mtime):
        age, count = max(0.0, now - parts.path.stat().st_mtime), number_cell(parts.num_examples, "{:,}")
        cells = (Cell(parts.state), Cell(), Cell(), count, Cell(names.data(parts.dataset)))
        head = Header(names.folder(parts.path), folder=parts.path)
        rows.append(Row(head, (*cells, Cell(duration(age), age))))
        rows += _cell_rows(names.folder(parts.path), parts.path, now, is_brief=True)
    numbers = (Header("top-1"), Header("95 %"), Header("images"))
    headers = (Header("state", kind="text"), *numbers, Header("data", kind="clipped"), Header("age"))
    names_whole = replace(RUN, kind="id")
    return Table("list", "Runs", "All runs, the newest first.", names_whole, headers, tuple(rows))


def _cell_rows(name: str, path: Path, now: float, *, is_brief: bool = False) -> list[Row]:
    """Return a line for each part of work in a folder that workers share: who does it, and since when.

    Args:
        is_brief: only what is running or has failed, of many.
    """
    rows = []
    for cell, now_of in Cells(path).states().items():
        if is_brief and now_of.state not in (RUNNING, FAILED):
            continue
        owner = now_of.owner
        is_here = isinstance(owner.get("host"), str) and is_number(owner.get("at"))
        age = max(0.0, now - owner["at"]) if is_here else None
        where = f" on {owner['host']}, pid {owner.get('pid')}" if is_here and now_of.state == RUNNING else ""
        state = "running, its worker has ended" if where and now_of.is_live is False else now_of.state + where
        age_cell = Cell("" if age is None else duration(age), age)
        rows.append(Row(Header(f"{name}/{cell}"), (Cell(state), Cell(), Cell(), Cell(), Cell(), age_cell)))
    return rows


def _other_score(record: AnyRecord) -> str:
    """Return the score of what is not judged by top-1; empty for the rest."""
    summary = record.summary
    key = next((key for key in ("mae", "mean_ap") if getattr(summary, key, None) is not None), None)
    return f"{SHOWN[key].label} {shown({key: getattr(summary, key)}, key)}" if key else ""


def _changed_at(path: Path) -> float:
    """Return when a run has last written its summary, or its metrics."""
    files = (path / name for name in (run_folder.SUMMARY, EVALUATION, run_folder.METRICS))
    return next((file.stat().st_mtime for file in files if file.exists()), path.stat().st_mtime)


def trial_name(values: dict[str, Any]) -> str:
    """Return the values of a trial, "lr 0.003, momentum 0.9"."""
    return ", ".join(word(key, value_text(value)) for key, value in values.items())


def _in_order(trials: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each trial once, sorted if its values are numbers, else in the order of training."""
    unique = list({trial_name(values): values for values in trials}.values())
    has_numbers = all(is_number(value) for values in unique for value in values.values())
    return sorted(unique, key=lambda values: list(values.items())) if has_numbers else unique


def _trial_cell(trial: TrialScore | None) -> Cell:
    if trial is None:
        return Cell()
    interval = interval_text(trial.interval) if trial.interval else ""
    is_finite = trial.dev_top1 is not None or trial.dev_mae is not None
    state = ("chosen" if trial.is_chosen else "") if is_finite else "not finite"
    if trial.dev_mae is not None:
        cell = number_cell(trial.dev_mae, "{:.4g}")
        return replace(cell, is_best=trial.is_chosen, note=", ".join(filter(None, ("MAE", state))))
    note = ", ".join(filter(None, (interval, state)))
    return replace(fraction_cell(trial.dev_top1, note=note), is_best=trial.is_chosen)


def _last(curves: tuple[tuple[Point, ...], ...]) -> float | None:
    return curves[-1][-1][1] if curves and curves[-1] else None


def _header(folder: Path, run: Run | ResultSummary, names: Names) -> Header:
    return Header(names.folder(folder), f"{run.command}, {run.model}, {names.data(run.dataset)}", folder)


def _value_cell(value: Any) -> Cell:
    """Return a number of a recipe, or the values of a sweep that is not decided yet."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(f"{value:,}" if isinstance(value, int) else f"{value:g}", float(value))
    if isinstance(value, list):
        return Cell(" / ".join(map(value_text, value)))
    return Cell("" if value is None else str(value))
