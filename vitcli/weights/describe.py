"""Description of weights: by our metadata, timm's or Hugging Face's config.json, or names and shapes."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import timm
from torch import Tensor

from vitcli.errors import WeightsError
from vitcli.models.architecture import MOST_LAYERS, Architecture
from vitcli.models.build import default_image_size
from vitcli.models.variants import find_variant, variant_of_timm
from vitcli.output.text import is_text
from vitcli.weights.files import WeightsContent, as_weights_error, file_error
from vitcli.weights.huggingface import CONFIG_DEFAULTS, read_config, read_preprocessor
from vitcli.weights.imagenet import subset_of
from vitcli.weights.licences import KEY, UNKNOWN, licence_of
from vitcli.weights.locate import WeightsSource
from vitcli.weights.timm import as_timm_knows, from_timm_config, head_names, is_padded, recognise, split_tag

FACTORY_OPTIONS = {  # of timm.create_model itself; an untrusted file could make it read other files
    "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "pretrained_model_args", "pretrained_strict",
    "pretrained_filter_fn", "checkpoint_path", "cache_dir", "features_only", "scriptable", "exportable",
    "no_jit", "device", "dtype", "weight_init", "num_classes",
}  # fmt: skip
# Of a network that a file describes; far above any that there is.
LARGEST_WIDTH, LARGEST_SIDE, MOST_CLASSES, MOST_VALUES = 2**16, 2**14, 2**22, 64
GELU_TEXTS = {
    "tanh": "tanh GELU",
    "erf": "exact (erf) GELU",
    "none": "the authors' weight standardisation",
    "timm": "GELU of timm",
}


RESAMPLED_FROM = "interpolated_from"  # of the metadata: the first weights, whose classes these have
STORED = "as stored with the weights"  # the usual origin of a preprocessing
FORMAT = 1  # of our metadata


class WeightsInfo(NamedTuple):
    """Everything that `Weights` knows about its tensors; the first four are stored beside them."""

    architecture: Architecture
    preprocessing: dict | None
    class_names: tuple[str, ...] | None
    metadata: dict
    numerics: str = ""  # these follow from the origin
    format: str = ""  # added by `describe`
    preprocessing_from: str = STORED
    imagenet: str = ""  # timm's name of the ImageNet whose classes the head has, if it stores no names

    def as_dict(self) -> dict:
        """Return what the header of a .safetensors file and config.json have under "vit"."""
        return {
            "format": FORMAT,
            "architecture": self.architecture.as_dict(),
            "preprocessing": self.preprocessing,
            "class_names": list(self.class_names) if self.class_names else None,
            "metadata": self.metadata,
        }


def describe(source: WeightsSource, content: WeightsContent, model_name: str | None) -> WeightsInfo:
    """Describe the tensors; WeightsError if their network is unknown or the stored data contradict them."""
    model_name, tag = split_tag(model_name) if model_name else (None, "")
    vit = content.vit or source.config.get("vit")
    with as_weights_error("the stored metadata"):
        info = _from_our_metadata(vit) if vit else _from_foreign(source, content, model_name, tag)
    _check_trusted(info.architecture)
    if not is_text(*(info.class_names or ())):
        raise file_error("a class has a name that UTF-8 cannot express")
    if model_name is not None and _family(model_name) != _family(info.architecture.name):
        name = info.architecture.name
        with suppress(WeightsError):  # the heads of that network hide the name of this one
            name = name if vit else _from_foreign(source, content, None, "").architecture.name
        message = f"these are weights of {name}, not of {model_name}"
        raise WeightsError(message, where="--model", fix="leave --model out")
    is_ours = vit and source.format == "timm folder"
    imagenet = "" if info.class_names else subset_of(info.architecture.num_classes, _names(source, info, tag))
    # What is made of the weights carries their licence on with the other metadata
    licence = licence_of(source, info.metadata, model_name=f"{model_name}.{tag}" if tag else "")
    metadata = info.metadata | ({} if licence == UNKNOWN else {KEY: licence})
    format = "run folder" if is_ours else source.format
    return info._replace(format=format, imagenet=imagenet, metadata=metadata)


def _names(source: WeightsSource, info: WeightsInfo, tag: str) -> list[str]:
    """Return all that may say which data the weights are of: tags, repository, file and that before."""
    config = info.metadata.get("config")
    config = config if isinstance(config, dict) else source.config
    inner = config.get("pretrained_cfg")
    stored = [(inner if isinstance(inner, dict) else config).get("tag"), config.get("_name_or_path")]
    stored.append(Path(str(info.metadata.get(RESAMPLED_FROM, ""))).name)
    return [tag, source.tag, source.name, source.file.name, *(str(name) for name in stored if name)]


def _from_our_metadata(vit: dict) -> WeightsInfo:
    if (format := vit.get("format", FORMAT)) != FORMAT:
        what = f"the weights have the format {format!r:.20}, this version reads {FORMAT}"
        raise file_error(what, fix="load them with the version that wrote them")
    arch = Architecture.from_dict(vit["architecture"])
    class_names = tuple(map(str, vit["class_names"])) if vit.get("class_names") else None
    if class_names and len(class_names) != arch.num_classes:
        raise file_error(f"{len(class_names)} class names are stored for {arch.num_classes} classes")
    preprocessing = dict(vit["preprocessing"]) if vit.get("preprocessing") else None
    numerics = f"{GELU_TEXTS[arch.gelu]}, as stored with the weights"
    return WeightsInfo(arch, preprocessing, class_names, dict(vit.get("metadata") or {}), numerics)


def _from_foreign(
    source: WeightsSource, content: WeightsContent, model_name: str | None, tag: str
) -> WeightsInfo:
    """Use timm's or Hugging Face's config.json, else the tensors alone; the GELU follows from the origin."""
    preprocessing, class_names, metadata, origin = None, None, {}, STORED
    if content.spelling == "huggingface":
        return _from_huggingface(source, content, model_name)
    if "architecture" in source.config:
        arch, preprocessing, class_names = from_timm_config(source.config, tag=source.tag)
        tag = source.tag or source.config.get("pretrained_cfg", source.config).get("tag")
        metadata, why = {"config": source.config}, f"as weights tagged {tag} have it"
        if is_padded(source.config):
            origin = f"{STORED}, but cropped where timm pads"
    elif model_name is None or find_variant(model_name) or content.spelling == "official":
        arch = recognise(content.state, heads=content.heads or _num_heads(model_name))
        why = f"as {'official files have' if content.spelling == 'official' else 'the paper has'} it"
    else:
        arch = _named_in_timm(content.state, model_name)
        arch, preprocessing, origin = as_timm_knows(arch, tag=tag)
        why = f"as weights tagged {tag} have it"
    numerics = f"{GELU_TEXTS[arch.gelu]}, {why if arch.is_of_the_paper else 'by its own definition'}"
    return WeightsInfo(arch, preprocessing, class_names, metadata, numerics, preprocessing_from=origin)


def _from_huggingface(source: WeightsSource, content: WeightsContent, model_name: str | None) -> WeightsInfo:
    """Use the definition of Hugging Face: erf GELU and its own epsilon, unless config.json differs."""
    if "model_type" not in source.config:
        arch = recognise(content.state, heads=_num_heads(model_name))
        arch = replace(arch, gelu="erf", norm_eps=CONFIG_DEFAULTS["layer_norm_eps"])
        return WeightsInfo(arch, None, None, {}, f"{GELU_TEXTS['erf']}, as Hugging Face has it")
    config = read_config(source.config)
    arch = recognise(content.state, heads=config.heads, image_size=config.image_size)
    _check_sizes(source.config, arch, config.patch_size)
    arch = replace(arch, gelu=config.gelu, norm_eps=config.layer_norm_eps)
    class_names = config.class_names if arch.num_classes else None
    if class_names and len(class_names) != arch.num_classes:
        raise file_error(f"config.json names {len(class_names)} classes, the head has {arch.num_classes}")
    stored = source.preprocessor
    preprocessing = read_preprocessor(stored, arch.image_size) if stored else None
    metadata = {"config": source.config, "unused_tensors": list(content.unused)}
    numerics = f"{GELU_TEXTS[arch.gelu]}, as its config.json says"
    return WeightsInfo(arch, preprocessing, class_names, metadata, numerics)


def _check_sizes(config: dict, arch: Architecture, patch_size: int) -> None:
    """Refuse a config.json that contradicts the tensors: layers may be missing."""
    args = arch.model_args
    in_tensors = {
        "patch_size": arch.patch_size,
        "num_hidden_layers": args["depth"],
        "hidden_size": args["embed_dim"],
        "intermediate_size": int(args["embed_dim"] * args["mlp_ratio"]),
    }
    config = config | {"patch_size": patch_size}
    differences = [
        f"{key} {config[key]}, the tensors {size}"
        for key, size in in_tensors.items()
        if config.get(key, size) != size
    ]
    if differences:
        raise file_error(f"config.json has {'; '.join(differences)}")


def _num_heads(model_name: str | None) -> int | None:
    variant = find_variant(model_name or "")
    return variant.heads if variant else None


def _named_in_timm(state: dict[str, Tensor], model_name: str) -> Architecture:
    """Return the timm model of --model, with the classes and, for a plain ViT, the image size of the file."""
    size = default_image_size(model_name)
    arch = Architecture(model_name, model_name, size, 0, gelu="timm", pre_logits=False, model_args={})
    heads = (state[f"{prefix}weight"] for prefix in head_names(arch) if f"{prefix}weight" in state)
    arch = replace(arch, num_classes=next((len(head) for head in heads), 0))
    with suppress(WeightsError):  # no plain ViT
        arch = replace(arch, image_size=recognise(state, heads=1).image_size)
    return arch


def _check_trusted(arch: Architecture) -> None:
    """Refuse a stored architecture that asks timm for anything but a network."""
    if not timm.is_model(arch.timm_name) or "." in arch.timm_name:
        raise file_error(f"timm has no network {arch.timm_name!r}", fix="update timm")
    if options := FACTORY_OPTIONS & arch.model_args.keys():
        raise file_error(f"the stored model_args ask for {', '.join(sorted(options))}")
    for key, value in arch.model_args.items():
        if not _is_of_a_network(value, key):
            raise file_error(f"no network has the stored model_args of {key}")
    if max(arch.image_size) > LARGEST_SIDE or arch.num_classes > MOST_CLASSES:
        raise file_error("no network has the stored image size or number of classes")


def _is_of_a_network(value: object, key: str) -> bool:
    """Return True for what an argument of timm's networks may be, from which none is built for hours."""
    most = MOST_LAYERS if "depth" in key or "layers" in key else LARGEST_WIDTH
    match value:
        case list() | tuple():
            numbers = [one for one in value if isinstance(one, int)]
            are_few = len(value) <= MOST_VALUES and (most > MOST_LAYERS or sum(numbers) <= most)
            return are_few and all(_is_of_a_network(one, key) for one in value)
        case dict():
            parts = value.items()
            return len(parts) <= MOST_VALUES and all(_is_of_a_network(one, str(name)) for name, one in parts)
        case int():
            return 0 <= value <= most
    return value is None or isinstance(value, str | float)


def _family(name: str) -> str:
    """Return the paper's name of a model that has one, in any spelling."""
    variant = find_variant(name) or variant_of_timm(name)
    return variant.name if variant else name
