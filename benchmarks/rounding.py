"""What ONNX files in 8 bits lose and win: top-1 with the paired bound of `vit export --gate`, speed, size.

    vit export CKPT fp32.onnx --input pixels        (and --precision fp16, saved as fp16.onnx beside it)
    python benchmarks/rounding.py FOLDER --ckpt CKPT --calibrate DATA:SPLIT --score DATA:SPLIT [...]

FOLDER holds fp32.onnx; any other .onnx there is scored too, such as those of other quantisers. These are made
if they are missing:

    onnxruntime    onnxruntime's quantize_static, as `vit export` called it before
    plain          8 bits of inputs and -63..63 of weights; no smoothing, no layer in fp32
    overflow       the whole with weights of -127..127, which overflow without VNNI
    smoothed       with smoothing, no layer in fp32
    int8           the whole: `--precision int8`
    int8-weights   `--precision int8-weights`

Speed: the median of runs in turn with fp32.onnx, on the threads of torch; other programs change it.
"""

import argparse
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import onnx
import torch

from vitcli.conversion.comparison import highest_drop, medians
from vitcli.data import loader
from vitcli.data.dataset import DataSet
from vitcli.data.transforms import Preprocessing
from vitcli.evaluation.setup import preprocessing_for
from vitcli.recipe import load_for_inference
from vitcli.weights.io import read_weights
from vitcli.weights.production import int8
from vitcli.weights.production.session import OnnxSession

NUM_CALIBRATED = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ckpt", required=True)
    parser.add_argument("--calibrate", required=True)
    parser.add_argument("--score", nargs="+", required=True)
    options = parser.parse_args()
    weights = read_weights(options.ckpt)
    named = {"model.ckpt": options.ckpt, "data.dataset": options.calibrate.rpartition(":")[0]}
    recipe = load_for_inference(None, (), named, command="evaluate")
    preprocessing = replace(preprocessing_for(weights, recipe)[0], decode="exact")
    calibration, _ = pixels(options.calibrate, preprocessing, most=NUM_CALIBRATED)
    make(options.folder, calibration)
    scored = {name: pixels(name, preprocessing) for name in options.score}
    images = np.concatenate([images for images, _ in scored.values()])
    labels = np.concatenate([labels for _, labels in scored.values()])
    fp32 = OnnxSession(options.folder / "fp32.onnx", num_threads=torch.get_num_threads())
    is_right = right(fp32, images, labels)
    print(f"{len(labels)} images, fp32 {is_right.mean():.2%}")
    for path in sorted(options.folder.glob("*.onnx")):
        session = OnnxSession(path, num_threads=torch.get_num_threads())
        now = right(session, images, labels)
        lost, gained = int((is_right & ~now).sum()), int((now & ~is_right).sum())
        drops = f"lost {lost}, gained {gained}, drop {(lost - gained) / len(now):.2%}"
        bound = f"at most {highest_drop(lost, gained, len(now)):.2%}"
        ratios = [laps(fp32, session, images[:batch]) for batch in (1, 8)]
        times = ", ".join(f"{ms:.1f} ms ({ratio:.2f} times as fast)" for ms, ratio in ratios)
        print(f"{path.stem}: {now.mean():.2%}, {drops}, {bound}; {times}; {path.stat().st_size / 1e6:.1f} MB")


def pixels(name: str, preprocessing: Preprocessing, most: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels and labels of a split, "DATA:SPLIT", or of its first images."""
    split = DataSet(name.rpartition(":")[0]).open(name.rpartition(":")[2])
    count = min(most or len(split), len(split))
    images = [preprocessing(loader.read_example(split, row)[0]) for row in range(count)]
    return np.stack(images), split.read_labels()[:count]


def right(session: OnnxSession, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    batches = [images[start : start + 8] for start in range(0, len(images), 8)]
    return np.concatenate([session.run("logits", batch) for batch in batches]).argmax(1) == labels


def laps(fp32: OnnxSession, session: OnnxSession, images: np.ndarray) -> tuple[float, float]:
    """Return milliseconds per image, and fp32's as a multiple of them."""
    sides = {name: lambda _, each=each: each.run("logits", images)
             for name, each in (("fp32", fp32), ("file", session))}  # fmt: skip
    seconds = medians(sides, torch.empty(0), enough_s=1.0)
    return 1000 * seconds["file"] / len(images), seconds["fp32"] / seconds["file"]


def make(folder: Path, calibration: np.ndarray) -> None:
    """Write the files that are missing."""
    source, images = folder / "fp32.onnx", torch.from_numpy(calibration).split(1)
    if not (folder / "onnxruntime.onnx").exists():
        by_onnxruntime(source, folder / "onnxruntime.onnx", calibration)
    changes = {
        "plain": {"fallback": lambda *_: (), "rounding_of": plain},
        "overflow": {"MOST_OF_PRODUCTS": 127},
        "smoothed": {"fallback": lambda *_: ()},
        "int8": {},
    }
    for name, change in changes.items():
        if not (folder / f"{name}.onnx").exists():
            with mock.patch.multiple(int8, **change) if change else nullcontext():
                began_at = time.perf_counter()
                proto, fp32 = int8.quantized(source, images)
                onnx.save(proto, folder / f"{name}.onnx")
                print(f"{name}: {time.perf_counter() - began_at:.0f} s, in fp32: {', '.join(fp32) or 'none'}")
    if not (folder / "int8-weights.onnx").exists():
        onnx.save(int8.with_quantized_weights(source), folder / "int8-weights.onnx")


rounding_of = int8.rounding_of


def plain(linear: int8.Linear, activations: int8.Activations) -> int8.Rounding:
    with mock.patch.object(int8, "WORTH_A_PRODUCT", 0.0):
        return rounding_of(replace(linear, norm=None), activations)


def by_onnxruntime(source: Path, path: Path, calibration: np.ndarray) -> None:
    from onnxruntime import quantization

    remaining = iter(calibration)

    class Reader(quantization.CalibrationDataReader):
        def get_next(self) -> dict | None:
            image_HWC = next(remaining, None)
            return None if image_HWC is None else {"images": image_HWC[None]}

    linear = ["MatMul", "Gemm", "Conv"]
    quantization.quantize_static(
        source,
        path,
        Reader(),
        quant_format=quantization.QuantFormat.QDQ,
        op_types_to_quantize=linear,
        per_channel=True,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        extra_options={
            "MatMulConstBOnly": True,
            "OpTypesToExcludeOutputQuantization": linear,
            "CalibMovingAverage": True,
        },
    )


if __name__ == "__main__":
    main()
