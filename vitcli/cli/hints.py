"""Answers to command lines as people type them first: names of other tools, a path without its option."""

import re
import shlex
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from vitcli.errors import VitError, nearest

# What other tools call it, and what to type here.
COMMANDS = {
    "train": "vit finetune trains a checkpoint on your images, vit pretrain a network from fresh weights",
    **dict.fromkeys(("fit", "tune", "fine-tune"), "vit finetune"),
    **dict.fromkeys(("val", "validate", "test", "eval", "score"), "vit evaluate"),
    **dict.fromkeys(("classify", "infer", "inference"), "vit predict"),
    "convert": "vit export",
    **dict.fromkeys(("push", "upload"), "vit export RUN --push-to-hub OWNER/NAME"),
    **dict.fromkeys(("extract", "features", "embeddings"), "vit embed"),
    "resume": "give the same command line with the same --out again: it resumes the run",
    "continue": "give the same command line with the same --out again: it resumes the run",
    "runs": "vit report runs/",
    "serve": "vit report runs/ --serve",
    **dict.fromkeys(("info", "summary", "summarize"), "vit inspect CKPT"),
    "list": "vit models, vit recipes list or vit datasets list",
    **dict.fromkeys(("settings", "env", "checks"), "vit doctor"),
}
OPTIONS = {
    "--data": "--dataset", "--data-dir": "--dataset", "--train-dir": "--dataset", "--dir": "--dataset",
    "--source": "--dataset", "--weights": "--ckpt", "--checkpoint": "--ckpt", "--pretrained": "--ckpt",
    "--model-name-or-path": "--ckpt", "--arch": "--model", "--img-size": "--res", "--imgsz": "--res",
    "--image-size": "--res", "--input-size": "--res", "--resolution": "--res", "--size": "--res",
    "--batch": "--batch-size", "--bs": "--batch-size", "--learning-rate": "--lr", "--lr0": "--lr",
    "--num-epochs": "--epochs", "--num-train-epochs": "--epochs", "--max-steps": "--steps",
    "--iterations": "--steps", "--num-workers": "--workers", "--output": "--out", "--output-dir": "--out",
    "--save-dir": "--out", "--project": "--out", "--name": "--out", "--logdir": "--out", "--gpu": "--device",
    "--gpus": "--num-processes", "--nproc-per-node": "--num-processes", "--config": "--recipe",
    "--cfg": "--recipe", "--fp16": "--precision", "--bf16": "--precision", "--amp": "--precision",
    "--half": "--precision", "--force": "--overwrite", "--exist-ok": "--overwrite", "--verbose": "--debug",
    "--silent": "--quiet", "--report-to": "--track", "--logger": "--track", "--top-k": "--topk",
    "--repeat": "--runs", "--mixed-precision": "--precision", "--labels": "--classes",
    "-b": "--batch-size", "--gradient-accumulation-steps": "--per-device-batch",
    "--grad-accum": "--per-device-batch", "--grad-accum-steps": "--per-device-batch",
    "--accumulate": "--per-device-batch", "--per-device-train-batch-size": "--per-device-batch",
    "--model-name": "--ckpt", "--amp-dtype": "--precision",
}  # fmt: skip
NOT_OPTIONS = {
    "--skip-bad": "leave it out: this command goes on where an image cannot be read",
    "--push-to-hub": f"{COMMANDS['push']}, after the run",
    "--model-kwargs": "--set model.KEY=VALUE; vit recipes schema lists the keys",
    "--kd-model-name": "vit distill --teacher TEACHER --ckpt CKPT --dataset DATA",
}
TRACKERS = ("wandb", "tensorboard", "mlflow", "trackio")
CLASS_COUNTS = ("--num-classes", "--num-labels", "--nb-classes", "--nc")
NO_GPU = ("--no-cuda", "--no-gpu", "--use-cpu", "--cpu")
GROUPS = ("recipes", "datasets", "cache", "study", "bench", "doctor", "submit")  # with commands of their own
RESUMING = ("--resume", "--resume-from-checkpoint", "--auto-resume")
WEIGHTS_SUFFIXES = (".safetensors", ".npz", ".pth", ".pt", ".bin", ".onnx")


def command_of(arguments: Sequence[str]) -> str:
    """Return the name of the command of a command line, such as "evaluate" or "recipes check"."""
    words = list(takewhile(lambda word: not word.startswith("-"), arguments[:2]))
    return " ".join(words if words[:1] and words[0] in GROUPS else words[:1])


def unknown_command(name: str, group: str, commands: Sequence[str]) -> VitError:
    """Return the error for a command that does not exist, with the one that was probably meant."""
    meant = COMMANDS.get(name.lower()) if group == "vit" else None
    if meant is None and group == "vit" and looks_like_weights(name):
        meant = f"vit inspect {shlex.quote(name)} says what it is"
    did_you_mean = "" if meant else nearest(name, commands)
    return VitError(
        f"there is no command {name!r}{did_you_mean}",
        where=f"the command line, {group}",
        fix=meant or f"{group} --help lists the commands",
    )


def unknown_option(name: str, command: str, options: Sequence[str]) -> VitError:
    """Return the error for an option that does not exist: the one of ours, a recipe key, or the nearest."""
    did_you_mean, fix = "", f"{command} --help lists the options"
    name_here = name.lower().replace("_", "-")
    keys = _recipe_keys(name_here) if "--set" in options else []
    if name_here == "--ckpt" and command == "vit pretrain":
        fix = "leave it out: fresh weights are trained; vit finetune --ckpt CKPT --dataset DATA takes others"
    elif name_here == "--set":
        fix = f"leave it out: this command takes no recipe keys; {command} --help lists its options"
    elif name_here in RESUMING:
        fix = "give the same command line with the same --out again: it resumes the run"
    elif name_here in NO_GPU and "--device" in options:
        fix = "--device cpu"
    elif name_here in NOT_OPTIONS:
        fix = NOT_OPTIONS[name_here]
    elif name_here in CLASS_COUNTS:
        fix = "leave it out: the data set says how many classes there are"
    elif "--track" in options and name_here.removeprefix("--") in TRACKERS:
        fix = f"--track {name_here.removeprefix('--')}"
    elif OPTIONS.get(name_here) in options:
        did_you_mean = f", did you mean {OPTIONS[name_here]!r}?"
    elif keys:
        fix = f"it is a key of the recipe: {' or '.join(f'--set {key}=VALUE' for key in keys)}"
    else:
        did_you_mean = nearest(name, [option for option in options if option != "--help"])
    return VitError(f"there is no option {name}{did_you_mean}", where=f"the command line, {command}", fix=fix)


def unexpected_word(word: str, given: Sequence[str], command: str, options: Sequence[str]) -> VitError:
    """Return the error for a word that is not a value of an option: mostly a path without its option."""
    option = None
    if "--ckpt" in options and looks_like_weights(word):
        option = "--ckpt"
    elif "--dataset" in options and (Path(word).exists() or re.search(r"[/\\]", word) or _is_alias(word)):
        option = "--dataset"
    fix = f"write {option} {shlex.quote(word)}" if option else f"{command} --help lists the options"
    if path := _split_path(word, given):
        fix = f"quote the name, as it has spaces: {shlex.quote(path)}"
    return VitError(f"{word!r} belongs to no option", where=f"the command line, {command}", fix=fix)


def _split_path(word: str, given: Sequence[str]) -> str:
    """Return the file or folder whose name with spaces a word is a part of, or nothing."""
    at = given.index(word) if word in given else 0
    parts = [(first, last) for first in range(at) for last in range(at + 1, min(len(given), at + 6) + 1)]
    paths = (" ".join(given[first:last]) for first, last in parts)
    return next((path for path in paths if Path(path).exists()), "")


def looks_like_weights(word: str) -> bool:
    """Return whether a word is a run folder, a weights file or a name of weights, by a look at the disk."""
    if word.startswith(("timm/", "hf-hub:", "hf://")) or Path(word).suffix in WEIGHTS_SUFFIXES:
        return True
    return any((Path(word) / name).is_file() for name in ("model.safetensors", "summary.json", "recipe.toml"))


def _recipe_keys(option: str) -> list[str]:
    from vitcli.recipe import KEYS
    from vitcli.recipe.validation import ALSO_CALLED

    name = option.removeprefix("--").replace("-", "_")
    meant = [key for key in KEYS if key.rpartition(".")[2] == name or key == name]
    return meant or [ALSO_CALLED[name]] if name in ALSO_CALLED else meant


def _is_alias(word: str) -> bool:
    from vitcli import recipe

    return word == "demo" or word in recipe.dataset_aliases()
