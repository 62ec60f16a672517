"""A file opened by onnxruntime, OpenVINO or ExecuTorch for images as they are; the last alone loads torch."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from vitcli.errors import CheckFailed, MachineError, pip_install, reason_of


def load_runtime(name: str) -> Any:
    """Return the module of a runtime, OpenVINO's without its package for telemetry: nothing is sent.

    Raises:
        MachineError: it is not installed.
    """
    if name == "openvino":
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        with silenced():
            return import_module("executorch.runtime" if name == "executorch" else name)
    except ImportError as error:
        raise not_installed(name, error) from error


@contextmanager
def silenced() -> Iterator[None]:
    """Drop what libraries write to standard error, from C too, such as where they look for a processor."""
    if sys.stderr is None:  # closed, so that 2 may be the number of another file
        yield
        return
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as null, redirect_stderr(null):
            os.dup2(null.fileno(), 2)
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


class OnnxSession:
    """Network of an ONNX file of ours, run on the CPU.

    Attributes:
        input_shape: of the images, (B, H, W, 3); names in the place of numbers that may be any.
        output_name, answer_name: of the first output, logits_BK or features_BD, and of the last, which is for
            users: "probabilities", "number" or "features".

    Raises:
        MachineError: onnxruntime is not installed.
        CheckFailed: onnxruntime does not accept the file, or it takes something else than images.
    """

    def __init__(self, path: Path, *, num_threads: int):
        onnxruntime = load_runtime("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # no warning for each operator that cannot be folded
        options.intra_op_num_threads = num_threads
        try:
            self.session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's exceptions have no common type
            fix = "update onnxruntime, or export to safetensors"
            raise _refused(path, f"onnxruntime {onnxruntime.__version__}", error, fix=fix) from error
        inputs, outputs = self.session.get_inputs(), self.session.get_outputs()
        is_ours = [each.name for each in inputs] == ["images"] and inputs[0].type == "tensor(uint8)"
        if not is_ours or len(inputs[0].shape) != 4:
            raise CheckFailed(
                "it does not take images as bytes, as files of vit export do",
                where=str(path),
                fix="export the checkpoint again",
            )
        self.input_shape = tuple(inputs[0].shape)
        self.output_name, self.answer_name = outputs[0].name, outputs[-1].name

    def run(self, name: str, images_BHWC: np.ndarray) -> np.ndarray:
        """Return an output for images, uint8; what goes wrong within onnxruntime raises as it does there."""
        (output,) = self.session.run([name], {"images": images_BHWC})
        return output


class OpenVinoSession:
    """The same network run by OpenVINO on the CPU, with the attributes and errors of `OnnxSession`.

    OpenVINO makes the weights of resizing in float32: one pixel in some thousands becomes the next byte.
    """

    def __init__(self, path: Path, *, num_threads: int):
        openvino = load_runtime("openvino")
        core = openvino.Core()
        settings = {"INFERENCE_NUM_THREADS": num_threads, "INFERENCE_PRECISION_HINT": "f32"}
        try:
            self.compiled = core.compile_model(core.read_model(path), "CPU", settings)
            (images,) = self.compiled.inputs
        except Exception as error:  # its exceptions have no common type
            fix = "update openvino, or use --runtime onnxruntime"
            raise _refused(path, f"OpenVINO {openvino.__version__}", error, fix=fix) from error
        shape = images.get_partial_shape()
        self.input_shape = tuple("?" if side.is_dynamic else side.get_length() for side in shape)
        self.output_name, self.answer_name = (self.compiled.outputs[at].any_name for at in (0, -1))

    def run(self, name: str, images_BHWC: np.ndarray) -> np.ndarray:
        """Return an output for images, uint8."""
        return self.compiled({"images": images_BHWC})[name]


class ExecuTorchSession:
    """Network of a .pte file run by ExecuTorch on the CPU, with the attributes and errors of `OnnxSession`.

    Its memory is planned for one image, so that images pass one after the other. `about` has its metadata.
    The number of threads is its own choice: nothing public sets it.
    """

    def __init__(self, path: Path, *, num_threads: int):
        executorch = load_runtime("executorch")
        try:
            with silenced():
                program = executorch.Runtime.get().load_program(path)
                if ABOUT not in program.method_names:
                    raise ValueError("it was not written by vit export")
                (about,) = program.load_method(ABOUT).execute([])
                self.method, self.about = program.load_method("forward"), json.loads(about)
                self.output_name, self.answer_name = (self.about["outputs"][at] for at in (0, -1))
                self.input_shape = tuple(self.method.metadata.input_tensor_meta(0).sizes())
        except Exception as error:  # its exceptions have no common type
            fix = "export the checkpoint again, or update executorch"
            raise _refused(path, "ExecuTorch", error, fix=fix) from error

    def run(self, name: str, images_BHWC: np.ndarray) -> np.ndarray:
        """Return an output for images, uint8."""
        import torch

        at, images_B1HWC = self.about["outputs"].index(name), torch.from_numpy(images_BHWC.copy())[:, None]
        return np.concatenate([self.method.execute([image_1HWC])[at].numpy() for image_1HWC in images_B1HWC])


OpenedFile = OnnxSession | OpenVinoSession | ExecuTorchSession
SESSIONS: dict[str, type[OpenedFile]] = {
    "onnxruntime": OnnxSession,
    "openvino": OpenVinoSession,
    "executorch": ExecuTorchSession,
}
RUNTIMES = {".onnx": ("onnxruntime", "openvino"), ".pte": ("executorch",)}  # by suffix
ABOUT = "about"  # the method of a .pte file that returns its metadata, in JSON


def _refused(path: Path, runtime: str, error: Exception, *, fix: str) -> CheckFailed:
    return CheckFailed(f"{runtime} does not accept the file: {reason_of(error)}", where=str(path), fix=fix)


def not_installed(name: str, error: ImportError) -> MachineError:
    what, extra = {"openvino": ("ONNX", name), "executorch": (".pte", name)}.get(name, ("ONNX", "export"))
    message = f"{what} files need {name}, which cannot be imported: {reason_of(error)}"
    return MachineError(message, where="this Python", fix=pip_install(f"vitcli[{extra}]"))
