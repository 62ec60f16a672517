"""Everything that is needed to build a network again, as it stands beside its weights; no torch here."""

import re
from dataclasses import MISSING, asdict, dataclass, fields

from vitcli.errors import VitError
from vitcli.models.variants import VARIANTS, find_variant, network_of_timm

GELUS = ("tanh", "erf", "none", "timm")
POSEMBS = ("none", "1d", "2d", "relative", "sincos2d")
POSEMB_PLACES = ("stem", "every_layer", "every_layer_shared")
GAP = {"class_token": False, "global_pool": "avg", "fc_norm": False}  # in timm's words; the norm comes first

MOST_LAYERS = 1_000  # far above any ViT; a damaged number would be built for hours


@dataclass(frozen=True)
class Architecture:
    """A network, exactly.

    Attributes:
        name: what people call it, a paper name ("ViT-B/16") or a timm model name.
        timm_name: what timm.create_model takes.
        image_size: height and width in pixels.
        num_classes: outputs of the head; 0 means no head.
        gelu: "tanh" or "erf" for a network of the paper with this GELU, "none" for one of the paper that has
            none; "timm" for a network that is wholly as timm defines it.
        pre_logits: the head is Dense(D->D), tanh, Dense(D->K) and not one Dense(D->K).
        model_args: further keyword arguments of timm.create_model.
        posemb: "1d" is the paper's learned table, a row for each token; "sincos2d" is fixed (arXiv
            2205.01580); the others stand in the paper's Table 8.
        posemb_at: where it is added: "stem" or at the input of every layer.
        norm_eps: added to the variance by the layer norms of a network of the paper.
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

    @property
    def is_of_the_paper(self) -> bool:
        """Whether the authors' arithmetic holds, and not timm's."""
        return self.gelu != "timm"

    @property
    def is_plain(self) -> bool:
        """Whether it is a ViT of Table 1 as it stands there, for which formulas are known."""
        variant = find_variant(self.name)
        as_there = (self.posemb, self.posemb_at, self.pre_logits) == ("1d", "stem", False)
        return bool(variant and variant.is_plain and as_there and self.model_args == variant.timm_args)

    @property
    def classifier(self) -> str:
        """ "gap" for a mean over the tokens, "token" for the class token, "" for what timm defines."""
        if self.model_args.get("class_token") is False and self.model_args.get("global_pool") == "avg":
            return "gap"
        return "token" if self.is_of_the_paper and "depth" in self.model_args else ""

    @property
    def patch_size(self) -> int | None:
        """Pixels a side that one token stands for, a hybrid's whole down-sampling (paper, section 4.4).

        None for a network without tokens, or whose name does not tell.
        """
        blocks = self._resnet_blocks
        named = re.search(r"_patch(\d+)" if blocks is None else r"_p(\d+)", self.timm_name)
        by_name = int(named[1]) if named else None if blocks is None else 1
        kernel = self.model_args.get("patch_size", by_name)
        return kernel if blocks is None else kernel * 4 * 2 ** max(len(blocks) - 1, 0)

    @property
    def _resnet_blocks(self) -> tuple[int, ...] | None:
        """Of a hybrid, by stage; None for any other network."""
        if "resnet_blocks" in self.model_args:
            return tuple(self.model_args["resnet_blocks"])
        network = network_of_timm(self.timm_name)
        hybrids = (variant for variant in VARIANTS.values() if variant.layers and variant.blocks is not None)
        return next((v.blocks for v in hybrids if network_of_timm(v.timm_name) == network), None)

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
        kinds = {field.name: field.type for field in fields(cls)} | {"image_size": list}
        optional = {field.name: field.default for field in fields(cls) if field.default is not MISSING}
        stored = optional | stored
        wrong = [name for name, kind in kinds.items() if type(stored.get(name)) is not kind]
        if not wrong and not _is_size(stored["image_size"]):
            wrong = ["image_size"]
        if not wrong and not _is_depth(stored["model_args"].get("depth", 0)):
            wrong = ["model_args, depth"]
        choices = {"gelu": GELUS, "posemb": POSEMBS, "posemb_at": POSEMB_PLACES}
        wrong += [name for name, allowed in choices.items() if not wrong and stored[name] not in allowed]
        if wrong or stored.keys() - kinds.keys():
            raise VitError(
                f"the stored architecture is damaged ({', '.join(wrong) or 'unknown keys'})",
                where="architecture",
                fix="write the weights again",
            )
        return cls(**{**stored, "image_size": tuple(stored["image_size"])})


def _is_depth(depth: object) -> bool:
    return type(depth) is int and 0 <= depth <= MOST_LAYERS


def _is_size(size: list) -> bool:
    return len(size) == 2 and all(type(side) is int and side > 0 for side in size)
