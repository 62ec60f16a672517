"""Networks that take square images of other sizes than their own, for training that begins with small ones.

A position embedding is stored for one grid. Where an image has another grid it is resampled in the forward
pass, as `pos_embed` resamples stored ones, and its gradient goes to the stored grid.

B batch, N patches, T tokens, D hidden width.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

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
    if not isinstance(model, VisionTransformer):
        if takes_image_size(arch.timm_name):
            raise VitError(
                f"{arch.name} is built for one image size",
                where="recipe key schedule.image_sizes",
                fix="leave the key out, or take a ViT or a hybrid of timm with one position for each token",
            )
        return
    pos_embed.check_can_move(arch.posemb, arch.patch_grid, (1, 1), method)
    model.patch_embed.strict_img_size = False
    if model.pos_embed is not None:
        model._pos_embed = partial(_add_positions, model, method=method)
    for module in model.modules():
        if isinstance(module, pos_embed.Positions):
            module.method = method


def _add_positions(model: VisionTransformer, patches_BND: Tensor, *, method: str) -> Tensor:
    """Return the tokens (B, T, D) with their positions, as timm's `_pos_embed` of the network adds them."""
    num_patches, num_own = patches_BND.shape[1], model.patch_embed.num_patches
    if num_patches == num_own:
        return type(model)._pos_embed(model, patches_BND)
    grids = model.patch_embed.grid_size, pos_embed.square_grid(num_patches)
    num_prefix = model.pos_embed.shape[1] - num_own
    table_1TD = pos_embed.resample_posemb(model.pos_embed, *grids, num_prefix=num_prefix, method=method)
    with _instead_of_its_own(model, table_1TD):
        return type(model)._pos_embed(model, patches_BND)


@contextmanager
def _instead_of_its_own(model: nn.Module, table_1TD: Tensor) -> Iterator[None]:
    """Let timm's method read another table; the order of the parameters stays."""
    parameter = model._parameters["pos_embed"]
    model._parameters["pos_embed"] = table_1TD
    try:
        yield
    finally:
        model._parameters["pos_embed"] = parameter
