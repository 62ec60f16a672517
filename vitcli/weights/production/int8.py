"""ONNX in 8 bits, for onnxruntime.

Linear layers multiply in 8 bits: the weights have a scale for each output, the input one scale, the range
that calibration has seen. What such a layer returns, attention and all else stays float32. Scales that
follow each batch (dynamic quantization) would make the answer for an image depend on the others of its batch.
Convolutions and the head compute in float32, but their weights are stored in 8 bits, as all are in
"int8-weights".

Weights of a product in 8 bits go from -63 to 63: processors with AVX2 or AVX-512 but without VNNI add two
products in 16 bits, which larger ones overflow.

Two things keep the accuracy, both by the calibration images:

smoothing   divides the K channels of an input, and multiplies the rows of the weights, by
                s = max |x| ** a / max |w| ** (1 - a)
            so that one large channel does not take the precision of all others (SmoothQuant, arXiv
            2211.10438, equation 4). A layer norm takes s into its weights; else it costs one product.
fallback    leaves layers in float32, first those that lose the most accuracy for their number of products,
            until the outputs agree with those of float32.

I images; K inputs and N outputs of a layer.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor

from vitcli.weights.production.session import OnnxSession

STRENGTHS = (0.5, 0.65, 0.8)  # `a`
WORTH_A_PRODUCT = 0.5  # part of the noise that smoothing leaves at most where it costs a product
MOST_LOSS = 0.01  # of the outputs' variance over images, at which no layer falls back
NUM_CANDIDATES = 8  # layers that may fall back
WORTH_ITS_COST = 2.0  # times the mean loss per product
NUM_ROWS = 32  # of an image, in the median
JUDGE_EVERY = 4  # of the calibration images, on which outputs are compared
MOST_OF_PRODUCTS, MOST_STORED = 63, 127  # of weights in 8 bits: 2 * 255 * 63 is below 2 ** 15


@dataclass(frozen=True)
class Linear:
    """Layers with the same input, such as queries, keys and values.

    Attributes:
        name: as the network calls them, such as "blocks.7.mlp.fc2", if biases tell; unique.
        weights: names of theirs in the graph; weights_KN has them side by side.
        norm: the layer norm that gives the input to them alone, if one does.
    """

    name: str
    input: str
    weights: tuple[str, ...]
    weights_KN: np.ndarray
    norm: Any


@dataclass(frozen=True)
class Activations:
    """What images show of an input: the range of each channel, its median square, and the rows of an image.

    The mean would be that of the few rows whose values are a hundred times those of all others.
    """

    low_K: np.ndarray
    high_K: np.ndarray
    squares_K: np.ndarray
    num_rows: int


@dataclass(frozen=True)
class Rounding:
    """How an input is rounded: divided by smoothing_K, in 255 steps from low to high.

    Attributes:
        noise: variance of the error of an output row, as a fraction of its mean square, of a typical row.
    """

    low: float
    high: float
    smoothing_K: np.ndarray
    noise: float


def with_quantized_weights(path: Path) -> Any:
    """Return an ONNX file, whose weights may be beside it, as an onnx.ModelProto with weights in 8 bits."""
    return _rewritten(path, [], {})


def quantized(path: Path, images: Iterable[Tensor]) -> tuple[Any, tuple[str, ...]]:
    """Return an ONNX file as an onnx.ModelProto in int8, and the names of the layers that stay float32.

    Args:
        images: uint8 (1, H, W, 3), for ranges and for judging.
    """
    linears = linears_of(path)
    activations, judged, exact_IN = _calibrated(path, linears, images)
    roundings = {each.name: rounding_of(each, activations[each.name]) for each in linears}

    def loss_without(names: set[str]) -> float:
        proto = _rewritten(path, linears, {k: v for k, v in roundings.items() if k not in names})
        session = _session(proto, path)
        outputs = [session.run([proto.graph.output[0].name], {"images": image})[0] for image in judged]
        return loss(np.concatenate(outputs), exact_IN)

    num_products = {each.name: activations[each.name].num_rows * each.weights_KN.size for each in linears}
    fp32 = fallback(roundings, num_products, loss_without)
    kept = {name: rounding for name, rounding in roundings.items() if name not in fp32}
    return _rewritten(path, linears, kept), fp32


def fallback(
    roundings: dict[str, Rounding],
    num_products: dict[str, int],
    loss_without: Callable[[set[str]], float],
) -> tuple[str, ...]:
    """Return the layers that go back to float32, in the order in which they do.

    Of those with the most noise, first the one whose loss, measured alone, is largest for its cost.

    Args:
        num_products: of numbers, of each layer on an image: its relative cost in float32.
        loss_without: of the outputs, once these layers are float32.
    """
    fp32: list[str] = []
    now = loss_without(set())
    if roundings and now > MOST_LOSS:
        candidates = sorted(roundings, key=lambda name: -roundings[name].noise)[:NUM_CANDIDATES]
        gains = {name: (now - loss_without({name})) / num_products[name] for name in candidates}
        least = WORTH_ITS_COST * now / sum(num_products.values())
        for name in sorted(gains, key=lambda name: -gains[name]):
            if now <= MOST_LOSS or gains[name] < least:
                break
            fp32.append(name)
            now = loss_without({*fp32})
    return tuple(fp32)


def loss(outputs_IN: np.ndarray, exact_IN: np.ndarray) -> float:
    """Return the squared error as a fraction of the outputs' variance over images, of one image of all."""
    spread_IN = exact_IN - (exact_IN.mean(axis=0) if len(exact_IN) > 1 else 0)
    return float(np.sum((outputs_IN - exact_IN) ** 2) / max(np.sum(spread_IN**2), 1e-30))


def rounding_of(linear: Linear, activations: Activations) -> Rounding:
    """Return how the input of layers is rounded, smoothed if that leaves less noise."""
    most_K, weights_KN = np.maximum(-activations.low_K, activations.high_K), linear.weights_KN
    largest_K, signal_K = np.abs(weights_KN).max(axis=1), (weights_KN**2).sum(axis=1) * activations.squares_K

    def rounded(strength: float | None) -> Rounding:
        s_K = np.ones_like(most_K)
        if strength is not None:
            s_K = np.maximum(most_K, 1e-5) ** strength / np.maximum(largest_K, 1e-5) ** (1 - strength)
        low, high = min((activations.low_K / s_K).min(), 0.0), max((activations.high_K / s_K).max(), 1e-6)
        # Rounding to steps leaves a variance of a twelfth of their square
        smoothed_KN = weights_KN * s_K[:, None]
        steps_N = np.abs(smoothed_KN).max(axis=0) / MOST_OF_PRODUCTS
        noise = (activations.squares_K / s_K**2).sum() * (steps_N**2).sum() / 12
        noise += ((high - low) / 255) ** 2 / 12 * (smoothed_KN**2).sum()
        return Rounding(float(low), float(high), s_K, float(noise / max(signal_K.sum(), 1e-30)))

    plain, smoothed = rounded(None), min(map(rounded, STRENGTHS), key=lambda each: each.noise)
    most = plain.noise if linear.norm is not None else WORTH_A_PRODUCT * plain.noise
    return smoothed if smoothed.noise < most else plain


def linears_of(path: Path) -> list[Linear]:
    """Return the layers of an ONNX file whose products can be taken in 8 bits, in its order."""
    graph = onnx.load(path, load_external_data=False).graph
    constants = _constants(graph)
    uses = Counter(name for node in graph.node for name in node.input)
    products: dict[str, list[Any]] = {}
    for node in graph.node:
        constant = constants.get(node.input[1]) if node.op_type == "MatMul" else None
        if constant is not None and len(constant.dims) == 2 and uses[constant.name] == 1:
            products.setdefault(node.input[0], []).append(node)
    norms = {node.output[0]: node for node in graph.node if node.op_type == "LayerNormalization"}
    linears = []
    for input, nodes in products.items():
        norm = norms.get(input)
        if norm is not None:
            is_plain = len(norm.input) == 3 and all(name in constants for name in norm.input[1:])
            norm = norm if is_plain and {uses[name] for name in norm.input[1:]} == {1} else None
        arrays = [_array(constants[node.input[1]], path) for node in nodes]
        linears.append(
            Linear(
                name=", ".join(_name_of(node, graph, uses) for node in nodes),
                input=input,
                weights=tuple(node.input[1] for node in nodes),
                weights_KN=np.concatenate(arrays, axis=1),
                norm=norm if uses[input] == len(nodes) else None,
            )
        )
    return linears


def _name_of(product: Any, graph: Any, uses: Counter[str]) -> str:
    """Return what the network calls a layer if a bias of its own tells, else the name of the weights."""
    for node in graph.node:
        if node.op_type == "Add" and product.output[0] in node.input:
            for name in node.input:
                if uses[name] == 1 and name.endswith(".bias"):
                    return name.removeprefix("network.").removesuffix(".bias")
    return product.input[1]


def _calibrated(
    path: Path, linears: list[Linear], images: Iterable[Tensor]
) -> tuple[dict[str, Activations], list[np.ndarray], np.ndarray]:
    """Return what images show of each input, images to compare on, and the outputs of the file on these."""
    proto = onnx.load(path, load_external_data=False)
    names = [proto.graph.output[0].name, *(each.input for each in linears)]
    proto.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names[1:])
    session, judged, outputs = _session(proto, path), [], []
    shown: dict[str, list[np.ndarray]] = {each.name: [] for each in linears}
    for number, image_1HWC in enumerate(images):
        output_1N, *inputs = session.run(names, {"images": image_1HWC.numpy()})
        if number % JUDGE_EVERY == 0:
            judged.append(image_1HWC.numpy())
            outputs.append(output_1N)
        for each, values in zip(linears, inputs, strict=True):
            rows_K = values.reshape(-1, values.shape[-1])
            some_K = rows_K[:: max(1, len(rows_K) // NUM_ROWS)]
            median_K = np.median(some_K**2, axis=0)
            shown[each.name].append(np.stack([rows_K.min(axis=0), rows_K.max(axis=0), median_K]))
    activations = {}
    for each, values in zip(linears, inputs, strict=True):  # of the last image, which has as many rows as any
        low_IK, high_IK, squares_IK = np.stack(shown[each.name], axis=1)
        low_K, high_K, squares_K = low_IK.min(axis=0), high_IK.max(axis=0), squares_IK.mean(axis=0)
        activations[each.name] = Activations(low_K, high_K, squares_K, values.size // values.shape[-1])
    return activations, judged, np.concatenate(outputs)


def _session(proto: Any, path: Path) -> Any:
    """Return a graph opened by onnxruntime; weights may be beside the file that it comes from."""
    probe = path.with_name(f"{path.stem}.probe.onnx")
    try:
        onnx.save(proto, probe)
        return OnnxSession(probe, num_threads=torch.get_num_threads()).session
    finally:
        probe.unlink(missing_ok=True)


def _rewritten(path: Path, linears: Sequence[Linear], roundings: dict[str, Rounding]) -> Any:
    """Return an ONNX file with these roundings; of layers that are not linears the weights alone."""
    proto = onnx.load(path, load_external_data=False)
    graph, constants = proto.graph, _constants(proto.graph)
    axes = _stored_axes(graph, constants)
    before: dict[str, list[Any]] = {}  # nodes, by the weights whose product they come before
    inputs: dict[str, str] = {}  # of products, by their weights
    for each in linears:
        rounding = roundings.get(each.name)
        for name in each.weights:
            axis = axes.pop(name)
            if rounding is not None:
                array = _array(constants[name], path) * rounding.smoothing_K[:, None]
                before[name] = _stored(graph, constants[name], array, axis, is_multiplied=True)
        if rounding is not None:
            nodes, rounded = _input_nodes(graph, each, rounding, constants, path)
            before[each.weights[0]] += nodes
            inputs |= dict.fromkeys(each.weights, rounded)
    for name, axis in axes.items():
        array = _array(constants[name], path)
        before[name] = _stored(graph, constants[name], array, axis, is_multiplied=False)
    nodes = []
    for node in graph.node:
        weights = node.input[1] if len(node.input) > 1 else ""
        nodes += [each for name in node.input for each in before.pop(name, ())] + [node]
        if node.op_type == "MatMul" and weights in inputs:
            node.input[0] = inputs[weights]
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.external_data_helper.load_external_data_for_model(proto, str(path.parent))
    return proto


def _input_nodes(
    graph: Any, linear: Linear, rounding: Rounding, constants: dict[str, Any], path: Path
) -> tuple[list[Any], str]:
    """Return nodes that smooth and round an input, and what the last of them gives."""
    nodes, name, s_K = [], linear.input, rounding.smoothing_K
    if linear.norm is not None:
        for constant in (constants[each] for each in linear.norm.input[1:]):
            array = (_array(constant, path) / s_K).astype(np.float32)
            constant.CopyFrom(numpy_helper.from_array(array, constant.name))
    elif np.ptp(s_K):
        graph.initializer.append(numpy_helper.from_array((1 / s_K).astype(np.float32), f"{name}_smoothing"))
        nodes.append(helper.make_node("Mul", [name, f"{name}_smoothing"], [f"{name}_smooth"]))
        name = f"{name}_smooth"
    step = (rounding.high - rounding.low) / 255
    zero = np.uint8(round(-rounding.low / step))
    for kind, value in (("scale", np.float32(step)), ("zero", zero)):
        graph.initializer.append(numpy_helper.from_array(np.asarray(value), f"{name}_{kind}"))
    places = [f"{name}_scale", f"{name}_zero"]
    nodes.append(helper.make_node("QuantizeLinear", [name, *places], [f"{name}_8_bits"]))
    nodes.append(helper.make_node("DequantizeLinear", [f"{name}_8_bits", *places], [f"{name}_rounded"]))
    return nodes, f"{name}_rounded"


def _stored_axes(graph: Any, constants: dict[str, Any]) -> dict[str, int]:
    """Return the axis of the outputs of all weights of layers."""
    axes = {}
    for node in graph.node:
        if node.op_type in ("MatMul", "Gemm", "Conv") and node.input[1] in constants:
            constant = constants[node.input[1]]
            is_transposed = any(each.name == "transB" and each.i for each in node.attribute)
            if len(constant.dims) > 1:
                axes[constant.name] = 0 if node.op_type == "Conv" or is_transposed else len(constant.dims) - 1
        # Those of a convolution that is standardised
        elif node.op_type == "Reshape" and len(getattr(constants.get(node.input[0]), "dims", ())) == 4:
            axes[node.input[0]] = 0
    return axes


def _stored(graph: Any, constant: Any, array: np.ndarray, axis: int, *, is_multiplied: bool) -> list[Any]:
    """Store weights in 8 bits under another name, and return the nodes that give them under their own.

    Args:
        is_multiplied: in 8 bits.
    """
    most = MOST_OF_PRODUCTS if is_multiplied else MOST_STORED
    others = tuple(each for each in range(array.ndim) if each != axis)
    steps = np.maximum(np.abs(array).max(axis=others, keepdims=True) / most, 1e-30)
    name = constant.name
    constant.CopyFrom(
        numpy_helper.from_array(np.rint(array / steps).clip(-most, most).astype(np.int8), f"{name}_8_bits")
    )
    names = [f"{name}_8_bits", f"{name}_steps"]
    steps = (steps.ravel() if is_multiplied else steps).astype(np.float32)
    graph.initializer.append(numpy_helper.from_array(steps, names[1]))
    if is_multiplied:
        return [helper.make_node("DequantizeLinear", names, [name], axis=axis)]
    # Computed when the file is opened; DequantizeLinear at each run, or onnxruntime rounds the input too
    cast = helper.make_node("Cast", names[:1], [f"{name}_whole"], to=onnx.TensorProto.FLOAT)
    return [cast, helper.make_node("Mul", [f"{name}_whole", names[1]], [name])]


def _constants(graph: Any) -> dict[str, Any]:
    return {each.name: each for each in graph.initializer if each.data_type == onnx.TensorProto.FLOAT}


def _array(constant: Any, path: Path) -> np.ndarray:
    return numpy_helper.to_array(constant, base_dir=str(path.parent))
