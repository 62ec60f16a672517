"""`vit report`: run folders to tables and pictures, as text, as one file, or as a page that keeps up."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitcli.errors import VitError, nearest
from vitcli.output.atomic import write_text
from vitcli.output.document import CSV_HEADER, Table
from vitcli.output.text import short_names
from vitcli.report import accuracy, costs, runs, text
from vitcli.report.runs import RunCollection
from vitcli.report.tables import Names

ENDINGS = {".html": "html", ".htm": "html", ".md": "markdown", ".csv": "csv", ".json": "json"}
FORMATS = ("text", *dict.fromkeys(ENDINGS.values()))
REFRESH_S, REFRESH_IDLE_S = 5, 60  # while something is under way, and otherwise
START_READ = 4096  # bytes in which a report says that it is one


@dataclass(frozen=True)
class Report:
    """What the folders hold, in rows and columns."""

    places: tuple[str, ...]
    material: RunCollection
    names: Names
    tables: tuple[Table, ...]

    @property
    def title(self) -> str:
        return "Report on " + ", ".join(
            list(short_names(map(str, map(Path.resolve, map(Path, self.places)))).values())
        )

    @property
    def facts(self) -> list[str]:
        """What the report is of, a few words each."""
        material = self.material
        counts = {
            "fine-tuning run": sum(run.command == "finetune" for run in material.runs),
            "pre-training run": sum(run.command == "pretrain" for run in material.runs),
            "VTAB folder": len(material.vtabs),
            "few-shot run": len(material.fewshots),
            "evaluation": len(material.scored),
        }
        facts = [f"{count} {name}{'s' * (count > 1)}" for name, count in counts.items() if count]
        return [*facts, *([f"{len(material.unfinished)} under way"] if material.unfinished else [])]

    @property
    def notes(self) -> list[str]:
        return [f"left out: {path}: {why}" for path, why in self.material.left_out]


def read(places: Sequence[str]) -> Report:
    """Everything at and below the named folders.

    Raises:
        VitError: a place without runs.
        DataError: a named folder with a damaged file.
    """
    material = runs.gather(places)
    names = Names(material)
    made = [
        costs.progress(material, names),
        *accuracy.results(material, names),
        accuracy.vtab_tasks(material, names),
        accuracy.few_shot(material, names),
        accuracy.pretraining(material, names),
        *accuracy.evaluations(material, names),
        costs.selection(material, names),
        costs.costs(material, names),
        costs.runs(material, names),
    ]
    return Report(tuple(places), material, names, tuple(table for table in made if table and table.rows))


def format_of(out: Path | None, wanted: str | None) -> str:
    """The format that is asked for, or that the ending of the file says.

    Raises:
        VitError: there is no such format, or an ending that says none.
    """
    if wanted is not None:
        if wanted not in FORMATS:
            what = f"{wanted!r} is no format of a report{nearest(wanted, FORMATS)}"
            raise VitError(what, where="--format", fix=f"one of {', '.join(FORMATS)}")
        return wanted
    if out is None:
        return "text"
    if out.suffix.lower() not in ENDINGS:
        raise VitError(
            f"the ending {out.suffix or 'of a file without one'} says no format",
            where=f"--out {out}",
            fix=f"end it in {', '.join(ENDINGS)}, or name a --format",
        )
    return ENDINGS[out.suffix.lower()]


def write(report: Report, out: Path, form: str) -> dict[str, Any]:
    """Write the file, whole or not at all; the object that --json prints."""
    content = rendered(report, form, base=out.parent)
    write_text(out, content)
    return told(report) | {"out": str(out), "num_bytes": len(content.encode())}


def told(report: Report) -> dict[str, Any]:
    """The object that --json prints."""
    return {
        "command": "report",
        "runs": [str(path) for path in _folders(report.material)],
        "num_unfinished": len(report.material.unfinished),
        "left_out": [{"run_dir": str(path), "why": why} for path, why in report.material.left_out],
        "tables": [table.as_json() for table in report.tables],
    }


def rendered(report: Report, form: str, *, base: Path) -> str:
    """The report in a format, for a file in the folder `base`."""
    match form:
        case "markdown":
            return text.as_markdown(report.tables, title=report.title, notes=report.notes, base=base)
        case "csv":
            return text.as_csv(report.tables)
        case "json":
            return json.dumps(told(report), indent=2) + "\n"
        case "html":
            return page(report, base=base)
        case _:
            return text.as_text(report.tables, report.notes)


def page(report: Report, *, base: Path | None, is_live: bool = False) -> str:
    """One HTML file for a folder, or for none with a live page, which asks for itself again."""
    from vitcli import __version__
    from vitcli.output import html
    from vitcli.report import figures

    made = f"Made by vit {__version__} on {time.strftime('%Y-%m-%d %H:%M')}"
    refresh_s = (REFRESH_S if report.material.unfinished else REFRESH_IDLE_S) if is_live else None
    return html.page(
        report.tables,
        figures.figures_of(report.material, report.names),
        title=report.title,
        summary=report.facts,
        notes=[f"{made}{f', every {refresh_s} s anew' if refresh_s else ''}.", *report.notes],
        base=base,
        refresh_s=refresh_s,
    )


def live_page(places: Sequence[str]) -> str:
    """The page of now, which asks for itself again; no links, for it comes with no folders."""
    return page(read(places), base=None, is_live=True)


def summary(result: dict[str, Any]) -> str:
    """What was written, for a person."""
    from vitcli.output import text as output_text

    count = len(result["runs"])
    rows = [
        ("report", result["out"]),
        ("size", f"{max(1, result['num_bytes'] // 1000):,} KB"),
        ("runs", f"{count}, of which {result['num_unfinished']} under way"),
        ("tables", ", ".join(table["title"] for table in result["tables"])),
        *(("left out", f"{one['run_dir']}: {one['why']}") for one in result["left_out"]),
    ]
    return output_text.pairs(rows)


def _folders(material: RunCollection) -> list[Path]:
    return [one.path for one in (*material.runs, *material.vtabs, *material.fewshots, *material.scored)]


def is_report(path: Path) -> bool:
    """Return whether a file was written by `vit report`, which may write it again."""
    if not path.is_file():
        return False
    from vitcli.output.html import GENERATOR

    with open(path, "rb") as file:
        start = file.read(START_READ).decode(errors="replace")
    header = ",".join(CSV_HEADER)
    own_json = '{\n  "command": "report",'
    return GENERATOR in start or start.startswith((text.MARK, header, own_json))
