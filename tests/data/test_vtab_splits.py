"""Copies of VTAB's data sets as TensorFlow Datasets has them: splits, thousand images, classes and pixels."""

import io
import shutil

import datasets
import numpy as np
import pytest
from PIL import Image

from tests.conftest import data_section
from vitcli import recipe
from vitcli.data import vtab_splits
from vitcli.data.dataset import DataSet, open_train_and_eval
from vitcli.data.loader import read_example
from vitcli.data.sources.tables import Choices
from vitcli.errors import DataError


def picture(number: int, high: int = 255) -> dict:
    """A grey picture that says its number, in pixels of 0 and `high`."""
    bits = np.array([[number >> place & 1 for place in range(16)]], dtype=np.uint8).reshape(4, 4)
    file = io.BytesIO()
    Image.fromarray(bits * high).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def number_in(image: bytes) -> int:
    bits = np.asarray(Image.open(io.BytesIO(image))).reshape(-1) > 0
    return int(sum(1 << place for place, bit in enumerate(bits) if bit))


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """Writes tables for an alias into $VIT_DATA: rows by split, a column by name and function of the row."""
    monkeypatch.setenv("VIT_DATA", str(tmp_path))

    def write(alias: str, rows: dict[str, int], high: int = 255, **columns):
        first = 0
        for split, count in rows.items():
            numbers = range(first, first + count)
            values = {name: [of(number) for number in numbers] for name, of in columns.items()}
            table = datasets.Dataset.from_dict(
                {"image": [picture(number, high) for number in numbers], **values}
            )
            (tmp_path / alias).mkdir(parents=True, exist_ok=True)
            table.cast_column("image", datasets.Image()).to_parquet(tmp_path / alias / f"{split}.parquet")
            first += count
        return DataSet(alias)

    return write


def numbers(split) -> list[int]:
    return [number_in(split.read_row(row)[0]) for row in range(len(split))]


def test_the_thousand_images_are_the_first_800_and_the_first_200(shelf):
    data = shelf("vtab/dtd", {"train": 850, "validation": 300, "test": 3}, label=lambda n: n % 5)

    assert numbers(data.open("train800")) == list(range(800))
    assert numbers(data.open("val200")) == list(range(850, 1050))
    both = data.open("train800val200")
    assert numbers(both) == [*range(800), *range(850, 1050)]
    assert both.read_labels().tolist() == [n % 5 for n in (*range(800), *range(850, 1050))]
    train, test = open_train_and_eval(data_section("vtab/dtd"), seed=0)
    assert (len(train), len(test)) == (1000, 3)


def test_without_a_validation_split_all_thousand_come_from_train(shelf):
    data = shelf("vtab/dtd", {"train": 1100, "test": 3}, label=lambda n: n % 5)

    assert numbers(data.open("train800val200")) == list(range(1000))
    assert numbers(data.open("val200")) == list(range(800, 1000))


def test_labels_that_are_numbers_are_the_tasks_classes_though_a_split_lacks_some(shelf):
    data = shelf("vtab/dtd", {"train": 1000, "test": 60}, label=lambda n: n % 40 if n < 1000 else n % 47)

    train, test = data.open("train800val200"), data.open("test")
    assert train.num_classes == test.num_classes == 47
    assert test.read_labels().tolist() == [n % 47 for n in range(1000, 1060)]
    assert train.read_labels().max() == 39


def test_too_few_images_are_refused_and_not_fewer_taken(shelf):
    data = shelf("vtab/dtd", {"train": 850, "validation": 199, "test": 3}, label=lambda n: n % 5)

    with pytest.raises(DataError, match="VTAB needs 200 rows, and there are 199") as caught:
        data.open("train800val200")
    assert "vtab/dtd, split validation" in caught.value.where


def test_of_small_norb_the_first_half_of_test_is_validation(shelf):
    azimuth, lighting = (lambda n: n % 18), (lambda n: n % 6)
    data = shelf("vtab/smallnorb_azimuth", {"train": 36, "test": 20}, label_azimuth=azimuth, lit=lighting)

    assert numbers(data.open("validation")) == list(range(36, 46))
    assert numbers(data.open("test")) == list(range(46, 56))
    assert data.open("test").read_labels().tolist() == [n % 18 for n in range(46, 56)]
    assert data.open("test").num_classes == 18


def test_a_copy_with_three_splits_keeps_them(shelf):
    rows = {"train": 18, "validation": 6, "test": 20}
    data = shelf("vtab/smallnorb_azimuth", rows, label_azimuth=lambda n: n % 18)

    assert numbers(data.open("test")) == list(range(24, 44))


def test_dsprites_is_cut_grouped_and_made_visible(shelf):
    columns = dict(
        label_x_position=lambda n: n % 32, label_orientation=lambda n: n % 40, label_shape=lambda n: 0
    )
    for alias, size in (("vtab/dsprites_location", 2.0), ("vtab/dsprites_orientation", 2.5)):
        data = shelf(alias, {"train": 200}, high=1, **columns)
        test = data.open("test")
        assert (len(data.open("train")), len(data.open("validation")), len(test)) == (160, 20, 20)
        count = 32 if size == 2.0 else 40
        assert test.read_labels().tolist() == [int(n % count / size) for n in range(180, 200)]
        image_HWC, label = read_example(test, 3)
        assert image_HWC.shape == (4, 4, 3) and sorted(np.unique(image_HWC)) == [0, 255]
        assert label == test.read_labels()[3]
        assert (image_HWC[..., 0] == image_HWC[..., 2]).all()


def test_lists_of_objects_become_classes(shelf):
    def seen(number: int) -> list[dict]:
        return [{"pixel_coords": [0.0, 0.0, 8.2 + 0.5 * k], "size": 1} for k in range(3 + number % 8)]

    rows = {"train": 16, "validation": 8, "test": 8}
    counts = shelf("vtab/clevr_count", rows, objects=seen)
    distances = shelf("vtab/clevr_distance", rows, objects=seen)

    assert counts.open("train").read_labels().tolist() == [n % 8 for n in range(16)]
    assert set(distances.open("test").read_labels().tolist()) == {1}
    assert (counts.open("test").num_classes, distances.open("test").num_classes) == (8, 6)


def test_a_row_without_a_class_is_named(shelf):
    data = shelf("vtab/clevr_count", {"train": 4, "test": 2}, objects=lambda n: [{"size": 1}] * (n % 4 + 2))

    with pytest.raises(
        DataError, match="rule clevr_count has no class for a value of column 'objects'"
    ) as caught:
        data.open("train")
    assert caught.value.where == "vtab/clevr_count, split train, row 0"
    assert "data.label_column" in caught.value.fix


def test_a_copy_with_its_classes_in_it_and_a_named_column_are_taken_as_they_are(shelf):
    shelf("vtab/dsprites_location", {"train": 8, "test": 2}, label=lambda n: n % 4)
    assert DataSet("vtab/dsprites_location").open("test").read_labels().tolist() == [0, 1]

    shelf("vtab/clevr_count", {"train": 8, "test": 2}, objects=lambda n: [{"size": 1}], mine=lambda n: n % 4)
    assert DataSet("vtab/clevr_count", Choices(label_column="mine")).open("test").read_labels().tolist() == [
        0,
        1,
    ]


@pytest.mark.parametrize(
    ("alias", "name"),
    [("vtab/dsprites_location", "sprites_synthetic"), ("vtab/smallnorb_azimuth", "coil20_azimuth")],
)
def test_real_images_in_the_manner_of_a_task_get_their_own_labels(shared, tmp_path, monkeypatch, alias, name):
    (tmp_path / "vtab").mkdir()
    shutil.copytree(shared / "data" / name, tmp_path / alias)
    for part in ("train", "test"):  # three splits, so that the test split is not halved
        shutil.copy(tmp_path / alias / f"{part}-00000-of-00001.parquet", tmp_path / alias / f"{part}.parquet")
        (tmp_path / alias / f"{part}-00000-of-00001.parquet").unlink()
    shutil.copy(tmp_path / alias / "test.parquet", tmp_path / alias / "validation.parquet")
    monkeypatch.setenv("VIT_DATA", str(tmp_path))
    plain = DataSet(str(tmp_path / alias), Choices(label_column="label"))

    for split in ("train", "test"):
        found, wanted = DataSet(alias).open(split), plain.open(split)
        assert found.read_labels().tolist() == wanted.read_labels().tolist()
        assert (read_example(found, 5)[0] == read_example(wanted, 5)[0]).all()


# What recipes the tasks get: BiT, appendix F, typed in once more.
NO_FLIP = {"dsprites_orientation", "dsprites_location", "smallnorb_azimuth"}
NO_CROP = {"clevr_count", "clevr_distance", "dmlab", "kitti_distance", "dsprites_location"}
TASKS = [name.removeprefix("vtab/") for name, entry in recipe.dataset_aliases().items() if "vtab" in entry]


@pytest.mark.parametrize("task", TASKS)
def test_each_task_flips_and_crops_as_the_paper_says(task):
    found = recipe.load(recipe.find_for_dataset("finetune", f"vtab/{task}"))

    assert found.data.flip == (task not in NO_FLIP)
    assert (found.data.train_crop, found.data.resize) == (
        ("none", None) if task in NO_CROP else ("random", 448)
    )
    assert (found.optimizer.lr, found.schedule.steps, found.train.batch_size) == (0.01, 2500, 512)
    assert (found.data.image_size, found.data.eval_resize, found.optimizer.clip) == (384, "square", 1.0)
    assert (found.optimizer.name, found.optimizer.momentum, found.optimizer.weight_decay) == ("sgd", 0.9, 0.0)
    assert recipe.dataset_aliases()[f"vtab/{task}"]["train_examples"] == 1000


def test_no_other_command_takes_the_recipe_of_a_task():
    assert recipe.find_for_dataset("evaluate", "vtab/dtd") == "evaluate/default"


@pytest.mark.parametrize(("highest", "is_of_classes"), [(3, True), (4, False)])
def test_labels_beyond_the_classes_of_a_task_are_left_as_they_are(highest, is_of_classes):
    table = datasets.Dataset.from_dict({"label": [0, 1, highest]})

    numbered = vtab_splits._numbered(lambda: table, "label", 4, "here")
    assert isinstance(numbered.features["label"], datasets.ClassLabel) == is_of_classes
