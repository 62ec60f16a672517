"""What the leave-one-out accuracy that `vit fewshot --layers` chooses by is worth.

    python benchmarks/choose.py layers --data FOLDER --ckpt WEIGHTS --out RESULTS
    python benchmarks/choose.py shots --data FOLDER --ckpt WEIGHTS --out RESULTS [--draws 20]
    python benchmarks/choose.py order --data FOLDER --ckpt WEIGHTS --out RESULTS [--steps 40] [--res 96]

FOLDER holds the Parquet data sets of TASKS; WEIGHTS are those of a ViT-Ti/16 in timm's names.

`layers`: the combination chosen on the training images against the class token of the last layer, on the test
split; and the best of all combinations there, which nobody can choose.

`shots`: as many images of each class are drawn, and a combination is chosen by them. Its leave-one-out
accuracy is compared with its accuracy on all images that were not drawn; so is that of the last class token,
of which nothing but l2 is chosen. Drawn is from both splits together: leaving one out foretells the accuracy
on images that come as the training images do, and those of coil20_azimuth's test split are all of one angle.

`order`: WEIGHTS, the demo network and two damaged copies of WEIGHTS, ranked by `vit fewshot` on 10 images of
each class of flowers17 (--shots) and by the mean test accuracy of `vit finetune` on these images, over three
seeds. Of one copy half the blocks are drawn anew, the other states a wrong normalisation.

RESULTS/results.jsonl has a line for each result, and what is there is not made again.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from statistics import mean

import numpy as np
import torch

from vitcli.data.transforms import preprocessing_of
from vitcli.evaluation.intervals import mcnemar
from vitcli.evaluation.setup import RunSettings, read_checkpoint
from vitcli.features import compare_backbones
from vitcli.features.compare_backbones import LeftOutProblem, LeftOutScore
from vitcli.features.extract import open_extractor
from vitcli.features.fewshot import open_splits
from vitcli.features.layers import Combination, LayerFeatures, combinations, extract_layers
from vitcli.features.least_squares import draw_shots
from vitcli.models.blocks import TOKEN, LayerLayout, layout_of
from vitcli.recipe import load_for_inference
from vitcli.weights.describe import WeightsInfo
from vitcli.weights.io import write_weights

# The splits of a task, and how many images of each class are drawn.
TASKS = {
    "flowers17": ({}, (10, 20)),
    "coil20_azimuth": ({"data.label_column": "label"}, (10, 20)),
    "sprites_synthetic": ({"data.label_column": "label"}, (10, 25)),
    "cifar10": ({"data.train_split": "train[:2000]", "data.eval_split": "test[:600]"}, (10, 25)),
}
NORMALISATIONS = {"mean": (0.0, 0.0, 0.0), "std": (1 / 255,) * 3}  # pixels of 0 to 255, never divided


@dataclass(frozen=True, eq=False)
class Task:
    """The features of all layers of a data set, and its labels; the test images follow the others."""

    splits: tuple[LayerFeatures, LayerFeatures]
    labels_N: np.ndarray
    num_classes: int

    @property
    def layout(self) -> LayerLayout:
        return self.splits[0].layout

    @cache  # noqa: B019, a task lives as long as the process
    def features_ND(self, combination: Combination) -> np.ndarray:
        return np.concatenate([split.read(combination) for split in self.splits])


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a task, read as those of `LayerFeatures` are."""

    task: Task
    rows: np.ndarray

    def read(self, combination: Combination) -> np.ndarray:
        return self.task.features_ND(combination)[self.rows]

    @property
    def labels(self) -> np.ndarray:
        return self.task.labels_N[self.rows]

    @property
    def problem(self) -> LeftOutProblem:
        return LeftOutProblem(self.labels, np.arange(len(self.rows)), self.task.num_classes)

    def scores(self) -> tuple[list[LeftOutScore], LeftOutScore, LeftOutScore]:
        """Score all combinations; return all, the best, and the class token of the last layer."""
        problem, layout = self.problem, self.task.layout
        scores = [compare_backbones.score_of(self, each, problem, ckpt=0) for each in combinations(layout)]
        last_token = Combination(TOKEN, layout.layers[-1:])
        last = next(score for score in scores if score.combination == last_token)
        return scores, compare_backbones.best_of(scores), last

    def hits_on(self, score: LeftOutScore, others: "Rows") -> np.ndarray:
        return compare_backbones.hits_on(score, self, self.problem, others, others.labels)


def open_task(name: str, args: argparse.Namespace) -> Task:
    """Return the features of a task, from the cache where they are there."""
    given = {"data.dataset": str(args.data / name), "model.ckpt": str(args.ckpt)} | TASKS[name][0]
    recipe = load_for_inference(None, (), given, default="fewshot/default", command="fewshot")
    splits = open_splits(recipe)
    extractor = open_extractor(read_checkpoint(recipe, quiet=True), recipe, RunSettings())
    size = extractor.network.arch.image_size
    extractor = replace(
        extractor, layout=layout_of(extractor.network.model, size, "all", ckpt=str(args.ckpt))
    )
    features = tuple(extract_layers(extractor, split, np.arange(len(split))) for split in splits)
    labels_N = np.concatenate([split.read_labels() for split in splits])
    return Task(features, labels_N, splits[0].num_classes)


def name_of(score: LeftOutScore) -> str:
    layers = score.combination.layers
    return (
        f"{score.combination.pooling} of {len(layers)} layers"
        if len(layers) > 1
        else (f"layer {layers[0]}, {score.combination.pooling}")
    )


def measure_layers(args: argparse.Namespace, kept: "Kept") -> None:
    for name in args.tasks:
        kept.once({"part": "layers", "task": name}, lambda name=name: _layers(open_task(name, args)))


def _layers(task: Task) -> dict:
    num_train = len(task.splits[0].rows_N)
    train, test = map(partial(Rows, task), np.split(np.arange(len(task.labels_N)), [num_train]))
    scores, best, last = train.scores()
    hits = {name_of(score): train.hits_on(score, test) for score in scores}
    chosen_T, last_T = hits[name_of(best)], hits[name_of(last)]
    most = max(hits, key=lambda name: hits[name].sum())
    return {
        "chosen": name_of(best), "l2": [best.l2], "images": num_train, "tests": len(last_T),
        "left_out": best.accuracy, "test": chosen_T.mean(),
        "last_left_out": last.accuracy, "last_test": last_T.mean(),
        "p": mcnemar(int((chosen_T & ~last_T).sum()), int((last_T & ~chosen_T).sum())),
        "best_on_test": most, "most_test": hits[most].mean(),
        "all": {name_of(score): [score.accuracy, hits[name_of(score)].mean()] for score in scores},
    }  # fmt: skip


def measure_shots(args: argparse.Namespace, kept: "Kept") -> None:
    for name in args.tasks:
        task = cache(lambda name=name: open_task(name, args))
        for shots, seed in product(TASKS[name][1], range(args.draws)):
            about = {"part": "shots", "task": name, "shots": shots, "seed": seed}
            kept.once(about, lambda task=task, shots=shots, seed=seed: _shots(task(), shots, seed))


def _shots(task: Task, shots: int, seed: int) -> dict:
    rows = draw_shots(task.labels_N, num_classes=task.num_classes, shots=[shots], seed=seed)[shots]
    drawn = Rows(task, rows)
    others = Rows(task, np.setdiff1d(np.arange(len(task.labels_N)), rows))
    _, best, last = drawn.scores()
    result = {"chosen": name_of(best), "images": len(rows), "new": len(others.rows)}
    for name, score in (("chosen", best), ("last", last)):
        new_T = drawn.hits_on(score, others)
        result |= {f"{name}_left_out": score.accuracy, f"{name}_new": new_T.mean()}
    return result


def measure_order(args: argparse.Namespace, kept: "Kept") -> None:
    networks = damaged_copies(args)
    data = ["--dataset", str(args.data / "flowers17"), "--res", str(args.res)]
    data += ["--set", f"data.train_split=train[:{17 * args.shots}]"]
    about = {"part": "order", "res": args.res, "shots": args.shots}

    def left_out_of_all() -> dict:
        words = [word for ckpt in networks.values() for word in ("--ckpt", str(ckpt))]
        result = vit("fewshot", *words, *data, "--out", str(args.out / "comparison"), "--overwrite")
        of_ckpt = {str(ckpt): name for name, ckpt in networks.items()}
        found: dict[str, float] = {}
        for entry in result["candidates"]:  # the best comes first
            found.setdefault(of_ckpt[entry["ckpt"]], entry["top1"])
        return {"left_out": found}

    def tuned(ckpt: str, seed: int) -> dict:
        with_steps = ["--steps", str(args.steps), "--batch-size", "32", "--seed", str(seed)]
        rules = [word for rule in args.set for word in ("--set", rule)]
        folder = ["--out", str(args.out / "runs" / f"{Path(ckpt).stem}-{seed}"), "--overwrite"]
        result = vit("finetune", "--recipe", args.recipe, "--ckpt", ckpt, *data, *with_steps, *rules, *folder)
        return {"top1": result["top1"], "elapsed_s": result["elapsed_s"]}

    kept.once(about, left_out_of_all)
    budget = {"steps": args.steps, "recipe": args.recipe, "set": args.set}
    for seed, (name, ckpt) in product(range(3), networks.items()):
        kept.once(
            about | budget | {"network": name, "seed": seed},
            lambda ckpt=ckpt, seed=seed: tuned(str(ckpt), seed),
        )


def damaged_copies(args: argparse.Namespace) -> dict[str, str | Path]:
    """Return the networks by name; write those that are damaged, the same ones each time."""
    given = {"data.dataset": str(args.data / "flowers17"), "model.ckpt": str(args.ckpt)}
    recipe = load_for_inference(None, (), given, default="fewshot/default", command="fewshot")
    weights = read_checkpoint(recipe, quiet=True)
    stated = replace(preprocessing_of(recipe.data), image_size=weights.architecture.image_size)
    damaged = {"redrawn": redrawn(weights.state), "normalised": dict(weights.state)}
    stated_by = {"redrawn": stated, "normalised": replace(stated, **NORMALISATIONS)}
    for name, state in damaged.items():
        about = {"preprocessing": stated_by[name].as_dict(), "class_names": None, "metadata": {}}
        write_weights(args.out / "weights" / name, state, WeightsInfo(weights.architecture, **about))
    return {"whole": args.ckpt, "demo": "demo"} | {name: args.out / "weights" / name for name in damaged}


def redrawn(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return weights of which every second block has matrices of the same scale, drawn anew."""
    generator, result = torch.Generator().manual_seed(0), dict(state)
    for name, values in state.items():
        if name.startswith("blocks.") and int(name.split(".")[1]) % 2 and values.ndim == 2:
            result[name] = values.std() * torch.randn(values.shape, generator=generator)
    return result


def vit(*words: str) -> dict:
    command = [sys.executable, "-m", "vitcli", *words, "--json", "--quiet"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


class Kept:
    """The lines of results.jsonl."""

    def __init__(self, folder: Path):
        self.file = folder / "results.jsonl"
        folder.mkdir(parents=True, exist_ok=True)

    def lines(self) -> Iterator[dict]:
        text = self.file.read_text() if self.file.exists() else ""
        return map(json.loads, text.splitlines())

    def once(self, about: dict, measure: Callable[[], dict]) -> None:
        """Append what is measured, unless the line is there."""
        if any(line["about"] == about for line in self.lines()):
            return
        line = json.dumps({"about": about, **measure()})
        print(line[:150], flush=True)
        with self.file.open("a") as file:
            file.write(line + "\n")


def tables(lines: list[dict]) -> str:
    """Return the tables of docs/evidence/accuracy.md."""
    rows = [
        "| data | images | chosen | left out | test images | last token | p | best on these |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for line in lines:
        if line["about"]["part"] == "layers":
            rows.append(
                f"| {line['about']['task']} | {line['images']:,} | {line['chosen']} | {line['left_out']:.1%} "
                f"| {line['test']:.1%} of {line['tests']:,} | {line['last_test']:.1%} | {line['p']:.2g} "
                f"| {line['most_test']:.1%}, {line['best_on_test']} |"
            )
    return "\n".join([*rows, "", *shots_table(lines), "", *order_table(lines)])


def shots_table(lines: list[dict]) -> list[str]:
    rows = [
        "| data, images a class | draws | chosen: new images | left out | last token: new | left out |",
        "|---|---|---|---|---|---|",
    ]
    by_size: dict[tuple, list[dict]] = {}
    for line in lines:
        if line["about"]["part"] == "shots":
            by_size.setdefault((line["about"]["task"], line["about"]["shots"]), []).append(line)
    for (task, shots), draws in by_size.items():
        cells = []
        for name in ("chosen", "last"):
            new, old = (np.array([draw[f"{name}_{kind}"] for draw in draws]) for kind in ("new", "left_out"))
            gaps, error = 100 * (old - new), 100 * (old - new).std(ddof=1) / len(draws) ** 0.5
            cells += [f"{new.mean():.1%}", f"{old.mean():.1%} ({gaps.mean():+.1f} ± {error:.1f})"]
        rows.append(f"| {task}, {shots} | {len(draws)} | {' | '.join(cells)} |")
    return rows


def order_table(lines: list[dict]) -> list[str]:
    rows = ["| network | left out | fine-tuned, three seeds |", "|---|---|---|"]
    lines = [line for line in lines if line["about"]["part"] == "order"]
    for line in (line for line in lines if "left_out" in line):
        for name, accuracy in sorted(line["left_out"].items(), key=lambda item: -item[1]):
            tuned = [
                run["top1"]
                for run in lines
                if run["about"].get("network") == name and line["about"].items() <= run["about"].items()
            ]
            scores = ", ".join(f"{100 * top1:.1f}" for top1 in tuned)
            rows.append(f"| {name} | {accuracy:.1%} | {mean(tuned or [0]):.1%} ({scores}) |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=("layers", "shots", "order", "tables"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--ckpt", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--res", type=int, default=96, help="pixels of `order`")
    parser.add_argument("--shots", type=int, default=10, help="images of each class of `order`, in the mean")
    parser.add_argument("--steps", type=int, default=40, help="of each run of `order`")
    parser.add_argument("--recipe", default="finetune/default", help="of each run of `order`")
    parser.add_argument("--set", nargs="*", default=[], help="recipe keys of each run of `order`")
    args = parser.parse_args()

    kept = Kept(args.out)
    measure = {"layers": measure_layers, "shots": measure_shots, "order": measure_order}.get(args.part)
    if measure:
        measure(args, kept)
    print(tables(list(kept.lines())))


if __name__ == "__main__":
    main()
