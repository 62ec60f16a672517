"""The outputs of a network and of what it was exported to, on the same images.

A file that takes images gets what its users have: decoded images, or bytes of the network's size. Letters:
N images, B of a batch, K outputs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from vitcli.data import loader
from vitcli.data.loader import Batch
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing
from vitcli.errors import DataError, WeightsError
from vitcli.evaluation.inference import outputs_of
from vitcli.output.progress import Progress

BATCH_SIZE = 16
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Agreement:
    """Differences between the outputs of two networks.

    Attributes:
        max_difference: the largest absolute difference of any output.
        max_output: the largest absolute output of the first network.
        num_images: that were compared.
        num_same: of these, what both assign to the same class; None where outputs are not of classes.
    """

    max_difference: float
    max_output: float
    num_images: int
    num_same: int | None

    @property
    def top1(self) -> float | None:
        """Return the fraction of the images that both assign to the same class."""
        return None if self.num_same is None else self.num_same / self.num_images

    @property
    def max_rel_difference(self) -> float:
        """Return the largest difference as a fraction of the largest output."""
        if not self.max_output:
            return float("inf") if self.max_difference else 0.0
        return self.max_difference / self.max_output


def compare(outputs_NK: Tensor, exported_NK: Tensor, *, are_logits: bool) -> Agreement:
    """Return the agreement of finite outputs.

    Args:
        are_logits: of classes, of which an image has one.
    """
    is_same_class_N = outputs_NK.argmax(1) == exported_NK.argmax(1)
    return Agreement(
        max_difference=float((exported_NK - outputs_NK).abs().max()),
        max_output=float(outputs_NK.abs().max()),
        num_images=len(outputs_NK),
        num_same=int(is_same_class_N.sum()) if are_logits else None,
    )


class NotFinite(Exception):
    """An output of what was exported is no finite number."""


def outputs_of_both(
    model: nn.Module,
    exported: nn.Module,
    split: Split,
    preprocessing: Preprocessing,
    progress: Progress,
    *,
    on_bad_image: str = "error",
) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs_NK of the network and of what was exported, and labels_N, on the CPU.

    Labels are -1 where there are none, or several per image.

    Args:
        on_bad_image: "skip" leaves out images that cannot be decoded.

    Raises:
        WeightsError: an output of the network is not finite.
        NotFinite: one of what was exported.
        DataError: an image cannot be decoded, or none can.
    """
    # A file cannot shrink a JPEG while it is decoded.
    exact = replace(preprocessing, decode="exact")
    settings = {"batch_size": BATCH_SIZE, "num_threads": loader.default_threads(1)}
    batches = loader.eval_batches(split, exact, rank=0, world_size=1, on_bad_image=on_bad_image, **settings)
    of_export = _outputs_of_export(exported, split, exact)
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    progress.begin("compare", total=len(split))
    try:
        for batch, outputs_BK in outputs_of(model, batches, exact, CPU, "fp32"):
            if not len(outputs_BK):
                continue
            try:
                exported_BK = of_export(batch)
            except WeightsError as error:
                raise NotFinite from error
            if not torch.isfinite(exported_BK).all():
                raise NotFinite
            labels_B = batch.labels_B if batch.labels_B.ndim == 1 else torch.full((len(outputs_BK),), -1)
            parts.append((outputs_BK, exported_BK, labels_B))
            progress.update(sum(len(outputs_BK) for outputs_BK, _, _ in parts))
    finally:
        progress.end()
    if not parts:
        raise DataError("no image can be decoded", where=split.name, fix="name others with --images")
    outputs, exports, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return outputs, exports, labels


def _outputs_of_export(
    exported: nn.Module, split: Split, preprocessing: Preprocessing
) -> Callable[[Batch], Tensor]:
    def of_decoded(batch: Batch) -> Tensor:
        images = (loader.read_example(split, row)[0] for row in batch.rows_B.tolist())
        return torch.cat([exported(torch.from_numpy(image_HWC)[None]) for image_HWC in images])

    def of_pixels(batch: Batch) -> Tensor:
        return exported(batch.images_BCHW.permute(0, 2, 3, 1).contiguous())

    def of_normalized(batch: Batch) -> Tensor:
        return next(outputs_of(exported, iter([batch]), preprocessing, CPU, "fp32"))[1]

    match getattr(exported, "takes_any_size", None):
        case None:
            return of_normalized
        case True:
            return of_decoded
    return of_pixels
