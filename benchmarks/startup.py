"""The time before the first image, and of small commands.

    python benchmarks/startup.py IMAGES --ckpt WEIGHTS --timm NAME [--dataset DATA] [--repeats 5]

Alternates fresh processes, each the median of REPEATS; files are in the page cache, as after a first call:

    import torch              the interpreter and `import torch`, what every tool on torch waits for
    timm, N images            SCRIPT below: what a user of timm writes to classify the same images
    vit predict, N images     the same images, weights and preprocessing, the whole process
    vit predict, first image  from the start of its process until it decodes the first image
    vit evaluate, first image the same, with --dataset DATA
    vit -h, vit finetune -h, a checkpoint that is not there

"First image" is measured from outside: FIRST runs the command line with decoders that end the process, so the
product has no code for it. WEIGHTS are those of timm's NAME.TAG, in a file that timm can read.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

SCRIPT = """
import sys, timm, torch
from PIL import Image
name, weights, *files = sys.argv[1:]
model = timm.create_model(name, pretrained=False, checkpoint_path=weights).eval()
config = timm.data.resolve_model_data_config(model)
transform = timm.data.create_transform(**config, is_training=False)
names = timm.data.ImageNetInfo()
images = torch.stack([transform(Image.open(file).convert("RGB")) for file in files])
with torch.inference_mode():
    top = model(images).softmax(1).topk(5)
for file, values, indices in zip(files, top.values, top.indices):
    print(file, [(names.index_to_description(int(k)), round(float(p), 4)) for p, k in zip(values, indices)])
"""
FIRST = """
import os, sys
import PIL.Image, simplejpeg

def end(*given, **named):
    os._exit(0)

PIL.Image.open = simplejpeg.decode_jpeg = simplejpeg.decode_jpeg_header = end
from vitcli.cli import main
try:
    main(sys.argv[1:])
finally:
    os._exit(1)
"""


def measure(words: list[str], code: int = 0) -> tuple[float, float]:
    """Run a process and return its wall time and CPU time in seconds."""
    began_at, before = time.perf_counter(), os.times()
    done = subprocess.run(words, capture_output=True, text=True)
    wall, after = time.perf_counter() - began_at, os.times()
    assert done.returncode == code, done.stderr
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return wall, cpu


def commands(options: argparse.Namespace) -> dict[str, tuple[list[str], int]]:
    """Return the command line and exit code of each row."""
    python, vit = [sys.executable, "-c"], [sys.executable, "-m", "vitcli"]
    files = [str(file) for file in sorted(Path(options.images).iterdir())]
    network = options.timm.partition(".")[0]
    weights = ["--ckpt", options.ckpt, "--model", options.timm, "--quiet"]
    rows = {
        "import torch": ([*python, "import torch"], 0),
        f"timm, {len(files)} images": ([*python, SCRIPT, network, options.ckpt, *files], 0),
        f"vit predict, {len(files)} images": ([*vit, "predict", *weights, options.images], 0),
        "vit predict, first image": ([*python, FIRST, "predict", *weights, options.images], 0),
    }
    if options.dataset:
        data = ["--dataset", options.dataset]
        rows["vit evaluate, first image"] = ([*python, FIRST, "evaluate", *weights, *data], 0)
    rows["vit -h"] = ([*vit, "-h"], 0)
    rows["vit finetune -h"] = ([*vit, "finetune", "-h"], 0)
    rows["a missing --ckpt"] = ([*vit, "predict", "--ckpt", "nothere", options.images], 4)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("images", help="a folder of images")
    parser.add_argument("--ckpt", required=True)
    parser.add_argument("--timm", required=True, help="timm's NAME.TAG of the weights")
    parser.add_argument("--dataset")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    rows = commands(options)
    times = {name: [] for name in rows}
    for _ in range(options.repeats):
        for name, (words, code) in rows.items():
            times[name].append(measure(words, code))

    # The table: medians, the spread, and the ratio to importing torch.
    medians = {name: [median(column) for column in zip(*times[name], strict=True)] for name in times}
    torch_wall, torch_cpu = medians["import torch"]
    if options.json:
        print(json.dumps({"median_wall_cpu_s": medians, "all_wall_cpu_s": times}, indent=2))
        return
    print(f"{'':28}{'wall':>8}{'(min to max)':>16}{'CPU':>8}{'wall/torch':>12}{'CPU/torch':>11}")
    for name, (wall, cpu) in medians.items():
        walls = [wall for wall, _ in times[name]]
        spread = f"{min(walls):.2f} to {max(walls):.2f}"
        print(f"{name:28}{wall:8.2f}{spread:>16}{cpu:8.2f}{wall / torch_wall:12.2f}{cpu / torch_cpu:11.2f}")
    of_timm, ours = (value for name, value in medians.items() if name.endswith(" images"))
    print(f"timm / vit predict: {of_timm[0] / ours[0]:.2f} wall, {of_timm[1] / ours[1]:.2f} CPU")


if __name__ == "__main__":
    main()
