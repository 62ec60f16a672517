"""Few-shot weights for all l2 at once: ours against scikit-learn's Ridge, fitted again for each l2.

    python benchmarks/least_squares.py [--classes 1000] [--shots 5] [--features 768] [--num-l2 20] [--seeds 3]

Ours draws the rows, standardises and decomposes them, and computes the weights of all l2; Ridge gets the
standardised rows and the targets. Both use two threads of NumPy's and SciPy's linear algebra (default of
OMP_NUM_THREADS here). Times are processor time, which other load on the machine affects less, and wall time.
Needs scikit-learn, which `vit` does not.
"""

import argparse
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "2")

import numpy as np
from sklearn.linear_model import Ridge

from vitcli.features.least_squares import Solution, accuracies, draw_shots, left_out_accuracies, solve

TEST_ROWS = 10_000


def ours(features_ND, labels_N, *, classes, shots, seed, l2) -> tuple[Solution, list[np.ndarray]]:
    rows = draw_shots(labels_N, num_classes=classes, shots=[shots], seed=seed)[shots]
    solution = solve(features_ND[rows], labels_N[rows], num_classes=classes, l2=l2, groups_N=None)
    return solution, [solution.weights(which) for which in range(len(l2))]


def ridges(inputs_NE, targets_NK, l2) -> list[np.ndarray]:
    return [Ridge(alpha=value, fit_intercept=False).fit(inputs_NE, targets_NK).coef_.T for value in l2]


def timed(call, *arguments, **named) -> tuple[object, np.ndarray]:
    """Return the result of the call, and its processor and wall time in seconds."""
    began_at = time.process_time(), time.perf_counter()
    result = call(*arguments, **named)
    return result, np.array([time.process_time(), time.perf_counter()]) - began_at


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--shots", type=int, default=5)
    parser.add_argument("--features", type=int, default=768)
    parser.add_argument("--num-l2", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    centres = rng.normal(0, 1, (options.classes, options.features))
    labels = np.repeat(np.arange(options.classes), 2 * options.shots)
    features = (centres[labels] + rng.normal(0, 4, (len(labels), options.features))).astype(np.float32)
    l2 = [2.0**power for power in range(-10, options.num_l2 - 10)]

    ours_s, ridge_s, difference = np.zeros(2), np.zeros(2), 0.0
    for seed in range(options.seeds):
        about = dict(classes=options.classes, shots=options.shots, seed=seed, l2=l2)
        (solution, weights), spent = timed(ours, features, labels, **about)
        ours_s += spent
        targets = 2.0 * (solution.labels_N[:, None] == np.arange(options.classes)) - 1
        theirs, spent = timed(ridges, solution.inputs_NE, targets, l2)
        ridge_s += spent
        for our, their in zip(weights, theirs, strict=True):
            difference = max(difference, np.abs(our - their).max() / np.abs(their).max())

    test_labels = rng.integers(0, options.classes, TEST_ROWS)
    test_features = centres[test_labels] + rng.normal(0, 4, (TEST_ROWS, options.features))
    _, scored_s = timed(accuracies, solution, test_features.astype(np.float32), test_labels)
    _, chosen_s = timed(left_out_accuracies, solution)

    print(f"{options.seeds} x {len(solution.labels_N)} rows x {options.features} features, {len(l2)} l2")
    print(f"ours          {ours_s[0]:7.2f} s processor {ours_s[1]:7.2f} s wall")
    print(f"Ridge         {ridge_s[0]:7.2f} s processor {ridge_s[1]:7.2f} s wall")
    print(f"ratio         {ridge_s[0] / ours_s[0]:7.1f}             {ridge_s[1] / ours_s[1]:7.1f}")
    print(f"weights differ by {difference:.0e} of the largest")
    print(f"once: {TEST_ROWS} rows scored at all l2 {scored_s[0]:.2f} s, leave-one-out {chosen_s[0]:.2f} s")


if __name__ == "__main__":
    main()
