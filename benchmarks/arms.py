"""The arms of a selection against the same runs as commands of their own.

    python benchmarks/arms.py CKPT DATASET [--res 64] [--steps 30] [--batch-size 32] [--rates 0.001,0.003]

One command tries every rate; then each rate has a command to itself, on the same part of train. An arm's time
goes from the end of the one before (of the first: from the start of the command) to its summary. What later
arms save is the start of Python and its libraries, reading weights and data, and decoding; what they cannot
save is training. Both sides write the same folders and checkpoints.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def vit(*words: object) -> float:
    """Seconds by the clock that a command takes."""
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
    asked = parser.parse_args()
    rates = asked.rates.split(",")
    common = ("finetune", "--ckpt", asked.ckpt, "--dataset", asked.dataset, "--res", asked.res,
              "--steps", asked.steps, "--batch-size", asked.batch_size,
              "--set", "data.dev_fraction=0.1")  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        began_at = time.time()
        vit(*common, "--lr", asked.rates, "--out", f"{place}/all")
        ends = sorted(path.stat().st_mtime for path in Path(place, "all/arms").glob("*/summary.json"))
        arms = [end - before for before, end in zip([began_at, *ends], ends, strict=False)]
        dev = ("--set", "data.eval_split=dev_fraction")
        alone = [vit(*common, *dev, "--lr", rate, "--out", f"{place}/{rate}") for rate in rates]
    later = sum(arms[1:]) / len(arms[1:])
    print("arms     ", "  ".join(f"{seconds:6.1f} s" for seconds in arms))
    print("commands ", "  ".join(f"{seconds:6.1f} s" for seconds in alone))
    of_first, of_command = later / arms[0], later / (sum(alone) / len(alone))
    print(f"a further arm takes {of_first:.2f} of the first, {of_command:.2f} of a command")


if __name__ == "__main__":
    main()
