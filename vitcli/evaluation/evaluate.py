"""`vit evaluate`: checkpoints scored on splits, one pass per resolution (paper, sections 4.1 and D.9)."""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vitcli.data import classes as data_classes
from vitcli.data import dataset
from vitcli.data.image_cache import ImageCache
from vitcli.data.split import Split, base_of
from vitcli.data.task import Task, check_supports
from vitcli.data.transforms import Preprocessing
from vitcli.distributed.runtime import shared_process_group
from vitcli.errors import VitError
from vitcli.evaluation import class_map, inference, metrics, mistakes, multilabel, real_labels, regression
from vitcli.evaluation.assertions import Assertion, check_apply
from vitcli.evaluation.calibration.results import results_of
from vitcli.evaluation.calibration.stored import Calibration, calibration_of
from vitcli.evaluation.class_map import ClassMap, Projection
from vitcli.evaluation.files import FOLDER, EvalResult, claim, write_all
from vitcli.evaluation.inference import EvalSettings, NothingDecoded
from vitcli.evaluation.intervals import accuracy_interval
from vitcli.evaluation.multilabel import Multilabel, multilabel_of, task_of
from vitcli.evaluation.parts import Parts
from vitcli.evaluation.predictions import (
    SUFFIXES,
    Predictions,
    counts_of_part,
    per_class,
    read_parts,
    scores_of_classes,
    unique_names,
    write_part,
)
from vitcli.evaluation.real_labels import RealLabels
from vitcli.evaluation.regression import NumberPredictions, RegressionTarget, target_of
from vitcli.evaluation.setup import (
    RunSettings,
    eval_settings,
    open_eval_split,
    preprocessing_for,
    read_checkpoint,
)
from vitcli.models.build import check_image_size
from vitcli.output.atomic import check_out
from vitcli.output.progress import Progress
from vitcli.output.scores import OF_CLASSES
from vitcli.output.summaries import Evaluation, ResolutionScore
from vitcli.output.text import size_text
from vitcli.recipe import Recipe, catalog
from vitcli.recipe.schema import WITHOUT_EFFECT
from vitcli.weights.io import Weights, digest_of
from vitcli.weights.load import load_for_inference

PASSES = "passes"  # of parts, in the folder of an evaluation
NOT_OF_PARTS = ("data.on_bad_image", "--real", "--real-index", "--res")  # what predictions do not depend on
WAIT_S = 600.0  # for another worker that writes the results


@dataclass(frozen=True)
class EvaluateOptions:
    """Choices of an evaluation besides its recipe.

    Attributes:
        split: name of the split; auto for the recipe's.
        real, real_index: file of ReaL labels, and the column with each image's number in it.
        classes: name or file of a class map.
        all_compete: whether classes outside the map may be predicted.
        sides: resolutions to evaluate at, each a square; () for the weights' own.
        mirrored: the mean of the probabilities of each image and its mirror image.
        save_predictions: Parquet file to write.
        asserted: assertions to report with the result; the command line acts on them.
        part_rows: of the files below --out in which workers share the predictions, see `parts`; None for all
            rows at once.
    """

    split: str = "auto"
    real: str | None = None
    real_index: str | None = None
    classes: str | None = None
    all_compete: bool = False
    sides: tuple[int, ...] = ()
    mirrored: bool = False
    save_predictions: str | None = None
    asserted: tuple[Assertion, ...] = ()
    part_rows: int | None = None

    def result_key(self, recipe: Recipe, split: Split) -> dict[str, Any]:
        """Return all that a result depends on, by option or recipe key: evaluation.json's "asked"."""
        choices = {
            "--res": list(self.sides),
            "--real": self.real,
            "--real-index": self.real_index,
            "--classes": self.classes,
            "--all-compete": self.all_compete,
            "--tta": self.mirrored,
        }
        choices = {option: value for option, value in choices.items() if value}
        given = {key: value for key, value in recipe.asked.items() if key not in WITHOUT_EFFECT}
        return {"--split": split.name} | given | choices


@dataclass(frozen=True)
class EvalTask:
    """A checkpoint and the split to score it on; all but the weights themselves.

    Attributes:
        split: its labels are numbered in the order of the classes that compete.
        source_rows: row of the opened split for each row of `split`.
        fingerprint: of `split`, before its labels were renumbered.
        variants: the preprocessing of each pass; `reported` is the one nearest to the weights' resolution.
        preprocessing_from: their origin, in words.
        class_names: a unique name of each class that competes; () of weights that predict a number.
        is_mapped: whether labels were renumbered to the checkpoint's order by their names.
        absent_classes: those of the checkpoint that the data do not have.
        projection: logits to those of a class map.
        target: what the weights predict if it is a number.
        thresholds: of the classes, of weights that give several labels per image.
        calibration: of the predictions, of weights that give an image one class and store it.
        passes: with --part-rows, the folder of the parts of each pass; `overwrite` those of another request.
    """

    recipe: Recipe
    options: EvaluateOptions
    split: Split
    source_rows: np.ndarray
    fingerprint: str
    variants: list[Preprocessing]
    reported: Preprocessing
    preprocessing_from: str
    class_names: tuple[str, ...] = ()
    is_mapped: bool = False
    absent_classes: list[str] = field(default_factory=list)
    real: RealLabels | None = None
    projection: Projection | None = None
    map_summary: dict[str, Any] = field(default_factory=dict)
    target: RegressionTarget | None = None
    thresholds: Multilabel | None = None
    calibration: Calibration | None = None
    passes: Path | None = None
    overwrite: bool = False


@shared_process_group()  # also after the parts of a pass
def evaluate(recipes: Sequence[Recipe], options: EvaluateOptions, run: RunSettings) -> dict[str, Any]:
    """Run one evaluation per recipe; return its result, or {"evaluations": [...]} of several.

    Images get the preprocessing stored with the weights, or else the recipe's. Every example counts once, in
    fp32 by default, on any number of processes.
    """
    # Options and output files are checked before anything large is read.
    _check(options, run, num_evaluations=len(recipes))
    label_map = class_map.read_class_map(options.classes, catalog.class_maps()) if options.classes else None
    real_lists = real_labels.read_real(options.real) if options.real else None

    # Splits open before the processes join, so that no collective waits for a long download.
    cache: dict[str, Weights] = {}
    tasks = [
        _open_task(recipe, _read_once(recipe, cache, quiet=run.quiet), options, label_map, real_lists)
        for recipe in recipes
    ]
    settings = eval_settings(recipes[0], run)
    (_, num_runs), *_ = Counter(task.fingerprint for task in tasks).most_common(1)
    mode, processes_here = recipes[0].data.cache, settings.runtime.processes_here
    images = ImageCache(mode, processes_here=processes_here, num_runs=num_runs)

    # The output folder is locked before the first pass; results are written after the last.
    keys = [options.result_key(task.recipe, task.split) for task in tasks]
    with ExitStack() as lock:
        wait_s = WAIT_S if options.part_rows else 0.0
        open_folder = partial(claim, lock, keys, run, options.save_predictions, wait_s=wait_s)
        settings.runtime.on_main(open_folder)
        if options.part_rows and run.out:  # other workers share the passes
            folders = FOLDER.folders(run.out, len(tasks))
            tasks = [
                replace(task, passes=folder / PASSES, overwrite=run.overwrite)
                for task, folder in zip(tasks, folders, strict=True)
            ]
            settings.runtime.on_main(lock.close)
        results = []
        for number, task in enumerate(tasks, start=1):
            if len(tasks) > 1:
                what = f"{task.recipe.model.ckpt} on {task.recipe.data.dataset}"
                settings.progress.note(f"{number} of {len(tasks)}: {what}")
            weights = _read_once(task.recipe, cache, quiet=True)
            results.append(score(task, weights, settings, images))
        summary = results[0].summary
        if len(results) > 1:
            evaluations = [result.summary for result in results]
            notes = _notes_on_other_images(tasks)
            summary = {"command": "evaluate", "evaluations": evaluations, "notes": notes}
        if options.part_rows:  # they write their results one after the other
            settings.runtime.on_main(open_folder)
        if run.out or options.save_predictions:
            settings.runtime.on_main(lambda: write_all(results, summary, run.out, options.save_predictions))
        if settings.profiler:
            lines = settings.profiler.lines(precision=settings.precision, folder=run.out)
            settings.progress.note("\n".join(lines))
    settings.runtime.shutdown()
    return summary


def _notes_on_other_images(tasks: Sequence[EvalTask]) -> list[str]:
    """Note each data set of which checkpoints are scored on different images, as each held out its own."""
    by_dataset = defaultdict(list)
    for task in tasks:
        by_dataset[task.recipe.data.dataset].append(task)
    notes = []
    for name, group in by_dataset.items():
        cut_from = [base_of(task.split.dev_cut["split"]) for task in group if task.split.dev_cut]
        if cut_from and len({task.fingerprint for task in group}) > 1:
            source = dataset.from_section(group[0].recipe.data)
            new = source.default_eval_split(besides="+".join(cut_from))
            fix = f"--split {new}" if new else f"--split {cut_from[0]} or a new data set"
            why = "each run was scored on its own held-out images"
            notes.append(f"rows of {name} are not comparable: {why}; use {fix}")
    return notes


def _check(options: EvaluateOptions, run: RunSettings, *, num_evaluations: int) -> None:
    """Refuse contradictory options and unwritable output before anything is read."""
    # Options that need or exclude another.
    if options.real_index and not options.real:
        raise VitError("--real-index needs --real", where="--real-index", fix="--real real.json as well")
    if options.all_compete and not options.classes:
        raise VitError("--all-compete needs --classes", where="--all-compete", fix="--classes NAME as well")
    if options.real and options.classes:
        raise VitError(
            "ReaL labels cover all classes, a class map only some",
            where="--real and --classes",
            fix="evaluate with one, then with the other",
        )
    # Outputs: one file of predictions, one folder.
    if options.part_rows and not run.out:
        what = "parts of the work are files in a folder"
        raise VitError(what, where="--part-rows", fix="--out FOLDER as well, or leave --part-rows out")
    if options.save_predictions:
        if num_evaluations > 1:
            raise VitError(
                f"{num_evaluations} evaluations do not fit into one file of predictions",
                where="--save-predictions",
                fix="name one --ckpt and one --dataset, and run vit once for each",
            )
        file = Path(options.save_predictions)
        check_out(file, overwrite=run.overwrite, option="--save-predictions", suffixes=SUFFIXES)
    if run.overwrite and not (run.out or options.save_predictions):
        fix = "--out FOLDER or --save-predictions FILE as well"
        raise VitError("nothing is named that could be replaced", where="--overwrite", fix=fix)
    if run.out:
        FOLDER.check_names(run.out, num_evaluations)


def _read_once(recipe: Recipe, cache: dict[str, Weights], *, quiet: bool) -> Weights:
    """Return the checkpoint of a recipe; only the last one read stays in memory."""
    name = recipe.model.ckpt or ""
    if name not in cache:
        cache.clear()
        cache[name] = read_checkpoint(recipe, quiet=quiet)
    return cache[name]


def _open_task(
    recipe: Recipe,
    weights: Weights,
    options: EvaluateOptions,
    label_map: ClassMap | None,
    real_lists: list[list[int]] | None,
) -> EvalTask:
    """Open the split of an evaluation and number its labels in the order of the classes that compete."""
    # Impossible resolutions are refused before the data set is opened.
    arch, ckpt = weights.architecture, weights.source
    for side in options.sides:
        check_image_size(replace(arch, image_size=(side, side)))
    target, task = target_of(weights.metadata), task_of(weights.metadata, arch.num_classes)
    for option, is_given in (("--classes", options.classes), ("--real", options.real)):
        if is_given:
            check_supports(option, task, name=ckpt, kind=VitError)
    opened = open_eval_split(recipe, options.split, weights)
    has_several = target is None and Task.MULTILABEL in (task, opened.task)
    check_apply(options.asserted, Task.MULTILABEL if has_several else task)
    pixels = _preprocessings(weights, recipe, options.sides)
    rows, fingerprint = np.arange(len(opened)), opened.fingerprint
    unmatched = EvalTask(recipe, options, opened, rows, fingerprint, *pixels, target=target)
    if target:
        return unmatched

    if label_map is not None:
        return _with_class_map(unmatched, label_map, weights)

    # All classes, in the checkpoint's order, for the ReaL labels too.
    opened = data_classes.spelled_as(opened, weights.class_names)
    opened = opened.with_label_lists() if task is Task.MULTILABEL else opened
    split, is_mapped = data_classes.match_class_names(
        opened, weights.class_names, num_classes=arch.num_classes, ckpt=ckpt
    )
    real = None
    if real_lists is not None and options.real:
        order = {name: number for number, name in enumerate(split.class_names or ())}
        number_of = [order.get(name, -1) for name in opened.class_names or ()] if is_mapped else None
        real = real_labels.labels_of_split(
            opened, real_lists, number_of, path=options.real, column=options.real_index
        )
    return replace(
        unmatched,
        split=split,
        fingerprint=opened.fingerprint,
        class_names=unique_names(split.class_names or weights.readable_class_names),
        is_mapped=is_mapped,
        absent_classes=data_classes.absent_classes(opened, weights.class_names),
        real=real,
        thresholds=multilabel_of(weights.metadata, arch.num_classes),
        calibration=calibration_of(weights.metadata, arch.num_classes),
    )


def _with_class_map(task: EvalTask, label_map: ClassMap, weights: Weights) -> EvalTask:
    """Return the task on the mapped classes alone, with logits projected to them."""
    all_compete, stored = task.options.all_compete, weights.readable_class_names
    split, projection, rows = class_map.apply_class_map(
        task.split,
        label_map,
        ckpt_classes=weights.class_names,
        num_classes=weights.architecture.num_classes,
        all_compete=all_compete,
    )
    names = list(split.class_names or stored)
    if all_compete:
        names += [f"{stored[number]} (outside the map)" for number in projection.outside]
    return replace(
        task,
        split=split,
        source_rows=rows,
        fingerprint=split.fingerprint,
        class_names=unique_names(names),
        projection=projection,
        map_summary={
            "class_map": label_map.name,
            "competing_classes": "all" if all_compete else "of the map",
            "num_outside_map": len(task.split) - len(rows),
        },
    )


def score(task: EvalTask, weights: Weights, settings: EvalSettings, images: ImageCache) -> EvalResult:
    """Run a pass at each resolution, with kept images; report the one nearest to the weights' own."""
    options, reported, progress = task.options, task.reported, settings.progress
    # What is scored on which images; with --verbose with which pixels.
    name, sizes = weights.architecture.name, f"; {len(options.sides)} sizes of --res" if options.sides else ""
    progress.note_once(f"{name} on {task.split.name}, at {size_text(reported.resolution)} px{sizes}")
    progress.detail(
        f"{name} (activation: {weights.numerics}): {reported.summary()}, {task.preprocessing_from}"
    )
    if left_out := task.split.left_out.count_text():
        progress.note_once(f"left out: {left_out}")
    for line in task.split.lines:
        progress.detail(line)
    if not task.passes:
        task = _with_cached_images(task, images, progress)

    # One pass per resolution.
    curve = []
    for variant in task.variants:
        # Notes about the loaded tensors are the same at every resolution: print them once.
        loading = progress if variant is reported else Progress(quiet=True)
        of_variant, pass_summary = _run_pass(task, weights, variant, settings, loading)
        curve.append(ResolutionScore.written({"resolution": variant.resolution, **_scores(of_variant)}))
        if variant is reported:
            predictions, of_pass = of_variant, pass_summary

    # The result: checkpoint and data, how they were evaluated, and what follows from the predictions.
    places = mistakes.places_of(task.split, predictions.rows_N)
    summary = {
        "command": "evaluate",
        "ckpt": weights.source,
        "model": of_pass.pop("model"),
        "numerics": weights.numerics,
        "dataset": task.recipe.data.dataset,
        "eval_split": task.split.name,
        "eval_fingerprint": task.fingerprint,
        "classes_mapped_by_name": task.is_mapped,
        "absent_classes": task.absent_classes,
        **task.split.left_out.summary(),
        "notes": list(task.split.notes),
        "num_classes": len(task.class_names),
        "resolution": reported.resolution,
        "preprocessing": reported.summary(),
        "preprocessing_from": task.preprocessing_from,
        **_scores(predictions),
        "num_eval_examples": len(predictions),
        **of_pass,
        "precision": settings.precision,
        "num_processes": settings.runtime.world_size,
        **_details(task, predictions, places),
    }
    if options.mirrored:
        summary["tta"] = "mirror"
    if options.sides:
        summary["resolutions"] = curve
    if options.asserted:
        summary["assertions"] = [assertion.outcome(summary) for assertion in options.asserted]
    summary["asked"] = options.result_key(task.recipe, task.split)
    Evaluation.written(summary)
    return EvalResult(task, summary, predictions, places, weights.architecture.image_size[0])


def _with_cached_images(task: EvalTask, images: ImageCache, progress: Progress) -> EvalTask:
    """Return the task with images that are kept for the passes of other checkpoints and resolutions."""
    split = task.split
    if len(task.variants) > 1:
        split = images.attach(split, visits=len(task.variants))
    for variant in task.variants:
        split = images.attach(split, visits=1, preprocessing=variant)
    if line := images.line():
        progress.detail(line)
    return replace(task, split=split)


def _preprocessings(
    weights: Weights, recipe: Recipe, sides: Sequence[int]
) -> tuple[list[Preprocessing], Preprocessing, str]:
    """Return the preprocessing of each pass, the one nearest to the weights' resolution, and its origin."""
    base, origin = preprocessing_for(weights, recipe)
    variants = [replace(base, image_size=(side, side)) for side in sides] or [base]
    trained_side = weights.architecture.image_size[0]
    reported = min(variants, key=lambda variant: abs(variant.image_size[0] - trained_side))
    by_option = "" if reported.image_size == base.image_size else ", image_size by --res"
    return variants, reported, origin + by_option


def _run_pass(
    task: EvalTask,
    weights: Weights,
    preprocessing: Preprocessing,
    settings: EvalSettings,
    loading_progress: Progress,
) -> tuple[Predictions | NumberPredictions, dict[str, Any]]:
    """Predict the split at one resolution; also return the pass's model, speed and skipped images."""
    size, posemb_method = preprocessing.image_size, task.recipe.model.posemb_resample
    model, arch = load_for_inference(weights, size, posemb_method, settings.device, loading_progress)
    project, is_mirrored = task.projection, task.options.mirrored
    num_classes = project.width if project else arch.num_classes
    mean_of = inference.mean_of_labels if task.thresholds else inference.mean_of_classes
    mean = mean_of if is_mirrored else None
    started_at, num_predicted = time.perf_counter(), 0

    def predict(split: Split) -> tuple[Predictions | NumberPredictions, list[str]]:
        """Predict the split of the task or a part of it; also return the places of undecodable images."""
        nonlocal num_predicted
        about = model, split, preprocessing, settings
        found: Predictions | NumberPredictions
        if target := task.target:
            found, skipped = regression.predict_numbers(*about, target=target, is_mirrored=is_mirrored)
        else:
            found, skipped = inference.predict_split(
                *about, num_classes=num_classes, project=project, mean=mean
            )
        num_predicted += len(found)
        return found, sorted(settings.runtime.union(set(skipped)))

    if task.passes:
        predictions, skipped = _predict_parts(task, predict, weights, preprocessing, settings)
    else:
        predictions, skipped = predict(task.split)
    elapsed_s = time.perf_counter() - started_at
    return predictions, {
        "model": arch.name,
        "num_skipped_images": len(skipped),
        "skipped_images": skipped[:100],
        "images_per_s": num_predicted / elapsed_s,  # without parts of other workers
        "elapsed_s": elapsed_s,
    }


def _predict_parts(
    task: EvalTask,
    predict: Callable[[Split], tuple[Predictions | NumberPredictions, list[str]]],
    weights: Weights,
    preprocessing: Preprocessing,
    settings: EvalSettings,
) -> tuple[Predictions | NumberPredictions, list[str]]:
    """Predict the parts of the split that no other worker predicts; return what `predict` does of all."""
    assert task.passes and task.options.part_rows, "checked before"
    most_scores = inference.MOST_SCORES // len(task.split)  # of a row, if all are kept

    def write(part: Split, first: int, file: Path) -> None:
        try:
            predictions, skipped = predict(part)
        except NothingDecoded:
            predictions, skipped = None, [part.where_is(row) for row in range(len(part))]
        settings.runtime.on_main(
            lambda: write_part(file, predictions, skipped, first, most_scores=most_scores)
        )

    asked = task.options.result_key(task.recipe, task.split)
    asked = {key: value for key, value in asked.items() if key not in NOT_OF_PARTS}
    asked |= {"data": task.fingerprint, "weights": digest_of(weights.state), "precision": settings.precision}
    asked |= {"preprocessing": preprocessing.as_dict(), "metadata": json.loads(json.dumps(weights.metadata))}
    asked |= {"class map": [*map(list, task.projection.groups)]} if task.projection else {}
    folder = task.passes / size_text(preprocessing.resolution)
    parts = Parts(folder, task.options.part_rows, asked, ".npz", write, counts_of_part)
    counts, files = parts.make(task.split, settings, overwrite=task.overwrite)
    if not counts["num_examples"]:
        raise inference.nothing_decoded(task.split)
    kind = partial(NumberPredictions, task.target) if task.target else Predictions
    return read_parts(files, kind)


def _scores(predictions: Predictions | NumberPredictions) -> dict[str, float | None]:
    """Return accuracies and loss, or the errors of predicted numbers."""
    if isinstance(predictions, NumberPredictions):
        return metrics.scores_of(regression.metrics_of(predictions))
    return metrics.scores_of(metrics.metrics_of(predictions.ranks_N, predictions.losses_N))


def _details(
    task: EvalTask, predictions: Predictions | NumberPredictions, places: list[str]
) -> dict[str, Any]:
    """Return what follows from the predictions besides the scores."""
    if isinstance(predictions, NumberPredictions):
        return regression.details_of(predictions)
    of_several, class_names = {}, task.class_names
    if predictions.logits_NK is not None and task.projection is None:
        of_several = multilabel.results_of(
            predictions, task.thresholds, class_names, fingerprint=task.fingerprint
        )
    by_class = scores_of_classes(predictions)
    return {
        **of_several,
        **_statistics(task, predictions),
        **results_of(predictions, task.calibration, task.split, fingerprint=task.fingerprint),
        **(by_class.means() if by_class else dict.fromkeys(OF_CLASSES)),
        "per_class": per_class(by_class, class_names) if by_class else None,
        "mistakes": mistakes.describe(predictions, class_names, places, task.source_rows),
    }


def _statistics(task: EvalTask, predictions: Predictions) -> dict[str, Any]:
    """Return ReaL accuracy, the class map, losses, calibration and confidence intervals."""
    # Bootstrap intervals of the accuracies.
    count = len(predictions)
    hits = {"top1": int((predictions.ranks_N == 0).sum()), "top5": int((predictions.ranks_N < 5).sum())}
    intervals = {key: list(accuracy_interval(right, count)) for key, right in hits.items()}
    # Accuracy against all right classes of an image, where it has any; or the class map.
    of_labels = task.map_summary
    if task.real:
        lists = [task.real.lists[row] for row in predictions.rows_N]
        real_labels.check_any(lists, task.split.name)  # undecodable images may be left out
        right, rated = real_labels.real_hits(predictions.classes_NT[:, 0].tolist(), lists)
        of_labels = {
            "real_top1": right / rated,
            "num_real_examples": rated,
            "real_labels_by": task.real.matched_by,
        }
        intervals["real_top1"] = list(accuracy_interval(right, rated))
    # The quality of the probabilities.
    reliability = predictions.reliability
    return {
        **of_labels,
        "nll": float(predictions.losses_N.sum()) / count,
        **{name: float(scores_N.sum()) / count for name, scores_N in predictions.example_scores.items()},
        "ece": reliability.ece,
        "reliability": reliability.as_json(),
        "intervals": intervals,
    }
