"""The formats of `vit export`: what each can express, how it is written, and how it is read back."""

import json
from collections.abc import Iterable
from pathlib import Path

import timm
from torch import Tensor, nn

from vitcli.data.transforms import Preprocessing
from vitcli.errors import CheckFailed, MachineError, VitError, is_out_of_memory, nearest
from vitcli.models import pos_embed
from vitcli.models.architecture import Architecture
from vitcli.models.variants import BIT, HYBRID
from vitcli.output.atomic import replace_file
from vitcli.output.text import count_of
from vitcli.weights.authors_npz import SPELLINGS, to_official
from vitcli.weights.describe import WeightsInfo
from vitcli.weights.files import write_npz
from vitcli.weights.io import FEATURE_STATISTICS, Weights, read_weights, write_weights, write_weights_file
from vitcli.weights.licences import KEY, UNKNOWN
from vitcli.weights.load import load
from vitcli.weights.onnx import write_onnx
from vitcli.weights.production.program import ProgramForm, ProgramNetwork
from vitcli.weights.production.torch_export import Pt2Network, write_pt2, write_pte

# "timm" is a folder
SUFFIXES = {
    "timm": "", "onnx": ".onnx", "pt2": ".pt2", "pte": ".pte", "npz": ".npz", "safetensors": ".safetensors",
}  # fmt: skip
FROM_IMAGES = ("onnx", "pt2", "pte")  # with preprocessing inside
PAPER_NORM_EPS = Architecture.norm_eps  # and timm's
OF_LABELS = ("target", "several_labels", "belief")  # of the metadata of weights: what their outputs mean


def format_of(to: str | None, out: Path, *, names: str) -> str:
    """Return the format that `to` names, else that of the suffix of `out`.

    Raises:
        VitError: unknown format, the suffix belongs to another one, or the format has only timm's names.
    """
    by_suffix = {suffix: format for format, suffix in SUFFIXES.items()}.get(out.suffix)
    format = to or by_suffix
    if to is not None and to not in SUFFIXES:
        fix = f"one of {', '.join(SUFFIXES)}"
        raise VitError(f"there is no format {to!r}{nearest(to, SUFFIXES)}", where="--to", fix=fix)
    if format is None:
        fix = "end OUT in .onnx, .npz or .safetensors; a timm folder with a dot in its name needs --to timm"
        raise VitError(f"{out.name} has no suffix of a format", where="OUT", fix=fix)
    if by_suffix != format and (by_suffix or format != "timm"):
        rename = f"end OUT in {SUFFIXES[format]}" if SUFFIXES[format] else "name a folder"
        fix = f"{rename}, or leave --to out"
        raise VitError(f"{out.name} is not a name for {format}", where="OUT and --to", fix=fix)
    if names != SPELLINGS[0] and format != "npz":
        fix = "leave it out, or export to npz"
        raise VitError(f"the names in {format} are timm's", where="--names", fix=fix)
    return format


def check_supported(format: str, arch: Architecture) -> None:
    """Refuse a network that the format cannot express: it would be read back as another one."""
    feature = unsupported_feature(format, arch)
    if not feature:
        return
    others = (each for each in ("timm", "onnx", "npz", "safetensors") if not unsupported_feature(each, arch))
    fix = f"export to {' or '.join(others)}"
    if arch.head_layers or (format == "timm" and arch.pre_logits):
        fix += ", or without the head (--no-head)"
    if format == "npz" and feature == non_square_size(arch):
        fix += ", or give a square --res"
    name = {"timm": "timm", "npz": "the authors' .npz"}[format]
    raise VitError(f"{name} does not support {feature}", where=f"--to {format}, {arch.name}", fix=fix)


def unsupported_feature(format: str, arch: Architecture) -> str | None:
    """Return the first feature of the network that the format cannot express, if any."""
    posemb = f"position embeddings {arch.posemb!r} at {arch.posemb_at!r}"
    match format:
        case "timm" | "npz" if arch.head_layers:
            return f"a head that reads the last {count_of(arch.head_layers, 'block')}"
        case "timm" if arch.pre_logits:
            return "a representation layer before the head (pre-logits)"
        case "timm":
            return None if pos_embed.is_timms(arch.posemb, arch.posemb_at) else posemb
        case "npz":
            is_papers = (arch.posemb, arch.posemb_at) == ("1d", "stem")
            return _unsupported_numerics(arch) or (None if is_papers else posemb) or non_square_size(arch)
    return None


def _unsupported_numerics(arch: Architecture) -> str | None:
    """Return where the network differs from the authors' code, which readers of a bare .npz assume."""
    if arch.gelu not in ("tanh", "none"):
        gelu = {"erf": "the exact (erf) GELU", "timm": "a network as timm defines it"}[arch.gelu]
        return f"{gelu}; its readers assume the tanh GELU and the authors' epsilons"
    if arch.norm_eps != PAPER_NORM_EPS:
        return f"layer norms with an epsilon of {arch.norm_eps:g}; its readers assume {PAPER_NORM_EPS:g}"
    return None


def non_square_size(arch: Architecture) -> str | None:
    """Return an image size that is not square: readers of an .npz assume a square grid."""
    is_square = arch.patch_grid is None or len(set(arch.patch_grid)) == 1
    return None if is_square else "images of {}x{}".format(*arch.image_size)


def without_labels(metadata: dict) -> dict:
    """Return the metadata of weights without a head, whose outputs are features."""
    return {key: value for key, value in metadata.items() if key not in (*OF_LABELS, FEATURE_STATISTICS)}


def caveats(format: str, arch: Architecture) -> list[str]:
    """List what is left out of the format, or read correctly only under a condition."""
    notes = []
    if format == "npz":
        notes.append("an .npz has no place for preprocessing and class names: they are left out")
    if format == "timm" and arch.timm_name in (BIT, HYBRID):
        notes.append(f"timm knows {arch.timm_name} only once vitcli.backbones is imported")
    if format == "timm" and arch.is_of_the_paper and arch.norm_eps != PAPER_NORM_EPS:
        notes.append(f"layer norms add {arch.norm_eps:g} here and {PAPER_NORM_EPS:g} in timm")
    return notes


def write_official(path: Path, state: dict[str, Tensor], *, heads: int | None, names: str) -> None:
    """Write a state dict as the authors' .npz; raises as `to_official` and `replace_file` do."""
    arrays = to_official(state, heads=heads, spelling=names)
    replace_file(path, lambda temporary: write_npz(temporary, arrays))


def write(
    format: str,
    path: Path,
    model: nn.Module,
    weights: Weights,
    *,
    names: str = SPELLINGS[0],
    form: ProgramForm | None = None,
    calibration: Iterable[Tensor] = (),
    fp32: Path | None = None,
) -> None:
    """Write a network to a path that does not exist yet.

    Args:
        model: on the CPU, in evaluation mode.
        weights: those of the model, and what is stored with them if the format has a place for it.
        names: one of `authors_npz.SPELLINGS`, for "npz".
        form: of a file that takes images.
        calibration, fp32: for "onnx", as `write_onnx` takes them.

    Raises:
        WeightsError: the authors' format has no name for a tensor.
        MachineError: the disk is full, or a package is missing.
    """
    state, arch, pixels = weights.state, weights.architecture, weights.preprocessing
    description = WeightsInfo(arch, pixels, weights.class_names, weights.metadata)
    match format:
        case "timm":
            write_weights(path, state, description)
        case "safetensors":
            write_weights_file(path, state, description)
        case "npz":
            blocks = getattr(model, "blocks", None)
            heads = blocks[0].attn.num_heads if blocks else None
            write_official(path, state, heads=heads, names=names)
        case "onnx" | "pt2" | "pte":
            assert form, "of a file that takes images"
            stored = {"model": arch.name, "architecture": json.dumps(arch.as_dict())}
            stored |= {"input": form.input, "precision": form.precision}
            # Nothing but this file tells its users which pixels it wants.
            rules = Preprocessing.from_dict(pixels).as_rules() if pixels else None
            about = {"preprocessing": rules, "class_names": weights.class_names}
            about |= {key: weights.metadata.get(key) for key in OF_LABELS}
            stored |= {key: json.dumps(value) for key, value in about.items() if value}
            if weights.licence != UNKNOWN:
                stored[KEY] = weights.licence
            if format == "onnx":
                write_onnx(path, model, form, stored, calibration, fp32)
            else:
                (write_pt2 if format == "pt2" else write_pte)(path, model, form, stored)


def read_back(format: str, path: Path, form: ProgramForm | None = None) -> nn.Module:
    """Return the network that others get from the file or folder, in evaluation mode.

    Raises:
        CheckFailed: it cannot be read.
    """
    try:
        match format:
            case "timm":
                model = timm.create_model(f"local-dir:{path}", pretrained=True)
            case "onnx" | "pte":
                model = ProgramNetwork(path)
            case "pt2":
                assert form, "of a file that takes images"
                model = Pt2Network(path, form)
            case _:
                model, _, _ = load(read_weights(str(path)))
    except Exception as error:  # a reader may raise anything
        if isinstance(error, MachineError) or is_out_of_memory(error):
            raise
        reason = error.message if isinstance(error, VitError) else f"{type(error).__name__}: {error}"
        raise CheckFailed(
            f"the exported {format} cannot be read back: {reason.splitlines()[0][:200]}",
            where=f"--to {format}",
            fix="export to another format, such as safetensors; please report it",
        ) from error
    return model.eval()
