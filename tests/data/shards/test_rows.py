"""Rows read where they lie: any shard layout, each row once, each block read once, and what is refused."""

import ast
import errno
import gzip
import io
import json
import os
import re
import shutil
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import datasets
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from vitcli.cache import user_cache
from vitcli.data.columns import PATHS
from vitcli.data.shards import block_cache, remote, webdataset
from vitcli.data.shards.block_cache import StoredBlocks
from vitcli.data.shards.paths import find_shards
from vitcli.data.shards.remote import BlockCache, RangeReader, locate
from vitcli.data.shards.rows import _index_of, _Shards, open_shards
from vitcli.data.split import Split
from vitcli.errors import DataError, MachineError

NAMES = ["ant", "bee", "cat"]


class Far(MemoryFileSystem):
    """A remote place that counts what is read from it, and can fail."""

    protocol = "far"
    store: dict = {}  # noqa: RUF012
    pseudo_dirs: list = [""]  # noqa: RUF012
    cachable = False
    reads: list = []  # noqa: RUF012
    failures: list = []  # noqa: RUF012
    seconds_a_read = 0.0

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + path.removeprefix(f"{cls.protocol}://").strip("/")

    def cat_file(self, path, start=None, end=None, **kwargs):
        self.reads.append((path, start, end))
        time.sleep(self.seconds_a_read)
        if self.failures:
            raise self.failures.pop()
        return super().cat_file(path, start, end)


class Hub(Far):
    """The Hub's file system as far as listing goes: its paths begin with `datasets/`, without a slash."""

    protocol = "hf"
    store: dict = {}  # noqa: RUF012

    def find(self, path, **kwargs):
        return [name.strip("/") for name in super().find(path)]


@pytest.fixture(autouse=True)
def _places(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "WAITS_S", (0, 0, 0))
    for place in (Far, Hub):
        place.store.clear()
        place.reads.clear()
        place.failures.clear()
        place.pseudo_dirs[:] = [""]
        monkeypatch.setitem(_registry, place.protocol, place)
    monkeypatch.setattr(Far, "seconds_a_read", 0.0)


def image(number: int, size: int = 40) -> bytes:
    """Bytes that no other number has; shards never look inside an image."""
    return np.random.default_rng(number).bytes(size + number % 7)


def put(path, data: bytes) -> str:
    """Write a local file or a remote one."""
    with fsspec.open(str(path), "wb", auto_mkdir=True) as stream:
        stream.write(data)
    return str(path)


def typed_table(numbers: list[int], names: list[str] = NAMES, size: int = 40) -> datasets.Dataset:
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})
    rows = [{"bytes": image(number, size), "path": f"{number}.jpg"} for number in numbers]
    labels = [number % 3 for number in numbers]
    return datasets.Dataset.from_dict({"image": rows, "label": labels}, features=features)


def parquet(path, numbers, *, rows_a_group: int = 4, names: list[str] = NAMES, size: int = 40) -> str:
    table = typed_table(list(numbers), names, size)
    buffer = io.BytesIO()
    pq.write_table(table.with_format("arrow")[:], buffer, row_group_size=rows_a_group)
    return put(path, buffer.getvalue())


def plain_parquet(path, *, rows_a_group: int = 1, **columns) -> str:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, row_group_size=rows_a_group)
    return put(path, buffer.getvalue())


def tar(path, members: dict[str, bytes], **settings) -> str:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", **settings) as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return put(path, buffer.getvalue())


def samples(numbers) -> dict[str, bytes]:
    """WebDataset's usual members: a picture and the number of its class."""
    pairs = ((f"{n:06}.jpg", image(n), f"{n:06}.cls", str(n % 3).encode()) for n in numbers)
    return {name: data for a, x, b, y in pairs for name, data in ((a, x), (b, y))}


def opened(*urls, image_column=None, label_column=None, **settings) -> Split:
    return open_shards(
        [str(url) for url in urls],
        name="pets",
        image_column=image_column,
        label_column=label_column,
        **settings,
    )


def rows(split: Split) -> list[tuple]:
    return [split.read_row(row) for row in range(len(split))]


def expected(numbers) -> list[tuple]:
    return [(image(number), number % 3) for number in numbers]


def message(error) -> str:
    return f"{error.value.message} | {error.value.where} | {error.value.fix}"


# Rows


@pytest.mark.parametrize("place", ["{}", "far://pets"])
def test_every_row_of_parquet_comes_once_and_as_datasets_reads_it(tmp_path, place):
    counts, first, urls = (9, 1, 13, 4, 6), 0, []
    for number, count in enumerate(counts):
        path = tmp_path / "set" / f"train-{number:05}.parquet"
        parquet(path, range(first, first + count), rows_a_group=4)
        urls.append(put(f"{place.format(tmp_path / 'copy')}/{path.name}", path.read_bytes()))
        first += count
    truth = datasets.load_dataset("parquet", data_dir=str(tmp_path / "set"), split="train")
    truth = truth.cast_column("image", datasets.Image(decode=False))
    split = opened(*urls)

    assert len(split) == len(truth) == 33
    assert rows(split) == [(row["image"]["bytes"], row["label"]) for row in truth] == expected(range(33))
    assert split.read_labels().tolist() == truth["label"][:]
    assert (split.class_names, split.num_classes) == (tuple(NAMES), 3)


@pytest.mark.parametrize("place", ["{}", "far://pets"])
def test_every_sample_of_webdataset_comes_once_and_as_datasets_reads_it(tmp_path, place):
    urls = [
        tar(f"{place.format(tmp_path)}/{number}.tar", samples(range(5 * number, 5 * number + 5 - number)))
        for number in range(3)
    ]
    local = [tar(tmp_path / "local" / Path(url).name, {}) for url in urls]
    for url, copy in zip(urls, local, strict=True):
        put(copy, fsspec.open(url).open().read())
    truth = datasets.load_dataset("webdataset", data_files={"train": local}, split="train")
    truth = truth.cast_column("jpg", datasets.Image(decode=False))
    split = opened(*urls)

    assert rows(split) == [(row["jpg"]["bytes"], row["cls"]) for row in truth]
    assert rows(split) == expected([0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12])
    assert (split.class_names, split.num_classes) == (None, 3)


def test_a_row_is_called_by_its_shard_and_its_place_there(tmp_path):
    urls = [parquet(tmp_path / f"{number}.parquet", range(5)) for number in range(3)]
    split = opened(*urls)

    assert split.where_is(0) == f"{urls[0]}, row 0"
    assert split.where_is(4) == f"{urls[0]}, row 4"
    assert split.where_is(11) == f"{urls[2]}, row 1"


@pytest.mark.parametrize("row", [-1, 5])
def test_there_is_no_row_before_the_first_or_after_the_last(tmp_path, row):
    split = opened(parquet(tmp_path / "a.parquet", range(5)))

    with pytest.raises(IndexError):
        split.read_row(row)


def test_the_labels_of_local_tars_come_from_their_indices(tmp_path):
    split = opened(*(tar(tmp_path / f"{number}.tar", samples(range(number, 7))) for number in range(3)))

    assert split.read_labels().tolist() == [row % 3 for start in range(3) for row in range(start, 7)]


@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_other_columns_are_read_in_the_order_of_the_rows_without_images(tmp_path, kind):
    numbers = [[5, 3], [], [4, 0, 1]]
    for shard, own in enumerate(numbers):
        path = tmp_path / f"{shard}.{kind}"
        if kind == "tar":
            fields = {n: json.dumps({"label": n % 3, "index": n}).encode() for n in own}
            tar(
                path,
                {name: d for n in own for name, d in ((f"a/{n}.jpg", image(n)), (f"a/{n}.json", fields[n]))},
            )
        elif own:
            images = [{"bytes": image(n), "path": f"a/{n}.jpg"} for n in own]
            plain_parquet(path, image=images, label=[n % 3 for n in own], index=own)
    split = opened(*sorted(tmp_path.glob(f"*.{kind}")))

    assert split.column("index") == [5, 3, 4, 0, 1]
    assert split.column(PATHS) == [f"a/{n}.jpg" for n in (5, 3, 4, 0, 1)]
    assert [split.read_row(row)[0] for row in range(5)] == [image(n) for n in (5, 3, 4, 0, 1)]
    assert split.rows(np.array([4, 1])).column("index") == [1, 3]
    assert split.column("nothing") is None and split.column("image") is None


def test_columns_of_a_far_tar_are_not_read_since_every_byte_would_be_fetched():
    assert opened(tar("far://a.tar", samples([1]))).column("index") is None


def test_shards_without_rows_are_passed_over(tmp_path):
    empty = plain_parquet(tmp_path / "0.parquet", other=pa.array([], pa.null()))
    assert rows(opened(empty, parquet(tmp_path / "1.parquet", [5]), empty)) == expected([5])
    assert rows(opened(tar(tmp_path / "0.tar", {}), tar(tmp_path / "1.tar", samples([5])))) == expected([5])


# Columns and members


@pytest.mark.parametrize("column", ["image", "jpg", "png", "img"])
@pytest.mark.parametrize("label", ["label", "cls", "class"])
def test_columns_without_types_are_found_by_their_usual_names(tmp_path, column, label):
    pictures = {column: [image(0), image(1)], "thumbnail": [b"small", b"small"]}
    split = opened(plain_parquet(tmp_path / "a.parquet", **pictures, **{label: [4, 2], "width": [64, 32]}))

    assert rows(split) == [(image(0), 4), (image(1), 2)]
    assert (split.class_names, split.num_classes) == (None, 5)


def test_columns_can_be_named(tmp_path):
    columns = dict(a=[b"one"], b=[b"two"], x=[1], y=[2])
    split = opened(plain_parquet(tmp_path / "a.parquet", **columns), image_column="b", label_column="x")

    assert rows(split) == [(b"two", 1)]


@pytest.mark.parametrize(
    "values", [pa.array([2, 0], pa.uint8()), pa.array([True, False]), pa.array([2, 1], pa.int16())]
)
def test_every_kind_of_whole_number_is_a_label(tmp_path, values):
    split = opened(plain_parquet(tmp_path / "a.parquet", image=[b"x", b"y"], label=values))

    assert (
        [label for _, label in rows(split)]
        == split.read_labels().tolist()
        == values.cast("int64").to_pylist()
    )
    assert all(type(label) is int for _, label in rows(split))
    assert split.num_classes == max(values.cast("int64").to_pylist()) + 1


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.int32()), pa.list_(pa.int8(), 2)])
def test_a_list_of_labels_is_several_labels(tmp_path, kind):
    labels = pa.array([[3, 1], [0, 2]], kind)
    split = opened(plain_parquet(tmp_path / "a.parquet", image=[b"x", b"y"], label=labels))

    assert [label for _, label in rows(split)] == [(3, 1), (0, 2)]
    assert split.num_classes == 4
    with pytest.raises(DataError, match="rows have several labels"):
        split.read_labels()


def test_a_list_of_labels_keeps_its_class_names(tmp_path):
    features = datasets.Features(
        {"image": datasets.Image(), "tags": datasets.List(datasets.ClassLabel(names=NAMES))}
    )
    table = datasets.Dataset.from_dict(
        {"image": [{"bytes": b"x", "path": None}] * 2, "tags": [[], [0, 2]]}, features=features
    )
    table.to_parquet(tmp_path / "a.parquet")
    split = opened(tmp_path / "a.parquet")

    assert ([label for _, label in rows(split)], split.class_names) == ([(), (0, 2)], tuple(NAMES))


def test_members_belong_together_by_path_up_to_the_first_dot_in_any_order(tmp_path):
    members = {"a/x.y/0.jpg": b"A0", "b/x.y/0.JPEG": b"B0", "b/x.y/0.cls": b" 7\n", "a/x.y/0.cls": b"5"}

    assert rows(opened(tar(tmp_path / "a.tar", members))) == [(b"A0", 5), (b"B0", 7)]


@pytest.mark.parametrize("suffix", ["jpg", "jpeg", "png", "webp", "ppm", "bmp", "gif", "tif", "JPG"])
def test_every_kind_of_image_is_found_by_its_suffix(tmp_path, suffix):
    members = {f"0.{suffix}": b"x", "0.txt": b"a caption", "0.cls": b"0"}

    assert rows(opened(tar(tmp_path / "a.tar", members))) == [(b"x", 0)]


@pytest.mark.parametrize("field", ["label", "cls", "class"])
def test_a_label_may_stand_in_json_as_a_number_or_as_several(tmp_path, field):
    one = {"0.jpg": b"x", "0.json": json.dumps({"width": 3, field: 2}).encode()}
    many = {"0.jpg": b"x", "0.json": json.dumps({field: [4, 2]}).encode()}
    many |= {"1.jpg": b"y", "1.json": json.dumps({field: []}).encode()}
    many |= {"2.jpg": b"z", "2.json": json.dumps({field: [7]}).encode()}

    assert rows(opened(tar(tmp_path / "one.tar", one))) == [(b"x", 2)]
    assert rows(opened(tar(tmp_path / "many.tar", many))) == [(b"x", (4, 2)), (b"y", ()), (b"z", (7,))]


def test_a_suffix_or_a_field_can_be_named(tmp_path):
    members = {"0.left.png": b"l", "0.right.png": b"r", "0.cls": b"1", "0.breed": b"2"}
    members["0.json"] = b'{"size": 3, "label": 4}'
    path = tar(tmp_path / "a.tar", members)

    assert rows(opened(path, image_column="left.png")) == [(b"l", 1)]
    assert rows(opened(path, image_column="right.png", label_column="breed")) == [(b"r", 2)]
    assert rows(opened(path, image_column="right.png", label_column="size")) == [(b"r", 3)]


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_foreign_names_in_tars_are_read(tmp_path, kind):
    members = {f"{'ordner/' * 30}bär{number}.{suffix}": data for number in range(2)
               for suffix, data in (("jpg", image(number)), ("cls", b"%d" % number))}  # fmt: skip

    assert rows(opened(tar(tmp_path / "a.tar", members, format=kind))) == expected([0, 1])


# Where shards lie


def test_a_folder_is_split_by_words_in_names_and_nested_folders_in_natural_order(tmp_path):
    for name in ("train/10.tar", "train/9.tar", "val_0.tar", "x/Testing-1.tar", "rest.tar", ".hidden/0.tar"):
        tar(tmp_path / name, {})
    (tmp_path / "train" / "readme.txt").write_text("not a shard")
    found = {
        split: [str(Path(url).relative_to(tmp_path)) for url in urls]
        for split, urls in find_shards(str(tmp_path)).items()
    }

    assert found == {
        "train": ["rest.tar", "train/9.tar", "train/10.tar"],
        "validation": ["val_0.tar"],
        "test": ["x/Testing-1.tar"],
    }


def test_one_file_is_a_split(tmp_path):
    path = parquet(tmp_path / "pets [v1].parquet", range(3))

    assert find_shards(path) == {"train": [path]}
    assert rows(opened(*find_shards(path)["train"])) == expected(range(3))


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("train-{00008..00011}.tar", [f"train-{number:05}.tar" for number in (8, 9, 10, 11)]),
        ("train-{8..10}.tar", ["train-8.tar", "train-9.tar", "train-10.tar"]),
        ("{a,b}-{0..1}.tar", ["a-0.tar", "a-1.tar", "b-0.tar", "b-1.tar"]),
        ("x{{0..1},7}.tar", ["x0.tar", "x1.tar", "x7.tar"]),
    ],
)
def test_braces_count_and_choose_as_webdataset_writes_them(pattern, found):
    assert find_shards(f"far://bucket/in/{pattern}") == {
        "train": [f"far://bucket/in/{name}" for name in found]
    }


def test_braces_may_name_several_splits_and_queries_are_no_patterns():
    found = find_shards("https://host/cars/{train,val}/{0..1}.tar?key=a*b")

    assert list(found) == ["train", "validation"]
    assert found["validation"][1] == "https://host/cars/val/1.tar?key=a*b"


def test_stars_are_looked_up_here_and_far_away(tmp_path):
    for number in (1, 2, 10):
        tar(tmp_path / f"train-{number}.tar", {})
        tar(f"far://bucket/set/test/{number}.tar", {})
    tar("far://bucket/set/notes/1.tar", {})

    assert find_shards(f"{tmp_path}/train-*.tar")["train"] == [
        f"{tmp_path}/train-{number}.tar" for number in (1, 2, 10)
    ]
    (only,) = find_shards("far://bucket/set/te*/*.tar").items()
    assert only == ("test", [f"far:///bucket/set/test/{number}.tar" for number in (1, 2, 10)])
    assert len(find_shards("far://bucket/set")["train"]) == 1  # notes/1.tar
    assert rows(
        opened(*find_shards("far://bucket/set/test/{1,2}.tar")["train"], tar("far://3.tar", samples([3])))
    )


def hub(*names: str) -> None:
    for name in names:
        parquet(f"hf://datasets/them/{name}", range(2))


def test_a_hub_id_is_its_parquet_files(tmp_path):
    hub("pets/data/train-00000.parquet", "pets/data/test-00000.parquet", "other/train.parquet")
    put("hf://datasets/them/pets/README.md", b"")
    found = find_shards("them/pets")

    assert found == {
        "test": ["hf://datasets/them/pets/data/test-00000.parquet"],
        "train": ["hf://datasets/them/pets/data/train-00000.parquet"],
    }
    assert rows(opened(*found["train"])) == expected(range(2))


def test_a_hub_id_may_name_a_configuration_and_a_revision(tmp_path):
    hub("pets@v2%2F1/big/train.parquet", "pets@v2%2F1/small/train/0.parquet")

    for config, name in (("big", "big/train"), ("small", "small/train/0")):
        found = find_shards(f"them/pets:{config}@v2/1")
        assert found == {"train": [f"hf://datasets/them/pets@v2%2F1/{name}.parquet"]}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("them/pets", "several configurations.*them/pets:big, them/pets:small"),
        ("them/pets:medium", "no configuration 'medium'.*them/pets:big, them/pets:small"),
        ("them/none", "holds no shards|it does not exist"),
        ("them/cut", "converted only a part"),
        ("them/deep", "several configurations.*them/deep:big, them/deep:small"),
    ],
)
def test_a_hub_id_that_leaves_a_choice_is_refused(source, words):
    hub("deep/data/big/train.parquet", "deep/data/small/train.parquet")
    hub("pets/big/train.parquet", "pets/small/train.parquet", "cut/all/partial-train/0.parquet")

    with pytest.raises(DataError) as caught:
        find_shards(source)
    assert re.search(words, message(caught))


def test_two_kinds_of_shards_in_a_folder_are_refused(tmp_path):
    tar(tmp_path / "0.tar", {})
    parquet(
        tmp_path / "0.parquet", [1]
    )  # as img2dataset writes them: the second only says what is in the first

    with pytest.raises(DataError, match=r"both \.parquet and \.tar") as caught:
        find_shards(str(tmp_path))
    assert f"{tmp_path}/*.tar" in caught.value.fix


@pytest.mark.parametrize(
    "source", ["{}", "{}/*.tar", "{}/nothing", "far://none", "nope://x/0.tar/", "pipe:cat x"]
)
def test_a_place_without_shards_is_refused_with_what_may_be_named(tmp_path, source):
    with pytest.raises(DataError) as caught:
        find_shards(source.format(tmp_path))
    assert caught.value.where and caught.value.fix


# Blocks and their cache


def test_four_threads_in_order_read_each_block_once(monkeypatch):
    urls = [parquet(f"far://pets/{n}.parquet", range(20 * n, 20 * n + 20), rows_a_group=5) for n in range(4)]
    split = opened(*urls)
    monkeypatch.setattr(Far, "seconds_a_read", 0.002)
    Far.reads.clear()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(split.read_row, range(80)))

    assert found == expected(range(80))
    assert len(Far.reads) == len(set(Far.reads)) == 4 * 4  # row groups; the footer was kept when they opened


@pytest.mark.parametrize("write", [
    lambda number: parquet(f"far://pets/{number}.parquet", range(9), rows_a_group=3),
    lambda number: tar(f"far://pets/{number}.tar", samples(range(9))),
])  # fmt: skip
def test_what_an_earlier_epoch_or_command_read_is_not_downloaded_again(write, monkeypatch):
    urls = [write(number) for number in range(2)]
    found = [*map(opened(*urls).read_row, range(18))]
    Far.reads.clear()

    assert [*map(opened(*urls).read_row, range(18))] == found and Far.reads == []
    # A damaged block is read again, and so is a shard that has changed.
    for blocks in user_cache.cache_folder("shards").glob("*/rows-*"):
        with blocks.open("r+b") as file:
            file.write(bytes(2**20))
    assert [*map(opened(*urls).read_row, range(18))] == found and len(Far.reads) >= 2
    Far.reads.clear()
    write(1)
    assert [*map(opened(*urls).read_row, range(18))] == found
    assert {path.rpartition("/")[2][0] for path, *_ in Far.reads} == {"1"}


def test_blocks_beyond_the_limit_are_downloaded_each_time_and_those_that_came_first_stay(monkeypatch):
    urls = [tar(f"far://pets/{number}.tar", samples(range(90))) for number in range(4)]
    size = Far.store["/pets/0.tar"].size
    monkeypatch.setenv("VIT_CACHE_LIMIT", str(int(2.9 * size)))
    for _ in range(2):
        found = [*map(opened(*urls, cache_bytes=2 * size).read_row, range(360))]

    kept = sum(entry.num_bytes for entry in user_cache.all_entries(["shards"]))
    assert size < kept <= 2.9 * size + 50_000  # of its index
    Far.reads.clear()
    assert [*map(opened(*urls).read_row, range(360))] == found
    assert 0 < len({path for path, *_ in Far.reads}) < 4


def test_four_threads_in_order_read_each_remote_tar_once(monkeypatch):
    urls = [tar(f"far://pets/{number}.tar", samples(range(20))) for number in range(4)]
    split = opened(*urls)
    monkeypatch.setattr(Far, "seconds_a_read", 0.002)
    Far.reads.clear()
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(split.read_row, range(80))) == expected(range(20)) * 4

    assert sorted(Far.reads) == [(f"/pets/{n}.tar", 0, locate(urls[n]).size) for n in range(4)]


def test_the_cache_forgets_what_was_used_longest_ago_and_stays_within_its_limit():
    cache, loaded = BlockCache(100), []

    def get(key: str, size: int = 40) -> None:
        cache.get(key, lambda: (loaded.append(key), size))
        assert cache.num_bytes <= 100

    for key in ("a", "b", "a", "c", "a", "b"):
        get(key)
    assert loaded == ["a", "b", "c", "b"]
    get("whole", 100)
    assert cache.num_bytes == 100
    get("a", 1)
    assert (cache.num_bytes, loaded[-1]) == (1, "a")


def test_rows_in_any_order_come_right_from_a_cache_of_one_block(tmp_path):
    urls = [
        parquet(tmp_path / f"{number}.parquet", range(10 * number, 10 * number + 10)) for number in range(3)
    ]
    split = opened(*urls, cache_bytes=4_000)
    order = np.random.default_rng(0).permutation(30).tolist() * 3
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(split.read_row, order)) == expected(order)


def test_a_block_that_cannot_be_read_fails_in_every_thread_and_is_not_cached(monkeypatch):
    split = opened(tar("far://pets/0.tar", samples(range(4))))
    monkeypatch.setattr(Far, "seconds_a_read", 0.02)
    Far.failures[:] = [OSError("connection reset")] * 4

    def try_row(row: int) -> str:
        try:
            return split.read_row(row)[0]
        except MachineError as error:
            return f"{error.message}, {error.where}"

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(try_row, range(4))) == {
            "0.tar cannot be read: connection reset, far://pets/0.tar"
        }
    assert rows(split) == expected(range(4))


@pytest.mark.parametrize("error", [OSError("reset"), TimeoutError(), RuntimeError("of some client")])
def test_a_remote_read_is_tried_again(error):
    split = opened(parquet("far://pets/0.parquet", range(4)))
    Far.failures[:] = [error] * 3

    assert split.read_row(2) == expected([2])[0]


def test_reading_by_ranges_is_reading_a_file():
    data = image(0, 100)
    ours, truth = RangeReader(locate(put("far://pets/0.tar", data))), io.BytesIO(data)
    assert (ours.readable(), ours.seekable()) == (True, True)
    for seek in ((5,), (7, 1), (-3, 1), (-9, 2), (200,), (0, 2), (0,)):
        assert ours.seek(*seek) == truth.seek(*seek) == ours.tell()
        assert ours.read(4) == truth.read(4)
    assert ours.read() == truth.read()
    assert ours.seek(-200, io.SEEK_CUR) == ours.tell() == 0  # there is nothing before the start
    assert io.BufferedReader(RangeReader(ours.file)).read() == data


def test_a_read_that_comes_back_short_is_no_row(monkeypatch):
    split = opened(tar("far://pets/0.tar", samples(range(4))))
    monkeypatch.setattr(MemoryFileSystem, "cat_file", lambda self, path, start, end: b"x" * (end - start - 1))

    with pytest.raises(MachineError, match="bytes instead of"):
        split.read_row(0)


def test_a_block_larger_than_the_cache_is_refused_before_anything_is_read():
    pictures = parquet("far://pets/0.parquet", range(4), size=1000)
    whole = tar("far://pets/0.tar", samples(range(4)))  # of 10 kB

    for url, too_little, enough in ((pictures, 4_000, 9_000), (whole, 10_000, 12_000)):
        with pytest.raises(DataError, match="does not fit into a cache") as caught:
            opened(url, cache_bytes=too_little)
        assert caught.value.where == url
        assert opened(url, cache_bytes=enough).read_row(3)


def test_of_a_tar_on_this_disk_only_the_index_is_kept(tmp_path):
    assert rows(opened(tar(tmp_path / "0.tar", samples(range(4))), cache_bytes=2_000)) == expected(range(4))


def test_a_block_that_turns_out_larger_than_the_cache_is_refused(tmp_path):
    same = plain_parquet(tmp_path / "0.parquet", image=[bytes(1000)] * 100, label=[0] * 100, rows_a_group=100)
    split = opened(same, cache_bytes=50_000)  # written once and named a hundred times

    with pytest.raises(DataError, match="does not fit into a cache"):
        split.read_row(0)


# Counts, classes and indices


def test_the_index_of_a_shard_is_made_once_and_anew_when_the_shard_changes():
    url = tar("far://pets/0.tar", samples(range(3)))
    opened(url)
    Far.reads.clear()
    assert len(opened(url)) == 3
    assert not [read for read in Far.reads if read[0].endswith(".tar")]

    time.sleep(0.002)
    tar(url, samples(range(4, 7)))
    assert rows(opened(url)) == expected(range(4, 7))


def test_the_kept_index_of_a_local_shard_is_keyed_by_what_changes_with_it(tmp_path):
    url = tar(tmp_path / "0.tar", samples(range(3)))
    opened(url)
    stored = list((tmp_path / "cache").rglob("rows-*"))
    opened(url)
    assert list((tmp_path / "cache").rglob("rows-*")) == stored and len(stored) == 1

    stored[0].write_bytes(b"damaged")
    assert rows(opened(url)) == expected(range(3))
    os.utime(url, ns=(1, 1))
    opened(url)
    assert len(list((tmp_path / "cache").rglob("rows-*"))) == 3


def test_a_cache_folder_that_cannot_be_written_to_costs_time_only(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    assert rows(opened(tar(tmp_path / "0.tar", samples(range(3))))) == expected(range(3))


WIDS = {"shardlist": [{"url": f"/their/disk/{number}.tar", "nsamples": 5} for number in range(3)]}
TIMM = {
    "splits": {"train": {"filenames": [f"{number}.tar" for number in range(3)], "shard_lengths": [5] * 3}}
}


@pytest.mark.parametrize(("name", "told"), [("shardindex.json", WIDS), ("_info.json", TIMM)])
def test_a_file_that_counts_saves_reading_remote_tars_until_they_are_needed(name, told):
    urls = [
        tar(f"far://pets/{number}.tar", samples(range(5 * number, 5 * number + 5))) for number in range(3)
    ]
    put(f"far://pets/{name}", json.dumps(told).encode())
    split = opened(*urls, num_classes=3)

    assert not [read for read in Far.reads if read[0].endswith(".tar")]
    assert len(split) == 15
    assert rows(split) == expected(range(15))


@pytest.mark.parametrize("count", [4, 6])
def test_a_file_that_counts_wrongly_is_found_out(count):
    url = tar("far://pets/0.tar", samples(range(count)))
    put("far://pets/shardindex.json", json.dumps(WIDS).encode())
    split = opened(url, num_classes=3)

    with pytest.raises(DataError, match=rf"0.tar has {count} samples, and 5 are expected"):
        split.read_row(0)


def test_ranges_that_begin_alike_are_kept_apart():
    put("far://pets/0.tar", bytes(range(100)))
    file = locate("far://pets/0.tar", StoredBlocks("pets"))
    wanted = [(0, 10), (0, 20), (5, 20), (0, 10)]

    assert [file.read_cached(*ends) for ends in wanted] == [bytes(range(*ends)) for ends in wanted]


def test_shards_of_equal_names_and_counts_but_other_sizes_are_other_data(tmp_path):
    def fingerprint(folder: str, numbers: range) -> str:
        return opened(tar(tmp_path / folder / "0.tar", samples(numbers)), num_classes=3).fingerprint

    here, there = (fingerprint(folder, range(3)) for folder in ("here", "there"))
    members = samples(range(3))
    members[min(members).partition(".")[0] + ".txt"] = bytes(10_000)
    larger = tar(tmp_path / "larger/0.tar", members)

    assert here == there != opened(larger, num_classes=3).fingerprint


def test_a_count_that_the_bytes_of_a_shard_cannot_hold_is_refused_unread():
    url = tar("far://pets/0.tar", samples(range(4)))
    told = {"shardlist": [{"url": "0.tar", "nsamples": 10**18}]}
    put("far://pets/shardindex.json", json.dumps(told).encode())
    Far.reads.clear()

    with pytest.raises(DataError, match="and 1,000,000,000,000,000,000 samples are expected") as refused:
        opened(url, num_classes=3)
    assert refused.value.where == url and not [read for read in Far.reads if read[0].endswith(".tar")]


def test_nothing_else_beside_the_shards_is_taken_for_counts():
    url = tar("far://pets/0.tar", samples(range(4)))
    for number, text in enumerate(("{", "[]", '{"shardlist": 3}', '{"splits": {"a": {}}}')):
        put(f"far://pets/{('shardindex', 'index', '_info', 'info')[number]}.json", text.encode())

    assert rows(opened(url, num_classes=3)) == expected(range(4))


def test_labels_of_remote_tars_are_not_listed():
    with pytest.raises(DataError, match=r"remote \.tar files"):
        opened(tar("far://pets/0.tar", samples(range(3)))).read_labels()


def test_the_number_of_classes_can_be_given_and_is_needed_where_nothing_tells_it(tmp_path):
    buffer = io.BytesIO()
    pq.write_table(pa.table({"image": [b"x"], "label": [2]}), buffer, write_statistics=False)
    url = put(tmp_path / "a.parquet", buffer.getvalue())

    assert opened(url, num_classes=9).num_classes == 9
    with pytest.raises(DataError, match="number of classes of") as caught:
        opened(url)
    assert "num_classes" in caught.value.fix


def test_classes_are_counted_over_all_blocks_and_shards(tmp_path):
    urls = [
        plain_parquet(tmp_path / f"{number}.parquet", image=[b"x"] * 3, label=labels)
        for number, labels in enumerate(([1, 7, 2], [3, 0, 3]))
    ]

    assert [opened(*found).num_classes for found in (urls, urls[::-1], urls[:1], urls[1:])] == [8, 8, 8, 4]


def test_given_classes_that_are_not_those_of_the_data_are_refused(tmp_path):
    with pytest.raises(DataError, match="3 class names, and num_classes is 4"):
        opened(parquet(tmp_path / "a.parquet", range(3)), num_classes=4)
    with pytest.raises(DataError, match=r"labels go from 0 to 2, and the classes are 0 ... 1"):
        opened(tar(tmp_path / "a.tar", samples(range(3))), num_classes=2)


def test_unlabelled_rows_are_refused_at_once_or_when_they_are_read(tmp_path):
    url = plain_parquet(tmp_path / "a.parquet", image=[b"x"] * 3, label=[1, -1, 0])
    with pytest.raises(DataError, match="labels go from -1 to 1") as caught:
        opened(url)
    assert caught.value.where == url

    split = opened(plain_parquet(tmp_path / "b.parquet", image=[b"x", b"y"], label=[0, None], rows_a_group=2))
    assert split.read_labels().tolist() == [0, -1]
    with pytest.raises(DataError, match="a row has no label"):
        split.read_row(1)


def test_a_hundred_shards_open_without_the_parser_of_python(tmp_path, monkeypatch):
    """They open in several threads, and the parser of Python 3.11 fails now and then in two at once."""
    monkeypatch.setattr(ast, "literal_eval", None)
    one = Path(parquet(tmp_path / "one.parquet", range(6))).read_bytes()
    two = Path(tar(tmp_path / "two.tar", samples(range(2)))).read_bytes()
    for name in ("set", "tars"):
        (tmp_path / name).mkdir()
    for number in range(100):
        (tmp_path / "set" / f"train-{number:05}-of-00100.parquet").write_bytes(one)
        (tmp_path / "tars" / f"train-{number:05}.tar").write_bytes(two)
    for folder, count in (("set", 600), ("tars", 200)):
        new, cached = (opened(*find_shards(str(tmp_path / folder))["train"]) for _ in range(2))
        assert len(new) == len(cached) == count
        assert new.read_row(count - 1) == cached.read_row(count - 1)


def test_the_fingerprint_follows_the_data_and_not_its_place(tmp_path):
    def fingerprint(*urls, **asked) -> str:
        return open_shards(urls, name="x", image_column=None, label_column=None, **asked).identity

    here = [parquet(tmp_path / f"{number}.parquet", range(number, 9)) for number in range(2)]
    there = [put(f"far://copy/{Path(url).name}", Path(url).read_bytes()) for url in here]

    assert fingerprint(*here) == fingerprint(*there)
    other_names = parquet(tmp_path / "x" / "0.parquet", range(9), names=["ant", "bee", "cow"])
    fewer = parquet(tmp_path / "y" / "0.parquet", range(8))
    regrouped = parquet(tmp_path / "z" / "0.parquet", range(9), rows_a_group=3)
    kinds = [here, here[::-1], here[:1], [other_names], [fewer], [regrouped]]
    assert len({fingerprint(*urls) for urls in kinds}) == len(kinds)


# What is refused


def test_shards_without_rows_are_refused(tmp_path):
    with pytest.raises(DataError, match="pets has no rows"):
        opened(tar(tmp_path / "0.tar", {}))


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["train-0.tar", "test-0.tar"], "to several splits: test, train"),
        (["train/0.tar", "val/0.tar"], "to several splits: train, validation"),
    ],
)
def test_shards_that_do_not_belong_together_are_refused(tmp_path, names, words):
    for name in names:
        tar(tmp_path / name, samples([1]))

    with pytest.raises(DataError, match=words) as caught:
        opened(*(tmp_path / name for name in names))
    assert str(tmp_path / names[-1]) in message(caught)


def test_a_word_of_a_split_above_all_shards_says_nothing(tmp_path):
    urls = [tar(tmp_path / "test" / name, samples([1])) for name in ("train-0.tar", "0.tar")]

    assert len(opened(*urls)) == 2


@pytest.mark.parametrize(
    "url", ["{}/gone.tar", "far://gone.parquet", "{}/link.tar", "{}/pipe.tar", "{}/folder.tar"]
)
def test_a_shard_that_is_no_file_is_refused_by_name(tmp_path, url):
    os.mkfifo(tmp_path / "pipe.tar")
    os.symlink(tmp_path / "nowhere", tmp_path / "link.tar")
    (tmp_path / "folder.tar").mkdir()

    with pytest.raises(DataError, match=r"does not exist|not a file") as caught:
        opened(url.format(tmp_path))
    assert caught.value.where == url.format(tmp_path)


def test_shards_with_other_columns_or_classes_are_refused(tmp_path):
    first = parquet(tmp_path / "0.parquet", range(3))
    others = {
        "class names": parquet(tmp_path / "1.parquet", range(3), names=["bee", "ant", "cat"]),
        "image, class names": plain_parquet(tmp_path / "2.parquet", picture=[b"x"], label=[1]),
        "has many": plain_parquet(tmp_path / "3.parquet", image=[b"x"], label=[[1]]),
    }
    for part, other in others.items():
        with pytest.raises(DataError, match=f"differ in their .*{part}") as caught:
            opened(first, other)
        assert caught.value.where == f"{other}, unlike {first}"


def test_a_shard_without_the_columns_is_refused_by_name(tmp_path):
    good = plain_parquet(tmp_path / "0.parquet", image=[b"x"], label=[1])
    bad = plain_parquet(tmp_path / "1.parquet", image=[b"x"], caption=["a cat"])

    with pytest.raises(DataError, match=r"1.parquet has no column 'label'"):
        opened(good, bad, label_column="label")


def test_labels_in_words_without_class_names_are_refused_with_advice(tmp_path):
    url = plain_parquet(tmp_path / "0.parquet", image=[b"x"], label=["cat"])

    with pytest.raises(DataError, match="are text") as caught:
        opened(url)
    assert "ClassLabel" in caught.value.fix


@pytest.mark.parametrize("path", ["/etc/hostname", "http://host/a.jpg", "0.jpg", "../0.jpg"])
def test_a_path_in_the_place_of_an_image_is_never_read(tmp_path, path):
    (tmp_path / "0.jpg").write_bytes(b"secret")
    pictures = pa.array([{"bytes": b"x", "path": path}, {"bytes": None, "path": path}])
    split = opened(plain_parquet(tmp_path / "0.parquet", image=pictures, label=[1, 0]))

    assert split.read_row(0) == (b"x", 1)
    with pytest.raises(DataError, match="is outside the data set") as caught:
        split.read_row(1)
    assert caught.value.where == split.where_is(1) == f"{tmp_path}/0.parquet, row 1"


@pytest.mark.parametrize("kept", [0, 3, 100, -1, -9, -2000])
@pytest.mark.parametrize("place", ["{}", "far://pets"])
def test_a_truncated_parquet_file_is_refused_by_name(tmp_path, place, kept):
    data = Path(parquet(tmp_path / "whole.parquet", range(30))).read_bytes()
    url = put(f"{place.format(tmp_path)}/0.parquet", data[:kept])

    with pytest.raises(DataError, match=r"0.parquet cannot be read") as caught:
        opened(url)
    assert caught.value.where == url


def test_parquet_with_damaged_pages_gives_no_wrong_rows(tmp_path):
    buffer = io.BytesIO()
    table = pa.table({"image": [image(number) for number in range(8)], "label": list(range(8))})
    pq.write_table(table, buffer, write_page_checksum=True, compression="none", use_dictionary=False)
    data = bytearray(buffer.getvalue())
    data[data.index(image(5)) + 3] ^= 1
    split = opened(put(tmp_path / "0.parquet", bytes(data)))

    with pytest.raises(DataError, match=r"0.parquet cannot be read"):
        split.read_row(0)


@pytest.mark.parametrize("place", ["{}", "far://pets"])
def test_a_tar_that_is_cut_anywhere_is_refused_and_no_sample_is_lost_in_silence(tmp_path, place):
    data = Path(tar(tmp_path / "whole.tar", samples(range(3)))).read_bytes()
    end = 6 * 1024  # of the last member; the rest is the mark of the end
    assert len(data) > end and not any(data[end:])
    for kept in (*range(0, end + 512, 512), 100, 1000, 1024 + 10, end - 1, end + 100):
        url = put(f"{place.format(tmp_path)}/0.tar", data[:kept])
        with pytest.raises(DataError, match=r"0.tar cannot be read"):
            opened(url)
    assert len(opened(put(f"{place.format(tmp_path)}/0.tar", data[: end + 512]))) == 3


@pytest.mark.parametrize("size", [-512, -1, 2**40])
def test_a_tar_whose_header_lies_about_a_size_is_refused(tmp_path, size):
    member = tarfile.TarInfo("0.jpg")
    member.size = size
    header = member.tobuf(tarfile.GNU_FORMAT)

    for data in (header + bytes(10_240), header * 3 + bytes(10_240)):
        with pytest.raises(DataError, match="it ends inside member"):
            opened(put(tmp_path / "0.tar", data))


@pytest.mark.parametrize("member", range(6))
def test_a_tar_with_a_damaged_header_is_refused(tmp_path, member):
    path = Path(tar(tmp_path / "0.tar", samples(range(3))))
    data = bytearray(path.read_bytes())
    data[1024 * member + 5] ^= 1
    path.write_bytes(data)

    with pytest.raises(DataError, match="cannot be read"):
        opened(path)


def test_a_second_archive_after_the_end_of_the_first_is_refused(tmp_path):
    first, second = (
        Path(tar(tmp_path / f"{number}.tar", samples([number]))).read_bytes() for number in (0, 1)
    )

    with pytest.raises(DataError, match="two archives in one"):
        opened(put(tmp_path / "both.tar", first[:2560] + second))


def test_compressed_shards_are_refused_with_advice(tmp_path):
    packed = gzip.compress(Path(tar(tmp_path / "0.tar", samples([1]))).read_bytes())
    os.remove(tmp_path / "0.tar")
    url = put(tmp_path / "0.tar.gz", packed)
    disguised = put(tmp_path / "x" / "0.tar", packed)

    for attempt in (lambda: opened(disguised), lambda: find_shards(url)):
        with pytest.raises(DataError, match="is compressed") as caught:
            attempt()
        assert "gunzip" in caught.value.fix


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"7.cls": b"1"}, "a sample has no image.*sample '7'"),
        ({"7.jpg": b"x"}, "a sample has no label.*sample '7'"),
        ({"7.jpg": b"x", "7.png": b"x", "7.cls": b"1"}, "a sample has 2 images.*data.image_column"),
        ({"7.jpg": b"x", "7.cls": b"cat"}, "label 'cat' is not an integer"),
        ({"7.jpg": b"x", "7.cls": b"1.5"}, "label '1.5' is not an integer"),
        ({"7.jpg": b"x", "7.cls": b"9" * 5000}, "is not an integer"),
        ({"7.jpg": b"x", "7.json": b'{"label": true}'}, "label True is not an integer"),
        ({"7.jpg": b"x", "7.json": b'{"label": [1, "a"]}'}, "is not an integer"),
        ({"7.jpg": b"x", "7.json": b'{"label": 1e3}'}, "label 1000.0 is not an integer"),
        ({"7.jpg": b"x", "7.json": b'{"label": ' + b"9" * 30 + b"}"}, "is not an integer"),
        ({"7.jpg": b"x", "7.json": b'{"label": 2147483648}'}, "label 2147483648 is not an integer"),
        ({"7.jpg": b"x", "7.cls": b"1" + b" " * 2**20}, "a sample has no label"),  # longer than any is
        ({"7.jpg": b"x", "7.json": b"{"}, "a sample has no label"),
        ({"7.jpg": b"x", "7.json": b"[" * 100_000}, "a sample has no label"),
        ({"7.jpg": b"x", "7.json": b"3"}, "a sample has no label"),
        ({"7.jpg": b"x", "7.cls": b"-1"}, "labels go from -1 to"),
    ],
)
def test_a_sample_without_image_or_label_is_refused_by_shard_and_key(tmp_path, members, words):
    url = tar(tmp_path / "0.tar", samples(range(2)) | members)

    with pytest.raises(DataError) as caught:
        opened(url)
    assert re.search(words, message(caught))
    assert caught.value.where.startswith(url)


def test_one_label_and_lists_of_labels_in_one_shard_are_refused(tmp_path):
    members = samples([0]) | {"1.jpg": b"x", "1.json": b'{"label": [1]}'}

    with pytest.raises(DataError, match="some samples have a list of labels and others one number"):
        opened(tar(tmp_path / "0.tar", members))


def test_two_members_of_one_name_are_refused(tmp_path):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name in ("0.jpg", "0.cls", "0.jpg"):
            archive.addfile(tarfile.TarInfo(name))

    with pytest.raises(DataError, match="two members are called"):
        opened(put(tmp_path / "0.tar", data.getvalue()))


@pytest.mark.parametrize(
    "kind",
    [
        *(
            tarfile.SYMTYPE,
            tarfile.LNKTYPE,
            tarfile.CHRTYPE,
            tarfile.BLKTYPE,
            tarfile.FIFOTYPE,
            tarfile.DIRTYPE,
        ),
        tarfile.GNUTYPE_SPARSE,  # whose bytes are not all there
    ],
)
def test_links_and_devices_in_a_tar_are_never_followed(tmp_path, kind):
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        member = tarfile.TarInfo("0.jpg")
        member.type, member.linkname = kind, str(tmp_path / "secret.jpg")
        archive.addfile(member)
        label = tarfile.TarInfo("0.cls")
        label.size = 1
        archive.addfile(label, io.BytesIO(b"1"))

    with pytest.raises(DataError, match="a sample has no image"):
        opened(put(tmp_path / "0.tar", data.getvalue()))


@pytest.mark.parametrize("name", ["../escaped", "/tmp/escaped", "a/../../escaped"])
def test_a_name_that_leads_elsewhere_is_a_key_and_nothing_is_unpacked(tmp_path, name):
    folder = tmp_path / "in" / "here"
    url = tar(folder / "0.tar", {f"{name}.jpg": b"x", f"{name}.cls": b"1"})
    before = sorted(tmp_path.rglob("*"))

    assert rows(opened(url)) == [(b"x", 1)]
    assert [path for path in sorted(tmp_path.rglob("*")) if "cache" not in str(path)] == before


def test_a_password_or_signature_in_a_url_is_not_shown():
    url = tar("far://pets/0.tar", samples([0]))
    Far.store["/me:hunter2@pets/0.tar?sig=hunter2"] = Far.store["/pets/0.tar"]
    split = opened("far://me:hunter2@pets/0.tar?sig=hunter2")

    assert split.where_is(0) == f"{url}, row 0"
    with pytest.raises(DataError) as caught:
        opened("far://me:hunter2@pets/1.tar?sig=hunter2")
    assert "hunter2" not in str(caught.value)


def test_real_parquet_reads_as_it_does_without_streaming(shared):
    from vitcli.data.dataset import DataSet

    folder = str(shared / "data" / "flowers17")
    for name, urls in find_shards(folder).items():
        split, truth = opened(*urls), DataSet(folder).open(name)
        assert (len(split), split.class_names, split.num_classes) == (
            len(truth),
            truth.class_names,
            truth.num_classes,
        )
        assert split.read_labels().tolist() == truth.read_labels().tolist()
        some = range(0, len(split), 37)
        assert [split.read_row(row) for row in some] == [truth.read_row(row) for row in some]


def test_shards_may_be_moved_while_nobody_reads_them(tmp_path):
    path = tmp_path / "a" / "0.parquet"
    split = opened(parquet(path, range(9)))
    first = split.read_row(0)
    shutil.move(path, tmp_path / "1.parquet")

    assert (split.read_row(3), first) == (expected([3])[0], expected([0])[0])  # the block is in memory
    with pytest.raises(MachineError, match="it does not exist"):  # its rows are not bad, nor to be skipped
        split.read_row(8)


def test_every_row_is_in_one_block_and_no_other_row_in_any():
    starts = [0, 3, 3, 7]  # an empty block in the middle

    assert [_index_of(starts, row) for row in range(7)] == [0, 0, 0, 2, 2, 2, 2]
    for row in (-1, 7):
        with pytest.raises(IndexError, match=f"row {row} of 7"):
            _index_of(starts, row)


def test_bytes_of_a_server_that_never_tells_of_a_change_are_not_kept():
    put("far://pets/0.tar", bytes(range(100)))
    blocks = SimpleNamespace(get=lambda *_: pytest.fail("it may change unseen"))
    file = replace(locate("far://pets/0.tar", blocks), stamp="")

    assert file.read_cached(3, 6) == b"\x03\x04\x05"


class Refused(Exception):
    """An answer of a server, as aiohttp and requests keep its status."""

    def __init__(self, status: int, *, is_of_requests: bool = False):
        super().__init__(f"status {status}")
        if is_of_requests:
            self.response = SimpleNamespace(status_code=status)
        else:
            self.status = status


@pytest.mark.parametrize("is_of_requests", [False, True])
@pytest.mark.parametrize(
    ("status", "times", "words"),
    [
        (401, 1, r"its server refuses it with status 401.*log in"),
        (403, 1, r"its server refuses it with status 403.*log in"),
        (404, 4, r"status 404.*check the network"),  # of a client that does not call it a missing file
        (500, 4, r"status 500.*check the network"),
    ],
)
def test_a_refusal_is_not_tried_again_and_a_failure_three_times(status, times, words, is_of_requests):
    calls = []

    def fail() -> None:
        calls.append(status)
        raise Refused(status, is_of_requests=is_of_requests)

    with pytest.raises(MachineError) as caught:
        remote.attempt(fail, url="https://host/a/0.tar", is_local=False)
    assert re.search(words, message(caught)) and len(calls) == times


@pytest.mark.parametrize(("status", "is_gone"), [(404, True), (410, True), (403, False), (503, False)])
def test_a_shard_is_missing_where_the_server_says_so_and_not_where_it_fails(status, is_gone):
    def fail() -> None:  # as fsspec, for every answer
        raise FileNotFoundError("https://host/0.tar") from Refused(status)

    with pytest.raises(DataError if is_gone else MachineError) as caught:
        remote.attempt(fail, url="https://host/0.tar", is_local=False)
    assert ("it does not exist" in caught.value.message) == is_gone


def test_a_failure_of_this_disk_is_not_tried_again():
    calls = []

    def fail() -> None:
        calls.append(1)
        raise OSError("torn")

    with pytest.raises(DataError, match=r"0\.tar cannot be read: torn") as caught:
        remote.attempt(fail, url="/data/0.tar", is_local=True)
    assert (caught.value.where, caught.value.fix, calls) == ("/data/0.tar", "check the disk", [1])


def test_a_link_in_the_place_of_a_kept_block_is_not_followed(tmp_path):
    put("far://pets/0.tar", bytes(range(100)))
    locate("far://pets/0.tar", StoredBlocks("pets")).read_cached(0, 9)
    (block,) = user_cache.cache_folder("shards").glob("*/rows-*")
    block.rename(tmp_path / "elsewhere")
    block.symlink_to(tmp_path / "elsewhere")

    for count in (1, 0):  # what was read again has taken its place
        Far.reads.clear()
        file = locate("far://pets/0.tar", StoredBlocks("pets"))
        assert file.read_cached(0, 9) == bytes(range(9)) and len(Far.reads) == count


def test_a_shard_of_no_samples_by_its_count_file_is_not_read():
    urls = [tar("far://pets/0.tar", {}), tar("far://pets/1.tar", samples(range(5)))]
    counts = {"shardlist": [{"url": "0.tar", "nsamples": 0}, {"url": "1.tar", "nsamples": 5}]}
    put("far://pets/shardindex.json", json.dumps(counts).encode())
    split = opened(*urls, num_classes=3)

    assert rows(split) == expected(range(5))
    assert {path for path, *_ in Far.reads if path.endswith("0.tar")} == set()


def test_of_two_count_files_the_first_to_be_looked_for_is_right():
    """`shardindex.json` of WebDataset comes before timm's `_info.json`, whose other shards count as well."""
    urls = [tar(f"far://pets/{number}.tar", samples(range(5))) for number in range(3)]
    put("far://pets/shardindex.json", json.dumps({"shardlist": WIDS["shardlist"][:2]}).encode())
    theirs = {"filenames": ["1.tar", "2.tar"], "shard_lengths": [4, 5]}
    put("far://pets/_info.json", json.dumps({"splits": {"train": theirs}}).encode())

    counts = webdataset.known_counts([locate(url) for url in urls])

    assert counts == dict(zip(urls, (5, 5, 5), strict=True))


def test_a_row_group_of_any_place_must_fit_into_the_cache():
    for number, sizes in enumerate(((10, 5000, 10), (5000, 10, 10), (10, 10, 5000))):
        images = [image(place, size) for place, size in enumerate(sizes)]
        url = plain_parquet(f"far://pets/{number}.parquet", image=images, label=[0, 1, 2])

        with pytest.raises(DataError, match=r"a block of .* does not fit into a cache of 2\.9 KiB"):
            opened(url, cache_bytes=3_000)
        assert len(opened(url, cache_bytes=9_000)) == 3


@pytest.mark.parametrize(("label", "is_class"), [(0, True), (2, True), (3, False), (-2, False)])
def test_a_label_that_is_read_late_is_one_of_the_classes_or_refused_by_its_row(label, is_class):
    """With a count file no label is known before its row is read."""
    members = samples(range(2)) | {"9.jpg": image(9), "9.cls": b"%d" % label}
    url = tar("far://pets/0.tar", members)
    put("far://pets/shardindex.json", json.dumps({"shardlist": [{"url": url, "nsamples": 3}]}).encode())
    split = opened(url, num_classes=3)

    if is_class:
        assert split.read_row(2) == (image(9), label)
    else:
        with pytest.raises(DataError, match=rf"label {label} is not one of 0 ... 2") as caught:
            split.read_row(2)
        assert caught.value.where == f"{url}, row 2"


def test_an_error_of_this_machine_says_nothing_of_a_shard():
    full = OSError(errno.EIO, "Input/output error")
    with pytest.raises(OSError, match="Input/output error"), remote.reading("a/0.parquet"):
        raise full
    damaged = r"0\.parquet cannot be read: no magic"
    with pytest.raises(DataError, match=damaged) as caught, remote.reading("a/0.parquet"):
        raise ValueError("no magic")
    assert caught.value.fix == "replace the damaged shard"


def test_without_the_network_the_hub_is_asked_once():
    class OfflineModeIsEnabled(Exception):
        pass

    calls = []

    def fail() -> None:
        calls.append(1)
        raise OfflineModeIsEnabled

    with pytest.raises(MachineError) as caught:
        remote.attempt(fail, url="hf://datasets/them/pets/0.parquet", is_local=False)
    assert calls == [1] and caught.value.fix.startswith("unset HF_HUB_OFFLINE")


def test_data_sets_that_nobody_reads_make_room_and_those_that_are_read_do_not(monkeypatch):
    put("far://pets/0.tar", bytes(range(200)) * 500)
    first, second = StoredBlocks("pets"), StoredBlocks("birds")
    monkeypatch.setenv("VIT_CACHE_LIMIT", "150000")
    locate("far://pets/0.tar", first).read_cached(0, 90_000)

    locate("far://pets/0.tar", second).read_cached(0, 90_000)
    assert first.folder.exists() and second.get("key", lambda: b"new") == b"new"
    first._rows.close()
    third = StoredBlocks("birds")
    locate("far://pets/0.tar", third).read_cached(0, 90_000)
    assert not first.folder.exists()
    Far.reads.clear()
    locate("far://pets/0.tar", third).read_cached(0, 90_000)
    assert Far.reads == []


def test_blocks_whose_rows_are_taken_are_loaded_each_time_and_the_first_stay(monkeypatch):
    monkeypatch.setattr(block_cache, "NUM_ROWS", 8)
    blocks, loaded = StoredBlocks("pets"), []

    def load(key: int) -> bytes:
        loaded.append(key)
        return f"{key}".encode()

    for _ in range(2):
        for key in range(100):
            assert blocks.get(key, partial(load, key)) == f"{key}".encode()

    assert loaded[:100] == list(range(100))
    assert len(loaded[100:]) == 92


def test_a_count_is_believed_up_to_what_the_bytes_of_a_shard_can_hold():
    """Of 10,240 bytes: ten headers of an image with a block of it each."""
    file = locate(tar("far://pets/0.tar", samples(range(2))))
    assert file.size == 10_240

    def told(count: int) -> dict[str, int]:
        counts = {"shardlist": [{"url": "0.tar", "nsamples": count}]}
        put("far://pets/shardindex.json", json.dumps(counts).encode())
        return webdataset.known_counts([file])

    assert told(10) == {file.url: 10}
    with pytest.raises(DataError, match=r"0\.tar has 10,240 bytes, and 11 samples are expected"):
        told(11)


def test_an_empty_row_group_has_no_labels_that_could_be_wrong(tmp_path):
    table = pa.table({"image": [b"x", b"y"], "label": [4, 2]})
    with pq.ParquetWriter(tmp_path / "0.parquet", table.schema) as writer:
        for part in (table[:0], table, table[:0]):
            writer.write_table(part)
    split = opened(tmp_path / "0.parquet")

    assert (split.num_classes, rows(split)) == (5, [(b"x", 4), (b"y", 2)])


def test_columns_of_which_two_may_be_the_image_or_the_label_are_to_be_named(tmp_path):
    pictures = {"image": [b"x"], "img": [b"y"]}
    both = plain_parquet(tmp_path / "a.parquet", **pictures, label=[1])
    labels = plain_parquet(tmp_path / "b.parquet", image=[b"x"], label=[1], target=[0])

    for url, name in ((both, "image_column"), (labels, "label_column")):
        with pytest.raises(DataError) as caught:
            opened(url)
        assert name in message(caught)
    assert rows(opened(both, image_column="img")) == [(b"y", 1)]
    assert rows(opened(labels, label_column="target")) == [(b"x", 0)]


def test_a_column_is_told_from_those_whose_names_begin_with_its_own(tmp_path):
    columns = {"image_of_mask": [bytes(5_000)], "image": [b"x"], "label_id": [9], "label": [1]}
    split = opened(plain_parquet(tmp_path / "0.parquet", **columns), cache_bytes=3_000)

    assert (split.num_classes, rows(split)) == (2, [(b"x", 1)])


def test_several_labels_in_words_are_refused_as_one_is(tmp_path):
    with pytest.raises(DataError, match="the classes in column 'label' are text"):
        opened(plain_parquet(tmp_path / "0.parquet", image=[b"x"], label=[["cat", "dog"]]))


def test_shards_without_statistics_need_the_number_of_classes(tmp_path):
    known = plain_parquet(tmp_path / "0.parquet", image=[b"x"], label=[1])
    pq.write_table(pa.table({"image": [b"y"], "label": [2]}), tmp_path / "1.parquet", write_statistics=False)

    with pytest.raises(DataError, match="the number of classes of pets is unknown"):
        opened(known, tmp_path / "1.parquet")
    assert rows(opened(known, tmp_path / "1.parquet", num_classes=3)) == [(b"x", 1), (b"y", 2)]


def test_shards_of_which_one_may_change_unseen_have_no_stamp():
    def stamp_of(*stamps: str, is_local: bool = False) -> str:  # of two shards
        files = [SimpleNamespace(is_local=is_local, path=f"/{n}.tar", stamp=s) for n, s in enumerate(stamps)]
        contents = [SimpleNamespace(structure=f"s{n}") for n in range(len(stamps))]
        about = _Shards.source_files(SimpleNamespace(files=files, kind=".tar"), contents)
        assert about.structure == ".tar s0 s1"
        assert list(about.local_paths()) == (["/0.tar", "/1.tar"] if is_local else [])
        return about.stamp

    assert stamp_of("a", "") == stamp_of("a", "b", is_local=True) == ""
    assert stamp_of("a", "b") == stamp_of("a", "b") != stamp_of("b", "a") != ""
