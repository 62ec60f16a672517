"""The run folder of `vit fewshot`: its recipe, drawn rows, accuracies and table; no command of its own."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vitcli import recipe
from vitcli.errors import VitError
from vitcli.features import draw_files
from vitcli.features import draws as features_draws
from vitcli.features.draws import Draws
from vitcli.features.extract import Frozen
from vitcli.features.fewshot_text import as_text
from vitcli.output import run_folder
from vitcli.output.run_folder import refuse_other_recipe
from vitcli.recipe import Recipe

DRAWS, TABLE = "draws.json", "table.txt"


def earlier(out: Path, resolved: Recipe, draws: Draws) -> dict[str, Any] | None:
    """The summary of a finished run of this very recipe and these draws in the folder."""
    if (out / run_folder.RECIPE).exists():
        refuse_other_recipe(out, resolved)
    summary = run_folder.finished_summary(out)
    if summary is None or not (out / DRAWS).exists():
        return None
    if json.loads((out / DRAWS).read_text()) != draw_files.as_json(draws):
        fix = "choose another folder, or --overwrite to delete that run"
        raise VitError("the folder holds a run with other drawn rows", where=f"--out {out}", fix=fix)
    return summary | {"run_dir": str(out)}


def begin(
    out: Path | None, frozen: Frozen, overwrite: bool, arguments: Sequence[str]
) -> run_folder.RunFolder | None:
    """The run folder, of the first process."""
    opened: list[run_folder.RunFolder] = []

    def open_folder() -> None:
        path = out or run_folder.new_folder("fewshot", frozen.resolved.data.dataset, frozen.arch.name)
        opened.append(run_folder.RunFolder(path, overwrite=overwrite))
        opened[0].rewind_metrics(0)  # an interrupted call has nothing to go on with but its features
        opened[0].write_start(recipe.to_toml(frozen.resolved), run_folder.environment(list(arguments)))

    frozen.machine.on_main(open_folder)
    return opened[0] if opened else None


def write(
    folder: run_folder.RunFolder,
    result: dict[str, Any],
    draws: Draws,
    present: Draws,
    found: dict[int, list[features_draws.Scored]],
) -> dict[str, Any]:
    result["run_dir"] = str(folder.path)
    for shots, scored in found.items():
        for one in scored:
            rows = present[one.seed][shots]
            folder.log({"shots": shots, "num_examples": len(rows), **asdict(one)})
    folder.log_timing({"elapsed_s": result["elapsed_s"]})
    folder.write_text(DRAWS, json.dumps(draw_files.as_json(draws)) + "\n")
    folder.write_text(TABLE, as_text(result))
    folder.write_json(run_folder.SUMMARY, result)
    folder.close()
    return result
