"""Streamed runs from end to end: shards of several kinds, every row once an epoch, killed and continued."""

import io
import json
import os
import signal
import tarfile
import time
from itertools import product

import datasets
import numpy as np
import pytest
from PIL import Image

from tests.conftest import run, vit
from tests.training.test_finetune import SMALL, fingerprint, losses, when_logged
from vitcli.data import dataset, loader
from vitcli.data.sampler import TrainSampler
from vitcli.data.sources.tables import Choices
from vitcli.data.transforms import Preprocessing, TrainTransform
from vitcli.errors import DataError

PLAIN = TrainTransform((16, 16), "none", (1.0, 1.0), (1.0, 1.0), None, False, "bilinear", True, None)
PLAIN_EVAL = Preprocessing((8, 8), "square", 1.0, "bilinear", True, (0.5,) * 3, (0.5,) * 3)
STREAMED = (
    *SMALL,
    *(
        "--batch-size",
        12,
        "--precision",
        "fp32",
        "--set",
        "data.streaming=true",
        "--set",
        "data.shuffle_window=24",
    ),
    *("--set", "train.log_every=1", "--set", "model.dropout=0.1", "--set", "train.save_every=2"),
)


def picture(number: int, size: tuple[int, int] = (20, 24)) -> bytes:
    buffer = io.BytesIO()
    colour = (200, 40, 40) if number % 2 else (40, 200, 40)
    noise = np.random.default_rng(number).integers(-30, 30, (*size, 3))
    Image.fromarray(np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    """103 training pictures in five shards of odd sizes, and 11 test pictures."""
    root = tmp_path_factory.mktemp("parquet")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["green", "red"])}
    )
    first = 0
    for shard, count in enumerate((7, 31, 1, 40, 24)):
        numbers = range(first, first + count)
        rows = {
            "image": [{"bytes": picture(n), "path": None} for n in numbers],
            "label": [n % 2 for n in numbers],
        }
        table = datasets.Dataset.from_dict(rows, features=features)
        table.to_parquet(root / f"train-{shard:05}.parquet", batch_size=6)
        first += count
    rows = {
        "image": [{"bytes": picture(n), "path": None} for n in range(500, 511)],
        "label": [n % 2 for n in range(11)],
    }
    datasets.Dataset.from_dict(rows, features=features).to_parquet(root / "test-00000.parquet")
    return root


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    root = tmp_path_factory.mktemp("tars")
    for name, numbers in (("train-0", range(13)), ("train-1", range(13, 40)), ("test-0", range(100, 107))):
        with tarfile.open(root / f"{name}.tar", "w") as archive:
            for number in numbers:
                for suffix, content in (("png", picture(number)), ("cls", str(number % 2).encode())):
                    member = tarfile.TarInfo(f"{number:04}.{suffix}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    return root


def rows_seen(split, *, steps: range, world_size: int, num_threads: int, batch_size: int = 12) -> list[int]:
    """Rows of all processes in the order of the run."""
    by_step = {}
    for rank in range(world_size):
        batches = loader.train_batches(
            split,
            PLAIN,
            TrainSampler(len(split), split.block_starts, 24, batch_size, 1, rank, world_size),
            steps=steps,
            per_device_batch=batch_size // world_size,
            on_bad_image="error",
            num_threads=num_threads,
        )
        for step, batch in zip(steps, batches, strict=True):
            by_step.setdefault(step, []).extend(batch.rows_B.tolist())
    return [row for step in steps for row in by_step[step]]


@pytest.fixture(scope="module")
def in_order(parquet) -> list[int]:
    """The rows of 26 steps on one process with two threads."""
    split = dataset.DataSet(str(parquet), Choices(streaming=True)).open("train")
    return rows_seen(split, steps=range(26), world_size=1, num_threads=2)


@pytest.mark.parametrize(
    ("world_size", "num_threads"),
    [
        (1, 4),
        (2, 1),
        (3, 4),
        *(pytest.param(*both, marks=pytest.mark.slow) for both in ((1, 1), (2, 4), (3, 1))),
    ],
)
def test_every_row_comes_once_in_an_epoch_on_any_number_of_processes_and_threads(
    parquet, in_order, world_size, num_threads
):
    split = dataset.DataSet(str(parquet), Choices(streaming=True)).open("train")
    seen = rows_seen(split, steps=range(26), world_size=world_size, num_threads=num_threads)

    assert len(split) == 103 and len(seen) == 26 * 12
    for epoch in range(3):
        assert sorted(seen[epoch * 103 : (epoch + 1) * 103]) == list(range(103))
    assert seen == in_order


@pytest.mark.slow
def test_an_evaluation_counts_each_row_once_for_any_size_batch_and_number_of_processes(parquet):
    """The truth is a loop over the rows; 1,280 evaluations, of a table and of shards."""
    num_evaluations = 0
    for streaming in (False, True):
        whole = dataset.DataSet(str(parquet), Choices(streaming=streaming)).open("train")
        pixels = np.stack([PLAIN_EVAL(loader.read_example(whole, row)[0]) for row in range(40)])
        labels = np.array([whole.read_row(row)[1] for row in range(40)])
        weights = np.random.default_rng(0).normal(size=(pixels[0].size, 2))
        is_right = (pixels.reshape(40, -1) @ weights).argmax(1) == labels
        for size, batch_size, processes in product(range(1, 41), (1, 3, 4, 7), (1, 2, 3, 4)):
            split, rows, num_right = whole.part(0, size, name="a part"), [], 0
            for rank in range(processes):
                options = dict(batch_size=batch_size, rank=rank, world_size=processes)
                for batch in loader.eval_batches(
                    split, PLAIN_EVAL, **options, on_bad_image="error", num_threads=2
                ):
                    rows += batch.rows_B.tolist()
                    images = batch.images_BCHW.permute(0, 2, 3, 1).reshape(len(batch.rows_B), -1).numpy()
                    num_right += int(((images @ weights).argmax(1) == batch.labels_B.numpy()).sum())
            assert sorted(rows) == list(range(size)), (streaming, size, batch_size, processes)
            assert num_right == is_right[:size].sum(), (streaming, size, batch_size, processes)
            num_evaluations += 1
    print(f"{num_evaluations:,} evaluations: each row once, and as many right")
    assert num_evaluations == 1_280


def test_to_go_on_is_to_ask_for_the_next_step(parquet):
    split = dataset.DataSet(str(parquet), Choices(streaming=True)).open("train")
    whole = rows_seen(split, steps=range(20), world_size=1, num_threads=2)

    for step in (1, 7, 9, 17):
        assert rows_seen(split, steps=range(step, 20), world_size=1, num_threads=3) == whole[step * 12 :]


def test_a_streamed_row_is_the_row_of_the_table(parquet):
    streamed = dataset.DataSet(str(parquet), Choices(streaming=True))
    table = dataset.DataSet(str(parquet))
    for name in ("train", "test"):
        ours, theirs = streamed.open(name), table.open(name)
        assert (ours.class_names, len(ours)) == (theirs.class_names, len(theirs))
        assert [ours.read_row(r) for r in range(len(ours))] == [
            theirs.read_row(r) for r in range(len(theirs))
        ]
        assert np.array_equal(ours.read_labels(), theirs.read_labels())


def test_parts_of_a_stream_hold_each_row_once(parquet):
    whole = dataset.DataSet(str(parquet), Choices(streaming=True)).open("train")
    images = [whole.read_row(row)[0] for row in range(len(whole))]
    rest, dev = dataset.cut_dev(whole, dev_fraction=0.1, split="train")
    few = dataset.random_subset(whole, 50, seed=3)
    other = dataset.random_subset(whole, 50, seed=4)

    kept, held_out = ([part.read_row(row)[0] for row in range(len(part))] for part in (rest, dev))
    assert (len(kept), len(held_out)) == (93, 10) and sorted(kept + held_out) == sorted(images)
    assert held_out != images[93:]  # shards may be written class by class
    drawn = [few.read_row(row)[0] for row in range(50)]
    assert len(set(drawn)) == 50 and set(drawn) <= set(images)
    assert drawn != [other.read_row(row)[0] for row in range(50)]
    for part in (rest, dev, few):
        assert part.block_starts[0] == 0 and part.block_starts[-1] == len(part)
        seen = rows_seen(part, steps=range(-(-len(part) // 12)), world_size=1, num_threads=2)
        assert sorted(seen[: len(part)]) == list(range(len(part)))
    assert len({part.fingerprint for part in (whole, rest, dev, few, other)}) == 5


@pytest.mark.slow
def test_tar_shards_are_streamed_without_being_asked(tars, tmp_path):
    outcome = run(
        *STREAMED, "--dataset", str(tars / "{train,test}-*.tar"), "--out", tmp_path / "run", "--steps", 3
    )

    assert outcome.code == 0, outcome.out
    assert outcome.json["num_eval_examples"] == 7 and outcome.json["num_classes"] == 2


@pytest.mark.slow
def test_a_streamed_run_learns_and_scores_the_test_shards(parquet, tmp_path):
    outcome = run(*STREAMED, "--dataset", parquet, "--out", tmp_path / "run", "--steps", 25)

    assert outcome.code == 0, outcome.out
    assert outcome.json["num_eval_examples"] == 11
    assert np.mean(losses(tmp_path / "run")[-5:]) < 0.4 < losses(tmp_path / "run")[0]


@pytest.mark.slow
def test_a_streamed_run_killed_at_once_resumes_bit_for_bit(parquet, tmp_path):
    def whole_run(out, **more):
        return vit(*STREAMED, "--dataset", parquet, "--out", out, "--steps", 12, **more)

    assert whole_run(tmp_path / "unbroken").returncode == 0
    killed = tmp_path / "killed"

    def kill_soon(process):
        when_logged(killed, 5, lambda: (time.sleep(0.02), os.kill(process.pid, signal.SIGKILL)))

    assert whole_run(killed, on_start=kill_soon).returncode == -signal.SIGKILL
    assert whole_run(killed).returncode == 0
    assert fingerprint(killed) == fingerprint(tmp_path / "unbroken")
    assert json.loads((killed / "summary.json").read_text())["steps"] == 12


def test_a_label_that_is_no_class_is_named_when_its_row_is_read(tars):
    split = dataset.DataSet(str(tars / "train-*.tar")).open("train")
    from dataclasses import replace

    small = replace(split, num_classes=1)
    with pytest.raises(DataError, match="the label 1, outside 0"):
        rows_seen(small, steps=range(2), world_size=1, num_threads=2)


@pytest.mark.slow
def test_several_labels_a_row_train_with_the_sigmoid_and_are_refused_with_softmax(tmp_path):
    features = datasets.Features(
        {"image": datasets.Image(), "labels": datasets.List(datasets.ClassLabel(names=["a", "b", "c"]))}
    )
    rows = {
        "image": [{"bytes": picture(n), "path": None} for n in range(24)],
        "labels": [[n % 2] if n % 3 else [n % 2, 2] for n in range(24)],
    }
    for name in ("train", "test"):
        datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "set" / f"{name}.parquet")
    words = (*SMALL, "--batch-size", 8, "--dataset", tmp_path / "set", "--steps", 3)
    for streaming in ("true", "false"):
        more = ("--set", "objective.loss=sigmoid", "--set", f"data.streaming={streaming}")
        outcome = run(*words, *more, "--out", tmp_path / streaming)
        assert outcome.code == 0, outcome.out
        assert (outcome.json["num_classes"], outcome.json["num_eval_examples"]) == (3, 24)
    refused = run(*words, "--out", tmp_path / "no")

    assert refused.code == 2 and "several labels" in refused.out
