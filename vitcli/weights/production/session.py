"""An ONNX file opened by onnxruntime, for images as they are. Loads no torch."""

from pathlib import Path

import numpy as np

from vitcli.errors import CheckFailed, MachineError, pip_install, reason_of


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
        try:
            import onnxruntime
        except ImportError as error:
            raise not_installed("onnxruntime", error) from error
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # no warning for each operator that cannot be folded
        options.intra_op_num_threads = num_threads
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


def not_installed(name: str, error: ImportError) -> MachineError:
    message = f"ONNX files need {name}, which cannot be imported: {reason_of(error)}"
    return MachineError(message, where="this Python", fix=pip_install("vitcli[export]"))
