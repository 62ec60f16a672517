"""SIGKILLs at random instants, also during a save, other loader threads each time: not one bit is lost."""

import json
import os
import random
import signal
import time

import pytest

from tests.conftest import run, vit
from tests.data.shards.test_streaming import parquet  # noqa: F401, a fixture
from tests.training.test_exact import EXACT
from tests.training.test_finetune import SMALL, TRICKY, fingerprint, small_run, when_logged
from tests.training.test_shard import children_of

NUMBERS = (1, 2, 4)  # of processes
KILLS = int(os.environ.get("VIT_KILLS", "20"))
STEPS = 5 * KILLS  # a run gets 3 to 4 steps further between two kills, so that none ends before the last


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["map-style", "streamed"])
def test_kills_at_random_instants_change_no_bit(request, tmp_path, kind):
    dataset = request.getfixturevalue("photos" if kind == "map-style" else "parquet")
    how = tuple("train.save_every=1" if word == "train.save_every=3" else word for word in TRICKY)
    if kind == "streamed":
        how = (*how, "--set", "data.streaming=true", "--set", "data.shuffle_window=24")
    unbroken, killed = tmp_path / "unbroken", tmp_path / "killed"
    small_run(dataset, unbroken, *how, steps=STEPS)
    draws = random.Random(0)
    logged_before = in_a_save = 0

    for number in range(KILLS):
        # By progress, then a random moment more: a kill during the imports would test nothing.
        at, delay_s = logged_before + draws.randint(1, 3), draws.uniform(0, 0.1)
        words = ("--steps", STEPS, *how, "--workers", draws.randint(1, 3))

        def kill_soon(process, at=at, delay_s=delay_s):
            when_logged(killed, at, lambda: (time.sleep(delay_s), process.kill()))

        ended = vit(*SMALL, "--dataset", dataset, "--out", killed, *words, on_start=kill_soon, timeout=300)
        assert ended.returncode == -signal.SIGKILL, (number, ended.returncode, ended.stderr)
        in_a_save += bool(list(killed.glob("checkpoints/.tmp*")))
        logged_before = (killed / "metrics.jsonl").read_bytes().count(b'"loss": ')

    small_run(dataset, killed, *how, steps=STEPS)
    assert in_a_save > 0
    assert fingerprint(killed) == fingerprint(unbroken)
    assert not list(killed.rglob(".tmp*"))
    assert json.loads((killed / "summary.json").read_text())["steps"] == STEPS


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["map-style", "streamed"])
def test_any_process_killed_and_a_restart_on_any_number_of_them_change_no_bit(request, tmp_path, kind):
    dataset = request.getfixturevalue("photos" if kind == "map-style" else "parquet")
    kills, killed, draws = max(1, KILLS // 2), tmp_path / "killed", random.Random(2)
    often = ("train.save_every=1" if word == "train.save_every=3" else word for word in EXACT)
    words = (*often, "--dataset", dataset, "--steps", 5 * kills)
    if kind == "streamed":
        words = (*words, "--set", "data.streaming=true", "--set", "data.shuffle_window=24")
    assert run(*words, "--out", tmp_path / "unbroken").code == 0
    logged_before, numbers = 0, []

    for number in range(kills):
        at, delay_s = logged_before + draws.randint(1, 3), draws.uniform(0, 0.1)
        numbers.append(draws.choice(NUMBERS))

        def kill_one(process, at=at, delay_s=delay_s):
            def kill() -> None:
                time.sleep(delay_s)
                os.kill(random.choice(children_of(process.pid) or [process.pid]), signal.SIGKILL)

            when_logged(killed, at, kill)

        several = ("--num-processes", numbers[-1])
        ended = vit(*words, "--out", killed, *several, on_start=kill_one, timeout=300)
        expected = -signal.SIGKILL if numbers[-1] == 1 else 7
        assert ended.returncode == expected, (number, ended.stdout, ended.stderr)
        logged_before = (killed / "metrics.jsonl").read_bytes().count(b'"loss": ')

    ended = vit(*words, "--out", killed, "--num-processes", draws.choice(NUMBERS), timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    print(f"{kind}: {kills} kills on {numbers} processes, Same")
    assert fingerprint(killed) == fingerprint(tmp_path / "unbroken")
    assert not list(killed.rglob(".tmp*"))
