"""Make the pictures of README and docs/label.md, as a browser shows the pages of `vit`.

    python -m docs.make_pictures [RUN]

README has what `vit predict --why` says of two images. RUN is a finished run of `vit finetune`, the demo;
without it one is trained first, in minutes. The images are drawn by the demo, too: of sixty that it was not
trained on, the two that are the most doubtful. docs/label.md has the page of `vit label` after some labels.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from PIL import Image, ImageChops

from docs.make_examples import draw, vit
from tests.browser import Browser

PICTURE, OF_LABELS = (Path(__file__).resolve().parent / "figures" / name for name in ("why.png", "label.png"))
RUN = "runs/demo"
WIDTH, MARGIN = 1000, 16  # pixels
NUM_LABELS = 40


def draw_images(folder: Path) -> list[Path]:
    """Write images of the demo's test split into a folder; a name says what is drawn."""
    paths = []
    for row in range(60):
        image, name, _ = draw("test", row)
        paths.append(Path(f"{name}-{row}.png"))
        image.save(folder / paths[-1])
    return paths


def picture_of(url: str, profile: Path) -> Image.Image:
    """Return a page as a headless Chromium shows it, without the white around it."""
    shot = profile / "shot.png"
    with Browser(profile) as browser:
        browser.open(url, width=WIDTH)
        time.sleep(1)  # until its images are laid out
        browser.screenshot(shot)
    image = Image.open(shot).convert("RGB")
    left, top, right, bottom = ImageChops.difference(image, Image.new("RGB", image.size, "white")).getbbox()
    right, bottom = min(right + MARGIN, image.width), min(bottom + MARGIN, image.height)
    return image.crop((max(left - MARGIN, 0), max(top - MARGIN, 0), right, bottom))


def draw_photos(folder: Path) -> None:
    """Write 300 images of the demo into a folder; a name says what is drawn."""
    folder.mkdir()
    for row in range(300):
        image, name, _ = draw("train", row)
        image.save(folder / f"{name}-{row}.png")


def ask(address: str, path: str, click: dict[str, object] | None = None) -> dict[str, object]:
    """Return what the page of `vit label` gets."""
    content = click and json.dumps(click).encode()
    request = urllib.request.Request(address + path, content, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def picture_of_labels(folder: Path) -> Image.Image:
    """Return the page of `vit label` after forty labels."""
    command = [sys.executable, "-m", "vitcli", "label", "photos", "-q"]
    env = os.environ | {"HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline().split()[0]
        state = ask(address, "state")
        while state["num_labels"] < NUM_LABELS:
            name = state["shown"]["name"].rpartition("-")[0].replace("-", " ")
            state = ask(address, "click", {"state": state["state"], "label": name})
        picture = picture_of(address, folder / "labelling")
        process.send_signal(signal.SIGTERM)
    return picture


def main(run: str | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw_photos(folder / "photos")
        picture_of_labels(folder).quantize(128).save(OF_LABELS, optimize=True)
        if run is None:
            vit(folder, "finetune", "--out", RUN)
        else:
            shutil.copytree(run, folder / RUN)
        images = draw_images(folder)
        lines = vit(folder, "predict", *images, "--ckpt", RUN, "--jsonl", "-q").splitlines()
        probabilities = [json.loads(line)["top"][0]["probability"] for line in lines]
        doubtful = [image for _, image in sorted(zip(probabilities, images, strict=True))[:2]]
        vit(folder, "predict", *doubtful, "--ckpt", RUN, "--why", "why.html", "-q")
        picture_of((folder / "why.html").as_uri(), folder / "profile").quantize(128).save(
            PICTURE, optimize=True
        )
    for picture in (OF_LABELS, PICTURE):
        print(f"{picture.name}: {picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(*sys.argv[1:] or [None])
