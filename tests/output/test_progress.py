"""Progress: a bar in a terminal, a plain line every ten seconds elsewhere, and nothing with --quiet."""

import pytest

from vitcli.evaluation.text import predictions_as_text
from vitcli.output import progress as output_progress
from vitcli.output.progress import Progress


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
        f"train {step}/100  loss 0.5  0:01:{left:02} left" for step, left in ((10, 30), (20, 20), (30, 10))
    ]


def test_control_characters_in_a_class_name_do_not_reach_the_terminal():
    guess = {"class": "evil\x1b[31m", "label": 0, "probability": 0.5}
    result = {"command": "predict", "predictions": [{"file": "a.png", "top": [guess]}], "skipped_images": []}

    assert "\x1b" not in predictions_as_text(result)


@pytest.mark.parametrize(("seconds", "clock"), [(0, "0:00:00"), (61, "0:01:01"), (3_661, "1:01:01")])
def test_a_duration_reads_as_a_clock(seconds, clock):
    assert output_progress._clock(seconds) == clock


def test_a_terminal_gets_a_bar_and_notes_above_it(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    progress = Progress(quiet=False)
    progress.begin("train", total=2)
    progress.note("a note")
    progress.update(1, "5 img/s")
    progress.end()

    assert "a note" in capsys.readouterr().err
