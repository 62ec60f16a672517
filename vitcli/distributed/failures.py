"""Which process of a run failed first, and how: the error of the whole run. Loads no torch."""

import signal
from typing import Any

from vitcli.errors import ProcessError, VitError

# A process that ends so much later than another one lost its connection had stalled: a launcher ended it.
LATE_S = 5.0
ASKED_TO_STOP = (130, 143, -signal.SIGTERM, -signal.SIGINT)


def first_failure(failures: dict[int, Any], num_processes: int) -> int:
    """Raise the error of the process that failed first; the others only lost their connection to it.

    Args:
        failures: by rank, as torch's launcher collects them; of a process that ended with exit code 0, none.

    Returns:
        The exit code of the processes if they have stopped because they were asked to, or have printed why.
    """
    # An error that a process has reported is the cause, a lost connection is not.
    reports = {rank: failure.error_file_data.get("vit") for rank, failure in failures.items()
               if failure.error_file_data}  # fmt: skip
    reports = {rank: report for rank, report in reports.items() if report}
    causes = [report for report in reports.values() if report["exit_code"] != ProcessError.exit_code]
    if causes:
        first = min(causes, key=lambda report: report["at"])
        # Of an error that all have, the report of the lowest rank: the first process knows what is saved.
        same = [reports[rank] for rank in sorted(reports) if reports[rank]["message"] == first["message"]]
        if same[0].get("is_printed"):
            return same[0]["exit_code"]
        raise _reported(same[0])

    # A process that was killed, or that ended by itself, reports nothing.
    lost = sorted(reports.values(), key=lambda report: report["at"])
    late_at = lost[0]["at"] + LATE_S if lost else float("inf")
    silent = {rank: failures.get(rank) for rank in range(num_processes) if rank not in reports}
    codes = {rank: end.exitcode if end else 0 for rank, end in silent.items()}
    asked = [rank for rank, code in codes.items() if code in ASKED_TO_STOP]
    killed = [r for r, code in codes.items() if code < 0 and r not in asked and silent[r].timestamp < late_at]
    if killed:
        raise _killed(killed[0], failures[killed[0]])
    least = 0 if lost else 1  # a process may be at its end when the others are asked to stop
    ended = {rank: code for rank, code in codes.items() if code >= least and rank not in asked}
    if ended:
        rank = max(ended, key=ended.get)
        raise ProcessError(
            f"process {rank} of the run ended too early, with exit code {ended[rank]}",
            where=lost[0]["where"] if lost else f"process {rank}, without a message",
            fix="run the same command again to resume from the last checkpoint",
        )

    # One that stalls does not report a lost connection with the others.
    stalled = [*silent, *(rank for rank, report in reports.items() if report["at"] > late_at)]
    if lost and stalled:
        raise ProcessError(
            f"process {' or '.join(map(str, sorted(stalled)))} of the run stalled",
            where=lost[0]["where"],
            fix="run the same command again to resume from the last checkpoint; train.stall_minutes is how "
            "long the others wait",
        )
    if lost:
        raise _reported(lost[0])
    return 130 if 130 in codes.values() else 143


def _reported(report: dict[str, Any]) -> VitError:
    """Return the error that a process has reported."""
    kinds = {kind.exit_code: kind for kind in (*VitError.__subclasses__(), VitError)}
    kind = kinds.get(report["exit_code"], VitError)
    return kind(report["message"], where=report["where"], fix=report["fix"])


def _killed(rank: int, failure: Any) -> ProcessError:
    """Return the error of a process that a signal has ended."""
    number = signal.Signals(-failure.exitcode)
    advice = "; if it ran out of memory, lower --per-device-batch"
    if number == signal.SIGABRT:
        advice = "; torch aborts a process whose collective of GPUs does not end, see its messages above"
    return ProcessError(
        f"process {rank} of the run was killed by {number.name}",
        where=f"pid {failure.pid} on this machine",
        fix=f"run the same command again to resume from the last checkpoint{advice}",
    )
