"""Rows of the paper's tables, reproductions and their costs as text for a person."""

from typing import Any

from vitcli.output.document import fraction_cell, simple_table
from vitcli.output.text import exaflops, pairs


def as_text(result: dict[str, Any]) -> str:
    """A reproduction, or with --dry-run what it would cost."""
    return _plan(result) if result.get("dry_run") else _verdict(result)


def as_list(result: dict[str, Any]) -> str:
    """The rows of --list."""
    columns = {"row": "id", "published": "number", "weights": "id", "network, pre-trained on": "text"}
    rows = [
        (row["row"], _percent(row["published"]), "public" if row["released"] else "unreleased", row["about"])
        for row in result["rows"]
    ]
    return simple_table(columns, rows).as_text()


def _verdict(result: dict[str, Any]) -> str:
    ours, parts = result["ours"], result["standard_error_parts"]
    runs = ", ".join(f"{100 * run['top1']:.2f}" for run in ours["runs"])
    of_parts = ", ".join(
        f"{name} {100 * parts[part]:.2f}"
        for name, part in (("our runs", "ours"), ("published", "published"), ("test set", "test_set"))
    )
    small = f"{result['scale']} scale, whose value we measured ourselves" if result["scale"] else None
    rows = [
        ("row", result["row"]),
        ("instead", small),
        ("weights", f"{result['ckpt']}: {result['about']}"),
        ("ours", f"{_percent(ours)}  of {ours['n']} run(s): {runs}"),
        ("published", _percent(result["published"])),
        ("difference", f"{100 * result['difference']:+.2f} points"),
        ("error", f"{100 * result['standard_error']:.2f} points: {of_parts}"),
        ("z", f"{result['z']:+.2f}, {result['within']:g} either way are allowed"),
        ("verdict", result["verdict"]),
        ("scored on", f"{result['num_test_examples']:,} pictures of {result['dataset']}, {_labels(result)}"),
        ("lr", f"{result['lr']:g}" if result["lr"] else None),
        ("run folder", result["run_dir"]),
    ]
    return pairs((name, text) for name, text in rows if text)


def _labels(result: dict[str, Any]) -> str:
    return "ReaL labels" if result["labels"] == "real" else "its own labels"


def _plan(plan: dict[str, Any]) -> str:
    rows = [("row", plan["row"]), ("weights", f"{plan['ckpt']}: {plan['about']}")]
    rows.append(("published", _percent(plan["published"])))
    if plan["recipe"] is None:
        return pairs([*rows, ("protocol", "the weights are scored as they are; nothing is trained")])
    tasks = f"{plan['tasks']} tasks, each " if plan["tasks"] > 1 else ""
    selection = f"{plan['arms']} choices tried on a dev split, then " if plan["arms"] else ""
    rows.append(("protocol", f"{tasks}{selection}{plan['runs']} run(s): {plan['trainings']} trainings"))
    if plan["images_seen"] is None:
        rows.append(("cost", "unknown: the recipe counts epochs, and nobody knows the size of the data set"))
    else:
        rows += [
            ("steps", f"{plan['steps']:,} of {plan['batch_size']:,} images, each training"),
            ("images seen", f"{plan['images_seen']:,}"),
            ("compute", f"{exaflops(plan['exaflops'])} exaFLOPs, scoring not counted"),
        ]
    if plan["hours"] is None:
        rows.append(("hours", f"not measured: {plan['not_measured']}"))
    else:
        on_gpus = "" if plan["gpu_hours"] is None else f", {plan['gpu_hours']:,.3g} GPU-hours"
        speed = f"ten steps at {plan['measured_images_per_s']:,.1f} images/s"
        rows.append(("hours", f"{plan['hours']:,.3g}{on_gpus}, by {speed}, scoring not counted"))
    return f"{plan['recipe'].rstrip()}\n\n{pairs(rows)}"


def _percent(number: dict[str, float | None]) -> str:
    """98.95, or 99.15 ± 0.03: as the paper prints it."""
    return fraction_cell(number["mean"], number["std"]).text
