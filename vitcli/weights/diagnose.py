"""The one pipeline that reads weights: locate, parse, recognise, compare with the network, check the numbers.

`vit inspect --summary` collects the problems of every step; `io.read_weights` raises the first one. A file
that cannot be parsed at all is an error for both.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from vitcli.errors import VitError
from vitcli.models.architecture import Architecture
from vitcli.models.build import architecture, expected_tensors, known_name
from vitcli.models.variants import find_variant
from vitcli.output.progress import Progress
from vitcli.output.text import first_few
from vitcli.weights.describe import WeightsInfo, describe
from vitcli.weights.files import (
    StoredTensors,
    WeightsContent,
    as_weights_error,
    attribute_errors_to,
    file_error,
    in_timms_naming,
)
from vitcli.weights.locate import WeightsSource, locate, read_source
from vitcli.weights.timm import head_names, split_tag

INTEGER_BUFFERS = ("num_batches_tracked", "index")  # of timm's networks


@dataclass
class Diagnosis:
    """A weights file and everything found in it.

    Attributes:
        stored: tensors under the file's own names.
        stop_at_problem: raise the first problem instead of collecting it.
        state: float32 tensors in timm's naming; under the file's own names where these are not translatable.
        unused: names of tensors that no classifier uses.
        info: what the weights are, or look like where `is_recognised` is false; None if nothing is known.
        missing_head: tensors of a head that the metadata describes and the file lacks; `info` then has no
            classes. This is not a problem: features need no head.
        expected: names and shapes of the network's tensors; None where timm cannot build it.
        problems: one for each step that failed.
    """

    source: WeightsSource
    stored: StoredTensors
    stop_at_problem: bool
    state: dict[str, Tensor] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    info: WeightsInfo | None = None
    is_recognised: bool = False
    missing_head: tuple[str, ...] = ()
    expected: dict[str, torch.Size] | None = None
    problems: list[VitError] = field(default_factory=list)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Collect the error of one step, so that the next steps still run."""
        if self.stop_at_problem:
            yield
            return
        try:
            with as_weights_error(what):
                yield
        except VitError as problem:
            self.problems.append(problem)


def diagnose(
    ckpt: str, *, model_name: str | None, progress: Progress, stop_at_problem: bool = False
) -> Diagnosis:
    """Read any form of --ckpt, downloaded if necessary, and collect what is wrong with it.

    Raises:
        WeightsError: no such file, or one that cannot be parsed; any problem if `stop_at_problem`.
    """
    if model_name is not None:
        known_name(split_tag(model_name)[0])
    with attribute_errors_to(ckpt):
        source = locate(ckpt, progress)
        diagnosis, content = Diagnosis(source, read_source(source), stop_at_problem), None
        # Translate the tensor names
        with diagnosis.step("the tensors"):
            content = in_timms_naming(diagnosis.stored)
            diagnosis.state, diagnosis.unused = content.state, content.unused
        # Find the network that the tensors belong to
        if content is None:
            diagnosis.state = _floats(diagnosis.stored)
        else:
            _recognise(diagnosis, content, model_name)
        # Compare names and shapes with that network's
        if diagnosis.info is not None:
            with diagnosis.step("the stored architecture"):
                with as_weights_error("the stored architecture"):  # timm raises anything for absurd numbers
                    diagnosis.expected = expected_tensors(diagnosis.info.architecture)
                check_fits(diagnosis.state, diagnosis.expected, diagnosis.info.architecture)
        # Check the numbers
        with diagnosis.step("the tensors"):
            check_finite(diagnosis.state)
    return diagnosis


def _recognise(diagnosis: Diagnosis, content: WeightsContent, model_name: str | None) -> None:
    """Find the network that the tensors belong to; fall back to one that they resemble."""
    source, info = diagnosis.source, None
    with diagnosis.step("the stored metadata"):
        info = describe(source, content, model_name)
        diagnosis.is_recognised = True
    # Fall back: the file without --model, the tensors without any metadata, the network of --model
    bare, unlabelled = source._replace(config={}, preprocessor={}), content._replace(vit={})
    fallbacks = [
        lambda: describe(source, content, None),
        lambda: describe(bare, unlabelled, None),
        lambda: _named_variant(bare, unlabelled, model_name),
    ]
    for fallback in fallbacks:
        if info is None:
            with suppress(VitError), as_weights_error("the tensors"):
                info = fallback()
    diagnosis.info = info
    if info is not None:
        _drop_missing_head(diagnosis, info)


def _named_variant(
    source: WeightsSource, content: WeightsContent, model_name: str | None
) -> WeightsInfo | None:
    """Return the paper's network of --model, to list what the file lacks of it; None if it is none."""
    variant = find_variant(model_name or "")
    if variant is None:
        return None
    # As a timm model, the tensors are not recognised but show classes and, if possible, image size
    info = describe(source, content._replace(spelling="timm"), variant.timm_name)
    size, num_classes = info.architecture.image_size, info.architecture.num_classes
    arch = architecture(variant.name, image_size=size, num_classes=num_classes)
    return info._replace(architecture=arch, numerics="as the paper has it")


def _drop_missing_head(diagnosis: Diagnosis, info: WeightsInfo) -> None:
    """Take the head out of the network if the file has no tensor of it."""
    arch, prefixes = info.architecture, head_names(info.architecture)
    if not arch.num_classes or any(name.startswith(prefixes) for name in diagnosis.state):
        return
    with suppress(VitError), as_weights_error("the head"):
        diagnosis.missing_head = tuple(name for name in expected_tensors(arch) if name.startswith(prefixes))
    diagnosis.info = info._replace(architecture=arch.with_head(0), class_names=None)


def _floats(stored: StoredTensors) -> dict[str, Tensor]:
    """Return the floating-point tensors in float32, under the file's own names."""
    arrays = {name: array for name, array in stored.arrays.items() if array.dtype.kind == "f"}
    tensors = {name: torch.from_numpy(np.array(array, np.float32)) for name, array in arrays.items()}
    return tensors | {name: t.float() for name, t in stored.tensors.items() if t.is_floating_point()}


def mismatches(state: dict[str, Tensor], expected: dict[str, torch.Size]) -> dict[str, list[str]]:
    """List the tensors that a network lacks, does not have, or has in another shape, by kind of mismatch."""
    return {
        "missing": [name for name in expected if name not in state],
        "unexpected": [name for name in state if name not in expected],
        "of another shape": [
            f"{name} {tuple(tensor.shape)} for {tuple(expected[name])}"
            for name, tensor in state.items()
            if name in expected and tensor.shape != expected[name]
        ],
        "not floating point": [
            f"{name} ({tensor.dtype})"
            for name, tensor in state.items()
            if not tensor.is_floating_point() and not name.endswith(INTEGER_BUFFERS)
        ],
    }


def check_fits(state: dict[str, Tensor], expected: dict[str, torch.Size], arch: Architecture) -> None:
    """Refuse tensors whose names and shapes are not exactly those of the network."""
    by_kind = mismatches(state, expected).items()
    if reasons := [f"{len(names)} {kind}: {first_few(names)}" for kind, names in by_kind if names]:
        network = f"{arch.name} at {arch.image_size[0]}x{arch.image_size[1]} with {arch.num_classes} classes"
        fix = "name the right model with --model, or take a new head where only the head differs"
        raise file_error(f"the tensors do not fit {network}; {'; '.join(reasons)}", fix=fix)


def find_non_finite(state: dict[str, Tensor]) -> list[str]:
    """Return the names of the tensors that hold NaN or infinity."""
    floats = {name: t.detach() for name, t in state.items() if t.is_floating_point() and t.numel()}
    # aminmax passes NaN on and, unlike isfinite, makes no copy of the tensor
    extremes = {name: torch.stack(torch.aminmax(tensor)) for name, tensor in floats.items()}
    return [name for name, both in extremes.items() if not torch.isfinite(both).all()]


def check_finite(state: dict[str, Tensor]) -> None:
    """Refuse tensors that hold NaN or infinity."""
    if names := find_non_finite(state):
        fix = "use weights from before they became non-finite"
        raise file_error(f"non-finite numbers in {first_few(names)}", fix=fix)
