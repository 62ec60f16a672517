"""Runs pytest in forks of a process that has loaded what no break changes: `python -m tests.mutant_server`.

Each line of standard input is a run: the seconds that it may take, a file for what it prints and the words
after `pytest`, tabs between them. Its exit code comes back as a line; that of a run that takes longer is -9.
"""

import os
import signal
import sys
import time
from contextlib import suppress

import pytest

from vitcli.distributed import startup


def main() -> None:
    startup.load()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("vitcli", "tests")]:
        del sys.modules[name]
    for line in sys.stdin:
        seconds, output, *words = line.rstrip("\n").split("\t")
        print(run(words, output, float(seconds)), flush=True)


def run(words: list[str], output: str, seconds: float) -> int:
    child = os.fork()
    if not child:
        os.setsid()
        with open(output, "wb") as file, open(os.devnull, "rb") as nothing:
            for number, stream in ((nothing.fileno(), 0), (file.fileno(), 1), (file.fileno(), 2)):
                os.dup2(number, stream)
        os._exit(pytest.main(words))
    until = time.monotonic() + seconds
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < until:
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # also what a test has left
    return os.waitstatus_to_exitcode(ended[1] if ended[0] else os.waitpid(child, 0)[1])


if __name__ == "__main__":
    main()
