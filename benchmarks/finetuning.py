"""The same CPU time for each: `vit finetune` by its modern and by the paper's recipe, and lightly-train.

    python benchmarks/finetuning.py --data FOLDER --ckpt WEIGHTS --lightly PYTHON --out RESULTS.jsonl

FOLDER holds the Parquet data sets flowers17, coil20_azimuth, cifar10 and sprites_synthetic; WEIGHTS are
those of a ViT-Ti/16 in timm's names; PYTHON is the interpreter of an environment with lightly-train and
timm. Each side trains from the same tensors on the same class folders, for as many steps as end the whole
process, from its start to its score of the test images, after `--seconds` of CPU time with one thread for
the network, loader processes and threads included: a measure that other work on the machine hardly changes.
How many steps these are is measured first, by two short runs of a side. Each line of RESULTS is a
calibration or a run, and what is there is not made again.
"""

import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
from safetensors.torch import load_file, save_file

LIGHTLY = """
import lightly_train

if __name__ == "__main__":
    lightly_train.train_image_classification(**ARGUMENTS)
"""
CALIBRATION = {"modern": (8, 24), "paper": (8, 24), "lightly": (4, 12)}  # steps of the two short runs
NO_FLIP = {"vit": ["--set", "data.flip=false"], "lightly": {"random_flip": None}}
# Where the label is a place, a crop changes it too; the colours of lightly-train's jitter change no label.
NO_CROP = {
    "vit": [*NO_FLIP["vit"], "--set", "data.train_crop=none"],
    "lightly": {"random_flip": None, "random_crop": None},
}
UNCHANGED = {"vit": [], "lightly": {}}


class Task(NamedTuple):
    """A data set, the most training images of a class (None: all), and what augmentation its labels allow."""

    source: str
    shots: int | None
    limits: tuple[int | None, int | None]  # rows of train and test
    allowed: dict


TASKS = {
    "flowers17-5": Task("flowers17", 5, (None, None), UNCHANGED),
    "flowers17-10": Task("flowers17", 10, (None, None), UNCHANGED),
    "flowers17-40": Task("flowers17", None, (None, None), UNCHANGED),
    "coil20": Task("coil20_azimuth", None, (None, None), NO_FLIP),
    "cifar10-2000": Task("cifar10", None, (2000, 500), UNCHANGED),
    "sprites": Task("sprites_synthetic", None, (None, None), NO_CROP),
}
SIDES = ("modern", "paper", "lightly")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--ckpt", type=Path, required=True)
    parser.add_argument(
        "--lightly", type=Path, help="interpreter with lightly-train; without it that side is left out"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=100.0, help="of CPU time")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--recipe", default="auto", help="of the modern side")
    parser.add_argument("--calibrate", action="store_true", help="measure the speed of each side, and end")
    arguments = parser.parse_args()

    sides = [side for side in arguments.sides.split(",") if side != "lightly" or arguments.lightly]
    with tempfile.TemporaryDirectory() as scratch:
        comparison = Comparison(arguments, Path(scratch))
        tasks = arguments.tasks.split(",")
        for task, side in itertools.product(tasks, sides):
            comparison.calibrate(task, side)
        if arguments.calibrate:
            return
        for seed, task, side in itertools.product(range(arguments.seeds), tasks, sides):
            comparison.run(task, side, seed)
    print(table(comparison.results()))


class Comparison:
    """The runs of all sides, with what is known of their speed."""

    def __init__(self, arguments: argparse.Namespace, scratch: Path):
        self.arguments, self.scratch = arguments, scratch
        tensors = load_file(arguments.ckpt)
        self.backbone = (
            scratch / "backbone.safetensors"
        )  # lightly-train takes timm's tensors without the head
        save_file(
            {name: value for name, value in tensors.items() if not name.startswith("head.")}, self.backbone
        )

    def results(self, kind: str = "run") -> list[dict]:
        """Return all runs, or all calibrations, so far."""
        out = self.arguments.out
        lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
        return [line for line in lines if line["kind"] == kind]

    def calibrate(self, task: str, side: str) -> None:
        """Find the steps that fill the time, from two short runs."""
        if any((r["task"], r["side"]) == (task, side) for r in self.results("calibration")):
            return
        few, more = CALIBRATION[side]
        short, longer = (self._measure(task, side, 0, steps)[1] for steps in (few, more))
        per_step = max(longer - short, 0.1) / (more - few)
        steps = max(few, int(few + (self.arguments.seconds - short) / per_step))
        self._add("calibration", task=task, side=side, steps=steps, per_step=round(per_step, 3))

    def run(self, task: str, side: str, seed: int) -> None:
        """Make one run, unless its line is there."""
        if any((r["task"], r["side"], r["seed"]) == (task, side, seed) for r in self.results()):
            return
        steps = next(
            r["steps"] for r in self.results("calibration") if (r["task"], r["side"]) == (task, side)
        )
        top1, seconds = self._measure(task, side, seed, steps)
        self._add(
            "run", task=task, side=side, seed=seed, steps=steps, top1=round(top1, 4), seconds=round(seconds)
        )

    def _add(self, kind: str, **values: object) -> None:
        line = json.dumps({"kind": kind, **values})
        with self.arguments.out.open("a") as file:
            print(line, file=file)
        print(line, flush=True)

    def _measure(self, task: str, side: str, seed: int, steps: int) -> tuple[float, float]:
        """Return top-1 on the test images and the CPU seconds of the whole process."""
        data = self._folders(task, seed)
        out = self.scratch / "run"
        shutil.rmtree(out, ignore_errors=True)
        command = self._lightly if side == "lightly" else self._vit
        before = os.times()
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        result = subprocess.run(
            command(task, side, seed, steps, data, out), capture_output=True, text=True, env=environment
        )
        after = os.times()
        seconds = after.children_user + after.children_system - before.children_user - before.children_system
        if result.returncode:
            sys.exit(f"{task}, {side}: exit code {result.returncode}\n{result.stderr[-2000:]}")
        return self._top1(side, out, result.stdout), seconds

    def _vit(self, task: str, side: str, seed: int, steps: int, data: Path, out: Path) -> list[str]:
        recipe = self.arguments.recipe if side == "modern" else "finetune/default"
        command = [
            sys.executable,
            "-m",
            "vitcli",
            "finetune",
            "--recipe",
            recipe,
            "--ckpt",
            str(self.arguments.ckpt),
        ]
        command += ["--dataset", str(data), "--steps", str(steps), "--seed", str(seed), "--out", str(out)]
        command += ["--set", "eval.every=0", "--set", "train.save_every=0"]
        return [*command, "--json", "--quiet", *TASKS[task].allowed["vit"]]

    def _lightly(self, task: str, side: str, seed: int, steps: int, data: Path, out: Path) -> list[str]:
        names = sorted(path.name for path in (data / "train").iterdir())
        given = {
            "out": str(out),
            "data": {
                "train": str(data / "train"),
                "val": str(data / "test"),
                "classes": dict(enumerate(names)),
            },
            "model": "timm/vit_tiny_patch16_224",
            "model_args": {"backbone_weights": str(self.backbone)},
            "steps": steps,
            "batch_size": 32,
            "seed": seed,
            "transform_args": TASKS[task].allowed["lightly"],
        }
        script = self.scratch / "peer.py"
        script.write_text(LIGHTLY.replace("ARGUMENTS", repr(given)))
        return [str(self.arguments.lightly), str(script)]

    def _top1(self, side: str, out: Path, stdout: str) -> float:
        if side != "lightly":
            return json.loads(stdout)["top1"]
        best_and_last = re.findall(
            r"val_metric/top1_acc_micro +\| +([\d.]+) +\| +([\d.]+)", (out / "train.log").read_text()
        )
        return float(best_and_last[-1][1])

    def _folders(self, task: str, seed: int) -> Path:
        """Write a task's images as class folders; where there are few of a class, the seed draws them."""
        source, shots, limits, _ = TASKS[task]
        root = self.scratch / f"{task}-{seed if shots else 0}"
        if root.exists():
            return root
        for split, limit in zip(("train", "test"), limits, strict=True):
            files = sorted((self.arguments.data / source).glob(f"*{split}*.parquet"))
            rows = [
                row for file in files for row in pq.read_table(file, columns=["image", "label"]).to_pylist()
            ][:limit]
            order = np.random.default_rng(seed).permutation(len(rows)) if shots else np.arange(len(rows))
            taken: dict[int, int] = defaultdict(int)
            for number in order:
                label, image = rows[number]["label"], rows[number]["image"]["bytes"]
                if split == "train" and shots and taken[label] == shots:
                    continue
                taken[label] += 1
                folder = root / split / f"class_{label:02d}"
                folder.mkdir(parents=True, exist_ok=True)
                kind = "png" if image[:4] == b"\x89PNG" else "jpg"
                (folder / f"{number:05d}.{kind}").write_bytes(image)
        return root


def table(results: list[dict]) -> str:
    """Return mean and standard deviation over the seeds, a row per task."""
    lines = ["| data | " + " | ".join(SIDES) + " |", "|---|" + "---|" * len(SIDES)]
    for task in TASKS:
        cells = []
        for side in SIDES:
            runs = [r for r in results if (r["task"], r["side"]) == (task, side)]
            top1s = [100 * r["top1"] for r in runs]
            spread = f" ± {stdev(top1s):.1f}" if len(top1s) > 1 else ""
            about = f" ({runs[0]['steps']} steps, {mean(r['seconds'] for r in runs):.0f} s)" if runs else ""
            cells.append(f"{mean(top1s):.1f}{spread}{about}" if runs else "")
        lines.append(f"| {task} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
