"""Everything of a step that is tensors: taken from a run, looked at, put back into one."""

import torch
from torch import Tensor, nn

from vitcli.distributed import fsdp
from vitcli.errors import NotFiniteError

Tensors = dict[str, dict[str, Tensor]]  # "model", "optimizer" and perhaps "average"


def copied(model: nn.Module, optimizer: torch.optim.Optimizer, average: dict[str, Tensor] | None) -> Tensors:
    """What this process has of a step's tensors, copied to main memory: the run may go on meanwhile."""
    tensors = {"model": model.state_dict(), "optimizer": optimizer_tensors(model, optimizer)}
    if average is not None:
        tensors["average"] = average
    return {
        kind: {name: value.detach().to("cpu", copy=True).contiguous() for name, value in values.items()}
        for kind, values in tensors.items()
    }


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state by parameter name: "blocks.0.attn.qkv.weight/momentum_buffer"."""
    return {
        f"{name}/{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if value is not None
    }


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` took."""
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        name, _, slot = key.rpartition("/")
        parameter = parameters[name]
        # Adam's step counter stays on the CPU, everything else lives with its parameter.
        optimizer.state[parameter][slot] = value if slot == "step" else fsdp.sliced_like(value, parameter)


def place_in(model: nn.Module) -> fsdp.Place:
    """Where slices go that are read for a model: sliced as its own tensors are, or whole."""
    own = model.state_dict()

    def place(key: str, size: torch.Size, dtype: torch.dtype) -> Tensor:
        kind, _, name = key.partition("/")
        like = own.get(name.rpartition("/")[0] if kind == "optimizer" else name)
        is_alike = like is not None and like.shape == size
        return torch.empty_like(like, dtype=dtype) if is_alike else fsdp.whole_place(key, size, dtype)

    return place


def find_ruined(tensors: Tensors) -> list[str]:
    """Names of those that are not finite, such as "model/head.bias".

    Finite norms, so finite tensors; what overflows a norm has left every use behind as well.
    """
    floats = {name: fsdp.local(value) for name, value in flat(tensors).items() if value.is_floating_point()}
    norms = torch._foreach_norm(list(floats.values())) if floats else []
    return [name for name, norm in zip(floats, norms, strict=True) if not torch.isfinite(norm)]


def refuse_ruined(ruined: list[str], step: int) -> None:
    """NotFiniteError if there are any."""
    if ruined:
        kind, _, name = ruined[0].partition("/")
        raise NotFiniteError(
            f"the {kind} is no longer finite ({len(ruined)} tensors, such as {name})",
            where=f"step {step}",
            fix="lower --lr, or set optimizer.clip, in a new --out",
        )


def flat(tensors: Tensors) -> dict[str, Tensor]:
    """One dictionary: "model/head.bias"."""
    return {f"{kind}/{name}": value for kind, values in tensors.items() for name, value in values.items()}


def by_kind(tensors_by_key: dict[str, Tensor]) -> Tensors:
    """The inverse of `flat`."""
    tensors: Tensors = {}
    for key, value in tensors_by_key.items():
        kind, _, name = key.partition("/")
        tensors.setdefault(kind, {})[name] = value
    return tensors
