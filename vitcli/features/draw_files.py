"""Drawn rows as a file that another lab can repeat: {"seed": {"shots": [rows of the training split]}}."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from vitcli.errors import DataError

LARGEST = 64 * 2**20  # bytes; 1000 classes x 25 shots x 3 seeds take 1 MB


def as_json(draws: dict[int, dict[int, np.ndarray]]) -> dict[str, dict[str, list[int]]]:
    """Draws as they are written."""
    return {
        str(seed): {str(shots): rows.tolist() for shots, rows in by_shots.items()}
        for seed, by_shots in draws.items()
    }


def read_draws(file: str, labels_N: np.ndarray, class_names: list[str]) -> dict[int, dict[int, np.ndarray]]:
    """The draws of a file, for a training split with these labels.

    Raises:
        DataError: it is no such file, names a row that is not there or twice, or a class has no row in a
            draw, or more of them than shots.
    """
    try:
        if Path(file).stat().st_size > LARGEST:
            raise ValueError("it is too large")
        told = json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"{file} cannot be read: {error.strerror}", where="--draws", fix="check the path"
        ) from error
    except (ValueError, RecursionError) as error:
        raise _wrong(f"is no JSON: {error}", file) from error
    if not isinstance(told, dict) or not told:
        raise _wrong("is no object of seeds", file)
    draws: dict[int, dict[int, np.ndarray]] = {}
    for seed, by_shots in told.items():
        if not isinstance(by_shots, dict) or not by_shots:
            raise _wrong(f"has no object of shots for seed {seed!r}", file)
        for shots, rows in by_shots.items():
            place = f"seed {seed}, {shots} shots"
            if not (_is_count(seed) and _is_count(shots) and int(shots)):
                raise _wrong(f"names {place}, which are not whole numbers from 1, seeds from 0", file)
            checked = _checked(rows, int(shots), labels_N, class_names, file=file, place=place)
            if int(shots) in draws.setdefault(int(seed), {}):
                raise _wrong(f"names {place} twice", file)
            draws[int(seed)][int(shots)] = checked
    if len({tuple(sorted(by_shots)) for by_shots in draws.values()}) > 1:
        raise _wrong("has other numbers of shots for one seed than for another", file)
    return draws


def _checked(
    rows: Any, shots: int, labels_N: np.ndarray, class_names: list[str], *, file: str, place: str
) -> np.ndarray:
    if not isinstance(rows, list) or not all(type(row) is int for row in rows) or not rows:
        raise _wrong("has no list of row numbers", f"{file}, {place}")
    outside = [row for row in rows if not 0 <= row < len(labels_N)]
    if outside:
        raise DataError(
            f"row {outside[0]} is none of the {len(labels_N)} rows of the training split",
            where=f"{file}, {place}",
            fix="repeat these draws on the data set and split they were made of (data.train_split)",
        )
    if len(set(rows)) < len(rows):
        twice = next(row for row in rows if rows.count(row) > 1)
        raise _wrong(f"has row {twice} twice", f"{file}, {place}")
    counts_K = np.bincount(labels_N[rows], minlength=len(class_names))
    for what, wrong_K in (("no row", counts_K == 0), (f"more than {shots} rows", counts_K > shots)):
        if wrong_K.any():
            names = ", ".join(class_names[label] for label in np.flatnonzero(wrong_K)[:5])
            raise DataError(
                f"{wrong_K.sum()} classes have {what} in this draw: {names}",
                where=f"{file}, {place}",
                fix="repeat these draws on the data set and split they were made of (data.train_split)",
            )
    return np.array(rows, dtype=np.int64)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


def _wrong(what: str, where: str) -> DataError:
    return DataError(
        f"the file of draws {what}",
        where=where if "," in where else f"--draws {where}",
        fix='write {"seed": {"shots": [rows of the training split]}}, as draws.json of a run folder has it',
    )
