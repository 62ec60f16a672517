"""How fast an exported file answers on this machine, beside the network in PyTorch on the same pixels."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn

from vitcli.data.transforms import Preprocessing, to_model_range

BATCH_SIZES = (1, 8, 32)
ENOUGH_S, MOST_S, FEWEST_RUNS = 0.1, 2.0, 3  # of a batch size: measured; beyond this a larger one is not


def measured(exported: nn.Module, model: nn.Module, preprocessing: Preprocessing) -> dict[str, Any]:
    """Return latency of one image and throughput at the best batch size, of both, with as many threads.

    The runs of the two take turns, so that a machine that slows down slows both.
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
    while True:
        for name, run in sides.items():
            run_began_at = time.perf_counter()
            run(images_BHWC)
            laps[name].append(time.perf_counter() - run_began_at)
        spent, runs = time.perf_counter() - began_at, len(laps["pytorch"])
        if (runs > FEWEST_RUNS and spent > ENOUGH_S) or spent > 2 * MOST_S:
            # The first run is a warm-up, where there are others
            return {name: median(of_side[1:] or of_side) for name, of_side in laps.items()}


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
