"""The tanh form of GELU where it trains in bf16 on a CPU, by a logistic function: torch has a slow tanh.

    gelu(x)  = x s          s = sigmoid(z),    z = c (x + 0.044715 x^3),    c = 2 sqrt(2 / pi)
    gelu'(x) = s + s (1 - s) x z' = s - 2 c s (1 - s) (x - 1.5 z / c)

Both are computed in the forward pass, and the derivative is kept in place of x. Each step rounds to bf16.
"""

import math

import torch
from timm.layers.activations import GELUTanh
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from vitcli.models import attention

CUBIC = 0.044715
SLOPE = 2 * math.sqrt(2 / math.pi)  # c, that of z at 0


def choose_gelu(model: nn.Module) -> None:
    """Let every tanh-GELU of a timm network choose its kernel in each forward pass, in place."""
    for module in model.modules():
        if type(module) is GELUTanh:
            module.__class__ = ChoosesGelu


class ChoosesGelu(GELUTanh):
    """timm's activation, in the faster way where it trains in bf16 on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        is_written_out = (
            x.requires_grad
            and torch.is_grad_enabled()
            and x.dtype == torch.bfloat16
            and x.device.type == "cpu"
            and attention.HAS_BF16
            and not torch.compiler.is_compiling()  # the compiler fuses torch's
        )
        return _Gelu.apply(x) if is_written_out else super().forward(x)


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        # The constants are arguments of `addcmul`, which has them in fp32; as tensors they would be rounded.
        zero, one = x.new_zeros(1), x.new_ones(1)
        z = torch.addcmul(one, x, x, value=CUBIC)
        torch.addcmul(zero, z, x, value=SLOPE, out=z)
        part = torch.add(x, z, alpha=-1.5 / SLOPE)
        logistic = z.sigmoid_()
        torch.ops.aten.sigmoid_backward(part, logistic, grad_input=part)
        derivative = torch.add(logistic, part, alpha=-2 * SLOPE, out=part)
        ctx.save_for_backward(derivative)
        return torch.mul(x, logistic, out=logistic)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> Tensor:
        (derivative,) = ctx.saved_tensors
        return grad * derivative
