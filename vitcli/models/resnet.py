"""Hybrids and BiT ResNets without a timm name, and the authors' arithmetic inside all of them.

Importing this module registers two networks with timm: the hybrid with any ResNet in front, and the BiT
ResNet of any depth and width. timm then builds both from JSON arguments, and reads the folders that we write.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import GroupNormAct, HybridEmbed, StdConv2d, StdConv2dSame, make_divisible, pad_same
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.resnetv2 import ResNetV2, create_resnetv2_stem
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

HYBRID_NORM_EPS = 1e-6  # flax's group norm; timm has torch's 1e-5 (paper.md, section 1.5)
HYBRID_STD_EPS = 1e-5
BIT_VARIANCE_EPS = 1e-10  # big_vision, bit_paper.py; timm has 1e-8

_CFG = {"num_classes": 1000, "input_size": (3, 224, 224), "mean": (0.5,) * 3, "std": (0.5,) * 3}
default_cfgs = generate_default_cfgs({
    "vitcli_hybrid.untrained": {**_CFG, "fixed_input_size": True, "classifier": "head",
                                "crop_pct": 0.9, "interpolation": "bicubic"},
    "vitcli_bit.untrained": {**_CFG, "classifier": "head.fc", "crop_pct": 0.875, "interpolation": "bilinear"},
})  # fmt: skip


@register_model
def vitcli_hybrid(pretrained: bool = False, *, resnet_blocks, resnet_width, **kwargs) -> VisionTransformer:
    """Build a ViT on the features of a ResNet (paper, section 3.1).

    Args:
        resnet_blocks: bottleneck blocks in each stage; an empty list for the stem alone.
        resnet_width: factor on the 64 channels of the stem and on those of the stages.
    """
    options: dict[str, Any] = dict(
        stem_type="same", preact=False, conv_layer=partial(StdConv2dSame, eps=1e-8)
    )
    backbone: nn.Module = create_resnetv2_stem(3, make_divisible(64 * resnet_width), **options)
    if resnet_blocks:
        options |= {"width_factor": resnet_width, "num_classes": 0, "global_pool": ""}
        backbone = ResNetV2(layers=resnet_blocks, **options)
    return build_model_with_cfg(
        VisionTransformer,
        "vitcli_hybrid",
        pretrained,
        embed_layer=partial(HybridEmbed, backbone=backbone),
        **{"patch_size": 1, **kwargs},
    )


@register_model
def vitcli_bit(pretrained: bool = False, **kwargs) -> ResNetV2:
    """Build a BiT ResNet of any `layers` and `width_factor` (paper, section 4.1)."""
    conv = partial(StdConv2d, eps=1e-8)
    return build_model_with_cfg(
        ResNetV2, "vitcli_bit", pretrained, stem_type="fixed", conv_layer=conv, **kwargs
    )


class OfficialStdConv2dSame(StdConv2dSame):
    """Convolution with the authors' weight standardisation: (w - mean) / (std + 1e-5) for each output."""

    def forward(self, images_BCHW: Tensor) -> Tensor:
        if self.same_pad:
            kernel_size, stride, dilation = map(list, (self.kernel_size, self.stride, self.dilation))
            images_BCHW = pad_same(images_BCHW, kernel_size, stride, dilation)
        std, mean = torch.std_mean(self.weight, dim=(1, 2, 3), correction=0, keepdim=True)
        standardised = (self.weight - mean) / (std + HYBRID_STD_EPS)
        return F.conv2d(images_BCHW, standardised, self.bias, self.stride, self.padding, self.dilation)


def use_official_arithmetic(model: nn.Module) -> None:
    """Give the convolutions and group norms of a hybrid or a BiT ResNet the authors' epsilons, in place."""
    is_hybrid = isinstance(model, VisionTransformer)
    for module in model.modules():
        match module:
            case StdConv2dSame():
                module.__class__ = OfficialStdConv2dSame  # parameters and names stay, only forward differs
            case StdConv2d():
                module.eps = BIT_VARIANCE_EPS
            case GroupNormAct() if is_hybrid:
                module.eps = HYBRID_NORM_EPS
