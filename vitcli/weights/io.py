"""Weights: every form that --ckpt takes to one `Weights`, and back to disk.

Nothing in a file is executed, nothing is loaded in part without saying so; a file is written whole or not at
all.
"""

import json
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from torch import Tensor

from vitcli.data import seen_images
from vitcli.errors import NotFiniteError, WeightsError
from vitcli.models.architecture import Architecture
from vitcli.models.build import adapted
from vitcli.output.atomic import replace_file, write_json
from vitcli.output.progress import Progress
from vitcli.output.redaction import public_name
from vitcli.weights import imagenet, licences
from vitcli.weights.describe import STORED, WeightsInfo, describe
from vitcli.weights.diagnose import check_finite, diagnose
from vitcli.weights.files import (
    CHECKSUM,
    attribute_errors_to,
    checksum_of,
    in_timms_naming,
    write_safetensors,
)
from vitcli.weights.locate import locate, read_source
from vitcli.weights.timm import timm_config

FEATURE_STATISTICS = "feature_statistics"  # in the metadata: means and covariance, as much text as numbers
ONLY_IN_THE_FILE = (seen_images.KEY, FEATURE_STATISTICS)  # and not in config.json


def damaged_metadata(key: str, what: str) -> WeightsError:
    """Return the error for metadata of weights that are not as a run writes them."""
    fix = "use the weights as their run wrote them"
    return WeightsError(what, where=f"metadata, {key}", fix=fix)


@dataclass(frozen=True)
class Weights:
    """Tensors and everything known about them.

    Attributes:
        state: float32 tensors in timm's naming (models/build.py lists what differs), every number finite.
        architecture: stored or recognised, at the resolution of the weights; `state` fits it exactly.
        preprocessing: stored with the weights, as `Preprocessing.as_dict`; None for a raw file.
        class_names: in the order of the logits.
        source: the checkpoint as the user named it.
        format: kind of file or folder.
        numerics: which GELU the weights get, and why.
        metadata: everything else that was stored.
        preprocessing_from: where the preprocessing comes from, in words.
        imagenet: timm's name of the ImageNet whose classes the head has, if it stores no names; else "".
        fetched_from: the repository of the Hub or the address behind `source`; "" for local files.
    """

    state: dict[str, Tensor]
    architecture: Architecture
    preprocessing: dict | None
    class_names: tuple[str, ...] | None
    source: str
    format: str
    numerics: str
    metadata: dict
    preprocessing_from: str = STORED
    imagenet: str = ""
    fetched_from: str = ""

    @property
    def licence(self) -> str:
        """Return the name of the licence of the weights, or "unknown"."""
        return self.metadata.get(licences.KEY, licences.UNKNOWN)

    @property
    def readable_class_names(self) -> tuple[str, ...]:
        """Return a name of each class to read: stored, ImageNet's, or `class K`; not all unique."""
        if self.class_names:
            return self.class_names
        if self.imagenet:
            return imagenet.class_names(self.imagenet)
        return tuple(f"class {k}" for k in range(self.architecture.num_classes))


def read_weights(
    ckpt: str, *, model_name: str | None = None, gelu: str | None = None, quiet: bool = False
) -> Weights:
    """Read any form of --ckpt, downloaded if necessary.

    The architecture comes from the file's metadata, else from the names and shapes of the tensors, else from
    `model_name`, which must agree with the others. A file without the head is a network without one.

    Args:
        gelu: form of the GELU to compute with; None for the weights' own.
        quiet: show no download, and no note of how a short name was read.

    Raises:
        WeightsError: the first problem that `diagnose` finds.
    """
    diagnosis = diagnose(ckpt, model_name=model_name, progress=Progress(quiet=quiet), stop_at_problem=True)
    info, place = diagnosis.info, public_name(diagnosis.source.name)
    assert info is not None, "its absence is a problem"
    weights = Weights(state=diagnosis.state, source=ckpt, fetched_from=place, **info._asdict())
    if gelu is None:
        return weights
    arch = weights.architecture
    # It refuses a GELU that the network cannot have; the head stays as it is
    adapted(arch, image_size=arch.image_size, num_classes=arch.num_classes, gelu=gelu)
    return replace(
        weights, architecture=replace(arch, gelu=gelu), numerics=f"{gelu} GELU, as the recipe says"
    )


def read_description(ckpt: str, *, model_name: str | None = None, quiet: bool = False) -> WeightsInfo:
    """Read what any form of --ckpt is without its numbers: names and shapes of the tensors, and the metadata.

    Args:
        quiet: show no download; how a short name was read is noted by `read_weights`.

    Raises:
        WeightsError: no such file, or its network is unknown.
    """
    with attribute_errors_to(ckpt):
        source = locate(ckpt, Progress(quiet=quiet), with_note=False)
        content = in_timms_naming(read_source(source, values=False))
        return describe(source, content, model_name)


def write_weights(folder: Path, state: dict[str, Tensor], description: WeightsInfo) -> None:
    """Write model.safetensors and config.json, which `read_weights` and timm's "local-dir:" both read.

    The header of model.safetensors holds all metadata too, so that the file is complete on its own.

    Raises:
        NotFiniteError: a tensor holds NaN or infinity; nothing is written.
        MachineError: the disk is full or the folder is not writable; no file is ever half written.
    """
    write_weights_file(folder / "model.safetensors", state, description)
    write_config(folder, description)


def write_config(folder: Path, description: WeightsInfo) -> None:
    """Write the config.json of weights that stand, or will stand, in the folder or its checkpoints."""
    assert description.preprocessing, "timm's transform follows from it"
    config = timm_config(description.architecture, description.preprocessing, description.class_names)
    if licence := description.metadata.get(licences.KEY):
        config["pretrained_cfg"][licences.KEY] = licence
    # People read config.json, and two lines of digests for each image are nothing to read.
    readable = {key: value for key, value in description.metadata.items() if key not in ONLY_IN_THE_FILE}
    write_json(folder / "config.json", config | {"vit": description._replace(metadata=readable).as_dict()})


def write_weights_file(file: Path, state: dict[str, Tensor], description: WeightsInfo) -> None:
    """Write one .safetensors file; raises as `write_weights` does."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    try:
        check_finite(tensors)
    except WeightsError as error:
        fix = "go back to the last good checkpoint"
        raise NotFiniteError(error.message, where=str(file), fix=fix) from error
    text = json.dumps(description.as_dict())
    header = {"format": "pt", "vit": text, CHECKSUM: checksum_of(tensors, text)}
    replace_file(file, lambda path: write_safetensors(path, tensors, header))


def digest_of(tensors: dict[str, Any]) -> str:
    """Return a digest of named tensors: names, types, shapes and values."""
    digest = blake2b(digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
