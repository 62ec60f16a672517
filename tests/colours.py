"""Runs that note which images reach their network: `python -m tests.colours NOTES WORDS...`, on any process.

Each image has one colour, which no crop or mirror changes. NOTES gets a line of JSON for each micro-batch:
its step, its place in the step over all processes, and the numbers of its images.
"""

import json
import sys
from pathlib import Path

from PIL import Image
from torch import Tensor

from tests.faulty_disk import command
from vitcli.data import sampler
from vitcli.training import loop


def make_images(folder: Path, count: int) -> None:
    """Write images of two classes, of which the first four are held out, too."""
    for number in range(count):
        for split in ("train", "test")[: 1 + (number < 4)]:
            place = folder / split / "ab"[number % 2]
            place.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (20, 20), (5 + number, 250 - number, 128)).save(place / f"{number:03}.png")


def numbers_of(images_BCHW: Tensor) -> list[int]:
    """Return which images a batch holds; each must be a whole one, without padding."""
    reds_B, greens_B = images_BCHW[:, :2].flatten(2).double().mean(2).T.tolist()
    assert all(abs(red + green - 255) < 0.1 for red, green in zip(reds_B, greens_B, strict=True))
    return [round(red) - 5 for red in reds_B]


def note_images(notes: Path) -> None:
    """Let this process write a line for each micro-batch that it trains on."""
    derive_seed, to_model_range, place = sampler.derive_seed, loop.to_model_range, []

    def derived(seed: int, *path: object) -> int:
        if path[0] == "model":
            place[:] = path[1:]
        return derive_seed(seed, *path)

    def noted(images_BCHW: Tensor, **how) -> Tensor:
        with notes.open("a") as lines:
            lines.write(json.dumps([*place, numbers_of(images_BCHW)]) + "\n")
        return to_model_range(images_BCHW, **how)

    sampler.derive_seed, loop.to_model_range = derived, noted


def main(notes: str, *words: str) -> int:
    note_images(Path(notes))
    return command(list(words))()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
