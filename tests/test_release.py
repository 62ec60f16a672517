"""The release tool: what it refuses, and a dry run of all of it."""

import datetime
import importlib.util
import shutil
import subprocess
import sys

import pytest

import vitcli
from tests.conftest import REPOSITORY

TOOL = REPOSITORY / "tools" / "release.py"
DAY = datetime.date(2026, 12, 1)


@pytest.fixture
def release(tmp_path):
    if not TOOL.exists():
        pytest.skip("the tools of the repository are not here")
    spec = importlib.util.spec_from_file_location("release", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("CHANGELOG.md", "CITATION.cff", "vitcli/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    return module


def test_a_version_is_written_at_its_three_places(release, tmp_path):
    release.write_version(tmp_path, "9.8.7", DAY, needs_news=False)  # there is none right after a release

    assert '__version__ = "9.8.7"\n' in (tmp_path / "vitcli" / "__init__.py").read_text()
    assert "version: 9.8.7\ndate-released: 2026-12-01\n" in (tmp_path / "CITATION.cff").read_text()
    heads = [line for line in (tmp_path / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert heads[:2] == ["## Unreleased", "## 9.8.7 - 2026-12-01"]


@pytest.mark.parametrize(
    ("version", "news", "words"),
    [
        ("1.0", "- a", "not a version"),
        (vitcli.__version__, "- a", "already"),
        ("9.8.7", "", "nothing below"),
        ("9.8.7", "- a\n" * 61, "61 lines"),
    ],
)
def test_what_is_not_ready_is_refused(release, tmp_path, version, news, words):
    old = f"# Changelog\n\n## Unreleased\n\n{news}\n## {vitcli.__version__} - 2026-11-22\n"
    (tmp_path / "CHANGELOG.md").write_text(old)

    with pytest.raises(SystemExit, match=words):
        release.write_version(tmp_path, version, DAY)
    assert (tmp_path / "CHANGELOG.md").read_text() == old


@pytest.mark.slow
def test_a_release_is_built_checked_installed_and_tried_without_a_trace(tmp_path):
    if not (REPOSITORY / ".git").exists():
        pytest.skip("the tool clones the repository, which is not here")
    pytest.importorskip("twine")
    state = ["git", "-C", str(REPOSITORY), "for-each-ref"]
    before = subprocess.check_output(state)
    words = [sys.executable, str(TOOL), "9.8.7", "--dry-run", "--packages-from-here"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=600)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED" in done.stdout and "9.8.7 can be released: vitcli-9.8.7-py3-none-any.whl" in done.stdout
    assert subprocess.check_output(state) == before and not list(tmp_path.iterdir())
