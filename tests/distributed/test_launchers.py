"""docs/scale-out.md: two launchers on loopback, as on two machines, make the run of one launcher."""

import os
import socket
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY, run, vit
from tests.training.test_finetune import SMALL, fingerprint

DOCS = REPOSITORY / "docs"
WORDS = (*SMALL, "--batch-size", "8", "--steps", "4", "--precision", "fp32", "--set", "train.log_every=1")


@pytest.mark.slow
def test_two_launchers_make_the_run_of_one(photos, tmp_path):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    out = tmp_path / "two"
    nodes = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"),
                *("--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", str(port)),
                *("-m", "vitcli", *map(str, WORDS), "--dataset", str(photos), "--out", str(out)),
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]
    told = [node.communicate(timeout=300)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], told

    here = vit(*WORDS, "--dataset", photos, "--out", tmp_path / "one", "--num-processes", 2, timeout=300)
    assert here.returncode == 0, here.stderr
    assert fingerprint(out) == fingerprint(tmp_path / "one")


def test_the_slurm_script_is_a_script_and_its_command_line_holds():
    script = (DOCS / "slurm.sbatch").read_text()
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    (command,) = [part for part in script.split(" python -m vitcli ")[1:]]
    words = command.partition("\n\n")[0].replace("\\\n", " ").replace('"', "").split()

    planned = run(*words, "--dry-run", "--quiet")
    assert planned.code == 3 and "there is no data at" in planned.err  # all but the data is understood


@pytest.mark.parametrize(
    ("code", "array", "requeued"),
    [
        (143, {}, "7"),
        (143, {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}, "7_3"),
        (0, {}, None),
        (2, {}, None),
    ],
)
def test_the_slurm_script_requeues_what_was_stopped_and_of_an_array_its_own_element(
    tmp_path, code, array, requeued
):
    """With stand-ins of srun and scontrol, which note what they are given."""
    for name, ended in {"srun": code, "scontrol": 0}.items():
        (tmp_path / name).write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/{name}.log\nexit {ended}\n')
        (tmp_path / name).chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SCRATCH": "/s", "SLURM_CPUS_PER_TASK": "8"}
    subprocess.run(["bash", DOCS / "slurm.sbatch"], env=environ | {"SLURM_JOB_ID": "7"} | array)

    assert (tmp_path / "srun.log").read_text().startswith("--cpus-per-task=8 python -m vitcli pretrain ")
    log = tmp_path / "scontrol.log"
    assert (log.read_text() if log.exists() else None) == (requeued and f"requeue {requeued}\n")
