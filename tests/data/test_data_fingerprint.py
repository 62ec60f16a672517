"""What a run remembers of its images and files: the same for a copy, another after any change."""

import os
import shutil
import tarfile

import fsspec
import pyarrow.parquet as pq
import pytest

from tests.data.shards.test_streaming import parquet, tars  # noqa: F401, fixtures
from vitcli.data import data_fingerprint, dataset
from vitcli.data.shards import rows
from vitcli.data.sources.tables import Choices
from vitcli.data.split import SourceFiles
from vitcli.distributed import runtime


def contents_of(root, *, split: str = "train", **keys) -> data_fingerprint.SplitContents:
    return contents_of_split(dataset.DataSet(str(root), Choices(**keys)).open(split))


def contents_of_split(split) -> data_fingerprint.SplitContents:
    how = dict(runtime=runtime.start("fp32"), num_threads=1, on_bad_image="error", decode=False)
    (found,), _ = data_fingerprint.contents_of([split], **how)
    return found


def written_later(path, change=lambda content: content) -> None:
    path.write_bytes(change(path.read_bytes()))
    os.utime(path, ns=(1, 1))


def exchanged(content: bytes, *, at: float) -> bytes:
    place = int(len(content) * at)
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize("kind", ["parquet", "tars"])
def test_all_bytes_of_a_few_local_shards_are_compared(request, tmp_path, kind):
    root = tmp_path / "data"
    shutil.copytree(request.getfixturevalue(kind), root)
    before = contents_of(root, streaming=True)
    shard = sorted(root.glob("train*"))[1]
    assert before.images and before.files is None

    written_later(shard)
    assert contents_of(root, streaming=True) == before
    written_later(shard, lambda content: exchanged(content, at=0.3))
    assert contents_of(root, streaming=True) != before


@pytest.mark.parametrize("kind", ["parquet", "tars"])
def test_of_many_local_shards_places_and_sizes_are_compared_and_times_are_noted(
    request, tmp_path, monkeypatch, kind
):
    monkeypatch.setattr(data_fingerprint, "MAX_HASHED_BYTES", 0)
    root = tmp_path / "data"
    shutil.copytree(request.getfixturevalue(kind), root)
    before = contents_of(root, streaming=True)
    shard = sorted(root.glob("train*"))[1]
    assert before.images and before.files

    written_later(shard)
    after = contents_of(root, streaming=True)
    assert after.images == before.images and after.files != before.files
    if kind == "parquet":  # the same rows in the same number of bytes, but in other row groups
        table = pq.read_table(shard)
        pq.write_table(table, shard, row_group_size=3)
    else:
        content = bytearray(shard.read_bytes())
        content[content.index(b"0014.cls") + tarfile.BLOCKSIZE] ^= 1  # its label
        shard.write_bytes(content)
    assert contents_of(root, streaming=True).images != before.images


def test_of_very_many_image_files_sizes_are_compared_and_times_are_noted(photos, tmp_path, monkeypatch):
    all_bytes = contents_of(photos)
    monkeypatch.setattr(data_fingerprint, "MAX_CHECKED_IMAGES", 5)
    monkeypatch.setattr(data_fingerprint, "FILES_PER_TASK", 7)
    root = tmp_path / "data"
    shutil.copytree(photos, root)
    before = contents_of(root)
    assert all_bytes.files is None and before.files and before.images != all_bytes.images

    file = root / "train" / "red" / "05.png"
    written_later(file, lambda content: exchanged(content, at=0.9))
    after = contents_of(root)
    assert after.images == before.images and after.files != before.files
    written_later(file, lambda content: content + b"\0")
    assert contents_of(root).images != before.images


def test_remote_shards_are_compared_by_what_their_server_says(parquet):  # noqa: F811
    far, urls = fsspec.filesystem("memory"), []
    for shard in sorted(parquet.glob("train*.parquet")):
        far.pipe_file(f"/contents/{shard.name}", shard.read_bytes())
        urls.append(f"memory://contents/{shard.name}")

    def now() -> data_fingerprint.SplitContents:
        columns = dict(image_column=None, label_column=None)
        return contents_of_split(rows.open_shards(urls, name="far", **columns))

    before = now()
    far.pipe_file("/contents/train-00001.parquet", (parquet / "train-00001.parquet").read_bytes())
    after = now()
    assert after.images == before.images is not None
    assert after.files != before.files is not None


def test_local_shards_above_2_gib_are_not_read_before_a_run(tmp_path, monkeypatch):
    def of(num_bytes: int) -> data_fingerprint.SplitContents:
        with (tmp_path / "train.tar").open("wb") as file:
            file.truncate(num_bytes)  # takes no room on the disk
        return data_fingerprint._contents_of_files(SourceFiles(lambda: [str(tmp_path / "train.tar")], "tar"))

    monkeypatch.setattr(data_fingerprint, "_digest_of_file", lambda path: b"read")
    assert of(2 * 2**30).files is None, "compared by what was read"
    assert of(2 * 2**30 + 1).files is not None
