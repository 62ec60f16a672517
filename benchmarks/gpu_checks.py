"""Checks of benchmarks/gpu_smoke.sh that compare numbers; each prints them and exits 1 if it does not hold.

python benchmarks/gpu_checks.py doctor FILE | losses RUN RUN TOLERANCE | same SUMMARY RESULT | goldens
    | forward | synchronizations FOLDER | busy FILE FRACTION
"""

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

GOLDEN_TOLERANCE, FORWARD_TOLERANCE = 2e-5, 1e-4


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


CHECKS = {
    check.__name__: check
    for check in (doctor, losses, same, goldens, forward, synchronizations, counted, busy)
}

if __name__ == "__main__":
    sys.exit(not CHECKS[sys.argv[1]](*sys.argv[2:]))
