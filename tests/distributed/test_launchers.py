"""docs/distributed.md: two launchers on loopback, as on two machines, make the run of one launcher."""

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
    (command,) = [part for part in script.split("srun python -m vitcli ")[1:]]
    words = command.partition("\n\n")[0].replace("\\\n", " ").replace('"', "").split()

    planned = run(*words, "--dry-run", "--quiet")
    assert planned.code == 3 and "there is no data at" in planned.err  # all but the data is understood
