"""A process of a run dies or stalls, in every way and phase: the run ends in time and says which one."""

import json
import os
import random
import shutil
import time
from itertools import product
from pathlib import Path

import pytest

from tests.conftest import vit
from tests.distributed import faults
from tests.training.test_finetune import SMALL, fingerprint, small_run

DEAD, STALLED = ("SIGKILL", "raise", "os._exit", "sys.exit"), ("SIGSTOP", "sleep")
CALLS = {"start-up": 1, "loading": 18, "forward": 6, "evaluation": 2, "save": 2, "snapshot": 2, "results": 1}
ALL = [
    (rank, kind, "snapshot" if phase == "save" and rank else phase)
    for rank, kind, phase in product((0, 1), (*DEAD, *STALLED), list(CALLS)[:5])
]
ALL += [(0, kind, "results") for kind in (*DEAD, *STALLED)]
COUNT = int(os.environ.get("VIT_STALLS", "10"))  # of the 66 cases
STALL_S = 15
WORDS = (
    *("--steps", 8, "--batch-size", 8, "--per-device-batch", 4, "--precision", "fp32", "--workers", 1),
    *("--set", "model.dropout=0.1", "--set", "train.log_every=1", "--set", "train.save_every=2"),
    *("--set", "eval.every=3", "--set", "eval.batch_size=2"),
    *("--set", f"train.stall_minutes={STALL_S / 60}"),
)


@pytest.fixture(scope="module")
def unbroken(photos, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("unbroken") / "run"
    small_run(photos, path, *WORDS)
    return path


@pytest.fixture(scope="module")
def injecting(tmp_path_factory) -> Path:
    """A folder whose sitecustomize makes processes fail."""
    folder = tmp_path_factory.mktemp("injecting")
    shutil.copy(faults.__file__, folder / "sitecustomize.py")
    return folder


def processes_with(word: str) -> list[int]:
    """Return the processes that have a word in their environment."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if word.encode() in file.read_bytes():
                found.append(int(file.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found by Linux's /proc")
@pytest.mark.parametrize(("rank", "kind", "phase"), random.Random(17).sample(ALL, COUNT))
def test_a_run_of_which_a_process_dies_or_stalls_ends_in_time_and_resumes(
    photos, unbroken, injecting, tmp_path, rank, kind, phase
):
    out, mark = tmp_path / "run", tmp_path / "mark"
    paths = f"{injecting}{os.pathsep}{os.environ['PYTHONPATH']}"
    fault = {"VIT_FAULT": f"{rank} {phase} {kind} {CALLS[phase]} {mark}", "PYTHONPATH": paths}
    words = (*SMALL, "--dataset", photos, "--out", out, *WORDS, "--num-processes", 2)
    ended = vit(*words, env=fault, timeout=300)
    took_s = time.time() - float(mark.read_text())

    said = ended.stdout + ended.stderr
    error = json.loads(ended.stdout)["error"]
    print(f"rank {rank}, {kind}, {phase}: {took_s:.1f} s, exit code {ended.returncode}: {error}")
    assert took_s < (30 if kind in DEAD else STALL_S + 40)
    # An exception that nobody expects is a bug.
    assert ended.returncode == (1 if kind in ("raise", "sys.exit") else 7), said
    assert f"process {rank}" in error["message"] + error["where"] and "Traceback" not in said, said
    assert ended.stderr.count("\n") <= 5, ended.stderr
    deadline = time.monotonic() + 10
    while left := processes_with(f"VIT_FAULT={fault['VIT_FAULT']}"):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)

    small_run(photos, out, *WORDS)
    assert fingerprint(out) == fingerprint(unbroken)
