"""Weights files: every form that --ckpt takes to one `Weights`, into a network, and back to disk.

Nothing in a file is executed, nothing is loaded in part without a word; what is written is whole or absent.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import timm
import torch
from torch import Tensor

from vitcli.architecture import Architecture
from vitcli.conversion import from_timm_config, recognise
from vitcli.errors import NotFiniteError, WeightsError
from vitcli.huggingface import read_config, read_preprocessor
from vitcli.model import expected_tensors, head_names, known_name, timm_config
from vitcli.safe_files import replace_file
from vitcli.variants import find_variant, variant_of_timm
from vitcli.weights_files import Content, blaming, broken, parsing, read_file, write_safetensors
from vitcli.weights_places import Place, locate

FACTORY_OPTIONS = {  # of timm.create_model itself; in a file they could make it read other files
    "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "pretrained_model_args", "pretrained_strict",
    "pretrained_filter_fn", "checkpoint_path", "cache_dir", "features_only", "scriptable", "exportable",
    "no_jit", "device", "dtype", "weight_init", "num_classes",
}  # fmt: skip
_GELUS = {
    "tanh": "tanh GELU",
    "erf": "exact (erf) GELU",
    "none": "the authors' weight standardisation",
    "timm": "GELU of timm",
}
HUGGING_FACE_NORM_EPS = 1e-12  # of a ViT there, where its config does not say otherwise


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


class About(NamedTuple):
    """What `Weights` says beside the tensors."""

    architecture: Architecture
    preprocessing: dict | None
    class_names: tuple[str, ...] | None
    numerics: str
    metadata: dict
    format: str = ""  # as `describe` adds it


def read_weights(ckpt: str, *, model_name: str | None = None) -> Weights:
    """Read any form of --ckpt.

    The architecture comes from the file's metadata, else from the tensors' names and shapes, else from
    `model_name`; where both speak, they must agree.

    Raises:
        WeightsError: no such file, a broken or hostile one, numbers not finite, tensors that do not fit.
    """
    if model_name is not None:
        known_name(model_name)
    with blaming(ckpt):
        place = locate(ckpt)
        content = read_file(place.file)
        about = describe(place, content, model_name)
        with parsing("the stored architecture"):  # timm fails in any way on numbers that cannot be
            expected = expected_tensors(about.architecture)
        check_fits(content.state, expected, about.architecture)
        check_finite(content.state)
    return Weights(state=content.state, source=ckpt, **about._asdict())


def describe(place: Place, content: Content, model_name: str | None) -> About:
    """What the tensors are; WeightsError where nothing tells, or what tells is damaged or contradicts."""
    vit = content.vit or place.config.get("vit")
    with parsing("the stored metadata"):
        about = _from_metadata(vit) if vit else _from_others(place, content, model_name)
    _check_trusted(about.architecture)
    _check_agrees(about.architecture, model_name)
    is_ours = vit and place.format == "timm folder"
    return about._replace(format="run folder" if is_ours else place.format)


def _from_metadata(vit: dict) -> About:
    """Our own files say everything themselves."""
    arch = Architecture.from_dict(vit["architecture"])
    class_names = tuple(map(str, vit["class_names"])) if vit.get("class_names") else None
    if class_names and len(class_names) != arch.num_classes:
        raise broken(f"{len(class_names)} class names are stored for {arch.num_classes} classes")
    preprocessing = dict(vit["preprocessing"]) if vit.get("preprocessing") else None
    numerics = f"{_GELUS[arch.gelu]}, as stored with the weights"
    return About(arch, preprocessing, class_names, numerics, dict(vit.get("metadata") or {}))


def _from_others(place: Place, content: Content, model_name: str | None) -> About:
    """Somebody's config.json, or no word beside the tensors; the GELU by the rule of design.md, section 4."""
    preprocessing, class_names, metadata = None, None, {}
    if content.spelling == "huggingface":
        return _from_huggingface(place, content, model_name)
    if "architecture" in place.config:
        arch, preprocessing, class_names = from_timm_config(place.config, tag=place.tag)
        metadata, why = {"config": place.config}, f"as weights tagged {place.tag} have it"
    elif model_name is None or find_variant(model_name):
        arch = recognise(content.state, heads=content.heads or _heads_of(model_name))
        why = f"as {'official files have' if content.spelling == 'official' else 'the paper has'} it"
    else:
        arch, why = _named_in_timm(content.state, model_name), ""
    numerics = f"{_GELUS[arch.gelu]}, {why if arch.is_of_the_paper else 'by its own definition'}"
    return About(arch, preprocessing, class_names, numerics, metadata)


def _from_huggingface(place: Place, content: Content, model_name: str | None) -> About:
    """A ViT of Hugging Face's is as defined there: erf GELU, its own epsilon, unless its config differs."""
    if "model_type" not in place.config:
        arch = recognise(content.state, heads=_heads_of(model_name))
        arch = replace(arch, gelu="erf", norm_eps=HUGGING_FACE_NORM_EPS)
        return About(arch, None, None, f"{_GELUS['erf']}, as Hugging Face has it", {})
    told = read_config(place.config)
    arch = recognise(content.state, heads=told.heads)
    if (arch.image_size, arch.patch_size) != (told.image_size, told.patch_size):
        raise broken(f"config.json speaks of images of {told.image_size} in patches of {told.patch_size}")
    arch = replace(arch, gelu=told.gelu, norm_eps=told.layer_norm_eps)
    named = told.class_names if told.num_classes == arch.num_classes else None
    preprocessing = read_preprocessor(place.preprocessor, arch.image_size) if place.preprocessor else None
    metadata = {"config": place.config, "unused_tensors": list(content.unused)}
    return About(arch, preprocessing, named, f"{_GELUS[arch.gelu]}, as its config.json says", metadata)


def _heads_of(model_name: str | None) -> int | None:
    named = find_variant(model_name or "")
    return named.heads if named else None


def _named_in_timm(state: dict[str, Tensor], model_name: str) -> Architecture:
    """A timm model that only --model names; classes and, for a plain ViT, image size as in the file."""
    known = timm.models.get_pretrained_cfg(model_name)
    arch = Architecture(
        name=model_name,
        timm_name=model_name,
        image_size=tuple(known.input_size[1:]) if known else (224, 224),
        num_classes=0,
        gelu="timm",
        pre_logits=False,
        model_args={},
    )
    heads = (state[f"{prefix}weight"] for prefix in head_names(arch) if f"{prefix}weight" in state)
    num_classes = next((len(head) for head in heads), 0)
    try:
        image_size = recognise(state, heads=1).image_size
    except WeightsError:  # no plain ViT
        image_size = arch.image_size
    return replace(arch, image_size=image_size, num_classes=num_classes)


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
    replace_file(folder / "config.json", lambda path: path.write_text(config + "\n"))


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


def _check_trusted(arch: Architecture) -> None:
    """Refuse a stored architecture that asks timm for anything but a network."""
    if not timm.is_model(arch.timm_name) or "." in arch.timm_name:
        raise WeightsError(f"timm has no network {arch.timm_name!r}", where="", fix="update timm")
    asked = FACTORY_OPTIONS & arch.model_args.keys()
    if asked:
        raise broken(f"the stored model_args ask for {', '.join(sorted(asked))}")


def _check_agrees(arch: Architecture, model_name: str | None) -> None:
    if model_name is not None and _family(model_name) != _family(arch.name):
        raise WeightsError(
            f"these are weights of {arch.name}, not of {model_name}", where="--model", fix="leave --model out"
        )


def _family(name: str) -> str:
    """One name for a paper model, however it is called."""
    variant = find_variant(name) or variant_of_timm(name)
    return variant.name if variant else name


def check_fits(state: dict[str, Tensor], expected: dict[str, torch.Size], arch: Architecture) -> None:
    """Refuse tensors that are not, name by name and axis by axis, those of the network."""
    found = misfits(state, expected)
    told = [f"{len(names)} {kind}: {_some(names)}" for kind, names in found.items() if names]
    if told:
        raise WeightsError(
            f"the tensors do not fit {arch.name} at {arch.image_size[0]}x{arch.image_size[1]} with "
            f"{arch.num_classes} classes; {'; '.join(told)}",
            where="",
            fix="name the right model with --model, or take a new head where only the head differs",
        )


def misfits(state: dict[str, Tensor], expected: dict[str, torch.Size]) -> dict[str, list[str]]:
    """Names of the tensors that a network lacks, has no use for, or has in another shape."""
    return {
        "missing": [name for name in expected if name not in state],
        "unexpected": [name for name in state if name not in expected],
        "of another shape": [
            f"{name} {tuple(tensor.shape)} for {tuple(expected[name])}"
            for name, tensor in state.items()
            if name in expected and tensor.shape != expected[name]
        ],
    }


def non_finite(state: dict[str, Tensor]) -> list[str]:
    """Names of the tensors that hold NaN or infinity."""
    with_point = {name: t.detach() for name, t in state.items() if t.is_floating_point() and t.numel()}
    # aminmax lets NaN through, and makes no copy of the tensor
    extremes = {name: torch.stack(torch.aminmax(tensor)) for name, tensor in with_point.items()}
    return [name for name, both in extremes.items() if not torch.isfinite(both).all()]


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def check_finite(state: dict[str, Tensor]) -> None:
    """Refuse tensors that hold NaN or infinity."""
    names = non_finite(state)
    if names:
        raise WeightsError(
            f"non-finite numbers in {_some(names)}", where="", fix="take weights from before they broke"
        )
