"""One question of `vit evaluate` to its answer: the pass, and every number that follows from it."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from vitcli.data.columns import PATHS
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing
from vitcli.evaluation import inference, metrics, predictions, real_labels, statistics
from vitcli.evaluation.assertions import Assertion
from vitcli.evaluation.class_map import Projection
from vitcli.evaluation.inference import EvalSettings
from vitcli.evaluation.predictions import Predictions
from vitcli.evaluation.setup import for_inference, preprocessing_for
from vitcli.evaluation.statistics import Reliability
from vitcli.output.progress import Progress
from vitcli.recipe import Recipe
from vitcli.recipe.request import RecipeRequest
from vitcli.weights.io import Weights

MISTAKES_SHOWN = 20


@dataclass(frozen=True)
class ReaL:
    """The right classes of each row of a split, and what they were found by."""

    lists: list[list[int]]
    found_by: str


@dataclass(frozen=True)
class EvalRequest:
    """A checkpoint and a split to score it on.

    Attributes:
        split: its labels are in the order of the classes that compete.
        source_rows: row of the opened split for each row of `split`.
        sides: resolutions to score at, each a square; none for the weights' own.
        of_files: the options that name ReaL labels or a class map, as they were given.
        is_mapped: whether labels were renumbered to the checkpoint's order by their names.
        real: ReaL labels.
        projection, map_name, num_outside: of a class map: how logits become its classes, its name, and how
            many rows of the data are of other classes.
    """

    request: RecipeRequest
    recipe: Recipe
    split: Split
    sides: tuple[int, ...]
    asserted: tuple[Assertion, ...]
    of_files: Mapping[str, Any] = field(default_factory=dict)
    source_rows: np.ndarray | None = None
    is_mapped: bool = False
    real: ReaL | None = None
    projection: Projection | None = None
    map_name: str | None = None
    num_outside: int = 0

    def asked(self) -> dict[str, Any]:
        """What another answer could follow from, for evaluation.json: two of the same are one question."""
        given = dict(self.request.given)
        if self.sides:
            given["--res"] = list(self.sides)
        given |= {option: value for option, value in self.of_files.items() if value}
        return {"--split": self.split.name} | given


@dataclass(frozen=True)
class EvalResult:
    """The answer: the object that --json prints, and what tables and pictures are made of."""

    result: dict[str, Any]
    found: Predictions
    class_names: tuple[str, ...]
    places: list[str]
    preprocessing: Preprocessing
    reliability: Reliability
    question: EvalRequest
    own_side: int  # height the weights are made for, in pixels


def score(question: EvalRequest, weights: Weights, settings: EvalSettings) -> EvalResult:
    """One pass for each resolution; all that is reported comes from the one nearest to the weights' own."""
    wanted, chosen, origin = _pixels(question, weights)
    sizes = f"; {len(wanted)} sizes of --res" if question.sides else ""
    what = f"{weights.architecture.name} ({weights.numerics}) on {question.split.name}"
    settings.progress.note(f"{what}: {chosen.summary()}, {origin}{sizes}")
    curve, found, told = [], None, {}
    for preprocessing in wanted:
        passed, about = _pass(question, weights, preprocessing, settings, is_told=preprocessing is chosen)
        curve.append({"resolution": preprocessing.resolution} | _counted(passed))
        if preprocessing is chosen:
            found, told = passed, about
    names = _class_names(question, weights)
    reliability = statistics.reliability(found.confidences_N, found.is_right_N)
    places = _places(question.split, found.rows_N)
    result = {
        "command": "evaluate",
        "ckpt": question.recipe.model.ckpt,
        "model": told.pop("model"),
        "numerics": weights.numerics,
        "dataset": question.recipe.data.dataset,
        "eval_split": question.split.name,
        "num_classes": len(names),
        "resolution": chosen.resolution,
        "preprocessing": chosen.summary(),
        "preprocessing_from": origin,
        "classes_mapped_by_name": question.is_mapped,
        **_counted(found),
        "num_eval_examples": len(found),
        **told,
        "precision": settings.precision,
        "num_processes": settings.runtime.world_size,
        **_more(question, found, names, reliability, places),
    }
    if question.sides:
        result["resolutions"] = curve
    if question.asserted:
        result["assertions"] = [
            {"assertion": str(one), "value": result[one.key], "holds": one.holds(result)}
            for one in question.asserted
        ]
    result["asked"] = question.asked()
    return EvalResult(
        result, found, names, places, chosen, reliability, question, weights.architecture.image_size[0]
    )


def _pixels(question: EvalRequest, weights: Weights) -> tuple[list[Preprocessing], Preprocessing, str]:
    """The pixels of each pass, those nearest to the weights' own, and who says so."""
    base, origin = preprocessing_for(weights, question.recipe, question.request)
    wanted = [replace(base, image_size=(side, side)) for side in question.sides] or [base]
    own = weights.architecture.image_size[0]
    chosen = min(wanted, key=lambda one: abs(one.image_size[0] - own))
    return wanted, chosen, origin + ("" if chosen.image_size == base.image_size else ", image_size by --res")


def _pass(
    question: EvalRequest,
    weights: Weights,
    preprocessing: Preprocessing,
    settings: EvalSettings,
    *,
    is_told: bool,
) -> tuple[Predictions, dict[str, Any]]:
    """The predictions at one resolution, and what is to be told of the pass."""
    loading = settings if is_told else replace(settings, progress=Progress(quiet=True))
    model, arch = for_inference(weights, question.recipe, preprocessing, loading)
    began_at = time.perf_counter()
    found, skipped = inference.predict_split(
        model,
        question.split,
        preprocessing,
        settings,
        num_classes=question.projection.width if question.projection else arch.num_classes,
        project=question.projection,
    )
    skipped = sorted(settings.runtime.union(set(skipped)))
    elapsed_s = time.perf_counter() - began_at
    return found, {
        "model": arch.name,
        "num_skipped_images": len(skipped),
        "skipped_images": skipped[:100],
        "images_per_s": len(found) / elapsed_s,
        "elapsed_s": elapsed_s,
    }


def _counted(found: Predictions) -> dict[str, float]:
    totals = metrics.metrics_of(torch.from_numpy(found.ranks_N), torch.from_numpy(found.losses_N))
    return {"top1": totals.top1, "top5": totals.top5, "loss": totals.loss}


def _more(
    question: EvalRequest,
    found: Predictions,
    names: tuple[str, ...],
    reliability: Reliability,
    places: list[str],
) -> dict[str, Any]:
    """Calibration, intervals, ReaL, classes and mistakes."""
    count = len(found)
    hits = {"top1": int((found.ranks_N == 0).sum()), "top5": int((found.ranks_N < 5).sum())}
    intervals = {key: list(statistics.share_interval(right, count)) for key, right in hits.items()}
    more: dict[str, Any] = {}
    if question.real:
        guesses, lists = found.classes_NT[:, 0].tolist(), [question.real.lists[row] for row in found.rows_N]
        real_labels.check_any(lists, question.split.name)  # undecodable pictures may be left out
        is_rated_N, is_hit_N = metrics.real_hits(guesses, lists)
        rated, right = sum(is_rated_N), sum(is_hit_N)
        more = {"real_top1": right / rated, "num_real_examples": rated}
        more["real_labels_by"] = question.real.found_by
        intervals["real_top1"] = list(statistics.share_interval(right, rated))
    if question.projection:
        more |= {
            "class_map": question.map_name,
            "competing_classes": "all" if question.projection.all_compete else "of the map",
            "num_outside_map": question.num_outside,
        }
    return {
        **more,
        "nll": float(found.losses_N.sum()) / count,
        "brier": float(found.briers_N.sum()) / count,
        "ece": reliability.ece,
        "reliability": {
            "edges": reliability.edges_M1.tolist(),
            "counts": reliability.counts_M.tolist(),
            "confidence": reliability.confidence_M.tolist(),
            "accuracy": reliability.accuracy_M.tolist(),
        },
        "intervals": intervals,
        "per_class": None if found.has_several_labels else predictions.per_class(found, names),
        "mistakes": [
            _mistake(question, found, at, names, places)
            for at in predictions.most_confident_mistakes(found, MISTAKES_SHOWN)
        ],
    }


def _mistake(
    question: EvalRequest, found: Predictions, at: int, names: tuple[str, ...], places: list[str]
) -> dict[str, Any]:
    labels = np.atleast_1d(found.labels[at])
    return {
        "row": int(question.source_rows[found.rows_N[at]]),
        "place": places[at],
        "label": ", ".join(names[label] for label in labels if label >= 0),
        "predicted": names[found.classes_NT[at, 0]],
        "probability": float(found.confidences_N[at]),
    }


def _class_names(question: EvalRequest, weights: Weights) -> tuple[str, ...]:
    """A name of its own for each class that competes."""
    own, projection = question.split.class_names, question.projection
    stored = weights.class_names or tuple(
        f"class {number}" for number in range(weights.architecture.num_classes)
    )
    names = list(own or stored)
    if projection and projection.all_compete:
        names += [f"{stored[number]} (outside the map)" for number in projection.outside]
    counts = Counter(names)
    return tuple(f"{name} ({number})" if counts[name] > 1 else name for number, name in enumerate(names))


def _places(split: Split, rows_N: np.ndarray) -> list[str]:
    """What to call each scored picture: the file's path where there is one."""
    try:
        paths = split.read_column(PATHS) if split.read_column else []
    except KeyError:
        paths = []
    return [paths[row] if paths and paths[row] else split.where_is(row) for row in rows_N.tolist()]
