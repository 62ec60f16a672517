"""From encoded bytes to a uint8 batch: images per CPU-second and per second, ours against timm's.

    python benchmarks/loader.py FOLDER [--res 224] [--threads 2] [--steps 20] [--rounds 3] [--evaluation]

FOLDER is any data set that `vit` reads. The work is that of training (a random crop, resized, and half of
them flipped) or with --evaluation timm's geometry (short side, centre crop of 0.9, bicubic), by

- `vit`: rows read, decoded and transformed in threads;
- `vit, decoded`: the same from decoded images in memory, as of a second epoch (data.cache);
- `vit, data.decode = fast`: the decoder's own scaling of large JPEGs;
- `timm`: Pillow and timm's transforms in the worker processes of a `DataLoader`, as in its scripts;
- `timm's transform`: the same, called one image after the other without a loader.

CPU time is that of all threads and worker processes, user and system. Rates are the median of the rounds, in
which all take turns; ratios are by images per CPU-second to `timm's transform`, and by images per second to
`timm`.
"""

import argparse
import io
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

os.environ.setdefault("OMP_NUM_THREADS", "1")

import timm.data
import torch
from PIL import Image

from vitcli.data import dataset, loader, sampler
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing, TrainTransform

BATCH = 32
CROP_FRACTION = 0.9
HALF = (0.5, 0.5, 0.5)


def ours(split: Split, options: argparse.Namespace, *, decode: str = "exact") -> Iterator[int]:
    """Yield the sizes of our batches."""
    size, common = (options.res, options.res), {"on_bad_image": "error", "num_threads": options.threads}
    if options.evaluation:
        preprocessing = Preprocessing(
            size, "short_side", CROP_FRACTION, "bicubic", True, HALF, HALF, decode=decode
        )
        while True:
            batches = loader.eval_batches(
                split, preprocessing, batch_size=BATCH, rank=0, world_size=1, **common
            )
            yield from (len(batch.rows_B) for batch in batches)
    augmentation = ("inception", (0.05, 1.0), (0.75, 4 / 3), None, True, "bilinear", True, None)
    transform = TrainTransform(size, *augmentation, decode=decode)
    order = sampler.TrainSampler(len(split), split.block_starts, 8192, BATCH, 0, 0, 1)
    batches = loader.train_batches(
        split, transform, order, steps=range(options.steps), per_device_batch=BATCH, **common
    )
    yield from (len(batch.rows_B) for batch in batches)


class TimmRows(torch.utils.data.Dataset):
    """Data set as in timm's scripts: Pillow and timm's transform."""

    def __init__(self, split: Split, options: argparse.Namespace):
        self.split, self.length = split, options.steps * BATCH
        training = {"auto_augment": None, "color_jitter": 0.0, "scale": (0.05, 1.0)}
        evaluation = {"crop_pct": CROP_FRACTION}
        self.transform = timm.data.create_transform(
            options.res,
            is_training=not options.evaluation,
            interpolation="bicubic" if options.evaluation else "bilinear",
            use_prefetcher=True,
            **(evaluation if options.evaluation else training),
        )

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        image = Image.open(io.BytesIO(self.split.read_row(index % len(self.split))[0])).convert("RGB")
        return self.transform(image)


def timm_loader(split: Split, options: argparse.Namespace) -> Iterator[int]:
    rows = TimmRows(split, options)
    yield from map(len, torch.utils.data.DataLoader(rows, BATCH, num_workers=options.threads))


def timm_transform(split: Split, options: argparse.Namespace) -> Iterator[int]:
    yield from (len(image[None]) for image in TimmRows(split, options))


def decoded(split: Split) -> Split:
    """Return the first rows with their pixels in memory: 2,000, or what fits into a quarter of a gigabyte."""
    images, room = [], 2**28
    while len(images) < min(len(split), 2_000) and room > 0:
        images.append(loader.read_example(split, len(images)))
        room -= images[-1][0].nbytes
    return replace(split, num_examples=len(images), read_row=images.__getitem__)


def cpu_s() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def rates(batches: Iterator[int], count: int) -> tuple[float, float]:
    """Return images per CPU-second and per second until `count` of them are there."""
    cpu_before, began_at, done = cpu_s(), time.perf_counter(), 0
    for size in batches:
        done += size
        if done >= count:
            break
    elapsed_s = time.perf_counter() - began_at
    batches.close()  # ends the workers, whose time counts from then on
    return done / (cpu_s() - cpu_before), done / elapsed_s


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--res", type=int, default=224)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--evaluation", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    source = dataset.DataSet(options.folder)
    split = source.open(source.split_names[0])
    in_memory = decoded(split)
    sides: dict[str, Callable[[], Iterator[int]]] = {
        "vit": lambda: ours(split, options),
        "vit, decoded": lambda: ours(in_memory, options),
        "vit, data.decode = fast": lambda: ours(split, options, decode="fast"),
        "timm": lambda: timm_loader(split, options),
        "timm's transform": lambda: timm_transform(split, options),
    }
    measured = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, side in sides.items():  # in turn, so that a slower machine affects all
            measured[name].append(rates(side(), options.steps * BATCH))
    medians = {
        name: tuple(map(statistics.median, zip(*values, strict=True))) for name, values in measured.items()
    }
    per_cpu_s, per_s = medians["timm's transform"][0], medians["timm"][1]
    print("                          per CPU-second          per second")
    for name, (of_cpu, of_wall) in medians.items():
        print(
            f"{name:<24} {of_cpu:8.0f} {of_cpu / per_cpu_s:6.2f} x {of_wall:10.0f} {of_wall / per_s:6.2f} x"
        )


if __name__ == "__main__":
    main()
