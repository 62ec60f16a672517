"""Decoded images that are kept: the same pixels, labels and order as without."""

import os
import shutil
from dataclasses import replace

import numpy as np
import pytest

from vitcli.data import dataset, decoding, image_cache, loader
from vitcli.data.image_cache import ImageCache
from vitcli.data.sampler import TrainSampler
from vitcli.data.transforms import Preprocessing, TrainTransform
from vitcli.errors import VitError

TRANSFORM = TrainTransform(
    (32, 40), "inception", (0.05, 1.0), (0.75, 4 / 3), None, True, "bilinear", True, (2, 10)
)
EVAL = Preprocessing((32, 40), "short_side", 0.9, "bilinear", True, (0.5,) * 3, (0.5,) * 3)


@pytest.fixture(autouse=True)
def cache_of_this_test(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("vitcli.data.columns.CLOCK_TICK_NS", 0)  # the photographs are seconds old


@pytest.fixture
def decoded(monkeypatch) -> list[int]:
    """The rows that were decoded, in order."""
    rows: list[int] = []

    def open_image(data: bytes, *, where, row: int) -> np.ndarray:
        rows.append(row)
        return decoding.decode(data, where=where, row=row)

    monkeypatch.setattr(loader, "open_image", open_image)
    return rows


@pytest.fixture
def photos(photos, tmp_path):
    """A copy that may be changed."""
    return shutil.copytree(photos, tmp_path / "photos")


@pytest.fixture
def split(photos):
    return dataset.DataSet(str(photos)).open("train")


def train_epochs(split, epochs=3):
    sampler = TrainSampler(len(split), None, 1, batch_size=8, seed=3, rank=0, world_size=1)
    steps = range(epochs * len(split) // 8)
    return list(
        loader.train_batches(
            split, TRANSFORM, sampler, steps=steps, per_device_batch=8, on_bad_image="error", num_threads=2
        )
    )


def eval_pass(split):
    options = dict(batch_size=5, rank=0, world_size=1, on_bad_image="error", num_threads=2)
    return list(loader.eval_batches(split, EVAL, **options))


def assert_equal(batches, others):
    for batch, other in zip(batches, others, strict=True):
        assert (batch.images_BCHW == other.images_BCHW).all()
        assert (batch.labels_B == other.labels_B).all() and (batch.rows_B == other.rows_B).all()


@pytest.mark.parametrize("mode", ["ram", "disk", "auto"])
def test_batches_of_every_epoch_are_those_without_a_cache_and_images_are_decoded_once(split, decoded, mode):
    expected, expected_eval = train_epochs(split), eval_pass(split)
    decoded.clear()
    images = ImageCache(mode)
    kept = images.attach(split, visits=3)
    kept = images.attach(kept, visits=3, preprocessing=EVAL)

    assert_equal(train_epochs(kept), expected)
    assert sorted({*decoded}) == list(range(len(split)))
    assert len(decoded) < 1.5 * len(split)  # some twice: two threads have the row in two epochs at once
    decoded.clear()
    for _ in range(2):
        assert_equal(eval_pass(kept), expected_eval)
    assert decoded == []  # prepared from the whole images
    assert kept.fingerprint == split.fingerprint


def test_a_later_command_reads_from_the_disk_what_an_earlier_one_decoded(split, photos, decoded):
    train_epochs(ImageCache("disk").attach(split, visits=1), epochs=1)
    expected = train_epochs(split, epochs=2)
    decoded.clear()
    again = dataset.DataSet(str(photos)).open("train")

    assert_equal(train_epochs(ImageCache("auto").attach(again, visits=1), epochs=2), expected)
    assert decoded == []


def test_parts_of_a_split_share_its_images(split, decoded):
    images = ImageCache("ram")
    shuffled = split.part(0, 20, name="a", shuffle_key=7).part(2, 18, name="b")
    parts = [split.part(0, 12, name="c"), split.rows(np.arange(len(split))[::-1]), shuffled]

    for part in parts:
        kept = images.attach(part, visits=2)
        for row in range(len(part)):
            (image, label), (other, same) = loader.read_example(kept, row), loader.read_example(part, row)
            assert np.array_equal(image, other) and label == same

    assert len(decoded) == len(split) + sum(map(len, parts))  # those without a cache, and each row once


def test_an_image_that_changes_under_its_name_is_decoded_again(split, photos):
    kept = ImageCache("disk").attach(split, visits=2)
    before = [loader.read_example(kept, row)[0].copy() for row in range(3)]
    path = photos / split.column("<paths>")[1]
    other = photos / split.column("<paths>")[20]
    path.unlink()
    path.write_bytes(other.read_bytes())

    assert np.array_equal(loader.read_example(kept, 1)[0], loader.read_example(split, 20)[0])
    again = ImageCache("disk").attach(dataset.DataSet(str(photos)).open("train"), visits=2)
    for row in (0, 2):
        assert np.array_equal(loader.read_example(again, row)[0], before[row])
    assert np.array_equal(loader.read_example(again, 1)[0], loader.read_example(split, 20)[0])


def test_a_damaged_image_raises_each_time_and_skipping_replaces_it_alike(split, photos):
    path = photos / split.column("<paths>")[4]
    path.write_bytes(path.read_bytes()[:200])
    sampler = TrainSampler(len(split), None, 1, batch_size=8, seed=3, rank=0, world_size=1)
    options = dict(steps=range(6), per_device_batch=8, on_bad_image="skip", num_threads=2)
    kept = ImageCache("disk").attach(split, visits=2)

    expected = list(loader.train_batches(split, TRANSFORM, sampler, **options))
    batches = list(loader.train_batches(kept, TRANSFORM, sampler, **options))

    assert_equal(batches, expected)
    assert [batch.skipped for batch in batches] == [batch.skipped for batch in expected]


def test_labels_of_kept_images_are_those_of_the_split_that_is_read(split):
    kept = ImageCache("ram").attach(split, visits=2)
    loader.read_example(kept, 5)
    number_of = np.arange(split.num_classes)[::-1].copy()
    names = tuple(reversed(split.class_names))

    assert loader.read_example(kept.relabelled(number_of, names), 5)[1] == number_of[kept.read_labels()[5]]
    several = replace(kept, is_multilabel=True, read_labels=lambda: np.array([[3, 1, -1]] * len(split)))
    assert loader.read_example(several, 5)[1] == (3, 1)


@pytest.mark.parametrize("mode, visits, has_siblings, place", [
    ("off", 9, False, None),
    ("auto", 1, False, "off"),
    ("auto", 2, False, "memory"),
    ("auto", 2, True, "disk"),
    ("ram", 1, True, "memory"),
    ("disk", 1, False, "disk"),
])  # fmt: skip
def test_images_are_kept_where_it_pays(split, mode, visits, has_siblings, place):
    images = ImageCache(mode, has_siblings=has_siblings)
    kept = images.attach(split, visits=visits)

    assert [each.place for each in images.placements.values()] == ([place] if place else [])
    assert (kept.cache is not None) == (place in ("memory", "disk"))
    assert (images.line() is None) == (place in (None, "off"))


def test_more_than_a_quarter_of_the_free_memory_is_not_kept_by_itself(split, monkeypatch):
    monkeypatch.setattr("vitcli.distributed.launch.free_bytes", lambda: 3e5)
    images = ImageCache("auto")

    assert images.attach(split, visits=5).cache is None
    assert "more than 25% of the free memory" in images.line()
    partly = ImageCache("ram")
    kept = partly.attach(split, visits=5)
    for row in range(len(split)):
        loader.read_example(kept, row)
    assert 0 < partly.num_added() < len(split)  # as far as there is room
    assert "kept in memory (73.2 KiB of 135.0 KiB)" in partly.line()


def test_streamed_shards_and_images_without_a_stamp_stay_off_the_disk(split):
    streamed = replace(split, block_starts=np.array([0, len(split)]))
    images = ImageCache("disk")

    assert images.attach(streamed, visits=9).cache is None
    assert images.attach(replace(split, stamp_of=None, name="drawn"), visits=9).cache is None
    assert "streamed" in images.line() and "does not say when it changes" in images.line()


@pytest.mark.parametrize("limit", ["ten", "-1", "10 XB", "GB", "1e9", "nan"])
def test_a_limit_that_is_no_size_is_refused(monkeypatch, limit):
    monkeypatch.setenv("VIT_CACHE_LIMIT", limit)

    with pytest.raises(VitError, match="is not a size") as raised:
        ImageCache("auto")
    assert "VIT_CACHE_LIMIT" in raised.value.where and "20GB" in raised.value.fix


@pytest.mark.parametrize("spoil", ["limit", "file", "link", "read-only", "index"])
def test_a_cache_that_cannot_be_used_costs_a_note_and_nothing_else(split, tmp_path, monkeypatch, spoil):
    expected = train_epochs(split)
    folder = tmp_path / "cache" / "vit" / "decoded"
    folder.parent.mkdir(parents=True)
    if spoil == "limit":
        monkeypatch.setenv("VIT_CACHE_LIMIT", "0")
    elif spoil == "file":
        folder.write_text("")
    elif spoil == "link":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    elif spoil == "read-only":
        folder.mkdir()
        folder.chmod(0o500)
    else:
        ImageCache("disk").attach(split, visits=2)
        (store,) = folder.iterdir()
        (store / "index").unlink()
        (store / "index").mkdir()
    images = ImageCache("disk")

    assert_equal(train_epochs(images.attach(split, visits=3)), expected)
    if not (spoil == "read-only" and os.geteuid() == 0):  # root may write everywhere
        assert images.line() or images.problems()
        assert images.num_added() == 0
    if spoil == "link":
        assert not any((tmp_path / "elsewhere").iterdir())


def test_data_sets_of_equal_length_that_are_drawn_have_images_of_their_own():
    demo, images = dataset.DataSet("demo").open("test"), ImageCache("ram")
    parts = (demo.part(first, first + 8, name=f"from {first}") for first in (0, 8))
    drawn = [replace(part, whole=None) for part in parts]  # data sets of their own, without any stamp
    for split in drawn:
        kept = images.attach(images.attach(split, visits=3), visits=3, preprocessing=EVAL)
        for _ in range(2):
            assert_equal(eval_pass(kept), eval_pass(split))
        for row in range(8):
            assert np.array_equal(loader.read_example(kept, row)[0], loader.read_example(split, row)[0])


def test_images_prepared_in_another_way_are_others(split):
    ways = [
        EVAL,
        replace(EVAL, crop_fraction=0.5),
        replace(EVAL, resize="square"),
        replace(EVAL, antialias=False),
    ]
    expected = [first_image(split, way) for way in ways]
    for mode in ("ram", "disk"):
        images = ImageCache(mode)
        for way, pixels in zip(ways, expected, strict=True):
            kept = images.attach(split, visits=3, preprocessing=way)
            assert np.array_equal(first_image(kept, way), pixels)
    assert len({pixels.tobytes() for pixels in expected}) == len(ways)


def first_image(split, preprocessing):
    options = dict(batch_size=1, rank=0, world_size=1, on_bad_image="error", num_threads=1)
    return next(loader.eval_batches(split, preprocessing, **options)).images_BCHW.numpy()


@pytest.mark.parametrize("preprocessing", [None, EVAL])
def test_images_of_other_decoders_are_other_images(split, monkeypatch, preprocessing):
    about = image_cache._about(split, preprocessing)
    for module, name, value in (
        (decoding, "RULES", -1),
        (decoding, "jpeg_version", lambda: "another"),
        (image_cache, "version", lambda package: f"another {package}"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            assert image_cache._about(split, preprocessing) != about
    assert image_cache._about(split, preprocessing) == about
