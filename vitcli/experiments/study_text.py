"""A study as tables: for a terminal, for a page (Markdown) and for a spreadsheet (CSV)."""

import csv
import io
from collections.abc import Mapping
from typing import Any

from vitcli.output import text as output_text

CSV_COLUMNS = ("name", "model", "num_examples", "epochs", "steps", "params", "images_seen", "exaflops",
               "mean", "std", "n")  # fmt: skip


def as_text(result: Mapping[str, Any]) -> str:
    """The points with their accuracies, or with --dry-run every run and what it costs."""
    from rich.table import Table

    is_plan = "points" not in result
    header, rows = _plan_rows(result) if is_plan else _point_rows(result)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in header:
        is_name = title in ("network", "run", "front")
        table.add_column(title, justify="left" if is_name else "right", overflow="fold")
    for row in rows:
        table.add_row(*(output_text.plain(cell) for cell in row))
    return (
        f"{output_text.printed(table)}\n{output_text.pairs(_plan_foot(result) if is_plan else _foot(result))}"
    )


def as_markdown(result: Mapping[str, Any]) -> str:
    """The points, a row each."""
    header, rows = _point_rows(result)
    lines = ["| " + " | ".join(header) + " |", "|---" + "|--:" * (len(header) - 2) + "|---|"]
    lines += ["| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in rows]
    foot = "".join(f"- {name}: {_escaped(value)}\n" for name, value in _foot(result)[:-1])
    return "\n".join(lines) + f"\n\n{foot}"


def as_csv(result: Mapping[str, Any]) -> str:
    """The points with all digits; accuracies are fractions."""
    text = io.StringIO()
    names = result["score"]["datasets"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*CSV_COLUMNS, "on_front", *(f"mean_{name}" for name in names if len(names) > 1)])
    for point in result["points"]:
        more = [point["means"].get(name) for name in names] if len(names) > 1 else []
        is_best = point["name"] in result["pareto"]
        writer.writerow([*(point[key] for key in CSV_COLUMNS), is_best, *more])
    return text.getvalue()


def _point_rows(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    names = result["score"]["datasets"]
    own = [f"{name}, %" for name in names] if len(names) > 1 else []
    header = ["network", "images", "epochs", "exaFLOPs", "accuracy, %", "± std", "runs", *own, "front"]
    rows = []
    for point in result["points"]:
        cells = [point["model"], f"{point['num_examples']:,}", f"{point['epochs']:.4g}"]
        cells += [
            _exaflops(point["exaflops"]),
            _percent(point["mean"]),
            _percent(point["std"]),
            str(point["n"]),
        ]
        cells += [_percent(point["means"].get(name)) for name in names] if len(names) > 1 else []
        rows.append([*cells, "*" if point["name"] in result["pareto"] else ""])
    return header, rows


def _foot(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    unfinished = result["num_cells"] - result["num_finished"]
    rows = [("accuracy", result["score"]["name"]), ("front", "* no other is as cheap and better (Pareto)")]
    rows += [("unfinished", f"{unfinished} of {result['num_cells']} runs")] if unfinished else []
    return [*rows, ("pictures", " ".join(result["figures"]) or "-")]


def _plan_rows(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    header = ["run", "parameters", "images", "epochs", "steps", "images seen", "exaFLOPs"]
    rows = [
        [
            cell["name"],
            f"{cell['params']:,}",
            f"{cell['num_examples']:,}",
            f"{cell['epochs']:.4g}",
            f"{cell['steps']:,}",
            f"{cell['images_seen']:,}",
            _exaflops(cell["exaflops"]),
        ]
        for cell in result["cells"]
    ]
    return header, rows


def _plan_foot(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        ("runs", str(len(result["cells"]))),
        ("compute", f"{_exaflops(result['exaflops'])} exaFLOPs in all, without the scoring"),
        ("scored by", result["score"]["name"]),
    ]


def _exaflops(count: float | None) -> str:
    return "-" if count is None else f"{count:,.0f}" if count >= 100 else f"{count:.3g}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f}"


def _escaped(text: str) -> str:
    return output_text.plain(text).replace("|", r"\|")
