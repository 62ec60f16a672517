"""Dense layers of a pass without gradients.

In low precision weights are cast once for a pass, not for each batch.
On a CPU in bf16 they are also packed as oneDNN reads them, and a GELU is computed on the sums of the product
before it, in fp32, where torch's own tanh form takes as long as that product. Products keep their bits; only
values that a GELU changes do not, since its input is not rounded.
In fp32 on a CPU, what is computed from one vector per image is computed in blocks, so that no bit of it
depends on the batch size.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from timm.layers import Mlp
from timm.layers.activations import GELU, GELUTanh
from torch import Tensor, nn

from vitcli.distributed.runtime import LOW_PRECISION
from vitcli.models.attention import HAS_BF16

NO_ACTIVATION = ("none", [], "")  # as oneDNN's product is given it
# MKL 2024.2 adds up a row in another order if rows are few: below 16 (AVX-512 without AMX), with several
# threads below 129 rows of 1,024 numbers. In a block of 16 a row has the same bits at every place.
BLOCK_ROWS = 16


@contextmanager
def dense_layers(model: nn.Module, device: torch.device, precision: str) -> Iterator[None]:
    """Run the dense layers of a network with weights in `precision`; the weights themselves stay in fp32.

    Sharded weights are left to autocast. Within the context nothing may change the weights.
    """
    dtype = LOW_PRECISION.get(precision)
    is_packed = device.type == "cpu" and dtype == torch.bfloat16 and HAS_BF16 and _has_onednn()
    layers = [m for m in model.modules() if type(m) is nn.Linear and type(m.weight) is nn.Parameter]
    replaced: list[nn.Module] = []
    try:
        for layer in layers if dtype or device.type == "cpu" else ():
            if is_packed:
                layer.forward = _packed(layer, NO_ACTIVATION)
            elif dtype:
                layer.forward = _cast(layer, dtype)
            else:
                layer.forward = partial(_by_blocks, weight=layer.weight, bias=layer.bias)
            replaced.append(layer)
        for mlp in model.modules() if is_packed else ():
            form = _gelu_form(mlp.act) if type(mlp) is Mlp and mlp.fc1 in layers else None
            if form:
                mlp.fc1.forward = _packed(mlp.fc1, ("gelu", [], form))
                mlp.act.forward = nn.Identity().forward
                replaced.append(mlp.act)
        yield
    finally:
        for module in replaced:
            del module.forward


def _has_onednn() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _gelu_form(activation: nn.Module) -> str | None:
    """Return oneDNN's name of a GELU's form, or None for another activation."""
    if isinstance(activation, nn.GELU):
        return activation.approximate
    return "tanh" if isinstance(activation, GELUTanh) else "none" if isinstance(activation, GELU) else None


def _by_blocks(x: Tensor, *, weight: Tensor, bias: Tensor | None) -> Tensor:
    if x.ndim != 2 or not len(x):  # rows of several tokens per image are many
        return F.linear(x, weight, bias)
    blocks = F.pad(x, (0, 0, 0, -len(x) % BLOCK_ROWS)).split(BLOCK_ROWS)
    return torch.cat([F.linear(block, weight, bias) for block in blocks])[: len(x)]


def _cast(layer: nn.Linear, dtype: torch.dtype) -> partial[Tensor]:
    bias = None if layer.bias is None else layer.bias.detach().to(dtype)
    return partial(F.linear, weight=layer.weight.detach().to(dtype), bias=bias)


def _packed(layer: nn.Linear, activation: tuple) -> partial[Tensor]:
    cast = _cast(layer, torch.bfloat16).keywords
    weight = torch.ops.mkldnn._reorder_linear_weight(cast["weight"])
    return partial(_linear, weight=weight, bias=cast["bias"], activation=activation)


def _linear(x: Tensor, *, weight: Tensor, bias: Tensor | None, activation: tuple) -> Tensor:
    x = x.to(torch.bfloat16).contiguous()  # oneDNN reads strided rows wrongly
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, *activation)
