"""The Python interface: `from vitcli import load_model`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vitcli.data.decoding import Jpeg, open_image, to_rgb
from vitcli.data.transforms import Preprocessing, preprocessing_of, to_model_range
from vitcli.errors import DataError, VitError, nearest_path, reason_of
from vitcli.evaluation.setup import preprocessing_for
from vitcli.io.files import MOST_BYTES, read_regular
from vitcli.models.architecture import Architecture
from vitcli.models.build import architecture, build, known_name
from vitcli.recipe import load_for_inference
from vitcli.weights.io import read_weights
from vitcli.weights.load import load
from vitcli.weights.names import names_weights


@dataclass(frozen=True)
class ModelInfo:
    """Description of a loaded model.

    Attributes:
        name: the paper's name, or timm's.
        architecture: everything needed to build it again.
        preprocessing: the settings of `transform`.
        class_names: in the order of the logits: stored ones, or ImageNet's for published weights without
            any; None if they are not known, or the head is new.
        source: as passed to `load_model`.
        format: kind of file or folder; "fresh weights" for a bare name.
        numerics: whose arithmetic the weights get (the GELU, for one), and why.
        notes: how tensors were loaded, resampled or replaced, one line for each case.
        metadata: everything else that was stored with the weights.
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
    """The preprocessing of a model: an image to the same pixels that `vit evaluate` uses."""

    preprocessing: Preprocessing

    def __call__(self, image: str | Path | bytes | np.ndarray | Image.Image) -> Tensor:
        """Return the model's input for one image, float32 (3, H, W).

        Args:
            image: a path, the bytes of a file, a PIL image, or uint8 RGB (H, W, 3).

        Raises:
            DataError: it cannot be read, or is not an image.
        """
        pixels_HWC = np.ascontiguousarray(self.preprocessing(_opened(image)))
        images_1CHW = torch.from_numpy(pixels_HWC).permute(2, 0, 1)[None]
        return to_model_range(images_1CHW, mean=self.preprocessing.mean, std=self.preprocessing.std)[0]


def _opened(image: str | Path | bytes | np.ndarray | Image.Image) -> np.ndarray | Jpeg:
    if isinstance(image, Image.Image):
        try:
            return to_rgb(image)
        except Exception as error:
            where = "the given PIL image"
            raise DataError(reason_of(error), where=where, fix="convert it to RGB") from error
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[-1] != 3:
            array = f"an array of {image.dtype}, shape {image.shape}"
            raise DataError(f"{array}, is not an image", where="transform", fix="give uint8 RGB (H, W, 3)")
        return np.require(image, requirements="W")
    where = "the given bytes" if isinstance(image, bytes) else str(image)
    try:
        data = image if isinstance(image, bytes) else read_regular(image, MOST_BYTES)
    except FileNotFoundError as error:
        fix = f"check the path{nearest_path(where)}"
        raise DataError("the file does not exist", where=where, fix=fix) from error
    except OSError as error:
        fix = "check the file and its permissions"
        raise DataError(f"it cannot be read: {error.strerror}", where=where, fix=fix) from error
    return open_image(data, where=lambda _: where, row=0)


class LoadedModel(NamedTuple):
    """A network in evaluation mode on the CPU, the transform of its inputs, and its description."""

    model: nn.Module
    transform: Transform
    info: ModelInfo


def load_model(
    path_or_name: str | Path,
    image_size: int | tuple[int, int] | None = None,
    num_classes: int | None = None,
) -> LoadedModel:
    """Load any checkpoint that `--ckpt` takes, or build a new network by its name.

        model, transform, info = load_model("runs/pets")
        logits_1K = model(transform("photo.jpg")[None])

    Args:
        path_or_name: a run folder, a .safetensors, .npz or .pth file, timm/NAME.TAG, ViT-B/16@in21k,
            OWNER/NAME, an address, demo; or the bare name of a network ("ViT-B/16", "R50+ViT-L/32", a timm
            model) for fresh weights.
        image_size: in pixels, one side or (height, width); position embeddings are resampled as in the paper.
            Default: the size the weights were trained for, 224 for fresh ones.
        num_classes: None keeps the head; a number replaces it by zeros; 0 returns features.

    Raises:
        VitError: the file, the name or the size is wrong; it has three parts: message, where, fix.
    """
    with _in_words_of_python(str(path_or_name)):
        return _load_model(str(path_or_name), image_size, num_classes)


@contextmanager
def _in_words_of_python(source: str) -> Iterator[None]:
    """Name parameters of `load_model` in errors, in the place of options of the command line."""
    try:
        yield
    except VitError as error:
        if "--res" in error.where:
            error.where = "load_model(image_size=...)"
        elif "--" in error.where or error.where == source:
            error.where = f"load_model({source!r})"
        error.fix = error.fix.replace("as --ckpt ", "as ").replace("--ckpt takes", "it takes")
        raise


def _load_model(
    source: str, image_size: int | tuple[int, int] | None, num_classes: int | None
) -> LoadedModel:
    # The preprocessing: that of the weights, or the default for fresh ones.
    size = _height_and_width(image_size)
    if num_classes is not None and (isinstance(num_classes, bool) or num_classes < 0):
        raise VitError(f"num_classes is {num_classes}", where="load_model(num_classes=...)", fix="0 or more")
    shorthands = {"data.image_size": f"{size[0]}x{size[1]}"} if size else {}
    recipe = load_for_inference(None, (), shorthands)
    if not names_weights(source):
        return _fresh(source, preprocessing_of(recipe.data), num_classes)
    weights = read_weights(source)
    preprocessing, _ = preprocessing_for(weights, recipe)
    # The network.
    model, arch, report = load(weights, image_size=preprocessing.image_size, num_classes=num_classes)
    names = weights.readable_class_names if weights.class_names or weights.imagenet else None
    info = ModelInfo(
        name=arch.name,
        architecture=arch,
        preprocessing=preprocessing,
        class_names=names if num_classes is None else None,
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
            f"image_size {image_size!r} is not a size in pixels",
            where="load_model(image_size=...)",
            fix="an integer, or (height, width)",
        )
    return int(sides[0]), int(sides[1])


def _fresh(name: str, preprocessing: Preprocessing, num_classes: int | None) -> LoadedModel:
    try:
        known_name(name)
    except VitError as error:
        message = error.message.replace("there is no model", "there is no file, folder or network")
        raise VitError(message, where=error.where, fix=error.fix) from error
    if num_classes is None:
        raise VitError(
            f"{name} is a network without weights, and the number of classes is missing",
            where="load_model(num_classes=...)",
            fix="give num_classes (0: features only), or a checkpoint: a file, run folder or timm/NAME.TAG",
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
