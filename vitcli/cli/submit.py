"""The end of a command with `--submit`; `vit submit status` and `vit submit cancel`."""

from pathlib import Path
from typing import Annotated

import typer

from vitcli.cli.help import group
from vitcli.cli.options import DeviceOptions, Printing, command, given_arguments
from vitcli.submission.submission import PRINTED, prepare

app = group(
    "See and cancel what --submit started.",
    "Examples:\nvit submit status runs/photos\nvit submit cancel runs/photos",
)
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The --out of the command with --submit.")]


def print_file(devices: DeviceOptions, out: Path | None, printing: Printing) -> None:
    """Print the file for a place and end; what the line names is there, so nothing is looked up here."""
    if devices.submit in PRINTED:
        hand_over(devices, out, printing)


def hand_over(devices: DeviceOptions, out: Path | None, printing: Printing) -> None:
    """Submit a command line whose mistakes have been reported, and end; return where it runs here."""
    given = devices.submit_set or ()
    if devices.submit is None:
        if devices.submit_workers or given:
            raise typer.BadParameter("--submit-workers and --submit-set belong to --submit")
        return
    if devices.submit in PRINTED:
        from vitcli.submission.printed import as_text, submit
    else:
        from vitcli.submission.cluster import as_text, submit
    submission = prepare(devices.submit, devices.submit_workers or 1, given, out, given_arguments)
    raise typer.Exit(printing.show(submit(submission), as_text))


@command(app, example="vit submit status runs/photos")
def status(*, folder: Folder, printing: Printing) -> int:
    """List the workers that were submitted into a folder, with their states and logs."""
    from vitcli.submission import cluster

    return printing.show(cluster.status(folder), cluster.as_text)


@command(app, example="vit submit cancel runs/photos")
def cancel(*, folder: Folder, printing: Printing) -> int:
    """Cancel the workers of a folder that have not ended; the same command line resumes what they saved."""
    from vitcli.submission import cluster

    return printing.show(cluster.cancel(folder), cluster.as_text)
