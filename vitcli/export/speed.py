"""How fast an exported file answers on this machine, beside the network in PyTorch on the same pixels."""

import itertools
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn

from vitcli.data.transforms import Preprocessing, to_model_range

BATCH_SIZES = (1, 8, 32)
ENOUGH_S, MOST_S = 0.1, 2.0  # of a batch size: measured; beyond this a larger one is not
TURNS, RUNS_OF_A_TURN = 2, 3


def measured(exported: nn.Module, model: nn.Module, preprocessing: Preprocessing) -> dict[str, Any]:
    """Return latency of one image and throughput at the best batch size, of both, with as many threads.

    The two take turns, so that a machine that slows down slows both. The first run of a turn does not count:
    threads of the other that still wait for work take the cores from it, and PyTorch twice as long.
    """

    def of_torch(images_BHWC: torch.Tensor) -> None:
        images_BCHW = images_BHWC.permute(0, 3, 1, 2)
        with torch.inference_mode():
            model(to_model_range(images_BCHW, mean=preprocessing.mean, std=preprocessing.std))

    sides = {"exported": exported, "pytorch": of_torch}
    times: dict[str, dict[int, float]] = {name: {} for name in sides}
    generator = torch.Generator().manual_seed(0)
    for batch_size in BATCH_SIZES:
        shape = (batch_size, *preprocessing.image_size, 3)
        images_BHWC = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        for name, seconds in _medians(sides, images_BHWC).items():
            times[name][batch_size] = seconds
        if max(of_side[batch_size] for of_side in times.values()) > MOST_S:
            break
    return {
        "threads": torch.get_num_threads(),
        **{name: _figures(of_side) for name, of_side in times.items()},
    }


def _medians(sides: dict[str, Callable[[torch.Tensor], Any]], images_BHWC: torch.Tensor) -> dict[str, float]:
    """Return seconds of a batch for each side."""
    laps: dict[str, list[float]] = {name: [] for name in sides}
    began_at = time.perf_counter()
    for turn in itertools.count(1):
        for name, run in sides.items():
            laps[name] += [_seconds(run, images_BHWC) for _ in range(RUNS_OF_A_TURN)][1:]
        spent = time.perf_counter() - began_at
        if (turn >= TURNS and spent > ENOUGH_S) or spent > 2 * MOST_S:
            break
    return {name: median(of_side) for name, of_side in laps.items()}


def _seconds(run: Callable[[torch.Tensor], Any], images_BHWC: torch.Tensor) -> float:
    began_at = time.perf_counter()
    run(images_BHWC)
    return time.perf_counter() - began_at


def _figures(seconds: dict[int, float]) -> dict[str, Any]:
    best = max(seconds, key=lambda batch_size: batch_size / seconds[batch_size])
    return {
        "latency_ms": 1000 * seconds[1],
        "images_per_s": best / seconds[best],
        "batch_size": best,
    }


def speed_text(speed: dict[str, Any]) -> str:
    """Return a line for each of the two."""
    names = {"exported": "this file", "pytorch": "PyTorch"}
    lines = []
    for key, name in names.items():
        of_side = speed[key]
        rate = f"{of_side['images_per_s']:.3g} images/s in batches of {of_side['batch_size']}"
        lines.append(f"{name} {of_side['latency_ms']:.3g} ms an image, {rate}")
    return "; ".join(lines)
