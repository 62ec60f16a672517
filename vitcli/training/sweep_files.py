"""A finished selection to its folder: weights of the first run, pictures, model card, last the summary."""

import os
import shutil
from pathlib import Path
from typing import Any

from vitcli.export.model_card import card_of
from vitcli.output import plots, run_folder, text
from vitcli.output.atomic import replace_file
from vitcli.output.run_folder import RunFolder
from vitcli.recipe import Recipe
from vitcli.weights.io import read_weights


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
        figure = plots.selection_curve(summary["choices"], chosen=summary["chosen"])
        if figure:
            figure.savefig(pictures / "selection.png")
    folder.write_text("README.md", card_of(summary, resolved, read_weights(str(source)).architecture))
    folder.write_text("table.txt", text.table_of(summary))
    folder.write_json(run_folder.SUMMARY, summary)


def _same(source: Path, target: Path) -> None:
    """The same file under a second name; its bytes once more where the file system has no such thing."""
    target.unlink()
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
