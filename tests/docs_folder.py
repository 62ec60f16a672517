"""The folder in which the command blocks of README and docs are run, and what makes them quick there.

`prepare` fills it: photos/ in class folders, files of labels, holiday/, finished runs, weights.
`python docs_folder.py WORDS` is `vit` there: the words as a page has them, but for the network, which is the
embedded demo, and for how long it takes.
"""

import os
import shutil
import sys
from pathlib import Path

CLASSES = {
    "buttercup": (230, 200, 20), "coltsfoot": (220, 170, 60), "cowslip": (240, 230, 120),
    "daffodil": (250, 240, 60), "dandelion": (200, 180, 0), "lily_valley": (220, 240, 220),
    "snowdrop": (240, 240, 250), "windflower": (230, 220, 240),
}  # fmt: skip
IMAGES_PER_CLASS = 15
# Weights by name, which a reader downloads; here they are the demo.
NAMES_OF_WEIGHTS = (
    "vit_tiny_patch16",
    "vit_small_patch16",
    "vit_base_patch16",
    "vit_large_patch16",
    "google/vit",
)
# Options and keys that say how long, with the quicker value; None takes them out.
QUICK = {"--epochs": None, "--steps": "3", "--runs": "2", "--folds": "2", "--res": "32"}
QUICK_KEYS = {
    "eval.every": "1", "data.image_size": "32", "schedule.image_sizes": "[16,24,32]", "model.freeze": "1",
}  # fmt: skip
# Commands that end in another code when they have found what they are to find.
CODES = {("datasets", "check"): 3, ("reproduce",): 8}


def draw(path: Path, colour: tuple[int, int, int], seed: int) -> None:
    """Write a photograph's stand-in: blobs of a class's colour, as no other image has them."""
    import numpy as np
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    blobs = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    plain, spotted = Image.new("RGB", (96, 72), colour), Image.fromarray(blobs).resize((96, 72))
    Image.blend(spotted, plain, 0.6).save(path, quality=90)


def prepare(folder: Path) -> None:
    """Fill a folder with what the pages take for given."""
    from tests.conftest import run

    for number, (name, colour) in enumerate(CLASSES.items()):
        for image in range(1, IMAGES_PER_CLASS + 1):
            seed = 1000 + 100 * number + image
            draw(folder / "photos" / name / f"IMG_{seed}.jpg", colour, seed)
        draw(folder / "holiday" / f"DSC_{number + 1:03}.jpg", colour, 5_000 + number)
        draw(folder / "holiday" / f"DSC_{number + 9:03}.jpg", colour, 5_500 + number)
        draw(folder / "more" / f"{number + 1}.jpg", colour, 6_000 + number)
    paths = [path.relative_to(folder) for path in sorted((folder / "photos").rglob("*.jpg"))]
    for name, header, value in (
        ("labels.csv", "file,label", lambda label, number: label),
        ("tags.csv", "file,label", lambda label, number: f"{label}|{'big' if number % 2 else 'small'}"),
        ("ages.csv", "file,age", lambda label, number: 10 * sorted(CLASSES).index(label) + number / 100),
    ):
        rows = [f"{path},{value(path.parent.name, number)}" for number, path in enumerate(paths)]
        (folder / name).write_text("\n".join([header, *rows]) + "\n")
    before = Path.cwd()
    os.chdir(folder)
    try:
        commands = ["export demo vit_b16.npz", "export demo vit_l16.safetensors"]
        options = "--ckpt demo --dataset photos/ --steps 20 -q"
        commands += [
            f"finetune {options} --seed {seed} --out runs/{name}"
            for seed, name in enumerate(("photos", "a", "b"))
        ]
        for words in commands:
            outcome = run(*words.split())
            assert outcome.code == 0, outcome.err
    finally:
        os.chdir(before)


def mess_up(photos: Path) -> None:
    """Put into class folders what real ones have: copies, wrong labels, a broken file, other files."""
    from PIL import Image

    shutil.copy(photos / "daffodil/IMG_1303.jpg", photos / "daffodil/IMG_1303 (1).jpg")
    shutil.copy(photos / "snowdrop/IMG_1607.jpg", photos / "snowdrop/for the web.jpg")
    Image.open(photos / "cowslip/IMG_1205.jpg").resize((48, 36)).save(photos / "cowslip/IMG_1205 small.jpg")
    for path, label in (("coltsfoot/IMG_1109.jpg", "dandelion"), ("snowdrop/IMG_1611.jpg", "lily_valley"),
                        ("buttercup/IMG_1015.jpg", "daffodil")):  # fmt: skip
        (photos / path).rename(photos / label / Path(path).name)
    broken = photos / "windflower/IMG_1704.jpg"
    broken.write_bytes(broken.read_bytes()[:900])
    (photos / "daffodil/IMG_1330.HEIC").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0")
    (photos / "notes.txt").write_text("by the brook, in April\n")


def quick(words: list[str]) -> list[str]:
    """Return the words of a command that takes seconds where that of a page takes minutes."""
    known = [
        word if not word.removeprefix("timm/").startswith(NAMES_OF_WEIGHTS) else "demo" for word in words
    ]
    result: list[str] = []
    while known:
        word = known.pop(0)
        key = known[0].partition("=")[0] if word == "--set" and known else ""
        if word in QUICK:
            result += [word, QUICK[word]] if QUICK[word] else []
            known.pop(0)
        elif key in QUICK_KEYS and known[0] != f"{key}=backbone":
            known.pop(0)
            result += ["--set", f"{key}={QUICK_KEYS[key]}"]
        else:
            result.append(word)
    if result[:1] in (["finetune"], ["pretrain"]) and not {"--steps", "--dry-run"} & {*result}:
        result += ["--steps", "3"]
    return result


if __name__ == "__main__":
    from vitcli.__main__ import main

    sys.argv[1:] = quick(sys.argv[1:])
    expected = next(
        (code for words, code in CODES.items() if tuple(sys.argv[1:][: len(words)]) == words), None
    )
    try:
        main()
    except SystemExit as ended:
        if ended.code != expected:
            raise
