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

from docs import make_examples, make_site
from tests import docs_folder
from tests.browser import Browser
from tests.conftest import REPOSITORY, run
from tests.test_examples import serving
from tests.test_project import HOME, LINK
from vitcli.cli import app
from vitcli.errors import VitError

PAGES = [REPOSITORY / "README.md", *sorted(REPOSITORY.glob("docs/**/*.md"))]
LINKED = [*PAGES, REPOSITORY / "CONTRIBUTING.md", *sorted(REPOSITORY.glob("*/README.md"))]
SOURCE = f"{HOME}/blob/main/"
SITE = tomllib.loads((REPOSITORY / "zensical.toml").read_text())["project"]
LIVE = f"{SITE['site_url']}live/"
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


@pytest.mark.parametrize(("top1", "code"), [(0.7999, 1), (0.8, 0)])
def test_the_accuracy_by_folds_fails_a_job_below_the_bound(top1, code, tmp_path):
    page = (REPOSITORY / "docs" / "scripts-and-ci.md").read_text()
    (line,) = (block for _, block in FENCE.findall(page) if "runs/folds/summary.json" in block)
    (tmp_path / "runs/folds").mkdir(parents=True)
    (tmp_path / "runs/folds/summary.json").write_text(f'{{"top1": {top1}}}')
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    done = subprocess.run(["bash", "-e", "-c", line], cwd=tmp_path, env=os.environ | {"PATH": path})
    assert done.returncode == code


@pytest.mark.slow
def test_the_blocks_of_the_page_on_python_run_one_after_the_other(prepared, tmp_path):
    page = (REPOSITORY / "docs" / "python.md").read_text()
    code = "".join(block for kind, block in FENCE.findall(page) if kind == "python")
    folder = shutil.copytree(prepared, tmp_path / "work")
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(REPOSITORY)}

    done = subprocess.run(
        [sys.executable, "-c", code.replace("steps=60", "steps=3")],
        cwd=folder, env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers = [line.split() for line in done.stdout.splitlines() if line.startswith("holiday/")]
    assert {file for file, _, _ in answers} == {
        f"holiday/{path.name}" for path in (folder / "holiday").iterdir()
    }
    assert all(name in docs_folder.CLASSES and 0 < float(share) <= 1 for _, name, share in answers)


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


def in_navigation(entry: object = SITE["nav"], title: str = "") -> list[tuple[str, str]]:
    """Return each page with its title, in order."""
    match entry:
        case str():
            return [(title, entry)]
        case dict():
            return [pair for name, below in entry.items() for pair in in_navigation(below, name)]
        case _:
            return [pair for below in entry for pair in in_navigation(below)]


def test_every_page_is_in_the_navigation_of_the_site():
    """No page is found by searching alone, and none in the navigation is missing."""
    pages = [str(page.relative_to(REPOSITORY / "docs")) for page in REPOSITORY.glob("docs/**/*.md")]

    assert sorted(path for _, path in in_navigation()) == sorted(pages)


def test_llms_txt_has_every_page_of_the_navigation_with_its_first_sentence(tmp_path):
    make_site.add_texts(tmp_path)

    title, _, summary, _, *lines = (tmp_path / "llms.txt").read_text().splitlines()
    assert (title, summary[:2]) == ("# vit", "> ")
    listed = [
        re.fullmatch(r"- \[(.+?)\]\((.+?)\): (.+[.])", line) for line in lines if line[:1] not in ("", "#")
    ]
    assert [(name, url) for name, url, _ in (line.groups() for line in listed)] == [
        ("Skill file", f"{SITE['site_url']}skill.md"),
        *((name, SITE["site_url"] + path) for name, path in in_navigation()),
    ]


@pytest.mark.parametrize("page", sorted(REPOSITORY.glob("docs/**/*.md")), ids=named)
def test_a_page_begins_with_the_sentence_that_llms_txt_has_of_it(page):
    text = re.sub(r"<!--.*?-->", "", without_code(page.read_text())).strip()
    heading, _, rest = text.partition("\n\n")
    rest = " ".join(re.sub(r"\]\([^)]*\)|\[", "", re.sub(r"\s\(\[[^)]*\)\)", "", rest)).split())

    sentence = make_site.first_sentence(page.read_text())

    assert heading.startswith("# ") and sentence.endswith(".") and len(sentence) > 30
    assert rest.startswith(sentence) and (rest + " A")[len(sentence) + 1] in 'ABCDEFGHIJKLMNOPQRSTUVWXYZ`"|-#'


def test_llms_txt_takes_the_first_sentence_of_a_page():
    page = "<!-- a note -->\n\n# A title. With two\n\n```\nvit x. Y\n\nz\n```\n\n"
    page += "See [this\nword](x.md) ([why](y.md)), 0.5 %. More."

    assert make_site.first_sentence(page) == "See this word, 0.5 %."


def test_the_site_has_what_vit_skill_prints(tmp_path):
    make_site.add_texts(tmp_path)

    assert (tmp_path / "skill.md").read_text() == run("skill").out


def test_a_link_to_a_file_of_the_site_becomes_relative_and_other_links_stay():
    home = SITE["site_url"]
    others = f'<link href="{home}reference/commands/"><a href="https://a.org/b.html"> {home}live/why.html'
    page = f'{others}<a href="{home}live/why.html"><a href="{home}llms.txt">'

    assert (
        make_site.finish(page, "../..") == f'{others}<a href="../../live/why.html"><a href="../../llms.txt">'
    )


def test_a_word_of_code_in_a_line_is_not_cut_at_its_hyphen():
    block = "<pre><span></span><code>vit x --a-b\n</code></pre>"

    assert make_site.finish(f"{block}<code>run --a-b c</code>", ".") == (
        f'{block}<code>run <span class="whole">--a-b</span> c</code>'
    )


def test_every_live_example_that_a_page_links_to_is_made():
    links = [link for page in LINKED for pair in LINK.findall(page.read_text()) for link in pair]
    pages = {link.removeprefix(LIVE) for link in links if link.startswith(LIVE)}

    assert pages == {*make_examples.linked()}
    written = {
        word for words in make_examples.command_lines() for word in words if word.endswith((".html", ".csv"))
    }
    assert pages == {name.replace(".csv", ".html") for name in written} | {"inspection.html"}


@pytest.mark.slow
def test_live_examples_open_fit_a_phone_and_ask_for_nothing(tmp_path):
    """Made by the tool itself: it finds exactly the wrong labels that were put in."""
    make_examples.main(tmp_path / "live")

    wrong = len(range(0, 600, make_examples.EVERY))
    assert f"{wrong} of 600 labels suspicious" in (tmp_path / "live/suspects.html").read_text()
    with serving(tmp_path) as address, Browser(tmp_path / "profile") as browser:
        for name in make_examples.linked():
            for width in (1280, 390):
                browser.open(f"{address}/live/{name}", width=width)
                assert browser.value("document.documentElement.scrollWidth <= window.innerWidth"), name
                assert browser.value("document.querySelector('h1').textContent.length") > 5
                assert [url for url in browser.requests() if not url.startswith("data:")] == [
                    f"{address}/live/{name}"
                ]
                relative = "[...document.links].filter(link => !link.hash).map(link => link.href)"
                assert browser.value(relative) == []
        columns = "getComputedStyle(document.querySelector('.image-rows .thumbnails')).gridTemplateColumns"
        browser.open(f"{address}/live/suspects.html", width=390)
        assert len(browser.value(columns).split()) == 3
        browser.open(f"{address}/live/report.html", width=1280)
        assert browser.value("document.querySelector('.runs thead th:last-child').offsetWidth") < 120


def rows_of_other_tools() -> list[tuple[list[str], list[str]]]:
    """Return the code of both cells of each row of docs/coming-from.md: theirs and ours."""
    lines = (REPOSITORY / "docs/coming-from.md").read_text().splitlines()
    cells = [line.strip("|").split(" | ") for line in lines if line.startswith("| ")]
    return [(re.findall(r"`([^`]+)`", theirs), re.findall(r"`([^`]+)`", ours)) for theirs, ours in cells]


def test_an_option_of_another_tool_is_answered_with_what_to_type_here():
    theirs = {
        word
        for codes, _ in rows_of_other_tools()
        for code in codes
        for word in code.split()
        if code.startswith("-") and re.match(r"--?[a-z]", word)
    }

    assert len(theirs) > 20
    for option in sorted(theirs):
        error = run("finetune", "--ckpt", "demo", option, "x").err
        if "there is no option" in error:
            assert "did you mean" in error or "lists the options" not in error, option


@pytest.mark.slow
def test_what_other_tools_have_here_is_taken_by_a_run(prepared, monkeypatch):
    monkeypatch.chdir(prepared)
    options = [code for _, ours in rows_of_other_tools() for code in ours if re.match("--.* ", code)]
    refused = []
    for option in options:
        words = docs_folder.quick(shlex.split(option))
        if {"owner/name", "fp16", "--topk"} & {*words}:  # the Hub, a GPU, another command
            continue
        data = "tags.csv" if "objective.loss=sigmoid" in words else "photos"
        data = "ages.csv" if "objective.loss=regression" in words else data
        named = [] if "--dataset" in words else ["--dataset", data]
        outcome = run("finetune", "--ckpt", "demo", "--dry-run", *named, *words)
        refused += [f"{option}: {outcome.err}"] if outcome.code else []

    assert len(options) > 20 and not refused, "\n".join(refused)
