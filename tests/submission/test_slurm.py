"""`--submit slurm` by the real submitit, on a SLURM of real processes (`fake_slurm.py`)."""

import json
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ONE_LAYER, run
from tests.submission.fake_slurm import FakeSlurm
from vitcli.distributed import launch
from vitcli.submission.cluster import _parameters
from vitcli.submission.submission import Submission, keys_of

submitit = pytest.importorskip("submitit", reason="pip install 'vitcli[slurm]'")
# A command that works until a file says that all is done; it needs a moment to save.
STUB = """\
out=$(echo "$*" | sed 's/.*--out \\([^ ]*\\).*/\\1/')
echo "$*" >> "$out/line.$SLURM_ARRAY_TASK_ID"
trap 'sleep 0.1; touch "$out/saved.$SLURM_ARRAY_TASK_ID"; exit 143' USR1 TERM
touch "$out/ready.$SLURM_ARRAY_TASK_ID.$(wc -l < "$out/line.$SLURM_ARRAY_TASK_ID")"
until [ -e "$out/done" ]; do sleep 0.05; done
exit $(cat "$out/done")
"""
LIMIT = ("--submit-set", "timeout_min=60")


@pytest.fixture
def slurm(tmp_path, monkeypatch) -> Iterator[FakeSlurm]:
    (tmp_path / "stub.sh").write_text(STUB)
    monkeypatch.setattr(launch, "program", lambda: ["bash", str(tmp_path / "stub.sh")])
    for name in ("RANK", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    fake = FakeSlurm(tmp_path / "slurm")
    fake.install(monkeypatch)
    submitit.SlurmJob.watcher.clear()
    yield fake
    fake.end()


def submitted(out: Path, *words: str, workers: int = 2) -> list[str]:
    """Submit a learning-rate sweep; return the ids of its jobs."""
    options = ("--submit", "slurm", "--submit-workers", workers, *LIMIT, *words)
    outcome = run("finetune", "--lr", "0.01,0.03", "--out", out, *options, "--json")
    assert outcome.code == 0, outcome.err
    return [worker["job_id"] for worker in outcome.json["workers"]]


def wait_for(path: Path) -> None:
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until, f"there is no {path.name} of {sorted(path.parent.iterdir())}"
        time.sleep(0.02)


def states(out: Path) -> list[str]:
    return [worker["state"] for worker in run("submit", "status", out, "--json").json["workers"]]


def test_an_array_types_one_line_and_the_element_that_is_warned_comes_back_alone(slurm, tmp_path):
    out = tmp_path / "run"
    words = ("--submit-set=partition=gpu", "--submit-set", "cpus_per_task=4")
    jobs = submitted(out, *words)
    array = jobs[0].partition("_")[0]

    # One array, whose elements are warned by the signal that vit knows.
    options = slurm.options(array)
    assert jobs == [f"{array}_0", f"{array}_1"] and options["array"].startswith("0-1%")
    assert options["signal"] == "USR1@300" and "requeue" in options
    assert (options["time"], options["partition"], options["cpus-per-task"]) == ("60", "gpu", "4")
    for element in "01":
        wait_for(out / f"ready.{element}.1")
    assert states(out) == ["RUNNING", "RUNNING"]

    # The last element has the job id of the array, which stands for all of them.
    slurm.send(jobs[1], signal.SIGUSR1)
    wait_for(out / "ready.1.2")
    assert (out / "saved.1").exists() and not (out / "saved.0").exists()
    assert [slurm.starts(job) for job in jobs] == [1, 2]

    (out / "done").write_text("0")
    for job in jobs:
        slurm.wait(job, "COMPLETED")
    assert states(out) == ["COMPLETED", "COMPLETED"]
    lines = [line for each in "01" for line in (out / f"line.{each}").read_text().splitlines()]
    assert lines == [shlex.join(["finetune", "--lr", "0.01,0.03", "--out", str(out), "--json"])] * 3


def test_what_is_cancelled_saves_and_does_not_come_back(slurm, tmp_path):
    out = tmp_path / "run"
    (job,) = submitted(out, workers=1)
    wait_for(out / "ready..1")

    cancelled = run("submit", "cancel", out, "--json").json["workers"]
    assert [worker["job_id"] for worker in cancelled] == [job]
    slurm.wait(job, "CANCELLED by 1000")
    assert slurm.starts(job) == 1 and (out / "saved.").exists()
    assert states(out) == ["CANCELLED"]
    assert run("submit", "cancel", out, "--json").json["workers"] == []


@pytest.mark.slow
def test_an_element_whose_node_is_lost_comes_back_alone(slurm, tmp_path):
    out = tmp_path / "run"
    jobs = submitted(out, workers=3)
    for element in "012":
        wait_for(out / f"ready.{element}.1")

    slurm.lose_node(jobs[0])
    wait_for(out / "ready.0.2")
    assert [slurm.starts(job) for job in jobs] == [2, 1, 1]
    (out / "done").write_text("0")
    for job in jobs:
        slurm.wait(job, "COMPLETED")


@pytest.mark.slow
def test_an_element_comes_back_as_often_as_it_is_warned(slurm, tmp_path):
    out = tmp_path / "run"
    (job, _) = submitted(out)
    for start in range(1, 7):  # submitit itself would count three time limits
        wait_for(out / f"ready.0.{start}")
        slurm.send(job, signal.SIGUSR1)
    wait_for(out / "ready.0.7")


@pytest.mark.slow
def test_a_mistake_of_the_command_fails_its_element_and_does_not_come_back(slurm, tmp_path):
    out = tmp_path / "run"
    (job,) = submitted(out, workers=1)
    wait_for(out / "ready..1")
    (out / "done").write_text("3")

    slurm.wait(job, "FAILED")
    assert slurm.starts(job) == 1 and states(out) == ["FAILED"]


@pytest.mark.slow
def test_a_real_run_that_is_warned_comes_back_and_ends_with_the_bits_of_an_unbroken_one(
    slurm, photos, tmp_path, monkeypatch
):
    monkeypatch.setattr(launch, "program", lambda: [sys.executable, "-m", "vitcli"])
    words = f"{ONE_LAYER} --res 16 --batch-size 8 --recipe finetune/default --steps 500 --lr 0.01 -q"
    line = ("finetune", *words.split(), "--dataset", photos, "--set", "train.log_every=1")
    out = tmp_path / "run"
    run(*line, "--out", out, "--submit", "slurm", *LIMIT)
    job = json.loads((out / "submit.json").read_text())["submissions"][0]["job_ids"][0]
    wait_for(out / "metrics.jsonl")
    while (out / "metrics.jsonl").read_bytes().count(b"\n") < 3:
        time.sleep(0.02)

    slurm.send(job, signal.SIGUSR1)
    slurm.wait(job, "COMPLETED", starts=2)
    assert slurm.starts(job) == 2 and run(*line, "--out", tmp_path / "unbroken").code == 0
    weights = [(folder / "model.safetensors").read_bytes() for folder in (out, tmp_path / "unbroken")]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_an_array_divides_a_sweep_and_loses_nothing_when_a_worker_is_warned_and_a_node_lost(
    slurm, photos, tmp_path, monkeypatch
):
    monkeypatch.setattr(launch, "program", lambda: [sys.executable, "-m", "vitcli"])
    words = f"{ONE_LAYER} --res 16 --batch-size 8 --recipe finetune/default --steps 150 --runs 2 -q"
    line = ("finetune", *words.split(), "--lr", "0.01,0.02,0.03,0.04", "--dataset", photos)
    out = tmp_path / "run"
    run(*line, "--out", out, "--submit", "slurm", "--submit-workers", "3", *LIMIT)
    jobs = json.loads((out / "submit.json").read_text())["submissions"][0]["job_ids"]

    # While they train: one is warned, the node of another is lost.
    while not list(out.glob("arms/*/checkpoints")) and len(list(out.glob("arms/*/metrics.jsonl"))) < 3:
        time.sleep(0.02)
    slurm.send(jobs[0], signal.SIGUSR1)
    slurm.lose_node(jobs[1])
    for job, starts in zip(jobs, (2, 2, 1), strict=True):
        slurm.wait(job, "COMPLETED", starts=starts)
    assert run(*line, "--out", tmp_path / "alone").code == 0
    done, alone = (json.loads((folder / "summary.json").read_text()) for folder in (out, tmp_path / "alone"))
    assert [done[key] for key in ("lr", "top1", "runs")] == [alone[key] for key in ("lr", "top1", "runs")]
    weights = [(folder / "model.safetensors").read_bytes() for folder in (out, tmp_path / "alone")]
    assert weights[0] == weights[1]


def test_a_partition_that_is_not_there_is_an_error_of_three_lines(slurm, tmp_path):
    words = ("--submit", "slurm", "--submit-set", "partition=none", *LIMIT)
    outcome = run("finetune", "--out", tmp_path / "run", *words)

    assert outcome.code == 5 and "invalid partition specified: none" in outcome.err
    assert "where: --submit slurm" in outcome.err and outcome.out == ""


def test_without_accounting_a_state_is_unknown_and_the_result_is_still_json(slurm, tmp_path):
    (slurm.folder / "bin" / "sacct").write_text(
        "#!/bin/sh\necho accounting storage is disabled >&2; exit 1\n"
    )
    record = {"place": "slurm", "job_ids": ["3_0", "3_1"], "command_line": []}
    (tmp_path / "submit.json").write_text(json.dumps({"submissions": [record]}))

    assert states(tmp_path) == ["UNKNOWN", "UNKNOWN"]


def test_submitit_knows_every_key(slurm, tmp_path):
    submission = Submission("slurm", 2, keys_of("slurm"), tmp_path, ())
    executor = submitit.AutoExecutor(tmp_path, cluster="slurm")

    executor.update_parameters(**_parameters(submission))  # which refuses others


@pytest.mark.slow
def test_a_job_that_is_submitted_from_within_another_one_inherits_nothing_of_it(slurm, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "3")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "64")
    (job,) = submitted(tmp_path / "run", workers=1)

    wait_for(tmp_path / "run" / "ready..1")
    assert b"SLURM_CPUS_PER_TASK=64" not in Path(f"/proc/{slurm.batch(job)}/environ").read_bytes()


def test_without_slurm_the_error_names_another_place(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    outcome = run("finetune", "--out", tmp_path / "run", "--submit", "slurm", *LIMIT)

    assert outcome.code == 5 and "--submit local" in outcome.err and not (tmp_path / "run").exists()


def test_mistakes_of_the_recipe_come_before_the_queue(slurm, tmp_path):
    words = ("--submit", "slurm", *LIMIT, "--set", "optimizer.learning=1")
    outcome = run("finetune", "--out", tmp_path / "run", *words)

    assert outcome.code == 2 and "optimizer.learning" in outcome.err and not (tmp_path / "run").exists()
