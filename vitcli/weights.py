"""Weights files: every form that --ckpt takes to one `Weights`, into a network, and back to disk.

Nothing in a file is ever executed, nothing is loaded in part without a word, and what is written is whole or absent.
"""

import json
import math
import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import timm
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from vitcli.conversion import from_official, from_timm_config, is_official, num_heads, recognise
from vitcli.errors import MachineError, NotFiniteError, VitError, WeightsError, nearest
from vitcli.model import architecture, expected_tensors, head_names, timm_arguments
from vitcli.posemb import resample_grid
from vitcli.variants import Architecture, find_variant, variant_of_timm

DEMO_FOLDER = Path(__file__).parent / "demo_weights"
FORMS = "a run folder, a .safetensors, .npz or .pth file, timm/NAME.TAG, hf-hub:OWNER/NAME, or demo"
WEIGHTS_FILES = ("model.safetensors", "pytorch_model.bin")
MAX_EXPANSION = 100  # trained weights hardly compress; an archive that grows more than this is a bomb
NESTED = ("state_dict_ema", "model_ema", "state_dict", "model")  # the average before the raw weights, as timm does
WRAPPERS = ("module.", "_orig_mod.")  # of DistributedDataParallel and torch.compile
FACTORY_OPTIONS = {  # of timm.create_model itself; in a file they could make it read other files
    "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "pretrained_model_args", "pretrained_strict",
    "pretrained_filter_fn", "checkpoint_path", "cache_dir", "scriptable", "exportable", "no_jit", "features_only",
    "device", "dtype", "weight_init", "num_classes",
}  # fmt: skip


@dataclass(frozen=True)
class Weights:
    """Tensors, and everything known about them.

    Attributes:
        state: float32 tensors in timm's naming (model.py says what differs), every number finite.
        architecture: as stored or recognised, at the resolution the weights have; `state` fits it exactly.
        preprocessing: stored with the weights, in the words of `transforms.Preprocessing`; None for a raw file.
        class_names: in the order of the logits.
        source: as the user gave it.
        format: what kind of file or folder it was.
        numerics: which GELU the weights get and why.
        metadata: whatever else was stored.
    """

    state: dict[str, Tensor]
    architecture: Architecture
    preprocessing: dict | None
    class_names: tuple[str, ...] | None
    source: str
    format: str
    numerics: str
    metadata: dict


@dataclass(frozen=True)
class LoadReport:
    """What became of each tensor: `loaded` counts those taken, resampled ones included."""

    loaded: int
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    resampled: tuple[str, ...]
    replaced: tuple[str, ...]

    def lines(self) -> list[str]:
        """For a person, one line for each kind there is."""
        kinds = {
            "not in the file, so fresh": self.missing,
            "only in the file, so left out": self.unexpected,
            "resampled": self.resampled,
            "replaced by a fresh head": self.replaced,
        }
        return [f"{self.loaded} tensors loaded"] + [f"{k}: {', '.join(names)}" for k, names in kinds.items() if names]


class _Place(NamedTuple):
    file: Path
    config: dict  # parsed config.json of timm's kind, or empty
    format: str
    tag: str  # of a repository timm/NAME.TAG


class _Content(NamedTuple):
    state: dict[str, Tensor]
    heads: int | None  # where the file tells
    vit: dict  # our own metadata, or empty


def read_weights(ckpt: str, *, model_name: str | None = None) -> Weights:
    """Read any form of --ckpt.

    The architecture comes from the file's metadata, else from the tensors' names and shapes, else from
    `model_name`; where both speak, they must agree.

    Raises:
        WeightsError: no such file, a broken or hostile one, a number that is not finite, tensors that do not fit.
    """
    with _blaming(ckpt):
        place = _locate(ckpt)
        content = _readers()[place.file.suffix](place.file)
        vit = content.vit or place.config.get("vit") or {}
        preprocessing, class_names, metadata = None, None, {}
        if vit:
            arch, numerics = Architecture.from_dict(vit.get("architecture") or {}), "as stored with the weights"
            preprocessing, metadata = vit.get("preprocessing"), vit.get("metadata") or {}
            class_names = tuple(vit["class_names"]) if vit.get("class_names") else None
        elif place.config:
            with _parsing("config.json"):
                arch, preprocessing, class_names = from_timm_config(place.config, tag=place.tag)
            numerics = f"weights tagged {place.tag}" if arch.gelu == "tanh" else "timm's own definition"
            metadata = {"config": place.config}
        else:
            arch = _from_tensors(content, model_name)
            numerics = "official file" if place.format == "official npz" else "bare file of the paper's architecture"
            numerics = numerics if arch.gelu == "tanh" else "timm's own definition"
        _check_trusted(arch)
        _check_agrees(arch, model_name)
        _check_fits(content.state, expected_tensors(arch), arch)
        _check_finite(content.state)
        if class_names and len(class_names) != arch.num_classes:
            raise _broken(f"{len(class_names)} class names are stored for {arch.num_classes} classes")
        gelu = {"tanh": "tanh GELU", "erf": "exact (erf) GELU", "timm": "GELU as timm has it"}[arch.gelu]
    format_ = "run folder" if vit and place.format == "timm folder" else place.format
    state = content.state
    return Weights(
        state, arch, preprocessing, class_names, ckpt, format_, f"{gelu}: {numerics}", metadata
    )


def load_into(model: nn.Module, arch: Architecture, weights: Weights, *, new_head: bool) -> LoadReport:
    """Copy weights into a network that `build(arch)` made, position embeddings resampled to its patch grid.

    Args:
        model: changed in place.
        arch: what `model` was built from.
        weights: of the same network, at any resolution.
        new_head: leave the network's own head as it is, and the file's head out.

    Raises:
        WeightsError: any tensor is missing, left over or of another shape.
    """
    state, expected = dict(weights.state), {name: t.shape for name, t in model.state_dict().items()}
    resampled, missing, replaced = [], [], []
    with _blaming(weights.source):
        old_grid, new_grid = weights.architecture.patch_grid, arch.patch_grid
        if "pos_embed" in state and "pos_embed" in expected and old_grid and new_grid and old_grid != new_grid:
            state["pos_embed"] = _regrid(state["pos_embed"], old_grid, new_grid)
            resampled.append(f"pos_embed ({'x'.join(map(str, old_grid))} to {'x'.join(map(str, new_grid))} patches)")
        if new_head:
            of_head = head_names(arch)
            replaced = [name for name in state if name.startswith(of_head)]
            missing = [] if replaced else [name for name in expected if name.startswith(of_head)]
            state = {name: t for name, t in state.items() if not name.startswith(of_head)}
            expected = {name: shape for name, shape in expected.items() if not name.startswith(of_head)}
        _check_fits(state, expected, arch)
    model.load_state_dict(state, strict=False)  # what it may lack is the head, checked above
    return LoadReport(len(state), tuple(missing), (), tuple(resampled), tuple(replaced))


def write_weights(
    folder: Path,
    state: dict[str, Tensor],
    arch: Architecture,
    *,
    preprocessing: dict,
    class_names: tuple[str, ...] | None,
    metadata: dict,
) -> None:
    """Write model.safetensors and config.json, which `read_weights` and timm's "local-dir:" both read.

    All we store is in the header of model.safetensors too, so the file can travel alone.

    Raises:
        NotFiniteError: a tensor holds NaN or infinity; nothing is written.
        MachineError: the disk is full or the folder may not be written; the files that were there are as they were.
    """
    vit = {
        "architecture": arch.as_dict(),
        "preprocessing": preprocessing,
        "class_names": list(class_names) if class_names else None,
        "metadata": metadata,
    }
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    try:
        _check_finite(tensors)
    except WeightsError as error:
        raise NotFiniteError(error.message, where=str(folder), fix="go back to the last good checkpoint") from error
    config = json.dumps(_timm_config(arch, vit), indent=2)
    header = {"format": "pt", "vit": json.dumps(vit)}
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / "model.safetensors", lambda path: save_file(tensors, path, metadata=header))
    _replace(folder / "config.json", lambda path: path.write_text(config + "\n"))


def _timm_config(arch: Architecture, vit: dict) -> dict:
    """What timm's "local-dir:" reads; it ignores the key "vit"."""
    known = timm.models.get_pretrained_cfg(arch.timm_name)
    stored = known.to_dict(remove_source=True) if known else {}
    seen = vit["preprocessing"]
    stored = {key: value for key, value in stored.items() if not key.startswith(("label", "test_", "min_", "tag"))}
    stored |= {
        "architecture": arch.timm_name,
        "custom_load": False,
        "input_size": [3, *arch.image_size],
        "num_classes": arch.num_classes,
        "pool_size": None,
        "interpolation": seen["interpolation"],
        "crop_pct": seen["crop_fraction"] if seen["resize"] == "short_side" else 1.0,
        "crop_mode": "squash" if seen["resize"] == "square" else "center",
        "mean": seen["mean"],
        "std": seen["std"],
    }
    labels = {"label_names": vit["class_names"]} if vit["class_names"] else {}
    top = {"architecture": arch.timm_name, "num_classes": arch.num_classes, **labels}
    return {**top, "model_args": timm_arguments(arch), "pretrained_cfg": stored, "vit": vit}


def _replace(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file under an unpredictable name beside it, make it safe on the disk, then rename."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        write(Path(name))
        for safe in (name, path.parent):
            handle = os.open(safe, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)
        os.replace(name, path)
    except Exception as error:  # safetensors has its own errors for a full disk
        raise MachineError(f"{path.name} was not written: {error}", where=str(path), fix="make room") from error
    finally:
        Path(name).unlink(missing_ok=True)
