"""The end of a command: its exit code, and three lines about what went wrong, printed once."""

import os
import re
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import typer

from vitcli.cli import hints
from vitcli.cli.help import option_names
from vitcli.distributed import launch
from vitcli.errors import (
    INTERRUPTED,
    InternalError,
    MachineError,
    Stopped,
    VitError,
    is_out_of_memory,
    nearest,
)  # fmt: skip
from vitcli.io.credentials import hide_credentials, without_credentials
from vitcli.output.text import json_text

AGAIN_S = 3.0  # while a command that a signal ends clears up
STOPPED = 143  # after SIGTERM; SystemExit with another code is a library's, and a bug
_coming: list[threading.Timer] = []  # of signals that come again
_ended: list[int] = []  # exit codes of commands
UsageError: type[Exception] = typer.BadParameter.__bases__[0]  # of typer's own copy of click


def exit_code_of(command: Callable[[], int | None], arguments: list[str]) -> int:
    """Run the command; print what it raises and return the exit code."""
    # Typer turns Ctrl-C into 130, but 130 may also be the code of launched processes, which have reported it.
    interrupted: list[int] = []

    def interrupt(number: int, frame: object) -> NoReturn:
        interrupted.append(number)
        raise_at_signal(number, frame)

    for address in re.findall(r"\w+://\S+", " ".join(arguments)):
        without_credentials(address)  # also of arguments that are refused and quoted
    launch.print_error = lambda error: _print_error(error, arguments)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, interrupt)
    try:
        code = command() or 0
        if interrupted and code == 130:
            raise KeyboardInterrupt
        return code
    except VitError as error:
        return _print_error(error, arguments)
    except Stopped as stopped:
        return _print_stopped(stopped.note, stopped.exit_code, arguments)
    except (KeyboardInterrupt, typer.Abort):
        return _print_stopped("stopped before there was anything to save", INTERRUPTED, arguments)
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # no command at all: its message is the help
            typer.echo(error.format_message())
            return UsageError.exit_code
        return _print_error(usage_error(error, arguments), arguments)
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code == STOPPED:
            return STOPPED
        translated = _environment_error(error) or _internal_error(error)
        translated.rank = launch.global_rank()  # raised in this process, whatever the others do
        return _print_error(translated, arguments)


def raise_at_signal(number: int, frame: object) -> NoReturn:
    """End the command by an exception; where a library catches or ignores it, the signal comes again."""
    again = threading.Timer(AGAIN_S, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()
    _coming.append(again)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(STOPPED)


def report_ignored(ignored: Any) -> None:
    """Print an exception that Python ignores, unless it is that of a signal, which comes again."""
    if not isinstance(ignored.exc_value, SystemExit | KeyboardInterrupt):
        sys.__unraisablehook__(ignored)


def exit_with(exit_code: int) -> NoReturn:
    """End this process.

    One of several processes skips the exit handlers of Python and C++: torch's communication threads have
    been seen to abort there ("terminate called without an active exception"), which would fail a good run.
    Any other has called those of Python when it comes to `leave`.
    """
    while _coming:
        _coming.pop().cancel()
    if "RANK" in os.environ:
        _exit_at_once(exit_code)
    for number in (signal.SIGINT, signal.SIGTERM):  # another signal changes neither the code nor the message
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: os._exit(exit_code))
    _ended.append(exit_code)
    sys.exit(exit_code)


def leave() -> None:
    """End a process whose command has ended, as the last of its exit handlers.

    While Python shuts down, a thread of Arrow that frees a buffer of Python's would abort the process (3.11).
    """
    if _ended:
        _exit_at_once(_ended[-1])


def _exit_at_once(exit_code: int) -> NoReturn:
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None where it is closed
        with suppress(OSError):
            stream.flush()
    os._exit(exit_code)


def _print_error(error: VitError, arguments: list[str]) -> int:
    """Print the error once, whichever process of the run raised it."""
    if "--debug" in arguments:
        print(hide_credentials("".join(traceback.format_exception(error))), file=sys.stderr)
    if launch.report_to_launcher(error):
        return error.exit_code
    # An error that all processes raise is printed by the first one of each machine.
    if os.environ.get("LOCAL_RANK", "0") == "0" or hasattr(error, "rank"):
        _print(str(error), error.as_dict(), error.exit_code, arguments)
    return error.exit_code


def _print_stopped(note: str, exit_code: int, arguments: list[str]) -> int:
    """Print how an interrupted run stopped."""
    if launch.global_rank() == 0:
        where, fix = f"exit code {exit_code}", "give the same command line again"
        _print(note, {"message": note, "where": where, "fix": fix}, exit_code, arguments)
    return exit_code


def _print(text: str, as_dict: dict[str, str], exit_code: int, arguments: list[str]) -> None:
    """Print an error for people, or with --json as one object on standard output."""
    if "--json" in arguments:
        more = {"code": exit_code, "command": hints.command_of(arguments)}
        as_dict = {key: hide_credentials(text) for key, text in as_dict.items()}
        print(json_text({"error": as_dict | more}))
    else:
        # File and class names may hold control characters, and standard error may be closed.
        with suppress(OSError):
            text = hide_credentials(text)
            print("".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text), file=sys.stderr)


def usage_error(error: Exception, arguments: list[str]) -> VitError:
    # An error raised in the body of a command has no context; others name the subcommand.
    names = error.ctx.command_path.split()[1:] if error.ctx else arguments[:1]
    command = " ".join(["vit", *names])
    place = {"where": f"the command line, {command}", "fix": f"{command} --help lists the options"}
    if hasattr(error, "possibilities"):  # an option that does not exist
        return hints.unknown_option(error.option_name, command, option_names(error.ctx.command))
    what = error.format_message().rstrip(".")
    parameter = getattr(error, "param", None)
    if parameter and (choices := re.search(r"'([^']*)' is not one of (.*)", what)):
        known = re.findall(r"'([^']*)'", choices[2])
        what = f"{parameter.opts[0]} is {choices[1]!r}{nearest(choices[1].lower(), known)}"
        return VitError(what, where=place["where"], fix=f"one of {', '.join(known)}")
    # In the words of typer 0.29, or of 0.26: "0 is not in the range x>=1", "99 is not in the range 0<=x<=32".
    if parameter and (
        outside := re.search(r"(\S+) is not in the range (?:x>=|x<=)?([^<x]*)(?:<=x<=(.*))?$", what)
    ):
        low, high = outside[2], outside[3] or outside[2]
        is_below = float(outside[1]) < float(low)
        bound = f"greater than or equal to {low}" if is_below else f"less than or equal to {high}"
        return VitError(f"{parameter.opts[0]} must be {bound}", **place)
    if parameter and (kind := re.search(r"Input should be (.*)|is not (a valid (?:integer|float))$", what)):
        kinds = {"integer": "a whole number", "number": "a number", "float": "a number"}
        kind = (kind[1] or kind[2]).removeprefix("a valid ")
        required = kinds.get(kind.partition(",")[0], kind)
        return VitError(f"{parameter.opts[0]} must be {required}", **place)
    return VitError(what, **place)


def _environment_error(error: Exception) -> VitError | None:
    """Translate what libraries raise when memory, disk or another process fails; None for anything else."""
    of_processes = launch.as_process_error(error) or launch.as_device_error(error)
    if of_processes:
        return of_processes
    text = str(error)
    if is_out_of_memory(error):
        return MachineError(
            "out of memory",
            where=text.splitlines()[0][:160] if text else "this process",
            fix="lower --per-device-batch (the batch size and the result stay the same), --res or --workers",
        )
    if isinstance(error, OSError) and error.strerror:
        where = str(error.filename or "this machine")
        fix = "check that the path exists, that it can be read and written, and its disk has room"
        return MachineError(error.strerror, where=where, fix=fix)
    return None


def _internal_error(error: Exception) -> VitError:
    """Report a bug of ours, with the traceback in a file."""
    folder = Path(getattr(error, "run_dir", tempfile.gettempdir()))
    report = folder / f"vit-crash-{os.getpid()}.txt"
    try:
        with report.open("x", encoding="utf-8", errors="replace") as file:  # through no link
            file.write(hide_credentials("".join(traceback.format_exception(error))))
    except OSError as unwritten:
        report = f"nowhere: {unwritten}"
    place = f"{launch.place(getattr(error, 'rank', None))}; " if "RANK" in os.environ else ""
    internal = InternalError(
        f"a bug in vit: {type(error).__name__}: {str(error)[:160]}",
        where=f"{place}the traceback is in {report}",
        fix="please report it with that file; --debug shows the traceback here",
    )
    internal.__cause__ = error
    return internal
