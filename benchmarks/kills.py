"""The same SIGKILL in the middle of an epoch, and the same command again: timm's train.py and vit finetune.

    python benchmarks/kills.py --timm CHECKOUT --folders DATA

CHECKOUT is timm's public repository; DATA has `train` and `test`, folders of classes. Each side trains a
ViT-Ti/16 of 64 px for three epochs undisturbed, and again with a kill within the second epoch; timm resumes
with `--resume last.pth.tar`, the last of its checkpoints, vit with the same command. Compared are: updates
done again, whether the final weights have the same bits, and the largest difference of a weight.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

EPOCHS, BATCH, RES = 3, 16, 64
MODEL = "vit_tiny_patch16_224"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--timm", type=Path, required=True)
    parser.add_argument("--folders", type=Path, required=True)
    options = parser.parse_args()
    num_images = sum(1 for file in (options.folders / "train").glob("*/*"))
    per_epoch = num_images // BATCH
    kill_after = per_epoch + per_epoch // 2
    print(f"{num_images} images, {per_epoch} updates an epoch; killed after {kill_after}")
    with tempfile.TemporaryDirectory() as folder:
        compare_timm(options, Path(folder), kill_after)
        compare_vit(options, Path(folder), kill_after, EPOCHS * per_epoch)


def compare_timm(options: argparse.Namespace, folder: Path, kill_after: int) -> None:
    def words(name: str, *more: object) -> list:
        return [
            sys.executable, options.timm / "train.py", "--data-dir", options.folders, "--model", MODEL,
            "--train-split", "train", "--val-split", "test", "--num-classes", num_classes(options),
            "--img-size", RES, "--model-kwargs", f"img_size={RES}", "-b", BATCH, "--epochs", EPOCHS,
            "--warmup-epochs", 0, "--drop", 0.1, "--device", DEVICE, "--workers", 2, "--log-interval", 1,
            "--output", folder, "--experiment", name, *more,
        ]  # fmt: skip

    def num_updates(log: Path) -> int:
        return log.read_text(errors="replace").count("Train: ")

    run(words("unbroken"), folder / "unbroken.log")
    run(words("killed"), folder / "killed.log", lambda log: num_updates(log) >= kill_after)
    last = folder / "killed" / "last.pth.tar"
    run(words("resumed", "--resume", last), folder / "resumed.log")
    done, again = (num_updates(folder / f"{name}.log") for name in ("killed", "resumed"))
    total = num_updates(folder / "unbroken.log")
    before, after = (
        torch.load(folder / name / "last.pth.tar", weights_only=False)["state_dict"]
        for name in ("unbroken", "resumed")
    )
    report("timm", done + again - total, before, after)


def compare_vit(options: argparse.Namespace, folder: Path, kill_after: int, total: int) -> None:
    def words(name: str) -> list:
        return [
            sys.executable, "-m", "vitcli", "finetune", "--ckpt", "random", "--model", "ViT-Ti/16",
            "--dataset", options.folders, "--res", RES, "--batch-size", BATCH, "--steps", total,
            "--set", "train.log_every=1", "--set", "model.dropout=0.1", "--set", "train.save_every=10",
            "--workers", 2, "--precision", "fp32", "--out", folder / f"vit-{name}",
        ]  # fmt: skip

    def num_updates(name: str) -> int:
        metrics = folder / f"vit-{name}" / "metrics.jsonl"
        return metrics.read_text().count('"loss": ') if metrics.exists() else 0

    run(words("unbroken"), folder / "vit.log")
    run(words("killed"), folder / "vit.log", lambda log: num_updates("killed") >= kill_after)
    done = num_updates("killed")
    run(words("killed"), folder / "vit-again.log")
    (line,) = [
        line for line in (folder / "vit-again.log").read_text().splitlines() if "resuming from step" in line
    ]
    step = int(line.partition("resuming from step ")[2].split()[0])
    before, after = (
        load_file(folder / f"vit-{name}" / "model.safetensors") for name in ("unbroken", "killed")
    )
    report("vit", done - step, before, after)


def num_classes(options: argparse.Namespace) -> int:
    return sum(place.is_dir() for place in (options.folders / "train").iterdir())


def run(words: list, log: Path, is_time: Callable[[Path], bool] | None = None) -> None:
    """Run a command to its end, or kill it when it is time."""
    with log.open("wb") as file:
        process = subprocess.Popen(list(map(str, words)), stdout=file, stderr=subprocess.STDOUT)
        while process.poll() is None:
            time.sleep(0.05)
            if is_time and is_time(log):
                process.kill()
                process.wait()
                return
    if process.returncode or is_time:
        sys.exit(f"ended with {process.returncode}:\n{log.read_text(errors='replace')[-2000:]}")


def report(name: str, repeated: int, before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
    """Print what the kill changed."""
    difference = max(float((before[key].float() - after[key].float()).abs().max()) for key in before)
    same = all(torch.equal(before[key], after[key]) for key in before)
    weights = "the same bits" if same else f"other weights, by up to {difference:.3g}"
    print(f"{name}: {repeated} updates done again; final {weights}")


if __name__ == "__main__":
    main()
