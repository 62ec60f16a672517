"""A head that reads several layers: class token and mean of the patches of the last blocks, side by side.

For each of the last n of L blocks, both after the network's last norm:

    features = [token_(L-n+1), mean_(L-n+1), ..., token_L, mean_L],        2 n D values

The head is one dense layer on them. The parameters keep timm's names; timm has no place for this head, and
refuses to load `head.weight` by its shape.

B batch, T tokens, R = 2 n rows, D hidden width, K classes.
"""

from functools import partial
from typing import Any, TypeGuard

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from vitcli.errors import VitError
from vitcli.models.features import has_normed_token


class LayeredVisionTransformer(VisionTransformer):
    """timm's ViT, encoded as the tokens of its last layer and, behind them, the rows that its head reads.

    Attributes:
        num_read: R.
    """

    num_read: int

    def forward_features(
        self, images_BCHW: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Return (B, T + R, D)."""
        read = partial(self.forward_intermediates, norm=True, output_fmt="NLC", return_prefix_tokens=True)
        outputs: Any = read(  # of several types, by its arguments
            images_BCHW, indices=self.num_read // 2, attn_mask=attn_mask, is_causal=is_causal
        )
        encoded_BTD, layers = outputs
        rows = [(prefix_BSD[:, :1], x_BND.mean(dim=1, keepdim=True)) for x_BND, prefix_BSD in layers]
        return torch.cat([encoded_BTD, *(row_B1D for pair in rows for row_B1D in pair)], dim=1)

    def forward_head(self, encoded_BXD: Tensor, pre_logits: bool = False) -> Tensor:
        """Return logits (B, K), or features (B, R * D), from the output of `forward_features`."""
        features_BF = self.head_drop(encoded_BXD[:, -self.num_read :].flatten(1))
        return features_BF if pre_logits else self.head(features_BF)


def can_read_layers(model: nn.Module, num_layers: int) -> TypeGuard[VisionTransformer]:
    """Return whether the head of a network can read this many layers: of a plain ViT with a class token."""
    return (
        type(model) is VisionTransformer
        and has_normed_token(model)
        and isinstance(model.head, nn.Linear)
        and model.head.bias is not None
        and isinstance(model.fc_norm, nn.Identity)
        and 0 < num_layers <= len(model.blocks)
    )


def with_layered_head(model: nn.Module, num_layers: int) -> LayeredVisionTransformer:
    """Return the network with the same logits and a head that reads the last layers.

    The weights of the last class token are those of the head, all others are zero. Everything but the head
    is shared with `model`, which stays as it is.

    Raises:
        VitError: it is not a plain ViT, or has fewer blocks.
    """
    if not can_read_layers(model, num_layers):
        raise VitError(
            f"the head of this network cannot read {num_layers} layers",
            where="architecture, head_layers",
            fix="take a ViT of timm with a class token and as many blocks, or write the weights again",
        )
    head = model.head
    assert isinstance(head, nn.Linear), "checked above"
    layered = LayeredVisionTransformer.__new__(LayeredVisionTransformer)
    own = {"_modules": dict(model._modules), "_compiled_call_impl": None, "num_read": 2 * num_layers}
    layered.__dict__ = {**model.__dict__, **own}
    old_KD, bias_K = head.weight.detach(), head.bias.detach()
    weight_KF = old_KD.new_zeros(len(old_KD), layered.num_read * old_KD.shape[1])
    weight_KF[:, columns_of_token(weight_KF.shape[1], num_layers)] = old_KD
    layered.head = nn.Linear(weight_KF.shape[1], len(old_KD), device="meta")  # which draws no numbers
    layered.head.weight, layered.head.bias = nn.Parameter(weight_KF), nn.Parameter(bias_K.clone())
    return layered


def columns_of_token(num_features: int, num_layers: int) -> slice:
    """Return where the last class token stands, the feature of an ordinary head, among 2 n D features."""
    width = num_features // (2 * num_layers)
    return slice(num_features - 2 * width, num_features - width)
