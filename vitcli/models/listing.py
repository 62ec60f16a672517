"""`vit models`: the networks of the paper's tables and their cost."""

import math
from pathlib import Path
from typing import Any

from vitcli.errors import VitError, nearest
from vitcli.models.build import architecture
from vitcli.models.flops import costs_without_head
from vitcli.models.variants import VARIANTS, Variant, find_variant, matches
from vitcli.output.document import Columns, simple_table
from vitcli.output.text import size_text

ALWAYS_FITS = (224, 224)  # a multiple of every patch size in VARIANTS
COLUMNS: Columns = {"model": "id", "parameters": "number", "with 1,000 classes": "number", "GMACs": "number",
                    "px": "number", "stride": "number", "tokens": "number", "timm": "id"}  # fmt: skip
PAGE = Path(__file__).with_name("page.md")  # docs/models.md, with holes for image size and table


def list_models(pattern: str | None, *, image_size: tuple[int, int]) -> dict[str, Any]:
    """List the networks whose name matches the pattern, with their cost at an image size.

    Args:
        pattern: a name in any spelling, a part of names, or a glob, case-insensitive; None for all.

    Raises:
        VitError: no name matches.
    """
    variant = find_variant(pattern or "")
    names = [variant.name] if variant else [n for n in VARIANTS if pattern is None or matches(n, pattern)]
    if pattern and not names:
        fix = "vit models lists all of them; --model takes any timm model too"
        raise VitError(f"no model matches {pattern!r}{nearest(pattern, VARIANTS)}", where="PATTERN", fix=fix)
    rows = [_row(VARIANTS[name], image_size) for name in names]
    return {"command": "models", "resolution": list(image_size), "models": rows}


def _row(variant: Variant, image_size: tuple[int, int]) -> dict[str, Any]:
    """Return the row of a network, at the nearest smaller size that is a multiple of its patch size."""
    patch_size = architecture(variant.name, image_size=ALWAYS_FITS, num_classes=0).patch_size
    step = patch_size or 1
    height, width = (max(side // step, 1) * step for side in image_size)
    arch = architecture(variant.name, image_size=(height, width), num_classes=0)
    cost = costs_without_head(arch)
    return {
        "name": variant.name,
        "timm_name": variant.timm_name if variant.is_timms else None,
        "resolution": [height, width],
        "params": cost.params,
        "params_1000_classes": cost.params + 1000 * (cost.features + 1),
        "features": cost.features,
        "gmacs": round(cost.macs / 1e9, 3),
        "stride": patch_size,
        "patch_grid": list(arch.patch_grid) if arch.patch_grid else None,
        "tokens": math.prod(arch.patch_grid) + 1 if arch.patch_grid else None,
    }


def as_table(result: dict[str, Any]) -> str:
    """Return the table for a terminal."""
    return simple_table(COLUMNS, map(_cells, result["models"])).as_text()


def as_markdown(result: dict[str, Any]) -> str:
    """Return the page docs/models.md."""
    table = simple_table(COLUMNS, map(_cells, result["models"])).as_markdown()
    return PAGE.read_text(encoding="utf-8").format(size=size_text(result["resolution"]), table=table)


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["name"],
        f"{row['params']:,}",
        f"{row['params_1000_classes']:,}",
        f"{row['gmacs']:.3f}",
        size_text(row["resolution"]),
        str(row["stride"] or "-"),
        str(row["tokens"] or "-"),
        row["timm_name"] or "-",
    ]
