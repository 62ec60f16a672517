"""What surrounds the network in an ONNX graph: the pixels of `vit predict` before it, probabilities after it.

torch resizes bytes with weights of 16 bits and rounds between the two axes. The graph does the same with
matrix products in float64, which are exact here, so that the pixels are equal bit for bit. Functions marked
`script` are translated to operators of ONNX by onnxscript, and never run in Python.

B images of H rows and W columns, C = 3 channels; N pixels of an axis become M; K classes.
"""

from typing import Any

import onnx.inliner
import onnx.shape_inference
import torch
from onnxscript import DOUBLE, FLOAT, INT64, UINT8, script
from onnxscript import opset20 as op

from vitcli.data.transforms import Preprocessing

TO_DOUBLE, TO_INT, TO_FLOAT = (int(kind.dtype) for kind in (DOUBLE, INT64, FLOAT))
BATCH, HEIGHT, WIDTH, CLASSES = "batch", "height", "width", "classes"  # axes of any length
MOST_BITS = 22  # of a weight below its point


@script(default_opset=op)
def _numbers(count):
    """0, 1, ... below a count, float64."""
    return op.Cast(op.Range(0, count, 1), to=TO_DOUBLE)


@script(default_opset=op)
def _linear(distances):
    return op.Max(1.0 - distances, 0.0 * distances)


@script(default_opset=op)
def _cubic(distances):
    """a = -0.5, with antialias."""
    near = (1.5 * distances - 2.5) * distances * distances + 1.0
    far = ((2.5 - distances / 2.0) * distances - 4.0) * distances + 2.0
    return op.Where(distances <= 1.0, near, op.Where(distances < 2.0, far, 0.0 * distances))


@script(default_opset=op)
def _sharper_cubic(distances):
    """a = -0.75, without antialias."""
    near = (1.25 * distances - 2.25) * distances * distances + 1.0
    far = ((3.75 - 0.75 * distances) * distances - 6.0) * distances + 3.0
    return op.Where(distances <= 1.0, near, op.Where(distances < 2.0, far, 0.0 * distances))


def _antialiased(kernel: Any) -> Any:
    @script(default_opset=op)
    def weights(n, m):
        """Weights (M, N): a kernel as wide as the pixels of the result, cut off at the border."""
        size, new_size = op.Cast(n, to=TO_DOUBLE), op.Cast(m, to=TO_DOUBLE)
        centres_M1 = op.Unsqueeze((_numbers(m) + 0.5) * size / new_size, [1])
        distances_MN = op.Abs(_numbers(n) + 0.5 - centres_M1) / op.Max(size / new_size, op.CastLike(1, size))
        weights_MN = kernel(distances_MN)
        return weights_MN / op.ReduceSum(weights_MN, [1], keepdims=1)

    return weights


@script(default_opset=op)
def _taken(n, first_M1, offset):
    """Which of N pixels (M, N) lies `offset` after the first, or is the one at the border."""
    last = op.Cast(n - 1, to=TO_DOUBLE)
    at_M1 = op.Min(op.Max(first_M1 + offset, 0.0 * first_M1), last)
    return op.Cast(op.Equal(op.Cast(at_M1, to=TO_INT), op.Range(0, n, 1)), to=TO_DOUBLE)


@script(default_opset=op)
def _bilinear(n, m):
    size, new_size = op.Cast(n, to=TO_DOUBLE), op.Cast(m, to=TO_DOUBLE)
    at_M1 = op.Unsqueeze((_numbers(m) + 0.5) * size / new_size - 0.5, [1])
    first_M1 = op.Floor(at_M1)
    rest_M1 = at_M1 - first_M1
    zero = op.CastLike(0, size)
    one = op.CastLike(1, size)
    return _taken(n, first_M1, zero) * _linear(rest_M1) + _taken(n, first_M1, one) * _linear(1.0 - rest_M1)


@script(default_opset=op)
def _bicubic(n, m):
    size, new_size = op.Cast(n, to=TO_DOUBLE), op.Cast(m, to=TO_DOUBLE)
    at_M1 = op.Unsqueeze((_numbers(m) + 0.5) * size / new_size - 0.5, [1])
    first_M1 = op.Floor(at_M1)
    rest_M1 = at_M1 - first_M1
    before = _taken(n, first_M1, op.CastLike(-1, size)) * _sharper_cubic(1.0 + rest_M1)
    inner = _taken(n, first_M1, op.CastLike(0, size)) * _sharper_cubic(rest_M1)
    inner = inner + _taken(n, first_M1, op.CastLike(1, size)) * _sharper_cubic(1.0 - rest_M1)
    return before + inner + _taken(n, first_M1, op.CastLike(2, size)) * _sharper_cubic(2.0 - rest_M1)


WEIGHTS = {
    ("bilinear", True): _antialiased(_linear),
    ("bicubic", True): _antialiased(_cubic),
    ("bilinear", False): _bilinear,
    ("bicubic", False): _bicubic,
}


@script(default_opset=op)
def _of_16_bits(weights_MN):
    """Weights as whole numbers, and the power of two that they are multiplied by."""
    largest = op.ReduceMax(weights_MN, keepdims=0)
    bits = op.Min(op.Floor(op.Log(32767.5 / largest) / op.Log(op.CastLike(2.0, largest))), MOST_BITS)
    scale = op.Pow(op.CastLike(2.0, largest), bits)
    whole_MN = op.Cast(op.Cast(weights_MN * scale + op.Sign(weights_MN) * 0.5, to=TO_INT), to=TO_DOUBLE)
    return whole_MN, scale


@script(default_opset=op)
def _rounded(sums, scale):
    """Bytes, as float64."""
    return op.Min(op.Max(op.Floor(sums / scale + 0.5), 0.0 * sums), op.CastLike(255.0, sums))


@script(default_opset=op)
def _cut(weights_MN, size, crop):
    """The rows of the centre crop; a half is rounded to the even number, as Python does."""
    first = op.Cast(op.Round(op.Cast(size - crop, to=TO_DOUBLE) / 2.0), to=TO_INT)
    return op.Slice(weights_MN, op.Unsqueeze(first, [0]), op.Unsqueeze(first + crop, [0]), [0])


def pixels_graph(preprocessing: Preprocessing, *, of_any_size: bool) -> Any:
    """Return an ONNX model (onnx.ModelProto) from "images", uint8, to normalised "pixels".

    Args:
        of_any_size: all images of a batch have one size, whichever it is, and are resized and cropped;
            otherwise they have the size of the network.
    """
    height, width = preprocessing.image_size
    size_before_crop = _size_before_crop(preprocessing)
    weights = WEIGHTS[preprocessing.interpolation, preprocessing.antialias]
    mean, std = ((torch.tensor(rgb) * 255).tolist() for rgb in (preprocessing.mean, preprocessing.std))

    @script(default_opset=op)
    def normalized(images_BCHW):  # as `to_model_range`
        mean_C11 = op.Unsqueeze(op.Constant(value_floats=mean), [1, 2])
        std_C11 = op.Unsqueeze(op.Constant(value_floats=std), [1, 2])
        return (op.Cast(images_BCHW, to=TO_FLOAT) - mean_C11) / std_C11

    @script(default_opset=op)
    def resized(images: UINT8[BATCH, HEIGHT, WIDTH, 3]) -> FLOAT[BATCH, 3, height, width]:
        rows = op.Squeeze(op.Shape(images, start=1, end=2))
        columns = op.Squeeze(op.Shape(images, start=2, end=3))
        new_rows, new_columns = size_before_crop(rows, columns)
        # Across, then down, each rounded to bytes; what the crop leaves out is not computed.
        images_BCHW = op.Cast(op.Transpose(images, perm=[0, 3, 1, 2]), to=TO_DOUBLE)
        across_MN, scale_across = _of_16_bits(weights(columns, new_columns))
        across_MN = _cut(across_MN, new_columns, width)
        images_BCHW = _rounded(op.MatMul(images_BCHW, op.Transpose(across_MN)), scale_across)
        down_MN, scale_down = _of_16_bits(weights(rows, new_rows))
        images_BCHW = _rounded(op.MatMul(_cut(down_MN, new_rows, height), images_BCHW), scale_down)
        pixels = normalized(images_BCHW)
        return pixels

    @script(default_opset=op)
    def as_they_are(images: UINT8[BATCH, height, width, 3]) -> FLOAT[BATCH, 3, height, width]:
        images_BCHW = op.Transpose(images, perm=[0, 3, 1, 2])
        pixels = op.Reshape(normalized(images_BCHW), op.Constant(value_ints=[-1, 3, height, width]))
        return pixels

    return _inlined(resized if of_any_size else as_they_are, prefix="pixels/")


def outputs_graph(form: Any) -> Any:
    """Return an ONNX model from the outputs of a network to those of a file, see `onnx.ProgramForm`."""
    temperature, mean, std = form.temperature, form.mean, form.std

    @script(default_opset=op)
    def classes(outputs_of_network: FLOAT[BATCH, CLASSES]):
        logits = op.Identity(outputs_of_network)
        probabilities = op.Softmax(logits / temperature, axis=-1)
        return logits, probabilities

    @script(default_opset=op)
    def several(outputs_of_network: FLOAT[BATCH, CLASSES]):
        logits = op.Identity(outputs_of_network)
        probabilities = op.Sigmoid(logits)
        return logits, probabilities

    @script(default_opset=op)
    def number(outputs_of_network: FLOAT[BATCH, CLASSES]):
        logits = op.Identity(outputs_of_network)
        number = logits * std + mean
        return logits, number

    @script(default_opset=op)
    def features(outputs_of_network: FLOAT[BATCH, WIDTH]):
        features = op.Identity(outputs_of_network)
        return features

    functions = {"classes": classes, "several": several, "number": number, "features": features}
    return _inlined(functions[form.kind], prefix="outputs/")


def _inlined(function: Any, *, prefix: str) -> Any:
    """Return a function as a model without functions of its own; names within it begin with the prefix."""
    model = onnx.inliner.inline_local_functions(function.to_model_proto())
    del model.opset_import[1:]  # the domain of the functions
    graph = model.graph
    outer = {value.name for value in (*graph.input, *graph.output)}
    for node in graph.node:
        node.name = prefix + node.name
        for names in (node.input, node.output):
            names[:] = [name if name in outer or not name else prefix + name for name in names]
    del graph.value_info[:]
    return onnx.shape_inference.infer_shapes(model)


def _size_before_crop(preprocessing: Preprocessing) -> Any:
    """Return the function of rows and columns that `Preprocessing` has."""
    height, width = preprocessing.image_size
    whole_height, whole_width = preprocessing.whole_size
    short_side = preprocessing.short_side

    @script(default_opset=op)
    def square(rows, columns):
        return op.Identity(op.Constant(value_int=whole_height)), op.Identity(
            op.Constant(value_int=whole_width)
        )

    @script(default_opset=op)
    def short(rows, columns):
        least = op.Cast(short_side, to=TO_DOUBLE) / op.Cast(op.Min(rows, columns), to=TO_DOUBLE)
        new_rows, new_columns = _scaled(rows, columns, least, height, width)
        return new_rows, new_columns

    @script(default_opset=op)
    def as_it_is(rows, columns):
        least = op.Cast(1, to=TO_DOUBLE)
        new_rows, new_columns = _scaled(rows, columns, least, height, width)
        return new_rows, new_columns

    return {"square": square, "short_side": short, "none": as_it_is}[preprocessing.resize]


@script(default_opset=op)
def _scaled(rows, columns, least_scale, height, width):
    """Both sides times one scale, neither below the crop."""
    high, wide = op.Cast(rows, to=TO_DOUBLE), op.Cast(columns, to=TO_DOUBLE)
    for_height = op.Cast(height, to=TO_DOUBLE) / high
    for_width = op.Cast(width, to=TO_DOUBLE) / wide
    scale = op.Max(for_height, for_width, least_scale)
    new_rows = op.Max(op.Cast(high * scale + 1e-6, to=TO_INT), height)
    new_columns = op.Max(op.Cast(wide * scale + 1e-6, to=TO_INT), width)
    return new_rows, new_columns
