"""RandAugment (arXiv 1909.13719) as big_vision's `randaug(num_layers, magnitude)` has it, bit for bit.

Pixels are computed in float32 and cut off, not rounded, in the order in which TensorFlow computes them, so
that they are TensorFlow's (2.15, without oneDNN, whose sharpness rounds otherwise). Its accidents belong to
the published results and are kept; each is named where it happens.

H x W pixels, C = 3 channels.
"""

import math
from random import Random

import numpy as np
from PIL import Image, ImageOps

# Each as likely as any other.
OPERATIONS = (
    "autocontrast", "equalize", "invert", "rotate", "posterize", "solarize", "color", "contrast",
    "brightness", "sharpness", "shear_x", "shear_y", "translate_x", "translate_y", "cutout", "solarize_add",
)  # fmt: skip
GREY = 128  # where a moved picture has nothing, and where one is cut out
LUMA = (0.2989, 0.5870, 0.1140)  # TensorFlow's; Pillow's are 0.299, 0.587 and 0.114
f32 = np.float32
JUST_BELOW_HALF = f32(0.49999997)  # added and cut off it rounds as C does; 0.5 would make 1 of 0.49999997


def randaugment(image_HWC: np.ndarray, *, num_layers: int, magnitude: float, rng: Random) -> np.ndarray:
    """A picture after `num_layers` operations, each drawn from all sixteen and always applied.

    Args:
        image_HWC: uint8, RGB; not changed, but returned itself where nothing is done.
        num_layers: operations one after the other; one may be drawn again.
        magnitude: the strength of all, 10 being the end of AutoAugment's scale; 0 is not the identity.
        rng: every random number comes from it.
    """
    image_HWC = np.ascontiguousarray(image_HWC)
    for _ in range(num_layers):
        image_HWC = operate(rng.choice(OPERATIONS), image_HWC, magnitude=magnitude, rng=rng)
    return image_HWC


def operate(name: str, image_HWC: np.ndarray, *, magnitude: float, rng: Random) -> np.ndarray:
    """One of OPERATIONS at a magnitude; what moves the picture does so either way with equal chance."""
    scale = magnitude / 10
    factor = scale * 1.8 + 0.1
    match name:
        case "autocontrast":
            return autocontrast(image_HWC)
        case "equalize":
            return equalize(image_HWC)
        case "invert":
            return invert(image_HWC)
        case "posterize":
            return posterize(image_HWC, int(scale * 4))
        case "solarize":
            return solarize(image_HWC, int(scale * 256))
        case "solarize_add":
            return solarize_add(image_HWC, int(scale * 110))
        case "color":
            return color(image_HWC, factor)
        case "contrast":
            return contrast(image_HWC, factor)
        case "brightness":
            return brightness(image_HWC, factor)
        case "sharpness":
            return sharpness(image_HWC, factor)
        case "rotate":
            return rotate(image_HWC, _either_way(scale * 30, rng))
        case "shear_x":
            return shear_x(image_HWC, _either_way(scale * 0.3, rng))
        case "shear_y":
            return shear_y(image_HWC, _either_way(scale * 0.3, rng))
        case "translate_x":
            return translate(image_HWC, _either_way(scale * 100, rng), axis=1)
        case "translate_y":
            return translate(image_HWC, _either_way(scale * 100, rng), axis=0)
        case "cutout":
            return cutout(image_HWC, int(scale * 40), rng)
    raise AssertionError(f"no operation {name}")


def _either_way(amount: float, rng: Random) -> float:
    return amount if rng.random() < 0.5 else -amount


def autocontrast(image_HWC: np.ndarray) -> np.ndarray:
    """Each channel stretched to 0..255, its brightest value to 254 or 255; a flat one stays."""
    height, width, _ = image_HWC.shape
    rows = image_HWC.reshape(height, -1)  # numpy reduces and broadcasts long rows much faster than pixels
    low_C = rows.min(axis=0).reshape(width, -1).min(axis=0).astype(f32)
    high_C = rows.max(axis=0).reshape(width, -1).max(axis=0).astype(f32)
    is_flat_C = high_C == low_C
    scale_C = f32(255) / np.where(is_flat_C, f32(255), high_C - low_C)
    offset_C = np.where(is_flat_C, f32(0), -low_C * scale_C)
    stretched = rows * np.tile(scale_C, width)
    stretched += np.tile(offset_C, width)
    return _cut_off(stretched).reshape(image_HWC.shape)


def equalize(image_HWC: np.ndarray) -> np.ndarray:
    """Each channel with a histogram as flat as a table of levels can make it; Pillow's, which is the same."""
    return np.array(ImageOps.equalize(Image.fromarray(image_HWC)))


def invert(image_HWC: np.ndarray) -> np.ndarray:
    return 255 - image_HWC


def posterize(image_HWC: np.ndarray, bits: int) -> np.ndarray:
    """Only the highest `bits` bits of each value; with 0 and with more than 8 only the highest one.

    TensorFlow shifts by 8 - bits as uint8, which for 9 bits is 255, and by 7 at most.
    """
    shift = min((8 - bits) % 256, 7)
    return image_HWC & np.uint8(255 << shift & 255)


def solarize(image_HWC: np.ndarray, threshold: int) -> np.ndarray:
    """Values at the threshold and above inverted.

    TensorFlow compares with it as uint8, so 256, which is magnitude 10, is 0 and inverts the whole picture.
    """
    is_above = image_HWC >= np.uint8(threshold % 256)
    return image_HWC ^ (is_above * np.uint8(255))


def solarize_add(image_HWC: np.ndarray, addition: int) -> np.ndarray:
    """Values below 128 brighter by `addition` >= 0, up to 255."""
    addition = min(addition, 255)
    added_HWC = np.minimum(image_HWC, np.uint8(255 - addition)) + np.uint8(addition)
    is_dark = image_HWC < 128
    return image_HWC ^ ((image_HWC ^ added_HWC) & (is_dark * np.uint8(255)))


def color(image_HWC: np.ndarray, factor: float) -> np.ndarray:
    """Away from the grey picture, or towards it below 1."""
    red_HW, green_HW, blue_HW = np.moveaxis(image_HWC * f32(1 / 255), -1, 0)
    grey_HW = red_HW * f32(LUMA[0]) + green_HW * f32(LUMA[1]) + blue_HW * f32(LUMA[2])
    grey_HW = np.floor(grey_HW * f32(255.5))
    return _blend(np.stack([grey_HW] * 3, axis=-1), image_HWC, factor)


def contrast(image_HWC: np.ndarray, factor: float) -> np.ndarray:
    """Away from a level, or towards it below 1.

    The level is not the mean, as in Pillow, but a 256th of the number of pixels and 255 at most: the
    authors' code adds up the histogram's counts without their values.
    """
    height, width, _ = image_HWC.shape
    return _blend(f32(min(height * width // 256, 255)), image_HWC, factor)


def brightness(image_HWC: np.ndarray, factor: float) -> np.ndarray:
    """Away from black, or towards it below 1."""
    return _blend(f32(0), image_HWC, factor)


def sharpness(image_HWC: np.ndarray, factor: float) -> np.ndarray:
    """Away from the smoothed picture, or towards it below 1; pixels of the border stay as they are."""
    height, width, channels = image_HWC.shape
    if height < 3 or width < 3:
        return image_HWC
    # Nine shifts of one long row are much faster than of rows; what they wrap around is the border's.
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
    """Turned counterclockwise about the centre, grey where it shows nothing."""
    x_W, y_H1 = _axes(image_HWC)
    right, bottom = x_W[-1], y_H1[-1, 0]
    radians = f32(degrees) * f32(math.pi / 180)
    cos, sin = f32(math.cos(radians)), f32(math.sin(radians))  # numpy's differ from one processor to another
    x_offset = (right - (cos * right - sin * bottom)) / f32(2)
    y_offset = (bottom - (sin * right + cos * bottom)) / f32(2)
    return _gather(image_HWC, cos * x_W - sin * y_H1 + x_offset, sin * x_W + cos * y_H1 + y_offset)


def shear_x(image_HWC: np.ndarray, level: float) -> np.ndarray:
    """Each row moved to the left by `level` of its distance from the top."""
    x_W, y_H1 = _axes(image_HWC)
    return _gather(image_HWC, x_W + f32(level) * y_H1, y_H1)


def shear_y(image_HWC: np.ndarray, level: float) -> np.ndarray:
    """Each column moved up by `level` of its distance from the left."""
    x_W, y_H1 = _axes(image_HWC)
    return _gather(image_HWC, x_W, f32(level) * x_W + y_H1)


def translate(image_HWC: np.ndarray, pixels: float, *, axis: int) -> np.ndarray:
    """Moved to the left (axis 1) or up (axis 0), grey where it shows nothing."""
    length = image_HWC.shape[axis]
    source, is_inside = _nearest(np.arange(length, dtype=f32) + f32(pixels), length)
    moved_HWC = image_HWC.take(source, axis=axis, mode="clip")
    np.moveaxis(moved_HWC, axis, 0)[~is_inside] = GREY
    return moved_HWC


def cutout(image_HWC: np.ndarray, half_side: int, rng: Random) -> np.ndarray:
    """A grey square of twice `half_side` whose centre is anywhere in the picture, cut off at its edges."""
    y, x = (rng.randrange(side) for side in image_HWC.shape[:2])
    cut_HWC = image_HWC.copy()
    cut_HWC[max(0, y - half_side) : y + half_side, max(0, x - half_side) : x + half_side] = GREY
    return cut_HWC


def _blend(start: np.ndarray | np.float32, image_HWC: np.ndarray, factor: float) -> np.ndarray:
    """From `start` (factor 0) to the picture (1) or beyond it, in whole levels of float32 or one level."""
    if factor == 1:
        return image_HWC
    blended_HWC = image_HWC - start
    blended_HWC *= f32(factor)
    blended_HWC += start
    return _cut_off(blended_HWC)


def _cut_off(values: np.ndarray) -> np.ndarray:
    """Whole levels below the values, which are overwritten."""
    return np.clip(values, 0, 255, out=values).astype(np.uint8)


def _axes(image_HWC: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    height, width, _ = image_HWC.shape
    return np.arange(width, dtype=f32), np.arange(height, dtype=f32)[:, None]


def _gather(image_HWC: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The pixels nearest to the places (x, y), which broadcast to (H, W); grey outside the picture."""
    height, width, _ = image_HWC.shape
    column, has_column = _nearest(x, width)
    row, has_row = _nearest(y, height)
    place_HW = np.where(has_column & has_row, row * width + column, height * width)
    pixels = np.append(image_HWC, np.full(3, GREY, dtype=np.uint8)).view("V3")
    return pixels.take(place_HW).view(np.uint8).reshape(image_HWC.shape)


def _nearest(places: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Index of the pixel nearest to each place on an axis of this length, and whether there is one.

    Halves go away from zero, so half a pixel before the first there is none.
    """
    is_inside = (places > -0.5) & (places < length - 0.5)
    return (places + JUST_BELOW_HALF).astype(np.intp), is_inside
