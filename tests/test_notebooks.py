"""The notebooks of examples/: they run offline from top to bottom, and show what they say."""

import ast
import json
import re
import time
from pathlib import Path

import pytest

import vitcli
from tests.conftest import REPOSITORY
from tests.notebooks import MOST_SECONDS, NOTEBOOKS, execute, text_of
from tests.test_docs import slugs
from tests.test_project import LINK

MOST_BYTES = 150_000
SHELL = "!%"  # first letters of lines that are not Python
# What a notebook prints, and the least that it must be: elsewhere the digits are others.
CLAIMS = {
    "first_classifier": (r"(\d+ of \d+) are right", 0.8),
    "believe_and_check": (r"(\d+ of the \d+) wrong ones", 0.5),
    "few_shot_and_figures": (r"\n +25 +([\d.]+%)", 0.95),
    "exported_file": (r"top-1 ([\d.]+%)", 0.7),
}


def named(notebook: Path) -> str:
    return notebook.stem


def code_of(notebook: dict) -> list[str]:
    """Return the Python of each cell."""
    return [
        "".join(line for line in cell["source"] if not line.startswith(tuple(SHELL)))
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


def share(claim: str) -> float:
    """Return what "8 of the 10" or "88.50%" says."""
    numbers = [float(number) for number in re.findall(r"[\d.]+", claim)]
    return numbers[0] / 100 if claim.endswith("%") else numbers[0] / numbers[1]


def test_there_are_four_notebooks_and_the_list_names_each():
    listed = (REPOSITORY / "examples/README.md").read_text()

    assert [named(notebook) for notebook in NOTEBOOKS] == sorted(CLAIMS)
    assert all(f"]({notebook.name})" in listed for notebook in NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=named)
def test_a_notebook_is_valid_and_small_and_has_a_title_and_the_outputs_of_one_run(path):
    nbformat = pytest.importorskip("nbformat")
    text = path.read_text()
    notebook = json.loads(text)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in cells for output in cell["outputs"]]

    assert notebook["cells"][0]["cell_type"] == "markdown"
    assert re.match(r"# \w", notebook["cells"][0]["source"][0])
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert len(text) < MOST_BYTES and "Warning" not in text_of(notebook)
    pattern, least = CLAIMS[path.stem]
    assert share(re.search(pattern, text_of(notebook))[1]) >= least


@pytest.mark.parametrize("path", NOTEBOOKS, ids=named)
def test_a_notebook_names_no_folder_of_the_machine_that_ran_it(path):
    assert not re.findall(r"(?<![\w./])/(?:home|root|tmp|work|Users|usr|var)/", path.read_text())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=named)
def test_a_notebook_uses_public_names_alone(path):
    nodes = [node for code in code_of(json.loads(path.read_text())) for node in ast.walk(ast.parse(code))]
    used = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "vitcli"
    }

    imports = [ast.unparse(node) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [line for line in imports if "vitcli" in line] == ["import vitcli"]
    assert used and used <= {*vitcli.__all__}
    assert not [node.attr for node in nodes if isinstance(node, ast.Attribute) and node.attr.startswith("_")]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=named)
def test_every_link_of_a_notebook_leads_to_a_file_or_a_heading(path):
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "markdown"]
    links = [first or second for cell in cells for first, second in LINK.findall("".join(cell["source"]))]

    broken = []
    for link in links:
        name, _, anchor = link.partition("#")
        page = path.parent / name
        if not page.exists() or (anchor and anchor not in slugs(page.read_text())):
            broken.append(link)
    assert links and not broken


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=named)
def test_a_notebook_runs_without_a_network_within_three_minutes(path, tmp_path):
    began_at = time.monotonic()

    notebook = execute(path, tmp_path)

    assert time.monotonic() - began_at < MOST_SECONDS
    pattern, least = CLAIMS[path.stem]
    assert share(re.search(pattern, text_of(notebook))[1]) >= least
    assert "Warning" not in text_of(notebook)
    assert [each.name for each in tmp_path.iterdir() if each.suffix == ".ipynb"] == [path.name]


def test_a_cell_that_fails_is_named(tmp_path):
    cell = {"cell_type": "code", "execution_count": None, "id": "a", "metadata": {}, "outputs": [],
            "source": ["raise ValueError('no such thing')"]}  # fmt: skip
    metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    broken = tmp_path / "broken.ipynb"
    broken.write_text(json.dumps({"cells": [cell], "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}))
    (tmp_path / "run").mkdir()

    with pytest.raises(RuntimeError, match="no such thing"):
        execute(broken, tmp_path / "run")
