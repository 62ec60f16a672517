"""VTAB's label rules by hand, edges and ties included."""

import math
from itertools import pairwise

import datasets
import pytest

from vitcli import recipe
from vitcli.data import vtab
from vitcli.data.vtab import class_of

GROUP_OF = {
    name.removeprefix("vtab/"): entry["vtab"]
    for name, entry in recipe.dataset_aliases().items()
    if "vtab" in entry
}


def objects(*depths: float) -> list[dict]:
    return [{"pixel_coords": [10.0, 20.0, depth], "size": "large"} for depth in depths]


def traffic(*of: tuple) -> list[dict]:
    return [{"type": kind, "location": [99.0, -99.0, z]} for kind, z in of]


@pytest.mark.parametrize("count", range(3, 11))
def test_clevr_counts_from_three_objects(count):
    as_list = objects(*[9.0] * count)
    as_columns = {"size": ["large"] * count, "pixel_coords": [[1.0, 2.0, 9.0]] * count}

    assert class_of("clevr_count", as_list) == class_of("clevr_count", as_columns) == count - 3


@pytest.mark.parametrize(
    ("depth", "label"),
    [(0.01, 0), (8.0, 0), (8.001, 1), (8.5, 1), (8.501, 2), (9.0, 2), (9.001, 3), (9.5, 3), (9.501, 4),
     (10.0, 4), (10.001, 5), (100.0, 5)],
)  # fmt: skip
def test_clevr_distance_is_the_bin_of_the_nearest_object_and_an_edge_is_of_the_bin_before(depth, label):
    assert class_of("clevr_distance", objects(99.0, depth, depth)) == label
    assert class_of("clevr_distance", {"pixel_coords": [[0, 0, 99.5], [0, 0, depth]]}) == label


@pytest.mark.parametrize(
    ("seen", "label"),
    [
        ([(0, 3.5)], 0),
        ([(0, 8.0)], 0),
        ([(1, 8.01), (2, 50.0)], 1),
        ([(2, 20.0)], 1),
        ([(0, 20.01), (3, 1.0)], 2),  # the pedestrian is nearer and no vehicle
        ([("Van", 74.0), ("Cyclist", 2.0)], 2),
        ([("Tram", 2.0)], 3),
        ([(7, 5.0)], 3),
        ([], 3),
        ([(0, -2.0)], 0),
    ],
)
def test_kitti_is_the_distance_of_the_nearest_vehicle_and_none_is_the_last_class(seen, label):
    assert class_of("kitti_distance", traffic(*seen)) == label


def test_positions_of_dsprites_go_two_by_two():
    assert [class_of("dsprites_x", x) for x in range(32)] == [k for k in range(16) for _ in range(2)]
    assert [class_of("dsprites_x_value", x / 31) for x in range(32)] == [x // 2 for x in range(32)]


def test_orientations_of_dsprites_go_by_threes_and_twos():
    labels = [class_of("dsprites_orientation", k) for k in range(40)]

    assert labels[:6] == [0, 0, 0, 1, 1, 2]
    assert [labels.count(k) for k in range(16)] == [3, 2] * 8
    assert labels == [class_of("dsprites_orientation_value", k * 2 * math.pi / 39) for k in range(40)]


def test_small_norb_has_its_classes_already_and_degrees_go_by_twenties():
    assert [class_of("smallnorb_azimuth", k) for k in (0, 17)] == [0, 17]
    assert [class_of("smallnorb_elevation", k) for k in (0, 8)] == [0, 8]
    assert [class_of("azimuth_degrees", d) for d in (0, 19, 20, 340, 359)] == [0, 0, 1, 17, 17]


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("clevr_count", objects(9.0, 9.0)),
        ("clevr_count", objects(*[9.0] * 11)),
        ("clevr_distance", []),
        ("clevr_distance", objects(0.0)),
        ("clevr_distance", objects(100.1)),
        ("kitti_distance", traffic((0, -100.0))),
        ("dsprites_x", 32),
        ("dsprites_x", -1),
        ("dsprites_orientation", 40),
        ("dsprites_x_value", 0.5),
        ("smallnorb_azimuth", 18),
        ("smallnorb_elevation", 9),
        ("azimuth_degrees", 360),
    ],
)
def test_what_has_no_class_is_refused(rule, value):
    with pytest.raises(ValueError):
        class_of(rule, value)


def test_every_rule_of_the_aliases_is_known_and_every_bin_is_a_class_of_its_alias():
    for name, entry in recipe.dataset_aliases().items():
        for rule in entry.get("label_rules", {}).values():
            with pytest.raises((ValueError, TypeError)):  # and no AssertionError
                class_of(rule, -1)
            assert name.startswith("vtab/")
    edges = {"clevr_distance": vtab.CLEVR_EDGES, "kitti_distance": vtab.KITTI_EDGES}
    for task, of_task in edges.items():
        classes = {class_of(task, traffic_or_objects(task, high)) for _, high in pairwise(of_task)}
        classes |= {3} if task == "kitti_distance" else set()
        assert classes == set(range(recipe.dataset_aliases()[f"vtab/{task}"]["classes"]))


def traffic_or_objects(task: str, depth: float) -> list[dict]:
    return objects(depth) if task == "clevr_distance" else traffic((0, depth))


def test_the_tasks_are_nineteen_in_groups_of_seven_four_and_eight():
    assert [list(GROUP_OF.values()).count(group) for group in vtab.GROUPS] == [7, 4, 8]
    assert list(GROUP_OF.values()) == ["natural"] * 7 + ["specialized"] * 4 + ["structured"] * 8


# Real data in the manner of the tasks


def table_of(shared, name: str, split: str) -> datasets.Dataset:
    file = str(shared / "data" / name / f"{split}-00000-of-00001.parquet")
    return datasets.load_dataset("parquet", data_files={split: file}, split=split)


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_rules_give_the_labels_of_the_synthetic_sprites(shared, split):
    table = table_of(shared, "sprites_synthetic", split)
    turns = [round(angle / (2 * math.pi) * 40) for angle in table["orientation"]]  # its grid leaves 2 pi out

    assert [class_of("dsprites_x_value", x) for x in table["x"]] == table["label"][:]
    assert [class_of("dsprites_x_value", y) for y in table["y"]] == table["label_y"][:]
    assert [class_of("dsprites_orientation", turn) for turn in turns] == table["label_orientation"][:]


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_rules_give_the_azimuths_of_coil(shared, split):
    table = table_of(shared, "coil20_azimuth", split)

    assert [class_of("azimuth_degrees", angle) for angle in table["angle"]] == table["label"][:]
