"""Work beside the network: threads, and copies to and from a device for which the host does not wait.

A CUDA device works through a queue that the host fills ahead of it. Reading a number of it with `.item()` or
`.cpu()` waits until the queue is empty, and so may a copy from pageable memory to it.
"""

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from threading import Barrier

import torch
from torch import Tensor

QUEUED = {"cuda"}  # types of devices that the host runs ahead of; others compute, or are waited for, at once


def runs_ahead(device: torch.device) -> bool:
    """Return True if the host only queues work for the device, so that reading a result means waiting."""
    return device.type in QUEUED


def select_device(device: torch.device) -> None:
    """Make a thread use this device: a new thread uses the first one, whatever its process was given."""
    if device.index is not None and device.type != "cpu":
        torch.get_device_module(device).set_device(device)


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the CPU's generator and the device's, as `torch.manual_seed`, which visits every back-end."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def single_core_pool(num_threads: int, name: str) -> ThreadPoolExecutor:
    """Return threads in each of which an operation of torch takes one core; nothing changes in this one.

    Otherwise each of them starts OpenMP threads of its own. Where there are more than cores, idle or not, the
    OpenMP library lets those of the network sleep after each operation: steps took up to 1.7 times as long
    (docs/evidence/speed.md).
    """
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
    num_here, all_started = torch.get_num_threads(), Barrier(num_threads)

    def compute_alone(_: int) -> None:
        all_started.wait()  # one that is done would be given the task of another, which is then never started
        torch.get_num_threads()  # takes over the number of the process, now and not after the next line
        torch.set_num_threads(1)  # of this thread, and of those that have not computed yet

    try:
        list(pool.map(compute_alone, range(num_threads)))
    except RuntimeError:  # the system gives no more threads
        all_started.abort()
        raise
    finally:
        torch.set_num_threads(num_here)
    return pool


def constant(values: tuple[float, ...], device: torch.device, *, scale: float = 1.0) -> Tensor:
    """Return float32 values times `scale` on the device, copied there once; never write to the result."""
    return _constant(values, device, scale)


def mark_constants() -> None:
    """Let networks compiled from now on copy a `constant` once, not in each pass; loads the compiler."""
    torch.compiler.assume_constant_result(constant)


@lru_cache(maxsize=64)
def _constant(values: tuple[float, ...], device: torch.device, scale: float) -> Tensor:
    return (torch.tensor(values, dtype=torch.float32) * scale).to(device)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor in main memory to the device; the host does not wait for one that it runs ahead of.

    A copy that nobody waits for reads page-locked memory, which is kept until then; from other memory it may
    read what has been freed or overwritten, as on Apple's GPUs (pytorch issue 189690).
    """
    if device.type == "mps" and tensor.dtype == torch.float64:  # which Apple's GPUs do not have
        tensor = tensor.float()
    if not runs_ahead(device):
        return tensor.to(device)
    return (tensor if tensor.is_pinned() else tensor.pin_memory()).to(device, non_blocking=True)


class Uploads:
    """Copies of batches to the device on a stream of their own, beside the computation on earlier batches."""

    def __init__(self, device: torch.device):
        self.device = device
        self._module = torch.get_device_module(device) if runs_ahead(device) else None
        self._stream = self._module.Stream() if self._module else None

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        """Return the tensors on the device; what is computed from them there waits for the copies."""
        if self._module is None:
            return [to_device(tensor, self.device) for tensor in tensors]
        with self._module.stream(self._stream):
            copies = [to_device(tensor, self.device) for tensor in tensors]
        computing = self._module.current_stream()
        computing.wait_stream(self._stream)
        for copy in copies:  # their memory is free for other batches only after the computation
            copy.record_stream(computing)
        return copies


class Download:
    """Copies on their way to main memory; `read` waits for them, not for work that is queued later."""

    def __init__(self, tensors: Collection[Tensor]):
        # Into page-locked memory, which torch's allocator keeps for later copies.
        self._copies = [
            tensor.to("cpu", copy=True, non_blocking=runs_ahead(tensor.device)) for tensor in tensors
        ]
        self._events = []
        for device in {tensor.device for tensor in tensors if runs_ahead(tensor.device)}:
            self._events.append(torch.get_device_module(device).Event(blocking=True))
            self._events[-1].record()

    def read(self) -> list[Tensor]:
        """Return the tensors in main memory."""
        for event in self._events:
            event.synchronize()
        return self._copies
