"""`vit models --pretrained`: weights of the ViT family that timm offers, without asking any server; no torch.

The table beside this file holds what timm's registry says, so that the list is there before timm is loaded.
With another version of timm the registry itself is read, and the table gives the parameters alone.
"""

import csv
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from vitcli.distributed import startup
from vitcli.errors import VitError, nearest
from vitcli.models.variants import find_variant, matches, variant_of_timm
from vitcli.output.document import simple_table
from vitcli.output.text import plain
from vitcli.weights.licences import UNKNOWN, is_non_commercial

TABLE = Path(__file__).with_name("timm_weights.csv")
COLUMNS_OF_TABLE = ("name", "height", "width", "classes", "parameters", "licence")
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
MOST_COUNTED = 40  # networks that are not in the table; to count one takes up to half a second
COLUMNS = {"--ckpt": "id", "trained on": "text", "px": "number", "classes": "number", "parameters": "number",
           "licence": "text"}  # fmt: skip
COLUMNS_OF_FAMILIES = {"family": "id", "weights": "number", "parameters": "number", "px": "number",
                       "licence": "text", "such as": "id"}  # fmt: skip
FOOT = """
--ckpt takes these names, with or without timm/. "trained on" follows from the tag after the dot (in21k is
ImageNet-21k, in1k ImageNet-1k); parameters are without the head of classes, and classes "-" has none.
(!) is a licence for non-commercial use only. The licence goes on into what is trained from the weights.
"""
FOOT_OF_FAMILIES = """
vit models --pretrained FAMILY lists the weights of one, such as DINOv3; 'vit_small*' or siglip those whose
names fit. (!) is a licence for non-commercial use only.
"""


class TimmWeights(NamedTuple):
    """Weights of timm.

    Attributes:
        name: NETWORK.TAG, as --ckpt takes it.
        image_size: height and width in pixels.
        num_classes: of the head in the file; 0 for none.
        params: without a head; None if they were not counted.
    """

    name: str
    image_size: tuple[int, int]
    num_classes: int
    params: int | None
    licence: str

    @property
    def network(self) -> str:
        return self.name.partition(".")[0]

    @property
    def family(self) -> str:
        return next(family for family, pattern in FAMILIES.items() if re.search(pattern, self.name))

    @property
    def pretraining(self) -> str:
        """Return the data sets that the tag names, in the order of training, such as laion2b+in12k+in1k."""
        words = self.name.partition(".")[2].split("_")
        return "+".join(dict.fromkeys(DATA[word] for word in words if word in DATA)) or NOT_SAID


def list_pretrained(pattern: str | None) -> dict[str, Any]:
    """List timm's weights of the ViT family, by family and size.

    Args:
        pattern: a family, a network of the paper in any spelling, a part of names, or a glob; None for all.

    Raises:
        VitError: nothing matches.
    """
    known = known_weights()
    chosen = [weights for weights in known if pattern is None or _is_chosen(weights, pattern)]
    if not chosen:
        raise _nothing(pattern or "", known)
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


def _is_chosen(weights: TimmWeights, pattern: str) -> bool:
    if _letters(pattern) in map(_letters, FAMILIES):
        return _letters(weights.family) == _letters(pattern)
    if variant := find_variant(pattern):
        return variant_of_timm(weights.network) == variant
    return bool(pattern) and matches(weights.name, pattern.removeprefix("timm/"))


def _letters(family: str) -> str:
    return re.sub(r"[^a-z0-9]", "", family.lower())


def _nothing(pattern: str, known: Sequence[TimmWeights]) -> VitError:
    """Return the error of a pattern that fits no weights, with the nearest name."""
    families, networks = map(str.lower, FAMILIES), dict.fromkeys(weights.network for weights in known)
    names = [*families, *networks, *(weights.name for weights in known)]
    hint = nearest(pattern.lower().removeprefix("timm/"), names)
    fix = "vit models --pretrained lists the families; networks of other kinds: vit models PATTERN --weights"
    return VitError(
        f"timm has no weights of the ViT family that match {plain(pattern)!r}{hint}", where="PATTERN", fix=fix
    )


def known_weights() -> list[TimmWeights]:
    """Return timm's weights of the ViT family, in timm's order."""
    with suppress(OSError, ValueError):  # an installation without the table has timm itself
        rows = TABLE.read_text(encoding="utf-8").splitlines()
        if rows[0] == f"# timm {version('timm')}":
            return list(_read(rows[2:]))
        return _of_registry({weights.network: weights.params for weights in _read(rows[2:])})
    return _of_registry({})


def _read(lines: Iterable[str]) -> Iterable[TimmWeights]:
    for name, height, width, classes, params, licence in csv.reader(lines):
        size = (int(height), int(width))
        yield TimmWeights(name, size, int(classes), int(params) if params else None, licence)


def _of_registry(params: dict[str, int | None], *, most_counted: int = MOST_COUNTED) -> list[TimmWeights]:
    """Return what the installed timm says.

    Args:
        params: parameters of networks that are known already.
        most_counted: networks to count otherwise; where there are more, none is.
    """
    startup.load()
    import timm

    configs = {
        name: timm.models.get_pretrained_cfg(name)
        for module in sorted(MODULES)
        for name in timm.list_models(module=module, pretrained=True, include_tags=True)
    }
    networks = dict.fromkeys(name.partition(".")[0] for name in configs)
    unknown = [network for network in networks if network not in params]
    counted = {name: _counted(name) for name in unknown} if len(unknown) <= most_counted else {}
    params = params | counted
    return [
        TimmWeights(
            name,
            tuple(config.input_size[1:]),
            config.num_classes,
            params.get(name.partition(".")[0]),
            (config.license or UNKNOWN).lower(),
        )
        for name, config in configs.items()
    ]


def _counted(network: str) -> int | None:
    """Count the parameters of a network without a head; None if timm cannot build it so."""
    import timm
    import torch

    try:
        with torch.device("meta"):
            model = timm.create_model(network, num_classes=0)
    except (TypeError, ValueError, AssertionError, RuntimeError, KeyError, ImportError):
        return None
    return sum(parameter.numel() for parameter in model.parameters())


def write_table(path: Path = TABLE) -> None:
    """Write the table of the installed timm; for developers, after an update of timm."""
    rows = [
        (one.name, *one.image_size, one.num_classes, "" if one.params is None else one.params, one.licence)
        for one in _of_registry({}, most_counted=10_000)
    ]
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# timm {version('timm')}\n")
        csv.writer(file, lineterminator="\n").writerows([COLUMNS_OF_TABLE, *rows])


def as_table(result: dict[str, Any]) -> str:
    """Return the table for a terminal: of families without a pattern, else of weights below their family."""
    if result["pattern"] is None:
        return simple_table(COLUMNS_OF_FAMILIES, map(_cells_of_family, _by_family(result))).as_text() + (
            FOOT_OF_FAMILIES
        )
    lines = []
    for family, rows in _by_family(result):
        lines.append([f"{family}:", *[""] * (len(COLUMNS) - 1)])
        lines += map(_cells, rows)
    return simple_table(COLUMNS, lines).as_text() + FOOT


def as_markdown(result: dict[str, Any]) -> str:
    """Return the same table in Markdown."""
    if result["pattern"] is None:
        return simple_table(COLUMNS_OF_FAMILIES, map(_cells_of_family, _by_family(result))).as_markdown()
    return simple_table(COLUMNS, map(_cells, result["pretrained"])).as_markdown()


def _by_family(result: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    groups = groupby(result["pretrained"], key=lambda row: row["family"])
    return [(family, list(rows)) for family, rows in groups]


def _cells(row: dict[str, Any]) -> list[str]:
    height, width = row["resolution"]
    return [
        row["name"],
        row["pretraining"] or NOT_SAID,
        f"{height}" if height == width else f"{height}x{width}",
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
