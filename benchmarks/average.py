"""Averages of three runs against the mean of these runs and the best of them, on test images.

    python benchmarks/average.py --data FOLDER --ckpt WEIGHTS --out FOLDER

`--data` holds the Parquet data sets flowers17 and cifar10; `--ckpt` are weights of a ViT-Ti/16. Each
repetition fine-tunes three runs with seeds of their own, of which an average is made by each method, chosen
and tested by the dev part that the runs held out; no test image takes part in a choice. The same command
continues where it was stopped, and prints a table.
"""

import argparse
import contextlib
import io
import json
from pathlib import Path
from statistics import mean, stdev

from vitcli.cli import app

METHODS = ("uniform", "greedy", "auto")
TASKS = {
    "flowers17": ("train", "test"),
    "cifar10": ("train[:2000]", "test[:1000]"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--ckpt", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--recipe", default="modern/finetune-some")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--res", type=int, default=96)
    parser.add_argument("--dev", type=float, default=0.15, help="fraction of the training images")
    options = parser.parse_args()
    rows = {
        (task, number): repetition(task, number, options)
        for number in range(options.repetitions)
        for task in TASKS
    }
    for task in TASKS:
        print(table(task, [row for (name, _), row in rows.items() if name == task]), flush=True)


def repetition(task: str, number: int, options: argparse.Namespace) -> dict[str, float]:
    """Return test accuracies of a repetition: mean and best of its runs, and of each average."""
    out = options.out / f"{task}-{number}"
    train, test = TASKS[task]
    keys = {
        "data.train_split": train,
        "data.eval_split": test,
        "data.dev_fraction": options.dev,
        "train.average_runs": "auto",
    }
    words = [
        "finetune",
        "--recipe",
        options.recipe,
        "--ckpt",
        options.ckpt,
        "--dataset",
        options.data / task,
    ]
    words += ["--res", options.res, "--steps", options.steps, "--batch-size", 32, "--runs", 3]
    words += ["--seed", 10 * number, "--out", out]
    summary = vit(*words, *(word for key, value in keys.items() for word in ("--set", f"{key}={value}")))
    row = {"mean of runs": summary["top1"], "best on dev": best_on_dev(summary)}
    for method in METHODS:
        averaged = vit("average", out, "--method", method, "--out", options.out / f"{task}-{number}-{method}")
        row[method] = averaged["top1"]
    print(task, number, {name: round(value, 4) for name, value in row.items()}, flush=True)
    return row


def best_on_dev(summary: dict) -> float:
    average = summary["average"]
    return next(run["top1"] for run in average["runs"] if run["run_dir"] == average["best_run"])


def vit(*words: object) -> dict:
    """Run a command line in this process and return its JSON."""
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            app.main([*map(str, words), "--json", "--quiet"])
    except SystemExit as ended:
        assert not ended.code, out.getvalue()
    return json.loads(out.getvalue())


def table(task: str, rows: list[dict[str, float]]) -> str:
    """Return the accuracies over the repetitions, and their difference to the mean of the runs."""
    lines = [f"{task}, {len(rows)} repetitions: test accuracy, and points above the mean of the runs"]
    for name in rows[0]:
        values = [100 * row[name] for row in rows]
        gains = [100 * (row[name] - row["mean of runs"]) for row in rows]
        spread = f" ± {stdev(gains):.2f}" if len(gains) > 1 else ""
        lines.append(f"  {name:14} {mean(values):6.2f} %   {mean(gains):+.2f}{spread}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
