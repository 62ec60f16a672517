"""Averages of networks that were trained from one start, in the space of their weights.

Their mean ("Model soups", arXiv 2203.05482), one tensor after the other.
All is computed in float64 by NumPy on one thread: the same bits on any number of processes.
Letters: N networks.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn

from vitcli.errors import WeightsError

START = "start_digest"  # in the metadata of weights, of the network before the first step of their run
TensorOf = Callable[[str], np.ndarray]


@contextmanager
def opened(paths: Sequence[Path]) -> Iterator[list[Any]]:
    """Open the safetensors files of networks of one architecture, of which one tensor at a time is read."""
    with ExitStack() as held:
        yield [held.enter_context(safe_open(path, framework="numpy")) for path in paths]


def mean_of(tensors: Sequence[np.ndarray]) -> np.ndarray:
    """Return the mean of N arrays of one shape, summed in float64 in their order, in their own type."""
    total = tensors[0].astype(np.float64)
    for tensor in tensors[1:]:
        total += tensor
    return (total / len(tensors)).astype(tensors[0].dtype)


def fill(model: nn.Module, tensor_of: TensorOf) -> None:
    """Replace every tensor of a network by that of the same name; they never are all in memory beside it."""
    with torch.no_grad():
        for name, target in model.state_dict().items():
            target.copy_(torch.from_numpy(np.ascontiguousarray(tensor_of(name))))


def check_names(state: Mapping[str, Tensor], weights_names: Sequence[str], *, where: str) -> None:
    """Refuse weights whose tensors are not those of the network, and batch norms.

    The running statistics of batch norms would have to be measured again for an average.

    Raises:
        WeightsError: as described.
    """
    fix = "average runs of a network whose weights are stored as they are computed with, such as a ViT"
    if different := sorted(set(state) ^ set(weights_names)):
        raise WeightsError(
            f"the tensor {different[0]} is only in the file or the network", where=where, fix=fix
        )
    if any(name.endswith("running_mean") for name in state):
        what = "this network has batch norms, whose running statistics belong to one network's weights"
        raise WeightsError(what, where=where, fix=fix)
