"""`vit models --weights`: weights that --ckpt takes by name, and which of them are on this machine."""

import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import timm
import torch

from vitcli.errors import VitError, nearest
from vitcli.models.architecture import Architecture
from vitcli.models.build import architecture, build
from vitcli.models.variants import VARIANTS, find_variant, matches, num_params, variant_of_timm
from vitcli.output.document import simple_table
from vitcli.weights.authors import FILES, IN21K, STORAGE
from vitcli.weights.download import is_here
from vitcli.weights.locate import DEMO_FOLDER
from vitcli.weights.names import DEMO, Reference, tags_by_network

MOST_BUILT = 40  # networks without a formula; to count the parameters of one takes up to half a second
MOST_SHOWN = 30  # lines of so many networks in a terminal
COLUMNS = {"--ckpt": "id", "trained on": "text", "px": "number", "MB": "number", "here": "id"}
DATA = ("in21k", "in22k", "in12k", "in1k", "jft")
FOOT = """
--ckpt takes these names, timm/NAME and addresses too (docs/weights.md). NAME@...
is the authors' file in gs://vit_models or gs://bit_models, such as
{storage}/vit_models/imagenet21k/ViT-B_16.npz;
orig is the paper's training, augreg AugReg's, goog BiT's. in21k is ImageNet-21k,
in1k ImageNet-1k. "here" is on this machine: its cache of downloads, or a file.
"""


class KnownWeights(NamedTuple):
    """Weights with a name.

    Attributes:
        name: as --ckpt takes it.
        network: the paper's name or timm's.
        source: OWNER/NAME on the Hub, an address, or "included".
        timm_name: of the network; "" for one that has only the paper's name.
    """

    name: str
    network: str
    pretraining: str
    image_size: tuple[int, int]
    num_classes: int
    source: str
    timm_name: str = ""


def list_weights(pattern: str | None) -> dict[str, Any]:
    """List known weights, without asking any server.

    Args:
        pattern: a network in any spelling, a part of names, or a glob; None for the paper's networks.

    Raises:
        VitError: no name matches.
    """
    variant = find_variant(pattern or "")

    def is_chosen(known: KnownWeights) -> bool:
        if pattern is None:
            return known.network in VARIANTS
        if variant:
            return known.network == variant.name
        return matches(known.name, pattern) or matches(known.network, pattern)

    chosen = [known for known in _known() if is_chosen(known)]
    if not chosen:
        fix = "vit models --weights lists those of the paper's networks; a file needs no name here"
        hint = nearest(pattern, [*VARIANTS, *tags_by_network()])
        raise VitError(f"no known weights match {pattern!r}{hint}", where="PATTERN", fix=fix)
    # Networks of the paper have formulas; the others are counted, if they are not too many
    others = {known.timm_name for known in chosen if known.network not in VARIANTS}
    rows = [_row(known, is_counted=len(others) <= MOST_BUILT) for known in chosen]
    return {"command": "models", "weights": rows}


def _known() -> Iterator[KnownWeights]:
    """Yield all known weights: demo, then by network the authors' files and timm's tags."""
    yield KnownWeights(DEMO, "ViT-demo/8", "demo", (64, 64), 10, "included")
    by_network: dict[str, list[KnownWeights]] = {name: [] for name in VARIANTS}
    for file in FILES.values():
        size = (file.image_size, file.image_size)
        text = _pretraining(file.pretraining)
        known = KnownWeights(file.name, file.variant, text, size, file.num_classes, file.address)
        by_network[file.variant].append(known)
    for name in timm.list_pretrained():
        config, (timm_name, _, tag) = timm.models.get_pretrained_cfg(name), name.partition(".")
        variant = variant_of_timm(timm_name)
        network = variant.name if variant else timm_name
        source = config.hf_hub_id or config.url
        size, classes = tuple(config.input_size[1:]), config.num_classes
        known = KnownWeights(name, network, _pretraining(tag), size, classes, source, timm_name)
        by_network.setdefault(network, []).append(known)
    for known_of_network in by_network.values():
        yield from known_of_network


def _pretraining(tag: str) -> str:
    """Return the data that a tag of timm names, such as in21k+in1k, or the tag where they are not known."""
    parts = [part.split("_") for part in tag.split("_ft_")]
    stages = ["+".join(word for word in words if word in DATA) for words in parts]
    return "+".join(stages) if all(stages) else tag


def _row(known: KnownWeights, *, is_counted: bool) -> dict[str, Any]:
    return {
        "name": known.name,
        "network": known.network,
        "pretraining": known.pretraining,
        "resolution": list(known.image_size),
        "num_classes": known.num_classes,
        "params": _params(known) if known.network in VARIANTS or is_counted else None,
        "source": known.source,
        "here": _here(known),
    }


def _params(known: KnownWeights) -> int | None:
    """Count the parameters, with the head and the authors' representation layer; None if timm cannot."""
    variant = VARIANTS.get(known.network)
    if variant and variant.is_plain:
        has_pre_logits = known.name.endswith(f"@{IN21K}")
        of_pre_logits = variant.hidden * (variant.hidden + 1) if has_pre_logits else 0
        return num_params(variant, known.image_size, known.num_classes) + of_pre_logits
    # Without position embeddings the size does not matter
    has_tokens = variant is None or variant.layers
    counted = _counted(known.network, known.timm_name, known.image_size if has_tokens else (224, 224))
    return counted and counted[0] + known.num_classes * (counted[1] + 1)


@cache
def _counted(network: str, timm_name: str, size: tuple[int, int]) -> tuple[int, int] | None:
    """Return the parameters without a head, and the features that a head reads."""
    if network in VARIANTS:
        arch = architecture(network, image_size=size, num_classes=0)
    else:
        arch = Architecture(timm_name, timm_name, size, 0, "timm", pre_logits=False, model_args={})
    try:
        with torch.device("meta"):
            model = build(arch, dropout=0.0)
    except VitError:  # for want of a package, or it has no network without a head
        return None
    return sum(parameter.numel() for parameter in model.parameters()), model.num_features


def _here(known: KnownWeights) -> str:
    """Return "included", "local" for a path of that name, "cached", or "" for weights to be downloaded."""
    if known.name == DEMO:
        return "included" if DEMO_FOLDER.is_dir() else ""
    if os.path.exists(known.name):
        return "local"
    reference = Reference("hub", known.source)
    if "://" in known.source:
        reference = Reference("address", re.sub(r"^gs://", f"{STORAGE}/", known.source))
    return "cached" if is_here(reference) else ""


def as_table(result: dict[str, Any]) -> str:
    """Return the table for a terminal, the weights of each network of the paper below its name."""
    rows, lines = result["weights"], []
    for network, weights in groupby(rows, key=itemgetter("network")):
        if network in VARIANTS:
            lines.append([f"{network}:", "", "", "", ""])
        lines += map(_cells, weights)
    are_many = any(row["params"] is None for row in rows)
    num_hidden = max(len(lines) - MOST_SHOWN, 0) if are_many and sys.stdout.isatty() else 0
    text = simple_table(COLUMNS, lines[: len(lines) - num_hidden]).as_text()
    text += f"and {num_hidden} more: narrow PATTERN, or read all of them in a pipe\n" if num_hidden else ""
    if are_many:
        text += f"MB: not counted for more than {MOST_BUILT} networks at once; narrow PATTERN\n"
    return text + FOOT.format(storage=STORAGE)


def as_markdown(result: dict[str, Any]) -> str:
    return simple_table(COLUMNS, map(_cells, result["weights"])).as_markdown()


def _cells(row: dict[str, Any]) -> list[str]:
    height, width = row["resolution"]
    megabytes = "-" if row["params"] is None else f"{row['params'] * 4 / 1e6:,.0f}"
    size = f"{height}" if height == width else f"{height}x{width}"
    return [row["name"], row["pretraining"], size, megabytes, "yes" if row["here"] else "-"]
