"""ONNX files: written by torch's exporter, run by onnxruntime.

The input is "images" (B, 3, H, W), float32 and normalised, for any B; the output is "logits" (B, K), or
features (B, D) without a head. Letters: B batch, K classes, D hidden width.
"""

import hashlib
import re
import warnings
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitcli.errors import CheckFailed, MachineError, VitError, reason_of

MAX_BYTES_IN_ONE_FILE = 1_800_000_000  # of weights; protobuf, and so an .onnx file, is limited to 2 GB


def check_installed() -> None:
    """Raise a MachineError with advice if a package for ONNX files is missing."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        try:
            import_module(name)
        except ImportError as error:
            message = f"ONNX files need {name}, which cannot be imported: {reason_of(error)}"
            raise MachineError(message, where="this Python", fix="pip install 'vitcli[export]'") from error


def write_onnx(path: Path, model: nn.Module, image_size: tuple[int, int], metadata: dict[str, str]) -> None:
    """Write a network as an ONNX file.

    Weights too large for one file are written beside it, to one of `data_files`; move both files together.

    Args:
        model: on the CPU, in evaluation mode.
        image_size: height and width in pixels, the only ones that the file accepts.
        metadata: becomes the file's metadata_props.

    Raises:
        MachineError: a required package is not installed.
        VitError: torch's exporter does not support the network.
    """
    check_installed()
    import onnx

    program = _exported(model, image_size)
    num_bytes = sum(tensor.nbytes for tensor in model.state_dict().values())
    program.save(path, external_data=num_bytes > MAX_BYTES_IN_ONE_FILE)
    proto = onnx.load(path, load_external_data=False)
    _drop_traces(proto.graph)
    _keep_padding_apart(proto.graph)
    _name_data_by_contents(path, proto.graph)
    onnx.helper.set_model_props(proto, metadata)
    onnx.save(proto, path)


def data_files(path: Path) -> list[Path]:
    """Return the files beside an .onnx file with its weights, an earlier one's, or named as torch does it."""
    if path.suffix != ".onnx":
        return []
    name = re.compile(rf"{re.escape(path.name)}(\.[0-9a-f]{{16}})?\.data")
    return sorted(file for file in path.parent.glob("*.data") if name.fullmatch(file.name))


class OnnxNetwork(nn.Module):
    """Network of an ONNX file, run by onnxruntime on the CPU: normalised images_BCHW to float32 logits_BK.

    Raises:
        MachineError: a required package is not installed.
        CheckFailed: onnxruntime does not accept the file.
    """

    def __init__(self, path: Path):
        super().__init__()
        check_installed()
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # no warning for each operator that cannot be folded
        try:
            self.session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's exceptions have no common type
            raise CheckFailed(
                f"onnxruntime {onnxruntime.__version__} does not accept the file: {reason_of(error)}",
                where=str(path),
                fix="update onnxruntime, or export to safetensors",
            ) from error

    def forward(self, images_BCHW: Tensor) -> Tensor:
        (logits_BK,) = self.session.run(["logits"], {"images": images_BCHW.numpy()})
        return torch.from_numpy(logits_BK)


def _exported(model: nn.Module, image_size: tuple[int, int]) -> torch.onnx.ONNXProgram:
    images_BCHW = torch.zeros(2, 3, *image_size)  # two: the exporter treats a batch of one as a constant
    try:
        # With a bias, fused attention leaves strides that the exporter cannot handle (torch 2.15).
        with (
            sdpa_kernel(SDPBackend.MATH),
            warnings.catch_warnings(action="ignore"),
            redirect_stdout(StringIO()),
        ):
            return torch.onnx.export(
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
            f"torch cannot export this network to ONNX: {reason_of(error.__cause__ or error)}",
            where=f"torch {torch.__version__}",
            fix="export to safetensors or timm, or try other versions of torch and onnxscript",
        ) from error


def _name_data_by_contents(path: Path, graph: Any) -> None:
    """Rename the weights beside an ONNX file, so that those of another export cannot take their place."""
    data = path.with_name(f"{path.name}.data")
    if not data.exists():
        return
    with data.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    named = data.rename(path.with_name(f"{path.name}.{digest}.data"))
    for entry in (entry for tensor in graph.initializer for entry in tensor.external_data):
        if entry.key == "location":
            entry.value = named.name


def _drop_traces(graph: Any) -> None:
    """Delete the exporter's notes on its own run, such as local paths."""
    for part in (graph, *graph.node, *graph.value_info, *graph.initializer, *graph.input, *graph.output):
        del part.metadata_props[:]


def _keep_padding_apart(graph: Any) -> None:
    """Name the axes of each Pad before a max pooling, so that onnxruntime does not merge the two.

    The stem of BiT pads with zeros. onnxruntime 1.20 to 1.31 merge this padding into the pooling, where it
    is minus infinity, and give other logits (its pull request 18136). Remove this once it no longer does.
    """
    from onnx import numpy_helper

    pooled = {node.input[0] for node in graph.node if node.op_type == "MaxPool"}
    for node in graph.node:
        if node.op_type == "Pad" and node.output[0] in pooled and len(node.input) == 3:
            axes = numpy_helper.from_array(np.arange(4), name=f"{node.output[0]}_axes")
            graph.initializer.append(axes)
            node.input.append(axes.name)
