"""What the functions of `commands.py` return: the object of `--json`, the screen, and the figures."""

import base64
import html
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitcli.errors import VitError
from vitcli.output.run_folder import PARTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_THUMBNAILS = 24  # of predictions in a notebook
SIDE = 112  # pixels of one


@dataclass(frozen=True, repr=False)
class Result:
    """The result of a command: `result["top1"]` is a key of its `--json`, `print(result)` its screen.

    A notebook shows the screen with the figures below it.

    Attributes:
        values: the object of `--json`.
        screen: what the command prints.
        figures: matplotlib figures by name: those that the command draws into its folder.
    """

    values: dict[str, Any]
    screen: str
    figures: dict[str, "Figure"] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    def __repr__(self) -> str:
        return self.screen.rstrip("\n")

    def _repr_html_(self) -> str:
        figures = "".join(_as_image(figure) for figure in self.figures.values())
        return f'<pre style="font-family:monospace">{html.escape(repr(self))}</pre>{figures}'

    def _path(self, key: str) -> Path | None:
        return Path(self.values[key]) if self.values.get(key) else None


class TrainingResult(Result):
    """Of `finetune`: the summary of a run, or of several."""

    @property
    def run_dir(self) -> Path | None:
        """The run folder, which every `ckpt` takes; None of a plan (`dry_run`)."""
        return self._path("run_dir")

    @property
    def top1(self) -> float | None:
        """Accuracy on the images that the run reports on, a fraction; the mean of several runs."""
        return self.values.get("top1")


class EvaluationResult(Result):
    """Of `evaluate`: the scores of a checkpoint, or `evaluations` of several."""

    @property
    def top1(self) -> float | None:
        """Accuracy, a fraction; None of several checkpoints, of numbers and of several labels."""
        return self.values.get("top1")


class PredictionResult(Result):
    """Of `predict`; a notebook shows the first images with their answers."""

    @property
    def predictions(self) -> Iterable[dict[str, Any]]:
        """An object per image: `file`, `top` with classes and probabilities, and doubts.

        A list, or of parts (`part_rows`) an iterator that reads their files.
        """
        return self.values["predictions"] if "predictions" in self.values else self._of_parts()

    def _of_parts(self) -> Iterator[dict[str, Any]]:
        out = Path(self.values["out"])
        for name in json.loads((out / PARTS).read_text())["parts"]:
            with open(out / name, encoding="utf-8") as lines:
                yield from (value for line in lines if "error" not in (value := json.loads(line)))

    def _repr_html_(self) -> str:
        cards = []
        for prediction in islice(self.predictions, MOST_THUMBNAILS):
            words = html.escape(_answer(prediction)), html.escape(Path(prediction["file"]).name)
            thumbnail = _thumbnail(prediction["file"])
            cards.append(f'<div style="width:{SIDE}px">{thumbnail}<b>{words[0]}</b><br>{words[1]}</div>')
        style = "display:flex;flex-wrap:wrap;gap:12px;font-size:13px;overflow-wrap:anywhere"
        return f'<div style="{style}">{"".join(cards)}</div>{super()._repr_html_()}'


class FewshotResult(Result):
    """Of `fewshot`: accuracy by images per class, or a comparison of checkpoints and layers."""


class FeaturesResult(Result):
    """Of `embed`: where the features are."""

    def load(self) -> "dict[str, np.ndarray] | dict[str, RowsOfParts]":
        """Return features (N, D), labels and rows (N,), logits (N, classes), as `load_features` does."""
        return load_features(self.values["out"])


class RowsOfParts:
    """One array over all parts of `vit embed --part-rows`, which reads the rows that are indexed.

    Args:
        tensors: of the parts, in order, each with a row at least; `get_slice` of a .safetensors file.

    Attributes:
        shape: (N, ...).
    """

    def __init__(self, tensors: Sequence[Any]):
        self._tensors = tensors
        self._ends = np.cumsum([tensor.get_shape()[0] for tensor in tensors])
        self.shape = (int(self._ends[-1]), *tensors[0].get_shape()[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: int | slice | Sequence[int] | np.ndarray) -> np.ndarray:
        if isinstance(which, int | np.integer):
            return self[[int(which)]][0]
        # Of a slice no index of all rows is made.
        rows_M = np.arange(*which.indices(len(self))) if isinstance(which, slice) else np.asarray(which)
        is_mask = rows_M.dtype == bool
        if is_mask and rows_M.shape != (len(self),):
            raise IndexError(f"a mask has {len(self)} values")
        rows_M = rows_M.nonzero()[0] if is_mask else np.where(rows_M < 0, rows_M + len(self), rows_M)
        if len(rows_M) and not 0 <= rows_M.min() <= rows_M.max() < len(self):
            raise IndexError(f"rows of 0 to {len(self) - 1} are there")
        values_M = np.empty((len(rows_M), *self.shape[1:]), self._tensors[0][:1].dtype)
        part_M = np.searchsorted(self._ends, rows_M, side="right")
        for part in np.unique(part_M):
            is_here_M = part_M == part
            local = rows_M[is_here_M] - (self._ends[part - 1] if part else 0)
            first = int(local.min())
            values_M[is_here_M] = self._tensors[part][first : int(local.max()) + 1][local - first]
        return values_M

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype)


def load_features(path: str | Path) -> dict[str, np.ndarray] | dict[str, RowsOfParts]:
    """Return what `vit embed` wrote: features (N, D), labels and rows (N,), and logits (N, classes).

    Args:
        path: the file, whose arrays are read; or the folder of `--part-rows`, whose arrays read the rows that
            are asked for, `load_features("features")["features"][5_000_000:5_001_000]`.

    Raises:
        VitError: it is neither, or a part is missing.
    """
    from safetensors import SafetensorError, safe_open
    from safetensors.numpy import load_file

    path = Path(path)
    try:
        if not path.is_dir():
            return load_file(path)
        names = json.loads((path / PARTS).read_text())["parts"]
        files = [safe_open(path / name, "np") for name in names]
        files = [file for file in files if file.get_slice("rows").get_shape()[0]]  # else none could be read
        names = list(files[0].keys())
        return {name: RowsOfParts([file.get_slice(name) for file in files]) for name in names}
    except (OSError, ValueError, LookupError, TypeError, SafetensorError) as error:
        fix = "name a file of vit embed, or the folder of vit embed --part-rows when all is done"
        raise VitError(f"the features cannot be read: {error}", where=str(path), fix=fix) from error


class ExportResult(Result):
    """Of `export`."""

    @property
    def path(self) -> Path | None:
        """The file or folder that was written; None where a run was only uploaded."""
        return self._path("out")


class InspectionResult(Result):
    """Of `inspect`: numbers and figures of a network."""


def _answer(prediction: Mapping[str, Any]) -> str:
    if "value" in prediction:
        return f"{prediction['value']:.6g}"
    if "labels" in prediction:
        return ", ".join(prediction["labels"]) or "none"
    first = prediction["top"][0]
    return f"{first['class']} {first['probability']:.0%}"


def _thumbnail(file: str) -> str:
    from PIL import Image

    from vitcli.output.html import thumbnail

    try:
        with Image.open(file) as image:
            image.draft("RGB", (SIDE, SIDE))
            jpeg = thumbnail(np.asarray(image.convert("RGB")), side=SIDE)
    except (OSError, ValueError):  # moved since, or a frame of a video
        return ""
    return f'<img src="data:image/jpeg;base64,{jpeg}"><br>'


def _as_image(figure: "Figure") -> str:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=80)
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img style="display:inline" src="data:image/png;base64,{data}">'
