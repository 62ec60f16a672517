"""Results of a finished run, or of a finished sweep: summary, weights, figures and model card."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vitcli import recipe as recipes
from vitcli.conversion.model_card import model_card
from vitcli.data.split import Split, classes_without
from vitcli.data.transforms import Preprocessing, preprocessing_of
from vitcli.distributed import peers
from vitcli.distributed.runtime import peak_memory_gib
from vitcli.evaluation import mistakes, multilabel
from vitcli.evaluation.diagnosis import advice, findings, median_short_side
from vitcli.evaluation.files import file_of, write_file
from vitcli.evaluation.intervals import interval_of
from vitcli.evaluation.metrics import Metrics, scores_of
from vitcli.evaluation.multilabel import Multilabel, MultilabelMetrics
from vitcli.evaluation.predictions import Predictions
from vitcli.evaluation.regression import NumberPredictions, intervals_of
from vitcli.output import run_folder
from vitcli.output.atomic import read_jsonl, replace_file
from vitcli.output.redaction import public_name
from vitcli.output.run_folder import RunFolder
from vitcli.output.summaries import RunScores, TrainingSummary
from vitcli.output.text import NO_LIMIT
from vitcli.training.objective import gives_several_labels, training_task
from vitcli.training.setup import TrainingJob
from vitcli.training.text import all_rows
from vitcli.training.validation import AnyMetrics
from vitcli.weights.average import START
from vitcli.weights.describe import WeightsInfo
from vitcli.weights.io import read_weights, write_weights
from vitcli.weights.licences import KEY as LICENCE
from vitcli.weights.licences import UNKNOWN


def summarise(
    job: TrainingJob,
    path: Path,
    metrics: AnyMetrics,
    elapsed_s: float,
    *,
    skipped: set[str],
    probe: dict[str, Any] | None,
    class_means: dict[str, float | None],
    details: dict[str, Any],
) -> dict[str, Any]:
    """Return the object of summary.json and --json.

    Args:
        class_means: of the final evaluation, see `class_metrics`; {} where it has none.
        details: further keys: how many held-out images were trained on, see `seen_images.record`,
            `details_of`, and of a run with a probe head what it delivers, see `Delivery.summary`.
    """
    recipe, images, eval_precision = job.recipe, job.plan.images_seen, job.recipe.precision.evaluation
    run_scores = scores_of(metrics) | class_means
    accuracies = {name: run_scores[name] for name in ("top1", "top5") if name in run_scores}
    is_cut_short = "diverged" in details
    intervals = {name: interval_of(value, metrics.num_examples) for name, value in accuracies.items()}
    return TrainingSummary.written(
        {
            "command": job.command,
            "run_dir": str(path),
            "model": job.start.arch.name,
            "ckpt": job.start.origin,
            "ckpt_fetched_from": job.start.fetched_from or None,
            LICENCE: job.start.licence,
            "dataset": recipe.data.dataset,
            "train_split": job.splits.train.name,
            "num_train_examples": job.plan.num_examples,
            "num_classes": job.splits.train.num_classes,
            "resolution": recipe.data.image_size,
            "steps": job.plan.total_steps,
            "batch_size": job.plan.batch_size,
            "epochs": job.plan.epochs,
            "lr": recipe.optimizer.lr,
            "dev_top1_by_lr": None,
            **run_scores,
            "top1_std": None,
            "runs": [RunScores.written({"seed": recipe.train.seed, **run_scores})],
            **({"intervals": intervals} if intervals else {}),
            **details,
            "num_eval_examples": metrics.num_examples,
            "eval_split": job.splits.eval.name,
            "eval_fingerprint": job.splits.eval.fingerprint,
            "classes_not_held_out": classes_without(job.splits.eval, job.splits.train),
            "notes": list(job.notes),
            "fewshot": probe,
            "preprocessing": preprocessing_of(recipe.data).summary(),
            "num_skipped_images": len(skipped),
            "skipped_images": sorted(skipped)[:100],
            **(job.splits.train.left_out | job.splits.eval.left_out).summary(),
            "images_per_s": None if is_cut_short or not elapsed_s else images / elapsed_s,
            "elapsed_s": elapsed_s,
            "exaflops": job.plan.exaflops,
            "peak_memory_gib": peak_memory_gib(),
            "precision": job.runtime.precision,
            **({"eval_precision": eval_precision} if eval_precision != "fp32" else {}),
            "num_processes": job.runtime.world_size,
            "weights": str(path / "model.safetensors"),
        }
    )


def findings_of(
    job: TrainingJob, metrics: Any, predictions: Predictions | NumberPredictions | None, num_skipped: int
) -> dict[str, Any]:
    """Return what the predictions show and what would help most; {} where images have no single class."""
    train, eval_split = job.splits.train, job.splits.eval
    is_of_classes = isinstance(predictions, Predictions) and not predictions.is_multilabel
    if not is_of_classes or train.is_large or not job.runtime.is_main:
        return {}
    labels_N = train.read_labels()
    train_counts_K = np.bincount(labels_N[labels_N >= 0], minlength=job.start.arch.num_classes)
    places = mistakes.places_of(eval_split, predictions.rows_N)
    facts = findings(predictions, job.names_of_classes, places, train_counts_K)
    side, recipe = job.recipe.data.image_size, job.recipe
    is_balanced = recipe.data.sampling != "uniform" or recipe.objective.class_weights != "none"
    lines = advice(
        facts,
        interval=interval_of(metrics.top1, metrics.num_examples),
        side=side if isinstance(side, int) else None,
        short_side=median_short_side(train),
        patch_size=job.start.arch.patch_size,
        is_balanced=is_balanced,
        num_for_folds=_num_for_folds(job, num_skipped),
    )
    return {"findings": facts | {"advice": lines}}


def _num_for_folds(job: TrainingJob, num_skipped: int) -> int | None:
    """Return how many images folds would score, None where they cannot be made or are what was made."""
    recipe = job.recipe
    names_others = recipe.data.eval_split != "auto"  # images of its own to score, or a fold
    has_folds = job.command == "finetune" and recipe.objective.loss != "regression" and not recipe.teachers
    if names_others or not has_folds:
        return None
    parts = [job.splits.train, job.splits.choice, job.splits.eval if job.splits.eval.dev_cut else None]
    return sum(len(part) for part in parts if part is not None) - num_skipped


def details_of(
    job: TrainingJob,
    metrics: Any,
    predictions: Predictions | NumberPredictions | None,
    skipped: set[str],
) -> dict[str, Any]:
    """Return what only some summaries have: of numbers their scale and intervals, of one label `findings_of`.

    Args:
        metrics, predictions: of the held-out images, predictions where they are kept.
        skipped: names of images that could not be read.
    """
    if isinstance(predictions, NumberPredictions):
        return {**predictions.target.as_metadata(), "intervals": intervals_of(predictions)}
    return findings_of(job, metrics, predictions, len(skipped))


def weights_description(job: TrainingJob) -> WeightsInfo:
    """Return what is stored with the weights of a run and is known before its first step."""
    target = training_task(job.recipe.objective, job.splits.train).target
    even = Multilabel((multilabel.EVEN,) * job.start.arch.num_classes)
    gives_several = gives_several_labels(job.recipe.objective, job.splits.train)
    metadata = {
        **({LICENCE: job.start.licence} if job.start.licence not in (None, UNKNOWN) else {}),
        "trained_by": job.command,
        "from": job.start.origin and public_name(job.start.origin),
        **({START: job.start.digest} if job.start.digest else {}),
        "steps": job.plan.total_steps,
        "averaged": bool(job.recipe.optimizer.average),
        "dev_cut": job.splits.eval.dev_cut,
        **(target.as_metadata() if target else {}),
        **(even.as_metadata() if gives_several else {}),
    }
    class_names = job.splits.train.class_names if job.start.arch.num_classes else None
    pixels = preprocessing_of(job.recipe.data).as_dict()
    return WeightsInfo(job.start.arch, pixels, class_names, metadata)


@peers.finishing()
def write_results(
    job: TrainingJob,
    folder: RunFolder,
    metrics: AnyMetrics,
    predictions: Predictions | NumberPredictions | None,
    summary: dict[str, Any],
    weights: dict[str, Tensor],
    *,
    metadata: dict[str, Any],
) -> None:
    """Write weights, predictions, figures, card and, last, the summary: it marks the run as finished.

    Args:
        metadata: what is stored with the weights and is known after the last step alone.
    """
    from vitcli.output import plots  # both load matplotlib: 50 MB that training need not have
    from vitcli.training import figures

    folder.log({"step": job.plan.total_steps, "eval": asdict(metrics)})
    if summary["fewshot"]:
        folder.log({"step": job.plan.total_steps, "probe": summary["fewshot"]})
    if isinstance(metrics, Metrics | MultilabelMetrics):
        metadata = metadata | {"top1": metrics.top1}
    description = weights_description(job)
    description = description._replace(metadata=description.metadata | metadata)
    write_weights(folder.path, weights, description)
    if predictions:
        names, pixels = job.names_of_classes, preprocessing_of(job.recipe.data)
        write_run_predictions(folder.path, job.splits.eval, pixels, names, predictions, summary)
    records = read_jsonl(folder.path / run_folder.METRICS)
    curves = figures.training_curves(
        records, num_steps=job.plan.total_steps, num_classes=job.start.arch.num_classes, lr_at=job.lr_at
    )
    for name, figure in curves.items():
        plots.save(folder.path / "figures" / f"{name}.png", figure)
    folder.write_text("README.md", model_card(summary, recipes.to_toml(job.recipe), job.start.arch))
    folder.write_summary(summary)


def write_run_predictions(
    path: Path,
    split: Split,
    preprocessing: Preprocessing,
    class_names: Sequence[str],
    predictions: Predictions | NumberPredictions,
    summary: dict[str, Any],
) -> None:
    """Write the predictions of the final evaluation of `split`; of classes, its most confident mistakes."""
    about = {"ckpt": str(path), "class_names": list(class_names), "dev_cut": split.dev_cut}
    rows, places = np.arange(len(split)), mistakes.places_of(split, predictions.rows_N)
    write_file(path / file_of(predictions), predictions, rows, places, summary | about)
    if isinstance(predictions, Predictions):
        described = mistakes.describe(predictions, class_names, places, rows)
        mistakes.write_mistakes(path, described, mistakes.images_of(predictions, split, preprocessing))


def write_sweep_results(
    folder: RunFolder, recipe_toml: str, summary: dict[str, Any], delivered: dict[str, Any]
) -> None:
    """Write the files that a single run has as well, so that the folder of a sweep is a --ckpt, too.

    Args:
        delivered: the summary of the run whose weights become those of the sweep: the first final run, or
            the average of all.
    """
    source = Path(delivered["run_dir"])
    names = (run_folder.WEIGHTS, "config.json", run_folder.CLASSES, run_folder.PREDICTIONS)
    names += (run_folder.NUMBERS, run_folder.OUT_OF_FOLD, run_folder.MISTAKES)
    for name in filter(lambda name: (source / name).exists(), names):
        replace_file(folder.path / name, lambda path, name=name: _link(source / name, path))
    figures_dir = folder.path / "figures"
    figures_dir.mkdir(exist_ok=True)
    for path in sorted((source / "figures").glob("*.png")):
        replace_file(figures_dir / path.name, lambda copy, path=path: shutil.copyfile(path, copy))
    if summary.get("choices"):
        from vitcli.output import plots
        from vitcli.training import figures

        figure = figures.selection_curve(summary["choices"], chosen=summary["chosen"])
        if figure:
            plots.save(figures_dir / "selection.png", figure)
    arch = read_weights(str(source)).architecture
    folder.write_text("README.md", model_card(summary, recipe_toml, arch))
    folder.write_text("table.txt", all_rows(summary, width=NO_LIMIT))
    folder.write_summary(summary)


def _link(source: Path, target: Path) -> None:
    """Hard-link a file, or copy it where the file system has no hard links."""
    target.unlink()
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
