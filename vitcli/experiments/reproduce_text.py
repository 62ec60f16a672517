"""Text of `vit reproduce`: rows of the paper's tables, verdicts and costs."""

from typing import Any

from vitcli.output.document import fraction_cell, simple_table
from vitcli.output.text import WHOLE_RECIPE, compute_text, count_of, pairs


def as_text(result: dict[str, Any]) -> str:
    """Return a verdict, or with --dry-run the cost, as text for a terminal."""
    return _plan(result) if result.get("dry_run") else _verdict(result)


def as_list(result: dict[str, Any]) -> str:
    """Return the table of --list."""
    columns = {"row": "id", "published": "number", "weights": "id", "network, pre-training data": "text"}
    rows = [
        (row["row"], _percent(row["published"]), "public" if row["released"] else "unreleased", row["about"])
        for row in result["rows"]
    ]
    return simple_table(columns, rows).as_text()


def _verdict(result: dict[str, Any]) -> str:
    ours, parts = result["ours"], result["standard_error_parts"]
    runs = ", ".join(f"{100 * run['top1']:.2f}" for run in ours["runs"])
    names = {"ours": "our runs", "published": "published", "test_set": "test set"}
    of_parts = ", ".join(f"{name} {100 * parts[part]:.2f}" for part, name in names.items())
    labels = "ReaL labels" if result["labels"] == "real" else "its own labels"
    scale = f"{result['scale']}; its value was measured by us" if result["scale"] else None
    rows = [
        ("row", result["row"]),
        ("scale", scale),
        ("weights", f"{result['ckpt']}: {result['about']}"),
        ("ours", f"{_percent(ours)}  over {count_of(ours['n'], 'run')}: {runs}"),
        ("published", _percent(result["published"])),
        ("difference", f"{100 * result['difference']:+.2f} points"),
        ("error", f"{100 * result['standard_error']:.2f} points: {of_parts}"),
        ("z", f"{result['z']:+.2f}, at most ±{result['within']:g} allowed"),
        ("verdict", result["verdict"]),
        ("scored on", f"{result['num_test_examples']:,} images of {result['dataset']}, {labels}"),
        ("lr", f"{result['lr']:g}" if result["lr"] else None),
        ("run folder", result["run_dir"]),
    ]
    return pairs((name, text) for name, text in rows if text)


def _plan(plan: dict[str, Any]) -> str:
    rows = [("row", plan["row"]), ("weights", f"{plan['ckpt']}: {plan['about']}")]
    rows.append(("published", _percent(plan["published"])))
    if plan["recipe"] is None:
        return pairs([*rows, ("protocol", "the weights are scored without training")])
    tasks = f"{plan['tasks']} tasks, each " if plan["tasks"] > 1 else ""
    selection = f"{plan['arms']} choices tried on a dev split, then " if plan["arms"] else ""
    all_runs = f"{count_of(plan['runs'], 'run')}: {count_of(plan['trainings'], 'training')}"
    rows.append(("protocol", f"{tasks}{selection}{all_runs}"))
    if plan["images_seen"] is None:
        rows.append(("cost", "unknown: the recipe counts epochs, and the size of the data set is unknown"))
    else:
        rows += [
            ("steps", f"{plan['steps']:,} of {plan['batch_size']:,} images per training"),
            ("images seen", f"{plan['images_seen']:,}"),
            ("compute", _compute(plan["exaflops"])),
        ]
    if plan["hours"] is None:
        rows.append(("hours", f"not measured: {plan['not_measured']}"))
    else:
        on_gpus = "" if plan["gpu_hours"] is None else f", {plan['gpu_hours']:,.3g} GPU-hours"
        speed = f"the speed of ten steps, {plan['measured_images_per_s']:,.1f} images/s"
        rows.append(("hours", f"{plan['hours']:,.3g}{on_gpus}, at {speed}, without scoring"))
    return pairs([*rows, WHOLE_RECIPE])


def _compute(total: float | None) -> str:
    if total is None:
        return "unknown: the recipe takes the image size of the weights, which are not on this machine"
    return f"{compute_text(total)}, without scoring"


def _percent(number: dict[str, float | None]) -> str:
    """Format as the paper does: 98.95, or 99.15 ± 0.03."""
    return fraction_cell(number["mean"], number["std"]).text
