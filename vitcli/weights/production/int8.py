"""ONNX in 8 bits, by the tools of onnxruntime.

Weights of linear layers and convolutions have 8 bits with a scale for each output, their inputs 8 bits with
one scale, the range that calibration has seen. Everything else stays float32, what such a layer returns too:
requantising it costs a quarter of the speed and 3 points of ImageNet accuracy on ViT-Ti/16. Scales that
follow each batch (dynamic quantisation) would make the answer for an image depend on the others of its batch.
"""

import logging
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
from torch import Tensor

LINEAR = ["MatMul", "Gemm", "Conv"]


def in_8_bits(path: Path, images: Iterable[Tensor]) -> Any:
    """Return an ONNX file as an onnx.ModelProto in int8; the images, uint8 (1, H, W, 3), give the ranges."""
    from onnxruntime import quantization

    remaining = iter(images)

    class Reader(quantization.CalibrationDataReader):
        def get_next(self) -> dict | None:
            image_1HWC = next(remaining, None)
            return None if image_1HWC is None else {"images": image_1HWC.numpy()}

    # It advises fusing operators before; onnxruntime does it when it opens the file.
    with tempfile.TemporaryDirectory() as folder, _warnings_left_out():
        quantized = Path(folder) / "int8.onnx"
        quantization.quantize_static(
            path,
            quantized,
            Reader(),
            quant_format=quantization.QuantFormat.QDQ,
            op_types_to_quantize=LINEAR,
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            extra_options={
                "MatMulConstBOnly": True,  # not those of attention, nor those that resize
                "OpTypesToExcludeOutputQuantization": LINEAR,
                # A range is the mean of those of all images: one outlier costs all others their precision.
                "CalibMovingAverage": True,
            },
        )
        return onnx.load(quantized)


@contextmanager
def _warnings_left_out() -> Iterator[None]:
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)
