"""Batches: the same rows and pixels for any number of threads, processes and restarts; bad images."""

import gc
import io
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from vitcli.bench.setup import BenchOptions
from vitcli.data import columns, decoding
from vitcli.data.dataset import DataSet
from vitcli.data.loader import Batch, check_images, default_threads, eval_batches, train_batches
from vitcli.data.sampler import TrainSampler, rows_at
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing, TrainTransform
from vitcli.errors import DataError

SIZE = (10, 12)
TRAIN = TrainTransform(
    image_size=SIZE,
    crop="inception",
    crop_area=(0.05, 1.0),
    crop_aspect=(3 / 4, 4 / 3),
    resize=None,
    flip=True,
    interpolation="bilinear",
    antialias=False,
    randaugment=None,
)
PLAIN = replace(TRAIN, crop="none", flip=False)
EVAL = Preprocessing(
    image_size=SIZE,
    resize="square",
    crop_fraction=1.0,
    interpolation="bilinear",
    antialias=True,
    mean=(0.5,) * 3,
    std=(0.5,) * 3,
)


def pixels_of(row: int) -> np.ndarray:
    return np.random.default_rng(row).integers(0, 256, (14, 17, 3), dtype=np.uint8)


def noise(count: int = 23, bad: tuple[int, ...] = ()) -> Split:
    """PNG files of noise, each row another; `bad` rows cannot be decoded."""

    def read_row(row: int) -> tuple[bytes, int]:
        buffer = io.BytesIO()
        Image.fromarray(pixels_of(row)).save(buffer, "PNG")
        return (b"rubbish" if row in bad else buffer.getvalue()), row % 3

    return Split(
        name="noise",
        num_examples=count,
        class_names=("a", "b", "c"),
        num_classes=3,
        read_row=read_row,
        read_labels=lambda: np.arange(count) % 3,
        where_is=lambda row: f"noise, row {row}, file {row}.png",
    )


def training(split: Split | None = None, **changes):
    split = split or noise()
    order = dict(window=64, batch_size=8, seed=3, rank=0, world_size=1)
    order |= {name: changes.pop(name) for name in changes.keys() & order.keys()}
    steps = range(changes.pop("start_step", 0), changes.pop("total_steps", 5))
    transform = changes.pop("transform", TRAIN)
    options = dict(steps=steps, per_device_batch=8, on_bad_image="error", num_threads=2)
    sampler = TrainSampler(len(split), split.block_starts, **order)
    return train_batches(split, transform, sampler, **options | changes)


def evaluation(split: Split | None = None, **changes):
    options = dict(batch_size=4, rank=0, world_size=1, on_bad_image="error", num_threads=2)
    return eval_batches(split or noise(), EVAL, **options | changes)


def together(batches) -> Batch:
    """All batches as one."""
    batches = list(batches)
    return Batch(
        images_BCHW=torch.cat([batch.images_BCHW for batch in batches]),
        labels_B=torch.cat([batch.labels_B for batch in batches]),
        rows_B=torch.cat([batch.rows_B for batch in batches]),
        skipped=tuple(place for batch in batches for place in batch.skipped),
    )


def interleaved(*of_each_rank):
    """The ranks' steps put back in the order of one process: step 0 of all ranks, then step 1 of all."""
    return together(batch for step in zip(*of_each_rank, strict=True) for batch in step)


def assert_equal(one: Batch, other: Batch) -> None:
    assert one.rows_B.tolist() == other.rows_B.tolist()
    assert one.labels_B.tolist() == other.labels_B.tolist()
    assert torch.equal(one.images_BCHW, other.images_BCHW)
    assert one.skipped == other.skipped


def loader_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("vit-loader")]


def wait_for_the_end_of_all_threads() -> None:
    deadline = time.monotonic() + 5
    while loader_threads() and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.mark.parametrize("num_threads", [2, 5, 16])
@pytest.mark.parametrize("batches", [training, evaluation])
def test_the_number_of_threads_changes_nothing(batches, num_threads):
    assert_equal(together(batches(num_threads=num_threads)), together(batches(num_threads=1)))


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_a_training_step_has_the_same_rows_and_pixels_on_any_number_of_processes(world_size):
    share = 8 // world_size
    ranks = [training(rank=r, world_size=world_size, per_device_batch=share) for r in range(world_size)]

    assert_equal(interleaved(*ranks), together(training()))


@pytest.mark.parametrize("world_size", [2, 3, 4, 9])
def test_an_evaluation_has_every_row_once_on_any_number_of_processes(world_size):
    of_all = [batch for rank in range(world_size) for batch in evaluation(rank=rank, world_size=world_size)]

    in_order = sorted(of_all, key=lambda batch: int(batch.rows_B[0]))
    assert_equal(together(in_order), together(evaluation()))


def test_the_rows_of_a_step_are_those_of_the_order_with_their_own_labels():
    batches = list(training(total_steps=6))

    for step, batch in enumerate(batches):
        expected = rows_at(range(8 * step, 8 * step + 8), num_examples=23, seed=3).tolist()
        assert batch.rows_B.tolist() == expected
        assert batch.labels_B.tolist() == [row % 3 for row in expected]


def test_an_epoch_has_every_row_once():
    rows = together(training(total_steps=6)).rows_B.tolist()

    assert sorted(rows[:23]) == sorted(rows[23:46]) == list(range(23))


@pytest.mark.parametrize("start_step", [1, 3, 4])
def test_a_run_that_starts_at_a_later_step_resumes_exactly(start_step):
    assert_equal(together(training(start_step=start_step)), together(list(training())[start_step:]))


def test_a_run_that_is_already_done_has_no_batches():
    assert list(training(start_step=5)) == []


@pytest.mark.parametrize("per_device_batch", [1, 2, 4])
def test_splitting_a_step_into_smaller_batches_keeps_every_pixel(per_device_batch):
    batches = list(training(per_device_batch=per_device_batch))

    assert {len(batch.rows_B) for batch in batches} == {per_device_batch}
    assert_equal(together(batches), together(training()))


def test_the_same_row_looks_different_in_the_next_epoch():
    both = together(training(noise(4), total_steps=2, batch_size=4, per_device_batch=4))
    views = [both.images_BCHW[place] for place in np.flatnonzero(both.rows_B.numpy() == 0)]

    assert len(views) == 2
    assert not torch.equal(*views)


def test_another_seed_gives_other_rows_and_other_views():
    one, other = together(training(seed=3)), together(training(seed=4))

    assert one.rows_B.tolist() != other.rows_B.tolist()
    assert not torch.equal(one.images_BCHW, other.images_BCHW)


def test_the_view_of_an_image_depends_on_the_seed():
    views = [together(training(noise(count=1), seed=seed, total_steps=1)).images_BCHW for seed in (3, 4)]

    assert not torch.equal(*views)


@pytest.mark.parametrize("row", [0, 11, 22])
def test_a_batch_holds_each_image_at_its_place_channels_first(row):
    batch = together(training(noise(), transform=replace(PLAIN, image_size=(14, 17)), total_steps=3))
    place = batch.rows_B.tolist().index(row)

    assert batch.images_BCHW.shape == (24, 3, 14, 17) and batch.images_BCHW.dtype == torch.uint8
    assert np.array_equal(batch.images_BCHW[place].permute(1, 2, 0), pixels_of(row))


def test_already_decoded_images_are_taken_as_they_are():
    drawn = replace(noise(), read_row=lambda row: (pixels_of(row), row % 3))

    assert_equal(together(training(drawn)), together(training()))
    assert_equal(together(evaluation(drawn)), together(evaluation()))


def test_batches_lie_channels_last_in_memory():
    batch = next(evaluation())

    assert batch.images_BCHW.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("count", "sizes"), [(23, [4, 4, 4, 4, 4, 3]), (8, [4, 4]), (1, [1])])
def test_only_the_last_evaluation_batch_may_be_short(count, sizes):
    batches = list(evaluation(noise(count)))

    assert [len(batch.rows_B) for batch in batches] == sizes
    assert together(batches).rows_B.tolist() == list(range(count))
    assert together(batches).labels_B.tolist() == [row % 3 for row in range(count)]


def test_a_process_may_have_nothing_to_evaluate():
    assert list(evaluation(noise(3), rank=1, world_size=2)) == []


@pytest.mark.parametrize("batches", [training, evaluation])
def test_a_bad_image_stops_the_run_and_is_named(batches):
    with pytest.raises(DataError, match="cannot be decoded") as caught:
        list(batches(noise(bad=(13,))))

    assert caught.value.where == "noise, row 13, file 13.png"


@pytest.mark.parametrize("batches", [training, evaluation])
def test_the_batches_before_a_bad_image_are_whole(batches):
    whole, before = list(batches()), []
    with pytest.raises(DataError):
        for batch in batches(noise(bad=(13,))):
            before.append(batch)

    first_bad = next(number for number, batch in enumerate(whole) if 13 in batch.rows_B)
    assert len(before) == first_bad > 0
    assert_equal(together(before), together(whole[:first_bad]))


def test_in_training_the_next_good_row_takes_the_place_of_a_bad_one():
    whole = together(training(transform=PLAIN))
    skipped = together(training(noise(bad=(13, 14, 22)), transform=PLAIN, on_bad_image="skip"))
    instead = {13: 15, 14: 15, 22: 0}
    pictures = {row: image for row, image in zip(whole.rows_B.tolist(), whole.images_BCHW, strict=True)}

    expected = [instead.get(row, row) for row in whole.rows_B.tolist()]
    assert skipped.rows_B.tolist() == expected
    assert skipped.labels_B.tolist() == [row % 3 for row in expected]
    for row, image in zip(expected, skipped.images_BCHW, strict=True):
        assert torch.equal(image, pictures[row])


def test_every_meeting_with_a_bad_row_in_training_is_counted_and_named():
    meetings = together(training()).rows_B.tolist()
    skipped = together(training(noise(bad=(13, 22)), on_bad_image="skip")).skipped

    expected = [f"noise, row {row}, file {row}.png" for row in meetings if row in (13, 22)]
    assert list(skipped) == expected and len(expected) >= 2


def test_a_bad_row_does_not_change_how_the_others_are_augmented():
    whole = together(training())
    skipped = together(training(noise(bad=(13,)), on_bad_image="skip"))

    good = torch.tensor([row != 13 for row in whole.rows_B.tolist()])
    assert torch.equal(whole.images_BCHW[good], skipped.images_BCHW[good])


@pytest.mark.parametrize("world_size", [2, 4])
def test_skipping_is_the_same_on_any_number_of_processes_and_threads(world_size):
    split, share = noise(bad=(0, 13)), 8 // world_size
    options = dict(on_bad_image="skip", world_size=world_size, per_device_batch=share, num_threads=3)
    ranks = [training(split, rank=rank, **options) for rank in range(world_size)]

    assert_equal(interleaved(*ranks), together(training(split, on_bad_image="skip", num_threads=1)))


def test_a_data_set_of_bad_images_is_given_up():
    with pytest.raises(DataError, match="100 images in a row cannot be decoded"):
        list(training(noise(bad=tuple(range(23))), on_bad_image="skip"))


def test_in_evaluation_a_bad_row_is_left_out_and_never_replaced():
    whole = together(evaluation())
    skipped = together(evaluation(noise(bad=(4, 13)), on_bad_image="skip"))

    good = torch.tensor([row not in (4, 13) for row in range(23)])
    assert skipped.rows_B.tolist() == whole.rows_B[good].tolist()
    assert torch.equal(skipped.images_BCHW, whole.images_BCHW[good])
    assert skipped.labels_B.tolist() == whole.labels_B[good].tolist()
    assert skipped.skipped == ("noise, row 4, file 4.png", "noise, row 13, file 13.png")


@pytest.mark.parametrize("world_size", [1, 3])
def test_the_check_before_a_run_names_every_bad_image_once_on_any_number_of_processes(world_size):
    bad = (0, 63, 64, 199)  # 64 rows are one process's turn
    split = noise(count=200, bad=bad)

    def looked_at(split, world_size: int) -> tuple[list[str], int]:
        parts = [check_images(split, rank=n, world_size=world_size, num_threads=2) for n in range(world_size)]
        return [error.where for errors, _ in parts for error in errors], sum(total for _, total in parts)

    where, total = looked_at(split, world_size)

    assert sorted(where) == sorted(split.where_is(row) for row in bad)
    assert total == looked_at(split, 1)[1]
    swapped = replace(split, read_row=lambda row: split.read_row({5: 6, 6: 5}.get(row, row)))
    assert total != looked_at(swapped, world_size)[1]


def test_an_evaluation_of_nothing_but_bad_images_has_empty_batches_that_name_them():
    batches = list(evaluation(noise(6, bad=tuple(range(6))), on_bad_image="skip"))

    assert [batch.images_BCHW.shape for batch in batches] == [(0, 3, *SIZE)] * 2
    assert len(together(batches).skipped) == 6


@pytest.mark.parametrize("batches", [training, evaluation])
@pytest.mark.slow
def test_no_thread_is_left_when_all_batches_were_taken(batches):
    list(batches())
    wait_for_the_end_of_all_threads()

    assert loader_threads() == []


@pytest.mark.slow
@pytest.mark.parametrize("end", ["close", "forget", "bad image"])
def test_no_thread_is_left_when_the_batches_end_early(end):
    batches = training(noise(bad=(13,) if end == "bad image" else ()), total_steps=10_000, num_threads=4)
    next(batches)
    assert loader_threads()

    if end == "bad image":
        with pytest.raises(DataError):
            list(batches)
    elif end == "close":
        batches.close()
    del batches
    gc.collect()
    wait_for_the_end_of_all_threads()
    assert loader_threads() == []


def test_only_a_few_batches_are_read_ahead():
    reads = []
    split = noise(1_000)
    counting = replace(split, read_row=lambda row: reads.append(row) or split.read_row(row))
    batches = evaluation(counting, batch_size=4, num_threads=2)
    next(batches)
    time.sleep(0.2)

    assert len(reads) <= 4 * 2 + 2 * 4  # four examples a thread, and what completes a batch
    batches.close()


def test_no_thread_of_the_loader_takes_threads_of_the_network():
    """Idle ones too would make those of the network sleep after each operation (docs/evidence/speed.md)."""
    seen, split, num_here = set(), noise(64), torch.get_num_threads()
    watching = replace(split, read_row=lambda row: seen.add(torch.get_num_threads()) or split.read_row(row))

    list(evaluation(watching, batch_size=4, num_threads=3))

    assert seen == {1}
    assert torch.get_num_threads() == num_here


def test_a_process_has_a_thread_for_each_of_its_cores_up_to_sixteen(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(5)), raising=False)

    assert [default_threads(cores) for cores in (1, 12, 128)] == [1, 12, 16]
    assert default_threads() == BenchOptions().num_workers == 5


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), OSError(116, "Stale file handle")])
def test_an_image_that_a_disk_cannot_read_is_never_left_out(photos, monkeypatch, error):
    """A failing network file system gave a run other images, and only a count in its summary."""
    split = DataSet(str(photos)).open("train")
    read, failed = columns.read_regular, []

    def fails_once(path, most):
        if str(path).endswith("05.png") and not failed:
            failed.append(path)
            raise error
        return read(path, most)

    monkeypatch.setattr(columns, "read_regular", fails_once)
    with pytest.raises(OSError, match=error.strerror):
        list(training(split, on_bad_image="skip", num_threads=1))
    assert failed
    wait_for_the_end_of_all_threads()  # one that reads on would take the error of the next test


def test_an_image_for_which_there_is_no_memory_is_never_left_out(monkeypatch):
    def no_memory(*_, **__):
        raise MemoryError

    for name in ("open", "simplejpeg"):
        with monkeypatch.context() as patched:
            if name == "open":
                patched.setattr(decoding.Image, "open", no_memory)
            else:
                patched.setattr(decoding, "_decode", no_memory)
            with pytest.raises(MemoryError):
                list(training(noise(), on_bad_image="skip", num_threads=1))
