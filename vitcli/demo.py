"""The demo data: pictures of textured shapes, drawn from a seed, so that every command runs with no network.

A class is a texture and a shape ("striped ring"). Six textures and six shapes make 36 pairs: 12 are the set `demo`
that one transfers to, the other 24 are `demo:pretrain`. Each texture and each shape is in both sets, no pair is:
what pre-training has to learn carries over, and a class of `demo` is new to it all the same. Colour, place, size,
rotation and background say nothing about the class, and no class changes when its picture is mirrored.

All arithmetic on pixels is on integers, and the only draws used are `random()`, which Python promises to keep, and
`randbytes()`: the bytes are the same on every machine.
Letters: H, W the picture's rows and columns, C channels; h, w fine rows and columns, FINE to a pixel, cut to a box.
"""

import math
from dataclasses import dataclass
from random import Random

import numpy as np

from vitcli.order import derive_seed

SEED = 2010_11929
IMAGE_SIZE = 64
FINE = 2  # samples per pixel and axis; their mean smooths the edges
UNIT = 16  # coordinates inside a shape count sixteenths of a sample

TEXTURES = ("plain", "striped", "dotted", "checked", "wavy", "netted")
SHAPES = ("ring", "star", "cross", "triangle", "heart", "moon")


@dataclass(frozen=True)
class DemoSet:
    """The class names in the order of their labels, and how many rows each split has."""

    class_names: tuple[str, ...]
    num_rows: dict[str, int]


def _pairs(*, held_out: bool) -> tuple[str, ...]:
    """Names of the pairs to transfer to, or of all others: two of each texture and of each shape are held out."""
    return tuple(
        f"{texture} {shape}"
        for column, shape in enumerate(SHAPES)
        for line, texture in enumerate(TEXTURES)
        if ((line - column) % len(TEXTURES) in (1, 3)) == held_out
    )


SETS = {
    "demo": DemoSet(_pairs(held_out=True), {"train": 600, "test": 600}),
    "demo:pretrain": DemoSet(_pairs(held_out=False), {"train": 24_000, "test": 1_200}),
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
    """An integer from low to high, both possible. (`randint` may change with Python's version.)"""
    return low + int(rng.random() * (high - low + 1))


def _colours(rng: Random) -> list[np.ndarray]:
    """Three colours, (3,) int32 each: any hues, one dark, one middling, one light, in any order."""
    lumas = [_between(rng, 35, 80), _between(rng, 115, 150), _between(rng, 190, 230)]
    order = sorted(range(3), key=lambda _: rng.random())
    return [_colour(rng, lumas[place]) for place in order]


def _colour(rng: Random, luma: int) -> np.ndarray:
    """A random hue at the given luma, (3,) int32."""
    hue, strength = _between(rng, 0, 767), _between(rng, 40, 130)
    sector, part = divmod(hue, 256)
    pure_C = np.roll(np.array([255 - part, part, 0], dtype=np.int32), sector)
    grey = int(pure_C @ np.array([2, 5, 1])) // 8
    return np.clip(luma + (pure_C - grey) * strength // 256, 0, 255).astype(np.int32)


def _background(rng: Random, paper_C: np.ndarray) -> np.ndarray:
    """A slope from one shade of the paper's colour to another, (64, 64, 3) int32."""
    line = np.arange(IMAGE_SIZE, dtype=np.int32) - IMAGE_SIZE // 2
    slope_HW = _between(rng, -12, 12) * line[:, None] + _between(rng, -12, 12) * line
    tint_C = np.array([_between(rng, 4, 16) for _ in range(3)], dtype=np.int32)
    return paper_C + (slope_HW[..., None] * tint_C) // 256


def _scatter(rng: Random, picture_HWC: np.ndarray) -> None:
    """Small plain bits of clutter, anywhere; what is drawn later lies over them."""
    for _ in range(_between(rng, 1, 4)):
        box, u_hw, v_hw = _frame(rng, radius=_between(rng, 3, 7), margin=2)
        reach = UNIT * _between(rng, 5, 9)
        match _between(rng, 0, 2):
            case 0:
                inside_hw = u_hw * u_hw + v_hw * v_hw < reach * reach
            case 1:
                inside_hw = np.maximum(abs(u_hw), abs(v_hw)) < reach
            case _:
                inside_hw = abs(v_hw) < reach // 3
        _lay(picture_HWC, box, inside_hw, _colour(rng, _between(rng, 40, 220)))


def _stamp(
    rng: Random,
    picture_HWC: np.ndarray,
    shape: str,
    texture: str,
    first_ink_C: np.ndarray,
    second_ink_C: np.ndarray,
) -> None:
    """Draw the shape, filled with the texture in two inks, at a random place, size and angle."""
    radius = _between(rng, 17, 23) * (6 if shape in ("star", "triangle") else 5) // 5  # of about one area
    box, u_hw, v_hw = _frame(rng, radius=radius, margin=radius - 3)
    inside_hw = _inside(shape, u_hw, v_hw, UNIT * FINE * radius)
    _lay(picture_HWC, box, inside_hw, first_ink_C)
    s_hw, t_hw = _turned(u_hw, v_hw, rng.random())
    shift, period = _between(rng, 0, 1 << 12), UNIT * _between(rng, 11, 15)
    marked_hw = _marked(texture, s_hw + shift, t_hw + shift, period)
    _lay(picture_HWC, box, inside_hw & marked_hw, second_ink_C)


def _frame(rng: Random, *, radius: int, margin: int) -> tuple[tuple[slice, slice], np.ndarray, np.ndarray]:
    """A place and an angle for something of `radius` pixels, its centre at least `margin` from the edges.

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
    u_hw, v_hw = _turned(lines[1][None, :], lines[0][:, None], rng.random())
    return (slices[0], slices[1]), u_hw, v_hw


def _turned(u_hw: np.ndarray, v_hw: np.ndarray, turn: float) -> tuple[np.ndarray, np.ndarray]:
    """The coordinates turned by a share of a full circle."""
    cos, sin = round(256 * math.cos(math.tau * turn)), round(256 * math.sin(math.tau * turn))
    return (cos * u_hw + sin * v_hw) >> 8, (cos * v_hw - sin * u_hw) >> 8


def _lay(picture_HWC: np.ndarray, box: tuple[slice, slice], mask_hw: np.ndarray, ink_C: np.ndarray) -> None:
    """Ink the picture where the mask is set, in shares of FINE * FINE samples per pixel."""
    bits_hw = mask_hw.view(np.uint8)
    rows_Hw = bits_hw[0::2] + bits_hw[1::2]
    cover_HW1 = (rows_Hw[:, 0::2] + rows_Hw[:, 1::2]).astype(np.int32)[..., None]
    part_HWC = picture_HWC[box]
    part_HWC += (ink_C - part_HWC) * cover_HW1 // (FINE * FINE)


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
            arm, end = radius * 34 // 100, radius * 94 // 100
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
    """How far each sample lies in the direction that is `turn` of a circle from straight up."""
    return _turned(u_hw, v_hw, turn)[1]


def _marked(texture: str, s_hw: np.ndarray, t_hw: np.ndarray, period: int) -> np.ndarray:
    """Which samples have the texture's second ink, (h, w) bool."""
    half = period // 2
    match texture:
        case "plain":
            return np.zeros(s_hw.shape, dtype=bool)
        case "striped":
            return s_hw % period < half
        case "dotted":
            s_hw, t_hw = s_hw % period - half, t_hw % period - half
            return s_hw * s_hw + t_hw * t_hw < period * period // 9
        case "checked":
            return (s_hw % period < half) ^ (t_hw % period < half)
        case "wavy":
            return (s_hw + abs(t_hw % (2 * period) - period)) % period < half
        case "netted":
            return (s_hw % period < period // 4) | (t_hw % period < period // 4)
    raise AssertionError(texture)


def _with_noise(rng: Random, picture_HWC: np.ndarray) -> np.ndarray:
    """The picture with every value moved by -12 ... 12 at random, as uint8."""
    noise_HWC = np.frombuffer(rng.randbytes(picture_HWC.size), dtype=np.uint8).reshape(picture_HWC.shape)
    return np.clip(picture_HWC + (noise_HWC % 25).astype(np.int32) - 12, 0, 255).astype(np.uint8)
