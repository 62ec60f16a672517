"""`.pt2` files: torch.export programs that take images as they are, for PyTorch and C++ without our code."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitcli.errors import VitError, reason_of
from vitcli.weights.production.program import FromImages, ProgramForm, exporting


def write_pt2(path: Path, model: nn.Module, form: ProgramForm, metadata: dict[str, str]) -> None:
    """Write a network as a torch.export program; its metadata are the extra file "vit.json".

    Args:
        model: on the CPU, in evaluation mode.

    Raises:
        VitError: torch.export does not support the network.
    """
    program = exported(model, form, form.example(), dict.fromkeys(form.axes, torch.export.Dim.AUTO))
    torch.export.save(program, path, extra_files={"vit.json": json.dumps(metadata)})


def exported(
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
