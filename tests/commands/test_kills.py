"""Twenty SIGKILLs at random instants, other loader threads each time: not one bit is lost."""

import json
import random
import signal
import time

import pytest

from tests.commands.test_finetune import SMALL, TRICKY, fingerprint, small_run, when_logged
from tests.conftest import vit

KILLS = 20
STEPS = 5 * KILLS  # a run gets 3 to 4 steps further between two kills, so that none ends before the last


@pytest.mark.slow
def test_twenty_kills_at_random_instants_change_no_bit(photos, tmp_path):
    unbroken, killed = tmp_path / "unbroken", tmp_path / "killed"
    small_run(photos, unbroken, *TRICKY, steps=STEPS)
    draws = random.Random(0)
    logged_before = 0

    for number in range(KILLS):
        # By progress, then a random moment more: a kill during the imports would test nothing.
        at, delay_s = logged_before + draws.randint(1, 3), draws.uniform(0, 0.1)
        words = ("--steps", STEPS, *TRICKY, "--workers", draws.randint(1, 3))

        def kill_soon(process, at=at, delay_s=delay_s):
            when_logged(killed, at, lambda: (time.sleep(delay_s), process.kill()))

        ended = vit(*SMALL, "--dataset", photos, "--out", killed, *words, on_start=kill_soon, timeout=300)
        assert ended.returncode == -signal.SIGKILL, (number, ended.returncode, ended.stderr)
        logged_before = (killed / "metrics.jsonl").read_bytes().count(b'"loss": ')

    small_run(photos, killed, *TRICKY, steps=STEPS)
    assert fingerprint(killed) == fingerprint(unbroken)
    assert not list(killed.rglob(".tmp*"))
    assert json.loads((killed / "summary.json").read_text())["steps"] == STEPS
