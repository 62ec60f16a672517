"""Thirty-odd kinds of folders as users have them, and what is expected of each."""

import io
import json
import os
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import datasets
import numpy as np
from PIL import Image

from vitcli.data.decoding import HEIC_ADVICE

SPREADSHEET = "\ufeffID;Class;Split\r\n0;2;train\r\n1;10;train\r\n2;1;train\r\n3;10;dev\r\n"
HEIC = b"\0\0\0\x18ftypheic\0\0\0\0"
CLASSES = ("ant", "bee", "cat")


def image(path: Path, grey: int = 90) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(len(path.name) + grey).integers(-40, 40, (20, 24, 3))
    Image.fromarray((grey + noise).clip(0, 255).astype(np.uint8)).save(path, "PNG")


def classes(root: Path, names: tuple[str, ...] = CLASSES, count: int = 4, *, grey: int = 40) -> None:
    for number, name in enumerate(names):
        for index in range(count):
            image(root / name / f"{index}.png", grey + 60 * number + index)


def flat(root: Path, count: int = 8) -> None:
    for number in range(count):
        image(root / f"{number}.png", 40 + 20 * number)


def text(path: Path, content: str | bytes = "words") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def table(path: Path, header: str | None, rows: list[str]) -> None:
    text(path, "".join(f"{line}\n" for line in ([header] if header else []) + rows))


def named(count: int = 8, separator: str = ",") -> list[str]:
    return [f"{number}.png{separator}{CLASSES[number % 3]}" for number in range(count)]


def archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as opened:
        opened.writestr("ant/1.png", b"png")


def shard(path: Path, *, labelled: bool = True) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as opened:
        for number in range(6):
            pixels = io.BytesIO()
            Image.new("RGB", (16, 16), (40 * number, 0, 0)).save(pixels, "PNG")
            members = {".png": pixels.getvalue(), ".cls": str(number % 3).encode()}
            for suffix in members if labelled else [".png"]:
                member = tarfile.TarInfo(f"{number}{suffix}")
                member.size = len(members[suffix])
                opened.addfile(member, io.BytesIO(members[suffix]))


def parquet(root: Path) -> None:
    image(root / "one.png")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=CLASSES)})
    rows = [{"bytes": (root / "one.png").read_bytes(), "path": None}] * 6
    datasets.Dataset.from_dict({"image": rows, "label": [0, 1, 2] * 2}, features=features).to_parquet(
        root / "train.parquet"
    )


def predictions(path: Path) -> None:
    columns = {"row": [0, 1], "place": ["a", "b"], "top_classes": [[1, 2], [2, 1]]}
    datasets.Dataset.from_dict(columns).to_parquet(path)


@dataclass(frozen=True)
class Kind:
    """A kind of folder.

    Attributes:
        make: fills the folder.
        splits: rows of each split; () where it is refused.
        classes: of all splits.
        says: words of the error, or of a line about the data.
        fix: words of the error's advice.
        images: files that need no labels, as a split without them; None for the splits above, 0 for none.
        data: the data set inside the folder.
    """

    make: Callable[[Path], None]
    splits: dict[str, int]
    says: str = ""
    fix: str = ""
    classes: tuple[str, ...] = CLASSES
    images: int | None = None
    data: str = ""


def refused(make: Callable[[Path], None], says: str, fix: str, images: int = 0, data: str = "") -> Kind:
    return Kind(make, {}, says, fix, (), images, data)


TWELVE = {"train": 12}
KINDS: dict[str, Kind] = {
    "class folders": Kind(classes, TWELVE),
    "train and val": Kind(
        lambda r: (classes(r / "train"), classes(r / "Valid", CLASSES[:2], 2)), {"train": 12, "validation": 4}
    ),
    "train with a flat test": Kind(
        lambda r: (classes(r / "train"), flat(r / "test", 2)), TWELVE, "left out: 2 images outside the class"
    ),
    "loose images": Kind(
        lambda r: (classes(r), flat(r, 2)),
        TWELVE,
        "left out: 2 images outside the class folders: 0.png, 1.png",
    ),
    "an unreadable image": Kind(
        lambda r: (classes(r), text(r / "ant/a.HEIC", HEIC)),
        TWELVE,
        f"left out: 1 unsupported file: ant/a.HEIC ({HEIC_ADVICE})",
    ),
    "an image called .HEIC": Kind(lambda r: (classes(r), image(r / "ant/a.HEIC")), {"train": 13}),
    "labels of an image called .HEIC": Kind(
        lambda r: (flat(r), image(r / "a.HEIC"), table(r / "labels.csv", None, ["a.HEIC,ant", *named()])),
        {"train": 9},
    ),
    "many of them": Kind(
        lambda r: (classes(r), [text(r / f"bee/{n}.heic", HEIC) for n in range(5)], text(r / "notes.txt")),
        TWELVE,
        "left out: 6 unsupported files: 5 .heic, 1 .txt, first notes.txt (HEIC: install",
    ),
    "what systems leave": Kind(
        lambda r: (
            classes(r),
            [text(r / f"ant/{name}") for name in (".DS_Store", "Thumbs.db", "desktop.ini", "._1.png")],
            text(r / "README.md"),
            text(r / "__MACOSX/ant/._1.png"),
            image(r / ".ipynb_checkpoints/1.png"),
            (r / "lost+found").mkdir(),
        ),
        TWELVE,
    ),
    "thumbnails of a NAS": Kind(
        lambda r: (classes(r), image(r / "ant/@eaDir/1.png")),
        TWELVE,
        "left out: 1 image in a system folder: ant/@eaDir/1.png",
    ),
    "an empty class": Kind(
        lambda r: (classes(r, ("ant", "bee")), (r / "cat").mkdir()), {"train": 8}, classes=CLASSES
    ),
    "classes that differ in case": Kind(
        lambda r: classes(r, ("Ant", "ant ", "bee")),
        TWELVE,
        "the classes 'Ant' and 'ant ' differ only in case, blanks or accents",
        classes=("Ant", "ant ", "bee"),
    ),
    "one class": Kind(lambda r: classes(r, ("ant",)), {"train": 4}, classes=("ant",)),
    "some classes": Kind(lambda r: classes(r, ("ant", "cat")), {"train": 8}, classes=("ant", "cat")),
    "unknown classes": Kind(lambda r: classes(r, ("ant", "dog")), {"train": 8}, classes=("ant", "dog")),
    "a broken link": Kind(
        lambda r: (classes(r), os.symlink("/nowhere/1.png", r / "ant/z.png")), {"train": 13}
    ),
    "parquet beside images": Kind(
        parquet, {"train": 6}, "left out: 1 file beside the tables or shards: one.png"
    ),
    "predictions among images": Kind(
        lambda r: (classes(r), predictions(r / "a.parquet")),
        TWELVE,
        "left out: 1 unsupported file: a.parquet",
    ),
    "labels.csv": Kind(lambda r: (flat(r), table(r / "labels.csv", "file,label", named())), {"train": 8}),
    "labels.csv without header": Kind(
        lambda r: (flat(r), table(r / "labels.csv", None, named(7))),
        {"train": 7},
        "left out: 1 image that no row of the labels names: 7.png",
    ),
    "labels.csv of a spreadsheet": Kind(
        lambda r: (
            [image(r / f"images/{n}.png") for n in range(4)],
            text(
                r / "labels.csv",
                "\ufeffID;Class;Split\r\n0;2;train\r\n1;10;train\r\n2;1;train\r\n3;10;dev\r\n",
            ),
        ),
        {"train": 3, "validation": 1},
        classes=("1", "2", "10"),
    ),
    "metadata.jsonl": Kind(
        lambda r: (
            [
                (
                    flat(r / split, count),
                    table(
                        r / split / "metadata.jsonl",
                        None,
                        [
                            json.dumps({"file_name": f"{n}.png", "label": CLASSES[n % 3]})
                            for n in range(count)
                        ],
                    ),
                )
                for split, count in (("train", 6), ("test", 2))
            ]
            and None
        ),
        {"train": 6, "test": 2},
    ),
    "metadata.csv beats folders": Kind(
        lambda r: (
            classes(r, ("x", "y"), 3),
            table(
                r / "metadata.csv",
                "label,file_name",
                [f"{c},{f}/{n}.png" for n, c in enumerate(CLASSES) for f in "xy"],
            ),
        ),
        {"train": 6},
        "labels come from metadata.csv, not from the names of the 2 folders",
    ),
    "metadata.csv without labels": Kind(
        lambda r: (classes(r), table(r / "metadata.csv", "file_name,text", ["ant/0.png,an ant"])),
        TWELVE,
        "metadata.csv has no column of labels, so the folders name the classes",
    ),
    "a CSV by its path": Kind(
        lambda r: (
            flat(r),
            table(r / "mine.tsv", "image\tspecies", [row.replace(",", "\t") for row in named()]),
        ),
        {"train": 8},
        data="mine.tsv",
    ),
    "a folder of folders of folders": Kind(
        lambda r: [classes(r / outer, CLASSES[:2]) for outer in CLASSES] and None,
        {"train": 24},
        "every class holds folders of images (ant/ant/); did you mean one level deeper?",
    ),
    "one level too high": refused(
        lambda r: classes(r / "flower"),
        "flower/ holds 3 folders with images, did you mean",
        "ROOT/flower;",
        12,
    ),
    "two levels too high": refused(
        lambda r: classes(r / "my set/flower"),
        "my set/flower/ holds 3 folders with images, did you mean",
        "--dataset 'ROOT/my set/flower'",
        12,
    ),
    "flat": refused(
        flat, "holds 8 images but no class folders", "labels.csv: a line with the columns file,label", 8
    ),
    "flat with a CSV": refused(
        lambda r: (flat(r), table(r / "mine.csv", "file,label", named())),
        "holds 8 images but no class folders",
        "--dataset ROOT/mine.csv",
        8,
    ),
    "a class": refused(classes, "holds 4 images but no class folders", "one folder for each class", 4, "ant"),
    "flat train and test": refused(
        lambda r: (flat(r / "train", 2), flat(r / "test", 2)),
        "holds 4 images but no class folders",
        "one folder for each class",
        4,
    ),
    "images that cannot be read": refused(
        lambda r: [text(r / f"ant/{n}.HEIC", HEIC) for n in range(6)] and None,
        "holds no image vit can read, but 6 files: 6 .heic, first ant/0.HEIC (HEIC: install pillow-heif",
        "class folders",
    ),
    "nothing": refused(lambda r: None, "no images found in ROOT", "class folders"),
    "text": refused(
        lambda r: text(r / "a.txt"), "holds no image vit can read, but 1 file: a.txt", "class folders"
    ),
    "an archive in a folder": refused(
        lambda r: archive(r / "photos.zip"),
        "holds no image vit can read, but 1 file: photos.zip (an archive: unpack it)",
        "docs/data.md",
    ),
    "an archive": refused(
        lambda r: archive(r / "my photos.zip"),
        "is not a data set (an archive: unpack it)",
        "docs/data.md",
        data="my photos.zip",
    ),
    "shards": refused(
        lambda r: [shard(r / f"train-{n}.tar") for n in range(2)] and None,
        "holds 2 .tar files: shards, which are streamed",
        "--set data.streaming=true",
    ),
    "a tar of images": refused(
        lambda r: shard(r / "photos.tar", labelled=False),
        "a sample has no label",
        "unpack a .tar",
        data="photos.tar",
    ),
    "an image": refused(flat, "is one image, and not a data set", "docs/data.md", data="1.png"),
    "a spreadsheet": refused(
        lambda r: text(r / "labels.xlsx"), "is not a data set", "labels.csv", data="labels.xlsx"
    ),
    "a CSV of files that are gone": refused(
        lambda r: (flat(r, 2), table(r / "labels.csv", "file,label", named(4))),
        "2 of 4 files that labels.csv names are missing: 2.png, 3.png",
        "correct the paths",
    ),
    "a CSV that leads out": refused(
        lambda r: (flat(r, 2), table(r / "labels.csv", "file,label", ["0.png,a", "../x/1.png,b"])),
        "image path '../x/1.png' is outside the data set",
        "name files below",
    ),
    "a CSV that names a file twice": refused(
        lambda r: (flat(r, 2), table(r / "labels.csv", "file,label", ["0.png,a", "./0.png,b"])),
        "two rows give 0.png different labels, 'a' and 'b'",
        "for an image of several classes write one row: a|b",
    ),
}
