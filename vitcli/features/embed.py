"""`vit embed`: features, logits, labels, row numbers and paths of a split, in .safetensors files."""

import json
import os
import shutil
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from vitcli.data.aliases import local_copy
from vitcli.data.columns import PATHS
from vitcli.data.sources.tables import UNLABELLED
from vitcli.data.split import Split
from vitcli.distributed.runtime import shared_process_group
from vitcli.errors import MachineError, VitError
from vitcli.evaluation.inference import nothing_decoded
from vitcli.evaluation.parts import Parts, summary_rows
from vitcli.evaluation.setup import RunSettings, open_eval_split, read_checkpoint
from vitcli.features.extract import ExtractedFeatures, FeatureExtractor, extract, fill_store, open_extractor
from vitcli.features.feature_store import (
    FeatureStore,
    name_of,
    open_beside,
    open_temporary,
    write_safetensors,
)
from vitcli.output import text
from vitcli.output.atomic import TEMPORARY, check_out, replace_file
from vitcli.recipe import Recipe

SUFFIX = ".safetensors"
ABOUT = ("ckpt", "model", "numerics", "dataset", "split", "layer", "precision")
MOST_BYTES_OF_PATHS = 90_000_000  # the header of a .safetensors file ends at 100 MB


def embed(
    recipe: Recipe, run: RunSettings, *, split: str, logits: bool, part_rows: int | None = None
) -> dict[str, Any]:
    """Write the file and return the object of --json; {} on all processes but the first.

    Features are kept beside `run.out` until all are computed, so the same command resumes after a kill, with
    any number of processes. The file depends on neither.

    Args:
        part_rows: rows of each file below the folder `run.out`, see `evaluation.parts`; None for one file.
    """
    out = run.out
    # Of a file that is there nothing is written, and `_check_same` decides.
    if not part_rows and (run.overwrite or not out.is_file()):
        check_out(out, overwrite=run.overwrite, folder_error=VitError)
    weights = read_checkpoint(recipe, quiet=run.quiet)
    images = open_eval_split(recipe, split, weights, needs_labels=False)
    extractor = open_extractor(weights, recipe, run)
    runtime = extractor.network.settings.runtime
    for line in images.left_out.lines():  # the notes are in the result
        extractor.network.settings.progress.note(line)
    about_images = images.left_out.summary() | {"notes": list(images.notes)}
    with_logits = logits and extractor.network.arch.num_classes > 0
    metadata = _metadata(extractor, images, with_logits=with_logits)
    if part_rows:
        result = _embed_parts(extractor, images, metadata, run, part_rows, with_logits=with_logits)
        runtime.shutdown()
        return about_images | result if runtime.is_main else {}

    # A file of the same request stays as it is.
    partial_folder = out.with_name(f"{TEMPORARY}{out.name}.features")
    if runtime.on_main(out.exists) and not run.overwrite:
        runtime.on_main(lambda: _check_same(out, metadata))
        # Of a command killed at its end.
        runtime.on_main(lambda: shutil.rmtree(partial_folder, ignore_errors=True))
        runtime.shutdown()
        return about_images | _result(out, num_processes=runtime.world_size) if runtime.is_main else {}

    # All processes extract features, the first one writes the file.
    began_at = time.perf_counter()
    rows_N, open_partial = np.arange(len(images)), partial(_open_beside, partial_folder)
    computed = extract(extractor, images, rows_N, open_partial, with_logits=with_logits)
    runtime.shutdown()
    store = computed.store
    if store is None:
        return {}
    if not store.has(rows_N).any():
        raise nothing_decoded(images)
    _write(out, extractor, images, metadata, store, computed.skipped)
    shutil.rmtree(partial_folder, ignore_errors=True)
    store.close()
    result = _result(out, num_processes=runtime.world_size, computed=computed)
    return result | about_images | {"elapsed_s": time.perf_counter() - began_at}


@shared_process_group()  # for what comes after the parts
def _embed_parts(
    extractor: FeatureExtractor,
    images: Split,
    metadata: dict[str, str],
    run: RunSettings,
    part_rows: int,
    *,
    with_logits: bool,
) -> dict[str, Any]:
    """Write the file of each part that no other worker writes; return the object of --json."""
    settings = extractor.network.settings

    def write(part: Split, first: int, file: Path) -> None:
        runtime, rows_N = settings.runtime, np.arange(len(part))
        with runtime.local_errors():
            store = open_temporary({}, len(part)) if runtime.is_main else None
        skipped = fill_store(store, rows_N, extractor, part, with_logits=with_logits)
        skipped = sorted(runtime.union(set(skipped)))
        about = metadata | {"split": part.name}
        runtime.on_main(lambda: _write(file, extractor, part, about, store, skipped, first_row=first))
        if store is not None:
            store.close()

    def read(file: Path) -> dict[str, Any]:
        try:
            with safe_open(file, "np") as opened:
                count, about = opened.get_slice("rows").get_shape()[0], opened.metadata()
                return {"num_examples": count, "skipped_images": json.loads(about["skipped_images"])}
        except SafetensorError as error:
            raise ValueError(str(error)) from error

    # "made_of" has times of files, which a copy of the data on another machine has not.
    asked = {key: value for key, value in metadata.items() if key not in ("pixels", "made_of")}
    parts = Parts(run.out, part_rows, asked, SUFFIX, write, read)
    counts, _ = parts.make(images, settings, overwrite=run.overwrite)
    if not counts["num_examples"]:
        raise nothing_decoded(images)
    about = {key: metadata[key] for key in ABOUT}
    return {"command": "embed", **about, "preprocessing": metadata["pixels"], **counts}


def _write(
    out: Path,
    extractor: FeatureExtractor,
    images: Split,
    metadata: dict[str, str],
    store: FeatureStore,
    skipped: Sequence[str],
    *,
    first_row: int = 0,
) -> None:
    """Write what was computed of images, which begin at `first_row` of the split, to the file."""
    has_labels, rows_N = images.has_labels, np.arange(len(images))
    rows_N = rows_N[store.has(rows_N)]
    paths = json.dumps(_paths(images, extractor.recipe.data.dataset, rows_N), ensure_ascii=False)
    if len(paths.encode()) > MOST_BYTES_OF_PATHS:
        paths = json.dumps(None)
        extractor.network.settings.progress.note(f"note: {len(rows_N):,} paths do not fit into the file")
    metadata |= {"skipped_images": json.dumps(skipped), "paths": paths, "has_labels": json.dumps(has_labels)}
    about = {"has_labels": has_labels, "first_row": first_row}
    replace_file(out, lambda path: write_safetensors(path, store, rows_N, metadata, **about))


def _paths(images: Split, dataset: str, rows_N: np.ndarray) -> list[str | None] | None:
    """Return the path of each image inside the data set's folder; None for a data set without image files."""
    paths = images.column(PATHS) if images.block_starts is None else None
    if not paths or not any(paths):
        return None
    copy = local_copy(dataset)
    start = os.path.join(os.path.abspath(copy if copy.is_dir() else copy.parent), "") if copy else ""
    return [paths[row] and paths[row].removeprefix(start) for row in rows_N.tolist()]


def _check_same(out: Path, metadata: dict[str, str]) -> None:
    """Refuse a file unless this command would write the same."""
    try:
        with safe_open(out, "np") as file:
            stored = file.metadata() or {}
    except (OSError, SafetensorError):
        stored = {}
    # "pixels" says in words what "preprocessing" holds in numbers; words may change between versions.
    differing = [key for key, value in metadata.items() if key != "pixels" and stored.get(key) != value]
    if differing:
        is_ours = bool(stored.keys() & metadata.keys())
        content = f"with another {', '.join(differing[:4])}" if is_ours else "a file of another kind"
        fix = "choose another name, or replace it with --overwrite"
        raise VitError(f"{out} already exists, {content}", where=f"--out {out}", fix=fix)


def _open_beside(folder: Path, about: dict[str, Any], num_rows: int) -> FeatureStore:
    try:
        return open_beside(folder, about, num_rows)
    except BlockingIOError as error:
        fix = "wait for it, or choose another file with --out"
        raise MachineError("another process is writing this file", where=str(folder), fix=fix) from error
    except OSError as error:
        problem = f"the file cannot be written: {error.strerror}"
        fix = "choose another folder with --out, or change its permissions"
        raise MachineError(problem, where=str(folder), fix=fix) from error


def _metadata(extractor: FeatureExtractor, split: Split, *, with_logits: bool) -> dict[str, str]:
    """Return the metadata of the file, without skipped images; as text, JSON where it is not a string."""
    recipe, weights = extractor.recipe, extractor.network.weights
    made_of = {k: v for k, v in extractor.about(split, with_logits=with_logits).items() if k != "device"}
    return {
        "format": "pt",
        "ckpt": str(recipe.model.ckpt),
        "weights": extractor.weights_digest,
        "model": extractor.network.arch.name,
        "numerics": weights.numerics,
        "architecture": json.dumps(extractor.network.arch.as_dict()),
        "preprocessing": json.dumps(extractor.network.preprocessing.as_dict()),
        "pixels": f"{extractor.network.preprocessing.summary()}, {extractor.network.preprocessing_from}",
        "layer": recipe.eval.layer,
        "precision": extractor.network.settings.precision,
        "dataset": str(recipe.data.dataset),
        "split": split.name,
        "data": split.fingerprint,
        "made_of": name_of(made_of),
        "class_names": json.dumps(split.class_names if split.has_labels else None),
        "logit_names": json.dumps(weights.class_names if with_logits else None),
    }


def _result(out: Path, *, num_processes: int, computed: ExtractedFeatures | None = None) -> dict[str, Any]:
    """Return the object of --json, read from the file."""
    with safe_open(out, "np") as file:
        metadata = file.metadata()
        count, width = file.get_slice("features").get_shape()
        num_logits = file.get_slice("logits").get_shape()[1] if "logits" in file.keys() else 0  # noqa: SIM118
    skipped = json.loads(metadata["skipped_images"])
    return {
        "command": "embed",
        "out": str(out),
        **{key: metadata[key] for key in ABOUT},
        "preprocessing": metadata["pixels"],
        "num_examples": count,
        "has_labels": json.loads(metadata.get("has_labels", "true")),
        "has_paths": json.loads(metadata.get("paths", "null")) is not None,
        "feature_dim": width,
        "num_logits": num_logits,
        "bytes": out.stat().st_size,
        "taken_up_rows": computed.num_cached if computed else count,
        "computed_rows": computed.num_computed if computed else 0,
        "num_skipped_images": len(skipped),
        "skipped_images": skipped[:100],
        "num_processes": num_processes,
    }


def as_text(result: dict[str, Any]) -> str:
    """Return the result as text for a terminal."""
    model_and_pixels = [("model", text.model_text(result)), ("pixels", result["preprocessing"])]
    notes = [*text.skipped(result), *(("note", note) for note in result.get("notes", ()))]
    code = f'vitcli.load_features({result["out"]!r})["features"]'
    if "num_parts" in result:
        reading = [("next", "in Python, an array that reads the rows you index"), ("", text.Verbatim(code))]
        return text.pairs([*summary_rows(result), *model_and_pixels, *notes, *reading])
    logits = f", {result['num_logits']} logits" if result["num_logits"] else ""
    split = result["split"].removesuffix(f", split {UNLABELLED}")  # a plain folder has no splits
    others = ["label"] * result["has_labels"] + ["row"] + ["path"] * result["has_paths"]
    rows = [
        ("file", f"{result['out']}, {text.bytes_text(result['bytes'])}"),
        ("images", f"{text.count_of(result['num_examples'], 'image')}, {split}"),
        ("each", f"{result['feature_dim']} features ({result['layer']}){logits}, {', '.join(others)}"),
        *model_and_pixels,
    ]
    if reused := result["taken_up_rows"]:
        origin = "an interrupted call" if result["computed_rows"] else "the earlier file"
        rows.append(("reused", f"{text.count_of(reused, 'row')} from {origin}"))
    rows += notes
    reading = "from safetensors.numpy import load_file", f'load_file({result["out"]!r})["features"]'
    rows += [
        ("next", "in Python (docs/few-shot-and-features.md finds neighbours)"),
        *(("", text.Verbatim(line)) for line in reading),
    ]
    return text.pairs(rows)
