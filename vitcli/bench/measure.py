"""Laps of equal work, timed: wall, CPU time and waiting; and what several of them say.

Two sides are compared by alternating their laps, so that a machine that slows down slows both.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count
from statistics import median
from typing import Any, Literal

import torch

from vitcli.data.loader import Batch

LAP_S = 2.0  # length of a lap where the number of steps is left to us
MOST_STEPS = 500


@dataclass(frozen=True)
class Lap:
    """One round of work.

    Attributes:
        cpu_s: user and system time of all threads of this process.
        waited_s: part of `wall_s` in which the network had no images.
    """

    images: int
    wall_s: float
    cpu_s: float
    waited_s: float = 0.0


class Clock:
    """Wall and CPU time since the last start; on a GPU, until its work is done."""

    def __init__(self, device: torch.device):
        self.device = device
        self.start()

    def start(self) -> None:
        """Start again from zero."""
        synchronize(self.device)
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def lap(self, images: int, waited_s: float = 0.0) -> Lap:
        """Return the lap since the last start."""
        synchronize(self.device)
        return Lap(images, time.perf_counter() - self._wall, time.process_time() - self._cpu, waited_s)


def synchronize(device: torch.device) -> None:
    """Wait for the work that the device was given; a CPU has none left."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def steps_of_a_lap(step_s: float) -> int:
    """Return how many steps of this duration make a lap; two at least."""
    return min(MOST_STEPS, max(2, round(LAP_S / max(step_s, 1e-6))))


def built_late(build: Callable[[], Callable[[], Lap]]) -> Callable[[], Lap]:
    """Return the laps of a side that is built for its first lap: what it takes in memory is not ours."""
    built = cache(build)
    return lambda: built()()


class Stream:
    """Items of an endless iterator, such as the batches of a loader, in laps.

    Args:
        images_of: number of images of an item.
        settle: items before each lap, which are not timed: what was prepared while another side had its turn.
        waits: counts the waiting for data, where the items are made of them.
    """

    def __init__(
        self,
        items: Iterator[Any],
        device: torch.device,
        *,
        images_of: Callable[[Any], int],
        settle: int,
        per_lap: int,
        waits: "Waits | None" = None,
    ):
        self._items, self._images_of, self._settle, self._per_lap = items, images_of, settle, per_lap
        self._waits = waits or Waits(iter(()))
        self._clock = Clock(device)

    def lap(self) -> Lap:
        """Pull the items of one lap."""
        for _ in range(self._settle):
            next(self._items)
        before_s = self._waits.waited_s
        self._clock.start()
        images = sum(self._images_of(next(self._items)) for _ in range(self._per_lap))
        return self._clock.lap(images, self._waits.waited_s - before_s)


class Waits:
    """An iterator that counts the seconds until its items came."""

    def __init__(self, items: Iterator[Any]):
        self._items, self.waited_s = items, 0.0

    def __iter__(self) -> "Waits":
        return self

    def __next__(self) -> Any:
        began_at = time.perf_counter()
        try:
            return next(self._items)
        finally:
            self.waited_s += time.perf_counter() - began_at


class TimedBatches:
    """Batches on their way to a loop, timed in laps by when the loop asks for the next one.

    Each lap is of `per_lap` batches, after `settle` that are not timed. `on_lap` gets it: another side of the
    comparison then has its turn, while this loop stands still.
    """

    def __init__(
        self,
        batches: Iterator[Batch],
        device: torch.device,
        *,
        settle: int,
        per_lap: int,
        on_lap: Callable[[Lap], None],
    ):
        self._batches, self._clock, self._on_lap = Waits(batches), Clock(device), on_lap
        self._settle, self._per_lap = settle, per_lap

    def __iter__(self) -> Iterator[Batch]:
        images, before_s = 0, 0.0
        for number in count():
            place = number % (self._settle + self._per_lap)
            if place == 0 and number:
                self._on_lap(self._clock.lap(images, self._batches.waited_s - before_s))
            if place == self._settle:
                images, before_s = 0, self._batches.waited_s
                self._clock.start()
            batch = next(self._batches, None)
            if batch is None:
                return
            images += len(batch.rows_B)
            yield batch


def rates(laps: list[Lap]) -> dict[str, Any]:
    """Return the medians over the laps, and the range of the throughput."""
    per_s = [lap.images / lap.wall_s for lap in laps]
    return {
        "images": sum(lap.images for lap in laps),
        "images_per_s": median(per_s),
        "images_per_s_range": [min(per_s), max(per_s)],
        "cpu_s_per_image": median(lap.cpu_s / lap.images for lap in laps),
        "data_wait_fraction": median(lap.waited_s / lap.wall_s for lap in laps),
    }


def ratio(ours: list[Lap], theirs: list[Lap], key: Literal["wall_s", "cpu_s"] = "wall_s") -> dict[str, Any]:
    """Return how many times as many images per second, or CPU-second, ours does: median and range of laps."""
    pairs = zip(ours, theirs, strict=True)
    ratios = [(a.images / getattr(a, key)) / (b.images / max(getattr(b, key), 1e-9)) for a, b in pairs]
    return {"ratio": median(ratios), "ratio_range": [min(ratios), max(ratios)]}
