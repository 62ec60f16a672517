"""The most confident mistakes of an evaluation, and mistakes.json, which has a small image of each."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitcli.data import loader
from vitcli.data.columns import PATHS
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing
from vitcli.errors import DataError
from vitcli.evaluation.predictions import Predictions, most_confident_mistakes
from vitcli.output.atomic import write_json
from vitcli.output.html import thumbnail
from vitcli.output.run_folder import MISTAKES
from vitcli.output.summaries import Mistakes

MISTAKES_SHOWN = 20


def places_of(split: Split, rows_N: np.ndarray) -> list[str]:
    """Return where each image comes from: its file's path where there is one; in shards, its row there."""
    paths = split.column(PATHS) if split.block_starts is None else None
    return [paths[row] if paths and paths[row] else split.where_is(row) for row in rows_N.tolist()]


def describe(
    predictions: Predictions, class_names: Sequence[str], places: Sequence[str], source_rows: np.ndarray
) -> list[dict[str, Any]]:
    """Return row, place, label, prediction and probability of each mistake, the most confident first.

    Args:
        source_rows: row of the data set for each row of the split.
    """
    labels_NM = predictions.labels.reshape(len(predictions), -1)
    return [
        {
            "row": int(source_rows[predictions.rows_N[index]]),
            "place": places[index],
            "label": ", ".join(class_names[label] for label in labels_NM[index] if label >= 0),
            "predicted": class_names[predictions.classes_NT[index, 0]],
            "probability": float(predictions.confidences_N[index]),
        }
        for index in most_confident_mistakes(predictions, MISTAKES_SHOWN)
    ]


def images_of(predictions: Predictions, split: Split, preprocessing: Preprocessing) -> list[np.ndarray]:
    """Return the (H, W, 3) uint8 images of the mistakes as the network saw them, in their order."""
    rows = predictions.rows_N[most_confident_mistakes(predictions, MISTAKES_SHOWN)]
    return [preprocessing(loader.read_example(split, int(row))[0]) for row in rows]


def thumbnail_of(split: Split, row: int) -> str:
    """Return a small JPEG of a whole image in base64; "" of one that can no longer be read."""
    try:
        return thumbnail(loader.read_example(split, row)[0])
    except DataError:
        return ""


def write_mistakes(folder: Path, mistakes: Sequence[dict[str, Any]], images: Sequence[np.ndarray]) -> None:
    """Write mistakes.json: what `describe` returns, and with each mistake a JPEG of its image in base64."""
    entries = [
        {**mistake, "thumbnail": thumbnail(image)} for mistake, image in zip(mistakes, images, strict=True)
    ]
    write_json(folder / MISTAKES, Mistakes.written({"mistakes": entries}))
