"""Comparison of the outputs of two networks on the same images; N images, K outputs."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitcli.data.loader import Batch
from vitcli.data.transforms import Preprocessing
from vitcli.evaluation.inference import logits_of
from vitcli.output.progress import Progress


@dataclass(frozen=True)
class Agreement:
    """Differences between the outputs of two networks.

    Attributes:
        max_difference: the largest absolute difference of any output.
        max_output: the largest absolute output of the first network.
        top1: fraction of the images that both assign to the same class; None where outputs are features.
    """

    max_difference: float
    max_output: float
    top1: float | None

    @property
    def max_rel_difference(self) -> float:
        """The largest difference as a fraction of the largest output."""
        if not self.max_output:
            return float("inf") if self.max_difference else 0.0
        return self.max_difference / self.max_output


def outputs(
    model: nn.Module,
    batches: Sequence[Batch],
    preprocessing: Preprocessing,
    *,
    title: str,
    progress: Progress,
) -> Tensor:
    """Return outputs_NK of all images, float32, computed on the CPU.

    Raises:
        WeightsError: an output is not a finite number.
    """
    batches_of_outputs: list[Tensor] = []
    progress.begin(title, total=sum(len(batch.rows_B) for batch in batches))
    try:
        passes = logits_of(model, iter(batches), preprocessing, device=torch.device("cpu"), precision="fp32")
        for _, outputs_BK in passes:
            batches_of_outputs.append(outputs_BK)
            progress.update(sum(map(len, batches_of_outputs)))
    finally:
        progress.end()
    return torch.cat(batches_of_outputs)


def compare(ours_NK: Tensor, theirs_NK: Tensor, *, are_logits: bool) -> Agreement:
    """Return the agreement of finite outputs."""
    is_same_class_N = ours_NK.argmax(1) == theirs_NK.argmax(1)
    return Agreement(
        max_difference=float((theirs_NK - ours_NK).abs().max()),
        max_output=float(ours_NK.abs().max()),
        top1=float(is_same_class_N.float().mean()) if are_logits else None,
    )
