"""How to load a folder of weights, for its card: with vit, from Python, with timm, with transformers.

The text stands between two marks, so that another place can be named when the folder is uploaded, and all
else that its owner has written into the card stays.
"""

import json
import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from vitcli.export.card_parts import fenced
from vitcli.output.redaction import is_local, public_name

BEGIN, END = "<!-- how to load: written by vit -->", "<!-- end of how to load -->"
BLOCK = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)


class LoadingNames(NamedTuple):
    """What commands and libraries call a folder of weights.

    Attributes:
        ckpt: vit, in --ckpt and load_model.
        timm: timm.create_model.
        transformers: the arguments of from_pretrained.
        intro: where the reader stands.
    """

    ckpt: str
    timm: str
    transformers: str
    intro: str


HERE = LoadingNames(".", "local-dir:.", '"."', "From within this folder:")


def on_the_hub(repository: str, revision: str | None = None) -> LoadingNames:
    """A repository of the Hub, on a branch where it is not the main one."""
    at = f"@{revision}" if revision else ""
    arguments = json.dumps(repository) + (f", revision={json.dumps(revision)}" if revision else "")
    return LoadingNames(f"hf-hub:{repository}{at}", f"hf-hub:{repository}{at}", arguments, "From the Hub:")


def how_to_load(
    place: LoadingNames,
    *,
    dataset: str | None,
    has_classes: bool,
    unsaid_in_timm: str | None,
    caveats: Sequence[str] = (),
    needs_backbones: bool = False,
) -> str:
    """The section, between its marks.

    Args:
        dataset: that the weights were scored on, if any.
        has_classes: the network ends in a head; it gives features otherwise.
        unsaid_in_timm, caveats, needs_backbones: as `model_card.model_card` takes them.
    """
    parts = ["## How to load it", place.intro, _commands(place, dataset, has_classes), _in_python(place)]
    if unsaid_in_timm:
        parts.append(f"timm and transformers cannot load it; they have no way to say: {unsaid_in_timm}.")
    else:
        parts += _in_others(place, has_classes, needs_backbones)
        parts += [f"In timm and transformers, {caveat}." for caveat in caveats]
    return "\n".join([BEGIN, "\n\n".join(parts), END, ""])


def with_other_place(card: str, section: str) -> str | None:
    """The card with another section on loading; None where it has none between marks."""
    changed, count = BLOCK.subn(lambda _: section.rstrip("\n"), card)
    return changed if count == 1 else None


def _commands(place: LoadingNames, dataset: str | None, has_classes: bool) -> str:
    ckpt = shlex.quote(place.ckpt)
    lines = [f"vit predict --ckpt {ckpt} PICTURES"] if has_classes else []
    if dataset:
        named = "DATA" if is_local(dataset) else shlex.quote(public_name(dataset))
        lines.append(f"vit evaluate --ckpt {ckpt} --dataset {named}")
    return fenced("\n".join([*lines, f"vit finetune --ckpt {ckpt} --dataset YOUR_PICTURES"]))


def _in_python(place: LoadingNames) -> str:
    lines = [
        "from vitcli import load_model",
        "",
        f"model, transform, info = load_model({json.dumps(place.ckpt)})",
        'outputs = model(transform("picture.jpg")[None])',
    ]
    return fenced("\n".join(lines), "python")


def _in_others(place: LoadingNames, has_classes: bool, needs_backbones: bool) -> list[str]:
    """timm reads the folder itself, transformers through timm."""
    kind = "AutoModelForImageClassification" if has_classes else "AutoModel"
    first = ["import vitcli.backbones  # makes the network known to timm"] if needs_backbones else []
    in_timm = [
        "import timm",
        *first,
        "",
        f"model = timm.create_model({json.dumps(place.timm)}, pretrained=True).eval()",
        "transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))",
    ]
    in_transformers = [
        f"from transformers import AutoImageProcessor, {kind}",
        *first,
        "",
        f"processor = AutoImageProcessor.from_pretrained({place.transformers})",
        f"model = {kind}.from_pretrained({place.transformers}).eval()",
    ]
    return [
        fenced("\n".join(in_timm), "python"),
        fenced("\n".join(in_transformers), "python"),
        "All three give the same outputs for the same tensor. The very pixels that `vit` sees come from\n"
        "`load_model`'s transform; timm and transformers resize in their own way.",
    ]
