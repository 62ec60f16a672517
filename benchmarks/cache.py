"""Images per CPU-second with kept images: the first epoch, later ones, another command; and timm's transform.

    python benchmarks/cache.py FOLDER [--res 224] [--images 500] [--rounds 3]

FOLDER is any data set of image files that `vit` reads. All take the same images in one process with one
thread: an Inception crop and a flip for training, a resize and a centre crop for evaluation. CPU time is that
of the process, user and system; the ratio is to timm's transform of the same augmentation in this very run.
docs/evidence/speed.md has our figures.
"""

import argparse
import io
import os
import tempfile
import time
from functools import partial

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import timm.data
import torch
from PIL import Image

from vitcli.data import dataset, loader, sampler
from vitcli.data.image_cache import ImageCache
from vitcli.data.transforms import Preprocessing, TrainTransform

BATCH = 32
MEAN = (0.5, 0.5, 0.5)


def epoch(split, res: int, number: int) -> int:
    """Load one epoch of training batches."""
    transform = TrainTransform(
        (res, res), "inception", (0.05, 1.0), (0.75, 4 / 3), None, True, "bilinear", True, None
    )
    steps = len(split) // BATCH
    batches = loader.train_batches(
        split, transform, sampler.TrainSampler(len(split), None, 1, BATCH, 0, 0, 1),
        steps=range(number * steps, (number + 1) * steps), per_device_batch=BATCH, on_bad_image="error",
        num_threads=1,
    )  # fmt: skip
    return sum(len(batch.labels_B) for batch in batches)


def evaluation(split, preprocessing: Preprocessing) -> int:
    """Load one pass of evaluation batches."""
    options = dict(batch_size=BATCH, rank=0, world_size=1, on_bad_image="error", num_threads=1)
    return sum(len(batch.labels_B) for batch in loader.eval_batches(split, preprocessing, **options))


def timms(split, transform) -> int:
    """Decode with Pillow and apply timm's transform, as in its data set and collate."""
    for first in range(0, len(split), BATCH):
        rows = range(first, min(first + BATCH, len(split)))
        np.stack([transform(Image.open(io.BytesIO(split.read_row(row)[0])).convert("RGB")) for row in rows])
    return len(split)


def per_cpu_second(load) -> float:
    began_at = time.process_time()
    count = load()
    return count / (time.process_time() - began_at)


def measured(split, res: int) -> dict[str, float]:
    """Return images per CPU-second of each way, once."""
    preprocessing = Preprocessing((res, res), "short_side", 0.9, "bicubic", True, MEAN, MEAN)
    train = timm.data.create_transform(
        res, is_training=True, auto_augment=None, color_jitter=0.0, scale=(0.05, 1.0),
        interpolation="bilinear", use_prefetcher=True,
    )  # fmt: skip
    test = timm.data.create_transform(res, interpolation="bicubic", crop_pct=0.9, use_prefetcher=True)
    rates = {
        "train: timm's transform": per_cpu_second(partial(timms, split, train)),
        "train: no cache": per_cpu_second(partial(epoch, split, res, 0)),
    }
    for mode in ("ram", "disk"):
        kept = ImageCache(mode).attach(split, visits=2)
        rates[f"train: {mode}, first epoch"] = per_cpu_second(partial(epoch, kept, res, 0))
        rates[f"train: {mode}, second epoch"] = per_cpu_second(partial(epoch, kept, res, 1))
    again = ImageCache("disk").attach(split, visits=2)
    rates["train: disk, first epoch of the next command"] = per_cpu_second(partial(epoch, again, res, 0))
    rates["evaluation: timm's transform"] = per_cpu_second(partial(timms, split, test))
    rates["evaluation: no cache"] = per_cpu_second(partial(evaluation, split, preprocessing))
    kept = ImageCache("disk").attach(split, visits=2, preprocessing=preprocessing)
    rates["evaluation: disk, first pass"] = per_cpu_second(partial(evaluation, kept, preprocessing))
    rates["evaluation: disk, second pass"] = per_cpu_second(partial(evaluation, kept, preprocessing))
    return rates


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--res", type=int, default=224)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    source = dataset.DataSet(options.folder)
    split = source.open(source.split_names[0])
    split = split.part(0, min(options.images, len(split)), name=split.name)
    rounds = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:  # each round begins with an empty cache
            os.environ["XDG_CACHE_HOME"] = folder
            rounds.append(measured(split, options.res))
    for name in rounds[0]:
        kind = name.partition(":")[0]
        rates = [each[name] for each in rounds]
        ratios = [each[name] / each[f"{kind}: timm's transform"] for each in rounds]
        spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"{name:<46} {np.median(rates):8.0f} images/CPU-s  {np.median(ratios):6.2f} x timm's {spread}")


if __name__ == "__main__":
    main()
