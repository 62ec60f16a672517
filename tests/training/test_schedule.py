"""schedule: durations, learning rates and batch splits against hand values and the authors' code."""

import itertools
import json

import numpy as np
import pytest

from tests.conftest import SHARED
from vitcli.errors import VitError
from vitcli.training import schedule

DATA = SHARED
GOLDEN = DATA / "golden" / "schedules.json"
CASES = json.loads(GOLDEN.read_text())["cases"] if GOLDEN.is_file() else []
JFT, IMAGENET21K, IMAGENET = 303_000_000, 14_200_000, 1_281_167


def lr(step, **changes):
    settings = dict(base_lr=0.1, total_steps=100, warmup_steps=0, decay="cosine", end_lr=0.0)
    return schedule.lr_at_step(step, **settings | changes)


@pytest.mark.skipif(not CASES, reason=f"no golden data at {GOLDEN}; set VIT_TEST_DATA")
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_every_step_has_the_learning_rate_of_the_authors_code(case):
    with np.load(GOLDEN.with_suffix(".npz")) as golden:
        steps, expected = golden[f"{case['name']}/step"], golden[f"{case['name']}/lr"]
    settings = dict(
        base_lr=case["base"],
        total_steps=case["total_steps"],
        warmup_steps=case["warmup_steps"],
        decay=case["decay"],
        end_lr=case["linear_end"] or 0.0,
    )
    ours = [schedule.lr_at_step(int(step), **settings) for step in steps]

    assert np.abs(np.array(ours) - expected).max() <= 1e-6 * case["base"]


@pytest.mark.parametrize(
    ("step", "expected"), [(0, 0.1), (25, 0.0853553390593), (50, 0.05), (75, 0.0146446609407), (100, 0.0)]
)
def test_cosine_decay_is_half_a_period(step, expected):
    assert lr(step) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("step", "expected"), [(0, 0.1), (25, 0.08), (50, 0.06), (100, 0.02), (130, 0.02)])
def test_linear_decay_ends_at_its_end_rate_and_stays_there(step, expected):
    assert lr(step, decay="linear", end_lr=0.02) == pytest.approx(expected, abs=1e-12)


def test_cosine_decay_ends_at_its_end_rate_too():
    assert lr(100, end_lr=0.02) == pytest.approx(0.02)
    assert lr(50, end_lr=0.02) == pytest.approx(0.06)


def test_a_constant_rate_ignores_the_end_rate():
    assert [lr(step, decay="constant", end_lr=0.02) for step in (0, 50, 100)] == [0.1, 0.1, 0.1]


def test_the_warm_up_rises_from_zero_and_the_decay_starts_after_it():
    rates = [lr(step, warmup_steps=4, total_steps=104, decay="linear") for step in (0, 1, 2, 4, 54, 104)]

    assert rates == pytest.approx([0.0, 0.025, 0.05, 0.1, 0.05, 0.0])


def test_a_run_of_nothing_but_warm_up_has_a_rate_at_every_step():
    assert [lr(step, warmup_steps=4, total_steps=4) for step in range(4)] == pytest.approx(
        [0, 0.025, 0.05, 0.075]
    )


@pytest.mark.parametrize(
    ("epochs", "num_examples", "steps"),
    [
        (7, JFT, 517_822),
        (14, JFT, 1_035_645),
        (90, IMAGENET21K, 312_012),
        (30, IMAGENET21K, 104_004),
        (300, IMAGENET, 93_835),
    ],
)
def test_the_epochs_of_the_paper_are_the_steps_of_the_paper(epochs, num_examples, steps):
    found = schedule.duration_steps(steps=None, epochs=epochs, num_examples=num_examples, batch_size=4096)

    assert found == steps


def test_steps_are_taken_as_they_are_and_a_short_epoch_is_one_step():
    assert schedule.duration_steps(steps=500, epochs=None, num_examples=3, batch_size=512) == 500
    assert schedule.duration_steps(steps=None, epochs=1, num_examples=3, batch_size=512) == 1


@pytest.mark.parametrize(("warmup", "steps"), [(0, 0), (500, 500), ("0%", 0), ("10%", 100), ("2.5%", 25)])
def test_a_warm_up_is_given_in_steps_or_as_a_fraction_of_the_run(warmup, steps):
    assert schedule.warmup_steps(warmup, 1_000) == steps


def test_a_warm_up_may_fill_the_run_and_not_more():
    assert schedule.warmup_steps(100, 100) == 100
    with pytest.raises(VitError, match="101 steps is longer than the run of 100"):
        schedule.warmup_steps(101, 100)


@pytest.mark.parametrize(("world_size", "parts"), [(1, 64), (2, 32), (64, 1)])
def test_a_step_splits_into_equal_parts(world_size, parts):
    assert schedule.split_global_batch(4096, per_device_batch=64, world_size=world_size) == parts


def test_a_batch_that_does_not_split_is_refused_with_process_counts_that_work():
    with pytest.raises(VitError, match="does not split over 3 processes of 64") as refusal:
        schedule.split_global_batch(4096, per_device_batch=64, world_size=3)

    assert refusal.value.fix.startswith("launch 1, 2, 4, 8, 16, 32, 64 processes")


def test_a_batch_that_splits_over_no_number_of_processes_asks_for_smaller_parts():
    with pytest.raises(VitError) as refusal:
        schedule.split_global_batch(100, per_device_batch=64, world_size=2)

    assert refusal.value.fix.startswith("lower --per-device-batch")


def test_the_chosen_part_is_the_largest_that_splits_evenly():
    for batch_size, world_size, cap in itertools.product((96, 100, 512), (1, 2, 4), (1, 7, 32, 1000)):
        chosen = schedule.choose_per_device_batch(batch_size, world_size=world_size, cap=cap)
        even = [size for size in range(1, cap + 1) if batch_size % (size * world_size) == 0]

        assert chosen == max(even), (batch_size, world_size, cap)


def test_a_batch_that_no_part_can_split_is_refused():
    with pytest.raises(VitError, match="100 images does not split over 3 processes") as refusal:
        schedule.choose_per_device_batch(100, world_size=3, cap=32)

    assert "launch 1, 2, 4 processes" in refusal.value.fix


@pytest.mark.parametrize(
    ("giga_macs", "epochs", "table6"), [(17.563, 7, 224), (61.554, 7, 783), (167.294, 14, 4262)]
)
def test_compute_is_counted_as_in_table_6(giga_macs, epochs, table6):
    assert schedule.exaflops(giga_macs * 1e9, JFT * epochs) == pytest.approx(table6, rel=0.003)


def test_a_plan_holds_every_derived_number():
    plan = schedule.plan(
        steps=None,
        epochs=2,
        warmup="10%",
        batch_size=64,
        per_device_batch=8,
        world_size=2,
        num_examples=1_600,
        forward_macs=1e9,
    )

    assert plan == schedule.Plan(
        total_steps=50,
        warmup_steps=5,
        batch_size=64,
        per_device_batch=8,
        accumulation_steps=4,
        world_size=2,
        num_examples=1_600,
        images_seen=3_200,
        exaflops=1.92e-5,
    )


@pytest.mark.parametrize(("percent", "steps"), [("3%", 2), ("2.9%", 1), ("100%", 50), ("0%", 0)])
def test_a_warmup_in_percent_is_the_nearest_whole_number_of_steps(percent, steps):
    assert schedule.warmup_steps(percent, 50) == steps
