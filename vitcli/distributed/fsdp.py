"""Sharded training with torch's FSDP2, for models that do not fit on one device; their slices in checkpoints.

Each process keeps a slice of every weight, gradient and optimizer tensor; a block is gathered only while it
computes. `fully_shard` is called here and not by Accelerate, which has no FSDP on CPUs, where this is tested.
Slices are written and read by torch.distributed.checkpoint as safetensors; its own format is a pickle.
What shards or reads slices loads those parts of torch, a second's work that no other command waits for.
"""

import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vitcli.distributed.runtime import LOW_PRECISION, Runtime

Place = Callable[[str, torch.Size, torch.dtype], Tensor]  # (name, whole size, dtype) to an empty tensor


def shard(model: nn.Module, runtime: Runtime) -> Any:
    """Shard a network over the devices in place; it must be the same on every process, on the CPU.

    Returns:
        The process group for saving slices in the background, apart from the collectives of training.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(runtime.device.type, (runtime.world_size,))
    policy = _policy(model, runtime.precision)
    # Resharded after every forward pass, so that `parameters()` always returns those of the optimizer.
    for module in (*_blocks(model), model):
        fully_shard(module, mesh=mesh, reshard_after_forward=True, mp_policy=policy)
    model.use = types.MethodType(lambda self, function, *args: function(*args), model)
    register_fsdp_forward_method(model, "use")
    return dist.new_group(backend="gloo", timeout=runtime.stall_timeout)


def _policy(model: nn.Module, precision: str) -> Any:
    """Gather matrices in the run's low precision, as autocast would cast them after: the bits are the same.

    Autocast alone has them gathered in fp32, at twice the traffic, and keeps a whole copy of each until the
    backward pass. A torch without `param_dtype_override_fn` would also round norms and position embeddings,
    so there it stays alone.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy

    is_known = "param_dtype_override_fn" in MixedPrecisionPolicy.__dataclass_fields__
    if precision not in LOW_PRECISION or not is_known:
        return MixedPrecisionPolicy()
    # Of these types alone: a subclass may compute with its weights before they are cast, as BiT's does.
    layers = (module for module in model.modules() if type(module) in (nn.Linear, nn.Conv2d))
    matrices = {id(layer.weight) for layer in layers}
    return MixedPrecisionPolicy(
        param_dtype=LOW_PRECISION[precision],
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,
        param_dtype_override_fn=lambda parameter: None if id(parameter) in matrices else parameter.dtype,
    )


@contextmanager
def in_full_precision(model: nn.Module) -> Iterator[None]:
    """Gather the weights of a sharded model as they are inside the block, for passes without autocast."""
    if not is_sharded(model):
        yield
        return
    from torch.distributed.fsdp import MixedPrecisionPolicy

    modules = [module for module in model.modules() if hasattr(module, "_get_fsdp_state")]
    # A torch without several groups has no policy by parameter either.
    groups = [g for module in modules for g in getattr(module._get_fsdp_state(), "_fsdp_param_groups", ())]
    parameters = [parameter for group in groups for parameter in group.fsdp_params]
    policies = {p: p.mp_policy for p in parameters if p.mp_policy.param_dtype is not None}
    _set_policies(modules, dict.fromkeys(policies, MixedPrecisionPolicy()))
    try:
        yield
    finally:
        _set_policies(modules, policies)


def _set_policies(modules: list[Any], policies: dict[Any, Any]) -> None:
    """Give FSDP's parameters other policies, and free the memory in which they have been gathered before."""
    for module in modules:
        module.reshard()
    for parameter, policy in policies.items():
        parameter.mp_policy = policy
        parameter.init_dtype_attrs(policy)
        parameter.all_gather_outputs = []
        vars(parameter).pop("_unsharded_param", None)


def is_sharded(model: nn.Module) -> bool:
    """Return True if all processes must compute every forward pass together."""
    return hasattr(model, "use")  # as `shard` leaves it


def gathered_for(model: nn.Module, function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Wrap a use of the network other than its forward pass, so that the weights are gathered for it."""
    return (lambda images_BCHW: model.use(function, images_BCHW)) if is_sharded(model) else function


def is_slice(tensor: Tensor) -> bool:
    """Return True for a DTensor, without loading that class: only what has sharded something has any."""
    return hasattr(tensor, "full_tensor")


def whole(tensors: dict[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """Gather every tensor on the CPU of processes with `keep`; all processes call it."""
    gathered = {}
    for name, value in tensors.items():  # one at a time, to bound the memory on the device
        value = value.full_tensor() if is_slice(value) else value
        if keep:
            gathered[name] = value.cpu()
    return gathered


def all_sliced_like(values: dict[str, Tensor], likes: dict[str, Tensor]) -> dict[str, Tensor]:
    """Apply `sliced_like` to tensors by name."""
    return {name: sliced_like(value, likes[name]) for name, value in values.items()}


def sliced_like(value: Tensor, like: Tensor) -> Tensor:
    """Return this process's slice of `value`, placed as `like` is; all of it if `like` is whole."""
    if is_slice(like) and not is_slice(value):
        from torch.distributed.tensor import distribute_tensor

        value = value.to(like.device)
        return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)
    return value.to(like.device)


def local(tensor: Tensor) -> Tensor:
    """Return this process's slice of a tensor."""
    return tensor.to_local() if is_slice(tensor) else tensor


def write_slices(folder: Path, tensors: dict[str, Tensor], group: Any) -> None:
    """Write one safetensors file of slices per process; tensors that are the same on all are written once.

    Raises:
        OSError and others: the error of any process, on every process.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.api import CheckpointException

    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        dcp.save(tensors, storage_writer=writer, process_group=group)
    except CheckpointException as failed:
        ((error, _), *_) = failed.failures.values()
        raise error from failed


def whole_place(name: str, size: torch.Size, dtype: torch.dtype) -> Tensor:
    """Allocate a whole tensor."""
    return torch.empty(size, dtype=dtype)


def read_slices(folder: Path, place: Place, group: Any) -> dict[str, Tensor]:
    """Read the tensors of `write_slices`, on any number of processes.

    Args:
        place: allocates each tensor, whole or as a slice.
        group: None unless the model is sharded.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    reader = HuggingFaceStorageReader(str(folder))
    stored = reader.read_metadata().state_dict_metadata
    tensors = {name: place(name, entry.size, entry.properties.dtype) for name, entry in stored.items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.load(tensors, storage_reader=reader, process_group=group, no_dist=group is None)
    return tensors


def _blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a timm network, each of which is gathered by itself."""
    return [module for name, module in model.named_modules() if name.split(".")[-2:-1] == ["blocks"]]
