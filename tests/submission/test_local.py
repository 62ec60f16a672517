"""`--submit local`, submitit's executor on this machine; what `vit submit status` and `cancel` refuse."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ONE_LAYER, run, vit
from vitcli.distributed import launch
from vitcli.output.owned_folder import SUBMISSION_FILE, OwnedFolder
from vitcli.submission.worker import ArrayWorker

pytest.importorskip("submitit", reason="pip install 'vitcli[slurm]'")
# Says which GPUs it sees, and works until a file says that all is done.
STUB = """\
out=$(echo "$*" | sed 's/.*--out \\([^ ]*\\).*/\\1/')
trap 'touch "$out/saved"; exit 143' USR1 TERM
mkdir "$out/gpus.$CUDA_VISIBLE_DEVICES"
until [ -e "$out/done" ]; do sleep 0.05; done
"""


@pytest.fixture
def stub(tmp_path, monkeypatch) -> None:
    (tmp_path / "stub.sh").write_text(STUB)
    monkeypatch.setattr(launch, "program", lambda: ["bash", str(tmp_path / "stub.sh")])


def wait_for_states(out: Path, *states: str) -> None:
    until = time.monotonic() + 60
    while [worker["state"] for worker in run("submit", "status", out, "--json").json["workers"]] != [*states]:
        assert time.monotonic() < until, run("submit", "status", out).out
        time.sleep(0.05)


def wait_for(path: Path) -> None:
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until, sorted(path.parent.iterdir())
        time.sleep(0.02)


def test_a_local_worker_is_cancelled_saves_and_counts_as_stopped(stub, tmp_path):
    out = tmp_path / "run"
    started = run("pretrain", "--lr", "0.1,0.2", "--out", out, "--submit", "local")

    wait_for(out / "gpus.")  # by default none
    assert started.code == 0 and f"vit submit status {out}" in started.out
    assert "RUNNING" in run("submit", "status", out).out
    assert "CANCELLED" in run("submit", "cancel", out).out
    wait_for_states(out, "STOPPED")
    assert (out / "saved").exists()


@pytest.mark.slow
def test_local_workers_have_gpus_of_their_own_and_end(stub, tmp_path):
    out = tmp_path / "run"
    words = ("--submit-workers", "2", "--submit-set", "gpus_per_node=2")
    run("finetune", "--out", out, "--submit", "local", *words)

    wait_for(out / "gpus.0,1")
    wait_for(out / "gpus.2,3")
    wait_for_states(out, "RUNNING", "RUNNING")
    (out / "done").touch()
    wait_for_states(out, "COMPLETED", "COMPLETED")


@pytest.mark.slow
def test_the_real_command_runs_and_its_reader_does_not_wait_for_it(photos, tmp_path):
    out = tmp_path / "run"
    words = f"{ONE_LAYER} --res 16 --batch-size 8 --recipe finetune/default"
    words = (*words.split(), "--dataset", photos, "--steps", "6", "--lr", "0.01,0.03", "--out", out)
    done = vit("finetune", *words, "--submit", "local", "--json", timeout=60)

    (job,) = (worker["job_id"] for worker in json.loads(done.stdout)["workers"])
    assert done.returncode == 0 and not (out / "summary.json").exists()
    wait_for(out / "summary.json")
    wait_for_states(out, "COMPLETED")
    assert '"top1"' in (out / "submit" / f"{job}_0_log.out").read_text()
    kept = json.loads((out / SUBMISSION_FILE).read_text())["submissions"][0]
    assert kept["job_ids"] == [job] and "--submit" not in kept["command_line"]


def test_earlier_submissions_stay_in_the_list(stub, tmp_path):
    record = {"place": "local", "job_ids": ["99999999"], "command_line": []}
    (tmp_path / SUBMISSION_FILE).write_text(
        json.dumps({"submissions": [record, record | {"job_ids": ["99999998"]}]})
    )

    workers = run("submit", "status", tmp_path, "--json").json["workers"]
    assert [(worker["job_id"], worker["state"]) for worker in workers] == [
        ("99999999", "STOPPED"),
        ("99999998", "STOPPED"),
    ]


def test_a_process_that_has_the_number_of_a_worker_is_left_alone(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        record = {"place": "local", "job_ids": [str(other.pid)], "command_line": []}
        (tmp_path / SUBMISSION_FILE).write_text(json.dumps({"submissions": [record]}))

        assert run("submit", "cancel", tmp_path, "--json").json["workers"] == []
        assert other.poll() is None
        other.communicate(b"\n")


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "[]",
        "{}",
        '{"submissions": 1}',
        '{"submissions": [{"place": "slurm", "job_ids": ["--me"]}]}',
    ],
)
def test_a_folder_without_jobs_is_refused(content, tmp_path):
    if content is not None:
        (tmp_path / SUBMISSION_FILE).write_text(content)

    for command in ("status", "cancel"):
        outcome = run("submit", command, tmp_path)
        assert (outcome.code, outcome.out) == (2, "") and "names a job" in outcome.err, outcome.err


def test_what_submit_writes_does_not_make_a_folder_foreign(tmp_path):
    (tmp_path / SUBMISSION_FILE).touch()
    (tmp_path / "submit").mkdir()

    OwnedFolder(tmp_path, "run", lock=".vit.lock", marker=".vit.lock", files=()).refuse_foreign()


def test_without_submitit_the_error_is_the_line_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    outcome = run("finetune", "--out", tmp_path / "run", "--submit", "local")

    assert (
        outcome.code == 5 and "pip install 'vitcli[slurm]'" in outcome.err and not (tmp_path / "run").exists()
    )


@pytest.fixture
def handlers() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("numbers", "comes_back"),
    [
        ([signal.SIGUSR1], True),
        ([signal.SIGUSR2], True),  # of submitit's local executor
        ([signal.SIGTERM], False),
        ([signal.SIGUSR1, signal.SIGTERM], False),  # cancelled while it saves
    ],
)
def test_a_worker_comes_back_unless_slurm_itself_ends_it(numbers, comes_back, handlers, monkeypatch):
    popen = subprocess.Popen

    def asked(command: list[str]) -> subprocess.Popen:
        for number in numbers:  # before the command has a handler, or a process
            os.kill(os.getpid(), number)
        return popen(command)

    monkeypatch.setattr(subprocess, "Popen", asked)

    assert ArrayWorker(["sleep", "60"])._run() == (143, comes_back)


@pytest.mark.parametrize(
    ("place", "task", "code", "requeued"),
    [
        ("slurm", "0", 143, [["scontrol", "requeue", "17_3"]]),
        ("slurm", "1", 143, []),  # the first task of an element requeues it for all
        ("local", "0", 144, []),  # upon which submitit starts it again
    ],
)
def test_the_first_task_requeues_its_element(place, task, code, requeued, monkeypatch):
    environ = {"SUBMITIT_EXECUTOR": place, "SLURM_JOB_ID": "17", "SLURM_PROCID": task}
    for name, value in (environ | {"SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3"}).items():
        monkeypatch.setenv(name, value)
    calls = []
    monkeypatch.setattr(ArrayWorker, "_run", lambda self: (143, True))
    monkeypatch.setattr(subprocess, "run", lambda words, **_: calls.append(words))

    with pytest.raises(SystemExit) as ended:
        ArrayWorker(["vit"])()
    assert (ended.value.code, calls) == (code, requeued)
