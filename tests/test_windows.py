"""Where neither fcntl nor fork, resource, pwd or SIGUSR1 exist, every module loads and these commands run."""

import json
import os
import pkgutil
import subprocess
import sys
import traceback
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitcli
from tests import windows
from tests.conftest import REPOSITORY


@pytest.fixture
def photos(tmp_path, monkeypatch) -> Path:
    """Three images of two classes for training and test each, in a folder with letters of Japanese."""
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        for name in ("花", "海"):
            folder = tmp_path / "写真" / part / name
            folder.mkdir(parents=True)
            for number in range(3):
                pixels = rng.integers(0, 256, (40, 50, 3), np.uint8)
                Image.fromarray(pixels).save(folder / f"{part}{number}.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path("写真")


def commands(photos: Path) -> list[list[str]]:
    test, data = str(photos / "test"), ["--dataset", str(photos)]
    return [
        ["--version"],
        ["predict", "--ckpt", "demo", test],
        ["predict", "--ckpt", "demo", test, "--out", "answers.csv", "--sort-into", "sorted"],
        ["fewshot", "--ckpt", "demo", *data, "--shots", "2", "--out", "few"],
        ["finetune", "--ckpt", "demo", *data, "--steps", "2", "--set", "train.batch_size=4", "--out", "run"],
        ["evaluate", "--ckpt", "run", *data, "--out", "scores"],
        ["embed", "--ckpt", "demo", *data, "--split", "test", "--out", "features.safetensors"],
        ["embed", "--ckpt", "demo", *data, "--split", "test", "--out", "features.safetensors", "--overwrite"],
        ["datasets", "check", str(photos)],
        ["export", "demo", "demo.npz"],
        ["export", "demo", "demo.onnx"],
        ["export", "--check", "demo.onnx"],
        ["inspect", "demo"],
        ["inspect", "--ckpt", "demo", "--images", test, "--out", "figures"],
        ["report", ".", "--out", "report.html"],
        ["cache", "clear", "all"],
    ]  # fmt: skip


@pytest.mark.slow
def test_the_commands_run_and_print_what_a_pipe_can_show(photos, tmp_path):
    environ = os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONIOENCODING": "cp1252"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.windows"],
        input=json.dumps(commands(photos)).encode(),
        env=environ,
        cwd=tmp_path,
        capture_output=True,
    )

    lines = done.stdout.decode("cp1252").splitlines()
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    assert json.loads(lines[-1]) == [0] * len(commands(photos)), done.stderr.decode(errors="replace")
    names = {path.name for path in tmp_path.iterdir()}
    assert names >= {"answers.csv", "sorted", "run", "scores", "features.safetensors", "demo.onnx", "figures"}
    assert "\\u82b1" in done.stdout.decode("cp1252")  # 花, the name of a class
    # Windows deletes nothing that this process has mapped.
    assert os.name == "nt" or not list((tmp_path / "cache/vit/features").iterdir())


def load_all_and_run_some(photos: Path) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "vitcli"]:
        del sys.modules[name]
    windows.pretend()
    for module in pkgutil.walk_packages(vitcli.__path__, "vitcli."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    sys.stdout = os.fdopen(1, "w", encoding="cp1252")  # of a pipe there
    assert windows.run(commands(photos)[:2]) == [0, 0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows needs no pretence")
def test_every_module_loads_and_images_are_predicted(photos, tmp_path):
    """In a copy of this process, which has loaded the libraries."""
    child, told = os.fork(), tmp_path / "told"
    if not child:
        with told.open("w") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        try:
            load_all_and_run_some(photos)
            os._exit(0)
        except BaseException:
            told.write_text(traceback.format_exc())
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0, told.read_text()
