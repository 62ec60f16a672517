"""`vit export --push-to-hub`: upload a folder of weights and its model card to the Hugging Face Hub.

An ONNX file that is named OUT goes with it, with its golden file and a section of the card. Of a run, the
weights, config.json, card, recipe, summary and metrics are uploaded; environment, checkpoints, timings and
logs are not.
"""

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitcli import recipe as recipes
from vitcli.conversion import export as exports
from vitcli.conversion import hub
from vitcli.conversion.export import ExportOptions
from vitcli.conversion.model_card import (
    how_to_load,
    is_classifier_run,
    model_card,
    on_the_hub,
    replace_section,
    weights_card,
)
from vitcli.errors import MachineError, VitError
from vitcli.io.files import irregularity, read_regular
from vitcli.output import run_folder
from vitcli.output.progress import Progress
from vitcli.output.redaction import public_name, public_toml, public_values
from vitcli.output.text import json_of, pairs
from vitcli.weights import formats
from vitcli.weights.io import Weights, read_weights

CARD = "README.md"
SHARED_BY_RUNS = (run_folder.WEIGHTS, "config.json")  # hard links of a selection and its chosen run
UNCHANGED = (*SHARED_BY_RUNS, run_folder.METRICS)
OPTIONS = {
    "to": "--to", "model_name": "--model", "image_size": "--res", "head": "--no-head", "names": "--names",
    "images": "--images", "input": "--input", "precision": "--precision", "calibrate": "--calibrate",
    "gate": "--gate", "split": "--split", "max_drop": "--max-drop", "overwrite": "--overwrite",
}  # fmt: skip


def push(
    ckpt: str,
    out: str | None,
    repository: str,
    options: ExportOptions,
    *,
    private: bool,
    branch: str | None,
    quiet: bool,
) -> dict[str, Any]:
    """Upload a folder: OUT if it is one, else the run folder CKPT, else a timm folder made from CKPT.

    Where OUT is an ONNX file, it is exported first and uploaded too.

    Args:
        options: for a folder that has to be made.

    Raises:
        VitError: not a repository name, OUT is not a folder, or the run is not finished or would be changed.
        MachineError: no token, no permission, no network.
        CheckFailed: the exported weights or the uploaded files differ from the originals.
    """
    began_at = time.perf_counter()
    hub.check(repository, branch, quiet=quiet)
    of_onnx, beside = None, {}
    if out and formats.format_of(options.to, Path(out), names=options.names) == "onnx":
        _run_summary(Path(ckpt), ExportOptions(model_name=options.model_name))  # refused before any work
        of_onnx = exports.export(ckpt, out, options, quiet=quiet)
        beside = {name: Path(out).with_name(name) for name in of_onnx["files"]}
        out, options = None, ExportOptions(model_name=options.model_name)
    with tempfile.TemporaryDirectory() as temporary:
        # Choose the folder; export one unless a run folder is uploaded as it is
        folder, result = Path(ckpt), {"command": "export", "ckpt": ckpt}
        summary = None if out else _run_summary(folder, options)
        if summary is None:
            _check_is_folder(out, options)
            folder = Path(out or temporary, "" if out else "timm")
            result = exports.export(ckpt, str(folder), replace(options, to="timm"), quiet=quiet)
        weights = read_weights(str(folder))
        # Let the card name the repository instead of the folder
        section = how_to_load(
            on_the_hub(repository, branch),
            weights.architecture,
            dataset=summary["dataset"] if summary and is_classifier_run(summary) else None,
            of_onnx=of_onnx,
        )
        card = _card(Path(ckpt), summary, result, weights, section)
        updated = replace_section(card, section)
        if updated is None:
            Progress(quiet=quiet).note(f"{CARD} is uploaded unchanged: it has no loading section by vit")
        # Upload
        files = _files(folder, summary) | beside | {CARD: (updated or card).encode()}
        message = f"{weights.architecture.name}, by vit export"
        uploaded = hub.upload(repository, files, message=message, private=private, branch=branch)
    if not out:
        result.pop("out", None)
    return result | {
        **({"onnx": of_onnx} if of_onnx else {}),
        "repo": repository,
        "url": uploaded.url,
        "commit": uploaded.commit,
        "files": uploaded.files,
        "elapsed_s": time.perf_counter() - began_at,
    }


def as_text(result: dict[str, Any]) -> str:
    rows = [
        ("uploaded", public_name(result["ckpt"])),
        ("files", exports.files_text(result["files"])),
        ("commit", result["commit"]),
        ("use", f"--ckpt hf-hub:{result['repo']}"),
        ("url", result["url"]),
    ]
    return pairs(rows)


def _run_summary(folder: Path, options: ExportOptions) -> dict[str, Any] | None:
    """Return the summary of a run folder, which is uploaded unchanged; None for anything else."""
    if not any((folder / name).is_file() for name in (run_folder.RECIPE, run_folder.LOCK)):
        return None
    for name in (*UNCHANGED, run_folder.RECIPE, run_folder.SUMMARY, CARD):
        _refuse_link(folder / name)
    summary = run_folder.finished_summary(folder)
    if not isinstance(summary, dict) or not summary.keys() >= {"command", "dataset", "model"}:
        raise VitError(
            f"the run in {folder} has not finished, or its {run_folder.SUMMARY} is damaged",
            where="CKPT",
            fix="run its command line again until it finishes; or name OUT, to upload its weights alone",
        )
    changes = [OPTIONS[key] for key, value in vars(options).items() if value != getattr(ExportOptions, key)]
    if changes:
        raise VitError(
            f"a run folder is uploaded unchanged: its numbers belong to its weights without {changes[0]}",
            where=", ".join(changes),
            fix="leave it out, or name a folder OUT, which is uploaded without the numbers of the run",
        )
    return summary


def _refuse_link(file: Path) -> None:
    """Refuse a link in the place of a file to upload: what it points to may be any file of this user."""
    if kind := irregularity(file, hard_links=file.name in SHARED_BY_RUNS):
        raise MachineError(
            f"{file.name} is {kind}, and what it points to is not published",
            where=str(file),
            fix="remove it, or put a copy of the file in its place, if that may be published",
        )


def _check_is_folder(out: str | None, options: ExportOptions) -> None:
    format = formats.format_of(options.to, Path(out or "timm"), names=options.names)
    if format != "timm":
        raise VitError(
            f"only a folder that timm and vit load, or an ONNX file, can be uploaded, not {format}",
            where="OUT, --to and --push-to-hub",
            fix="name a folder or leave OUT out; then add a file with: hf upload OWNER/NAME FILE",
        )


def _card(
    ckpt: Path, summary: dict[str, Any] | None, exported: dict[str, Any], weights: Weights, section: str
) -> str:
    """Return the card in the folder, with everything its owner wrote into it; else a new card."""
    is_of_these_weights = summary is not None or not (ckpt / run_folder.RECIPE).is_file()
    if is_of_these_weights and (file := ckpt / CARD).is_file():
        _refuse_link(file)
        try:
            return read_regular(file).decode()
        except UnicodeDecodeError as error:
            fix = "save it as UTF-8, which the Hub requires"
            raise VitError(f"{CARD} is not UTF-8 text: {error.reason}", where=str(file), fix=fix) from error
    if summary:
        recipe = recipes.load(str(ckpt / run_folder.RECIPE), training=False)
        return model_card(summary, recipes.to_toml(recipe), weights.architecture)
    return weights_card(exported, section)


def _files(folder: Path, summary: dict[str, Any] | None) -> dict[str, Path | bytes]:
    """Return the files to upload by name; recipe and summary without the paths of this machine."""
    files: dict[str, Path | bytes] = {name: folder / name for name in UNCHANGED if (folder / name).is_file()}
    if summary is None:
        return files
    toml = read_regular(folder / run_folder.RECIPE).decode()
    files[run_folder.RECIPE] = public_toml(toml).encode()
    files[run_folder.SUMMARY] = (json_of(public_values(summary), indent=2) + "\n").encode()
    return files
