"""What several runs of one recipe come to: the chosen values, means and deviations, and how they are told."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from vitcli.output.document import simple_table
from vitcli.output.run_folder import slug
from vitcli.output.summaries import TrainingSummary
from vitcli.output.text import percent
from vitcli.recipe.toml import toml_value

LR = "optimizer.lr"
SUMS = ("elapsed_s", "exaflops")  # of all runs together; what only a part knows, no sum knows


@dataclass(frozen=True)
class Trial:
    """One combination of values, trained and scored on the dev part.

    Attributes:
        choice: value by dotted key.
        summary: of its run; None if that diverged.
        run_dir: its folder, below that of the selection.
    """

    choice: Mapping[str, Any]
    summary: Mapping[str, Any] | None
    run_dir: str

    def record(self) -> dict[str, Any]:
        """A line of metrics.jsonl."""
        return {"arm": dict(self.choice), **self.scores(), "run_dir": self.run_dir}

    def scores(self) -> dict[str, Any]:
        """By its key, each score on the dev part."""
        if self.summary is None:
            return {"dev_top1": None, "dev_loss": None}
        run = self.summary["runs"][0]
        return {f"dev_{name}": value for name, value in run.items() if name != "seed"}

    @property
    def rank_key(self) -> tuple[float, float]:
        """The larger the better: top-1, of masked patches the share of right colours; then a smaller loss."""
        if self.summary is None:
            return -1.0, -math.inf
        run = self.summary["runs"][0]
        share = run.get("top1", run.get("patch_accuracy"))
        return (0.0 if share is None else share), -run["loss"]


def best(tried: Sequence[Trial]) -> dict[str, Any]:
    """The choice with the best score on the dev part; of equal ones the first that is listed."""
    return dict(max(tried, key=lambda one: one.rank_key).choice)


def name_of(choice: Mapping[str, Any]) -> str:
    """The folder of an arm: "lr-0.003"."""
    texts = {key: value if isinstance(value, str) else toml_value(value) for key, value in choice.items()}
    words = (f"{key.rpartition('.')[2]}-{text}" for key, text in texts.items())
    return slug("_".join(words), keep=".%+-").strip("-")


def names_of(choices: Sequence[Mapping[str, Any]]) -> list[str]:
    """The folders of all arms: after their values, or numbered where that would be no name of one alone."""
    names = [name_of(choice) for choice in choices]
    is_good = len(set(names)) == len(names) and all(len(name) <= 100 for name in names)
    return names if is_good else [f"arm-{number}" for number in range(1, len(names) + 1)]


def summary_of_all(
    tried: Sequence[Trial],
    chosen: Mapping[str, Any],
    finals: Sequence[Mapping[str, Any]],
    *,
    path: Path,
) -> dict[str, Any]:
    """The object of summary.json: means over the runs, their deviation (ddof 1), every run and every arm."""
    runs = [dict(final["runs"][0]) for final in finals]
    every = [*(one.summary for one in tried if one.summary), *finals]
    by_lr = {f"{one.choice[LR]:g}": one.scores().get("dev_top1") for one in tried if set(one.choice) == {LR}}
    skipped = sorted({place for one in every for place in one["skipped_images"]})
    totals = {
        name: None if None in (values := [one[name] for one in every]) else sum(values) for name in SUMS
    }
    seconds = sum(final["elapsed_s"] for final in finals)
    images = sum(final["steps"] * final["batch_size"] for final in finals)
    return TrainingSummary.written(
        {
            **finals[0],
            "run_dir": str(path),
            "dev_top1_by_lr": by_lr or None,
            "choices": [{**one.choice, **one.scores()} for one in tried],
            "chosen": dict(chosen),
            **{name: _mean([one[name] for one in runs]) for name in runs[0] if name != "seed"},
            "top1_std": stdev([one["top1"] for one in runs]) if len(runs) > 1 and "top1" in runs[0] else None,
            "runs": runs,
            "fewshot": _mean_probe([final["fewshot"] for final in finals]),
            "num_skipped_images": max(one["num_skipped_images"] for one in every),
            "skipped_images": skipped[:100],
            "images_per_s": images / seconds if seconds else None,
            **totals,
            "peak_memory_gib": max(one["peak_memory_gib"] for one in every),
            "weights": str(path / "model.safetensors"),
        }
    )


def plan_of_all(final: Mapping[str, Any], arms: Sequence[Mapping[str, Any]], num_runs: int) -> dict[str, Any]:
    """The plan of the last run, and the steps, images and compute of all of them together."""
    every = [*arms, *[final] * num_runs]
    told = {
        "num_arms": len(arms),
        "num_runs": num_runs,
        "all_steps": sum(one["total_steps"] for one in every),
        "all_images_seen": sum(one["images_seen"] for one in every),
        "all_exaflops": _sum([one["exaflops"] for one in every]),
    }
    if "measured_images_per_s" in final:
        told["all_measured_hours"] = told["all_images_seen"] / final["measured_images_per_s"] / 3600
    return {**final, **told}


def table_of_trials(trials: Sequence[Trial], *, num_arms: int) -> str:
    """Return a table of the trials so far for a terminal; the best is marked."""
    leader = max(trials, key=lambda trial: trial.rank_key)
    rows = []
    for trial in trials:
        values = (f"{key.rpartition('.')[2]} {toml_value(value)}" for key, value in trial.choice.items())
        scores = trial.scores()
        accuracy = scores.get("dev_top1", scores.get("dev_patch_accuracy"))
        loss = f"{scores['dev_loss']:.4f}" if trial.summary else "diverged"
        rows.append(("*" if trial is leader else "", ", ".join(values), percent(accuracy), loss))
    table = simple_table({"": "text", "trial": "text", "accuracy": "number", "loss": "number"}, rows)
    return f"{len(trials)} of {num_arms} trials, scored on the dev split:\n{table.as_text().rstrip()}"


def run_line(scores: Mapping[str, Any], number: int, num_runs: int) -> str:
    share = f"top-1 {scores['top1']:.2%}, " if "top1" in scores else ""
    return f"run {number} of {num_runs}, seed {scores['seed']}: {share}loss {scores['loss']:.4f}"


def _mean_probe(probes: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """The few-shot probe at the end of every run as one: `runs` has their means over the draws."""
    if None in probes:
        return None
    each = [probe["top1"] for probe in probes]
    return {**probes[0], "top1": mean(each), **({"runs": each} if len(each) > 1 else {})}


def _sum(values: Sequence[float | None]) -> float | None:
    return None if None in values else sum(values)


def _mean(values: Sequence[float | None]) -> float | None:
    return None if None in values else mean(values)
