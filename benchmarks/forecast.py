"""Forecasts of `vit fewshot --forecast` against what more images bring.

    vit embed --ckpt WEIGHTS --dataset cifar10 --split 'train[:6000]' --no-logits --out train.safetensors
    vit embed --ckpt WEIGHTS --dataset cifar10 --split 'test[:1000]' --no-logits --out test.safetensors
    python benchmarks/forecast.py train.safetensors test.safetensors --images 50 --times 2 4 10

Each repetition draws other images of each class, forecasts from them and is compared with the closed form
fitted to these and as many further ones of the file. Prints how often the truth lies inside the 80 %
interval, the width of that interval, and the mean of the medians.
"""

import argparse
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from vitcli.features.draws import FewshotProblem, score_draws
from vitcli.features.forecast import curve_draws, curve_points, forecast


def forecast_and_truth(problem: FewshotProblem, args: argparse.Namespace, seed: int) -> tuple[dict, dict]:
    """Return the forecast from `images` of each class, and the accuracy with each multiple of them."""
    rng, labels_N, num_classes = np.random.default_rng(seed), problem.labels_N, problem.num_classes
    by_class = [rng.permutation(np.flatnonzero(labels_N == label)) for label in range(num_classes)]
    rows_N = np.concatenate([rows[: args.images] for rows in by_class])
    how = {"classifier": "least-squares", "l2": args.l2}
    draws = curve_draws(labels_N, num_classes=num_classes, rows_N=rows_N)
    points = curve_points(score_draws(problem, draws, **how))
    predicted = forecast(points, num_tests=len(problem.test_labels_T), times=args.times)
    later = {
        times: np.concatenate([rows[: times * args.images] for rows in by_class]) for times in args.times
    }
    scores = score_draws(problem, {seed: later}, **how)
    return predicted, {times: scores[times][0].top1 for times in args.times}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--images", type=int, default=50, help="of each class, to forecast from")
    parser.add_argument("--times", type=int, nargs="+", default=[2, 4, 10])
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument(
        "--l2", default="sweep", type=lambda value: value if value == "sweep" else float(value)
    )
    args = parser.parse_args()

    train, test = load_file(args.train), load_file(args.test)
    num_classes = int(train["labels"].max()) + 1
    problem = FewshotProblem(
        features_of=train["features"].__getitem__,
        labels_N=train["labels"],
        tests_TD=test["features"],
        test_labels_T=test["labels"],
        num_classes=num_classes,
    )
    least = int(np.bincount(train["labels"]).min())
    if least < max(args.times) * args.images:
        print(f"note: a class has {least} images; the largest draws have all of some classes")
    seeds = range(args.first_seed, args.first_seed + args.repetitions)
    results = [forecast_and_truth(problem, args, seed) for seed in seeds]
    now = [predicted["points"][-1]["accuracy"] for predicted, _ in results]
    print(f"{args.images} a class: {np.mean(now):.1%}; l2 {args.l2}")
    print(f"near the floor: {sum(predicted['near_floor'] for predicted, _ in results)} of {len(results)}")
    for times in args.times:
        truths = np.array([truth[times] for _, truth in results])
        low, middle, high = (
            np.array([predicted["predictions"][str(times)][key] for predicted, _ in results])
            for key in ("low", "accuracy", "high")
        )
        held = ((low <= truths) & (truths <= high)).sum()
        print(
            f"{times * args.images} a class: truth {truths.mean():.1%}, predicted {middle.mean():.1%} "
            f"({low.mean():.1%} to {high.mean():.1%}), inside {held} of {len(results)}, "
            f"width {100 * (high - low).mean():.1f} (largest {100 * (high - low).max():.1f}) points"
        )


if __name__ == "__main__":
    main()
