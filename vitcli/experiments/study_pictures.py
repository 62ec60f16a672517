"""A study's result to its pictures on disk; no command of its own."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from vitcli.experiments import study_figures, study_grid
from vitcli.experiments.study_figures import Panel
from vitcli.output import figure_files

COMMANDS = {"pretrain": "pre-training", "finetune": "fine-tuning"}


def draw(folder: Path, result: dict[str, Any]) -> None:
    """Write the picture of a result with at least one finished run, as PNG and SVG."""
    figure = _figure(result)
    for ending in figure_files.ENDINGS:
        figure_files.save(folder / f"{result['command'].removeprefix('study ')}.{ending}", figure)


def _figure(result: dict[str, Any]) -> Figure:
    points = [point for point in result["points"] if point["mean"] is not None]
    kind, score = COMMANDS[result["trained_by"]], result["score"]
    if result["command"] == "study data-size":
        images, note = f"{kind} images", _note(points, result)
        return study_figures.data_size_figure(points, images=images, score=score["name"], note=note)
    stds = {point["name"]: point["std"] for point in points}
    panels = {score["name"]: Panel({p["name"]: p["mean"] for p in points}, stds, result["pareto"])}
    if len(score["datasets"]) > 1:  # beside their mean the first, as the paper's Figure 5 has it
        first = score["datasets"][0]
        ones = [point | {"mean": point["means"][first]} for point in points]
        accuracy = {point["name"]: point["mean"] for point in ones}
        panels[f"{score['kind']} on {first}"] = Panel(accuracy, {}, study_grid.pareto(ones))
    cost, is_joined = f"{kind} compute", result["has_named_families"]
    return study_figures.compute_figure(
        points, panels, cost=cost, note=_note(points, result), is_joined=is_joined
    )


def _note(points: list[dict[str, Any]], result: dict[str, Any]) -> str:
    """What the points and bars are, and what all runs share."""
    runs = sorted({point["n"] for point in points})
    several = f"{runs[0]}" if len(runs) == 1 else f"{runs[0]} to {runs[-1]}"
    told = [f"mean ± standard deviation of {several} runs" if runs[-1] > 1 else "one run for each point"]
    steps, sizes = ({point[key] for point in points} for key in ("steps", "num_examples"))
    told += [f"{steps.pop():,} steps each"] if len(steps) == 1 else []
    told += [f"{sizes.pop():,} training images"] if len(sizes) == 1 else []
    unfinished = result["num_cells"] - result["num_finished"]
    told += [f"{unfinished} of {result['num_cells']} runs are missing"] if unfinished else []
    return " · ".join(told)
