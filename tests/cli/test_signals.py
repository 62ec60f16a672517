"""Signals before there is anything to save, and libraries that end the process."""

import signal
import subprocess
import sys
import time

import pytest

from vitcli.cli import end_of_command


@pytest.fixture
def handlers():
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "exception"), [("SIGTERM", SystemExit), ("SIGINT", KeyboardInterrupt)])
def test_a_signal_where_python_ignores_exceptions_ends_the_command_all_the_same(
    handlers, monkeypatch, capsys, number, exception
):
    class Deleted:
        def __del__(self):
            signal.raise_signal(getattr(signal, number))

    monkeypatch.setattr(sys, "unraisablehook", end_of_command.report_ignored)
    monkeypatch.setattr(end_of_command, "AGAIN_S", 0.1)
    signal.signal(getattr(signal, number), end_of_command.raise_at_signal)
    Deleted()  # the exception is ignored
    with pytest.raises(exception):
        time.sleep(5)
    with pytest.raises(exception):  # for as long as it is ignored
        time.sleep(5)
    with pytest.raises(SystemExit, match="5"):
        end_of_command.exit_with(5)  # after which none comes
    time.sleep(0.15)
    assert not capsys.readouterr().err


def test_a_library_that_ends_the_process_has_not_finished_the_command(handlers, capsys):
    assert end_of_command.exit_code_of(lambda: sys.exit(0), []) == 1
    assert "a bug in vit: SystemExit: 0" in capsys.readouterr().err
    assert end_of_command.exit_code_of(lambda: sys.exit(143), []) == 143  # our own, at SIGTERM


def test_a_command_calls_the_exit_handlers_of_libraries_and_shuts_python_down_no_further():
    """There a thread of Arrow aborts the process, on a busy machine one time in ten."""
    program = """
import atexit
from vitcli import __main__
from vitcli.cli import end_of_command

class Deleted:
    def __del__(self):
        print("shut down")

def main():
    atexit.register(print, "a library ends")
    end_of_command.exit_with(3)

deleted, __main__.main = Deleted(), main
__main__.run()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "a library ends\n", "")


def test_ctrl_c_within_the_imports_ends_without_a_traceback(tmp_path):
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    # As Python begins where the signal is not ignored, which it is in the background of a shell.
    start = (
        "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); runpy.run_module('vitcli', run_name='__main__')"
    )
    ended = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("MemoryError", 5),
        ("ImportError('x.so: failed to map segment from shared object')", 5),
        ("KeyError", 1),
    ],
)
def test_no_room_for_the_imports_is_an_error_in_three_lines(tmp_path, error, code):
    (tmp_path / "typer.py").write_text(f"raise {error}\n")
    start = (
        f"import runpy, sys; sys.path.insert(0, {str(tmp_path)!r});"
        "runpy.run_module('vitcli', run_name='__main__')"
    )
    ended = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert ("Traceback" in ended.stderr) == (code == 1)
    assert code == 1 or [line.split(":")[0].strip() for line in ended.stderr.splitlines()] == [
        "error",
        "where",
        "fix",
    ]
