"""Cut a release: `python tools/release.py 1.0.0`, or with --dry-run all of it but the commit and the tag.

Works in a fresh clone of HEAD: writes the version, builds wheel and sdist, checks them with twine, installs
the wheel into a fresh environment and tries it there. Only then does the repository get commit and tag, and
dist/ wheel and sdist; `twine upload dist/*` and `git push --follow-tags` publish them.
"""

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
MOST_NEWS = 60  # lines of the changelog of a release: what a user can do now
UNRELEASED = "## Unreleased"
TRIALS = (
    "vit finetune --steps 2 --batch-size 8 --out run --quiet --json",
    "vit predict --ckpt run {image} --quiet --json",
    "vit export run run.npz --quiet --json",
)
PYTHON_TRIAL = "import vitcli; print(vitcli.evaluate('run', quiet=True).top1)"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("version", help="such as 1.0.0")
    parser.add_argument("--dry-run", action="store_true", help="change nothing in the repository")
    parser.add_argument(
        "--packages-from-here",
        action="store_true",
        help="let the fresh environment find the dependencies of this one, for machines without a network",
    )
    asked = parser.parse_args()
    if run("git", "status", "--porcelain", "--untracked-files=no") and not asked.dry_run:
        sys.exit("commit first: the working tree has changes")
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        run("git", "clone", "--quiet", str(REPOSITORY), str(clone))
        write_version(clone, asked.version, datetime.date.today(), needs_news=not asked.dry_run)
        built = build(clone)
        try_wheel(built, Path(folder), asked.version, packages_from_here=asked.packages_from_here)
        if asked.dry_run:
            print(f"{asked.version} can be released: {', '.join(path.name for path in built)}")
            return
        commit(clone, asked.version)
        shutil.copytree(clone / "dist", REPOSITORY / "dist", dirs_exist_ok=True)
    print(f"released {asked.version}: twine upload dist/*; git push --follow-tags")


def run(*words: str, cwd: Path = REPOSITORY) -> str:
    """Run a command on installed packages alone and return what it prints; end the release if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def write_version(root: Path, version: str, day: datetime.date, *, needs_news: bool = True) -> None:
    """Write the version into the package, the citation and the changelog.

    Args:
        needs_news: refuse a release without anything new; a dry run may follow right after one.
    """
    if not re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+(rc[0-9]+)?", version):
        sys.exit(f"{version!r} is not a version such as 1.0.0 or 1.0.0rc1")
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if f"## {version} - " in changelog:
        sys.exit(f"CHANGELOG.md has {version} already")
    news = changelog.partition(UNRELEASED)[2].partition("\n## ")[0].strip()
    if not news and needs_news:
        sys.exit(f"CHANGELOG.md has nothing below {UNRELEASED}")
    if len(news.splitlines()) > MOST_NEWS:
        sys.exit(f"{len(news.splitlines())} lines below {UNRELEASED}; a reader finishes {MOST_NEWS}")
    replace(root / "CHANGELOG.md", re.escape(UNRELEASED), f"{UNRELEASED}\n\n## {version} - {day}")
    replace(root / "vitcli" / "__init__.py", r'__version__ = ".*"', f'__version__ = "{version}"')
    replace(root / "CITATION.cff", r"(?m)^version: .*$", f"version: {version}")
    replace(root / "CITATION.cff", r"(?m)^date-released: .*$", f"date-released: {day}")


def replace(path: Path, pattern: str, by: str) -> None:
    """Replace the one place of a file that has the pattern."""
    text, count = re.subn(pattern, lambda _: by, path.read_text(encoding="utf-8"), count=1)
    if not count:
        sys.exit(f"{path.name} has no {pattern}")
    path.write_text(text, encoding="utf-8")


def build(root: Path) -> list[Path]:
    """Build wheel and sdist, and let twine check what a package index would refuse."""
    run(sys.executable, "-m", "build", "--no-isolation", cwd=root)
    built = sorted((root / "dist").iterdir())
    print(run(sys.executable, "-m", "twine", "check", "--strict", *map(str, built), cwd=root), end="")
    return built


def try_wheel(built: list[Path], folder: Path, version: str, *, packages_from_here: bool) -> None:
    """Install the wheel into a fresh environment, and use it there."""
    home = folder / "environment"
    run(sys.executable, "-m", "venv", str(home))
    (wheel,) = (path for path in built if path.suffix == ".whl")
    install = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", str(wheel)]
    if packages_from_here:
        (site,) = home.glob("lib/python*/site-packages")
        (site / "here.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
        install += ["--no-deps", "--no-index"]
    run(*install)
    work = folder / "work"
    work.mkdir()
    versions = json.loads(run(str(home / "bin" / "vit"), "--version", "--json", cwd=work))
    if versions["vit"] != version:
        sys.exit(f"the wheel of {version} says that it is {versions['vit']}")
    figure = next((REPOSITORY / "docs" / "figures").glob("*.png"))
    for line in TRIALS:
        words = line.format(image=figure).split()
        json.loads(run(str(home / "bin" / words[0]), *words[1:], cwd=work))
    run(str(home / "bin" / "python"), "-c", PYTHON_TRIAL, cwd=work)


def commit(clone: Path, version: str) -> None:
    """Commit the version in the clone, tag it, and give both to the repository that was cloned."""
    branch = run("git", "rev-parse", "--abbrev-ref", "HEAD", cwd=clone).strip()
    run("git", "commit", "--all", "--quiet", "--message", f"Version {version}", cwd=clone)
    run("git", "tag", "--annotate", f"v{version}", "--message", f"Version {version}", cwd=clone)
    run("git", "fetch", "--quiet", str(clone), branch, f"refs/tags/v{version}:refs/tags/v{version}")
    run("git", "merge", "--quiet", "--ff-only", "FETCH_HEAD")


if __name__ == "__main__":
    main()
