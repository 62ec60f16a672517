"""Students of a teacher: how much of its lead they close, and what a second one costs.

    python benchmarks/distillation.py gap DATA RUN CKPT [--seeds 3] [--res 96] [--OPTION VALUE ...]
    python benchmarks/distillation.py scratch DATA RUN --steps N [OPTIONS OF vit finetune]
    python benchmarks/distillation.py cost DATA CKPT --timm CHECKOUT [--rounds 2] [--epochs 1] [--bf16]

    gap       RUN, a run of 224 px, teaches the same network at --res. Beside it, with the same steps and for
              each seed: plain, `vit finetune` of CKPT; and the baseline of `vit distill`, which starts from
              the weights of the teacher. Closed is (distilled - other) / (teacher - other) of the accuracies
              on the images to report on
    scratch   4 layers of 128 from fresh weights with the teacher; then without, for as many CPU seconds as
              the first took, its teacher's passes included
    cost      whole processes with a ViT-S/16 as the teacher of a ViT-Ti/16 at 224 px, in turn: a run without
              a teacher, the first student, the second one, and timm's train.py with --kd-model-name

Criterion, written down before the first run: modern/distill is tuned on other sets; then gap runs once on
flowers17, cifar10 (2,000 training images) and coil20_azimuth, three seeds each. It is met if 60 % is
closed on two of them, and no student is below the one without a teacher by more than a standard error.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, median, stdev

import end_to_end

VIT = [sys.executable, "-m", "vitcli"]
PLAIN, TAUGHT = "modern/finetune-some", "modern/distill"
SMALL = ["--ckpt", "random", "--model", "ViT-Ti/16", "--set", "model.layers=4", "--set", "model.hidden=128",
         "--set", "model.patch_size=4", "--res", "32"]  # fmt: skip


def vit(*words: object) -> dict:
    command = [*VIT, *map(str, words), "--json", "--quiet"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
    return json.loads(ended.stdout)


def cpu_seconds(*words: object) -> tuple[dict, float]:
    """Return what a command says, and the CPU time of its process."""
    before = os.times()
    result = vit(*words)
    after = os.times()
    return result, after.children_user + after.children_system - before.children_user - before.children_system


def gap(options: argparse.Namespace, out: Path) -> None:
    teacher = json.loads((Path(options.run) / "summary.json").read_text())["top1"]
    top1: dict[str, list[float]] = {"plain": [], "baseline": [], "distilled": []}
    asked = list(zip(options.more[::2], options.more[1::2], strict=True))
    of_both = [word for pair in asked if not pair[1].startswith("distill.") for word in pair]
    for seed in range(options.seeds):
        words = ("--dataset", options.data, "--res", options.res, "--seed", seed)
        plain = ("--ckpt", options.ckpt, "--recipe", PLAIN, *of_both, "--out", out / f"plain-{seed}")
        top1["plain"].append(vit("finetune", *words, *plain)["top1"])
        taught = ("--teacher", options.run, *options.more, "--out", out / f"{seed}")
        record = vit("distill", *words, *taught)["distill"]
        for name in ("baseline", "distilled"):
            top1[name].append(record[name]["top1"])
        each = ", ".join(f"{name} {values[-1]:.2%}" for name, values in top1.items())
        print(f"seed {seed}: {each}, delivered {record['delivered']}", flush=True)
    for name, values in top1.items():
        error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
        print(f"{name}: {mean(values):.2%} ± {error:.2%} (standard error of {len(values)} seeds)")
    for name in ("plain", "baseline"):
        lead, gain = teacher - mean(top1[name]), mean(top1["distilled"]) - mean(top1[name])
        print(f"teacher {teacher:.2%}: {gain / lead:.0%} of its lead over {name} closed")


def scratch(options: argparse.Namespace, out: Path) -> None:
    words = ("finetune", "--dataset", options.data, *SMALL, *options.more)
    taught = ("--recipe", TAUGHT, "--set", f"distill.teacher={options.run}", "--set",
              "distill.compare=false")  # fmt: skip
    summary, seconds = cpu_seconds(*words, *taught, "--out", out / "taught")
    print(f"with the teacher: {summary['top1']:.2%}, {seconds:.0f} CPU seconds, {summary['steps']} steps")
    plain = ("--recipe", PLAIN)
    first, spent = cpu_seconds(*words, *plain, "--out", out / "plain")
    print(f"without, as many steps: {first['top1']:.2%}, {spent:.0f} CPU seconds")
    steps = int(first["steps"] * seconds / spent)
    at = words.index("--steps")
    longer, spent = cpu_seconds(
        *words[:at], "--steps", steps, *words[at + 2 :], *plain, "--out", out / "longer"
    )
    print(f"without, {steps} steps: {longer['top1']:.2%}, {spent:.0f} CPU seconds")


def cost(options: argparse.Namespace, out: Path) -> None:
    """Time whole processes in turn."""
    photos, teacher = out / "photos", out / "teacher"
    end_to_end.export(options.data, photos)
    vit("finetune", "--ckpt", "random", "--model", "ViT-S/16", "--dataset", photos, "--steps", 1,
        "--batch-size", 8, "--recipe", "finetune/default", "--res", 224, "--out", teacher)  # fmt: skip
    vit("export", teacher, out / "timm-teacher")
    options.ckpt, options.imagenet = options.run, photos
    folders = {"finetune": photos, "evaluate": photos}
    of_both = end_to_end.commands(options, "bf16" if options.bf16 else "fp32", folders, out)["finetune"]
    plain = [PLAIN if word == "finetune/default" else word for word in of_both["vit"]]
    taught = [TAUGHT if word == PLAIN else word for word in plain]
    taught += ["--set", f"distill.teacher={teacher}", "--set", "distill.compare=false"]
    sides = {
        "no teacher": plain,
        "first student": taught,
        "second student": taught,
        "timm": [
            *(
                word
                for word in of_both["timm"]
                if word not in ("--pretrained", "--pretrained-path", options.ckpt)
            ),
            *("--kd-model-name", f"local-dir:{out / 'timm-teacher'}"),
        ],
    }
    seconds = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, words in sides.items():
            if name == "first student":
                subprocess.run([*VIT, "cache", "clear", "teachers"], stdout=subprocess.DEVNULL, check=True)
            seconds[name].append(end_to_end.run([*map(str, words)])["wall_s"])
            print(f"{name}: {seconds[name][-1]:.1f} s", flush=True)
    for name, each in seconds.items():
        print(f"{name}: {' '.join(f'{value:.1f}' for value in each)} s, median {median(each):.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("part", choices=("gap", "scratch", "cost"))
    parser.add_argument("data")
    parser.add_argument("run")
    parser.add_argument("ckpt", nargs="?")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--res", type=int, default=96)
    parser.add_argument("--timm", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=1, help="of `cost`")
    parser.add_argument("--bf16", action="store_true", help="`cost` in bf16, both sides")
    options, options.more = parser.parse_known_args()
    options.steps = 21 * options.epochs  # of flowers17, in whole batches
    with tempfile.TemporaryDirectory() as folder:
        {"gap": gap, "scratch": scratch, "cost": cost}[options.part](options, Path(folder))


if __name__ == "__main__":
    main()
