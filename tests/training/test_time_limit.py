"""Runs with a time limit, on a clock that tests advance."""

import json
import os
import random
import shutil
import signal
import time
from contextlib import nullcontext
from dataclasses import replace
from threading import Timer
from types import SimpleNamespace

import pytest

from tests.conftest import run, vit
from tests.training.test_finetune import SMALL, fingerprint, when_logged
from vitcli import recipe as recipes
from vitcli.cli.train import minutes_of
from vitcli.data.parts.eval_split_names import FoldName
from vitcli.errors import VitError
from vitcli.training import loop, schedule
from vitcli.training.methods import time_limit
from vitcli.training.methods.calibrate import CalibratedWeights
from vitcli.training.methods.early_stopping import EarlyStopping
from vitcli.training.methods.time_limit import Scoring, TimeLimit, scoring_of
from vitcli.training.methods.wise_ft import WiseFineTuning
from vitcli.training.splits import RunSplits
from vitcli.training.validation import PeriodicEvaluation


class Rows(list):
    """A split as far as its rows go."""

    def rows(self, numbers) -> list[int]:
        return [self[number] for number in numbers]


class Clock:
    """Seconds that pass by being added."""

    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def simulated(limit_s, *, step_s, image_s=0.0, every=0, most_steps=10**6, begun=(0, 0.0, ()), until_s=1e9):
    """Follow a run in the order of the loop; return (its end in s, steps done, its plans)."""
    step, used_s, plans = begun
    clock, plans = Clock(), list(plans)
    scoring = Scoring(every, 100, 100)
    limit = TimeLimit(
        limit_s, scoring, began_at=0.0, most_steps=most_steps, is_planned=bool(plans), is_main=True,
        clock=clock,
    )  # fmt: skip
    limit.used_before_s, limit.score_s = used_s, image_s
    clock.now += 5  # imports and data
    total = plans[-1] if plans else most_steps
    while step < total:
        clock.now += step_s(used_s + clock.now)
        is_due = limit.misses(step, total)
        step += 1
        if every and step % every == 0 and step < total:
            clock.now += 100 * image_s
            limit.scored(100 * image_s)
        if is_due and step < total:
            total = limit.plan(step)
            plans.append(total)
        if clock.now > until_s:
            return used_s + clock.now, step, plans
    return used_s + clock.now + 100 * image_s + time_limit.RESULTS_S, step, plans


@pytest.mark.parametrize(("num_images", "timed"), [(1, 1), (5, 5), (11, 8), (99, 8)])
def test_what_is_loaded_for_the_first_batch_is_not_the_time_of_an_image(num_images, timed, monkeypatch):
    """Batches of four; the kernels take three seconds at first, an image half a second."""
    clock, scored = Clock(), []
    monkeypatch.setattr("vitcli.training.validation.time.perf_counter", clock)

    def score(model, few, preprocessing, settings):
        clock.now += 0.5 * len(few) + (0 if scored else 3)
        scored.append(list(few))

    evaluation = PeriodicEvaluation.__new__(PeriodicEvaluation)
    evaluation.job = SimpleNamespace(splits=SimpleNamespace(eval=Rows(range(num_images))))
    evaluation.preprocessing, evaluation.settings = None, SimpleNamespace(batch_size=4)
    evaluation.task = SimpleNamespace(score=score)
    evaluation.evaluated_model = nullcontext

    assert evaluation.seconds_per_image() == 0.5
    assert scored[0] == list(range(min(num_images, 4))) and len(scored[1]) == timed
    assert num_images < 12 or not {*scored[0]} & {*scored[1]}


@pytest.mark.parametrize("step_s", [0.02, 0.3, 4.0])
@pytest.mark.parametrize("every", [0, 7])
def test_a_run_ends_within_a_tenth_of_its_time_whatever_the_machine_does(step_s, every):
    draws = random.Random(step_s)

    def slower_later(at_s: float) -> float:  # by a half, after a third of the time
        return step_s * (1.5 if at_s > 60 else 1) * draws.uniform(0.8, 1.2)

    end_s, steps, plans = simulated(180, step_s=slower_later, image_s=step_s / 50, every=every)
    assert 162 < end_s < 198, (end_s, plans)
    assert steps == plans[-1]
    assert len(plans) < 9

    # The process is killed after a minute; ten seconds of its work are lost, and it begins again.
    used_s, step, plans = simulated(180, step_s=slower_later, image_s=step_s / 50, every=every, until_s=60)
    begun = (max(1, step - int(10 / step_s)), used_s - 9, plans)
    end_s, steps, plans = simulated(180, step_s=slower_later, image_s=step_s / 50, every=every, begun=begun)
    assert 162 < end_s < 198, (end_s, plans)
    assert steps == plans[-1]


def test_a_run_at_a_steady_speed_is_planned_once():
    end_s, steps, plans = simulated(180, step_s=lambda _: 0.5, image_s=0.01)
    assert plans == [steps]
    assert end_s == pytest.approx(180, abs=2)
    # With time for all steps of the recipe nothing is planned.
    assert simulated(180, step_s=lambda _: 0.5, most_steps=50)[1:] == (50, [])


def test_the_time_of_evaluations_is_not_that_of_steps():
    """Steps of a second, and an evaluation of 40 s after the third: measured over ten steps."""
    clock = Clock()
    about = {"began_at": 0.0, "most_steps": 10_000, "is_planned": False, "is_main": True, "clock": clock}
    limit = TimeLimit(1_000, Scoring(3, 10, 10), **about)
    for step in range(20):
        clock.now += 1
        if limit.misses(step, 10_000):
            break
        if step == 3:
            clock.now += 40
            limit.scored(40)
    assert step == time_limit.MEASURED_STEPS and limit._step_s == pytest.approx(1)


def test_the_most_steps_that_fit_are_those_of_a_search_through_all():
    draws = random.Random(0)
    for _ in range(200):
        every, step = draws.choice([0, 3, 10]), draws.randrange(20)
        limit = TimeLimit(
            draws.uniform(20, 60), Scoring(every, 50, 80), began_at=0, most_steps=90, is_planned=True,
            is_main=True, clock=Clock(),
        )  # fmt: skip
        limit.score_s, limit._step_s = draws.uniform(0, 0.1), draws.uniform(0.1, 2)

        def end_s(total, limit=limit, every=every, step=step):
            evaluations = sum(1 for at in range(step + 1, total) if every and at % every == 0)
            scored_s = (50 * evaluations + 80) * limit.score_s
            return (total - step) * limit._step_s + scored_s + time_limit.RESULTS_S

        fitting = [total for total in range(step + 1, 91) if end_s(total) <= limit.limit_s]
        assert limit.plan(step) == max(fitting, default=step + 1)


@pytest.mark.parametrize(
    ("total_steps", "is_off"), [(1006, True), (1004, False), (994, False), (966, False), (964, True)]
)
def test_a_run_is_planned_again_if_it_ends_a_hundredth_late_or_three_early(total_steps, is_off):
    """A step is a second, and files are written for five: 1,000 s are 995 steps."""
    clock = Clock()
    about = {"began_at": 0.0, "most_steps": 10_000, "is_main": True, "clock": clock}
    limit = TimeLimit(1_000, Scoring(0, 0, 0), is_planned=True, **about)
    asked = []
    for step in range(7):
        asked.append(limit.misses(step, total_steps))
        clock.now += 1

    assert asked == [False] * 6 + [is_off]


def a_limit(limit_s: float, clock: Clock, scoring: Scoring | None = None, **more: object) -> TimeLimit:
    """A limit whose steps took a second each, as the first six have shown."""
    about = {"began_at": 0.0, "most_steps": 10_000, "is_main": True, "is_planned": True, "clock": clock}
    limit = TimeLimit(limit_s, scoring or Scoring(0, 0, 0), **about | more)
    for step in range(7):
        assert not limit.misses(step, int(limit_s) - 5)
        clock.now += step < 6
    return limit


def test_a_run_that_slows_down_is_planned_again_after_a_quarter_of_the_time_that_is_left():
    clock, asked = Clock(), []
    limit = a_limit(1_000, clock)
    for step in range(7, 400):
        clock.now += 1.25
        asked.append(limit.misses(step, 995))
        if asked[-1]:
            break

    assert clock.now == pytest.approx(6 + (1_000 - 6) / 4, abs=1.25)
    assert limit.plan(step) == step + int((1_000 - 5 - clock.now) / 1.25)


@pytest.mark.parametrize(("left", "is_off"), [(3, True), (2, False)])
def test_the_last_two_steps_are_made_as_they_were_planned(left, is_off):
    clock = Clock()
    limit = a_limit(100, clock)
    for step in range(7, 9):  # 20 s each, when 10 s are left
        clock.now += 40
        found = limit.misses(step, 8 + left)

    assert found is is_off


def test_a_new_plan_is_told_with_the_speed_and_the_time_that_scoring_takes():
    clock = Clock()
    limit = a_limit(600, clock, Scoring(0, 0, 200))
    assert limit.line(6, 500, before=1_234) == (
        "time: 500 steps instead of 1,234 for the end after 10 min (1.0 s per step)"
    )
    limit.score_s = 0.01
    assert limit.line(6, 700, before=9) == (
        "time: 700 steps instead of 9, as 10 min are over (1.0 s per step, 2.0 s for the final evaluation)"
    )
    odd = a_limit(1_000, Clock())
    assert "for the end after 1000 s (" in odd.line(6, 995, before=9)


@pytest.mark.parametrize(("limit_s", "save_every_s"), [(60, 5), (100, 5), (200, 10), (7200, 360)])
def test_a_run_that_is_killed_loses_a_twentieth_of_its_time_or_five_seconds(limit_s, save_every_s):
    about = {"began_at": 0.0, "most_steps": 9, "is_planned": False, "is_main": True}

    assert TimeLimit(limit_s, Scoring(0, 0, 0), **about).save_every_s == save_every_s


def test_too_short_a_time_is_an_error_of_the_first_plan_alone():
    over = r"9\.0 s are too short: 7\.0 s are over after 2 steps of 1\.0 s"
    with pytest.raises(VitError, match=over) as caught:
        simulated(9, step_s=lambda _: 1.0, image_s=0.01)
    # 7 s and a step, a second of scoring, five for files, and six steps to measure the speed by are 20 s.
    assert caught.value.fix == "give it more than 0.5 minutes, in a new --out"
    _, steps, plans = simulated(60, step_s=lambda _: 1.0, begun=(30, 70, [50]))
    assert steps == plans[-1] < 37


def test_a_plan_of_another_length_keeps_its_fraction_of_warm_up():
    numbers = dict(warmup="10%", batch_size=8, per_device_batch=8, world_size=1, num_examples=80)
    plan = schedule.plan(steps=1000, epochs=None, forward_macs=1e9, **numbers)
    shorter = schedule.with_total_steps(plan, 240)
    assert shorter == schedule.plan(steps=240, epochs=None, forward_macs=1e9, **numbers)


@pytest.mark.parametrize(
    ("text", "minutes"), {"90s": 1.5, "30m": 30, "2h": 120, "1h30m": 90, " 1H30M": 90, "1.5h": 90}.items()
)
def test_times_as_people_write_them(text, minutes):
    assert minutes_of(text) == pytest.approx(minutes)


@pytest.mark.parametrize("text", ["", "30", "0m", "-3m", "m", "3 min", "1m30", "30m1h", "1e3s", "nan", "٣m"])
def test_a_time_that_is_none_is_refused_before_anything_is_loaded(text):
    outcome = run("finetune", "--dry-run", "--max-time", text)
    assert outcome.code == 2
    assert "use 90s, 30m or 1h30m" in " ".join(outcome.err.split()), outcome.err
    assert ("30m or 30s?" in " ".join(outcome.err.split())) == (text == "30")


@pytest.fixture
def a_second_a_step(monkeypatch):
    """Steps take a second of the clock, everything else no time."""
    clock, update = Clock(), loop.update_weights

    def update_weights(*arguments):
        clock.now += 1
        update(*arguments)

    monkeypatch.setattr(loop, "update_weights", update_weights)
    begin = TimeLimit.__init__

    def begin_now(self, *arguments, **more):
        begin(self, *arguments, **{**more, "clock": clock, "began_at": clock.now})

    monkeypatch.setattr(TimeLimit, "__init__", begin_now)
    monkeypatch.setattr(time_limit, "RESULTS_S", 0.0)
    monkeypatch.setattr("vitcli.training.validation.PeriodicEvaluation.seconds_per_image", lambda self: 0.0)
    monkeypatch.setattr(time_limit, "LONG_STEPS", 1.0)
    return clock


def test_the_forecast_counts_the_networks_that_a_probe_head_chooses_from(
    photos, tmp_path, monkeypatch, a_second_a_step
):
    """An image takes half a second: ten and 18 others at the end, and six to choose by, four times."""
    evaluation = "vitcli.training.validation.PeriodicEvaluation."
    monkeypatch.setattr(f"{evaluation}seconds_per_image", lambda self: 0.5)
    moments = ((PeriodicEvaluation, "score_choice", 6), (PeriodicEvaluation, "predict", 10))
    for kind, name, count in (*moments, (CalibratedWeights, "results", 18)):
        method = getattr(kind, name)

        def timed(self, *about, method=method, count=count):
            a_second_a_step.now += 0.5 * count
            return method(self, *about)

        monkeypatch.setattr(kind, name, timed)
    words = (*SMALL, "--dataset", photos, "--epochs", "100", "--max-time", "60s", "--batch-size", 32)
    keys = ("model.head=probe", "data.dev_fraction=0.25")
    outcome = run(*words, *(word for key in keys for word in ("--set", key)), "--out", tmp_path / "run")

    assert outcome.code == 0, outcome.err
    assert outcome.json["num_choice_examples"] == 6 and 59 <= a_second_a_step.now <= 61
    assert outcome.json["steps"] == 60 - 5 - 12 - 9


@pytest.mark.parametrize(
    ("eval_split", "calibrated_by", "expected"),
    [
        ("test", "eval", 7 + 60),  # scored, which calibrates too, and the training images
        ("fold 2 of 3", "eval", 7 + 60),
        ("fold 2 of 3", "choice", 7 + 60 + 30),
        ("dev_fraction of fold 2 of 3", "choice", 7 + 60 + 30),
        ("3 folds", "eval", 60),  # the models of the folds have scored all of them
    ],
)
def test_the_forecast_counts_the_images_that_calibrate(eval_split, calibrated_by, expected):
    parts = {"train": [0] * 60, "eval": [0] * 7, "choice": [0] * 30}
    recipe = recipes.load("finetune/default", [f"data.eval_split={eval_split}"], {"data.dataset": "photos"})
    folds = FoldName.of(eval_split)
    job = SimpleNamespace(
        recipe=recipe, splits=RunSplits(**parts, calibration=parts[calibrated_by]),
        methods=(CalibratedWeights(recipe),), plan=SimpleNamespace(images_seen=0),
        is_of_all_folds=folds is not None and folds.fold is None,
        is_of_one_fold=folds is not None and folds.fold is not None and not folds.is_choice,
    )  # fmt: skip

    assert scoring_of(job).num_final == expected


@pytest.mark.parametrize(
    ("is_late", "eval_every", "planned_after"),
    # Read late, numbers tell of the seventh step during the eighth, unless its weights are evaluated.
    [(False, 7, 7), pytest.param(True, 7, 7, marks=pytest.mark.slow), (True, 0, 8)],
)
def test_a_stopped_run_follows_the_recorded_plan_to_the_same_bits(
    photos, tmp_path, monkeypatch, a_second_a_step, is_late, eval_every, planned_after
):
    monkeypatch.setattr(loop, "runs_ahead", lambda device: is_late)
    monkeypatch.setattr(TimeLimit, "scored", lambda self, seconds: None)
    words = (*SMALL, "--dataset", photos, "--epochs", "25", "--max-time", "20s", "--batch-size", 8)
    words += ("--set", "schedule.warmup=20%", "--set", "train.log_every=1", "--set", "train.save_every=3")
    words += ("--set", "train.keep_checkpoints=9", "--set", f"eval.every={eval_every}")
    outcome = run(*words, "--out", tmp_path / "unbroken")
    assert outcome.code == 0, outcome.err
    plan = json.loads((tmp_path / "unbroken/plan.json").read_text())
    assert (plan["total_steps"], plan["warmup_steps"], plan["replans"]) == (20, 4, [[planned_after, 20]])
    records = [json.loads(line) for line in (tmp_path / "unbroken/metrics.jsonl").open()]
    rates = {record["step"]: record["lr"] for record in records if "lr" in record}
    assert max(rates) == 20
    cosine = {"base_lr": 0.02, "decay": "cosine", "end_lr": 0.0}
    for step, rate in rates.items():
        total_steps = 20 if step > planned_after else 75
        plan = {"total_steps": total_steps, "warmup_steps": total_steps // 5}
        assert rate == pytest.approx(schedule.lr_at_step(step - 1, **cosine, **plan))

    # Stopped after the plan is recorded, and resumed from a checkpoint of before it.
    seed_generators = loop.seed_generators

    def seed_and_stop(*arguments):
        if a_second_a_step.now >= stop_at:
            signal.raise_signal(signal.SIGTERM)
        seed_generators(*arguments)

    monkeypatch.setattr(loop, "seed_generators", seed_and_stop)
    a_second_a_step.now, stop_at = 0.0, 9
    assert run(*words, "--out", tmp_path / "stopped").code == 143
    assert json.loads((tmp_path / "stopped/plan.json").read_text())["replans"] == [[planned_after, 20]]
    for path in (tmp_path / "stopped/checkpoints").iterdir():
        if int(path.name.removeprefix("step_")) > 6:
            shutil.rmtree(path)
    stop_at = 1000
    outcome = run(*words, "--out", tmp_path / "stopped")
    assert outcome.code == 0, outcome.err
    assert fingerprint(tmp_path / "stopped") == fingerprint(tmp_path / "unbroken")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_that_is_stopped_and_killed_ends_on_time_with_its_rate_at_its_end(photos, tmp_path, processes):
    """On the real clock: a SIGTERM after a sixth of the time, and after another a SIGKILL."""
    limit_s, out = int(os.environ.get("VIT_MAX_TIME_S", "60")), tmp_path / "run"
    words = (*SMALL, "--dataset", photos, "--epochs", 100_000, "--max-time", f"{limit_s}s", "--out", out)
    words = (*words, "--batch-size", 8, "--per-device-batch", 4, "--num-processes", processes)
    words = (*words, "--set", "eval.every=200", "--set", "train.log_every=1")
    used_s, codes, logged = 0.0, [], 0
    for number in (signal.SIGTERM, signal.SIGKILL, None):

        def end_soon(process, number=number, logged=logged):
            later = Timer(limit_s / 6, lambda: process.send_signal(number))
            if number:
                when_logged(out, logged + 1, later.start)

        began_at = time.monotonic()
        ended = vit(*words, on_start=end_soon, timeout=400)
        used_s += time.monotonic() - began_at
        codes.append(ended.returncode)
        logged = (out / "metrics.jsonl").read_bytes().count(b'"loss": ')
        time.sleep(2)  # processes of a launcher that is gone end by themselves, and leave the folder

    assert codes == [143, -signal.SIGKILL, 0], ended.stderr
    plan = json.loads((out / "plan.json").read_text())
    records = [json.loads(line) for line in (out / "metrics.jsonl").open()]
    rates = {record["step"]: record["lr"] for record in records if "lr" in record}
    print(f"{processes} processes: {used_s:.1f} s of {limit_s}, planned {len(plan['replans'])} times, "
          f"{max(rates):,} steps")  # fmt: skip
    # What the kill lost is made again: at most a twentieth of the time, or five seconds.
    assert 0.9 * limit_s <= used_s <= 1.1 * limit_s + max(5, limit_s / 20)
    assert max(rates) == plan["total_steps"] == json.loads(ended.stdout)["steps"]
    assert sorted(rates) == list(range(1, max(rates) + 1)) and rates[max(rates)] < 1e-3 * max(rates.values())


@pytest.mark.parametrize(
    ("head", "patience", "num_periodic", "num_final"),
    [
        ("zero", 0, 100, 100),
        ("zero", 3, 20, 100 + 20),  # by patience the images to choose by, and once more at the end
        ("probe", 0, 100, 100 + 4 * 20),  # each network on the way from the probe head
        ("probe", 3, 20, 100 + 5 * 20),
    ],
)
def test_a_run_scores_what_it_reports_on_and_what_it_chooses_by(head, patience, num_periodic, num_final):
    recipe = SimpleNamespace(
        model=SimpleNamespace(head=head),
        train=SimpleNamespace(patience=patience),
        eval=SimpleNamespace(every=50),
    )
    splits = RunSplits(range(1_000), range(100), range(20))
    methods = (EarlyStopping(recipe),) if patience else ()
    methods += (WiseFineTuning(recipe),) if head == "probe" else ()
    job = SimpleNamespace(recipe=recipe, is_of_all_folds=False, splits=splits, methods=methods)

    assert time_limit.scoring_of(job) == Scoring(50, num_periodic, num_final)
    job.splits = replace(splits, probe=(range(7), range(9)))
    assert time_limit.scoring_of(job).num_final == num_final + 9


@pytest.mark.parametrize(
    ("every", "step", "total_steps", "num_images"),
    [
        (5, 0, 21, 427),  # after steps 5, 10, 15 and 20, and at the end
        (5, 5, 21, 327),
        (5, 0, 20, 327),  # that after step 20 is the last one
        (5, 10, 10, 27),
        (5, 19, 20, 27),
        (0, 3, 20, 27),
    ],
)
def test_images_that_are_still_to_be_scored_are_counted_by_hand(every, step, total_steps, num_images):
    assert Scoring(every, 100, 27).num_between(step, total_steps) == num_images
