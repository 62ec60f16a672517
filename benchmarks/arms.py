"""Trials of a sweep against the same runs as separate commands.

    python benchmarks/arms.py CKPT DATASET [--res 64] [--steps 30] [--batch-size 32] [--rates 0.001,0.003]

One command tries every learning rate; then each rate has its own command, on the same part of the training
split. The time of a trial is that from the end of the trial before it, or from the start of the command, to
its summary. Later trials save the start of Python and its libraries, reading weights and data, and decoding;
they do not save training. Both ways write the same folders and checkpoints.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def vit(*words: object) -> float:
    """Run a command and return its wall time in seconds."""
    began_at = time.time()
    subprocess.run(
        [sys.executable, "-m", "vitcli", *map(str, words), "--quiet"], check=True, capture_output=True
    )
    return time.time() - began_at


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ckpt")
    parser.add_argument("dataset")
    parser.add_argument("--res", default=64)
    parser.add_argument("--steps", default=30)
    parser.add_argument("--batch-size", default=32)
    parser.add_argument("--rates", default="0.001,0.003,0.01,0.03")
    options = parser.parse_args()
    rates = options.rates.split(",")
    common = ("finetune", "--ckpt", options.ckpt, "--dataset", options.dataset, "--res", options.res,
              "--steps", options.steps, "--batch-size", options.batch_size,
              "--set", "data.dev_fraction=0.1")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        began_at = time.time()
        vit(*common, "--lr", options.rates, "--out", f"{folder}/all")
        ends = sorted(path.stat().st_mtime for path in Path(folder, "all/arms").glob("*/summary.json"))
        trials = [end - before for before, end in zip([began_at, *ends], ends, strict=False)]
        dev = ("--set", "data.eval_split=dev_fraction")
        alone = [vit(*common, *dev, "--lr", rate, "--out", f"{folder}/{rate}") for rate in rates]
    later = sum(trials[1:]) / len(trials[1:])
    print("trials   ", "  ".join(f"{seconds:6.1f} s" for seconds in trials))
    print("commands ", "  ".join(f"{seconds:6.1f} s" for seconds in alone))
    of_first, of_command = later / trials[0], later / (sum(alone) / len(alone))
    print(f"a further trial takes {of_first:.2f} of the first, {of_command:.2f} of a command")


if __name__ == "__main__":
    main()
