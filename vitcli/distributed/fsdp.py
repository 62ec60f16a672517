"""A network, its gradients and its optimizer spread over the processes: torch's FSDP2, for what one device
cannot hold.

Each process keeps a slice of every tensor, and a block is put together only while it computes. This calls
`fully_shard` itself, as Accelerate does on GPUs: Accelerate has no FSDP on CPUs, where this is tested.
Slices are written and read by torch.distributed.checkpoint as safetensors; its own format is a pickle.
"""

import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from vitcli.distributed.runtime import COLLECTIVE_TIMEOUT, Runtime

Place = Callable[[str, torch.Size, torch.dtype], Tensor]  # from name, whole size and type to an empty tensor


def shard(model: nn.Module, runtime: Runtime) -> Any:
    """Spread a whole network, the same on every process and still on the CPU, over the devices, in place.

    Returns:
        The process group in which slices are saved, beside whatever the processes say to each other.
    """
    mesh = init_device_mesh(runtime.device.type, (runtime.world_size,))
    # Taken apart after every use, so that the parameters that a module shows are always the optimizer's.
    for module in (*_blocks(model), model):
        fully_shard(module, mesh=mesh, reshard_after_forward=True)
    model.use = types.MethodType(lambda self, what, *args: what(*args), model)
    register_fsdp_forward_method(model, "use")
    return dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)


def is_sharded(model: nn.Module) -> bool:
    """Whether a forward pass is something that all processes do together."""
    return isinstance(model, FSDPModule)


def gathered_for(model: nn.Module, what: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """`what`, a use of the network that is not its forward pass, with the weights at hand that it needs."""
    return (lambda images_BCHW: model.use(what, images_BCHW)) if is_sharded(model) else what


def whole(tensors: dict[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """Every tensor put together on the CPU, where `keep`; every process takes part, one tensor at a time."""
    found = {}
    for name, value in tensors.items():
        value = value.full_tensor() if isinstance(value, DTensor) else value
        if keep:
            found[name] = value.cpu()
    return found


def all_sliced_like(values: dict[str, Tensor], likes: dict[str, Tensor]) -> dict[str, Tensor]:
    """`sliced_like` of each by its name."""
    return {name: sliced_like(value, likes[name]) for name, value in values.items()}


def sliced_like(value: Tensor, like: Tensor) -> Tensor:
    """This process's slice of a whole `value`, on the device of `like`; all of it where `like` is whole."""
    if isinstance(like, DTensor) and not isinstance(value, DTensor):
        placed = value.to(like.device)
        return distribute_tensor(placed, like.device_mesh, like.placements, src_data_rank=None)
    return value.to(like.device)


def local(tensor: Tensor) -> Tensor:
    """What this process has of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def write_slices(folder: Path, tensors: dict[str, Tensor], group: Any) -> None:
    """A safetensors file of each process's slices; what all have alike is written once.

    Raises:
        OSError and others: on every process, what one of them met.
    """
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        dcp.save(tensors, storage_writer=writer, process_group=group)
    except CheckpointException as told:
        ((error, _), *_) = told.failures.values()
        raise error from told


def whole_place(name: str, size: torch.Size, dtype: torch.dtype) -> Tensor:
    """A place for a whole tensor."""
    return torch.empty(size, dtype=dtype)


def read_slices(folder: Path, place: Place, group: Any) -> dict[str, Tensor]:
    """What `write_slices` wrote, on however many processes.

    Args:
        place: makes what takes a tensor in, whole or a slice of it.
        group: None in a run whose processes do not share a model.
    """
    reader = HuggingFaceStorageReader(str(folder))
    stored = reader.read_metadata().state_dict_metadata
    tensors = {name: place(name, what.size, what.properties.dtype) for name, what in stored.items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.load(tensors, storage_reader=reader, process_group=group, no_dist=group is None)
    return tensors


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The repeated parts of a network of timm's, each of which is put together by itself."""
    return [module for name, module in model.named_modules() if name.split(".")[-2:-1] == ["blocks"]]
