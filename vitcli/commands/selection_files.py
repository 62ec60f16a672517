"""A finished selection to its folder: weights of the first run, pictures, model card, last the summary."""

import os
import shutil
from pathlib import Path
from typing import Any

from vitcli import figures, runlog, tables
from vitcli.model_card import card_of
from vitcli.recipe import Recipe
from vitcli.runlog import RunFolder
from vitcli.safe_files import replace_file
from vitcli.weights import read_weights


def write_all(folder: RunFolder, resolved: Recipe, summary: dict[str, Any], first: dict[str, Any]) -> None:
    """What the folder of a single run has, too, so that it is a --ckpt like any other.

    Args:
        first: the summary of the first run, whose weights are those of all.
    """
    source = Path(first["run_dir"])
    for name in ("model.safetensors", "config.json"):
        replace_file(folder.path / name, lambda path, name=name: _same(source / name, path))
    pictures = folder.path / "figures"
    pictures.mkdir(exist_ok=True)
    for picture in sorted((source / "figures").glob("*.png")):
        shutil.copy(picture, pictures / picture.name)
    if summary["choices"]:
        figure = figures.selection_curve(summary["choices"], chosen=summary["chosen"])
        if figure:
            figure.savefig(pictures / "selection.png")
    folder.write_text("README.md", card_of(summary, resolved, read_weights(str(source)).architecture))
    folder.write_text("table.txt", tables.table_of(summary))
    folder.write_json(runlog.SUMMARY, summary)


def _same(source: Path, target: Path) -> None:
    """The same file under a second name; its bytes once more where the file system has no such thing."""
    target.unlink()
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
