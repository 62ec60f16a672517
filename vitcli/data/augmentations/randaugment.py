"""RandAugment (arXiv 1909.13719), bit for bit as `randaug(num_layers, magnitude)` of big_vision.

Pixels are computed in float32 and truncated, not rounded, in the order in which TensorFlow computes them, so
that they equal TensorFlow's (2.15 without oneDNN, whose sharpness rounds differently). Its accidents belong
to the published results and are kept; each is named where it happens.

H x W pixels, C = 3 channels.
"""

import math
from collections.abc import Callable
from random import Random

import numpy as np
from PIL import Image, ImageOps

GREY = 128  # outside a moved image, and where a square is cut out
LUMA = (0.2989, 0.5870, 0.1140)  # TensorFlow's; Pillow's are 0.299, 0.587 and 0.114
f32 = np.float32
JUST_BELOW_HALF = f32(0.49999997)  # to round as C does; 0.5 would turn 0.49999997 into 1


def randaugment(image_HWC: np.ndarray, *, num_layers: int, magnitude: float, rng: Random) -> np.ndarray:
    """Apply `num_layers` operations, each drawn from all sixteen with equal probability.

    Args:
        image_HWC: uint8, RGB; not modified, but returned itself where nothing is done.
        num_layers: operations one after the other; one may be drawn again.
        magnitude: strength of all operations; 10 is the end of AutoAugment's scale, 0 is not the identity.
    """
    image_HWC = np.ascontiguousarray(image_HWC)
    for _ in range(num_layers):
        image_HWC = operate(rng.choice(NAMES), image_HWC, magnitude=magnitude, rng=rng)
    return image_HWC


def operate(name: str, image_HWC: np.ndarray, *, magnitude: float, rng: Random) -> np.ndarray:
    """Apply one of OPERATIONS; geometric ones go either way with equal probability."""
    return OPERATIONS[name](image_HWC, magnitude / 10, rng)


def _either_way(amount: float, rng: Random) -> float:
    return amount if rng.random() < 0.5 else -amount


def autocontrast(image_HWC: np.ndarray) -> np.ndarray:
    """Stretch each channel to 0..255, its brightest value to 254 or 255; a constant one is unchanged."""
    height, width, _ = image_HWC.shape
    rows = image_HWC.reshape(height, -1)  # numpy reduces and broadcasts long rows much faster than pixels
    low_C = rows.min(axis=0).reshape(width, -1).min(axis=0).astype(f32)
    high_C = rows.max(axis=0).reshape(width, -1).max(axis=0).astype(f32)
    is_flat_C = high_C == low_C
    scale_C = f32(255) / np.where(is_flat_C, f32(255), high_C - low_C)
    offset_C = np.where(is_flat_C, f32(0), -low_C * scale_C)
    stretched = rows * np.tile(scale_C, width)
    stretched += np.tile(offset_C, width)
    return _truncate(stretched).reshape(image_HWC.shape)


def equalize(image_HWC: np.ndarray) -> np.ndarray:
    """Equalize the histogram of each channel; Pillow's result is TensorFlow's."""
    return np.array(ImageOps.equalize(Image.fromarray(image_HWC)))


def invert(image_HWC: np.ndarray) -> np.ndarray:
    return 255 - image_HWC


def posterize(image_HWC: np.ndarray, bits: int) -> np.ndarray:
    """Keep the highest `bits` bits of each value; with 0 and with more than 8 only the highest one.

    TensorFlow shifts by 8 - bits as uint8, which for 9 bits is 255, and by 7 at most.
    """
    shift = min((8 - bits) % 256, 7)
    return image_HWC & np.uint8(255 << shift & 255)


def solarize(image_HWC: np.ndarray, threshold: int) -> np.ndarray:
    """Invert values at the threshold and above.

    TensorFlow compares with it as uint8, so 256, which is magnitude 10, is 0 and inverts the whole image.
    """
    is_above = image_HWC >= np.uint8(threshold % 256)
    return image_HWC ^ (is_above * np.uint8(255))


def solarize_add(image_HWC: np.ndarray, addition: int) -> np.ndarray:
    """Brighten values below 128 by `addition` >= 0, up to 255."""
    addition = min(addition, 255)
    added_HWC = np.minimum(image_HWC, np.uint8(255 - addition)) + np.uint8(addition)
    is_dark = image_HWC < 128
    return image_HWC ^ ((image_HWC ^ added_HWC) & (is_dark * np.uint8(255)))


def color(image_HWC: np.ndarray, factor: float) -> np.ndarray:
    """Move away from the grey image, or towards it for a factor below 1."""
    red_HW, green_HW, blue_HW = np.moveaxis(image_HWC * f32(1 / 255), -1, 0)
    grey_HW = red_HW * f32(LUMA[0]) + green_HW * f32(LUMA[1]) + blue_HW * f32(LUMA[2])
    grey_HW = np.floor(grey_HW * f32(255.5))
    return _blend(np.stack([grey_HW] * 3, axis=-1), image_HWC, factor)


def contrast(image_HWC: np.ndarray, factor: float) -> np.ndarray:
    """Move away from a grey level, or towards it for a factor below 1.

    The level is not the mean, as in Pillow, but a 256th of the number of pixels and 255 at most: the
    authors' code sums the counts of the histogram without their values.
    """
    height, width, _ = image_HWC.shape
    return _blend(f32(min(height * width // 256, 255)), image_HWC, factor)


def brightness(image_HWC: np.ndarray, factor: float) -> np.ndarray:
    """Move away from black, or towards it for a factor below 1."""
    return _blend(f32(0), image_HWC, factor)


def sharpness(image_HWC: np.ndarray, factor: float) -> np.ndarray:
    """Move away from the smoothed image, or towards it for a factor below 1; the border is unchanged."""
    height, width, channels = image_HWC.shape
    if height < 3 or width < 3:
        return image_HWC
    # Nine shifts of one long row are much faster than of rows; they wrap around at the border alone.
    values, row, border = image_HWC.ravel(), width * channels, (width + 1) * channels
    outer, centre = values * (f32(1) / f32(13)), values * (f32(5) / f32(13))
    smooth = np.zeros(values.size - 2 * border, dtype=f32)
    for start in (down + right for down in (0, row, 2 * row) for right in (0, channels, 2 * channels)):
        smooth += (centre if start == border else outer)[start : start + smooth.size]
    sharp = values.copy()
    sharp[border:-border] = _blend(np.floor(smooth), values[border:-border], factor)
    sharp_HWC = sharp.reshape(image_HWC.shape)
    sharp_HWC[:, [0, -1]] = image_HWC[:, [0, -1]]
    return sharp_HWC


def rotate(image_HWC: np.ndarray, degrees: float) -> np.ndarray:
    """Rotate counterclockwise about the centre; the uncovered corners are grey."""
    x_W, y_H1 = _axes(image_HWC)
    right, bottom = x_W[-1], y_H1[-1, 0]
    radians = f32(degrees) * f32(math.pi / 180)
    cos, sin = f32(math.cos(radians)), f32(math.sin(radians))  # those of numpy differ between processors
    x_offset = (right - (cos * right - sin * bottom)) / f32(2)
    y_offset = (bottom - (sin * right + cos * bottom)) / f32(2)
    return _gather(image_HWC, cos * x_W - sin * y_H1 + x_offset, sin * x_W + cos * y_H1 + y_offset)


def shear_x(image_HWC: np.ndarray, level: float) -> np.ndarray:
    """Move each row to the left by `level` times its distance from the top."""
    x_W, y_H1 = _axes(image_HWC)
    return _gather(image_HWC, x_W + f32(level) * y_H1, y_H1)


def shear_y(image_HWC: np.ndarray, level: float) -> np.ndarray:
    """Move each column up by `level` times its distance from the left."""
    x_W, y_H1 = _axes(image_HWC)
    return _gather(image_HWC, x_W, f32(level) * x_W + y_H1)


def translate(image_HWC: np.ndarray, pixels: float, *, axis: int) -> np.ndarray:
    """Move the image to the left (axis 1) or up (axis 0); the uncovered part is grey."""
    length = image_HWC.shape[axis]
    source, is_inside = _nearest(np.arange(length, dtype=f32) + f32(pixels), length)
    moved_HWC = image_HWC.take(source, axis=axis, mode="clip")
    np.moveaxis(moved_HWC, axis, 0)[~is_inside] = GREY
    return moved_HWC


def cutout(image_HWC: np.ndarray, half_side: int, rng: Random) -> np.ndarray:
    """Paint a grey square of twice `half_side` with its centre anywhere, clipped at the edges."""
    y, x = (rng.randrange(side) for side in image_HWC.shape[:2])
    cut_HWC = image_HWC.copy()
    cut_HWC[max(0, y - half_side) : y + half_side, max(0, x - half_side) : x + half_side] = GREY
    return cut_HWC


def _blend(start: np.ndarray | np.float32, image_HWC: np.ndarray, factor: float) -> np.ndarray:
    """Interpolate from `start` (factor 0: an image or one level) to the image (1) or beyond it."""
    if factor == 1:
        return image_HWC
    blended_HWC = image_HWC - start
    blended_HWC *= f32(factor)
    blended_HWC += start
    return _truncate(blended_HWC)


def _truncate(values: np.ndarray) -> np.ndarray:
    """Clip values to 0..255 and round them down, in place."""
    return np.clip(values, 0, 255, out=values).astype(np.uint8)


def _axes(image_HWC: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    height, width, _ = image_HWC.shape
    return np.arange(width, dtype=f32), np.arange(height, dtype=f32)[:, None]


def _gather(image_HWC: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the pixels nearest to the points (x, y), which broadcast to (H, W); grey outside the image."""
    height, width, _ = image_HWC.shape
    column, has_column = _nearest(x, width)
    row, has_row = _nearest(y, height)
    index_HW = np.where(has_column & has_row, row * width + column, height * width)
    pixels = np.append(image_HWC, np.full(3, GREY, dtype=np.uint8)).view("V3")
    return pixels.take(index_HW).view(np.uint8).reshape(image_HWC.shape)


def _nearest(points: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of the pixel nearest to each point on an axis, and whether there is one.

    Halves are rounded away from zero, so half a pixel before the first one there is none.
    """
    is_inside = (points > -0.5) & (points < length - 0.5)
    return (points + JUST_BELOW_HALF).astype(np.intp), is_inside


# By name: (image_HWC, a tenth of the magnitude, rng) to the image; the draws depend on the order.
OPERATIONS: dict[str, Callable[[np.ndarray, float, Random], np.ndarray]] = {
    "autocontrast": lambda x, s, rng: autocontrast(x),
    "equalize": lambda x, s, rng: equalize(x),
    "invert": lambda x, s, rng: invert(x),
    "rotate": lambda x, s, rng: rotate(x, _either_way(s * 30, rng)),
    "posterize": lambda x, s, rng: posterize(x, int(s * 4)),
    "solarize": lambda x, s, rng: solarize(x, int(s * 256)),
    "color": lambda x, s, rng: color(x, s * 1.8 + 0.1),
    "contrast": lambda x, s, rng: contrast(x, s * 1.8 + 0.1),
    "brightness": lambda x, s, rng: brightness(x, s * 1.8 + 0.1),
    "sharpness": lambda x, s, rng: sharpness(x, s * 1.8 + 0.1),
    "shear_x": lambda x, s, rng: shear_x(x, _either_way(s * 0.3, rng)),
    "shear_y": lambda x, s, rng: shear_y(x, _either_way(s * 0.3, rng)),
    "translate_x": lambda x, s, rng: translate(x, _either_way(s * 100, rng), axis=1),
    "translate_y": lambda x, s, rng: translate(x, _either_way(s * 100, rng), axis=0),
    "cutout": lambda x, s, rng: cutout(x, int(s * 40), rng),
    "solarize_add": lambda x, s, rng: solarize_add(x, int(s * 110)),
}
NAMES = tuple(OPERATIONS)
