"""Loading of batches: rows are read, decoded and transformed in threads, each into its place in the batch.

Threads rather than worker processes, because decoding and resizing release the GIL, nothing is pickled and
starting costs nothing (measured in docs/evidence/speed.md). The pixels of an example depend on (seed,
position in the run) alone, so neither the number of threads or processes nor a restart changes them.

Letters: B batch, H, W height and width in pixels, C channels.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from random import Random

import numpy as np
import torch
import xxhash
from torch import Tensor

from vitcli.data.decoding import Jpeg, check, open_image
from vitcli.data.sampler import ROWS_PER_TASK, TrainSampler, derive_seed, row_ranges
from vitcli.data.split import Label, ReadRow, Split, check_label
from vitcli.data.transforms import Preprocessing, TrainTransform
from vitcli.distributed import launch
from vitcli.distributed.transfer import single_core_pool
from vitcli.errors import DataError

TRIES_PER_EXAMPLE = 100  # rows tried in place of one that cannot be decoded before the run stops
BYTES_AHEAD = 2**28  # of pixels in batches that are prepared; one batch is always ahead


@dataclass(frozen=True)
class Batch:
    """Examples in order.

    Attributes:
        images_BCHW: (B, 3, H, W) uint8, channels last in memory, pinned if there is a GPU.
        labels_B: (B,) int64; (B, M) padded with -1 if images have several labels, (B,) float64 of numbers.
        rows_B: (B,) int64, the rows of the split.
        skipped: files or rows of undecodable images that were left out or replaced.
    """

    images_BCHW: Tensor
    labels_B: Tensor
    rows_B: Tensor
    skipped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Example:
    """What is known of one row of a split, whose pixels are in their place in the batch.

    Attributes:
        label: None where the image could not be decoded and is left out.
    """

    label: Label | None
    row: int
    skipped: tuple[str, ...] = ()


def default_threads(cores: int | None = None) -> int:
    """Return the loader threads of a process, one for each of its cores, at most 16; None: it shares none."""
    return min(16, cores or launch.cpu_count())


def train_batches(
    split: Split,
    transform: TrainTransform,
    sampler: TrainSampler,
    *,
    steps: range,
    per_device_batch: int,
    on_bad_image: str,
    num_threads: int,
) -> Iterator[Batch]:
    """Load what this process sees at each of `steps`, in batches of `per_device_batch`.

    Raises:
        DataError: an image cannot be decoded and `on_bad_image` is "error". With "skip" the next row that can
            be decoded takes its place, so that a step still sees `batch_size` images.
    """

    # The rows of each batch and their positions in the run, which seed the augmentation.
    def parts() -> Iterator[list[tuple[int, int]]]:
        for step in steps:
            examples = sampler.rows_of_step(step)
            for first in range(0, len(examples), per_device_batch):
                yield examples[first : first + per_device_batch]

    def load(example: tuple[int, int], place_HWC: np.ndarray, read_row: ReadRow) -> Example:
        row, position = example
        skipped: tuple[str, ...] = ()
        # An undecodable image is replaced by that of the next row, which is augmented in its place.
        for _ in range(TRIES_PER_EXAMPLE):
            try:
                image, label = open_example(split, row, read_row, decode=transform.decode)
                if on_bad_image == "skip" and isinstance(image, Jpeg) and transform.decode == "exact":
                    image = image.decode()  # whole, so that what is left out does not depend on the crop
                transform(image, Random(derive_seed(sampler.seed, "augment", position)), place_HWC)
                return Example(label, row, skipped)
            except DataError:
                if on_bad_image == "error":
                    raise
                skipped += (split.where_is(row),)
                row, read_row = (row + 1) % len(split), split.read_row
        raise DataError(
            f"{TRIES_PER_EXAMPLE} images in a row cannot be decoded",
            where=f"{skipped[0]} and the rows after it",
            fix="repair or remove these files",
        )

    def load_chunk(examples: Sequence[tuple[int, int]], places: np.ndarray) -> list[Example]:
        read_row = split.reader_of([row for row, _ in examples])
        return [load(example, place, read_row) for example, place in zip(examples, places, strict=True)]

    yield from _in_threads(parts(), load_chunk, image_size=transform.image_size, num_threads=num_threads)


def eval_batches(
    split: Split,
    preprocessing: Preprocessing,
    *,
    batch_size: int,
    rank: int,
    world_size: int,
    on_bad_image: str,
    num_threads: int,
) -> Iterator[Batch]:
    """Load every `world_size`-th batch of the split, so that all processes together see each row once.

    The batches are the same on any number of processes; the last may be short. With `on_bad_image` "skip" an
    undecodable image is left out, never replaced.
    """

    prepared = split.cache and split.cache.prepared.get(preprocessing.geometry)

    def prepare(row: int, read_row: ReadRow) -> tuple[np.ndarray, Label]:
        image, label = open_example(split, row, read_row, decode=preprocessing.decode)
        return preprocessing(image), label

    def load(row: int, place_HWC: np.ndarray, read_row: ReadRow) -> Example:
        try:
            if prepared:
                place_HWC[:], label = prepared.read(split, row, partial(prepare, row, read_row))
            else:
                image, label = open_example(split, row, read_row, decode=preprocessing.decode)
                preprocessing(image, place_HWC)
            return Example(label, row)
        except DataError:
            if on_bad_image == "error":
                raise
            return Example(None, row, skipped=(split.where_is(row),))

    def load_chunk(rows: Sequence[int], places: np.ndarray) -> list[Example]:
        read_row = split.reader_of(rows)
        return [load(row, place, read_row) for row, place in zip(rows, places, strict=True)]

    parts = row_ranges(len(split), batch_size, rank=rank, world_size=world_size)
    yield from _in_threads(parts, load_chunk, image_size=preprocessing.image_size, num_threads=num_threads)


def read_example(split: Split, row: int) -> tuple[np.ndarray, Label]:
    """Return the (H, W, 3) uint8 image and the label or labels of a row; errors name the row or file."""
    image, label = open_example(split, row, split.read_row)
    return image.decode() if isinstance(image, Jpeg) else image, label


def open_example(
    split: Split, row: int, read_row: ReadRow, *, decode: str = "exact"
) -> tuple[np.ndarray | Jpeg, Label]:
    """Return the image of a row, decoded or a JPEG still to be decoded, and its label or labels.

    Every image of a run comes from here: pixels that are kept are taken as they are, and those to be kept are
    decoded whole. A JPEG that is returned may be decoded in part.

    Args:
        read_row: `split.read_row`, or what `split.reader_of` returns for this row and others.
        decode: "exact"; "fast" passes over decoded images that are kept, which have other pixels.
    """

    def open_row() -> tuple[np.ndarray | Jpeg, Label]:
        stored, label = read_row(row)
        if split.is_large:
            check_label(split, label, row)
        image = open_image(stored, where=split.where_is, row=row) if isinstance(stored, bytes) else stored
        return image, label

    def decode_row() -> tuple[np.ndarray, Label]:
        image, label = open_row()
        return image.decode() if isinstance(image, Jpeg) else image, label

    kept = split.cache and split.cache.decoded if decode == "exact" else None
    return kept.read(split, row, decode_row, open_row) if kept else open_row()


def check_images(
    split: Split, *, rank: int, world_size: int, num_threads: int, decode: bool = True
) -> tuple[list[DataError], int]:
    """Read this process's part of a split's images; return the errors, and a number that any change changes.

    The numbers of all processes add up to the same, however many there are; 0 of images that are drawn.

    Args:
        decode: find what cannot be decoded, 2,000 images per second and core or so; otherwise only what
            cannot be read.
    """

    def check_rows(rows: range) -> tuple[list[DataError], int]:
        errors, total = [], 0
        for row in rows:
            try:
                image = split.image_of(row)
                if isinstance(image, bytes):
                    total += xxhash.xxh3_128_intdigest(image, seed=row)
                    if decode:
                        split.fact_of(row, "decodable", partial(check, where=split.where_is, row=row))
            except DataError as error:
                errors.append(error)
        return errors, total

    if split.is_drawn:
        return [], 0
    parts = row_ranges(len(split), ROWS_PER_TASK, rank=rank, world_size=world_size)
    with ThreadPoolExecutor(num_threads, thread_name_prefix="vit-loader") as pool:
        results = list(pool.map(check_rows, parts))
    return [error for errors, _ in results for error in errors], sum(total for _, total in results)


def _in_threads(
    parts: Iterable[Sequence],
    load_chunk: Callable[[Sequence, np.ndarray], list[Example]],
    *,
    image_size: tuple[int, int],
    num_threads: int,
) -> Iterator[Batch]:
    """Yield a batch for each part, in order, while threads prepare the next ones."""
    pool = single_core_pool(num_threads, "vit-loader")
    waiting: deque[_BatchInProgress] = deque()
    examples_ahead = 0

    try:
        for part in parts:
            # Each part is loaded by all threads, in chunks of neighbouring examples.
            shape, is_pinned = (len(part), *image_size, 3), torch.cuda.is_available()
            images_BHWC = torch.empty(shape, dtype=torch.uint8, pin_memory=is_pinned)
            places, size = images_BHWC.numpy(), max(1, -(-len(part) // num_threads))
            firsts = range(0, len(part), size)
            chunks = [pool.submit(load_chunk, part[i : i + size], places[i : i + size]) for i in firsts]
            waiting.append(_BatchInProgress(images_BHWC, chunks))
            examples_ahead += len(part)
            # At least two batches are kept ahead, and enough examples to keep every thread busy; but of
            # batches that take much memory only the next one.
            while len(waiting) > 1 and (
                (len(waiting) > 2 and examples_ahead > 4 * num_threads)
                or sum(batch.images_BHWC.nbytes for batch in waiting) > BYTES_AHEAD
            ):
                examples_ahead -= len(waiting[0].images_BHWC)
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _BatchInProgress:
    """The memory of a batch, and the threads' work on it: each writes its own chunk of the images."""

    images_BHWC: Tensor
    chunks: list[Future[list[Example]]]

    def result(self) -> Batch:
        """Wait for all images; raise the first error."""
        examples = [example for chunk in self.chunks for example in chunk.result()]
        images_BHWC, is_whole = self.images_BHWC, [example.label is not None for example in examples]
        if not all(is_whole):
            images_BHWC = images_BHWC[torch.tensor(is_whole)]
        return Batch(
            images_BCHW=images_BHWC.permute(0, 3, 1, 2),
            labels_B=_labels_of([e.label for e in examples if e.label is not None]),
            rows_B=torch.tensor([e.row for e in examples if e.label is not None], dtype=torch.int64),
            skipped=tuple(place for example in examples for place in example.skipped),
        )


def _labels_of(labels: list[Label]) -> Tensor:
    if any(isinstance(label, float) for label in labels):
        return torch.tensor(labels, dtype=torch.float64)
    several = [label for label in labels if isinstance(label, tuple)]
    if not several:
        return torch.tensor(labels, dtype=torch.int64)
    most = max(1, max(map(len, several)))
    return torch.tensor([label + (-1,) * (most - len(label)) for label in several], dtype=torch.int64)
