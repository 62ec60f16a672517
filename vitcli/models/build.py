"""The network: a name to an Architecture, an Architecture to a timm module with the paper's arithmetic.

State dicts carry timm's names. What timm has not has names of ours, and timm will not load it, as it should:
its logits would be others. With a representation layer (paper, section 3.1) `head` has two dense layers,
`head.pre_logits.*` (D -> D, then tanh) and `head.head.*` (D -> K); position embeddings of Table 8 are
`positions.*`.

D hidden width, K classes, P patch size.
"""

from collections import OrderedDict
from dataclasses import replace

import timm
import torch
from torch import Tensor, nn

from vitcli.errors import VitError, nearest
from vitcli.models import pos_embed
from vitcli.models.architecture import GAP, Architecture
from vitcli.models.init import init_as_the_authors
from vitcli.models.resnet import use_official_arithmetic
from vitcli.models.variants import VARIANTS, Variant, find_variant, resized, variant_of_timm

ACT_LAYERS = {"tanh": "gelu_tanh", "erf": "gelu"}  # in timm's words


def architecture(
    name: str,
    *,
    image_size: tuple[int, int],
    num_classes: int,
    gelu: str | None = None,
    pre_logits: bool = False,
    classifier: str = "token",
    posemb: str = "1d",
    posemb_at: str = "stem",
    layers: int | None = None,
    hidden: int | None = None,
    mlp: int | None = None,
    heads: int | None = None,
    patch_size: int | None = None,
) -> Architecture:
    """The Architecture of a paper name or a timm model name.

    Args:
        name: "ViT-B/16" in any spelling `find_variant` knows, or what timm.create_model takes, without a tag.
        image_size: height and width in pixels.
        num_classes: outputs of the head; 0 for none.
        gelu: None means the paper's for paper names and "timm" for timm names; "timm" makes all timm's.
        pre_logits: a head of two layers, as the paper pre-trains with.
        classifier: "token", or "gap" for the mean of all tokens, of which none is a class token (paper, D.3).
        posemb, posemb_at: position embeddings of the paper's Table 8.
        layers, hidden, mlp, heads, patch_size: of a transformer, where not as its name says (Figure 8).

    Raises:
        VitError: an unknown name, an image size the patches do not divide, a paper option for a timm model.
    """
    variant = known_name(name)
    size = dict(layers=layers, hidden=hidden, mlp=mlp, heads=heads, patch_size=patch_size)
    is_usual = (pre_logits, classifier, posemb, posemb_at) == (False, "token", "1d", "stem")
    if not is_usual or gelu not in (None, "timm") or any(size.values()):
        _check_transformer(variant or variant_of_timm(name), name)
    gelu = gelu or _own_gelu(variant)
    if any(size.values()):
        variant = resized(variant or variant_of_timm(name), **size)
    pos_embed.check_choice(posemb, posemb_at)
    arch = Architecture(
        name=variant.name if variant else name,
        timm_name=variant.timm_name if variant else name,
        image_size=tuple(image_size),
        num_classes=num_classes,
        gelu=gelu,
        pre_logits=pre_logits,
        model_args=(variant.timm_args if variant else {}) | (GAP if classifier == "gap" else {}),
        posemb=posemb,
        posemb_at=posemb_at,
    )
    check_image_size(arch)
    return arch


def _own_gelu(variant: Variant | None) -> str:
    if variant is None or (not variant.layers and variant.blocks is None):
        return "timm"
    return "tanh" if variant.layers else "none"


def known_name(name: str) -> Variant | None:
    """The variant of a paper name, None for a timm model; VitError for anything else."""
    variant = find_variant(name)
    if variant is None and (not timm.is_model(name) or "." in name):
        raise VitError(
            f"there is no model {name!r}{nearest(name, [*VARIANTS, *timm.list_models()])}",
            where="--model",
            fix="see vit models; timm's names work too, those with a tag as --ckpt timm/NAME.TAG",
        )
    return variant


def adapted(
    arch: Architecture, *, image_size: tuple[int, int], num_classes: int, gelu: str | None = None
) -> Architecture:
    """The same network for another task: pixels, classes, and one layer as head (paper, section 3.2).

    `gelu` is the network's own unless given, which only transformers of the paper take.
    """
    if gelu not in (None, arch.gelu, "timm") and not (arch.is_of_the_paper and "depth" in arch.model_args):
        _check_transformer(variant_of_timm(arch.timm_name), arch.name)
    size = tuple(image_size)
    other = replace(arch, image_size=size, num_classes=num_classes, pre_logits=False, gelu=gelu or arch.gelu)
    check_image_size(other)
    return other


def _check_transformer(variant: Variant | None, name: str) -> None:
    """Refuse the paper's choices about its transformer for another network."""
    if variant is None or not variant.layers:
        raise VitError(
            f"{variant.name if variant else name} is no transformer of the paper: "
            "its size, GELU, pre-logits, classifier and position embeddings are not for it",
            where="recipe keys model.gelu, pre_logits, classifier, posemb, posemb_at, and those of its size",
            fix="leave them out, or take a ViT or a hybrid of the paper (vit models)",
        )


def check_image_size(arch: Architecture) -> None:
    """Refuse an image that is no whole number of patches high and wide: the rest would not be looked at."""
    patch_size = arch.patch_size
    if not patch_size or not any(side % patch_size for side in arch.image_size):
        return
    uneven = next(side for side in arch.image_size if side % patch_size)
    below, above = uneven // patch_size * patch_size, -(-uneven // patch_size) * patch_size
    nearby = " or ".join(str(side) for side in (below, above) if side)
    height, width = arch.image_size
    raise VitError(
        f"an image of {height}x{width} pixels does not divide into patches of {patch_size}",
        where="recipe key data.image_size, option --res",
        fix=f"instead of {uneven} take {nearby}",
    )


def timm_arguments(arch: Architecture) -> dict:
    """Keyword arguments with which timm.create_model makes this network, classes aside; all JSON."""
    args = dict(arch.model_args)
    if takes_image_size(arch.timm_name):
        height, width = arch.image_size
        args["img_size"] = height if height == width else [height, width]
    if arch.gelu in ACT_LAYERS:
        args["act_layer"] = ACT_LAYERS[arch.gelu]
    if (arch.posemb, arch.posemb_at) != ("1d", "stem"):
        args["pos_embed"] = "none"
    return args


def takes_image_size(timm_name: str) -> bool:
    """Whether the network is built for one image size, as those with position embeddings are."""
    known = timm.models.get_pretrained_cfg(timm_name)
    return bool(known and known.fixed_input_size)


def build(arch: Architecture, *, dropout: float, drop_path: float = 0.0, init: str = "paper") -> nn.Module:
    """A fresh network; its numbers follow from torch's global seed.

    A network of the paper is initialised as in the authors' code unless `init` is "timm", all others as in
    timm. The last layer is zero in every one.

    Args:
        arch: which network.
        dropout: share dropped after the position embeddings, the attention's projection and both MLP layers.
        drop_path: probability that the last block is skipped, rising linearly from 0 at the first.
        init: "paper" or "timm"; "none" where all but a fresh head is overwritten afterwards.

    Raises:
        VitError: timm cannot build this, such as a network without these places for dropout.
    """
    is_papers = arch.is_of_the_paper
    skip_init = init == "none" or (is_papers and init == "paper")
    model = _network(arch, dropout=dropout, drop_path=drop_path, skip_init=skip_init)
    if is_papers and init == "paper":
        init_as_the_authors(model)
    _zero_last_layers(model)
    return model


def last_layers(model: nn.Module) -> list[nn.Module]:
    """The layers that make the logits: the last one of each head, dense or a convolution of 1x1."""
    classifier = model.get_classifier()
    heads = classifier if isinstance(classifier, tuple) else (classifier,)
    found = ([m for m in head.modules() if isinstance(m, nn.Linear | nn.Conv2d)] for head in heads)
    return [layers[-1] for layers in found if layers]


def features(model: nn.Module, images_BCHW: Tensor) -> Tensor:
    """(B, D), what the last layer is given: the class token or the mean after the last norm, and after the
    tanh layer where the head has one (paper, section 4.1)."""
    return before_last_layer(model, model.forward_features(images_BCHW))


def before_last_layer(model: nn.Module, encoded: Tensor) -> Tensor:
    """(B, D), the same of what `model.forward_features` has made of the images."""
    features_BD = model.forward_head(encoded, pre_logits=True)
    if isinstance(getattr(model, "head", None), nn.Sequential):
        features_BD = model.head.tanh(model.head.pre_logits(features_BD))
    return features_BD


def reset_head(model: nn.Module, num_classes: int) -> None:
    """Replace the whole head, representation layer and all, by one layer of zeros (paper, section 3.2)."""
    model.reset_classifier(num_classes)
    _zero_last_layers(model)


def expected_tensors(arch: Architecture) -> dict[str, torch.Size]:
    """Names and shapes of the network's state dict, in its order, without making the numbers."""
    with torch.device("meta"):
        state = _network(arch, dropout=0.0, drop_path=0.0, skip_init=True).state_dict()
    return {name: tensor.shape for name, tensor in state.items()}


def _network(arch: Architecture, *, dropout: float, drop_path: float, skip_init: bool) -> nn.Module:
    """The timm module with our head, our position embeddings, and the authors' arithmetic in the paper's."""
    options = {"pos_drop_rate": dropout, "proj_drop_rate": dropout} if dropout else {}
    if drop_path:
        options["drop_path_rate"] = drop_path
    if skip_init and "depth" in arch.model_args:  # a transformer
        options["weight_init"] = "skip"
    args = {**timm_arguments(arch), **options, "num_classes": arch.num_classes}
    try:
        model = timm.create_model(arch.timm_name, pretrained=False, **args)
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise VitError(
            f"timm cannot build {arch.name}: {(str(error).splitlines() or ['it says no reason'])[0][:200]}",
            where=", ".join(f"{key}={value}" for key, value in args.items()),
            fix="take other values or another model; not every one has such dropout, or takes any image size",
        ) from error
    if arch.pre_logits:
        width = model.num_features
        layers = {"pre_logits": nn.Linear(width, width), "tanh": nn.Tanh(), "head": model.head}
        model.head = nn.Sequential(OrderedDict(layers))
    if not pos_embed.is_timms(arch.posemb, arch.posemb_at):
        pos_embed.install(model, kind=arch.posemb, place=arch.posemb_at, dropout=dropout)
    if arch.is_of_the_paper:
        use_official_arithmetic(model)
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = arch.norm_eps
    return model


def _zero_last_layers(model: nn.Module) -> None:
    for layer in last_layers(model):
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)
