"""README and docs: tables, links, anchors, command lines that parse, and blocks that run."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from itertools import takewhile
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import typer

from tests import docs_folder
from tests.browser import Browser
from tests.conftest import REPOSITORY
from tests.test_examples import serving
from tests.test_project import HOME, LINK
from vitcli.cli import app
from vitcli.errors import VitError

PAGES = [REPOSITORY / "README.md", *sorted(REPOSITORY.glob("docs/**/*.md"))]
LINKED = [*PAGES, REPOSITORY / "CONTRIBUTING.md", *sorted(REPOSITORY.glob("*/README.md"))]
SOURCE = f"{HOME}/blob/main/"
WIDEST_TABLE = 160
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
OPERATORS = {">", ">>", "<", "|", "||", "&&", ";", "2>", "&"}
AS_IT_WAS = {"finetuning-protocol.md"}  # a protocol is not rewritten once its runs have been made

# Blocks that are not run, by a word of theirs, and why.
NOT_RUN = {
    "pip install": "installs this package, which .ci/run does",
}


def named(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


def without_code(text: str) -> str:
    return FENCE.sub("", text)


def slugs(text: str) -> set[str]:
    """Return the anchors of a page's headings by GitHub's rule, and those that are written out."""
    seen: dict[str, int] = {}
    result = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    for heading in re.findall(r"^#{1,6} +(.+?)(?: +#+)?$", without_code(text), re.MULTILINE):
        shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")
        result.add(f"{slug}-{seen[slug]}" if slug in seen else slug)
        seen[slug] = seen.get(slug, 0) + 1
    return result


def test_slugs_are_those_of_github():
    text = "# `vit` & its *tables*\n## A b\n## A b\n```\n# no heading\n```\n### [Ci](x.md): 5-fold, top_1\n"

    assert slugs(text) == {"vit--its-tables", "a-b", "a-b-1", "ci-5-fold-top_1"}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_no_line_of_a_table_is_wider_than_a_screen(page):
    lines = without_code(page.read_text()).splitlines()

    assert page.name in AS_IT_WAS or not [
        line for line in lines if line.startswith("|") and len(line) > WIDEST_TABLE
    ]


@pytest.mark.parametrize("page", LINKED, ids=named)
def test_every_link_leads_to_a_file_and_every_anchor_to_a_heading(page):
    broken = []
    for link in (first or second for first, second in LINK.findall(without_code(page.read_text()))):
        if link.startswith(SOURCE):
            path, _, anchor = link.removeprefix(SOURCE).partition("#")
            target = REPOSITORY / path
        elif "://" in link or link.startswith("mailto:"):
            continue
        else:
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in slugs(target.read_text())
        ):
            broken.append(link)

    assert not broken


@pytest.mark.parametrize("page", sorted(REPOSITORY.glob("docs/**/*.md")), ids=named)
def test_what_lies_outside_docs_is_linked_by_its_address(page):
    """The site holds docs/ alone, and its strict build refuses other paths."""
    links = [first or second for first, second in LINK.findall(without_code(page.read_text()))]
    paths = [page.parent / link.partition("#")[0] for link in links if "://" not in link]

    assert not [
        path for path in paths if REPOSITORY / "docs" not in (path.resolve(), *path.resolve().parents)
    ]


def lines_of(block: str) -> list[list[str]]:
    """Return the words after `vit` of each line of a block, up to what is the shell's."""
    lines = [line.strip() for line in block.replace("\\\n", " ").splitlines()]
    words = [shlex.split(line, comments=True)[1:] for line in lines if re.match(r"vit [a-z-]", line)]
    return [list(takewhile(lambda word: word not in OPERATORS, line)) for line in words]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_command_line_parses(page):
    commands = typer.main.get_command(app.app).commands
    blocks = [block for kind, block in FENCE.findall(page.read_text()) if kind in ("", "console", "bash")]
    for words in (line for block in blocks for line in lines_of(block)):
        if words[0].startswith("-") or words[0] in ("help", "version") or {"-h", "--help"} & {*words}:
            continue
        command, given = commands[words[0]], words[1:]
        while given and given[0] in getattr(command, "commands", ()):
            command, given = command.commands[given[0]], given[1:]
        try:
            command.make_context(command.name, given)
        except (VitError, typer._click.ClickException) as error:
            pytest.fail(f"vit {shlex.join(words)}: {error}")


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_blocks_are_of_a_known_kind_and_have_no_prompts(page):
    blocks = FENCE.findall(page.read_text())

    assert {kind for kind, _ in blocks} <= {"", "console", "text", "bash", "python", "toml", "yaml", "json"}
    assert not [
        block for kind, block in blocks if kind in ("", "console") and re.search(r"^\$ ", block, re.MULTILINE)
    ]


def blocks_to_run(page: Path) -> list[str]:
    blocks = [block for kind, block in FENCE.findall(page.read_text()) if not kind]
    return [block for block in blocks if not any(word in block for word in NOT_RUN)]


RUN = [page for page in PAGES if "evidence" not in page.parts and blocks_to_run(page)]


@pytest.fixture(scope="session")
def prepared(made_once) -> Path:
    return made_once("docs_folder", docs_folder.prepare)


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=named)
def test_every_command_block_runs_as_it_stands(page, prepared, tmp_path):
    folder, bin = tmp_path / "work", tmp_path / "bin"
    shutil.copytree(prepared, folder)
    if page.name in ("README.md", "get-started.md"):  # which begin without runs
        shutil.rmtree(folder / "runs")
    if page.name == "get-started.md":  # and this one with a folder as people have it
        docs_folder.mess_up(folder / "photos")
    bin.mkdir()
    (bin / "vit").write_text(f'#!/bin/sh\nexec "{sys.executable}" "{docs_folder.__file__}" "$@"\n')
    (bin / "vit").chmod(0o755)
    home = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(REPOSITORY)}
    env = os.environ | home | {"PATH": f"{bin}{os.pathsep}{os.environ['PATH']}"}
    failures = []
    for block in blocks_to_run(page):
        done = subprocess.run(
            ["bash", "-e", "-c", block], cwd=folder, env=env, capture_output=True, text=True, timeout=600
        )
        if done.returncode:
            failures.append(
                f"{block}\nexit code {done.returncode}\n{done.stdout[-500:]}\n{done.stderr[-1500:]}"
            )

    assert not failures, "\n\n".join(failures)


def test_every_reason_not_to_run_a_block_is_needed():
    blocks = [block for page in PAGES for kind, block in FENCE.findall(page.read_text()) if not kind]

    assert not [word for word in NOT_RUN if not any(word in block for block in blocks)]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site of docs/, built strictly: a broken link or anchor ends it."""
    zensical = shutil.which("zensical") or shutil.which("zensical", path=str(Path(sys.executable).parent))
    if not zensical:
        pytest.skip("zensical is not installed: pip install -e '.[docs]'")
    root = tmp_path_factory.mktemp("site")
    shutil.copytree(REPOSITORY / "docs", root / "docs")
    shutil.copy(REPOSITORY / "zensical.toml", root)
    done = subprocess.run([zensical, "build", "--strict"], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return root / "site"


@pytest.mark.slow
def test_the_site_has_every_page(site):
    pages = {page.parent.relative_to(site) for page in site.rglob("index.html")}

    for page in REPOSITORY.glob("docs/**/*.md"):
        path = page.relative_to(REPOSITORY / "docs").with_suffix("")
        assert (path.parent if path.name == "README" else path) in pages


@pytest.mark.slow
def test_a_page_of_the_site_fits_a_phone_has_a_search_and_asks_no_other_host(site, tmp_path):
    asked = []
    with serving(site) as address, Browser(tmp_path / "profile") as browser:
        for width in (1280, 390):
            browser.open(f"{address}/get-started/", width=width)
            time.sleep(2)  # for what scripts ask for later
            assert browser.value("document.documentElement.scrollWidth <= window.innerWidth")
            asked += [url for url in browser.requests() if not url.startswith("data:")]

    assert {urlsplit(url).netloc for url in asked} == {urlsplit(address).netloc}
    assert f"{address}/search.json" in asked


def test_every_page_is_in_the_navigation_of_the_site():
    """No page is found by searching alone, and none in the navigation is missing."""
    config = tomllib.loads((REPOSITORY / "zensical.toml").read_text())["project"]

    def paths(entry: object) -> list[str]:
        match entry:
            case str():
                return [entry]
            case dict():
                return [path for value in entry.values() for path in paths(value)]
            case _:
                return [path for value in entry for path in paths(value)]

    pages = [str(page.relative_to(REPOSITORY / "docs")) for page in REPOSITORY.glob("docs/**/*.md")]
    assert sorted(paths(config["nav"])) == sorted(pages)
