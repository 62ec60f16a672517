"""What of a network is trained, and how fast: frozen parts, low-rank adapters, rates that fall with depth.

Autograd keeps nothing of a frozen part in front of everything that is trained, so such a part costs its
forward pass alone: no gradient, no optimizer state, no activations.

Adapters (LoRA, arXiv 2106.09685, by peft) leave the weights of the network as they are; of each linear layer
W of the blocks the two factors of a correction are trained:

    W + alpha / rank * B A        A (rank, inputs) drawn, B (outputs, rank) zero at first

What is evaluated and published has the correction added, so it is a network of timm as any other.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import MethodType, ModuleType

import torch
from timm.models import group_parameters
from torch import nn

from vitcli.errors import MachineError, VitError, pip_install
from vitcli.recipe.schema import Model
from vitcli.weights.adapters import merged_weight

KEYS = ("freeze", "lora_rank")  # of [model]; 0 trains all
BACKBONE = "backbone"  # all but the head
ADAPTER = "default"  # peft's name of the only one
EMBEDDING = 0  # depth of the patch embedding and of all that is added to or stands beside its tokens
POSITIONS = "positions."  # the paper's Table 8, which timm does not know; also within blocks


def adapt(model: nn.Module, settings: Model) -> None:
    """Freeze what the recipe does not train, and add adapters where it asks for them, in place."""
    if settings.freeze:
        freeze(model, settings.freeze)
    if settings.lora_rank:
        add_adapters(model, rank=settings.lora_rank, alpha=settings.lora_alpha)


def refuse_for_fresh_weights(settings: Model) -> None:
    """Refuse to leave fresh weights as they are."""
    if given := [key for key in KEYS if getattr(settings, key)]:
        raise VitError(
            "fresh weights are worth nothing untrained",
            where=", ".join(f"recipe key model.{key}" for key in given),
            fix="leave it out, or fine-tune a checkpoint: vit finetune --ckpt",
        )


def freeze(model: nn.Module, part: int | str) -> None:
    """Exclude a part of a network from training, in place; it always computes as in evaluation.

    Args:
        part: "backbone", or the number of blocks, in front of which the embedding is frozen, too.

    Raises:
        VitError: the network has fewer blocks, or none.
    """
    trained = parameters_of_head(model) if part == BACKBONE else _all_but_the_first(model, part)
    for parameter in model.parameters():
        if id(parameter) not in trained:
            parameter.requires_grad_(False)
    _keep_in_evaluation(model)
    # timm's dropout of the embedding has no parameter that would show whose it is.
    _stay_in_evaluation(getattr(model, "pos_drop", nn.Identity()))


def parameters_of_head(model: nn.Module) -> set[int]:
    """Return the ids of the parameters of the head, or of both heads of a distilled network."""
    classifier = model.get_classifier()
    heads = classifier if isinstance(classifier, tuple) else (classifier,)
    return {id(parameter) for head in heads for parameter in head.parameters()}


def _all_but_the_first(model: nn.Module, num_blocks: int) -> set[int]:
    """Return the ids of the parameters behind the embedding and the first blocks."""
    blocks = getattr(model, "blocks", ())
    if num_blocks > len(blocks) or not all(isinstance(block, nn.Module) for block in blocks):
        problem = f"this network has {len(blocks)} blocks" if len(blocks) else "this network has no blocks"
        raise VitError(
            f"{problem}, of which {num_blocks} cannot be frozen",
            where="recipe key model.freeze",
            fix=f'take 1 to {len(blocks)}, or "{BACKBONE}"' if len(blocks) else f'take "{BACKBONE}"',
        )
    first, depths = tuple(f"blocks.{number}." for number in range(num_blocks)), depths_of(model)
    parameters = model.named_parameters()
    return {id(p) for name, p in parameters if depths[name] != EMBEDDING and not name.startswith(first)}


def _keep_in_evaluation(module: nn.Module) -> None:
    """Keep the largest modules in evaluation mode that have parameters and train none of them."""
    for child in module.children():
        parameters = list(child.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            _stay_in_evaluation(child)
        else:
            _keep_in_evaluation(child)


def _stay_in_evaluation(module: nn.Module) -> None:
    """Let the module ignore `train()`, which the loop and each evaluation call on the whole network."""
    module.eval()
    module.train = MethodType(lambda module, mode=True: module, module)


def add_adapters(model: nn.Module, *, rank: int, alpha: float | None) -> None:
    """Give each linear layer of the blocks that is not frozen an adapter; train these and the head alone.

    Args:
        model: changed in place. The factors A are drawn from torch's global generator.
        alpha: None for twice the rank.

    Raises:
        VitError: the network has no blocks with linear layers.
        MachineError: peft is not installed.
    """
    peft, alpha = _peft(), 2 * rank if alpha is None else alpha
    names = [name for name, module in model.named_modules() if _takes_adapter(name, module)]
    if not names:
        raise VitError(
            "this network has no blocks with linear layers that could be adapted",
            where="recipe key model.lora_rank",
            fix="leave it out, or take a transformer and freeze fewer of its blocks",
        )
    of_head = parameters_of_head(model)
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=names, lora_dropout=0.0, bias="none")
    peft.inject_adapter_in_model(config, model)
    for name in names:
        layer = model.get_submodule(name)
        layer.register_buffer("lora_scale", torch.tensor(layer.scaling[ADAPTER]))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name or id(parameter) in of_head)
    for module in model.modules():
        if hasattr(module, "qkv_bias_separate"):  # else BEiT's attention reads the weight past its adapter
            module.qkv_bias_separate = True


def _takes_adapter(name: str, module: nn.Module) -> bool:
    is_of_a_block = name.startswith("blocks.") and isinstance(module, nn.Linear)
    return is_of_a_block and any(parameter.requires_grad for parameter in module.parameters())


@contextmanager
def adapters_merged(model: nn.Module) -> Iterator[None]:
    """Make the network that of timm, with the adapters added to its weights, inside the block.

    Its forward pass is then the published network's to the bit, and the weights have their own bits after it.
    """
    adapted = [(name, layer) for name, layer in model.named_modules() if hasattr(layer, "lora_scale")]
    with ExitStack() as undone:
        for name, layer in adapted:
            linear, (place, _, leaf) = layer.base_layer, name.rpartition(".")
            parent = model.get_submodule(place)
            undone.callback(setattr, parent, leaf, layer)
            undone.callback(setattr, linear.weight, "data", linear.weight.data)
            factors = (layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight)
            with torch.no_grad():
                linear.weight.data = merged_weight(linear.weight, *factors, layer.lora_scale)
            setattr(parent, leaf, linear)
        yield


def _peft() -> ModuleType:
    try:
        import peft
    except ImportError as error:
        raise MachineError(
            "adapters need the package peft",
            where="recipe key model.lora_rank",
            fix=f"{pip_install('vitcli[lora]')}, or freeze blocks instead: model.freeze",
        ) from error
    return peft


def depths_of(model: nn.Module) -> dict[str, int]:
    """Return the depth of each parameter by name: 0 for the embedding, i + 1 for block i, then the head.

    The norm after the last block belongs to that block, as timm groups the parameters.

    Raises:
        VitError: timm does not say in which order this network has its layers.
    """
    if not hasattr(model, "group_matcher"):
        raise VitError(
            "the layers of this network have no order that timm knows",
            where="recipe key optimizer.layer_decay or model.freeze",
            fix="leave the key out, or take a network of timm for images with one label or several",
        )
    depths = group_parameters(model, model.group_matcher(coarse=False), reverse=True)
    return depths | dict.fromkeys((name for name in depths if name.startswith(POSITIONS)), EMBEDDING)


def lr_scales(model: nn.Module, layer_decay: float) -> dict[str, float]:
    """Return what the learning rate of each parameter is multiplied with, by name.

        scale = layer_decay^(depth of the head - depth)

    Source: BEiT (arXiv 2106.08254), in the grouping of timm.optim.param_groups_layer_decay.
    """
    depths = depths_of(model)
    deepest = max(depths.values())
    return {name: layer_decay ** (deepest - depth) for name, depth in depths.items()}
