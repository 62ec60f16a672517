"""`vit export --gate`: the interval of a loss of accuracy, and ten files that are wrong in ten ways."""

import math

import numpy as np
import pytest
import torch

from vitcli.export.gate import Verdict, Z, highest_drop, judge, refuse


def score_by_search(lost: int, gained: int, n: int, drop: float) -> float:
    """Return the score statistic of a drop, its nuisance parameter found by search instead of by formula."""
    low, high = max(0.0, -drop), (1 - drop) / 2
    fractions_R = np.linspace(low, high, 200_001)[1:-1]  # gained; lost is this and the drop
    with np.errstate(divide="ignore", invalid="ignore"):
        log_likelihood_R = (n - lost - gained) * np.log(1 - drop - 2 * fractions_R)
        log_likelihood_R += lost * np.log(fractions_R + drop) if lost else 0
        log_likelihood_R += gained * np.log(fractions_R) if gained else 0
    fraction = fractions_R[np.nanargmax(log_likelihood_R)]
    return (lost - gained - n * drop) / math.sqrt(n * (2 * fraction + drop - drop**2))


@pytest.mark.parametrize(
    ("lost", "gained", "n"), [(12, 2, 44), (5, 5, 100), (1, 0, 227), (30, 9, 1000), (0, 4, 60), (0, 0, 500)]
)
def test_the_interval_ends_where_the_score_test_turns(lost, gained, n):
    end = highest_drop(lost, gained, n)

    assert (lost - gained) / n < end < 1
    assert score_by_search(lost, gained, n, end) == pytest.approx(-Z, abs=2e-3)
    assert highest_drop(0, 0, n) == pytest.approx(Z**2 / (n + Z**2), abs=1e-9)  # by hand


def test_the_interval_covers_the_true_drop_nineteen_times_in_twenty():
    rng = np.random.default_rng(0)
    for lost, gained, n in [(0.04, 0.02, 300), (0.02, 0.005, 1000), (0.1, 0.1, 150)]:
        draws = rng.multinomial(n, [lost, gained, 1 - lost - gained], size=2_000)
        covered = [highest_drop(b, c, n) >= lost - gained for b, c, _ in draws.tolist()]
        assert 0.93 < np.mean(covered) < 0.98


def test_a_verdict_counts_what_one_has_right_and_the_other_wrong():
    labels_N = torch.tensor([0, 1, 2, 0])
    right_NK = torch.eye(3)[labels_N]
    exported_NK = right_NK.clone()
    exported_NK[0] = torch.tensor([0.0, 2.0, 0.0])
    right_NK[3] = torch.tensor([0.0, 0.0, 2.0])

    verdict = judge(right_NK, exported_NK, labels_N, max_drop=0.5)

    assert (verdict.num_images, verdict.num_right, verdict.lost, verdict.gained) == (4, 3, 1, 1)
    assert verdict.as_json()["top1_exported"] == 0.75 and verdict.drop == 0
    few = refuse(Verdict(num_images=227, num_right=200, lost=0, gained=0, max_drop=0.005))
    assert "no right answer is lost, but 227 images are too few" in few.message
    assert "539 images without a change would show it" in few.fix and "--max-drop 1.2 " in few.fix
    assert highest_drop(0, 0, 539) <= 0.005 < highest_drop(0, 0, 538)
    assert Verdict(227, 200, 0, 0, 0.012).is_accepted and not Verdict(227, 200, 0, 0, 0.0117).is_accepted
