"""Make the picture of README: what `vit predict --why` says of three images, as a browser shows its page.

    python -m docs.make_pictures [RUN]

RUN is a finished run of `vit finetune`, the demo; without it one is trained first, in minutes. The images are
drawn by the demo, too: of sixty that it was not trained on, the three that are the most doubtful.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageChops

from tests.browser import Browser
from vitcli.data import demo

PICTURE = Path(__file__).resolve().parent / "figures/why.png"
WIDTH, MARGIN = 920, 16  # pixels


def vit(*words: object) -> str:
    command = [sys.executable, "-m", "vitcli", *map(str, words)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def draw_images(folder: Path) -> list[Path]:
    """Write images of the demo's test split; a name says what is drawn."""
    paths = []
    for row in range(60):
        pixels_HWC, label = demo.draw("demo", "test", row)
        name = demo.SETS["demo"].class_names[label].replace(" ", "-")
        paths.append(folder / f"{name}-{row}.png")
        Image.fromarray(pixels_HWC).save(paths[-1])
    return paths


def picture_of(page: Path, profile: Path) -> Image.Image:
    """Return a page as a headless Chromium shows it, without the white around it."""
    shot = profile / "shot.png"
    with Browser(profile) as browser:
        browser.open(page.as_uri(), width=WIDTH)
        browser.screenshot(shot)
    image = Image.open(shot).convert("RGB")
    left, top, right, bottom = ImageChops.difference(image, Image.new("RGB", image.size, "white")).getbbox()
    return image.crop((max(left - MARGIN, 0), max(top - MARGIN, 0), right + MARGIN, bottom + MARGIN))


def main(run: str | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if run is None:
            run = str(folder / "run")
            vit("finetune", "--out", run)
        images = draw_images(folder)
        lines = vit("predict", *images, "--ckpt", run, "--jsonl", "-q").splitlines()
        probabilities = [json.loads(line)["top"][0]["probability"] for line in lines]
        doubtful = [image for _, image in sorted(zip(probabilities, images, strict=True))[:3]]
        vit("predict", *doubtful, "--ckpt", run, "--why", folder / "why.html", "-q")
        picture_of(folder / "why.html", folder / "profile").quantize(128).save(PICTURE, optimize=True)
    print(f"{PICTURE.name}: {PICTURE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(*sys.argv[1:] or [None])
