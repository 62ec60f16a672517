"""`vit evaluate`: checkpoints on splits, each in one pass (paper, sections 4.1 and D.9)."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitcli import recipe as recipes
from vitcli.data import classes as data_classes
from vitcli.data.split import Split
from vitcli.errors import DataError, VitError
from vitcli.evaluation import class_map, predictions, real_labels
from vitcli.evaluation.assertions import Assertion
from vitcli.evaluation.class_map import ClassMap
from vitcli.evaluation.files import FOLDER, claim, write_all
from vitcli.evaluation.score import EvalRequest, ReaL, score
from vitcli.evaluation.setup import RunSettings, check_named, eval_settings, named_weights, split_to_score
from vitcli.models.build import check_image_size
from vitcli.output.atomic import check_out
from vitcli.recipe import Recipe
from vitcli.recipe.request import RecipeRequest
from vitcli.weights.io import Weights


@dataclass(frozen=True)
class EvaluateOptions:
    """What an evaluation is asked for besides scores.

    Attributes:
        split: name of the split; auto for the recipe's.
        real, real_index: the file of ReaL labels, and the column with each picture's number in it.
        classes: name or file of a class map.
        all_compete: whether classes outside the map may be predicted.
        sides: resolutions to score at, each a square; the weights' own if there are none.
        save_predictions: Parquet file.
        asserted: what must hold, for the table and the JSON; the door acts on it.
    """

    split: str = "auto"
    real: str | None = None
    real_index: str | None = None
    classes: str | None = None
    all_compete: bool = False
    sides: tuple[int, ...] = ()
    save_predictions: str | None = None
    asserted: tuple[Assertion, ...] = ()


def evaluate(requests: Sequence[RecipeRequest], extras: EvaluateOptions, run: RunSettings) -> dict[str, Any]:
    """Run one evaluation per request; return its result, or of several {"evaluations": [...]}.

    A split is scored with the pixels the weights were trained to see, or the recipe's if they do not say.
    Every example counts once, in fp32 unless another precision is asked for, on any number of processes.
    """
    recipe = [request.load() for request in requests]
    _check(recipe, extras, run)
    found_map = class_map.read_class_map(extras.classes, recipes.class_maps()) if extras.classes else None
    lists = real_labels.read_real(extras.real) if extras.real else None
    # Before the processes join, so that a long download is no stalled collective; `datasets` locks its cache.
    kept: dict[str, Weights] = {}
    questions = []
    for wanted, request in zip(recipe, requests, strict=True):
        weights = _weights_once(wanted, kept)
        questions.append(_open(request, wanted, weights, found_map, lists, extras))
    settings = eval_settings(recipe[0], run)
    runtime = settings.runtime
    places = dict(out=run.out, save_predictions=extras.save_predictions, overwrite=run.overwrite)
    with ExitStack() as held:
        runtime.on_main(lambda: claim(held, questions, **places))
        scored = []
        for question in questions:
            weights = _weights_once(question.recipe, kept)
            scored.append(score(question, weights, settings))
        result = scored[0].result
        if len(scored) > 1:
            result = {"command": "evaluate", "evaluations": [one.result for one in scored]}
        runtime.on_main(lambda: write_all(scored, result, **places))
    runtime.shutdown()
    return result


def _check(recipe: list[Recipe], extras: EvaluateOptions, run: RunSettings) -> None:
    """Refuse, before anything is read, what cannot be asked for or not be written."""
    for one in recipe:
        check_named(one, "evaluate")
    if extras.real_index and not extras.real:
        raise VitError("no ReaL labels are named", where="--real-index", fix="--real real.json as well")
    if extras.all_compete and not extras.classes:
        raise VitError("no class map is named", where="--all-compete", fix="--classes NAME as well")
    if extras.real and extras.classes:
        raise VitError(
            "ReaL labels speak of all classes, a class map of some",
            where="--real and --classes",
            fix="score them one after the other",
        )
    if extras.save_predictions:
        if len(recipe) > 1:
            raise VitError(
                f"{len(recipe)} evaluations do not go into one file of predictions",
                where="--save-predictions",
                fix="name one --ckpt and one --dataset, and call vit once for each",
            )
        check_out(
            Path(extras.save_predictions),
            overwrite=True,
            option="--save-predictions",
            suffixes=predictions.SUFFIXES,
        )
    if run.overwrite and not run.out:
        raise VitError("no folder is named", where="--overwrite", fix="--out FOLDER as well")
    if run.out:
        FOLDER.check_names(run.out, len(recipe))


def _weights_once(recipe: Recipe, kept: dict[str, Weights]) -> Weights:
    """The weights a recipe names, read again only if others were in between."""
    name = recipe.model.ckpt
    if name not in kept:
        kept.clear()
        kept[name] = named_weights(recipe)
    return kept[name]


def _open(
    request: RecipeRequest,
    recipe: Recipe,
    weights: Weights,
    found_map: ClassMap | None,
    lists: list[list[int]] | None,
    extras: EvaluateOptions,
) -> EvalRequest:
    """The split of one evaluation, with its labels in the order of the classes that compete."""
    arch = weights.architecture
    for side in extras.sides:
        check_image_size(replace(arch, image_size=(side, side)))
    found = split_to_score(recipe, extras.split, weights)
    of_files = {"--real": extras.real, "--real-index": extras.real_index, "--classes": extras.classes}
    of_files |= {"--all-compete": extras.all_compete}
    asked = EvalRequest(
        request=request,
        recipe=recipe,
        split=found,
        sides=extras.sides,
        asserted=extras.asserted,
        of_files=of_files,
    )
    if found_map is not None:
        mapped, projection, rows = class_map.apply_class_map(
            found,
            found_map,
            ckpt_classes=weights.class_names,
            num_classes=arch.num_classes,
            all_compete=extras.all_compete,
        )
        outside = len(found) - len(rows)
        return replace(
            asked,
            split=mapped,
            source_rows=rows,
            projection=projection,
            map_name=found_map.name,
            num_outside=outside,
        )
    matched, is_mapped = data_classes.match_class_names(
        found, weights.class_names, num_classes=arch.num_classes, ckpt=recipe.model.ckpt
    )
    real = _real_of(found, matched, is_mapped, lists, extras) if lists is not None else None
    return replace(asked, split=matched, is_mapped=is_mapped, real=real, source_rows=np.arange(len(found)))


def _real_of(
    found: Split, matched: Split, is_mapped: bool, lists: list[list[int]], extras: EvaluateOptions
) -> ReaL:
    """The ReaL labels of each row, as classes of the checkpoint."""
    of_rows, found_by = real_labels.labels_for_rows(found, lists, column=extras.real_index)
    highest = max((number for one in of_rows for number in one), default=0)
    if highest >= found.num_classes:
        raise DataError(
            f"the ReaL labels name class {highest}, {found.name} has {found.num_classes} classes",
            where=f"--real {extras.real}",
            fix="score ImageNet's validation split, whose labels they are",
        )
    labels = found.read_labels().tolist()
    rated = [label in one for label, one in zip(labels, of_rows, strict=True) if one]
    if sum(rated) < len(rated) / 2:  # of the published lists about nine in ten agree
        raise DataError(
            f"the ReaL labels agree with the label of {sum(rated)} of {len(rated)} pictures only",
            where=f"--real {extras.real}, {found.name}, by {found_by}",
            fix="take a copy with ImageNet's order of classes, or name the pictures with --real-index",
        )
    if is_mapped:  # the lists number classes as the data does, the predictions as the checkpoint does
        number_of = [matched.class_names.index(name) for name in found.class_names]
        of_rows = [[number_of[number] for number in one] for one in of_rows]
    real_labels.check_any(of_rows, found.name)
    return ReaL(of_rows, found_by)
