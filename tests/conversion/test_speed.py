"""The speed of an exported file beside PyTorch: neither pays for threads of the other that still wait."""

import pytest
import torch

from tests.evaluation.test_masked_patch import PREPROCESSING
from vitcli.conversion import comparison


def test_the_first_run_after_the_other_side_does_not_count(monkeypatch):
    clock, before = [0.0], []

    def side(name, seconds):
        def run(_):
            clock[0] += seconds if before[-1:] == [name] else 10 * seconds
            before.append(name)

        return run

    monkeypatch.setattr(comparison.time, "perf_counter", lambda: clock[0])
    sides = {"exported": side("exported", 0.02), "pytorch": side("pytorch", 0.03)}

    assert comparison.medians(sides, torch.empty(0)) == pytest.approx({"exported": 0.02, "pytorch": 0.03})
    assert before == ["exported"] * 3 + ["pytorch"] * 3 + ["exported"] * 3 + ["pytorch"] * 3


@pytest.mark.parametrize(("seconds", "sizes"), [(0.06, [1, 8, 32]), (0.24, [1, 8, 32]), (0.3, [1, 8])])
def test_a_larger_batch_is_not_measured_where_one_takes_more_than_two_seconds(monkeypatch, seconds, sizes):
    measured = []

    def medians(sides, images_BHWC):
        measured.append(len(images_BHWC))
        return dict.fromkeys(sides, seconds * len(images_BHWC))

    monkeypatch.setattr(comparison, "medians", medians)
    result = comparison.measured(torch.nn.Identity(), torch.nn.Identity(), PREPROCESSING)

    assert measured == sizes
    assert result["pytorch"]["latency_ms"] == pytest.approx(1000 * seconds)
    assert result["exported"]["images_per_s"] == pytest.approx(1 / seconds)


@pytest.mark.parametrize(
    ("size", "sizes"), [((500, 500), [1, 8, 32]), ((1000, 1500), [1, 8]), ((4000, 6000), [1])]
)
def test_a_batch_of_large_photographs_is_not_measured(monkeypatch, size, sizes):
    monkeypatch.setattr(comparison, "medians", lambda sides, images_BHWC: dict.fromkeys(sides, 0.1))

    assert [*comparison.seconds_by_batch_size({"file": print}, size)["file"]] == sizes


def test_the_median_is_of_the_runs_after_the_first(monkeypatch):
    seconds = iter([9.0, 1.0, 3.0] * 2)
    monkeypatch.setattr(comparison, "_seconds", lambda run, images_BHWC: next(seconds))

    assert comparison.medians({"exported": print}, torch.empty(0), enough_s=-1.0) == {"exported": 2.0}


def test_the_throughput_is_that_of_the_fastest_batch_size_and_the_latency_that_of_one_image():
    assert comparison.figures({1: 0.1, 8: 0.2, 32: 4.0}) == {
        "latency_ms": 100.0,
        "images_per_s": pytest.approx(40.0),
        "batch_size": 8,
    }
