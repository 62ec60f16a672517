"""What a run with a probe head delivers at sensible and at absurd learning rates, against the probe.

    python benchmarks/probe_head.py --data FOLDER --ckpt WEIGHTS --out FOLDER

`--data` holds the Parquet data sets flowers17, coil20_azimuth and cifar10; `--ckpt` are weights of a
ViT-Ti/16. Of each data set one run is scored whose learning rate is next to nothing: its network is the
probe. Then one run at each learning rate, whose delivered network and whose network after ten steps are
scored on the same test images. The same command continues where it was stopped, and prints a table.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

LEARNING_RATES = (1e-7, 1e-5, 1e-4, 3e-4, 1e-3, 1e-1, 1.0, 10.0)
NO_RATE = 1e-30  # float32 weights do not move
EARLY = 10  # steps
TASKS = {
    "flowers17": {},
    "coil20_azimuth": {"data.label_column": "label", "data.flip": "false"},
    "cifar10": {"data.train_split": "train[:2000]", "data.eval_split": "test[:500]"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--ckpt", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--recipe", default="modern/finetune-many", help="one with AdamW")
    options = parser.parse_args()
    print("| data | probe | " + " | ".join(f"{lr:g}" for lr in LEARNING_RATES) + " |")
    print("|---|---|" + "---|" * len(LEARNING_RATES))
    for task in TASKS:
        probe, _, _ = scores(task, NO_RATE, options)
        cells = [cell(*scores(task, lr, options)) for lr in LEARNING_RATES]
        print(f"| {task} | {100 * probe:.1f} | " + " | ".join(cells) + " |", flush=True)


def scores(task: str, lr: float, options: argparse.Namespace) -> tuple[float, float | None, str]:
    """Return test accuracies of what a run delivers and of its network after ten steps, and what it delivers.

    A run that diverged before has no score of its tenth step.
    """
    steps = EARLY if lr == NO_RATE else options.steps
    out = options.out / f"{task}-{lr:g}"
    keys = {**TASKS[task], "model.head": "probe", "train.save_every": 0, "eval.every": EARLY}
    words = ["finetune", "--recipe", options.recipe, "--ckpt", options.ckpt]
    words += ["--dataset", options.data / task, "--steps", steps, "--lr", lr, "--out", out]
    summary = vit(*words, *(word for key, value in keys.items() for word in ("--set", f"{key}={value}")))
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    early = [line["eval"]["top1"] for line in lines if line["step"] == EARLY and "eval" in line]
    return summary["top1"], early[0] if early else None, summary["delivered"]


def cell(delivered: float, early: float | None, name: str) -> str:
    after_ten = "diverged" if early is None else f"{100 * early:.1f}"
    return f"{100 * delivered:.1f} {name} ({after_ten})"


def vit(*words: object) -> dict:
    """Return the result of a command."""
    command = [sys.executable, "-m", "vitcli", *map(str, words), "--json", "--quiet"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


if __name__ == "__main__":
    main()
