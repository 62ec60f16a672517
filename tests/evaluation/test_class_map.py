"""Class maps: the shipped lists, what a projection counts, and what is wrong with a map."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from vitcli.data.split import Split
from vitcli.errors import DataError, VitError
from vitcli.evaluation.class_map import Projection, apply_class_map, read_class_map
from vitcli.evaluation.metrics import label_ranks
from vitcli.recipe import catalog

SIZES = {
    "imagenet_a": (200, 200),
    "imagenet_r": (200, 200),
    "imagenet_sketch": (1000, 1000),
    "imagenet_v2": (1000, 1000),
    "objectnet": (113, 125),
}


def split_of(names: tuple[str, ...], labels: list[int]) -> Split:
    return Split(
        name="pictures",
        num_examples=len(labels),
        class_names=names,
        num_classes=len(names),
        read_row=lambda row: (b"", labels[row]),
        read_labels=lambda: np.array(labels),
        where_is=lambda row: f"row {row}",
    )


def map_file(folder, text: str) -> str:
    (folder / "map.toml").write_text(text)
    return str(folder / "map.toml")


def classes_of(name: str) -> dict[str, tuple[int, ...]]:
    return read_class_map(name, catalog.class_maps()).classes


@pytest.mark.parametrize("name", SIZES)
def test_the_shipped_maps_have_as_many_classes_as_the_papers_say(name):
    classes = classes_of(name)

    numbers = [number for several in classes.values() for number in several]
    assert (len(classes), len(numbers)) == SIZES[name]
    assert len(set(numbers)) == len(numbers) and all(0 <= number < 1000 for number in numbers)


def test_every_shipped_map_is_counted_here_and_names_its_source():
    assert catalog.class_maps().keys() == SIZES.keys()
    for path in catalog.class_maps().values():
        assert "source: " in path.read_text().partition("\n")[0]


def test_class_maps_are_no_recipes():
    assert not [name for name, _ in catalog.available() if name.startswith("classes")]


@pytest.mark.parametrize("name", ["imagenet_a", "imagenet_r", "imagenet_sketch"])
def test_wordnet_ids_have_the_number_that_real_data_gives_them(shared, name):
    import pyarrow.parquet as pq

    (file,) = (shared / "data/imagenet_val_227").glob("*.parquet")
    about = json.loads(pq.read_schema(file).metadata[b"huggingface"])
    names = about["info"]["features"]["label"]["names"]
    number_of = {name.partition("_")[0]: number for number, name in enumerate(names)}

    assert classes_of(name) == {wnid: (number_of[wnid],) for wnid in classes_of(name)}


def test_the_maps_are_those_of_timm():
    import timm

    folder = Path(timm.__file__).parent / "data/_info"
    for name in ("imagenet_a", "imagenet_r"):
        synsets = (folder / f"{name}_synsets.txt").read_text().split()
        indices = map(int, (folder / f"{name}_indices.txt").read_text().split())
        assert classes_of(name) == {wnid: (index,) for wnid, index in zip(synsets, indices, strict=True)}
    synsets = (folder / "imagenet_synsets.txt").read_text().split()
    assert classes_of("imagenet_sketch") == {wnid: (number,) for number, wnid in enumerate(synsets)}


def test_imagenet_v2_undoes_the_order_of_its_folder_names():
    names = tuple(sorted(str(number) for number in range(1000)))  # 0, 1, 10, 100, ...
    split = split_of(names, [names.index("2"), names.index("10")])

    mapped, projection, _ = apply_class_map(
        split, read_class_map("imagenet_v2", catalog.class_maps()), ckpt_classes=None, num_classes=1000,
        all_compete=False,
    )  # fmt: skip

    logits_BK = projection(torch.eye(1000)[[2, 10]])
    assert label_ranks(logits_BK, torch.from_numpy(mapped.read_labels())).tolist() == [0, 0]


def test_a_class_has_the_highest_of_its_synonyms_logits():
    projection = Projection(((3, 0), (2,)), num_classes=5, all_compete=False)

    assert projection(torch.tensor([[1.0, 9, 4, 5, 8], [7, 9, 4, 5, 8]])).tolist() == [[5, 4], [7, 4]]


def test_outside_classes_compete_only_if_they_are_let():
    open_, closed = (Projection(((3, 0), (2,)), num_classes=5, all_compete=one) for one in (True, False))
    logits_BK = torch.tensor([[1.0, 9, 4, 5, 8]])

    assert (open_.outside, open_.width, closed.width) == ((1, 4), 4, 2)
    assert open_(logits_BK).tolist() == [[5, 4, 9, 8]]
    assert label_ranks(closed(logits_BK), torch.tensor([0])).item() == 0
    assert label_ranks(open_(logits_BK), torch.tensor([0])).item() == 2


@pytest.mark.parametrize("seed", range(3))
def test_restricting_is_to_look_at_the_columns_of_the_mask(seed):
    """As eval.py of natural-adv-examples does: net(data)[:, indices_in_1k]."""
    rng = torch.Generator().manual_seed(seed)
    mask = [several[0] for several in classes_of("imagenet_a").values()]
    logits_BK = torch.randn(64, 1000, generator=rng)

    projected = Projection(tuple((one,) for one in mask), num_classes=1000, all_compete=False)(logits_BK)

    assert torch.equal(projected, logits_BK[:, mask])


def test_rows_of_other_classes_are_left_out_and_the_rest_is_numbered_as_in_the_map(tmp_path):
    split = split_of(("mug", "cup", "n00000001_tie", "sock"), [3, 0, 2, 1, 2])
    found = read_class_map(map_file(tmp_path, '[classes]\nn00000001 = ["bow", 2]\nmug = 0\n'), {})

    mapped, projection, rows = apply_class_map(
        split, found, ckpt_classes=("mug", "bow", "tie"), num_classes=3, all_compete=False
    )

    assert rows.tolist() == [1, 2, 4]
    assert mapped.class_names == ("n00000001_tie", "mug")
    assert mapped.read_labels().tolist() == [1, 0, 0] == [mapped.read_row(row)[1] for row in range(3)]
    assert projection.groups == ((1, 2), (0,))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[classes]\nmugg = 0", "no class 'mugg', did you mean 'mug'"),
        ("[classes]\nmug = 'tiee'", "checkpoint has no class 'tiee', did you mean 'tie'"),
        ("[classes]\nmug = 3", "checkpoint has no class 3"),
        ("[classes]\nmug = -1", "checkpoint has no class -1"),
        ("[classes]\nmug = 1\ncup = [0, 1]", "counts as both 'mug' and 'cup'"),
        ("[classes]\nunused = 1", "no image"),
    ],
)
def test_a_map_that_does_not_fit_is_reported_in_three_lines(tmp_path, text, match):
    split = split_of(("mug", "cup", "unused"), [0, 1])
    found = read_class_map(map_file(tmp_path, text), {})

    with pytest.raises(DataError, match=match) as told:
        apply_class_map(split, found, ckpt_classes=("mug", "bow", "tie"), num_classes=3, all_compete=False)

    assert len(str(told.value).splitlines()) == 3 and "map.toml" in told.value.where


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[classes", "not TOML"),
        ("", "classes is missing"),
        ("[classes]", "at least 1 item"),
        ("[classes]\nmug = 1\n[more]\n", "more is not a key of a class map"),
        ("[classes]\nmug = []", "at least 1 item"),
        ("[classes]\nmug = 1.5", "classes.mug, item 1 is 1.5, which is not a whole number"),
        ("[classes]\nmug = true", "classes.mug, item 1 is true, which is not a whole number"),
    ],
)
def test_a_file_that_is_no_map_is_reported(tmp_path, text, match):
    with pytest.raises(VitError, match=match) as told:
        read_class_map(map_file(tmp_path, text), {})

    assert told.value.exit_code == 2 and len(str(told.value).splitlines()) == 3


def test_a_class_that_is_neither_a_number_nor_a_name_may_be_both(tmp_path):
    with pytest.raises(VitError) as told:
        read_class_map(map_file(tmp_path, "[classes]\nmug = 1.5"), {})

    assert told.value.fix == "write a whole number, or a name in quotes"


@pytest.mark.parametrize("name", ["imagenet_b", "nowhere.toml"])
def test_a_name_that_is_no_map_is_reported_with_the_nearest(name):
    with pytest.raises(VitError, match="there is no class map") as told:
        read_class_map(name, catalog.class_maps())

    assert "objectnet" in told.value.fix
