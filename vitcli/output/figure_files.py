"""Figures to files, by the ending of the name: whole or not there, the same figure always the same bytes."""

from pathlib import Path

from matplotlib.figure import Figure

from vitcli.output.atomic import replace_file
from vitcli.output.plots import saving

ENDINGS = ("png", "svg")


def save(path: Path, figure: Figure) -> None:
    """Write one file, a PNG or an SVG.

    Raises:
        MachineError: it cannot be written.
    """
    ending = path.suffix.removeprefix(".")
    more = {"metadata": {"Date": None}} if ending == "svg" else {}
    with saving(path.name):
        replace_file(path, lambda file: figure.savefig(file, format=ending, **more))
