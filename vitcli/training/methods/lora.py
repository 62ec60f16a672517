"""Low-rank adapters of the linear layers of a transformer's blocks (LoRA, arXiv 2106.09685), by peft.

The weights of the network stay as they are; of each layer W the two factors of a correction are trained:

    W + alpha / rank * B A        A (rank, inputs) drawn, B (outputs, rank) zero at first

What is evaluated and published has the correction added, so it is a network of timm as any other.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch
from torch import nn

from vitcli.errors import MachineError, VitError
from vitcli.training.methods.freezing import parameters_of_head
from vitcli.weights.adapters import merged_weight

ADAPTER = "default"  # peft's name of the only one


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
    before = []
    try:
        for name, layer in adapted:
            linear, (parent, _, leaf) = layer.base_layer, name.rpartition(".")
            before.append((model.get_submodule(parent), leaf, layer, linear.weight.data))
            factors = (layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight)
            with torch.no_grad():
                linear.weight.data = merged_weight(linear.weight, *factors, layer.lora_scale)
            setattr(before[-1][0], leaf, linear)
        yield
    finally:
        for parent, leaf, layer, weight in before:
            layer.base_layer.weight.data = weight
            setattr(parent, leaf, layer)


def _peft() -> ModuleType:
    try:
        import peft
    except ImportError as error:
        raise MachineError(
            "adapters need the package peft",
            where="recipe key model.lora_rank",
            fix="pip install 'vitcli[lora]', or freeze blocks instead: model.freeze",
        ) from error
    return peft
