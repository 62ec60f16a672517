"""Lines of results: what is wrapped and what can be copied, and numbers with what they are worth."""

import io
import json
import shlex
import sys

import pytest

from vitcli.output.text import (
    Verbatim,
    accuracy_text,
    commands,
    count_of,
    duration,
    interval_text,
    json_text,
    pairs,
    short_paths,
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
    [(0.04, "0.0 s"), (7.26, "7.3 s"), (42, "42 s"), (120, "2 min"), (12_000, "3 h 20 min"), (None, "")],
)
def test_a_duration_has_the_unit_a_person_would_take(seconds, text):
    assert duration(seconds) == text


def test_paths_lose_the_folder_that_all_share_and_names_of_rows_nothing():
    assert short_paths(["my photos/a/1.jpg", "my photos/b/1.jpg"]) == ["a/1.jpg", "b/1.jpg"]
    assert short_paths(["/x/a/1.jpg"]) == ["1.jpg"]
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
