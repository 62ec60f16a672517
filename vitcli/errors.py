"""What a user can get wrong, and what they are told: one exception for every exit code of the tool.

VitError              2  usage or recipe
  DataError           3  a data set, a split, an image
  WeightsError        4  a checkpoint or a weights file
  MachineError        5  disk, permission, lock, device, memory
  NotFiniteError      6  the loss or the gradient is not a finite number
  ProcessError        7  a process of the run failed or stalled
  CheckFailed         8  what was to be checked did not hold
Stopped          130, 143  Ctrl-C or SIGTERM, once a resumable checkpoint is on disk
"""


class VitError(Exception):
    """A mistake of the user or of the world, never a bug of ours.

    Args:
        message: what is wrong, with the values in it.
        where: the recipe key, option, file or row it comes from.
        fix: what works instead.
    """

    exit_code = 2

    def __init__(self, message: str, *, where: str, fix: str):
        super().__init__(message)
        self.message, self.where, self.fix = message, where, fix

    def __str__(self) -> str:
        return f"error: {self.message}\n  where: {self.where}\n  fix:   {self.fix}"

    def __reduce__(self):  # so that it can cross from one process to another
        return _rebuild, (type(self), self.message, self.where, self.fix)


class DataError(VitError):
    exit_code = 3


class WeightsError(VitError):
    exit_code = 4


class MachineError(VitError):
    exit_code = 5


class NotFiniteError(VitError):
    exit_code = 6


class ProcessError(VitError):
    exit_code = 7


class CheckFailed(VitError):
    exit_code = 8


class Stopped(Exception):
    """The run was asked to stop and has saved what it needs to go on; `exit_code` is 128 + the signal.

    Attributes:
        out: the folder whose command goes on; what puts runs in a row names its own in its place.
    """

    def __init__(self, signal_number: int, what: str, *, out: object = None):
        super().__init__(what)
        self.exit_code = 128 + signal_number
        self.what, self.out = what, out

    @property
    def note(self) -> str:
        if self.out is None:
            return self.what
        return f"{self.what}, saved; the same command line with --out {self.out} goes on from there"


def reason_of(error: BaseException) -> str:
    """Return the first line of a library's error for a message of ours, or the name of its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def nearest(name: str, known) -> str:
    """`, did you mean X?` for a mistyped name, or nothing."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f", did you mean {close[0]!r}?" if close else ""


def _rebuild(kind: type[VitError], message: str, where: str, fix: str) -> VitError:
    return kind(message, where=where, fix=fix)
