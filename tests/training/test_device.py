"""Devices without float64, such as Apple's: training and every pass without gradients."""

import resource
import sys
from types import SimpleNamespace

import pytest
import torch

from tests.conftest import run
from tests.fake_device import DEVICE, on_device, without_float64
from tests.training.test_finetune import SMALL
from vitcli.distributed.runtime import peak_memory_gib
from vitcli.errors import is_out_of_memory

TINY = ("--model", "ViT-demo/8", "--set", "model.layers=1", "--quiet", "--json")
MASKED = (
    *("--set", "objective.loss=masked_patch", "--set", "objective.patch_target=mean_color"),
    *("--set", "objective.corrupted=0.5", "--set", "objective.masked=0.8", "--set", "objective.replaced=0.1"),
)


def test_the_imitated_device_refuses_what_the_real_one_refuses():
    with without_float64():
        there = torch.ones(3).to(DEVICE)

        assert there.device == DEVICE and on_device(there + 1) and not on_device((there + 1).cpu())
        for refused in (
            lambda: there.double(),
            lambda: there.to(torch.float64),
            lambda: there.numpy(),
            lambda: torch.zeros(3, dtype=torch.float64, device=DEVICE),
        ):
            with pytest.raises(TypeError):
                refused()
        with pytest.raises(RuntimeError, match="same device"):
            there + torch.ones(3)


def test_commands_run_on_a_device_without_float64(photos, tmp_path):
    data, out = ("--dataset", photos), tmp_path / "run"
    finetune = (
        *SMALL,
        *data,
        "--out",
        out,
        "--batch-size",
        12,
        "--set",
        "train.save_every=2",
        "--set",
        "eval.every=2",
    )
    averaged = ("--set", "optimizer.average=0.9")
    pretrain = (
        "pretrain",
        "--recipe",
        "pretrain/demo",
        *TINY,
        *data,
        "--res",
        16,
        "--steps",
        2,
        "--batch-size",
        12,
    )
    of_run = ("--ckpt", out, "--quiet", "--json")
    with without_float64() as operations:
        for words in (
            (*finetune, *averaged, "--steps", 3),
            ("evaluate", *of_run, *data),
            (
                "evaluate",
                *of_run,
                *data,
                "--set",
                "data.on_bad_image=skip",
                "--save-predictions",
                tmp_path / "p.parquet",
            ),
            ("fewshot", *of_run, *data, "--shots", 1, "--out", tmp_path / "fewshot"),
            ("embed", *of_run, *data, "--out", tmp_path / "features.safetensors"),
            ("predict", *of_run, photos / "test"),
            ("inspect", *of_run, "--images", photos / "test", "--out", tmp_path / "figures"),
            (*pretrain, *MASKED, "--out", tmp_path / "masked"),
        ):
            operations.clear()
            ended = run(*words)

            assert ended.code == 0, ended.out + ended.err
            assert {"linear", "softmax", "layer_norm"} & set(operations), words


@pytest.mark.parametrize(("platform", "peak"), [("darwin", 3 * 2**30), ("linux", 3 * 2**20)])
def test_peak_memory_is_counted_in_bytes_on_macos_and_in_kib_elsewhere(platform, peak, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=peak))

    assert peak_memory_gib() == 3


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB, max allowed: 9.07 GB)"), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"),
            True,
        ),
        (RuntimeError("can't start new thread"), True),
        (ImportError("_backend_agg.so: failed to map segment from shared object"), True),
        (OSError("libgomp.so.1: failed to map segment from shared object"), True),
        (OSError(12, "Cannot allocate memory"), True),
        (OSError("out of memory error when reading image file"), True),  # Pillow's
        (
            RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
            True,
        ),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (OSError(28, "No space left on device"), False),
        (ImportError("cannot import name 'main'"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_every_allocator_is_understood(error, is_memory):
    assert is_out_of_memory(error) == is_memory
