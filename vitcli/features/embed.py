"""`vit embed`: features, logits, labels and row numbers of a split to one .safetensors file."""

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from vitcli.data.split import Split
from vitcli.errors import MachineError, VitError
from vitcli.evaluation.inference import nothing_decoded
from vitcli.evaluation.setup import RunSettings, check_named, open_eval_split, read_checkpoint
from vitcli.features.extract import ExtractedFeatures, FeatureExtractor, extract, open_extractor
from vitcli.features.feature_store import FeatureStore, name_of, open_store, write_safetensors
from vitcli.output import text
from vitcli.output.atomic import TEMPORARY, check_out, replace_file
from vitcli.recipe.request import RecipeRequest


def embed(request: RecipeRequest, run: RunSettings, *, split: str, logits: bool) -> dict[str, Any]:
    """Write the file; of the first process, the others return nothing.

    What is computed is kept beside `run.out` until all of it is, so the same command resumes after a kill,
    with any number of processes. The file depends on neither.
    """
    out = run.out
    if (
        run.overwrite or not out.is_file()
    ):  # otherwise nothing is written: `_check_same` accepts the file or not
        check_out(out, overwrite=run.overwrite, suffixes=(".safetensors",), folder_error=VitError)
    recipe = request.load()
    check_named(recipe, "embed")
    weights = read_checkpoint(recipe)
    found = open_eval_split(recipe, split, weights)
    frozen = open_extractor(weights, recipe, request, run)
    runtime = frozen.settings.runtime
    with_logits = logits and frozen.arch.num_classes > 0
    about = _metadata(frozen, found, with_logits=with_logits)
    if runtime.on_main(out.exists) and not run.overwrite:
        runtime.on_main(lambda: _check_same(out, about))
        runtime.shutdown()
        return _result(out, num_processes=runtime.world_size) if runtime.is_main else {}
    began_at = time.perf_counter()
    partial_file = out.with_name(f"{TEMPORARY}{out.name}.features")
    computed = extract(
        frozen, found, np.arange(len(found)), partial(_open_beside, partial_file), with_logits=with_logits
    )
    runtime.shutdown()
    store = computed.store
    if store is None:
        return {}
    rows_N = np.arange(len(found))
    rows_N = rows_N[store.has(rows_N)]
    if not len(rows_N):
        raise nothing_decoded(found)
    metadata = about | {"skipped_images": json.dumps(computed.skipped)}
    replace_file(out, lambda path: write_safetensors(path, store, rows_N, metadata))
    partial_file.unlink()
    store.close()
    return _result(out, num_processes=runtime.world_size, computed=computed) | {
        "elapsed_s": time.perf_counter() - began_at
    }


def _check_same(out: Path, about: dict[str, str]) -> None:
    """Refuse a file that holds anything but what this very command would write."""
    try:
        with safe_open(out, "np") as file:
            told = file.metadata() or {}
    except (OSError, SafetensorError):
        told = {}
    differing = [key for key, value in about.items() if told.get(key) != value]
    if differing:
        is_ours = bool(told.keys() & about.keys())
        what = f"with another {', '.join(differing[:4])}" if is_ours else "a file of another kind"
        fix = "choose another name, or replace it with --overwrite"
        raise VitError(f"{out} already exists, {what}", where=f"--out {out}", fix=fix)


def _open_beside(path: Path, about: dict[str, Any], num_rows: int) -> FeatureStore:
    try:
        return open_store(path, about, num_rows)
    except BlockingIOError as error:
        fix = "wait for it, or choose another file with --out"
        raise MachineError("another process is writing this file", where=str(path), fix=fix) from error
    except OSError as error:
        fix = "choose another folder with --out, or mend its permissions"
        raise MachineError(f"it cannot be written: {error.strerror}", where=str(path), fix=fix) from error


def _metadata(frozen: FeatureExtractor, split: Split, *, with_logits: bool) -> dict[str, str]:
    """What the file says of itself, skipped images aside. Safetensors has text only, so all else is JSON."""
    recipe, weights = frozen.recipe, frozen.weights
    made_of = {k: v for k, v in frozen.about(split, with_logits=with_logits).items() if k != "device"}
    return {
        "format": "pt",
        "ckpt": str(recipe.model.ckpt),
        "weights": frozen.weights_digest,
        "model": frozen.arch.name,
        "numerics": weights.numerics,
        "architecture": json.dumps(frozen.arch.as_dict()),
        "preprocessing": json.dumps(frozen.preprocessing.as_dict()),
        "pixels": f"{frozen.preprocessing.summary()}, {frozen.preprocessing_from}",
        "layer": recipe.eval.layer,
        "precision": frozen.settings.precision,
        "dataset": str(recipe.data.dataset),
        "split": split.name,
        "data": split.fingerprint,
        "made_of": name_of(made_of),
        "class_names": json.dumps(split.class_names),
        "logit_names": json.dumps(weights.class_names if with_logits else None),
    }


def _result(out: Path, *, num_processes: int, computed: ExtractedFeatures | None = None) -> dict[str, Any]:
    """What the file holds, by its own words."""
    with safe_open(out, "np") as file:
        told = file.metadata()
        count, width = file.get_slice("features").get_shape()
        num_logits = file.get_slice("logits").get_shape()[1] if "logits" in file.keys() else 0  # noqa: SIM118
    skipped = json.loads(told["skipped_images"])
    return {
        "command": "embed",
        "out": str(out),
        **{key: told[key] for key in ("ckpt", "model", "numerics", "dataset", "split", "layer", "precision")},
        "preprocessing": told["pixels"],
        "num_examples": count,
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
    """The result for a person."""
    logits = f", {result['num_logits']} logits" if result["num_logits"] else ""
    rows = [
        ("file", f"{result['out']}, {result['bytes'] / 2**20:.1f} MiB"),
        ("images", f"{result['num_examples']}, {result['split']}"),
        ("each", f"{result['feature_dim']} features ({result['layer']}){logits}, label, row"),
        ("model", f"{result['model']}, {result['numerics']}"),
        ("pixels", result["preprocessing"]),
    ]
    if result["taken_up_rows"]:
        rows.append(("taken up", f"{result['taken_up_rows']} rows that were there"))
    return text.pairs([*rows, *text.skipped(result)])
