"""TrivialAugment, "wide" (arXiv 2103.10158): one operation of random strength, nothing to tune.

Operations, strengths and pixels are those of torchvision's `TrivialAugmentWide` on Pillow images: nearest
pixels, black where an image was moved away. Pillow is called directly: importing torchvision takes a second.

H x W pixels, C = 3 channels.
"""

import math
from collections.abc import Callable
from random import Random

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps

NUM_STRENGTHS = 31


def trivialaugment(image_HWC: np.ndarray, *, rng: Random, scale: float = 1.0) -> np.ndarray:
    """Apply one operation, all with equal probability, at one of its strengths, likewise.

    Args:
        image_HWC: uint8, RGB; not modified, but returned itself where nothing is done.
        scale: of distances in pixels, for an image that is a larger or smaller one of another.
    """
    name = rng.choice(NAMES)
    if name == "identity":
        return image_HWC
    strengths, is_signed = STRENGTHS[name]
    strength = rng.choice(strengths)
    if is_signed and rng.random() < 0.5:
        strength = -strength
    if name in ("translate_x", "translate_y"):
        strength *= scale
    return operate(name, image_HWC, strength)


def operate(name: str, image_HWC: np.ndarray, strength: float) -> np.ndarray:
    """Apply one of OPERATIONS."""
    return np.array(OPERATIONS[name](Image.fromarray(image_HWC), strength))


def _linear(first: float, last: float) -> tuple[float, ...]:
    return tuple(torch.linspace(first, last, NUM_STRENGTHS).tolist())  # float32, as torchvision's


def _mapped(image: Image.Image, *matrix: float) -> Image.Image:
    """Take the pixel nearest to (a x + b y + c, d x + e y + f) for the six numbers of `matrix`."""
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST, fillcolor=0)


def _sheared(strength: float) -> float:
    return math.tan(math.radians(math.degrees(math.atan(strength))))  # to torchvision's last bit


# By name: a Pillow image and the strength to the image.
OPERATIONS: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "identity": lambda image, strength: image,
    "shear_x": lambda image, strength: _mapped(image, 1, _sheared(strength), 0, 0, 1, 0),
    "shear_y": lambda image, strength: _mapped(image, 1, 0, 0, _sheared(strength), 1, 0),
    "translate_x": lambda image, strength: _mapped(image, 1, 0, -int(strength), 0, 1, 0),
    "translate_y": lambda image, strength: _mapped(image, 1, 0, 0, 0, 1, -int(strength)),
    "rotate": lambda image, strength: image.rotate(strength),
    "brightness": lambda image, strength: ImageEnhance.Brightness(image).enhance(1 + strength),
    "color": lambda image, strength: ImageEnhance.Color(image).enhance(1 + strength),
    "contrast": lambda image, strength: ImageEnhance.Contrast(image).enhance(1 + strength),
    "sharpness": lambda image, strength: ImageEnhance.Sharpness(image).enhance(1 + strength),
    "posterize": lambda image, strength: ImageOps.posterize(image, int(strength)),
    "solarize": lambda image, strength: ImageOps.solarize(image, strength),  # type: ignore[arg-type]  # any
    "autocontrast": lambda image, strength: ImageOps.autocontrast(image),
    "equalize": lambda image, strength: ImageOps.equalize(image),
}
NAMES = tuple(OPERATIONS)
# By name: the strengths, and whether half of them, at random, go the other way.
STRENGTHS: dict[str, tuple[tuple[float, ...], bool]] = {
    "identity": ((0.0,), False),
    **dict.fromkeys(("shear_x", "shear_y"), (_linear(0.0, 0.99), True)),
    **dict.fromkeys(("translate_x", "translate_y"), (_linear(0.0, 32.0), True)),
    "rotate": (_linear(0.0, 135.0), True),
    **dict.fromkeys(("brightness", "color", "contrast", "sharpness"), (_linear(0.0, 0.99), True)),
    "posterize": (tuple(8.0 - round(step / 5) for step in range(NUM_STRENGTHS)), False),  # bits that are kept
    "solarize": (_linear(255.0, 0.0), False),
    **dict.fromkeys(("autocontrast", "equalize"), ((0.0,), False)),
}
