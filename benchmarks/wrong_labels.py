"""Planted wrong labels among the first suspects of `vit datasets check --labels`, and of cleanlab.

    vit embed --ckpt CKPT --dataset flowers17 --split train --no-logits --out features.safetensors
    python benchmarks/wrong_labels.py features.safetensors [--planted 10 34 65] [--draws 20] [--cleanlab]

Each draw gives n random images another class: any one (uniform), or the one with the highest leave-one-out
score of the clean labels besides the right one (hardest). Recall is the fraction of them among the first n
suspects. cleanlab ranks probabilities of scikit-learn's logistic regression on standardised features over
five folds, for each strength C, by its default score; it needs both packages, which `vit` does not.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from vitcli.features.label_errors import STRENGTHS, find_suspects
from vitcli.features.least_squares import choose_l2, left_out_scores, solve

STRENGTHS_C = (0.001, 0.01, 0.1, 1.0)  # 1 is scikit-learn's default


def hardest_classes(features_ND: np.ndarray, labels_N: np.ndarray) -> np.ndarray:
    """Return the class that each image is most easily taken for besides its own, (N,)."""
    about = {"num_classes": labels_N.max() + 1, "l2": STRENGTHS, "groups_N": None}
    solution = solve(features_ND, labels_N, **about)
    scores_NK = left_out_scores(solution, choose_l2(solution))
    scores_NK[np.arange(len(labels_N)), labels_N] = -np.inf
    return scores_NK.argmax(axis=1)


def plant(
    labels_N: np.ndarray, count: int, seed: int, hardest_N: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return labels of which `count` are wrong, and the rows of these."""
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(labels_N), count, replace=False)
    planted_N, num_classes = labels_N.copy(), labels_N.max() + 1
    others = (labels_N[rows] + rng.integers(1, num_classes, count)) % num_classes
    planted_N[rows] = others if hardest_N is None else hardest_N[rows]
    return planted_N, rows


def cleanlab_orders(features_ND: np.ndarray, labels_N: np.ndarray) -> dict[str, np.ndarray]:
    """Return all rows by cleanlab's default score, the worst label first, for each strength."""
    from cleanlab.rank import get_label_quality_scores
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    orders = {}
    for strength in STRENGTHS_C:
        model = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=200))
        chances_NK = cross_val_predict(model, features_ND, labels_N, cv=5, method="predict_proba")
        scores_N = get_label_quality_scores(labels_N, chances_NK)
        orders[f"cleanlab, C {strength:g}"] = np.argsort(scores_N, kind="stable")
    return orders


def recalls(
    features_ND: np.ndarray, labels_N: np.ndarray, *, count: int, draws: int, hardest: bool, cleanlab: bool
) -> dict[str, list[float]]:
    """Return the recall of every draw by the name of a method, named labels and seconds with them."""
    results = defaultdict(list)
    hardest_N = hardest_classes(features_ND, labels_N) if hardest else None
    for seed in range(draws):
        planted_N, rows = plant(labels_N, count, seed, hardest_N)
        began_at = time.perf_counter()
        found = find_suspects(features_ND, planted_N, num_classes=labels_N.max() + 1, groups_N=None)
        results["elapsed_s"].append(time.perf_counter() - began_at)
        results["named"].append(found.num_named)
        results["named_planted"].append(len({*found.rows_N[: found.num_named]} & {*rows}))
        orders = {"vit": found.rows_N} | (cleanlab_orders(features_ND, planted_N) if cleanlab else {})
        for name, order_N in orders.items():
            results[name].append(len({*order_N[:count]} & {*rows}) / count)
    return results


def report(features_ND: np.ndarray, labels_N: np.ndarray, counts: Sequence[int], draws: int, cleanlab: bool):
    clean = find_suspects(features_ND, labels_N, num_classes=labels_N.max() + 1, groups_N=None)
    print(f"{len(labels_N)} labels, accuracy {clean.top1:.1%}, clean: {clean.num_named} named")
    for hardest in (False, True):
        for count in counts:
            about = dict(count=count, draws=draws, hardest=hardest, cleanlab=cleanlab)
            results = recalls(features_ND, labels_N, **about)
            seconds, named, right = (
                np.mean(results.pop(key)) for key in ("elapsed_s", "named", "named_planted")
            )
            kind = "hardest" if hardest else "uniform"
            print(f"{kind} {count:5}: {named:.1f} named, {right:.1f} of them planted, {seconds:.2f} s")
            for name, recalls_T in results.items():
                error = np.std(recalls_T) / len(recalls_T) ** 0.5
                least = min(recalls_T)
                print(f"    {name:18} recall {np.mean(recalls_T):.1%} +- {error:.1%}, least {least:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("features", type=Path)
    parser.add_argument("--planted", type=int, nargs="+", default=[10, 34, 65])
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--cleanlab", action="store_true")
    options = parser.parse_args()
    tensors = load_file(options.features)
    report(tensors["features"], tensors["labels"], options.planted, options.draws, options.cleanlab)


if __name__ == "__main__":
    main()
