"""Loading of weights into a network, with a report on every tensor that was not taken as it is."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from vitcli.errors import WeightsError
from vitcli.models import pos_embed
from vitcli.models.architecture import Architecture
from vitcli.models.build import (
    adapted,
    build,
    check_image_size,
    last_layers,
    resampled_by_timm,
    takes_image_size,
)
from vitcli.models.features import TimmNetwork
from vitcli.output.progress import Progress
from vitcli.output.text import count_of, first_few
from vitcli.weights.diagnose import check_fits
from vitcli.weights.files import attribute_errors_to
from vitcli.weights.io import Weights
from vitcli.weights.timm import head_names


@dataclass(frozen=True)
class LoadReport:
    """Names of the tensors that were not loaded unchanged; `loaded` counts the others and the resampled.

    Attributes:
        kept_head: a line on a head that was kept to be trained on, or "".
    """

    loaded: int
    missing: tuple[str, ...]
    resampled: tuple[str, ...]
    replaced: tuple[str, ...]
    unused: tuple[str, ...]
    kept_head: str = ""

    def lines(self) -> list[str]:
        """Return a line for each kind of tensor."""
        kinds = {
            "not in the file, initialised": self.missing,
            "resampled": self.resampled,
            "replaced by a fresh head": self.replaced,
            "in the file but unused": self.unused,
        }
        lines = [f"{count_of(self.loaded, 'tensor')} loaded"]
        lines += [f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if names]
        return [*lines, self.kept_head] if self.kept_head else lines

    def summary(self) -> str:
        """Return the same in a few words, such as "pos_embed resampled, fresh head"."""
        parts = [f"{first_few(self.resampled, 2)} resampled"] if self.resampled else []
        parts += [f"not in the file: {first_few(self.missing, 3)}"] if self.missing else []
        parts += [f"unused: {first_few(self.unused, 3)}"] if self.unused else []
        parts += ["fresh head"] if self.replaced else ["its own head"] if self.kept_head else []
        return ", ".join(parts) or f"all {count_of(self.loaded, 'tensor')}"


def load(
    weights: Weights,
    *,
    image_size: tuple[int, int] | None = None,
    num_classes: int | None = None,
    dropout: float = 0.0,
    drop_path: float = 0.0,
    patch_dropout: float = 0.0,
    posemb_method: str = "auto",
) -> tuple[TimmNetwork, Architecture, LoadReport]:
    """Return a network with these weights, on the CPU and in training mode.

    Args:
        image_size: height and width in pixels (default: that of the weights).
        num_classes: of a fresh head of zeros (paper, section 3.2); None keeps the head of the weights.
        dropout, drop_path, patch_dropout: see `models.build.build`.
        posemb_method: of resampling position embeddings, see `pos_embed.method_for` and `resample_posemb`.

    Raises:
        WeightsError: a tensor does not fit.
        VitError: an image size the patches do not divide, or a network without such dropout.
    """
    stored = weights.architecture
    size = image_size or stored.image_size
    if num_classes is None:
        arch = replace(stored, image_size=size)
        if size != stored.image_size:
            check_image_size(arch)
    else:
        arch = adapted(stored, image_size=size, num_classes=num_classes)
    drawn = {"dropout": dropout, "drop_path": drop_path, "patch_dropout": patch_dropout}
    model = build(arch, **drawn, init="none")
    report = load_into(model, arch, weights, new_head=num_classes is not None, posemb_method=posemb_method)
    return model, arch, report


def num_blocks(weights: Weights) -> int:
    """Count the transformer blocks that may be left out from the end; 0 where none may."""
    arch = weights.architecture
    if arch.head_layers or not arch.patch_size:  # a head that reads several, blocks of another kind
        return 0
    return len({name.split(".")[1] for name in weights.state if name.startswith("blocks.")})


def with_first_blocks(weights: Weights, count: int) -> Weights:
    """Return the weights of the network with its first blocks alone.

    Raises:
        WeightsError: it has fewer, or none that may be left out.
    """
    depth = num_blocks(weights)
    if not 0 < count <= depth:
        problem = f"{weights.source} has {count_of(depth, 'block')} to keep, not {count}"
        raise WeightsError(
            problem, where="recipe key model.layers", fix=f"take 1 to {depth}, or leave it out"
        )
    dropped = tuple(f"blocks.{number}." for number in range(count, depth))
    state = {name: tensor for name, tensor in weights.state.items() if not name.startswith(dropped)}
    arch = weights.architecture
    shallow = replace(arch, model_args=arch.model_args | {"depth": count})
    return replace(weights, state=state, architecture=shallow) if dropped else weights


def keep_head(
    model: TimmNetwork,
    weights: Weights,
    class_names: tuple[str, ...] | None,
    *,
    num_classes: int,
    data_name: str,
) -> str:
    """Put the head of a network with these weights into the order of the data's classes; return how.

    Args:
        class_names: of the data; classes without names are taken to be in the same order.
        num_classes: of the data.
        data_name: of the data, for messages.

    Raises:
        WeightsError: the weights have no head, or one for other classes.
    """
    stored = weights.class_names
    check_same_classes(weights, class_names, num_classes=num_classes, data_name=data_name)
    if stored and class_names and stored != class_names:
        number_of = {name: number for number, name in enumerate(stored)}
        order = torch.tensor([number_of[name] for name in class_names])
        with torch.no_grad():
            for layer in last_layers(model):
                for parameter in layer.parameters():
                    parameter.copy_(parameter[order])
    how = "by name" if stored and class_names else "by number, as names are missing"
    return f"the head is kept: its {num_classes} classes are those of the data, {how}"


def check_same_classes(
    weights: Weights, class_names: tuple[str, ...] | None, *, num_classes: int, data_name: str
) -> None:
    """Refuse to keep the head of weights whose classes are not those of the data."""
    own = weights.architecture.num_classes
    fix = "leave --keep-head out: a new head is trained for the classes of the data"
    if not own:
        raise WeightsError("these weights have no head to keep", where="--keep-head", fix=fix)
    if weights.class_names and class_names:
        in_data, in_weights = set(class_names), set(weights.class_names)
        if in_data != in_weights:
            raise WeightsError(
                f"the head of {weights.source} is for other classes than {data_name} has",
                where=f"--keep-head; only in the data: {first_few(sorted(in_data - in_weights)) or 'none'}; "
                f"only in the weights: {first_few(sorted(in_weights - in_data)) or 'none'}",
                fix=fix,
            )
    elif own != num_classes:
        message = f"the head of {weights.source} is for {own} classes, {data_name} has {num_classes}"
        raise WeightsError(message, where="--keep-head", fix=fix)


def load_for_inference(
    weights: Weights,
    image_size: tuple[int, int],
    posemb_method: str,
    device: torch.device,
    progress: Progress,
    *,
    needs_head: bool = True,
) -> tuple[TimmNetwork, Architecture]:
    """Build the network on the device, in evaluation mode; note the tensors that were not loaded as stored.

    Raises:
        WeightsError: the weights have no head and `needs_head`, or do not fit.
    """
    if needs_head and not weights.architecture.num_classes:
        raise WeightsError(
            "these weights have no head, so they predict no classes",
            where=weights.source,
            fix="fine-tune them first: vit finetune --ckpt WEIGHTS --dataset DATA",
        )
    model, arch, report = load(weights, image_size=image_size, posemb_method=posemb_method)
    for line in report.lines()[1:]:
        progress.note(line)
    return model.to(device).eval(), arch


def load_into(
    model: nn.Module, arch: Architecture, weights: Weights, *, new_head: bool, posemb_method: str = "auto"
) -> LoadReport:
    """Copy weights into a network made by `build(arch)`, position embeddings resampled to its patch grid.

    Args:
        model: changed in place.
        weights: of the same network, at any resolution.
        new_head: keep the network's head and drop that of the weights.

    Raises:
        WeightsError: any tensor is missing, unexpected or of another shape.
    """
    state, expected = dict(weights.state), {name: t.shape for name, t in model.state_dict().items()}
    resampled: list[str] = []
    missing, replaced = [], []
    with attribute_errors_to(weights.source):
        # Resample the position embeddings to another patch grid
        if weights.architecture.image_size != arch.image_size:
            method = pos_embed.method_for(arch, posemb_method)
            state, resampled = _resampled(weights, arch, expected, method)
        # Leave the head out
        if new_head:
            prefixes = head_names(arch)
            replaced = [name for name in state if name.startswith(prefixes)]
            missing = [] if replaced else [name for name in expected if name.startswith(prefixes)]
            state = {name: t for name, t in state.items() if not name.startswith(prefixes)}
            expected = {name: shape for name, shape in expected.items() if not name.startswith(prefixes)}
        check_fits(state, expected, arch)
    model.load_state_dict(state, strict=False)  # what it may lack is the head, checked above
    unused = tuple(weights.metadata.get("unused_tensors") or ())
    return LoadReport(len(state), tuple(missing), tuple(resampled), tuple(replaced), unused)


def _resampled(
    weights: Weights, arch: Architecture, expected: dict[str, torch.Size], method: str
) -> tuple[dict[str, Tensor], list[str]]:
    """Return the state dict at another image size, and the names of the tensors that this changed.

    Position embeddings on a known grid are resampled by `method`. Whatever else a network of timm stores for
    one image size, timm resamples in its own way.
    """
    stored = weights.architecture
    old_grid, new_grid = stored.patch_grid, arch.patch_grid
    state, resampled = dict(weights.state), list[str]()
    if old_grid and new_grid and old_grid != new_grid:
        state, resampled = resample_posemb(weights, state, new_grid, method=method)
    has_table = old_grid is None and takes_image_size(arch.timm_name) and "pos_embed" in state
    others = [name for name, shape in expected.items() if name in state and state[name].shape != shape]
    others = [name for name in others if not name.startswith(head_names(arch))]
    if arch.is_of_the_paper or not (has_table or others):
        return state, resampled
    # timm infers the old grid from the number of rows: a square one, and none at all if the number stays
    height, width = stored.image_size
    if height != width or (has_table and "pos_embed" not in others):
        raise WeightsError(
            f"the patch grid of {arch.timm_name} is unknown, so its position embeddings cannot be resampled",
            where="--res",
            fix=f"use the size of the weights, {height}x{width}",
        )
    by_timm = resampled_by_timm(replace(arch, num_classes=stored.num_classes), state)
    return by_timm, resampled + others


def resample_posemb(
    weights: Weights, state: dict[str, Tensor], new_grid: tuple[int, int], *, method: str
) -> tuple[dict[str, Tensor], list[str]]:
    """Return a state dict with the position embeddings for another patch grid, and the names of these."""
    arch, rows = weights.architecture, num_prefix_rows(weights)
    kind, place, old_grid = arch.posemb, arch.posemb_at, arch.known_grid
    return pos_embed.resample(
        state, old_grid, new_grid, kind=kind, place=place, num_prefix=rows, method=method
    )


def num_prefix_rows(weights: Weights) -> int:
    """Count the rows of the position embedding for tokens that stand for no patch: class token, registers."""
    if "pos_embed" not in weights.state:
        return int("cls_token" in weights.state)
    return weights.state["pos_embed"].shape[1] - math.prod(weights.architecture.known_grid)
