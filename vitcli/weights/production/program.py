"""What an .onnx, .pt2 or .pte file computes: preprocessing, network and probabilities in one module of torch.

The input is "images", in one of two forms; for any number B of them:

    images  uint8 (B, H, W, 3), decoded, of any one size; the program resizes, crops and normalises
    pixels  uint8 (B, h, w, 3), of the size of the network; the program normalises

The outputs are "logits" (B, K) and what follows from them: "probabilities" (B, K), of several labels those of
each, or the "number" (B, 1) of a regression; without a head "features" (B, D) alone.

torch resizes bytes with weights of 16 bits and rounds between the two axes. `resized` does the same with
matrix products in float32, of whole numbers that it has exactly, so that the pixels are equal bit for bit.
Sizes may be symbols of torch.export: one program serves images of every size.

B images of H rows and W columns, C = 3 channels; N pixels of an axis become M, each of T; K outputs. G bands
of S pixels of M, each of L pixels of N; X values beside each other that are resized alike.
"""

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitcli.data.transforms import Preprocessing
from vitcli.models.kernels import WrittenOut
from vitcli.weights.production.session import RUNTIMES, SESSIONS

INPUTS = ("images", "pixels")
PRECISIONS = ("fp32", "fp16", "int8", "int8-weights")
ANSWERS = {
    "classes": "probabilities", "multilabel": "probabilities", "number": "number", "features": "features",
}  # fmt: skip
MOST_BITS = 22  # of a weight below its point
MOST_IN_BAND = 16
PART = 256.0  # of a weight, which does not fit into a product in float32 as a whole


@dataclass(frozen=True)
class ProgramForm:
    """What a program takes and gives.

    Attributes:
        preprocessing: of decoded images.
        kind: of the outputs: "classes", "multilabel", "number" or "features".
        scaled: what calibration does to logits of classes before the softmax, if anything.
        mean, std: of the numbers of a regression.
        input: one of INPUTS.
        precision: one of PRECISIONS, of the network; inputs and outputs remain as they are.
    """

    preprocessing: Preprocessing
    kind: str
    scaled: Callable[[Tensor], Tensor] | None = None
    mean: float = 0.0
    std: float = 1.0
    input: str = INPUTS[0]
    precision: str = PRECISIONS[0]

    @property
    def output_names(self) -> tuple[str, ...]:
        """Return the names of what `FromImages` returns."""
        answer = ANSWERS[self.kind]
        return (answer,) if answer == "features" else ("logits", answer)

    @property
    def axes(self) -> dict[int, str]:
        """Return the axes of the input that have any length, by number, and what they are."""
        return {0: "batch", **({1: "height", 2: "width"} if self.input == "images" else {})}

    def example(self) -> Tensor:
        """Return images of no special size: exporters take sizes that are equal, or 1, for constants."""
        height, width = self.preprocessing.image_size
        extra = (37, 53) if self.input == "images" else (0, 0)
        return torch.zeros(2, height + extra[0], width + extra[1], 3, dtype=torch.uint8)


class FromImages(nn.Module):
    """A network with preprocessing before it and probabilities after it, in evaluation mode.

    A call maps uint8 images_BHWC to (logits, answers), of features to (features,).
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, form: ProgramForm):
        super().__init__()
        self.form, self.dtype = form, torch.float16 if form.precision == "fp16" else torch.float32
        self.network = network if self.dtype == torch.float32 else copy.deepcopy(network).to(self.dtype)
        for name in ("mean", "std"):  # those that `to_model_range` keeps would be traced
            values_C11 = torch.tensor(getattr(form.preprocessing, name))[:, None, None] * 255
            self.register_buffer(name, values_C11)

    def forward(self, images_BHWC: Tensor) -> tuple[Tensor, ...]:
        if self.form.input == "images":
            images_BHWC = resized(images_BHWC, self.form.preprocessing)
        images_BCHW = (images_BHWC.permute(0, 3, 1, 2).float() - self.mean) / self.std
        outputs = self.network(images_BCHW.to(self.dtype)).float()
        match self.form.kind:
            case "classes":
                scaled = self.form.scaled(outputs) if self.form.scaled else outputs
                return outputs, torch.softmax(scaled, dim=-1)
            case "multilabel":
                return outputs, torch.sigmoid(outputs)
            case "number":
                return outputs, outputs * self.form.std + self.form.mean
        return (outputs,)


class ProgramNetwork(nn.Module):
    """Network of an .onnx or .pte file, run on the CPU by its first runtime; onnxruntime has torch's threads.

    A call maps images_BHWC, uint8, to float32 logits_BK, or features_BD.

    Attributes:
        opened: the session, whose errors it raises.
        takes_any_size: of images; False if they must have the size of the network.
    """

    def __init__(self, path: Path):
        super().__init__()
        self.opened = SESSIONS[RUNTIMES[path.suffix][0]](path, num_threads=torch.get_num_threads())
        self.takes_any_size = isinstance(self.opened.input_shape[1], str)

    def forward(self, images_BHWC: Tensor) -> Tensor:
        return torch.from_numpy(self.opened.run(self.opened.output_name, images_BHWC.numpy()))

    def answers(self, images_BHWC: Tensor) -> Tensor:
        """Return what the network says of images, float32: probabilities_BK, number_B1 or features_BD."""
        return torch.from_numpy(self.opened.run(self.opened.answer_name, images_BHWC.numpy()))


@contextmanager
def exporting() -> Iterator[None]:
    """Let torch's exporters run within the block as they need it, without their warnings."""
    # Fused attention becomes shapes that are computed in each call and copies that runtimes cannot fold; with
    # a bias it leaves strides that the exporters cannot handle (torch 2.15).
    quiet = warnings.catch_warnings(action="ignore")
    with WrittenOut(), sdpa_kernel(SDPBackend.MATH), quiet, torch.no_grad():
        yield


def resized(images_BHWC: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Return the resized and cropped bytes of `Preprocessing`, bit for bit, for sizes that are symbols."""
    height, width = preprocessing.image_size
    rows, columns = images_BHWC.shape[1:3]
    new_rows, new_columns = _size_before_crop(rows, columns, preprocessing)
    # Across, then down, each rounded to bytes; what the crop leaves out is not computed. Both are transposed
    # as matrices of numbers: pixel by pixel takes onnxruntime twelve times as long.
    pixels_BNX = images_BHWC.flatten(2).transpose(1, 2).reshape(-1, columns, 3 * rows)
    pixels_BWX = _resized_axis(pixels_BNX, columns, new_columns, width, preprocessing)
    pixels_BNX = pixels_BWX.view(-1, 3 * width, rows).transpose(1, 2)
    pixels_BHX = _resized_axis(pixels_BNX, rows, new_rows, height, preprocessing)
    return pixels_BHX.view(-1, height, width, 3).to(torch.uint8)


def _size_before_crop(rows: int, columns: int, preprocessing: Preprocessing) -> tuple[int, int]:
    """Return what `Preprocessing` resizes to, as symbols of their own: with the formula in the shapes of all
    that follows, the export of a small network takes half a minute.
    """
    if preprocessing.resize == "square":
        return preprocessing.whole_size
    crops_2 = torch.tensor(preprocessing.image_size)
    sides_2 = torch.stack([_number(rows), _number(columns)])
    # In whole numbers: a runtime that computes float64 in float32, as OpenVINO does, would miss one.
    scales: list[tuple[Any, Any]] = list(zip(crops_2, sides_2, strict=True))
    is_short = preprocessing.resize == "short_side"
    scales.append((preprocessing.short_side, sides_2.min()) if is_short else (1, 1))
    sizes = crops_2
    for new, side in scales:  # the largest scale gives the largest sizes
        sizes = torch.maximum(sizes, torch.div(sides_2 * new, side, rounding_mode="trunc"))
    new_rows, new_columns = sizes.tolist()
    for new, least in zip((new_rows, new_columns), preprocessing.image_size, strict=True):
        torch._check(new >= least)
    return new_rows, new_columns


def _number(size: int) -> Tensor:
    """Return a size as a tensor: of two symbols the exporter to ONNX makes numbers of 32 bits."""
    return torch.scalar_tensor(size, dtype=torch.int64)


def _resized_axis(pixels_BNX: Tensor, n: int, m: int, crop: int, preprocessing: Preprocessing) -> Tensor:
    """Return pixels_BMX, the centre crop of an axis that is resized, rounded to bytes, float32.

    Each of G bands is a product with the pixels near it, not with all.
    """
    places_MT, weights_MT = _weights(n, m, preprocessing)
    # The largest weight, within the crop or not, becomes a number of 16 bits.
    scale = 2.0 ** torch.floor(torch.log2(32767.5 / weights_MT.max())).clamp(max=MOST_BITS)
    inside = _first_of_crop(m, crop) + torch.arange(crop)
    whole_MT = torch.trunc(weights_MT * scale + torch.sign(weights_MT) * 0.5)[inside]
    firsts_M = places_MT[inside, 0]
    size = math.gcd(crop, MOST_IN_BAND)
    starts_G1 = firsts_M.view(-1, size).amin(dim=1, keepdim=True)
    offsets_M1 = (firsts_M.view(-1, size) - starts_G1).view(-1, 1)
    num_taps = whole_MT.shape[1]
    length = _as_size(offsets_M1.max() + num_taps)
    whole_ML = torch.zeros(crop, length, dtype=torch.float64)
    whole_ML = whole_ML.scatter(1, offsets_M1 + torch.arange(num_taps), whole_MT)
    whole_GSL = whole_ML.unflatten(0, (-1, size))
    # Of 2 S rows the first half has the high parts of the weights, the other what remains.
    high_GSL = torch.floor(whole_GSL / PART + 0.5)
    parts_GSL = torch.cat([high_GSL, whole_GSL - high_GSL * PART], dim=1).float()
    places_GL = (starts_G1 + torch.arange(length)).clamp(max=n - 1)
    bands_BGLX = pixels_BNX.index_select(1, places_GL.flatten()).unflatten(1, (crop // size, -1))
    high, low = (parts_GSL @ bands_BGLX.float()).chunk(2, dim=2)
    # Each sum is a whole number below 2 ** 24, which float32 has exactly.
    rounded = torch.floor((high + torch.floor(low / PART)) / (scale / PART).float() + 0.5)
    return rounded.clamp(0, 255).flatten(1, 2)


def _weights(n: int, m: int, preprocessing: Preprocessing) -> tuple[Tensor, Tensor]:
    """Return the places of T neighbours of each pixel after resizing, (M, T), and their weights, float64."""
    reach, kernel = KERNELS[preprocessing.interpolation, preprocessing.antialias]
    size, new_size = _number(n), _number(m)
    # Distances are whole numbers of units of 1 / (2 m): a runtime without float64 finds the same weights.
    centres_M1 = ((2 * torch.arange(m) + 1) * size - new_size)[:, None]
    if preprocessing.antialias:
        unit = 2 * torch.maximum(size, new_size)
        first_M1 = torch.floor((centres_M1 - reach * unit).to(torch.float64) / (2 * new_size))
        places_MT = first_M1.long() + torch.arange(_as_size(reach * unit // new_size + 2))
        weights_MT = kernel((places_MT * 2 * new_size - centres_M1).abs().to(torch.float64) / unit)
        weights_MT = weights_MT * ((places_MT >= 0) & (places_MT < size))
        weights_MT = weights_MT / weights_MT.sum(dim=1, keepdim=True)
    else:
        unit = 2 * new_size
        places_MT = torch.floor(centres_M1.to(torch.float64) / unit).long() + torch.arange(
            1 - reach, 1 + reach
        )
        weights_MT = kernel((places_MT * unit - centres_M1).abs().to(torch.float64) / unit)
    # Pixels at the border stand for those beyond it.
    places_MT = torch.minimum(places_MT.clamp(min=0), size - 1)
    firsts_M1 = places_MT[:, :1]
    merged_MT = torch.zeros_like(weights_MT).scatter_add(1, places_MT - firsts_M1, weights_MT)
    return firsts_M1 + torch.arange(places_MT.shape[1]), merged_MT


def _first_of_crop(size: int, crop: int) -> int:
    """Return half of what is left out; a half is rounded to the even number, as Python does."""
    half, is_odd = (size - crop) // 2, (size - crop) % 2
    return half + is_odd * (half % 2)


def _as_size(number: Tensor) -> int:
    size: int = number.long().item()  # type: ignore[assignment]
    torch._check(size >= 2)
    return size


def _linear(distances: Tensor) -> Tensor:
    return (1 - distances).clamp(min=0)


def _cubic(distances: Tensor, *, a: float) -> Tensor:
    """Return Keys' kernel."""
    near = ((a + 2) * distances - (a + 3)) * distances * distances + 1
    far = ((a * distances - 5 * a) * distances + 8 * a) * distances - 4 * a
    return torch.where(distances <= 1, near, torch.where(distances < 2, far, 0.0))


# Of torch, by interpolation and antialias: how far it reaches, in pixels on either side, and the kernel.
KERNELS: dict[tuple[str, bool], tuple[int, Callable[[Tensor], Tensor]]] = {
    ("bilinear", False): (1, _linear),
    ("bilinear", True): (1, _linear),
    ("bicubic", False): (2, partial(_cubic, a=-0.75)),
    ("bicubic", True): (2, partial(_cubic, a=-0.5)),
}
