"""What `vit evaluate` leaves on disk: evaluation.json, tables, pictures, predictions."""

import csv
import io
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from vitcli.data import loader
from vitcli.evaluation import figures, predictions
from vitcli.evaluation.score import MISTAKES_SHOWN, EvalRequest, EvalResult
from vitcli.output import atomic, plots
from vitcli.output.atomic import write_json, write_text
from vitcli.output.result_folder import ResultFolder

RESULT = "evaluation.json"
FOLDER = ResultFolder(
    noun="evaluation",
    result=RESULT,
    names=(RESULT, "per_class.csv", "confusion.csv", "confusion.png", "reliability.png", "mistakes.png",
           "resolution.png"),
)  # fmt: skip


def claim(
    held: ExitStack,
    questions: Sequence[EvalRequest],
    *,
    out: Path | None,
    save_predictions: str | None,
    overwrite: bool,
) -> None:
    """Before the first pass: both places can be written, and OUT is ours alone until `held` is closed.

    Raises:
        MachineError: a place cannot be written, or another process holds OUT.
        VitError: OUT holds another evaluation, and is not to be overwritten.
    """
    if save_predictions:
        folder = Path(save_predictions).resolve().parent
        atomic.make_folder(folder, option="--save-predictions")
    if out is not None:
        FOLDER.claim(held, out, [question.asked() for question in questions], overwrite=overwrite)


def write_all(
    scored: Sequence[EvalResult],
    result: dict[str, Any],
    *,
    out: Path | None,
    save_predictions: str | None,
    overwrite: bool,
) -> None:
    """Write what was asked for; of several evaluations the first one's tables and pictures go to OUT/1."""
    if save_predictions:
        (one,) = scored
        rows_N, places = one.question.source_rows[one.found.rows_N], one.places
        predictions.write_predictions(save_predictions, one.found, rows_N, places, _about(one))
        result["saved_predictions"] = save_predictions
    if out is None:
        return
    FOLDER.begin(out, [one.result["asked"] for one in scored])
    for folder, one in zip(FOLDER.folders(out, len(scored)), scored, strict=True):
        one.result["out"] = str(folder)
        _write_tables(folder, one)
        _write_pictures(folder, one)
    result["out"] = str(out)
    write_json(out / RESULT, result)


def _about(one: EvalResult) -> dict[str, Any]:
    """What `vit compare` and people are to know of a file of predictions."""
    keys = ("ckpt", "model", "dataset", "eval_split", "resolution", "preprocessing", "top1", "class_map")
    return {key: one.result.get(key) for key in keys} | {"class_names": list(one.class_names)}


def _write_tables(folder: Path, one: EvalResult) -> None:
    if one.found.has_several_labels:
        return
    number_of = {name: number for number, name in enumerate(one.class_names)}
    per_class = [
        (
            number_of[name],
            name,
            entry["num_examples"],
            round(entry["top1"] * entry["num_examples"]),
            entry["top1"],
        )
        for name, entry in one.result["per_class"].items()
    ]
    _write_csv(folder / "per_class.csv", ("label", "class", "num_examples", "num_right", "top1"), per_class)
    pairs = zip(*(column.tolist() for column in _confusion(one)), strict=True)
    confused = [(one.class_names[label], one.class_names[guess], count) for label, guess, count in pairs]
    _write_csv(folder / "confusion.csv", ("class", "predicted", "num_examples"), confused)


def _write_pictures(folder: Path, one: EvalResult) -> None:
    title = f"ECE {one.result['ece']:.2%} of {len(one.found)} examples"
    plots.save(folder / "reliability.png", figures.reliability_diagram(one.reliability, title=title))
    if not one.found.has_several_labels:
        plots.save(folder / "confusion.png", figures.confusion_matrix(*_confusion(one), one.class_names))
    pictures = list(_mistakes(one))
    if pictures:
        plots.save(folder / "mistakes.png", figures.mistakes_grid(pictures))
    curve = one.result.get("resolutions")
    if curve:
        sides, top1, top5 = ([entry[key] for entry in curve] for key in ("resolution", "top1", "top5"))
        figure = figures.resolution_curve(sides, top1, top5, own=one.own_side)
        plots.save(folder / "resolution.png", figure)


def _confusion(one: EvalResult):
    return predictions.confusion(one.found, len(one.class_names))


def _mistakes(one: EvalResult) -> Iterable[tuple]:
    """The surest wrong predictions with their pictures, as the network saw them."""
    found = one.found
    places = predictions.most_confident_mistakes(found, MISTAKES_SHOWN)
    for at, told in zip(places, one.result["mistakes"], strict=True):
        image_HWC, _ = loader.read_example(one.question.split, int(found.rows_N[at]))
        yield one.preprocessing(image_HWC), told["label"], told["predicted"], told["probability"]


def _write_csv(path: Path, header: tuple[str, ...], rows: Iterable[tuple]) -> None:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(header)
    table.writerows(rows)
    write_text(path, text.getvalue())
