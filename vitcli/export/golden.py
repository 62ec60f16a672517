"""Golden files: images with the answers that an ONNX file gave where it was made.

`vit export --check FILE.onnx` repeats them anywhere, with another onnxruntime or on another processor. The
images are in it, as PNG in base64: of those compared on at the export, at most 256 pixels wide and high.
"""

import base64
import binascii
import io
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitcli import __version__
from vitcli.data import loader
from vitcli.data.decoding import decode
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing
from vitcli.errors import CheckFailed, DataError, VitError, reason_of
from vitcli.output.atomic import write_json
from vitcli.output.text import Verbatim, count_of, pairs
from vitcli.regular_files import read_regular
from vitcli.weights.onnx import OnnxNetwork, digest_of

NUM_IMAGES, MOST_SIDE, MOST_OUTPUTS = 20, 256, 100
MOST_BYTES = 100_000_000
TOLERANCES = {"fp32": 1e-4, "fp16": 1e-2, "int8": 5e-2}  # of an output, relative to the largest


def golden_path(path: Path) -> Path:
    """Return where the golden file of an ONNX file is."""
    return path.with_name(f"{path.stem}.golden.json")


def write_golden(path: Path, split: Split, preprocessing: Preprocessing, *, precision: str) -> None:
    """Write the golden file of an ONNX file: images evenly spread over a split, and what the file answers."""
    network = OnnxNetwork(path)
    rows = np.unique(np.linspace(0, len(split) - 1, NUM_IMAGES).round().astype(int)).tolist()
    entries = []
    for row in rows:
        image_HWC = loader.read_example(split, row)[0]
        image_HWC = _shrunk(image_HWC) if network.takes_any_size else preprocessing(image_HWC)
        outputs_K = _answers(network, image_HWC, path)
        kept = _kept(outputs_K)
        entries.append(
            {
                "image": split.where_is(row).rpartition("/")[2],
                "png": base64.b64encode(_as_png(image_HWC)).decode(),
                "outputs": {str(k): float(f"{outputs_K[k]:.7g}") for k in kept.tolist()},
            }
        )
    golden = {
        "file": path.name,
        "sha256": digest_of(path),
        "made_by": f"vitcli {__version__}",
        "output": network.answer_name,
        "tolerance": TOLERANCES[precision],
        "images": entries,
    }
    write_json(golden_path(path), golden)


def _kept(outputs_K: np.ndarray) -> np.ndarray:
    """Return which of many outputs a golden file has, in ascending order: those farthest from 0."""
    return np.sort(np.argsort(-np.abs(outputs_K), kind="stable")[:MOST_OUTPUTS])


def check(path: str) -> dict[str, Any]:
    """Run an ONNX file on the images of its golden file, and return how far its answers are from those.

    Raises:
        CheckFailed: they differ by more than the golden file allows, or name another class.
        DataError: there is no golden file, or it is damaged.
        VitError: it is no ONNX file.
    """
    began_at, file = time.perf_counter(), Path(path)
    if file.suffix != ".onnx" or not file.is_file():
        problem = "is not an .onnx file" if file.exists() else "does not exist"
        raise VitError(f"{path} {problem}", where="--check", fix="name a file that vit export has written")
    golden, entries = _read(golden_path(file))
    network = OnnxNetwork(file)
    if golden.get("output") != network.answer_name:
        raise _damaged(golden_path(file), f"it has no {network.answer_name}, which the file gives")
    differences, others = [], []
    for name, image_HWC, kept, expected in entries:
        outputs_K = _answers(network, image_HWC, file)
        if kept.max() >= len(outputs_K):
            raise _damaged(golden_path(file), f"it has output {kept.max()}, and the file {len(outputs_K)}")
        differences.append(np.abs(outputs_K[kept] - expected).max() / max(np.abs(expected).max(), 1e-30))
        # A tie that rounding decides is no other class
        surplus = outputs_K.max() - outputs_K[kept[expected.argmax()]]
        if golden["output"] == "probabilities" and not surplus <= golden["tolerance"]:
            others.append(name)
    largest = float(max(differences))
    if others or not largest <= golden["tolerance"]:
        problem = f"outputs differ by {largest:.2g} of the largest (allowed: {golden['tolerance']:g})"
        if others:
            count = f"{count_of(len(others), 'image')} of {len(entries)}"
            problem = f"another class for {count}, the first {others[0]}; {problem}"
        raise CheckFailed(
            problem,
            where=f"{path}, {golden_path(file).name}",
            fix="do not use it here: export it again, or update onnxruntime",
        )
    is_same = golden.get("sha256") == digest_of(file)
    return {
        "command": "export",
        "check": path,
        "num_images": len(entries),
        "max_rel_difference": largest,
        "tolerance": golden["tolerance"],
        "same_file": is_same,
        "made_by": golden.get("made_by"),
        "elapsed_s": time.perf_counter() - began_at,
        "notes": [] if is_same else ["the file is not byte for byte the one that was exported"],
    }


def check_as_text(result: dict[str, Any]) -> str:
    """Return the result of a check for people."""
    difference = f"{result['max_rel_difference']:.2g} of the largest output; allowed {result['tolerance']:g}"
    rows = [
        ("checked", Verbatim(result["check"])),
        ("same answers", f"on {count_of(result['num_images'], 'image')}"),
        ("difference", difference),
        *(("note", note) for note in result["notes"]),
    ]
    return pairs(rows)


def _answers(network: OnnxNetwork, image_HWC: np.ndarray, file: Path) -> np.ndarray:
    try:
        return network.answers(torch.from_numpy(image_HWC.copy())[None])[0].double().numpy()
    except Exception as error:  # onnxruntime's exceptions have no common type
        raise CheckFailed(
            f"it does not take the images of its golden file: {reason_of(error)}",
            where=str(file),
            fix="export it again",
        ) from error


def _read(path: Path) -> tuple[dict[str, Any], list[tuple[str, np.ndarray, np.ndarray, np.ndarray]]]:
    """Return a golden file, and of each image its name, pixels, the numbers of outputs, and these."""
    if not path.is_file():
        raise DataError(
            f"there is no {path.name} beside the file",
            where=str(path.parent),
            fix="copy it together with the .onnx file, or export again",
        )
    try:
        golden = json.loads(read_regular(path, most=MOST_BYTES))
        tolerance, entries = golden["tolerance"], []
        if not isinstance(tolerance, int | float) or not 0 < tolerance < 1:
            raise ValueError(f"its tolerance is {tolerance!r:.40}")
        for entry in golden["images"]:
            kept = np.array([int(key) for key in entry["outputs"]])
            expected = np.array([float(value) for value in entry["outputs"].values()])
            if not len(kept) or kept.min() < 0 or not np.isfinite(expected).all():
                raise ValueError("outputs are missing, or not finite")
            png = base64.b64decode(entry["png"], validate=True)
            image_HWC = decode(png, where=lambda _: path.name, row=0)
            entries.append((str(entry["image"]), image_HWC, kept, expected))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from error
    if not entries:
        raise _damaged(path, "it has no images")
    return golden, entries


def _damaged(path: Path, reason: str) -> DataError:
    return DataError(f"{path.name} is damaged: {reason[:200]}", where=str(path), fix="export again")


def _shrunk(image_HWC: np.ndarray) -> np.ndarray:
    image = Image.fromarray(image_HWC)
    image.thumbnail((MOST_SIDE, MOST_SIDE))
    return np.asarray(image)


def _as_png(image_HWC: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image_HWC).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
