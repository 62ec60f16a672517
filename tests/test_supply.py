"""What is installed with vit: licences, known vulnerabilities, and the oldest versions that are allowed."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from tests.conftest import REPOSITORY, SHARED

# Of the words in a licence, one must be known; torch's NVIDIA libraries are no free software.
FREE = re.compile(
    r"\b(MIT|MIT-CMU|BSD|0BSD|BSD-[23]-Clause|Apache|Apache-2\.0|PSF-2\.0|Python Software Foundation|ISC"
    r"|MPL-2\.0|Zlib|HPND|Unlicense)\b"
)
NOT_FREE = re.compile(r"\b(A?GPL|LGPL|proprietary|commercial)", re.IGNORECASE)
OF_NVIDIA = ("nvidia-", "cuda-")
# The tests that notice other versions: private interfaces, resume, pixels, weights, scores.
OF_VERSIONS = [
    "tests/test_private_apis.py",
    "tests/training/test_finetune.py",
    "tests/training/test_checkpoint.py",
    "tests/data/test_pixel_paths.py",
    "tests/weights/test_golden.py",
    "tests/evaluation/test_evaluate.py",
    "tests/weights/production/test_program.py",
    "tests/conversion/test_onnx_file.py",
]
PAGE = REPOSITORY / "docs" / "reference" / "dependencies.md"


def direct_dependencies(*extras: str) -> list[Requirement]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    lines = [line for extra in extras for line in project["optional-dependencies"][extra]]
    return [Requirement(line) for line in (*project["dependencies"], *lines)]


def installed_with(names: list[str]) -> Iterator[metadata.Distribution]:
    """Yield the distributions of these names and all that they need, without extras."""
    waiting, seen = list(names), set()
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # of another platform, or optional
            continue
        yield distribution
        needed = map(Requirement, distribution.requires or [])
        waiting += [one.name for one in needed if not one.marker or one.marker.evaluate({"extra": ""})]


def licence_of(distribution: metadata.Distribution) -> str:
    about = distribution.metadata
    kinds = [line for line in about.get_all("Classifier") or [] if line.startswith("License ::")]
    return about.get("License-Expression") or "; ".join(kinds) or (about.get("License") or "").split("\n")[0]


def test_every_package_that_is_installed_with_vit_is_free_software():
    licences = {one.metadata["Name"]: licence_of(one) for one in installed_with(["vitcli"])}
    assert len(licences) > 30
    for name, licence in licences.items():
        if not name.startswith(OF_NVIDIA):
            assert FREE.search(licence) and not NOT_FREE.search(licence), (name, licence)


def test_the_page_of_dependencies_names_each_with_its_licence():
    table = PAGE.read_text()
    rows = re.findall(r"^\| ([\w-]+) \| .* \| (.*) \|$", table, re.M)
    written = {name: licence for name, licence in rows if name != "package"}
    assert sorted(written) == sorted(one.name for one in direct_dependencies())
    for name, licence in written.items():
        family = re.match(r"[A-Z]+|Apache", licence)[0]
        actual = licence_of(metadata.distribution(name)).replace("Python Software Foundation", "PSF")
        assert family in actual, (name, licence, actual)


@pytest.mark.slow
@pytest.mark.network
def test_no_installed_package_has_known_vulnerabilities(tmp_path):
    if not shutil.which("pip-audit"):
        pytest.skip("pip-audit is not installed")
    versions = tmp_path / "versions.txt"
    everything = installed_with(["vitcli"])
    lines = [f"{one.metadata['Name']}=={one.version.partition('+')[0]}" for one in everything]
    versions.write_text("\n".join(line for line in lines if not line.startswith("vitcli==")))
    words = ["pip-audit", "--requirement", versions, "--no-deps", "--disable-pip", "--format", "json"]
    answer = subprocess.run(words, capture_output=True, text=True, timeout=600)
    if not answer.stdout:
        pytest.skip(f"no answer: {answer.stderr[-200:]}")
    packages = json.loads(answer.stdout)["dependencies"]
    audited = [package for package in packages if "vulns" in package]
    print(f"{len(audited)} of {len(packages)} packages looked up")
    if len(audited) < len(packages) / 2:
        pytest.skip("the databases of vulnerabilities cannot be reached")
    assert not [package for package in audited if package["vulns"]]


@pytest.mark.slow
@pytest.mark.network
def test_the_oldest_versions_that_are_allowed_pass(tmp_path):
    oldest = [
        f"{one.name}=={next(part.version for part in one.specifier if part.operator == '>=')}.*"
        for one in direct_dependencies("export")
    ]
    constraints = tmp_path / "oldest.txt"
    constraints.write_text("\n".join(oldest))
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = [tmp_path / "venv" / "bin" / "python", "-m"]
    here = f"{REPOSITORY}[test,export]"
    install = ["pip", "install", "--quiet", "--constraint", constraints, "--editable", here]
    subprocess.run([*python, *install], check=True, timeout=1800)

    tests = ["pytest", "-q", "-n", "2", "--dist", "loadfile", *OF_VERSIONS]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    how = dict(cwd=REPOSITORY, env=inherited | {"VIT_TEST_DATA": str(SHARED)}, timeout=1800)
    ended = subprocess.run([*python, *tests], capture_output=True, text=True, **how)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-500:]
