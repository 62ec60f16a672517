"""The first import of torch, torchvision and timm, at about half its usual time; memory that is kept.

torchvision 0.29 and timm 1.0 load torch's compiler (`torch._dynamo`: sympy, triton, inductor) only to mark a
few functions, and that takes twice as long as the rest of both. `load` defers the marks to the first call of
what they mark, as torch does in its own modules: what compiles loads the compiler. Loads no torch by itself.
"""

import ctypes
import gc
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"
PARTS = (COMPILER, f"{COMPILER}.utils")
MARK = "_disable_dynamo"  # of torch: the decorator of its own functions that are not compiled


def load() -> bool:
    """Import torch, torchvision and timm; return False if this process had done so.

    Whatever is imported afterwards finds them in place; nothing that they compute or compile changes.
    """
    if "timm" in sys.modules:
        return False
    warnings.filterwarnings("ignore", "IProgress not found")  # of tqdm in a notebook, which nothing here uses
    with _without_collection():
        import torch

        # Without torch's own mark the compiler is loaded, as by everybody else
        with _deferred_compiler() if hasattr(torch, MARK) else nullcontext():
            import timm  # noqa: F401
            import torchvision.transforms.v2  # noqa: F401
    return True


def keep_freed_memory(most_bytes: int = 2**31 - 1) -> None:
    """Let this process keep freed memory for its next allocation, where the C library can (glibc).

    By default it gives tensors of some MiB back to the system and gets them anew, zeroed page by page: 36,000
    page faults and a tenth of the time of a training step of ViT-Ti/16 on a CPU (docs/evidence/speed.md).

    Args:
        most_bytes: that stay free at the end of the heap; what is free between others always stays.
    """
    mmap_threshold, trim_threshold = -3, -1  # numbers of <malloc.h>
    if mallopt := _of_c_library("mallopt"):
        mallopt(trim_threshold, most_bytes)
        if not mallopt(mmap_threshold, 2**30):
            mallopt(mmap_threshold, 2**25)  # the most of an older glibc


def release_freed_memory() -> None:
    """Give freed memory back to the system once, where the C library can: what follows needs less."""
    if malloc_trim := _of_c_library("malloc_trim"):
        malloc_trim(0)


def _of_c_library(name: str) -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


@contextmanager
def _without_collection() -> Iterator[None]:
    """Keep Python from looking for garbage, a sixth of the time of an import: modules make none."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _deferred_compiler() -> Iterator[None]:
    """Put stand-ins in the place of torch's compiler, unless it is loaded."""
    if COMPILER not in sys.modules:
        sys.modules.update({name: _DeferredModule(name) for name in PARTS})
    try:
        yield
    finally:
        _remove_stand_ins()


def _remove_stand_ins() -> None:
    for name in PARTS:
        if isinstance(sys.modules.get(name), _DeferredModule):
            del sys.modules[name]


class _DeferredModule(ModuleType):
    """Stand in for a module of the compiler while others are imported.

    It has what torchvision and timm take. The first use of anything else loads the real module, and is then
    a use of that.
    """

    def __init__(self, name: str):
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)

    def __getattr__(self, name: str) -> Any:
        match self.__name__, name:
            case (_, "disable"):  # of torch.compiler.disable, in tv_tensors and NaFlexViT
                return not_compiled
            case (_, "is_compile_supported"):  # in torchvision's RoIAlign
                return lambda device: importlib.import_module(PARTS[1]).is_compile_supported(device)
            case (_, "utils"):
                return sys.modules[PARTS[1]]
        if name.startswith("__") and (name, self.__name__) != ("__path__", COMPILER):  # of `inspect`
            raise AttributeError(name)
        _remove_stand_ins()
        return getattr(importlib.import_module(self.__name__), name)


def not_compiled(function: Callable | None = None, recursive: bool = True, **_: Any) -> Callable:
    """Keep a function from being compiled: `torch.compiler.disable`, which loads the compiler, as a mark."""
    import torch

    return getattr(torch, MARK, torch.compiler.disable)(function, recursive)
