"""Files that `vit evaluate` writes: evaluation.json, tables, figures, predictions."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitcli.evaluation import mistakes
from vitcli.evaluation.calibration.scaling import Scaling
from vitcli.evaluation.predictions import Predictions, Reliability, confusion, write_predictions
from vitcli.evaluation.regression import NumberPredictions
from vitcli.evaluation.setup import RunSettings
from vitcli.output import atomic, profile
from vitcli.output.atomic import write_json, write_text
from vitcli.output.result_folder import ResultFolder
from vitcli.output.run_folder import MISTAKES, NUMBERS, PREDICTIONS
from vitcli.output.scores import top5_is_informative
from vitcli.output.text import csv_text

if TYPE_CHECKING:  # it imports this module
    from vitcli.evaluation.evaluate import EvalTask

RESULT = "evaluation.json"
ABOUT_PREDICTIONS = ("ckpt", "model", "dataset", "eval_split", "resolution", "preprocessing")
ABOUT_CLASSES, ABOUT_NUMBERS = ("top1", "class_map", "class_names"), ("mae", "target")
OF_CLASS = ("top1", "precision", "f1", "auroc", "aupr")  # of per_class.csv; top-1 of a class is its recall
FOLDER = ResultFolder(
    noun="evaluation",
    result=RESULT,
    names=(RESULT, "per_class.csv", "confusion.csv", "confusion.png", "reliability.png", "mistakes.png",
           MISTAKES, PREDICTIONS, NUMBERS, "numbers.png", "resolution.png", *profile.FILES),
)  # fmt: skip


@dataclass(frozen=True)
class EvalResult:
    """One evaluation, and all that its tables and figures are made of.

    Attributes:
        summary: the object that --json prints.
        predictions: of the resolution that is reported.
        places: file or row of each prediction's image.
        trained_side: height in pixels of the images that the weights were made for.
    """

    task: "EvalTask"
    summary: dict[str, Any]
    predictions: Predictions | NumberPredictions
    places: list[str]
    trained_side: int


def claim(
    lock: ExitStack,
    keys: Sequence[dict[str, Any]],
    run: RunSettings,
    save_predictions: str | None,
    *,
    wait_s: float = 0.0,
) -> None:
    """Check that both outputs can be written, and lock the folder until `lock` is closed.

    Args:
        wait_s: for another process that holds the folder.

    Raises:
        MachineError: an output cannot be written, or another process holds the folder.
        VitError: the folder holds another evaluation, which is not to be overwritten.
    """
    if save_predictions:
        atomic.make_folder(Path(save_predictions).resolve().parent, option="--save-predictions")
    if run.out is not None:
        FOLDER.claim(lock, run.out, keys, overwrite=run.overwrite, wait_s=wait_s)


def write_all(
    results: Sequence[EvalResult], summary: dict[str, Any], out: Path | None, save_predictions: str | None
) -> None:
    """Write the outputs asked for; of several evaluations the tables and figures go to OUT/1, OUT/2 ..."""
    if save_predictions:
        (result,) = results
        _write_predictions(Path(save_predictions), result)
        summary["saved_predictions"] = save_predictions
    if out is None:
        return
    FOLDER.begin(out, [result.summary["asked"] for result in results])
    for folder, result in zip(FOLDER.folders(out, len(results)), results, strict=True):
        result.summary["out"] = str(folder)
        _write_predictions(folder / file_of(result.predictions), result)
        if isinstance(result.predictions, NumberPredictions):
            _write_number_figures(folder, result.predictions)
            continue
        _write_tables(folder, result, result.predictions)
        _write_figures(folder, result, result.predictions)
    summary["out"] = str(out)
    write_json(out / RESULT, summary)


def _write_predictions(path: Path, result: EvalResult) -> None:
    task = result.task
    about = result.summary | {"dev_cut": task.split.dev_cut, "class_names": list(task.class_names)}
    write_file(path, result.predictions, task.source_rows, result.places, about)


def file_of(predictions: Predictions | NumberPredictions) -> str:
    """Return the name of their file in the folder of a run or an evaluation."""
    return NUMBERS if isinstance(predictions, NumberPredictions) else PREDICTIONS


def write_file(
    path: Path,
    predictions: Predictions | NumberPredictions,
    source_rows: np.ndarray,
    places: list[str],
    about: dict[str, Any],
) -> None:
    """Write predictions with what a summary says of their evaluation.

    Args:
        source_rows: row of the data set for each row of the split.
        about: a summary with the class names, and the `dev_cut` of the split.
    """
    more = ABOUT_NUMBERS if isinstance(predictions, NumberPredictions) else ABOUT_CLASSES
    about = {key: about.get(key) for key in (*ABOUT_PREDICTIONS, *more, "dev_cut")}
    write_predictions(str(path), predictions, source_rows[predictions.rows_N], places, about)


def _write_number_figures(folder: Path, numbers: NumberPredictions) -> None:
    """Draw predicted against true numbers; a curve of several resolutions stands in the JSON alone."""
    from vitcli.evaluation import figures
    from vitcli.output import plots

    figure = figures.predicted_numbers(numbers.targets_N, numbers.values_N, name=numbers.target.name)
    plots.save(folder / "numbers.png", figure)


def _write_tables(folder: Path, result: EvalResult, predictions: Predictions) -> None:
    if predictions.is_multilabel:
        return
    names = result.task.class_names
    number_of = {name: number for number, name in enumerate(names)}
    per_class = [
        (
            *(number_of[name], name, row["num_examples"], round(row["top1"] * row["num_examples"])),
            *("" if row[key] is None else row[key] for key in OF_CLASS),
        )
        for name, row in result.summary["per_class"].items()
    ]
    header = ("label", "class", "num_examples", "num_right", *OF_CLASS)
    write_text(folder / "per_class.csv", csv_text([header, *per_class]))
    pairs = zip(*(column.tolist() for column in confusion(predictions, len(names))), strict=True)
    confused = [(names[label], names[predicted], count) for label, predicted, count in pairs]
    write_text(folder / "confusion.csv", csv_text([("class", "predicted", "num_examples"), *confused]))


def _write_figures(folder: Path, result: EvalResult, predictions: Predictions) -> None:
    from vitcli.evaluation import figures
    from vitcli.output import plots

    task = result.task
    title = f"ECE {result.summary['ece']:.2%} of {len(predictions)} examples"
    calibrated = None
    if bins := result.summary.get("reliability_at_temperature"):
        calibrated = Reliability.of_json(bins)
        title += f"\n{calibrated.ece:.2%} at the stored {Scaling.of_json(result.summary).text}"
    diagram = figures.reliability_diagram(predictions.reliability, title=title, calibrated=calibrated)
    if diagram:
        plots.save(folder / "reliability.png", diagram)
    if not predictions.is_multilabel:
        confused = confusion(predictions, len(task.class_names))
        plots.save(folder / "confusion.png", figures.confusion_matrix(*confused, task.class_names))
    images = mistakes.images_of(predictions, task.split, task.reported)
    mistakes.write_mistakes(folder, result.summary["mistakes"], images)
    if images:
        plots.save(folder / "mistakes.png", figures.mistakes_grid(images, result.summary["mistakes"]))
    curve = result.summary.get("resolutions")
    if curve:
        sides, top1, top5 = ([row[key] for row in curve] for key in ("resolution", "top1", "top5"))
        shown = top5 if top5_is_informative(result.summary["num_classes"]) else None
        figure = figures.resolution_curve(
            sides, top1, shown, trained_side=result.trained_side, num_examples=len(predictions)
        )
        plots.save(folder / "resolution.png", figure)
