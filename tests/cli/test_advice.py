"""No advice fails as typed: what screens and errors tell a person to type is typed."""

import csv
import itertools
import re
import shlex
import shutil
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.advice import (
    OPTION,
    Advice,
    advice_in,
    all_options,
    commands,
    composed,
    options_of,
    sources,
    split_command,
    texts_of,
)
from tests.conftest import Outcome, run
from tests.test_layers import tree_of
from vitcli.recipe import KEYS

TUNE = "finetune --ckpt demo --res 32 --steps 2 --batch-size 8"
# Typed in this order, in a folder of `user_files`: results first, which later lines read.
LINES = [
    # Runs of every kind of data, and what is made of them.
    f"{TUNE} --dataset Fotos --skip-bad --out runs/fotos -v",
    f"{TUNE} --dataset Fotos --skip-bad --out runs/brief",
    f"{TUNE} --dataset parts --out runs/parts -v",
    f"{TUNE} --dataset numbers.csv --set objective.loss=regression --set data.label_column=age "
    "--out runs/numbers -v",
    f"{TUNE} --dataset tags.csv --set objective.loss=sigmoid --out runs/tags -v",
    f"{TUNE} --dataset groups.csv --set data.group_column=patient --out runs/groups -v",
    f"{TUNE} --dataset Fotos --skip-bad --folds 2 --out runs/folds -v",
    f"{TUNE} --dataset groups.csv --set data.group_column=patient --folds 2 --out runs/folds-of-groups -v",
    f"{TUNE} --dataset Fotos --skip-bad --runs 2 --set model.head=zero --out runs/two -v",
    f"{TUNE} --dataset clean --lr 0.001,0.003 --out runs/sweep -v",
    f"{TUNE} --dataset clean --set optimizer.weight_decay=0,0.1 --runs 2 --out runs/sweep-of-decay -v",
    f"{TUNE} --dataset uneven --out runs/uneven -v",
    "finetune --ckpt runs/fotos --keep-head --dataset Fotos --steps 2 --out runs/kept -v",
    "finetune --ckpt runs/tags --keep-head --dataset tags.csv --steps 2 --out runs/tags-kept -v",
    "finetune --ckpt runs/numbers --keep-head --dataset numbers.csv --steps 2 --out runs/numbers-kept -v",
    f"{TUNE} --dataset clean --dry-run",
    f"{TUNE} --dataset clean --dry-run --measure",
    "pretrain --recipe pretrain/demo --steps 2 --out runs/pre -v",
    "pretrain --recipe modern/cifar10-masked-patch --dataset flat --res 32 --steps 2 --batch-size 8 "
    "--set eval.fewshot_every=0 --out runs/masked -v",
    "fewshot --ckpt demo --dataset Fotos --skip-bad --shots 1,2 --seeds 1 --out runs/few -v",
    "fewshot --ckpt demo --dataset Fotos --skip-bad --shots 1,2 --seeds 1 --out runs/few-brief",
    "fewshot --ckpt demo --dataset Fotos --skip-bad --layers all --out runs/layers -v",
    "fewshot --ckpt demo --ckpt runs/fotos --dataset clean --out runs/backbones -v",
    "fewshot --ckpt demo --dataset clean --forecast --out runs/forecast -v",
    "fewshot --ckpt demo --dataset groups.csv --set data.group_column=patient --layers all --out runs/lg -v",
    "datasets check Fotos",
    "datasets check clean",
    "datasets check parts",
    "datasets check uneven --labels --ckpt demo",
    "datasets check Fotos --labels --ckpt demo",
    "datasets check Fotos --labels --ckpt runs/fotos",
    "datasets check tags.csv",
    "datasets check numbers.csv --set data.label_column=age",
    "datasets preview clean --ckpt demo --out preview.html",
    "datasets preview Fotos --ckpt demo --out preview-of-fotos.html",
    "datasets list",
    "datasets show cifar10",
    "evaluate --ckpt runs/fotos -v",
    "evaluate --ckpt runs/fotos --split train",
    "evaluate --ckpt runs/parts --out runs/parts/again",
    "evaluate --ckpt runs/numbers -v",
    "evaluate --ckpt runs/tags -v",
    "evaluate --ckpt runs/groups",
    "evaluate --ckpt runs/fotos --ckpt runs/sweep --dataset clean --split train",
    "predict --ckpt runs/fotos Fotos/red/00.png",
    "predict --ckpt runs/fotos Fotos/red --out red.html",
    "predict --ckpt runs/fotos Fotos/red/00.png --why why.html",
    "predict --ckpt runs/few clean/red/00.png --why why-few.html",
    "predict --ckpt runs/tags clean/red/00.png",
    "predict --ckpt demo clean/red/00.png",
    "export runs/fotos fotos.onnx",
    "export runs/fotos fotos.safetensors",
    "export runs/numbers timm-numbers/",
    "export runs/tags tags.onnx --precision int8 --calibrate clean",
    "export --check fotos.onnx",
    "embed --ckpt runs/fotos --out features.safetensors",
    "inspect demo",
    "inspect fotos.safetensors",
    "inspect runs/fotos --images clean/red --out seen",
    "inspect runs/fotos --dataset Fotos --split train --out seen-fotos",
    "inspect runs/fotos --images Fotos/red --out seen-broken",
    "report runs",
    "report runs/fotos --out fotos.html",
    "average runs/two",
    "average runs/two --split train --out runs/two-by-train",
    "average runs/sweep-of-decay",
    "interpolate-posemb demo bigger.safetensors --res 128",
    "models",
    "models --weights",
    "models --pretrained",
    "models --pretrained 'vit_small*'",
    "models --weights clip",
    "recipes list",
    "recipes list masked",
    "recipes show finetune/default",
    "recipes copy finetune/default mine.toml",
    "recipes check mine.toml",
    "doctor",
    "cache list",
    "compare runs/kept runs/fotos",
    "study data-size demo --dry-run",
    "study compute demo --dry-run",
    "reproduce --list",
    "reproduce table5/b16-in21k/cifar10 --dry-run",
    "help finetune",
    # Refusals: options.
    f"{TUNE} --dataset Fotos",
    f"{TUNE} --dataset clean --lora 8",
    f"{TUNE} --dataset clean --wandb",
    f"{TUNE} --dataset clean --num-classes 10",
    f"{TUNE} --dataset clean --learning-rate 0.1",
    f"{TUNE} --dataset clean --warmup-epochs 1",
    f"{TUNE} --dataset clean --resume",
    f"{TUNE} --dataset clean --gradient-accumulation-steps 4",
    f"{TUNE} --dataset clean --opt adamw",
    f"{TUNE} --dataset clean --mixup 0.2",
    f"{TUNE} --dataset clean --skip-bda",
    f"{TUNE} --dataset clean --device cuda",
    f"{TUNE} --dataset clean --set optimizer.name=adamw",
    f"{TUNE} --dataset clean --set optimizer.wd=0.1",
    f"{TUNE} --dataset clean --set schedule.warmup=99",
    f"{TUNE} --dataset clean --set flip=false",
    f"{TUNE} --dataset clean --folds 1",
    f"{TUNE} --dataset clean --folds 2 --set data.eval_split=test",
    f"{TUNE} --dataset clean --recipe masked",
    f"{TUNE} --dataset clean --recipe finetune/defualt",
    f"{TUNE} --dataset clean --measure",
    f"{TUNE} --dataset clean --profile --dry-run",
    f"{TUNE} --dataset clean --arms-parallel",
    f"{TUNE} --dataset clean --max-time 5",
    f"{TUNE} --dataset clean --max-time 1s",
    f"{TUNE} --dataset clean --per-device-batch 3",
    f"{TUNE} --dataset clean --num-processes 2 --device cuda:0",
    f"{TUNE} --dataset clean --shard",
    f"{TUNE} --dataset clean --track neptune",
    f"{TUNE} --dataset clean --precision fp64",
    f"{TUNE} --dataset clean --epochs 3",
    f"{TUNE} --dataset clean --set train.seed=1 --seed 2",
    f"{TUNE} --dataset clean --res 33",
    f"{TUNE} --dataset clean --res 0",
    f"{TUNE} --dataset clean --keep-head",
    f"{TUNE} --dataset clean --out runs/fotos",
    f"{TUNE} --dataset clean --out clean",
    f"{TUNE} --dataset clean --set data.label_column=species",
    f"{TUNE} --dataset clean --set data.group_column=patient",
    f"{TUNE} --dataset groups.csv --set data.group_column=patients",
    f"{TUNE} --dataset clean --set data.eval_split=validation",
    f"{TUNE} --dataset clean --set objective.loss=regression",
    f"{TUNE} --dataset clean --set objective.loss=sigmoid",
    f"{TUNE} --dataset clean --set data.sampling=balanced --set objective.class_weights=balanced",
    f"{TUNE} --dataset clean --set model.freeze=99",
    f"{TUNE} --dataset clean --set data.dev_fraction=0.99",
    f"{TUNE} --dataset clean --set data.streaming=true",
    f"{TUNE} --dataset clean --set train.average_runs=greedy",
    f"{TUNE} --dataset clean clean2",
    # Refusals: data.
    f"{TUNE} --dataset tags.csv",
    f"{TUNE} --dataset numbers.csv",
    f"{TUNE} --dataset numbers.csv --set objective.loss=regression --set data.label_column=file",
    f"{TUNE} --dataset years.csv",
    f"{TUNE} --dataset names.csv",
    f"{TUNE} --dataset missing.csv",
    f"{TUNE} --dataset flat",
    f"{TUNE} --dataset high",
    f"{TUNE} --dataset clean/red",
    f"{TUNE} --dataset clean/red/00.png",
    f"{TUNE} --dataset cleen",
    f"{TUNE} --dataset cifar1O",
    f"{TUNE} --dataset tiny",
    f"{TUNE} --dataset flat-csv",
    f"{TUNE} --dataset parts --set data.train_split=training",
    "finetune --dataset clean --steps 2 --res 32 --ckpt random",
    "finetune --dataset clean --steps 2 --res 32 --ckpt runs/nothing",
    "finetune --dataset clean --steps 2 --res 32 --ckpt resnet50",
    "finetune --dataset clean --steps 2 --res 32 --ckpt vit_base_patch16_224",
    "finetune --dataset clean --steps 2 --res 32 --ckpt ViT-B/16",
    "finetune --dataset clean --steps 2 --res 32 --ckpt clean",
    "finetune --dataset clean --steps 2 --res 32 --ckpt runs/few",
    "finetune --dataset clean --steps 2 --res 32 --ckpt runs/two",
    "finetune --dataset parts --steps 2 --ckpt runs/tags --keep-head",
    "finetune --dataset uneven --steps 2 --ckpt runs/fotos --keep-head",
    # Refusals: commands.
    "train clean",
    "evalute --ckpt runs/fotos",
    "eval runs/fotos",
    "fotos.safetensors",
    "list",
    "resume",
    "study list",
    "study compute nothing",
    "study data-size demo-compute",
    "recipes show finetune/nothing",
    "recipes list nothing",
    "recipes copy finetune/default mine.toml",
    "recipes check nothing.toml",
    "datasets show cifar",
    "datasets check",
    "datasets check nothing",
    "datasets check Fotos --skip-bad",
    "datasets check Fotos --labels",
    "datasets check tags.csv --labels --ckpt demo",
    "datasets check numbers.csv --labels --ckpt demo",
    "datasets check flat --labels --ckpt demo",
    "datasets check clean --against clean",
    "datasets preview clean",
    "pretrain --steps 2",
    "pretrain --dataset clean --steps 2",
    "pretrain --dataset clean --steps 2 --ckpt demo",
    "pretrain --dataset clean --model ViT-B/17 --steps 2",
    "pretrain --dataset clean --model vit_tiny_patch16_224.augreg_in21k --steps 2",
    "evaluate",
    "evaluate --ckpt demo",
    "evaluate --ckpt demo --dataset Fotos",
    "evaluate --ckpt runs/fotos --dataset clean",
    "evaluate --ckpt runs/fotos --dataset clean --split test",
    "evaluate --ckpt runs/fotos --ckpt runs/sweep",
    "evaluate --ckpt runs/fotos --assert top1",
    "evaluate --ckpt runs/fotos --assert 'top1>=90'",
    "evaluate --ckpt runs/fotos --assert 'top7>=0.9'",
    "evaluate --ckpt runs/fotos --assert 'real_top1>=0.9'",
    "evaluate --ckpt runs/fotos --real-index index",
    "evaluate --ckpt runs/fotos --dataset numbers.csv",
    "evaluate --ckpt runs/fotos --all-compete",
    "evaluate --ckpt runs/fotos --classes imagenet-r",
    "evaluate --ckpt runs/fotos --out clean",
    "evaluate --ckpt runs/fotos --figures",
    "predict --ckpt runs/fotos",
    "predict clean/red/00.png",
    "predict runs/fotos clean/red/00.png",
    "predict --ckpt runs/fotos runs/fotos",
    "predict --ckpt runs/fotos nothing.jpg",
    "predict --ckpt runs/few clean/red/00.png",
    "predict --ckpt runs/two clean/red/00.png",
    "predict --ckpt runs/fotos clean/red/00.png --json --jsonl",
    "predict --ckpt runs/fotos clean/red/00.png --out red.xlsx",
    "predict --ckpt runs/fotos clean/red/00.png --out red.html",
    "predict --ckpt runs/fotos clean/red/00.png --every 2",
    "predict --ckpt runs/tags clean/red/00.png --why tags.html",
    "predict --ckpt runs/numbers clean/red/00.png --threshold 0.5",
    "predict --ckpt runs/fotos clean/red/00.png --why why2.html --tta",
    "predict --ckpt demo clean/red/00.png --why why3.html",
    "predict --ckpt runs/fotos 'Fotos/red/broken.jpg'",
    "fewshot --ckpt demo --dataset Fotos",
    "fewshot --ckpt demo --dataset tags.csv",
    "fewshot --ckpt demo --dataset numbers.csv",
    "fewshot --ckpt demo --dataset clean --shots 99",
    "fewshot --ckpt demo --dataset clean --layers all --classifier knn",
    "fewshot --ckpt demo --dataset clean --layers 99",
    "fewshot --ckpt demo --dataset clean --layers all --shots 5",
    "fewshot --ckpt demo --dataset clean --forecast --classifier knn",
    "fewshot --ckpt 'nothing*'",
    "fewshot --ckpt 'timm/*' --dataset clean",
    "embed --ckpt runs/fotos",
    "embed --ckpt demo --out f.safetensors",
    "embed --ckpt runs/fotos --out f.csv",
    "export runs/fotos",
    "export runs/fotos fotos.onnx",
    "export runs/fotos out.xyz",
    "export runs/fotos out.npz",
    "export runs/fotos int8.npz --precision int8",
    "export nothing x.onnx",
    "export runs/two two.onnx",
    "export --check nothing.onnx",
    "export runs/fotos --push-to-hub name",
    "inspect nothing",
    "inspect runs/fotos --images clean --dataset clean",
    "inspect runs/fotos --split train",
    "inspect runs/fotos --images clean/red --out seen",
    "report nothing",
    "report clean",
    "report runs --out clean",
    "compare runs/fotos runs/parts",
    "compare runs/fotos nothing",
    "average runs/fotos",
    "average runs/fotos runs/sweep",
    "average runs/few runs/fotos",
    "average runs/numbers runs/numbers-kept",
    "average runs/two --method greedy",
    "interpolate-posemb demo big.safetensors",
    "interpolate-posemb demo big.onnx --res 128",
    "interpolate-posemb demo big2.safetensors --res 130",
    "models nothing",
    "models --weights nothing",
    "models --pretrained nothing",
    "cache clear",
    "cache clear everything",
    "cache clear decoded --older-than tomorrow",
    "reproduce",
    "reproduce table5",
    "reproduce table5/nothing",
    "reproduce table5/h14-jft/cifar10",
    "doctor resume --steps 3",
    "doctor resume --kills 0",
    "bench train --compare timm --model nothing",
    "bench data --dataset nothing",
]  # fmt: skip
# What stands for something of the reader's, and what it is here.
FILL = {
    "DATA": "clean", "YOUR_IMAGES": "clean", "OTHER_DATA": "parts", "IMAGES": "clean/red", "WEIGHTS": "demo",
    "CKPT": "runs/fotos", "RUN": "runs/fotos", "FILE": "demo", "FOLDER": "clean", "NAME": "label", "N": "2",
    "NAME.TAG": "vit_tiny_patch16_224.augreg_in21k", "PATTERN": "vit", "COLUMN": "label", "VALUE": "1",
    "ROW": "table5/b16-in21k/cifar10", "A": "runs/fotos", "B": "runs/sweep", "SPLIT": "train",
    "POINTS": "50", "FILE.onnx": "fotos.onnx", "FAMILY": "DINOv3", "OUT": "out.onnx", "FEATURES": "features",
}  # fmt: skip
NUMBERS = itertools.count(1)  # of folders that are written again; screens name FOLDER-2 themselves
FREE_WORD = re.compile(r"NAME\.TAG|FILE\.onnx|\b[A-Z][A-Z_]+\b|^[A-Z]$")
# The right question instead of a success: what is typed, what is asked, and why that is right.
QUESTIONS: list[tuple[str, str, str]] = [
    ("", "already exists", "the file is there since a line before, and --overwrite replaces it"),
    ("--track wandb", "is not installed", "which package to install, for an option that needs one"),
    (
        "optimizer.name=adamw",
        "optimizer.name is",
        "write adam, which is AdamW here",
    ),
    ("--precision fp16", "needs a GPU", "the nearest name of fp64, and this machine has no GPU"),
    ("--device cuda", "there is no cuda", "an option for machines with GPUs"),
    ("datasets check", "would distort the results", "what the check is for"),
    (
        "--classes",
        "has no class|there is no class map",
        "the images are of other classes than those of the map",
    ),
    ("--real real.json", "there is no file", "a file that only its owner has"),
    (
        "evaluate .*data.label_column=age",
        "have different classes",
        "the numbers are taken as classes, as told, and are none of those of the weights",
    ),
    ("--push-to-hub", "impossible offline", "tests have no network, and nothing is uploaded without one"),
    ("cifar10|timm/|hf-hub:", "download|Hub", "tests have no network"),
]
# Commands that a sentence only names: they need a folder, a checkpoint or minutes.
# Lines that describe, or speak of another command than the one that was typed.
TELLS_NOTHING = ["made the checkpoint --ckpt demo", "use it with --recipe"]
NEEDS_MORE = commands().keys() - {"models", "recipes list", "datasets list", "cache list", "doctor"}
SHORT = {  # so that what is typed as it stands takes seconds
    "finetune": ("--steps", "2"),
    "pretrain": ("--steps", "2"),
    "fewshot": ("--shots", "1"),
    "doctor resume": ("--steps", "8", "--kills", "1"),
}
DURATIONS = {
    "--steps",
    "--epochs",
    "--max-time",
    "--dry-run",
    "--kills",
    "--layers",
    "--list",
    "--help",
    "--shots",
}


def image(path: Path, colour: tuple[int, int, int], seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(-40, 40, (40, 48, 3))
    Image.fromarray(np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)).save(path)


def class_folders(root: Path, counts: dict[str, int]) -> None:
    colours = {"red": (200, 40, 40), "green": (40, 200, 40), "blue": (40, 40, 200)}
    for name, count in counts.items():
        for number in range(count):
            image(
                root / name / f"{number:02}.png",
                colours[name],
                zlib.crc32(f"{root.name}/{name}".encode()) + number,
            )


def table(path: Path, header: tuple[str, ...], rows: list[tuple]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


@pytest.fixture(scope="module")
def user_files(tmp_path_factory) -> Path:
    """A working folder with the data sets of several people."""
    root = tmp_path_factory.mktemp("user")
    class_folders(root / "clean", {"red": 16, "green": 16})
    class_folders(root / "Fotos", {"red": 16, "green": 16})
    whole = (root / "Fotos/red/03.png").read_bytes()
    (root / "Fotos/red/broken.jpg").write_bytes(whole[: len(whole) // 2])
    shutil.copy(root / "Fotos/red/00.png", root / "Fotos/red/copy of 00.png")
    class_folders(root / "parts/train", {"red": 12, "green": 12})
    class_folders(root / "parts/test", {"red": 5, "green": 5})
    class_folders(root / "uneven", {"red": 30, "green": 12, "blue": 4})
    class_folders(root / "high/more", {"red": 4, "green": 4})
    class_folders(root / "tiny", {"red": 1, "green": 1})
    for folder in ("flat", "flat-csv"):
        for number in range(24):
            image(root / folder / f"{number}.png", (10 * number, 100, 200 - 8 * number), number)
    rows = [(f"clean/{name}/{n:02}.png", name, n) for name in ("red", "green") for n in range(16)]
    table(root / "flat-csv/mine.csv", ("file", "label"), [(f"{n}.png", "ab"[n % 2]) for n in range(24)])
    table(root / "numbers.csv", ("file", "age"), [(file, 20 + n / 3) for file, _, n in rows])
    table(root / "years.csv", ("file", "label"), [(file, 20 + n / 3) for file, _, n in rows])
    tags = [(f, f"{c}|{'od' if n % 2 else 'ev'}", c) for f, c, n in rows]
    table(root / "tags.csv", ("file", "label", "colour"), tags)
    table(root / "groups.csv", ("file", "label", "patient"), [(f, c, f"p{n // 2}") for f, c, n in rows])
    table(root / "names.csv", ("file", "kind", "colour"), [(f, "xy"[n % 2], c) for f, c, n in rows])
    table(root / "missing.csv", ("file", "label"), [*((f, c) for f, c, _ in rows), ("no.png", "red")])
    return root


@dataclass
class Typed:
    """A line that was typed because something said so.

    Attributes:
        asked_by: the line whose screen or error said so.
        text: what it said.
        how: "done", "question", or what is wrong.
    """

    words: list[str]
    asked_by: str
    text: str
    how: str
    detail: str = ""


@dataclass
class Typist:
    """Types lines, and what they tell to type, each line once."""

    typed: list[Typed] = field(default_factory=list)
    seen: set[tuple[str, ...]] = field(default_factory=set)
    new_folders: int = 0

    def follow(self, line: str) -> None:
        words = shlex.split(line)
        self.seen.add(tuple(words))
        outcome = run(*words)
        assert outcome.code != 1 and "Traceback" not in outcome.err, (line, outcome)
        self._follow_all(words, outcome, depth=0)

    def _follow_all(self, words: list[str], outcome: Outcome, depth: int) -> None:
        for text, following in lines_to_type(words, outcome):
            following = self._filled(following, outcome.code == 0)
            # What is refused, is refused before the first step: a dry run shows whether the advice helps.
            if outcome.code and following[0] in ("finetune", "pretrain") and "--dry-run" not in following:
                following = [*following, "--dry-run"]
            if depth > 3 or tuple(following) in self.seen or "--serve" in following:
                continue
            self.seen.add(tuple(following))
            answer = run(*following)
            how, detail = judged(following, outcome, answer)
            self.typed.append(Typed(following, shlex.join(words), text, how, detail))
            if answer.code:  # what other screens tell to type, the lines above show
                self._follow_all(following, answer, depth + 1)

    def _filled(self, words: list[str], succeeded: bool) -> list[str]:
        self.new_folders += "ANOTHER" in words
        fill = FILL | {"ANOTHER": f"another-{self.new_folders}"}
        if words[0] == "recipes":
            fill["NAME"] = "finetune/default"
        if {"names.csv", "tags.csv"} & set(words):
            fill["NAME"] = "colour"
        if "--classes" in words:
            fill["NAME"] = "imagenet_r"
        words = [FREE_WORD.sub(lambda free: fill.get(free[0], free[0]), word) for word in words]
        name, rest = split_command(words)
        if name in SHORT and not DURATIONS & {word.partition("=")[0] for word in rest}:
            words = [*words, *SHORT[name]]
        return words


def error_of(outcome: Outcome) -> tuple[str, str]:
    """Return the message and the fix of an error; nothing of a success."""
    found = re.search(r"^error: (.*)\n  where: .*\n  fix:   (.*)", outcome.err, re.MULTILINE)
    return (found[1], found[2]) if outcome.code and found else ("", "")


def lines_to_type(words: list[str], outcome: Outcome) -> Iterator[tuple[str, list[str]]]:
    """Return each text that tells to type something, and the line that a person then types."""
    message, fix = error_of(outcome)
    texts = [message, fix] if message else (outcome.out + outcome.err).splitlines()
    if "--help" in words or words[0] == "help":
        return
    is_help = outcome.out.startswith("Usage: vit ") or "\nUsage: vit " in outcome.out
    known, value = without_unknown(words, message)
    for text in (text.replace("vit --help", "its help") for text in texts):
        if meant := re.search(r"did you mean '([^'?]+)'\?", text):
            yield text, with_meant(words, text, meant[1])
        for advice in advice_in(text):
            # A message says what is wrong with what was typed; a fix that repeats it is another matter.
            repeats = text == message and sorted(composed(known, advice)) == sorted(words)
            is_listed = is_help and not advice.is_command  # a list of all options recommends none of them
            if is_typed(advice, text) and not (repeats or is_listed):
                following = fresh(composed(known, advice), words, outcome)
                yield text, [word.replace("VALUE", value) for word in following]


def without_unknown(words: list[str], message: str) -> tuple[list[str], str]:
    """Return a line without the option that does not exist, and the value that it was given."""
    unknown = re.match(r"there is no option (--?[\w-]+)", message)
    if not unknown or unknown[1] not in words:
        return words, "VALUE"
    at = words.index(unknown[1])
    has_value = at + 1 < len(words) and not words[at + 1].startswith("--")
    return words[:at] + words[at + 1 + has_value :], words[at + 1] if has_value else "VALUE"


def is_typed(advice: Advice, text: str) -> bool:
    """Return whether an advice is a line to type, and not only words of a sentence."""
    only_names = advice.is_command and " ".join(advice.words) in NEEDS_MORE
    return not only_names and not any(part in text for part in TELLS_NOTHING)


def with_meant(words: list[str], message: str, meant: str) -> list[str]:
    """Return a line with the word that was meant in the place of the one that does not exist."""
    wrong = next(
        (word for word in reversed(words) if re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", message)), ""
    )
    return [meant if word == wrong else word for word in words]


def fresh(following: list[str], words: list[str], outcome: Outcome) -> list[str]:
    """Return a line with an --out of its own, if it repeats one that has succeeded."""
    if outcome.code or following[0] != words[0] or "--out" not in words or "--out" not in following:
        return following
    at = following.index("--out") + 1
    if following[at] != words[words.index("--out") + 1]:
        return following
    path = Path(following[at])
    return [
        *following[:at],
        str(path.with_name(f"{path.stem}-again-{next(NUMBERS)}{path.suffix}")),
        *following[at + 1 :],
    ]


def judged(words: list[str], before: Outcome, outcome: Outcome) -> tuple[str, str]:
    """Return how a typed line ended: "done", "question" with the reason, or what is wrong."""
    line, (message, fix) = shlex.join(words), error_of(outcome)
    if outcome.code == 0:
        return "done", ""
    if not message:
        return f"exit {outcome.code}", (outcome.err + outcome.out)[-600:]
    if (message, fix) == error_of(before):
        return "the same error", f"{message} / {fix}"
    for typed, asked, reason in QUESTIONS:
        if re.search(typed, line) and re.search(asked, message):
            return "question", reason
    return "another error", f"{message} / {fix}"


# Options of other programs, and names of files that look like a key of a recipe.
OF_OTHERS = {"--cpu", "--gpus-per-task", "--notest", "--grid", "--cpus-per-task", "--me"}
FILE_NAMES = {"model.safetensors", "data.pkl", "train.py"}
PROSE = re.compile(r"vit (can|chooses|does|is|itself|keeps|load|once|without)\b")


@cache
def strings() -> list[tuple[str, str]]:
    """Return the strings of the package that may name something to type, each with its file and line."""
    return [
        (f"{path.name}:{line}", text)
        for path in sources()
        if path.name != "hints.py"  # whose first words are names of other tools
        for line, text in texts_of(tree_of(path))
        if "--" in text or "vit " in text or "." in text
    ]


def test_every_option_that_a_text_of_the_package_names_is_an_option_of_a_command():
    named = {(option, place) for place, text in strings() for option in OPTION.findall(text)}

    assert len(named) > 300
    assert not {(option, place) for option, place in named if option not in {*all_options(), *OF_OTHERS}}


def test_every_recipe_key_that_a_text_of_the_package_names_is_a_key_of_recipes():
    sections = "|".join({key.partition(".")[0] for key in KEYS})
    pattern = re.compile(rf"(?<![\w./{{-])(?:{sections})\.[a-z_0-9]+(?![\w.(/])")
    named = {(key, place) for place, text in strings() for key in pattern.findall(text)}

    assert len(named) > 200
    assert not {(key, place) for key, place in named if key not in {*KEYS, *FILE_NAMES}}


def test_every_command_that_a_text_of_the_package_names_exists_and_has_the_options_named_with_it():
    named, wrong = 0, []
    for place, text in strings():
        for found in re.finditer(r"\bvit [a-z][a-z-]*", text):
            named += 1
            if found[0].split()[1] not in commands() and not PROSE.match(text[found.start() :]):
                wrong.append((place, found[0]))
        told = advice_in(text if "vit " in text else "")
        for advice in (one for one in told if one.is_command or one.command):
            name, rest = split_command([*advice.command.split(), *advice.words])
            given = {word.partition("=")[0] for word in rest if word.startswith("--")}
            wrong += [(place, str(advice))] if given - options_of(name).keys() else []

    assert named > 100 and not wrong


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("vit recipes list shows the shipped ones", ["vit recipes list"]),
        ("replace or remove it, or leave such images out with --skip-bad", ["--skip-bad"]),
        ("leave --classes out", ["without --classes"]),
        ("drop --exact, or add --device cpu", ["without --exact", "--device cpu"]),
        ("lower --per-device-batch (the result stays the same), --res or --workers", []),
        ("--folds 5, or --set data.dev_fraction=0.1", ["--folds 5", "--set data.dev_fraction=0.1"]),
        ("--set data.eval_split=auto --folds 3 makes all", ["--set data.eval_split=auto --folds 3"]),
        ("vit predict --ckpt a 'my photos/1.png'; or not", ["vit predict --ckpt a 'my photos/1.png'"]),
        ("vit finetune with --set a.b=1 does; --lr 1", ["vit finetune with --set a.b=1", "--lr 1"]),
        ("a number: --assert 'top1>=0.92', in quotes", ["--assert 'top1>=0.92'"]),
    ],
)  # fmt: skip
def test_what_to_type_is_found_in_a_sentence(text, lines):
    assert [str(advice) for advice in advice_in(text)] == lines


def test_an_option_that_is_advised_takes_the_place_of_the_same_one():
    typed = ["finetune", "--set", "train.runs=2", "--lr", "1", "--skip-bad"]

    (lr,) = advice_in("--lr 0.1")
    (key,) = advice_in("--set train.runs=1")
    (without,) = advice_in("leave --lr out")
    assert composed(typed, lr) == ["finetune", "--set", "train.runs=2", "--skip-bad", "--lr", "0.1"]
    assert composed(typed, key) == ["finetune", "--lr", "1", "--skip-bad", "--set", "train.runs=1"]
    assert composed(typed, without) == ["finetune", "--set", "train.runs=2", "--skip-bad"]


def test_options_of_another_command_are_typed_with_the_options_that_both_have():
    (runs,) = advice_in("vit finetune with --runs 3 makes several")

    typed = ["fewshot", "--ckpt", "demo", "--shots", "5", "--dataset", "clean"]
    assert composed(typed, runs) == ["finetune", "--ckpt", "demo", "--dataset", "clean", "--runs", "3"]
    assert composed(["finetune", "--lora", "8"], runs) == ["finetune", "--lora", "8", "--runs", "3"]


def test_a_message_that_names_what_was_typed_tells_nothing_to_type():
    refused = Outcome(
        2, "", "error: --shard needs more\n  where: --shard\n  fix:   add --runs 2, or drop --shard\n"
    )

    lines = [line for _, line in lines_to_type(["finetune", "--shard", "--lr", "1"], refused)]
    assert lines == [["finetune", "--shard", "--lr", "1", "--runs", "2"], ["finetune", "--lr", "1"]]


@pytest.mark.slow
def test_every_line_that_a_screen_or_an_error_tells_to_type_does_what_it_says(user_files, monkeypatch):
    monkeypatch.chdir(user_files)
    typist = Typist()

    for line in LINES:
        typist.follow(line)

    wrong = [one for one in typist.typed if one.how not in ("done", "question")]
    counts = Counter(one.how for one in typist.typed)
    print(f"{len(LINES)} lines told to type {len(typist.typed)} others: {dict(counts)}")
    assert not wrong, "\n".join(
        f"\n$ vit {one.asked_by}\n  {one.text}\n$ vit {shlex.join(one.words)}\n  {one.how}: {one.detail}"
        for one in wrong
    )
