"""Deliberate breaks of the code: each must turn a test red. `tests/mutants.py` lists them.

One slow test for each break: the checkout is copied, one place of it changed, and tests are run until the
first fails. `python -m pytest -m slow tests/test_mutants.py -k "fsync or SIGTERM"` runs some.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.mutants import MUTANTS


def test_each_break_has_a_name_a_place_that_is_there_once_and_tests():
    texts = {name: (REPOSITORY / name).read_text() for name in {mutant.file for mutant in MUTANTS}}
    counts = {mutant.what: texts[mutant.file].count(mutant.before) for mutant in MUTANTS}

    assert {what: count for what, count in counts.items() if count != 1} == {}
    assert len(counts) == len(MUTANTS) >= 75
    documented = (REPOSITORY / "docs/reliability.md").read_text()
    assert f"breaks the code in {len(MUTANTS)} places" in documented
    assert f"| deliberate breaks of the code, one at a time | {len(MUTANTS)} |" in documented
    for test in {test for mutant in MUTANTS for test in mutant.tests.split()}:
        path, _, name = test.partition("::")
        assert (REPOSITORY / path).exists(), test
        assert not name or f"def {name}(" in (REPOSITORY / path).read_text(), test


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """A copy of the code, its tests, recipes and documents, to be changed at will."""
    folder = tmp_path_factory.mktemp("mutants")
    for name in ("vitcli", "tests", "recipes", "docs"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "CHANGELOG.md"):
        shutil.copy(REPOSITORY / file, folder)
    return folder


def run_tests(copy: Path, tests: list[str], *, timeout: int) -> subprocess.CompletedProcess:
    """Run tests of a copy until one fails, without any real data or weights."""
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environ = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    environ |= {"VIT_TEST_DATA": str(copy / "none")}
    environ |= {name: "" for name in os.environ if name.startswith("PYTEST_XDIST")}
    return subprocess.run(words, cwd=copy, env=environ, capture_output=True, text=True, timeout=timeout)


@pytest.mark.slow
def test_without_a_break_the_same_tests_are_green(copy):
    tests = sorted({test for mutant in MUTANTS for test in mutant.tests.split()})
    print(f"{len(MUTANTS)} breaks, {len(tests)} files of tests")

    ended = run_tests(copy, tests, timeout=3600)

    assert ended.returncode == 0, ended.stdout[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.what for mutant in MUTANTS])
def test_a_deliberate_break_turns_a_test_red(copy, mutant):
    file = copy / mutant.file
    text = file.read_text()
    broken = text.replace(mutant.before, mutant.after)
    compile(broken, mutant.file, "exec")
    file.write_text(broken)
    try:
        ended = run_tests(copy, mutant.tests.split(), timeout=600)
    finally:
        file.write_text(text)

    assert ended.returncode == 1, f"no test of {mutant.tests} noticed:\n{ended.stdout[-1500:]}"
