"""`.pt2` files: torch.export programs that take images as they are, for PyTorch and C++ without our code.

The program computes what an ONNX file does (`pixels.py`), in torch: sizes are symbols, so one
program serves images of every size. B images of H rows and W columns; N pixels of an axis become M.
"""

import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitcli.data.transforms import Preprocessing
from vitcli.errors import VitError, reason_of
from vitcli.weights.onnx import ProgramForm

MOST_BITS = 22  # of a weight below its point
Kernel = Callable[[Tensor], Tensor]


def linear(distances: Tensor) -> Tensor:
    return (1 - distances).clamp(min=0)


def cubic(distances: Tensor, a: float) -> Tensor:
    """Return Keys' kernel: a = -0.5 with antialias, -0.75 without."""
    near = ((a + 2) * distances - (a + 3)) * distances * distances + 1
    far = ((a * distances - 5 * a) * distances + 8 * a) * distances - 4 * a
    return torch.where(distances <= 1, near, torch.where(distances < 2, far, 0.0))


class FromImages(nn.Module):
    """A network with preprocessing before it and probabilities after it, in evaluation mode.

    A call maps uint8 images_BHWC to (logits, answers), of features to (features,).
    """

    def __init__(self, network: nn.Module, form: ProgramForm):
        super().__init__()
        self.network, self.form = network, form
        for name in ("mean", "std"):  # those that `to_model_range` keeps would be traced
            values_C11 = torch.tensor(getattr(form.preprocessing, name))[:, None, None] * 255
            self.register_buffer(name, values_C11)

    def forward(self, images_BHWC: Tensor) -> tuple[Tensor, ...]:
        images_BCHW = images_BHWC.permute(0, 3, 1, 2)
        if self.form.input == "images":
            images_BCHW = resized(images_BCHW, self.form.preprocessing)
        outputs = self.network((images_BCHW.float() - self.mean) / self.std)
        match self.form.kind:
            case "classes":
                return outputs, torch.softmax(outputs / self.form.temperature, dim=-1)
            case "several":
                return outputs, torch.sigmoid(outputs)
            case "number":
                return outputs, outputs * self.form.std + self.form.mean
        return (outputs,)


def resized(images_BCHW: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Return the resized and cropped bytes of `Preprocessing`, bit for bit, for sizes that are symbols."""
    height, width = preprocessing.image_size
    rows, columns = images_BCHW.shape[2:]
    if preprocessing.resize == "square":
        new_rows, new_columns = preprocessing.whole_size
    else:
        by_short_side = preprocessing.short_side / torch.sym_min(rows, columns)
        least = 1.0 if preprocessing.resize == "none" else by_short_side
        scale = torch.sym_max(torch.sym_max(height / rows, width / columns), least)
        new_rows = torch.sym_max(height, math.trunc(rows * scale + 1e-6))
        new_columns = torch.sym_max(width, math.trunc(columns * scale + 1e-6))
    # Across, then down, each rounded to bytes; what the crop leaves out is not computed.
    across_MN, scale = _of_16_bits(_weights(columns, new_columns, preprocessing))
    pixels = _rounded(images_BCHW.double() @ _cut(across_MN, new_columns, width).T, scale)
    down_MN, scale = _of_16_bits(_weights(rows, new_rows, preprocessing))
    return _rounded(_cut(down_MN, new_rows, height) @ pixels, scale).to(torch.uint8)


def _weights(n: int, m: int, preprocessing: Preprocessing) -> Tensor:
    """Return weights (M, N) in float64."""
    is_linear = preprocessing.interpolation == "bilinear"
    centres_M = (torch.arange(m, dtype=torch.float64) + 0.5) * n / m
    if preprocessing.antialias:
        distances_MN = (torch.arange(n, dtype=torch.float64) + 0.5 - centres_M[:, None]).abs()
        distances_MN = distances_MN / torch.sym_max(n / m, 1.0)
        weights_MN = linear(distances_MN) if is_linear else cubic(distances_MN, -0.5)
        return weights_MN / weights_MN.sum(dim=1, keepdim=True)
    first_M = torch.floor(centres_M - 0.5)
    rest_M1 = (centres_M - 0.5 - first_M)[:, None]
    weights_MN = torch.zeros(())
    for offset in (0, 1) if is_linear else (-1, 0, 1, 2):  # those at the border count again
        distances_M1 = (rest_M1 - offset).abs()
        is_there_MN = (first_M + offset).clamp(0, n - 1)[:, None] == torch.arange(n, dtype=torch.float64)
        kernel_M1 = linear(distances_M1) if is_linear else cubic(distances_M1, -0.75)
        weights_MN = weights_MN + is_there_MN * kernel_M1
    return weights_MN


def _of_16_bits(weights_MN: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights as whole numbers, and the power of two that they are multiplied by."""
    bits = torch.floor(torch.log2(32767.5 / weights_MN.max())).clamp(max=MOST_BITS)
    scale = 2.0**bits
    return torch.trunc(weights_MN * scale + torch.sign(weights_MN) * 0.5), scale


def _rounded(sums: Tensor, scale: Tensor) -> Tensor:
    return torch.floor(sums / scale + 0.5).clamp(0, 255)


def _cut(weights_MN: Tensor, size: int, crop: int) -> Tensor:
    """Return the rows of the centre crop; a half is rounded to the even number, as Python does."""
    half, is_odd = (size - crop) // 2, (size - crop) % 2
    return weights_MN.narrow(0, half + is_odd * (half % 2), crop)


def write_pt2(path: Path, model: nn.Module, form: ProgramForm, metadata: dict[str, str]) -> None:
    """Write a network as a torch.export program; its metadata are the extra file "vit.json".

    Args:
        model: on the CPU, in evaluation mode.

    Raises:
        VitError: torch.export does not support the network.
    """
    any_size = torch.export.Dim.AUTO
    axes = {0: torch.export.Dim("batch"), **({1: any_size, 2: any_size} if form.input == "images" else {})}
    height, width = form.preprocessing.image_size
    # Of no special size: torch.export takes sizes that are equal, or 1, for constants.
    extra = (37, 53) if form.input == "images" else (0, 0)
    images_BHWC = torch.zeros(2, height + extra[0], width + extra[1], 3, dtype=torch.uint8)
    try:
        with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings(action="ignore"), torch.no_grad():
            program = torch.export.export(
                FromImages(model, form).eval(), (images_BHWC,), dynamic_shapes=(axes,), strict=False
            )
    except Exception as error:  # torch.export's exceptions have no common type
        raise VitError(
            f"torch cannot export this network: {reason_of(error).splitlines()[0][:200]}",
            where=f"torch {torch.__version__}",
            fix="export to safetensors, timm or onnx, or try another version of torch",
        ) from error
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
