"""The depth of each parameter of a network, and the learning rates that fall with it."""

from timm.models import group_parameters
from torch import nn

from vitcli.errors import VitError

EMBEDDING = 0  # depth of the patch embedding and of all that is added to or stands beside its tokens
POSITIONS = "positions."  # the paper's Table 8, which timm does not know; also within blocks


def depths_of(model: nn.Module) -> dict[str, int]:
    """Return the depth of each parameter by name: 0 for the embedding, i + 1 for block i, then the head.

    The norm after the last block belongs to that block, as timm groups the parameters.

    Raises:
        VitError: timm does not say in which order this network has its layers.
    """
    if not hasattr(model, "group_matcher"):
        raise VitError(
            "the layers of this network have no order that timm knows",
            where="recipe key optimizer.layer_decay or model.freeze",
            fix="leave the key out, or take a network of timm for images with one label or several",
        )
    depths = group_parameters(model, model.group_matcher(coarse=False), reverse=True)
    return depths | dict.fromkeys((name for name in depths if name.startswith(POSITIONS)), EMBEDDING)


def lr_scales(model: nn.Module, layer_decay: float) -> dict[str, float]:
    """Return what the learning rate of each parameter is multiplied with, by name.

        scale = layer_decay^(depth of the head - depth)

    Source: BEiT (arXiv 2106.08254), in the grouping of timm.optim.param_groups_layer_decay.
    """
    depths = depths_of(model)
    deepest = max(depths.values())
    return {name: layer_decay ** (deepest - depth) for name, depth in depths.items()}
