"""Predictions of every row of a split: tables made from them, and the Parquet file that stores them.

Reliability diagrams are those of Guo et al., "On Calibration of Modern Neural Networks" (arXiv 1706.04599).
Letters: N rows, K classes, T top classes kept, M labels of a row, or bins of a reliability diagram.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from vitcli.errors import DataError
from vitcli.evaluation.class_metrics import ClassScores, class_scores
from vitcli.output import atomic
from vitcli.output.run_folder import PREDICTIONS

if TYPE_CHECKING:  # it imports this module
    from vitcli.evaluation.regression import NumberPredictions


NUM_BINS = 15  # as in Guo et al. and most published ECE values
EXAMPLE_SCORE = "example_scores."  # in front of their names in a part
BINS = ("edges", "counts", "confidence", "accuracy")  # of a reliability diagram in a result


@dataclass(frozen=True)
class Reliability:
    """Confidence and accuracy in each bin of confidence; both are 0 in an empty bin.

    Attributes:
        edges_M1: M + 1 bounds; a bin holds the examples with lower < confidence <= upper.
        counts_M: number of examples.
        confidence_M: their mean probability of the predicted class.
        accuracy_M: fraction of them that is right.
    """

    edges_M1: np.ndarray
    counts_M: np.ndarray
    confidence_M: np.ndarray
    accuracy_M: np.ndarray

    @property
    def ece(self) -> float:
        """Return the expected calibration error: sum over bins of counts / N * |confidence - accuracy|."""
        gaps_M = np.abs(self.confidence_M - self.accuracy_M)
        return float((self.counts_M * gaps_M).sum() / self.counts_M.sum())

    @classmethod
    def of_json(cls, bins: dict[str, list]) -> "Reliability":
        """Return the bins of a result, see `as_json`."""
        return cls(*(np.array(bins[key]) for key in BINS))

    def as_json(self) -> dict[str, list]:
        """Return the bins as a result has them."""
        return {key: values_M.tolist() for key, values_M in zip(BINS, vars(self).values(), strict=True)}


def reliability(
    confidences_N: np.ndarray, is_right_N: np.ndarray, *, num_bins: int = NUM_BINS
) -> Reliability:
    """Bin predictions by the probability of the predicted class, in bins of equal width."""
    edges_M1 = np.linspace(0.0, 1.0, num_bins + 1)
    bins_N = np.clip(np.searchsorted(edges_M1, confidences_N, side="left") - 1, 0, num_bins - 1)
    counts_M = np.bincount(bins_N, minlength=num_bins)
    per_example_M = np.maximum(counts_M, 1)
    return Reliability(
        edges_M1=edges_M1,
        counts_M=counts_M,
        confidence_M=np.bincount(bins_N, weights=confidences_N, minlength=num_bins) / per_example_M,
        accuracy_M=np.bincount(bins_N, weights=is_right_N, minlength=num_bins) / per_example_M,
    )


@dataclass(frozen=True)
class Predictions:
    """Predictions of the decoded rows of a split, in row order.

    Attributes:
        rows_N: row of the split.
        labels: (N,) classes, or (N, M) filled up with -1 where rows have several.
        ranks_N: number of classes ranked above the label, see `metrics.label_ranks`; 0 is a top-1 hit.
        losses_N: softmax cross-entropy in nats.
        classes_NT: the top classes in order; the lower number first among equal logits.
        probabilities_NT: their probabilities.
        scores_NK: log-probabilities of all classes, float32; None of several labels, or of too many numbers.
        logits_NK: all logits, float32, where rows have several labels and they are not too many.
        example_scores: (N,) by key, see `metrics.EXAMPLE_SCORES`; {} of a file.
    """

    rows_N: np.ndarray
    labels: np.ndarray
    ranks_N: np.ndarray
    losses_N: np.ndarray
    classes_NT: np.ndarray
    probabilities_NT: np.ndarray
    scores_NK: np.ndarray | None = None
    logits_NK: np.ndarray | None = None
    example_scores: dict[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows_N)

    @property
    def all_logits_NK(self) -> np.ndarray:
        """Return the logits of rows that have several labels, where they are kept."""
        assert self.logits_NK is not None, "they are not kept"
        return self.logits_NK

    @property
    def is_right_N(self) -> np.ndarray:
        return self.ranks_N == 0

    @property
    def confidences_N(self) -> np.ndarray:
        """Return the probability of each predicted class."""
        return self.probabilities_NT[:, 0]

    @property
    def reliability(self) -> Reliability:
        return reliability(self.confidences_N, self.is_right_N)

    @property
    def is_multilabel(self) -> bool:
        return self.labels.ndim == 2

    def columns(self) -> dict[str, Any]:
        """Return what a file has of each row, as arrays of pyarrow."""
        import pyarrow as pa

        labels, label_type = self.labels.tolist(), pa.int64()
        if self.is_multilabel:
            labels = [[label for label in row if label >= 0] for row in labels]
            label_type = pa.list_(pa.int64())
        return {
            "label": pa.array(labels, label_type),
            "rank": pa.array(self.ranks_N, pa.int64()),
            "loss": pa.array(self.losses_N, pa.float64()),
            "top_classes": pa.array(self.classes_NT.tolist(), pa.list_(pa.int64())),
            "top_probabilities": pa.array(self.probabilities_NT.tolist(), pa.list_(pa.float64())),
        }


def scores_of_classes(predictions: Predictions) -> ClassScores | None:
    """Return precision, recall and the like of each class that has examples; None of several labels."""
    if predictions.is_multilabel:
        return None
    return class_scores(predictions.labels, predictions.classes_NT[:, 0], predictions.scores_NK)


def per_class(scores: ClassScores, class_names: tuple[str, ...]) -> dict[str, dict[str, float | None]]:
    """Return top-1 (recall), number of examples and other metrics of each class by its name, in order."""
    counts, recalls = scores.counts_C.tolist(), scores.recall_C.tolist()
    return {
        class_names[label]: {"top1": recalls[i], "num_examples": counts[i], **scores.of_class(i)}
        for i, label in enumerate(scores.classes_C.tolist())
    }


def confusion(predictions: Predictions, num_classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return label, predicted class and count of every pair that occurs, ordered by both.

    Pairs instead of a matrix: for 21,843 classes that takes 4 GB to hold some ten thousand numbers.
    """
    pairs_N = predictions.labels * num_classes + predictions.classes_NT[:, 0]
    pairs, counts = np.unique(pairs_N, return_counts=True)
    return pairs // num_classes, pairs % num_classes, counts


def most_confident_mistakes(predictions: Predictions, count: int) -> np.ndarray:
    """Return the indices of the wrong predictions with the highest probability, the highest first."""
    wrong = np.flatnonzero(~predictions.is_right_N)
    return wrong[np.argsort(-predictions.confidences_N[wrong], kind="stable")][:count]


def unique_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of classes, with the class number at each that occurs more than once."""
    counts = Counter(names)
    return tuple(f"{name} ({number})" if counts[name] > 1 else name for number, name in enumerate(names))


COLUMNS = ("row", "place", "label", "rank", "loss", "top_classes", "top_probabilities")
KEY = b"vit"
SUFFIXES = (".parquet",)


@dataclass(frozen=True)
class SavedPredictions:
    """A file of predictions that was read back.

    Attributes:
        about: checkpoint, data set and class names, from the file's metadata.
        rows_N: row of the split.
        places: file or row of the data set of each image.
        labels_N: class of each image, or a tuple of classes.
        ranks_N: 0 where the prediction is right.
        predicted_N: the top class; -1 where the file has none.
    """

    path: str
    about: dict[str, Any]
    rows_N: np.ndarray
    places: list[str]
    labels_N: list
    ranks_N: np.ndarray
    predicted_N: list[int]


def write_predictions(
    path: str,
    predictions: "Predictions | NumberPredictions",
    rows_N: np.ndarray,
    places: list[str],
    about: dict[str, Any],
) -> None:
    """Write a Parquet file; equal predictions give equal bytes with the same version of pyarrow.

    Args:
        rows_N: row of the data set of each prediction.
        about: kept in the metadata of the file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"row": pa.array(rows_N, pa.int64()), "place": pa.array(places, pa.string())}
    table = pa.table(columns | predictions.columns()).replace_schema_metadata({KEY: json.dumps(about)})

    def write(file: Path) -> None:
        with file.open("wb") as opened:  # pyarrow takes a name for an address, and expands a "~" in it
            pq.write_table(table, opened, compression="zstd")

    atomic.replace_file(Path(path), write)


def write_part(
    file: Path,
    predictions: "Predictions | NumberPredictions | None",
    skipped: Sequence[str],
    first_row: int,
    *,
    most_scores: int,
) -> None:
    """Write the predictions of a part of a split, whose rows begin at `first_row`, as arrays of NumPy.

    Args:
        predictions: None where no image can be read.
        most_scores: of a row; more are not kept.
    """
    found: dict[str, Any] = vars(predictions) if predictions else {"rows_N": np.arange(0)}
    arrays: dict[str, Any] = {
        name: values for name, values in found.items() if isinstance(values, np.ndarray)
    }
    arrays["rows_N"] = arrays["rows_N"] + first_row
    for name in ("scores_NK", "logits_NK"):
        if name in arrays and arrays[name].shape[1] > most_scores:
            del arrays[name]
    arrays |= {
        f"{EXAMPLE_SCORE}{name}": values_N for name, values_N in found.get("example_scores", {}).items()
    }
    arrays["skipped"] = np.array(skipped, dtype=str)

    def write(path: Path) -> None:
        with path.open("wb") as opened:  # numpy would add its own suffix to a name
            np.savez(opened, **arrays)

    atomic.replace_file(file, write)


def counts_of_part(file: Path) -> dict[str, Any]:
    """Return what `Parts.read` returns of a file of `write_part`."""
    arrays = _arrays_of(file)
    return {"num_examples": len(arrays["rows_N"]), "skipped_images": arrays["skipped"].tolist()}


def _arrays_of(file: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(file) as part:
            return {name: part[name] for name in part.files}
    except (BadZipFile, EOFError, KeyError) as error:
        raise ValueError(f"{file} is damaged") from error


def read_parts(files: Sequence[Path], kind: Callable[..., Any]) -> tuple[Any, list[str]]:
    """Return the predictions of all parts as a `kind`, and the places of undecodable images."""
    arrays: dict[str, list[np.ndarray]] = defaultdict(list)
    for file in files:
        for name, values in _arrays_of(file).items():
            arrays[name].append(values)
    whole = {name: np.concatenate(arrays.pop(name)) for name in [*arrays]}
    skipped = whole.pop("skipped").tolist()
    names = [name for name in whole if name.startswith(EXAMPLE_SCORE)]
    scores = {name.removeprefix(EXAMPLE_SCORE): whole.pop(name) for name in names}
    return kind(**whole, **({"example_scores": scores} if scores else {})), skipped


def pooled(paths: Sequence[Path], rows: Sequence[np.ndarray]) -> Predictions:
    """Return the predictions of several files as those of one split, in its row order.

    The files are of parts of it that have no row in common, by networks with the same classes.

    Args:
        rows: of each file, the row of the whole split for each row of its part.

    Raises:
        DataError: a file is missing or damaged.
    """
    import pyarrow as pa

    tables = []
    for path in paths:
        fix = f"delete {path.parent}, and run the same command again"
        table = _read_table(path, f"{path.name} is missing or damaged", fix=fix)
        tables.append(table.replace_schema_metadata(None))
    rows_N = np.concatenate(
        [of_part[table["row"].to_numpy()] for table, of_part in zip(tables, rows, strict=True)]
    )
    order_N = np.argsort(rows_N, kind="stable")
    columns = pa.concat_tables(tables).take(order_N)
    labels = columns["label"].to_pylist()
    if labels and isinstance(labels[0], list):
        width = max(map(len, labels))
        labels = [[*several, *[-1] * (width - len(several))] for several in labels]
    return Predictions(
        rows_N=rows_N[order_N],
        labels=np.array(labels, dtype=np.int64),
        ranks_N=columns["rank"].to_numpy().copy(),
        losses_N=columns["loss"].to_numpy().copy(),
        classes_NT=np.array(columns["top_classes"].to_pylist(), dtype=np.int64),
        probabilities_NT=np.array(columns["top_probabilities"].to_pylist(), dtype=np.float64),
    )


def _read_table(path: Path, damaged: str, *, fix: str) -> Any:
    """Return the COLUMNS of a file; DataError says that it is `damaged`, or not written by vit."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with atomic.open_regular(path) as file:
            table = pq.read_table(file)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0][:120]
        raise DataError(f"{damaged}: {reason}", where=str(path), fix=fix) from error
    if not set(COLUMNS) <= set(table.column_names):
        raise DataError(f"{path} holds no predictions of vit", where=str(path), fix=fix)
    return table.select(list(COLUMNS))


def read_predictions(path: str) -> SavedPredictions:
    """Read a file of `write_predictions`; of the folder of a run or of an evaluation the one in it.

    Raises:
        DataError: the file is missing, damaged, or not written by vit.
    """
    fix = "write one with vit evaluate --ckpt CKPT --dataset DATA --save-predictions FILE.parquet"
    if Path(path).is_dir():
        folder, path = path, str(Path(path) / PREDICTIONS)
        if not Path(path).is_file():
            fix = f"{fix}, or evaluate with --out FOLDER"
            raise DataError(f"{folder} has no predictions", where="vit compare", fix=fix)
    if not Path(path).is_file():
        raise DataError(f"there is no file {path}", where="vit compare", fix=fix)
    table = _read_table(Path(path), f"{path} is not a Parquet file, or damaged", fix=fix)
    about = _about(table.schema.metadata or {})
    if about is None:
        raise DataError(f"{path} holds no predictions of vit", where=path, fix=fix)
    labels = table["label"].to_pylist()
    return SavedPredictions(
        path=path,
        about=about,
        rows_N=table["row"].to_numpy(),
        places=table["place"].to_pylist(),
        labels_N=[tuple(label) if isinstance(label, list) else label for label in labels],
        ranks_N=table["rank"].to_numpy(),
        predicted_N=[classes[0] if classes else -1 for classes in table["top_classes"].to_pylist()],
    )


def _about(metadata: dict[bytes, bytes]) -> dict[str, Any] | None:
    try:
        about = json.loads(metadata[KEY])
    except (KeyError, ValueError, RecursionError):
        return None
    return about if isinstance(about, dict) else None
