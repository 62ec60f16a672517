"""Weights files: every form that --ckpt takes to one `Weights`, into a network, and back to disk.

Nothing in a file is executed, nothing is loaded in part without a word; what is written is whole or absent.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from vitcli.errors import NotFiniteError, WeightsError
from vitcli.models.architecture import Architecture
from vitcli.models.build import expected_tensors, known_name
from vitcli.output.atomic import replace_file, write_text
from vitcli.weights.describe import describe
from vitcli.weights.files import as_weights_error, attribute_errors_to, read_file, write_safetensors
from vitcli.weights.locate import locate
from vitcli.weights.timm import head_names, timm_config

COUNTERS = ("num_batches_tracked", "index")  # buffers that are whole numbers in timm's networks


@dataclass(frozen=True)
class Weights:
    """Tensors, and everything known about them.

    Attributes:
        state: float32 tensors in timm's naming (model.py says what differs), every number finite.
        architecture: as stored or recognised, at the resolution the weights have; `state` fits it exactly.
        preprocessing: stored with the weights, as `transforms.Preprocessing.as_dict`; None for a raw file.
        class_names: in the order of the logits.
        source: as the user gave it.
        format: what kind of file or folder it was.
        numerics: which GELU the weights get and why.
        metadata: whatever else was stored.
    """

    state: dict[str, Tensor]
    architecture: Architecture
    preprocessing: dict | None
    class_names: tuple[str, ...] | None
    source: str
    format: str
    numerics: str
    metadata: dict


def read_weights(ckpt: str, *, model_name: str | None = None) -> Weights:
    """Read any form of --ckpt.

    The architecture comes from the file's metadata, else from the tensors' names and shapes, else from
    `model_name`; where both speak, they must agree.

    Raises:
        WeightsError: no such file, a broken or hostile one, numbers not finite, tensors that do not fit.
    """
    if model_name is not None:
        known_name(model_name)
    with attribute_errors_to(ckpt):
        place = locate(ckpt)
        content = read_file(place.file)
        about = describe(place, content, model_name)
        about = about._replace(architecture=_as_it_is_there(about.architecture, content.state))
        with as_weights_error("the stored architecture"):  # timm fails in any way on numbers that cannot be
            expected = expected_tensors(about.architecture)
        check_fits(content.state, expected, about.architecture)
        check_finite(content.state)
    return Weights(state=content.state, source=ckpt, **about._asdict())


def _as_it_is_there(arch: Architecture, state: dict[str, Tensor]) -> Architecture:
    """The same network without a head, where the file has nothing of it: features need none."""
    if not arch.num_classes or any(name.startswith(head_names(arch)) for name in state):
        return arch
    return replace(arch, num_classes=0, pre_logits=False)


def write_weights(
    folder: Path,
    state: dict[str, Tensor],
    arch: Architecture,
    *,
    preprocessing: dict,
    class_names: tuple[str, ...] | None,
    metadata: dict,
) -> None:
    """Write model.safetensors and config.json, which `read_weights` and timm's "local-dir:" both read.

    All we store is in the header of model.safetensors too, so the file can travel alone.

    Raises:
        NotFiniteError: a tensor holds NaN or infinity; nothing is written.
        MachineError: the disk is full or the folder may not be written to; no file is ever half written.
    """
    file = folder / "model.safetensors"
    vit = write_weights_file(
        file, state, arch, preprocessing=preprocessing, class_names=class_names, metadata=metadata
    )
    config = json.dumps(timm_config(arch, preprocessing, class_names) | {"vit": vit}, indent=2)
    write_text(folder / "config.json", config + "\n")


def write_weights_file(
    file: Path,
    state: dict[str, Tensor],
    arch: Architecture,
    *,
    preprocessing: dict | None,
    class_names: tuple[str, ...] | None,
    metadata: dict,
) -> dict:
    """Write one .safetensors file, and return what its header says; raises as `write_weights` does."""
    vit = {
        "architecture": arch.as_dict(),
        "preprocessing": preprocessing,
        "class_names": list(class_names) if class_names else None,
        "metadata": metadata,
    }
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    try:
        check_finite(tensors)
    except WeightsError as error:
        fix = "go back to the last good checkpoint"
        raise NotFiniteError(error.message, where=str(file), fix=fix) from error
    header = {"format": "pt", "vit": json.dumps(vit)}
    replace_file(file, lambda path: write_safetensors(path, tensors, header))
    return vit


def check_fits(state: dict[str, Tensor], expected: dict[str, torch.Size], arch: Architecture) -> None:
    """Refuse tensors that are not, name by name and axis by axis, those of the network."""
    found = mismatches(state, expected)
    told = [f"{len(names)} {kind}: {_some(names)}" for kind, names in found.items() if names]
    if told:
        raise WeightsError(
            f"the tensors do not fit {arch.name} at {arch.image_size[0]}x{arch.image_size[1]} with "
            f"{arch.num_classes} classes; {'; '.join(told)}",
            where="",
            fix="name the right model with --model, or take a new head where only the head differs",
        )


def mismatches(state: dict[str, Tensor], expected: dict[str, torch.Size]) -> dict[str, list[str]]:
    """Names of the tensors that a network lacks, has no use for, or has in another shape."""
    return {
        "missing": [name for name in expected if name not in state],
        "unexpected": [name for name in state if name not in expected],
        "of another shape": [
            f"{name} {tuple(tensor.shape)} for {tuple(expected[name])}"
            for name, tensor in state.items()
            if name in expected and tensor.shape != expected[name]
        ],
        "of no floating-point numbers": [
            f"{name} ({tensor.dtype})"
            for name, tensor in state.items()
            if not tensor.is_floating_point() and not name.endswith(COUNTERS)
        ],
    }


def find_non_finite(state: dict[str, Tensor]) -> list[str]:
    """Names of the tensors that hold NaN or infinity."""
    with_point = {name: t.detach() for name, t in state.items() if t.is_floating_point() and t.numel()}
    # aminmax lets NaN through, and makes no copy of the tensor
    extremes = {name: torch.stack(torch.aminmax(tensor)) for name, tensor in with_point.items()}
    return [name for name, both in extremes.items() if not torch.isfinite(both).all()]


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def check_finite(state: dict[str, Tensor]) -> None:
    """Refuse tensors that hold NaN or infinity."""
    names = find_non_finite(state)
    if names:
        raise WeightsError(
            f"non-finite numbers in {_some(names)}", where="", fix="take weights from before they broke"
        )
