"""Building networks: a model name to an Architecture, an Architecture to a timm module.

State dicts use timm's names. What timm lacks has names of our own, which timm refuses to load, as it should:
it would compute other logits. With a representation layer (paper, section 3.1) `head` has two dense layers,
`head.pre_logits.*` (D -> E, then tanh) and `head.head.*` (E -> K); position embeddings of Table 8 are
`positions.*`. A head that reads several layers (`layered_head`) has timm's names and another shape.

D hidden width, E representation size (D in the paper), K classes.
"""

import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from vitcli.errors import VitError, is_out_of_memory, nearest
from vitcli.models import pos_embed
from vitcli.models.architecture import GAP, Architecture
from vitcli.models.features import TimmNetwork
from vitcli.models.init import init_as_the_authors
from vitcli.models.kernels import choose_attention, choose_gelu
from vitcli.models.layered_head import with_layered_head
from vitcli.models.resnet import use_official_arithmetic
from vitcli.models.variants import SIZES, VARIANTS, Variant, find_variant, resized, variant_of_timm

ACT_LAYERS = {"tanh": "gelu_tanh", "erf": "gelu"}  # our names of the GELU to timm's


@dataclass(frozen=True)
class TransformerOptions:
    """Choices of the paper about its transformer that a model name leaves open.

    Attributes:
        gelu: None means the paper's for paper names, "timm" for timm names; "timm" builds all as timm does.
        pre_logits: add the representation layer that the paper pre-trains with.
        classifier: "token", or "gap" for the mean of all tokens, without a class token (paper, D.3).
        posemb, posemb_at: position embedding of the paper's Table 8.
        layers, hidden, mlp, heads, patch_size: sizes that differ from the name's (paper, Figure 8).
    """

    gelu: str | None = None
    pre_logits: bool = False
    classifier: str = "token"
    posemb: str = "1d"
    posemb_at: str = "stem"
    layers: int | None = None
    hidden: int | None = None
    mlp: int | None = None
    heads: int | None = None
    patch_size: int | None = None

    @property
    def size(self) -> dict[str, int]:
        """Return the sizes that are not None."""
        return {key: size for key in SIZES if (size := getattr(self, key))}


AS_NAMED = TransformerOptions()


def architecture(
    name: str, *, image_size: tuple[int, int], num_classes: int, options: TransformerOptions = AS_NAMED
) -> Architecture:
    """Return the Architecture of a paper name or a timm model name.

    Args:
        name: "ViT-B/16" in any spelling `find_variant` knows, or what timm.create_model takes, without a tag.
        image_size: height and width in pixels.
        num_classes: outputs of the head; 0 for no head.
        options: for transformers of the paper only.

    Raises:
        VitError: an unknown name, an image size the patches do not divide, paper options for a timm model.
    """
    # The paper's options are for its transformers alone.
    variant = known_name(name)
    if replace(options, gelu=None) != AS_NAMED or options.gelu not in (None, "timm"):
        _transformer(variant or variant_of_timm(name), name)
    # Other sizes than the name's make another variant.
    gelu = options.gelu or _default_gelu(variant)
    if options.size:
        variant = resized(_transformer(variant or variant_of_timm(name), name), **options.size)
    pos_embed.check_choice(options.posemb, options.posemb_at)
    arch = Architecture(
        name=variant.name if variant else name,
        timm_name=variant.timm_name if variant else name,
        image_size=image_size,
        num_classes=num_classes,
        gelu=gelu,
        pre_logits=options.pre_logits,
        model_args=(variant.timm_args if variant else {}) | (GAP if options.classifier == "gap" else {}),
        posemb=options.posemb,
        posemb_at=options.posemb_at,
    )
    check_image_size(arch)
    return arch


def _default_gelu(variant: Variant | None) -> str:
    if variant is None or (not variant.layers and variant.blocks is None):
        return "timm"
    return "tanh" if variant.layers else "none"


def known_name(name: str) -> Variant | None:
    """Return the variant of a paper name, or None for a timm model; raise VitError for any other name."""
    variant = find_variant(name)
    if variant is None and "." in name and timm.is_model(name):
        raise VitError(
            f"{name!r} names trained weights, and a model is named without their tag",
            where="--model",
            fix=f"leave the tag out for fresh weights; timm/{name} names those, as in "
            f"vit finetune --ckpt timm/{name} --dataset DATA",
        )
    if variant is None and not timm.is_model(name):
        raise VitError(
            f"there is no model {name!r}{nearest(name, [*VARIANTS, *timm.list_models()])}",
            where="--model",
            fix="vit models lists the names; those of timm's networks work too",
        )
    return variant


def default_image_size(name: str) -> tuple[int, int]:
    """Return the height and width that timm's weights of a model take; 224 for one that it has none of."""
    variant = known_name(name)
    known = timm.models.get_pretrained_cfg(variant.timm_name if variant else name)
    return known.input_size[1:] if known else (224, 224)


def adapted(
    arch: Architecture, *, image_size: tuple[int, int], num_classes: int, gelu: str | None = None
) -> Architecture:
    """Adapt an architecture to another image size and number of classes, with one layer as head (paper, 3.2).

    Another `gelu` than the network's is only for transformers of the paper.
    """
    if gelu not in (None, arch.gelu, "timm") and not (arch.is_of_the_paper and "depth" in arch.model_args):
        _transformer(variant_of_timm(arch.timm_name), arch.name)
    other = replace(arch.with_head(num_classes), image_size=image_size, gelu=gelu or arch.gelu)
    check_image_size(other)
    return other


def _transformer(variant: Variant | None, name: str) -> Variant:
    """Return the variant, or refuse the paper's options for its transformer on any other network."""
    if variant is None or not variant.layers:
        raise VitError(
            f"{variant.name if variant else name} is not a transformer of the paper: "
            "its size, GELU, pre-logits, classifier and position embedding cannot be chosen",
            where="recipe keys model.gelu, pre_logits, classifier, posemb, posemb_at, and those of its size",
            fix="leave them out, or take a ViT or a hybrid of the paper (vit models)",
        )
    return variant


def check_image_size(arch: Architecture) -> None:
    """Refuse an image size that is not a multiple of the patch size: the remainder would be ignored."""
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
    """Return the arguments of timm.create_model for this network, classes aside, as a JSON object."""
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
    """Return True if timm builds the network for one image size, as with position embeddings."""
    pretrained_cfg = timm.models.get_pretrained_cfg(timm_name)
    return bool(pretrained_cfg and pretrained_cfg.fixed_input_size)


def build(
    arch: Architecture,
    *,
    dropout: float,
    drop_path: float = 0.0,
    patch_dropout: float = 0.0,
    init: str = "paper",
) -> TimmNetwork:
    """Build a network with fresh weights, drawn from torch's global generator.

    Networks of the paper are initialised as in the authors' code unless `init` is "timm", all others as in
    timm. The last layer is always zero.

    Args:
        dropout: probability, after the position embedding, the attention's projection and both MLP layers.
        drop_path: probability that the last block is skipped, rising linearly from 0 at the first.
        patch_dropout: fraction of an image's patches that the blocks do not see in training, drawn for each
            image in each forward pass (arXiv 2208.07220).
        init: "paper" or "timm"; "none" if all but a fresh head is overwritten afterwards.

    Raises:
        VitError: timm cannot build this, such as a network without these places for dropout.
    """
    as_the_authors = arch.is_of_the_paper and init == "paper"
    network = partial(_network, arch, dropout=dropout, drop_path=drop_path, patch_dropout=patch_dropout)
    model = _without_numbers(network) if init == "none" else None
    if model is None:
        model = network(skip_init=init == "none" or as_the_authors)
    if as_the_authors:
        init_as_the_authors(model)
    for layer in last_layers(model):
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)
    return model


def _without_numbers(network: Callable[..., TimmNetwork]) -> TimmNetwork | None:
    """Build a transformer whose numbers are left as the memory has them, a third of the time of drawing them.

    None for a network that has numbers besides those of its state dict, such as a table of positions.

    Args:
        network: `_network` but for `skip_init`.
    """
    with torch.device("meta"):
        model = network(skip_init=True)
    stored = model.state_dict()
    named = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    if not isinstance(model, VisionTransformer) or named - stored.keys():
        return None
    # As `to_empty`, which loads sympy for tensors without numbers: half a second.
    empty = {name: torch.empty(tensor.shape, dtype=tensor.dtype) for name, tensor in stored.items()}
    model.load_state_dict(empty, assign=True)
    return model


def last_layers(model: TimmNetwork) -> list[nn.Module]:
    """Return the last layer of each head, which makes the logits: dense or a 1x1 convolution."""
    classifier = model.get_classifier()
    heads = classifier if isinstance(classifier, tuple) else (classifier,)
    layers_of_heads = ([m for m in head.modules() if isinstance(m, nn.Linear | nn.Conv2d)] for head in heads)
    return [layers[-1] for layers in layers_of_heads if layers]


def put_last_layer(model: TimmNetwork, weight_KD: Tensor, bias_K: Tensor, *, name: str, option: str) -> None:
    """Make a dense layer the last one of a network.

    Args:
        name: of the network, in an error; `option` is what asks for it.

    Raises:
        VitError: the network's last layer is not a dense layer that reads the features.
    """
    inner = getattr(model, "head", None)
    parent = inner if isinstance(inner, nn.Module) and hasattr(inner, "head") else model
    before = getattr(parent, "head", None)
    reads_features = isinstance(before, nn.Linear) and before.in_features == weight_KD.shape[1]
    if not (reads_features or isinstance(before, nn.Identity)):
        raise VitError(
            f"the last layer of {name} cannot be replaced by the closed form",
            where=option,
            fix="take the few-shot run of a ViT",
        )
    layer = nn.Linear(*weight_KD.T.shape)
    with torch.no_grad():
        layer.weight.copy_(weight_KD)
        layer.bias.copy_(bias_K)
    parent.head = layer.to(next(model.parameters()).device)


def expected_tensors(arch: Architecture) -> dict[str, torch.Size]:
    """Return names and shapes of the network's state dict, in its order, without allocating any tensor."""
    with torch.device("meta"):
        state = _network(arch, dropout=0.0, drop_path=0.0, patch_dropout=0.0, skip_init=True).state_dict()
    return {name: tensor.shape for name, tensor in state.items()}


def resampled_by_timm(arch: Architecture, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the state dict of a network as timm itself takes it to the image size of `arch`.

    Each family in timm resamples what it stores for one image size in its own `checkpoint_filter_fn`, such as
    BEiT's tables of relative positions. The filter has no public name; timm applies it to what it loads.

    Args:
        state: of the same network for square images, with `arch.num_classes` classes.

    Raises:
        VitError: timm cannot resample it either.
    """
    source = {"state_dict": dict(state), "num_classes": arch.num_classes, "label_offset": 0, "source": "timm"}
    args = {**timm_arguments(arch), "num_classes": arch.num_classes}
    try:
        with warnings.catch_warnings(action="ignore"):  # of torch, about how timm indexes
            model = timm.create_model(arch.timm_name, pretrained=True, pretrained_cfg_overlay=source, **args)
    except (TypeError, ValueError, AssertionError, RuntimeError, KeyError, AttributeError) as error:
        if is_out_of_memory(error):
            raise
        height, width = arch.image_size
        raise VitError(
            f"timm cannot resample {arch.timm_name} to {height}x{width} pixels: "
            f"{' '.join(str(error).split())[:200]}",
            where="--res",
            fix="use the image size of the weights",
        ) from error
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


def _network(
    arch: Architecture, *, dropout: float, drop_path: float, patch_dropout: float, skip_init: bool
) -> TimmNetwork:
    """Create the timm module, with our head and position embeddings and the authors' arithmetic."""
    # timm refuses dropout arguments that a network does not have, so only those in use are passed.
    options: dict[str, float | str] = {"pos_drop_rate": dropout, "proj_drop_rate": dropout} if dropout else {}
    if drop_path:
        options["drop_path_rate"] = drop_path
    if patch_dropout:
        pos_embed.check_patches_may_go(arch.posemb, arch.posemb_at)
        options["patch_drop_rate"] = patch_dropout
    is_transformer = "depth" in arch.model_args and (arch.is_of_the_paper or variant_of_timm(arch.timm_name))
    if skip_init and is_transformer:  # other classes of timm lack the option
        options["weight_init"] = "skip"
    args = {**timm_arguments(arch), **options, "num_classes": arch.num_classes}
    try:
        model = cast(TimmNetwork, timm.create_model(arch.timm_name, pretrained=False, **args))
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        raise VitError(
            f"timm cannot build {arch.name}: {(str(error).splitlines() or ['no reason given'])[0][:200]}",
            where=", ".join(f"{key}={value}" for key, value in args.items()),
            fix="take other values or another model; some have no such dropout, or a fixed image size",
        ) from error
    # The representation layer of pre-training.
    if arch.pre_logits:
        size = arch.representation_size or model.num_features
        head = nn.Linear(size, arch.num_classes) if arch.representation_size else model.get_submodule("head")
        layers = [("pre_logits", nn.Linear(model.num_features, size)), ("tanh", nn.Tanh()), ("head", head)]
        model.head = nn.Sequential(OrderedDict(layers))
    # Position embeddings that timm lacks.
    if not pos_embed.is_timms(arch.posemb, arch.posemb_at):
        assert isinstance(model, VisionTransformer), "checked with its architecture"
        pos_embed.install(model, kind=arch.posemb, place=arch.posemb_at, dropout=dropout)
    # Epsilons and weight standardisation of the JAX code.
    if arch.is_of_the_paper:
        use_official_arithmetic(model)
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = arch.norm_eps
    choose_attention(model)
    choose_gelu(model)
    if any(isinstance(module, nn.GroupNorm) for module in model.modules()):
        first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
        first.register_forward_pre_hook(_channels_first)
    return cast(TimmNetwork, with_layered_head(model, arch.head_layers)) if arch.head_layers else model


def _channels_first(_: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    """Convolutions keep the order of their input, and a GPU's group norm copies every other into this one."""
    (images_BCHW,) = inputs
    return (images_BCHW if images_BCHW.device.type == "cpu" else images_BCHW.contiguous(),)
