"""What a command loads, and that the compiler whose loading is deferred is the real one when it is used."""

import platform
import subprocess
import sys

import pytest

from tests.folders import image
from tests.test_layers import loaded_with

UNUSED = {"datasets", "pyarrow", "pandas", "matplotlib", "scipy", "sklearn", "transformers"}
LATER = {"torch._dynamo", "torch._inductor", "sympy", "triton", "torch.distributed.fsdp"}


@pytest.mark.parametrize("module", ["evaluation.predict", "weights.load", "api"])
def test_what_reads_single_images_names_no_library_of_tables_or_figures(module):
    assert not loaded_with(module) & UNUSED


@pytest.mark.slow
def test_predict_loads_only_what_it_uses_and_compiling_still_works(tmp_path):
    image(tmp_path / "a.jpg")
    code = f"""
import sys
from vitcli.cli import main
try:
    main(["predict", "--ckpt", "demo", {str(tmp_path / "a.jpg")!r}, "--quiet"])
except SystemExit as ended:
    assert not ended.code
loaded = {UNUSED | LATER!r} & set(sys.modules)
assert not loaded, loaded

import torch
from timm.models.naflexvit import NaFlexRopeIterator
from torchvision.ops import roi_align
from torchvision.tv_tensors import Image, wrap
assert sys.modules["torchvision.ops.roi_align"].is_compile_supported("cpu") in (True, False)
import torch._dynamo
assert torch._dynamo.__file__ and sys.modules["torch._dynamo.utils"].__file__
assert torch._dynamo.utils is sys.modules["torch._dynamo.utils"]
images = torch.ones(1, 1, 4, 4)
assert roi_align(images, [torch.tensor([[0.0, 0.0, 4.0, 4.0]])], 1).item() == 1
assert type(wrap(images, like=Image(images))) is Image
assert torch.compile(torch.sin, backend="eager")(images).equal(torch.sin(images))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_fine_tuning_loads_no_compiler(tmp_path):
    code = f"""
import sys
from vitcli.cli import main
adam = ("optimizer.name=adam", "optimizer.betas=[0.9, 0.999]", "optimizer.eps=1e-8")
for optimizer in ((), adam):
    run = ["--steps", "1", "--batch-size", "4", *(word for key in optimizer for word in ("--set", key))]
    try:
        main(["finetune", *run, "--out", f"{tmp_path}/{{len(optimizer)}}", "--quiet"])
    except SystemExit as ended:
        assert not ended.code
    assert not {LATER!r} & set(sys.modules), {LATER!r} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has its own ways")
def test_memory_that_was_freed_is_used_again():
    """A page is a fault the first time that it is written, be it one of 4 KiB or of 2 MiB."""
    code = """
import resource, numpy
from vitcli.distributed.startup import keep_freed_memory
keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    numpy.empty(24 * 2**20, numpy.uint8).fill(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
first, second = faults(), faults()
print(first, second)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    first, second = map(int, done.stdout.split())
    assert second < first / 4, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("first", ["torch._dynamo.config", "torch._dynamo.eval_frame"])
def test_a_stand_in_gives_way_to_the_compiler_as_soon_as_anything_else_is_asked_of_it(first):
    code = f"""
import importlib, sys, torch
from vitcli.distributed import startup
with startup._deferred_compiler():
    assert sys.modules["torch._dynamo"].__spec__.loader is None and not hasattr(torch._dynamo, "__file__")
    module = importlib.import_module({first!r})
    assert module.__file__ and torch._dynamo.__file__ and torch._dynamo.utils.__file__
assert sys.modules[{first!r}] is module
assert torch.compile(torch.cos, backend="eager")(torch.zeros(2)).tolist() == [1, 1]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stderr
