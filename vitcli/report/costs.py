"""Tables about the runs themselves: progress, trials of sweeps, resources used, and settings."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from vitcli.output.document import Cell, Header, Row, Table, fraction_cell, number_cell
from vitcli.output.summaries import ResultSummary
from vitcli.output.text import duration, size_text, value_text
from vitcli.report.grouping import word
from vitcli.report.runs import Point, Run, RunCollection, TrialScore, is_number
from vitcli.report.tables import Names

RUN = Header("run", kind="text")  # of the first column
STATES = {True: "running", False: "stopped", None: "unknown"}


def progress(collection: RunCollection, names: Names) -> Table:
    """Return the runs that have no summary yet."""
    rows = []
    for run in collection.unfinished:
        now = run.progress
        fraction = now.step / now.total_steps if now.total_steps else None
        left = duration(now.seconds_left) if now.is_live is not False else ""
        cells = (
            Cell(now.text, fraction, note=now.part),
            Cell(STATES[now.is_live]),
            Cell(left, now.seconds_left),
            number_cell(_last(run.losses), "{:.4f}"),
            fraction_cell(_last(run.accuracies)),
        )
        rows.append(Row(_header(run.path, run, names), cells))
    caption = (
        "Runs without a summary yet: the last logged step, the time for the remaining steps, the last "
        "training loss and held-out top-1 in %. A stopped run resumes with its own command line."
    )
    numbers = map(Header, ("left", "training loss", "held-out top-1"))
    headers = (Header("progress"), Header("process", kind="text"), *numbers)
    return Table("progress", "In progress", caption, RUN, headers, tuple(rows))


def trials(collection: RunCollection, names: Names) -> Table:
    """Return the trials of each sweep and what was chosen on the dev split (paper, appendix B.1.1)."""
    sweeps = [run for run in collection.runs if run.trials]
    columns = [trial_name(values) for values in _in_order([t.values for run in sweeps for t in run.trials])]
    rows = []
    for run in sweeps:
        by_name = {trial_name(trial.values): trial for trial in run.trials}
        cells = tuple(_trial_cell(by_name.get(name)) for name in columns)
        rows.append(Row(_header(run.path, run, names), cells))
    caption = (
        "Top-1 accuracy in % of each trial on the dev split, which is cut from the training split; the "
        "chosen one in bold."
    )
    headers = tuple(map(Header, columns))
    title = "Selection on the dev split"
    return Table("selection", title, caption, RUN, headers, tuple(rows), is_at_end=True)


def costs(collection: RunCollection, names: Names) -> Table:
    """Return the resources that each finished run has used."""
    rows = []
    records = (*collection.runs, *collection.vtab_runs, *collection.fewshots, *collection.evaluations)
    for path, used in ((record.path, record.summary) for record in records if record.summary):
        cells = (
            number_cell(used.images_per_s, "{:,.1f}"),
            Cell(duration(used.elapsed_s), used.elapsed_s),
            number_cell(used.exaflops),
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
    numbers = (*map(Header, ("images/s", "time", "exaFLOPs")), Header("memory", "GiB"), Header("processes"))
    headers = (*numbers, Header("precision", kind="text"))
    return Table("costs", "Costs", caption, RUN, headers, tuple(rows), is_at_end=True)


def runs(collection: RunCollection, names: Names) -> Table:
    """Return the settings of each training run and the accuracy of every seed."""
    rows = []
    for run in collection.runs:
        summary, recipe = run.summary, run.recipe
        origin = names.ckpts[run.ckpt] if run.ckpt else "fresh weights"
        scores = summary.runs if summary else ()
        top1s = [f"{100 * of.top1:.2f} (seed {of.seed})" for of in scores if of.top1 is not None]
        cells = (
            Cell(origin),
            Cell(size_text(run.resolution) if run.resolution else ""),
            _value_cell(summary.steps if summary else recipe.get("schedule.steps")),
            _value_cell(summary.batch_size if summary else recipe.get("train.batch_size")),
            _value_cell(summary.lr if summary else recipe.get("optimizer.lr")),
            Cell(", ".join(top1s) or (run.progress.text if run.progress else "")),
        )
        rows.append(Row(_header(run.path, run, names), cells))
    caption = "Every training run with its folder, and the held-out top-1 in % of each seed."
    numbers = map(Header, ("px", "steps", "batch", "lr"))
    headers = (Header("from", kind="text"), *numbers, Header("top-1 of each run", kind="text"))
    return Table("runs", "Training runs", caption, RUN, headers, tuple(rows), is_at_end=True)


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
    note = "not finite" if trial.dev_top1 is None else "chosen" if trial.is_chosen else ""
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
