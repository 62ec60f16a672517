"""Kernels of a network in bf16 on a CPU: torch's against ours, and the share of the matmul rate they reach.

    python benchmarks/kernels.py [network] [parts] [attention] [--model ViT-Ti/16] [--batch-size 32]

    network     forward pass and training step (forward, loss, backward), as autocast and as vit run them.
                FLOPs: 2 x multiply-adds forward, 3 x that for a step. The rate is that of the network's dense
                layers, measured in the same run
    parts       milliseconds of one layer: dense layers, attention, GELU, norm
    attention   the table that models/kernels.py rests on: fused kernel against written out, by tokens

Both sides alternate; a time is the best of all rounds. With --threads 1 it is CPU time, which a busy machine
hardly changes.
"""

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.bench import limits
from vitcli.models import features, kernels
from vitcli.models.build import architecture, build

CPU = torch.device("cpu")
TOKENS = (17, 50, 65, 197, 257, 577, 785, 1025)
MOST_LOGITS = 2**25  # of a batch, so that long sequences do not take minutes

Work = Callable[[], object]


def now_s() -> float:
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def best_ms(works: dict[str, Work], rounds: int) -> dict[str, float]:
    """Return the best milliseconds of each, alternating."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):  # the first round prepares the library
        for name, work in works.items():
            began_at = now_s()
            work()
            times[name] += [now_s() - began_at] if number else []
    return {name: 1e3 * min(seconds) for name, seconds in times.items()}


def with_torchs_kernels(work: Work) -> Work:
    """Run the work with the fused kernel and torch's GELU, as timm does."""

    def run() -> object:
        had_bf16, kernels.HAS_BF16 = kernels.HAS_BF16, False
        try:
            return work()
        finally:
            kernels.HAS_BF16 = had_bf16

    return run


def show_network(options: argparse.Namespace) -> None:
    side = options.res
    arch = architecture(options.model, image_size=(side, side), num_classes=1_000)
    model, images = build(arch, dropout=0.0), torch.rand(options.batch_size, 3, side, side)
    labels = torch.zeros(options.batch_size, dtype=torch.int64)

    def forward(*, is_ours: bool) -> Tensor:
        model.eval()
        network = features.logits if is_ours else nn.Module.__call__
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            return network(model, images)

    def step() -> None:
        model.train().zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()

    def packed_forward() -> float:
        with kernels.dense_layers(model.eval(), CPU, "bf16"):
            return best_ms({"ours": lambda: forward(is_ours=True)}, 1)["ours"]

    shapes = limits.linear_shapes(arch, options.batch_size, "cpu")
    rates, times = [], {"forward, torch's": [], "forward, ours": [], "step, torch's": [], "step, ours": []}
    for _ in range(options.rounds):
        rates.append(dense_rate(shapes))
        times["forward, torch's"].append(
            best_ms({"": with_torchs_kernels(lambda: forward(is_ours=False))}, 1)[""]
        )
        times["forward, ours"].append(packed_forward())
        pair = best_ms({"torch's": with_torchs_kernels(step), "ours": step}, 1)
        for name, ms in pair.items():
            times[f"step, {name}"].append(ms)
    rate = max(rates)
    print(f"{options.model}, {options.batch_size} images of {side} px, {torch.get_num_threads()} threads")
    print(f"dense layers alone: {rate / 1e9:.0f} GFLOP/s (rounds from {min(rates) / 1e9:.0f})")
    for name, of_rounds in times.items():
        flops_of = limits.inference_flops if name.startswith("forward") else limits.training_flops
        flops = flops_of(arch) * options.batch_size
        shares = [flops / (ms / 1e3) / rate for ms in of_rounds]
        print(f"{name:18} {min(of_rounds):8.1f} ms   {max(shares):4.0%} of it (from {min(shares):.0%})")


def dense_rate(shapes: limits.Shapes) -> float:
    """Return FLOP/s of products of these shapes."""
    pairs = [
        (torch.randn(rows, inner).bfloat16(), torch.randn(outer, inner).bfloat16())
        for rows, inner, outer in shapes
    ]
    works = {str(number): without_gradients(F.linear, *pair) for number, pair in enumerate(pairs)}
    flops = sum(2 * rows * inner * outer for rows, inner, outer in shapes)
    return 1e3 * flops / sum(best_ms(works, 5).values())


def forward_backward(function: Callable[..., Tensor], *tensors: Tensor) -> Work:
    leaves = [x.detach().requires_grad_() for x in tensors]
    toward = torch.randn_like(function(*leaves))

    def run() -> None:
        torch.autograd.grad(function(*leaves), leaves, toward)

    return run


def without_gradients(function: Callable[..., Tensor], *tensors: Tensor) -> Work:
    def run() -> None:
        with torch.no_grad():
            function(*tensors)

    return run


def show_parts(options: argparse.Namespace) -> None:
    arch = architecture(options.model, image_size=(options.res, options.res), num_classes=0)
    block = build(arch, dropout=0.0).blocks[0]
    width, heads = block.attn.qkv.in_features, block.attn.num_heads
    num_tokens = arch.patch_grid[0] * arch.patch_grid[1] + 1
    tokens = torch.randn(options.batch_size, num_tokens, width)
    hidden = torch.randn(options.batch_size, num_tokens, block.mlp.fc1.out_features).bfloat16()
    qkv = torch.randn(options.batch_size, num_tokens, 3, heads, width // heads).bfloat16()
    rows = {
        "attention": (F.scaled_dot_product_attention, kernels.attend, qkv.permute(2, 0, 3, 1, 4)),
        "tanh-GELU": (lambda x: F.gelu(x, approximate="tanh"), kernels.ChoosesGelu(), (hidden,)),
        "GELU of erf": (F.gelu, F.gelu, (hidden,)),
        "layer norm": (block.norm1, block.norm1, (tokens,)),
    }
    dense = [block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2]
    print(f"ms of one layer: {'torch':>27} {'ours':>8}   with backward {'torch':>8} {'ours':>8}")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for name, (theirs, ours, tensors) in rows.items():
            works = {
                "a": without_gradients(theirs, *tensors), "b": without_gradients(ours, *tensors),
                "c": forward_backward(theirs, *tensors), "d": forward_backward(ours, *tensors),
            }  # fmt: skip
            a, b, c, d = best_ms(works, options.rounds).values()
            print(f"{name:28} {a:15.2f} {b:8.2f} {c:22.2f} {d:8.2f}")
        for name, packs in (("dense layers", False), ("dense layers, GELU within", True)):
            print(f"{name:28} {dense_ms(block, dense, tokens, hidden, packs, options.rounds):24.2f}")


def dense_ms(
    block: nn.Module, dense: list[nn.Module], tokens: Tensor, hidden: Tensor, packs: bool, rounds: int
) -> float:
    inputs = [tokens.bfloat16(), tokens.bfloat16(), tokens.bfloat16(), hidden]
    with torch.no_grad(), kernels.dense_layers(block, CPU, "bf16") if packs else nullcontext():
        works = {str(i): without_gradients(*pair) for i, pair in enumerate(zip(dense, inputs, strict=True))}
        return sum(best_ms(works, rounds).values())


def show_attention(options: argparse.Namespace) -> None:
    print("attention, ms: fused, written out, ratio; the same with backward; MiB of weights kept for it")
    for dtype in (torch.bfloat16, torch.float32):
        for heads in (3, 12):
            for num_tokens in TOKENS:
                batch = max(1, min(options.batch_size, MOST_LOGITS // (heads * num_tokens**2)))
                show_attention_row(dtype, batch, heads, num_tokens, options.rounds)


def show_attention_row(dtype: torch.dtype, batch: int, heads: int, num_tokens: int, rounds: int) -> None:
    qkv = torch.randn(batch, num_tokens, 3, heads, 64, dtype=dtype).permute(2, 0, 3, 1, 4)
    fused, ours = F.scaled_dot_product_attention, kernels.attend
    works = {"fused": without_gradients(fused, *qkv), "ours": without_gradients(ours, *qkv)}
    works |= {"fused back": forward_backward(fused, *qkv), "ours back": forward_backward(ours, *qkv)}
    a, b, c, d = best_ms(works, rounds).values()
    is_kept = num_tokens <= kernels.MOST_KEPT
    kept = batch * heads * num_tokens**2 * dtype.itemsize / 2**20 if is_kept else 0
    print(
        f"{str(dtype).removeprefix('torch.'):9} {batch:3} x {heads:2} heads x {num_tokens:4} tokens "
        f"{a:8.2f} {b:8.2f} {a / b:6.2f} {c:10.2f} {d:8.2f} {c / d:6.2f} {kept:8.1f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shows = {"network": show_network, "parts": show_parts, "attention": show_attention}
    parser.add_argument("shows", nargs="*", choices=[*shows, []], default=[], help="default: all")
    parser.add_argument("--model", default="ViT-Ti/16")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--res", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in options.shows or shows:
        shows[name](options)


if __name__ == "__main__":
    main()
