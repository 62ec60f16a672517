"""Ctrl-C and SIGTERM at any instant: a run says how to resume, and resumes bit for bit."""

import os
import random
import signal
import threading
import time
from contextlib import suppress

import pytest

from tests.conftest import vit
from tests.training.test_finetune import SMALL, TRICKY, fingerprint, small_run, when_logged

COUNT = int(os.environ.get("VIT_SIGNALS", "12"))  # of each signal
PROMPT_S = 25
WORDS = tuple("eval.every=2" if word == "eval.every=4" else word for word in TRICKY)
WORDS = (*WORDS, "--set", "eval.batch_size=1")  # half of the time is spent in evaluations


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("processes", [1, 2])
def test_signals_at_random_instants_lose_nothing(photos, tmp_path, name, processes):
    """A third of them comes in the start, a third twice; half of them to the process, half to its group."""
    number, code = getattr(signal, name), 130 if name == "SIGINT" else 143
    draws, out, steps, took_s = random.Random(name), tmp_path / "stopped", 40 * COUNT, []
    words = (*SMALL[:-1], "--dataset", photos, "--out", out, "--steps", steps, *WORDS)
    small_run(photos, tmp_path / "unbroken", *WORDS, steps=steps)

    for count in range(COUNT):
        delay_s, gap_s = draws.uniform(0, 0.3), draws.uniform(0, 0.2)
        is_twice, in_start, to_group = count % 3 == 2, count % 3 == 0, draws.random() < 0.5

        def stop(process, delay_s=delay_s, gap_s=gap_s, is_twice=is_twice, to_group=to_group):
            time.sleep(delay_s)
            took_s.append(time.monotonic())
            for _ in range(1 + is_twice):
                with suppress(ProcessLookupError):  # it has ended
                    (os.killpg if to_group else os.kill)(process.pid, number)
                time.sleep(gap_s)

        def stop_soon(process, in_start=in_start, stop=stop):
            logged = (out / "metrics.jsonl").read_bytes().count(b'"loss": ') if out.exists() else 0
            if in_start:
                threading.Timer(draws.uniform(0.3, 4), stop, [process]).start()
            else:
                when_logged(out, logged + draws.randint(1, 3), lambda: stop(process))

        ended = vit(*words, "--num-processes", processes, on_start=stop_soon, new_group=True, timeout=400)
        took_s[-1] = time.monotonic() - took_s[-1]
        # Before and after Python handles signals they kill: of a shell, the same exit code.
        assert ended.returncode in (code, -number), (count, ended)
        assert (ended.stdout + ended.stderr).count("\n") <= 5, ended
        assert "Traceback" not in ended.stderr and "Exception" not in ended.stderr, (count, ended.stderr)

    print(f"{COUNT} x {name}, {processes} processes: at most {max(took_s):.1f} s")
    assert max(took_s) < PROMPT_S
    assert vit(*words, "--num-processes", processes, timeout=400).returncode == 0
    if processes == 1:
        assert fingerprint(out) == fingerprint(tmp_path / "unbroken")
