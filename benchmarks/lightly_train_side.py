"""lightly-train beside `vit finetune`: a line more for a file of benchmarks/default_recipe.py.

    pip install lightly-train
    python benchmarks/lightly_train_side.py --data FOLDER --ckpt WEIGHTS --out LINES.jsonl \\
        --set satellite_aid30 --shots 20 --lr 1e-4

The same training images, weights (a ViT-Ti/16), resolution and steps of 32 as there. Without --lr all is as
lightly-train has it, whose warm-up then takes up to 500 steps; with it the warm-up takes a tenth of them.
"""

import argparse
import os
import tempfile
from pathlib import Path

import lightly_train
import numpy as np
import timm
import torch
from default_recipe import BATCH, KEY, Draw, steps_of
from safetensors.torch import load_file
from timm.models.vision_transformer import checkpoint_filter_fn

NETWORK = "vit_tiny_patch16_224"
HALF = (0.5, 0.5, 0.5)  # mean and standard deviation of pixels in the weights' training


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--ckpt", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", required=True, dest="name")
    parser.add_argument("--shots", type=int, default=20)
    parser.add_argument("--res", type=int, default=96)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run(arguments, Path(scratch))


def run(arguments: argparse.Namespace, scratch: Path) -> None:
    torch.set_num_threads(1)
    drawn = Draw(arguments, scratch, arguments.name, arguments.shots, arguments.res, arguments.seed)
    labels, _ = drawn._written()
    steps = steps_of(arguments.shots, arguments.res)
    how = {"backbone_weights": resampled(arguments, scratch), "backbone_args": {"img_size": arguments.res}}
    if arguments.lr:
        how |= {"lr": arguments.lr, "lr_warmup_steps": steps // 10}
    before = os.times()
    lightly_train.train_image_classification(
        out=scratch / "run",
        model=f"timm/{NETWORK}",
        data={
            "train": str(drawn.folder / "train"),
            "val": str(drawn.folder / "test"),
            "classes": {int(folder.name): folder.name for folder in (drawn.folder / "test").iterdir()},
        },
        steps=steps,
        batch_size=BATCH,
        num_workers=0,
        accelerator="cpu",
        precision="bf16-mixed",
        seed=arguments.seed,
        model_args=how,
        transform_args={
            "image_size": (arguments.res, arguments.res),
            "normalize": {"mean": HALF, "std": HALF},
        },
    )
    after = os.times()
    network = lightly_train.load_model(scratch / "run" / "exported_models" / "exported_last.pt")
    files = sorted(
        (drawn.folder / "test").glob("*/*"), key=lambda file: f"test/{file.parent.name}/{file.name}"
    )
    right = np.array([int(network.predict(str(file))["labels"][0]) for file in files]) == labels
    side = "lightly-train" + (f" lr {arguments.lr}" if arguments.lr else "")
    key = (arguments.name, arguments.shots, arguments.res, arguments.seed, side)
    seconds = after.user + after.system - before.user - before.system
    drawn._add(dict(zip(KEY, key, strict=True)) | {"steps": steps, "cpu_s": round(seconds, 1)}, right, labels)


def resampled(arguments: argparse.Namespace, scratch: Path) -> Path:
    """Write the weights with position embeddings of this resolution: lightly-train resamples none."""
    network = timm.create_model(NETWORK, img_size=arguments.res)
    network.load_state_dict(checkpoint_filter_fn(load_file(arguments.ckpt), network))
    torch.save(network.state_dict(), scratch / "weights.pt")
    return scratch / "weights.pt"


if __name__ == "__main__":
    main()
