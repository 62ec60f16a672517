"""Many runs in a row, as sweeps, VTAB, studies and reproductions need them. Loads no torch by itself."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from vitcli.errors import Stopped
from vitcli.output import run_folder
from vitcli.output.run_folder import RunFolder
from vitcli.recipe import Recipe

if TYPE_CHECKING:  # it loads torch
    from vitcli.training.setup import RunOptions

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


def open_folder(command: str, recipe: Recipe, options: "RunOptions") -> RunFolder:
    """Lock the folder of several runs; its metrics have a line per run, written anew each time."""
    name = recipe.model.name or Path(str(recipe.model.ckpt)).name
    path = options.out or run_folder.new_folder(command, str(recipe.data.dataset), name)
    return run_folder.open_run(path, recipe, options.arguments, overwrite=options.overwrite)
