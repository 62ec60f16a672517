"""ReaL against the golden file, the published lists, and what can be wrong with a file."""

import gzip
import io
import json
import tarfile
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import data_section
from vitcli.cli import app
from vitcli.data.columns import PATHS
from vitcli.data.dataset import DataSet
from vitcli.data.sources.tables import Choices
from vitcli.data.split import Split
from vitcli.errors import DataError, VitError
from vitcli.evaluation.real_labels import (
    TIMMS_COPY,
    labels_for_rows,
    labels_of_split,
    read_real,
    real_hits,
)


def split_of(count: int, columns: dict[str, list] | None = None) -> Split:
    def read_column(name: str) -> list:
        return columns[name]

    return Split(
        name="pictures",
        num_examples=count,
        class_names=None,
        num_classes=10,
        read_row=lambda row: (b"", 0),
        read_labels=lambda: np.zeros(count, dtype=np.int64),
        where_is=lambda row: f"row {row}",
        read_column=read_column if columns is not None else None,
    )


def accuracy(guesses, lists) -> tuple[float, int]:
    num_right, num_rated = real_hits(guesses, lists)
    return num_right / num_rated, num_rated


def test_the_golden_file_counts_the_same(shared):
    golden = json.loads((shared / "golden/real.json").read_text())

    num_right, num_rated = real_hits(golden["predictions"], golden["labels"])

    assert (num_right, num_rated) == (golden["correct"], golden["rated"])
    assert num_right / num_rated == golden["real_accuracy"]
    assert len(golden["labels"]) - num_rated == golden["unrated"]
    assert golden["real_accuracy"] not in (
        golden["accuracy_if_only_first_label_counted"], golden["accuracy_if_unrated_counted_as_wrong"]
    )  # fmt: skip
    for case in golden["small_cases"]:
        assert accuracy(case["predictions"], case["labels"]) == (case["accuracy"], case["rated"])


def test_the_golden_file_shuffled_is_found_again_by_file_names(shared):
    golden = json.loads((shared / "golden/real.json").read_text())
    order = golden["shuffled_order"]
    paths = [f"val/n01440764/{golden['file_names'][place]}" for place in order]

    lists, found_by = labels_for_rows(split_of(len(order), {PATHS: paths}), golden["labels"], column=None)

    assert found_by == "file name"
    assert accuracy([golden["predictions"][place] for place in order], lists)[0] == golden["real_accuracy"]


@pytest.mark.parametrize("packed", [True, False])
def test_of_the_published_lists_46837_count(shared, tmp_path, packed):
    path = shared / "data/imagenet_real.json.gz"
    if not packed:
        (tmp_path / "real.json").write_bytes(gzip.decompress(path.read_bytes()))
        path = tmp_path / "real.json"

    lists = read_real(str(path))
    of_rows, found_by = labels_for_rows(split_of(50_000), lists, column=None)
    num_right, num_rated = real_hits(np.random.default_rng(0).integers(0, 1000, 50_000).tolist(), of_rows)

    assert found_by == "row"
    assert (len(lists), num_rated) == (50_000, 46_837)
    assert num_right < 100


def test_a_named_column_goes_before_file_names_and_these_before_an_index():
    columns = {PATHS: ["ILSVRC2012_val_00000002.JPEG"], "index": [2], "number": [0]}
    lists = [[1], [2], [3]]

    assert labels_for_rows(split_of(1, columns), lists, column="number") == ([[1]], "column number")
    assert labels_for_rows(split_of(1, columns), lists, column=None) == ([[2]], "file name")
    columns[PATHS] = ["a.jpg"]
    assert labels_for_rows(split_of(1, columns), lists, column=None) == ([[3]], "column index")


def test_the_index_column_and_the_file_names_of_real_images_agree(shared):
    from vitcli.data import dataset

    split = dataset.open_eval(data_section(shared / "data/imagenet_val_227"), "auto")
    lists = read_real(str(shared / "data/imagenet_real.json.gz"))

    by_index, by_name = (labels_for_rows(split, lists, column=column) for column in ("index", None))

    assert by_index == (by_name[0], "column index") and by_name[1] == "file name"
    part = split.part(100, 200, name="a part")
    assert labels_for_rows(part, lists, column=None)[0] == by_name[0][100:200]
    assert sum(map(bool, by_name[0])) == 959


def test_an_image_without_a_label_does_not_count_and_any_of_several_is_right():
    assert real_hits([1, 2, 3, 4], [[1], [], [5, 3], [0]]) == (2, 3)


@pytest.mark.parametrize(("num_right", "is_refused"), [(5, False), (4, True)])
def test_labels_that_agree_with_fewer_than_half_of_the_images_are_those_of_others(num_right, is_refused):
    lists = [[0]] * num_right + [[1]] * (10 - num_right) + [[]]  # every image is of class 0

    if not is_refused:
        assert labels_of_split(split_of(11), lists, None, path="real.json", column=None).lists == lists
        return
    with pytest.raises(DataError, match="agree with the label of only 4 of 10 images"):
        labels_of_split(split_of(11), lists, None, path="real.json", column=None)


def test_as_many_lists_as_rows_where_nothing_else_tells():
    with pytest.raises(DataError, match="3 lists of ReaL labels for 2 rows") as told:
        labels_for_rows(split_of(2), [[1], [2], [3]], column=None)

    assert len(str(told.value).splitlines()) == 3 and "--real-index" in told.value.fix


def test_a_image_beyond_the_lists_is_refused():
    paths = ["ILSVRC2012_val_00000001.JPEG", "ILSVRC2012_val_00000009.JPEG"]

    with pytest.raises(DataError, match="is number 8"):
        labels_for_rows(split_of(2, {PATHS: paths}), [[1], [2], [3]], column=None)


def test_a_column_that_is_not_there_or_holds_no_numbers_is_refused():
    with pytest.raises(DataError, match="no column 'indes', did you mean 'index'"):
        labels_for_rows(split_of(1), [[1]], column="indes")
    with pytest.raises(DataError, match="is number a"):
        labels_for_rows(split_of(1, {"name": ["a"]}), [[1]], column="name")


def test_the_default_column_that_is_not_there_is_not_suggested_in_its_own_place():
    with pytest.raises(DataError) as caught:
        labels_for_rows(split_of(1), [[1]], column="index")
    assert "did you mean" not in caught.value.message


@pytest.mark.parametrize("kind", ["tar", "parquet"])
@pytest.mark.parametrize(("column", "matched_by"), [("index", "column index"), (None, "file name")])
def test_streamed_shards_find_their_labels_by_a_column_or_by_file_names(tmp_path, kind, column, matched_by):
    order, lists = [2, 0, 3, 1], [[0, 7], [1], [2], [0, 3]]
    names = [f"ILSVRC2012_val_{n + 1:08}" for n in order]
    if kind == "tar":
        with tarfile.open(tmp_path / "val.tar", "w") as archive:
            for n, name in zip(order, names, strict=True):
                fields = json.dumps({"label": lists[n][-1], "index": n}).encode()
                for suffix, data in ((".JPEG", b"image"), (".json", fields)):
                    member = tarfile.TarInfo(name + suffix)
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
    else:
        images = [{"bytes": b"image", "path": f"val/{name}.JPEG"} for name in names]
        labels = [lists[n][-1] for n in order]
        pq.write_table(pa.table({"image": images, "label": labels, "index": order}), tmp_path / "val.parquet")
    source = DataSet(str(tmp_path), Choices(num_classes=8, streaming=True)).open("validation")

    real = labels_of_split(source, lists, None, path="real.json", column=column)

    assert real.lists == [lists[n] for n in order] and real.matched_by == matched_by


def test_no_byte_of_a_packed_file_can_fall_over_unnoticed(tmp_path):
    packed = gzip.compress(json.dumps([[n, n + 1] for n in range(50)]).encode(), mtime=0)
    path = tmp_path / "real.json.gz"
    for place in range(10, len(packed)):  # after the header, which tells nothing of the content
        path.write_bytes(packed[:place] + bytes([packed[place] ^ 0x55]) + packed[place + 1 :])
        with pytest.raises(DataError):
            read_real(str(path))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"[[1], [2", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "damaged or not JSON"),
        (b"{}", "holds no lists"),
        (b"[]", "holds no lists"),
        (b"[[1], 2]", "entry 1"),
        (b"[[1], [-1]]", "entry 1"),
        (b'[["a"]]', "entry 0"),
        (b"[[true]]", "entry 0"),
        (gzip.compress(b"[[1]]", mtime=0)[:-6], "damaged"),
    ],
)
def test_a_broken_file_is_reported_in_three_lines(tmp_path, content, match):
    (tmp_path / "real.json").write_bytes(content)

    with pytest.raises(VitError, match=match) as told:
        read_real(str(tmp_path / "real.json"))

    assert len(str(told.value).splitlines()) == 3


def test_a_small_file_that_unpacks_to_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("vitcli.evaluation.real_labels.MOST_TEXT_BYTES", 10_000)
    (tmp_path / "real.json.gz").write_bytes(gzip.compress(b"[" + b" " * 10_000 + b"[1]]"))

    with pytest.raises(DataError, match="unpacks to more than 10,000 bytes"):
        read_real(str(tmp_path / "real.json.gz"))


def test_a_file_that_is_not_there_is_reported(tmp_path):
    with pytest.raises(DataError, match="there is no file"):
        read_real(str(tmp_path / "real.json"))


def test_a_subset_and_a_relabelled_split_keep_their_columns():
    split = split_of(4, {"index": [3, 2, 1, 0]})

    assert split.rows(np.array([3, 1])).read_column("index") == [0, 2]
    assert replace(split, name="x").part(1, 3, name="y").read_column("index") == [2, 1]


def test_without_a_file_the_published_lists_are_timms_copy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lists = read_real(TIMMS_COPY)

    # The published file: 50,000 images, of which 46,837 count (Beyer et al.); the first is a lakeshore snake
    assert len(lists) == 50_000 and sum(map(bool, lists)) == 46_837 and lists[0] == []
    assert app._as_options(["evaluate", "--real"]) == ["evaluate", "--real", "timm"]
    assert app._as_options(["evaluate", "--real", "--json"]) == ["evaluate", "--real", "timm", "--json"]
    assert app._as_options(["evaluate", "--real", "x.json", "-q"]) == ["evaluate", "--real", "x.json", "-q"]
    assert app._as_options([]) == []
    # A file of that name is that file
    (tmp_path / TIMMS_COPY).write_text("[[7]]")
    assert read_real(TIMMS_COPY) == [[7]]
