"""Files of labels: what is wrong with them in three lines; several labels, columns of 0 and 1, numbers."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import data_section
from tests.folders import classes, flat, table, text
from vitcli.data.dataset import DataSet, from_section, open_train_and_eval
from vitcli.data.loader import read_example
from vitcli.data.sources import label_files
from vitcli.data.sources.tables import Choices
from vitcli.errors import DataError

COLUMNS = "write a line with the columns file,label, then a line for each image: cat/1.jpg,cat"
ONE_WAY = 'write the labels of all rows in the same way: cat|dog, cat;dog or ["cat", "dog"]'
BELOW = "name files below ROOT, relative to the file of labels"
TRAIN = "correct the labels, or add images of these classes to train"
AS_NUMBERS = (
    "vit finetune with --set objective.loss=regression predicts numbers; "
    "--set data.label_column=label takes them as classes"
)
FILL = "write the labels, or remove the rows"
HOT_FIX = "write 0 or 1, remove the row, or name other columns in data.label_column"
NUMBER = {"label_column": "age", "numbers": True}


def rows(labels) -> str:
    return "file,label\n" + "".join(f"{number}.png,{label}\n" for number, label in enumerate(labels))


# JSON may name half of a pair; \ud83d\ude00, both halves, is a face.
SURROGATES = {
    "a label": r'{"file_name": "1.png", "label": "\ud800"}',
    "another column": r'{"file_name": "1.png", "label": "a", "note": "\udfff"}',
    "a column's name": r'{"file_name": "1.png", "label": "a", "n\ud800": 1}',
    "a list": r'{"file_name": "1.png", "label": ["a", "\ud800"]}',
    "a file's name": r'{"file_name": "1.png\ud800", "label": "a"}',
}
# By what is wrong: the ending and the content of the file, the three lines, and arguments of the data set.
BAD = {
    "no rows": (".csv", "", "labels.csv has no rows", "ROOT/labels.csv", COLUMNS),
    "only names of columns": (".csv", "file,label\n", "labels.csv has no rows", "ROOT/labels.csv", COLUMNS),
    "a value is missing": (
        ".csv", "file,label\n0.png\n",
        "a row of labels.csv has 1 values, and there are 2 columns", "ROOT/labels.csv, line 2",
        'put values with a comma into quotes: "a, b.jpg",cat',
    ),
    "a value too many": (
        ".csv", "file,label\n0.png,a,b\n",
        "a row of labels.csv has 3 values, and there are 2 columns", "ROOT/labels.csv, line 2",
        'put values with a comma into quotes: "a, b.jpg",cat',
    ),
    "an open quote": (
        ".csv", 'file,label\n"0.png,a\n',
        "labels.csv cannot be read: unexpected end of data", "ROOT/labels.csv",
        "save it again as CSV in UTF-8",
    ),
    "another encoding": (
        ".csv", "file,label\n0.png,a\n".encode("utf-16"),
        "labels.csv cannot be read: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
        "ROOT/labels.csv", "save it again as CSV in UTF-8",
    ),
    "two columns of one name": (
        ".csv", "file,label,label\n0.png,a,a\n",
        "two columns of labels.csv have the same name or none: 'file', 'label', 'label'",
        "ROOT/labels.csv, line 1", "give each column a name of its own",
    ),
    "two columns of labels": (
        ".csv", "file,label,class\n0.png,a,a\n",
        "labels.csv has 2 columns that may be the labels", "ROOT/labels.csv, its columns: file, label, class",
        "--set data.label_column=NAME",
    ),
    "no column of labels": (
        ".csv", "file,where\n0.png,here\n",
        "labels.csv has no column of labels", "ROOT/labels.csv, its columns: file, where",
        "--set data.label_column=NAME, or call it label",
    ),
    "a column of numbers that is not called a label": (
        ".csv", "file,age,where\n0.png,3.5,here\n1.png,4,there\n",
        "labels.csv has no column of labels, but one of numbers, 'age'",
        "ROOT/labels.csv, its columns: file, age, where",
        f"--set data.label_column=NAME names the classes; {AS_NUMBERS.partition(';')[0]}",
    ),
    "a column of numbers alone": (
        ".csv", "file,age\n0.png,3.5\n1.png,4\n",
        "labels.csv has no column of labels, but one of numbers, 'age'",
        "ROOT/labels.csv, its columns: file, age",
        f"{AS_NUMBERS.partition(';')[0]}; --set data.label_column=age takes them as classes",
    ),
    "no column of files": (
        ".csv", "number,label\n0.png,a\n",
        "labels.csv has no column of file names", "ROOT/labels.csv, its columns: number, label",
        "--set data.image_column=NAME, or call it file_name",
    ),
    "a column that is not there": (
        ".csv", "file,label\n0.png,a\n",
        "labels.csv has no column 'lable', did you mean 'label'?", "recipe key data.label_column",
        "one of its columns: label", {"label_column": "lable"},
    ),
    "a column of numbers that is not there": (
        ".csv", "file,label,years\n0.png,a,1.5\n",
        "labels.csv has no column 'age'", "recipe key data.label_column",
        "one of its columns of numbers: years", NUMBER,
    ),
    "no column of numbers": (
        ".csv", "file,label\n0.png,a\n",
        "labels.csv has no column 'age'", "recipe key data.label_column",
        "it has no column of numbers: add one, or take other data", NUMBER,
    ),
    "no name of a file": (".csv", "file,label\n,a\n", "a row names no file", "labels.csv, line 2", BELOW),
    "a file that is not there": (
        ".csv", "file,label\n0.png,a\ngone.png,b\n",
        "1 of 2 files that labels.csv names is missing: gone.png", "ROOT/labels.csv; paths start from ROOT",
        "correct the paths, restore the files, or remove the rows",
    ),
    "an address": (
        ".csv", "file,label\nhttps://x.y/0.png,a\n",
        "image path 'https://x.y/0.png' is outside the data set", "labels.csv, line 2", BELOW,
    ),
    "a path out of the folder": (
        ".csv", "file,label\n../0.png,a\n",
        "image path '../0.png' is outside the data set", "labels.csv, line 2", BELOW,
    ),
    "no label": (
        ".csv", "file,label\n0.png,\n",
        "1 of 1 row has no label, first 0.png", "labels.csv, line 2, column 'label'", FILL,
    ),
    "several without a label": (
        ".csv", "file;class\n0.png;a\n1.png;\n2.png; \n",
        "2 of 3 rows have no label, first 1.png", "labels.csv, line 3, column 'class'", FILL,
    ),
    "a blank cell in a column of numbers": (
        ".csv", "file;alter\n0.png;3\n1.png;\n2.png;4\n",
        "1 of 3 rows has no label, first 1.png", "labels.csv, line 3, column 'alter'", FILL,
        {"numbers": True},
    ),
    "a blank cell in columns of classes": (
        ".csv", "file,a,b\n0.png,1,0\n1.png,,1\n2.png,0,1\n",
        "column 'a' is blank, and a column for a class holds 0 or 1", "labels.csv, line 3", HOT_FIX,
    ),
    "an image twice": (
        ".csv", "file,label\n0.png,a\n0.png,a\n",
        "two rows name the same image, 0.png", "labels.csv, line 2, and labels.csv, line 3",
        "leave one row for each image: it has one label, and belongs to one split",
    ),
    "an image with two labels": (
        ".csv", "file,label\n0.png,a\n./0.png,b\n",
        "two rows give 0.png different labels, 'a' and 'b'", "labels.csv, line 2, and labels.csv, line 3",
        "remove one; for an image of several classes write one row: a|b",
    ),
    "no split": (
        ".csv", "file,label,split\n0.png,a,\n",
        "a row has no split", "labels.csv, line 2, column split", "write train, validation or test",
    ),
    "a path as a split": (
        ".csv", "file,label,split\n0.png,a,../x\n",
        "'../x' is not the name of a split", "labels.csv, line 2, column split",
        "write train, validation or test",
    ),
    "a class that train lacks": (
        ".csv", "file,label,split\n0.png,a,train\n1.png,b,val\n",
        "split validation has classes that train does not have: b", "ROOT/labels.csv", TRAIN,
    ),
    "one of several classes that train lacks": (
        ".csv", "file,label,split\n0.png,a|b,train\n1.png,b|c,val\n",
        "split validation has classes that train does not have: c", "ROOT/labels.csv", TRAIN,
    ),
    "too many columns": (
        ".csv", f"file,label,{','.join(map(str, range(1999)))}\n0.png,a\n",
        "labels.csv has 2,001 columns, and 2,000 at most are read", "ROOT/labels.csv, line 1",
        "keep the columns of files, labels, splits and groups",
    ),
    "a name of each image": (
        ".csv", rows(f"id-{number}" for number in range(30)),
        "column 'label' has 30 values in 30 rows, which look like a name of each image and not like classes",
        "ROOT/labels.csv",
        "name the column of the classes; --set data.label_column=label takes them as classes",
    ),
    "a number of each image": (
        ".csv", rows(range(30)),
        "column 'label' has 30 values in 30 rows, which look like numbers and not like classes",
        "ROOT/labels.csv", AS_NUMBERS,
    ),
    "decimals": (
        ".csv", rows(number % 25 / 10 for number in range(60)),
        "column 'label' has 25 values in 60 rows, which look like numbers and not like classes",
        "ROOT/labels.csv", AS_NUMBERS,
    ),
    "decimals with a comma": (
        ".csv", rows(f'"{number % 25},5"' for number in range(60)),
        "column 'label' has 25 values in 60 rows, which look like numbers and not like classes",
        "ROOT/labels.csv", AS_NUMBERS,
    ),
    "lists and names": (
        ".csv", 'file,label\n0.png,"[""a"", ""b""]"\n1.png,a\n',
        "the labels are of two kinds, a list beside a name: '[\"a\", \"b\"]' and 'a'",
        "labels.csv, line 2, and labels.csv, line 3", ONE_WAY,
    ),
    "two separators": (
        ".csv", "file,label\n0.png,a|b\n1.png,a;b\n",
        "the labels are of two kinds, separated by '|' and by ';': 'a|b' and 'a;b'",
        "labels.csv, line 2, and labels.csv, line 3", ONE_WAY,
    ),
    "a broken list": (
        ".csv", "file,label\n0.png,[a b]\n",
        "not a JSON list: '[a b]'", "labels.csv, line 2", 'write ["cat", "dog"], or cat|dog',
    ),
    "an empty label": (
        ".csv", "file,label\n0.png,a||b\n",
        "a label of 'a||b' is empty", "labels.csv, line 2", "remove the separator too many",
    ),
    "a class twice": (
        ".csv", "file,label\n0.png,a|b|a\n",
        "'a|b|a' names the class 'a' twice", "labels.csv, line 2", "write it once",
    ),
    "a 2 in a column of 0 and 1": (
        ".csv", "file,a,b\n0.png,1,0\n1.png,2,1\n",
        "column 'a' holds '2', and a column for a class holds 0 or 1", "labels.csv, line 3",
        HOT_FIX,
        {"label_column": "a,b"},
    ),
    "only columns of 0": (
        ".csv", "file,a,b\n0.png,0,0\n1.png,0,0\n",
        "no row has a label", "labels.csv, line 2", "write the names of the classes of each image",
    ),
    "a line of broken JSON": (
        ".jsonl", '{"file_name": "0.png", "label": "a"\n',
        "labels.jsonl cannot be read: Expecting ',' delimiter: line 1 column 36 (char 35)",
        "ROOT/labels.jsonl, line 1", "write one JSON object on each line",
    ),
    "a line that is a list": (
        ".jsonl", '["0.png", "a"]\n',
        "a line of labels.jsonl is not a JSON object", "ROOT/labels.jsonl, line 1",
        'write {"file_name": "1.jpg", "label": "cat"} on each line',
    ),
    "a list of lists": (
        ".jsonl", '{"file_name": "0.png", "label": [["a"], "b"]}\n',
        "invalid class name in '[[\"a\"], \"b\"]'", "labels.jsonl, line 1",
        'write names: ["cat", "dog"]; an empty list for an image of no class',
    ),
    **{
        f"half of a surrogate pair in {place}": (
            ".jsonl", f'{{"file_name": "0.png", "label": "a"}}\n{line}\n',
            "a line of labels.jsonl holds half of a surrogate pair, which UTF-8 cannot express",
            "ROOT/labels.jsonl, line 2", "write the characters themselves, in UTF-8, or both halves",
        )
        for place, line in SURROGATES.items()
    },
    "half of a surrogate pair in a list": (
        ".csv", 'file,label\n0.png,"[""a"", ""\\ud800""]"\n',
        "invalid class name in '[\"a\", \"\\\\ud800\"]'", "labels.csv, line 2",
        'write names: ["cat", "dog"]; an empty list for an image of no class',
    ),
    "null": (
        ".jsonl", '{"file_name": "0.png", "label": null}\n',
        "1 of 1 row has no label, first 0.png", "labels.jsonl, line 1, column 'label'", FILL,
    ),
    "a word for a number": (
        ".csv", "file,age\n0.png,12\n1.png,old\n",
        "'old' is not a number", "labels.csv, line 3", "write a number, or remove the row", NUMBER,
    ),
    "no number": (
        ".csv", "file,age\n0.png,12\n1.png,\n",
        "1 of 2 rows has no label, first 1.png", "labels.csv, line 3, column 'age'", FILL, NUMBER,
    ),
    "NaN": (
        ".csv", "file,age\n0.png,12\n1.png,nan\n",
        "'nan' is not a finite number", "labels.csv, line 3", "write a number, or remove the row", NUMBER,
    ),
    "infinity": (
        ".jsonl", '{"file_name": "0.png", "age": 1e999}\n',
        "'inf' is not a finite number", "labels.jsonl, line 1", "write a number, or remove the row", NUMBER,
    ),
    "a number whose square is infinite": (
        ".csv", "file,age\n0.png,12\n1.png,-1e308\n",
        "'-1e308' is not a number of up to 1e+100", "labels.csv, line 3",
        "write a number, or remove the row", NUMBER,
    ),
    "a decimal comma": (
        ".csv", "file;age\n0.png;12,5\n",
        "'12,5' is not a number", "labels.csv, line 2", "write 12.5, with a point", NUMBER,
    ),
    "two numbers": (
        ".csv", "file,age\n0.png,12|13\n",
        "'12|13' is not a number", "labels.csv, line 2", "write a number, or remove the row", NUMBER,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def sixty(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sixty")
    flat(folder, 60)
    return folder


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_of_labels_is_refused_in_three_lines(sixty, name):
    suffix, content, message, where, fix, *arguments = BAD[name]
    file = sixty / f"labels{suffix}"
    text(file, content)

    with pytest.raises(DataError) as caught:
        DataSet(str(file), Choices(**(arguments[0] if arguments else {})))
    expected = f"error: {message}\n  where: {where}\n  fix:   {fix}"
    assert str(caught.value).replace(str(sixty), "ROOT") == expected


def test_both_halves_of_a_surrogate_pair_are_the_character_that_they_express(tmp_path):
    flat(tmp_path, 1)
    text(tmp_path / "labels.jsonl", r'{"file_name": "0.png", "label": "\ud83d\ude00", "note": "\u00e4"}')

    assert DataSet(str(tmp_path)).open("train").class_names == ("\N{GRINNING FACE}",)


def test_five_thousand_numbers_are_no_classes_unless_their_column_is_named(tmp_path):
    flat(tmp_path, 1)
    for number in range(1, 6_000):
        (tmp_path / f"{number}.png").hardlink_to(tmp_path / "0.png")
    table(tmp_path / "labels.csv", "file,label", [f"{n}.png,{n % 2_500}" for n in range(6_000)])

    with pytest.raises(DataError, match="'label' has 2,500 values in 6,000 rows, which look like numbers"):
        DataSet(str(tmp_path))
    assert DataSet(str(tmp_path), Choices(label_column="label")).open("train").num_classes == 2_500


SEVERAL = {
    "bars": (".csv", "file,label\n0.png,b|a\n1.png,c\n2.png,a\n"),
    "semicolons": (".csv", "file,label\n0.png,b;a\n1.png,c\n2.png,a\n"),
    "without names of columns": (".csv", "0.png,b;a\n1.png,c\n2.png,a\n"),
    "lists in a CSV": (".csv", 'file,label\n0.png,"[""b"",""a""]"\n1.png,"[""c""]"\n2.png,"[""a""]"\n'),
    "lists in JSON": (
        ".jsonl",
        "".join(
            json.dumps({"file_name": f"{number}.png", "labels": names}) + "\n"
            for number, names in enumerate((["b", "a"], ["c"], ["a"]))
        ),
    ),
    "columns of 0 and 1": (".csv", "file,a,b,c\n0.png,1,1,0\n1.png,0,0,1\n2.png,1,0,0\n"),
    "columns of words": (".csv", "file;a;b;c\n0.png;TRUE;1.0;no\n1.png;0;0;yes\n2.png;true;0;0\n"),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_several_labels_are_read_in_every_form(sixty, name):
    suffix, content = SEVERAL[name]
    text(sixty / f"labels{suffix}", content)
    split = DataSet(str(sixty / f"labels{suffix}")).open("train")

    assert split.is_multilabel and split.class_names == ("a", "b", "c")
    assert split.read_labels().tolist() == [[0, 1], [2, -1], [0, -1]]
    assert [split.read_row(row)[1] for row in range(3)] == [(0, 1), (2,), (0,)]


def test_an_image_may_have_no_class_where_that_is_written(sixty):
    text(sixty / "labels.csv", "file,z,a\n0.png,1,1\n1.png,0,0\n")
    split = DataSet(str(sixty / "labels.csv")).open("train")

    assert split.class_names == ("z", "a")  # the order of the columns
    assert split.read_labels().tolist() == [[0, 1], [-1, -1]] and read_example(split, 1)[1] == ()


def test_columns_of_0_and_1_with_a_single_1_are_one_class_each(sixty):
    text(sixty / "labels.csv", "file,z,a\n0.png,1.0,0.0\n1.png,0.0,1.0\n")
    split = DataSet(str(sixty / "labels.csv")).open("train")

    assert not split.is_multilabel and split.class_names == ("z", "a")
    assert split.read_labels().tolist() == [0, 1]


def test_a_semicolon_within_names_separates_nothing(sixty):
    text(sixty / "labels.csv", "file,label\n0.png,tench; Tinca tinca\n1.png,jay\n2.png,tench; Tinca tinca\n")

    assert DataSet(str(sixty / "labels.csv")).open("train").class_names == ("jay", "tench; Tinca tinca")


def test_a_column_called_fold_is_of_splits_only_where_it_names_some(sixty):
    text(sixty / "labels.csv", "file,label,fold\n0.png,a,0\n1.png,b,1\n")
    assert DataSet(str(sixty / "labels.csv")).split_names == ("train",)
    text(sixty / "labels.csv", "file,label,fold\n0.png,a,train\n1.png,a,Val\n")
    assert DataSet(str(sixty / "labels.csv")).split_names == ("train", "validation")


def test_the_only_column_of_numbers_is_the_one_to_predict(sixty):
    text(sixty / "labels.csv", "file,age,place\n0.png,3.5,here\n1.png,4,there\n")
    assert DataSet(str(sixty / "labels.csv"), Choices(numbers=True)).open("train").class_names == ("age",)
    text(sixty / "labels.csv", "file,age,size\n0.png,3.5,1\n1.png,4,2\n")
    with pytest.raises(DataError, match="no column of labels"):
        DataSet(str(sixty / "labels.csv"), Choices(numbers=True))


@pytest.mark.parametrize("label", ["2.5", "1e-3", "-7", "0"])
def test_numbers_are_read_as_they_are(sixty, label):
    text(sixty / "labels.csv", f"file,age\n0.png,{label}\n1.png,3\n")
    split = DataSet(str(sixty / "labels.csv"), Choices(**NUMBER)).open("train")

    assert split.has_numbers and split.num_classes == 1 and split.class_names == ("age",)
    assert split.read_labels().dtype == np.float64 and split.read_labels().tolist() == [float(label), 3.0]
    assert read_example(split, 0)[1] == float(label)


def test_a_dev_part_of_numbers_is_cut_and_its_rows_keep_theirs(sixty):
    text(sixty / "labels.csv", "file,value\n" + "".join(f"{n}.png,{n + 0.5}\n" for n in range(40)))
    data = data_section(sixty / "labels.csv", dev_fraction=0.25, dev_stratified=True)
    train, dev = open_train_and_eval(data, seed=0, source=from_section(data, numbers=True))

    assert (len(train), len(dev)) == (30, 10) and not dev.dev_cut["stratified"]
    for part in (train, dev):
        assert [part.read_row(row)[1] for row in range(len(part))] == part.read_labels().tolist()
        assert [int(Path(part.where_is(row).rpartition(" ")[2]).stem) + 0.5 for row in range(len(part))] == (
            part.read_labels().tolist()
        )


def test_folders_named_by_numbers_are_numbers_to_predict(tmp_path):
    for name in ("1.5", "10", "2"):
        flat(tmp_path / name, 2)

    assert (
        DataSet(str(tmp_path), Choices(numbers=True)).open("train").read_labels().tolist()
        == [1.5] * 2 + [10] * 2 + [2] * 2
    )
    flat(tmp_path / "old", 1)
    with pytest.raises(DataError, match="are classes and no numbers: 1"):
        DataSet(str(tmp_path), Choices(numbers=True)).open("train")


def test_a_missing_number_of_a_table_is_refused_with_its_row(tmp_path):
    import datasets

    flat(tmp_path, 1)
    features = datasets.Features({"image": datasets.Image(), "age": datasets.Value("float64")})
    images = [{"bytes": (tmp_path / "0.png").read_bytes(), "path": None}] * 3
    for name, ages in {
        "whole": [1.0, 2.0, 4.0],
        "none": [1.0, None, 2.0],
        "nan": [1.0, math.nan, 2.0],
        "large": [1.0, -1e101, 2.0],
    }.items():
        (tmp_path / name).mkdir()
        stored = datasets.Dataset.from_dict({"image": images, "age": ages}, features=features)
        stored.to_parquet(tmp_path / name / "train.parquet")

    assert DataSet(str(tmp_path / "whole"), Choices(numbers=True)).open("train").read_labels().tolist() == [
        1,
        2,
        4,
    ]
    with pytest.raises(DataError) as caught:
        DataSet(str(tmp_path / "whole"), Choices(numbers=True, label_column="years")).open("train")
    assert caught.value.fix == "one of its columns of numbers: age"
    for name in ("none", "nan", "large"):
        with pytest.raises(
            DataError, match=r"1 of 3 rows of .* have no finite number of up to 1e\+100"
        ) as caught:
            DataSet(str(tmp_path / name), Choices(numbers=True)).open("train")
        assert "row 1" in caught.value.where


def test_data_without_numbers_are_refused(photos):
    for name in ("demo", str(photos)):
        with pytest.raises(DataError, match="no numbers"):
            DataSet(name, Choices(numbers=True)).open("train")


@pytest.mark.parametrize("name", ["../photos-private/x.png", "../photos-private/../photos-private/x.png"])
def test_a_folder_beside_whose_name_begins_alike_is_outside_the_data_set(tmp_path, name):
    """A prefix of letters is no folder: photos-private lies beside photos, and not in it."""
    flat(tmp_path / "photos", 1)
    flat(tmp_path / "photos-private", 1)
    (tmp_path / "photos-private/0.png").rename(tmp_path / "photos-private/x.png")
    for path in (name, str(tmp_path / "photos-private/x.png")):
        text(tmp_path / "photos/labels.csv", f"file,label\n0.png,a\n{path},b\n")
        with pytest.raises(DataError, match="is outside the data set"):
            DataSet(str(tmp_path / "photos")).open("train")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_rows_are_counted_as_they_are_read(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(label_files, "MOST_VALUES", 200)
    monkeypatch.setattr(label_files, "MOST_MISSING", 20)
    flat(tmp_path, 1)
    path = tmp_path / f"labels{suffix}"

    def refused(num_rows: int) -> DataError:
        lines = [json.dumps({"file": f"{number}.png", "label": "a"}) for number in range(num_rows)]
        path.write_text("\n".join(lines) if suffix == ".jsonl" else rows("a" * num_rows))
        with pytest.raises(DataError) as error:
            DataSet(str(path))
        return error.value

    too_many = refused(150)
    assert too_many.message == f"labels{suffix} has more than 200 values"
    assert too_many.where == f"{path}, line {101 + (suffix == '.csv')}"
    assert refused(90).message.startswith(f"more than 20 of 90 files that labels{suffix} names are missing")
    assert refused(15).message.startswith(f"14 of 15 files that labels{suffix} names are missing: 1.png")


def test_a_file_of_labels_that_is_named_is_the_data_set_and_not_what_lies_beside_it(tmp_path):
    """Runs are written beside it, and other files of labels lie there."""
    classes(tmp_path, ("x", "y"), 2)
    flat(tmp_path / "runs/a/figures", 3)
    text(tmp_path / "runs/a/summary.json", "{}")
    text(tmp_path / "notes.heic", "no image")
    text(tmp_path / "labels.csv", "file,label\nx/0.png,a\ny/0.png,b\nnotes.heic,a\n")

    named, folder = DataSet(str(tmp_path / "labels.csv")).open("train"), DataSet(str(tmp_path)).open("train")

    assert named.left_out.files == (("unreadable", "notes.heic"),) and named.notes == ()
    assert len(folder.left_out.files) == 7
    assert folder.notes == ("labels come from labels.csv, not from the names of the 3 folders",)
    assert len(named) == len(folder) == 2


def test_a_column_called_set_with_one_word_for_a_split_is_of_no_splits(sixty):
    text(sixty / "labels.csv", "file,label,set\n0.png,a,train\n1.png,b,lego\n")

    assert DataSet(str(sixty / "labels.csv")).split_names == ("train",)


def test_two_files_of_labels_in_one_folder_are_refused(tmp_path):
    flat(tmp_path, 2)
    for name in ("labels.csv", "metadata.csv"):
        text(tmp_path / name, "file_name,label\n0.png,a\n1.png,b\n")

    with pytest.raises(DataError) as caught:
        DataSet(str(tmp_path))
    assert "metadata.csv" in str(caught.value) and "labels.csv" in str(caught.value)
