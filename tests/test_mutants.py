"""Deliberate breaks of the code: each must turn a test red. `tests/mutants.py` lists them.

One slow test for each break: the checkout is copied, one place of it changed, and tests are run until the
first fails. `python -m pytest -m slow tests/test_mutants.py -k "fsync or SIGTERM"` runs some.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from tests.conftest import REPOSITORY
from tests.mutants import MUTANTS


def test_each_break_has_a_name_a_place_that_is_there_once_and_tests():
    texts = {name: (REPOSITORY / name).read_text() for name in {mutant.file for mutant in MUTANTS}}
    counts = {mutant.what: texts[mutant.file].count(mutant.before) for mutant in MUTANTS}

    assert {what: count for what, count in counts.items() if count != 1} == {}
    assert len(counts) == len(MUTANTS) >= 75
    documented = (REPOSITORY / "docs/evidence/attacks.md").read_text()
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
    for name in ("vitcli", "tests", "recipes", "docs", "examples"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "CHANGELOG.md", "SECURITY.md"):
        shutil.copy(REPOSITORY / file, folder)
    return folder


@pytest.fixture(scope="module")
def run_tests(copy) -> Iterator[Callable[..., tuple[int, str]]]:
    """Run tests of the copy until one fails, without real data or weights; return exit code and output.

    Each run is a fork of a process that has loaded torch and the like, which half of the time went to.
    """
    environ = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    environ |= {"VIT_TEST_DATA": str(copy / "none"), "OMP_NUM_THREADS": "1"}
    environ = {name: value for name, value in environ.items() if not name.startswith("PYTEST_")}
    output = copy / "output"

    def run(tests: Iterable[str], *, timeout: int) -> tuple[int, str]:
        words = [str(timeout), str(output), "-x", "-q", "-p", "no:cacheprovider", *tests]
        server.stdin.write("\t".join(words) + "\n")
        server.stdin.flush()
        return int(server.stdout.readline()), output.read_text(errors="replace")

    words = [sys.executable, "-m", "tests.mutant_server"]
    with Popen(words, cwd=copy, env=environ, stdin=PIPE, stdout=PIPE, text=True) as server:
        yield run
        server.stdin.close()


@pytest.mark.slow
def test_without_a_break_the_same_tests_are_green(run_tests):
    tests = sorted({test for mutant in MUTANTS for test in mutant.tests.split()})
    print(f"{len(MUTANTS)} breaks, {len(tests)} files of tests")

    code, output = run_tests(tests, timeout=3600)

    assert code == 0, output[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.what for mutant in MUTANTS])
def test_a_deliberate_break_turns_a_test_red(copy, run_tests, mutant):
    file = copy / mutant.file
    text = file.read_text()
    broken = text.replace(mutant.before, mutant.after)
    if file.suffix == ".py":
        compile(broken, mutant.file, "exec")
    file.write_text(broken)
    try:
        code, output = run_tests(mutant.tests.split(), timeout=600)
    finally:
        file.write_text(text)

    assert code == 1, f"no test of {mutant.tests} noticed:\n{output[-1500:]}"
