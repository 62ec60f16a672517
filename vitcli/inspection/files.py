"""What `vit inspect` leaves on disk: figures, arrays, numbers, a page; no command of its own."""

import html
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from vitcli import __version__
from vitcli.inspection import analysis
from vitcli.inspection import figures as drawn
from vitcli.inspection import text as inspection_text
from vitcli.inspection.collect import Inspection
from vitcli.output import html as output_html
from vitcli.output import plots
from vitcli.output.atomic import replace_file, write_json, write_text
from vitcli.output.document import PageFigure
from vitcli.output.result_folder import ResultFolder
from vitcli.output.svg import to_svg
from vitcli.weights.files import write_safetensors

RESULT, ARRAYS, PAGE = "inspection.json", "arrays.safetensors", "inspection.html"
FIGURES = tuple(inspection_text.NAMES)
FOLDER = ResultFolder(
    noun="inspection",
    result=RESULT,
    names=(RESULT, ARRAYS, PAGE, *(f"{name}.{end}" for name in FIGURES for end in plots.ENDINGS)),
)
GENERATOR = '<meta name="generator" content="vit inspect">'
MOST_BY_LAYER = 4  # pictures whose layers are drawn
BOTH = "both"  # key of a figure that has two checkpoints
DOTS = 160  # an inch, of what stands in the page


def write_all(out: Path, found: Sequence[Inspection], *, began_at: float) -> dict[str, Any]:
    """Write everything into the folder, of two checkpoints into OUT/1 and OUT/2; what --json prints."""
    FOLDER.begin(out, [one.result["asked"] for one in found])
    results, is_one = [one.result for one in found], len(found) == 1
    width = drawn.WIDE if is_one else drawn.WIDTH
    each = [
        _write_one(folder, one, width=width)
        for folder, one in zip(FOLDER.folders(out, len(found)), found, strict=True)
    ]
    both = {} if is_one else _both(found)
    _save(out, both)
    page = _page(results, _pictures(results, each, both))
    write_text(out / PAGE, page)
    told = compared(found) | {"figures": list(both)}
    result = results[0] if is_one else {"command": "inspect", "inspections": results, "compared": told}
    result |= {"out": str(out), "page": str(out / PAGE), "elapsed_s": time.perf_counter() - began_at}
    write_json(out / RESULT, result)
    return result


def _write_one(folder: Path, one: Inspection, *, width: float) -> dict[str, Figure]:
    """The figures and arrays of one checkpoint."""
    figures = figures_of(one, width=width)
    _save(folder, figures)
    metadata = {"format": "pt", "ckpt": one.result["ckpt"], "model": one.result["model"]}
    arrays = {name: torch.from_numpy(array) for name, array in one.arrays.items()}
    replace_file(folder / ARRAYS, lambda file: write_safetensors(file, arrays, metadata))
    one.result.update(figures=list(figures), out=str(folder))
    return figures


def figures_of(one: Inspection, *, width: float) -> dict[str, Figure]:
    """By name; `width` is that of rows of pictures."""
    found, said = one.arrays, one.result
    figures = {}
    if "filters" in said:
        figures["filters"] = drawn.filters(found["filters"])
    if "position_similarity" in said:
        figures["position_similarity"] = drawn.position_similarity(found["position_similarity"])
    if "attention_distance" in said:
        mean, std = (said["attention_distance"][key] for key in ("mean", "std_over_images"))
        figures["attention_distance"] = drawn.attention_distance(
            np.array(mean), std and np.array(std), uniform=said["attention_distance"]["uniform"]
        )
    if "rollout" in said:
        images, maps = (torch.from_numpy(found[name]) for name in ("images", "rollout"))
        lit = analysis.attention_overlay(images, maps, full_at=said["rollout"]["full_at"])
        figures["rollout"] = drawn.beside(found["images"], lit.numpy(), name="attention", width=width)
    if "attention_by_head" in said:
        heads = found["attention_by_head"]
        figures["attention_by_head"] = drawn.attention_by_head(found["images"][0], heads[0])
        figures["attention_by_layer"] = drawn.attention_by_layer(
            found["images"][:MOST_BY_LAYER], heads[:MOST_BY_LAYER].mean(axis=2), width=width
        )
    if "patch_features" in said:
        figures["patch_features"] = drawn.feature_maps(found["images"], found["patch_colours"], width=width)
    return figures


def _save(folder: Path, figures: Mapping[str, Figure]) -> None:
    for name, figure in figures.items():
        for ending in plots.ENDINGS:
            plots.save(folder / f"{name}.{ending}", figure)


def _both(found: Sequence[Inspection]) -> dict[str, Figure]:
    """Figures of two checkpoints in one; none if one of them has nothing to compare."""
    told = _distances(found)
    if told is None:
        return {}
    names = inspection_text.names([one.result for one in found])
    curves = [
        (name, np.array(said["mean"]) / said["uniform"]) for name, said in zip(names, told, strict=True)
    ]
    return {"distances_compared": drawn.distances_compared(curves)}


def _distances(found: Sequence[Inspection]) -> list[dict[str, Any]] | None:
    """What is said of attention distance; None if one has none, or only one patch and so no distances."""
    told = [one.result.get("attention_distance") for one in found]
    return told if all(said and said["uniform"] for said in told) else None


def compared(found: Sequence[Inspection]) -> dict[str, Any]:
    """What changed from the first checkpoint to the second; None where one of them has it not."""
    told = _distances(found)
    shares = told and [[value / said["uniform"] for value in said["by_layer"]] for said in told]
    maps = [torch.from_numpy(one.arrays["rollout"]) for one in found if "rollout" in one.arrays]
    both = len(maps) == 2 and len(maps[0]) == len(maps[1])
    return {
        "distance_of_uniform_by_layer": shares,
        "rollout_correlation": analysis.map_correlation(*maps).tolist() if both else None,
    }


def _pictures(
    results: Sequence[Mapping[str, Any]], each: Sequence[Mapping[str, Figure]], both: Mapping[str, Figure]
) -> list[PageFigure]:
    """With their captions, in the order of the page: those of two checkpoints side by side."""
    who = [f"{name}. " if len(results) > 1 else "" for name in inspection_text.names(results)]
    pictures = [
        (name, _picture(name, figure, who[n] + inspection_text.caption(name, results[n]), key=f"n{n}"))
        for n, figures in enumerate(each)
        for name, figure in figures.items()
    ]
    pictures += [
        (name, _picture(name, figure, inspection_text.comparison(results), key=BOTH))
        for name, figure in both.items()
    ]
    return [picture for _, picture in sorted(pictures, key=lambda pair: FIGURES.index(pair[0]))]


def _picture(name: str, figure: Figure, text: str, *, key: str) -> PageFigure:
    is_wide = figure.get_figwidth() > drawn.WIDTH or key == BOTH
    svg = to_svg(figure, key=f"{key}-{name}", label=html.escape(text), dpi=DOTS)
    return PageFigure(inspection_text.HEADINGS[name], text, svg, is_wide=is_wide)


def _page(results: Sequence[Mapping[str, Any]], pictures: Sequence[PageFigure]) -> str:
    made = (inspection_text.by_layer(results), inspection_text.what_is_left_out(results))
    models = dict.fromkeys(one["model"] for one in results)
    return output_html.page(
        [table for table in made if table],
        pictures,
        title=f"Inside {' and '.join(models)}",
        summary=inspection_text.facts(results),
        notes=[f"Made by vit {__version__} on {time.strftime('%Y-%m-%d %H:%M')}."],
        base=None,
        at_end=("layers", inspection_text.ABOUT),
        generator=GENERATOR,
    )
