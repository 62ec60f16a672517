"""`vit export --push-to-hub`: a folder of weights and its card to a repository of the Hugging Face Hub.

Of a run go up its weights, config.json, card, recipe, summary and metrics; environment, checkpoints, timings
and logs stay where they are.
"""

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from vitcli import recipe as recipes
from vitcli.errors import VitError
from vitcli.export import export as exports
from vitcli.export import hub
from vitcli.export.model_card import card_of, in_timm, weights_card
from vitcli.export.usage import how_to_load, on_the_hub, with_other_place
from vitcli.output import run_folder
from vitcli.output.progress import Progress
from vitcli.output.redaction import public_name, public_toml, public_values
from vitcli.output.text import pairs
from vitcli.weights import formats
from vitcli.weights.io import Weights, read_weights

CARD = "README.md"
AS_THEY_ARE = ("model.safetensors", "config.json", run_folder.METRICS)
OPTIONS = {
    "to": "--to", "image_size": "--res", "head": "--no-head", "names": "--names", "pictures": "--images",
    "model_name": "--model", "overwrite": "--overwrite",
}  # fmt: skip
TOLD = {"command", "dataset", "model"}  # by every summary
LEFT_OUT = {"head": True, "names": "published", "pictures": (), "overwrite": False}  # others are None


def push(
    ckpt: str,
    out: str | None,
    repository: str,
    *,
    private: bool,
    branch: str | None,
    quiet: bool,
    **exporting: Any,
) -> dict[str, Any]:
    """Upload a folder: OUT where one is named, else the run folder CKPT, else a timm folder made of CKPT.

    Args:
        exporting: the other arguments of `export`, for a folder that is made.

    Raises:
        VitError: no name of a repository, OUT is no folder, or the run is not finished or would be changed.
        MachineError: no token, no permission, no network.
        CheckFailed: what was written or uploaded is not what it was made from.
    """
    began_at = time.perf_counter()
    hub.check(repository, branch, quiet=quiet)
    with tempfile.TemporaryDirectory() as temporary:
        folder, exported = Path(ckpt), {"command": "export", "ckpt": ckpt}
        summary = None if out else _summary_of(folder, exporting)
        if summary is None:
            _check_folder(out, exporting)
            folder = Path(out or temporary, "" if out else "timm")
            exported = exports.export(ckpt, str(folder), quiet=quiet, **(exporting | {"to": "timm"}))
        weights = read_weights(str(folder))
        card = _card(Path(ckpt), summary, exported, weights)
        section = _loading(weights, summary, repository, branch)
        moved = with_other_place(card, section)
        if moved is None:
            Progress(quiet=quiet).note(
                f"{CARD} goes up as it is: its section on loading is not vit's any more"
            )
        files = _files(folder, summary) | {CARD: (moved or card).encode()}
        message = f"{weights.architecture.name}, by vit export"
        uploaded = hub.upload(repository, files, message=message, private=private, branch=branch)
    if not out:
        exported.pop("out", None)
    return exported | {
        "repo": repository,
        "url": uploaded.url,
        "commit": uploaded.commit,
        "files": uploaded.files,
        "elapsed_s": time.perf_counter() - began_at,
    }


def as_text(result: dict[str, Any]) -> str:
    """For a person."""
    return pairs(
        [
            ("uploaded", public_name(result["ckpt"])),
            (
                "files",
                ", ".join(f"{name} ({exports.bytes_text(count)})" for name, count in result["files"].items()),
            ),
            ("commit", result["commit"]),
            ("use", f"--ckpt hf-hub:{result['repo']}"),
            ("url", result["url"]),
        ]
    )


def _summary_of(folder: Path, exporting: dict[str, Any]) -> dict[str, Any] | None:
    """The summary of a run folder, which goes up as it is; None if this is no run folder."""
    if not any((folder / name).is_file() for name in (run_folder.RECIPE, run_folder.LOCK)):
        return None
    summary = run_folder.finished_summary(folder)
    if not isinstance(summary, dict) or not summary.keys() >= TOLD:
        raise VitError(
            f"the run in {folder} has not finished, or its {run_folder.SUMMARY} is damaged",
            where="CKPT",
            fix="let it finish, by its own command line again; or name OUT, to upload its weights alone",
        )
    changing = [OPTIONS[key] for key, value in exporting.items() if value != LEFT_OUT.get(key)]
    if changing:
        raise VitError(
            f"a run folder goes up as it is: its numbers are those of its own weights, without {changing[0]}",
            where=", ".join(changing),
            fix="leave it out, or name a folder OUT, which goes up in the run's place, without its numbers",
        )
    return summary


def _check_folder(out: str | None, exporting: dict[str, Any]) -> None:
    format = formats.format_of(exporting["to"], Path(out or "timm"), names=exporting["names"])
    if format != "timm":
        raise VitError(
            f"what goes to the Hub is a folder that timm and vit load, not {format}",
            where="OUT, --to and --push-to-hub",
            fix="name a folder or leave OUT out; a file can follow with: hf upload OWNER/NAME FILE",
        )


def _card(ckpt: Path, summary: dict[str, Any] | None, exported: dict[str, Any], weights: Weights) -> str:
    """The card that lies in the folder, with whatever its owner wrote into it; else a new one."""
    is_runs_own = summary is not None or not (ckpt / run_folder.RECIPE).is_file()
    if is_runs_own and (ckpt / CARD).is_file():
        return _text_of(ckpt / CARD)
    if summary:
        recipe = recipes.load(str(ckpt / run_folder.RECIPE), training=False)
        return card_of(summary, recipe, weights.architecture)
    return weights_card(exported, _loading(weights, None, "OWNER/NAME", None))


def _text_of(card: Path) -> str:
    try:
        return card.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        fix = "save it as UTF-8, which is what the Hub reads"
        raise VitError(f"{card.name} is no UTF-8 text: {error.reason}", where=str(card), fix=fix) from error


def _loading(weights: Weights, summary: dict[str, Any] | None, repository: str, branch: str | None) -> str:
    return how_to_load(
        on_the_hub(repository, branch),
        dataset=summary["dataset"] if summary and "top1" in summary else None,
        has_classes=weights.architecture.num_classes > 0,
        **in_timm(weights.architecture),
    )


def _files(folder: Path, summary: dict[str, Any] | None) -> dict[str, Path | bytes]:
    """Files by name; recipe and summary without the paths of this machine."""
    files: dict[str, Path | bytes] = {
        name: folder / name for name in AS_THEY_ARE if (folder / name).is_file()
    }
    if summary is None:
        return files
    toml = (folder / run_folder.RECIPE).read_text(encoding="utf-8")
    files[run_folder.RECIPE] = public_toml(toml).encode()
    files[run_folder.SUMMARY] = (json.dumps(public_values(summary), indent=2) + "\n").encode()
    return files
