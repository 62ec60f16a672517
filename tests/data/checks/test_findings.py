"""What `vit datasets check` finds in folders that have one thing wrong each, and what that costs."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tests.conftest import run
from tests.data.parts.test_image_hashes import scene
from vitcli.data.checks import check as checking
from vitcli.data.checks import findings
from vitcli.data.checks.splits import SplitLabels, describe_labels
from vitcli.data.checks.text import as_text


def save(file: Path, seed: int, height: int = 40, width: int = 48) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(scene(seed, height, width)).save(file)
    return file


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> Path:
    """Six images of each of two classes to train on, and two of each to test on."""
    root = tmp_path_factory.mktemp("clean") / "photos"
    for seed in range(16):
        split = "train" if seed < 12 else "test"
        save(root / split / ("rose", "tulip")[seed % 2] / f"{seed:02}.png", seed)
    return root


@pytest.fixture
def photos(clean, tmp_path) -> Path:
    return Path(shutil.copytree(clean, tmp_path / "photos"))


def check(*words: object) -> dict:
    outcome = run("datasets", "check", *words, "--json", "-q")
    spoils = any(finding["level"] == "spoils" for finding in outcome.json["findings"])
    assert (outcome.code, outcome.err) == (3 if spoils else 0, "")
    return outcome.json


def found(*words: object) -> list[tuple[str, str]]:
    return [(finding["level"], finding["name"]) for finding in check(*words)["findings"]]


def test_nothing_is_found_in_clean_images_and_the_facts_are_right(clean):
    result = check(clean)
    test, train = result["splits"]

    assert result["findings"] == [] and result["alike_classes"] == [] and result["unreadable"] == []
    assert train["is_trained_on"] and not test["is_trained_on"]
    assert train["labels"]["images_per_class"] == {"rose": 6, "tulip": 6} and train["labels"]["ratio"] == 1
    assert train["sizes"]["short_side"] == dict.fromkeys(("min", "p5", "median", "p95", "max"), 40)
    assert train["sizes"]["aspect"] == dict.fromkeys(("min", "p5", "median", "p95", "max"), 1.2)
    screen = run("datasets", "check", clean, "-q")
    assert screen.code == 0 and "nothing that would distort the results" in screen.out
    assert "classes     train: 2 of 6 images each\n            test: 2 of 2 images each\n" in screen.out
    sizes = "all short sides 40 px, width / height 1.20\n"
    assert f"sizes       train: {sizes}            test: {sizes}" in screen.out


def another_case(root: Path) -> None:
    for seed in range(20, 26):
        save(root / "train/Rose" / f"{seed}.png", seed)
    save(root / "test/Rose/26.png", 26)


def wide_blanks(root: Path) -> None:
    for split in ("train", "test"):
        (root / split / "tulip").rename(root / split / "wild tulip")
    for seed in range(20, 26):
        save(root / "train/wild  tulip" / f"{seed}.png", seed)
    save(root / "test/wild  tulip/26.png", 26)


def contradiction(root: Path) -> None:
    shutil.copy(root / "train/rose/00.png", root / "train/tulip/copy.png")


def contradiction_of_splits(root: Path) -> None:
    shutil.copy(root / "train/rose/00.png", root / "test/tulip/copy.png")


def copy_within(root: Path) -> None:
    shutil.copy(root / "train/rose/00.png", root / "train/rose/copy.png")


def copy_within_test(root: Path) -> None:
    shutil.copy(root / "test/rose/12.png", root / "test/rose/copy.png")


def near_copy_within_test(root: Path) -> None:
    Image.open(root / "test/rose/12.png").save(root / "test/rose/copy.jpg", quality=90)


def near_contradiction(root: Path) -> None:
    Image.open(root / "train/rose/00.png").save(root / "train/tulip/copy.jpg", quality=90)


def leak(root: Path) -> None:
    shutil.copy(root / "train/rose/00.png", root / "test/rose/copy.png")


def near_leak(root: Path) -> None:
    Image.open(root / "train/rose/00.png").save(root / "test/rose/copy.jpg", quality=90)


def leak_of_a_third_split(root: Path) -> None:
    save(root / "val/rose/30.png", 30)
    shutil.copy(root / "test/tulip/13.png", root / "val/tulip.png")
    (root / "val/tulip").mkdir()
    (root / "val/tulip.png").rename(root / "val/tulip/a.png")


def broken(root: Path) -> None:
    (root / "train/rose/broken.jpg").write_bytes(b"\xff\xd8\xff and no more")


def few(root: Path) -> None:
    for file in sorted((root / "train/rose").iterdir())[:2]:
        file.unlink()


def unknown_class(root: Path) -> None:
    save(root / "test/daisy/30.png", 30)


def unscored_class(root: Path) -> None:
    shutil.rmtree(root / "test/tulip")


def unequal(root: Path) -> None:
    for seed in range(100, 154):
        save(root / "train/rose" / f"{seed}.png", seed)


def large(root: Path) -> None:
    noise = np.asarray(Image.fromarray(scene(40, 50, 52)).resize((5200, 5000), Image.Resampling.NEAREST))
    Image.fromarray(noise[..., 0]).save(root / "train/rose/large.jpg", quality=50)


def small(root: Path) -> None:
    save(root / "train/rose/small.png", 40, height=31, width=40)


def long(root: Path) -> None:
    save(root / "train/rose/long.png", 40, height=40, width=121)


def not_an_image(root: Path) -> None:
    (root / "train/rose/notes.pdf").write_bytes(b"%PDF-1.4")


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (another_case, [("spoils", "alike_classes")]),
        (wide_blanks, [("spoils", "alike_classes")]),
        (contradiction, [("spoils", "copies_with_other_labels"), ("look", "copies_within")]),
        (contradiction_of_splits, [("spoils", "copies_with_other_labels"), ("spoils", "leak")]),
        (copy_within, [("look", "copies_within")]),
        (copy_within_test, [("look", "copies_within")]),
        (near_copy_within_test, [("know", "copies_within")]),
        (near_contradiction, [("look", "near_copies_with_other_labels"), ("look", "copies_within")]),
        (leak, [("spoils", "leak")]),
        (leak_of_a_third_split, [("spoils", "leak")]),
        (broken, [("spoils", "unreadable_images")]),
        (few, [("look", "small_classes")]),
        (unknown_class, [("spoils", "labels_not_read")]),
        (unscored_class, [("look", "empty_classes")]),
        (unequal, [("know", "unequal_classes")]),
        (large, [("look", "large_images")]),
        (small, [("know", "small_images")]),
        (long, [("know", "long_images")]),
        (not_an_image, [("look", "files_left_out")]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_each_thing_is_found_alone_and_named(photos, spoil, expected):
    spoil(photos)
    result = check(photos)

    assert [(finding["level"], finding["name"]) for finding in result["findings"]] == expected, result
    assert all(finding["text"] for finding in result["findings"])
    text, failure = as_text(result), findings.failure(result)
    assert all(finding["text"] in text for finding in result["findings"])
    spoiling = [finding for finding in result["findings"] if finding["level"] == "spoils"]
    assert bool(failure) == bool(spoiling)
    if failure:
        names = ", ".join(name.replace("_", " ") for level, name in expected if level == "spoils")
        assert failure.message.endswith(f"would distort the results: {names}")
        assert all(finding["fix"] in failure.fix for finding in spoiling)


def test_a_single_pair_is_no_plural_and_the_screen_ends_with_what_spoils_a_number(photos):
    leak(photos)
    screen = run("datasets", "check", photos, "-q")

    assert "1 pair of equal files, 0 of equal pixels" in screen.out
    assert screen.code == 3 and len(screen.err.splitlines()) == 3
    told = "error: the check is complete; exit code 3, as 1 finding would distort the results: leak"
    assert screen.err.splitlines()[0] == told
    broken(photos)
    two = run("datasets", "check", photos, "-q").err.splitlines()
    assert "as 2 findings would distort" in two[0] and "vit finetune --skip-bad; leak: delete" in two[2]
    asked = run("datasets", "check", photos, "--skip-bad")
    assert asked.code == 2 and "leave it out: this command goes on where an image cannot be read" in asked.err


def test_limits_belong_to_what_is_not_found(photos):
    save(photos / "train/rose/small.png", 40, height=32, width=40)
    save(photos / "train/tulip/long.png", 41, height=40, width=120)
    for file in sorted((photos / "train/rose").iterdir())[:2]:
        file.unlink()  # five are left

    assert found(photos) == []


def test_both_images_of_a_pair_within_a_split_are_counted(photos):
    copy_within(photos)
    (within_train,) = (pair for pair in check(photos)["comparisons"] if "train" in pair["against"]
                       and pair["within"])  # fmt: skip

    assert within_train["num_same_file"] == 1 and within_train["num_images_exact"] == 2


def test_numbers_and_several_labels_are_described(photos):
    files = sorted((photos / "train/rose").iterdir())
    numbers = photos.parent / "numbers"
    shutil.copytree(photos / "train/rose", numbers)
    rows = [f"{file.name},{age**2}.5" for age, file in enumerate(files)]
    (numbers / "labels.csv").write_text("\n".join(["file,age", *rows]))
    several = photos.parent / "several"
    shutil.copytree(photos / "train/rose", several)
    marks = ["1,1", "1,0", "1,1", "0,1", "1,0", "0,0"]
    rows = [f"{file.name},{mark}" for file, mark in zip(files, marks, strict=True)]
    (several / "labels.csv").write_text("\n".join(["file,cat,dog", *rows]))

    result = check(numbers)
    number = result["splits"][0]["labels"]
    assert number == {"kind": "number", "column": "age", "min": 0.5, "median": 7.0, "max": 25.5}
    assert "age, a number: min 0.5, median 7, max 25.5" in as_text(result)
    assert as_text(result).rstrip().endswith("--set objective.loss=regression")
    result = check(several)
    both = result["splits"][0]["labels"]
    assert both["kind"] == "several" and both["images_per_class"] == {"cat": 4, "dog": 3}
    assert both["num_unlabelled"] == 1
    assert "2, several per image: dog 3 to cat 4 images" in as_text(result)
    assert as_text(result).rstrip().endswith("--set objective.loss=sigmoid")


def test_sizes_of_odd_images_are_width_by_height_beside_their_places(photos):
    long(photos)
    (train,) = (part["sizes"] for part in check(photos)["splits"] if part["is_trained_on"])

    (place,) = train["long"]
    assert place.endswith("train/rose/long.png: 121x40")


def test_what_comes_next_follows_from_labels_and_findings(clean):
    whole = check(clean) | {"elapsed_s": 1.0}
    parts, reading = whole["splits"], ["--set", "data.group_column=folder:1"]
    unlabelled = [part | {"labels": None} for part in parts]
    copies = [{"level": "look", "name": "copies_within", "text": "some", "fix": ""}]

    def commands(**changes: object) -> list[list[str]]:
        lines = as_text(whole | changes).splitlines()
        return [line[12:].split() for line in lines if line[12:].startswith("vit ")]

    data, train = str(clean), ["vit", "finetune", "--ckpt", "WEIGHTS", "--dataset", str(clean)]
    labels = ["vit", "datasets", "check", data, "--labels", "--ckpt", "WEIGHTS", "--out", "suspects.csv"]
    assert commands() == [labels, train]
    assert commands(splits=[parts[0], unlabelled[1]]) == [labels, train]
    embed = ["vit", "embed", "--ckpt", "demo", "--dataset", data, "--out", "features.safetensors"]
    assert commands(splits=unlabelled) == [embed]
    grouped = [*train, "--set", "data.group_column=near_duplicates"]
    assert commands(findings=copies) == [labels, grouped]
    assert commands(findings=copies, reading=reading)[1] == [*train, *reading]  # it has groups of its own
    checked = SUSPECTS | {"listed": [], "out": None}
    assert commands(suspects=checked) == [["vit", "finetune", "--ckpt", "w.safetensors", "--dataset", data]]


def test_sizes_are_a_range_unless_all_images_have_the_same(clean):
    whole = check(clean) | {"elapsed_s": 1.0}
    wide = whole["splits"][0]
    wide["sizes"]["aspect"] |= {"max": 2.0, "median": 1.5}

    text = "short side 40 to 40 px, median 40; width / height 1.20 to 2.00, median 1.50"
    assert text in as_text(whole)
    wide["sizes"] |= {"short_side": None}
    assert "median" not in as_text(whole)


def test_the_speed_is_of_the_images_of_all_splits(clean):
    assert f"{'speed':<11} 8 images/s\n" in as_text(check(clean) | {"elapsed_s": 2.0})


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (broken, ["--skip-bad"]),
        (copy_within, ["--set data.group_column=near_duplicates"]),
        (near_leak, ["--set data.train_split=train+test --set data.group_column=near_duplicates"]),
        (leak, []),  # they are deleted first
        (long, []),
    ],
)
def test_the_next_command_goes_on_in_spite_of_what_was_found(photos, spoil, words):
    spoil(photos)
    (command,) = (line for line in run("datasets", "check", photos, "-q").out.splitlines() if "tune" in line
                  and str(photos) in line and "--ckpt" in line)  # fmt: skip

    assert command.partition(str(photos))[2].split() == " ".join(words).split()


def of_classes(counts: dict[str, int], split: str = "train", *, is_trained_on: bool = True) -> dict:
    """A split of so many images of each class, as `check` describes it."""
    labels = np.repeat(np.arange(len(counts)), list(counts.values()))
    return {
        "split": f"photos, split {split}",
        "is_trained_on": is_trained_on,
        "labels": describe_labels(SplitLabels(tuple(counts), labels, has_numbers=False)),
        "no_labels": None,
        "labels_stop": False,
        "sizes": {"large": [], "small": [], "long": []},
    }


def found_in(*splits: dict, **more: object) -> list[tuple[str, str, str]]:
    result = {"splits": splits, "comparisons": [], "unreadable": [], "alike_classes": []}
    given = findings.find(result | {"num_left_out_files": 0} | more)
    return [(each["level"], each["name"], each["text"]) for each in given]


def test_classes_of_one_to_four_images_are_small_and_those_of_none_are_empty():
    test = of_classes({"a": 2, "b": 0, "c": 1}, "test", is_trained_on=False)
    train = of_classes({"a": 0, "b": 1, "c": 4, "d": 5, "e": 9})

    assert found_in(train, test) == [
        ("spoils", "empty_classes", "1 class has no image in train: a"),
        ("look", "small_classes", "2 classes have fewer than 5 images in train: b 1, c 4"),
        ("look", "empty_classes", "1 class has no image in test: b"),
    ]
    assert found_in(of_classes({"a": 0, "d": 5})) == [
        ("look", "empty_classes", "1 class has no image in train: a"),
    ]


@pytest.mark.parametrize(("most", "is_found"), [(59, False), (60, True), (61, True)])
def test_classes_are_unequal_from_ten_times_on_where_they_are_trained_on(most, is_found):
    counts = {"a": most, "b": 6, "c": 30}

    text = f"a has {most} images in train, b 6"
    assert found_in(of_classes(counts)) == [("know", "unequal_classes", text)] * is_found
    assert found_in(of_classes(counts, is_trained_on=False)) == []


SUSPECTS = {
    "split": "photos, split train", "model": "demo", "ckpt": "w.safetensors", "top1": 0.5, "num_checked": 90,
    "num_named": 0, "num_trained_on": 0, "are_classes_known": True, "page": None,
    "leaves_copies_out": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"num_named": 1}, [("suspicious_labels", "1 label of 90 of train contradicted by the others")]),
        ({"num_named": 2}, [("suspicious_labels", "2 labels of 90 of train contradicted by the others")]),
        (
            {"are_classes_known": False},
            [("unknown_classes", "labels of train not judged: the features of demo know these classes badly, "
              "50.0% by leave-one-out")],
        ),
        (
            {"num_trained_on": 1234},
            [("trained_on_labels", "w.safetensors was trained on 1,234 of these images, and may have learned "
              "wrong labels")],
        ),
    ],
)  # fmt: skip
def test_labels_that_others_contradict_are_to_be_looked_at(change, expected):
    given = found_in(suspects=SUSPECTS | change)

    assert given == [("look", name, text) for name, text in expected]


def test_three_names_are_shown_and_the_others_counted():
    odd = [f"photos, split test, file b/c/{name}.png: 3x4" for name in "abcd"]
    odd += ["shards, split train, row 3"]
    part = of_classes({"a": 6})
    part["sizes"] = {"large": odd[-1:], "small": odd[:4], "long": odd[:3]}

    assert found_in(part, unreadable=odd, num_left_out_files=1234) == [
        ("spoils", "unreadable_images",
         "5 images cannot be read: c/a.png, c/b.png, c/c.png and 2 more"),
        ("look", "large_images",
         "1 image has more than 25 megapixels, which take long to decode: train, row 3"),
        ("look", "files_left_out", "1,234 files of the folder not read"),
        ("know", "small_images",
         "4 images have a side below 32 pixels: c/a.png, c/b.png, c/c.png and 1 more"),
        ("know", "long_images",
         "3 images have one side more than 3 times the other: a centre crop shows the middle alone: "
         "c/a.png, c/b.png, c/c.png"),
    ]  # fmt: skip


def pair_of(split: str, against: str, *, exact: int = 0, near: int = 0, contradictions: int = 0,
            near_contradictions: int = 0) -> dict:  # fmt: skip
    first = {"place": f"{split}, file a/1.png", "against_place": f"{against}, file b/2.png"}
    return {
        "split": split, "against": against, "within": split == against, "num_images": 1000,
        "num_images_exact": exact, "num_images_near": near, "num_contradictions": contradictions,
        "contradictions": [first | {"label": "a", "against_label": "b"}] * contradictions,
        "num_near_contradictions": near_contradictions,
        "near_contradictions": [first | {"label": "c", "against_label": "d"}] * near_contradictions,
    }  # fmt: skip


def test_copies_within_matter_most_where_a_part_of_their_split_is_held_out():
    train, test = "photos, split train", "photos, split test"
    parts = of_classes({"a": 6}), of_classes({"a": 6}, "test", is_trained_on=False)
    pairs = [
        pair_of(test, train, exact=2, near=3, near_contradictions=2),
        pair_of(train, train, exact=1, near=4, contradictions=1, near_contradictions=1),
        pair_of(test, test, near=1500),
    ]

    given = findings.find(
        {"splits": parts, "comparisons": pairs, "unreadable": [], "alike_classes": [["a", "A"]]}
        | {"num_left_out_files": 0}
    )

    assert [(each["level"], each["name"], each["text"], each["fix"]) for each in given] == [
        ("spoils", "leak", "2 of 1,000 images of test have an exact copy in train",
         "delete them from test or train"),
        ("spoils", "copies_with_other_labels",
         "1 pair of equal images within train with different labels: a/1.png is a, b/2.png is b",
         "delete the one with the wrong label"),
        ("spoils", "alike_classes", "'a' and 'A' are two classes, equal but for case, blanks or accents",
         "give them one name"),
        ("look", "near_copies_with_other_labels",
         "2 near pairs of test and train have two labels: a/1.png is c, b/2.png is d",
         "one may be wrong: look at both images"),
        ("look", "near_copies", "3 more of 1,000 images of test have a near copy in train",
         "copies of a photograph leak as well: look at the pairs"),
        ("look", "near_copies_with_other_labels",
         "1 near pair within train has two labels: a/1.png is c, b/2.png is d",
         "one may be wrong: look at both images"),
        ("look", "copies_within",
         "1 have an exact copy and 4 more a near one within the 1,000 images of train",
         "vit finetune --set data.group_column=near_duplicates keeps them on one side of a cut"),
        ("know", "copies_within", "1,500 have a near copy within the 1,000 images of test", ""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"no_labels": "too large"}, [("look", "labels_not_read", "labels of train: too large", "")]),
        (
            {"no_labels": "b is new", "labels_stop": True},
            [("spoils", "labels_not_read", "labels of train: b is new",
              "give each class one name in all splits, and images in train")],
        ),
        ({}, []),  # nobody has said what the images are of
    ],
)  # fmt: skip
def test_labels_that_are_not_read_spoil_a_number_where_they_would_stop_a_run(change, expected):
    part = of_classes({"a": 6}) | {"labels": None} | change

    given = findings.find(
        {"splits": [part], "comparisons": [], "unreadable": [], "alike_classes": []}
        | {"num_left_out_files": 0}
    )
    assert [(each["level"], each["name"], each["text"], each["fix"]) for each in given] == expected


@pytest.mark.parametrize(("number", "verb"), [(1, "image of train has"), (2, "images of train have")])
def test_images_of_no_class_are_counted(number, verb):
    labels = np.concatenate([np.zeros((7, 1), int), np.full((number, 1), -1)])
    part = of_classes({"a": 7})
    part["labels"] = describe_labels(SplitLabels(("a",), labels, has_numbers=False))

    assert found_in(part) == [("know", "images_of_no_class", f"{number} {verb} no class")]


def test_a_single_split_that_is_too_large_has_no_pairs():
    counts = ("num_same_file", "num_same_pixels", "num_near", "num_images_exact", "num_images_near")

    assert checking._of_first([]) == dict.fromkeys(counts, 0) | {"pairs": []}
    first = {key: number for number, key in enumerate(counts)} | {"pairs": ["p"], "within": True}
    assert checking._of_first([first, {}]) == {key: first[key] for key in (*counts, "pairs")}


def test_a_page_of_wrong_labels_is_to_be_opened_where_there_is_one():
    about = {"splits": [], "comparisons": [], "unreadable": [], "alike_classes": [], "num_left_out_files": 0}

    def fix(page: str | None) -> str:
        (finding,) = findings.find(about | {"suspects": SUSPECTS | {"num_named": 2, "page": page}})
        return finding["fix"]

    assert fix("s.html") == "open s.html"
    assert fix(None) == "--out suspects.csv writes them, and a page of the images"


@pytest.mark.parametrize(
    ("sizes", "is_named", "pairs"),
    [
        ((3, 2), False, [(0, 1), (1, 1)]),
        ((2, 2), False, [(0, 1), (0, 0), (1, 1)]),
        ((3, 3), True, [(0, 1)]),
        ((3,), False, []),
        ((3,), True, [(0, 0)]),  # it was asked for
        ((2, 3, 1), False, [(0, 1), (0, 2), (1, 2), (0, 0), (2, 2)]),
    ],
)
def test_pairs_within_a_large_split_are_searched_for_only_if_asked(monkeypatch, sizes, is_named, pairs):
    monkeypatch.setattr(checking, "MOST_WITHIN", 2)
    examined = [
        SimpleNamespace(split=range(size), labels=None, number=number) for number, size in enumerate(sizes)
    ]

    compared = checking._compared(examined, is_named=is_named, options=checking.CheckOptions(distance=6))

    assert [(each.one.number, each.other.number) for each in compared] == pairs
