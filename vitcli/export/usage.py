"""The "How to load it" section of a model card: with vit, from Python, with timm, with transformers.

The section stands between two marks, so that `vit export --push-to-hub` can replace it and keep everything
else that the owner of the card has written.
"""

import json
import re
import shlex
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from vitcli import recipe as recipes
from vitcli.data import demo
from vitcli.export.markdown import fenced, table
from vitcli.models.architecture import Architecture
from vitcli.models.variants import BIT, HYBRID
from vitcli.output.redaction import is_local, public_name
from vitcli.output.text import count_of, size_text
from vitcli.weights.formats import caveats, unsupported_feature

BEGIN, END = "<!-- how to load: written by vit -->", "<!-- end of how to load -->"
BLOCK = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
WITH_VIT = """from vitcli import load_model

model, transform, info = load_model({name})
outputs = model(transform("image.jpg")[None])"""
WITH_TIMM = """import timm
{imports}
model = timm.create_model({name}, pretrained=True).eval()
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))"""
WITH_TRANSFORMERS = """from transformers import AutoImageProcessor, {kind}
{imports}
processor = AutoImageProcessor.from_pretrained({name})
model = {kind}.from_pretrained({name}).eval()"""
SAME_OUTPUTS = """All three give the same outputs for the same tensor. Exactly the pixels that `vit` uses
come from `load_model`'s transform; timm and transformers resize in their own way."""


class LoadingNames(NamedTuple):
    """Names of a folder of weights in commands and libraries.

    Attributes:
        ckpt: for vit, in --ckpt and load_model.
        timm: for timm.create_model.
        transformers: the arguments of from_pretrained.
        intro: sentence that says where the reader starts from.
    """

    ckpt: str
    timm: str
    transformers: str
    intro: str


HERE = LoadingNames(".", "local-dir:.", '"."', "From within this folder:")


def on_the_hub(repository: str, revision: str | None = None) -> LoadingNames:
    """Return the names of a Hub repository, at a revision if it is not the default branch."""
    at = f"@{revision}" if revision else ""
    arguments = json.dumps(repository) + (f", revision={json.dumps(revision)}" if revision else "")
    return LoadingNames(f"hf-hub:{repository}{at}", f"hf-hub:{repository}{at}", arguments, "From the Hub:")


def how_to_load(
    names: LoadingNames, arch: Architecture, *, dataset: str | None, of_onnx: dict[str, Any] | None = None
) -> str:
    """Return the Markdown section on loading, between its marks.

    Args:
        arch: without classes, the examples compute features.
        dataset: that the weights were evaluated on, if any.
        of_onnx: result of the export of an ONNX file that goes with the weights.
    """
    has_classes, unsupported = arch.num_classes > 0, unsupported_feature("timm", arch)
    with_vit = fenced(WITH_VIT.format(name=json.dumps(names.ckpt)), "python")
    parts = ["## How to load it", names.intro, _commands(names, dataset, has_classes), with_vit]
    if unsupported:
        parts.append(f"timm and transformers cannot load it; they do not support {unsupported}.")
    else:
        imports = ""
        if arch.timm_name in (BIT, HYBRID):
            imports = "import vitcli.backbones  # registers the network with timm\n"
        kind = "AutoModelForImageClassification" if has_classes else "AutoModel"
        with_timm = WITH_TIMM.format(imports=imports, name=json.dumps(names.timm))
        with_transformers = WITH_TRANSFORMERS.format(imports=imports, name=names.transformers, kind=kind)
        parts += [fenced(with_timm, "python"), fenced(with_transformers, "python"), SAME_OUTPUTS]
        parts += [f"In timm and transformers, {caveat}." for caveat in caveats("timm", arch)]
    if of_onnx:
        parts += _onnx_section(of_onnx)
    return "\n".join([BEGIN, "\n\n".join(parts), END, ""])


def _onnx_section(result: dict[str, Any]) -> list[str]:
    """Return what is said of an ONNX file: what it takes, how it was compared, how fast it is."""
    name, precision = Path(result["out"]).name, result["precision"]
    takes = {
        "images": "decoded images of any size, as bytes: it resizes, crops and normalises them",
        "pixels": f"images of {size_text(result['resolution'])} pixels, as bytes: it normalises them",
    }[result["input"]]
    images = count_of(result["num_images"], "image")
    compared = f"{result['max_rel_difference']:.2g} of the largest, on {images}"
    rows = [("takes", takes), ("precision", precision), ("outputs differ by", compared)]
    if precision != "fp32" and result["top1_agreement"] is not None:
        rows.append(("same class", f"{result['top1_agreement']:.2%} of these images"))
    if verdict := result.get("gate"):
        lost = f"{verdict['drop']:.2%}, at most {verdict['highest_drop']:.2%} with 95 % confidence"
        right = f"{verdict['top1_exported']:.2%} of {count_of(verdict['num_images'], 'image')}"
        rows.append(("top-1", f"{right}; lost to the conversion {lost}"))
    speed = result["speed"]
    for side, key in (("onnxruntime", "exported"), ("PyTorch", "pytorch")):
        latency, rate = speed[key]["latency_ms"], speed[key]["images_per_s"]
        rows.append((side, f"{latency:.3g} ms an image, {rate:.3g} images/s at best"))
    text = (
        f"Speed on a CPU with {count_of(speed['threads'], 'thread')}, where it was exported. The file beside "
        f"it has images with its answers: `vit export --check {name}` repeats them."
    )
    code = result["snippet"].replace(repr(result["out"]), repr(name))
    return [f"### {name}", table(("", ""), rows), text, fenced(code, "python")]


def replace_section(card: str, section: str) -> str | None:
    """Return the card with another section on loading; None where it has none between marks."""
    changed, count = BLOCK.subn(lambda _: section.rstrip("\n"), card)
    return changed if count == 1 else None


def _is_known_by_name(dataset: str) -> bool:
    """Return whether a data set's name means the same everywhere, as a path does not."""
    if dataset in recipes.dataset_aliases() or dataset in demo.SETS or "://" in dataset:
        return True
    is_hub_id = dataset.count("/") == 1 and not dataset.endswith("/")
    return is_hub_id and not is_local(dataset) and not Path(dataset).exists()


def _commands(names: LoadingNames, dataset: str | None, has_classes: bool) -> str:
    ckpt = shlex.quote(names.ckpt)
    lines = [f"vit predict --ckpt {ckpt} IMAGES"] if has_classes else []
    if dataset:
        public = public_name(dataset)
        path = public if _is_known_by_name(dataset) else f"PATH/TO/{PurePath(public).name}"
        lines.append(f"vit evaluate --ckpt {ckpt} --dataset {shlex.quote(path)}")
    return fenced("\n".join([*lines, f"vit finetune --ckpt {ckpt} --dataset YOUR_IMAGES"]))
