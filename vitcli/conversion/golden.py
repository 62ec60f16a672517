"""Golden files: images with the answers that an .onnx or .pte file gave where it was made.

`vit export --check FILE` repeats them anywhere, with another runtime or on another processor. The
images are in it, as PNG in base64: of those compared on at the export, at most 256 pixels wide and high.
"""

import base64
import binascii
import io
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from vitcli import __version__
from vitcli.conversion.images import evenly
from vitcli.conversion.onnx_process import OnnxProcess
from vitcli.data import loader
from vitcli.data.decoding import decode
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing
from vitcli.errors import CheckFailed, DataError, VitError
from vitcli.io.files import parse_json, read_regular
from vitcli.output.atomic import digest_of_file, write_json
from vitcli.output.text import Verbatim, count_of, pairs
from vitcli.weights.onnx import data_files
from vitcli.weights.production.program import ProgramNetwork
from vitcli.weights.production.session import RUNTIMES

NUM_IMAGES, MOST_SIDE, MOST_OUTPUTS = 20, 256, 100
MOST_BYTES = 100_000_000
OF_FLOAT32_PIXELS = 5e-2  # where a runtime resizes in float32: a pixel in a thousand is the next byte
# Of an output, relative to the largest
TOLERANCES = {"fp32": 1e-4, "fp16": 1e-2, "int8": 5e-2, "int8-weights": 1e-4}


def golden_path(path: Path) -> Path:
    """Return where the golden file of a program is."""
    return path.with_name(f"{path.stem}.golden.json")


def write_golden(path: Path, split: Split, preprocessing: Preprocessing, *, precision: str) -> None:
    """Write the golden file of a program: images evenly spread over a split, and what the file answers."""
    network = ProgramNetwork(path)
    few, entries = evenly(split, NUM_IMAGES), []
    for row in range(len(few)):
        image_HWC = loader.read_example(few, row)[0]
        image_HWC = shrunk(image_HWC) if network.takes_any_size else preprocessing(image_HWC)
        outputs_K = network.answers(torch.from_numpy(image_HWC.copy())[None])[0].double().numpy()
        kept = _kept(outputs_K)
        entries.append(
            {
                "image": few.where_is(row).rpartition("/")[2],
                "png": png_of(image_HWC),
                "outputs": {str(k): float(f"{outputs_K[k]:.7g}") for k in kept.tolist()},
            }
        )
    golden = {
        "file": path.name,
        "sha256": digest_of_file(path).hex(),
        "made_by": f"vitcli {__version__}",
        "output": network.opened.answer_name,
        "tolerance": TOLERANCES[precision],
        "images": entries,
    }
    write_json(golden_path(path), golden)


def _kept(outputs_K: np.ndarray) -> np.ndarray:
    """Return which of many outputs a golden file has, in ascending order: those farthest from 0."""
    return np.sort(np.argsort(-np.abs(outputs_K), kind="stable")[:MOST_OUTPUTS])


def check(path: str, *, runtime: str | None = None) -> dict[str, Any]:
    """Run a program on the images of its golden file, and return how far its answers are from those.

    Args:
        runtime: one of those of the suffix; None means the first.

    Raises:
        CheckFailed: they differ by more than the golden file allows, or name another class.
        DataError: there is no golden file, or it is damaged.
        VitError: another kind of file, or a runtime of other files.
    """
    began_at, file = time.perf_counter(), Path(path)
    runtime = _runtime_of(file, runtime)
    golden, entries = _read(golden_path(file))
    num_bytes = sum(part.stat().st_size for part in (file, *data_files(file)))
    differences, others = [], []
    with OnnxProcess(file, num_bytes=num_bytes, runtime=runtime) as process:
        if golden.get("output") != process.answer_name:
            raise _damaged(golden_path(file), f"it has no {process.answer_name}, which the file gives")
        tolerance = golden["tolerance"]
        if runtime == "openvino" and isinstance(process.input_shape[1], str):
            tolerance = max(tolerance, OF_FLOAT32_PIXELS)
        for entry in entries:
            outputs_K = process.answers(_image_of(entry, golden_path(file), process.input_shape))
            kept, expected = entry.kept, entry.expected
            if kept.max() >= len(outputs_K):
                raise _damaged(
                    golden_path(file), f"it has output {kept.max()}, and the file {len(outputs_K)}"
                )
            differences.append(np.abs(outputs_K[kept] - expected).max() / max(np.abs(expected).max(), 1e-30))
            # A tie that rounding decides is not a change of class
            surplus = outputs_K.max() - outputs_K[kept[expected.argmax()]]
            if golden["output"] == "probabilities" and not surplus <= tolerance:
                others.append(entry.name)
    largest = float(max(differences))
    if others or not largest <= tolerance:
        problem = f"outputs differ by {largest:.2g} of the largest (allowed: {tolerance:g})"
        if others:
            count = f"{count_of(len(others), 'image')} of {len(entries)}"
            problem = f"another class for {count}, the first {others[0]}; {problem}"
        raise CheckFailed(
            problem,
            where=f"{path}, {golden_path(file).name}",
            fix=f"do not use it here: export it again, or update {runtime}",
        )
    is_same = golden.get("sha256") == digest_of_file(file).hex()
    return {
        "command": "export",
        "check": path,
        "runtime": runtime,
        "num_images": len(entries),
        "max_rel_difference": largest,
        "tolerance": tolerance,
        "same_file": is_same,
        "made_by": golden.get("made_by"),
        "elapsed_s": time.perf_counter() - began_at,
        "notes": [] if is_same else ["the file is not byte for byte the one that was exported"],
    }


def _runtime_of(file: Path, runtime: str | None) -> str:
    """Return the runtime of a check, or refuse it."""
    runtimes = RUNTIMES.get(file.suffix, ())
    if not runtimes or not file.is_file():
        problem = f"is not an {' or '.join(RUNTIMES)} file" if file.exists() else "does not exist"
        raise VitError(f"{file} {problem}", where="--check", fix="name a file that vit export has written")
    if runtime not in (None, *runtimes):
        problem = f"{runtime} does not run {file.suffix} files"
        raise VitError(problem, where="--runtime", fix="leave it out")
    return runtime or runtimes[0]


def check_as_text(result: dict[str, Any]) -> str:
    """Return the result of a check for people."""
    difference = f"{result['max_rel_difference']:.2g} of the largest output; allowed {result['tolerance']:g}"
    rows = [
        ("checked", Verbatim(result["check"])),
        ("same outputs", f"on {count_of(result['num_images'], 'image')}, by {result['runtime']}"),
        ("difference", difference),
        *(("note", note) for note in result["notes"]),
    ]
    return pairs(rows)


class _Entry(NamedTuple):
    """An image of a golden file: its name, the image as PNG, the numbers of outputs, and these."""

    name: str
    png: bytes
    kept: np.ndarray
    expected: np.ndarray


def _read(path: Path) -> tuple[dict[str, Any], list[_Entry]]:
    """Return a golden file, and its images."""
    if not path.is_file():
        raise DataError(
            f"there is no {path.name} beside the file",
            where=str(path.parent),
            fix="copy it together with the file, or export again",
        )
    try:
        golden = parse_json(read_regular(path, most=MOST_BYTES))
        tolerance, entries = golden["tolerance"], []
        if not isinstance(tolerance, int | float) or not 0 < tolerance < 1:
            raise ValueError(f"its tolerance is {tolerance!r:.40}")
        if len(golden["images"]) > NUM_IMAGES:
            raise ValueError(f"it has {len(golden['images']):,} images, and {NUM_IMAGES} at most are written")
        for entry in golden["images"]:
            kept = np.array([int(key) for key in entry["outputs"]])
            expected = np.array([float(value) for value in entry["outputs"].values()])
            if not len(kept) or kept.min() < 0 or not np.isfinite(expected).all():
                raise ValueError("outputs are missing, or not finite")
            png = base64.b64decode(entry["png"], validate=True)
            entries.append(_Entry(str(entry["image"]), png, kept, expected))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from error
    if not entries:
        raise _damaged(path, "it has no images")
    return golden, entries


def _image_of(entry: _Entry, path: Path, input_shape: tuple) -> np.ndarray:
    """Return the pixels of an image, which are decoded only if it is as small as those that are written."""
    try:
        with Image.open(io.BytesIO(entry.png), formats=("PNG",)) as image:
            width, height = image.size
    except Exception as error:  # decoders raise seven families of exceptions
        raise _damaged(path, f"its image {entry.name!r} is not a PNG") from error
    sides = [side if isinstance(side, int) else MOST_SIDE for side in input_shape[1:3]]
    if height > sides[0] or width > sides[1]:
        allowed = f"and {sides[1]} x {sides[0]} at most are written"
        raise _damaged(path, f"its image {entry.name!r} has {width} x {height} pixels, {allowed}")
    try:
        return decode(entry.png, where=lambda _: path.name, row=0)
    except DataError as error:
        raise _damaged(path, f"its image {entry.name!r}: {error.message}") from error


def _damaged(path: Path, reason: str) -> DataError:
    return DataError(f"{path.name} is damaged: {reason[:200]}", where=str(path), fix="export again")


def png_of(image_HWC: np.ndarray) -> str:
    """Return an image as a golden file has it: a PNG in base64."""
    png = io.BytesIO()
    Image.fromarray(image_HWC).save(png, "PNG", optimize=True)
    return base64.b64encode(png.getvalue()).decode()


def shrunk(image_HWC: np.ndarray) -> np.ndarray:
    """Return an image as the golden file of a network of any image size has it."""
    image = Image.fromarray(image_HWC)
    image.thumbnail((MOST_SIDE, MOST_SIDE))
    return np.asarray(image)
