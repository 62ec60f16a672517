"""Checks and measurements of benchmarks/gpu_stages.sh: each prints its numbers, and exits 1 if it fails.

python benchmarks/gpu_checks.py about | ceilings | speed RESULT | doctor FILE | losses RUN RUN TOLERANCE
    | same SUMMARY RESULT | replanned RUN LIMIT SECONDS | part < PLAN | goldens | forward
    | taught FOLDER FOLDER | synchronizations FOLDER | busy FILE FRACTION | attention | nvjpeg PHOTOS
"""

import json
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

GOLDEN_TOLERANCE, FORWARD_TOLERANCE = 2e-5, 1e-4
UNITS = {
    "images_per_s": "images/s",
    "ratio": "of timm",
    "fraction_of_limit": "of the limit",
    "limit_flops_per_s": "FLOP/s",
    "data_wait_fraction": "data wait",
    "device_peak_memory_gib": "GiB",
}


def about() -> bool:
    """There is a GPU; what runs on it."""
    from importlib.metadata import version

    import torch

    import vitcli  # noqa: F401

    names = ("timm", "datasets", "pyarrow", "numpy", "accelerate", "safetensors")
    print(", ".join(f"{name} {version(name)}" for name in names))
    query = [
        "nvidia-smi",
        "--query-gpu=name,driver_version,power.limit,clocks.max.sm",
        "--format=csv,noheader",
    ]
    print(subprocess.run(query, capture_output=True, text=True).stdout.strip())
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {os.cpu_count()} cores")
    return True


def ceilings() -> bool:
    """What the device does for seconds on end: copies, and products of bf16 matrices."""
    import torch

    def copied() -> str:
        source = torch.randn(2**30, device="cuda")
        target = torch.empty_like(source)
        each_s = seconds_each(lambda: target.copy_(source), seconds=2)
        return f"copy {2 * source.nbytes / each_s / 1e12:.2f} TB/s"

    def multiplied(width: int) -> str:
        a, b = (torch.randn(8192, width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        each_s = seconds_each(lambda: a @ b.T, seconds=3 if width == 8192 else 1)
        return f"8192 x {width} x 8192 {2 * 8192 * 8192 * width / each_s / 1e12:.0f} TFLOP/s"

    print(", ".join([copied(), *map(multiplied, (8192, 4096, 1024))]))
    return True


def seconds_each(work: Callable, *, seconds: float) -> float:
    """Return the mean time of one call, in as many as take so long, after as many to warm up."""
    import torch

    for limit in (0.3 * seconds, seconds):
        began_at, count = time.perf_counter(), 0
        while time.perf_counter() - began_at < limit:
            for _ in range(10):
                work()
            torch.cuda.synchronize()
            count += 10
    return (time.perf_counter() - began_at) / count


def speed(file: str) -> bool:
    """Print the speeds of a result of `vit bench` or `vit evaluate`."""
    result = json.loads(Path(file).read_text())
    for row in result.get("rows", [result]):
        found = {**row, "ratio": (row.get("compare") or {}).get("ratio")}
        named = [found["model"]] if isinstance(found.get("model"), str) else []
        numbers = [f"{found[key]:.4g} {unit}" for key, unit in UNITS.items() if found.get(key) is not None]
        print(", ".join(named + numbers), end="; ")
    print()
    return True


def replanned(run: str, limit: str, took: str) -> bool:
    """A run with a time limit was planned again, and ended within it."""
    replans = json.loads(Path(run, "plan.json").read_text()).get("replans", [])
    print(f"{len(replans)} times planned again, {took} s of {limit} s")
    return bool(replans) and int(took) <= int(limit) + 1


def part() -> bool:
    """Print the images of a part of a plan on standard input."""
    print(f"{json.load(sys.stdin)['per_device_batch']} images a part")
    return True


def doctor(file: str) -> bool:
    """`vit doctor` names the GPU that torch sees, and resolves auto to bf16 where the device has it."""
    import torch

    about = json.loads(Path(file).read_text())
    problem = about["cuda_problem"] or "no problem"
    print(f"{about['device']} {about['gpus']}, auto is {about['precision']}, {problem}")
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return about["gpus"] == names and (not names or about["precision"] == "bf16")


def losses(run: str, other: str, tolerance: str) -> bool:
    """The losses of two runs are within a tolerance of each other at every step."""
    each = []
    for folder in (run, other):
        records = map(json.loads, Path(folder, "metrics.jsonl").read_text().splitlines())
        each.append([record["loss"] for record in records if "loss" in record])
    worst = max(abs(a - b) / abs(a) for a, b in zip(*each, strict=True))
    print(f"{len(each[0])} losses, at most {worst:.2%} apart")
    return len(each[0]) > 1 and worst <= float(tolerance)


def same(summary: str, result: str) -> bool:
    """`vit evaluate` finds the numbers of the run's summary."""
    of_run = json.loads(Path(summary).read_text())["runs"][0]
    again = json.loads(Path(result).read_text())
    pairs = {key: (of_run[key], again[key]) for key in ("top1", "loss")}
    print(", ".join(f"{key} {a} and {b}" for key, (a, b) in pairs.items()))
    return all(a == b for a, b in pairs.values())


def taught(folder: str, on_cpu: str) -> bool:
    """Features of two devices as integers: how far apart, and whether the classifiers are equally right."""
    import numpy as np

    from vitcli.features.statistics import ClosedFormStatistics
    from vitcli.output.run_folder import CLOSED_FORM

    here, there = (ClosedFormStatistics.read(Path(each, CLOSED_FORM))[0] for each in (folder, on_cpu))
    units = np.abs(here.features_ND.astype(np.int64) - there.features_ND)
    top1s = [json.loads(Path(each, "summary.json").read_text())["left_out_top1"] for each in (folder, on_cpu)]
    print(
        f"{(units > 0).mean():.2%} of {units.size:,} integers differ, by {units.max()} units at most; {top1s}"
    )
    return bool((here.digests_N == there.digests_N).all() and units.max() <= 64 and top1s[0] == top1s[1])


def goldens() -> bool:
    """The authors' checkpoints give the authors' outputs on this device."""
    import numpy as np
    import torch

    from vitcli.distributed.runtime import start
    from vitcli.models.build import build
    from vitcli.weights.io import read_weights
    from vitcli.weights.load import load_into

    home = Path(os.environ.get("VIT_TEST_DATA", "../shared"), "golden")
    models = json.loads((home / "checkpoints" / "models.json").read_text())
    inputs, device, worst = np.load(home / "inputs.npz"), start("fp32").device, 0.0
    for name, about in models.items():
        weights = read_weights(str(home / "checkpoints" / about["checkpoint"]))
        model = build(weights.architecture, dropout=0.0).eval()
        load_into(model, weights.architecture, weights, new_head=False)
        with torch.no_grad():
            logits = model.to(device)(
                torch.from_numpy(inputs[about["inputs"]]).permute(0, 3, 1, 2).to(device)
            )
        golden = np.load(home / "checkpoints" / f"{name}.out.npz")["logits"]
        worst = max(worst, float(np.abs(logits.cpu().numpy() - golden).max() / np.abs(golden).max()))
    print(f"{len(models)} networks on {device}, at most {worst:.1e} apart")
    return worst < GOLDEN_TOLERANCE


def forward() -> bool:
    """A batch through ViT-S/16 in fp32 gives the CPU's outputs."""
    import torch

    from vitcli.distributed.runtime import start
    from vitcli.models.build import architecture, build, last_layers

    torch.manual_seed(0)
    model = build(architecture("ViT-S/16", image_size=(224, 224), num_classes=1000), dropout=0.0).eval()
    for layer in last_layers(model):
        torch.nn.init.normal_(layer.weight, std=0.02)
    images, device = torch.randn(8, 3, 224, 224), start("fp32").device
    with torch.no_grad():
        expected = model(images)
        found = model.to(device)(images.to(device)).cpu()
    worst = float((found - expected).abs().max() / expected.abs().max())
    print(f"{device} against the CPU: {worst:.1e} apart")
    return worst < FORWARD_TOLERANCE


def synchronizations(folder: str) -> bool:
    """The number of waits for the GPU does not grow with the parts of a step."""
    counts = []
    for part in (64, 8):
        words = [
            "finetune",
            "--dataset",
            "demo",
            "--steps",
            "5",
            "--batch-size",
            "64",
            "--quiet",
            "--per-device-batch",
        ]
        words += [str(part), "--set", "train.log_every=1000", "--out", f"{folder}-{part}"]
        child = [sys.executable, __file__, "counted", *words]
        printed = subprocess.run(child, capture_output=True, text=True, check=True).stdout
        counts.append(int(printed.splitlines()[-1]))
    print(f"{counts[0]} waits in steps of one part, {counts[1]} in steps of eight")
    return counts[0] == counts[1]


def counted(*words: str) -> bool:
    """Run a command line; print how often it waited for the GPU in the training loop."""
    import torch

    from vitcli.cli import main
    from vitcli.training import loop, run

    def train(*args, **named):
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loop.train(*args, **named)
        torch.cuda.set_sync_debug_mode("default")
        waits.extend(w for w in caught if "synchron" in str(w.message))

    waits: list = []
    run.train = train
    try:
        main(list(words))
    except SystemExit as ended:
        assert not ended.code
    print(len(waits))
    return True


def busy(file: str, fraction: str) -> bool:
    """The GPU computed for at least this fraction of a profile."""
    found = re.search(r"GPU busy +([\d.]+)%", Path(file).read_text())
    print(f"GPU busy {found[1]} %" if found else "no GPU in the profile")
    return bool(found) and float(found[1]) >= 100 * float(fraction)


def attention() -> bool:
    """The rate of each attention kernel at the tokens of 224 and 384 pixels, forward and backward."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    kernels = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
    for tokens in (197, 577):
        shape = (128, 12, tokens, 64)
        qkv = [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
        flops = 3.5 * 4 * 128 * 12 * tokens**2 * 64
        for kernel in kernels:
            with sdpa_kernel([kernel]):
                each_s = seconds_each(
                    lambda qkv=qkv: scaled_dot_product_attention(*qkv).sum().backward(), seconds=1
                )
            print(f"{tokens} tokens, {kernel.name}: {flops / each_s / 1e12:.0f} TFLOP/s", end="; ")
    print()
    return True


def nvjpeg(photos: str) -> bool:
    """How fast the GPU decodes JPEGs, and how far its pixels are from ours."""
    import io

    import numpy as np
    import pyarrow.parquet as pq
    import torch
    from PIL import Image
    from torchvision.io import ImageReadMode, decode_jpeg

    tables = [pq.read_table(file) for file in Path(photos).glob("*.parquet")]
    files = [row["image"]["bytes"] for table in tables for row in table.to_pylist()]
    jpegs = [data for data in files if data[:2] == b"\xff\xd8"]
    batch = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in (jpegs * 256)[:256]]
    each_s = seconds_each(lambda: decode_jpeg(batch, mode=ImageReadMode.RGB, device="cuda"), seconds=3)
    theirs = decode_jpeg(batch[0], mode=ImageReadMode.RGB, device="cuda").cpu().numpy().astype(int)
    ours = np.asarray(Image.open(io.BytesIO(jpegs[0])).convert("RGB")).transpose(2, 0, 1)
    levels = np.abs(theirs - ours)
    print(f"{256 / each_s:.0f} images/s; levels: {levels.mean():.2f} in the mean, {levels.max()} at most")
    return True


CHECKS = {
    check.__name__: check
    for check in (
        about,
        ceilings,
        speed,
        doctor,
        losses,
        same,
        replanned,
        part,
        taught,
        goldens,
        forward,
        synchronizations,
        counted,
        busy,
        attention,
        nvjpeg,
    )
}

if __name__ == "__main__":
    sys.exit(not CHECKS[sys.argv[1]](*sys.argv[2:]))
