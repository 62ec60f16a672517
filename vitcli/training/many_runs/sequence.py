"""Many runs in a row, as sweeps, VTAB, studies and reproductions need them. Loads no torch by itself."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from vitcli.errors import Stopped

Item, Result = TypeVar("Item"), TypeVar("Result")


def run_all(
    items: Iterable[Item],
    train: Callable[[Item], Result],
    folder: Path,
    *,
    finished: Callable[[Item], Result | None] | None = None,
    on_done: Callable[[Item, Result], None] | None = None,
) -> list[Result]:
    """Train the items one after the other in one process group, and return their results in order.

    Args:
        folder: of the whole sequence; the command that resumes it is shown with this folder.
        finished: returns the result of an item that an earlier call has finished, which is not trained again.
        on_done: called after every item, such as to rewrite the summary of the sequence.

    Raises:
        Stopped: an item was asked to stop and has saved a checkpoint.
    """
    from vitcli.distributed.runtime import shared_process_group  # loads torch

    results = []
    with shared_process_group():
        for item in items:
            try:
                result = (finished and finished(item)) or train(item)
            except Stopped as stopped:
                stopped.out = folder  # resume the sequence, not the single run
                raise
            results.append(result)
            if on_done:
                on_done(item, result)
    return results
