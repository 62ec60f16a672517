"""SIGKILLs at random instants, also during a save, other loader threads each time: not one bit is lost."""

import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from subprocess import DEVNULL, Popen

import pytest

from tests.conftest import REPOSITORY, run, vit
from tests.data.shards.test_faulty_servers import contents, needs_aiohttp  # noqa: F401, a fixture
from tests.data.shards.test_streaming import parquet  # noqa: F401, a fixture
from tests.faulty_disk import script
from tests.http_server import Files, serving
from tests.training.test_exact import EXACT
from tests.training.test_finetune import SMALL, TRICKY, fingerprint, small_run, when_logged
from tests.training.test_shard import children_of
from vitcli.output.run_folder import newest_checkpoint_step

NUMBERS = (1, 2, 4)  # of processes
BY_CLASS = {"data.sampling": "uniform", "objective.class_weights": "none"}
KILLS = int(os.environ.get("VIT_KILLS", "20"))
EARLIER = os.environ.get("VIT_EARLIER", "298181b")  # a commit with the same format of run folders
STARTS = int(os.environ.get("VIT_STARTS", "200"))  # ten at once
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
@pytest.mark.parametrize(
    "what",
    [
        "selection",
        "side-by-side",
        "pretrain-selection",
        "students",
        "fewshot",
        "fewshot-cache",
        "evaluate",
        "embed",
    ],
)
def test_kills_at_random_moments_change_no_result_of_many_runs_or_of_none(photos, tmp_path, what):
    killed = kill_at_random(what, tmp_path, photos)

    assert killed["problems"] == [] and killed["kills"] == KILLS and killed["ends"]


@pytest.mark.slow
def test_kills_at_random_moments_change_no_bit_of_a_run_on_shards_at_an_address(tmp_path, contents):  # noqa: F811
    needs_aiohttp()
    with serving(Files(files=contents)) as server:
        killed = kill_at_random("http", tmp_path, f"{server.address}/{{train-{{0..2}},test-0}}.parquet")

    assert killed["problems"] == [] and killed["kills"] == KILLS and killed["ends"]


def kill_at_random(what: str, scratch: Path, data: object) -> dict:
    """Kill a command of `tests.disk_sweeps` again and again; return what it found."""
    cache = {"XDG_CACHE_HOME": str(scratch / "cache")}
    killed = json.loads(script(cache, "tests.disk_sweeps", what, KILLS, scratch, data))
    print(what, {key: value for key, value in killed.items() if key != "problems"})
    return killed


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["map-style", "streamed"])
def test_any_process_killed_and_a_restart_on_any_number_of_them_change_no_bit(request, tmp_path, kind):
    dataset = request.getfixturevalue("photos" if kind == "map-style" else "parquet")
    kills, killed, draws = max(1, KILLS // 2), tmp_path / "killed", random.Random(2)
    others = {"train.save_every=3": "train.save_every=1"}
    if kind == "streamed":  # whose classes are not counted
        others |= {f"{key}=sqrt": f"{key}={off}" for key, off in BY_CLASS.items()}
    words = (*(others.get(word, word) for word in EXACT), "--dataset", dataset, "--steps", 5 * kills)
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


@pytest.mark.slow
def test_of_ten_starts_at_once_one_proceeds_and_its_death_blocks_nobody(photos, tmp_path):
    rounds = max(1, STARTS // 10)
    started = json.loads(script({}, "tests.starts", rounds, tmp_path, photos))
    print({key: value for key, value in started.items() if key != "problems"})
    assert started["problems"] == [] and started["proceeded"] == rounds

    # A copy of the folder resumes as well.
    folder, copy = tmp_path / "run", tmp_path / "copy"
    shutil.copytree(folder, copy)
    words = [word for word in SMALL if word not in ("--json", "--quiet")]
    words += ["--dataset", photos, "--batch-size", 4, "--set", "train.save_every=1", "--steps", 10**6]
    words = [sys.executable, "-m", "vitcli", *map(str, [*words, "--out", copy])]
    before = newest_checkpoint_step(copy)
    with Popen(words, stdout=DEVNULL, stderr=DEVNULL) as process:
        until = time.monotonic() + 100
        while newest_checkpoint_step(copy) < before + 2 and time.monotonic() < until:
            time.sleep(0.05)
        process.terminate()
        assert process.wait(timeout=120) == 143
    assert newest_checkpoint_step(copy) >= before + 2


@pytest.mark.slow
def test_a_run_that_an_earlier_version_began_resumes_with_the_same_bits(photos, tmp_path):
    """Of this repository's history, with the same format of run folders."""
    archive = subprocess.run(
        ["git", "-C", REPOSITORY, "archive", EARLIER, "vitcli", "recipes"], capture_output=True
    )
    if archive.returncode:
        pytest.skip(f"{EARLIER} is not in the history of this checkout")
    earlier, out = tmp_path / "earlier", tmp_path / "run"
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(earlier, filter="data")
    how = ("--dataset", photos, "--steps", 40, *TRICKY[:-1], "train.save_every=1")
    began = vit(
        *SMALL,
        *(*how, "--out", out),
        env={"PYTHONPATH": str(earlier)},
        on_start=lambda process: when_logged(out, 7, process.kill),
    )
    assert began.returncode == -signal.SIGKILL, began.stderr
    step = newest_checkpoint_step(out)
    shutil.copy(out / "recipe.toml", tmp_path)

    words = ("finetune", "--recipe", tmp_path / "recipe.toml", "--per-device-batch", 5, "--quiet", "--json")
    for folder in (out, tmp_path / "unbroken"):
        resumed = run(*words, "--out", folder)
        assert resumed.code == 0 and "bit-exact" not in resumed.err, resumed
    print(f"{EARLIER}: resumed after step {step} of 40, Same")
    ours, others = fingerprint(out), fingerprint(tmp_path / "unbroken")
    for fingerprints in (ours, others):
        fingerprints.pop("metrics.jsonl")
    assert ours == others
    # Evaluations of before the kill add up images in another order; losses of training have the same bits.
    for line, other in zip(metrics_of(out), metrics_of(tmp_path / "unbroken"), strict=True):
        loss, same = (each.get("eval", {}).pop("loss", 0.0) for each in (line, other))
        assert line == other and loss == pytest.approx(same, rel=1e-7)


def metrics_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
