"""Kinds of folders: what each holds, what is said of it, and that every command treats it alike."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from tests.conftest import run
from tests.folders import CLASSES, KINDS, Kind, classes, flat, image, shard, table, text
from vitcli.data.dataset import DataSet
from vitcli.data.image_files import find_images
from vitcli.data.sources.class_folders import alike_notes
from vitcli.data.sources.folders import UNREADABLE, has_images, left_out_of, named, union
from vitcli.data.sources.tables import Choices, split_of
from vitcli.errors import DataError


def made(kind: Kind, folder: Path) -> str:
    folder.mkdir(parents=True)
    kind.make(folder)
    return str(folder / kind.data) if kind.data else str(folder)


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_of_folder_is_read_or_refused_as_expected(name, tmp_path):
    kind = KINDS[name]
    root = tmp_path / "photos"
    path = made(kind, root)

    if not kind.splits:
        with pytest.raises(DataError) as caught:
            data = DataSet(path)
            data.open(data.split_names[0])
        assert kind.says.replace("ROOT", str(root)) in caught.value.message
        assert kind.fix.replace("ROOT", str(root)) in caught.value.fix
        assert len(str(caught.value).splitlines()) == 3
        return
    data = DataSet(path)
    opened = {split: data.open(split) for split in data.split_names}
    assert {split: len(rows) for split, rows in opened.items()} == kind.splits
    assert {rows.class_names for rows in opened.values()} == {kind.classes}
    lines = next(iter(opened.values())).lines
    assert any(kind.says in line for line in lines) if kind.says else lines == []


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.images])
def test_what_has_no_classes_is_a_split_of_images_where_labels_are_not_needed(name, tmp_path):
    path = made(KINDS[name], tmp_path / "photos")
    data = DataSet(path, Choices(needs_labels=False))
    (split,) = (data.open(split) for split in data.split_names)

    assert len(split) == KINDS[name].images and not split.has_labels
    images = find_images([path], where="IMAGES")
    assert len(images) == KINDS[name].images and images.left_out == split.left_out


def test_left_out_files_are_named_alike_wherever_a_folder_is_named(tmp_path):
    classes(tmp_path / "photos")
    text(tmp_path / "photos/ant/1.HEIC")
    text(tmp_path / "photos/notes.txt")
    split = DataSet(str(tmp_path / "photos")).open("train")

    assert split.left_out.summary() == {
        "num_left_out_files": 2,
        "left_out_files": ["notes.txt", "ant/1.HEIC"],
    }
    assert {*find_images([str(tmp_path / "photos")], where="IMAGES").left_out.files} == {
        *split.left_out.files
    }


@pytest.mark.parametrize("name", ["a.HEIC", "b.heif", "c.zip"])
def test_a_single_file_that_cannot_be_read_is_refused_by_its_ending(tmp_path, name):
    text(tmp_path / name)

    with pytest.raises(DataError, match="is not an image vit can read"):
        find_images([str(tmp_path / name)], where="IMAGES")


@pytest.mark.parametrize("name", [b"ant/\xe9.png", b"\xe9t\xe9/1.png"])
def test_a_name_in_another_encoding_is_refused_and_that_of_a_left_out_file_is_made_printable(tmp_path, name):
    classes(tmp_path)
    (tmp_path / os.fsdecode(b"ant/\xe9\n.txt")).write_text("words")
    split = DataSet(str(tmp_path)).open("train")
    image(tmp_path / os.fsdecode(name))

    assert split.left_out.lines() == ["left out: 1 unsupported file: ant/��.txt"]
    with pytest.raises(DataError, match="a name is not UTF-8: �") as caught:
        DataSet(str(tmp_path)).open("train")
    str(caught.value).encode()


def test_a_glob_names_what_it_leaves_out(tmp_path):
    flat(tmp_path, 2)
    text(tmp_path / "list.txt")

    assert find_images([f"{tmp_path}/*"], where="IMAGES").left_out.files == (
        ("unreadable", f"{tmp_path}/list.txt"),
    )
    with pytest.raises(DataError, match=r"no image found in '.*\*.txt', but .*list.txt"):
        find_images([f"{tmp_path}/*.txt"], where="IMAGES")


def test_a_folder_that_cannot_be_read_is_refused_and_not_left_out(tmp_path, monkeypatch):
    classes(tmp_path / "photos")
    scandir = os.scandir

    def locked(folder):
        if str(folder).endswith("photos/bee"):
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", locked)

    for read in (DataSet, lambda name: find_images([name], where="IMAGES")):
        with pytest.raises(DataError, match="a folder cannot be read: Permission denied") as refused:
            read(str(tmp_path / "photos"))
        assert refused.value.where == str(tmp_path / "photos/bee")


def test_left_out_files_of_a_thousand_class_folders_are_joined_in_one_pass():
    parts = [left_out_of(UNREADABLE, [f"{k}/{number}.json" for number in range(100)]) for k in range(1_000)]
    began_at = time.perf_counter()

    assert len(union(parts).files) == 100_000
    assert time.perf_counter() - began_at < 2  # a pass for each folder takes a minute


def test_images_beside_streamed_shards_are_left_out_and_counted(tmp_path):
    shard(tmp_path / "train.tar")
    image(tmp_path / "1.png")

    assert DataSet(str(tmp_path), Choices(streaming=True)).open("train").left_out.files == (
        ("beside", "1.png"),
    )


def test_a_data_set_of_one_class_of_folders_is_read_when_it_is_said(tmp_path):
    classes(tmp_path / "photos/flower")

    assert DataSet(str(tmp_path / "photos"), Choices(one_class=True)).open("train").class_names == ("flower",)


@pytest.mark.parametrize(
    ("folder", "word"), [("val", "val"), ("val", "dev"), ("Testing", "testing"), ("dev", "validation[:50%]")]
)
def test_a_split_may_be_called_as_its_folder_is(tmp_path, folder, word):
    classes(tmp_path / "train")
    classes(tmp_path / folder, CLASSES, 2)
    data = DataSet(str(tmp_path))

    assert len(data.open(word)) == (3 if "[" in word else 6)
    with pytest.raises(DataError, match="has no split 'tset'"):
        data.open("tset")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no rows"),
        (b"file,label\n", "has no rows"),
        (b"file,label\n0.png\n", "a row of labels.csv has 1 values, and there are 2 columns"),
        (b"file,label\n0.png,a,b\n", "a row of labels.csv has 3 values"),
        (b"file,label\n0.png,\n", "1 of 1 row has no label, first 0.png"),
        (b"file,label\n,a\n", "a row names no file"),
        (b"file,label,label\n0.png,a,a\n", "two columns of labels.csv have the same name"),
        (b"file,label,class\n0.png,a,a\n", "has 2 columns that may be the labels"),
        (b"file,size\n0.png,3\n", "has no column of labels"),
        (b"number,label\n0.png,a\n", "has no column of file names"),
        (b"file,label\nhttps://x.y/0.png,a\n", "outside the data set"),
        (b"file,label\n/etc/passwd,a\n", "outside the data set"),
        (b"file,label,split\n0.png,a,\n", "a row has no split"),
        (b"file,label,split\n0.png,a,../x\n", "is not the name of a split"),
        (
            b"file,label,split\n0.png,a,train\n1.png,b,test\n",
            "split test has classes that train does not have: b",
        ),
        (b"\xff\xfef\0i\0", "labels.csv cannot be read"),
        (b'file,label\n"0.png,a\n', "labels.csv cannot be read"),
    ],
)
def test_a_bad_file_of_labels_is_refused_in_three_lines(tmp_path, content, message):
    flat(tmp_path, 2)
    text(tmp_path / "labels.csv", content)

    with pytest.raises(DataError, match=message) as caught:
        DataSet(str(tmp_path))
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"file_name": "0.png"}', '{"file_name": "0.png", "label": [1, 2]}']
)
def test_a_bad_line_of_metadata_is_refused_in_three_lines(tmp_path, line):
    flat(tmp_path, 2)
    table(tmp_path / "metadata.jsonl", None, ['{"file_name": "1.png", "label": "a"}', line])

    with pytest.raises(DataError) as caught:
        DataSet(str(tmp_path))
    assert len(str(caught.value).splitlines()) == 3 and "line 2" in caught.value.where


def test_a_labelled_file_that_cannot_be_read_is_left_out_and_counted(tmp_path):
    flat(tmp_path, 2)
    text(tmp_path / "2.heic")
    table(tmp_path / "labels.csv", "file,label", ["0.png,a", "1.png,b", "2.heic,a"])
    split = DataSet(str(tmp_path)).open("train")

    assert (len(split), split.left_out.files) == (2, (("unreadable", "2.heic"),))


def test_a_bare_name_that_fits_two_files_is_refused(tmp_path):
    image(tmp_path / "a/1.png")
    image(tmp_path / "b/1.png")
    table(tmp_path / "labels.csv", "id,label", ["1,x"])

    with pytest.raises(DataError, match="'1' may be any of 2 files"):
        DataSet(str(tmp_path))


def test_further_columns_and_named_ones_are_kept(tmp_path):
    flat(tmp_path, 3)
    table(tmp_path / "labels.csv", "photo,kind,index,id", ["2.png,b,7,07", "0.png,a,5,7", "1.png,b,6,1"])
    split = DataSet(str(tmp_path), Choices(image_column="photo", label_column="kind")).open("train")

    assert split.class_names == ("a", "b") and split.read_labels().tolist() == [1, 0, 1]
    assert split.column("index") == [7, 5, 6] and split.column("id") == ["07", "7", "1"]
    assert split.read_row(0) == ((tmp_path / "2.png").read_bytes(), 1)


# By kind, the exit codes of finetune, pretrain, fewshot, evaluate, embed, inspect, datasets check, predict:
# where they are not all 0, or 3 for commands that need labels which are not there.
CODES = {
    "one class": "00300000",
    "an empty class": "00300000",
    "unknown classes": "00030000",
    # What `datasets check` finds in them: leaks, classes alike but for case, copies with other labels
    "train and val": "00000030",
    "classes that differ in case": "00030030",
    "parquet beside images": "00000030",
    "labels.csv of a spreadsheet": "00030030",
    "metadata.jsonl": "00000030",
    "a folder of folders of folders": "00000030",
    "a broken link": "00333333",
    "a CSV by its path": "00000003",
    "an image": "33333330",
    "a CSV of files that are gone": "33333330",
    "a CSV that leads out": "33333330",
    "a CSV that names a file twice": "33333330",
}


@pytest.mark.slow
def test_every_command_treats_a_kind_of_folder_alike(tmp_path, monkeypatch):
    """Print a table: kinds of folders, commands, exit codes."""
    monkeypatch.chdir(tmp_path)
    classes(tmp_path / "known", grey=50)  # other images: those that were trained on are not scored
    text(tmp_path / "known/ant/a.HEIC")
    short = ("--res", 32, "--steps", 2, "--batch-size", 4)
    trained = tmp_path / "trained"
    start = run("finetune", "--ckpt", "demo", "--dataset", "known", *short, "--out", trained, "-q")
    assert start.code == 0, start.err
    assert json.loads((trained / "summary.json").read_text())["left_out_files"] == ["ant/a.HEIC"]
    assert "| files left out | 1: `ant/a.HEIC` |" in (trained / "README.md").read_text()
    wrong = []
    for name, kind in KINDS.items():
        path, out = made(kind, tmp_path / "kinds" / name.replace(" ", "_")), tmp_path / "out"
        out.mkdir()
        ckpt, dataset = ("--ckpt", trained), ("--dataset", path)
        held_out = ("--set", "data.dev_fraction=0.3")
        outcomes = [
            run("finetune", "--ckpt", "demo", *dataset, *short, "--dry-run", "-v"),
            run("pretrain", "--recipe", "pretrain/demo", *dataset, *held_out, "--dry-run", "-v"),
            run("fewshot", *ckpt, *dataset, "--shots", 1, *held_out, "--out", out / "fewshot", "-v"),
            run("evaluate", *ckpt, *dataset, "-v"),
            run("embed", *ckpt, *dataset, "--out", out / "photos.safetensors"),
            run("inspect", *ckpt, *dataset, "--out", out / "inspect"),
            run("datasets", "check", path),
            run("predict", *ckpt, path),
        ]
        shutil.rmtree(out)
        labels, images = ("0", "0") if kind.splits else ("3", "0" if kind.images else "3")
        expected = CODES.get(name, 4 * labels + 4 * images)
        codes = "".join(str(outcome.code) for outcome in outcomes)
        print(f"{name:<34} {' '.join(codes)}")
        if codes != expected:
            wrong.append((name, codes, expected))
        refusals = [outcome.err.strip().splitlines()[-3:] for outcome in outcomes if outcome.code]
        wrong += [(name, lines) for lines in refusals if not lines[0].startswith("error: ")]
        if kind.says and (kind.splits or kind.says.startswith("left out")):
            notes = [" ".join((each.err + each.out).split()) for each in outcomes[:-1] if not each.code]
            wrong += [(name, "is not noted", screen) for screen in notes if kind.says not in screen]
    assert wrong == []


def test_an_image_called_readme_is_an_image(tmp_path):
    classes(tmp_path, ("ant", "bee"), 2)
    image(tmp_path / "ant/Readme.png")
    text(tmp_path / "ant/README.txt")

    split = DataSet(str(tmp_path)).open("train")

    assert len(split) == 5 and split.lines == []


def test_images_beside_the_folders_of_the_splits_are_named_as_left_out(tmp_path):
    classes(tmp_path / "train", ("ant", "bee"), 2)
    image(tmp_path / "loose.png")

    assert DataSet(str(tmp_path)).open("train").lines == [
        "left out: 1 image outside the class folders: loose.png"
    ]


def test_a_folder_around_two_class_folders_is_one_level_too_high(tmp_path):
    classes(tmp_path / "all", ("ant", "bee"), 2)

    with pytest.raises(DataError) as caught:
        DataSet(str(tmp_path)).open("train")
    assert f"{tmp_path}/all" in caught.value.fix


def test_classes_are_alike_in_whatever_way_accents_are_encoded():
    composed, decomposed = "caf\u00e9", "Cafe\u0301"

    (note,) = alike_notes([composed, decomposed, "cafe"])
    assert composed in note and decomposed in note and "'cafe'" not in note


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["a.txt", "b.md", "c.txt"], "a.txt, b.md, c.txt"),
        (["a.txt", "b.md", "c.txt", "d"], "2 .txt, 1 .md, 1 without ending, first a.txt"),
    ],
)
def test_three_files_are_named_and_of_four_the_endings_are_counted(paths, expected):
    assert named(paths) == expected


def test_a_file_that_is_left_out_by_two_parts_is_counted_once():
    part, more = left_out_of(UNREADABLE, ["a.txt"]), left_out_of(UNREADABLE, ["a.txt", "b.txt"])

    assert len((part | more).files) == 2 and (part | more).summary()["num_left_out_files"] == 2


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("test/renamed-from-train-0.parquet", "test"),
        ("data/dev_train.tar", "validation"),
        ("Training/of-test-1.parquet", "train"),
    ],
)
def test_of_several_words_for_splits_the_first_in_a_path_counts(path, split):
    assert split_of(Path(path)) == split


def test_a_link_back_up_is_no_folder_of_images(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/up").symlink_to(tmp_path)
    image(tmp_path / "outside/1.png")
    (tmp_path / "b").mkdir()
    (tmp_path / "b/elsewhere").symlink_to(tmp_path / "outside")

    assert [has_images(tmp_path / name) for name in ("a", "b", "outside")] == [False, False, True]
