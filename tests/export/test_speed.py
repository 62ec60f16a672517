"""The speed of an exported file beside PyTorch: neither pays for threads of the other that still wait."""

import pytest
import torch

from vitcli.export import speed


def test_the_first_run_after_the_other_side_does_not_count(monkeypatch):
    clock, before = [0.0], []

    def side(name, seconds):
        def run(_):
            clock[0] += seconds if before[-1:] == [name] else 10 * seconds
            before.append(name)

        return run

    monkeypatch.setattr(speed.time, "perf_counter", lambda: clock[0])
    sides = {"exported": side("exported", 0.02), "pytorch": side("pytorch", 0.03)}

    assert speed._medians(sides, torch.empty(0)) == pytest.approx({"exported": 0.02, "pytorch": 0.03})
    assert before == ["exported"] * 3 + ["pytorch"] * 3 + ["exported"] * 3 + ["pytorch"] * 3
