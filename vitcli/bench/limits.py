"""What the machine could do at best, measured on the spot: matrix products, and decoding alone."""

import time
from collections import Counter
from statistics import median

import torch
from torch import nn
from torch.nn import functional as F

from vitcli.bench.measure import LAP_S, Lap, synchronize
from vitcli.data.loader import read_example
from vitcli.data.split import Split
from vitcli.distributed.runtime import LOW_PRECISION
from vitcli.distributed.transfer import single_core_pool
from vitcli.models import flops
from vitcli.models.architecture import Architecture
from vitcli.models.build import build

MEASURED_S = 0.4
# Rows, width in and width out of the product that stands for a network without dense layers.
SQUARE = {"cpu": (1024, 1024, 1024)}
SQUARE_ON_GPU = (8192, 8192, 8192)

Shapes = Counter[tuple[int, int, int]]  # (rows, width in, width out) to how often


def training_flops(arch: Architecture) -> float:
    """Return the floating-point operations of one image in a training step: 3 x 2 x forward multiply-adds.

    The backward pass computes two products for each of the forward pass, for the inputs and the weights.
    """
    return 3 * inference_flops(arch)


def inference_flops(arch: Architecture) -> float:
    """Return the floating-point operations of one image's forward pass: 2 x multiply-adds."""
    return 2 * flops.forward_macs(arch)


def linear_shapes(arch: Architecture, batch_size: int, device_type: str) -> Shapes:
    """Return the matrix products that the dense layers of a network make for a batch."""
    shapes: Shapes = Counter()

    def note(module: nn.Linear, inputs: tuple, output: torch.Tensor) -> None:
        rows = output.numel() // module.out_features
        if rows > batch_size:  # the head has one row per image
            shapes[rows, module.in_features, module.out_features] += 1

    with torch.device("meta"), torch.no_grad():
        model = build(arch, dropout=0.0).eval()
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.register_forward_hook(note)
        model(torch.empty(batch_size, 3, *arch.image_size))
    return shapes or Counter([SQUARE.get(device_type, SQUARE_ON_GPU)])


def matmul_flops_per_s(shapes: Shapes, device: torch.device, precision: str) -> float:
    """Return the rate of these products, in turn: a CPU's best round, what a GPU keeps up for a lap."""
    dtype = LOW_PRECISION.get(precision, torch.float32)
    operands = [
        (
            torch.randn(rows, inner, device=device, dtype=dtype),
            torch.randn(outer, inner, device=device).to(dtype),
        )
        for rows, inner, outer in shapes
    ]
    num_flops = sum(2 * rows * inner * outer for rows, inner, outer in shapes)

    def round_s() -> float:
        synchronize(device)
        began_at = time.perf_counter()
        for rows_RI, weights_OI in operands:
            F.linear(rows_RI, weights_OI)
        synchronize(device)
        return time.perf_counter() - began_at

    with torch.no_grad():
        round_s()  # the first prepares the library
        is_cpu = device.type == "cpu"
        times, ends_at = [round_s()], time.perf_counter() + (MEASURED_S if is_cpu else LAP_S)
        while time.perf_counter() < ends_at:
            times.append(round_s())
    return num_flops / (min(times) if is_cpu else median(times))


def decode_lap(split: Split, num_images: int, num_threads: int) -> Lap:
    """Return the lap of reading and decoding alone, by as many threads as the loader."""

    def decode_rows(rows: range) -> int:
        for row in rows:
            read_example(split, row % len(split))
        return len(rows)

    with single_core_pool(num_threads, "vit-decoder") as pool:
        began_at, cpu_before = time.perf_counter(), time.process_time()
        size = -(-num_images // num_threads)
        chunks = [range(first, min(first + size, num_images)) for first in range(0, num_images, size)]
        images = sum(pool.map(decode_rows, chunks))
        return Lap(images, time.perf_counter() - began_at, time.process_time() - cpu_before)
