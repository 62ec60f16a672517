"""Token merging as a static rule of an ONNX file, against smaller images: latency and agreement.

    python benchmarks/token_merging.py CKPT DATA --split train[:256] [--model NAME]

ToMe (arXiv 2210.09461): after the attention of each block r pairs of tokens become their weighted means. The
even tokens are matched to the odd ones by the cosine of their keys, the r most similar pairs are merged, and
attention adds the logarithm of how many patches a token stands for. r is fixed, and so is every shape.
"""

import argparse
import copy
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.conversion import comparison, export
from vitcli.conversion.comparison import divergence, medians
from vitcli.data.dataset import DataSet
from vitcli.output.progress import Progress
from vitcli.weights.io import read_weights
from vitcli.weights.load import load
from vitcli.weights.onnx import write_onnx
from vitcli.weights.production.program import ProgramForm, ProgramNetwork


class Merging(nn.Module):
    """The blocks of a timm ViT with r tokens fewer after each attention."""

    def __init__(self, model: nn.Module, r: int):
        super().__init__()
        self.model, self.r = copy.deepcopy(model), r

    def forward(self, images_BCHW: Tensor) -> Tensor:
        model = self.model
        x = model.norm_pre(model._pos_embed(model.patch_embed(images_BCHW)))
        sizes = torch.ones_like(x[..., :1])
        for block in model.blocks:
            x, sizes = self.block(block, x, sizes)
        return model.forward_head(model.norm(x))

    def block(self, block: nn.Module, x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        attn, (B, T, D) = block.attn, x.shape
        heads = attn.num_heads
        qkv = attn.qkv(block.norm1(x)).reshape(B, T, 3, heads, D // heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        weights = (q * (D // heads) ** -0.5) @ k.transpose(-2, -1) + sizes.log()[:, None, None, :, 0]
        out = (weights.softmax(-1) @ v).transpose(1, 2).reshape(B, T, D)
        x = x + block.ls1(attn.proj(out))
        x, sizes = self.merged(x, sizes, k.mean(1))
        return x + block.ls2(block.mlp(block.norm2(x))), sizes

    def merged(self, x: Tensor, sizes: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        T, D = x.shape[1:]
        r = min(self.r, (T - 1) // 2)
        if not r:
            return x, sizes
        keys = F.normalize(keys, dim=-1)
        scores = keys[:, ::2] @ keys[:, 1::2].transpose(1, 2)
        first = torch.zeros_like(scores[:1, :, :1])
        first[:, 0] = 1e4  # the class token is never merged
        best, place = (scores - first).max(-1)
        order = best.argsort(dim=-1, descending=True)[..., None]
        gone, stays = order[:, :r], order[:, r:].sort(dim=1).values
        target = place[..., None].gather(1, gone)
        weighted = torch.cat([x * sizes, sizes], -1)  # sums, divided once
        even, odd = weighted[:, ::2], weighted[:, 1::2]
        kept = even.gather(1, stays.expand(-1, -1, D + 1))
        moved = even.gather(1, gone.expand(-1, -1, D + 1))
        odd = odd.scatter_add(1, target.expand(-1, -1, D + 1), moved)
        joined = torch.cat([kept, odd], 1)
        return joined[..., :D] / joined[..., D:], joined[..., D:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("ckpt")
    parser.add_argument("data")
    parser.add_argument("--split", default="train[:256]")
    parser.add_argument("--model")
    parser.add_argument("--r", type=int, nargs="*", default=[4, 8, 12, 16])
    parser.add_argument("--sides", type=int, nargs="*", default=[192, 160, 128])
    options = parser.parse_args()
    torch.set_num_threads(2)
    weights = read_weights(options.ckpt, model_name=options.model)
    split, folder = DataSet(options.data).open(options.split), Path("/tmp")
    form = export.preprocessing_of(weights, None)
    model = load(weights)[0].eval()
    files = {"fp32": (model, form)}
    files |= {f"{r} tokens per block": (Merging(model, r).eval(), form) for r in options.r}
    for side in options.sides:
        size = (side, side)
        files[f"{side} px"] = (
            load(weights, image_size=size)[0].eval(),
            export.preprocessing_of(weights, size),
        )
    exact, base = None, []
    for name, (network, preprocessing) in files.items():
        began = time.time()
        path = folder / "token_merging.onnx"
        write_onnx(path, network, ProgramForm(preprocessing, "classes", input="pixels"), {})
        file = ProgramNetwork(path)
        images = torch.randint(0, 256, (1, *preprocessing.image_size, 3), dtype=torch.uint8)
        base = base or [file, images]
        sides = {"file": lambda _, f=file, i=images: f(i), "base": lambda _, b=base: b[0](b[1])}
        seconds = medians(sides, images, enough_s=3.0)
        quiet = Progress(quiet=True)
        outputs, _ = comparison.outputs_of_all([file], split, preprocessing, quiet, title=name)
        exact = outputs if exact is None else exact
        equal = float((outputs.argmax(1) == exact.argmax(1)).double().mean())
        speed = f"{1000 * seconds['file']:6.1f} ms, {seconds['base'] / seconds['file']:.2f} times"
        distance = f"same {equal:.1%}, divergence {divergence(exact, outputs):.4f}"
        print(f"{name:18} {speed}, {distance}, export {time.time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
