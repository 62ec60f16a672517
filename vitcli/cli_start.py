"""What the door does before a command: options to recipe keys, and starting the processes it asks for."""

from typing import Any

import typer

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
    from vitcli import launching

    launching.adopt_slurm()
    if num_processes is None or not launching.must_launch(num_processes):
        return None
    return launching.launch(num_processes, given_arguments)
