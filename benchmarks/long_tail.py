"""A long-tailed copy of a data set as class folders: the classes shrink geometrically, the test images stay.

    python benchmarks/long_tail.py DATASET OUT [--most 37] [--least 2] [--seed 0]

Which class is large and which is small is drawn, and so are the images that stay. Then, for instance:

    vit fewshot --ckpt WEIGHTS --dataset OUT --shots 37 --seeds 1 --set fewshot.balance=full
    vit finetune --ckpt WEIGHTS --dataset OUT --set objective.class_weights=balanced
"""

import argparse
from pathlib import Path

import numpy as np

from vitcli.data.dataset import DataSet


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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset")
    parser.add_argument("out", type=Path)
    parser.add_argument("--most", type=int, default=37)
    parser.add_argument("--least", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    data = DataSet(arguments.dataset)
    train, test = data.open("train"), data.open("test")
    sizes = np.geomspace(arguments.most, arguments.least, train.num_classes).round().astype(int).tolist()
    write(train, rows_that_stay(train.read_labels(), sizes, arguments.seed), arguments.out / "train")
    write(test, range(len(test)), arguments.out / "test")
    print(f"{sum(sizes)} training images in classes of {sizes}")


if __name__ == "__main__":
    main()
