"""A method of training is a place one could delete: its file, and its line in one list."""

import importlib
import os
import pkgutil
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import vitcli
from tests.conftest import REPOSITORY
from vitcli.training.methods.known import METHODS


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Let imports load `vitcli.training` again until the test ends."""

    def taken_out() -> dict[str, ModuleType | None]:
        names = [name for name in sys.modules if name.startswith("vitcli.training")]
        return {name: sys.modules.pop(name) for name in names}

    modules = taken_out()
    yield
    taken_out()
    sys.modules.update(modules)
    vitcli.training = modules["vitcli.training"]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
def test_without_a_method_the_package_imports(forgotten, method):
    sys.modules[method.__module__] = None  # as if its file were not there
    methods = importlib.import_module("vitcli.training.methods")
    lines = Path(methods.__path__[0], "known.py").read_text().splitlines()
    left = [line for line in lines if method.__module__ not in line and line.strip() != f"{method.__name__},"]
    assert len(left) == len(lines) - 2, "it is imported, and in the list"
    known = ModuleType("vitcli.training.methods.known")
    sys.modules[known.__name__] = known
    exec("\n".join(left), vars(known))

    training = importlib.import_module("vitcli.training")
    for each in pkgutil.walk_packages(training.__path__, "vitcli.training."):
        if each.name != method.__module__:
            importlib.import_module(each.name)
    assert method.__name__ not in {other.__name__ for other in known.METHODS}


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
