"""Saved predictions: one Parquet file for one checkpoint on one split, which `vit compare` reads again.

A row for each scored picture: row, place, label (of several the list), rank, loss, top_classes and
top_probabilities. The metadata key "vit" of the schema holds a JSON object: what was scored, and the names of
the classes.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vitcli.errors import DataError, MachineError, VitError
from vitcli.evaluation.predictions import Predictions
from vitcli.output import atomic

COLUMNS = ("row", "place", "label", "rank", "loss", "top_classes", "top_probabilities")
KEY = b"vit"


@dataclass(frozen=True)
class SavedPredictions:
    """What is read back of a file.

    Attributes:
        path: the file.
        about: the object of the metadata.
        rows_N: row of the split.
        places: file or row that each picture came from, for a person.
        labels_N: class of each, or a tuple of them.
        ranks_N: 0 where the prediction is right.
        losses_N: in nats.
    """

    path: str
    about: dict[str, Any]
    rows_N: np.ndarray
    places: list[str]
    labels_N: list
    ranks_N: np.ndarray
    losses_N: np.ndarray


def check_can_write(path: str) -> None:
    """Refuse, before any work, a file that could not be written at its end.

    Raises:
        VitError: another kind of file.
        MachineError: the folder may not be written to, or there is a folder of that name.
    """
    if not path.endswith(".parquet"):
        raise VitError(
            f"{path} does not end in .parquet", where="--save-predictions", fix="name a Parquet file"
        )
    if Path(path).is_dir():
        raise MachineError(f"{path} is a folder", where="--save-predictions", fix="name a file in it")
    atomic.check_can_write_in(Path(path).resolve().parent, option="--save-predictions")


def write_predictions(
    path: str, found: Predictions, rows_N: np.ndarray, places: list[str], about: dict[str, Any]
) -> None:
    """Write one file; the same predictions give the same bytes with one version of pyarrow.

    Args:
        rows_N: row of the data set's split of each prediction.
    """
    several = found.has_several_labels
    labels = [[one for one in row if one >= 0] for row in found.labels.tolist()] if several else found.labels
    table = pa.table(
        {
            "row": pa.array(rows_N, pa.int64()),
            "place": pa.array(places, pa.string()),
            "label": pa.array(labels, pa.list_(pa.int64()) if several else pa.int64()),
            "rank": pa.array(found.ranks_N, pa.int64()),
            "loss": pa.array(found.losses_N, pa.float64()),
            "top_classes": pa.array(found.classes_NT.tolist(), pa.list_(pa.int64())),
            "top_probabilities": pa.array(found.probabilities_NT.tolist(), pa.list_(pa.float64())),
        }
    ).replace_schema_metadata({KEY: json.dumps(about)})
    atomic.replace_file(Path(path), lambda file: pq.write_table(table, file, compression="zstd"))


def read_predictions(path: str) -> SavedPredictions:
    """A file of `write_predictions`.

    Raises:
        DataError: it is not there, damaged, or not of `vit evaluate --save-predictions`.
    """
    fix = "write one with vit evaluate --ckpt WEIGHTS --dataset DATA --save-predictions FILE.parquet"
    if not Path(path).is_file():
        raise DataError(f"there is no file {path}", where="vit compare", fix=fix)
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        what = str(error).splitlines()[0][:120]
        raise DataError(f"{path} is not a Parquet file, or damaged: {what}", where=path, fix=fix) from error
    about = _about(table.schema.metadata or {})
    if about is None or not set(COLUMNS) <= set(table.column_names):
        raise DataError(f"{path} holds no predictions of vit", where=path, fix=fix)
    labels = table["label"].to_pylist()
    return SavedPredictions(
        path=path,
        about=about,
        rows_N=table["row"].to_numpy(),
        places=table["place"].to_pylist(),
        labels_N=[tuple(one) if isinstance(one, list) else one for one in labels],
        ranks_N=table["rank"].to_numpy(),
        losses_N=table["loss"].to_numpy(),
    )


def _about(metadata: dict[bytes, bytes]) -> dict[str, Any] | None:
    try:
        about = json.loads(metadata[KEY])
    except (KeyError, ValueError):
        return None
    return about if isinstance(about, dict) else None
