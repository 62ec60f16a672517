"""`vit embed`: features, logits, labels and row numbers of a split in one .safetensors file."""

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
from vitcli.evaluation.setup import RunSettings, open_eval_split, read_checkpoint
from vitcli.features.extract import ExtractedFeatures, FeatureExtractor, extract, open_extractor
from vitcli.features.feature_store import FeatureStore, name_of, open_store, write_safetensors
from vitcli.output import text
from vitcli.output.atomic import TEMPORARY, check_out, replace_file
from vitcli.recipe.request import RecipeRequest


def embed(request: RecipeRequest, run: RunSettings, *, split: str, logits: bool) -> dict[str, Any]:
    """Write the file and return the object of --json; {} on all processes but the first.

    Features are kept beside `run.out` until all are computed, so the same command resumes after a kill, with
    any number of processes. The file depends on neither.
    """
    out = run.out
    if run.overwrite or not out.is_file():  # else nothing is written, and `_check_same` decides
        check_out(out, overwrite=run.overwrite, suffixes=(".safetensors",), folder_error=VitError)
    recipe = request.load(command="embed")
    weights = read_checkpoint(recipe, quiet=run.quiet)
    images = open_eval_split(recipe, split, weights)
    extractor = open_extractor(weights, recipe, request, run)
    runtime = extractor.settings.runtime
    with_logits = logits and extractor.arch.num_classes > 0
    metadata = _metadata(extractor, images, with_logits=with_logits)

    # A file of the same request stays as it is.
    if runtime.on_main(out.exists) and not run.overwrite:
        runtime.on_main(lambda: _check_same(out, metadata))
        runtime.shutdown()
        return _result(out, num_processes=runtime.world_size) if runtime.is_main else {}

    # All processes extract features, the first one writes the file.
    began_at = time.perf_counter()
    partial_file = out.with_name(f"{TEMPORARY}{out.name}.features")
    rows_N, open_partial = np.arange(len(images)), partial(_open_beside, partial_file)
    computed = extract(extractor, images, rows_N, open_partial, with_logits=with_logits)
    runtime.shutdown()
    store = computed.store
    if store is None:
        return {}
    rows_N = rows_N[store.has(rows_N)]
    if not len(rows_N):
        raise nothing_decoded(images)
    metadata |= {"skipped_images": json.dumps(computed.skipped)}
    replace_file(out, lambda path: write_safetensors(path, store, rows_N, metadata))
    partial_file.unlink()
    store.close()
    result = _result(out, num_processes=runtime.world_size, computed=computed)
    return result | {"elapsed_s": time.perf_counter() - began_at}


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


def _open_beside(path: Path, about: dict[str, Any], num_rows: int) -> FeatureStore:
    try:
        return open_store(path, about, num_rows)
    except BlockingIOError as error:
        fix = "wait for it, or choose another file with --out"
        raise MachineError("another process is writing this file", where=str(path), fix=fix) from error
    except OSError as error:
        problem = f"the file cannot be written: {error.strerror}"
        fix = "choose another folder with --out, or change its permissions"
        raise MachineError(problem, where=str(path), fix=fix) from error


def _metadata(extractor: FeatureExtractor, split: Split, *, with_logits: bool) -> dict[str, str]:
    """Return the metadata of the file, without skipped images; as text, JSON where it is not a string."""
    recipe, weights = extractor.recipe, extractor.weights
    made_of = {k: v for k, v in extractor.about(split, with_logits=with_logits).items() if k != "device"}
    return {
        "format": "pt",
        "ckpt": str(recipe.model.ckpt),
        "weights": extractor.weights_digest,
        "model": extractor.arch.name,
        "numerics": weights.numerics,
        "architecture": json.dumps(extractor.arch.as_dict()),
        "preprocessing": json.dumps(extractor.preprocessing.as_dict()),
        "pixels": f"{extractor.preprocessing.summary()}, {extractor.preprocessing_from}",
        "layer": recipe.eval.layer,
        "precision": extractor.settings.precision,
        "dataset": str(recipe.data.dataset),
        "split": split.name,
        "data": split.fingerprint,
        "made_of": name_of(made_of),
        "class_names": json.dumps(split.class_names),
        "logit_names": json.dumps(weights.class_names if with_logits else None),
    }


def _result(out: Path, *, num_processes: int, computed: ExtractedFeatures | None = None) -> dict[str, Any]:
    """Return the object of --json, read from the file."""
    with safe_open(out, "np") as file:
        metadata = file.metadata()
        count, width = file.get_slice("features").get_shape()
        num_logits = file.get_slice("logits").get_shape()[1] if "logits" in file.keys() else 0  # noqa: SIM118
    skipped = json.loads(metadata["skipped_images"])
    copied = ("ckpt", "model", "numerics", "dataset", "split", "layer", "precision")
    return {
        "command": "embed",
        "out": str(out),
        **{key: metadata[key] for key in copied},
        "preprocessing": metadata["pixels"],
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
    """Return the result as text for a terminal."""
    logits = f", {result['num_logits']} logits" if result["num_logits"] else ""
    rows = [
        ("file", f"{result['out']}, {result['bytes'] / 2**20:.1f} MiB"),
        ("images", f"{result['num_examples']}, {result['split']}"),
        ("each", f"{result['feature_dim']} features ({result['layer']}){logits}, label, row"),
        ("model", text.model_text(result)),
        ("pixels", result["preprocessing"]),
    ]
    if result["taken_up_rows"]:
        rows.append(("reused", f"{text.count_of(result['taken_up_rows'], 'row')} of the earlier file"))
    return text.pairs([*rows, *text.skipped(result)])
