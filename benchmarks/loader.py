"""Images per second from encoded bytes to a uint8 batch: ours against the common alternatives.

    python benchmarks/loader.py FOLDER [--res 224] [--threads 2] [--steps 8]

FOLDER is any data set that `vit` reads. Each loader decodes, takes a random crop, resizes and flips it, on
the same rows with the same number of threads or worker processes. Results are ratios within one run and
cannot be compared across machines; docs/loader.md has ours.
"""

import argparse
import io
import os
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import timm.data
import torch
from PIL import Image

from vitcli.data import dataset, loader, sampler
from vitcli.data.decoding import decode
from vitcli.data.transforms import TrainTransform, inception_crop

BATCH = 32


def transform_of(res: int) -> TrainTransform:
    return TrainTransform(
        (res, res), "inception", (0.05, 1.0), (0.75, 4 / 3), None, True, "bilinear", True, None
    )


def ours(split, res, threads, steps):
    batches = loader.train_batches(
        split, transform_of(res), sampler.TrainSampler(len(split), split.block_starts, 8192, BATCH, 0, 0, 1),
        steps=range(steps), per_device_batch=BATCH, on_bad_image="error", num_threads=threads,
    )  # fmt: skip
    return sum(len(batch.labels_B) for batch in batches)


def ours_with_pillow(split, res, threads, steps):
    """The same threads and crops, with Pillow's decoder and resize."""
    transform = transform_of(res)

    def load(position: int) -> np.ndarray:
        (row,) = sampler.rows_at(range(position, position + 1), num_examples=len(split), seed=0)
        image = Image.open(io.BytesIO(split.read_row(int(row))[0])).convert("RGB")
        rng = Random(sampler.derive_seed(0, "augment", position))
        top, left, height, width = inception_crop(
            image.height, image.width, area=transform.crop_area, aspect=transform.crop_aspect, rng=rng
        )
        image = image.crop((left, top, left + width, top + height)).resize(
            (res, res), Image.Resampling.BILINEAR
        )
        return np.asarray(image)

    with ThreadPoolExecutor(threads) as pool:
        return sum(1 for _ in pool.map(load, range(steps * BATCH)))


def spdl_core(split, res, threads, steps):
    """The same functions in spdl-core's thread pipeline."""
    from spdl.pipeline import PipelineBuilder

    transform = transform_of(res)

    def load(position: int) -> np.ndarray:
        (row,) = sampler.rows_at(range(position, position + 1), num_examples=len(split), seed=0)
        image = decode(split.read_row(int(row))[0], where=str, row=int(row))
        return transform(image, Random(sampler.derive_seed(0, "augment", position)))

    pipeline = (
        PipelineBuilder()
        .add_source(range(steps * BATCH))
        .pipe(load, concurrency=threads)
        .aggregate(BATCH)
        .pipe(np.stack)
        .add_sink(2)
        .build(num_threads=threads)
    )
    with pipeline.auto_stop():
        return sum(len(batch) for batch in pipeline)


class TimmRows(torch.utils.data.Dataset):
    """Data set as in timm's scripts: Pillow, RandomResizedCrop and a flip, in worker processes."""

    def __init__(self, split, res, length):
        self.split, self.length = split, length
        self.transform = timm.data.create_transform(
            res,
            is_training=True,
            auto_augment=None,
            color_jitter=0.0,
            scale=(0.05, 1.0),
            interpolation="bilinear",
            use_prefetcher=True,
        )

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        image = Image.open(io.BytesIO(self.split.read_row(index % len(self.split))[0])).convert("RGB")
        return np.array(self.transform(image), copy=True)


def timm_workers(split, res, threads, steps):
    rows = TimmRows(split, res, steps * BATCH)
    batches = torch.utils.data.DataLoader(rows, BATCH, shuffle=True, num_workers=threads)
    return sum(len(batch) for batch in batches)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--res", type=int, default=224)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    source = dataset.DataSet(options.folder)
    split = source.open(source.split_names[0])
    loaders = [ours, ours_with_pillow, timm_workers]
    try:
        import spdl.pipeline  # noqa: F401

        loaders.append(spdl_core)
    except ImportError:
        print("spdl-core is not installed: left out")
    rates = {loader_of.__name__: [] for loader_of in loaders}
    for _ in range(options.rounds):
        for loader_of in loaders:  # in turn, so that a slower machine affects all
            began_at = time.perf_counter()
            count = loader_of(split, options.res, options.threads, options.steps)
            rates[loader_of.__name__].append(count / (time.perf_counter() - began_at))
    base = float(np.median(rates["timm_workers"]))
    for name, per_s in rates.items():
        print(f"{name:<18} {np.median(per_s):7.1f} images/s   {np.median(per_s) / base:5.2f} x timm's")


if __name__ == "__main__":
    main()
