"""Many small steps of one run: memory, open files, threads and the cost of a step from beginning to end.

    python benchmarks/endurance.py [--steps 100000] [--out RUN] [-- OPTIONS OF vit finetune]

The run logs every step, evaluates and saves now and then. It is looked at each second from outside, and
described by tenths of its steps: medians of memory but mapped files, of open files and of threads, and
CPU time per step, which other processes disturb less than the clock does. The first tenth is warm-up.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

RUN = [
    "--ckpt", "random", "--model", "ViT-demo/8", "--res", "16", "--dataset", "demo", "--batch-size", "2",
    "--precision", "fp32", "--workers", "1", "--set", "train.log_every=1", "--set", "train.save_every=1000",
    "--set", "eval.every=5000", "--overwrite", "--quiet",
]  # fmt: skip
EVERY_S = 1.0
TENTHS = 10


@dataclass(frozen=True)
class Look:
    """A process at one moment: steps logged so far, bytes, open files, threads, seconds of CPU."""

    step: int
    memory: int
    files: int
    threads: int
    cpu_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--out", type=Path, help="the run folder; a temporary one unless given")
    parser.add_argument("more", nargs="*", help="further options of vit finetune, after --")
    options = parser.parse_args()
    out = options.out or Path(tempfile.mkdtemp()) / "run"
    try:
        looks = watch(out, options.steps, options.more)
    finally:
        if options.out is None:
            shutil.rmtree(out.parent)
    report(looks, options.steps)


def watch(out: Path, num_steps: int, more: list[str]) -> list[Look]:
    """Run to the end; return how it was at every second."""
    words = [sys.executable, "-m", "vitcli", "finetune", *RUN, *more, "--steps", str(num_steps), "--out", out]
    looks, num_read, step = [], 0, 0
    with subprocess.Popen(list(map(str, words)), stdout=subprocess.DEVNULL) as started:
        process = psutil.Process(started.pid)
        while started.poll() is None:
            time.sleep(EVERY_S)
            metrics = out / "metrics.jsonl"
            if not metrics.exists():
                continue
            with metrics.open("rb") as file:  # only what is new, or watching would cost more than running
                file.seek(num_read)
                new = file.read()
            num_read += len(new)
            step += new.count(b'"loss": ')
            try:
                times = process.cpu_times()
                cpu_s = times.user + times.system
                info = process.memory_info()  # mapped files are other processes', too
                memory = info.rss - info.shared
                looks.append(Look(step, memory, process.num_fds(), process.num_threads(), cpu_s))
            except psutil.NoSuchProcess:
                break
    if started.returncode:
        sys.exit(started.returncode)
    return looks


def report(looks: list[Look], num_steps: int) -> None:
    """Print the table, and how much the last tenth differs from the second."""
    print("tenth    steps  memory MB  files  threads  CPU ms a step")
    rows = []
    for tenth in range(TENTHS):
        first, last = num_steps * tenth / TENTHS, num_steps * (tenth + 1) / TENTHS
        part = [look for look in looks if first < look.step <= last]
        if len(part) < 2:
            sys.exit("too few steps to be looked at ten times: use more --steps")
        num = part[-1].step - part[0].step
        memory, files, threads = (
            statistics.median(getattr(look, name) for look in part) for name in ("memory", "files", "threads")
        )
        rows.append((memory / 1e6, files, threads, 1e3 * (part[-1].cpu_s - part[0].cpu_s) / num))
        print("{:5} {:8,} {:10.1f} {:6.0f} {:8.0f} {:14.3f}".format(tenth + 1, part[-1].step, *rows[-1]))
    for name, before, after in zip(("memory", "files", "threads", "CPU"), rows[1], rows[-1], strict=True):
        print(f"{name}, last tenth against the second: {100 * (after / before - 1):+.2f} %")


if __name__ == "__main__":
    main()
