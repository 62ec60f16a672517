"""A SLURM of one machine, for the real submitit: `sbatch`, `srun`, `scancel`, `scontrol`, `sacct`, `squeue`.

Elements of an array are real processes. Each has a folder in $FAKE_SLURM with its state, its number of starts
and the process group of its step, to which signals go, as those of `--signal` do. As in SLURM, the id of an
array stands for all its elements, and so does the SLURM_JOB_ID of the last one; what is requeued comes back,
also if it has just been cancelled.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

COMMANDS = ("sbatch", "srun", "scancel", "scontrol", "sacct", "squeue")
HOME = Path(os.environ.get("FAKE_SLURM", "/nowhere"))
FIRST_ID, WITHIN_S = 17, 60


class FakeSlurm:
    """What a test sees of it; `install` puts the commands on PATH."""

    def __init__(self, folder: Path):
        self.folder = folder

    def install(self, monkeypatch) -> None:
        (self.folder / "bin").mkdir(parents=True)
        for name in COMMANDS:
            script = self.folder / "bin" / name
            script.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {__file__} {name} "$@"\n')
            script.chmod(0o755)
        monkeypatch.setenv("FAKE_SLURM", str(self.folder / "jobs"))
        monkeypatch.setenv("PATH", f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}")

    def options(self, job_id: str) -> dict[str, str]:
        return options_of((self.folder / "jobs" / job_id / "script").read_text())

    def state(self, element: str) -> str:
        return read(self.folder / "jobs" / element / "state")

    def starts(self, element: str) -> int:
        return int(read(self.folder / "jobs" / element / "starts") or 0)

    def batch(self, element: str) -> int:
        """Return the process that runs the script of an element."""
        return int(read(self.folder / "jobs" / element / "batch"))

    def wait(self, element: str, *states: str, starts: int = 1) -> None:
        """Wait until an element is in one of the states, in its start of this number or a later one."""
        until = time.monotonic() + WITHIN_S
        while self.state(element) not in states or self.starts(element) < starts:
            assert time.monotonic() < until, f"{element}: {self.state(element)}, start {self.starts(element)}"
            time.sleep(0.02)

    def send(self, element: str, number: int) -> None:
        """Warn an element, as before its time limit or its preemption."""
        os.killpg(int(read(self.folder / "jobs" / element / "step")), number)

    def lose_node(self, element: str) -> None:
        (self.folder / "jobs" / element / "lost").touch()
        for group in ("step", "batch"):
            os.killpg(int(read(self.folder / "jobs" / element / group)), signal.SIGKILL)

    def end(self) -> None:
        """Kill what is left, at the end of a test."""
        for pid in (self.folder / "jobs").glob("*/*"):
            if pid.name in ("node", "batch", "step"):
                with suppress(ProcessLookupError, ValueError):
                    os.killpg(int(read(pid)), signal.SIGKILL)


def read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def write(path: Path, value: object) -> None:
    path.with_suffix(".new").write_text(str(value))
    path.with_suffix(".new").rename(path)


def options_of(script: str) -> dict[str, str]:
    lines = re.findall(r"^#SBATCH (.*)$", script, re.MULTILINE)
    words = [word for line in lines for word in shlex.split(line)]
    return {word[2:].partition("=")[0]: word.partition("=")[2] for word in words}


def elements(job_id: str) -> list[Path]:
    """Return the folders of an element, or of all elements of an array."""
    found = [HOME / job_id] if (HOME / job_id / "state").exists() else sorted(HOME.glob(f"{job_id}_*"))
    if not found:
        sys.exit(f"error: Invalid job id specified: {job_id}")
    return found


def spawn(*words: str) -> None:
    null = subprocess.DEVNULL
    subprocess.Popen([sys.executable, "-I", "-S", __file__, *words], stdin=null, stdout=null, stderr=null,
                     start_new_session=True)  # fmt: skip


def sbatch(file: str) -> None:
    script = Path(file).read_text()
    options = options_of(script)
    if options.get("partition") == "none":
        sys.exit("sbatch: error: invalid partition specified: none")
    job_id = str(FIRST_ID + 100 * len(list(HOME.glob("*/script"))))
    (HOME / job_id).mkdir(parents=True)
    (HOME / job_id / "script").write_text(script)
    last = re.match(r"0-(\d+)", options.get("array", ""))
    names = [f"{job_id}_{index}" for index in range(int(last[1]) + 1)] if last else [job_id]
    for name in names:
        (HOME / name).mkdir(exist_ok=True)
        write(HOME / name / "state", "PENDING")
    print(f"Submitted batch job {job_id}")
    for name in names:
        spawn("node", name, str(len(names)))


def node(name: str, num_elements: str) -> None:
    """Run an element until it has ended and is not in the queue again."""
    folder, (job_id, _, index) = HOME / name, name.partition("_")
    options = options_of((HOME / job_id / "script").read_text())
    write(folder / "node", os.getpid())
    own = {"SLURM_JOB_ID": job_id, "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "1", "SLURM_NODEID": "0"}
    if index:
        is_last = int(index) == int(num_elements) - 1
        own |= {"SLURM_ARRAY_JOB_ID": job_id, "SLURM_ARRAY_TASK_ID": index,
                "SLURM_JOB_ID": job_id if is_last else str(int(job_id) + 1 + int(index))}  # fmt: skip
    while True:
        write(folder / "starts", int(read(folder / "starts") or 0) + 1)
        with open(named(options["output"]), "ab") as log:
            batch = subprocess.Popen(["bash", str(HOME / job_id / "script")], env=os.environ | own,
                                     stdout=log, stderr=log, start_new_session=True)  # fmt: skip
        write(folder / "batch", batch.pid)
        write(folder / "state", "RUNNING")
        code = batch.wait()
        returns = [flag for flag in ("requeue", "lost") if (folder / flag).exists()]
        for flag in returns:
            (folder / flag).unlink()
        if (folder / "cancelled").exists():
            write(folder / "state", "CANCELLED by 1000")
        elif returns and "requeue" in options:
            write(folder / "state", "PENDING")
            continue
        else:
            write(folder / "state", "NODE_FAIL" if returns else "FAILED" if code else "COMPLETED")
        return


def named(pattern: str) -> str:
    """Return a log file's name, of which this process knows the job."""
    environ = os.environ
    known = {"%A": environ.get("SLURM_ARRAY_JOB_ID", ""), "%a": environ.get("SLURM_ARRAY_TASK_ID", ""),
             "%j": environ.get("SLURM_JOB_ID", ""), "%t": "0"}  # fmt: skip
    for hole, value in known.items():
        pattern = pattern.replace(hole, value)
    return pattern


def srun(*words: str) -> None:
    """Start the step of an element, a process group of its own."""
    command, output = list(words), ""
    while command[0].startswith("--"):
        name, _, _ = command.pop(0).partition("=")
        if name in ("--output", "--error"):
            output = command.pop(0)
    environ = os.environ
    array = f"{environ.get('SLURM_ARRAY_JOB_ID')}_{environ.get('SLURM_ARRAY_TASK_ID')}"
    name = array if "SLURM_ARRAY_JOB_ID" in environ else environ["SLURM_JOB_ID"]
    own = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    with open(named(output), "ab") as log:
        step = subprocess.Popen(command, env=environ | own, stdout=log, stderr=log, start_new_session=True)
    write(HOME / name / "step", step.pid)
    sys.exit(step.wait() % 256)


def scancel(*words: str) -> None:
    for job_id in words:
        for folder in elements(job_id):
            if read(folder / "state") == "PENDING":
                write(folder / "state", "CANCELLED by 1000")
            elif read(folder / "state") == "RUNNING":
                (folder / "cancelled").touch()
                os.killpg(int(read(folder / "step")), signal.SIGTERM)


def scontrol(verb: str, job_id: str) -> None:
    assert verb == "requeue"
    for folder in elements(job_id):
        (folder / "cancelled").unlink(missing_ok=True)
        (folder / "requeue").touch()
        os.killpg(int(read(folder / "step")), signal.SIGTERM)


def sacct(*words: str) -> None:
    print("JobID|State|NodeList")
    for job_id in (words[at + 1] for at, word in enumerate(words) if word == "-j"):
        for folder in elements(job_id):
            print(f"{folder.name}|{read(folder / 'state')}|node{folder.name}")


def squeue(*_: str) -> None:
    for state in sorted(HOME.glob("*/state")):
        if read(state) in ("PENDING", "RUNNING"):
            print(state.parent.name, read(state))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
