"""What there is to say of a checkpoint that may be sick: the steps of `weights.read_weights`, one by one.

Where a step refuses the file its reason is put down and the next goes on. A file that cannot be parsed at all
is an error.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from vitcli.errors import VitError
from vitcli.models.build import architecture, expected_tensors, known_name
from vitcli.models.variants import VARIANTS, find_variant
from vitcli.weights.describe import WeightsInfo, describe
from vitcli.weights.files import (
    StoredTensors,
    WeightsContent,
    as_weights_error,
    attribute_errors_to,
    in_timms_naming,
    read_stored,
)
from vitcli.weights.io import check_finite, check_fits
from vitcli.weights.locate import WeightsSource, locate

PREFIX_TOKENS = ("cls_token", "dist_token", "reg_token")  # tensors with a row for each such token
OF_MODEL_WIDTH = ("norm.weight", "cls_token", "pos_embed", "blocks.0.norm1.weight")


@dataclass
class Diagnosis:
    """What the steps of reading have come to.

    Attributes:
        state: float32 in timm's naming; under the file's own names where they say no network.
        unused: names of tensors that no classifier uses.
        about: what the tensors are, or look like where `is_recognised` is false; None if like nothing known.
        expected: names and shapes of that network's tensors; None where timm cannot build it.
        refusals: of each step that failed.
    """

    place: WeightsSource
    stored: StoredTensors
    state: dict[str, Tensor] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    about: WeightsInfo | None = None
    is_recognised: bool = False
    expected: dict[str, torch.Size] | None = None
    refusals: list[VitError] = field(default_factory=list)

    @property
    def num_prefix(self) -> int:
        """Tokens of the network that stand for no patch."""
        return _num_prefix(self.expected or {})

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """What fails in here is put down."""
        try:
            with as_weights_error(what):
                yield
        except VitError as refusal:
            self.refusals.append(refusal)


def diagnose(ckpt: str, *, model_name: str | None) -> Diagnosis:
    """Everything that the steps of reading find out; there are refusals exactly where `read_weights` raises.

    Raises:
        WeightsError: no such file, or one that cannot be parsed.
    """
    if model_name is not None:
        known_name(model_name)
    with attribute_errors_to(ckpt):
        place = locate(ckpt)
        stored = read_stored(place.file)
    found, content = Diagnosis(place, stored), None
    with found.step("the tensors"):
        content = in_timms_naming(stored)
        found.state, found.unused = content.state, content.unused
    if content is None:
        found.state = _floats(stored)
    else:
        _recognise(found, content, model_name)
    if found.about is not None:
        with found.step("the stored architecture"):
            found.expected = expected_tensors(found.about.architecture)
            check_fits(found.state, found.expected, found.about.architecture)
    with found.step("the tensors"):
        check_finite(found.state)
    return found


def _recognise(found: Diagnosis, content: WeightsContent, model_name: str | None) -> None:
    """Find what the tensors are; if that is refused, what they look like without what it is refused for."""
    place = found.place
    with found.step("the stored metadata"):
        found.about, found.is_recognised = describe(place, content, model_name), True
    vit = content.vit or place.config.get("vit")
    bare, unlabelled = place._replace(config={}, preprocessor={}), content._replace(vit={})
    guesses = [(place, content, None), (bare, unlabelled, None)]
    if isinstance(vit, dict) and "architecture" in vit:
        guesses.insert(1, (bare, content._replace(vit={"architecture": vit["architecture"]}), None))
    guesses.append((bare, unlabelled._replace(state=_with_square_grid(content.state)), None))
    for guess in guesses:
        if found.about is None:
            with suppress(VitError), as_weights_error("the tensors"):
                found.about = describe(*guess)
    if found.about is None:
        found.about = _closest_variant(bare, unlabelled, model_name)


def _closest_variant(
    place: WeightsSource, content: WeightsContent, model_name: str | None
) -> WeightsInfo | None:
    """As weights of the transformer in VARIANTS that shares most tensors, if these are half of its own.

    Args:
        model_name: the only one to try, if it names one.
    """
    state, named = content.state, find_variant(model_name or "")
    content = content._replace(spelling="timm")  # whose networks take any name
    widths = [state[name].shape[-1] for name in OF_MODEL_WIDTH if name in state and state[name].ndim]
    alike = [variant for variant in VARIANTS.values() if variant.layers and variant.hidden in widths[:1]]
    found, most = None, 0.5
    for variant in [named] if named else alike:
        with suppress(VitError), as_weights_error("the tensors"):
            about = describe(place, content, variant.timm_name)  # finds image size and classes
            size, num_classes = about.architecture.image_size, about.architecture.num_classes
            arch = architecture(variant.name, image_size=size, num_classes=num_classes)
            expected = expected_tensors(arch)
            share = sum(name in state and state[name].shape == shape for name, shape in expected.items())
            if share / len(expected) > most:
                most = share / len(expected)
                found = about._replace(architecture=arch, numerics="as the paper has it")
    return found


def _with_square_grid(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """With the number of rows in the position embedding that can be and is nearest."""
    posemb = state.get("pos_embed")
    if posemb is None or posemb.ndim != 3:
        return state
    num_prefix = _num_prefix({name: tensor.shape for name, tensor in state.items()})
    side = max(1, round(math.sqrt(max(0, posemb.shape[1] - num_prefix))))
    shape = (1, num_prefix + side * side, posemb.shape[2])
    return state | {"pos_embed": torch.empty(shape, device="meta")}


def _num_prefix(shapes: dict[str, torch.Size]) -> int:
    of_tokens = (shapes[name] for name in PREFIX_TOKENS if name in shapes)
    return sum(shape[1] for shape in of_tokens if len(shape) == 3)


def _floats(stored: StoredTensors) -> dict[str, Tensor]:
    """The tensors of numbers with a point, under the file's own names."""
    if stored.spelling == "official":
        arrays = {name: array for name, array in stored.tensors.items() if array.dtype.kind == "f"}
        return {name: torch.from_numpy(np.array(array, np.float32)) for name, array in arrays.items()}
    return {name: t.float() for name, t in stored.tensors.items() if t.is_floating_point()}
