"""Optimizers of the paper, and the average of the weights.

The official Adam (flax) decays weights on its own, `w -= lr * decay * w`, which is torch's AdamW with the
same number. SGD has no decay in the paper (Table 4); where a recipe asks for it, it joins the gradient, as in
BiT.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

EMBEDDINGS = {
    "pos_embed",
    "positions",
    "relative_embed",
    "mask_token",
    "cls_token",
    "reg_token",
}  # added, not multiplied with


def build_optimizer(
    model: nn.Module,
    *,
    name: str,
    momentum: float | None,
    betas: tuple[float, float] | None,
    eps: float | None,
    weight_decay: float,
    decay_on: str,
) -> torch.optim.Optimizer:
    """SGD with momentum (no Nesterov) or Adam with decoupled decay. The learning rate is set at every step.

    `decay_on`: "matrices" spares biases, norms, the class token and the position embedding (as big_vision
    does); "all" decays every parameter (as the flax of the paper's time did).
    """
    groups = parameter_groups(model, weight_decay=weight_decay, decay_on=decay_on)
    match name:
        case "sgd":
            return torch.optim.SGD(groups, lr=0.0, momentum=momentum)
        case "adam":
            return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=eps)


def parameter_groups(model: nn.Module, *, weight_decay: float, decay_on: str) -> list[dict]:
    """Decayed parameters first, then the others; a group that would be empty is left out."""
    decayed, spared = [], []
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim >= 2 and not EMBEDDINGS.intersection(name.split("."))
        (decayed if decay_on == "all" or is_matrix else spared).append(parameter)
    groups = [dict(params=decayed, weight_decay=weight_decay), dict(params=spared, weight_decay=0.0)]
    return [group for group in groups if group["params"]]


class WeightAverage:
    """Polyak average of the weights, free of the initial ones (paper, section 4.1, factor 0.9999).

    After t updates the average is sum_i d^(t-i) w_i / sum_i d^(t-i): with a plain running average, 13.5 % of
    a 20,000-step run's average would still be the weights before training.
    """

    def __init__(self, model: nn.Module, *, factor: float):
        self.factor = factor
        self.tensors = {name: value.detach().clone() for name, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module, *, num_updates: int) -> None:
        """Take in the weights after update number `num_updates`, the first being 1."""
        share = (1 - self.factor) / (1 - self.factor**num_updates)
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                self.tensors[name].lerp_(value.detach(), share)
            else:  # a counter, such as that of batch norm
                self.tensors[name].copy_(value)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take over what a checkpoint kept."""
        for name, value in tensors.items():
            self.tensors[name].copy_(value)

    @contextmanager
    def swapped_in(self, model: nn.Module) -> Iterator[nn.Module]:
        """The model has the averaged weights inside the block, and its own again after it."""
        own = {name: value.detach().clone() for name, value in model.state_dict().items()}
        model.load_state_dict(self.tensors)
        try:
            yield model
        finally:
            model.load_state_dict(own)


def clip_by_global_norm(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Scale all gradients so that their joint norm is at most `max_norm` (0: leave them); the norm before.

    Exactly max_norm / norm where the norm is larger and exactly 1 elsewhere, as in the official code;
    torch's own clip adds 1e-6 to the norm.
    """
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
    if isinstance(norm, DTensor):  # each process has slices of the gradients
        norm, grads = norm.full_tensor(), [grad.to_local() for grad in grads]
    if max_norm:
        torch._foreach_mul_(grads, torch.clamp(max_norm / norm, max=1.0))
    return norm
