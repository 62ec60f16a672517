"""The demo data: images of textured shapes drawn from a seed, so that every command runs without a network.

A class is a texture and a shape: "striped ring". Of the 36 pairs of six textures and six shapes, 12 are the
set `demo`, for transfer, and the other 24 are `demo:pretrain`. Every texture and every shape is in both sets,
no pair is: pre-training teaches the parts of the classes of `demo`, but never shows one of them.
Colours, position, size, angle and background are independent of the class; mirroring does not change it.

The bytes are the same on every machine: all arithmetic on pixels is on integers, and every draw is one of
`random()`, which Python promises not to change (unlike `randint`), or of `randbytes()`.
Letters: H, W rows and columns of the image or of a box in it, C channels; h, w the same in samples.
"""

import math
from dataclasses import dataclass
from random import Random

import numpy as np

from vitcli.data.sampler import derive_seed

SEED = 201011929  # the paper's number at arXiv
IMAGE_SIZE = 64
FINE = 2  # samples per pixel and axis, averaged for smooth edges
UNIT = 16  # coordinates inside a shape are in sixteenths of a sample
PERIOD = 256  # of a texture in its own coordinates; a power of two, so that wrapping is a mask

TEXTURES = ("plain", "striped", "dotted", "checked", "wavy", "netted")
SHAPES = ("ring", "star", "cross", "triangle", "heart", "moon")


@dataclass(frozen=True)
class DemoSet:
    """Class names in the order of their labels, and the number of rows of each split.

    The rows are a multiple of the number of classes.
    """

    class_names: tuple[str, ...]
    num_rows: dict[str, int]


def _pairs(*, held_out: bool) -> tuple[str, ...]:
    """Return the pairs held out for `demo`, two of each texture and of each shape, or all the others."""
    return tuple(
        f"{texture} {shape}"
        for column, shape in enumerate(SHAPES)
        for line, texture in enumerate(TEXTURES)
        if ((line - column) % len(TEXTURES) in (1, 3)) == held_out
    )


SETS = {
    "demo": DemoSet(_pairs(held_out=True), {"train": 720, "test": 600}),
    "demo:pretrain": DemoSet(_pairs(held_out=False), {"train": 48_000, "test": 1_200}),
}


def draw(demo_set: str, split: str, row: int) -> tuple[np.ndarray, int]:
    """Draw one image, a pure function of the arguments.

    Args:
        demo_set: a key of SETS.
        split: "train" or "test"; they share no seed.
        row: 0 ... num_rows - 1. Classes alternate, so a slice of whole rounds is balanced too.

    Returns:
        The image, (64, 64, 3) uint8 RGB, and its label.
    """
    assert 0 <= row < SETS[demo_set].num_rows[split], (demo_set, split, row)
    names = SETS[demo_set].class_names
    label = row % len(names)
    texture, shape = names[label].split()
    rng = Random(derive_seed(SEED, f"{demo_set}/{split}", row))

    paper_C, first_ink_C, second_ink_C = _colours(rng)
    image_HWC = _background(rng, paper_C)
    _draw_clutter(rng, image_HWC)
    _draw_shape(rng, image_HWC, shape, texture, first_ink_C, second_ink_C)
    return _with_noise(rng, image_HWC), label


def _between(rng: Random, low: int, high: int) -> int:
    """Draw an integer from low to high, both included."""
    return low + int(rng.random() * (high - low + 1))


def _colours(rng: Random) -> list[np.ndarray]:
    """Draw a light paper and two inks of any hue, one dark and one medium in any order, (3,) int16."""
    lumas = [_between(rng, 30, 60), _between(rng, 130, 160)]
    first = _between(rng, 0, 1)
    return [_colour(rng, luma) for luma in (_between(rng, 210, 240), lumas[first], lumas[1 - first])]


def _colour(rng: Random, luma: int) -> np.ndarray:
    """Draw a random hue at about the given luma, (3,) int16."""
    sector, mix, strength = _between(rng, 0, 2), _between(rng, 0, 255), _between(rng, 50, 130)
    pure = [255 - mix, mix, 0]
    pure = pure[sector:] + pure[:sector]
    grey = (2 * pure[0] + 5 * pure[1] + pure[2]) // 8
    values = [luma + (value - grey) * strength // 256 for value in pure]
    return np.array([min(255, max(0, value)) for value in values], dtype=np.int16)


def _background(rng: Random, paper_C: np.ndarray) -> np.ndarray:
    """Draw a gradient between two shades of the paper's colour, (64, 64, 3) int16."""
    line = np.arange(IMAGE_SIZE, dtype=np.int16) - IMAGE_SIZE // 2
    slope_HW = _between(rng, -12, 12) * line[:, None] + _between(rng, -12, 12) * line
    tint_C = np.array([_between(rng, 4, 16) for _ in range(3)], dtype=np.int16)
    return paper_C + ((slope_HW >> 4)[..., None] * tint_C >> 4)


def _draw_clutter(rng: Random, image_HWC: np.ndarray) -> None:
    """Draw one or two small plain discs, squares or bars anywhere."""
    for _ in range(_between(rng, 1, 2)):
        size = _between(rng, 3, 5)
        box, u_hw, v_hw = _frame(rng, radius=size, margin=2, swing=0.5)
        reach = UNIT * FINE * size
        match _between(rng, 0, 2):
            case 0:
                inside_hw = u_hw * u_hw + v_hw * v_hw < reach * reach * 2 // 3
            case 1:
                inside_hw = np.maximum(abs(u_hw), abs(v_hw)) < reach * 2 // 3
            case _:
                inside_hw = abs(v_hw) < reach // 3
        _paint(image_HWC, box, inside_hw, _colour(rng, _between(rng, 60, 200)))


def _draw_shape(
    rng: Random,
    image_HWC: np.ndarray,
    shape: str,
    texture: str,
    first_ink_C: np.ndarray,
    second_ink_C: np.ndarray,
) -> None:
    """Draw the shape, filled with the texture in two inks, at a random position, size and angle."""
    radius = (
        _between(rng, 20, 24) * (6 if shape in ("star", "triangle") else 5) // 5
    )  # for about the same area
    box, u_hw, v_hw = _frame(rng, radius=radius, margin=28, swing=0.05)
    inside_hw = _inside(shape, u_hw, v_hw, UNIT * FINE * radius)
    _paint(image_HWC, box, inside_hw, first_ink_C)
    zoom = 256 * PERIOD // (UNIT * _between(rng, 11, 15))
    s_hw, t_hw = _rotated(u_hw, v_hw, _angle(rng, 0.05), zoom)
    pattern_hw = _pattern(texture, s_hw + _between(rng, 0, 511), t_hw)
    _paint(image_HWC, box, inside_hw & pattern_hw, second_ink_C)


def _frame(
    rng: Random, *, radius: int, margin: int, swing: float
) -> tuple[tuple[slice, slice], np.ndarray, np.ndarray]:
    """Draw a position for a figure of `radius` pixels, its centre at least `margin` from the image's edges.

    It is rotated to either side by up to `swing`, a fraction of a full circle.

    Returns:
        The box of pixels it can touch, as two slices, and the coordinates u, v of each of the box's samples
        in the figure's own upright frame, (h, w) int32 each.
    """
    reach = FINE * radius
    slices, lines = [], []
    for _ in "yx":
        centre = _between(rng, FINE * margin, FINE * (IMAGE_SIZE - margin))
        low, high = max(0, (centre - reach) // FINE), min(IMAGE_SIZE, (centre + reach) // FINE + 1)
        slices.append(slice(low, high))
        lines.append(UNIT * (np.arange(FINE * low, FINE * high, dtype=np.int32) - centre))
    u_hw, v_hw = _rotated(lines[1][None, :], lines[0][:, None], _angle(rng, swing))
    return (slices[0], slices[1]), u_hw, v_hw


def _angle(rng: Random, swing: float) -> float:
    """Draw an angle from -swing to swing, in fractions of a full circle."""
    return swing * (2 * rng.random() - 1)


def _rotated(
    u_hw: np.ndarray, v_hw: np.ndarray, turn: float, zoom: int = 256
) -> tuple[np.ndarray, np.ndarray]:
    """Rotate coordinates by a fraction of a full circle and scale them; a zoom of 256 keeps their size."""
    cos, sin = round(zoom * math.cos(math.tau * turn)), round(zoom * math.sin(math.tau * turn))
    return (cos * u_hw + sin * v_hw) >> 8, (cos * v_hw - sin * u_hw) >> 8


def _paint(image_HWC: np.ndarray, box: tuple[slice, slice], mask_hw: np.ndarray, ink_C: np.ndarray) -> None:
    """Paint where the mask is set, in quarters: a pixel has FINE * FINE samples."""
    bits_hw = mask_hw.view(np.uint8)
    rows_Hw = bits_hw[0::2] + bits_hw[1::2]
    cover_HW1 = (rows_Hw[:, 0::2] + rows_Hw[:, 1::2]).astype(np.int16)[..., None]
    box_HWC = image_HWC[box]
    box_HWC += (ink_C - box_HWC) * cover_HW1 >> 2


def _inside(shape: str, u_hw: np.ndarray, v_hw: np.ndarray, radius: int) -> np.ndarray:
    """Return the samples inside the shape, (h, w) bool; it fits a circle of `radius` around the origin."""
    match shape:
        case "ring":
            square_hw = u_hw * u_hw + v_hw * v_hw
            return (square_hw < radius * radius) & (square_hw > radius * radius // 4)
        case "star":  # inside at least four of the five half-planes bounded by a pentagram's lines
            near = [_side(u_hw, v_hw, k / 5) < radius * 309 // 1000 for k in range(5)]
            return np.sum(near, axis=0) >= 4
        case "cross":
            short_hw, long_hw = abs(u_hw), abs(v_hw)
            arm, end = radius * 30 // 100, radius * 95 // 100
            return (np.minimum(short_hw, long_hw) < arm) & (np.maximum(short_hw, long_hw) < end)
        case "triangle":
            far_hw = np.maximum(_side(u_hw, v_hw, 0), _side(u_hw, v_hw, 1 / 3))
            return np.maximum(far_hw, _side(u_hw, v_hw, 2 / 3)) < radius // 2
        case "heart":  # a square on its corner, with a disc on each of its upper sides
            side = radius * 78 // 100
            width_hw, height_hw = abs(u_hw), v_hw - side // 5
            disc_hw = (width_hw - side // 2) ** 2 + (height_hw + side // 2) ** 2 < side * side // 2
            return disc_hw | (width_hw + abs(height_hw) < side)
        case "moon":  # a disc without a second disc above it
            square_hw = u_hw * u_hw + v_hw * v_hw
            bite_hw = u_hw * u_hw + (v_hw + radius // 2) ** 2
            return (square_hw < radius * radius) & (bite_hw > radius * radius * 64 // 100)
    raise AssertionError(shape)


def _side(u_hw: np.ndarray, v_hw: np.ndarray, turn: float) -> np.ndarray:
    """Return the distance of each sample in the direction at `turn` of a circle from straight down."""
    return _rotated(u_hw, v_hw, turn)[1]


def _pattern(texture: str, s_hw: np.ndarray, t_hw: np.ndarray) -> np.ndarray:
    """Return the samples in the texture's second ink, (h, w) bool; it repeats after PERIOD along s and t."""
    wrap, half = PERIOD - 1, PERIOD // 2
    match texture:
        case "plain":
            return np.zeros(s_hw.shape, dtype=bool)
        case "striped":
            return s_hw & wrap < half
        case "dotted":  # every other row of dots is shifted, or the gaps would look like a net
            s_hw, t_hw = ((s_hw + half * (t_hw // PERIOD)) & wrap) - half, (t_hw & wrap) - half
            return s_hw * s_hw + t_hw * t_hw < PERIOD * PERIOD // 9
        case "checked":
            return (s_hw & wrap < half) ^ (t_hw & wrap < half)
        case "wavy":  # stripes shifted by one period over two
            return (s_hw + abs((t_hw & 2 * PERIOD - 1) - PERIOD)) & wrap < half
        case "netted":
            return (s_hw & wrap < PERIOD // 4) | (t_hw & wrap < PERIOD // 4)
    raise AssertionError(texture)


def _with_noise(rng: Random, image_HWC: np.ndarray) -> np.ndarray:
    """Add uniform noise of -8 ... 7 to every value and convert to uint8."""
    noise_HWC = np.frombuffer(rng.randbytes(image_HWC.size), dtype=np.uint8).reshape(image_HWC.shape)
    return np.clip(image_HWC + (noise_HWC >> 4) - 8, 0, 255).astype(np.uint8)
