"""`.pt2` files, for PyTorch and C++ without our code, and `.pte` files, for ExecuTorch on phones.

Both are programs of torch.export that take images as they are.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitcli.errors import VitError, reason_of
from vitcli.models.kernels import CUBIC, SLOPE
from vitcli.weights.production.program import FromImages, ProgramForm, exporting
from vitcli.weights.production.session import ABOUT, load_runtime, silenced


def write_pt2(path: Path, model: nn.Module, form: ProgramForm, metadata: dict[str, str]) -> None:
    """Write a network as a torch.export program; its metadata are the extra file "vit.json".

    Args:
        model: on the CPU, in evaluation mode.

    Raises:
        VitError: torch.export does not support the network.
    """
    program = _exported(model, form, form.example(), dict.fromkeys(form.axes, torch.export.Dim.AUTO))
    torch.export.save(program, path, extra_files={"vit.json": json.dumps(metadata)})


class Pt2Network(nn.Module):
    """Network of a .pt2 file that was written by us just now: such files may hold pickles.

    Attributes:
        takes_any_size: of images.
    """

    def __init__(self, path: Path, form: ProgramForm):
        super().__init__()
        self.program, self.takes_any_size = torch.export.load(path).module(), form.input == "images"

    def eval(self) -> "Pt2Network":
        """Return self: a program is exported in evaluation mode, and has no other."""
        return self

    def forward(self, images_BHWC: Tensor) -> Tensor:
        with torch.no_grad():
            return self.program(images_BHWC)[0]


def write_pte(path: Path, model: nn.Module, form: ProgramForm, metadata: dict[str, str]) -> None:
    """Write a network as a program of ExecuTorch for one image, pixels of the size of the network.

    It takes no images of any size: ExecuTorch plans all memory before it runs, and fails here (1.5.1, "Cannot
    evaluate a finite upper bound") on sizes that are computed from the image.

    Args:
        model: on the CPU, in evaluation mode.
        metadata: what the method "about" returns, in JSON, with the names of the outputs.

    Raises:
        MachineError: ExecuTorch is not installed.
        VitError: torch.export or ExecuTorch does not support the network.
    """
    load_runtime("executorch")
    program = _exported(model, form, form.example()[:1], {})
    about = json.dumps({**metadata, "outputs": form.output_names})
    try:
        with exporting(), silenced():
            from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
            from executorch.exir import to_edge_transform_and_lower

            program = program.run_decompositions(AS_EXECUTORCH_NEEDS_IT)
            lowered = to_edge_transform_and_lower(
                program, partitioner=[XnnpackPartitioner()], constant_methods={ABOUT: about}
            )
            path.write_bytes(lowered.to_executorch().buffer)
    except OSError:
        raise
    except Exception as error:  # its exceptions have no common type
        raise VitError(
            f"ExecuTorch cannot lower this network: {reason_of(error)}",
            where="--to pte",
            fix="export to onnx, or try other versions of executorch and torch",
        ) from error


def _exported(
    model: nn.Module, form: ProgramForm, example_BHWC: Tensor, axes: dict[int, Any]
) -> torch.export.ExportedProgram:
    """Return the program of torch.export, whose axes of the example are fixed but for `axes`."""
    try:
        with exporting():
            return torch.export.export(
                FromImages(model, form).eval(), (example_BHWC,), dynamic_shapes=(axes,), strict=False
            )
    except Exception as error:  # torch.export's exceptions have no common type
        raise VitError(
            f"torch cannot export this network: {reason_of(error).splitlines()[0][:200]}",
            where=f"torch {torch.__version__}",
            fix="export to safetensors, timm or onnx, or try another version of torch",
        ) from error


def _std_mean(x: Tensor, dim: Any, *, correction: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    """Compute each alone; ExecuTorch has no function for both, as the weights of hybrids need."""
    variance = torch.var(x, dim, correction=correction, keepdim=keepdim)
    return variance.sqrt(), torch.mean(x, dim, keepdim=keepdim)


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    """Multiply the heads of attention as one batch: else ExecuTorch copies both first."""
    if a.ndim != 4 or a.shape[:2] != b.shape[:2]:
        return NotImplemented
    return torch.bmm(a.flatten(0, 1), b.flatten(0, 1)).unflatten(0, a.shape[:2])


def _gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """Return the tanh form of GELU; XNNPACK computes the exact one for both, and logits are 1e-4 off."""
    return x * torch.sigmoid(SLOPE * (x + CUBIC * x * x * x)) if approximate == "tanh" else NotImplemented


AS_EXECUTORCH_NEEDS_IT = {
    torch.ops.aten.gelu.default: _gelu,
    torch.ops.aten.std_mean.correction: _std_mean,
    torch.ops.aten.matmul.default: _matmul,
}
