"""Runs of a study's grid, points over their seeds, and the Pareto front; pure arithmetic.

A cell is one run. A point is the cells that differ only in the seed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Any

from vitcli.experiments.study_schema import ALL, SETS, Study, StudyVariant, folder_name, network_key
from vitcli.models.variants import find_variant
from vitcli.output.text import value_text


@dataclass(frozen=True)
class StudyRun:
    """Run of a study.

    Attributes:
        name: name of its folder; `point` is the name without the seed.
        model: name of the network in tables and figures.
        families: as named in the study, or ().
        recipe: the recipe that `keys` override.
        keys: recipe keys of this run; `sources` has the place in the study of each.
        axes: its values of the grid's lists, such as {"num_examples": "all", "seeds": 0}.
    """

    name: str
    point: str
    model: str
    families: tuple[str, ...]
    recipe: str
    keys: dict[str, Any]
    sources: dict[str, str]
    axes: dict[str, Any] = field(default_factory=dict)


def expand(study: Study) -> list[StudyRun]:
    """Return all runs, the first seed of all before the second, so that figures are complete early."""
    return [
        _cell(study, variant, {"num_examples": num_examples, unit: length, "seeds": seed})
        for seed in study.grid.seeds or (None,)
        for variant in _variants(study)
        for num_examples in variant.num_examples or study.grid.num_examples or (None,)
        for unit, length in _durations(study, variant)
    ]


def family_of(model: str | None) -> str:
    """Return ViT, hybrid or ResNet for a network of the paper, "other" for any other."""
    variant = find_variant(model or "")
    if variant is None or not (variant.layers or variant.blocks):
        return "other"
    return "ViT" if variant.is_plain else "hybrid" if variant.layers else "ResNet"


def points(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the points with mean and standard deviation (ddof 1; None for one run) over their seeds.

    Args:
        cells: as in --json, in any order; cells without a score do not count.

    Returns:
        The points in the order of their first cells; `mean` is None without a finished run.
    """
    # Cells by point, in their order.
    by_point: dict[str, list[Mapping[str, Any]]] = {}
    for cell in cells:
        by_point.setdefault(cell["point"], []).append(cell)
    # Settings are those of any cell of a point, accuracies are averaged.
    shared = ("model", "families", "num_examples", "epochs", "steps", "params", "images_seen", "exaflops",
              "asked_epochs", "asked_steps")  # fmt: skip
    averaged = []
    for name, point_cells in by_point.items():
        scores = [cell["score"] for cell in point_cells if cell["score"] is not None]
        by_dataset = [cell["scores"] for cell in point_cells if cell["scores"]]
        datasets = by_dataset[0] if by_dataset else ()
        averaged.append({
            "name": name,
            **{key: point_cells[0][key] for key in shared},
            "mean": mean(scores) if scores else None,
            "std": stdev(scores) if len(scores) > 1 else None,
            "n": len(scores),
            "means": {dataset: mean(scores[dataset] for scores in by_dataset) for dataset in datasets},
        })  # fmt: skip
    return averaged


def pareto(points: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of the Pareto front, the cheapest first.

    A point is on it if no other is as cheap and better, or as good and cheaper.

    Args:
        points: those without a mean or exaflops are left out.
    """
    known = [point for point in points if point["mean"] is not None and point["exaflops"] is not None]
    front = [point for point in known if not any(_dominates(other, point) for other in known)]
    return [point["name"] for point in sorted(front, key=lambda point: (point["exaflops"], point["mean"]))]


def _dominates(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    is_no_worse = a["mean"] >= b["mean"] and a["exaflops"] <= b["exaflops"]
    return is_no_worse and (a["mean"], a["exaflops"]) != (b["mean"], b["exaflops"])


def _variants(study: Study) -> Sequence[StudyVariant]:
    if study.variants:
        return study.variants
    key, known = network_key(study.command), {model: find_variant(model) for model in study.grid.models}
    return [StudyVariant(name=v.name if v else model, set={key: model}) for model, v in known.items()]


def _durations(study: Study, variant: StudyVariant) -> list[tuple[str, Any]]:
    """Return (unit, value) of each duration; a variant's durations replace the grid's, in either unit."""
    owner = variant if variant.epochs or variant.steps else study.grid
    unit = "epochs" if owner.epochs else "steps"
    return [(unit, value) for value in getattr(owner, unit) or (None,)]


def _cell(study: Study, variant: StudyVariant, values: Mapping[str, Any]) -> StudyRun:
    axes = {axis: value for axis, value in values.items() if value is not None}
    # Keys of the study, of the variant and of the grid's lists, each overriding those before it.
    layers = [(study.set, "set"), (variant.set, f"{variant.name}, set" if study.variants else "grid.models")]
    for axis, value in axes.items():
        layers.append(({SETS[axis][0]: None if value == ALL else value}, f"grid.{axis}"))
    # Names of folders, such as ViT-B-16-1000-images-7-epochs-seed-0.
    words = {"num_examples": "images", "epochs": "epochs", "steps": "steps"}
    parts = (f"{value_text(axes[axis])}-{word}" for axis, word in words.items() if axis in axes)
    point = "-".join([folder_name(variant.name), *parts])
    return StudyRun(
        name=f"{point}-seed-{axes['seeds']}" if "seeds" in axes else point,
        point=point,
        model=variant.name,
        families=variant.family or (),
        recipe=variant.recipe or study.recipe,
        keys={key: value for keys, _ in layers for key, value in keys.items()},
        sources={key: place for keys, place in layers for key in keys},
        axes=axes,
    )
