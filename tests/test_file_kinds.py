"""Every kind of file that vit reads, with something else in its place: refused in order, in time, in memory.

The whole matrix is slow; VIT_FILE_KINDS=weights,run names a part of it.
"""

import io
import json
import os
import resource
import shutil
import signal
import sys
import tarfile
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from tests.conftest import run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="devices and limits of Linux")
SECONDS, MEGABYTES = 15, 700  # that a command may take at most, and may grow by
CODES = (0, 2, 3, 4, 5, 8)
SMALL = ("finetune", "--recipe", "finetune/default",
         "--ckpt", "random", "--model", "ViT-demo/8", "--res", "16", "--lr", "0.02", "--quiet",
         "--steps", "4", "--batch-size", "4", "--set", "train.save_every=2")  # fmt: skip


def spoilt(path: Path, how: str) -> None:
    """Put something else in the place of a file or folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    elsewhere = path.anchor and Path(os.environ["ELSEWHERE"])
    links = {"zero": "/dev/zero", "full": "/dev/full", "terminal": "/dev/tty", "memory": "/proc/self/mem",
             "itself": path, "dangling": elsewhere / "nothing", "a file": elsewhere / "file",
             "a folder": elsewhere / "folder"}  # fmt: skip
    texts = {"empty": b"", "deep": b"[" * 200_000, "deep object": b'{"a":' * 200_000, "list": b"[]",
             "object": b"{}", "number": b"1e999", "null": b"null", "nan": b'{"a":NaN,"step":1e400}',
             "escapes": b'caf\xe9\xff = "\x1b[31m\x00"', "random": bytes(range(256)) * 9}  # fmt: skip
    if how in links:
        path.symlink_to(links[how])
    elif how in texts:
        path.write_bytes(texts[how])
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    elif how == "huge":
        with path.open("wb") as file:
            file.truncate(2**40)


HOW = ("missing", "pipe", "zero", "full", "terminal", "memory", "itself", "dangling", "a file", "a folder",
       "folder", "empty", "huge", "deep", "deep object", "list", "object", "number", "null", "nan", "escapes",
       "random")  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    """One of everything: data sets, runs, results, weights, files of settings."""
    base = tmp_path_factory.mktemp("base")
    rng = np.random.default_rng(0)

    def image(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (20, 24, 3), dtype=np.uint8)).save(path)

    for split, name, number in (
        (s, n, i) for s in ("train", "test") for n in ("red", "green") for i in range(5)
    ):
        image(base / "photos" / split / name / f"{number}.png")
    for number in range(8):
        image(base / "csv" / f"{number}.png")
    shutil.copytree(base / "csv", base / "jsonl")
    lines = [f"{n}.png,{'ab'[n % 2]},{'train' if n < 6 else 'test'}\n" for n in range(8)]
    (base / "csv/labels.csv").write_text("file,label,split\n" + "".join(lines))
    rows = [json.dumps({"file_name": f"{n}.png", "label": "ab"[n % 2]}) + "\n" for n in range(8)]
    (base / "jsonl/metadata.jsonl").write_text("".join(rows))
    images = [(base / f"csv/{n}.png").read_bytes() for n in range(8)]
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}
    table = {"image": [{"bytes": i, "path": None} for i in images], "label": [n % 2 for n in range(8)]}
    table = datasets.Dataset.from_dict(table, features=datasets.Features(features))
    for split in ("train", "test"):
        table.to_parquet(base / "parquet" / f"{split}-0.parquet")
        (base / "tars").mkdir(exist_ok=True)
        with tarfile.open(base / "tars" / f"{split}-0.tar", "w") as archive:
            for number, content in enumerate(images):
                for suffix, data in (("png", content), ("cls", str(number % 2).encode())):
                    member = tarfile.TarInfo(f"{number:04}.{suffix}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
    table.save_to_disk(base / "disk")
    _results(base)
    return base


def _results(base: Path) -> None:
    train = (*SMALL, "--dataset", base / "photos", "--out")
    assert run(*train, base / "run").code == 0
    shutil.copytree(base / "run", base / "half")  # as if it had been stopped before its end
    for name in ("summary.json", "model.safetensors"):
        (base / "half" / name).unlink()
    shutil.rmtree(base / "half/checkpoints/step_0000004")
    results = ("--out", base / "evaluation", "--save-predictions", base / "predictions.parquet")
    assert run("evaluate", "--ckpt", base / "run", "--dataset", base / "photos", *results).code == 0
    assert run("export", base / "run", base / "weights.npz").code == 0
    state = load_file(base / "run/model.safetensors")
    for suffix in ("pth", "bin"):
        torch.save(state, base / f"weights.{suffix}")
    (base / "timm").mkdir()
    for name in ("model.safetensors", "config.json"):
        shutil.copy(base / "run" / name, base / "timm")
    (base / "timm/preprocessor_config.json").write_text("{}")
    shutil.copy(base / "run/recipe.toml", base / "recipe.toml")
    (base / "draws.json").write_text(json.dumps({"0": {"1": [0, 5]}}))
    (base / "real.json").write_text(json.dumps([[0]] * 10))
    (base / "map.json").write_text(json.dumps({"red": ["red"], "green": ["green"]}))
    (base / "study.toml").write_text("")


def commands(kind: str, base: Path, work: Path) -> list[list[object]]:
    """Return the command lines that read a kind of file."""
    top, file = kind.split("/")[0], work / kind
    page, photos = ("--out", work / "page.html"), ("--dataset", base / "photos")
    scored = ["evaluate", "--ckpt", base / "run", "--dataset"]
    trained = [*SMALL, "--dataset", base / "photos", "--out", work / top]
    match top:
        case "run" | "half":
            read = [["evaluate", "--ckpt", work / top, *photos], ["compare", work / top, base / "run"]]
            return [*read, trained, ["report", work / top, *page], ["export", work / top, work / "folder"]]
        case "evaluation":
            again = [*scored, base / "photos", "--out", work / top]
            return [["report", work / top, *page], again, [*again, "--overwrite"]]
        case "timm":
            return [
                ["inspect", "--ckpt", work / top, "--summary"],
                ["evaluate", "--ckpt", work / top, *photos],
            ]
        case "predictions.parquet":
            return [["compare", file, base / "run"], [*scored, base / "photos", "--save-predictions", file]]
        case "recipe.toml":
            return [
                ["recipes", "check", file],
                ["evaluate", "--recipe", file, "--ckpt", base / "run", *photos],
            ]
        case "draws.json":
            return [["fewshot", "--ckpt", base / "run", *photos, "--draws", file]]
        case "real.json":
            return [[*scored, base / "photos", "--real", file]]
        case "map.json":
            return [[*scored, base / "photos", "--classes", file]]
        case "study.toml":
            return [["study", "run", file, "--out", work / "study"]]
        case "tars":
            return [[*scored, work / "tars/{train,test}-0.tar", "--set", "data.num_classes=2"]]
        case "jsonl" | "disk":
            return [[*scored, work / top, "--split", "train"]]
        case "parquet":
            return [[*scored, work / top, *more] for more in ((), ("--set", "data.streaming=true"))]
        case "csv" | "photos":
            new = [*SMALL, "--dataset", work / top, "--out", work / "new"]
            return [[*scored, work / top], ["predict", file, "--ckpt", base / "run"], new]
    return [
        ["inspect", "--ckpt", file, "--summary"],
        ["evaluate", "--ckpt", file, "--model", "ViT-demo/8", *photos],
    ]


RUN = ("model.safetensors", "config.json", "summary.json", "recipe.toml", "metrics.jsonl", "timing.jsonl",
       "environment.json", "plan.json", "predictions.parquet", "mistakes.json", "README.md")  # fmt: skip
STEP = "checkpoints/step_0000002"
HALF = (".vit.lock", "metrics.jsonl", "recipe.toml", "environment.json", "plan.json", "checkpoints", STEP,
        f"{STEP}/manifest.json", f"{STEP}/state.json", f"{STEP}/model.safetensors")  # fmt: skip
KINDS = (
    *("weights.npz", "weights.pth", "weights.bin"),
    *(f"timm/{name}" for name in ("model.safetensors", "config.json", "preprocessor_config.json")),
    *(f"run/{name}" for name in RUN),
    *(f"half/{name}" for name in HALF),
    *(f"evaluation/{name}" for name in ("evaluation.json", "confusion.csv", "mistakes.json")),
    *("predictions.parquet", "recipe.toml", "draws.json", "real.json", "map.json", "study.toml"),
    *("csv/labels.csv", "csv/7.png", "jsonl/metadata.jsonl", "photos/test/red/0.png", "photos/test/red"),
    *("parquet/test-0.parquet", "tars/test-0.tar", "disk/state.json", "disk/dataset_info.json"),
    "disk/data-00000-of-00001.arrow",
)
PARTS = tuple(os.environ.get("VIT_FILE_KINDS", "").split(","))


@contextmanager
def limited():
    """Interrupt a command that hangs, and bound its memory."""

    def late(*_) -> None:
        raise AssertionError("it hangs")

    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, late)
    resource.setrlimit(resource.RLIMIT_AS, (16 * 2**30, before[1]))
    signal.alarm(2 * SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith(PARTS)])
def test_whatever_stands_in_the_place_of_a_file_a_command_ends_in_order(base, tmp_path, monkeypatch, kind):
    elsewhere, work, wrong, count = tmp_path / "elsewhere", tmp_path / "work", [], 0
    monkeypatch.setenv("ELSEWHERE", str(elsewhere))
    (elsewhere / "folder").mkdir(parents=True)
    (elsewhere / "file").write_text("precious")
    (elsewhere / "folder" / "file").write_text("precious")
    precious, top = contents(elsewhere), kind.split("/")[0]

    for how in HOW:
        for number in range(len(commands(kind, base, work))):
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            copy: Callable = shutil.copytree if (base / top).is_dir() else shutil.copy
            copy(base / top, work / top)
            spoilt(work / kind, how)
            began_at, before = time.monotonic(), peak_megabytes()
            with limited():
                outcome = run(*commands(kind, base, work)[number])
            lines = outcome.err.strip().splitlines()
            first = next((at for at, line in enumerate(lines) if line.startswith("error:")), 0)
            problems = {
                "the exit code": outcome.code not in CODES,
                "three lines": outcome.code and len(lines[first:]) != 3 and "mistakes in" not in lines[first],
                "changed elsewhere": contents(elsewhere) != precious,
                "the time": time.monotonic() - began_at > SECONDS,
                "the memory": peak_megabytes() - before > MEGABYTES,
                "escapes": "\x1b" in outcome.err + outcome.out,
            }
            if any(problems.values()):
                names = [name for name, is_one in problems.items() if is_one]
                wrong.append((how, number, names, outcome.code, lines[first:][:3]))
            count += 1
    print(f"{kind}: {count} cases")
    with suppress(OSError):
        shutil.rmtree(work)
    assert not wrong
