"""Four workers of one study, struck again and again: `python -m tests.shared_work STRIKES SCRATCH`.

A strike kills a worker, lets it sleep for longer than a lease, fills its disk, or takes the folder of all of
them away for a while. Workers that have ended are started again until the study is done, and studies until
all strikes are made; each must leave what a single undisturbed worker leaves, and nothing else. Workers are
forks of a process that has loaded what they load. It prints one JSON object with every problem, of which
there must be none.
"""

import json
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import psutil

from tests.disk_sweeps import load_modules, results_of
from tests.experiments.test_study import HELD_OUT
from tests.faulty_disk import command, in_a_fork
from vitcli.distributed import startup

WORKERS, LEASE_S = 4, 2
CUT_OFF = ("the folder holds other files (cells)", "there is no recipe file")
STUDY = HELD_OUT.replace("steps = [2]", "steps = [6, 9]\nseeds = [0, 1, 2]")
STUDY = STUDY.replace("set.eval.every = 0", "set.eval.every = 0\nset.train.save_every = 1")


class Attack:
    """One study under attack.

    Args:
        words: of the command, without its folder.
    """

    def __init__(self, words: list[object], scratch: Path, draws: random.Random):
        self.words, self.scratch, self.draws = words, scratch, draws
        self.out, self.workers, self.codes = scratch / "out", {}, Counter()
        self.asleep: dict[int, float] = {}  # until when
        self.problems: list[str] = []

    def run(self, truth: dict[str, str], strikes: int) -> Counter:
        """Strike until the study is done, at most so often; return the strikes."""
        made: Counter = Counter()
        while not (self.out / "summary.json").exists() or self.workers:
            is_done = (self.out / "summary.json").exists() and not (self.out / ".vit-cells").exists()
            self._collect()
            while len(self.workers) < WORKERS and not is_done:
                self._start()
            for pid in [pid for pid, until in self.asleep.items() if time.monotonic() > until]:
                del self.asleep[pid]
                os.kill(pid, signal.SIGCONT)
            time.sleep(self.draws.uniform(0.05, 0.5))
            if (
                sum(made.values()) < strikes
                and not is_done
                and (awake := set(self.workers) - set(self.asleep))
            ):
                kind = self.draws.choice(["kill", "sleep", "full disk", "vanished"])
                made[kind] += 1
                self._strike(kind, self.draws.choice(sorted(awake)))
        self._compare(truth)
        return made

    def _start(self) -> None:
        output = self.scratch / f"worker-{len(self.codes)}-{time.monotonic_ns()}"
        child = os.fork()
        if child:
            self.workers[child] = output
            return
        with suppress(OSError), output.open("w") as file, redirect_stdout(file), redirect_stderr(file):
            code = 5  # what it says may not fit on a full disk
            code = command([*self.words, "--out", self.out])()
        os._exit(code)

    def _strike(self, kind: str, pid: int) -> None:
        if kind == "kill":
            os.kill(pid, signal.SIGKILL)
        elif kind == "sleep":
            os.kill(pid, signal.SIGSTOP)
            self.asleep[pid] = time.monotonic() + self.draws.uniform(0.5, 2.5) * LEASE_S
        elif kind == "full disk":
            with suppress(psutil.Error, ProcessLookupError):
                process = psutil.Process(pid)
                process.rlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
                time.sleep(self.draws.uniform(0.1, 1))
                process.rlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        elif self.out.exists():
            gone = self.scratch / "gone"
            self.out.rename(gone)
            time.sleep(self.draws.uniform(0.1, 1.5) * LEASE_S)
            while gone.exists():  # workers may have begun anew in the meantime
                shutil.rmtree(self.out, ignore_errors=True)
                with suppress(OSError):
                    gone.rename(self.out)

    def _collect(self) -> None:
        for pid, output in list(self.workers.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            code = os.waitstatus_to_exitcode(status)
            self.codes[code] += 1
            del self.workers[pid]
            self.asleep.pop(pid, None)
            said = output.read_text()
            # A worker that began, or was reading a run, in the moment in which the folder was taken away.
            is_cut_off = code == 2 and any(words in said for words in CUT_OFF)
            if (code not in (0, 5, -signal.SIGKILL) and not is_cut_off) or "Traceback" in said:
                self.problems.append(f"exit code {code}: {said[-800:]}")

    def _compare(self, truth: dict[str, str]) -> None:
        there = results_of(self.out)
        different = [name for name in truth.keys() | there.keys() if truth.get(name) != there.get(name)]
        self.problems += [f"not the same: {sorted(different)}"] if different else []
        left = [str(p) for name in (".tmp*", ".vit-cells", "new-*") for p in self.out.rglob(name)]
        self.problems += [f"left over: {left}"] if left else []


def main(strikes: str, scratch: str) -> None:
    """Make as many strikes as asked for, and print what came of them."""
    startup.load()
    os.environ["VIT_LEASE_S"] = str(LEASE_S)
    folder, draws, problems = Path(scratch), random.Random(0), []
    (folder / "study.toml").write_text(STUDY)
    words = ["study", "data-size", folder / "study.toml", "--quiet"]
    out, output = folder / "out", folder / "output"  # paths are part of the results
    load_modules(command([*words, "--out", folder / "loaded"]), folder)
    assert in_a_fork(command([*words, "--out", out]), output) == 0, output.read_text()
    truth = results_of(out)
    shutil.rmtree(out)
    made, codes, studies = Counter(), Counter(), 0
    while sum(made.values()) < int(strikes):
        attack = Attack(words, folder, draws)
        made += attack.run(truth, int(strikes) - sum(made.values()))
        problems, codes, studies = problems + attack.problems, codes + attack.codes, studies + 1
        shutil.rmtree(attack.out)
    print(json.dumps({"strikes": made, "codes": codes, "studies": studies, "problems": problems}))


if __name__ == "__main__":
    main(*sys.argv[1:])
