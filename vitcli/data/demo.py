"""The demo data: pictures of textured shapes drawn from a seed, so that every command runs with no network.

A class is a texture and a shape: "striped ring". Of the 36 pairs of six textures and six shapes, 12 are the
set `demo`, which one transfers to, and the other 24 are `demo:pretrain`. Every texture and every shape is in
both sets, no pair is: pre-training teaches what the classes of `demo` are made of, but has never seen them.
Colours, place, size, angle and background say nothing about the class, nor does mirroring change it.

The bytes are the same on every machine: all arithmetic on pixels is on integers, and every draw is one of
`random()`, which Python promises not to change (as it does not of `randint`), or of `randbytes()`.
Letters: H, W rows and columns of the picture or of a box in it, C channels; h, w the same in samples.
"""

import math
from dataclasses import dataclass
from random import Random

import numpy as np

from vitcli.data.sampler import derive_seed

SEED = 201011929  # the paper's number at arXiv
IMAGE_SIZE = 64
FINE = 2  # samples per pixel and axis; their mean smooths the edges
UNIT = 16  # coordinates inside a shape count sixteenths of a sample
PERIOD = 256  # of a texture in its own coordinates; a power of two, so that wrapping is a mask

TEXTURES = ("plain", "striped", "dotted", "checked", "wavy", "netted")
SHAPES = ("ring", "star", "cross", "triangle", "heart", "moon")


@dataclass(frozen=True)
class DemoSet:
    """The class names in the order of their labels, and how many rows each split has."""

    class_names: tuple[str, ...]
    num_rows: dict[str, int]


def _pairs(*, held_out: bool) -> tuple[str, ...]:
    """Names of the pairs held out for `demo`, two of each texture and of each shape, or of all the others."""
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


def class_names(demo_set: str) -> tuple[str, ...]:
    """The names of the set's classes, each at its label."""
    return SETS[demo_set].class_names


def num_rows(demo_set: str, split: str) -> int:
    """How many pictures the split has; always a multiple of the number of classes."""
    return SETS[demo_set].num_rows[split]


def draw(demo_set: str, split: str, row: int) -> tuple[np.ndarray, int]:
    """Draw one picture: a pure function of its arguments.

    Args:
        demo_set: a key of SETS.
        split: "train" or "test"; they share no seed.
        row: 0 ... num_rows - 1. Classes take turns, so a slice of whole rounds is balanced too.

    Returns:
        The picture, (64, 64, 3) uint8 RGB, and its label.
    """
    assert 0 <= row < num_rows(demo_set, split), (demo_set, split, row)
    names = class_names(demo_set)
    label = row % len(names)
    texture, shape = names[label].split()
    rng = Random(derive_seed(SEED, f"{demo_set}/{split}", row))

    paper_C, first_ink_C, second_ink_C = _colours(rng)
    picture_HWC = _background(rng, paper_C)
    _scatter(rng, picture_HWC)
    _stamp(rng, picture_HWC, shape, texture, first_ink_C, second_ink_C)
    return _with_noise(rng, picture_HWC), label


def _between(rng: Random, low: int, high: int) -> int:
    """An integer from low to high, both possible."""
    return low + int(rng.random() * (high - low + 1))


def _colours(rng: Random) -> list[np.ndarray]:
    """Light paper and two inks, one dark and one middling in either order: (3,) int16 each, of any hue."""
    lumas = [_between(rng, 30, 60), _between(rng, 130, 160)]
    first = _between(rng, 0, 1)
    return [_colour(rng, luma) for luma in (_between(rng, 210, 240), lumas[first], lumas[1 - first])]


def _colour(rng: Random, luma: int) -> np.ndarray:
    """A random hue at about the given luma, (3,) int16."""
    sector, part, strength = _between(rng, 0, 2), _between(rng, 0, 255), _between(rng, 50, 130)
    pure = [255 - part, part, 0]
    pure = pure[sector:] + pure[:sector]
    grey = (2 * pure[0] + 5 * pure[1] + pure[2]) // 8
    values = [luma + (value - grey) * strength // 256 for value in pure]
    return np.array([min(255, max(0, value)) for value in values], dtype=np.int16)


def _background(rng: Random, paper_C: np.ndarray) -> np.ndarray:
    """A slope from one shade of the paper's colour to another, (64, 64, 3) int16."""
    line = np.arange(IMAGE_SIZE, dtype=np.int16) - IMAGE_SIZE // 2
    slope_HW = _between(rng, -12, 12) * line[:, None] + _between(rng, -12, 12) * line
    tint_C = np.array([_between(rng, 4, 16) for _ in range(3)], dtype=np.int16)
    return paper_C + ((slope_HW >> 4)[..., None] * tint_C >> 4)


def _scatter(rng: Random, picture_HWC: np.ndarray) -> None:
    """One or two small plain bits of clutter, anywhere; what is drawn later lies over them."""
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
        _lay(picture_HWC, box, inside_hw, _colour(rng, _between(rng, 60, 200)))


def _stamp(
    rng: Random,
    picture_HWC: np.ndarray,
    shape: str,
    texture: str,
    first_ink_C: np.ndarray,
    second_ink_C: np.ndarray,
) -> None:
    """Draw the shape, filled with the texture in two inks, at a random place, size and angle."""
    radius = _between(rng, 20, 24) * (6 if shape in ("star", "triangle") else 5) // 5  # for about one area
    box, u_hw, v_hw = _frame(rng, radius=radius, margin=28, swing=0.05)
    inside_hw = _inside(shape, u_hw, v_hw, UNIT * FINE * radius)
    _lay(picture_HWC, box, inside_hw, first_ink_C)
    zoom = 256 * PERIOD // (UNIT * _between(rng, 11, 15))
    s_hw, t_hw = _turned(u_hw, v_hw, _swing(rng, 0.05), zoom)
    _lay(picture_HWC, box, inside_hw & _marked(texture, s_hw + _between(rng, 0, 511), t_hw), second_ink_C)


def _frame(
    rng: Random, *, radius: int, margin: int, swing: float
) -> tuple[tuple[slice, slice], np.ndarray, np.ndarray]:
    """A place for something of `radius` pixels, its centre at least `margin` from the picture's edges.

    It is turned to either side by up to `swing`, a share of a full circle.

    Returns:
        The box of pixels it can touch, as two slices, and the coordinates u, v of each of the box's samples
        in the thing's own upright frame, (h, w) int32 each.
    """
    reach = FINE * radius
    slices, lines = [], []
    for _ in "yx":
        centre = _between(rng, FINE * margin, FINE * (IMAGE_SIZE - margin))
        low, high = max(0, (centre - reach) // FINE), min(IMAGE_SIZE, (centre + reach) // FINE + 1)
        slices.append(slice(low, high))
        lines.append(UNIT * (np.arange(FINE * low, FINE * high, dtype=np.int32) - centre))
    u_hw, v_hw = _turned(lines[1][None, :], lines[0][:, None], _swing(rng, swing))
    return (slices[0], slices[1]), u_hw, v_hw


def _swing(rng: Random, swing: float) -> float:
    """An angle from -swing to swing."""
    return swing * (2 * rng.random() - 1)


def _turned(
    u_hw: np.ndarray, v_hw: np.ndarray, turn: float, zoom: int = 256
) -> tuple[np.ndarray, np.ndarray]:
    """The coordinates turned by a share of a full circle, and zoomed: 256 keeps their size."""
    cos, sin = round(zoom * math.cos(math.tau * turn)), round(zoom * math.sin(math.tau * turn))
    return (cos * u_hw + sin * v_hw) >> 8, (cos * v_hw - sin * u_hw) >> 8


def _lay(picture_HWC: np.ndarray, box: tuple[slice, slice], mask_hw: np.ndarray, ink_C: np.ndarray) -> None:
    """Ink the picture where the mask is set, in quarters: a pixel has FINE * FINE samples."""
    bits_hw = mask_hw.view(np.uint8)
    rows_Hw = bits_hw[0::2] + bits_hw[1::2]
    cover_HW1 = (rows_Hw[:, 0::2] + rows_Hw[:, 1::2]).astype(np.int16)[..., None]
    part_HWC = picture_HWC[box]
    part_HWC += (ink_C - part_HWC) * cover_HW1 >> 2


def _inside(shape: str, u_hw: np.ndarray, v_hw: np.ndarray, radius: int) -> np.ndarray:
    """Which samples the shape covers, (h, w) bool; it fits a circle of `radius` around the origin."""
    match shape:
        case "ring":
            square_hw = u_hw * u_hw + v_hw * v_hw
            return (square_hw < radius * radius) & (square_hw > radius * radius // 4)
        case "star":  # within four or five of the five half-planes whose edges are the pentagram's lines
            near = [_side(u_hw, v_hw, k / 5) < radius * 309 // 1000 for k in range(5)]
            return sum(side_hw.view(np.uint8) for side_hw in near) >= 4
        case "cross":
            short_hw, long_hw = abs(u_hw), abs(v_hw)
            arm, end = radius * 30 // 100, radius * 95 // 100
            return (np.minimum(short_hw, long_hw) < arm) & (np.maximum(short_hw, long_hw) < end)
        case "triangle":
            far_hw = np.maximum(_side(u_hw, v_hw, 0), _side(u_hw, v_hw, 1 / 3))
            return np.maximum(far_hw, _side(u_hw, v_hw, 2 / 3)) < radius // 2
        case "heart":  # a square on its corner, and a disc on each of its upper sides
            side = radius * 78 // 100
            width_hw, height_hw = abs(u_hw), v_hw - side // 5
            disc_hw = (width_hw - side // 2) ** 2 + (height_hw + side // 2) ** 2 < side * side // 2
            return disc_hw | (width_hw + abs(height_hw) < side)
        case "moon":  # a disc less another one above it
            square_hw = u_hw * u_hw + v_hw * v_hw
            bite_hw = u_hw * u_hw + (v_hw + radius // 2) ** 2
            return (square_hw < radius * radius) & (bite_hw > radius * radius * 64 // 100)
    raise AssertionError(shape)


def _side(u_hw: np.ndarray, v_hw: np.ndarray, turn: float) -> np.ndarray:
    """How far each sample lies in the direction that is `turn` of a circle from straight down."""
    cos, sin = round(256 * math.cos(math.tau * turn)), round(256 * math.sin(math.tau * turn))
    return (cos * v_hw - sin * u_hw) >> 8


def _marked(texture: str, s_hw: np.ndarray, t_hw: np.ndarray) -> np.ndarray:
    """Which samples have the texture's second ink, (h, w) bool; it repeats after PERIOD along s and t."""
    wrap, half = PERIOD - 1, PERIOD // 2
    match texture:
        case "plain":
            return np.zeros(s_hw.shape, dtype=bool)
        case "striped":
            return s_hw & wrap < half
        case "dotted":  # every other line of dots is shifted, else the gaps look like a net
            s_hw, t_hw = ((s_hw + half * (t_hw // PERIOD)) & wrap) - half, (t_hw & wrap) - half
            return s_hw * s_hw + t_hw * t_hw < PERIOD * PERIOD // 9
        case "checked":
            return (s_hw & wrap < half) ^ (t_hw & wrap < half)
        case "wavy":  # stripes that swing by one period over two
            return (s_hw + abs((t_hw & 2 * PERIOD - 1) - PERIOD)) & wrap < half
        case "netted":
            return (s_hw & wrap < PERIOD // 4) | (t_hw & wrap < PERIOD // 4)
    raise AssertionError(texture)


def _with_noise(rng: Random, picture_HWC: np.ndarray) -> np.ndarray:
    """The picture with every value moved by -8 ... 7 at random, as uint8."""
    noise_HWC = np.frombuffer(rng.randbytes(picture_HWC.size), dtype=np.uint8).reshape(picture_HWC.shape)
    return np.clip(picture_HWC + (noise_HWC >> 4) - 8, 0, 255).astype(np.uint8)
