"""Optimizers of the paper, gradient clipping and the weight average.

The authors' Adam (flax) decouples weight decay from the gradient,

    w <- w - lr * decay * w,

which is torch's AdamW with the same number. SGD has no decay in the paper (Table 4); if a recipe sets it, it
is added to the gradient, as in BiT.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from vitcli.recipe.schema import Optimizer as OptimizerSettings

# Parameters that are added to the tokens, not multiplied with them: no weight decay, like biases.
EMBEDDINGS = {"pos_embed", "positions", "relative_embed", "mask_token", "cls_token", "reg_token"}


def build_optimizer(model: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Build SGD with momentum (no Nesterov) or Adam with decoupled decay; the loop sets the learning rate."""
    groups = parameter_groups(model, weight_decay=settings.weight_decay, decay_on=settings.decay_on)
    match settings.name:
        case "sgd":
            return torch.optim.SGD(groups, lr=0.0, momentum=settings.momentum)
        case "adam":
            return torch.optim.AdamW(groups, lr=0.0, betas=settings.betas, eps=settings.eps)


def parameter_groups(model: nn.Module, *, weight_decay: float, decay_on: str) -> list[dict]:
    """Return the group of decayed parameters, then that of the others; empty groups are dropped.

    Args:
        decay_on: "matrices" decays neither biases, norms nor embeddings (as big_vision does); "all" decays
            every parameter (as the flax of the paper's time did).
    """
    decayed, others = [], []
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim >= 2 and not EMBEDDINGS.intersection(name.split("."))
        (decayed if decay_on == "all" or is_matrix else others).append(parameter)
    groups = [dict(params=decayed, weight_decay=weight_decay), dict(params=others, weight_decay=0.0)]
    return [group for group in groups if group["params"]]


class WeightAverage:
    """Polyak average of the weights w_1 ... w_t after each update (paper, section 4.1, factor d = 0.9999).

    average = sum_i d^(t-i) w_i / sum_i d^(t-i)

    The initial weights w_0 have no part in it: in a plain running average they would still have a weight of
    13.5 % after 20,000 steps.
    """

    def __init__(self, model: nn.Module, *, factor: float):
        self.factor = factor
        self.tensors = {name: value.detach().clone() for name, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module, *, num_updates: int) -> None:
        """Add the weights after update number `num_updates`, counted from 1."""
        weight = (1 - self.factor) / (1 - self.factor**num_updates)
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                self.tensors[name].lerp_(value.detach(), weight)
            else:  # a counter, such as batch norm has
                self.tensors[name].copy_(value)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Load the tensors of a checkpoint."""
        for name, value in tensors.items():
            self.tensors[name].copy_(value)

    @contextmanager
    def swapped_in(self, model: nn.Module) -> Iterator[nn.Module]:
        """Give the model the averaged weights inside the block, and its own back after it."""
        trained = {name: value.detach().clone() for name, value in model.state_dict().items()}
        model.load_state_dict(self.tensors)
        try:
            yield model
        finally:
            model.load_state_dict(trained)


def clip_by_global_norm(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Scale all gradients so that their global norm is at most `max_norm`; return the norm before.

    The factor is min(1, max_norm / norm) exactly, as in the authors' code; torch's own function adds 1e-6 to
    the norm. A `max_norm` of 0 turns clipping off.
    """
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = nn.utils.get_total_norm(grads)
    if isinstance(norm, DTensor):  # each process has slices of the gradients
        norm, grads = norm.full_tensor(), [grad.to_local() for grad in grads]
    if max_norm:
        torch._foreach_mul_(grads, torch.clamp(max_norm / norm, max=1.0))
    return norm
