"""How many images one interpreter feeds: the loader's own Python, with decoding and resizing as sleeps.

    python benchmarks/interpreter.py FOLDER [--threads 2,8,16,32] [--image-ms 1.1] [--images 8192]

FOLDER is any data set of JPEG files that `vit` reads. A sleep takes neither a core nor the interpreter's
lock, as decoding takes no lock; so with as many cores as threads the rate is bound by the sleeps or by the
lock. A line for each number of threads:

- images per second, and what the sleeps alone allow;
- microseconds of a small operation that the main thread calls meanwhile, as it calls kernels of a GPU: the
  median of its calls. The first line has the same without a loader.
"""

import argparse
import statistics
import time

import numpy as np
import torch

from vitcli.data import dataset, loader, sampler
from vitcli.data.split import Split
from vitcli.data.transforms import TrainTransform

BATCH, CALLS = 256, 200


class Sleeps(TrainTransform):
    """A transform that takes its time and leaves the image as it is, not even decoded."""

    image_s = 0.0

    def __call__(self, image, random, out_HWC: np.ndarray) -> None:
        time.sleep(self.image_s)


def us_per_call() -> float:
    """Return the median time of an operation on one number, in microseconds."""
    number, times = torch.zeros(1), []
    for _ in range(CALLS):
        began_at = time.perf_counter()
        number.add_(1)
        times.append(time.perf_counter() - began_at)
    return statistics.median(times) * 1e6


def measure(split: Split, num_threads: int, num_images: int) -> tuple[float, float]:
    """Return images per second, and microseconds of an operation beside the loader."""
    transform = Sleeps(
        (224, 224), "inception", (0.05, 1.0), (0.75, 4 / 3), None, True, "bilinear", True, None
    )
    order = sampler.TrainSampler(len(split), split.block_starts, 8192, BATCH, 0, 0, 1)
    steps, calls = range(num_images // BATCH + 1), []
    common = {"per_device_batch": BATCH, "on_bad_image": "error", "num_threads": num_threads}
    batches = loader.train_batches(split, transform, order, steps=steps, **common)
    next(batches)
    began_at = time.perf_counter()
    for _ in batches:
        calls.append(us_per_call())
    return (len(steps) - 1) * BATCH / (time.perf_counter() - began_at), statistics.median(calls)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--threads", default="2,8,16,32")
    parser.add_argument("--image-ms", type=float, default=1.1)
    parser.add_argument("--images", type=int, default=8192)
    options = parser.parse_args()
    torch.set_num_threads(1)
    source = dataset.DataSet(options.folder)
    split = source.open(source.split_names[0])
    Sleeps.image_s = options.image_ms / 1000
    print(f"a small operation alone: {us_per_call():.1f} us")
    for num_threads in map(int, options.threads.split(",")):
        rate, us = measure(split, num_threads, options.images)
        most = num_threads / Sleeps.image_s
        print(f"{num_threads:3} threads: {rate:7,.0f} images/s of {most:,.0f}; {us:.1f} us")


if __name__ == "__main__":
    main()
