"""Devices that are not here: GPUs as torch reports them, and one without float64, as Apple's are.

`report_gpus` makes torch describe GPUs; nothing can be computed on them.

Inside `without_float64`, tensors that were moved to the device, and whatever is computed from them, count as
on it until they are copied back to the CPU. As on the real one, an operation fails that would make a float64
tensor there, that mixes tensors of both places, or that hands one to NumPy. So does a copy to it that nobody
waits for, unless it is made of pinned memory: the real one may read what has been freed meanwhile.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

DEVICE = torch.device("mps")
MOVES = {"cpu", "to", "type_as"}
SETTERS = {"__set__", "_set_data"}
# Between the two places, too.
MIXED = {"__getitem__", "__setitem__", "copy_", "_has_compatible_shallow_copy_type"} | SETTERS
DEVICES = {"device", "_parse_to"}  # functions of devices, not of tensors
LEAVING = {"numpy", "__array__"}


@contextmanager
def report_gpus(*names: str, unique_id: str = "7f", major: int = 9) -> Iterator[None]:
    """Have torch report CUDA GPUs of these names; settings that a run makes for them are undone at the end.

    Args:
        major: of the compute capability: 7 has no bf16, 8 has it.
    """
    current = [0]
    cuda = {
        "is_available": lambda: True,
        "device_count": lambda: len(names),
        "set_device": lambda device: current.__setitem__(0, torch.device(device).index),
        "current_device": lambda: current[0],
        "get_device_name": lambda device=None: names[current[0]],
        "get_device_properties": lambda device=None: SimpleNamespace(
            name=names[current[0]],
            major=major,
            minor=0,
            uuid=f"{unique_id}{current[0]}",
            total_memory=141 * 2**30,
        ),
    }
    accelerator = {
        "is_available": lambda: True,
        "device_count": lambda: len(names),
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
    }
    before = (torch.backends.cudnn.deterministic, torch.utils.deterministic.fill_uninitialized_memory)
    with (
        mock.patch.multiple(torch.cuda, **cuda),
        mock.patch.multiple(torch.accelerator, **accelerator),
        mock.patch.dict(os.environ),
    ):
        yield
    torch.backends.cudnn.deterministic, torch.utils.deterministic.fill_uninitialized_memory = before
    torch.use_deterministic_algorithms(False)


@contextmanager
def without_float64() -> Iterator[list[str]]:
    """Imitate the device for all runs of this process; yield the names of the operations on it."""
    device = _FakeDevice()
    with device, mock.patch.object(Accelerator, "device", DEVICE):
        yield device.operations


def on_device(value: object) -> bool:
    return isinstance(value, Tensor) and getattr(value, "is_on_fake_device", False)


class _FakeDevice(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.operations: list[str] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name in DEVICES:
            return function(*args, **(kwargs or {}))
        values, spec = pytree.tree_flatten((args, kwargs or {}))
        tensors = [value for value in values if isinstance(value, Tensor)]
        is_here = any(map(on_device, tensors))
        if function == Tensor.device.__get__:
            return DEVICE if is_here else function(*args)
        if name in LEAVING and is_here:
            raise TypeError("can't convert mps device type tensor to numpy")

        # The result's place: the device that is named, that of the tensor to resemble, or of the arguments.
        devices = [torch.device(value) for value in values if _is_device(value)]
        target = devices[0] == DEVICE if devices else is_here
        if name in MOVES and not devices:
            target = name != "cpu" and on_device(tensors[-1])
        elif name in SETTERS:
            target = on_device(args[1]) if isinstance(args[1], Tensor) else is_here
        is_mixed = is_here and not devices and any(x.ndim and not on_device(x) for x in tensors)
        if is_mixed and name not in MOVES | MIXED:
            raise RuntimeError(f"{name}: Expected all tensors to be on the same device")

        if target and (kwargs or {}).get("non_blocking") and not all(x.is_pinned() for x in tensors):
            raise RuntimeError(f"{name}: the copy may read what has been freed")

        # Compute it on the CPU; a copy that would be none there is a tensor of its own.
        values = ["cpu" if _is_device(value) else value for value in values]
        args, kwargs = pytree.tree_unflatten(values, spec)
        result = function(*args, **kwargs)
        if name in MOVES and result is tensors[0] and target != is_here:
            is_leaf = result.is_leaf
            result = result.detach().requires_grad_(result.requires_grad) if is_leaf else result.clone()
        for tensor in pytree.tree_leaves(args[0] if name in SETTERS else result):
            if isinstance(tensor, Tensor):
                self._mark(tensor, name, target)
        return result

    def _mark(self, tensor: Tensor, name: str, is_here: bool) -> None:
        if is_here:
            self.operations.append(name)
            if tensor.dtype in (torch.float64, torch.complex128):
                raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't")
        if is_here or on_device(tensor):
            tensor.is_on_fake_device = is_here


def _is_device(value: object) -> bool:
    return isinstance(value, torch.device) or (isinstance(value, str) and value in ("cpu", DEVICE.type))
