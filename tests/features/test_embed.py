"""`vit embed`: the file other tools read, whatever happened while it was made."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tests.conftest import ONE_LAYER, REPOSITORY, run, vit
from vitcli.api import load_model
from vitcli.features.embed import as_text
from vitcli.models import features

WORDS = ("embed", "--ckpt", "demo", "--json", "-q", "--batch-size", "4")


def read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


@pytest.fixture(scope="module")
def whole(photos, tmp_path_factory) -> Path:
    """The file of one unbroken run over the training split."""
    out = tmp_path_factory.mktemp("whole") / "out.safetensors"
    outcome = run(*WORDS, "--dataset", photos, "--split", "train", "--out", out)
    assert outcome.code == 0, outcome.out
    return out


def test_features_and_logits_are_the_network_s(photos, whole):
    tensors, about = read(whole)
    model, transform, info = load_model("demo")
    files = sorted((photos / "train").rglob("*.png"))
    with torch.no_grad():
        images = torch.stack([transform(file) for file in files])
        tokens = model.forward_features(images)
        logits = model(images)

    assert torch.allclose(tensors["features"], tokens[:, 0], atol=1e-5)
    assert torch.allclose(tensors["logits"], logits, atol=1e-5)
    assert tensors["labels"].tolist() == [0] * 12 + [1] * 12
    assert tensors["rows"].tolist() == list(range(24))
    assert json.loads(about["class_names"]) == ["green", "red"]
    assert json.loads(about["logit_names"]) == list(info.class_names)
    assert json.loads(about["preprocessing"])["image_size"] == [64, 64]
    assert (about["model"], about["layer"], about["ckpt"]) == ("ViT-demo/8", "pre_logits", "demo")
    assert about["split"].endswith("split train")
    assert [Path(about["dataset"], path) for path in json.loads(about["paths"])] == files


def test_layers_and_logits_are_chosen(photos, tmp_path):
    out = tmp_path / "gap.safetensors"
    result = run(*WORDS, "--dataset", photos, "--layer", "gap", "--no-logits", "--out", out).json

    tensors, about = read(out)
    assert sorted(tensors) == ["features", "labels", "rows"]
    assert (about["layer"], about["logit_names"], result["num_logits"]) == ("gap", "null", 0)
    assert len(tensors["rows"]) == 10  # the test split is found


@pytest.mark.at_once  # read late, the last batch is not there yet
def test_a_killed_run_goes_on_to_the_very_same_file(photos, whole, tmp_path, monkeypatch):
    out, seen, forward = tmp_path / "out.safetensors", [], features.outputs

    def killed_after_three(model, images_BCHW, **more):
        if len(seen) == 3:
            raise KeyboardInterrupt
        seen.append(len(images_BCHW))
        return forward(model, images_BCHW, **more)

    words = (*WORDS, "--dataset", photos, "--split", "train", "--out", out)
    monkeypatch.setattr(features, "outputs", killed_after_three)
    assert run(*words).code == 130
    assert not out.exists() and len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(features, "outputs", forward)

    result = run(*words).json

    assert out.read_bytes() == whole.read_bytes()
    assert (result["taken_up_rows"], result["computed_rows"]) == (12, 12)
    assert list(tmp_path.iterdir()) == [out]


def test_what_an_interrupted_run_with_other_settings_left_is_not_used(photos, whole, tmp_path, monkeypatch):
    out, forward = tmp_path / "out.safetensors", features.outputs
    words = ("embed", "--ckpt", "demo", "--json", "--batch-size", "4", "--dataset", photos, "--out", out)
    words = (*words, "--split", "train")
    calls = iter(range(2))

    def killed_after_two(*given, **more):
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return forward(*given, **more)

    monkeypatch.setattr(features, "outputs", killed_after_two)
    assert run(*words, "--layer", "gap").code == 130
    monkeypatch.setattr(features, "outputs", forward)

    outcome = run(*words)

    assert outcome.json["taken_up_rows"] == 0
    assert out.read_bytes() == whole.read_bytes()


def test_an_existing_file_is_kept_unless_it_is_to_be_replaced(photos, tmp_path):
    out = tmp_path / "out.safetensors"
    out.write_bytes(b"mine")
    refused = run(*WORDS, "--dataset", photos, "--out", out)
    assert (refused.code, out.read_bytes()) == (2, b"mine")
    assert "--overwrite" in refused.json["error"]["fix"]

    assert run(*WORDS, "--dataset", photos, "--out", out, "--overwrite").code == 0
    assert len(read(out)[0]["rows"]) == 10


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--out", "features.bin"), 2, "name the file to write: --out FEATURES.safetensors"),
        ((), 2, "--out"),
        (("--out", "o.safetensors", "--split", "dev"), 3, "no split 'dev'"),
        (("--out", "/proc/nowhere/o.safetensors"), 5, "nothing can be written"),
        (("--out", "o.safetensors", "--layer", "last"), 2, "--layer"),
    ],
)
def test_what_cannot_be_is_refused_in_three_lines(photos, words, code, says):
    outcome = run(*WORDS, "--dataset", photos, *words)

    assert outcome.code == code, outcome.out
    assert says in json.dumps(outcome.json["error"])


def test_without_a_checkpoint_it_asks_for_one(photos):
    outcome = run("embed", "--dataset", photos, "--out", "o.safetensors", "--json", "-q")

    assert outcome.code == 2 and "checkpoint" in outcome.json["error"]["message"]


def test_undecodable_pictures_are_no_rows_and_are_named(photos, tmp_path):
    for name in ("red", "green"):
        (tmp_path / "data/test" / name).mkdir(parents=True)
        for file in (photos / "test" / name).iterdir():
            (tmp_path / "data/test" / name / file.name).write_bytes(file.read_bytes())
    (tmp_path / "data/test/red/00.png").write_bytes(b"no picture")
    out = tmp_path / "out.safetensors"
    words = (*WORDS, "--dataset", tmp_path / "data", "--out", out)

    assert run(*words).code == 3
    result = run(*words, "--skip-bad").json

    tensors, about = read(out)
    assert tensors["rows"].tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert result["num_skipped_images"] == 1 and "00.png" in json.loads(about["skipped_images"])[0]
    assert len(json.loads(about["paths"])) == 9 and not any(
        "red/00.png" in p for p in json.loads(about["paths"])
    )


def test_the_table_says_what_is_in_the_file(photos, tmp_path):
    out = tmp_path / "out.safetensors"
    table = run("embed", "--ckpt", "demo", "--dataset", photos, "--out", out, "-q").out

    for words in ("96 features (pre_logits), 24 logits, label, row, path", "10 images, ", "next  "):
        assert words in table


def test_a_plain_folder_has_paths_and_no_labels(photos, tmp_path):
    shutil.copytree(photos / "train" / "red", tmp_path / "holiday")
    out = tmp_path / "holiday.safetensors"

    table = run(*WORDS[:3], "--dataset", tmp_path / "holiday", "--out", out, "-q").out
    again = run(*WORDS[:3], "--dataset", f"{tmp_path / 'holiday'}/", "--out", out, "-q").out

    tensors, about = read(out)
    assert tensors["labels"].tolist() == [-1] * 12 and about["class_names"] == "null"
    assert json.loads(about["paths"])[:2] == ["00.png", "01.png"]
    assert "24 logits, row, path" in table and "12 rows from the earlier file" in again


def test_drawn_images_have_no_paths(tmp_path):
    out = tmp_path / "demo.safetensors"
    result = run(*WORDS, "--dataset", "demo", "--split", "test[:4]", "--out", out).json

    assert read(out)[1]["paths"] == "null" and not result["has_paths"]


def test_the_neighbours_of_the_docs_are_found(photos, whole, tmp_path, capsys, monkeypatch):
    text = (REPOSITORY / "docs" / "few-shot-and-features.md").read_text()
    (snippet,) = (block for block in text.split("```python\n")[1:] if "safe_open" in block)
    shutil.copy(whole, tmp_path / "photos.safetensors")
    monkeypatch.chdir(tmp_path)

    exec(snippet.partition("```")[0].replace("rose/05.jpg", "train/red/05.png"), {})  # the docs' own lines

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6 and lines[0] == "1.000  train/red/05.png"
    assert all("red/" in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
def test_any_number_of_processes_write_the_same_file(photos, whole, processes, tmp_path):
    out = tmp_path / "out.safetensors"
    done = vit(*WORDS, "--dataset", photos, "--split", "train", "--out", out, "--num-processes", processes)

    assert done.returncode == 0, done.stderr
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_sigkills_while_it_writes_lose_nothing_that_was_written(tmp_path, processes):
    words = (
        "embed",
        "--ckpt",
        "demo",
        "--dataset",
        "demo:pretrain",
        "--split",
        "train[:1500]",
        "--json",
        "-q",
    )
    words = (*words, "--batch-size", "8")
    straight, out = tmp_path / "straight.safetensors", tmp_path / "out.safetensors"
    assert vit(*words, "--out", straight).returncode == 0
    partial, kills = tmp_path / ".tmp-out.safetensors.features", 0

    def stored_bytes() -> int:
        return sum(file.stat().st_blocks * 512 for file in partial.glob("rows-*"))

    for least_bytes in (100_000, 300_000):

        def kill_later(process: subprocess.Popen, least_bytes=least_bytes) -> None:
            while process.poll() is None and stored_bytes() <= least_bytes:
                time.sleep(0.005)
            for number in _processes_about(out):  # torch's launcher gives each of its own a session
                os.kill(number, signal.SIGKILL)

        killed = vit(*words, "--out", out, "--num-processes", processes, on_start=kill_later)
        kills += killed.returncode == -signal.SIGKILL and partial.exists()
    last = vit(*words, "--out", out)

    assert last.returncode == 0, last.stdout
    assert kills == 2 and json.loads(last.stdout)["taken_up_rows"] > 0
    assert out.read_bytes() == straight.read_bytes()
    assert np.array_equal(read(out)[0]["rows"].numpy(), np.arange(1500))


def _processes_about(out: Path) -> list[int]:
    """Processes with this path on their command line, which no others than the test's own have."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else ()
        except OSError:  # it has ended
            continue
        found += [int(entry.name)] if str(out).encode() in words else []
    return found


def test_the_same_command_again_shows_the_file_and_another_is_refused(photos, whole, tmp_path):
    words = (*WORDS, "--dataset", photos, "--split", "train", "--out", whole)
    before = whole.read_bytes()

    left = whole.with_name(f".tmp-{whole.name}.features")
    left.mkdir()  # by a command that was killed at its end
    again, other = run(*words), run(*words, "--layer", "gap")
    assert not left.exists()
    resampled = run(*words, "--set", "model.posemb_resample=timm")
    assert resampled.code == 2 and "another made_of" in resampled.json["error"]["message"]

    assert again.code == 0 and (again.json["num_examples"], again.json["computed_rows"]) == (24, 0)
    assert other.code == 2 and "another layer" in other.json["error"]["message"]
    assert whole.read_bytes() == before


@pytest.mark.parametrize(
    ("threads", "size"),
    [
        (2, 7),
        *(pytest.param(threads, size, marks=pytest.mark.slow) for threads, size in [(1, 1), (1, 5), (2, 1)]),
    ],
)
def test_neither_the_batch_size_nor_the_threads_decide_a_bit(photos, whole, tmp_path, threads, size):
    torch.set_num_threads(threads)
    out = tmp_path / "out.safetensors"
    try:
        words = (*WORDS[:-1], size, "--dataset", photos, "--split", "train", "--out", out)
        assert run(*words).code == 0
        assert out.read_bytes() == whole.read_bytes()
    finally:
        torch.set_num_threads(1)


def test_a_file_whose_pixels_were_described_in_other_words_is_the_same_file(photos, whole, tmp_path):
    tensors, metadata = read(whole)
    out = tmp_path / "older.safetensors"
    save_file(tensors, out, metadata | {"pixels": "as an older version put it"})

    result = run(*WORDS, "--dataset", photos, "--split", "train", "--out", out).json

    assert (result["computed_rows"], result["preprocessing"]) == (0, "as an older version put it")


def test_images_that_were_trained_on_are_noted_once_also_of_a_file_that_is_there(photos, tmp_path):
    network = (*ONE_LAYER.split(), "--res", 16, "--steps", 1, "--batch-size", 4)
    run("finetune", *network, "--lr", 0.01, "--dataset", photos, "--out", tmp_path / "run", "-q")
    words = ("embed", "--ckpt", tmp_path / "run", "--dataset", photos, "--split", "train")

    first, second = (run(*words, "--out", tmp_path / "photos.safetensors") for _ in range(2))

    for outcome in (first, second):
        assert (outcome.out + outcome.err).count("24 of these 24 images were trained on") == 1


def test_a_plain_folder_is_named_without_a_split_and_lines_fit_into_80_columns(monkeypatch):
    result = {
        "out": "holiday.safetensors", "bytes": 20_480, "num_examples": 12, "split": "holiday, split images",
        "feature_dim": 96, "layer": "pre_logits", "num_logits": 0, "has_labels": False, "has_paths": True,
        "model": "ViT-demo/8", "numerics": "tanh GELU", "preprocessing": "64x64", "taken_up_rows": 0,
        "num_skipped_images": 0, "skipped_images": [],
    }  # fmt: skip
    monkeypatch.setenv("COLUMNS", "80")

    lines = as_text(result).splitlines()

    assert "file        holiday.safetensors, 20.0 KiB" in lines and "images      12 images, holiday" in lines
    assert max(map(len, lines)) <= 80
    last = [line.strip() for line in lines[-2:]]
    assert last == [
        "from safetensors.numpy import load_file",
        "load_file('holiday.safetensors')[\"features\"]",
    ]
