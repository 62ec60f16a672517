"""Models of the paper, their names in every spelling, and formulas for the cost of a plain ViT.

This module loads no torch. `num_params` and `forward_macs` are here and not in `flops`, for `vit reproduce`
and `vit study` plan with them before anything loads torch.

D hidden width, M width of the MLP, L layers, P patch size, N patches, T = N + 1 tokens, K classes.
"""

import re
from dataclasses import dataclass, replace
from fnmatch import fnmatch

from vitcli.errors import VitError

BIT = "vitcli_bit"  # our entries in timm's registry (resnet.py), for networks without a timm name
HYBRID = "vitcli_hybrid"
SIZES = ("layers", "hidden", "mlp", "heads", "patch_size")  # of a transformer
R26, R50 = (2, 2, 2, 2), (3, 4, 6, 3)  # blocks of each stage
R50_IN_THREE = (3, 4, 9)  # the blocks of stage 4 are in stage 3 (section 4.1)


@dataclass(frozen=True)
class Variant:
    """Model of the paper's tables, of the authors' later releases, or our demo model.

    Attributes:
        name: as the paper writes it.
        timm_name: first argument of timm.create_model.
        is_timms: whether that alone builds this network, without further arguments.
        layers, hidden, mlp, heads: size of the transformer; 0 for a network without one.
        patch_size: kernel of the patch embedding, in pixels; in cells of a hybrid's ResNet; or 0.
        blocks: blocks of each stage of the ResNet; () is the stem alone; None for a network without a ResNet.
        width: factor on the channels of the ResNet.
    """

    name: str
    timm_name: str
    is_timms: bool = True
    layers: int = 0
    hidden: int = 0
    mlp: int = 0
    heads: int = 0
    patch_size: int = 0
    blocks: tuple[int, ...] | None = None
    width: int = 1

    @property
    def is_plain(self) -> bool:
        """Return True for a transformer on patches of pixels."""
        return self.layers > 0 and self.blocks is None

    @property
    def timm_args(self) -> dict:
        """Return the size as keyword arguments of timm.create_model."""
        if self.layers:
            return vit_args(**{key: getattr(self, key) for key in SIZES})
        return (
            {"layers": list(self.blocks or ()), "width_factor": self.width} if self.timm_name == BIT else {}
        )


def _vit(
    name: str,
    size: tuple[int, int, int, int],
    patch_size: int,
    timm_name: str,
    *,
    blocks: tuple[int, ...] | None = None,
    is_timms: bool = True,
) -> Variant:
    layers, hidden, mlp, heads = size
    return Variant(name, timm_name, is_timms, layers, hidden, mlp, heads, patch_size, blocks)


TI, S, B = (12, 192, 768, 3), (12, 384, 1536, 6), (12, 768, 3072, 12)
L, H = (24, 1024, 4096, 16), (32, 1280, 5120, 16)

# Table 1 and the sizes of later releases; hybrids (section 3.1 and Table 6; R26 and R: AugReg); the ResNets
# of BiT (Tables 2 and 6); Noisy Student's network (Table 2).
VARIANTS = {
    variant.name: variant
    for variant in (
        _vit("ViT-Ti/16", TI, 16, "vit_tiny_patch16_224"),
        _vit("ViT-S/32", S, 32, "vit_small_patch32_224"),
        _vit("ViT-S/16", S, 16, "vit_small_patch16_224"),
        _vit("ViT-B/32", B, 32, "vit_base_patch32_224"),
        _vit("ViT-B/16", B, 16, "vit_base_patch16_224"),
        _vit("ViT-B/8", B, 8, "vit_base_patch8_224"),
        _vit("ViT-L/32", L, 32, "vit_large_patch32_224"),
        _vit("ViT-L/16", L, 16, "vit_large_patch16_224"),
        _vit("ViT-H/14", H, 14, "vit_huge_patch14_224"),
        _vit("R+ViT-Ti/16", TI, 8, "vit_tiny_r_s16_p8_224", blocks=()),
        _vit("R26+ViT-S/32", S, 1, "vit_small_r26_s32_224", blocks=R26),
        _vit("R26+ViT-B/32", B, 1, "vit_base_r26_s32_224", blocks=R26),
        _vit("R50+ViT-B/32", B, 1, "vit_large_r50_s32_224", blocks=R50, is_timms=False),
        _vit("R50+ViT-B/16", B, 1, "vit_base_r50_s16_224", blocks=R50_IN_THREE),
        _vit("R50+ViT-L/32", L, 1, "vit_large_r50_s32_224", blocks=R50),
        _vit("R50+ViT-L/16", L, 1, "vit_base_r50_s16_224", blocks=R50_IN_THREE, is_timms=False),
        Variant("BiT-R50x1", "resnetv2_50x1_bit", blocks=R50),
        Variant("BiT-R50x2", BIT, is_timms=False, blocks=R50, width=2),
        Variant("BiT-R50x3", "resnetv2_50x3_bit", blocks=R50, width=3),
        Variant("BiT-R101x1", "resnetv2_101x1_bit", blocks=(3, 4, 23, 3)),
        Variant("BiT-R101x3", "resnetv2_101x3_bit", blocks=(3, 4, 23, 3), width=3),
        Variant("BiT-R152x1", BIT, is_timms=False, blocks=(3, 8, 36, 3)),
        Variant("BiT-R152x2", "resnetv2_152x2_bit", blocks=(3, 8, 36, 3), width=2),
        Variant("BiT-R152x4", "resnetv2_152x4_bit", blocks=(3, 8, 36, 3), width=4),
        Variant("BiT-R200x3", BIT, is_timms=False, blocks=(3, 24, 36, 3), width=3),
        Variant("EfficientNet-L2", "tf_efficientnet_l2"),
        _vit("ViT-demo/8", (6, 96, 384, 3), 8, "vit_tiny_patch16_224", is_timms=False),
    )
}

_LONG_NAMES = {"Ti": "tiny", "S": "small", "B": "base", "L": "large", "H": "huge"}


def vit_args(*, layers: int, hidden: int, mlp: int, heads: int, patch_size: int) -> dict:
    """Return a transformer's size as keyword arguments of timm's VisionTransformer."""
    mlp_ratio = mlp / hidden
    if int(hidden * mlp_ratio) != mlp:  # timm truncates the product
        mlp_ratio = (mlp + 0.5) / hidden
    return {
        "patch_size": patch_size,
        "embed_dim": hidden,
        "depth": layers,
        "num_heads": heads,
        "mlp_ratio": mlp_ratio,
    }


def find_variant(name: str) -> Variant | None:
    """Return the variant of a name in any spelling (ViT-L/16, vit_l16, L/16, R50+B/32, R152x4), or None."""
    return _BY_SPELLING.get(_letters(name))


def resized(variant: Variant, **size: int) -> Variant:
    """Return the transformer with other sizes (paper, Figure 8), under a name such as ViT-6x192/4.

    With another width, the MLP is by default 4 times as wide and the heads have a width of 64, as in Table 1.

    Args:
        size: those of SIZES that differ.

    Raises:
        VitError: the heads do not divide the width; or other patches for a hybrid, whose ResNet decides.
    """
    # Sizes that follow from the width.
    hidden, patch_size = size.get("hidden"), size.get("patch_size")
    if hidden:
        size = {"mlp": 4 * hidden, "heads": max(hidden // 64, 1), **size}
    other = Variant(**(vars(variant) | {"is_timms": False} | size))
    if other.hidden % other.heads:
        raise VitError(
            f"a width of {other.hidden} does not divide into {other.heads} heads",
            where="recipe keys model.hidden and model.heads",
            fix="take a width that is a multiple of the heads",
        )
    if patch_size and not variant.is_plain:
        raise VitError(
            f"the patches of {variant.name} are not cut from pixels",
            where="recipe key model.patch_size",
            fix="leave it out, or take a ViT without a ResNet in front",
        )
    # "ViT-Ti/16" becomes "ViT-6x192/16", and with other patches "ViT-6x192/4".
    name = re.sub(r"ViT-\w+/", f"ViT-{other.layers}x{other.hidden}/", variant.name)
    return replace(other, name=re.sub(r"\d+$", str(patch_size), name) if patch_size else name)


def _spellings(name: str) -> list[str]:
    """Return every way to write a name."""
    if name.startswith("BiT-"):
        resnet = name.removeprefix("BiT-")
        return [name, resnet, resnet.replace("R", "ResNet"), f"BiT-{resnet.replace('R', 'ResNet')}"]
    if name.startswith("EfficientNet"):
        return [name, f"Noisy Student {name}", f"{name} Noisy Student", "Noisy Student"]
    resnet, _, vit = name.rpartition("+")
    short = vit.removeprefix("ViT-")
    size, _, patch_size = short.partition("/")
    written = [vit, short, f"{_LONG_NAMES.get(size, size)}{patch_size}"]
    written.append(f"ViT-{written[-1]}")
    roots = [resnet, f"{resnet}x1"] if resnet not in ("", "R") else [resnet]
    return [f"{root}+{rest}" for root in roots for rest in written]


def _letters(name: str) -> str:
    return re.sub(r"[-_/+ ]", "", name.lower())


_BY_SPELLING = {
    _letters(spelling): variant for variant in VARIANTS.values() for spelling in _spellings(variant.name)
}


def variant_of_timm(timm_name: str) -> Variant | None:
    """Return the paper's model behind a timm name, at any resolution the name ends in, or None."""
    network = network_of_timm(timm_name)
    variants = (variant for variant in VARIANTS.values() if variant.is_timms)
    return next((variant for variant in variants if network_of_timm(variant.timm_name) == network), None)


def matches(name: str, pattern: str) -> bool:
    """Return whether a name has this part, or fits this glob; case does not matter."""
    pattern = pattern.lower()
    return fnmatch(name.lower(), pattern if any(c in pattern for c in "*?[") else f"*{pattern}*")


def network_of_timm(timm_name: str) -> str:
    """Return a timm name without the resolution it may end in."""
    return re.sub(r"_\d+$", "", timm_name)


def num_params(variant: Variant, image_size: tuple[int, int], num_classes: int) -> int:
    """Return the parameters of a plain ViT (paper, section 3.1 and Table 1; paper.md, section 1.2).

    embedding  3 P^2 D + D         patch projection, bias
               + D + T D           class token, position embedding
    layer      4 D^2 + 4 D         query, key, value and output projections, biases
               + 2 D M + M + D     two MLP layers, biases
               + 4 D               two layer norms
    end        2 D                 layer norm
               + (D + 1) K         head of one layer; none for 0 classes
    """
    D, M, P, K = variant.hidden, variant.mlp, variant.patch_size, num_classes
    T = _num_patches(variant, image_size) + 1
    embedding = 3 * P**2 * D + D + D + T * D
    layer = 4 * D * D + 4 * D + 2 * D * M + M + D + 4 * D
    return embedding + variant.layers * layer + 2 * D + (D + 1) * K


def forward_macs(variant: Variant, image_size: tuple[int, int]) -> int:
    """Return the multiply-adds of one image through a plain ViT without its head (paper.md, section 1.2).

        embedding  3 P^2 N D
        layer      T (4 D^2 + 2 D M)   projections and MLP
                   + 2 T^2 D           attention weights, and the values they weight

    FLOPs are twice that. Norms, softmax and biases are not counted.
    """
    D, M, P = variant.hidden, variant.mlp, variant.patch_size
    N = _num_patches(variant, image_size)
    T = N + 1
    layer = T * (4 * D * D + 2 * D * M) + 2 * T**2 * D
    return 3 * P**2 * N * D + variant.layers * layer


def _num_patches(variant: Variant, image_size: tuple[int, int]) -> int:
    height, width = image_size
    return (height // variant.patch_size) * (width // variant.patch_size)
