"""Rows with checked labels from any table: columns found by type, labels numbered, paths kept inside."""

import io
import json
import os
from dataclasses import replace

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from vitcli.data.classes import check_same_classes
from vitcli.data.columns import from_table
from vitcli.data.sampler import permute
from vitcli.data.sources.layouts import open_local
from vitcli.data.split import Split, check_label, check_labels
from vitcli.errors import DataError


def png(grey: int = 0) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (2, 2), grey).save(buffer, "PNG")
    return buffer.getvalue()


def parquet(tmp_path, **columns) -> datasets.Dataset:
    """A table that was not written by `datasets`, as it reads it."""
    pq.write_table(pa.table(columns), tmp_path / "train.parquet")
    return open_local(tmp_path).open["train"]()


def pictures(count: int) -> pa.Array:
    return pa.array([png(number) for number in range(count)], pa.binary())


def split_of(table: datasets.Dataset, *, image_column=None, label_column=None, root=None) -> Split:
    return from_table(table, name="pets", root=root, image_column=image_column, label_column=label_column)


def numbered(labels: list[int], num_classes: int = 3, *, first_byte: int = 0) -> Split:
    """A split held in memory; the picture of a row is its number."""
    return Split(
        name="numbers",
        num_examples=len(labels),
        class_names=tuple("abcdefgh"[:num_classes]),
        num_classes=num_classes,
        read_row=lambda row: (bytes([first_byte, row]), labels[row]),
        read_labels=lambda: np.array(labels, dtype=np.int64),
        where_is=lambda row: f"numbers, row {row}",
    )


def test_names_of_classes_and_labels_that_utf_8_cannot_express_are_refused(tmp_path):
    info = {"features": {"y": {"names": ["a", "\ud800"], "_type": "ClassLabel"}, "x": {"_type": "Image"}}}
    table = pa.table({"x": pictures(2), "y": [0, 1]})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": info})})
    pq.write_table(table, tmp_path / "train.parquet")
    with pytest.raises(DataError, match="the name of class 1 is not text that UTF-8 can express"):
        split_of(open_local(tmp_path).open["train"]())

    invalid = pa.Array.from_buffers(pa.string(), 2, pa.array([b"a", b"\xff"]).buffers())  # unseen by Arrow
    with pytest.raises(DataError, match="column 'y' holds text that is not UTF-8"):
        split_of(parquet(tmp_path, x=pictures(2), y=invalid))
    split = split_of(parquet(tmp_path, x=pictures(2), y=["a", "b"], note=invalid), label_column="y")
    with pytest.raises(DataError, match="column 'note' holds text that is not UTF-8"):
        split.read_column("note")


def test_a_plain_binary_column_and_string_labels_become_sorted_classes(tmp_path):
    split = split_of(parquet(tmp_path, picture=pictures(4), breed=["pug", "Boxer", "pug", "husky"]))

    assert split.class_names == ("Boxer", "husky", "pug")
    assert split.read_labels().tolist() == [2, 0, 2, 1]
    assert [split.read_row(row) for row in range(4)] == [(png(0), 2), (png(1), 0), (png(2), 2), (png(3), 1)]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint8(), pa.uint64()])
def test_whole_numbers_without_names_become_classes_in_the_order_of_numbers(tmp_path, kind):
    split = split_of(parquet(tmp_path, image=pictures(4), label=pa.array([100, 9, 20, 9], kind)))

    assert split.class_names == ("9", "20", "100")  # by letters it would be 100, 20, 9
    assert split.read_labels().tolist() == [2, 0, 1, 0] == [split.read_row(row)[1] for row in range(4)]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_every_kind_of_text_can_be_a_label(tmp_path, kind):
    split = split_of(parquet(tmp_path, image=pictures(3), label=pa.array(["b", "a", "b"], kind)))

    assert (split.class_names, split.read_labels().tolist()) == (("a", "b"), [1, 0, 1])


def test_categories_and_truth_values_can_be_labels(tmp_path):
    categories = pa.array(["b", "a", "b"]).dictionary_encode()
    assert split_of(parquet(tmp_path, image=pictures(3), label=categories)).read_labels().tolist() == [
        1,
        0,
        1,
    ]

    truth = parquet(tmp_path, image=pictures(2), label=[True, False])
    assert split_of(truth).class_names == ("False", "True")


def test_a_struct_of_bytes_and_path_is_an_image_column(tmp_path):
    structs = pa.array([{"bytes": png(1), "path": "a.png"}])
    split = split_of(parquet(tmp_path, img=structs, label=["x"]))

    assert split.read_row(0) == (png(1), 0)
    assert split.where_is(0) == "pets, row 0, file a.png"


def test_a_selection_of_rows_keeps_images_and_labels_together(tmp_path):
    table = parquet(tmp_path, image=pictures(4), label=["d", "a", "c", "b"]).select([3, 1])
    split = split_of(table)

    assert split.class_names == ("a", "b")
    assert split.read_labels().tolist() == [1, 0]
    assert [split.read_row(row) for row in range(2)] == [(png(3), 1), (png(1), 0)]


def test_a_column_among_several_is_found_by_its_type_or_usual_name(tmp_path):
    table = parquet(tmp_path, id=[7, 8], image=pictures(2), label=["x", "y"], caption=["a cat", "a dog"])

    assert split_of(table).class_names == ("x", "y")
    assert split_of(table, label_column="caption").class_names == ("a cat", "a dog")


def test_several_columns_that_could_be_the_label_are_listed(tmp_path):
    table = parquet(tmp_path, image=pictures(1), breed=["x"], colour=["y"], weight=[0.5])

    with pytest.raises(DataError, match="2 columns that may be the label: breed, colour") as caught:
        split_of(table)
    assert "--set data.label_column=" in caught.value.fix


def test_several_columns_that_could_be_the_image_are_listed(tmp_path):
    table = parquet(tmp_path, left=pictures(1), right=pictures(1), label=["x"])

    with pytest.raises(DataError, match="2 columns that may be the image: left, right"):
        split_of(table)
    assert split_of(table, image_column="right").read_row(0) == (png(0), 0)


def test_a_mistyped_column_gets_the_nearest_name_and_all_names(tmp_path):
    table = parquet(tmp_path, image=pictures(1), label=["x"])

    with pytest.raises(DataError, match="no column 'lable', did you mean 'label'") as caught:
        split_of(table, label_column="lable")
    assert "image, label" in caught.value.fix
    with pytest.raises(DataError, match="no column 'imgae', did you mean 'image'"):
        split_of(table, image_column="imgae")


@pytest.mark.parametrize(("kind", "missing"), [("image", "image"), ("label", "label")])
def test_a_table_without_images_or_labels_is_refused(tmp_path, kind, missing):
    columns = {"image": pictures(1), "label": ["x"], "weight": [0.5]}
    del columns[missing]

    with pytest.raises(DataError, match=f"has no {kind} column"):
        split_of(parquet(tmp_path, **columns))


@pytest.mark.parametrize("column", ["weight", "image", "boxes"])
def test_a_label_column_of_the_wrong_type_is_refused(tmp_path, column):
    table = parquet(tmp_path, image=pictures(1), label=["x"], weight=[0.5], boxes=[[0.1, 0.2]])

    with pytest.raises(DataError, match=f"column '{column}' of pets holds .*, which cannot be a class"):
        split_of(table, label_column=column)


@pytest.mark.parametrize("column", ["label", "path", "weight"])
def test_an_image_column_of_the_wrong_type_is_refused(tmp_path, column):
    table = parquet(tmp_path, image=pictures(1), label=["x"], path=["/etc/hostname"], weight=[0.5])

    with pytest.raises(DataError, match=f"column '{column}' of pets holds .*, which cannot be an image"):
        split_of(table, image_column=column)


@pytest.mark.parametrize(
    "path",
    ["/etc/hostname", "../outside.png", "link.png", "http://127.0.0.1:9/x.png", "file:///etc/hostname"],
)
def test_an_image_path_that_leads_out_of_the_data_set_is_refused(tmp_path, path):
    (tmp_path / "set").mkdir()
    (tmp_path / "outside.png").write_bytes(png())
    os.symlink(tmp_path / "outside.png", tmp_path / "set" / "link.png")
    structs = pa.array(
        [{"bytes": None, "path": path}], pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    )
    split = split_of(parquet(tmp_path / "set", image=structs, label=["x"]), root=tmp_path / "set")

    with pytest.raises(DataError, match="is outside the data set") as caught:
        split.read_row(0)
    assert "row 0" in caught.value.where


def test_an_image_path_with_a_nul_is_refused_in_words(tmp_path):
    split = split_of(
        parquet(tmp_path, image=pa.array([{"bytes": None, "path": "a\0.png"}]), label=["x"]), root=tmp_path
    )

    with pytest.raises(DataError, match="holds a NUL"):
        split.read_row(0)


@pytest.mark.parametrize("path", ["/etc/hostname", "http://127.0.0.1:9/x.png"])
def test_a_path_in_an_image_column_that_datasets_wrote_is_checked_too(tmp_path, path):
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["x"])})
    rows = {"image": [{"bytes": None, "path": path}], "label": [0]}
    pq.write_table(datasets.Dataset.from_dict(rows, features=features).data.table, tmp_path / "train.parquet")
    tables = open_local(tmp_path)

    assert isinstance(tables.open["train"]().features["image"], datasets.Image)
    for root in (tables.root, None):
        with pytest.raises(DataError, match="is outside the data set"):
            split_of(tables.open["train"](), root=root).read_row(0)


@pytest.mark.parametrize("name", ["inside.png", "deep/../inside.png"])
def test_an_image_path_inside_the_data_set_is_read(tmp_path, name):
    (tmp_path / "inside.png").write_bytes(png(9))
    (tmp_path / "deep").mkdir()
    split = split_of(
        parquet(tmp_path, image=pa.array([{"bytes": None, "path": name}]), label=["x"]), root=tmp_path
    )

    assert split.read_row(0) == (png(9), 0)


def test_devices_pipes_and_folders_are_not_read(tmp_path, in_ten_seconds):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    structs = pa.array([{"bytes": None, "path": name} for name in ("pipe.png", "folder.png", "gone.png")])
    split = split_of(parquet(tmp_path, image=structs, label=["x", "y", "z"]), root=tmp_path)

    for row in range(3):
        with pytest.raises(DataError, match=r"is missing|cannot be read: "):
            split.read_row(row)


def test_a_row_without_an_image_is_named(tmp_path):
    split = split_of(parquet(tmp_path, image=pa.array([png(), None], pa.binary()), label=["x", "y"]))

    with pytest.raises(DataError, match="a row without an image") as caught:
        split.read_row(1)
    assert caught.value.where == "pets, row 1"


def test_an_unlabelled_row_is_refused_with_its_number(tmp_path):
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    rows = {"image": [{"bytes": png(), "path": None}] * 3, "label": [0, -1, -1]}
    split = split_of(datasets.Dataset.from_dict(rows, features=features))

    with pytest.raises(DataError, match=r"2 of 3 rows of pets have no label \(-1\)") as caught:
        check_labels(split)
    assert "row 1" in caught.value.where


def test_a_row_without_a_label_among_named_classes_is_refused_and_not_counted_as_the_first_class():
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    rows = {"image": [{"bytes": png(), "path": None}] * 3, "label": [0, 1, None]}

    with pytest.raises(DataError, match=r"1 of 3 rows of pets have no label") as caught:
        check_labels(split_of(datasets.Dataset.from_dict(rows, features=features)))
    assert "row 2" in caught.value.where


@pytest.mark.parametrize("labels", [["x", "y", None], [4, 5, None], [True, False, None], [0, 1, -1]])
def test_a_missing_label_is_refused_with_its_row_whatever_the_type(tmp_path, labels):
    split = split_of(parquet(tmp_path, image=pictures(3), label=labels))

    with pytest.raises(DataError, match="1 of 3 rows") as caught:
        check_labels(split)
    assert "row 2: label -1" in caught.value.where


@pytest.mark.parametrize("kind", [pa.string(), pa.string_view(), pa.large_string(), pa.uint8()])
def test_a_missing_label_is_found_in_every_kind_of_column(tmp_path, kind):
    values = ["1", None] if "string" in str(kind) else [1, None]

    with pytest.raises(DataError, match="1 of 2 rows"):
        check_labels(split_of(parquet(tmp_path, image=pictures(2), label=pa.array(values, kind))))


@pytest.mark.parametrize("labels", [[0, 3, 1], [0, 1, -2], [0, 3, -1]])
def test_a_label_outside_the_classes_is_refused_with_the_first_row(labels):
    row = next(row for row, label in enumerate(labels) if not 0 <= label < 3)

    with pytest.raises(DataError, match=r"outside 0 \.\.\. 2") as caught:
        check_labels(numbered(labels))
    assert caught.value.where == f"numbers, row {row}: label {labels[row]}"


def test_labels_from_zero_to_the_last_class_pass():
    check_labels(numbered([0, 1, 2, 2]))


def test_a_part_is_a_window_on_the_rows():
    part = numbered([0, 1, 2, 0, 1]).part(1, 4, name="middle")

    assert len(part) == 3 and part.name == "middle"
    assert [part.read_row(row) for row in range(3)] == [(b"\0\1", 1), (b"\0\2", 2), (b"\0\3", 0)]
    assert part.read_labels().tolist() == [1, 2, 0]
    assert part.where_is(2) == "numbers, row 3"


def test_a_shuffled_part_has_the_rows_of_the_permutation_and_a_part_of_it_too():
    whole = numbered([row % 3 for row in range(20)])
    rows = permute(np.arange(20), num_examples=20, key=5)[3:11]
    part = whole.part(3, 11, name="part", shuffle_key=5)

    assert [part.read_row(row)[0][1] for row in range(8)] == rows.tolist()
    assert part.read_labels().tolist() == [row % 3 for row in rows]
    assert [part.where_is(row) for row in range(8)] == [f"numbers, row {row}" for row in rows]
    assert part.part(2, 4, name="x").read_row(0) == part.read_row(2)


def test_relabelled_rows_keep_their_images():
    split = numbered([0, 1, 2, 1]).relabelled(np.array([2, 0, 1]), ("b", "c", "a"))

    assert [split.read_row(row) for row in range(3)] == [(b"\0\0", 2), (b"\0\1", 0), (b"\0\2", 1)]
    assert split.read_labels().tolist() == [2, 0, 1, 0]
    assert (split.class_names, split.num_classes) == (("b", "c", "a"), 3)
    # What is no label, or fills up rows of several, is none in any numbering.
    assert numbered([0, -1]).relabelled(np.array([2, 0, 1]), ("b", "c", "a")).read_labels().tolist() == [
        2,
        -1,
    ]


def test_the_fingerprint_is_the_same_for_the_same_data_and_another_for_any_other():
    labels = [row % 3 for row in range(200)]
    swapped = [*labels[:101], labels[102], labels[101], *labels[103:]]
    others = [
        numbered(labels[:-1]),
        numbered(swapped),  # two labels far from any row that is looked at
        numbered(labels, num_classes=4),
        numbered(labels, first_byte=1),
        numbered(labels).relabelled(np.arange(3), ("a", "b", "x")),
    ]

    assert numbered(labels).fingerprint == numbered(list(labels)).fingerprint
    assert len({split.fingerprint for split in [numbered(labels), *others]}) == 6


@pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "d"), ("b", "a", "c"), None])
def test_a_held_out_split_of_other_classes_is_refused_though_their_number_is_the_same(names):
    train = numbered([0, 1, 2])
    held_out = replace(train, class_names=names, num_classes=len(names or "abc"))

    check_same_classes(train, train)
    with pytest.raises(DataError, match="do not have the same classes"):
        check_same_classes(train, held_out)


def test_the_fingerprint_of_32_images_is_another_with_any_image_changed():
    def changed(number: int) -> Split:
        split = numbered([0] * 32)
        return replace(split, read_row=lambda row: (b"x", 0) if row == number else split.read_row(row))

    assert len({changed(number).fingerprint for number in range(-1, 32)}) == 33


@pytest.mark.parametrize("label", [3, -1, (0, 3), (-1,)])
def test_a_label_of_a_large_split_is_refused_when_its_row_is_read(label):
    check_label(numbered([0]), 2, 5)
    check_label(numbered([0]), (0, 2), 5)

    with pytest.raises(DataError, match="label") as caught:
        check_label(numbered([0]), label, 5)
    assert caught.value.where == "numbers, row 5"
