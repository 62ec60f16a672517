"""95 % intervals of accuracies and of their differences, and McNemar's test. NumPy only, no torch.

Letters: N examples, R bootstrap resamples.
"""

import math

import numpy as np

NUM_RESAMPLES = 10_000
ENOUGH_TO_RESAMPLE, FEWEST_OF_EACH = 50, 10  # images, right and wrong ones, of an interval by the bootstrap
SEED = 0
TAILS = (0.025, 0.975)  # of a 95 % interval


def accuracy_interval(num_right: int, num_examples: int, *, seed: int = SEED) -> tuple[float, float]:
    """Return the 95 % interval of the accuracy `num_right` / `num_examples`.

    It is the percentile bootstrap's for many images. Few images, and few mistakes, resample to intervals that
    are too narrow: a single mistake to one that excludes less than none does. There it is the exact
    (Clopper-Pearson) one.
    """
    num_few = min(num_right, num_examples - num_right)
    if num_examples < ENOUGH_TO_RESAMPLE or num_few < FEWEST_OF_EACH:
        low, high = _rate_at(num_few - 1, num_examples, TAILS[1]), _rate_at(num_few, num_examples, TAILS[0])
        return (low, high) if num_few == num_right else (1 - high, 1 - low)
    draws_R = np.random.default_rng(seed).binomial(num_examples, num_right / num_examples, NUM_RESAMPLES)
    low, high = np.quantile(draws_R / num_examples, TAILS)
    return float(low), float(high)


def _rate_at(num_hits: int, num_examples: int, probability: float) -> float:
    """Return the rate p at which at most `num_hits` hits have this probability, found by halving."""
    low, high = max(0, num_hits) / num_examples, 1.0
    if num_hits in (-1, num_examples):
        return float(num_hits == num_examples)
    if probability > 0.5:
        low, high = 0.0, (num_hits + 1) / num_examples
    for _ in range(60):
        p = (low + high) / 2
        terms = (
            math.comb(num_examples, hits) * p**hits * (1 - p) ** (num_examples - hits)
            for hits in range(num_hits + 1)
        )
        low, high = (p, high) if sum(terms) > probability else (low, p)
    return high


def interval_of(accuracy: float, num_examples: int) -> list[float]:
    """Return the 95 % interval of an accuracy, as JSON has it; of a mean of runs, that of one so accurate."""
    return list(accuracy_interval(round(accuracy * num_examples), num_examples))


def paired_interval(only_a: int, only_b: int, num_examples: int, *, seed: int = SEED) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of accuracy(B) - accuracy(A) on the same examples.

    Args:
        only_a, only_b: examples that only A, or only B, has right; the others add nothing to the difference.
    """
    agreeing = num_examples - only_a - only_b
    fractions = np.array([only_a, only_b, agreeing]) / num_examples
    draws_R3 = np.random.default_rng(seed).multinomial(num_examples, fractions, NUM_RESAMPLES)
    low, high = np.quantile((draws_R3[:, 1] - draws_R3[:, 0]) / num_examples, TAILS)
    return float(low), float(high)


def mcnemar(only_a: int, only_b: int) -> float:
    """Return the two-sided p-value of the exact McNemar test: the discordant examples as fair coin tosses.

        p = 2 * sum_{k=0..m} C(n, k) / 2^n,  n = only_a + only_b,  m = min(only_a, only_b)

    Summed from the largest term, k = m, down, each term relative to it, so that no factorial overflows and
    no small term is lost.
    """
    n, m = only_a + only_b, min(only_a, only_b)
    log_choices = math.lgamma(n + 1) - math.lgamma(m + 1) - math.lgamma(n - m + 1)
    largest = math.exp(log_choices - n * math.log(2))
    term = total = 1.0
    for k in range(m, 0, -1):
        term *= k / (n - k + 1)
        total += term
    return 1.0 if only_a == only_b else min(1.0, 2 * largest * total)
