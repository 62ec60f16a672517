"""Results of commands as text for a person; the same dictionary is what --json prints."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from pathlib import PurePath
from typing import Any

from vitcli.distributed import launch


def show(result: dict[str, Any], as_json: bool, render: Callable[[dict[str, Any]], str] | None = None) -> int:
    """Print a command's result, by the first process alone; the exit code of having done so."""
    if launch.global_rank() == 0:
        write(json.dumps(result, indent=2) if as_json else (render or table_of)(result))
    return 0


def write(text: str) -> None:
    """The result of a command, on standard output."""
    try:
        print(text.rstrip("\n"), flush=True)
    except BrokenPipeError:  # the reader of a pipe has gone: nothing is left to say, at the exit neither
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def table_of(result: dict[str, Any]) -> str:
    """The table of one command's result."""
    if "recipe" in result and "total_steps" in result:
        return _plan(result)
    match result["command"]:
        case "finetune" | "pretrain":
            return _training(result)
        case "predict":
            return _predictions(result)


def _training(summary: dict[str, Any]) -> str:
    return pairs(
        [
            *_scores(summary),
            ("scored on", f"{summary['num_eval_examples']} images, {summary['eval_split']}"),
            *skipped(summary),
            ("model", f"{summary['model']} at {size_text(summary['resolution'])} px"),
            ("from", summary["ckpt"] or "fresh weights"),
            ("training", f"{summary['steps']} steps of {summary['batch_size']} images, lr {summary['lr']:g}"),
            *_chosen(summary),
            ("speed", speed(summary)),
            ("run folder", summary["run_dir"]),
            ("next", _next(summary)),
        ]
    )


def _chosen(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """What was chosen on the dev part, and each run, where there were several."""
    rows = []
    for choice in summary.get("choices") or ():
        values = {key: value for key, value in choice.items() if not key.startswith("dev_")}
        what = ", ".join(f"{key} {value}" for key, value in values.items())
        share = choice.get("dev_top1", choice.get("dev_patch_accuracy"))
        mark = "  chosen" if values == summary["chosen"] else ""
        loss = "diverged" if choice["dev_loss"] is None else f"loss {choice['dev_loss']:.4f}"
        score = loss if share is None else f"{share:.2%}"
        rows.append(("" if rows else "dev part", f"{score}  {what}{mark}"))
    if len(summary["runs"]) > 1 and "top1" in summary:
        each = "  ".join(f"{run['top1']:.2%}" for run in summary["runs"])
        rows.append(("runs", f"{each}, seeds {summary['runs'][0]['seed']} to {summary['runs'][-1]['seed']}"))
    return rows


def _next(summary: dict[str, Any]) -> str:
    if "top1" in summary:
        return f"vit predict --ckpt {summary['run_dir']} PICTURES"
    return f"vit finetune --ckpt {summary['run_dir']} --dataset DATA"


def _scores(summary: dict[str, Any]) -> list[tuple[str, str]]:
    if "top1" in summary:
        std = summary["top1_std"]
        spread = "" if std is None else f" ± {std:.2%}, mean and std of {len(summary['runs'])} runs"
        rows = [("top-1", f"{summary['top1']:.2%}{spread}"), ("top-5", f"{summary['top5']:.2%}")]
    elif summary["patch_accuracy"] is None:
        rows = []
    else:
        right, guess = summary["patch_accuracy"], summary["most_frequent_color"]
        rows = [("patches", f"{right:.2%} of the colours right, one guess gets {guess:.2%}")]
    rows.append(("loss", f"{summary['loss']:.4f}"))
    probed = summary.get("fewshot")
    if probed:
        rows.append(("few-shot", f"{probed['top1']:.2%} at {probed['shots']} shots of {probed['dataset']}"))
    return rows


def _predictions(result: dict[str, Any]) -> str:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("picture", overflow="fold")
    table.add_column("class", overflow="fold")
    table.add_column("probability", justify="right")
    for prediction in result["predictions"]:
        for place, guess in enumerate(prediction["top"]):
            file = prediction["file"] if place == 0 else ""
            table.add_row(plain(file), plain(guess["class"]), f"{guess['probability']:.2%}")
    text = printed(table)
    return text + "".join(f"left out: {place}\n" for place in result["skipped_images"])


def _plan(plan: dict[str, Any]) -> str:
    passes = f"{plan['accumulation_steps']} passes of {plan['per_device_batch']}"
    memory = plan["estimated_peak_memory_gib"]
    rows = [
        ("model", f"{plan['model']}, {plan['params']:,} parameters, {plan['forward_gmacs']} GMACs an image"),
        ("data", f"{plan['num_examples']:,} training images"),
        ("steps", f"{plan['total_steps']:,}, of which {plan['warmup_steps']:,} warm-up"),
        ("images seen", f"{plan['images_seen']:,}"),
        ("compute", f"{_exaflops(plan['exaflops'])} exaFLOPs, {plan['precision']}"),
        ("batch", f"{plan['batch_size']} images: {passes} on {plan['world_size']} process(es)"),
        ("memory", f"about {memory:.2g} GiB a process"),
    ]
    if "num_arms" in plan:
        runs = f"{plan['num_arms']} to choose from and {plan['num_runs']} with what is chosen"
        compute = "" if plan["all_exaflops"] is None else f", {_exaflops(plan['all_exaflops'])} exaFLOPs"
        rows.append(("all runs", f"{runs}: {plan['all_steps']:,} steps{compute}"))
    if "measured_images_per_s" in plan:
        measured = f"{plan['measured_images_per_s']:.1f} images/s, {plan['measured_hours']:.2f} hours"
        rows.append(("measured", f"{measured}, {plan['measured_peak_memory_gib']:.1f} GiB"))
    if "all_measured_hours" in plan:
        rows.append(("", f"{plan['all_measured_hours']:.2f} hours for all runs"))
    return plan["recipe"].rstrip() + "\n\n" + pairs(rows)


def _exaflops(count: float) -> str:
    return f"{count:,.0f}" if count >= 100 else f"{count:.3g}"


def skipped(result: dict[str, Any]) -> list[tuple[str, str]]:
    """The line about undecodable images, where there were any."""
    count = result["num_skipped_images"]
    return [("left out", f"{count} undecodable, first {result['skipped_images'][0]}")] if count else []


def speed(result: dict[str, Any]) -> str:
    """How fast, how long, on what."""
    rate = result["images_per_s"]
    per_s = f"{rate:.1f} images/s, " if rate else ""
    return f"{per_s}{result['elapsed_s']:.0f} s, {result['precision']}, {result['num_processes']} process(es)"


def size_text(resolution: int | Sequence[int]) -> str:
    return str(resolution) if isinstance(resolution, int) else "x".join(map(str, resolution))


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """One line for each name and value."""
    return "".join(f"{name:<11} {plain(value)}\n" for name, value in rows)


def plain(text: str) -> str:
    """Without control characters: names come from files and the network."""
    return "".join(c if c.isprintable() else "�" for c in str(text))


def printed(table) -> str:
    """A table of Rich's as text."""
    import shutil

    from rich.console import Console

    # A pipe has no width: give it lines as long as they are.
    width = shutil.get_terminal_size((200, 24)).columns
    text = StringIO()
    Console(file=text, width=width, markup=False, highlight=False, emoji=False).print(table)
    return "".join(line.rstrip() + "\n" for line in text.getvalue().splitlines())


def short_names(names: Iterable[str]) -> dict[str, str]:
    """The last part of each path or Hub id, with as many before it as tell it from others; no bare number."""
    parts = {name: PurePath(name).parts or (name,) for name in names}
    short = {}
    for name, own in parts.items():
        others = [other for other_name, other in parts.items() if other_name != name]
        least = next(
            (k for k in range(1, len(own)) if not any(own[-k:] == one[-k:] for one in others)), len(own)
        )
        is_alias = len(own) == 2 and own[0] == "vtab"  # its pet pictures are not the pets of another task
        least = max(least, 2) if own[-1].isdecimal() else least
        short[name] = name if is_alias else str(PurePath(*own[-least:]))
    return short
