"""How sure a measured share is: bootstrap intervals, and whether two networks differ (McNemar's test).

To draw N of N examples with replacement and count the right ones is to draw one number from a binomial
distribution, and for two networks on the same examples, three from a multinomial. So the resamples are drawn
as counts: the same distribution as drawing rows, in a time that does not depend on N.
"""

import math

import numpy as np

NUM_RESAMPLES = 10_000
SEED = 0
TAILS = (0.025, 0.975)  # of a 95 % interval


def share_interval(num_right: int, num_examples: int, *, seed: int = SEED) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the share `num_right` of `num_examples`.

    It has no width where all or none are right: the bootstrap cannot know what the sample does not show.
    """
    draws_R = np.random.default_rng(seed).binomial(num_examples, num_right / num_examples, NUM_RESAMPLES)
    low, high = np.quantile(draws_R / num_examples, TAILS)
    return float(low), float(high)


def paired_interval(only_a: int, only_b: int, num_examples: int, *, seed: int = SEED) -> tuple[float, float]:
    """95 % bootstrap interval of share(B right) - share(A right), both seen on the same examples.

    Args:
        only_a, only_b: examples that only A, or only B, has right; those on which they agree add nothing.
    """
    rest = num_examples - only_a - only_b
    chances = np.array([only_a, only_b, rest]) / num_examples
    draws_R3 = np.random.default_rng(seed).multinomial(num_examples, chances, NUM_RESAMPLES)
    low, high = np.quantile((draws_R3[:, 1] - draws_R3[:, 0]) / num_examples, TAILS)
    return float(low), float(high)


def mcnemar(only_a: int, only_b: int) -> float:
    """Two-sided p-value of the exact McNemar test: are A's and B's lone hits tosses of a fair coin?

    Summed from the largest term of the tail down, each a multiple of the one before, so that neither many
    tosses nor a thin tail are out of reach.
    """
    tosses, fewer = only_a + only_b, min(only_a, only_b)
    log_choices = math.lgamma(tosses + 1) - math.lgamma(fewer + 1) - math.lgamma(tosses - fewer + 1)
    largest = math.exp(log_choices - tosses * math.log(2))
    term = total = 1.0
    for k in range(fewer, 0, -1):
        term *= k / (tosses - k + 1)
        total += term
    return 1.0 if only_a == only_b else min(1.0, 2 * largest * total)
