"""Initialisation of the authors' code (paper.md, section 1.4), drawn from torch's global generator.

Xavier uniform   U(-b, b) with b = sqrt(6 / (fan_in + fan_out))     attention and MLP matrices
LeCun normal     variance 1 / fan_in, cut at two deviations         convolutions, representation layer
normal           deviation 0.02; 1e-6                               position embedding; MLP biases
zero             class token, head, other biases
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import init

TRUNCATED_STD = 0.87962566103423978  # deviation of a standard normal cut at -2 and 2; flax divides by it


@torch.no_grad()
def init_as_the_authors(model: nn.Module) -> None:
    """Initialise a ViT, a hybrid or a BiT ResNet in place, but for the tables that `pos_embed` adds."""
    for name, parameter in model.named_parameters():
        match name.split("."):
            case [*_, "positions", _] | [*_, "relative_embed"]:
                pass  # initialised by pos_embed.install
            case ["pos_embed"]:
                init.normal_(parameter, std=0.02)
            case ["blocks", _, "attn", "qkv", "weight"]:
                for matrix in parameter.chunk(3):  # fan_out is that of q, k or v alone, not of all three
                    init.xavier_uniform_(matrix)
            case ["blocks", _, "attn" | "mlp", _, "weight"]:
                init.xavier_uniform_(parameter)
            case ["blocks", _, "mlp", _, "bias"]:
                init.normal_(parameter, std=1e-6)
            case ["patch_embed", "backbone", "stages", *_, "norm3", "weight"]:
                init.zeros_(parameter)  # a residual block starts as the identity
            case [*_, "norm" | "fc_norm" | "norm1" | "norm2" | "norm3", "weight"]:
                init.ones_(parameter)
            case ["head", "pre_logits", "weight"]:
                lecun_normal_(parameter)
            case ["cls_token" | "reg_token"] | ["head", *_, "weight"] | [*_, "bias"]:
                init.zeros_(parameter)
            case _ if parameter.ndim == 4:  # the patch embedding and every convolution of a ResNet
                lecun_normal_(parameter)
            case _:
                raise AssertionError(f"no initialisation for {name}: not a network of the paper")


def lecun_normal_(kernel: Tensor) -> None:
    """Fill a kernel (out, in, ...) with a normal cut at two deviations; variance after the cut 1 / fan_in."""
    fan_in = kernel[0].numel()
    std = math.sqrt(1 / fan_in) / TRUNCATED_STD
    init.trunc_normal_(kernel, std=std, a=-2 * std, b=2 * std)
