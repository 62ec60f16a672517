from typing import Any

from vitcli.output.text import exaflops, pairs, percent, size_text, skipped, speed


def as_text(result: dict[str, Any]) -> str:
    """Return the summary of a run, or the plan of a dry run, as lines for a terminal."""
    return _plan(result) if "total_steps" in result else _training(result)


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
        score = loss if share is None else percent(share)
        rows.append(("" if rows else "dev part", f"{score}  {what}{mark}"))
    if len(summary["runs"]) > 1 and "top1" in summary:
        each = "  ".join(percent(run["top1"]) for run in summary["runs"])
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


def _plan(plan: dict[str, Any]) -> str:
    passes = f"{plan['accumulation_steps']} passes of {plan['per_device_batch']}"
    memory = plan["estimated_peak_memory_gib"]
    rows = [
        ("model", f"{plan['model']}, {plan['params']:,} parameters, {plan['forward_gmacs']} GMACs an image"),
        ("data", f"{plan['num_examples']:,} training images"),
        ("steps", f"{plan['total_steps']:,}, of which {plan['warmup_steps']:,} warm-up"),
        ("images seen", f"{plan['images_seen']:,}"),
        ("compute", f"{exaflops(plan['exaflops'])} exaFLOPs, {plan['precision']}"),
        ("batch", f"{plan['batch_size']} images: {passes} on {plan['world_size']} process(es)"),
        ("memory", f"about {memory:.2g} GiB a process"),
    ]
    if "num_arms" in plan:
        runs = f"{plan['num_arms']} to choose from and {plan['num_runs']} with what is chosen"
        compute = "" if plan["all_exaflops"] is None else f", {exaflops(plan['all_exaflops'])} exaFLOPs"
        rows.append(("all runs", f"{runs}: {plan['all_steps']:,} steps{compute}"))
    if "measured_images_per_s" in plan:
        measured = f"{plan['measured_images_per_s']:.1f} images/s, {plan['measured_hours']:.2f} hours"
        rows.append(("measured", f"{measured}, {plan['measured_peak_memory_gib']:.1f} GiB"))
    if "all_measured_hours" in plan:
        rows.append(("", f"{plan['all_measured_hours']:.2f} hours for all runs"))
    return plan["recipe"].rstrip() + "\n\n" + pairs(rows)
