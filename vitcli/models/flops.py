"""What a network costs: parameters, multiply-adds, memory.

By formula for a ViT of Table 1, else counted on a network without numbers.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vitcli.models import variants
from vitcli.models.architecture import Architecture
from vitcli.models.build import build
from vitcli.models.variants import find_variant


class ModelCost(NamedTuple):
    """Of a network without its head.

    Attributes:
        params: weights.
        macs: multiply-adds of one image's forward pass, as paper.md, section 1.2, counts them.
        features: numbers that a head is given.
    """

    params: int
    macs: float
    features: int


def costs_without_head(arch: Architecture) -> ModelCost:
    """What the network costs up to its features; nothing is downloaded and no number drawn."""
    if arch.is_plain:
        variant = find_variant(arch.name)
        macs = variants.forward_macs(variant, arch.image_size)
        return ModelCost(variants.num_params(variant, arch.image_size, 0), macs, variant.hidden)
    with torch.device("meta"):
        model, image = _without_head(arch), torch.empty(1, 3, *arch.image_size)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            features = model(image).shape[1]
    return ModelCost(_count(model), counter.get_total_flops() / 2, features)


def num_params(arch: Architecture) -> int:
    """Weights of the network, head included."""
    if arch.is_plain:
        return variants.num_params(find_variant(arch.name), arch.image_size, arch.num_classes)
    with torch.device("meta"):
        return _count(build(arch, dropout=0.0))


def forward_macs(arch: Architecture) -> float:
    """Multiply-adds of one image's forward pass without the head."""
    return costs_without_head(arch).macs


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
                module.register_forward_hook(lambda module, inputs, output: sizes.append(_numel(output)))
        with torch.no_grad():
            model(image)
    return num_bytes * sum(sizes)


def _numel(output) -> int:
    """Of a tensor, or of all tensors in a tuple."""
    if isinstance(output, tuple | list):
        return sum(map(_numel, output))
    return output.numel() if isinstance(output, torch.Tensor) else 0


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _without_head(arch: Architecture) -> nn.Module:
    return build(replace(arch, num_classes=0, pre_logits=False), dropout=0.0).eval()
