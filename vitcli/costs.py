"""What a network costs: parameters, multiply-adds, memory.

By formula where it is one of the paper's, else counted on a network without numbers.
"""

import torch
from torch.utils.flop_counter import FlopCounterMode

from vitcli import variants
from vitcli.model import build
from vitcli.variants import Architecture


def num_params(arch: Architecture) -> int:
    """Weights of the network, head included."""
    variant = variants.find_variant(arch.name)
    if variant is not None and not arch.pre_logits:
        return variants.num_params(variant, arch.image_size, arch.num_classes)
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(arch, dropout=0.0).parameters())


def forward_macs(arch: Architecture) -> float:
    """Multiply-adds of one image's forward pass, without the head where the formula of paper.md holds."""
    variant = variants.find_variant(arch.name)
    if variant is not None:
        return variants.forward_macs(variant, arch.image_size)
    with torch.device("meta"):
        model, image = build(arch, dropout=0.0).eval(), torch.empty(1, 3, *arch.image_size)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(image)
    return counter.get_total_flops() / 2


def activation_bytes(arch: Architecture, *, low_precision: bool) -> float | None:
    """What one image's forward pass keeps for the backward pass of a ViT with fused attention.

    About 34 values of 2 bytes for each token, channel and block (Korthikanti et al. 2022, without the
    attention scores, which a fused kernel computes again); None for other networks.
    """
    variant = variants.find_variant(arch.name)
    if variant is None:
        return None
    height, width = arch.patch_grid
    return 34 * (1 if low_precision else 2) * (height * width + 1) * variant.hidden * variant.layers
