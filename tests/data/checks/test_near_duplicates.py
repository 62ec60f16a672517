"""`vit datasets check` without labels: copies of images are found whatever was done to them."""

import csv
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tests.conftest import run
from tests.data.parts.test_image_hashes import scene
from vitcli.data.checks.near_duplicates import DuplicatePairs, SplitName, index_to_train
from vitcli.data.checks.splits import SplitLabels


def save(image: np.ndarray, file: Path, **how) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(file, **how)


@pytest.fixture(scope="module")
def sets(tmp_path_factory) -> Path:
    """A train folder of 20 scenes and a test folder of 9: six of them are copies of some kind."""
    root = tmp_path_factory.mktemp("sets")
    for number in range(20):
        save(scene(number), root / f"a/train/x/{number:02}.png")
    test = root / "a/test/x"
    test.mkdir(parents=True)
    shutil.copy(root / "a/train/x/00.png", test / "copy.png")
    save(scene(1), test / "same_pixels.bmp")
    save(scene(2), test / "worse.jpg", quality=40)
    save(np.asarray(Image.fromarray(scene(3)).resize((64, 48))), test / "smaller.png")
    save(np.clip(scene(4).astype(int) + 20, 0, 255).astype(np.uint8), test / "brighter.png")
    shutil.copy(test / "copy.png", test / "copy_again.png")
    for number in range(3):
        save(scene(100 + number), test / f"own{number}.png")
    return root


def check(*words) -> dict:
    outcome = run("datasets", "check", *words, "--json", "--quiet")
    spoils = any(finding["level"] == "spoils" for finding in outcome.json["findings"])
    assert (outcome.code, outcome.err) == (3 if spoils else 0, ""), outcome.out + outcome.err
    assert ("error" in outcome.json) == spoils
    return outcome.json


def test_copies_are_found_and_unrelated_images_are_not(sets):
    found = check(sets / "a")
    kinds = {Path(pair["place"].split("file ")[1]).name: pair["kind"] for pair in found["pairs"]}

    assert kinds == {"copy.png": "file", "copy_again.png": "file", "same_pixels.bmp": "pixels",
                     "worse.jpg": "near", "smaller.png": "near", "brighter.png": "near"}  # fmt: skip
    counts = ("num_same_file", "num_same_pixels", "num_near", "num_images_exact", "num_images_near")
    assert [found[key] for key in counts] == [2, 1, 3, 3, 3]
    assert (found["num_images"], found["num_against"], found["unreadable"]) == (9, 20, [])
    assert all(pair["against_place"].endswith(".png") for pair in found["pairs"])


def test_at_distance_0_and_in_any_number_of_threads_the_exact_ones_stay(sets):
    exact = check(sets / "a", "--distance", 0, "--workers", 3)

    assert (exact["num_same_file"], exact["num_same_pixels"]) == (2, 1)
    wide, narrow = check(sets / "a", "--workers", 1), check(sets / "a", "--workers", 4)
    assert {**wide, "elapsed_s": 0} == {**narrow, "elapsed_s": 0}


def test_a_split_against_itself_gives_each_pair_once(sets):
    found = check(sets / "a", "--split", "test", "--against-split", "test")

    assert (found["num_same_file"], found["num_near"]) == (1, 0)
    assert check(sets / "a", "--split", "train", "--against-split", "train")["pairs"] == []
    assert (
        "within itself"
        in run(*("datasets", "check", sets / "a", "--split", "test", "--against-split", "test", "-q")).out
    )


@pytest.mark.parametrize(
    ("split", "words", "told"),
    [
        ("test", ("--split", "test"), "has no train split"),
        ("test", ("--against-split", "test"), "has no split to check besides test"),
        ("train", ("--split", "train"), "would be compared with itself"),
        ("train", ("--split", "train[:50%]"), "would be compared with itself"),
        ("train", ("--against", "ROOT/../one"), "has no split to check besides train"),
    ],
)
def test_a_split_named_once_is_never_compared_with_itself(sets, tmp_path, split, words, told):
    root = tmp_path / "one"
    shutil.copytree(sets / "a/test", root / split)

    outcome = run("datasets", "check", root, *(str(word).replace("ROOT", str(root)) for word in words))

    assert (outcome.code, len(outcome.err.splitlines()), outcome.out) == (3, 3, "")
    assert told in outcome.err and "--against-split" in outcome.err


@pytest.mark.parametrize("folder", ["train", "."])
def test_a_folder_of_one_split_or_without_classes_is_searched_within_itself(sets, tmp_path, folder):
    for number, name in enumerate(["00", "01", "00"]):
        (tmp_path / "one" / folder).mkdir(parents=True, exist_ok=True)
        shutil.copy(sets / f"a/train/x/{name}.png", tmp_path / "one" / folder / f"{number}.png")

    found = check(tmp_path / "one")

    assert (found["num_images"], found["num_same_file"], found["split"]) == (3, 1, found["against"])


def test_two_parts_of_one_split_are_compared(sets):
    words = ("--split", "train[:50%]", "--against-split", "train[50%:]")

    assert check(sets / "a", *words)["num_against"] == 10


@pytest.mark.parametrize(
    ("out", "code"), [("SETS/a", 5), ("SETS/a/train/x/00.png/p.csv", 5), ("/proc/none/p.csv", 5)]
)
def test_an_out_that_cannot_be_written_is_found_before_the_data_are_opened(sets, out, code):
    outcome = run("datasets", "check", "gone/", "--out", out.replace("SETS", str(sets)), "--overwrite")

    assert outcome.code == code
    assert "--out" in outcome.err and len(outcome.err.splitlines()) == 3


def test_two_sets_and_a_table_of_all_pairs(sets, tmp_path):
    shutil.copytree(sets / "a/test", tmp_path / "b/train")

    found = check(tmp_path / "b", "--against", sets / "a", "--out", tmp_path / "pairs.csv")

    with open(tmp_path / "pairs.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["kind"], int(row["row"])) for row in sorted(rows, key=lambda row: int(row["row"]))] == [
        (pair["kind"], pair["row"]) for pair in sorted(found["pairs"], key=lambda pair: pair["row"])
    ]
    assert len(rows) == 6 and found["pairs_file"] == str(tmp_path / "pairs.csv")
    refused = run("datasets", "check", tmp_path / "b", "--out", tmp_path / "pairs.csv")
    assert (refused.code, refused.err.splitlines()[0]) == (
        2,
        f"error: {tmp_path / 'pairs.csv'} already exists",
    )


def test_broken_images_are_named_and_the_others_compared(sets, tmp_path):
    shutil.copytree(sets / "a", tmp_path / "a")
    (tmp_path / "a/test/x/aa_broken.jpg").write_bytes(b"\xff\xd8 no picture")

    found = check(tmp_path / "a")
    (place,) = found["unreadable"]

    assert "aa_broken.jpg" in place and "cannot be decoded" in place
    assert (found["num_images_exact"], found["num_images_near"]) == (3, 3)
    table = run("datasets", "check", tmp_path / "a", "--quiet").out
    (line,) = [line for line in table.splitlines() if line.startswith("unreadable")]
    assert line.endswith(" 1 image, left out: first test/x/aa_broken.jpg") and len(line) <= 80
    assert "cannot be read" in run("datasets", "check", "--help").out


def test_the_table_says_how_many_and_shows_the_closest_first(sets):
    outcome = run("datasets", "check", sets / "a", "--quiet")
    lines = outcome.out.splitlines()

    assert lines[0].startswith("SPOILS      3 of 9 images of test have an exact copy in train")
    assert lines[1].startswith("look at     3 more of 9 images of test have a near copy in train")
    named = {line[:11].strip(): line for line in reversed(lines)}
    assert "9 images of" in named["checked"] and "20 of" in named["against"]
    assert "3 images (33.33%) have an exact copy: 2 pairs of equal files, 1 of equal pixels" in named["same"]
    assert "3 more (33.33%) have a near copy, in 3 pairs" in named["near"]
    train = f"vit finetune --ckpt WEIGHTS --dataset {sets / 'a'}"
    train += " --set data.train_split=train+test --set data.group_column=near_duplicates"
    assert lines[-1] == f"            {train}" and lines[-2].startswith("next        vit datasets check")
    assert outcome.code == 3 and outcome.err.splitlines()[0].endswith("would distort the results: leak")
    first = next(number for number, line in enumerate(lines) if line.startswith("the closest"))
    kinds = [line.split()[0] for line in lines[first + 1 : -3] if not line.startswith(" ")]
    assert kinds == ["file", "file", "pixels", "near", "near", "near"]
    assert lines[first + 1].split()[:3] == ["file", "0", "test/x/copy.png"]  # within the data set


def test_plain_surfaces_match_their_exact_copies_alone(tmp_path):
    for split, greys in (("train", (10, 11, 12)), ("test", (12, 13))):
        for grey in greys:
            save(np.full((16, 16, 3), grey, np.uint8), tmp_path / f"p/{split}/x/{grey}.png")

    found = check(tmp_path / "p")

    assert [(pair["kind"], pair["row"], pair["against_row"]) for pair in found["pairs"]] == [("file", 0, 2)]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("check", "gone/"), 3, "there is no data set 'gone/'"),
        (("check", "SETS/a", "--split", "tset"), 3, "has no split 'tset'"),
        (("check", "SETS/a", "--distance", "99"), 2, "less than or equal to 32"),
        (("show", "cifar11"), 3, "there is no alias 'cifar11', did you mean 'cifar10'?"),
    ],
)
def test_errors_are_three_lines(sets, words, code, told):
    outcome = run("datasets", *(word.replace("SETS", str(sets)) for word in words))

    assert (outcome.code, len(outcome.err.splitlines())) == (code, 3)
    assert told in outcome.err


def test_labels_do_not_matter(tmp_path):
    """Several columns of labels, none of them named; and a test split that is not labelled."""
    import datasets

    for split, label in (("train", 3), ("test", -1)):
        save(scene(1), tmp_path / "p.png")
        picture = {"bytes": (tmp_path / "p.png").read_bytes(), "path": None}
        rows = {"image": [picture], "label": [label], "other_label": [0]}
        table = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
        (tmp_path / "set").mkdir(exist_ok=True)
        table.to_parquet(tmp_path / f"set/{split}.parquet")

    assert check(tmp_path / "set")["num_same_file"] == 1


@pytest.mark.slow
def test_real_flowers_in_test_are_copies_of_some_in_train(shared):
    found = check(shared / "data/flowers17")

    assert found["num_images_near"] == 8
    assert ("image_0820.jpg", "image_0855.jpg") in {
        (pair["place"][-14:], pair["against_place"][-14:]) for pair in found["pairs"]
    }


def test_a_run_would_train_on_what_is_searched_unless_that_is_other_data():
    assert index_to_train(("test", "train"), SplitName(None, "train")) == 1
    assert index_to_train(("test", "train", "validation"), SplitName(None, "auto")) == 1
    assert index_to_train(("train",), SplitName(None, "auto")) == 0  # searched in itself
    assert index_to_train(("train", "theirs"), SplitName("theirs", "auto")) == 0


def test_the_closest_of_all_pairs_are_shown_whichever_block_they_are_found_in():
    part = SimpleNamespace(split=range(100), labels=None)
    pairs = DuplicatePairs(part, part, distance=8)
    near_P4 = [[2, bits, row, row + 1] for row in range(40) for bits in (3, 4)]
    exact_P4 = [[0, 0, row, row + 50] for row in (7, 3)]

    for block_P4 in (near_P4, exact_P4, [[1, 0, 9, 10]]):
        pairs._count(np.array(block_P4))
    closest = [(0, 0, 3, 53), (0, 0, 7, 57), (1, 0, 9, 10), *((2, 3, row, row + 1) for row in range(17))]
    assert pairs.closest == closest and pairs.counts == [2, 1, 80]


class Rows(list):
    """As many rows as a split, each called by its number."""

    def where_is(self, row: int) -> str:
        return f"row {row}"


def labelled(names: str, labels: list[int]) -> SimpleNamespace:
    classes = SplitLabels(tuple(names), np.array(labels), has_numbers=False)
    return SimpleNamespace(split=Rows(labels), labels=classes)


def test_equal_images_contradict_each_other_by_the_names_of_their_classes():
    """One split numbers its classes a, b, c and the other c, b, a."""
    one, other = labelled("abc", [0, 1, 2, 0]), labelled("cba", [2, 1, 2, 0])
    pairs = DuplicatePairs(one, other, distance=8)
    same, differing = [(0, 0, 0, 0), (1, 0, 1, 1)], [(0, 0, 2, 2), (1, 0, 3, 3)]  # a, b; c and a, a and c
    near = [(2, 4, 1, 0), (2, 1, 3, 3), (2, 1, 1, 1)]  # b and a, a and c; both b: guesses, told apart

    pairs._count(np.array([*same, *differing[:1], *near[:1], near[2]]))
    pairs._count(np.array([*differing[1:], near[1]]))
    found = pairs.result()

    assert found["num_contradictions"] == 2
    assert [(pair["label"], pair["against_label"]) for pair in found["contradictions"]] == [
        ("c", "a"),
        ("a", "c"),
    ]
    assert (found["num_same_file"], found["num_same_pixels"], found["num_near"]) == (2, 2, 3)
    assert found["num_near_contradictions"] == 2  # the closest first
    assert [(pair["label"], pair["against_label"]) for pair in found["near_contradictions"]] == [
        ("a", "c"),
        ("b", "a"),
    ]


def test_an_image_with_an_exact_copy_is_not_one_with_a_near_copy_as_well():
    one = labelled("a", [0] * 6)
    pairs = DuplicatePairs(one, labelled("a", [0] * 9), distance=8)

    pairs._count(np.array([(0, 0, 0, 1), (2, 3, 0, 2), (1, 0, 4, 4), (2, 5, 5, 4), (2, 5, 5, 8)]))

    assert (pairs.result()["num_images_exact"], pairs.result()["num_images_near"]) == (2, 1)
