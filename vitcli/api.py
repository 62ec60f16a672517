"""The package from Python: `from vitcli import load_model`."""

from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vitcli.data.decoding import decode, to_rgb
from vitcli.data.transforms import Preprocessing, preprocessing_of, to_model_range
from vitcli.errors import DataError, VitError
from vitcli.evaluation.setup import preprocessing_for
from vitcli.models.architecture import Architecture
from vitcli.models.build import architecture, build, known_name
from vitcli.recipe.request import RecipeRequest
from vitcli.weights.io import read_weights
from vitcli.weights.load import load
from vitcli.weights.locate import names_weights


@dataclass(frozen=True)
class ModelInfo:
    """What a loaded model is.

    Attributes:
        name: the paper's name, or timm's.
        architecture: everything needed to build it again.
        preprocessing: what `transform` does to a picture.
        class_names: in the order of the logits; None where nobody stored them, or the head is fresh.
        source: as it was given.
        format: what kind of file or folder that was; "fresh weights" for a bare name.
        numerics: which arithmetic the weights get, and why.
        notes: what became of each tensor, one line for each kind.
        metadata: whatever else was stored with the weights.
    """

    name: str
    architecture: Architecture
    preprocessing: Preprocessing
    class_names: tuple[str, ...] | None
    source: str
    format: str
    numerics: str
    notes: tuple[str, ...]
    metadata: dict


@dataclass(frozen=True)
class Transform:
    """A picture to what the model takes; the very pixels that `vit evaluate` sees."""

    preprocessing: Preprocessing

    def __call__(self, picture: str | Path | bytes | np.ndarray | Image.Image) -> Tensor:
        """Float32 (3, H, W).

        Args:
            picture: a path, the bytes of a file, a PIL image, or uint8 RGB (H, W, 3).

        Raises:
            DataError: the bytes are no picture.
        """
        if isinstance(picture, Image.Image):
            try:
                picture = to_rgb(picture)
            except Exception as error:
                told = str(error) or type(error).__name__
                raise DataError(told, where="the given PIL image", fix="convert it to RGB") from error
        if isinstance(picture, np.ndarray):
            if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[-1] != 3:
                told = f"an array of {picture.dtype}, shape {picture.shape}"
                raise DataError(f"{told}, is no picture", where="transform", fix="give uint8 RGB (H, W, 3)")
            picture = np.require(picture, requirements="W")
        else:
            where = "the given bytes" if isinstance(picture, bytes) else str(picture)
            try:
                data = picture if isinstance(picture, bytes) else Path(picture).read_bytes()
            except OSError as error:
                fix = "check the path"
                raise DataError(f"it cannot be read: {error.strerror}", where=where, fix=fix) from error
            picture = decode(data, where=lambda _: where, row=0)
        pixels_HWC = np.ascontiguousarray(self.preprocessing(picture))
        images_1CHW = torch.from_numpy(pixels_HWC).permute(2, 0, 1)[None]
        wanted = self.preprocessing
        return to_model_range(images_1CHW, mean=wanted.mean, std=wanted.std)[0]


class LoadedModel(NamedTuple):
    """A network in evaluation mode on the CPU, the transform of its pictures, and what it is."""

    model: nn.Module
    transform: Transform
    info: ModelInfo


def load_model(
    path_or_name: str | Path,
    image_size: int | tuple[int, int] | None = None,
    num_classes: int | None = None,
) -> LoadedModel:
    """Any checkpoint that `--ckpt` takes, or a fresh network by its name, ready for pictures.

        model, transform, info = load_model("runs/pets")
        logits_1K = model(transform("photo.jpg")[None])

    Args:
        path_or_name: a run folder, a .safetensors, .npz or .pth file, timm/NAME.TAG, hf-hub:OWNER/NAME,
            demo; or the bare name of a network ("ViT-B/16", "R50+ViT-L/32", a timm model), to start anew.
        image_size: in pixels, one side or (height, width); position embeddings are resampled as in the paper.
            None is the size the weights were made for, 224 for fresh ones.
        num_classes: None keeps the head; a number puts a head of zeros in its place; 0 leaves the features.

    Raises:
        VitError: anything wrong with the file, the name or the size, in three parts: message, where, fix.
    """
    source = str(path_or_name)
    size = _height_and_width(image_size)
    if num_classes is not None and (isinstance(num_classes, bool) or num_classes < 0):
        raise VitError(f"{num_classes} classes", where="load_model(num_classes=...)", fix="0 or more")
    shorthands = {"data.image_size": f"{size[0]}x{size[1]}"} if size else {}
    request = RecipeRequest(shorthands=shorthands)
    recipe = request.load()
    if not names_weights(source):
        return _fresh(source, preprocessing_of(recipe.data), num_classes)
    weights = read_weights(source)
    preprocessing, _ = preprocessing_for(weights, recipe, request)
    model, arch, report = load(weights, image_size=preprocessing.image_size, num_classes=num_classes)
    info = ModelInfo(
        name=arch.name,
        architecture=arch,
        preprocessing=preprocessing,
        class_names=weights.class_names if num_classes is None else None,
        source=source,
        format=weights.format,
        numerics=weights.numerics,
        notes=tuple(report.lines()),
        metadata=weights.metadata,
    )
    return LoadedModel(model.eval(), Transform(preprocessing), info)


def _height_and_width(image_size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if image_size is None:
        return None
    sides = tuple(image_size) if isinstance(image_size, tuple | list) else (image_size, image_size)
    if len(sides) != 2 or not all(isinstance(side, Integral) and side > 0 for side in sides):
        raise VitError(
            f"{image_size!r} is no size in pixels",
            where="load_model(image_size=...)",
            fix="one whole number, or (height, width)",
        )
    return int(sides[0]), int(sides[1])


def _fresh(name: str, preprocessing: Preprocessing, num_classes: int | None) -> LoadedModel:
    known_name(name)  # a mistyped path is no network either
    if num_classes is None:
        raise VitError(
            f"{name} names a network and no weights: how many classes?",
            where="load_model(num_classes=...)",
            fix="give num_classes, 0 for features only; for weights a file, a run folder or timm/NAME.TAG",
        )
    arch = architecture(name, image_size=preprocessing.image_size, num_classes=num_classes)
    info = ModelInfo(
        name=arch.name,
        architecture=arch,
        preprocessing=preprocessing,
        class_names=None,
        source=name,
        format="fresh weights",
        numerics="the paper's" if arch.is_of_the_paper else "timm's",
        notes=("fresh weights",),
        metadata={},
    )
    return LoadedModel(build(arch, dropout=0.0).eval(), Transform(preprocessing), info)
