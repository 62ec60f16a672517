"""The wheel holds what the tool needs, wherever it is installed."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with nothing in it but the unpacked wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(folder),
        str(REPOSITORY),
    ]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def vit_installed(site: Path, *words: str) -> str:
    code = (
        "import sys, vitcli; from vitcli.cli import main;"
        f" assert vitcli.__file__.startswith({str(site)!r}); main(sys.argv[1:])"
    )
    env = {**os.environ, "PYTHONPATH": str(site)}
    ran = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, env=env, cwd=site
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_an_installed_wheel_lists_and_checks_its_recipes(installed):
    assert "finetune/cifar10" in vit_installed(installed, "recipes", "list")
    assert "wrong" not in vit_installed(installed, "recipes", "check")
    assert (installed / "vitcli/recipe/shipped/studies/demo.toml").is_file()


def test_the_wheel_has_no_top_level_package_but_ours(installed):
    assert sorted(path.name.partition("-")[0] for path in installed.iterdir()) == ["vitcli", "vitcli"]


def test_the_demo_checkpoint_is_in_the_wheel_and_small(installed):
    weights = installed / "vitcli/demo_weights/model.safetensors"

    assert weights.stat().st_size <= 3_000_000
    assert (installed / "vitcli/demo_weights/config.json").is_file()


def test_the_style_sheet_of_a_report_is_in_the_wheel(installed):
    assert "@media print" in (installed / "vitcli/output/style.css").read_text()
