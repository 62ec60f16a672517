"""Logits of images, and features at a chosen layer of a network.

B batch, T tokens, D features, K classes, A heads, E width of a head.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from timm.layers import Attention
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from vitcli.errors import VitError
from vitcli.models import kernels


class TimmNetwork(nn.Module):
    """What timm promises of every classifier, as types; no network is an instance."""

    num_features: int
    num_prefix_tokens: int  # of transformers alone
    forward_features: Callable[[Tensor], Tensor]
    forward_head: Callable[..., Tensor]
    get_classifier: Callable[[], nn.Module | tuple[nn.Module, ...]]


def logits(model: nn.Module, images_BCHW: Tensor) -> Tensor:
    """Return the logits (B, K) of one forward pass; in low precision see `class_token_alone`."""
    with class_token_alone(model):
        return model(images_BCHW)


def outputs(model: TimmNetwork, images_BCHW: Tensor, *, layer: str, with_logits: bool) -> Tensor:
    """Return features (B, D), or features and logits (B, D + K), of one forward pass.

    Args:
        layer: "pre_logits" for the input of the last layer (paper, section 4.1), after the tanh layer where
            there is one; "token" for the class token or "gap" for the mean of the patch tokens, both after
            the last norm; "one_layer" for "pre_logits", of a head that reads several layers for "token".
    """
    with nullcontext() if layer == "gap" else class_token_alone(model):  # the first reads all tokens
        encoded = model.forward_features(images_BCHW)
        features_BD = features_at(model, encoded, layer)
        return torch.cat([features_BD, model.forward_head(encoded)], dim=1) if with_logits else features_BD


@contextmanager
def class_token_alone(model: nn.Module) -> Iterator[None]:
    """Compute no other token than the first in the last block of a ViT whose head reads no other.

    Within autocast and without gradients only: with fewer rows a product in fp32 sums in another order.
    """
    # A class made of timm's may read more, such as a distilled network's second token.
    last = model.blocks[-1] if type(model) is VisionTransformer and has_normed_token(model) else None
    if not (
        type(last) is Block
        and kernels.class_of(last.attn) is Attention
        and getattr(last.attn, "gate", None) is None
        and not (torch.is_grad_enabled() or model.training)
        and torch.is_autocast_enabled(next(model.parameters()).device.type)
    ):
        yield
        return
    with kernels.forward_by(last, partial(_first_token, last)):
        yield


def _first_token(block: Block, tokens_BTD: Tensor) -> Tensor:
    """Return the first token (B, 1, D) of a block's output, in evaluation mode."""
    layer = block.attn
    assert isinstance(layer, Attention), "checked above"
    qkv_BT3AE = layer.qkv(block.norm1(tokens_BTD)).unflatten(-1, (3, layer.num_heads, -1))
    q_BATE, k_BATE, v_BATE = qkv_BT3AE.permute(2, 0, 3, 1, 4).unbind(0)
    q_BA1E, k_BATE = layer.q_norm(q_BATE[:, :, :1]), layer.k_norm(k_BATE)
    is_written_out = kernels.is_written_out(tokens_BTD)
    attend = kernels.attend if is_written_out else F.scaled_dot_product_attention
    read_B1D = layer.norm(attend(q_BA1E, k_BATE, v_BATE).transpose(1, 2).flatten(2))
    token_B1D = tokens_BTD[:, :1] + block.ls1(layer.proj(read_B1D))
    return token_B1D + block.ls2(block.mlp(block.norm2(token_B1D)))


def check_layer(model: nn.Module, layer: str) -> None:
    """Refuse the class token of a network that has none, or that takes the mean before its last norm."""
    if layer == "token" and not has_normed_token(model):
        raise VitError(
            "this network has no class token after its last norm",
            where="--layer token (recipe key eval.layer)",
            fix="take gap, the mean of the patch tokens, or pre_logits, the input of the last layer",
        )


def features_at(model: TimmNetwork, encoded: Tensor, layer: str) -> Tensor:
    """Return the features (B, D) at a layer, see `outputs`, from the output of `forward_features`."""
    if layer == "token" or (layer == "one_layer" and num_read(model) > 1):
        return encoded[:, 0]
    if layer == "gap" and encoded.ndim == 3 and getattr(model, "global_pool", None) == "token":
        return tokens_of(model, encoded)[:, model.num_prefix_tokens :].mean(dim=1)
    if layer == "gap":  # the network does its own pooling
        return model.forward_head(encoded, pre_logits=True)
    # The input of the last layer; the tanh layer of pre-training is part of our head, not of timm's.
    features_BD = model.forward_head(encoded, pre_logits=True)
    head = getattr(model, "head", None)
    return head[:2](features_BD) if isinstance(head, nn.Sequential) else features_BD


def has_normed_token(model: nn.Module) -> bool:
    """Return True if the head reads the class token after the last norm."""
    return getattr(model, "cls_token", None) is not None and getattr(model, "global_pool", None) == "token"


def num_read(model: nn.Module) -> int:
    """Return how many vectors of the hidden width the head reads; several only if of several layers."""
    return getattr(model, "num_read", 1)


def tokens_of(model: nn.Module, encoded: Tensor) -> Tensor:
    """Return the tokens of the last layer, without the rows of several layers that a head reads."""
    return encoded[:, : -num_read(model)] if num_read(model) > 1 else encoded
