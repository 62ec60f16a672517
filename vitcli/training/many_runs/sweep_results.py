"""Results of a sweep: its trials, the best of them, and the means and deviations over its final runs."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from vitcli.evaluation.intervals import interval_of
from vitcli.output.run_folder import slug
from vitcli.output.scores import OF_CLASSES
from vitcli.output.summaries import TrainingSummary
from vitcli.output.text import count_of, first_few
from vitcli.recipe import Recipe, to_toml
from vitcli.recipe.toml import toml_value

LR = "optimizer.lr"
SCORE = "dev_"  # before the names of scores in an entry of "choices"
TOTALS = ("elapsed_s", "exaflops")  # over all runs


@dataclass(frozen=True)
class Trial:
    """One combination of values, trained and scored on the dev split.

    Attributes:
        choice: value by dotted key.
        summary: of the run; None if it diverged.
    """

    choice: Mapping[str, Any]
    summary: Mapping[str, Any] | None

    def scores(self) -> dict[str, Any]:
        """Return the scores on the dev split, such as "dev_top1"."""
        if self.summary is None:
            return {"dev_top1": None, "dev_loss": None}
        run, count = self.summary["runs"][0], self.summary["num_eval_examples"]
        scores = {name: value for name, value in run.items() if name not in {"seed", *OF_CLASSES}}
        if "top1" in run and "mean_ap" not in run:
            scores |= {"interval": interval_of(run["top1"], count), "num_examples": count}
        return {f"dev_{name}": value for name, value in scores.items()}

    def entry(self) -> dict[str, Any]:
        """Return the entry of "choices" in summary.json."""
        return {**self.choice, **self.scores()}

    @property
    def rank_key(self) -> tuple[float, float]:
        """Rank by average precision or accuracy (of labels or patch colours), then by the smaller loss."""
        if self.summary is None:
            return -1.0, -math.inf
        run = self.summary["runs"][0]
        accuracy = run.get("mean_ap", run.get("top1", run.get("patch_accuracy")))
        return (0.0 if accuracy is None else accuracy), -run["loss"]


def best(trials: Sequence[Trial]) -> dict[str, Any]:
    """Return the choice with the best score on the dev split; the first of several equal ones."""
    return dict(max(trials, key=lambda trial: trial.rank_key).choice)


def reason(choices: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any]) -> str:
    """Return why `chosen` is the best of the entries of "choices": its accuracy, or what broke the tie."""
    best = _entry_of(choices, chosen)
    if accuracy_of(best) is None:
        return "smallest loss"
    equals = [choice for choice in choices if accuracy_of(choice) == accuracy_of(best)]
    if len(equals) == 1:
        return "highest accuracy"
    is_best_loss = [choice["dev_loss"] for choice in equals].count(best["dev_loss"]) == 1
    return "by loss: equal accuracy" if is_best_loss else "first of equals"


def remarks(choices: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any]) -> list[str]:
    """Return what a choice among these does not prove: equals within the noise, and a best at the edge."""
    best, name = _entry_of(choices, chosen), values_text(chosen)
    notes = []
    # Values whose interval overlaps that of the best; one that was not scored has none.
    scored = [choice for choice in choices if choice.get("dev_interval")]
    close = [
        values_text(choice)
        for choice in scored
        if choice is not best and choice["dev_interval"][1] >= best["dev_interval"][0]
    ]
    if close:
        count = count_of(best["dev_num_examples"], "image")
        overlap = "the 95 % intervals overlap"
        notes.append(f"note: {count} cannot tell {name} from {first_few(close)}: {overlap}")
    # A best value at the end of what was tried.
    for key, value in chosen.items():
        tried = {choice[key] for choice in choices if type(choice[key]) in (int, float)}
        if len(tried) > 1 and value in (min(tried), max(tried)):
            is_largest = value == max(tried)
            end, beyond = ("largest", "larger") if is_largest else ("smallest", "smaller")
            example = f", such as --lr {_beyond(value, is_largest)}" if key == LR else ""
            name = values_text({key: value})
            notes.append(f"note: {name} is the {end} tried; a {beyond} one may be better{example}")
    return notes


def values_text(choice: Mapping[str, Any]) -> str:
    """Return the values of a choice, or of an entry of "choices", as "lr 0.003, flip true"."""
    values = {key: value for key, value in choice.items() if not key.startswith(SCORE)}
    return ", ".join(f"{key.rpartition('.')[2]} {toml_value(value)}" for key, value in values.items())


def accuracy_of(choice: Mapping[str, Any]) -> float | None:
    """Return the accuracy on the dev split in an entry of "choices": of labels, or of patch colours.

    Of several labels per image it is the mean average precision.
    """
    return choice.get("dev_mean_ap", choice.get("dev_top1", choice.get("dev_patch_accuracy")))


def _entry_of(choices: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(choice for choice in choices if chosen.items() <= choice.items())


def _beyond(value: float, is_largest: bool) -> str:
    """Return the value and the next two beyond it, in steps of about three: "0.01,0.03,0.1"."""
    decade = math.floor(math.log10(value))
    steps = [float(f"{digit}e{decade + shift}") for shift in (-1, 0, 1, 2) for digit in (1, 3)]
    further = [step for step in steps if step > 1.5 * value][:2]
    if not is_largest:
        further = [step for step in steps if step < value / 1.5][-2:]
    return ",".join(f"{each:g}" for each in sorted([value, *further]))


def name_of(choice: Mapping[str, Any]) -> str:
    """Return the folder name of an arm, such as "lr-0.003"."""
    texts = {key: value if isinstance(value, str) else toml_value(value) for key, value in choice.items()}
    words = (f"{key.rpartition('.')[2]}-{text}" for key, text in texts.items())
    return slug("_".join(words), keep=".%+-").strip("-")


def names_of(choices: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the folder names of all arms: their values, or numbers if those are ambiguous or too long."""
    names = [name_of(choice) for choice in choices]
    is_usable = len(set(names)) == len(names) and all(len(name) <= 100 for name in names)
    return names if is_usable else [f"arm-{number}" for number in range(1, len(names) + 1)]


def summary_of_all(
    trials: Sequence[Trial],
    chosen: Mapping[str, Any],
    finals: Sequence[Mapping[str, Any]],
    *,
    path: Path,
    average: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the object of summary.json: means and deviations (ddof 1) over the final runs, and every run."""
    runs = [dict(final["runs"][0]) for final in finals]
    arms = [trial.summary for trial in trials if trial.summary]
    summaries = [*arms, *finals]
    by_lr = {
        f"{trial.choice[LR]:g}": trial.scores().get("dev_top1")
        for trial in trials
        if set(trial.choice) == {LR}
    }
    scored = [*summaries, average] if average else summaries  # each of other images
    skipped = sorted({name for summary in scored for name in summary["skipped_images"]})
    means = {name: _unless_unknown(mean, [run[name] for run in runs]) for name in runs[0] if name != "seed"}
    count = finals[0]["num_eval_examples"]
    intervals = {name: interval_of(means[name], count) for name in ("top1", "top5") if name in means}
    seconds = sum(final["elapsed_s"] for final in finals)
    images = sum(final["steps"] * final["batch_size"] for final in finals)
    # Intervals of the errors of numbers do not follow from the mean of several runs.
    of_first = {key: value for key, value in finals[0].items() if key != "intervals" or len(finals) == 1}
    summary = {
        **of_first,
        "run_dir": str(path),
        "dev_top1_by_lr": by_lr or None,
        "choices": [trial.entry() for trial in trials],
        "chosen": dict(chosen),
        "num_choice_seen": max((arm.get("num_held_out_seen") or 0 for arm in arms), default=0),
        **means,
        **({"intervals": intervals} if intervals else {}),
        "top1_std": stdev([run["top1"] for run in runs]) if len(runs) > 1 and "top1" in runs[0] else None,
        "runs": runs,
        "fewshot": _mean_probe([final["fewshot"] for final in finals]),
        "num_skipped_images": max(len(skipped), *(summary["num_skipped_images"] for summary in scored)),
        "skipped_images": skipped[:100],
        "images_per_s": images / seconds if seconds else None,
        **totals_of(summaries),
        "peak_memory_gib": max(summary["peak_memory_gib"] for summary in summaries),
        **({"average": average["average"]} if average else {}),
        "weights": str(path / "model.safetensors"),
    }
    return TrainingSummary.written(summary)


def plan_of_all(
    recipe: Recipe, final: Mapping[str, Any], plans: Sequence[Mapping[str, Any]], counts: Mapping[str, int]
) -> dict[str, Any]:
    """Return the plan of a final run, the recipe of the command, and steps, images and compute of all runs.

    Args:
        plans: of all runs, which may be sweeps.
        counts: the numbers of runs, such as "num_arms".
    """
    totals = {
        **counts,
        "all_steps": sum(plan.get("all_steps", plan["total_steps"]) for plan in plans),
        "all_images_seen": sum(plan.get("all_images_seen", plan["images_seen"]) for plan in plans),
        "all_exaflops": _unless_unknown(sum, [plan.get("all_exaflops", plan["exaflops"]) for plan in plans]),
    }
    if "measured_images_per_s" in final:
        totals["all_measured_hours"] = totals["all_images_seen"] / final["measured_images_per_s"] / 3600
    return {**final, **totals, "recipe": to_toml(recipe)}


def totals_of(
    summaries: Sequence[Mapping[str, Any]], keys: Sequence[str] = TOTALS
) -> dict[str, int | float | None]:
    """Return the sums over runs; None where that of any run is unknown."""
    return {key: _unless_unknown(sum, [summary.get(key) for summary in summaries]) for key in keys}


def _mean_probe(probes: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """Return the mean of the final few-shot probes; `runs` has the accuracy of each run."""
    if None in probes:
        return None
    accuracies = [probe["top1"] for probe in probes]
    return {**probes[0], "top1": mean(accuracies), **({"runs": accuracies} if len(accuracies) > 1 else {})}


def _unless_unknown(function: Callable[[list[float]], float], values: list[float | None]) -> float | None:
    return None if None in values else function(values)
