"""How a command ends: its exit code and, if something went wrong, three lines said once.

0 done, 1 a bug of ours, 2 to 8 by the kind of `VitError`, 130 after Ctrl-C, 143 after SIGTERM.
"""

import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import typer

from vitcli.distributed import launch
from vitcli.errors import MachineError, Stopped, VitError

UsageError = typer.BadParameter.__bases__[0]  # typer's own: it carries its copy of click


def exit_code_of(command: Callable[[], int | None], arguments: list[str]) -> int:
    """Run the command; what it raises becomes a message and an exit code."""
    interrupted: list[int] = []  # typer makes an exit code of Ctrl-C, and a launcher's 130 has been told

    def interrupt(number: int, frame: object) -> NoReturn:
        interrupted.append(number)
        raise KeyboardInterrupt

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
        return _print_stopped("stopped before there was anything to save", 130, arguments)
    except UsageError as error:
        if not error.format_message():  # no command at all: the help has been printed
            return 2
        return _print_error(_usage_error(error, arguments), arguments)
    except Exception as error:
        told = _environment_error(error) or _internal_error(error)
        told.rank = launch.global_rank()  # met by this process, whatever the others do
        return _print_error(told, arguments)


def exit_with(exit_code: int) -> NoReturn:
    """End this process.

    One of several ends without the farewells of Python and C++: torch's communication threads have been seen
    to abort there ("terminate called without an active exception"), and a good run would count as failed.
    """
    if "RANK" in os.environ:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(exit_code)
    sys.exit(exit_code)


def _print_error(error: VitError, arguments: list[str]) -> int:
    """Say the error once, whichever process of the run met it."""
    if "--debug" in arguments:
        traceback.print_exception(error)
    if launch.report_to_launcher(error):
        return error.exit_code
    # What all have met the first one says, and on other machines, where others look, the first one there.
    if os.environ.get("LOCAL_RANK", "0") == "0" or hasattr(error, "rank"):
        if "--json" in arguments:
            told = {"message": error.message, "where": error.where, "fix": error.fix}
            print(json.dumps({"error": told}, indent=2))
        else:
            _print_to_stderr(str(error))
    return error.exit_code


def _print_stopped(note: str, exit_code: int, arguments: list[str]) -> int:
    """Where a run that was asked to stop has stopped; with --json this too is an object."""
    if launch.global_rank() == 0:
        if "--json" in arguments:
            told = {
                "message": note,
                "where": f"exit code {exit_code}",
                "fix": "give the same command line again",
            }
            print(json.dumps({"error": told}, indent=2))
        else:
            _print_to_stderr(note)
    return exit_code


def _print_to_stderr(text: str) -> None:
    """To standard error, if anybody listens, and without the control characters of file and class names."""
    with suppress(OSError):
        print("".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text), file=sys.stderr)


def _usage_error(error: Exception, arguments: list[str]) -> VitError:
    context, names = error.ctx, arguments[:1]  # a command's own refusal has no context
    if context:
        names = context.command_path.split()[1:]  # down to the subcommand whose help lists what is missing
    command = " ".join(["vit", *names])
    what = error.format_message().rstrip(".")
    return VitError(what, where=f"the command line, {command}", fix=f"{command} --help lists what there is")


def _environment_error(error: Exception) -> VitError | None:
    """What libraries raise when memory, disk or another process gives out."""
    gone = launch.as_process_error(error)
    if gone:
        return gone
    text = str(error)
    is_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if is_memory or "can't allocate memory" in text:
        return MachineError(
            "the memory does not suffice",
            where=text.splitlines()[0][:160] if text else "this process",
            fix="lower --per-device-batch (the batch size and the result stay the same) or --res",
        )
    if isinstance(error, OSError) and error.strerror:
        where = str(error.filename or "this machine")
        return MachineError(error.strerror, where=where, fix="mend the file, folder or disk that is named")
    return None


def _internal_error(error: Exception) -> VitError:
    """Our own mistake: exit 1, with the traceback kept for the report."""
    folder = Path(getattr(error, "run_dir", tempfile.gettempdir()))
    report = folder / f"vit-crash-{os.getpid()}.txt"
    try:
        report.write_text("".join(traceback.format_exception(error)))
    except OSError as unwritten:
        report = f"nowhere: {unwritten}"
    told = VitError(
        f"a bug in vit: {type(error).__name__}: {str(error)[:160]}",
        where=f"the traceback is in {report}",
        fix="please report it with that file; --debug shows the traceback here",
    )
    told.exit_code = 1
    told.__cause__ = error
    return told
