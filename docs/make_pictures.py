"""Make the picture of README: what `vit predict --why` says of two images, as a browser shows its page.

    python -m docs.make_pictures [RUN]

RUN is a finished run of `vit finetune`, the demo; without it one is trained first, in minutes. The images are
drawn by the demo, too: of sixty that it was not trained on, the two that are the most doubtful.
"""

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image, ImageChops

from docs.make_examples import draw, vit
from tests.browser import Browser

PICTURE = Path(__file__).resolve().parent / "figures/why.png"
RUN = "runs/demo"
WIDTH, MARGIN = 1000, 16  # pixels


def draw_images(folder: Path) -> list[Path]:
    """Write images of the demo's test split into a folder; a name says what is drawn."""
    paths = []
    for row in range(60):
        image, name, _ = draw("test", row)
        paths.append(Path(f"{name}-{row}.png"))
        image.save(folder / paths[-1])
    return paths


def picture_of(page: Path, profile: Path) -> Image.Image:
    """Return a page as a headless Chromium shows it, without the white around it."""
    shot = profile / "shot.png"
    with Browser(profile) as browser:
        browser.open(page.as_uri(), width=WIDTH)
        time.sleep(1)  # until its images are laid out
        browser.screenshot(shot)
    image = Image.open(shot).convert("RGB")
    left, top, right, bottom = ImageChops.difference(image, Image.new("RGB", image.size, "white")).getbbox()
    right, bottom = min(right + MARGIN, image.width), min(bottom + MARGIN, image.height)
    return image.crop((max(left - MARGIN, 0), max(top - MARGIN, 0), right, bottom))


def main(run: str | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if run is None:
            vit(folder, "finetune", "--out", RUN)
        else:
            shutil.copytree(run, folder / RUN)
        images = draw_images(folder)
        lines = vit(folder, "predict", *images, "--ckpt", RUN, "--jsonl", "-q").splitlines()
        probabilities = [json.loads(line)["top"][0]["probability"] for line in lines]
        doubtful = [image for _, image in sorted(zip(probabilities, images, strict=True))[:2]]
        vit(folder, "predict", *doubtful, "--ckpt", RUN, "--why", "why.html", "-q")
        picture_of(folder / "why.html", folder / "profile").quantize(128).save(PICTURE, optimize=True)
    print(f"{PICTURE.name}: {PICTURE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(*sys.argv[1:] or [None])
