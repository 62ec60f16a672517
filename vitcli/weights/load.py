"""Weights into a network: all of them or a word about each that was not taken."""

import math
from dataclasses import dataclass, replace

from torch import nn

from vitcli.errors import WeightsError
from vitcli.models import pos_embed
from vitcli.models.architecture import Architecture
from vitcli.models.build import adapted, build, check_image_size, takes_image_size
from vitcli.weights.diagnose import check_fits
from vitcli.weights.files import attribute_errors_to
from vitcli.weights.io import Weights
from vitcli.weights.timm import head_names


@dataclass(frozen=True)
class LoadReport:
    """What became of each tensor: `loaded` counts those taken, resampled ones included."""

    loaded: int
    missing: tuple[str, ...]
    resampled: tuple[str, ...]
    replaced: tuple[str, ...]
    unused: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """For a person, one line for each kind there is."""
        told = {
            "not in the file, so fresh": self.missing,
            "resampled": self.resampled,
            "replaced by a fresh head": self.replaced,
            "in the file, and of no use here": self.unused,
        }
        return [f"{self.loaded} tensors loaded", *(f"{k}: {', '.join(v)}" for k, v in told.items() if v)]


def load(
    weights: Weights,
    *,
    image_size: tuple[int, int] | None = None,
    num_classes: int | None = None,
    gelu: str | None = None,
    dropout: float = 0.0,
    drop_path: float = 0.0,
    posemb_method: str = "paper",
) -> tuple[nn.Module, Architecture, LoadReport]:
    """A network with these weights, on the CPU and in training mode.

    Args:
        image_size: height and width in pixels; the weights' own if None.
        num_classes: of a fresh head of zeros (paper, section 3.2); None keeps the weights' own head.
        gelu: another form of it than the weights were made with.
        dropout, drop_path: see `model.build`.
        posemb_method: how position embeddings are resampled, see `posemb.resample_posemb`.

    Raises:
        WeightsError: a tensor does not fit.
        VitError: an image size the patches do not divide, or a network without such dropout.
    """
    own = weights.architecture
    size = tuple(image_size) if image_size else own.image_size
    if num_classes is None:
        arch = replace(own, image_size=size, gelu=gelu or own.gelu)
        if size != own.image_size:
            check_image_size(arch)
    else:
        arch = adapted(own, image_size=size, num_classes=num_classes, gelu=gelu)
    model = build(arch, dropout=dropout, drop_path=drop_path, init="none")
    report = load_into(model, arch, weights, new_head=num_classes is not None, posemb_method=posemb_method)
    return model, arch, report


def load_into(
    model: nn.Module,
    arch: Architecture,
    weights: Weights,
    *,
    new_head: bool,
    posemb_method: str = "paper",
) -> LoadReport:
    """Copy weights into a network that `build(arch)` made, position embeddings resampled to its patch grid.

    Args:
        model: changed in place.
        arch: what `model` was built from.
        weights: of the same network, at any resolution.
        new_head: leave the network's own head as it is, and the file's head out.

    Raises:
        WeightsError: any tensor is missing, left over or of another shape.
    """
    state, expected = dict(weights.state), {name: t.shape for name, t in model.state_dict().items()}
    resampled, missing, replaced = [], [], []
    with attribute_errors_to(weights.source):
        old_grid, new_grid = weights.architecture.patch_grid, arch.patch_grid
        if old_grid and new_grid and old_grid != new_grid:
            state, resampled = pos_embed.resample(
                state,
                kind=arch.posemb,
                place=arch.posemb_at,
                old_grid=old_grid,
                new_grid=new_grid,
                num_prefix=num_prefix_rows(weights),
                method=posemb_method,
            )
        elif weights.architecture.image_size != arch.image_size:
            _check_takes_any_size(weights, arch)
        if new_head:
            of_head = head_names(arch)
            replaced = [name for name in state if name.startswith(of_head)]
            missing = [] if replaced else [name for name in expected if name.startswith(of_head)]
            state = {name: t for name, t in state.items() if not name.startswith(of_head)}
            expected = {name: shape for name, shape in expected.items() if not name.startswith(of_head)}
        check_fits(state, expected, arch)
    model.load_state_dict(state, strict=False)  # what it may lack is the head, checked above
    unused = tuple(weights.metadata.get("unused_tensors") or ())
    return LoadReport(len(state), tuple(missing), tuple(resampled), tuple(replaced), unused)


def _check_takes_any_size(weights: Weights, arch: Architecture) -> None:
    """Refuse another size where a table of positions would stay as it is, for want of a known grid."""
    if arch.patch_grid is None and takes_image_size(arch.timm_name) and "pos_embed" in weights.state:
        height, width = weights.architecture.image_size
        raise WeightsError(
            f"the name {arch.timm_name} does not tell its patch grid, so its position embeddings cannot be "
            "resampled",
            where="--res",
            fix=f"use the size of the weights, {height}x{width}",
        )


def num_prefix_rows(weights: Weights) -> int:
    """Rows of the position embedding for tokens without a place: the class token, registers.

    The grid is known from the architecture, so this is no guess.
    """
    if "pos_embed" not in weights.state:
        return int("cls_token" in weights.state)
    return weights.state["pos_embed"].shape[1] - math.prod(weights.architecture.patch_grid)
