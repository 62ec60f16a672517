"""Files that `vit evaluate` writes: evaluation.json, tables, figures, predictions."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing
from vitcli.evaluation import mistakes, predictions
from vitcli.evaluation.predictions import Predictions
from vitcli.evaluation.regression import NumberPredictions, write_numbers
from vitcli.evaluation.setup import RunSettings
from vitcli.evaluation.statistics import Reliability
from vitcli.output import atomic, profile
from vitcli.output.atomic import write_json, write_text
from vitcli.output.result_folder import ResultFolder
from vitcli.output.run_folder import MISTAKES, NUMBERS, PREDICTIONS
from vitcli.output.scores import top5_is_informative
from vitcli.output.text import csv_text

RESULT = "evaluation.json"
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
        split, source_rows: what was scored, and the row of the data set for each of its rows.
        class_names: of the classes that compete, each unique.
        places: file or row of each prediction's image.
        trained_side: height in pixels of the images that the weights were made for.
    """

    summary: dict[str, Any]
    predictions: Predictions | NumberPredictions
    split: Split
    source_rows: np.ndarray
    class_names: tuple[str, ...]
    places: list[str]
    preprocessing: Preprocessing
    trained_side: int


def claim(
    lock: ExitStack, keys: Sequence[dict[str, Any]], run: RunSettings, save_predictions: str | None
) -> None:
    """Check that both outputs can be written, and lock the folder until `lock` is closed.

    Raises:
        MachineError: an output cannot be written, or another process holds the folder.
        VitError: the folder holds another evaluation, which is not to be overwritten.
    """
    if save_predictions:
        atomic.make_folder(Path(save_predictions).resolve().parent, option="--save-predictions")
    if run.out is not None:
        FOLDER.claim(lock, run.out, keys, overwrite=run.overwrite)


def write_all(
    results: Sequence[EvalResult], summary: dict[str, Any], out: Path | None, save_predictions: str | None
) -> None:
    """Write the outputs asked for; of several evaluations the tables and figures go to OUT/1, OUT/2 ..."""
    if save_predictions:
        (result,) = results
        _write_predictions(save_predictions, result)
        summary["saved_predictions"] = save_predictions
    if out is None:
        return
    FOLDER.begin(out, [result.summary["asked"] for result in results])
    for folder, result in zip(FOLDER.folders(out, len(results)), results, strict=True):
        result.summary["out"] = str(folder)
        are_numbers = isinstance(result.predictions, NumberPredictions)
        _write_predictions(str(folder / (NUMBERS if are_numbers else PREDICTIONS)), result)
        if are_numbers:
            _write_number_figures(folder, result)
            continue
        _write_tables(folder, result)
        _write_figures(folder, result)
    summary["out"] = str(out)
    write_json(out / RESULT, summary)


def _write_predictions(path: str, result: EvalResult) -> None:
    rows_N = result.source_rows[result.predictions.rows_N]
    keys = ("ckpt", "model", "dataset", "eval_split", "resolution", "preprocessing", "top1", "class_map")
    about = {key: result.summary.get(key) for key in keys}
    if isinstance(result.predictions, NumberPredictions):
        about = {key: result.summary.get(key) for key in (*keys[:-2], "mae", "target")}
        about |= {"dev_cut": result.split.dev_cut}
        write_numbers(path, result.predictions, rows_N, result.places, about)
        return
    about |= {"class_names": list(result.class_names), "dev_cut": result.split.dev_cut}
    predictions.write_predictions(path, result.predictions, rows_N, result.places, about)


def _write_number_figures(folder: Path, result: EvalResult) -> None:
    """Draw predicted against true numbers; a curve of several resolutions stands in the JSON alone."""
    from vitcli.evaluation import figures
    from vitcli.output import plots

    numbers, name = result.predictions, result.summary["target"]["name"]
    figure = figures.predicted_numbers(numbers.targets_N, numbers.values_N, name=name)
    plots.save(folder / "numbers.png", figure)


def _write_tables(folder: Path, result: EvalResult) -> None:
    if result.predictions.is_multilabel:
        return
    number_of = {name: number for number, name in enumerate(result.class_names)}
    per_class = [
        (
            *(number_of[name], name, row["num_examples"], round(row["top1"] * row["num_examples"])),
            *("" if row[key] is None else row[key] for key in OF_CLASS),
        )
        for name, row in result.summary["per_class"].items()
    ]
    header = ("label", "class", "num_examples", "num_right", *OF_CLASS)
    write_text(folder / "per_class.csv", csv_text([header, *per_class]))
    names = result.class_names
    confusion = predictions.confusion(result.predictions, len(names))
    pairs = zip(*(column.tolist() for column in confusion), strict=True)
    confused = [(names[label], names[predicted], count) for label, predicted, count in pairs]
    write_text(folder / "confusion.csv", csv_text([("class", "predicted", "num_examples"), *confused]))


def _write_figures(folder: Path, result: EvalResult) -> None:
    from vitcli.evaluation import figures
    from vitcli.output import plots

    title = f"ECE {result.summary['ece']:.2%} of {len(result.predictions)} examples"
    calibrated = None
    if bins := result.summary.get("reliability_at_temperature"):
        calibrated = Reliability.of_json(bins)
        title += f"\n{calibrated.ece:.2%} at the stored temperature {result.summary['temperature']:.3g}"
    bins = result.predictions.reliability
    diagram = figures.reliability_diagram(bins, title=title, calibrated=calibrated)
    if diagram:
        plots.save(folder / "reliability.png", diagram)
    if not result.predictions.is_multilabel:
        confusion = predictions.confusion(result.predictions, len(result.class_names))
        plots.save(folder / "confusion.png", figures.confusion_matrix(*confusion, result.class_names))
    images = mistakes.images_of(result.predictions, result.split, result.preprocessing)
    mistakes.write_mistakes(folder, result.summary["mistakes"], images)
    if images:
        plots.save(folder / "mistakes.png", figures.mistakes_grid(images, result.summary["mistakes"]))
    curve = result.summary.get("resolutions")
    if curve:
        sides, top1, top5 = ([row[key] for row in curve] for key in ("resolution", "top1", "top5"))
        shown = top5 if top5_is_informative(result.summary["num_classes"]) else None
        figure = figures.resolution_curve(
            sides, top1, shown, trained_side=result.trained_side, num_examples=len(result.predictions)
        )
        plots.save(folder / "resolution.png", figure)
