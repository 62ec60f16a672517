"""A method of training is a place one could delete: its file, and its line in one list."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from vitcli.training.methods.known import METHODS

WITHOUT = """
import importlib, pathlib, pkgutil, sys
import vitcli.training.methods as methods

name, module = sys.argv[1:]
sys.modules[module] = None  # as if its file were not there
known = pathlib.Path(methods.__path__[0], "known.py").read_text().splitlines()
lines = [line for line in known if module not in line and line.strip() != f"{name},"]
assert len(lines) == len(known) - 2, "it is imported, and in the list"
spec = importlib.util.spec_from_loader("vitcli.training.methods.known", None)
sys.modules[spec.name] = importlib.util.module_from_spec(spec)
exec("\\n".join(lines), vars(sys.modules[spec.name]))
import vitcli.training
for each in pkgutil.walk_packages(vitcli.training.__path__, "vitcli.training."):
    if each.name != module:
        importlib.import_module(each.name)
assert name not in {method.__name__ for method in sys.modules[spec.name].METHODS}
"""


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
def test_without_a_method_the_package_imports(method):
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT, method.__name__, method.__module__], capture_output=True, text=True
    )

    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
def test_without_the_file_of_a_method_the_tests_of_a_run_pass(method, tmp_path):
    for name in ("vitcli", "recipes", "tests"):
        shutil.copytree(REPOSITORY / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    (tmp_path / Path(*method.__module__.split(".")).with_suffix(".py")).unlink()
    known = tmp_path / "vitcli/training/methods/known.py"
    lines = known.read_text().splitlines(keepends=True)
    known.write_text("".join(line for line in lines if method.__name__ not in line))

    words = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/training/test_run.py")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "VIT_TEST_DATA": str(tmp_path / "none")}
    ended = subprocess.run(
        [sys.executable, *words, "tests/training/test_loop.py"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
