"""Fresh weights as the authors' code draws them (paper.md, section 1.4), from torch's global generator."""

import math

import torch
from torch import Tensor, nn
from torch.nn import init

TRUNCATED_STD = 0.87962566103423978  # of a standard normal cut at -2 and 2, as flax divides by


@torch.no_grad()
def init_as_the_authors(model: nn.Module) -> None:
    """Fill every parameter of a ViT, a hybrid or a BiT ResNet, but for position embeddings of our own."""
    for name, parameter in model.named_parameters():
        match name.split("."):
            case [*_, "positions", _] | [*_, "relative_embed"]:
                pass  # drawn by positions.install
            case ["pos_embed"]:
                init.normal_(parameter, std=0.02)
            case ["blocks", _, "attn", "qkv", "weight"]:
                for matrix in parameter.chunk(3):  # one bound for each of q, k and v, not one for the three
                    init.xavier_uniform_(matrix)
            case ["blocks", _, "attn" | "mlp", _, "weight"]:
                init.xavier_uniform_(parameter)
            case ["blocks", _, "mlp", _, "bias"]:
                init.normal_(parameter, std=1e-6)
            case ["patch_embed", "backbone", "stages", *_, "norm3", "weight"]:
                init.zeros_(parameter)  # a hybrid's block starts as its shortcut
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
    """Variance 1 / fan-in after the normal has been cut at two standard deviations."""
    std = math.sqrt(1 / kernel[0].numel()) / TRUNCATED_STD
    init.trunc_normal_(kernel, std=std, a=-2 * std, b=2 * std)
