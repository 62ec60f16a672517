"""A method of training is a place one could delete: its file, and its line in one list."""

import subprocess
import sys

import pytest

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
