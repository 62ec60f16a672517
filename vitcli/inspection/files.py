"""Files of `vit inspect`: figures, arrays, numbers and a page, for one checkpoint or two."""

import html
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from vitcli.inspection import analysis, figures
from vitcli.inspection import text as inspection_text
from vitcli.inspection.collect import Inspection
from vitcli.output import html as output_html
from vitcli.output import plots
from vitcli.output.atomic import replace_file, write_json, write_text
from vitcli.output.document import PageFigure
from vitcli.output.plots import to_svg
from vitcli.output.result_folder import ResultFolder
from vitcli.weights.files import write_safetensors

RESULT, ARRAYS, PAGE = "inspection.json", "arrays.safetensors", "inspection.html"
FIGURES = tuple(inspection_text.FIGURES)
FOLDER = ResultFolder(
    noun="inspection",
    result=RESULT,
    names=(RESULT, ARRAYS, PAGE, *(f"{name}.{end}" for name in FIGURES for end in plots.ENDINGS)),
)
MOST_BY_LAYER = 4  # images in the figure of attention by layer
BOTH = "both"  # key of a figure of two checkpoints
DPI = 160  # of images inside the page


def write_all(out: Path, inspections: Sequence[Inspection], *, began_at: float) -> dict[str, Any]:
    """Write all files, those of two checkpoints into OUT/1 and OUT/2, and return the object of --json."""
    results = [inspection.result for inspection in inspections]
    FOLDER.begin(out, [result["asked"] for result in results])

    # Figures and arrays of each checkpoint, and figures of both together.
    is_single = len(inspections) == 1
    width = figures.WIDE if is_single else figures.WIDTH
    folders = FOLDER.folders(out, len(inspections))
    each = [_write_one(folder, i, width=width) for folder, i in zip(folders, inspections, strict=True)]
    both = {} if is_single else _compared_figures(inspections)
    _save(out, both)

    # The page, and last the JSON object.
    tables = (inspection_text.by_layer(results), inspection_text.table_left_out(results))
    page = output_html.page(
        [table for table in tables if table],
        _page_figures(results, each, both),
        title=f"Inside {' and '.join(dict.fromkeys(result['model'] for result in results))}",
        summary=inspection_text.facts(results),
        command="vit inspect",
    )
    write_text(out / PAGE, page)
    result = results[0]
    if not is_single:
        comparison = compared(inspections) | {"figures": list(both)}
        result = {"command": "inspect", "inspections": results, "compared": comparison}
    result |= {"out": str(out), "page": str(out / PAGE), "elapsed_s": time.perf_counter() - began_at}
    write_json(out / RESULT, result)
    return result


def _write_one(folder: Path, inspection: Inspection, *, width: float) -> dict[str, Figure]:
    """Write and return the figures of one checkpoint, and write its arrays."""
    result, drawn = inspection.result, figures_of(inspection, width=width)
    _save(folder, drawn)
    metadata = {"format": "pt", "ckpt": result["ckpt"], "model": result["model"]}
    arrays = {name: torch.from_numpy(array) for name, array in inspection.arrays.items()}
    replace_file(folder / ARRAYS, lambda file: write_safetensors(file, arrays, metadata))
    result.update(figures=list(drawn), out=str(folder))
    return drawn


def figures_of(inspection: Inspection, *, width: float) -> dict[str, Figure]:
    """Draw the figures that apply, by name; `width` is that of rows of images."""
    arrays, result = inspection.arrays, inspection.result
    drawn = {}
    # Patch and position embeddings.
    if "filters" in result:
        drawn["filters"] = figures.filters(arrays["filters"])
    if "position_similarity" in result:
        drawn["position_similarity"] = figures.position_similarity(arrays["position_similarity"])
    # Attention.
    if "attention_distance" in result:
        mean, std = (result["attention_distance"][key] for key in ("mean", "std_over_images"))
        drawn["attention_distance"] = figures.attention_distance(
            np.array(mean), std and np.array(std), uniform=result["attention_distance"]["uniform"]
        )
    if "rollout" in result:
        images, maps = (torch.from_numpy(arrays[name]) for name in ("images", "rollout"))
        overlay = analysis.attention_overlay(images, maps, full_at=result["rollout"]["full_at"])
        captions = [_prediction(prediction) for prediction in result.get("predictions", ())]
        drawn["rollout"] = figures.beside(
            arrays["images"], overlay.numpy(), name="attention", width=width, captions=captions
        )
    if "attention_by_head" in result:
        heads = arrays["attention_by_head"]
        drawn["attention_by_head"] = figures.attention_by_head(arrays["images"][0], heads[0])
        drawn["attention_by_layer"] = figures.attention_by_layer(
            arrays["images"][:MOST_BY_LAYER], heads[:MOST_BY_LAYER].mean(axis=2), width=width
        )
    # Features.
    if "patch_features" in result:
        drawn["patch_features"] = figures.feature_maps(arrays["images"], arrays["patch_colours"], width=width)
    return drawn


def _prediction(prediction: Mapping[str, Any]) -> str:
    """Return the caption of an image: what was predicted, and the label, if it has one."""
    predicted, label = prediction["predicted"], prediction["label"]
    top = f"{predicted} {prediction['probability']:.0%}"
    if label is None:
        return top
    return f"{top}, right" if label == predicted else f"{top}, label: {label}"


def _save(folder: Path, drawn: Mapping[str, Figure]) -> None:
    for name, figure in drawn.items():
        for ending in plots.ENDINGS:
            plots.save(folder / f"{name}.{ending}", figure)


def _compared_figures(inspections: Sequence[Inspection]) -> dict[str, Figure]:
    """Draw the figures of two checkpoints together; none if one has nothing to compare."""
    distances = _distances(inspections)
    if distances is None:
        return {}
    names = inspection_text.names([inspection.result for inspection in inspections])
    relative = [np.array(numbers["mean"]) / numbers["uniform"] for numbers in distances]
    return {"distances_compared": figures.distances_compared(list(zip(names, relative, strict=True)))}


def _distances(inspections: Sequence[Inspection]) -> list[dict[str, Any]] | None:
    """Return the attention distances of all; None if a network has none, or a single patch (all are 0)."""
    distances = [inspection.result.get("attention_distance") for inspection in inspections]
    return distances if all(numbers and numbers["uniform"] for numbers in distances) else None


def compared(inspections: Sequence[Inspection]) -> dict[str, Any]:
    """Return the numbers that compare two checkpoints; None where one of them has no such number."""
    distances = _distances(inspections)
    maps = [torch.from_numpy(i.arrays["rollout"]) for i in inspections if "rollout" in i.arrays]
    have_maps = len(maps) == 2 and len(maps[0]) == len(maps[1])
    return {
        "distance_of_uniform_by_layer": distances
        and [[value / numbers["uniform"] for value in numbers["by_layer"]] for numbers in distances],
        "rollout_correlation": analysis.map_correlation(*maps).tolist() if have_maps else None,
    }


def _page_figures(
    results: Sequence[Mapping[str, Any]], each: Sequence[Mapping[str, Figure]], both: Mapping[str, Figure]
) -> list[PageFigure]:
    """Return the figures of the page with captions, in its order: those of two checkpoints side by side."""
    names = [f"{name}. " if len(results) > 1 else "" for name in inspection_text.names(results)]
    captioned = [
        (name, figure, names[n] + inspection_text.caption(name, results[n]), f"n{n}")
        for n, drawn in enumerate(each)
        for name, figure in drawn.items()
    ]
    captioned += [(name, figure, inspection_text.comparison(results), BOTH) for name, figure in both.items()]
    captioned.sort(key=lambda entry: FIGURES.index(entry[0]))
    page_figures = []
    for name, figure, caption, key in captioned:
        svg = to_svg(figure, key=f"{key}-{name}", label=html.escape(caption), dpi=DPI)
        is_wide = figure.get_figwidth() > figures.WIDTH or key == BOTH
        _, heading = inspection_text.FIGURES[name]
        page_figures.append(PageFigure(heading, caption, svg, is_wide=is_wide))
    return page_figures
