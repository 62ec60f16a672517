"""Lines of results: what is wrapped and what can be copied, and numbers with what they are worth."""

import csv
import io
import json
import shlex
import sys

import pytest

from vitcli.output.atomic import read_json, write_json
from vitcli.output.text import (
    MOST_LINES,
    Folded,
    Verbatim,
    accuracy_text,
    brief,
    bytes_text,
    commands,
    compute_text,
    count_of,
    csv_text,
    duration,
    first_few,
    fold_notes,
    interval_text,
    json_of,
    json_text,
    pairs,
    seen_notes,
    short_paths,
    size_text,
    within,
)


@pytest.mark.parametrize("columns", [80, 120])
def test_a_long_value_is_broken_at_spaces_and_continues_below_its_start(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    words = "96x96, short side 106, centre crop, bicubic with antialias, " * 3

    lines = pairs([("pixels", words), ("speed", "1 s")]).splitlines()

    assert max(map(len, lines)) <= columns and len(lines) >= 3
    assert all(line.startswith(" " * 12) for line in lines[1:-1]) and lines[-1] == "speed       1 s"
    assert " ".join(line[12:] for line in lines[:-1]) == words.strip()


def test_a_command_stays_on_one_line_and_is_quoted_for_the_shell(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    words = ["vit", "evaluate", "--ckpt", "runs/a b", "--dataset", "my photos [été]!", "--out", "x" * 60]

    first, second = pairs(commands(words, ("vit", "report"))).splitlines()

    assert first.startswith("next        vit ") and shlex.split(first.removeprefix("next")) == words
    assert second == f"{'':12}vit report"


def test_a_path_stays_on_one_line_and_loses_only_control_characters(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    assert pairs([("files", Verbatim("a folder\n" * 20))]).count("\n") == 1


@pytest.mark.parametrize(
    ("accuracy", "interval", "count", "text"),
    [
        (0.8, [0.4, 1.0], 5, "80.00%  (95 %: 40 to 100; 5 images)"),
        (1.0, [0.025, 1.0], 1, "100.00%  (95 %: 2 to 100; 1 image)"),
        (0.976, [0.9591, 0.9912], 600, "97.60%  (95 %: 95.9 to 99.1; 600 images)"),
        (0.84123, [0.83911, 0.84334], 50_000, "84.12%  (95 %: 83.91 to 84.33; 50,000 images)"),
    ],
)
def test_an_accuracy_says_how_much_it_is_worth(accuracy, interval, count, text):
    assert accuracy_text(accuracy, interval, count) == text
    assert interval_text(interval) in text


def test_one_is_singular():
    assert [count_of(n, "process", "processes") for n in (0, 1, 2)] == [
        "0 processes",
        "1 process",
        "2 processes",
    ]
    assert count_of(1_000, "image") == "1,000 images"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (7.26, "7.3 s"),
        (10, "10 s"),
        (42, "42 s"),
        (89.4, "89 s"),
        (90.1, "2 min"),
        (120, "2 min"),
        (89 * 60 + 29, "89 min"),
        (89 * 60 + 31, "1 h 30 min"),
        (119 * 60 + 40, "2 h 00 min"),
        (12_000, "3 h 20 min"),
        (None, ""),
    ],
)
def test_a_duration_has_the_unit_a_person_would_take(seconds, text):
    assert duration(seconds) == text


def test_paths_lose_what_all_share_but_the_folder_of_a_file_and_names_of_rows_nothing():
    assert short_paths(["my photos/a/1.jpg", "my photos/b/1.jpg"]) == ["a/1.jpg", "b/1.jpg"]
    assert short_paths(["/x/a/1.jpg", "/x/a/2.jpg"]) == ["a/1.jpg", "a/2.jpg"]
    assert short_paths(["a/1.jpg"]) == ["a/1.jpg"] and short_paths(["/1.jpg"]) == ["1.jpg"]
    assert short_paths(["demo, split test, row 3", "a/b"]) == ["demo, split test, row 3", "a/b"]


@pytest.mark.parametrize(
    ("name", "encoding", "is_shown"),
    [
        ("Löwenzahn", "utf-8", True),
        ("Löwenzahn", "ascii", False),
        ("L\udcf6wenzahn", "utf-8", False),  # a file name that is no text
        ("\x9b31m", "utf-8", False),  # a command to the terminal
    ],
)
def test_json_shows_names_as_they_are_where_that_is_safe(name, encoding, is_shown, monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))

    shown = json_text({"class": name})

    assert (name in shown) == is_shown and json.loads(shown) == {"class": name}


def test_an_interval_has_no_more_digits_than_the_one_beside_it():
    assert interval_text((0.9939, 1.0)) == "99.39 to 100.00"
    assert interval_text((0.9939, 1.0), (0.967, 0.988)) == "99.4 to 100.0"
    assert interval_text((0.967, 0.988), (0.9939, 1.0)) == "96.7 to 98.8"


def test_written_json_has_letters_as_they_are_and_escapes_what_is_none(tmp_path):
    odd = {"a": "Jonquille à fleurs 猫 😀", "b": "\udcf6 \u2028 \x9b \xa0 \U000e0001", "c": [1.5, None]}
    write_json(tmp_path / "x.json", odd)

    text = (tmp_path / "x.json").read_bytes().decode("utf-8")
    assert "Jonquille à fleurs 猫 😀" in text and text.replace("\n", "").isprintable()
    assert "\\udcf6 \\u2028 \\u009b \\u00a0 \\udb40\\udc01" in text
    assert read_json(tmp_path / "x.json") == odd
    (tmp_path / "x.json").write_text(json.dumps(odd))  # as earlier versions wrote it
    assert read_json(tmp_path / "x.json") == odd
    ascii_alone = {"loss": 0.1 + 0.2, "x": '\x7f\n"\\'}
    assert json_of(ascii_alone) == json.dumps(ascii_alone)


def test_a_brief_screen_has_ten_lines_with_a_command_and_no_line_is_wider_than_the_terminal():
    rows = [("top-1", "80 %"), *((f"row {n}", "word " * 40) for n in range(12))]
    commands_ = [("vit", "predict", "--ckpt", "runs/my photos", "IMAGES"), ("vit", "report", "x" * 90)]
    many, few = brief(rows, commands_, width=80), brief(rows[:3], commands_, width=80)

    assert len(many.splitlines()) == MOST_LINES == 10
    assert many.splitlines()[-1] == "next        vit predict --ckpt 'runs/my photos' IMAGES"
    assert max(map(len, many.splitlines())) <= 80 and many.splitlines()[1].endswith("…")
    assert [line[:12].strip() for line in few.splitlines()] == ["top-1", "row 0", "", "row 1", "", "next", ""]
    assert few.endswith("x" * 90 + "\n")  # a command is never cut off


def test_a_long_row_takes_two_lines_where_two_commands_leave_room_for_it():
    rows = [*((f"row {n}", "word " * 20) for n in range(4)), ("files", Verbatim("x" * 90))]
    lines = brief(rows, [("vit", "report"), ("vit", "export"), ("vit", "inspect")], width=80).splitlines()

    names = ["row 0", "", "row 1", "", "row 2", "", "row 3", "files", "next", ""]
    assert [line[:12].strip() for line in lines] == names
    assert [number for number, line in enumerate(lines) if line.endswith("…")] == [6]
    assert lines[7].endswith(" " + "x" * 90)


def test_no_note_is_cut_and_where_rows_are_left_out_a_line_says_how_many():
    note = " ".join(f"word {number}" for number in range(30))
    rows = [("top-1", "80 %"), *(("row", "word " * 40) for _ in range(9)), ("note", Folded(note))]
    rows += [("files", Verbatim("x" * 90))]
    for commands_ in [(), [("vit", "predict"), ("vit", "report")]]:
        lines = brief(rows, commands_, width=80).splitlines()

        names = [line[:12].strip() for line in lines]
        at, num_rows = names.index("note"), names.count("row")
        assert " ".join(line[12:] for line in lines[at : names.index("files")]) == note
        assert lines[names.index("files") + 1].strip() == f"({9 - num_rows} more: -v)"
        assert num_rows == 3 - bool(commands_)
        assert len(lines) == MOST_LINES and names.count("next") == bool(commands_)
    # Of many notes the last ones make room, too: of four lines each there is room for one.
    many = [("top-1", "80 %"), *[("note", Folded(note))] * 9]
    lines = [line[:24].strip() for line in brief(many, [("vit", "predict")], width=80).splitlines()]
    assert [line[:4] for line in lines] == ["top-", "note", "9 wo", "word", "26 w", "(8 m", "next"]
    lines = brief([("note", "word " * 60), ("row", "word " * 40)], (), width=80).splitlines()
    assert [line[:12].strip() for line in lines] == ["note", "", "", "", "", "row", ""]
    assert lines[-1].endswith("…")  # of a third line, too


@pytest.mark.parametrize(
    ("place", "dataset", "expected"),
    [
        ("{root}/cat/1.jpg", "{root}", "cat/1.jpg"),
        ("photos, split train, row 3, file {root}/cat/1.jpg", "{root}", "cat/1.jpg"),
        ("{root}/img/1.jpg", "{root}/labels.csv", "img/1.jpg"),
        ("{root}-private/1.jpg", "{root}", "{root}-private/1.jpg"),
        ("{root}/cat/1.jpg", "cifar10", "{root}/cat/1.jpg"),
        ("photos, split train, row 3", "{root}", "photos, split train, row 3"),
    ],
)
def test_a_place_is_a_path_within_its_data_set(tmp_path, place, dataset, expected):
    (tmp_path / "labels.csv").touch()
    place, dataset, expected = (text.format(root=tmp_path) for text in (place, dataset, expected))

    assert within(place, dataset) == expected


def test_no_cell_of_a_csv_is_a_formula():
    cells = ["=1+cmd()", "@x", "+1+cmd()", "-2+3", "\ta", "-", "-1.5", "+3e-05", -2, None, "a=b"]
    (row,) = csv.reader(csv_text([cells]).splitlines())

    assert row == ["'=1+cmd()", "'@x", "'+1+cmd()", "'-2+3", "'\ta", "-", "-1.5", "+3e-05", "-2", "", "a=b"]


@pytest.mark.parametrize(
    ("exaflops", "text"),
    [(0.0005, "500,000 GFLOPs"), (0.001, "0.001 exaFLOPs"), (0.5, "0.5 exaFLOPs"), (1_234, "1,234 exaFLOPs")],
)
def test_compute_has_the_unit_of_the_paper_where_it_is_not_tiny(exaflops, text):
    assert compute_text(exaflops) == text


def test_a_list_of_names_says_how_many_more_there_are_also_of_those_that_were_never_listed():
    assert first_few(["a", "b"]) == "a, b" == first_few(["a", "b"], total=2)
    assert first_few(list("abcdefg")) == "a, b, c, d, e and 2 more"
    assert first_few(["a", "b", "c"], 2, total=5000) == "a, b and 4,998 more"


@pytest.mark.parametrize(
    ("by_groups", "at_random", "points"), [(0.8125, 0.9, "+8.8"), (0.9, 0.88, "-2.0"), (0.5, 0.5, "+0.0")]
)
def test_folds_say_what_a_random_split_would_have_flattered_by(by_groups, at_random, points):
    frozen = {"by_groups": by_groups, "at_random": at_random}
    folds = {"num_groups": 1234, "group_column": "patient", "frozen": frozen}

    groups, flattery = fold_notes({"folds": folds})

    assert groups == "1,234 groups of patient, none of them on both sides of a fold"
    assert f"{at_random:.2%} on random folds, {by_groups:.2%} on these" in flattery
    assert flattery.endswith(f"({points} points by a random split)")
    assert len(fold_notes({"folds": folds | {"frozen": None}})) == 1
    assert fold_notes({}) == fold_notes({"folds": folds | {"num_groups": None}}) == []


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0.0 KiB"), (1536, "1.5 KiB"), (2**20 - 1, "1,024.0 KiB"), (2**20, "1.0 MiB"),
        (2**30 - 1, "1,024.0 MiB"), (2**30, "1.0 GiB"), (5_000 * 2**30, "5,000.0 GiB"),
    ],
)  # fmt: skip
def test_a_size_has_the_unit_of_which_it_has_one_at_least(number, text):
    assert bytes_text(number) == text


@pytest.mark.parametrize(
    ("resolution", "text"),
    [(224, "224"), ([224, 224], "224"), ((384, 512), "384x512"), ([512, 384], "512x384")],
)
def test_a_square_has_one_side_and_any_other_image_height_before_width(resolution, text):
    assert size_text(resolution) == text


def test_images_that_a_checkpoint_had_seen_make_an_accuracy_too_high():
    (held_out,) = seen_notes({"num_held_out_seen": 1_234, "num_eval_examples": 5_000})
    assert held_out.startswith("1,234 of 5,000 held-out images had been trained on by weights that the run")
    assert seen_notes({"num_held_out_seen": 3})[0].startswith("3 had been trained on")
    (choice,) = seen_notes({"num_choice_seen": 1, "num_held_out_seen": 0})
    assert choice == "1 dev image is in the checkpoint's training set"
    assert seen_notes({}) == []
