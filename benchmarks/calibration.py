"""What a finished run stores to calibrate its predictions, against images that it has not seen.

    python benchmarks/calibration.py --data FOLDER --ckpt WEIGHTS [--features KEPT] [--draws 20]
    python benchmarks/calibration.py coverage flowers17 signs textures-copies --data FOLDER --ckpt WEIGHTS

FOLDER has the data sets of SETS below. Features of the frozen network are computed once; with --features they
are kept, as NAME-SPLIT.safetensors, for the next call. Each draw divides all images of a set by chance into
as many training images as its training split has, and the others, which are judged. Sets of GROUPED are
divided by whole groups. NAME-copies has groups, too: 250 images of NAME, each as it is, cropped by 3 pixels
and scaled back, mirrored and 10 % brighter; 150 of them to train on.

`coverage`: how often the label is among the classes of at least the stored probability, for a delivered probe
(each training image left out in turn), for a head trained by gradient descent on all images but every fifth,
its dev part ("trained"), and for one trained on all of them, calibrated by five folds ("folds"). "Set" is
what is printed: the likeliest class is in it even where it is below. "Flagged" are judged images beyond the
stored distance. Of sets with groups also what comes of leaving out, or holding out, rows instead.

`unknown`: AUROC of the stored score, of the distance alone at a shrinkage of 0.01, and of the highest
probability, between test images of the classes known in training and others: the classes that each draw
holds out of training, and the test images of every other set. With 5, 20 and all training images of each
class. Also the fractions of both that lie beyond the stored score. Nothing was tuned on those of CHECKING.

`threshold`: what the recommended threshold promised, and what it does with images that did not choose it.

`calibration`: expected calibration error of the trained head, and of ImageNet's own head, before and after
the temperature.

`precision`: what changes where the features that calibrate are computed in bf16, as the steps of a run are:
temperature, coverage at 95 % and flagged images in fp32 / in bf16, the largest difference of a draw, and in
how many draws the score of unlike images is another one. Images that judge are in fp32.
"""

import argparse
import io
import json
import subprocess
import sys
import tempfile
from collections import Counter
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import torch
from PIL import Image, ImageEnhance, ImageOps
from safetensors import safe_open
from safetensors.numpy import load_file

from vitcli.evaluation.calibration import selective
from vitcli.evaluation.calibration.out_of_distribution import auroc, doubts
from vitcli.evaluation.calibration.prediction_sets import LEVELS, coverage_and_size, sets_at
from vitcli.evaluation.calibration.results import fitted
from vitcli.evaluation.calibration.scaling import Scaling
from vitcli.evaluation.calibration.stored import Calibration
from vitcli.evaluation.predictions import reliability
from vitcli.training.methods.calibrate import of_folds, of_network, of_probe
from vitcli.training.methods.out_of_fold import OutOfFold, left_out_of
from vitcli.training.methods.outputs import Outputs
from vitcli.training.methods.probe_head import closed_form_head

OF_LABEL = ("--set", "data.label_column=label")
SETS = {  # folder, the splits that are pooled, further words of `vit embed`
    "flowers17": ("flowers17", ("train", "test"), ()),
    "cifar10": ("cifar10", ("train[:2000]", "test[:1000]"), ()),
    "coil20": ("coil20_azimuth", ("train", "test"), OF_LABEL),
    "sprites": ("sprites_synthetic", ("train", "test"), OF_LABEL),
    "signs": ("signs_gtsrb22", ("train", "test"), ()),
    "xray": ("xray_pneumonia3", ("train", "test"), ()),
    "textures": ("textures_dtd10", ("train", "test"), ()),
    "scenes": ("scenes_intel6", ("train", "test"), ()),
    "sketches": ("sketches_pacs7", ("train", "test"), ()),
    "tiles": ("tiles_magnetic6", ("train", "test"), ()),
    "birds": ("birds120", ("train", "test"), ()),
    "imagenet_val_227": ("imagenet_val_227", ("validation",), ()),
}
TUNING = (
    "flowers17",
    "cifar10",
    "coil20",
    "sprites",
    "signs",
    "xray",
)  # docs/evidence/finetuning-protocol.md
CHECKING = ("textures", "scenes", "sketches", "tiles", "birds")
SHOTS = (5, 20, None)  # training images of each class known to the `unknown` part; None: all
GROUPED = {"signs", "xray", "tiles"}  # by a column `group`
COPIES, NUM_PHOTOS, NUM_TRAIN_PHOTOS = "-copies", 250, 150
NUM_FOLDS = 5
HEADS = ("probe", "trained", "folds")
NUM_UNKNOWN = 5  # classes that are held out, or a third of fewer than 15
NUM_STEPS, LR = 300, 0.05  # of a trained head: it fits all its training images and is overconfident
DEV_PART = SimpleNamespace(name="dev part", fingerprint=None)


def split_of(name: str, args: argparse.Namespace, split: str) -> dict[str, np.ndarray]:
    """Return features, labels and logits of a split; "features" and "labels" only but of ImageNet."""
    folder, _, words = SETS[name]
    out = args.features / f"{name}-{split.partition('[')[0]}.safetensors"
    if not out.exists():
        embed(f"{args.data}/{folder}", split, args, out, *words)
    return load_file(out)


def copies_of(name: str, args: argparse.Namespace) -> dict[str, np.ndarray]:
    """Return features, labels and groups of three copies of some images of a set."""
    out = args.features / f"{name}{COPIES}.safetensors"
    if not out.exists():
        folder, splits, words = SETS[name]
        column = next((word.partition("=")[2] for word in words if "label_column" in word), "label")
        files = [file for split in splits for file in _tables(args, folder, split.partition("[")[0])]
        table = pq.read_table(files, columns=["image", column])
        rows = np.sort(np.random.default_rng(0).choice(len(table), NUM_PHOTOS, replace=False))
        with tempfile.TemporaryDirectory() as root:
            for row, entry in zip(rows, table.take(rows).to_pylist(), strict=True):
                _write_copies(Path(root) / "train" / f"{entry[column]:03}", row, entry["image"]["bytes"])
            embed(root, "train", args, out)
    with safe_open(out, "np") as opened:
        places = json.loads(opened.metadata()["paths"])
    groups = [int(Path(place).name.partition("_")[0]) for place in places]
    return load_file(out) | {"groups": np.array(groups)}


def _write_copies(folder: Path, row: int, content: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    image = Image.open(io.BytesIO(content)).convert("RGB")
    cropped = image.crop((3, 3, image.width - 3, image.height - 3)).resize(
        image.size, Image.Resampling.BICUBIC
    )
    brighter = ImageEnhance.Brightness(ImageOps.mirror(image)).enhance(1.1)
    for number, copy in enumerate((image, cropped, brighter)):
        copy.save(folder / f"{row:05}_{number}.png")


def _tables(args: argparse.Namespace, folder: str, split: str) -> list[Path]:
    return sorted(Path(args.data, folder).glob(f"{split}*.parquet"))


def groups_of(name: str, args: argparse.Namespace, num_rows: int) -> np.ndarray:
    """Return the group of each of the pooled images; of sets without any each is one by itself."""
    if name.endswith(COPIES):
        return copies_of(name.removesuffix(COPIES), args)["groups"]
    if name not in GROUPED:
        return np.arange(num_rows)
    folder, splits, _ = SETS[name]
    files = [file for split in splits for file in _tables(args, folder, split)]
    names = [group for file in files for group in pq.read_table(file, columns=["group"])["group"].to_pylist()]
    return np.unique(names, return_inverse=True)[1]


def embed(dataset: str, split: str, args: argparse.Namespace, out: Path, *words: str) -> None:
    """Write features and labels of a split."""
    words = ("--dataset", dataset, "--split", split, "--res", str(args.res), *words)
    words = ("--ckpt", args.ckpt, "--precision", args.precision, *words)
    whole = [sys.executable, "-m", "vitcli", "embed", *words, "--out", str(out), "--json", "--quiet"]
    subprocess.run(whole, check=True, stdout=subprocess.DEVNULL)


def pooled(name: str, args: argparse.Namespace) -> tuple[np.ndarray, np.ndarray, int]:
    """Return features and labels of all images, and how many of them are training images."""
    if name.endswith(COPIES):
        copies = copies_of(name.removesuffix(COPIES), args)
        return copies["features"], copies["labels"].ravel(), 3 * NUM_TRAIN_PHOTOS
    parts = [split_of(name, args, split) for split in SETS[name][1]]
    features_ND = np.concatenate([part["features"] for part in parts])
    labels_N = np.concatenate([part["labels"].ravel() for part in parts])
    return features_ND, labels_N, len(parts[0]["labels"])


def divided(groups_N: np.ndarray, num_train: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows to train on and to judge by, of whole groups in an order by chance."""
    _, group_of_row_N, sizes_G = np.unique(groups_N, return_inverse=True, return_counts=True)
    order_G = np.random.default_rng(seed).permutation(len(sizes_G))
    chosen = order_G[sizes_G[order_G].cumsum() <= num_train]
    is_train_N = np.isin(group_of_row_N, chosen)
    return np.flatnonzero(is_train_N), np.flatnonzero(~is_train_N)


def folds_of(labels_N: np.ndarray, groups_N: np.ndarray) -> np.ndarray:
    """Return the fold of each row: every fifth group by chance, in the order of the classes."""
    _, first_G, group_of_row_N = np.unique(groups_N, return_index=True, return_inverse=True)
    order_G = np.random.default_rng(0).permutation(len(first_G))
    order_G = order_G[np.argsort(labels_N[first_G][order_G], kind="stable")]
    fold_G = np.empty(len(first_G), dtype=np.int64)
    fold_G[order_G] = np.arange(len(first_G)) % NUM_FOLDS
    return fold_G[group_of_row_N]


def outputs(features_ND: np.ndarray, labels_N: np.ndarray, layer: tuple[torch.Tensor, torch.Tensor]):
    """Return the outputs of a network whose last layer is this."""
    weight_KD, bias_K = layer
    return Outputs(features_ND, features_ND @ weight_KD.numpy().T + bias_K.numpy(), labels_N, None)


def trained_head(features_ND: np.ndarray, labels_N: np.ndarray, num_classes: int):
    """Return weight and bias of a linear layer trained by Adam on the cross-entropy, all images a step."""
    x_ND, y_N = torch.from_numpy(features_ND), torch.from_numpy(labels_N)
    mean_D, std_D = x_ND.mean(dim=0), x_ND.std(dim=0) + 1e-6
    layer = torch.nn.Linear(x_ND.shape[1], num_classes)
    torch.nn.init.zeros_(layer.weight), torch.nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(layer.parameters(), lr=LR)
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(layer((x_ND - mean_D) / std_D), y_N).backward()
        optimizer.step()
    weight_KD = layer.weight.detach() / std_D
    return weight_KD, layer.bias.detach() - weight_KD @ mean_D


def of_kind(
    kind: str,
    features_ND: np.ndarray,
    labels_N: np.ndarray,
    num_classes: int,
    groups_N: np.ndarray | None = None,
):
    """Return what a run stores that delivers a probe or a trained head, and its last layer."""
    if kind == "probe":
        none_yet_NK = np.zeros((len(labels_N), num_classes), np.float32)
        rows = (slice(None), slice(0))  # training images, and no images to choose by
        parts = [
            Outputs(
                features_ND[part],
                none_yet_NK[part],
                labels_N[part],
                None if groups_N is None else groups_N[part],
            )
            for part in rows
        ]
        about = {"num_classes": num_classes, "loss": "softmax", "groups_N": groups_N}
        head = closed_form_head(torch.from_numpy(features_ND), labels_N, **about)
        found = of_probe(*parts, num_classes=num_classes, loss="softmax", balance="none")
        return found, (head.weight_KD, head.bias_K)
    fold_N = folds_of(labels_N, np.arange(len(labels_N)) if groups_N is None else groups_N)
    if kind == "trained":
        is_dev_N = fold_N == 0
        layer = trained_head(features_ND[~is_dev_N], labels_N[~is_dev_N], num_classes)
        train, dev = (outputs(features_ND[rows], labels_N[rows], layer) for rows in (~is_dev_N, is_dev_N))
        return of_network(train, dev, DEV_PART), layer
    parts = []
    for fold in range(NUM_FOLDS):
        is_out_N = fold_N == fold
        layer = trained_head(features_ND[~is_out_N], labels_N[~is_out_N], num_classes)
        train, held = (outputs(features_ND[rows], labels_N[rows], layer) for rows in (~is_out_N, is_out_N))
        parts.append(left_out_of(train, held, np.arange(len(held.labels_N))))
    layer = trained_head(features_ND, labels_N, num_classes)
    columns = [[getattr(part, name) for part in parts] for name in ("logits_MK", "labels_M", "distances_M")]
    out_of_fold = OutOfFold(*map(np.concatenate, columns))
    return of_folds(outputs(features_ND, labels_N, layer), out_of_fold, "folds"), layer


def judged(stored: Calibration, tests: Outputs) -> dict[str, float]:
    """Return coverage and size at each level, and the calibration before and after the temperature."""
    p_NK, labels_N = stored.scaling.probabilities(tests.logits_NK), tests.labels_N
    is_right_N = tests.logits_NK.argmax(axis=1) == labels_N
    of_labels_N = p_NK[np.arange(len(labels_N)), labels_N]
    row = {"top1": float(is_right_N.mean()), **stored.scaling.as_json(), "flagged": np.nan}
    if stored.statistics is not None and len(tests.features_ND):
        scores_N = stored.unlike.of(stored.statistics, tests.features_ND, p_NK)
        row["flagged"] = float((scores_N > stored.distance).mean())
    for level in LEVELS:
        least = stored.sets[level]
        row[f"threshold {level}"] = float((of_labels_N >= (0 if least is None else least)).mean())
        row[f"set {level}"], row[f"size {level}"] = coverage_and_size(sets_at(p_NK, least), labels_N)
    before_NK = Scaling().probabilities(tests.logits_NK)
    for when, of_classes_NK in (("before", before_NK), ("after", p_NK)):
        row[f"ece {when}"] = reliability(of_classes_NK.max(axis=1), is_right_N).ece
    for when, scaling in (("before", Scaling()), ("after", stored.scaling)):
        row[f"nll {when}"] = float(scaling.losses(tests.logits_NK, labels_N).mean())
    if best := selective.recommended(stored.thresholds):
        (tried,) = selective.points_at([best.threshold], p_NK.max(axis=1), is_right_N)
        said = {
            "chosen": best.threshold,
            "answered": best.answered / stored.num_images,
            "right": best.accuracy,
        }
        row |= said | {
            "answered of others": tried.answered / len(labels_N),
            "right of others": tried.accuracy,
        }
    return row


def draws_of(
    name: str, kind: str, args: argparse.Namespace, *, by_rows: bool = False
) -> tuple[list[dict[str, float]], int]:
    """Return what each draw of a set comes to, and how many images judge it.

    Args:
        by_rows: take no notice of groups but in the choice of the images that judge.
    """
    features_ND, labels_N, num_train = pooled(name, args)
    groups_N = groups_of(name, args, len(labels_N))
    has_groups = not by_rows and len(np.unique(groups_N)) < len(groups_N)
    rows = []
    for seed in range(args.draws):
        train, test = divided(groups_N, num_train, seed)
        of_train = features_ND[train], labels_N[train], int(labels_N.max()) + 1
        stored, layer = of_kind(kind, *of_train, groups_N[train] if has_groups else None)
        rows.append(judged(stored, outputs(features_ND[test], labels_N[test], layer)))
    return rows, len(labels_N) - num_train


def imagenet_draws(args: argparse.Namespace) -> tuple[list[dict[str, float]], int]:
    """The same of the network's own head, half of the images choosing and half judging."""
    images = split_of("imagenet_val_227", args, "validation")
    features_ND, logits_NK, labels_N = images["features"], images["logits"], images["labels"].ravel()
    rows = []
    for seed in range(args.draws):
        chosen, test = divided(np.arange(len(labels_N)), len(labels_N) // 2, seed)
        stored = Calibration(*fitted(logits_NK[chosen], labels_N[chosen]), (), len(chosen), "half")
        rows.append(judged(stored, Outputs(features_ND[test], logits_NK[test], labels_N[test], None)))
    return rows, len(labels_N) - len(labels_N) // 2


def print_coverage(names: list[str], args: argparse.Namespace) -> None:
    columns = "promised | one draw ± | by the threshold | as printed | classes | flagged | top-1"
    print(f"| data | groups | head | {columns} |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in names:
        if name == "imagenet_val_227":
            print_levels(f"{name} | none | its own", *imagenet_draws(args))
            continue
        has_groups = name in GROUPED or name.endswith(COPIES)
        for kind in args.heads or HEADS:
            print_levels(
                f"{name} | {'whole' if has_groups else 'none'} | {kind}", *draws_of(name, kind, args)
            )
            if has_groups:
                print_levels(f"{name} | ignored | {kind}", *draws_of(name, kind, args, by_rows=True))


def print_levels(words: str, rows: list[dict[str, float]], num_tests: int) -> None:
    """Print a line of the table for each level, of means over the draws."""
    mean = {key: float(np.mean([row.get(key, np.nan) for row in rows])) for key in rows[0]}
    for level in LEVELS:
        error = np.sqrt(level * (100 - level) / num_tests)
        print(
            f"| {words} | {level} % | {error:.1f} | {100 * mean[f'threshold {level}']:.1f} % "
            f"| {100 * mean[f'set {level}']:.1f} % | {mean[f'size {level}']:.2f} "
            f"| {100 * mean['flagged']:.1f} % | {100 * mean['top1']:.1f} % |",
            flush=True,
        )


def print_thresholds(names: list[str], args: argparse.Namespace) -> None:
    print("| data | head | images | threshold | answered | right | answered of others | right of others |")
    print("|---|---|---|---|---|---|---|---|")
    for name, kind in ((name, kind) for name in names for kind in ("probe", "trained")):
        rows, num_tests = draws_of(name, kind, args)
        mean = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
        keys = ("answered", "right", "answered of others", "right of others")
        cells = " | ".join(f"{100 * mean[key]:.1f} %" for key in keys)
        print(f"| {name} | {kind} | {num_tests} | {mean['chosen']:.2f} | {cells} |", flush=True)


def print_calibration(names: list[str], args: argparse.Namespace) -> None:
    print("| data | temperature | ECE before | after | draws where it is worse | NLL before | after |")
    print("|---|---|---|---|---|---|---|")
    for name in names:
        rows, _ = imagenet_draws(args) if name == "imagenet_val_227" else draws_of(name, "trained", args)
        mean = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
        worse = sum(row["ece after"] > row["ece before"] for row in rows)
        print(
            f"| {name} | {mean['temperature']:.2f} | {100 * mean['ece before']:.2f} % "
            f"| {100 * mean['ece after']:.2f} % | {worse} of {len(rows)} "
            f"| {mean['nll before']:.3f} | {mean['nll after']:.3f} |",
            flush=True,
        )


def known_and_unknown(
    kind: str, train: tuple[np.ndarray, np.ndarray], known_MD: np.ndarray, others: list[np.ndarray]
) -> list[dict[str, float | str]]:
    """Return AUROCs against each of the others, and the fractions beyond the stored score."""
    stored, layer = of_kind(kind, *train, int(train[1].max()) + 1)
    if isinstance(stored, str) or stored.unlike is None:
        return []
    statistics, score = stored.statistics, stored.unlike
    tests = [outputs(rows_ND, None, layer) for rows_ND in (known_MD, *others)]
    p_NK = [stored.scaling.probabilities(each.logits_NK) for each in tests]
    scores = [score.of(statistics, each.features_ND, p) for each, p in zip(tests, p_NK, strict=True)]
    before = [statistics.distances(each.features_ND, shrinkage=0.01) for each in tests]
    highest = [doubts(p) for p in p_NK]
    about = {
        "chosen": f"{score.shrinkage:g}{' + doubt' if score.doubt_weight else ''}",
        "left out": score.auroc,
    }
    return [
        about
        | {
            "score": auroc(scores[0], scores[number]),
            "before": auroc(before[0], before[number]),
            "highest": auroc(highest[0], highest[number]),
            "known": float((scores[0] > stored.distance).mean()),
            "unknown": float((scores[number] > stored.distance).mean()),
        }
        for number in range(1, len(tests))
    ]


def some_of_each(labels_N: np.ndarray, shots: int | None, seed: int) -> np.ndarray:
    """Return the rows of so many images of each class, drawn at random; all of them for None."""
    order_N = np.random.default_rng(seed).permutation(len(labels_N))
    by_class = [order_N[labels_N[order_N] == label][:shots] for label in np.unique(labels_N)]
    return np.sort(np.concatenate(by_class))


def split_rows(name: str, args: argparse.Namespace, part: int) -> tuple[np.ndarray, np.ndarray]:
    images = split_of(name, args, SETS[name][1][part])
    return images["features"], images["labels"].ravel()


def print_unknown(names: list[str], args: argparse.Namespace) -> None:
    print(
        "| head | trained on | a class | unlike | AUROC of the score | at worst | distance at 0.01 "
        "| highest probability | left-out classes | known flagged | unknown | chosen |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    below, count = 0, 0
    for kind, name, shots in product(args.heads or ["probe"], names, SHOTS):
        features_ND, labels_N = split_rows(name, args, 0)
        tests_ND, of_tests_N = split_rows(name, args, 1)
        others = {other: split_rows(other, args, 1)[0] for other in names if other != name}
        rows = {other: [] for other in ("classes held out", *others)}
        for seed in range(args.draws):
            drawn = some_of_each(labels_N, shots, seed)
            is_known_K = known_classes(int(labels_N.max()) + 1, seed)
            of_known_K, drawn = np.cumsum(is_known_K) - 1, drawn[is_known_K[labels_N[drawn]]]
            is_known_M = is_known_K[of_tests_N]
            train = (features_ND[drawn], of_known_K[labels_N[drawn]])
            unlike = [tests_ND[~is_known_M], *others.values()]
            found = known_and_unknown(kind, train, tests_ND[is_known_M], unlike)
            for other, row in zip(rows, found, strict=False):  # nothing is found by too few images
                rows[other].append(row)
        for other, of_draws in rows.items():
            if of_draws:
                below += print_row((kind, name, str(shots or "all"), other), of_draws)
                count += 1
    print(f"\nbelow the highest probability (mean over draws): {below} of {count}")


def known_classes(num_classes: int, seed: int) -> np.ndarray:
    """Return all classes but NUM_UNKNOWN, or a third of few, (K,) bool."""
    count = max(1, min(NUM_UNKNOWN, num_classes // 3))
    unknown = np.random.default_rng(seed).choice(num_classes, count, replace=False)
    return ~np.isin(np.arange(num_classes), unknown)


def print_row(about: tuple[str, ...], rows: list[dict[str, float]]) -> bool:
    """Print the means over draws, and return whether the score is below the highest probability."""
    of = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    score, before, highest = (of[key].mean() for key in ("score", "before", "highest"))
    cells = [f"{value:.3f}" for value in (score, of["score"].min(), before, highest)]
    left_out = [value for value in of["left out"] if value is not None]
    cells += [f"{np.mean(left_out):.3f}" if left_out else "none"]
    cells += [f"{100 * of[key].mean():.1f} %" for key in ("known", "unknown")]
    chosen = Counter(of["chosen"].tolist()).most_common()
    cells += [", ".join(f"{name} ({number})" for name, number in chosen)]
    print(f"| {' | '.join([*about, *cells])} |", flush=True)
    return bool(score < highest - 5e-4)


def print_precision(names: list[str], args: argparse.Namespace) -> None:
    print("| data | head | temperature | most | covered at 95 % | most | flagged | most | other score |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in names:
        both = []
        for precision in ("fp32", "bf16"):
            features = args.features / precision
            features.mkdir(exist_ok=True)
            how = argparse.Namespace(**vars(args) | {"features": features, "precision": precision})
            both.append(pooled(name, how))
        (exact_ND, labels_N, num_train), (rough_ND, _, _) = both
        groups_N = groups_of(name, args, len(labels_N))
        has_groups = len(np.unique(groups_N)) < len(groups_N)
        for kind in ("probe", "trained"):
            values_D23, others = [], 0
            for seed in range(args.draws):
                train, test = divided(groups_N, num_train, seed)
                about = labels_N[train], int(labels_N.max()) + 1, groups_N[train] if has_groups else None
                pair = [of_kind(kind, features_ND[train], *about) for features_ND in (exact_ND, rough_ND)]
                rows = [judged(s, outputs(exact_ND[test], labels_N[test], layer)) for s, layer in pair]
                scores = [(s.unlike.shrinkage, s.unlike.doubt_weight > 0) for s, _ in pair]
                others += scores[0] != scores[1]
                keys = ("threshold 95", "flagged")
                values_D23.append(
                    [
                        [s.scaling.temperature, *(row[key] for key in keys)]
                        for (s, _), row in zip(pair, rows, strict=True)
                    ]
                )
            means_23 = np.mean(values_D23, axis=0)
            most_3 = np.abs(np.diff(values_D23, axis=1)).max(axis=0)[0]
            cells = [
                f"{fp32:.4g} / {bf16:.4g} | {most:.2g}"
                for fp32, bf16, most in zip(*means_23, most_3, strict=True)
            ]
            print(f"| {name} | {kind} | {' | '.join(cells)} | {others} of {args.draws} |", flush=True)


PARTS = {
    "coverage": (print_coverage, ["flowers17", "cifar10", "coil20"]),
    "unknown": (print_unknown, list(TUNING)),
    "threshold": (print_thresholds, ["flowers17", "cifar10", "coil20"]),
    "calibration": (print_calibration, list(SETS)),
    "precision": (print_precision, list(TUNING)),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", nargs="?", choices=[*PARTS, "all"], default="all")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SETS)}")
    parser.add_argument("--data", default="data")
    parser.add_argument("--ckpt")
    parser.add_argument("--features", type=Path, help="a folder that keeps the features")
    parser.add_argument("--precision", default="fp32", help="of the features")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--res", type=int, default=224, help="pixels; kept features are those of one size")
    parser.add_argument("--heads", nargs="+", choices=HEADS, help="default: probe, of coverage all")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        args.features = args.features or Path(folder)
        for part, (function, names) in PARTS.items():
            if args.part in (part, "all"):
                print(f"\n{part}, {args.draws} draws\n")
                function(args.names or names, args)


if __name__ == "__main__":
    main()
