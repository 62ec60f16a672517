"""What weights are: by our metadata, somebody's config.json, or the names and shapes of the tensors alone."""

from dataclasses import replace
from typing import NamedTuple

import timm
from torch import Tensor

from vitcli.errors import WeightsError
from vitcli.models.architecture import Architecture
from vitcli.models.variants import find_variant, variant_of_timm
from vitcli.weights.files import WeightsContent, as_weights_error, broken
from vitcli.weights.huggingface import CONFIG_DEFAULTS, read_config, read_preprocessor
from vitcli.weights.locate import WeightsSource
from vitcli.weights.timm import from_timm_config, head_names, recognise

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


class WeightsInfo(NamedTuple):
    """What `Weights` says beside the tensors."""

    architecture: Architecture
    preprocessing: dict | None
    class_names: tuple[str, ...] | None
    numerics: str
    metadata: dict
    format: str = ""  # as `describe` adds it


def describe(place: WeightsSource, content: WeightsContent, model_name: str | None) -> WeightsInfo:
    """What the tensors are; WeightsError where nothing tells, or what tells is damaged or contradicts."""
    vit = content.vit or place.config.get("vit")
    with as_weights_error("the stored metadata"):
        about = _from_metadata(vit) if vit else _from_others(place, content, model_name)
    _check_trusted(about.architecture)
    _check_agrees(about.architecture, model_name)
    is_ours = vit and place.format == "timm folder"
    return about._replace(format="run folder" if is_ours else place.format)


def _from_metadata(vit: dict) -> WeightsInfo:
    """Our own files say everything themselves."""
    arch = Architecture.from_dict(vit["architecture"])
    class_names = tuple(map(str, vit["class_names"])) if vit.get("class_names") else None
    if class_names and len(class_names) != arch.num_classes:
        raise broken(f"{len(class_names)} class names are stored for {arch.num_classes} classes")
    preprocessing = dict(vit["preprocessing"]) if vit.get("preprocessing") else None
    numerics = f"{_GELUS[arch.gelu]}, as stored with the weights"
    return WeightsInfo(arch, preprocessing, class_names, numerics, dict(vit.get("metadata") or {}))


def _from_others(place: WeightsSource, content: WeightsContent, model_name: str | None) -> WeightsInfo:
    """Somebody's config.json, or no word beside the tensors; the GELU by the rule of design.md, section 4."""
    preprocessing, class_names, metadata = None, None, {}
    if content.spelling == "huggingface":
        return _from_huggingface(place, content, model_name)
    if "architecture" in place.config:
        arch, preprocessing, class_names = from_timm_config(place.config, tag=place.tag)
        metadata, why = {"config": place.config}, f"as weights tagged {place.tag} have it"
    elif model_name is None or find_variant(model_name) or content.spelling == "official":
        arch = recognise(content.state, heads=content.heads or _heads_of(model_name))
        why = f"as {'official files have' if content.spelling == 'official' else 'the paper has'} it"
    else:
        arch, why = _named_in_timm(content.state, model_name), ""
    numerics = f"{_GELUS[arch.gelu]}, {why if arch.is_of_the_paper else 'by its own definition'}"
    return WeightsInfo(arch, preprocessing, class_names, numerics, metadata)


def _from_huggingface(place: WeightsSource, content: WeightsContent, model_name: str | None) -> WeightsInfo:
    """A ViT of Hugging Face's is as defined there: erf GELU, its own epsilon, unless its config differs."""
    if "model_type" not in place.config:
        arch = recognise(content.state, heads=_heads_of(model_name))
        arch = replace(arch, gelu="erf", norm_eps=CONFIG_DEFAULTS["layer_norm_eps"])
        return WeightsInfo(arch, None, None, f"{_GELUS['erf']}, as Hugging Face has it", {})
    told = read_config(place.config)
    arch = recognise(content.state, heads=told.heads, image_size=told.image_size)
    _check_sizes(place.config, arch, told.patch_size)
    arch = replace(arch, gelu=told.gelu, norm_eps=told.layer_norm_eps)
    named = told.class_names if arch.num_classes else None
    if named and len(named) != arch.num_classes:
        raise broken(f"config.json names {len(named)} classes, the classifier has {arch.num_classes}")
    preprocessing = read_preprocessor(place.preprocessor, arch.image_size) if place.preprocessor else None
    metadata = {"config": place.config, "unused_tensors": list(content.unused)}
    return WeightsInfo(arch, preprocessing, named, f"{_GELUS[arch.gelu]}, as its config.json says", metadata)


def _check_sizes(config: dict, arch: Architecture, patch_size: int) -> None:
    """Refuse a config.json that speaks of another network: layers may be missing."""
    args = arch.model_args
    found = {
        "patch_size": arch.patch_size,
        "num_hidden_layers": args["depth"],
        "hidden_size": args["embed_dim"],
        "intermediate_size": int(args["embed_dim"] * args["mlp_ratio"]),
    }
    told = {key: config.get(key, number) for key, number in found.items()} | {"patch_size": patch_size}
    wrong = [f"{key} {told[key]}, the tensors {found[key]}" for key in found if told[key] != found[key]]
    if wrong:
        raise broken(f"config.json says {'; '.join(wrong)}")


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
