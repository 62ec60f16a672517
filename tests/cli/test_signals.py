"""Signals before there is anything to save, and libraries that end the process."""

import signal
import sys
import time

import pytest

from vitcli.cli import exit_codes


@pytest.fixture
def handlers():
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "exception"), [("SIGTERM", SystemExit), ("SIGINT", KeyboardInterrupt)])
def test_a_signal_where_python_ignores_exceptions_ends_the_command_all_the_same(
    handlers, monkeypatch, number, exception
):
    class Deleted:
        def __del__(self):
            signal.raise_signal(getattr(signal, number))

    def stop(*_):
        raise exception

    monkeypatch.setattr(sys, "unraisablehook", exit_codes.signal_again)
    signal.signal(getattr(signal, number), stop)
    Deleted()  # the exception is ignored
    with pytest.raises(exception):
        time.sleep(5)


def test_a_library_that_ends_the_process_has_not_finished_the_command(handlers, capsys):
    assert exit_codes.exit_code_of(lambda: sys.exit(0), []) == 1
    assert "a bug in vit: SystemExit: 0" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="143"):
        exit_codes.exit_code_of(lambda: sys.exit(143), [])
