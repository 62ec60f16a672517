"""Progress: a bar in a terminal, a plain line every ten seconds elsewhere, and nothing with --quiet."""

import sys

import pytest

from vitcli.evaluation.text import predictions_as_text
from vitcli.output import progress as output_progress
from vitcli.output.progress import Progress
from vitcli.weights.production.session import silenced


def test_quiet_and_other_processes_say_nothing(capsys):
    for silent in (Progress(quiet=True), Progress(quiet=False, is_main=False)):
        silent.note("hello")
        silent.begin("train", 2)
        silent.update(1, "loss 1")
        silent.end()

    assert capsys.readouterr() == ("", "")


def test_plain_lines_come_every_ten_seconds_with_the_time_left(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(output_progress.time, "monotonic", lambda: now[0])
    progress = Progress(quiet=False)
    progress.begin("train", 100)
    for step in range(1, 31):
        now[0] += 1.0
        progress.update(step, "loss 0.5")

    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        f"train {step}/100  0:01:{left:02} left  loss 0.5" for step, left in ((10, 30), (20, 20), (30, 10))
    ]


def test_control_characters_in_a_class_name_do_not_reach_the_terminal():
    guess = {"class": "evil\x1b[31m", "label": 0, "probability": 0.5}
    result = {"command": "predict", "predictions": [{"file": "a.png", "top": [guess]}], "skipped_images": []}

    assert "\x1b" not in predictions_as_text(result)


@pytest.mark.parametrize(("seconds", "clock"), [(0, "0:00:00"), (61, "0:01:01"), (3_661, "1:01:01")])
def test_a_duration_reads_as_a_clock(seconds, clock):
    assert output_progress._clock(seconds) == clock


@pytest.mark.parametrize(
    ("room", "shown"), [(99, "1:00 left  loss 1  lr 2"), (22, "1:00 left  loss 1"), (9, "1:00 left"), (8, "")]
)
def test_what_matters_least_is_dropped_first(room, shown):
    assert output_progress.fitting(["1:00 left", "loss 1", "lr 2"], room) == shown


@pytest.mark.parametrize("columns", [64, 80, 120])
def test_a_narrow_terminal_shows_the_total_of_the_steps(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    progress = Progress(quiet=False)
    progress.begin("train", total=12_500)
    progress.update(11_000, "loss 0.0715", "1234 img/s", "lr 9.95e-03", "data wait 12%")
    line = "".join(segment.text for segment in progress._bar.console.render_lines(progress._bar)[0])
    progress.end()

    assert "11000/12500" in line and "loss 0.0715" in line and "…" not in line and len(line) <= columns
    assert ("data wait" in line) == (columns == 120)


def test_notes_break_at_spaces_and_leave_paths_whole(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    path = "runs/" + 50 * "x"
    Progress(quiet=False).note(f"the run is stopped and saved in the folder {path} for now")

    lines = capsys.readouterr().err.splitlines()
    assert f"  {path}" in lines and all(len(line) <= 40 or path in line for line in lines)
    assert " ".join(" ".join(lines).split()) == f"the run is stopped and saved in the folder {path} for now"


def test_control_characters_in_a_note_do_not_reach_the_terminal(capsys):
    Progress(quiet=False).note("no held-out image of: \x1b[2Jcat\nsecond line")

    assert capsys.readouterr().err == "no held-out image of: \ufffd[2Jcat\nsecond line\n"


def test_what_was_noted_once_is_not_repeated(capsys):
    progress = Progress(quiet=False)
    for text in ("pixels: 96x96", "other", "pixels: 96x96"):
        progress.note_once(text)

    assert capsys.readouterr().err.splitlines() == ["pixels: 96x96", "other"]


def test_a_terminal_gets_a_bar_and_notes_above_it(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    progress = Progress(quiet=False)
    progress.begin("train", total=2)
    progress.note("a note")
    progress.update(1, "5 img/s")
    progress.end()

    assert "a note" in capsys.readouterr().err


def test_with_standard_error_closed_nothing_is_noted_and_the_result_stays_alone(capfd, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    progress = Progress(quiet=False)
    progress.note("a note")
    with silenced():
        assert not progress.is_terminal
    assert capfd.readouterr().out == ""
