"""Whole commands against timm's scripts: wall, CPU time and memory of processes, one of each side in turn.

    python benchmarks/end_to_end.py --timm CHECKOUT --flowers DATA --imagenet DATA --ckpt WEIGHTS [--rounds 3]
        [--work typed finetune evaluate] [--steps 21] [--precision bf16 fp32] [--log FILE]

CHECKOUT is timm's public repository, for its train.py and validate.py; DATA are data sets that `vit` reads,
one with a training and a test split, one with the 1,000 classes of ImageNet; WEIGHTS are those of a ViT-
Ti/16 that both sides read, a .safetensors. "typed" is `vit finetune` with the recipe and the precision of
evaluation that it chooses itself, "finetune" the paper's recipe with the same precision for both. timm makes
--steps in epochs, and evaluates after the last one. Both sides get the same images, steps, batches, sizes,
augmentation, workers and threads. What differs: timm draws the area of a crop uniformly, we its height; timm
reads class folders, and so does vit for fine-tuning, while it evaluates the data set as it is. The first
round of each work is not counted: it fills the caches of the disk for both. --log appends each measurement
to a file, and the table is of all it holds.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

BATCH, EVAL_BATCH, WORKERS = 32, 64, 2
PIXELS = ["--mean", "0.5", "0.5", "0.5", "--std", "0.5", "0.5", "0.5", "--crop-pct", "0.9",
          "--interpolation", "bicubic", "--device", "cpu", "-j", str(WORKERS)]  # fmt: skip
NAMES = {
    "typed": "`vit finetune`, {} steps of 32",
    "finetune": "with `--recipe finetune/default`, {} steps of 32",
    "evaluate": "evaluate",
}


def export(dataset: str, folder: Path) -> None:
    """Write the images of a data set into class folders, bytes unchanged, and the list of all classes."""
    from vitcli.data.dataset import DataSet

    source = DataSet(dataset)
    for name in source.split_names:
        split = source.open(name)
        for row in range(len(split)):
            image, label = split.read_row(row)
            place = folder / name / split.class_names[label]
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{row:06}.jpg").write_bytes(image)
    (folder / "classes.txt").write_text("\n".join(split.class_names))


def commands(options: argparse.Namespace, precision: str, folders: dict[str, Path], out: Path) -> dict:
    """Return the command lines of both sides, by work."""
    amp = ["--amp", "--amp-dtype", "bfloat16"] if precision == "bf16" else []
    model, vit = "vit_tiny_patch16_224", [sys.executable, "-m", "vitcli"]
    flowers, imagenet = folders["finetune"], folders["evaluate"]
    num_classes = len((flowers / "classes.txt").read_text().splitlines())
    num_images = sum(1 for _ in (flowers / "train").glob("*/*"))
    epochs = str(max(1, options.steps // max(1, num_images // BATCH)))  # of whole batches
    typed = [
        *vit, "finetune", "--ckpt", options.ckpt, "--dataset", str(flowers), "--res", "224",
        "--steps", str(options.steps), "--batch-size", str(BATCH), "--precision", precision,
        "--workers", str(WORKERS), "--out", str(out / "vit"), "--overwrite", "--json", "--quiet",
    ]  # fmt: skip
    by_timm = [
        sys.executable, str(options.timm / "train.py"), "--data-dir", str(flowers), "--model", model,
        "--train-split", "train", "--val-split", "test", "--num-classes", str(num_classes),
        "--pretrained", "--pretrained-path", options.ckpt, "-b", str(BATCH), "-vb", str(EVAL_BATCH),
        "--epochs", epochs, "--val-interval", epochs, "--warmup-epochs", "0", "--opt", "momentum",
        "--momentum", "0.9", "--weight-decay", "0", "--lr", "0.01", "--clip-grad", "1.0", "--smoothing", "0",
        "--scale", "0.25", "1.0", "--hflip", "0.5", "--color-jitter", "0",
        "--train-interpolation", "bicubic", "--output", str(out / "timm"), "--checkpoint-hist", "1",
        *PIXELS, *amp,
    ]  # fmt: skip
    return {
        "typed": {"vit": typed, "timm": by_timm},
        "finetune": {
            "vit": [*typed, "--recipe", "finetune/default", "--set", f"precision.evaluation={precision}"],
            "timm": by_timm,
        },
        "evaluate": {
            "vit": [
                *vit, "evaluate", "--ckpt", options.ckpt, "--model", "ViT-Ti/16",
                "--dataset", options.imagenet, "--batch-size", str(EVAL_BATCH), "--precision", precision,
                "--workers", str(WORKERS), "--json", "--quiet",
            ],
            "timm": [
                sys.executable, str(options.timm / "validate.py"), "--data-dir", str(imagenet),
                "--model", model, "--split", "validation", "--class-map", str(imagenet / "classes.txt"),
                "--checkpoint", options.ckpt, "-b", str(EVAL_BATCH), *PIXELS, *amp,
            ],
        },
    }  # fmt: skip


def run(words: list[str]) -> dict:
    """Run a command line; return its wall and CPU seconds, its largest process, and its accuracy."""
    began_at = time.perf_counter()
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(words, stdout=printed, stderr=errors, env=os.environ)
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began_at
        process.returncode = os.waitstatus_to_exitcode(status)
        printed.seek(0), errors.seek(0)
        text = printed.read() + errors.read()
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {process.returncode}:\n{text[-2000:]}")
    scale = 2**30 if sys.platform == "darwin" else 2**20
    return {
        "wall_s": wall_s,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_gib": usage.ru_maxrss / scale,
        "top1": accuracy_in(text),
    }


def accuracy_in(text: str) -> float | None:
    """Return the accuracy that either side prints, as a fraction; timm's are in percent."""
    for pattern, scale in ((r'"top1": (0\.\d+|1\.0),', 1.0), (r"(?:\"top1\"|Best metric): ([\d.]+)", 100.0)):
        if values := re.findall(pattern, text):
            return float(values[0]) / scale
    return None


def table(records: list[dict]) -> str:
    """Return the medians of both sides, and the ratios of neighbouring runs with their range, as Markdown."""
    by_work: dict[tuple, dict[str, list[dict]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        by_work[record["work"], record["steps"], record["precision"]][record["side"]].append(record)
    lines = [
        "| whole process | vit | timm | ratio (range) | CPU seconds | peak memory, GiB | top-1 |",
        "|" + "---|" * 7,
    ]
    for (work, steps, precision), sides in by_work.items():
        pairs = list(zip(sides["vit"], sides["timm"], strict=False))
        if not pairs:
            continue
        ratios = [theirs["wall_s"] / ours["wall_s"] for ours, theirs in pairs]

        def both(key: str, form: str, pairs=pairs) -> str:
            values = [median(pair[side][key] or 0 for pair in pairs) for side in (0, 1)]
            return " / ".join(format(value, form) for value in values)

        wall = both("wall_s", ".1f").split(" / ")
        cells = [f"{NAMES[work].format(steps)}, {precision}", f"{wall[0]} s", f"{wall[1]} s"]
        cells += [f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}, {len(pairs)} pairs)"]
        cells += [both("cpu_s", ".1f"), both("peak_gib", ".2f"), both("top1", ".4f")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--timm", type=Path, required=True, help="checkout of timm's repository")
    parser.add_argument("--flowers", required=True, help="data set to fine-tune on")
    parser.add_argument("--imagenet", required=True, help="data set to evaluate on, with ImageNet's classes")
    parser.add_argument("--ckpt", required=True, help="weights of a ViT-Ti/16 that timm reads, too")
    parser.add_argument("--steps", type=int, default=21, help="of a fine-tuning (default: 21)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--precision", nargs="+", choices=["bf16", "fp32"], default=["bf16", "fp32"])
    parser.add_argument("--log", type=Path, help="file to append each measurement to")
    parser.add_argument("--folders", type=Path, help="where to keep the class folders (default: temporary)")
    parser.add_argument("--warmup", type=int, default=1, help="rounds that are not counted (default: 1)")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as temporary:
        root = options.folders or Path(temporary)
        folders = {"finetune": root / "flowers", "evaluate": root / "imagenet"}
        needed = {"evaluate" if work == "evaluate" else "finetune" for work in options.work}
        for name, dataset in (("finetune", options.flowers), ("evaluate", options.imagenet)):
            if name in needed and not folders[name].exists():
                export(dataset, folders[name])
        records = []
        if options.log and options.log.exists():
            records = [json.loads(line) for line in options.log.read_text().splitlines()]
        for precision in options.precision:
            all_commands = commands(options, precision, folders, Path(temporary))
            for work in options.work:
                for number in range(options.warmup + options.rounds):
                    for side, words in all_commands[work].items():  # in turn
                        about = {"work": work, "steps": options.steps, "precision": precision, "side": side}
                        record = {**about, **run(words)}
                        print(json.dumps(record), file=sys.stderr, flush=True)
                        if number >= options.warmup:
                            records.append(record)
                            if options.log:
                                with options.log.open("a") as log:
                                    log.write(json.dumps(record) + "\n")
    print(table(records))


if __name__ == "__main__":
    main()
