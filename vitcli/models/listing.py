"""`vit models`: the networks of the paper's tables and their cost."""

import math
from typing import Any

from vitcli.errors import VitError, nearest
from vitcli.models.build import architecture
from vitcli.models.flops import costs_without_head
from vitcli.models.variants import VARIANTS, Variant, find_variant, matches
from vitcli.output.document import simple_table

ALWAYS_FITS = (224, 224)  # a multiple of every patch size in VARIANTS
NUMBERS = ("parameters", "with 1,000 classes", "GMACs", "px", "stride", "tokens")
COLUMNS = {"model": "id", **dict.fromkeys(NUMBERS, "number"), "timm": "id"}

ABOUT = """# Models

The networks of the paper's tables at {size} px, as `vit models --format markdown` prints them (a test keeps
this page current). `--model` takes these names in any spelling (`ViT-L/16`, `vit_l16`, `L/16`, `R50+B/32`,
`R152x4`), and any timm model. The recipe keys `model.layers`, `hidden`, `mlp`, `heads` and `patch_size`
change the size of a transformer.

"""
FOOT = """
- **parameters**: without a head, then with one layer for 1,000 classes.
- **GMACs**: 10^9 multiply-adds of one image, without the head; FLOPs are twice that.
- **px**: the largest multiple of the patch size that is at most the requested size.
- **stride**: side in pixels of the square that one token covers; for a hybrid, of its ResNet's down-sampling
  too. AugReg's R+ViT-Ti/16 has 32, despite its name. A ResNet has no tokens.
- **timm**: the timm model that is this network, except for the GELU and the epsilons; `-` where timm has no
  name for it, and it is built from timm's parts.

These are networks. Weights come with `--ckpt`: `vit models --weights` lists those with a name
([weights.md](weights.md)).

## Backbones from timm

```
vit models --pretrained                  # the families: number, sizes and licences of their weights
vit models --pretrained DINOv3           # the weights of one; a glob or a part of names does too
vit models --pretrained 'vit_small*' --json
vit finetune --ckpt timm/vit_small_patch16_dinov3.lvd1689m --dataset photos/ --res 320
```

The list is timm's own registry, read without any server: parameters without the head, image size, the data
that the tag names, the licence. Families stand in this order: features for any task (DINOv3, DINOv2,
SigLIP 2, EVA-02, CLIP, MAE), networks trained for ImageNet (BEiT, NaFlexViT, AugReg, DeiT III), others.

Every family keeps its own pooling, norms, registers, patch size and position embeddings, at any image size
that its patches divide. What it stores for one size, tables of relative positions too, is resampled as timm
resamples the family; rotary embeddings are computed. `--set model.posemb_resample=paper` takes the paper's
bilinear resampling, which is what the paper's own networks get. `tests/training/test_families.py` trains,
stops, resumes, evaluates and exports thirty families at two image sizes, and compares their logits with
timm's (at most 1e-5).
"""


def list_models(pattern: str | None, *, image_size: tuple[int, int]) -> dict[str, Any]:
    """List the networks whose name matches the pattern, with their cost at an image size.

    Args:
        pattern: a name in any spelling, a part of names, or a glob, case-insensitive; None for all.

    Raises:
        VitError: no name matches.
    """
    variant = find_variant(pattern or "")
    names = [variant.name] if variant else [n for n in VARIANTS if pattern is None or matches(n, pattern)]
    if not names:
        fix = "vit models lists all of them; --model takes any timm model too"
        raise VitError(f"no model matches {pattern!r}{nearest(pattern, VARIANTS)}", where="PATTERN", fix=fix)
    rows = [_row(VARIANTS[name], image_size) for name in names]
    return {"command": "models", "resolution": list(image_size), "models": rows}


def _row(variant: Variant, image_size: tuple[int, int]) -> dict[str, Any]:
    """Return the row of a network, at the nearest smaller size that is a multiple of its patch size."""
    patch_size = architecture(variant.name, image_size=ALWAYS_FITS, num_classes=0).patch_size
    size = tuple(max(side // patch_size, 1) * patch_size for side in image_size) if patch_size else image_size
    arch = architecture(variant.name, image_size=size, num_classes=0)
    cost = costs_without_head(arch)
    return {
        "name": variant.name,
        "timm_name": variant.timm_name if variant.is_timms else None,
        "resolution": list(size),
        "params": cost.params,
        "params_1000_classes": cost.params + 1000 * (cost.features + 1),
        "features": cost.features,
        "gmacs": round(cost.macs / 1e9, 3),
        "stride": patch_size,
        "patch_grid": list(arch.patch_grid) if patch_size else None,
        "tokens": math.prod(arch.patch_grid) + 1 if patch_size else None,
    }


def as_table(result: dict[str, Any]) -> str:
    """Return the table for a terminal."""
    return simple_table(COLUMNS, map(_cells, result["models"])).as_text()


def as_markdown(result: dict[str, Any]) -> str:
    """Return the page docs/models.md."""
    height, width = result["resolution"]
    table = simple_table(COLUMNS, map(_cells, result["models"])).as_markdown()
    size = height if height == width else f"{height}x{width}"
    return ABOUT.format(size=size) + table + FOOT


def _cells(row: dict[str, Any]) -> list[str]:
    height, width = row["resolution"]
    return [
        row["name"],
        f"{row['params']:,}",
        f"{row['params_1000_classes']:,}",
        f"{row['gmacs']:.3f}",
        f"{height}" if height == width else f"{height}x{width}",
        str(row["stride"] or "-"),
        str(row["tokens"] or "-"),
        row["timm_name"] or "-",
    ]
