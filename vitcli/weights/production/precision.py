"""Networks of ONNX in 16 or 8 bits, by the tools of onnxruntime.

fp16: all but inputs and outputs in float16. int8: weights of linear layers and convolutions in 8 bits with a
scale for each output, their inputs in 8 bits with one scale, the range that calibration has seen. Everything
else stays float32, what such a layer returns too: requantising it costs a quarter of the speed and 3 points
of ImageNet accuracy on ViT-Ti/16. Scales that follow each batch (dynamic quantisation) would make the answer
for an image depend on the others of its batch.
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


def converted(proto: Any, precision: str, calibration: Iterable[Tensor]) -> Any:
    """Return a network (onnx.ModelProto) in a precision; float32 as it is."""
    match precision:
        case "fp16":
            from onnxruntime.transformers.float16 import convert_float_to_float16
            from onnxruntime.transformers.onnx_model import OnnxModel

            sorted_model = OnnxModel(convert_float_to_float16(proto, keep_io_types=True))
            sorted_model.topological_sort()
            return sorted_model.model
        case "int8":
            return _in_8_bits(proto, iter(calibration))
    return proto


def _in_8_bits(proto: Any, batches: Iterator[Tensor]) -> Any:
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):
        def get_next(self) -> dict | None:
            batch_BCHW = next(batches, None)
            return None if batch_BCHW is None else {proto.graph.input[0].name: batch_BCHW.numpy()}

    # It advises fusing operators before; onnxruntime does it when it opens the file.
    with tempfile.TemporaryDirectory() as folder, _warnings_left_out():
        path = Path(folder) / "int8.onnx"
        quantization.quantize_static(
            proto,
            path,
            Reader(),
            quant_format=quantization.QuantFormat.QDQ,
            op_types_to_quantize=LINEAR,
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            extra_options={
                "MatMulConstBOnly": True,
                "OpTypesToExcludeOutputQuantization": LINEAR,
                # A range is the mean of those of batches: one outlier costs all others their precision.
                "CalibMovingAverage": True,
                "CalibMovingAverageConstant": 0.1,
            },
        )
        return onnx.load(path)


@contextmanager
def _warnings_left_out() -> Iterator[None]:
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)
