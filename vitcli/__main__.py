"""`vit`, `python -m vitcli`. Processes that vit starts run this file by its path (`launch.program`)."""

import atexit
import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # Ctrl-C within the imports: no traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import sys
from pathlib import Path

if not __package__:  # run by its path; last, so that nothing beside the package takes the place of a library
    sys.path.append(str(Path(__file__).parents[1]))

from vitcli.errors import MachineError, is_out_of_memory

try:
    from vitcli.cli import main
    from vitcli.cli.end_of_command import leave
except Exception as error:
    if not is_out_of_memory(error):
        raise
    no_room = MachineError("out of memory", where="the start", fix="end other programs, or raise ulimit -v")
    print(no_room, file=sys.stderr)
    sys.exit(no_room.exit_code)


def run() -> None:
    """Run the command line of this process, which ends by it."""
    atexit.register(leave)  # before libraries register handlers: theirs are called first
    main()


if __name__ == "__main__":
    run()
