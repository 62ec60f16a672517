"""What a network costs: parameters, multiply-adds, memory.

By formula for a ViT of Table 1, else counted on a network without numbers.
"""

from dataclasses import replace

import torch
from torch.utils.flop_counter import FlopCounterMode

from vitcli import variants
from vitcli.architecture import Architecture
from vitcli.model import build
from vitcli.variants import find_variant


def num_params(arch: Architecture) -> int:
    """Weights of the network, head included."""
    if arch.is_plain:
        return variants.num_params(find_variant(arch.name), arch.image_size, arch.num_classes)
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(arch, dropout=0.0).parameters())


def forward_macs(arch: Architecture) -> float:
    """Multiply-adds of one image's forward pass without the head, as paper.md, section 1.2, counts them."""
    if arch.is_plain:
        return variants.forward_macs(find_variant(arch.name), arch.image_size)
    with torch.device("meta"):
        model, image = _without_head(arch), torch.empty(1, 3, *arch.image_size)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(image)
    return counter.get_total_flops() / 2


def activation_bytes(arch: Architecture, *, low_precision: bool) -> float:
    """What one image's forward pass keeps for the backward pass, an estimate.

    For a ViT with fused attention about 34 values of 2 bytes for each token, channel and block (Korthikanti
    et al. 2022, without the attention scores, which a fused kernel computes again); for other networks the
    output of every layer.
    """
    num_bytes = 2 if low_precision else 4
    if arch.is_plain:
        height, width = arch.patch_grid
        variant = find_variant(arch.name)
        return 17 * num_bytes * (height * width + 1) * variant.hidden * variant.layers
    sizes = []
    with torch.device("meta"):
        model, image = _without_head(arch), torch.empty(1, 3, *arch.image_size)
        for module in model.modules():
            if not list(module.children()):
                module.register_forward_hook(lambda module, inputs, output: sizes.append(output.numel()))
        with torch.no_grad():
            model(image)
    return num_bytes * sum(sizes)


def _without_head(arch: Architecture) -> torch.nn.Module:
    return build(replace(arch, num_classes=0, pre_logits=False), dropout=0.0).eval()
