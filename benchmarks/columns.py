"""Microseconds per image of what an evaluation computes from logits, on one core: ours, and by a stable sort.

    OMP_NUM_THREADS=1 python benchmarks/columns.py [--batch-size 64] [--rounds 25] [--bf16]

Columns: the five top classes with their probabilities, rank of the label, loss, Brier score; with scores, the
logarithms of all probabilities, too. The check for numbers that are not finite is in a row of its own. Sides
alternate, a time is the best CPU time of all rounds, and both give the same bits.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from vitcli.distributed import startup
from vitcli.evaluation import inference, metrics

NUM_CLASSES = (10, 1_000, 21_843)


def by_sorting(logits_BK: Tensor, labels_B: Tensor, *, has_scores: bool) -> dict[str, Tensor]:
    """Return the same columns by a stable sort of each row and the formulas as they are written."""
    exact_BK = logits_BK.double()
    probabilities_BK = exact_BK.softmax(dim=1)
    classes_BT = logits_BK.argsort(dim=1, descending=True, stable=True)[:, : inference.NUM_TOP]
    right_B1 = logits_BK.gather(1, labels_B[:, None])
    is_before_BK = torch.arange(logits_BK.shape[1]) < labels_B[:, None]
    columns = {
        "ranks_N": ((logits_BK > right_B1) | ((logits_BK == right_B1) & is_before_BK)).sum(dim=1),
        "losses_N": F.cross_entropy(exact_BK, labels_B, reduction="none"),
        "brier": (probabilities_BK - F.one_hot(labels_B, logits_BK.shape[1])).square().sum(dim=1),
        "classes_NT": classes_BT,
        "probabilities_NT": probabilities_BK.gather(1, classes_BT),
    }
    return columns | ({"scores_NK": exact_BK.log_softmax(dim=1).float()} if has_scores else {})


def best_us(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            began_at = time.process_time()
            work()
            times[name].append(time.process_time() - began_at)
    return {name: 1e6 * min(seconds) for name, seconds in times.items()}


def show(num_classes: int, options: argparse.Namespace) -> None:
    rng = torch.Generator().manual_seed(num_classes)
    logits_BK = 3 * torch.randn(options.batch_size, num_classes, generator=rng)
    logits_BK = logits_BK.bfloat16().float() if options.bf16 else logits_BK
    labels_B = torch.randint(num_classes, (options.batch_size,), generator=rng)
    works = {
        "columns": partial(inference.prediction_columns, logits_BK, labels_B),
        "columns, sorted": partial(by_sorting, logits_BK, labels_B, has_scores=False),
        "with scores": partial(inference.prediction_columns, logits_BK, labels_B, has_scores=True),
        "with scores, sorted": partial(by_sorting, logits_BK, labels_B, has_scores=True),
        "top classes": partial(metrics.top_classes, logits_BK, inference.NUM_TOP),
        "top classes, sorted": partial(logits_BK.argsort, dim=1, descending=True, stable=True),
        "all finite": lambda: (0 * logits_BK).sum() == 0,
        "all finite, isfinite": lambda: torch.isfinite(logits_BK).all(),
    }
    ours, plain = works["with scores"](), works["with scores, sorted"]()
    assert all(torch.equal(ours[name], plain[name]) for name in plain), num_classes
    times = {name: us / options.batch_size for name, us in best_us(works, options.rounds).items()}
    for name in list(works)[::2]:
        other = next(theirs for theirs in works if theirs.startswith(f"{name}, "))
        print(f"{num_classes:7} {name:13} {times[name]:9.2f} {times[other]:9.2f}  {other}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--bf16", action="store_true", help="logits as of --precision bf16: many are equal")
    options = parser.parse_args()
    torch.set_num_threads(1)
    startup.keep_freed_memory()  # as the commands do
    print(f"{options.batch_size} images, us per image: ours, and the plain way")
    for num_classes in NUM_CLASSES:
        show(num_classes, options)


if __name__ == "__main__":
    main()
