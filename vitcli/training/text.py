"""Text of training for the terminal: summaries, plans and the table of a sweep's trials. Loads no torch."""

from collections.abc import Mapping, Sequence
from typing import Any

from vitcli.output.document import simple_table
from vitcli.output.text import exaflops, pairs, percent, size_text, skipped, speed
from vitcli.recipe.toml import toml_value


def as_text(result: dict[str, Any]) -> str:
    """Return the summary of a run, or the plan of a dry run, as lines for a terminal."""
    return _plan(result) if "total_steps" in result else _summary(result)


def _summary(summary: dict[str, Any]) -> str:
    runs = summary["runs"]
    next_command = "predict --ckpt {} IMAGES" if "top1" in summary else "finetune --ckpt {} --dataset DATA"
    rows = [
        *_scores(summary),
        ("scored on", f"{summary['num_eval_examples']} images, {summary['eval_split']}"),
        *skipped(summary),
        ("model", f"{summary['model']} at {size_text(summary['resolution'])} px"),
        ("from", summary["ckpt"] or "fresh weights"),
        ("training", f"{summary['steps']} steps of {summary['batch_size']} images, lr {summary['lr']:g}"),
        ("speed", speed(summary)),
        ("run folder", summary["run_dir"]),
        ("next", f"vit {next_command.format(summary['run_dir'])}"),
    ]
    if len(runs) > 1 and "top1" in summary:
        accuracies = "  ".join(percent(run["top1"]) for run in runs)
        rows.insert(-3, ("runs", f"{accuracies}, seeds {runs[0]['seed']} to {runs[-1]['seed']}"))
    text = pairs(rows)
    if summary.get("choices"):
        text += f"\ntrials on the dev split:\n{trials_table(summary['choices'], summary['chosen'])}\n"
    return text


def _scores(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of accuracy, loss and few-shot probe."""
    rows = []
    if "top1" in summary:
        std = summary["top1_std"]
        spread = "" if std is None else f" ± {std:.2%}, mean and std of {len(summary['runs'])} runs"
        rows += [("top-1", f"{summary['top1']:.2%}{spread}"), ("top-5", f"{summary['top5']:.2%}")]
    elif summary["patch_accuracy"] is not None:
        majority = f"majority class: {summary['most_frequent_color']:.2%}"
        rows.append(("patches", f"{summary['patch_accuracy']:.2%} of the colours correct ({majority})"))
    rows.append(("loss", f"{summary['loss']:.4f}"))
    if probe := summary.get("fewshot"):
        rows.append(("few-shot", f"{probe['top1']:.2%} at {probe['shots']} shots of {probe['dataset']}"))
    return rows


def trials_table(choices: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any]) -> str:
    """Return a table of a sweep's trials, the chosen one marked.

    Args:
        choices: the values of each trial by dotted key, and its scores on the dev split as "dev_...".
    """
    rows = []
    for choice in choices:
        values = {key: value for key, value in choice.items() if not key.startswith("dev_")}
        names = (f"{key.rpartition('.')[2]} {toml_value(value)}" for key, value in values.items())
        accuracy = choice.get("dev_top1", choice.get("dev_patch_accuracy"))
        loss = "diverged" if choice["dev_loss"] is None else f"{choice['dev_loss']:.4f}"
        rows.append(("*" if values == chosen else "", ", ".join(names), percent(accuracy), loss))
    columns = {"": "text", "trial": "text", "accuracy": "number", "loss": "number"}
    return simple_table(columns, rows).as_text().rstrip()


def run_line(scores: Mapping[str, Any], number: int, num_runs: int) -> str:
    """Return the progress line of a finished final run."""
    accuracy = f"top-1 {scores['top1']:.2%}, " if "top1" in scores else ""
    return f"run {number} of {num_runs}, seed {scores['seed']}: {accuracy}loss {scores['loss']:.4f}"


def _plan(plan: dict[str, Any]) -> str:
    passes = f"{plan['accumulation_steps']} passes of {plan['per_device_batch']}"
    rows = [
        ("model", f"{plan['model']}, {plan['params']:,} parameters, {plan['forward_gmacs']} GMACs per image"),
        ("data", f"{plan['num_examples']:,} training images"),
        ("steps", f"{plan['total_steps']:,}, of which {plan['warmup_steps']:,} warm-up"),
        ("images seen", f"{plan['images_seen']:,}"),
        ("compute", f"{exaflops(plan['exaflops'])} exaFLOPs, {plan['precision']}"),
        ("batch", f"{plan['batch_size']} images: {passes} on {plan['world_size']} process(es)"),
        ("memory", f"about {plan['estimated_peak_memory_gib']:.2g} GiB per process"),
    ]
    if "num_arms" in plan:
        runs = f"{plan['num_arms']} trials and {plan['num_runs']} runs with the chosen values"
        compute = "" if plan["all_exaflops"] is None else f", {exaflops(plan['all_exaflops'])} exaFLOPs"
        rows.append(("all runs", f"{runs}: {plan['all_steps']:,} steps{compute}"))
    if "measured_images_per_s" in plan:
        measured = f"{plan['measured_images_per_s']:.1f} images/s, {plan['measured_hours']:.2f} hours"
        rows.append(("measured", f"{measured}, {plan['measured_peak_memory_gib']:.1f} GiB"))
    if "all_measured_hours" in plan:
        rows.append(("", f"{plan['all_measured_hours']:.2f} hours for all runs"))
    return plan["recipe"].rstrip() + "\n\n" + pairs(rows)
