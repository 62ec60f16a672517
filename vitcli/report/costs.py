"""The tables about the runs themselves: how far they are, what was chosen, what they cost, where they lie."""

from dataclasses import replace
from typing import Any

from vitcli.output.document import Cell, Header, Row, Table, fraction_cell, number_cell
from vitcli.output.summaries import ResourceUse
from vitcli.output.text import size_text, value_text
from vitcli.report.grouping import word
from vitcli.report.runs import Choice, Run, RunCollection, is_number
from vitcli.report.tables import Names

RUN = Header("run", kind="text")  # of the first column


def progress(material: RunCollection, names: Names) -> Table | None:
    """The runs that have no summary yet."""
    lines = []
    for run in material.unfinished:
        now = run.progress
        part = now.step / now.total_steps if now.total_steps else None
        loss = run.losses[-1][-1][1] if run.losses and run.losses[-1] else None
        top1 = run.accuracies[-1][-1][1] if run.accuracies and run.accuracies[-1] else None
        state = {True: "running", False: "stopped", None: "unknown"}[now.is_live]
        left = duration(now.seconds_left) if now.is_live is not False else ""
        cells = (
            Cell(now.in_words, part, note=now.part), Cell(state), Cell(left, now.seconds_left),
            number_cell(loss, "{:.4f}"), fraction_cell(top1),
        )  # fmt: skip
        lines.append(Row(Header(names.folder(run.path), _about(run, names), run.path), cells))
    caption = (
        "Runs without a summary yet: the step they have logged last, the time their steps still need, the "
        "last training loss and held-out top-1 in %. One that was stopped goes on with its own command line."
    )
    heads = (
        Header("progress"),
        Header("process", kind="text"),
        *(Header(name) for name in ("left", "training loss", "held-out top-1")),
    )
    return Table("progress", "Under way", caption, RUN, heads, tuple(lines))


def selection(material: RunCollection, names: Names) -> Table | None:
    """What each selection was between, and what was chosen on the dev split (paper, appendix B.1.1)."""
    chosen = [run for run in material.runs if run.choices]
    columns = [in_words(keys) for keys in _in_order([one.keys for run in chosen for one in run.choices])]
    lines = []
    for run in chosen:
        found = {in_words(one.keys): one for one in run.choices}
        cells = tuple(_choice(found.get(words)) for words in columns)
        lines.append(Row(Header(names.folder(run.path), _about(run, names), run.path), cells))
    caption = (
        "Top-1 accuracy in % on the dev split, which is cut from the training split, for each choice; the "
        "chosen one in bold."
    )
    heads = tuple(Header(words) for words in columns)
    return Table("selection", "Selection on the dev split", caption, RUN, heads, tuple(lines))


def costs(material: RunCollection, names: Names) -> Table | None:
    """What each finished run has used."""
    tasks = [run for vtab in material.vtabs for run in vtab.runs]
    lines = [
        _cost_line(names.folder(run.path), _about(run, names), run.path, run.summary)
        for run in (*material.runs, *tasks)
        if run.summary
    ]
    for one in material.fewshots:
        detail = f"fewshot, {one.summary.model}, {names.data(one.dataset)}"
        lines.append(_cost_line(names.folder(one.path), detail, one.path, one.summary))
    for one in material.scored:
        detail = f"evaluate, {one.said.model}, {names.data(one.dataset)}"
        lines.append(_cost_line(names.folder(one.path), detail, one.path, one.said))
    caption = (
        "What each run has used: speed and time of all its processes together, the compute of training as "
        "the paper counts it (for each image 6 times the multiply-adds of a forward pass), and the peak "
        "memory of a process."
    )
    heads = (
        *map(Header, ("images/s", "time", "exaFLOPs")),
        Header("memory", "GiB"),
        Header("processes"),
        Header("precision", kind="text"),
    )
    return Table("costs", "Costs", caption, RUN, heads, tuple(lines))


def runs(material: RunCollection, names: Names) -> Table | None:
    """Where each training run lies, what it was, and the accuracy of every seed."""
    lines = []
    for run in material.runs:
        said = run.summary
        origin = names.ckpt(run.ckpt) if run.ckpt else "fresh weights"
        steps = said.steps if said else run.recipe.get("schedule.steps")
        batch = said.batch_size if said else run.recipe.get("train.batch_size")
        each = [(one.seed, one.top1) for one in said.runs if one.top1 is not None] if said else []
        told = ", ".join(f"{100 * top1:.2f} (seed {seed})" for seed, top1 in each)
        told = told or (run.progress.in_words if run.progress else "")
        rate = said.lr if said else run.recipe.get("optimizer.lr")
        cells = (
            Cell(origin), Cell(size_text(run.resolution) if run.resolution else ""),
            _plain(steps), _plain(batch), _plain(rate), Cell(told),
        )  # fmt: skip
        lines.append(Row(Header(names.folder(run.path), _about(run, names), run.path), cells))
    caption = "Every training run with its folder, and the held-out top-1 in % of each seed."
    heads = (
        Header("from", kind="text"),
        *map(Header, ("px", "steps", "batch", "lr")),
        Header("top-1 of each run", kind="text"),
    )
    return Table("runs", "Training runs", caption, RUN, heads, tuple(lines))


def duration(seconds: float | None) -> str:
    """Of a run: 42 s, 12 min, 3 h 20 min."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60:,} h {minutes % 60:02} min"


def _choice(choice: Choice | None) -> Cell:
    if choice is None:
        return Cell()
    note = "not finite" if choice.dev_top1 is None else "chosen" if choice.is_chosen else ""
    told = fraction_cell(choice.dev_top1, note=note)
    return replace(told, is_best=choice.is_chosen)


def _in_order(choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each once, by its numbers where it has such, else as they were tried."""
    each = list({in_words(keys): keys for keys in choices}.values())
    is_of_numbers = all(is_number(value) for keys in each for value in keys.values())
    return sorted(each, key=lambda keys: list(keys.items())) if is_of_numbers else each


def in_words(keys: dict[str, Any]) -> str:
    """A choice of a selection: "lr 0.003, momentum 0.9"."""
    return ", ".join(word(key, value_text(value)) for key, value in keys.items())


def _about(run: Run, names: Names) -> str:
    return f"{run.command}, {run.model}, {names.data(run.dataset)}"


def _cost_line(name: str, detail: str, folder, used: ResourceUse) -> Row:
    cells = (
        number_cell(used.images_per_s, "{:,.1f}"), Cell(duration(used.elapsed_s), used.elapsed_s),
        number_cell(used.exaflops), number_cell(used.peak_memory_gib, "{:.2f}"),
        number_cell(used.num_processes, "{}"), Cell(used.precision or ""),
    )  # fmt: skip
    return Row(Header(name, detail, folder), cells)


def _plain(value: Any) -> Cell:
    """A number of a recipe, or the list of a selection that has not chosen yet."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(f"{value:,}" if isinstance(value, int) else f"{value:g}", float(value))
    if isinstance(value, list):
        return Cell(" / ".join(map(value_text, value)))
    return Cell("" if value is None else str(value))
