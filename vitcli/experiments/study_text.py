"""Tables of a study: for a terminal, as Markdown and as CSV."""

from collections.abc import Mapping
from typing import Any

from vitcli.output.document import Table, fraction_cell, simple_table
from vitcli.output.text import compute_text, csv_text, escape_markdown, exaflops, pairs

CSV_COLUMNS = ("name", "model", "num_examples", "epochs", "steps", "params", "images_seen", "exaflops",
               "mean", "std", "n")  # fmt: skip


def as_text(result: Mapping[str, Any]) -> str:
    """Return the points with their accuracies, or with --dry-run the runs with their cost."""
    if "points" in result:
        return f"{_points(result).as_text()}\n{pairs(_foot(result))}"
    foot = [
        ("runs", str(len(result["cells"]))),
        ("compute", f"{compute_text(result['exaflops'])} in total, without the scoring"),
        ("scored by", result["score"]["name"]),
    ]
    numbers = ("parameters", "images", "epochs", "steps", "images seen", "exaFLOPs")
    rows = []
    for run in result["cells"]:
        cells = [run["name"], f"{run['params']:,}", f"{run['num_examples']:,}", f"{run['epochs']:.4g}"]
        rows.append([*cells, f"{run['steps']:,}", f"{run['images_seen']:,}", exaflops(run["exaflops"])])
    plan = simple_table({"run": "id", **dict.fromkeys(numbers, "number")}, rows)
    return f"{plan.as_text()}\n{pairs(foot)}"


def as_markdown(result: Mapping[str, Any]) -> str:
    """Return the points as a Markdown table, with notes below."""
    foot = "".join(f"- {name}: {escape_markdown(value)}\n" for name, value in _foot(result)[:-1])
    return f"{_points(result).as_markdown()}\n{foot}"


def as_csv(result: Mapping[str, Any]) -> str:
    """Return the points as CSV with all digits; accuracies are fractions."""
    names = result["score"]["datasets"]
    rows = [[*CSV_COLUMNS, "on_front", *(f"mean_{name}" for name in names if len(names) > 1)]]
    for point in result["points"]:
        more = [point["means"].get(name) for name in names] if len(names) > 1 else []
        is_best = point["name"] in result["pareto"]
        rows.append([*(point[key] for key in CSV_COLUMNS), is_best, *more])
    return csv_text(rows)


def _points(result: Mapping[str, Any]) -> Table:
    datasets = result["score"]["datasets"] if len(result["score"]["datasets"]) > 1 else []
    numbers = ("images", "epochs", "exaFLOPs", "accuracy, %", "± std", "runs")
    numbers += tuple(f"{name}, %" for name in datasets)
    rows = []
    for point in result["points"]:
        cells = [point["model"], f"{point['num_examples']:,}", f"{point['epochs']:.4g}"]
        cells += [exaflops(point["exaflops"])]
        cells += [_percent(point["mean"]), _percent(point["std"]), str(point["n"])]
        cells += [_percent(point["means"].get(name)) for name in datasets]
        rows.append([*cells, "*" if point["name"] in result["pareto"] else ""])
    return simple_table({"network": "text", **dict.fromkeys(numbers, "number"), "front": "text"}, rows)


def _foot(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    unfinished = result["num_cells"] - result["num_finished"]
    front = "* Pareto front: no other point is as cheap and better"
    rows = [("accuracy", result["score"]["name"]), ("front", front)]
    rows += [("unfinished", f"{unfinished} of {result['num_cells']} runs")] if unfinished else []
    return [*rows, ("figures", " ".join(result["figures"]) or "-")]


def _percent(fraction: float | None) -> str:
    return fraction_cell(fraction).text or "-"
