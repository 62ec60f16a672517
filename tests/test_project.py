"""What surrounds the code: package page, links, citation, forms, workflow, environment, commands on pages."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import get_args

import pytest
import typer
import yaml

import vitcli
from tests.conftest import REPOSITORY
from tests.test_ci import JOB_KEYS, STEP_KEYS
from vitcli.cli import app
from vitcli.recipe import schema

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
HOME = PROJECT["urls"]["Homepage"]
PAGES = sorted(
    [
        *REPOSITORY.glob("*.md"),
        *REPOSITORY.glob("docs/*.md"),
        *REPOSITORY.glob("docs/evidence/*.md"),
        *REPOSITORY.glob("docs/reference/*.md"),
        *REPOSITORY.glob("vitcli/*/README.md"),
    ]
)
LINK = re.compile(r'\]\(([^)\s]+)\)|src="([^"]+)"')
READ = re.compile(
    r'environ(?:\.\w+\(|\[)\s*"([A-Z_]+)"|getenv\("([A-Z_]+)"|"([A-Z_]+)" (?:not )?in [\w.]*environ'
)


def links_of(text: str) -> set[str]:
    without_code = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return {first or second for first, second in LINK.findall(without_code)}


def test_links_between_the_pages_lead_to_files():
    links = [(page, link) for page in PAGES for link in links_of(page.read_text()) if "://" not in link]
    paths = [(page.parent / path, page.name) for page, link in links if (path := link.partition("#")[0])]

    assert len(paths) > 50 and not [(path, page) for path, page in paths if not path.exists()]


def test_the_package_page_has_absolute_links_to_the_same_files(monkeypatch):
    monkeypatch.chdir(REPOSITORY)  # the plugin reads README.md from the working folder
    metadata = pytest.importorskip("hatchling.metadata.core")
    from hatchling.plugin.manager import PluginManager

    text = metadata.ProjectMetadata(str(REPOSITORY), PluginManager()).core.readme

    relative = {link for link in links_of((REPOSITORY / "README.md").read_text()) if "://" not in link}
    absolute = links_of(text)
    assert relative and not {link for link in absolute if "://" not in link}
    for link in relative:
        assert {f"{HOME}/blob/main/{link}", f"{HOME}/raw/main/{link}"} & absolute, link


def test_every_address_of_the_project_is_that_of_pyproject():
    pages = [
        *PAGES,
        REPOSITORY / "CITATION.cff",
        REPOSITORY / "pyproject.toml",
        *REPOSITORY.glob(".github/**/*.*"),
    ]
    pattern = re.compile(r"https://github\.com/[\w-]+/vit\b(?!-)")
    addresses = {address for page in pages for address in pattern.findall(page.read_text())}

    assert addresses == {HOME}


def test_the_citation_names_this_version():
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())

    assert citation["version"] == vitcli.__version__
    assert (
        f"## {vitcli.__version__} - {citation['date-released']}" in (REPOSITORY / "CHANGELOG.md").read_text()
    )
    assert len(citation["preferred-citation"]["authors"]) == 12


def test_the_issue_forms_have_the_shape_that_github_takes():
    for form in REPOSITORY.glob(".github/ISSUE_TEMPLATE/*.yml"):
        read = yaml.safe_load(form.read_text())
        if form.name == "config.yml":
            continue
        assert read.keys() <= {"name", "description", "labels", "title", "body"}
        ids = [field["id"] for field in read["body"]]
        assert len(set(ids)) == len(ids)
        assert all(field["type"] in ("textarea", "input", "dropdown", "checkboxes") for field in read["body"])


def test_the_workflow_tests_all_pythons_the_lowest_versions_the_newest_timm_and_macos():
    jobs = yaml.safe_load((REPOSITORY / ".github/workflows/tests.yml").read_text())["jobs"]

    for job in jobs.values():
        assert job.keys() <= JOB_KEYS | {"if", "strategy"}
        for step in job["steps"]:
            assert step.keys() <= STEP_KEYS and ("run" in step) != ("uses" in step)
    matrix = jobs["tests"]["strategy"]["matrix"]
    named = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line}
    assert set(matrix["python"]) == named == {"3.11", "3.12", "3.13", "3.14"}
    assert {row["os"] for row in matrix["include"]} == {"macos-latest"}
    commands = " ".join(step.get("run", "") for job in jobs.values() for step in job["steps"])
    assert jobs["windows"]["runs-on"] == "windows-latest"
    assert all((REPOSITORY / name).exists() for name in re.findall(r"tests/\S+\.py", commands))
    for word in ("lowest-direct", "pytorch-image-models", "ruff check", "mypy", "win32", "docs.make_site"):
        assert word in commands


def test_every_environment_variable_that_is_read_is_documented():
    page = (REPOSITORY / "docs/reference/environment.md").read_text()
    documented = set(re.findall(r"`([A-Z][A-Z_]+)`", page))
    sources = [path.read_text() for path in Path(vitcli.__file__).parent.rglob("*.py")]
    read = {name for source in sources for names in READ.findall(source) for name in names if name}

    assert "VIT_DATA" in read
    assert read <= documented, read - documented


def command_lines(page: Path) -> list[list[str]]:
    """Return the words after `vit` of each command line in a page's code, without what the shell adds."""
    text = page.read_text()
    blocks = re.findall(r"```[a-z]*\n(.*?)```", text, re.DOTALL)
    inline = re.findall(r"`(vit [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()] + inline
    lines = [line.removeprefix("$ ").strip() for line in lines]
    return [shlex.split(line, comments=True)[1:] for line in lines if re.match(r"vit [a-z]", line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_commands_options_and_keys_on_the_pages_exist(page):
    commands = typer.main.get_command(app.app).commands
    for words in command_lines(page):
        if words[0] in ("help", "version"):
            continue
        command = commands[words[0]]
        if hasattr(command, "commands") and words[1:] and words[1] in command.commands:
            command = command.commands[words[1]]
        known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
        # A line of a screen may end a sentence in brackets.
        options = {word.partition("=")[0].rstrip(")") for word in words if re.match(r"--?[a-z]", word)}
        assert options <= known | {"-h", "--help"}, words
        for setting in (words[at + 1] for at, word in enumerate(words) if word == "--set"):
            section, _, key = setting.partition("=")[0].partition(".")
            kind = schema.Recipe.model_fields[section].annotation
            kind = next(
                (part for part in get_args(kind) if part is not type(None)), kind
            )  # of Section | None
            assert key in kind.model_fields, setting
