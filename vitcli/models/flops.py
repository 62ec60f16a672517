"""Cost of a network: parameters, multiply-adds, memory of activations.

A ViT of Table 1 has formulas, which are in `variants`; any other network is built on the meta device, without
memory for its weights, and counted.
"""

import math
from typing import NamedTuple

import torch
from torch import nn

from vitcli.models import variants
from vitcli.models.architecture import Architecture
from vitcli.models.build import build


class ModelCost(NamedTuple):
    """Cost of a network without its head.

    Attributes:
        params: number of weights.
        macs: multiply-adds of one image's forward pass, counted as in paper.md, section 1.2.
        features: width of the features that a head reads.
    """

    params: int
    macs: float
    features: int


def costs_without_head(arch: Architecture) -> ModelCost:
    """Return the cost of the network up to its features, without download or memory for its weights."""
    if variant := arch.plain_variant:
        macs = variants.forward_macs(variant, arch.image_size)
        return ModelCost(variants.num_params(variant, arch.image_size, 0), macs, variant.hidden)
    from torch.utils.flop_counter import FlopCounterMode  # loads triton

    with torch.device("meta"):
        model, image = _without_head(arch), torch.empty(1, 3, *arch.image_size)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            features = model(image).shape[1]
    return ModelCost(_count(model), counter.get_total_flops() / 2, features)


def num_params(arch: Architecture) -> int:
    """Return the number of weights of the network, head included."""
    if variant := arch.plain_variant:
        return variants.num_params(variant, arch.image_size, arch.num_classes)
    with torch.device("meta"):
        return _count(build(arch, dropout=0.0))


def forward_macs(arch: Architecture) -> float:
    """Return the multiply-adds of one image's forward pass without the head."""
    return costs_without_head(arch).macs


def activation_bytes(arch: Architecture, *, low_precision: bool, checkpointed: bool = False) -> float:
    """Estimate the memory that one image's forward pass keeps for the backward pass.

    For a ViT with fused attention, b bytes a value, T tokens, hidden width D and L layers:

        bytes = 17 * b * T * D * L

    That is the 34 bytes in 16 bit of Korthikanti et al. 2022 (arXiv 2205.05198, section 4) without the
    attention scores, which a fused kernel computes again. For other networks, the output of every layer.
    With gradient checkpointing the float32 input of each block is kept, and all of a single block.
    """
    num_bytes = 2 if low_precision else 4
    if variant := arch.plain_variant:
        values_of_layer = (math.prod(arch.known_grid) + 1) * variant.hidden
        if checkpointed:
            return (4 * variant.layers + 17 * num_bytes) * values_of_layer
        return 17 * num_bytes * values_of_layer * variant.layers
    sizes: list[int] = []
    with torch.device("meta"):
        model, image = _without_head(arch), torch.empty(1, 3, *arch.image_size)
        for module in model.modules():
            if not list(module.children()):
                module.register_forward_hook(lambda module, inputs, output: sizes.append(_numel(output)))
        with torch.no_grad():
            model(image)
    return num_bytes * sum(sizes)


def _numel(output) -> int:
    """Count the elements of a tensor, or of all tensors in a tuple."""
    if isinstance(output, tuple | list):
        return sum(map(_numel, output))
    return output.numel() if isinstance(output, torch.Tensor) else 0


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _without_head(arch: Architecture) -> nn.Module:
    # torch's counter of FLOPs hooks the gradient of a parameter that a module takes as input (the latent of
    # attention pooling, the class token of CaiT), which without gradients does not exist.
    return build(arch.with_head(0), dropout=0.0).eval().requires_grad_(False)
