"""The model sizes of the paper under the names people give them, and what they weigh; no torch here.

D hidden width, M width of the MLP, L layers, P patch size, N patches, K classes.
"""

import re
from dataclasses import asdict, dataclass

from vitcli.errors import VitError

GELUS = ("tanh", "erf", "timm")


@dataclass(frozen=True)
class Variant:
    """One row of the paper's Table 1, of the authors' later releases (Ti, S, B/8), or our demo size."""

    name: str
    layers: int
    hidden: int
    mlp: int
    heads: int
    patch_size: int
    timm_name: str

    @property
    def timm_args(self) -> dict:
        """The size as keyword arguments of timm's VisionTransformer."""
        return vit_args(
            layers=self.layers,
            hidden=self.hidden,
            mlp=self.mlp,
            heads=self.heads,
            patch_size=self.patch_size,
        )


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("ViT-Ti/16", 12, 192, 768, 3, 16, "vit_tiny_patch16_224"),
        Variant("ViT-S/32", 12, 384, 1536, 6, 32, "vit_small_patch32_224"),
        Variant("ViT-S/16", 12, 384, 1536, 6, 16, "vit_small_patch16_224"),
        Variant("ViT-B/32", 12, 768, 3072, 12, 32, "vit_base_patch32_224"),
        Variant("ViT-B/16", 12, 768, 3072, 12, 16, "vit_base_patch16_224"),
        Variant("ViT-B/8", 12, 768, 3072, 12, 8, "vit_base_patch8_224"),
        Variant("ViT-L/32", 24, 1024, 4096, 16, 32, "vit_large_patch32_224"),
        Variant("ViT-L/16", 24, 1024, 4096, 16, 16, "vit_large_patch16_224"),
        Variant("ViT-H/14", 32, 1280, 5120, 16, 14, "vit_huge_patch14_224"),
        Variant("ViT-demo/8", 6, 96, 384, 3, 8, "vit_tiny_patch16_224"),  # timm has none of this size
    )
}

_LONG_NAMES = {"tiny": "ti", "small": "s", "base": "b", "large": "l", "huge": "h"}


@dataclass(frozen=True)
class Architecture:
    """Everything needed to build the same network again.

    Attributes:
        name: what people call it, a paper name ("ViT-B/16") or a timm model name.
        timm_name: what timm.create_model takes.
        image_size: height and width in pixels.
        num_classes: outputs of the head; 0 means no head.
        gelu: "tanh" or "erf" for the paper's network, "timm" for a network that is wholly as timm defines it.
        pre_logits: the head is Dense(D->D), tanh, Dense(D->K) and not one Dense(D->K).
        model_args: further keyword arguments of timm.create_model.
    """

    name: str
    timm_name: str
    image_size: tuple[int, int]
    num_classes: int
    gelu: str
    pre_logits: bool
    model_args: dict

    @property
    def patch_size(self) -> int | None:
        """In pixels; None for a timm model without patches, or whose name does not tell."""
        if "patch_size" in self.model_args:
            return self.model_args["patch_size"]
        named = re.search(r"_patch(\d+)", self.timm_name)
        return int(named[1]) if named else None

    @property
    def patch_grid(self) -> tuple[int, int] | None:
        """Rows and columns of patches; what is left over at the right and the bottom is not seen."""
        if not self.patch_size:
            return None
        height, width = self.image_size
        return height // self.patch_size, width // self.patch_size

    def as_dict(self) -> dict:
        """For JSON."""
        return {**asdict(self), "image_size": list(self.image_size)}

    @classmethod
    def from_dict(cls, stored: dict) -> "Architecture":
        """The inverse of `as_dict`; VitError for anything it did not write."""
        kinds = {"name": str, "timm_name": str, "image_size": list, "num_classes": int}
        kinds |= {"gelu": str, "pre_logits": bool, "model_args": dict}
        wrong = [name for name, kind in kinds.items() if type(stored.get(name)) is not kind]
        if not wrong and not _is_size(stored["image_size"]):
            wrong = ["image_size"]
        if not wrong and stored["gelu"] not in GELUS:
            wrong = ["gelu"]
        if wrong or stored.keys() - kinds.keys():
            raise VitError(
                f"the stored architecture is damaged ({', '.join(wrong) or 'unknown keys'})",
                where="architecture",
                fix="write the weights again",
            )
        return cls(**{**stored, "image_size": tuple(stored["image_size"])})


def _is_size(size: list) -> bool:
    return len(size) == 2 and all(type(side) is int and side > 0 for side in size)


def vit_args(*, layers: int, hidden: int, mlp: int, heads: int, patch_size: int) -> dict:
    """A plain ViT's size as keyword arguments of timm's VisionTransformer."""
    mlp_ratio = mlp / hidden
    if int(hidden * mlp_ratio) != mlp:  # timm rounds the product down
        mlp_ratio = (mlp + 0.5) / hidden
    return {
        "patch_size": patch_size,
        "embed_dim": hidden,
        "depth": layers,
        "num_heads": heads,
        "mlp_ratio": mlp_ratio,
    }


def find_variant(name: str) -> Variant | None:
    """The variant of a paper name as people write it: ViT-L/16, vit_l16, L/16, vit-large-16; else None."""
    written = re.fullmatch(r"(?:vit)?[-_/ ]*([a-z]+)[-_/ ]*(\d+)", name.strip().lower())
    if not written:
        return None
    size, patch_size = written.groups()
    wanted = f"vit-{_LONG_NAMES.get(size, size)}/{patch_size}"
    return next((variant for variant in VARIANTS.values() if variant.name.lower() == wanted), None)


def variant_of_timm(timm_name: str) -> Variant | None:
    """The paper's model behind a timm name, whatever resolution the name ends in; None if it is none."""
    network = re.sub(r"_\d+$", "", timm_name)
    named = (variant for variant in VARIANTS.values() if variant.name != "ViT-demo/8")
    return next((variant for variant in named if variant.timm_name.removesuffix("_224") == network), None)


def num_params(variant: Variant, image_size: tuple[int, int], num_classes: int) -> int:
    """Trainable numbers with a head of one layer; without any head for 0 classes (paper, Table 1)."""
    D, M, tokens = variant.hidden, variant.mlp, _num_patches(variant, image_size) + 1
    embedding = 3 * variant.patch_size**2 * D + D + D + tokens * D
    layer = 4 * D * D + 4 * D + 2 * D * M + M + D + 4 * D
    head = (D + 1) * num_classes
    return embedding + variant.layers * layer + 2 * D + head


def forward_macs(variant: Variant, image_size: tuple[int, int]) -> int:
    """Multiply-accumulates of one image's forward pass, without the head; FLOPs are twice that."""
    D, M, patches = variant.hidden, variant.mlp, _num_patches(variant, image_size)
    tokens = patches + 1
    layer = tokens * (4 * D * D + 2 * D * M) + 2 * tokens**2 * D
    return 3 * variant.patch_size**2 * patches * D + variant.layers * layer


def _num_patches(variant: Variant, image_size: tuple[int, int]) -> int:
    height, width = image_size
    return (height // variant.patch_size) * (width // variant.patch_size)
