"""What `vit teach` promises, on real features: any order is one fit, fixed point costs nothing.

    vit embed --ckpt CKPT --dataset SET --split train --out FOLDER/SET-train.safetensors     (and test)
    python benchmarks/teaching.py FOLDER [--photos DATA --ckpt CKPT]

    orders    classes that come in 20 random orders, a few at a time: statistics, layer and answers of one fit
    points    top-1 of features in float64 and in fixed point, l2 chosen by leaving one out in each
    times     the layer at the width of the features, and adding 40 images
    lift      ReLU of random features (RanPAC, arXiv 2307.02251), three draws of each size, against the
              features themselves: exact McNemar test on the test images
    collapse  with --photos: the last half of the classes of DATA is learned after the first; top-1 on all
              test images by the closed form, and by fine-tuning on the images of the new classes alone

Criterion for the lift, written down before the first run: it is built if top-1 rises by a point or more on
two of the four sets cifar10, flowers17, scenes_intel6 and textures_dtd10 and falls significantly (p < 0.05)
on none; the others of FOLDER are looked at afterwards.
"""

import argparse
import time
from itertools import product
from math import comb
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file

from vitcli import load_model
from vitcli.features import least_squares
from vitcli.features.statistics import STEP, ClosedFormStatistics, quantised
from vitcli.teaching.taught import fitted
from vitcli.training.methods.probe_head import STRENGTHS

LIFTS = (2_000,)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--photos", help="data set of the part collapse")
    parser.add_argument("--ckpt", default="demo")
    options = parser.parse_args()
    sets = sorted(path.name.removesuffix("-train.safetensors") for path in options.folder.glob("*-train.*"))
    for name in sets:
        train, test = (
            load_file(options.folder / f"{name}-{split}.safetensors") for split in ("train", "test")
        )
        orders(name, train, test)
        points(name, train, test)
        lift(name, train, test)
    times(load_file(options.folder / f"{sets[0]}-train.safetensors"))
    if options.photos:
        collapse(options.photos, options.ckpt)


def statistics_of(train: dict, rows: np.ndarray) -> ClosedFormStatistics:
    names = [f"class {k:03}" for k in range(int(train["labels"].max()) + 1)]
    digests = (train["rows"][rows].astype(np.uint64) * np.uint64(2654435761)) % np.uint64(2**48) + np.uint64(
        1
    )
    return ClosedFormStatistics.of(train["features"][rows], train["labels"][rows], digests, class_names=names)


def orders(name: str, train: dict, test: dict) -> None:
    classes = np.unique(train["labels"])
    at_once = 2 if len(classes) <= 10 else 1
    whole = statistics_of(train, np.arange(len(train["labels"])))
    (weight, bias), facts = fitted(whole, "sweep")
    answers = torch.from_numpy(test["features"]) @ weight.T + bias
    equal = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        order = rng.permutation(classes)
        taught = ClosedFormStatistics.of_nothing(train["features"].shape[1])
        for first in range(0, len(order), at_once):
            rows = np.flatnonzero(np.isin(train["labels"], order[first : first + at_once]))
            taught = taught.plus(statistics_of(train, rng.permutation(rows)))
        (weight2, bias2), facts2 = fitted(taught, "sweep")
        answers2 = torch.from_numpy(test["features"]) @ weight2.T + bias2
        equal += taught.digest == whole.digest and facts == facts2 and torch.equal(answers, answers2)
    top1 = (answers.argmax(1).numpy() == test["labels"]).mean()
    steps = f"{-(-len(classes) // at_once)} steps of {at_once}"
    print(f"orders   {name}: {steps}, {equal} of 20 orders equal to one fit, top-1 {top1:.2%}")


def right_by(train: np.ndarray, labels: np.ndarray, test: np.ndarray, test_labels: np.ndarray) -> np.ndarray:
    classes = int(labels.max()) + 1
    solution = least_squares.solve(train, labels, num_classes=classes, l2=STRENGTHS, groups_N=None)
    solution = least_squares.at_best_l2(solution)
    return (solution.inputs(test) @ solution.weights(0)).argmax(1) == test_labels


def points(name: str, train: dict, test: dict) -> None:
    exact = right_by(train["features"], train["labels"], test["features"], test["labels"])
    fixed = right_by(quantised(train["features"]) * STEP, train["labels"], test["features"], test["labels"])
    print(f"points   {name}: float64 {exact.mean():.2%}, fixed point {fixed.mean():.2%}, differ on "
          f"{(exact != fixed).sum()} of {len(exact)}")  # fmt: skip


def lift(name: str, train: dict, test: dict) -> None:
    plain = right_by(train["features"], train["labels"], test["features"], test["labels"])
    width = train["features"].shape[1]
    for size, seed in product(LIFTS, range(3)):
        drawn = np.random.default_rng(seed).normal(scale=width**-0.5, size=(size, width)).astype(np.float32)
        lifted = [np.maximum(part["features"] @ drawn.T, 0) for part in (train, test)]
        right = right_by(lifted[0], train["labels"], lifted[1], test["labels"])
        better, worse = int((right & ~plain).sum()), int((plain & ~right).sum())
        print(f"lift     {name}: {plain.mean():.2%} to {right.mean():.2%} with {size}, draw {seed} "
              f"(+{better} -{worse}, p {mcnemar(better, worse):.3f})")  # fmt: skip


def mcnemar(better: int, worse: int) -> float:
    count = better + worse
    tail = sum(comb(count, k) for k in range(min(better, worse) + 1)) / 2**count if count else 1.0
    return min(1.0, 2 * tail)


def times(train: dict) -> None:
    rows = np.arange(len(train["labels"]))
    before, new = statistics_of(train, rows[40:]), statistics_of(train, rows[:40])
    for what, action in (
        ("adding 40 images", lambda: before.plus(new)),
        ("the layer", lambda: before.layer(1024.0)),
        ("l2, temperature and layer", lambda: fitted(before, "sweep")),
    ):
        taken = []
        for _ in range(5):
            began = time.perf_counter()
            action()
            taken.append(time.perf_counter() - began)
        print(f"times    {what} of {len(rows):,} images: {1000 * sorted(taken)[2]:.1f} ms")


def collapse(photos: str, ckpt: str) -> None:
    from vitcli.data.dataset import from_section
    from vitcli.data.loader import read_example
    from vitcli.recipe import load_for_inference

    model, transform, _ = load_model(ckpt)
    source = from_section(load_for_inference(None, (), {"data.dataset": photos}).data)
    parts = {name: source.open(name) for name in ("train", "test")}
    pixels = {name: torch.stack([transform(read_example(split, row)[0]) for row in range(len(split))])
              for name, split in parts.items()}  # fmt: skip
    labels = {name: torch.from_numpy(split.read_labels()) for name, split in parts.items()}
    classes = int(labels["train"].max()) + 1
    is_new = labels["train"] >= classes // 2

    def features(images: torch.Tensor) -> torch.Tensor:
        return model.forward_head(model.forward_features(images), pre_logits=True)

    def all_features(images: torch.Tensor) -> np.ndarray:
        with torch.no_grad():
            return torch.cat([features(batch) for batch in images.split(64)]).numpy()

    def say(what: str, logits: np.ndarray) -> None:
        right, old = logits.argmax(1) == labels["test"].numpy(), labels["test"].numpy() < classes // 2
        print(f"collapse {what}: all {right.mean():.1%}, old classes {right[old].mean():.1%}, "
              f"new {right[~old].mean():.1%}")  # fmt: skip

    train, test = all_features(pixels["train"]), all_features(pixels["test"])
    rows = {"features": train, "labels": labels["train"].numpy(), "rows": np.arange(len(train))}
    for what, which in (("taught the old half", ~is_new.numpy()), ("taught both", np.ones(len(train), bool))):
        (weight, bias), _ = fitted(statistics_of(rows, np.flatnonzero(which)), "sweep")
        head = torch.nn.Linear(train.shape[1], classes)
        with torch.no_grad():
            head.weight.zero_(), head.bias.fill_(-10.0)
            head.weight[: len(weight)], head.bias[: len(bias)] = weight, bias
        say(what, test @ head.weight.detach().numpy().T + head.bias.detach().numpy())
        if what == "taught the old half":
            start = head
    new_rows, head = torch.nonzero(is_new)[:, 0], start
    with torch.no_grad():
        head.bias[classes // 2 :] = 0.0
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.003, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    for step in range(1, 101):
        batch = new_rows[torch.randperm(len(new_rows), generator=generator)[:32]]
        loss = torch.nn.functional.cross_entropy(
            head(features(pixels["train"][batch])), labels["train"][batch]
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in (20, 100):
            logits = (
                all_features(pixels["test"]) @ head.weight.detach().numpy().T + head.bias.detach().numpy()
            )
            say(f"fine-tuned on the new half, {step} steps", logits)


if __name__ == "__main__":
    main()
