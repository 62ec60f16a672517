"""Attention distance and rollout: our pass against timm's AttentionExtract, which keeps all weights.

    python benchmarks/attention.py [--model ViT-B/16] [--images 32] [--batch-size 16] [--res 224]

Both run the same random network on the same random images, each in its own process for its peak memory, and a
third process runs the network alone. Their distances are compared.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import torch

from vitcli.inspection.analysis import attention_distance, output_attention, patch_distances, rollout_layer
from vitcli.inspection.attention import MOST_WEIGHTS, attention_stats, probe_attention_layout
from vitcli.models.build import architecture, build


def ours(model, layout, images: torch.Tensor) -> torch.Tensor:
    """(n, L, A)"""
    distances = patch_distances(layout.grid, layout.patch_size).float()
    results = attention_stats(model, layout, images, distances, len(images), residual=True, renormalise=True)
    return results.distance_nLA


def theirs(model, layout, images: torch.Tensor) -> torch.Tensor:
    from timm.utils import AttentionExtract

    for block in model.blocks:
        block.attn.fused_attn = False
    extract = AttentionExtract(model, method="hook")
    maps = list(extract(images).values())
    distances = patch_distances(layout.grid, layout.patch_size).float()
    rollout = None
    for weights in maps:
        rollout = rollout_layer(rollout, weights, residual=True)
    output_attention(rollout, num_prefix=layout.num_prefix, reads_token=layout.reads_token)
    results = [
        attention_distance(weights, distances, num_prefix=layout.num_prefix, renormalise=True)
        for weights in maps
    ]
    return torch.stack(results, dim=1).double()


def measure(side: str, options: argparse.Namespace) -> dict:
    torch.manual_seed(0)
    arch = architecture(options.model, image_size=(options.res, options.res), num_classes=10)
    model = build(arch, dropout=0.0).eval()
    layout = probe_attention_layout(model, arch)
    at_once = min(options.batch_size, max(1, MOST_WEIGHTS // layout.weights_per_image))
    at_once = at_once if side == "ours" else options.batch_size
    images = torch.rand(options.images, 3, options.res, options.res)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began_at = time.perf_counter()
    with torch.no_grad():
        if side == "network":
            results = [model.forward_features(part).mean() for part in images.split(at_once)]
        else:
            look = {"ours": ours, "theirs": theirs}[side]
            results = [look(model, layout, part) for part in images.split(at_once)]
    seconds = time.perf_counter() - began_at
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    of_heads = torch.cat(results).mean(dim=0).flatten().tolist() if side != "network" else []
    return {"seconds": seconds, "mib": (peak - before) / 1024, "distance": of_heads}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="ViT-B/16")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--res", type=int, default=224)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measure(options.side, options)))
        return
    measured = {}
    for side in ("network", "ours", "theirs"):
        words = [sys.executable, __file__, *sys.argv[1:], "--side", side]
        measured[side] = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
        print(
            f"{side:8} {measured[side]['seconds']:6.1f} s  {measured[side]['mib']:7.0f} MiB more at the peak"
        )
    pairs = zip(measured["ours"]["distance"], measured["theirs"]["distance"], strict=True)
    print(f"distances differ by {max(abs(a - b) for a, b in pairs):.1e} px at most")
    time_ratio, memory_ratio = (measured["ours"][key] / measured["theirs"][key] for key in ("seconds", "mib"))
    print(f"ours takes {time_ratio:.2f} of their time and {memory_ratio:.2f} of their memory")


if __name__ == "__main__":
    main()
