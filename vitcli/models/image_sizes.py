"""Networks that take square images of other sizes than their own, for training that begins with small ones.

A position embedding is stored for one grid. Where an image has another grid it is resampled in the forward
pass, as `pos_embed` resamples stored ones, and its gradient goes to the stored grid. Rotary embeddings are
computed for the image's grid.

B batch, N patches, T tokens, D hidden width.
"""

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from vitcli.errors import VitError
from vitcli.models import pos_embed
from vitcli.models.architecture import Architecture
from vitcli.models.build import takes_image_size


def take_other_sizes(model: nn.Module, arch: Architecture, *, method: str) -> None:
    """Let a network take square images of any size that its patches divide, in place.

    Images of its own size are computed as before, to the bit.

    Args:
        method: of resampling, see `pos_embed.resample_posemb`.

    Raises:
        VitError: its position embeddings belong to one image size.
    """
    if getattr(model, "dynamic_img_size", False):  # timm has built it for any size, such as DINOv3's
        return
    rope = getattr(model, "rope", None)
    has_known_rope = not rope or hasattr(rope, "update_feat_shape")
    if not (isinstance(model, VisionTransformer | Eva) and has_known_rope):
        if takes_image_size(arch.timm_name):
            raise VitError(
                f"{arch.name} is built for one image size",
                where="recipe key schedule.image_sizes",
                fix="leave the key out, or take a ViT, a hybrid or a network of rotary embeddings of timm",
            )
        return
    pos_embed.check_can_move(arch.posemb, arch.patch_grid or (1, 1), (1, 1), method)
    model.patch_embed.strict_img_size = False
    if model.pos_embed is not None or rope:
        network: Any = model  # of which an attribute hides a method of its class
        network._pos_embed = partial(_add_positions, model, method=method, ropes={})
    for module in model.modules():
        if isinstance(module, pos_embed.Positions):
            module.method = method


def _add_positions(
    model: Any, patches_BND: Tensor, *, method: str, ropes: dict[tuple[int, int], nn.Module]
) -> Any:
    """Return what timm's `_pos_embed` of the network returns: the tokens (B, T, D) with their positions.

    Args:
        model: one of those classes of timm.
        ropes: the rotary embeddings of other grids so far.
    """
    num_patches, num_own = patches_BND.shape[1], model.patch_embed.num_patches
    if num_patches == num_own:
        return type(model)._pos_embed(model, patches_BND)
    grid, instead = pos_embed.square_grid(num_patches), dict[str, Any]()
    if model.pos_embed is not None:
        own_1TD, own_grid, count = model.pos_embed, model.patch_embed.grid_size, model.pos_embed.shape[1]
        instead["pos_embed"] = pos_embed.resample_posemb(
            own_1TD, own_grid, grid, num_prefix=count - num_own, method=method
        )
    if rope := getattr(model, "rope", None):
        if grid not in ropes:  # the same parameters for another grid
            other, buffers = copy.copy(rope), rope._buffers.items()
            other._buffers = {name: None if old is None else old.clone() for name, old in buffers}
            other.update_feat_shape(list(grid))
            ropes[grid] = other
        instead["rope"] = ropes[grid].train(rope.training)
    with _instead_of_its_own(model, instead):
        return type(model)._pos_embed(model, patches_BND)


@contextmanager
def _instead_of_its_own(model: nn.Module, instead: dict[str, Any]) -> Iterator[None]:
    """Let timm's method read another table and another module; the order of the parameters stays."""
    places: dict[str, dict[str, Any]] = {"pos_embed": model._parameters, "rope": model._modules}
    with ExitStack() as restored:
        for name, value in instead.items():
            restored.callback(places[name].__setitem__, name, places[name][name])
            places[name][name] = value
        yield
