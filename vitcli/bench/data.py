"""`vit bench data`: how fast images become batches, cold and from the second epoch on."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, repeat
from typing import Any

import torch

from vitcli.bench import limits
from vitcli.bench.measure import LAP_S, Lap, Stream, rates, ratio
from vitcli.bench.setup import Benchmark, BenchOptions, check_one_process, endless_eval_batches, machine
from vitcli.data import dataset, loader
from vitcli.data.image_cache import ImageCache
from vitcli.data.loader import Batch
from vitcli.data.sampler import TrainSampler
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing, preprocessing_of, train_transform_of
from vitcli.distributed.runtime import start as start_runtime
from vitcli.evaluation.setup import settle_pixels
from vitcli.output.progress import Progress
from vitcli.recipe import Recipe, trials

SETTLE = 6  # batches before a lap, more than either side prepares ahead
CALIBRATED_ON = 64  # images that are decoded to choose the length of a lap
MOST_CACHED = 1_000  # images of the second epoch, so that the first does not take minutes


def measure_data(recipe: Recipe, options: BenchOptions, *, split: str, is_training: bool) -> dict[str, Any]:
    """Return the rates of our loader, of decoding alone and, if asked for, of timm's.

    Args:
        split: to read; "auto" for the training split, or the one to report on.
        is_training: measure the augmentation of training; else the preprocessing of evaluation.
    """
    (_, recipe), *_ = trials(settle_pixels(recipe, "finetune", quiet=options.quiet))
    runtime = start_runtime("fp32")
    check_one_process(runtime)
    progress = Progress(quiet=options.quiet)
    rows = _open(recipe, split, is_training=is_training)
    num_threads = options.num_workers
    batch_size = recipe.train.batch_size if is_training and recipe.train else recipe.eval.batch_size
    batches_of = partial(_batches, recipe, batch_size, num_threads, is_training=is_training)

    # The limit, and from it how long a lap is to be.
    decoding = limits.decode_lap(rows, CALIBRATED_ON, num_threads)
    step_s = batch_size * decoding.wall_s / decoding.images
    steps = options.steps or max(2, min(100, round(LAP_S / step_s)))
    images = steps * batch_size
    bench, sides = Benchmark(runtime, options), {}
    cpu = torch.device("cpu")

    # Each side reads endlessly; its laps are counted from the same number of batches.
    def laps_of(batches: Iterator[Batch]) -> Callable[[], Lap]:
        return Stream(
            batches, cpu, images_of=lambda batch: len(batch.rows_B), settle=SETTLE, per_lap=steps
        ).lap

    sides["cold"] = laps_of(batches_of(rows))
    prepared = None if is_training else preprocessing_of(recipe.data)
    second = _second_epoch(rows, batches_of, batch_size, prepared)
    if second is not None:
        sides["second_epoch"] = laps_of(second)
    sides["decode"] = partial(limits.decode_lap, rows, images, num_threads)
    if options.compare:
        sides |= _timm_sides(recipe, rows, batch_size, num_threads, steps, is_training=is_training)

    bench.announce(progress, f"{steps} batches of {batch_size}", steps * step_s, len(sides))
    bench.take_turns(sides)
    laps = bench.laps
    return {
        "command": "bench data",
        "dataset": recipe.data.dataset,
        "split": rows.name,
        "num_examples": len(rows),
        "pixels": "train" if is_training else "evaluate",
        "resolution": recipe.data.image_size,
        "batch_size": batch_size,
        "steps": steps,
        "repeats": options.repeats,
        "workers": num_threads,
        **rates(laps["cold"]),
        "second_epoch": rates(laps["second_epoch"]) if second is not None else None,
        "decode": rates(laps["decode"]),
        "fraction_of_decode": ratio(laps["cold"], laps["decode"])["ratio"],
        **bench.peaks,
        "compare": _comparison(bench, is_training=is_training),
        "machine": machine(runtime),
    }


def _open(recipe: Recipe, split: str, *, is_training: bool) -> Split:
    source = dataset.from_section(recipe.data)
    if split == "auto":
        default = source.default_train_split() if is_training else source.default_eval_split()
        split = default or source.only_split("--split")
    return source.open(split)


def _batches(
    recipe: Recipe, batch_size: int, num_threads: int, rows: Split, *, is_training: bool
) -> Iterator[Batch]:
    """Yield the batches of our loader, without end."""
    if is_training:
        window, seed = recipe.data.shuffle_window, recipe.train.seed if recipe.train else 0
        sampler = TrainSampler(len(rows), rows.block_starts, window, batch_size, seed, 0, 1)
        return loader.train_batches(
            rows,
            train_transform_of(recipe.data),
            sampler,
            steps=range(2**40),
            per_device_batch=batch_size,
            on_bad_image=recipe.data.on_bad_image,
            num_threads=num_threads,
        )
    return endless_eval_batches(rows, recipe.data, batch_size, num_threads)


def _second_epoch(
    rows: Split,
    batches_of: Callable[[Split], Iterator[Batch]],
    batch_size: int,
    preprocessing: Preprocessing | None,
) -> Iterator[Batch] | None:
    """Return endless batches of rows that have been read once and are kept; None where they are not."""
    if rows.is_large:
        return None
    few = rows if len(rows) <= MOST_CACHED else rows.part(0, MOST_CACHED, name=rows.name)
    batches = batches_of(ImageCache("ram").attach(few, visits=2, preprocessing=preprocessing))
    for _ in range(-(-len(few) // batch_size) + 1):
        next(batches)
    return batches


def _timm_sides(
    recipe: Recipe, rows: Split, batch_size: int, num_threads: int, steps: int, *, is_training: bool
) -> dict[str, Callable[[], Lap]]:
    """Return timm's loader with as many workers as we have threads; and in this process, for its CPU time."""
    from vitcli.bench import timm_peer

    cpu = torch.device("cpu")
    sides = {}
    for name, num_workers in (("timm", num_threads), ("timm_in_process", 0)):
        theirs = timm_peer.data_loader(
            rows,
            recipe.data,
            batch_size=batch_size,
            num_workers=num_workers,
            is_training=is_training,
            device=cpu,
        )
        sides[name] = Stream(
            chain.from_iterable(repeat(theirs.loader)),  # before it normalises them, which ours leaves too
            cpu,
            images_of=lambda batch: len(batch[0]),
            settle=SETTLE,
            per_lap=steps,
        ).lap
    return sides


def _comparison(bench: Benchmark, *, is_training: bool) -> dict[str, Any] | None:
    """Return timm's rates, and how many times ours they are: by the clock, and by CPU time."""
    compared = bench.peer("train_data" if is_training else "eval_data", ours="cold")
    if compared is None:
        return None
    ours, theirs, in_process = (bench.laps[side] for side in ("cold", "timm", "timm_in_process"))
    second = bench.laps.get("second_epoch")
    by_cpu = ratio(ours, in_process, "cpu_s")
    return compared | {
        "cpu_s_per_image": rates(in_process)["cpu_s_per_image"],
        "cpu_ratio": by_cpu["ratio"],
        "cpu_ratio_range": by_cpu["ratio_range"],
        "second_epoch_ratio": ratio(second, theirs)["ratio"] if second else None,
        "second_epoch_cpu_ratio": ratio(second, in_process, "cpu_s")["ratio"] if second else None,
    }
