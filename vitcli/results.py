"""What the functions of `commands.py` return: the object of `--json`, the screen, and the figures."""

import base64
import html
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

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
        pictures = "".join(_as_image(figure) for figure in self.figures.values())
        return f'<pre style="font-family:monospace">{html.escape(repr(self))}</pre>{pictures}'

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
    def predictions(self) -> list[dict[str, Any]]:
        """An object per image: `file`, `top` with classes and probabilities, and doubts."""
        return self.values["predictions"]

    def _repr_html_(self) -> str:
        cards = []
        for prediction in self.predictions[:MOST_THUMBNAILS]:
            words = html.escape(_answer(prediction)), html.escape(Path(prediction["file"]).name)
            picture = _thumbnail(prediction["file"])
            cards.append(f'<div style="width:{SIDE}px">{picture}<b>{words[0]}</b><br>{words[1]}</div>')
        style = "display:flex;flex-wrap:wrap;gap:12px;font-size:13px;overflow-wrap:anywhere"
        return f'<div style="{style}">{"".join(cards)}</div>{super()._repr_html_()}'


class FewshotResult(Result):
    """Of `fewshot`: accuracy by images per class, or a comparison of checkpoints and layers."""


class FeaturesResult(Result):
    """Of `embed`: where the features are."""

    def load(self) -> dict[str, np.ndarray]:
        """Return the arrays of the file: features (N, D), labels and rows (N,), logits (N, classes)."""
        from safetensors.numpy import load_file

        return load_file(self.values["out"])


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
