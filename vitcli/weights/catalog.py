"""Weights with a name: `vit models --weights` and `--pretrained`, without asking any server; no torch.

The table beside this file holds what timm's registry says of the ViT family, so that `--pretrained` lists it
before timm is loaded. With another version of timm the registry itself is read, and the table gives the
parameters alone.
"""

import csv
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from vitcli.distributed import startup
from vitcli.errors import VitError, nearest
from vitcli.models.variants import VARIANTS, find_variant, matches, num_params, variant_of_timm
from vitcli.output.document import Columns, simple_table
from vitcli.output.text import plain, size_text
from vitcli.weights.authors_catalog import FILES, IN21K, STORAGE
from vitcli.weights.licences import UNKNOWN, is_non_commercial
from vitcli.weights.names import DEMO, Reference, registered, tags_by_network

TABLE = Path(__file__).with_name("timm_weights.csv")
MODULES = {  # of timm.models, whose networks are transformers that keep one grid of patches
    "vision_transformer", "vision_transformer_hybrid", "vision_transformer_relpos", "vision_transformer_sam",
    "deit", "beit", "eva", "naflexvit", "cait", "xcit", "volo", "vitamin", "crossvit", "convit",
}  # fmt: skip
# Families by NETWORK.TAG; the first pattern that fits decides. In the order in which they are listed:
# features for any task first, then networks trained for ImageNet, then other designs.
FAMILIES = {
    "DINOv3": r"dinov3",
    "DINOv2": r"dinov2",
    "SigLIP 2": r"siglip.*v2_webli",
    "SigLIP": r"siglip",
    "PE": r"_pe_",
    "EVA-02": r"^eva02",
    "EVA": r"^eva",
    "CLIP": r"^[^.]*_clip_",
    "RADIO": r"c_radio",
    "AIMv2": r"^aimv2",
    "I-JEPA": r"ijepa",
    "MAE": r"\.mae",
    "DINO": r"\.dino",
    "BEiT-3": r"^beit3",
    "BEiT v2": r"^beitv2",
    "BEiT": r"^beit_",
    "NaFlexViT": r"^naflexvit",
    "hybrids": r"^vit_\w+_r(\d+)?_?s\d+|resnet|_r\d+_|_hybrid",
    "ViT (AugReg)": r"\.augreg",
    "ViT (paper)": r"\.orig_",
    "DeiT III": r"^deit3",
    "DeiT": r"^deit",
    "FlexiViT": r"^flexivit",
    "ViT (RoPE)": r"_rope|_mixed_",
    "ViT (relative)": r"relpos",
    "ViT (timm)": r"\.sbb|_reg\d|_gap_|\.sw_|^test_|\.miil|\.sam_",
    "SAM": r"^samvit",
    "CaiT": r"^cait",
    "XCiT": r"^xcit",
    "VOLO": r"^volo",
    "ViTamin": r"^vitamin",
    "CrossViT": r"^crossvit",
    "ConViT": r"^convit",
    "other ViTs": r"",
}
# Words of a tag, and the images that they stand for where a paper of that name says which.
DATA = {
    "in21k": "in21k", "in22k": "in22k", "in12k": "in12k", "in1k": "in1k", "jft": "jft", "dino": "in1k",
    "mae": "in1k", "lvd142m": "lvd142m", "lvd1689m": "lvd1689m", "sat493m": "sat493m", "webli": "webli",
    "laion2b": "laion2b", "laion400m": "laion400m", "datacomp1b": "datacomp1b", "datacompxl": "datacomp1b",
    "dfn2b": "dfn2b", "dfn5b": "dfn5b", "dfndr2b": "dfndr2b", "openai": "wit400m", "metaclip": "metaclip",
    "metaclip2": "metaclip2", "merged2b": "merged2b", "m30m": "merged30m", "m38m": "merged38m",
    "yfcc15m": "yfcc15m", "bamboo": "bamboo", "sa1b": "sa1b",
}  # fmt: skip
NOT_SAID = "not in its name"
STAGES = ("in21k", "in22k", "in12k", "in1k", "jft")  # words of a tag that are shown by stage of training
MOST_COUNTED = 40  # networks without a formula or a row in the table: to count one takes up to half a second
MOST_SHOWN = 30  # lines of weights in a terminal where the networks are more
COLUMNS_OF_WEIGHTS: Columns = {"--ckpt": "id", "trained on": "text", "px": "number", "MB": "number",
                               "here": "id"}  # fmt: skip
COLUMNS: Columns = {"--ckpt": "id", "trained on": "text", "px": "number", "classes": "number",
                    "parameters": "number", "licence": "text"}  # fmt: skip
COLUMNS_OF_FAMILIES: Columns = {"family": "id", "weights": "number", "parameters": "number", "px": "number",
                                "licence": "text", "such as": "id"}  # fmt: skip
FOOT_OF_WEIGHTS = """
--ckpt takes these names, timm/NAME and addresses (docs/weights-and-export.md).
NAME@... is the authors' file in gs://vit_models or gs://bit_models, such as
{storage}/vit_models/imagenet21k/ViT-B_16.npz;
orig is the paper's training, augreg AugReg's, goog BiT's. in21k is ImageNet-21k,
in1k ImageNet-1k. "here" is on this machine: its cache of downloads, or a file.
"""
FOOT = """
--ckpt takes these names, with or without timm/. "trained on" follows from the tag after the dot (in21k is
ImageNet-21k, in1k ImageNet-1k); parameters are without the head of classes, and classes "-" has none.
(!) is a licence for non-commercial use only. The licence goes on into what is trained from the weights.
"""
FOOT_OF_FAMILIES = """
vit models --pretrained FAMILY lists the weights of one, such as DINOv3; 'vit_small*' or siglip those whose
names fit. (!) is a licence for non-commercial use only.
"""


class KnownWeights(NamedTuple):
    """Weights with a name.

    Attributes:
        name: as --ckpt takes it: demo, the authors' VARIANT@PRETRAINING, or timm's NETWORK.TAG.
        image_size: height and width in pixels.
        num_classes: of the head in the file; 0 for none.
        params: without a head; None if they were not counted.
        licence: in lower case, as timm states it.
        source: OWNER/NAME on the Hub, an address, or "included"; "" where the table gives the row.
    """

    name: str
    image_size: tuple[int, int]
    num_classes: int
    params: int | None = None
    licence: str = UNKNOWN
    source: str = ""

    @property
    def network(self) -> str:
        """Return timm's name of the network, or the paper's of a file of the authors."""
        return re.split("[.@]", self.name)[0]

    @property
    def tag(self) -> str:
        return re.split("[.@]", self.name, maxsplit=1)[-1]

    @property
    def family(self) -> str:
        return next(family for family, pattern in FAMILIES.items() if re.search(pattern, self.name))

    @property
    def pretraining(self) -> str:
        """Return the data sets that the tag names, in the order of training, such as laion2b+in12k+in1k."""
        words = self.name.partition(".")[2].split("_")
        return "+".join(dict.fromkeys(DATA[word] for word in words if word in DATA)) or NOT_SAID

    @property
    def stages(self) -> str:
        """Return the ImageNets or JFT of each stage of training, or the tag where one has neither."""
        words_of_stages = (stage.split("_") for stage in self.tag.split("_ft_"))
        stages = ["+".join(word for word in words if word in STAGES) for words in words_of_stages]
        return "+".join(stages) if all(stages) else self.tag


def list_weights(pattern: str | None) -> dict[str, Any]:
    """List the weights that --ckpt takes by name: demo, then by network the authors' files and timm's.

    Args:
        pattern: a network in any spelling, a part of names, or a glob; None for the paper's networks.

    Raises:
        VitError: no name matches.
    """
    variant = find_variant(pattern or "")
    by_network: dict[str, list[KnownWeights]] = {name: [] for name in ("ViT-demo/8", *VARIANTS)}
    for known in _named_weights():
        by_network.setdefault(_papers_name(known), []).append(known)

    def is_chosen(known: KnownWeights, network: str) -> bool:
        if pattern is None:
            return network in VARIANTS
        if variant:
            return network == variant.name
        return matches(known.name, pattern) or matches(network, pattern)

    chosen = [
        (known, network)
        for network, group in by_network.items()
        for known in group
        if is_chosen(known, network)
    ]
    if not chosen:
        fix = "vit models --weights lists those of the paper's networks; a file needs no name here"
        hint = nearest(pattern or "", [*VARIANTS, *tags_by_network()])
        raise VitError(f"no known weights match {pattern!r}{hint}", where="PATTERN", fix=fix)
    # Networks of the paper have formulas; the others are counted, if they are not too many
    others = {network for _, network in chosen if network not in VARIANTS}
    is_counted = len(others) <= MOST_COUNTED
    rows = [
        {
            "name": known.name,
            "network": network,
            "pretraining": known.stages,
            "resolution": list(known.image_size),
            "num_classes": known.num_classes,
            "params": _params_with_head(known, network) if network in VARIANTS or is_counted else None,
            "source": known.source,
            "here": _here(known),
        }
        for known, network in chosen
    ]
    return {"command": "models", "weights": rows}


def list_pretrained(pattern: str | None) -> dict[str, Any]:
    """List timm's weights of the ViT family, by family and size.

    Args:
        pattern: a family, a network of the paper in any spelling, a part of names, or a glob; None for all.

    Raises:
        VitError: nothing matches.
    """
    known = known_weights()
    chosen = [weights for weights in known if pattern is None or _is_of(weights, pattern)]
    if not chosen:
        families, networks = map(str.lower, FAMILIES), dict.fromkeys(weights.network for weights in known)
        names = [*families, *networks, *(weights.name for weights in known)]
        name = (pattern or "").lower().removeprefix("timm/")
        shown = f"{plain(pattern or '')!r}{nearest(name, names)}"
        what = f"timm has no weights of the ViT family that match {shown}"
        others = "networks of other kinds: vit models PATTERN --weights"
        raise VitError(what, where="PATTERN", fix=f"vit models --pretrained lists the families; {others}")
    ranks = list(FAMILIES)
    chosen.sort(key=lambda one: (ranks.index(one.family), one.params or 0, one.image_size, one.name))
    return {
        "command": "models",
        "pattern": pattern,
        "timm": version("timm"),
        "pretrained": [
            {
                "name": weights.name,
                "family": weights.family,
                "pretraining": None if weights.pretraining == NOT_SAID else weights.pretraining,
                "resolution": list(weights.image_size),
                "num_classes": weights.num_classes,
                "params": weights.params,
                "license": weights.licence,
                "non_commercial": is_non_commercial(weights.licence),
            }
            for weights in chosen
        ],
    }


def _is_of(weights: KnownWeights, pattern: str) -> bool:
    if _letters(pattern) in map(_letters, FAMILIES):
        return _letters(weights.family) == _letters(pattern)
    if variant := find_variant(pattern):
        return variant_of_timm(weights.network) == variant
    return bool(pattern) and matches(weights.name, pattern.removeprefix("timm/"))


def _letters(family: str) -> str:
    return re.sub(r"[^a-z0-9]", "", family.lower())


def known_weights() -> list[KnownWeights]:
    """Return timm's weights of the ViT family, in timm's order."""
    with suppress(OSError, ValueError):  # an installation without the table has timm itself
        rows = TABLE.read_text(encoding="utf-8").splitlines()
        if rows[0] == f"# timm {version('timm')}":
            return list(_read(rows[2:]))
        return _of_registry({weights.network: weights.params for weights in _read(rows[2:])})
    return _of_registry({})


def _read(lines: Iterable[str]) -> Iterable[KnownWeights]:
    for name, height, width, classes, params, licence in csv.reader(lines):
        size = (int(height), int(width))
        yield KnownWeights(name, size, int(classes), int(params) if params else None, licence)


def _of_registry(params: dict[str, int | None]) -> list[KnownWeights]:
    """Return what the installed timm says of the ViT family.

    Args:
        params: parameters of networks that are known already; MOST_COUNTED others are counted, of more none.
    """
    startup.load()
    import timm

    known = [
        _in_timm(name)
        for module in sorted(MODULES)
        for name in timm.list_models(module=module, pretrained=True, include_tags=True)
    ]
    unknown = dict.fromkeys(weights.network for weights in known if weights.network not in params)
    counted = {name: _params_of(name) for name in unknown} if len(unknown) <= MOST_COUNTED else {}
    params = params | counted
    return [weights._replace(params=params.get(weights.network)) for weights in known]


def _named_weights() -> Iterator[KnownWeights]:
    """Yield all weights that --ckpt takes by name: demo, the authors' files, and timm's."""
    yield KnownWeights(DEMO, (64, 64), 10, source="included")
    for file in FILES.values():
        size = (file.image_size, file.image_size)
        yield KnownWeights(file.name, size, file.num_classes, source=file.address)
    for network, tags in tags_by_network().items():
        yield from (_in_timm(f"{network}.{tag}") for tag in tags)


def _in_timm(name: str) -> KnownWeights:
    config = registered(name)
    height, width = config.input_size[1:]
    licence, source = (config.license or UNKNOWN).lower(), config.hf_hub_id or str(config.url)
    return KnownWeights(name, (height, width), config.num_classes, licence=licence, source=source)


def _papers_name(known: KnownWeights) -> str:
    """Return the paper's name of the network, or timm's of another."""
    if known.name == DEMO:
        return "ViT-demo/8"
    variant = variant_of_timm(known.network)
    return variant.name if variant else known.network


def _params_with_head(known: KnownWeights, network: str) -> int | None:
    """Count the parameters, with the head and the authors' representation layer; None if timm cannot."""
    variant = VARIANTS.get(network)
    if variant and variant.is_plain:
        has_pre_logits = known.name.endswith(f"@{IN21K}")
        of_pre_logits = variant.hidden * (variant.hidden + 1) if has_pre_logits else 0
        return num_params(variant, known.image_size, known.num_classes) + of_pre_logits
    # Without position embeddings the size does not matter
    has_tokens = variant is None or variant.layers
    counted = _counted(network, known.network, known.image_size if has_tokens else (224, 224))
    return counted and counted[0] + known.num_classes * (counted[1] + 1)


def _params_of(network: str) -> int | None:
    """Count the parameters of timm's network without a head, at its own size; None if timm cannot."""
    height, width = registered(network).input_size[1:]
    counted = _counted(network, network, (height, width))
    return counted and counted[0]


@cache
def _counted(network: str, timm_name: str, size: tuple[int, int]) -> tuple[int, int] | None:
    """Return the parameters without a head, and the features that a head reads; None if timm cannot say."""
    import torch

    from vitcli.models.architecture import Architecture
    from vitcli.models.build import architecture, build

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
    from vitcli.weights.download import is_here
    from vitcli.weights.locate import DEMO_FOLDER

    if known.name == DEMO:
        return "included" if DEMO_FOLDER.is_dir() else ""
    if os.path.exists(known.name):
        return "local"
    reference = Reference("hub", known.source)
    if "://" in known.source:
        reference = Reference("address", re.sub(r"^gs://", f"{STORAGE}/", known.source))
    return "cached" if is_here(reference) else ""


def as_table(result: dict[str, Any]) -> str:
    """Return the table for a terminal: weights below the name of their network or family, or the families."""
    columns, groups, foot = _groups(result)
    lines = []
    for heading, rows in groups:
        lines += [[f"{heading}:", *[""] * (len(columns) - 1)]] if heading else []
        lines += rows
    are_many = any(row["params"] is None for row in result.get("weights", ()))
    num_hidden = max(len(lines) - MOST_SHOWN, 0) if are_many and sys.stdout.isatty() else 0
    text = simple_table(columns, lines[: len(lines) - num_hidden]).as_text()
    text += f"and {num_hidden} more: narrow PATTERN, or read all of them in a pipe\n" if num_hidden else ""
    if are_many:
        text += f"MB: not counted for more than {MOST_COUNTED} networks at once; narrow PATTERN\n"
    return text + foot


def as_markdown(result: dict[str, Any]) -> str:
    """Return the same table in Markdown, without headings."""
    columns, groups, _ = _groups(result)
    return simple_table(columns, [cells for _, rows in groups for cells in rows]).as_markdown()


Groups = list[tuple[str, list[list[str]]]]  # a heading, or "", and the cells of the rows below it


def _groups(result: dict[str, Any]) -> tuple[Columns, Groups, str]:
    """Return the columns of a table, its rows by heading, and what stands below it."""
    if "weights" in result:
        groups = [
            (network if network in VARIANTS else "", [*map(_cells_of_weights, rows)])
            for network, rows in groupby(result["weights"], key=itemgetter("network"))
        ]
        return COLUMNS_OF_WEIGHTS, groups, FOOT_OF_WEIGHTS.format(storage=STORAGE)
    of_families = [(name, [*rows]) for name, rows in groupby(result["pretrained"], key=itemgetter("family"))]
    if result["pattern"] is None:
        return COLUMNS_OF_FAMILIES, [("", [*map(_cells_of_family, of_families)])], FOOT_OF_FAMILIES
    return COLUMNS, [(family, [*map(_cells, rows)]) for family, rows in of_families], FOOT


def _cells_of_weights(row: dict[str, Any]) -> list[str]:
    megabytes = "-" if row["params"] is None else f"{row['params'] * 4 / 1e6:,.0f}"
    size = size_text(row["resolution"])
    return [row["name"], row["pretraining"], size, megabytes, "yes" if row["here"] else "-"]


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["name"],
        row["pretraining"] or NOT_SAID,
        size_text(row["resolution"]),
        f"{row['num_classes']:,}" if row["num_classes"] else "-",
        _millions(row["params"]),
        _licence(row),
    ]


def _cells_of_family(group: tuple[str, list[dict[str, Any]]]) -> list[str]:
    family, rows = group
    counts = sorted(row["params"] for row in rows if row["params"])
    sides = sorted(max(row["resolution"]) for row in rows)
    return [
        family,
        str(len(rows)),
        _range(_millions(counts[0]), _millions(counts[-1])) if counts else "-",
        _range(str(sides[0]), str(sides[-1])),
        ", ".join(dict.fromkeys(map(_licence, rows))),
        min(rows, key=lambda row: (abs((row["params"] or 0) - 25e6), row["name"]))["name"],
    ]


def _range(least: str, most: str) -> str:
    return least if least == most else f"{least}-{most}"


def _millions(params: int | None) -> str:
    return "-" if params is None else f"{params / 1e6:,.1f}M" if params < 1e8 else f"{params / 1e6:,.0f}M"


def _licence(row: dict[str, Any]) -> str:
    return f"{row['license']}{' (!)' if row['non_commercial'] else ''}"
