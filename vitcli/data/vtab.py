"""VTAB-1k: names of its groups, and the rules that turn raw annotations into the classes of its tasks.

The rules and edges are those of google-research/task_adaptation (data/clevr.py, dsprites.py, kitti.py,
smallnorb.py), the source of the paper's 19 tasks (sections 4.1 and B.1.1). A rule takes one value of a raw
column as TensorFlow Datasets has it, and raises ValueError for a value without a class. Loads no `datasets`.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any

VTAB = "vtab"  # all tasks; each is the alias vtab/<task>
GROUPS = ("natural", "specialized", "structured")
NUM_TASKS = 19
TRAIN_ROWS, VAL_ROWS = 800, 200  # the first rows of train and of validation

CLEVR_EDGES = (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0)
KITTI_EDGES = (-100.0, 8.0, 20.0, 999.0)
NO_VEHICLE = 1000.0  # metres; beyond the last edge
VEHICLES = (0, 1, 2, "Car", "Van", "Truck")
SPRITES_X, SPRITES_ORIENTATIONS, SPRITES_CLASSES = 32, 40, 16


def class_of(rule: str, value: Any) -> int:
    """Return the class of one value of a raw column by one of RULES; recipes/datasets.toml names it.

    Raises:
        ValueError: the value has no class.
    """
    return RULES[rule](value)


def clevr_count(objects: Any) -> int:
    """Return the class for Clevr-Count: 0 to 7 for three to ten objects."""
    count = len(next(iter(objects.values()))) if isinstance(objects, Mapping) else len(objects)
    return _within(count - 3, 8)


def clevr_distance(objects: Any) -> int:
    """Return the class for Clevr-Dist: the bin of the nearest object's depth, the third of `pixel_coords`."""
    depths = [coords[2] for coords in _of_each(objects, "pixel_coords")]
    return _within(bin_of(min(depths), CLEVR_EDGES), 6)


def kitti_distance(objects: Any) -> int:
    """Return the class for KITTI-Dist: the bin of the distance (m) to the nearest vehicle, else the last."""
    kinds, places = _of_each(objects, "type"), _of_each(objects, "location")
    ahead = [place[2] for kind, place in zip(kinds, places, strict=True) if kind in VEHICLES]
    return _within(bin_of(min([*ahead, NO_VEHICLE]), KITTI_EDGES), 4)


def bin_of(value: float, edges: tuple[float, ...]) -> int:
    """Return the bin of a value; a value on an edge belongs to the bin below it.

    -1 on or below the first edge, the number of edges less one above the last.
    """
    return bisect_left(edges, value) - 1


def grouped(label: int, num_labels: int) -> int:
    """Group 32 positions or 40 orientations of dSprites in 16 classes, floor(label / 2) or (label / 2.5)."""
    return math.floor(_within(label, num_labels) / (num_labels / SPRITES_CLASSES))


def _of_each(objects: Any, key: str) -> list:
    """Return one property of every object, from a list of objects or a column for each property."""
    if isinstance(objects, Mapping):
        return list(objects[key])
    return [item[key] for item in objects]


def _on_grid(value: float, last: float, count: int) -> int:
    """Return the index of a value among `count` equally spaced ones from 0 to `last`, as in dSprites."""
    index = value / last * (count - 1)
    if abs(index - round(index)) > 0.02:  # float32, and files written with few digits
        raise ValueError(f"{value:g} is none of the {count} values from 0 to {last:.4g}")
    return round(index)


def _within(label: int, count: int) -> int:
    if not 0 <= label < count:
        raise ValueError(f"{label} is not one of 0 ... {count - 1}")
    return label


RULES: dict[str, Callable[[Any], int]] = {
    "clevr_count": clevr_count,
    "clevr_distance": clevr_distance,
    "kitti_distance": kitti_distance,
    "dsprites_x": lambda value: grouped(value, SPRITES_X),
    "dsprites_x_value": lambda value: grouped(_on_grid(value, 1.0, SPRITES_X), SPRITES_X),
    "dsprites_orientation": lambda value: grouped(value, SPRITES_ORIENTATIONS),
    "dsprites_orientation_value": lambda value: grouped(
        _on_grid(value, 2 * math.pi, SPRITES_ORIENTATIONS), SPRITES_ORIENTATIONS
    ),
    "smallnorb_azimuth": lambda value: _within(value, 18),
    "smallnorb_elevation": lambda value: _within(value, 9),
    "azimuth_degrees": lambda value: _within(math.floor(value / 20), 18),
}
