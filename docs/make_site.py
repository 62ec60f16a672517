"""Make the site: what zensical builds of docs/, with live examples and files for programs that read it.

    python -m docs.make_site [FOLDER]

FOLDER is that of a site which is built already; without it, zensical builds site/ first, strictly. It gets:

    live/             the pages of docs/live-examples.md (docs/make_examples.py)
    llms.txt          every page of the navigation with its first sentence, in the form of llmstxt.org
    skill.md          what `vit skill` prints
    PAGE.md           each page as Markdown, to which llms.txt links
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from docs import make_examples
from vitcli.cli import skill

DOCS = Path(__file__).resolve().parent
PROJECT = tomllib.loads((DOCS.parent / "zensical.toml").read_text(encoding="utf-8"))["project"]
SKILL = "Commands with all options, exit codes, JSON keys and recipes of use, as `vit skill` prints them."
FILE_LINK = re.compile(rf'href="{re.escape(PROJECT["site_url"])}([\w./-]+\.(?:html|md|txt))"')
CODE = re.compile(r"(?<!<span></span>)<code>([^<]+)</code>")  # in a line of text
HYPHENATED, WHOLE = re.compile(r"(?<!\S)\S*-\S*(?!\S)"), r'<span class="whole">\g<0></span>'
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def first_sentence(page: str) -> str:
    """Return the first sentence of a page in Markdown, without its links."""
    paragraphs = re.split(r"\n\s*\n", FENCE.sub("", page).strip())
    first = next(one for one in paragraphs if one.strip() and one.strip()[0] not in "#<|-!")
    text = re.sub(r" \(\[[^\]]*\]\([^)]*\)\)", "", " ".join(first.split()))  # a link in brackets
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.split(r'(?<=[.!?]) (?=[A-Z`"])', text)[0]


def llms() -> str:
    """Return llms.txt: a title, a summary, and the sections of the navigation with a line for each page."""
    address = PROJECT["site_url"]
    lines = [f"# {PROJECT['site_name']}", "", f"> {PROJECT['site_description']}.", "", "## Start", ""]
    lines += [f"- [Skill file]({address}skill.md): {SKILL}"]
    for entry in PROJECT["nav"]:
        ((title, below),) = entry.items()
        if isinstance(below, list):
            lines += ["", f"## {title}", ""]
        for page in below if isinstance(below, list) else [entry]:
            ((name, path),) = page.items()
            sentence = first_sentence((DOCS / path).read_text(encoding="utf-8"))
            lines.append(f"- [{name}]({address}{path}): {sentence}")
    return "\n".join([*lines, ""])


def add_texts(site: Path) -> None:
    """Write llms.txt, skill.md and the pages as Markdown."""
    (site / "llms.txt").write_text(llms(), encoding="utf-8")
    (site / "skill.md").write_text(skill.skill_file(), encoding="utf-8")
    for page in DOCS.rglob("*.md"):
        path = site / page.relative_to(DOCS)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(page, path)


def finish(page: str, to_site: str) -> str:
    """Return a page whose links to files of the site are relative, and whose code in a line has whole words.

    Args:
        to_site: the path from the page's folder to that of the site.
    """
    page = FILE_LINK.sub(rf'href="{to_site}/\1"', page)
    return CODE.sub(lambda found: f"<code>{HYPHENATED.sub(WHOLE, found[1])}</code>", page)


def main(folder: str | None) -> None:
    site = Path(folder or DOCS.parent / "site")
    if folder is None:
        subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=DOCS.parent, check=True)
    shutil.rmtree(site / "__pycache__", ignore_errors=True)  # of these scripts
    add_texts(site)
    make_examples.main(site / "live")
    for page in site.rglob("index.html"):
        text = page.read_text(encoding="utf-8")
        page.write_text(finish(text, Path(os.path.relpath(site, page.parent)).as_posix()), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:] or [None])
