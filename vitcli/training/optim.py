"""Optimizers of the paper, gradient clipping and the weight average.

The authors' Adam (flax) decouples weight decay from the gradient,

    w <- w - lr * decay * w,

which is torch's AdamW with the same number. SGD has no decay in the paper (Table 4); if a recipe sets it, it
is added to the gradient, as in BiT.
"""

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cache

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from vitcli.distributed import fsdp
from vitcli.distributed.transfer import runs_ahead
from vitcli.recipe.schema import Optimizer as OptimizerSettings
from vitcli.training.methods.partial import lr_scales

# Parameters that are added to the tokens, not multiplied with them: no weight decay, like biases. A network
# of timm names its own, such as tables of relative positions; these are of others, or of one that is wrapped.
# Last parts of names: a whole module called `pos_embed` may have weights like any other's.
EMBEDDINGS = {"pos_embed", "relative_embed", "mask_token", "cls_token", "reg_token"}
POSITIONS = "positions"  # the module of the paper's Table 8, whose parameters are all embeddings


def build_optimizer(model: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Build SGD with momentum (no Nesterov) or Adam with decoupled decay; the loop sets the learning rate.

    One fused kernel updates all weights where that pays: six times as fast for Adam on a CPU, and on a queued
    device the only way to skip an update without waiting for the device. SGD on a CPU would gain little.
    """
    groups = parameter_groups(
        model,
        weight_decay=settings.weight_decay,
        decay_on=settings.decay_on,
        layer_decay=settings.layer_decay,
    )
    device = next(model.parameters()).device
    match settings.name:
        case "sgd":
            fused = runs_ahead(device)
            optimizer_class = _without_compiler(_FusedSgd if fused else torch.optim.SGD)
            return optimizer_class(groups, lr=0.0, momentum=settings.momentum, fused=fused)
        case "adam":
            fused = runs_ahead(device) or device.type == "cpu"
            betas, eps = settings.betas, settings.eps
            return _without_compiler(torch.optim.AdamW)(groups, lr=0.0, betas=betas, eps=eps, fused=fused)


class _FusedSgd(torch.optim.SGD):
    """SGD whose updates can be skipped on the device, on each process's slices of the weights.

    torch's has no rule for sharded weights, and a first update that is skipped leaves its momenta
    uninitialised.
    """

    def step(self) -> None:
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            for parameter in parameters if group["momentum"] else ():
                if self.state[parameter].get("momentum_buffer") is None:
                    self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
            sgd(
                [fsdp.local(parameter) for parameter in parameters],
                [fsdp.local(parameter.grad) for parameter in parameters],
                [fsdp.local(self.state[p]["momentum_buffer"]) for p in parameters if group["momentum"]],
                fused=group["fused"],
                found_inf=getattr(self, "found_inf", None),  # none after `unfuse`
                lr=group["lr"],
                momentum=group["momentum"],
                weight_decay=group["weight_decay"],
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )


@cache
def _without_compiler(optimizer_class: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Return the class without the marks on its methods that load torch's compiler: a second and 80 MB."""
    names = ("step", "zero_grad", "add_param_group", "state_dict", "load_state_dict")
    methods = {name: inspect.unwrap(getattr(optimizer_class, name)) for name in names}
    methods["step"] = torch.no_grad()(methods["step"])
    return type(optimizer_class.__name__, (optimizer_class,), methods)


def is_fused(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if one kernel updates all weights; its last bits differ from those of the plain loop."""
    return bool(optimizer.param_groups[0]["fused"])


def unfuse(optimizer: torch.optim.Optimizer) -> None:
    """Update the weights by the plain loop, to continue a run that was begun with it."""
    for group in optimizer.param_groups:
        group["fused"] = False


def update_weights(optimizer: torch.optim.Optimizer, is_finite: Tensor) -> None:
    """Make the optimizer's step if `is_finite`, a bool on the device; else change nothing.

    A fused optimizer decides on the device, and the host need not wait for it.
    """
    if is_fused(optimizer):
        optimizer.found_inf = (~is_finite).float()
    elif not is_finite:
        return
    optimizer.step()


def parameter_groups(
    model: nn.Module, *, weight_decay: float, decay_on: str, layer_decay: float
) -> list[dict]:
    """Return the trained parameters in groups of one weight decay and one fraction of the learning rate.

    The decayed come first; with layer-wise rates each layer has its groups, from the slowest to the head.

    Args:
        decay_on: "matrices" decays neither biases, norms nor embeddings (as big_vision does), nor what timm
            spares; "all" decays every parameter (as the flax of the paper's time did).
        layer_decay: see `depth.lr_scales`; 1 for one learning rate. The loop multiplies its rate with a
            group's `lr_scale`.
    """
    scales = lr_scales(model, layer_decay) if layer_decay != 1 else {}
    spared_by_timm = model.no_weight_decay() if hasattr(model, "no_weight_decay") else ()
    members: dict[tuple[float, bool], list[nn.Parameter]] = {}  # by rate, and whether they are not decayed
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            *modules, own_name = name.split(".")
            is_of_timm = any(fnmatchcase(name, pattern) for pattern in spared_by_timm)
            is_embedding = is_of_timm or own_name in EMBEDDINGS or POSITIONS in modules
            is_matrix = parameter.ndim >= 2 and not is_embedding
            is_spared = decay_on == "matrices" and not is_matrix
            members.setdefault((scales.get(name, 1.0), is_spared), []).append(parameter)
    return [
        dict(params=members[kind], lr_scale=kind[0], weight_decay=0.0 if kind[1] else weight_decay)
        for kind in sorted(members)
    ]


class WeightAverage:
    """Polyak average of the weights w_1 ... w_t after each update (paper, section 4.1, factor d = 0.9999).

    average = sum_i d^(t-i) w_i / sum_i d^(t-i)

    The initial weights w_0 have no part in it: in a plain running average they would still have a weight of
    13.5 % after 20,000 steps.
    """

    def __init__(self, model: nn.Module, *, factor: float):
        self.factor = factor
        self.tensors = {name: value.detach().clone() for name, value in model.state_dict().items()}
        # The parameters and buffers themselves, listed once: a state dict takes as long as many kernels.
        current = model.state_dict(keep_vars=True)
        self._weights = {name: value for name, value in current.items() if value.is_floating_point()}
        self._counters = {name: value for name, value in current.items() if name not in self._weights}

    @torch.no_grad()
    def update(self, *, num_updates: int) -> None:
        """Add the model's weights after update number `num_updates`, counted from 1."""
        weight = (1 - self.factor) / (1 - self.factor**num_updates)
        averages = [fsdp.local(self.tensors[name]) for name in self._weights]
        torch._foreach_lerp_(averages, [fsdp.local(value) for value in self._weights.values()], weight)
        for name, value in self._counters.items():  # such as batch norm has
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
    if fsdp.is_slice(norm):  # each process has slices of the gradients
        norm, grads = norm.full_tensor(), [grad.to_local() for grad in grads]
    if max_norm:
        torch._foreach_mul_(grads, torch.clamp(max_norm / norm, max=1.0))
    return norm
