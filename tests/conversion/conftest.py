"""A run that several tests export."""

import shutil
from pathlib import Path

import pytest

from tests.conftest import run
from vitcli.weights.locate import DEMO_FOLDER


@pytest.fixture(scope="package")
def trained(photos, tmp_path_factory) -> Path:
    """A run from a file and on a folder of this machine."""
    home = tmp_path_factory.mktemp("ann")
    start = shutil.copy(DEMO_FOLDER / "model.safetensors", home / "start.safetensors")
    words = ("--ckpt", start, "--res", "16", "--steps", "2", "--batch-size", "4", "--out", home / "run")
    outcome = run("finetune", "--recipe", "finetune/default", *words, "--dataset", photos, "--quiet")
    assert outcome.code == 0, outcome.err
    return home / "run"
