"""ONNX files: a network out through torch's exporter, and back in through onnxruntime.

A file takes "images" (B, 3, H, W), float32 and already normalised, B of any size, and gives "logits" (B, K), or
(B, D) for a network without a head. Letters: B batch, K classes, D hidden width.
"""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitcli.errors import MachineError, VitError

MAX_BYTES_IN_ONE_FILE = 1_800_000_000  # of weights; protobuf, and so an .onnx file, ends at 2 GB


def write_onnx(path: Path, model: nn.Module, image_size: tuple[int, int], metadata: dict[str, str]) -> None:
    """Write the network as it computes in evaluation mode.

    Weights that are too large for one file lie beside it in `path` + ".data"; both may move, but only together.

    Args:
        model: on the CPU, in evaluation mode.
        image_size: height and width in pixels; those of the file are fixed.
        metadata: stored as the file's metadata_props.

    Raises:
        MachineError: a package that this needs is not installed.
        VitError: torch's exporter cannot express the network.
    """
    onnx = _imported("onnx")
    _imported("onnxscript")
    num_bytes = sum(tensor.nbytes for tensor in model.state_dict().values())
    images_BCHW = torch.zeros(2, 3, *image_size)  # two: of a batch of one the exporter makes a constant
    try:
        # The fused attention's output has strides that the exporter's decompositions trip over if it has a bias.
        with warnings.catch_warnings(action="ignore"), sdpa_kernel(SDPBackend.MATH):
            program = torch.onnx.export(
                model,
                (images_BCHW,),
                dynamo=True,
                verbose=False,
                input_names=["images"],
                output_names=["logits"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
            )
    except torch.onnx.OnnxExporterError as error:
        raise VitError(
            f"torch cannot export this network to ONNX: {_first_line(error.__cause__ or error)}",
            where=f"torch {torch.__version__}",
            fix="export to safetensors or timm, or try another version of torch and onnxscript",
        ) from error
    program.save(path, external_data=num_bytes > MAX_BYTES_IN_ONE_FILE)
    proto = onnx.load(path, load_external_data=False)
    _drop_traces(proto)
    _keep_padding_apart(proto, onnx)
    onnx.helper.set_model_props(proto, metadata)
    onnx.save(proto, path)


class OnnxNetwork(nn.Module):
    """The network of an ONNX file, on the CPU by onnxruntime; (B, 3, H, W) to (B, K), float32.

    Raises:
        MachineError: onnxruntime is not installed.
    """

    def __init__(self, path: Path):
        super().__init__()
        onnxruntime = _imported("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # it warns of each operator that it does not compute beforehand
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def forward(self, images_BCHW: Tensor) -> Tensor:
        (logits_BK,) = self.session.run(["logits"], {"images": images_BCHW.numpy()})
        return torch.from_numpy(logits_BK)


def _drop_traces(proto: Any) -> None:
    """Leave out what the exporter notes about its own run, such as paths on this machine."""
    for part in (proto.graph, *proto.graph.node, *proto.graph.value_info, *proto.graph.initializer):
        del part.metadata_props[:]


def _keep_padding_apart(proto: Any, onnx: Any) -> None:
    """Name the axes of each Pad, which changes nothing but keeps onnxruntime from fusing it.

    BiT's stem pads with zeros before its max pooling. onnxruntime moves them into the pooling, where padding
    means minus infinity, and gives other logits (Pad_Fusion, onnxruntime pull request 18136; seen in 1.20 and
    1.31). It leaves a Pad alone that names its axes. To go once onnxruntime looks at what it fuses.
    """
    for node in proto.graph.node:
        if node.op_type == "Pad" and len(node.input) == 3:
            axes = onnx.numpy_helper.from_array(torch.arange(4).numpy(), name=f"{node.name}_axes")
            proto.graph.initializer.append(axes)
            node.input.append(axes.name)


def _imported(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MachineError(
            f"{name} is not installed, or not usable here: {_first_line(error)}",
            where="this Python",
            fix="pip install 'vitcli[export]'",
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
