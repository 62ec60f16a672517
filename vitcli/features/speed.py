"""Images per second of a network up to each of its layers, measured on the spot, and its peak memory."""

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from vitcli.distributed import memory
from vitcli.distributed.runtime import autocast
from vitcli.features.extract import FeatureExtractor
from vitcli.models.blocks import reading
from vitcli.models.packed import dense_layers

MOST_BATCH = {"cpu": 8}  # images of a pass; elsewhere the batch size of the command
PASSES = 5  # timed ones; the first two are for warming up and are not


@dataclass(frozen=True)
class Speed:
    """What a network takes.

    Attributes:
        images_per_s: up to a layer, by its number; 0 stands for a network whose layers are not read.
        peak_memory_gib: of the GPU during these passes, else of this process.
    """

    images_per_s: Mapping[int, float]
    peak_memory_gib: float


def measure_speed(extractor: FeatureExtractor) -> Speed:
    """Time forward passes of noise, with a look at the clock after each layer; the shortest time counts.

    Other work on the machine only adds to a time: equal networks have nearly equal shortest ones.
    Decoding is not part of it: one decoded image serves all networks. Heads are not, either.
    """
    model, settings, layout = extractor.model, extractor.settings, extractor.layout
    device = settings.device
    batch_size = min(settings.batch_size, MOST_BATCH.get(device.type, settings.batch_size))
    shape = (batch_size, 3, *extractor.preprocessing.image_size)
    images_BCHW = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device)
    layers, elapsed_s = range(1, layout.num_layers + 1), defaultdict(list)
    began_at = 0.0

    def note(layer: int, _: torch.Tensor) -> None:
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        elapsed_s[layer].append(time.perf_counter() - began_at)

    model.eval()
    memory.reset_peaks()
    with torch.no_grad(), dense_layers(model, device, settings.precision):
        for number in range(PASSES + 2):
            if number == 2:
                elapsed_s.clear()
            began_at = time.perf_counter()
            with autocast(device, settings.precision), reading(_blocks(model), layers, note):
                encoded = model.forward_features(images_BCHW)
            note(0, encoded)
    peaks = memory.peaks()
    rates = {layer: batch_size / min(times) for layer, times in sorted(elapsed_s.items())}
    return Speed(rates, peaks["device_peak_memory_gib"] or peaks["host_peak_memory_gib"])


def _blocks(model: nn.Module) -> nn.Module:
    return getattr(model, "blocks", nn.ModuleList())
