"""`vit predict --why`: do the patches carry the answer, and is a wrong label among the reasons?

    vit fewshot --ckpt WEIGHTS --dataset flowers17 --shots 5 --out RUN
    python benchmarks/why.py patches RUN --images 100
    vit embed --ckpt WEIGHTS --dataset flowers17 --split train --no-logits --out train.safetensors
    vit embed --ckpt WEIGHTS --dataset flowers17 --split test --no-logits --out test.safetensors
    python benchmarks/why.py labels train.safetensors test.safetensors --images 5

`patches`: the fall of the answer's probability when a fifth of the patches is blank (the mean colour), chosen
by relevance, by attention rollout, and at random, on images of the test split.

`labels`: in a few-shot draw one image gets a wrong label. Of the test images of its true class (of any class
with --any-class) that this alone gives that label, the one that it moves most and one at random are asked for
their three reasons. Draws whose wrong label changes no answer are passed over. 20 such draws.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file

from vitcli.data import dataset, loader
from vitcli.data.transforms import preprocessing_of, to_model_range
from vitcli.evaluation.setup import RunSettings
from vitcli.features.least_squares import draw_shots, influences, solve
from vitcli.inspection.analysis import patch_distances
from vitcli.inspection.attention import attention_stats, patch_relevance, probe_attention_layout
from vitcli.inspection.why import NUM_REASONS, _of_fewshot
from vitcli.output import run_folder
from vitcli.output.progress import Progress
from vitcli.weights.load import load_for_inference

BLANK, AT_ONCE, LARGEST_SEED = 0.2, 10, 2000


def patches(args: argparse.Namespace) -> None:
    recipe, _ = run_folder.recipe_of(args.run)
    network, _ = _of_fewshot(recipe, recipe, RunSettings(quiet=True), Path(args.run), recipe.fewshot)
    weights = network.weights
    preprocessing, cpu = preprocessing_of(recipe.data), torch.device("cpu")
    model, arch = load_for_inference(weights, preprocessing.image_size, "auto", cpu, Progress(quiet=True))
    model.requires_grad_(False)
    layout = probe_attention_layout(model, arch)
    distances_NN = patch_distances(layout.grid, layout.patch_size).float()
    _, test = dataset.open_train_and_eval(recipe.data, seed=0)
    rows = np.random.default_rng(0).permutation(len(test))[: args.images]

    generator, falls = torch.Generator().manual_seed(0), []
    for part in np.array_split(rows, -(-len(rows) // AT_ONCE)):
        images = [np.array(preprocessing(loader.read_example(test, int(row))[0])) for row in part]
        images_BCHW = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)
        images_BCHW = to_model_range(images_BCHW, mean=preprocessing.mean, std=preprocessing.std)
        every = range(len(part))
        with torch.no_grad():
            before_BK = model(images_BCHW).softmax(dim=1)
            answers_B = before_BK.argmax(dim=1)
            rollout = {"residual": True, "renormalise": True}
            stats = attention_stats(model, layout, images_BCHW, distances_NN, len(part), **rollout)
        maps = {
            "relevance": patch_relevance(model, layout, images_BCHW, lambda k, at=(every, answers_B): k[at]),
            "rollout": stats.rollout_MN,
            "random": torch.rand(len(part), layout.grid[0] * layout.grid[1], generator=generator),
        }
        falls.append([])
        for map_BN in maps.values():
            blank_BCHW = blanked(images_BCHW, map_BN.reshape(len(part), *layout.grid))
            with torch.no_grad():
                after_BK = model(blank_BCHW).softmax(dim=1)
            changed_B = (after_BK.argmax(dim=1) != answers_B).double()
            falls[-1].append(
                torch.stack([(before_BK - after_BK)[every, answers_B].double(), changed_B], dim=1)
            )
    for number, name in enumerate(maps):
        mean_2 = torch.cat([part[number] for part in falls]).mean(dim=0)
        print(
            f"{name}: probability falls by {100 * mean_2[0]:.1f} points, {mean_2[1]:.0%} change their answer"
        )


def blanked(images_BCHW: torch.Tensor, map_BIJ: torch.Tensor) -> torch.Tensor:
    """Return the images with the patches of the largest values blank."""
    map_BN = map_BIJ.flatten(1)
    most_BM = map_BN.topk(round(BLANK * map_BN.shape[1]), dim=1).indices
    keep_BIJ = torch.ones_like(map_BN).scatter_(1, most_BM, 0.0).view_as(map_BIJ).to(images_BCHW)
    rows, columns = (images_BCHW.shape[axis] // keep_BIJ.shape[axis - 1] for axis in (2, 3))
    keep_BHW = keep_BIJ.repeat_interleave(rows, dim=1).repeat_interleave(columns, dim=2)
    return images_BCHW * keep_BHW[:, None]


def labels(args: argparse.Namespace) -> None:
    train, test = load_file(args.train), load_file(args.test)
    labels_N, features_ND, truth_T = train["labels"].ravel(), train["features"], test["labels"].ravel()
    num_classes, found = int(labels_N.max()) + 1, []
    fit = {"num_classes": num_classes, "l2": [args.l2], "groups_N": None}
    for seed in range(LARGEST_SEED):
        rng = np.random.default_rng(seed)
        rows = draw_shots(labels_N, num_classes=num_classes, shots=[args.images], seed=seed)[args.images]
        drawn = labels_N[rows].copy()
        clean = solve(features_ND[rows], drawn, **fit)
        culprit = rng.integers(len(rows))
        wrong = drawn[culprit] = (drawn[culprit] + rng.integers(1, num_classes)) % num_classes
        mixed = solve(features_ND[rows], drawn, **fit)
        before_TK, after_TK = (one.inputs(test["features"]) @ one.weights(0) for one in (clean, mixed))
        is_turned = (before_TK.argmax(axis=1) == truth_T) & (after_TK.argmax(axis=1) == wrong)
        is_asked = truth_T != wrong if args.any_class else truth_T == labels_N[rows[culprit]]
        turned = np.flatnonzero(is_turned & is_asked)
        if not len(turned):
            continue
        moved = (after_TK - before_TK)[turned, wrong] - (after_TK - before_TK)[turned, truth_T[turned]]
        asked = [turned[moved.argmax()], rng.choice(turned)]
        lead_2K = np.zeros((2, num_classes))
        others_2K = np.where(np.arange(num_classes) == wrong, -np.inf, after_TK[asked])
        lead_2K[[0, 1], others_2K.argmax(axis=1)] = -1
        lead_2K[:, wrong] = 1
        influences_2N = influences(mixed, mixed.inputs(test["features"][asked]), lead_2K)
        found.append([culprit in reasons for reasons in np.argsort(-influences_2N, axis=1)[:, :NUM_REASONS]])
        if len(found) == args.repetitions:
            break
    most, at_random = np.sum(found, axis=0)
    print(
        f"{args.images} a class, {len(found)} of {seed + 1} draws have a turned answer: the wrong label is "
        f"among the reasons of the answer that it moves most in {most}, of one at random in {at_random}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parts = parser.add_subparsers(required=True)
    of_patches, of_labels = parts.add_parser("patches"), parts.add_parser("labels")
    of_patches.set_defaults(measure=patches)
    of_patches.add_argument("run", type=Path)
    of_patches.add_argument("--images", type=int, default=100)
    of_labels.set_defaults(measure=labels)
    of_labels.add_argument("train", type=Path)
    of_labels.add_argument("test", type=Path)
    of_labels.add_argument("--images", type=int, default=5, help="of each class")
    of_labels.add_argument("--l2", type=float, default=1024.0)
    of_labels.add_argument("--any-class", action="store_true")
    of_labels.add_argument("--repetitions", type=int, default=20)
    args = parser.parse_args()
    args.measure(args)


if __name__ == "__main__":
    main()
