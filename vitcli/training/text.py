"""Text of training for the terminal: summaries, plans and the table of a sweep's trials. Loads no torch."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from vitcli.evaluation.diagnosis import FOLDS_OPTION, NUM_FOLDS
from vitcli.evaluation.intervals import interval_of
from vitcli.features.label_errors import LEAST_KNOWN
from vitcli.output.document import simple_table
from vitcli.output.scores import first_score_rows, score_rows, shown
from vitcli.output.text import (
    WHOLE_RECIPE,
    Folded,
    Verbatim,
    accuracy_text,
    average_lines,
    brief,
    brief_delivery,
    commands,
    compute_text,
    count_of,
    delivery_text,
    duration,
    fold_notes,
    held_out,
    interval_text,
    layers_text,
    mistakes_text,
    pairs,
    percent,
    size_text,
    skipped,
    speed,
    students_text,
    within,
)
from vitcli.training.many_runs.sweep_results import accuracy_of, reason, remarks, values_text

ADVICE_SHOWN, LABELS_SHOWN = 2, 10
USUAL_SIDE = 224  # pixels, of most weights: more seldom help


def as_text(result: dict[str, Any], *, verbose: bool = False, width: int | None = None) -> str:
    """Return the summary of a run in ten lines, or with all that is known; or the plan of a dry run."""
    if "total_steps" in result:
        return _plan(result)
    return all_rows(result, width=width) if verbose else _brief(result, width=width)


def _brief(summary: dict[str, Any], *, width: int | None = None) -> str:
    """Return what a person looks for first: the score, where it errs, what would help, what to type next."""
    # The scores by which runs of this kind are compared; of no other, the loss.
    rows = first_score_rows(summary) or score_rows(summary, ["loss"])
    rows += [] if "mae" in summary else _probe(summary)
    if "chosen" in summary and summary.get("choices"):
        rows.append(("chosen", Folded(_chosen(summary))))
    if average := summary.get("average"):
        rows.append(("average", average_lines(average)[-1 if average["accepted"] is None else 1]))
    if record := summary.get("distill"):
        rows.append(("student", Folded(students_text(record))))
    rows += _weak_places(summary)
    if "delivered" in summary:
        rows.append(("delivered", brief_delivery(summary)))
    rows += _not_judged(summary) or _refit(summary)  # both say what the frozen features reach
    rows += [(name, Folded(note)) for name, note in held_out(summary)]
    rows += skipped(summary)
    return brief(rows, _next_commands(summary), width=width)


def _chosen(summary: dict[str, Any]) -> str:
    """Return the best values of a sweep, how they were chosen, and what that does not prove."""
    choices, chosen = summary["choices"], summary["chosen"]
    accuracy = percent(accuracy_of(next(choice for choice in choices if chosen.items() <= choice.items())))
    return "; ".join(
        [
            f"{values_text(chosen)}, best of {len(choices)} on the dev split ({accuracy})",
            *(line.removeprefix("note: ") for line in remarks(choices, chosen)),
        ]
    )


def _weak_places(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of the weakest classes, of what to look at, and of what would help."""
    rows = _labels_to_check(summary)
    facts = summary.get("findings")
    if not facts:
        return rows
    if facts["worst_classes"]:
        worst = (
            f"{row['class']} {row['num_right']} of {row['num_examples']}" for row in facts["worst_classes"]
        )
        rows.append(("weakest", ", ".join(worst)))
    if facts["confident_mistakes"]:
        mistakes = [mistake | {"label": mistake["class"]} for mistake in facts["confident_mistakes"]]
        rows.append(("mistakes", mistakes_text(mistakes, facts["num_mistakes"], summary.get("dataset"))))
    return rows + _advice_rows(summary)[:ADVICE_SHOWN]


def _labels_to_check(summary: dict[str, Any], *, most: int = 1) -> list[tuple[str, str]]:
    """Return rows of labels that the other images contradict, by the closed form that the run began with."""
    found = (summary.get("probe_head") or {}).get("labels_to_check")
    if not found or not found["num_named"]:
        return []
    rows, number = [], found["num_named"]
    for label in found["first"][:most]:
        place = within(label["place"], summary.get("dataset"))
        about = f"{place}: {label['other']} {label['other_probability']:.1%}"
        about += "" if place.startswith(f"{label['label']}/") else f", labelled {label['label']}"
        first = "" if rows else f"{count_of(number, 'training label')}, {'first ' * (number > 1)}"
        rows.append(("" if rows else "to check", f"{first}{about}"))
    return rows


def _not_judged(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the row of labels that the closed form could not judge, with what would help."""
    head = summary.get("probe_head") or {}
    known = head.get("left_out_top1")
    if head.get("labels_to_check") is not None or known is None or known >= LEAST_KNOWN:
        return []
    why = f"before training, the network knows {percent(known)} of left-out images, {LEAST_KNOWN:.0%} needed"
    size = summary["resolution"]
    side = max(size) if isinstance(size, list) else size
    helps = "larger --res or other weights" if side < USUAL_SIDE else "other weights"
    return [("labels", f"not judged; {helps} may help: {why}")]


def _advice_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of what would help, with the time that it would take where that is known."""
    rows = []
    for number, line in enumerate(summary["findings"]["advice"]):
        if line.startswith(FOLDS_OPTION):
            once = " --runs 1" if len(summary["runs"]) > 1 else ""  # which folds have in their place
            out = shlex.quote(f"{summary['run_dir']}-folds")  # the folder of this run takes no other recipe
            line = line.replace(FOLDS_OPTION, f"{FOLDS_OPTION}{once} --out {out}", 1)
            if summary.get("elapsed_s"):
                line += f", about {duration((NUM_FOLDS + 1) * summary['elapsed_s'])}"
        rows.append(("" if number else "would help", line))
    return rows


def all_rows(summary: dict[str, Any], *, width: int | None = None) -> str:
    """Return everything that is known of a run, and the table of a sweep's arms."""
    runs = summary["runs"]
    length = length_text(summary["steps"], summary["batch_size"], summary["num_train_examples"])
    scored_on = [count_of(summary["num_eval_examples"], "image"), summary["eval_split"]]
    scored_on += [f"in {summary['eval_precision']}"] if "eval_precision" in summary else []
    head = summary.get("probe_head") or {}
    rows = [
        *score_rows(summary),
        *score_rows(summary, ["loss"]),
        *_probe(summary),
        *_labels_to_check(summary, most=LABELS_SHOWN),
        *_not_judged(summary),
        *_found(summary),
        ("scored on", ", ".join(scored_on)),
        *([("delivered", delivery_text(summary))] if "delivered" in summary else []),
        *_refit(summary),
        *([("", layers_text(head))] if "layered_top1" in head else []),
        *held_out(summary),
        *(("note", note) for note in summary.get("notes", ())),
        *skipped(summary),
        ("model", f"{summary['model']} at {size_text(summary['resolution'])} px"),
        ("from", summary["ckpt"] or "fresh weights"),
        ("training", f"{length}, lr {summary['lr']:g}"),
    ]
    if (best := summary.get("best_step")) is not None:
        rows.append(("best step", f"{best:,} of {summary['steps']:,}"))
    if folds := summary.get("folds"):
        accuracies = "  ".join(percent(fold["top1"]) for fold in folds["runs"])
        rows.append(("folds", f"{folds['mean']:.2%} ± {folds['std']:.2%}, mean and std: {accuracies}"))
        rows += [("", note) for note in fold_notes(summary)]
    if len(runs) > 1 and "top1" in summary:
        accuracies = "  ".join(percent(run["top1"]) for run in runs)
        rows.append(("runs", f"{accuracies}, seeds {runs[0]['seed']} to {runs[-1]['seed']}"))
    if average := summary.get("average"):
        made, *more = average_lines(average)
        rows += [("average", made), *(("", line) for line in more)]
    if record := summary.get("distill"):
        rows.append(("student", students_text(record)))
    rows += [("speed", speed(summary)), ("run folder", Verbatim(summary["run_dir"]))]
    text = pairs(rows, width=width)
    if choices := summary.get("choices"):
        table = choices_table(choices, summary["chosen"], width=width)
        notes = "".join(f"{line}\n" for line in remarks(choices, summary["chosen"]))
        text += f"\nsweep results (dev split):\n{table}\n{notes}\n"
    return text + pairs(commands(*_next_commands(summary)), width=width)


def _refit(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the row of a head that a closed form has joined, with what that alone reaches."""
    if not (facts := summary.get("refit")):
        return []
    before = (summary.get("probe_head") or {}).get("left_out_top1")
    frozen = "" if before is None else f"; frozen features: {before:.1%} (leave-one-out)"
    return [("head", f"refitted on {count_of(facts['num_examples'], 'image')}{frozen}")]


def length_text(steps: int, batch_size: int, num_examples: int) -> str:
    """Return the duration of a run in steps and in passes over its images."""
    epochs = steps * batch_size / num_examples
    count = f"{epochs:,.0f}" if epochs >= 100 else f"{epochs:.3g}"
    passes = f"{count} epoch{'' if count == '1' else 's'}"
    return f"{count_of(steps, 'step')} of {count_of(batch_size, 'image')} = {passes}"


def _next_commands(summary: dict[str, Any]) -> list[tuple]:
    """Return what to do with a finished run, the most useful first: use it, see it, take it elsewhere."""
    run_dir, name = summary["run_dir"], PurePath(summary["run_dir"]).name
    if "top1" not in summary and "mae" not in summary:
        return [("vit", "finetune", "--ckpt", run_dir, "--dataset", "DATA")]
    # All images of folds were trained on, so that none is left to evaluate the last model on.
    evaluation = [("vit", "evaluate", "--ckpt", run_dir, "--out", f"{run_dir}/evaluation")]
    train_on = ("--ckpt", run_dir, "--keep-head", "--dataset", summary.get("dataset", "DATA"))
    has_to_gain = summary.get("command") == "finetune" and summary.get("top1") != 1
    return [
        ("vit", "predict", "--ckpt", run_dir, "IMAGES"),
        ("vit", "report", run_dir, "--out", f"{name}.html"),
        *([] if summary.get("folds") else evaluation),
        ("vit", "export", run_dir, f"{name}.onnx"),
        *([("vit", "finetune", *train_on, "--out", f"{run_dir}-2")] if has_to_gain else []),
    ]


def _found(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of what the predictions show, and of what would help most."""
    facts = summary.get("findings")
    if not facts:
        return []
    points = 100 * (summary["top1"] - facts["majority_top1"])
    rows = [
        (
            "majority",
            f"{facts['majority_top1']:.2%} for always {facts['majority_class']}: {points:+.1f} points",
        )
    ]
    if facts["worst_classes"]:
        worst = (
            f"{row['class']} {row['num_right']} of {row['num_examples']} ({row['num_train']} trained on)"
            for row in facts["worst_classes"]
        )
        rows.append(("weakest", ", ".join(worst)))
    if facts["confused"]:
        pairs_of = (
            f"{row['class']} taken for {row['predicted']} {row['count']} x" for row in facts["confused"]
        )
        rows.append(("confused", ", ".join(pairs_of)))
    for number, row in enumerate(facts["confident_mistakes"]):
        name, place = "" if number else "mistakes", within(row["place"], summary.get("dataset"))
        about = f"{row['class']} taken for {row['predicted']}, {row['probability']:.0%}"
        rows.append((name, Verbatim(f"{place}  ({about})")))
    return rows + _advice_rows(summary)


def _probe(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the row of the few-shot probe of the finished network."""
    if not (probe := summary.get("fewshot")):
        return []
    shots = f"{count_of(probe['shots'], 'shot')} of {probe['dataset']}"
    return [("few-shot", f"{shown(probe, 'top1')} at {shots}")]


def choices_table(
    choices: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any], *, width: int | None = None
) -> str:
    """Return a table of a sweep's arms, the best one with the reason for it.

    Args:
        choices: the values of each arm by dotted key, and its scores on the dev split as "dev_...".
    """
    rows = []
    for choice in choices:
        loss = "diverged" if choice["dev_loss"] is None else f"{choice['dev_loss']:.4f}"
        interval = choice.get("dev_interval")
        mark = f"chosen, {reason(choices, chosen)}" if chosen.items() <= choice.items() else ""
        accuracy = percent(accuracy_of(choice)), interval_text(interval) if interval else "-"
        rows.append((values_text(choice), *accuracy, loss, mark))
    columns = {"arm": "text", **dict.fromkeys(("accuracy", "95 %", "loss"), "number"), "": "text"}
    return simple_table(columns, rows).as_text(width=width).rstrip()


def arm_line(choices: Sequence[Mapping[str, Any]], best: Mapping[str, Any], num_arms: int) -> str:
    """Return the progress line of the arm of a sweep that has just finished, the last of `choices`."""
    choice = choices[-1]
    arm = f"arm {len(choices)} of {num_arms}, {values_text(choice)}"
    if choice["dev_loss"] is None:
        return f"{arm}: diverged"
    accuracy = accuracy_of(choice)
    score = f"loss {choice['dev_loss']:.4f}"
    if accuracy is not None:
        score = f"{percent(accuracy)} on the dev split, {score}"
    return f"{arm}: {score}{', best so far' if best.items() <= choice.items() else ''}"


def run_line(title: str, scores: Mapping[str, Any], count: int) -> str:
    """Return the progress line of a finished final run or fold, with its scores on this many images."""
    accuracy = ""
    if "top1" in scores:
        accuracy = f"top-1 {accuracy_text(scores['top1'], interval_of(scores['top1'], count), count)}, "
    return f"{title}: {accuracy}loss {scores['loss']:.4f}"


def _plan(plan: dict[str, Any]) -> str:
    count = count_of(plan["accumulation_steps"], "pass", "passes")
    passes = f"{count} of {plan['per_device_batch']}"
    processes = count_of(plan["world_size"], "process", "processes")
    rows = [
        ("model", f"{plan['model']}, {plan['params']:,} parameters, {plan['forward_gmacs']} GMACs per image"),
        ("data", f"{plan['num_examples']:,} training images, not read yet"),
        ("warm-up", f"{plan['warmup_steps']:,} of the {count_of(plan['total_steps'], 'step')}"),
        ("training", length_text(plan["total_steps"], plan["batch_size"], plan["num_examples"])),
        ("images seen", f"{plan['images_seen']:,}"),
        ("compute", f"{compute_text(plan['exaflops'])}, {plan['precision']}"),
        ("batch", f"{count_of(plan['batch_size'], 'image')}: {passes} on {processes}"),
        ("memory", f"about {plan['estimated_peak_memory_gib']:.2g} GiB per process"),
    ]
    rows += [("candidates" * (at == 0), text) for at, text in enumerate(plan["candidates"])]
    if "max_minutes" in plan:
        limit = duration(60 * plan["max_minutes"])
        rows.append(("time", f"{limit}; fewer steps are planned once the first ones are measured"))
    if "num_folds" in plan:
        runs = f"{plan['num_folds']} folds and a run on all images"
    elif "num_arms" in plan:
        arms = f"{count_of(plan['num_arms'], 'arm')} and " if plan["num_arms"] else ""
        runs = f"{arms}{count_of(plan['num_runs'], 'run')}{' with the chosen values' if arms else ''}"
    if "all_steps" in plan:
        compute = "" if plan["all_exaflops"] is None else f", {compute_text(plan['all_exaflops'])}"
        rows.append(("all runs", f"{runs}: {count_of(plan['all_steps'], 'step')}{compute}"))
    if "measured_images_per_s" in plan:
        measured = f"{plan['measured_images_per_s']:.1f} images/s, {duration(3600 * plan['measured_hours'])}"
        rows.append(("measured", f"{measured}, {plan['measured_peak_memory_gib']:.1f} GiB"))
    if "all_measured_hours" in plan:
        rows.append(("", f"{duration(3600 * plan['all_measured_hours'])} for all runs"))
    name, whole = WHOLE_RECIPE
    by = f"{plan['recipe_name']}; " if plan.get("recipe_name") else ""
    return pairs([*rows, (name, f"{by}{whole}")])
