"""Transforms of decoded images: evaluation preprocessing and training augmentation, uint8 in and out.

Images are (H, W, 3) uint8 arrays, before and after, and may be written to their place in a batch; every
random number comes from one generator. Values are mapped to [-1, 1] only on the device (`to_model_range`): a
batch is transferred at a quarter of its size.
"""

import math
import platform
import warnings
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitcli.data.augmentations.randaugment import randaugment
from vitcli.data.augmentations.random_erasing import erase
from vitcli.data.augmentations.trivialaugment import trivialaugment
from vitcli.data.decoding import Jpeg
from vitcli.distributed.transfer import constant
from vitcli.errors import WeightsError
from vitcli.recipe.schema import WEIGHTS, Data

CHOICES = {
    "resize": ("square", "short_side", "none"),
    "interpolation": ("bilinear", "bicubic"),
    "decode": ("exact", "fast"),
}
# Keys of [data] that may say "weights".
LEAST_CROP = 0.05  # of a side; with less the whole image would be resized to a size without end
MAY_SAY_WEIGHTS = ("image_size", "eval_resize", "eval_crop_fraction", "interpolation", "mean", "std")
RULES = 1  # to be raised when a `Preprocessing` gives other pixels: part of the key of cached ones
CROP_TRIES = 100  # of the Inception crop before it takes the whole image, as in the official code
# torch's resize by interpolation and antialias, called without the layers of Python around it, which take
# longer than a small image; it has fast kernels for uint8 on these processors.
RESIZE = {
    ("bilinear", False): torch._C._nn.upsample_bilinear2d,
    ("bilinear", True): torch._C._nn._upsample_bilinear2d_aa,
    ("bicubic", False): torch._C._nn.upsample_bicubic2d,
    ("bicubic", True): torch._C._nn._upsample_bicubic2d_aa,
}
CAPABILITY = torch.backends.cpu.get_cpu_capability()
IS_FAST_ON_BYTES = CAPABILITY in ("AVX2", "AVX512") or platform.machine() in ("aarch64", "arm64")

# Cached pixels are only read.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)


@dataclass(frozen=True)
class Preprocessing:
    """Preprocessing of evaluation and prediction, stored with the weights so that all see the same pixels.

    Attributes:
        image_size: height and width in pixels of the result.
        resize: "square" resizes the whole image to floor(image_size / crop_fraction), whatever its shape
            (the official fine-tuning code, without a crop), and crops the centre; "short_side" keeps the
            shape, resizes the short side to floor(image_size / crop_fraction) and crops the centre; "none"
            crops the centre of the image as it is.
        crop_fraction: the fraction of a side that the centre crop keeps; ignored for "none".
        interpolation: "bilinear" or "bicubic".
        antialias: whether downscaling averages over all source pixels; the paper's code does not.
        mean, std: per channel, of values in [0, 1]: (value - mean) / std.
        decoder: libraries that decoded the files.
        decode: "exact", or "fast" where the decoder shrinks large JPEGs.
    """

    image_size: tuple[int, int]
    resize: str
    crop_fraction: float
    interpolation: str
    antialias: bool
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    decoder: str = "libjpeg-turbo, Pillow"
    decode: str = "exact"

    def as_dict(self) -> dict:
        """Return values of JSON's types; what is decoded exactly is stored as before there was a choice."""
        values = asdict(self)
        if self.decode == "exact":
            del values["decode"]
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}

    def as_rules(self) -> dict:
        """Return `as_dict` with what other programs would have to derive: the size before the crop."""
        height, width = self.image_size
        top, left = f"round((height - {height}) / 2)", f"round((width - {width}) / 2)"
        crop = {"top": top, "left": left, "height": height, "width": width}
        return self.as_dict() | {"resize_to": self.resize_to, "crop": crop}

    @classmethod
    def from_dict(cls, stored: dict) -> "Preprocessing":
        """Return the inverse of `as_dict`; WeightsError for anything that it did not write."""
        kinds = {"image_size": list, "resize": str, "crop_fraction": float, "interpolation": str}
        kinds |= {"antialias": bool, "mean": list, "std": list, "decoder": str}
        kinds |= {"decode": str} if "decode" in stored else {}
        wrong = [key for key, kind in kinds.items() if type(stored.get(key)) is not kind]
        wrong += sorted(stored.keys() - kinds.keys())
        chosen = [key for key in CHOICES if key in kinds and key not in wrong]
        wrong += [key for key in chosen if stored[key] not in CHOICES[key]]
        wrong += [] if wrong else _impossible(stored)
        if wrong:
            values = ", ".join(f"{key} {str(stored.get(key, 'missing'))[:60]}" for key in wrong)
            raise WeightsError(
                f"this version cannot read the stored preprocessing ({values})",
                where="metadata of the weights",
                fix="update vit, or use numbers: --recipe evaluate/default; to train, --set KEY=VALUE for "
                "every key of [data] that says weights",
            )
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()}
        # Above 1, timm pads with black what the crop has more than the image
        return cls(**values | {"crop_fraction": min(stored["crop_fraction"], 1.0)})

    def summary(self) -> str:
        height, width = self.image_size
        whole = "x".join(map(str, self.whole_size))
        longer = " or more" if height != width else ""  # a wide crop may need it
        how = {
            "square": "whole image resized"
            + ("" if self.crop_fraction == 1 else f" to {whole}, centre crop"),
            "short_side": f"short side {self.short_side}{longer}, centre crop",
            "none": "centre crop",
        }[self.resize]
        interpolation = f"{self.interpolation}{' with antialias' if self.antialias else ''}"
        shrunk = ", large JPEGs shrunk as they are decoded" if self.decode == "fast" else ""
        return f"{height}x{width}, {how}, {interpolation}{shrunk}, {self.statistics}"

    @property
    def statistics(self) -> str:
        """Mean and std as text, each as one number where the channels are equal."""
        return f"mean {_per_channel(self.mean)}, std {_per_channel(self.std)}"

    @property
    def resolution(self) -> int | list[int]:
        """The image size as recipes write it: one number for a square, else height and width."""
        return self.image_size[0] if len(set(self.image_size)) == 1 else list(self.image_size)

    @property
    def geometry(self) -> tuple:
        """All that the pixels depend on; mean and std are applied on the device."""
        values = self.image_size, self.resize, self.crop_fraction, self.interpolation, self.antialias
        return values if self.decode == "exact" else (*values, self.decode)

    @property
    def short_side(self) -> int:
        """Pixels of the short side before the centre crop: 248 for 224 at a crop fraction of 0.9."""
        return math.floor(min(self.image_size) / self.crop_fraction + 1e-6)

    @property
    def resize_to(self) -> int | list[int] | None:
        """Pixels of the short side, or height and width, before the crop; None where nothing is resized."""
        return {"square": list(self.whole_size), "short_side": self.short_side, "none": None}[self.resize]

    @property
    def whole_size(self) -> tuple[int, int]:
        """Height and width of a "square" resize before the centre crop: 256 for 224 at 0.875."""
        height, width = (math.floor(side / self.crop_fraction + 1e-6) for side in self.image_size)
        return height, width

    def __call__(self, image: np.ndarray | Jpeg, out_HWC: np.ndarray | None = None) -> np.ndarray:
        """Resize and crop one image to (image_size, 3) uint8, written to `out_HWC` if there is one."""
        size = self.whole_size if self.resize == "square" else self._size_in_shape(*image.shape[:2])
        whole_HWC = _whole(image, size, self.decode)
        if size == self.image_size:
            return _resize(whole_HWC, size, self.interpolation, self.antialias, out_HWC)
        image_HWC = _resize(whole_HWC, size, self.interpolation, self.antialias)
        top, left = (round((side - crop) / 2) for side, crop in zip(size, self.image_size, strict=True))
        return _placed(_cut(image_HWC, top, left, *self.image_size), out_HWC)

    def _size_in_shape(self, *sides: int) -> tuple[int, int]:
        """Return height and width before the centre crop of an image that keeps its shape."""
        needed = max(crop / side for crop, side in zip(self.image_size, sides, strict=True))
        # "none" still enlarges an image smaller than the crop; a wide crop may need a longer short side.
        scale = max(needed, self.short_side / min(sides)) if self.resize == "short_side" else max(needed, 1.0)
        height, width = (
            max(crop, int(side * scale + 1e-6)) for crop, side in zip(self.image_size, sides, strict=True)
        )
        return height, width


def _impossible(stored: dict) -> list[str]:
    """Return the keys of a stored preprocessing whose numbers make no image."""
    numbers = {
        key: [value for value in stored[key] if type(value) in (int, float) and math.isfinite(value)]
        for key in ("image_size", "mean", "std")
    }
    fitting = {
        "image_size": len(numbers["image_size"]) == len(stored["image_size"]) == 2
        and all(type(side) is int and side > 0 for side in numbers["image_size"]),
        "crop_fraction": math.isfinite(stored["crop_fraction"]) and stored["crop_fraction"] >= LEAST_CROP,
        "mean": len(numbers["mean"]) == len(stored["mean"]) == 3,
        "std": len(numbers["std"]) == len(stored["std"]) == 3 and min(numbers["std"]) > 0,
    }
    return [key for key, fits in fitting.items() if not fits]


@dataclass(frozen=True)
class TrainTransform:
    """Augmentation of training images, drawn from a generator for each example.

    Attributes:
        image_size: height and width in pixels of the result.
        crop: "inception" takes a rectangle of random size and aspect and resizes it (the official code);
            "random" resizes the whole to `resize` squared and takes a random window (the paper, after BiT);
            "none" resizes the whole.
        crop_area: smallest and largest fraction of the image's area that an Inception crop takes.
        crop_aspect: smallest and largest width / height of an Inception crop.
        resize: side in pixels before the random window.
        flip: whether half of the images, at random, are mirrored.
        interpolation, antialias: as in `Preprocessing`.
        randaugment: layers and magnitude of `randaugment.randaugment`, or None.
        decode: as in `Preprocessing`.
        trivialaugment: whether one operation of `trivialaugment` is applied after crop and flip.
        distance_scale: of the pixels that it moves an image by.
        random_erasing: probability that a rectangle is painted over, which comes last.
        mean: its colour, per channel in [0, 1].
    """

    image_size: tuple[int, int]
    crop: str
    crop_area: tuple[float, float]
    crop_aspect: tuple[float, float]
    resize: int | None
    flip: bool
    interpolation: str
    antialias: bool
    randaugment: tuple[int, float] | None
    decode: str = "exact"
    trivialaugment: bool = False
    distance_scale: float = 1.0
    random_erasing: float = 0.0
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)

    def __call__(
        self, image: np.ndarray | Jpeg, rng: Random, out_HWC: np.ndarray | None = None
    ) -> np.ndarray:
        """Augment one image to (image_size, 3) uint8, written to `out_HWC` if there is one.

        Equal states of `rng` give equal pixels.
        """
        image_HWC = self._whole(image, rng, out_HWC)
        if not self.random_erasing:
            return image_HWC
        if out_HWC is None:
            image_HWC = image_HWC.copy()  # may be an image that is kept
        erase(image_HWC, probability=self.random_erasing, mean=self.mean, rng=rng)
        return image_HWC

    def _whole(self, image: np.ndarray | Jpeg, rng: Random, out_HWC: np.ndarray | None) -> np.ndarray:
        """Return the image before a part of it is erased."""
        # The crop is drawn before the pixels are decoded, and cut before they are resized.
        size = self.image_size
        if self.crop == "inception":
            window = inception_crop(*image.shape[:2], area=self.crop_area, aspect=self.crop_aspect, rng=rng)
            image_HWC = _cut_and_decode(image, window, size, self.decode)
        else:
            size = (self.resize, self.resize) if self.crop == "random" else size
            image_HWC = _whole(image, size, self.decode)
        window = None
        if self.crop == "random":
            window = (*(_draw(rng, 0, self.resize - side) for side in self.image_size), *self.image_size)
        is_flipped = self.flip and rng.random() < 0.5
        # What is resized last is written to its place at once.
        is_plain = self.randaugment is None and not self.trivialaugment
        is_done = window is None and not is_flipped and is_plain
        image_HWC = _resize(image_HWC, size, self.interpolation, self.antialias, out_HWC if is_done else None)
        if is_done:
            return image_HWC
        if window is not None:
            image_HWC = _cut(image_HWC, *window)
        if is_flipped:
            # Left and right: torch moves whole pixels, numpy three single bytes in ten times as long.
            image_HWC = torch.flip(_as_1CHW(image_HWC), (3,)).numpy()[0].transpose(1, 2, 0)
        if self.randaugment is not None:
            num_layers, magnitude = self.randaugment
            image_HWC = randaugment(image_HWC, num_layers=num_layers, magnitude=magnitude, rng=rng)
        if self.trivialaugment:
            image_HWC = trivialaugment(image_HWC, rng=rng, scale=self.distance_scale)
        return _placed(image_HWC, out_HWC)


def inception_crop(
    image_height: int,
    image_width: int,
    *,
    area: tuple[float, float],
    aspect: tuple[float, float],
    rng: Random,
) -> tuple[int, int, int, int]:
    """Draw top, left, height and width of a rectangle, distributed as in the official input pipeline.

    The aspect (width / height) is uniform, then the height is uniform between those of the smallest and the
    largest area, so small crops are rarer than under a uniform area (torchvision's RandomResizedCrop). After
    CROP_TRIES draws that do not fit, the whole image is taken.
    """
    smallest, largest = (fraction * image_height * image_width for fraction in area)
    for _ in range(CROP_TRIES):
        ratio = rng.uniform(*aspect)
        highest = min(
            round(math.sqrt(largest / ratio)), image_height, int((image_width + 0.5 - 1e-7) / ratio)
        )
        lowest = min(round(math.sqrt(smallest / ratio)), highest)
        height = _draw(rng, lowest, highest)
        # Rounding may just miss the allowed areas; one row more or less corrects it.
        height += (round(height * ratio) * height < smallest) - (round(height * ratio) * height > largest)
        width = round(height * ratio)
        fits = 0 < height <= image_height and 0 < width <= image_width
        if fits and smallest <= height * width <= largest:
            return _draw(rng, 0, image_height - height), _draw(rng, 0, image_width - width), height, width
    return 0, 0, image_height, image_width


def _draw(rng: Random, lowest: int, highest: int) -> int:
    """Return `rng.randint(lowest, highest)`, which takes five times as long."""
    count = highest - lowest + 1
    num_bits = count.bit_length()
    while (drawn := rng.getrandbits(num_bits)) >= count:
        pass
    return lowest + drawn


def to_model_range(images_BCHW: Tensor, *, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Normalise a uint8 batch to float32, (value / 255 - mean) / std; 0.5 and 0.5 give [-1, 1]."""
    mean_C, std_C = (constant(tuple(values), images_BCHW.device, scale=255) for values in (mean, std))
    # In place: the same bits as with a new tensor for each operation, at a third of the memory.
    values_BCHW = images_BCHW.to(torch.float32, copy=True)
    return values_BCHW.sub_(mean_C.view(-1, 1, 1)).div_(std_C.view(-1, 1, 1))


def _whole(image: np.ndarray | Jpeg, size: tuple[int, int], decode: str) -> np.ndarray:
    """Return the decoded image, which is to be resized to `size`."""
    if not isinstance(image, Jpeg):
        return image
    return image.decode(_least_width(image, image.shape[:2], size) if decode == "fast" else 0)


def _cut_and_decode(
    image: np.ndarray | Jpeg, window: tuple[int, int, int, int], size: tuple[int, int], decode: str
) -> np.ndarray:
    """Return a part of the image (top, left, height and width), which is to be resized to `size`."""
    if not isinstance(image, Jpeg):
        return _cut(image, *window)
    bottom, least_width = window[0] + window[2], 0
    if decode == "fast":
        least_width = _least_width(image, window[2:], size)
    rows_HWC = image.decode_rows(bottom, least_width)
    shrunk = rows_HWC.shape[1] / image.shape[1]
    top, left, height, width = (round(shrunk * pixels) for pixels in window)
    return _cut(rows_HWC, top, left, max(1, height), max(1, width))


def _least_width(image: Jpeg, sides: tuple[int, ...], size: tuple[int, int]) -> int:
    """Return how wide the image must be so that what had `sides` in it is not smaller than `size`."""
    return math.ceil(image.shape[1] * max(new / old for new, old in zip(size, sides, strict=True)))


def _cut(image_HWC: np.ndarray, top: int, left: int, height: int, width: int) -> np.ndarray:
    return image_HWC[top : top + height, left : left + width]


def _placed(image_HWC: np.ndarray, out_HWC: np.ndarray | None) -> np.ndarray:
    """Copy an image to its place, if it has one."""
    if out_HWC is None:
        return image_HWC
    np.copyto(out_HWC, image_HWC)
    return out_HWC


def _as_1CHW(image_HWC: np.ndarray) -> Tensor:
    """Return the same memory as a tensor; channels stay last in it, the layout of torch's fast resize."""
    return torch.from_numpy(image_HWC.transpose(2, 0, 1)[None])  # views of numpy cost less than torch's


def _resize(
    image_HWC: np.ndarray,
    size: tuple[int, int],
    interpolation: str,
    antialias: bool,
    out_HWC: np.ndarray | None = None,
) -> np.ndarray:
    """Resize to `size`, the same pixels as torchvision's `resize_image`, into `out_HWC` if there is one."""
    if image_HWC.shape[:2] == size:
        return _placed(image_HWC, out_HWC)
    resize, image_1CHW = RESIZE[interpolation, antialias], _as_1CHW(image_HWC)
    if interpolation == "bilinear" and not IS_FAST_ON_BYTES:
        resized_1CHW = resize(image_1CHW.float(), size, False, None, None).round_().to(torch.uint8)
        return _placed(resized_1CHW[0].permute(1, 2, 0).numpy(), out_HWC)
    if out_HWC is None:
        out_HWC = np.empty((*size, 3), dtype=np.uint8)
    resize(image_1CHW, size, False, None, None, out=_as_1CHW(out_HWC))
    return out_HWC


def _per_channel(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.4g}" for value in (values[:1] if len(set(values)) == 1 else values))


def as_data_keys(preprocessing: Preprocessing) -> dict[str, Any]:
    """Return a preprocessing as the keys of [data] that `preprocessing_of` reads."""
    is_cropped = preprocessing.resize == "short_side" or (
        preprocessing.resize == "square" and preprocessing.crop_fraction != 1
    )
    height, width = preprocessing.image_size
    return {
        "image_size": height if height == width else (height, width),
        "eval_resize": preprocessing.resize,
        "eval_crop_fraction": preprocessing.crop_fraction if is_cropped else None,
        "interpolation": preprocessing.interpolation,
        "antialias": preprocessing.antialias,
        "mean": preprocessing.mean,
        "std": preprocessing.std,
        "decode": preprocessing.decode,
    }


def keys_of_weights(data: Data) -> list[str]:
    """Return the keys of [data] that say "weights"."""
    return [key for key in MAY_SAY_WEIGHTS if getattr(data, key) == WEIGHTS]


def with_stated(data: Data, stated: Preprocessing) -> Data:
    """Return the [data] section with the stated values where it says "weights".

    Images that need no resize are those of one data set. For any other, their whole short side is kept, which
    changes nothing for the images that the weights know.
    """
    if stated.resize == "none":
        stated = replace(stated, resize="short_side", crop_fraction=1.0)
    values = {key: as_data_keys(stated)[key] for key in keys_of_weights(data)}
    resize = values.get("eval_resize", data.eval_resize)
    if resize == "short_side" and values.get("eval_crop_fraction", data.eval_crop_fraction) is None:
        values["eval_crop_fraction"] = stated.crop_fraction
    if resize == "none":
        values["eval_crop_fraction"] = None
    return Data.model_validate({**data.model_dump(), **values})


def preprocessing_of(data: Data) -> Preprocessing:
    """Return the evaluation transform that a recipe's [data] section describes, all of it in numbers."""
    assert not keys_of_weights(data), "replaced by numbers before a run starts"
    return Preprocessing(
        image_size=data.image_hw,
        resize=data.eval_resize,
        crop_fraction=data.eval_crop_fraction or 1.0,
        interpolation=data.interpolation,
        antialias=data.antialias,
        mean=tuple(data.mean),
        std=tuple(data.std),
        decode=data.decode,
    )


def train_transform_of(data: Data) -> TrainTransform:
    """Return the training augmentation that a recipe's [data] section describes."""
    return TrainTransform(
        image_size=data.image_hw,
        crop=data.train_crop,
        crop_area=data.crop_area,
        crop_aspect=data.crop_aspect,
        resize=data.resize,
        flip=data.flip,
        interpolation=data.interpolation,
        antialias=data.antialias,
        randaugment=data.randaugment,
        decode=data.decode,
        trivialaugment=data.trivialaugment,
        random_erasing=data.random_erasing,
        mean=tuple(data.mean),
    )
