"""Features after every block of a transformer, all of one forward pass.

A block's tokens are normed as the network norms its last ones, as timm's `forward_intermediates(norm=True)`
does: those of the last layer are then the tokens that the network's head gets.

B batch, T tokens, D hidden width, H features that the head reads, O values of a row.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

from vitcli.errors import VitError
from vitcli.models.features import TimmNetwork, features_at, tokens_of

TOKEN, MEAN, HEAD = "token", "mean", "head"


@dataclass(frozen=True)
class LayerLayout:
    """What is read of a network, and where it stands in a row of O values.

    Attributes:
        num_layers: blocks of the network; 0 where its layers cannot be read.
        layers: the blocks that are read, from 1, ascending.
        parts: (pooling, layer, number of values) in their order; the input of the head is of the last layer.
    """

    num_layers: int
    layers: tuple[int, ...]
    parts: tuple[tuple[str, int, int], ...]

    @property
    def width(self) -> int:
        """Return O."""
        return sum(size for _, _, size in self.parts)

    @property
    def slices(self) -> dict[tuple[str, int], slice]:
        """Return where each part stands, by pooling and layer."""
        ends = list(accumulate(size for _, _, size in self.parts))
        return {
            (name, layer): slice(end - size, end)
            for (name, layer, size), end in zip(self.parts, ends, strict=True)
        }


def num_blocks(model: TimmNetwork, image_size: tuple[int, int]) -> int:
    """Return how many blocks have tokens that become the last ones by the network's norm alone; 0 for none.

    Decided by a forward pass of an image of noise: many networks have a list `blocks` of something else.
    """
    blocks = getattr(model, "blocks", None)
    has_norm = isinstance(getattr(model, "norm", None), nn.Module) and hasattr(model, "forward_features")
    if not isinstance(blocks, nn.Sequential | nn.ModuleList) or not len(blocks) or not has_norm:
        return 0
    images_BCHW = _noise(model, image_size)
    was_training, kept = model.training, dict[int, Tensor]()
    model.eval()
    try:
        with torch.no_grad(), reading(model, range(1, len(blocks) + 1), kept.__setitem__):
            encoded = tokens_of(model, model.forward_features(images_BCHW))
    finally:
        model.train(was_training)
    is_alike = all(isinstance(x, Tensor) and x.shape == encoded.shape for x in kept.values())
    if encoded.ndim != 3 or len(kept) != len(blocks) or not is_alike:
        return 0
    with torch.no_grad():
        is_last = torch.allclose(
            model.get_submodule("norm")(kept[len(blocks)]), encoded, rtol=1e-3, atol=1e-4
        )
    return len(blocks) if is_last else 0


def layout_of(
    model: TimmNetwork, image_size: tuple[int, int], layers: str | Sequence[int], *, ckpt: str
) -> LayerLayout:
    """Return what is read of a network.

    Args:
        layers: "all", "last", or numbers from 1.
        ckpt: its name in an error.

    Raises:
        VitError: the network has no such layer, or none that can be read.
    """
    count = num_blocks(model, image_size)
    if not count:
        if layers != "last":
            raise VitError(
                f"{type(model).__name__} has no transformer blocks whose tokens can be read",
                where=f"--layers, --ckpt {ckpt}",
                fix="take --layers last for it: the input of its head",
            )
        with torch.no_grad():
            encoded = model.forward_features(_noise(model, image_size))
            width = features_at(model, encoded, "pre_logits").shape[1]
        return LayerLayout(0, (0,), ((HEAD, 0, width),))
    if isinstance(layers, str):
        layers = range(1, count + 1) if layers == "all" else (count,)
    if max(layers) > count:
        raise VitError(
            f"there is no layer {max(layers)}: the network has {count}",
            where=f"--layers, --ckpt {ckpt}",
            fix=f"numbers from 1 to {count}, all or last",
        )
    return _layout_of_blocks(model, image_size, tuple(sorted(set(layers))), count)


def _layout_of_blocks(
    model: TimmNetwork, image_size: tuple[int, int], layers: tuple[int, ...], count: int
) -> LayerLayout:
    with torch.no_grad():
        encoded = model.forward_features(_noise(model, image_size))
        of_head = features_at(model, encoded, "pre_logits")
    encoded = tokens_of(model, encoded)
    width = encoded.shape[2]
    names = [MEAN] if getattr(model, "cls_token", None) is None else [TOKEN, MEAN]
    parts = [(name, layer, width) for layer in layers for name in names]
    # A head that reads the class token, or the mean, as it is adds nothing.
    pooled = (encoded[:, 0], encoded[:, getattr(model, "num_prefix_tokens", 0) :].mean(dim=1))
    if count in layers and not any(torch.equal(of_head, read_BD) for read_BD in pooled):
        parts.append((HEAD, count, of_head.shape[1]))
    return LayerLayout(count, layers, tuple(parts))


def read_layers(model: TimmNetwork, images_BCHW: Tensor, layout: LayerLayout) -> Tensor:
    """Return the row (B, O) of each image."""
    if not layout.num_layers:
        return features_at(model, model.forward_features(images_BCHW), "pre_logits")
    last, first, norm = layout.num_layers, getattr(model, "num_prefix_tokens", 0), model.get_submodule("norm")
    read: dict[tuple[str, int], Tensor] = {}

    def pool(layer: int, tokens_BTD: Tensor) -> None:
        read[TOKEN, layer], read[MEAN, layer] = tokens_BTD[:, 0], tokens_BTD[:, first:].mean(dim=1)

    # Pooled within the pass, so that no more than one layer's tokens are kept.
    inner = [layer for layer in layout.layers if layer < last]
    with reading(model, inner, lambda layer, tokens_BTD: pool(layer, norm(tokens_BTD))):
        encoded = model.forward_features(images_BCHW)
    read[HEAD, last] = features_at(model, encoded, "pre_logits")
    encoded = tokens_of(model, encoded)
    pool(last, encoded)
    columns = [read[name, layer] for name, layer, _ in layout.parts]
    return torch.cat([column.float() for column in columns], dim=1)


@contextmanager
def reading(model: nn.Module, layers: Sequence[int], read: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Call `read(layer, tokens_BTD)` with the output of each of these blocks in the passes inside."""

    def hook_of(layer: int) -> Callable[..., None]:
        return lambda module, inputs, tokens_BTD: read(layer, tokens_BTD)

    with ExitStack() as hooks:
        for layer in layers:
            block = model.get_submodule(f"blocks.{layer - 1}")
            hooks.enter_context(block.register_forward_hook(hook_of(layer)))
        yield


def _noise(model: nn.Module, image_size: tuple[int, int]) -> Tensor:
    weight = next(model.parameters())
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4, 3, *image_size, generator=generator).to(weight.device, weight.dtype)
