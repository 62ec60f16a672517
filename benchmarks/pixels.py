"""What wrong statistics cost: one network saved for two of them, evaluated and fine-tuned on both.

    python benchmarks/pixels.py WEIGHTS --evaluate DATA --finetune DATA --out FOLDER [--steps 20] [--seeds 3]

WEIGHTS are of a plain ViT for pixels in [-1, 1] (mean and std 0.5), such as the authors' .npz. A copy takes
pixels with the mean and std of ImageNet: the difference is folded into its patch embedding, so that both are
one function of an image. Each gets the pixels that it states, and then those of the other. The results are in
docs/evidence/accuracy.md.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import timm
import torch
from timm.models import save_for_hf
from torch import Tensor

from vitcli.weights.io import read_weights

HALF = ((0.5,) * 3, (0.5,) * 3)
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
OPTIONS = ("--precision", "fp32", "--batch-size", "16", "--lr", "0.03", "--set", "eval.every=0")


def folded(state: dict[str, Tensor], mean: tuple[float, ...], std: tuple[float, ...]) -> dict[str, Tensor]:
    """Return the weights of a network for [-1, 1] that computes the same from (pixels - mean) / std.

    W (p - 1/2) / (1/2) + b = (2 std W) x + 2 W (mean - 1/2) + b  with  p = std x + mean
    """
    kernel, bias = (state[f"patch_embed.proj.{name}"].double() for name in ("weight", "bias"))
    mean_1C11, std_1C11 = (torch.tensor(values).double().view(1, 3, 1, 1) for values in (mean, std))
    shifted = bias + (kernel * 2 * (mean_1C11 - 0.5)).sum(dim=(1, 2, 3))
    first = {"patch_embed.proj.weight": 2 * std_1C11 * kernel, "patch_embed.proj.bias": shifted}
    return state | {name: tensor.float() for name, tensor in first.items()}


def save(ckpt: str, folder: Path, statistics: tuple[tuple[float, ...], tuple[float, ...]]) -> None:
    """Let timm save the folded network with its statistics."""
    weights = read_weights(ckpt)
    arch, (mean, std) = weights.architecture, statistics
    args = {"act_layer": "gelu_tanh", "img_size": arch.image_size[0]}
    model = timm.create_model(arch.timm_name, num_classes=arch.num_classes, **args)
    model.load_state_dict(folded(weights.state, mean, std))
    model.pretrained_cfg = model.pretrained_cfg | {"mean": mean, "std": std}
    save_for_hf(model, folder, model_args=args, safe_serialization=True)


def vit(*words: object) -> dict:
    """Return the result of a command."""
    command = [sys.executable, "-m", "vitcli", *map(str, words), "--json", "--quiet"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("weights")
    parser.add_argument("--evaluate", required=True)
    parser.add_argument("--finetune", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    statistics = {"0.5": HALF, "ImageNet": IMAGENET}
    for name, values in statistics.items():
        save(options.weights, options.out / name, values)

    print("weights state  pixels get  evaluated  fine-tuned, by seed")
    for stated in statistics:
        for used, (mean, std) in statistics.items():
            sets = ("--set", f"data.mean={list(mean)}", "--set", f"data.std={list(std)}")
            words = ("--ckpt", options.out / stated, *(() if stated == used else sets))
            top1 = vit("evaluate", *words, "--dataset", options.evaluate)["top1"]
            scores = []
            for seed in range(options.seeds):
                out = options.out / f"run-{stated}-{used}-{seed}"
                run = ("--steps", options.steps, "--seed", seed, "--out", out, *OPTIONS)
                scores.append(vit("finetune", *words, "--dataset", options.finetune, *run)["top1"])
            print(f"{stated:13}  {used:10}  {top1:9.2%}  {'  '.join(f'{score:.2%}' for score in scores)}")


if __name__ == "__main__":
    main()
