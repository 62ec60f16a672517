"""Images of noise, for measuring a network without its data path (--dataset synthetic)."""

from collections.abc import Callable, Iterator

import numpy as np
import torch

from vitcli.data.dataset import DataSet
from vitcli.data.loader import Batch
from vitcli.data.split import Split

NAME = "synthetic"
NUM_EXAMPLES, NUM_CLASSES = 50_000, 1_000  # the numbers of ImageNet's validation split


class SyntheticDataSet(DataSet):
    """A data set with a training and a test split that are never read: `batches` take their place."""

    def _find(self) -> tuple[Callable[[str], Split], tuple[str, ...]]:
        return self._open_noise, ("train", "test")

    def _open_noise(self, split: str) -> Split:
        pixels_HWC = np.zeros((32, 32, 3), np.uint8)
        labels = np.arange(NUM_EXAMPLES) % NUM_CLASSES
        return Split(
            name=f"synthetic images, split {split}",
            num_examples=NUM_EXAMPLES,
            class_names=None,
            num_classes=NUM_CLASSES,
            read_row=lambda row: (pixels_HWC, int(labels[row])),
            read_labels=lambda: labels,
            where_is=lambda row: f"synthetic image {row}",
        )


def batches(batch_size: int, image_size: tuple[int, int], num_classes: int) -> Iterator[Batch]:
    """Yield one batch of noise again and again, in the layout of the loader's; without end."""
    generator = torch.Generator().manual_seed(0)
    shape = (batch_size, *image_size, 3)
    images_BHWC = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    if torch.cuda.is_available():
        images_BHWC = images_BHWC.pin_memory()
    rows_B = torch.arange(batch_size)
    batch = Batch(images_BHWC.permute(0, 3, 1, 2), rows_B % max(num_classes, 1), rows_B, ())
    while True:
        yield batch
