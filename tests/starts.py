"""Ten starts of one command at once, again and again: `python -m tests.starts ROUNDS SCRATCH PHOTOS`.

Each start is a fork of a process that has loaded what the command loads; all wait for the same moment. The
one that proceeds is killed, and the next ten start at once. To be started by `faulty_disk.script`; it prints
one JSON object with every problem, of which there must be none.
"""

import json
import os
import random
import signal
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from tests.disk_sweeps import load_modules
from tests.faulty_disk import command
from tests.training.test_finetune import SMALL
from vitcli.distributed import startup
from vitcli.output.run_folder import newest_checkpoint_step

AT_ONCE = 10
REFUSED_WITHIN_S = 60  # ten processes on two cores; measured: 2 s


def start_all(words: list[object], outputs: list[Path]) -> list[int]:
    """Fork a process for each output; let them all run the command at once, and return their numbers."""
    reading, writing = os.pipe()
    processes = []
    for output in outputs:
        child = os.fork()
        if child:
            processes.append(child)
            continue
        os.close(writing)
        os.read(reading, 1)  # returns when the parent has made them all
        with output.open("w") as file, redirect_stdout(file), redirect_stderr(file):
            code = command(words)()
        os._exit(code)
    os.close(reading)
    os.close(writing)
    return processes


def ends_but_one(processes: list[int]) -> dict[int, int]:
    """Wait until one process is left, or the time is over; return the exit codes of the others."""
    codes, until = {}, time.monotonic() + REFUSED_WITHIN_S
    while len(codes) < len(processes) - 1 and time.monotonic() < until:
        for process in set(processes) - codes.keys():
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                codes[process] = os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return codes


def one_round(words: list[object], scratch: Path, delay_s: float) -> tuple[list[str], float]:
    """Start ten, kill the one that proceeds; return what is wrong, and how long the others took."""
    outputs = [scratch / f"output-{number}" for number in range(AT_ONCE)]
    began_at = time.monotonic()
    processes = start_all(words, outputs)
    codes = ends_but_one(processes)
    took_s, problems = time.monotonic() - began_at, []
    owners = set(processes) - codes.keys()
    for owner in owners:
        time.sleep(delay_s)
        os.kill(owner, signal.SIGKILL)
        codes_of_owner = os.waitstatus_to_exitcode(os.waitpid(owner, 0)[1])
        problems += [] if codes_of_owner == -signal.SIGKILL else [f"the owner ended with {codes_of_owner}"]
    if len(owners) != 1:
        return [f"{len(owners)} of {AT_ONCE} proceeded"], took_s
    message = f"another run is writing this folder: pid {owners.pop()} on"
    for process, output in zip(processes, outputs, strict=True):
        said = output.read_text()
        if process in codes and (codes[process] != 5 or message not in said or "Traceback" in said):
            problems.append(f"exit code {codes[process]}: {said[-600:]}")
    return problems, took_s


def main(rounds: str, scratch: str, photos: str) -> None:
    """Start ten at once as often as asked for, and print what came of it."""
    startup.load()
    out, draws = Path(scratch, "run"), random.Random(0)
    words = [word for word in SMALL if word not in ("--json", "--quiet")]
    words += ["--dataset", photos, "--batch-size", 4, "--set", "train.save_every=1", "--out"]
    load_modules(command([*words, Path(scratch, "loaded"), "--steps", 1]), Path(scratch))
    problems, slowest_s, steps = [], 0.0, []
    for _ in range(int(rounds)):
        wrong, took_s = one_round([*words, out, "--steps", 10**6], Path(scratch), draws.uniform(0, 1.5))
        problems, slowest_s = problems + wrong, max(slowest_s, took_s)
        steps.append(newest_checkpoint_step(out) or 0)
    problems += [] if steps == sorted(steps) and steps[-1] else [f"steps {steps}"]
    counts = {"starts": AT_ONCE * len(steps), "proceeded": len(steps), "steps": steps[-1]}
    print(json.dumps({**counts, "slowest_refusal_s": round(slowest_s, 1), "problems": problems}))


if __name__ == "__main__":
    main(*sys.argv[1:])
