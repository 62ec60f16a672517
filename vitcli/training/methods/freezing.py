"""Parts of a network that are not trained: the first layers, or all but the head.

Autograd keeps nothing of a part in front of everything that is trained, so such a part costs its forward pass
alone: no gradient, no optimizer state, no activations.
"""

from types import MethodType

from torch import nn

from vitcli.errors import VitError
from vitcli.training.methods.depth import EMBEDDING, depths_of

BACKBONE = "backbone"  # all but the head


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
    module.train = MethodType(_ignore_mode, module)


def _ignore_mode(module: nn.Module, mode: bool = True) -> nn.Module:
    return module
