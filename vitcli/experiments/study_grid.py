"""A study's grid and what its runs say together: cells, points over seeds, the Pareto front; pure arithmetic.

A cell is one run. A point is the cells that differ in nothing but the seed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import mean, stdev
from typing import Any

from vitcli.experiments.study_schema import ALL, Study, StudyVariant, folder_name, network_key
from vitcli.models import variants
from vitcli.output.text import value_text


@dataclass(frozen=True)
class StudyRun:
    """One run of a study.

    Attributes:
        name: of its folder; `point` is the name without the seed.
        model: what tables and pictures call the network.
        families: as the study names them; () where it names none.
        recipe: that the keys are laid over.
        keys: recipe keys of this run, and in `sources` the place in the study that each comes from.
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
    """Every run, the first seed of everything before the second: a picture that is whole early on."""
    seeds = study.grid.seeds or (None,)
    return [
        _cell(study, variant, num_examples, duration, seed)
        for seed in seeds
        for variant in _variants(study)
        for num_examples, duration in product(
            _list(study, variant, "num_examples"), _durations(study, variant)
        )
    ]


def family_of(model: str | None) -> str:
    """ViT, hybrid or ResNet for a network of the paper, "other" for any other."""
    variant = variants.find_variant(model or "")
    if variant is None or not (variant.layers or variant.blocks):
        return "other"
    return "ViT" if variant.is_plain else "hybrid" if variant.layers else "ResNet"


def points(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mean and standard deviation (ddof 1; None for one run) over the seeds of each point.

    Args:
        cells: as --json has them, in any order; those without a score are not counted.

    Returns:
        One for each point in the order of its first cell, `mean` None where nothing is finished.
    """
    found = []
    for name in dict.fromkeys(cell["point"] for cell in cells):
        mine = [cell for cell in cells if cell["point"] == name]
        scores = [cell["score"] for cell in mine if cell["score"] is not None]
        kept = ("model", "families", "num_examples", "epochs", "steps", "params", "images_seen", "exaflops",
                "asked_epochs", "asked_steps")  # fmt: skip
        found.append(
            {"name": name}
            | {key: mine[0][key] for key in kept}
            | {
                "mean": mean(scores) if scores else None,
                "std": stdev(scores) if len(scores) > 1 else None,
                "n": len(scores),
                "means": _means(mine),
            }
        )
    return found


def pareto(found: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names of the points that no other beats: none is as cheap and better, or as good and cheaper.

    Args:
        found: points with a mean and exaflops; others are left out.

    Returns:
        The cheapest first.
    """
    known = [point for point in found if point["mean"] is not None and point["exaflops"] is not None]
    best = [point for point in known if not any(_beats(other, point) for other in known)]
    return [point["name"] for point in sorted(best, key=lambda point: (point["exaflops"], point["mean"]))]


def _beats(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    is_no_worse = one["mean"] >= other["mean"] and one["exaflops"] <= other["exaflops"]
    return is_no_worse and (one["mean"], one["exaflops"]) != (other["mean"], other["exaflops"])


def _means(cells: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Mean over the seeds for each data set that is scored on."""
    known = [cell["scores"] for cell in cells if cell["scores"]]
    return {name: mean(scores[name] for scores in known) for name in (known[0] if known else ())}


def _variants(study: Study) -> Sequence[StudyVariant]:
    if study.variants:
        return study.variants
    key = network_key(study.command)
    return [StudyVariant(name=_paper_name(model), set={key: model}) for model in study.grid.models]


def _paper_name(model: str) -> str:
    variant = variants.find_variant(model)
    return variant.name if variant else model


def _list(study: Study, variant: StudyVariant, axis: str) -> tuple[Any, ...]:
    return getattr(variant, axis) or getattr(study.grid, axis) or (None,)


def _durations(study: Study, variant: StudyVariant) -> list[tuple[str, Any]]:
    """Each duration with the unit it is in; a variant's own in one unit replace the grid's in the other."""
    owner = variant if variant.epochs or variant.steps else study.grid
    unit = "epochs" if owner.epochs else "steps"
    return [(unit, value) for value in getattr(owner, unit) or (None,)]


def _cell(
    study: Study,
    variant: StudyVariant,
    num_examples: int | str | None,
    duration: tuple[str, Any],
    seed: int | None,
) -> StudyRun:
    unit, length = duration
    axes = {"num_examples": num_examples, unit: length, "seeds": seed}
    axes = {axis: value for axis, value in axes.items() if value is not None}
    grid_keys = {"num_examples": "data.num_examples", unit: f"schedule.{unit}", "seeds": "train.seed"}
    layers = [
        (study.set, "set"),
        (variant.set, f"{variant.name}, set" if study.variants else "grid.models"),
        *(
            ({grid_keys[axis]: None if value == ALL else value}, f"grid.{axis}")
            for axis, value in axes.items()
        ),
    ]
    words = {"num_examples": "images", "epochs": "epochs", "steps": "steps"}
    told = (f"{value_text(axes[axis])}-{word}" for axis, word in words.items() if axis in axes)
    point = "-".join([folder_name(variant.name), *told])
    return StudyRun(
        name=point if seed is None else f"{point}-seed-{seed}",
        point=point,
        model=variant.name,
        families=variant.family or (),
        recipe=variant.recipe or study.recipe,
        keys={key: value for keys, _ in layers for key, value in keys.items()},
        sources={key: place for keys, place in layers for key in keys},
        axes=axes,
    )
