"""A long-tailed copy of a data set as class folders: the classes shrink geometrically, the test images stay.

    python benchmarks/long_tail.py DATASET OUT [--most 37] [--least 2] [--seed 0]

Which class is large and which is small is drawn, and so are the images that stay. Then, for instance:

    vit fewshot --ckpt WEIGHTS --dataset OUT --shots 37 --seeds 1 --set fewshot.balance=full
    vit finetune --ckpt WEIGHTS --dataset OUT --set objective.class_weights=balanced

With `--ckpt WEIGHTS --draws 20` no copy is written: the closed form of `vit fewshot` is fitted to as many
tails, from features that are computed once, and its mean accuracy per class printed for each weighting.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from vitcli.data.dataset import DataSet
from vitcli.features import least_squares
from vitcli.features.least_squares import SWEEP


def rows_that_stay(labels_N: np.ndarray, sizes: list[int], seed: int) -> np.ndarray:
    """Return the rows of the copy: of a class drawn first sizes[0] images, of the next sizes[1], ..."""
    rng = np.random.default_rng(seed)
    classes = rng.permutation(np.unique(labels_N))
    rows = [
        rng.permutation(np.flatnonzero(labels_N == label))[:size]
        for label, size in zip(classes, sizes, strict=True)
    ]
    return np.concatenate(rows)


def write(split, rows, folder: Path) -> None:
    """Write the encoded images of some rows as files of class folders."""
    for row in rows:
        image, label = split.read_row(int(row))
        path = folder / str(split.class_names[label]) / f"{row:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image)


def print_accuracies(dataset: str, ckpt: str, sizes: list[int], draws: int) -> None:
    """Print mean, standard deviation and least of the mean accuracies per class over the draws of a tail."""
    with tempfile.TemporaryDirectory() as folder:
        train, test = (embedded(dataset, ckpt, split, Path(folder)) for split in ("train", "test"))
    num_classes = len(sizes)
    for l2 in ((least_squares.DEFAULT_L2,), SWEEP):
        for balance in ("none", "sqrt", "full"):
            scores = []
            for seed in range(draws):
                rows = rows_that_stay(train["labels"], sizes, seed)
                solution = least_squares.solve(
                    train["features"][rows],
                    train["labels"][rows],
                    num_classes=num_classes,
                    l2=l2,
                    groups_N=None,
                    balance=balance,
                )
                which = least_squares.choose_l2(solution) if len(l2) > 1 else 0
                best_N = (solution.inputs(test["features"]) @ solution.weights(which)).argmax(axis=1)
                hits_N = best_N == test["labels"]
                scores.append(
                    np.mean([hits_N[test["labels"] == label].mean() for label in range(num_classes)])
                )
            mean, std, least = 100 * np.mean(scores), 100 * np.std(scores, ddof=1), 100 * np.min(scores)
            name = "sweep" if len(l2) > 1 else f"{l2[0]:g}"
            print(f"l2 {name:6} balance {balance:5} {mean:.1f} ± {std:.1f} % (least {least:.1f})", flush=True)


def embedded(dataset: str, ckpt: str, split: str, folder: Path) -> dict[str, np.ndarray]:
    """Return features and labels of a split."""
    out = folder / f"{split}.safetensors"
    words = ["embed", "--ckpt", ckpt, "--dataset", dataset, "--split", split, "--out", str(out), "--quiet"]
    subprocess.run([sys.executable, "-m", "vitcli", *words], check=True)
    return load_file(out)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset")
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--ckpt", help="weights whose features are classified in place of writing a copy")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--most", type=int, default=37)
    parser.add_argument("--least", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    data = DataSet(arguments.dataset)
    train, test = data.open("train"), data.open("test")
    sizes = np.geomspace(arguments.most, arguments.least, train.num_classes).round().astype(int).tolist()
    if arguments.ckpt:
        return print_accuracies(arguments.dataset, arguments.ckpt, sizes, arguments.draws)
    write(train, rows_that_stay(train.read_labels(), sizes, arguments.seed), arguments.out / "train")
    write(test, range(len(test)), arguments.out / "test")
    print(f"{sum(sizes)} training images in classes of {sizes}")


if __name__ == "__main__":
    main()
