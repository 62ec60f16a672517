"""What a network that is only looked through says of pictures: features at a chosen layer, and logits.

B batch, T tokens, D features, K classes.
"""

import torch
from torch import Tensor, nn

from vitcli.errors import VitError
from vitcli.models.build import before_last_layer

LAYERS = ("pre_logits", "token", "gap")


def outputs(model: nn.Module, images_BCHW: Tensor, *, layer: str, with_logits: bool) -> Tensor:
    """(B, D), or (B, D + K) with the logits behind the features, of one forward pass.

    Args:
        layer: "pre_logits" is what the last layer is given, by way of the tanh layer where there is one;
            "token" the class token, "gap" the mean of the tokens of patches, both after the last norm.
    """
    encoded = model.forward_features(images_BCHW)
    found = _of_layer(model, encoded, layer)
    return torch.cat([found, model.forward_head(encoded)], dim=1) if with_logits else found


def check_layer(model: nn.Module, layer: str) -> None:
    """Refuse the class token of a network that has none, or whose last norm comes after the mean."""
    if layer == "token" and not has_normed_token(model):
        raise VitError(
            "this network has no class token after its last norm",
            where="--layer token (recipe key eval.layer)",
            fix="gap, the mean of the patches, or pre_logits, what the last layer is given",
        )


def _of_layer(model: nn.Module, encoded: Tensor, layer: str) -> Tensor:
    if layer == "token":
        return encoded[:, 0]
    if layer == "gap" and encoded.ndim == 3 and getattr(model, "global_pool", None) == "token":
        return encoded[:, model.num_prefix_tokens :].mean(dim=1)
    if layer == "gap":  # of a network that pools by itself
        return model.forward_head(encoded, pre_logits=True)
    return before_last_layer(model, encoded)


def has_normed_token(model: nn.Module) -> bool:
    """Whether what the network says is read from its class token, after the last norm."""
    return getattr(model, "cls_token", None) is not None and getattr(model, "global_pool", None) == "token"
