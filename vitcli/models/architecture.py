"""The exact description of a network, stored beside its weights so that it can be built again; no torch."""

import re
from dataclasses import MISSING, asdict, dataclass, fields, replace

from vitcli.errors import VitError
from vitcli.models.variants import VARIANTS, Variant, find_variant, network_of_timm

GELUS = ("tanh", "erf", "none", "timm")
POSEMBS = ("none", "1d", "2d", "relative", "sincos2d")
POSEMB_PLACES = ("stem", "every_layer", "every_layer_shared")
GAP = {"class_token": False, "global_pool": "avg", "fc_norm": False}  # timm's arguments; the norm comes first

MOST_LAYERS = 1_000  # far above any ViT; a network of a damaged depth would be built for hours


@dataclass(frozen=True)
class Architecture:
    """Exact description of a network.

    Attributes:
        name: a paper name ("ViT-B/16") or a timm model name.
        timm_name: first argument of timm.create_model.
        image_size: height and width in pixels.
        num_classes: outputs of the head; 0 means no head.
        gelu: "tanh" or "erf", or "none" for a network of the paper without GELU (BiT); "timm" for a network
            that is wholly as timm defines it.
        pre_logits: the head is Dense(D->E), tanh, Dense(E->K) instead of one Dense(D->K).
        model_args: further keyword arguments of timm.create_model.
        posemb: "1d" is the paper's learned table, a row for each token; "sincos2d" is fixed (arXiv
            2205.01580); the others are in the paper's Table 8.
        posemb_at: where it is added: "stem" or at the input of every layer.
        norm_eps: added to the variance by the layer norms of a network of the paper.
        representation_size: E of `pre_logits` where it is not D, as the authors' code allows; else 0.
        head_layers: blocks that the head reads, see `models.layered_head`; 0 for an ordinary head.
    """

    name: str
    timm_name: str
    image_size: tuple[int, int]
    num_classes: int
    gelu: str
    pre_logits: bool
    model_args: dict
    posemb: str = "1d"
    posemb_at: str = "stem"
    norm_eps: float = 1e-6
    representation_size: int = 0
    head_layers: int = 0

    @property
    def is_of_the_paper(self) -> bool:
        """Return True if the network computes as the authors' code does, not as timm's."""
        return self.gelu != "timm"

    @property
    def plain_variant(self) -> Variant | None:
        """Return the ViT of Table 1 that this is, unmodified, whose cost follows from formulas; else None."""
        variant = find_variant(self.name)
        parts = (self.posemb, self.posemb_at, self.pre_logits, self.head_layers)
        is_unmodified = variant and variant.is_plain and self.model_args == variant.timm_args
        return variant if is_unmodified and parts == ("1d", "stem", False, 0) else None

    @property
    def classifier(self) -> str:
        """Return what the head reads.

        "gap" for the mean of the tokens, "token" for the class token, "layers" for both of several layers, ""
        for timm's own choice.
        """
        if self.head_layers:
            return "layers"
        if self.model_args.get("class_token") is False and self.model_args.get("global_pool") == "avg":
            return "gap"
        return "token" if self.is_of_the_paper and "depth" in self.model_args else ""

    @property
    def patch_size(self) -> int | None:
        """Return the side in pixels of the square that one token covers (paper, section 4.4).

        For a hybrid that is the down-sampling of its ResNet times the kernel of the patch embedding. None for
        a network without tokens, or if the timm name does not contain it.
        """
        blocks = self._resnet_blocks
        match = re.search(r"_patch(\d+)" if blocks is None else r"_p(\d+)", self.timm_name)
        if blocks is None:
            return self.model_args.get("patch_size", int(match[1]) if match else None)
        # The stem of a ResNet halves the resolution twice, every stage after the first once more.
        kernel = self.model_args.get("patch_size", int(match[1]) if match else 1)
        return kernel * 4 * 2 ** max(len(blocks) - 1, 0)

    @property
    def _resnet_blocks(self) -> tuple[int, ...] | None:
        """Return the number of blocks in each stage of a hybrid's ResNet; None for any other network."""
        if "resnet_blocks" in self.model_args:
            return tuple(self.model_args["resnet_blocks"])
        network = network_of_timm(self.timm_name)
        hybrids = (variant for variant in VARIANTS.values() if variant.layers and variant.blocks is not None)
        return next((v.blocks for v in hybrids if network_of_timm(v.timm_name) == network), None)

    @property
    def patch_grid(self) -> tuple[int, int] | None:
        """Return rows and columns of patches, without the remainder at the right and bottom edge."""
        if not self.patch_size:
            return None
        height, width = self.image_size
        return height // self.patch_size, width // self.patch_size

    @property
    def known_grid(self) -> tuple[int, int]:
        """Return `patch_grid` of a network that has one."""
        assert self.patch_grid, f"{self.name} has no patches"
        return self.patch_grid

    def with_head(self, num_classes: int) -> "Architecture":
        """Return the network with one dense layer as head, as in fine-tuning (paper, 3.2); 0 for no head."""
        return replace(self, num_classes=num_classes, pre_logits=False, representation_size=0, head_layers=0)

    def as_dict(self) -> dict:
        return {**asdict(self), "image_size": list(self.image_size)}

    @classmethod
    def from_dict(cls, stored: dict) -> "Architecture":
        """Read what `as_dict` returns; raise VitError for anything it cannot have written."""
        types = {field.name: field.type for field in fields(cls)} | {"image_size": list}
        optional = {field.name: field.default for field in fields(cls) if field.default is not MISSING}
        stored = optional | stored
        wrong = [name for name, kind in types.items() if type(stored.get(name)) is not kind]
        if not wrong:
            size, depth = stored["image_size"], stored["model_args"].get("depth", 0)
            if len(size) != 2 or not all(type(side) is int and side > 0 for side in size):
                wrong = ["image_size"]
            elif type(depth) is not int or not 0 <= depth <= MOST_LAYERS:
                wrong = ["model_args, depth"]
            elif stored["representation_size"] < 0 or (
                stored["representation_size"] and not stored["pre_logits"]
            ):
                wrong = ["representation_size"]
            elif not 0 <= stored["head_layers"] <= MOST_LAYERS or (
                stored["head_layers"] and (stored["pre_logits"] or not stored["num_classes"])
            ):
                wrong = ["head_layers"]
        choices = {"gelu": GELUS, "posemb": POSEMBS, "posemb_at": POSEMB_PLACES}
        wrong += [name for name, allowed in choices.items() if not wrong and stored[name] not in allowed]
        if wrong or stored.keys() - types.keys():
            raise VitError(
                f"the stored architecture is damaged ({', '.join(wrong) or 'unknown keys'})",
                where="architecture",
                fix="write the weights again",
            )
        return cls(**{**stored, "image_size": tuple(stored["image_size"])})
