"""The formats of `vit export`: what each cannot say, how it is written, and how it is read back."""

import json
from dataclasses import dataclass
from pathlib import Path

import timm
from torch import nn

from vitcli.errors import CheckFailed, MachineError, VitError, nearest
from vitcli.models import pos_embed
from vitcli.models.architecture import Architecture
from vitcli.models.variants import BIT, HYBRID
from vitcli.output.atomic import replace_file
from vitcli.weights.files import write_npz
from vitcli.weights.io import read_weights, write_weights, write_weights_file
from vitcli.weights.jax import SPELLINGS, to_official
from vitcli.weights.load import load
from vitcli.weights.onnx import OnnxNetwork, write_onnx

SUFFIXES = {"timm": "", "onnx": ".onnx", "npz": ".npz", "safetensors": ".safetensors"}  # "timm" is a folder
PAPERS_NORM_EPS = 1e-6  # also timm's


@dataclass(frozen=True)
class Exported:
    """A network, and what is stored with it where the format has a place for it.

    Attributes:
        model: on the CPU, in evaluation mode.
        preprocessing: as `transforms.Preprocessing.as_dict`.
        class_names: in the order of the logits.
        metadata: whatever else was stored with the weights.
    """

    model: nn.Module
    architecture: Architecture
    preprocessing: dict
    class_names: tuple[str, ...] | None
    metadata: dict


def format_of(to: str | None, out: Path, *, names: str) -> str:
    """The format that is asked for by name, or else by the suffix of `out`.

    Raises:
        VitError: there is no such format or spelling, or the suffix is another format's.
    """
    by_suffix = {suffix: format for format, suffix in SUFFIXES.items()}.get(out.suffix)
    if to not in (None, *SUFFIXES):
        fix = f"one of {', '.join(SUFFIXES)}"
        raise VitError(f"there is no format {to!r}{nearest(to, SUFFIXES)}", where="--to", fix=fix)
    if to is None and by_suffix is None:
        fix = "end OUT in .onnx, .npz or .safetensors; a timm folder with a dot in its name needs --to timm"
        raise VitError(f"{out.name} says no format by its name", where="OUT", fix=fix)
    format = to or by_suffix
    if by_suffix != format and (by_suffix or format != "timm"):
        wanted = f"end OUT in {SUFFIXES[format]}" if SUFFIXES[format] else "name a folder"
        raise VitError(
            f"{out.name} is no name for {format}", where="OUT and --to", fix=f"{wanted}, or leave --to out"
        )
    if names not in SPELLINGS:
        fix = f"one of {', '.join(SPELLINGS)}"
        raise VitError(f"there is no spelling {names!r}{nearest(names, SPELLINGS)}", where="--names", fix=fix)
    if names != SPELLINGS[0] and format != "npz":
        raise VitError(
            f"the names in {format} are timm's", where="--names", fix="leave it out, or export to npz"
        )
    return format


def check_supported(format: str, arch: Architecture) -> None:
    """Refuse a network that the format has no words for, which would come back as another one."""
    unsaid = unsupported_feature(format, arch)
    if not unsaid:
        return
    others = [other for other in SUFFIXES if not unsupported_feature(other, arch)]
    fix = f"export to {' or '.join(others)}"
    if format == "timm" and arch.pre_logits:
        fix += ", or without the head (--no-head)"
    if format == "npz" and unsaid == _oblong(arch):
        fix += ", or give a square --res"
    says = "timm has" if format == "timm" else "the authors' .npz has"
    raise VitError(f"{says} no way to say: {unsaid}", where=f"--to {format}, {arch.name}", fix=fix)


def unsupported_feature(format: str, arch: Architecture) -> str | None:
    """The first thing about the network that the format cannot express."""
    match format:
        case "timm":
            has_layer = "a representation layer before the head (pre-logits)" if arch.pre_logits else None
            is_timms = pos_embed.is_timms(arch.posemb, arch.posemb_at)
            return has_layer or (None if is_timms else _position_embeddings(arch))
        case "npz":
            is_papers = (arch.posemb, arch.posemb_at) == ("1d", "stem")
            return _arithmetic(arch) or (None if is_papers else _position_embeddings(arch)) or _oblong(arch)
    return None


def _arithmetic(arch: Architecture) -> str | None:
    """An .npz holds arrays and not a word: whoever reads it takes the authors' arithmetic."""
    if arch.gelu not in ("tanh", "none"):
        arithmetic = {"erf": "the exact (erf) GELU", "timm": "a network as timm defines it"}[arch.gelu]
        return f"{arithmetic}; it means the tanh GELU and the authors' epsilons"
    if arch.norm_eps != PAPERS_NORM_EPS:
        return f"layer norms with an epsilon of {arch.norm_eps:g}; it means {PAPERS_NORM_EPS:g}"
    return None


def _oblong(arch: Architecture) -> str | None:
    """Readers of an .npz take the root of the number of patches for the side of their grid."""
    is_square = arch.patch_grid is None or len(set(arch.patch_grid)) == 1
    return None if is_square else "images of {}x{}".format(*arch.image_size)


def _position_embeddings(arch: Architecture) -> str:
    return f"position embeddings {arch.posemb!r} at {arch.posemb_at!r}"


def caveats(format: str, arch: Architecture) -> list[str]:
    """What is left out or read only under a condition, for a person."""
    told = []
    if format == "npz":
        told.append("an .npz has no place for preprocessing and class names: they are left out")
    if format == "timm" and arch.timm_name in (BIT, HYBRID):
        told.append(f"timm knows {arch.timm_name} once vitcli.backbones is imported, not without it")
    if format == "timm" and arch.is_of_the_paper and arch.norm_eps != PAPERS_NORM_EPS:
        told.append(f"layer norms add {arch.norm_eps:g} here and {PAPERS_NORM_EPS:g} in timm")
    return told


def write(format: str, path: Path, exported: Exported, *, names: str) -> None:
    """Write a network to a path that does not exist yet.

    Raises:
        WeightsError: the authors' format has no name for a tensor.
        MachineError: the disk is full, or a package is missing.
    """
    state, arch = exported.model.state_dict(), exported.architecture
    about = {"preprocessing": exported.preprocessing, "class_names": exported.class_names}
    match format:
        case "timm":
            write_weights(path, state, arch, **about, metadata=exported.metadata)
        case "safetensors":
            write_weights_file(path, state, arch, **about, metadata=exported.metadata)
        case "npz":
            blocks = getattr(exported.model, "blocks", None)
            arrays = to_official(state, heads=blocks[0].attn.num_heads if blocks else None, spelling=names)
            replace_file(path, lambda temporary: write_npz(temporary, arrays))
        case "onnx":
            stored = {"model": arch.name, "architecture": json.dumps(arch.as_dict())}
            stored |= {key: json.dumps(value) for key, value in about.items() if value}
            write_onnx(path, exported.model, arch.image_size, stored)


def read_back(format: str, path: Path) -> nn.Module:
    """What a stranger gets who reads the file or folder; in evaluation mode.

    Raises:
        CheckFailed: it cannot be read.
    """
    try:
        match format:
            case "timm":
                model = timm.create_model(f"local-dir:{path}", pretrained=True)
            case "onnx":
                model = OnnxNetwork(path)
            case _:
                model, _, _ = load(read_weights(str(path)))
    except (MachineError, MemoryError):
        raise
    except Exception as error:  # whatever a reader says of a file that we have just written
        reason = error.message if isinstance(error, VitError) else f"{type(error).__name__}: {error}"
        raise CheckFailed(
            f"what was written as {format} cannot be read back: {reason.splitlines()[0][:200]}",
            where=f"--to {format}",
            fix="export to another format, such as safetensors; please report it",
        ) from error
    return model.eval()
