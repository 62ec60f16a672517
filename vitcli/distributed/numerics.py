"""What the kernels of a device may do with the bits: fp32 products in fp32, and sums in a fixed order."""

import os
import warnings
from typing import Any

import torch
from torch import nn

from vitcli.errors import VitError

CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
DETERMINISTIC_WORKSPACES = (":4096:8", ":16:8")  # of NVIDIA's documentation of cuBLAS; any other may race


def use_full_fp32() -> None:
    """Compute fp32 products on a GPU in fp32.

    cuDNN's default is TF32, whose 10 bits of mantissa break the 2e-5 of docs/evidence/exactness.md in every
    patch embedding. The older `allow_tf32` is set first: torch.export reads it, and torch refuses that
    where the two disagree.
    """
    torch.backends.cudnn.allow_tf32 = False
    warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")  # torch.compile advises them
    cudnn: Any = torch.backends.cudnn  # in whose place torch puts an object that has `conv`
    for kernels in (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn):
        kernels.fp32_precision = "ieee"


def fix_order_of_sums(device: torch.device, *, exact: bool) -> None:
    """Have kernels sum in the same order every time, so that equal steps have equal bits.

    A resumed run needs cuDNN's deterministic convolutions. `exact` also asks for deterministic attention and
    matrix products, and on a CPU for a single thread: the last bits of a sum depend on the number of threads,
    and processes divide the cores; launch more processes to use more cores.

    Called before the first kernel of a GPU, at which cuBLAS reads its environment variable.
    """
    if device.type == "cpu" and exact:
        torch.set_num_threads(1)
    if device.type != "cuda":
        return
    torch.backends.cudnn.deterministic = True
    if exact and os.environ.get(CUBLAS_WORKSPACE) not in DETERMINISTIC_WORKSPACES:
        os.environ[CUBLAS_WORKSPACE] = DETERMINISTIC_WORKSPACES[0]
    # Not `warn_only`, with which the backward pass of flash attention stays as it is (torch's
    # attention_backward.cu). It would fill new tensors with NaN, too, to find code that reads them.
    torch.use_deterministic_algorithms(exact)
    deterministic: Any = torch.utils.deterministic  # likewise
    deterministic.fill_uninitialized_memory = False


def check_deterministic(model: nn.Module, device: torch.device) -> None:
    """Refuse networks that a GPU cannot train with --exact: it adds up gradients of max pooling at random.

    Raises:
        VitError: it pools by the maximum.
    """
    fixed = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
    pools = (*fixed, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)
    if device.type == "cuda" and any(isinstance(module, pools) for module in model.modules()):
        raise VitError(
            "max pooling, which this network has, has non-deterministic gradients on a GPU",
            where="--exact",
            fix="drop --exact, add --device cpu, or take a network without max pooling, such as a plain ViT",
        )
