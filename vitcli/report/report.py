"""`vit report`: tables and figures on run folders, as text, as a file, or as a page that reloads itself."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from vitcli.errors import VitError, nearest
from vitcli.output import html
from vitcli.output.atomic import write_text
from vitcli.output.document import CSV_HEADER, Table
from vitcli.output.text import (
    csv_text,
    escape_markdown,
    fold_notes,
    json_of,
    pairs,
    plain,
    seen_notes,
    short_names,
)
from vitcli.report import accuracy, run_tables
from vitcli.report.predicted import Predicted, all_predicted, are_few, by_class
from vitcli.report.runs import Names, RunCollection, collect_runs

ENDINGS = {".html": "html", ".htm": "html", ".md": "markdown", ".csv": "csv", ".json": "json"}
FORMATS = ("text", *dict.fromkeys(ENDINGS.values()))
REFRESH_S, REFRESH_IDLE_S = 5, 60  # while a run is in progress, and otherwise
START_BYTES = 4096  # a report is recognised by its first bytes
# They distinguish a report from other HTML and Markdown files.
COMMAND, MARK = "vit report", "<!-- made by vit report -->"
ORDER = {"progress": 0, "runs": 1}  # tables that a terminal shows first
BEST = "* the best of its row or column, or what was chosen; accuracies in %"


@dataclass(frozen=True)
class Report:
    """The runs of some folders, and the tables made of them; a list alone has no notes on numbers."""

    places: tuple[str, ...]
    collection: RunCollection
    names: Names
    tables: tuple[Table, ...]
    is_list: bool = False

    @cached_property
    def predicted(self) -> list[Predicted]:
        """The predictions of runs and evaluations, read when they are first needed."""
        return all_predicted(self.collection, self.names)

    @property
    def title(self) -> str:
        folders = short_names(str(Path(place).resolve()) for place in self.places)
        return "Report on " + ", ".join(folders.values())

    @property
    def facts(self) -> list[str]:
        """The number of runs of each kind."""
        collection, unfinished = self.collection, len(self.collection.unfinished)
        counts = {
            "fine-tuning run": sum(run.command == "finetune" for run in collection.runs),
            "pre-training run": sum(run.command == "pretrain" for run in collection.runs),
            "VTAB folder": len(collection.vtabs),
            "few-shot run": len(collection.fewshots),
            "evaluation": len(collection.evaluations),
        }
        facts = [f"{count} {name}{'s' * (count > 1)}" for name, count in counts.items() if count]
        return [*facts, *([f"{unfinished} unfinished"] if unfinished else [])]

    @property
    def notes(self) -> list[str]:
        left_out = [f"left out: {path}: {why}" for path, why in self.collection.left_out]
        of_results = () if self.is_list else _notes_of_results(self.collection)
        return [*left_out, *(f"{path}: {note}" for path, note in of_results)]


def read(places: Sequence[str]) -> Report:
    """Read all runs at and below the named folders.

    Raises:
        VitError: a place without runs.
        DataError: a named folder with a damaged file.
    """
    collection = collect_runs(places)
    names = Names(collection)
    predicted = all_predicted(collection, names) if are_few(collection) else []
    transfer = accuracy.transfer(collection, names)
    runs = run_tables.runs(collection, names, is_at_end=bool(transfer))
    tables = (
        run_tables.progress(collection, names),
        *(transfer or [runs]),
        accuracy.vtab_tasks(collection),
        accuracy.few_shot(collection, names),
        accuracy.pretraining(collection, names),
        *accuracy.evaluations(collection, names),
        accuracy.errors(collection, names),
        by_class(predicted, names),
        run_tables.trials(collection, names),
        run_tables.costs(collection, names),
        *([runs] if transfer else []),
    )
    shown = tuple(table for table in tables if table and table.rows)
    return Report(tuple(places), collection, names, shown)


def _notes_of_results(collection: RunCollection) -> list[tuple[Path, str]]:
    """Return the notes that belong to numbers of the report, each with the folder of the result."""
    notes = []
    for run in (*collection.runs, *collection.vtab_runs):
        summary = run.summary.model_dump() if run.summary else {}
        notes += [(run.path, note) for note in [*seen_notes(summary), *fold_notes(summary)]]
    for record in (*collection.fewshots, *collection.evaluations):
        notes += [(record.path, note) for note in record.summary.notes]
    return notes


def listed(places: Sequence[str]) -> Report:
    """Read the runs as `read` does, and list them in one table, the newest first."""
    collection = collect_runs(places)
    names = Names(collection)
    listing = run_tables.listing(collection, names, now=time.time())
    return Report(tuple(places), collection, names, (listing,), is_list=True)


def format_of(out: Path | None, form: str | None) -> str:
    """Return the format of the report: `form` if given, else by the ending of the file, else text.

    Raises:
        VitError: an unknown format or ending.
    """
    if form is not None:
        if form not in FORMATS:
            what = f"unknown report format {form!r}{nearest(form, FORMATS)}"
            raise VitError(what, where="--format", fix=f"one of {', '.join(FORMATS)}")
        return form
    if out is None:
        return "text"
    if out.suffix.lower() not in ENDINGS:
        what = f"unknown ending {out.suffix}" if out.suffix else "the file has no ending"
        fix = f"end it in {', '.join(ENDINGS)}, or name a --format"
        raise VitError(f"{what}, so the format is unknown", where=f"--out {out}", fix=fix)
    return ENDINGS[out.suffix.lower()]


def write(report: Report, out: Path, form: str) -> dict[str, Any]:
    """Write the file, whole or not at all; return the object that --json prints."""
    content = rendered(report, form, base=out.parent)
    write_text(out, content)
    return as_json(report) | {"out": str(out), "num_bytes": len(content.encode())}


def as_json(report: Report) -> dict[str, Any]:
    """Return the object that --json prints."""
    collection = report.collection
    return {
        "command": "report",
        "runs": [str(record.path) for record in collection.records],
        "num_unfinished": len(collection.unfinished),
        "left_out": [{"run_dir": str(path), "why": why} for path, why in collection.left_out],
        "tables": [table.as_json() for table in report.tables],
    }


def rendered(report: Report, form: str, *, base: Path) -> str:
    """Return the report in a format, for a file in the folder `base`."""
    match form:
        case "markdown":
            return _as_markdown(report, base)
        case "csv":
            return csv_text([CSV_HEADER, *(record for table in report.tables for record in table.as_csv())])
        case "json":
            return json_of(as_json(report), indent=2) + "\n"
        case "html":
            return page(report, base=base)
        case _:
            return _as_text(report)


def _as_text(report: Report) -> str:
    """Return the tables under their titles, for a terminal."""
    parts = []
    for table in sorted(report.tables, key=lambda table: ORDER.get(table.key, len(ORDER))):
        shared, table = run_tables.without_shared(table)
        counts = {cell.count for row in table.rows for cell in row.cells if cell.std is not None}
        of_several = f", mean ± standard deviation of {counts.pop()}" if len(counts) == 1 else ""
        parts.append(f"{plain(table.title + shared)}{of_several}\n{table.as_text()}")
    has_best = any(cell.is_best for table in report.tables for row in table.rows for cell in row.cells)
    notes = [*([BEST] if has_best else []), *report.notes]
    return "\n".join([*parts, "".join(f"{plain(note)}\n" for note in notes)])


def _as_markdown(report: Report, base: Path) -> str:
    """Return the tables with their captions, with links to run folders from the folder `base`."""
    parts = [MARK, f"# {escape_markdown(report.title)}"]
    for table in report.tables:
        parts += [f"## {escape_markdown(table.title)}", escape_markdown(table.caption)]
        parts.append(table.as_markdown(base=base).rstrip("\n"))
    return "\n\n".join([*parts, *map(escape_markdown, report.notes)]) + "\n"


def page(report: Report, *, base: Path | None) -> str:
    """Return the report as one HTML file; without `base` as a live page, which reloads and has no links."""
    from vitcli.report import figures  # loads matplotlib

    refresh_s = (REFRESH_S if report.collection.unfinished else REFRESH_IDLE_S) if base is None else None
    return html.page(
        report.tables,
        list(figures.figures_of(report.collection, report.names, report.predicted)),
        title=report.title,
        summary=report.facts,
        notes=report.notes,
        base=base,
        refresh_s=refresh_s,
        command=COMMAND,
    )


def summary(result: dict[str, Any]) -> str:
    """Return a summary of the written file for a terminal."""
    rows = [
        ("report", result["out"]),
        ("size", f"{max(1, result['num_bytes'] // 1000):,} KB"),
        ("runs", f"{len(result['runs'])}, of which {result['num_unfinished']} unfinished"),
        ("tables", ", ".join(table["title"] for table in result["tables"])),
        *(("left out", f"{folder['run_dir']}: {folder['why']}") for folder in result["left_out"]),
    ]
    return pairs(rows)


def is_report(path: Path) -> bool:
    """Return whether `vit report` has written a file and so may replace it; False if it cannot be read."""
    if not os.path.isfile(path):  # opening a pipe would wait for a writer
        return False
    try:
        with open(path, "rb") as file:
            start = file.read(START_BYTES).decode(errors="replace")
    except OSError:
        return False
    json_start = '{\n  "command": "report",'
    return html.generator(COMMAND) in start or start.startswith((MARK, ",".join(CSV_HEADER), json_start))
