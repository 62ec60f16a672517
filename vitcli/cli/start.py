"""What the door does before a command: options to recipe keys, and starting the processes it asks for."""

from collections.abc import Callable
from typing import Any

import typer

from vitcli.errors import VitError
from vitcli.output import text

given_arguments: list[str] = []  # the command line as given, for the launcher and environment.json


def shorthands(dataset, res, ckpt, model, precision) -> dict[str, Any]:
    """The options that most commands share, by recipe key; typer.BadParameter for an empty one."""
    for name, value in {"--dataset": dataset, "--res": res, "--ckpt": ckpt, "--model": model}.items():
        if value == "":  # a variable of a script that was not set
            raise typer.BadParameter("the value is empty", param_hint=name)
    return {
        "data.dataset": dataset,
        "data.image_size": res,
        "model.ckpt": ckpt,
        "model.name": model,
        "precision.compute": precision,
    }


def launch(num_processes: int | None) -> int | None:
    """The exit code of the processes this command line asks for; None if it is to run in this one."""
    from vitcli.distributed import launch as distributed_launch

    distributed_launch.adopt_slurm()
    if num_processes is None or not distributed_launch.must_launch(num_processes):
        return None
    return distributed_launch.launch(num_processes, given_arguments)


def show_and_fail(
    result: dict[str, Any], error: VitError | None, as_json: bool, render: Callable[[dict[str, Any]], str]
) -> int:
    """Print a result and end with what did not hold in it, if anything; one process does both."""
    from vitcli.distributed import launch as distributed_launch

    if error and as_json:  # one object on standard output, so the error stands in it
        result = result | {"error": {"message": error.message, "where": error.where, "fix": error.fix}}
    text.show(result, as_json, render)
    if error is None or distributed_launch.global_rank() != 0:
        return 0
    if as_json:
        return error.exit_code
    raise error
