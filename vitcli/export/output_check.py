"""Whether two networks say the same of the same pictures; N pictures, K outputs."""

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
    """How far the outputs of one network are from those of another.

    Attributes:
        max_difference: the largest of any output.
        max_output: the largest output of the first network, both without their signs.
        top1: share of the pictures that both give the same class; None where outputs are no classes.
    """

    max_difference: float
    max_output: float
    top1: float | None

    @property
    def max_rel_difference(self) -> float:
        """The largest difference as a share of the largest output."""
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
    """outputs_NK of all pictures, float32, computed on the CPU.

    Raises:
        WeightsError: an output is not a finite number.
    """
    passed = logits_of(model, iter(batches), preprocessing, device=torch.device("cpu"), precision="fp32")
    found: list[Tensor] = []
    progress.begin(title, total=sum(len(batch.rows_B) for batch in batches))
    try:
        for _, outputs_BK in passed:
            found.append(outputs_BK)
            progress.update(sum(map(len, found)))
    finally:
        progress.end()
    return torch.cat(found)


def compare(ours_NK: Tensor, theirs_NK: Tensor, *, are_logits: bool) -> Agreement:
    """The agreement of outputs that are all finite."""
    is_same_class_N = ours_NK.argmax(1) == theirs_NK.argmax(1)
    return Agreement(
        max_difference=float((theirs_NK - ours_NK).abs().max()),
        max_output=float(ours_NK.abs().max()),
        top1=float(is_same_class_N.float().mean()) if are_logits else None,
    )
