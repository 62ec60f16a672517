"""Cut the second checking sets of docs/evidence/finetuning-protocol.md out of public repositories.

    python benchmarks/public_sets.py --set satellite_aid30 --tree CHECKOUT --out FOLDER

CHECKOUT is a working tree of the repository at the commit that the protocol names. What is chosen depends on
the names and bytes of files alone: whole groups, class by class, in the order of SHA-256. Of equal files one
stays, none under two classes; a training image that nearly equals a test image is left out. `satellite`,
`cartoons` and `waste` are those of default_recipe.jsonl to the bit; how the 50 classes of its `objects` were
chosen was not kept, so that these are others.
"""

import argparse
import hashlib
import io
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from datasets import ClassLabel, Dataset, Features, Image, Value
from PIL import Image as Pillow
from PIL import ImageOps

TEST_SHARE = 1 / 3  # of the groups of a class
MOST_ALIKE = 0.99  # correlation of thumbnails of 16 x 16


@dataclass(frozen=True)
class Cut:
    """Where the class folders are, how many images of a class to take, and how to write them."""

    folder: str
    num_train: int
    num_test: int
    short_side: int | None = None  # None: the file as it is
    block: int = 0  # so many consecutive numbers in file names are one group
    classes: Callable[[dict[str, list[Path]]], Iterable[str]] = sorted


def some_objects(files: dict[str, list[Path]]) -> list[str]:
    """Fifty classes with enough images; two of faces show the same ones, the background shows no object."""
    twice = {"BACKGROUND_Google", "Faces", "Faces_easy"}
    enough = [name for name, paths in files.items() if len(paths) >= 45 and name not in twice]
    return sorted(sorted(enough, key=hash_of)[:50])


CUTS = {
    "satellite_aid30": Cut("AID", 24, 12, block=10),
    "objects_caltech": Cut("caltech-101", 25, 10, short_side=160, classes=some_objects),
    "cartoons_pacs7": Cut("PACS/cartoon", 50, 40, short_side=160),
    "waste_trashnet6": Cut("data/dataset-resized", 60, 45, block=10),
}


@dataclass(frozen=True)
class Picture:
    file: Path
    name: str  # relative to the tree
    label: int
    group: str

    def is_readable(self) -> bool:
        try:
            Pillow.open(self.file).convert("RGB")
        except OSError:
            return False
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--set", choices=CUTS, required=True, dest="name")
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    cut = CUTS[arguments.name]
    names, pictures = read(arguments.tree, cut)
    pictures = [picture for picture in without_copies(pictures) if picture.is_readable()]
    train, test = divided(pictures)
    for split, kept, most in (
        ("train", without_near_copies(train, test), cut.num_train),
        ("test", test, cut.num_test),
    ):
        chosen = [
            each
            for label in range(len(names))
            for each in first_of_groups((each for each in kept if each.label == label), most)
        ]
        rows = sorted((row(each, cut.short_side) for each in chosen), key=lambda row: order_of(row, split))
        columns = {"image": Image(), "label": ClassLabel(names=names)}
        columns |= {"group": Value("string")} if cut.block else {}
        rows = [{name: value for name, value in each.items() if name in columns} for each in rows]
        file = arguments.out / arguments.name / f"{split}-00000-of-00001.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        Dataset.from_list(rows, features=Features(columns)).to_parquet(file)
        print(f"{file}: {len(rows)} images, {len(names)} classes")


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read(tree: Path, cut: Cut) -> tuple[list[str], list[Picture]]:
    """Return the names of the classes and all their images."""
    files = {
        folder.name: [path for path in folder.iterdir() if path.suffix.lower() in (".jpg", ".jpeg", ".png")]
        for folder in (tree / cut.folder).iterdir()
        if folder.is_dir()
    }
    names, pictures = list(cut.classes(files)), []
    for label, folder in enumerate(names):
        for path in sorted(files[folder]):
            name = path.relative_to(tree).as_posix()
            number = int(re.findall(r"\d+", path.stem)[-1]) if cut.block else 0
            group = f"{folder}/{(number - 1) // cut.block}" if cut.block else name
            pictures.append(Picture(path, name, label, group))
    return names, pictures


def without_copies(pictures: list[Picture]) -> Iterator[Picture]:
    by_bytes = defaultdict(list)
    for picture in sorted(pictures, key=lambda each: hash_of(each.name)):
        by_bytes[hashlib.sha256(picture.file.read_bytes()).digest()].append(picture)
    for copies in by_bytes.values():
        if len({copy.label for copy in copies}) == 1:
            yield copies[0]


def divided(pictures: list[Picture]) -> tuple[list[Picture], list[Picture]]:
    groups = defaultdict(set)
    for picture in pictures:
        groups[picture.label].add(picture.group)
    of_test = set()
    for each in groups.values():
        of_test.update(sorted(each, key=hash_of)[: max(1, round(len(each) * TEST_SHARE))])
    train = [picture for picture in pictures if picture.group not in of_test]
    return train, [picture for picture in pictures if picture.group in of_test]


def without_near_copies(train: list[Picture], test: list[Picture]) -> list[Picture]:
    ours, others = (np.stack([thumbnail(each.file) for each in part]) for part in (train, test))
    alike = np.concatenate([(ours[i : i + 500] @ others.T).max(axis=1) for i in range(0, len(ours), 500)])
    return [picture for picture, most in zip(train, alike, strict=True) if most <= MOST_ALIKE]


def thumbnail(file: Path) -> np.ndarray:
    """Return 16 x 16 grey pixels of mean 0 and length 1: the product of two is their correlation."""
    image = Pillow.open(file)
    image.draft("L", (64, 64))
    pixels = np.asarray(image.convert("L").resize((16, 16), Pillow.Resampling.BOX), np.float32).ravel()
    pixels = pixels - pixels.mean()
    return pixels / (np.linalg.norm(pixels) + 1e-6)


def first_of_groups(pictures: Iterable[Picture], most: int) -> list[Picture]:
    """Return one picture of every group in turn."""
    groups = defaultdict(list)
    for picture in sorted(pictures, key=lambda each: hash_of(each.name)):
        groups[picture.group].append(picture)
    turns = [
        (turn, hash_of(group), each) for group, members in groups.items() for turn, each in enumerate(members)
    ]
    return [each for _, _, each in sorted(turns, key=lambda turn: turn[:2])[:most]]


def row(picture: Picture, short_side: int | None) -> dict[str, object]:
    data, name = picture.file.read_bytes(), picture.name
    if short_side:
        image = ImageOps.exif_transpose(Pillow.open(io.BytesIO(data)))
        image = image if image.mode == "L" else image.convert("RGB")
        scale = short_side / min(image.size)
        if scale < 1:
            size = [max(1, round(side * scale)) for side in image.size]
            image = image.resize(size, Pillow.Resampling.BICUBIC)
        written = io.BytesIO()
        image.save(written, "JPEG", quality=90, optimize=True)
        data, name = written.getvalue(), str(Path(name).with_suffix(".jpg"))
    return {"image": {"bytes": data, "path": name}, "label": picture.label, "group": picture.group}


def order_of(row: dict, split: str) -> str:
    return hash_of(row["image"]["path"] + split)


if __name__ == "__main__":
    main()
