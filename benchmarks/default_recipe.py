"""What `vit finetune` delivers by default, beside the paper's recipe and closed forms: one line for each run.

    python benchmarks/default_recipe.py --data FOLDER --ckpt WEIGHTS --out LINES.jsonl \\
        --sets signs_gtsrb22,scenes_intel6 --shots 5,20,0 --res 96 --seeds 3
    python benchmarks/default_recipe.py --out LINES.jsonl --table

FOLDER holds Parquet data sets, a folder each; WEIGHTS are those of a ViT-Ti/16. The protocol is that of
docs/evidence/finetuning-protocol.md. A line that is there is not made again, so that deleting one and typing
the same repeats it. Sides:

    default   `vit finetune`, so many steps of 32
    paper     `--recipe finetune/default`, the same steps of 32
    cpu       `--recipe finetune/default`, as many steps of 32 as take the CPU time of `default`
    probe     the closed form on the last class token, its strength chosen by leaving one out
    fused     the same on class token and mean of the patches of all layers

`right` has a bit for each test image, as hexadecimal digits: lines of one draw are compared image by image.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from math import comb, sqrt
from pathlib import Path
from statistics import mean

import numpy as np
import pyarrow.parquet as pq

SIDES = ("default", "paper", "cpu", "probe", "fused")
NO_FLIP = ("--set", "data.flip=false")  # where the label is a place, a direction or a sign
ALLOWED = {
    "coil20_azimuth": NO_FLIP,
    "signs_gtsrb22": NO_FLIP,
    "tiles_magnetic6": NO_FLIP,
    "sprites_synthetic": (*NO_FLIP, "--set", "data.train_crop=none"),
}
MOST_ROWS = {"cifar10": (2000, 1000)}  # of training and test images
BATCH = 32
KEY = ("set", "shots", "res", "seed", "side")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--ckpt", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", default="signs_gtsrb22")
    parser.add_argument("--shots", default="5,20,0", help="training images of a class; 0: all")
    parser.add_argument("--res", default="96")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--table", action="store_true", help="print what is there, and end")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(lines_of(arguments.out)))
        return
    draws = product(
        range(arguments.seeds), numbers(arguments.res), arguments.sets.split(","), numbers(arguments.shots)
    )
    with tempfile.TemporaryDirectory() as scratch:
        for seed, res, name, shots in draws:
            Draw(arguments, Path(scratch), name, shots, res, seed).run(arguments.sides.split(","))


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def lines_of(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def steps_of(shots: int, res: int) -> int:
    """Return the steps of the protocol."""
    return (200 if 0 < shots <= 20 else 400) // (2 if res > 96 else 1)


class Draw:
    """The training images of a seed as class folders, and what is made of them."""

    def __init__(
        self, arguments: argparse.Namespace, scratch: Path, name: str, shots: int, res: int, seed: int
    ):
        self.arguments, self.name, self.shots, self.res, self.seed = arguments, name, shots, res, seed
        self.scratch, self.folder = scratch, scratch / f"{name}-{shots}-{seed}"

    def run(self, sides: list[str]) -> None:
        key = (self.name, self.shots, self.res, self.seed)
        for side in sides:
            done = {tuple(line[part] for part in KEY): line for line in lines_of(self.arguments.out)}
            if (*key, side) in done:
                continue
            labels, groups = self._written()
            if side in ("probe", "fused"):
                more, right = {}, self._closed_form(side, groups)
            else:
                more, right = self._trained(side, done.get((*key, "default")))
            self._add(dict(zip(KEY, (*key, side), strict=True)) | more, right, labels)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _add(self, line: dict, right: np.ndarray, labels: np.ndarray) -> None:
        balanced = mean(right[labels == label].mean() for label in np.unique(labels))
        line |= {"top1": round(float(right.mean()), 4), "balanced": round(float(balanced), 4)}
        line |= {"num_test": len(right), "right": np.packbits(right).tobytes().hex()}
        with self.arguments.out.open("a") as file:
            print(json.dumps(line), file=file)
        print({name: value for name, value in line.items() if name != "right"}, flush=True)

    def _trained(self, side: str, default: dict | None) -> tuple[dict, np.ndarray]:
        """Return steps and CPU seconds of a whole process, and which test images are right."""
        recipe = "auto" if side == "default" else "finetune/default"
        steps = steps_of(self.shots, self.res)
        if side == "cpu":
            short, longer = (self._finetune(recipe, count)[0] for count in (8, 24))
            per_step = max(longer - short, 0.01) / 16
            steps = max(8, int(8 + (default["cpu_s"] - short) / per_step))
        seconds, right = self._finetune(recipe, steps)
        return {"steps": steps, "cpu_s": round(seconds, 1)}, right

    def _finetune(self, recipe: str, steps: int) -> tuple[float, np.ndarray]:
        out = self.scratch / f"run-{os.getpid()}"
        shutil.rmtree(out, ignore_errors=True)
        words = ["finetune", "--recipe", recipe, "--ckpt", self.arguments.ckpt, "--dataset", self.folder]
        words += [
            "--res",
            self.res,
            "--steps",
            steps,
            "--batch-size",
            BATCH,
            "--seed",
            self.seed,
            "--out",
            out,
        ]
        words += ["--precision", "bf16", "--set", "eval.every=0", "--set", "train.save_every=0"]
        words += ["--json", "--quiet", *ALLOWED.get(self.name, ())]
        before = os.times()
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "vitcli", *map(str, words)]
        result = subprocess.run(command, capture_output=True, text=True, env=environment)
        after = os.times()
        if result.returncode:
            sys.exit(
                f"{self.folder.name}: exit code {result.returncode}\n{result.stdout}{result.stderr[-2000:]}"
            )
        seconds = after.children_user + after.children_system - before.children_user - before.children_system
        predicted = pq.read_table(out / "predictions.parquet").sort_by("place")
        return seconds, np.array(predicted["rank"]) == 0

    def _closed_form(self, side: str, groups: np.ndarray | None) -> np.ndarray:
        import torch

        from vitcli import load_model
        from vitcli.features import least_squares
        from vitcli.features.least_squares import SWEEP

        torch.set_num_threads(1)
        loaded = load_model(self.arguments.ckpt, image_size=self.res)
        features, labels = {}, {}
        for split in ("train", "test"):
            files = sorted(
                (self.folder / split).glob("*/*"), key=lambda path: f"{split}/{path.parent.name}/{path.name}"
            )
            labels[split] = np.array([int(path.parent.name) for path in files])
            features[split] = torch.cat(list(batches_of_features(loaded, files, side)))
        num_classes = int(labels["train"].max()) + 1
        solution = least_squares.solve(
            features["train"], labels["train"], num_classes=num_classes, l2=SWEEP, groups_N=groups
        )
        scores = solution.inputs(features["test"]) @ solution.weights(least_squares.choose_l2(solution))
        return scores.argmax(axis=1) == labels["test"]

    def _written(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Write the images as class folders; return the labels of the test images and groups of the others.

        Both in the order of the files' names. Of a class whole groups are drawn, in a random order.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        labels, groups = [], []
        for split, limit in zip(("train", "test"), MOST_ROWS.get(self.name, (None, None)), strict=True):
            rows = self._rows(split)[:limit]
            order = (
                np.random.default_rng(self.seed).permutation(len(rows))
                if split == "train"
                else range(len(rows))
            )
            group_of = [row.get("group") or f"row {number}" for number, row in enumerate(rows)]
            ranks: dict[str, int] = {}
            for number in order:
                ranks.setdefault(group_of[number], len(ranks))
            taken: dict[int, int] = defaultdict(int)
            kept = []
            for number in sorted(order, key=lambda row: ranks[group_of[row]]):
                label = rows[number]["label"]
                if split == "train" and self.shots and taken[label] == self.shots:
                    continue
                taken[label] += 1
                image = rows[number]["image"]["bytes"]
                kind = "png" if image[:4] == b"\x89PNG" else "jpg"
                path = self.folder / split / f"{label:03d}" / f"{number:05d}.{kind}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(image)
                kept.append((f"{label:03d}/{number:05d}", label, group_of[number]))
            kept.sort()
            (labels if split == "test" else groups).extend(row[1 if split == "test" else 2] for row in kept)
        of_group = np.unique(groups, return_inverse=True)[1]
        return np.array(labels), of_group if len(np.unique(of_group)) < len(groups) else None

    def _rows(self, split: str) -> list[dict]:
        files = sorted((self.arguments.data / self.name).glob(f"*{split}*.parquet"))
        names = set(pq.read_schema(files[0]).names)
        columns = [name for name in ("image", "label", "group") if name in names]
        return [row for file in files for row in pq.read_table(file, columns=columns).to_pylist()]


def batches_of_features(loaded, files: list[Path], side: str) -> Iterator:
    """Yield the features of the side, 64 images at once."""
    import torch

    for first in range(0, len(files), 64):
        images = torch.stack([loaded.transform(path) for path in files[first : first + 64]])
        with torch.no_grad():
            if side == "probe":
                yield loaded.model.forward_features(images)[:, 0]
                continue
            of_layers = loaded.model.forward_intermediates(
                images, norm=False, output_fmt="NLC", return_prefix_tokens=True, intermediates_only=True
            )
            norm = loaded.model.norm
            pooled = [(norm(tokens)[:, 0], norm(patches).mean(dim=1)) for patches, tokens in of_layers]
            yield torch.cat([part for pair in pooled for part in pair], dim=1)


def table(lines: list[dict]) -> str:
    """Return the accuracy of each side, and the default against each other one: difference, its error, p."""
    by_cell: dict[tuple, dict[int, dict]] = defaultdict(lambda: defaultdict(dict))
    for line in lines:
        by_cell[line["set"], line["shots"], line["res"]][line["seed"]][line["side"]] = line
    head = (
        "| set | per class | px | seeds | default | "
        + " | ".join(f"{side}, against it" for side in SIDES[1:])
        + " |"
    )
    rows = [head, "|---" * (5 + len(SIDES) - 1) + "|"]
    for (name, shots, res), by_seed in sorted(by_cell.items()):
        sides = [draw for draw in by_seed.values() if "default" in draw]
        cells = [f"{100 * mean(draw['default']['top1'] for draw in sides):.1f}" if sides else ""]
        for side in SIDES[1:]:
            pairs = [(draw["default"], draw[side]) for draw in sides if side in draw]
            cells.append(compared(pairs) if pairs else "")
        rows.append(f"| {name} | {shots or 'all'} | {res} | {len(sides)} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def compared(pairs: list[tuple[dict, dict]]) -> str:
    """Return the accuracy of another side, and the paired difference of the default from it with its p."""
    ours, others = (np.concatenate([bits(pair[which]) for pair in pairs]) for which in (0, 1))
    won, lost = int((ours & ~others).sum()), int((others & ~ours).sum())
    count = len(ours)
    difference = (won - lost) / count
    error = sqrt(max(0.0, (won + lost) / count - difference**2) / count)
    more = won + lost
    p = min(1.0, 2 * sum(comb(more, k) for k in range(min(won, lost) + 1)) / 2**more)
    return f"{100 * others.mean():.1f}, {100 * difference:+.1f} ± {100 * error:.1f} (p {p:.2g})"


def bits(line: dict) -> np.ndarray:
    packed = np.frombuffer(bytes.fromhex(line["right"]), dtype=np.uint8)
    return np.unpackbits(packed)[: line["num_test"]].astype(bool)


if __name__ == "__main__":
    main()
