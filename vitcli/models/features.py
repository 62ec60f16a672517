"""Features of images at a chosen layer of a network, with or without its logits.

B batch, T tokens, D features, K classes.
"""

import torch
from torch import Tensor, nn

from vitcli.errors import VitError


def outputs(model: nn.Module, images_BCHW: Tensor, *, layer: str, with_logits: bool) -> Tensor:
    """Return features (B, D), or features and logits (B, D + K), of one forward pass.

    Args:
        layer: "pre_logits" for the input of the last layer (paper, section 4.1), after the tanh layer where
            there is one; "token" for the class token or "gap" for the mean of the patch tokens, both after
            the last norm.
    """
    encoded = model.forward_features(images_BCHW)
    features_BD = _features_at(model, encoded, layer)
    return torch.cat([features_BD, model.forward_head(encoded)], dim=1) if with_logits else features_BD


def check_layer(model: nn.Module, layer: str) -> None:
    """Refuse the class token of a network that has none, or that takes the mean before its last norm."""
    if layer == "token" and not has_normed_token(model):
        raise VitError(
            "this network has no class token after its last norm",
            where="--layer token (recipe key eval.layer)",
            fix="take gap, the mean of the patch tokens, or pre_logits, the input of the last layer",
        )


def _features_at(model: nn.Module, encoded: Tensor, layer: str) -> Tensor:
    if layer == "token":
        return encoded[:, 0]
    if layer == "gap" and encoded.ndim == 3 and getattr(model, "global_pool", None) == "token":
        return encoded[:, model.num_prefix_tokens :].mean(dim=1)
    if layer == "gap":  # the network does its own pooling
        return model.forward_head(encoded, pre_logits=True)
    # The input of the last layer; the tanh layer of pre-training is part of our head, not of timm's.
    features_BD = model.forward_head(encoded, pre_logits=True)
    head = getattr(model, "head", None)
    return head.tanh(head.pre_logits(features_BD)) if isinstance(head, nn.Sequential) else features_BD


def has_normed_token(model: nn.Module) -> bool:
    """Return True if the head reads the class token after the last norm."""
    return getattr(model, "cls_token", None) is not None and getattr(model, "global_pool", None) == "token"
