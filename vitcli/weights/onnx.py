"""ONNX files, written by torch's exporter and run by onnxruntime on images as they are: see `production`."""

import json
import re
import shutil
from collections.abc import Iterable
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitcli.errors import VitError, reason_of
from vitcli.output.atomic import digest_of_file
from vitcli.weights.production.program import FromImages, ProgramForm, exporting
from vitcli.weights.production.session import not_installed

OPSET = 20
FP32_LAYERS = "fp32_layers"  # of the metadata of a file in int8
MAX_BYTES_IN_ONE_FILE = 1_800_000_000  # of weights; protobuf, and so an .onnx file, is limited to 2 GB


def check_installed() -> None:
    """Raise a MachineError with advice if a package for ONNX files is missing."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        try:
            import_module(name)
        except ImportError as error:
            raise not_installed(name, error) from error


def write_onnx(
    path: Path,
    model: nn.Module,
    form: ProgramForm,
    metadata: dict[str, str],
    calibration: Iterable[Tensor] = (),
    fp32: Path | None = None,
) -> None:
    """Write a network as an ONNX file.

    Weights too large for one file are written beside it, to one of `data_files`; move both files together.

    Args:
        model: on the CPU, in evaluation mode.
        metadata: becomes the file's metadata_props.
        calibration: images, uint8 (1, H, W, 3), for the ranges of int8.
        fp32: the file of the same network in fp32 if there is one, which saves exporting it again.

    Raises:
        MachineError: a required package is not installed.
        VitError: torch's exporter does not support the network, or it is too large for int8.
    """
    check_installed()
    import onnx

    from vitcli.weights.production.int8 import quantized, with_quantized_weights

    program = FromImages(model, form).eval()
    num_bytes = sum(tensor.nbytes for tensor in program.state_dict().values())
    is_large, is_rounded = num_bytes > MAX_BYTES_IN_ONE_FILE, form.precision.startswith("int8")
    if is_rounded and num_bytes / 4 > MAX_BYTES_IN_ONE_FILE:
        raise VitError(
            f"networks of {num_bytes / 1e9:.1f} GB are too large for {form.precision} in ONNX",
            where=f"--precision {form.precision}",
            fix=f"--precision fp16; {form.precision} takes up to {4 * MAX_BYTES_IN_ONE_FILE / 1e9:.1f} GB",
        )
    if fp32 and form.precision != "fp16" and not is_large:
        shutil.copy(fp32, path)
    else:
        _exported(program, form).save(path, external_data=is_large)
    proto = onnx.load(path, load_external_data=False)
    # The exporter's notes on its own run, such as local paths, go.
    graph = proto.graph
    for part in (graph, *graph.node, *graph.value_info, *graph.initializer, *graph.input, *graph.output):
        del part.metadata_props[:]
    _keep_padding_apart(graph)
    _name_data_by_contents(path, graph)
    if is_rounded:
        onnx.save(proto, path)
        if form.precision == "int8":
            proto, names = quantized(path, calibration)
            metadata = metadata | {FP32_LAYERS: json.dumps(names)}
        else:
            proto = with_quantized_weights(path)
        for data in data_files(path):
            data.unlink()
    onnx.helper.set_model_props(proto, metadata)
    onnx.save(proto, path)


def fp32_layers(path: Path) -> list[str]:
    """Return the layers that an .onnx file in int8 computes in float32."""
    import onnx

    stored = {each.key: each.value for each in onnx.load(path, load_external_data=False).metadata_props}
    return json.loads(stored.get(FP32_LAYERS, "[]"))


def data_files(path: Path) -> list[Path]:
    """Return the files beside an .onnx file with its weights, an earlier one's, or named as torch does it."""
    if path.suffix != ".onnx":
        return []
    name = re.compile(rf"{re.escape(path.name)}(\.[0-9a-f]{{16}})?\.data")
    return sorted(file for file in path.parent.glob("*.data") if name.fullmatch(file.name))


def _exported(program: FromImages, form: ProgramForm) -> torch.onnx.ONNXProgram:
    axes = {number: torch.export.Dim(name) for number, name in form.axes.items()}
    try:
        with exporting(), redirect_stdout(StringIO()):
            exported = torch.onnx.export(
                program,
                (form.example(),),
                dynamo=True,
                opset_version=OPSET,
                verbose=False,
                input_names=["images"],
                output_names=form.output_names,
                dynamic_shapes=(axes,),
            )
    except torch.onnx.OnnxExporterError as error:
        raise VitError(
            f"torch cannot export this network to ONNX: {reason_of(error.__cause__ or error)}",
            where=f"torch {torch.__version__}",
            fix="export to safetensors or timm, or try other versions of torch and onnxscript",
        ) from error
    assert exported is not None, "by dynamo"
    return exported


def _name_data_by_contents(path: Path, graph: Any) -> None:
    """Rename the weights beside an ONNX file, so that those of another export cannot take their place."""
    data = path.with_name(f"{path.name}.data")
    if not data.exists():
        return
    named = data.rename(path.with_name(f"{path.name}.{digest_of_file(data).hex()[:16]}.data"))
    for entry in (entry for tensor in graph.initializer for entry in tensor.external_data):
        if entry.key == "location":
            entry.value = named.name


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
