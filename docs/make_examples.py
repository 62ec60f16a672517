"""Make the live examples of the site: pages that the tool writes, of drawings that its demo makes.

    python -m docs.make_examples FOLDER

The command lines of docs/live-examples.md are run, without a network and in a minute of one core; each page
that is linked there goes into FOLDER.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from vitcli.data import demo

PAGE = Path(__file__).with_name("live-examples.md")
LINK = re.compile(r"\]\(https?://[^)\s]*/live/([\w-]+\.html)\)")
TO_RUN = re.compile(r'<a href="\./runs/[^"]*">(.*?)</a>')  # of a report; the site has no run folders
EVERY = 59  # one image in 59 has a wrong label; no class has two


def vit(folder: Path, *words: object) -> str:
    """Run a command in a folder, so that no path of this machine is on its pages."""
    command = [sys.executable, "-m", "vitcli", *map(str, words)]
    env = os.environ | {"HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, cwd=folder, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout


def draw(split: str, row: int) -> tuple[Image.Image, str, str]:
    """Return a drawing of the demo with the name of its class and that of the next class."""
    names = [name.replace(" ", "-") for name in demo.SETS["demo"].class_names]
    pixels_HWC, label = demo.draw("demo", split, row)
    return Image.fromarray(pixels_HWC), names[label], names[(label + 1) % len(names)]


def draw_folders(folder: Path) -> None:
    """Fill photos/ with class folders, some images in the wrong one, and holiday/ with new images."""
    (folder / "holiday").mkdir()
    for row in range(24):
        draw("test", row)[0].save(folder / f"holiday/DSC_{row + 1:03}.jpg", quality=95)
    for row in range(600):
        image, name, wrong = draw("train", row)
        path = folder / "photos" / (wrong if row % EVERY == 0 else name) / f"IMG_{row:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path, quality=95)


def command_lines() -> list[list[str]]:
    """Return the words after `vit` of each command line on the page."""
    lines = PAGE.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("vit ")]


def linked() -> list[str]:
    """Return the file names of the live pages that the page links to."""
    return LINK.findall(PAGE.read_text(encoding="utf-8"))


def main(live: Path) -> None:
    live.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw_folders(folder)
        for words in command_lines():
            print("vit", shlex.join(words), flush=True)
            vit(folder, *words, "-q")
        for page in linked():
            (made,) = folder.rglob(page)
            (live / page).write_text(TO_RUN.sub(r"\1", made.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
