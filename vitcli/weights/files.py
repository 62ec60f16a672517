"""What the bytes of a weights file hold: a file to tensors, tensors to a file.

Every byte is a stranger's: no pickle is run, no archive may grow without bound, no JSON key may repeat, and
what a parser trips over becomes a WeightsError. What the tensors mean is weights.py's question.
"""

import json
import math
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from vitcli.errors import MachineError, VitError, WeightsError
from vitcli.weights.huggingface import from_huggingface, is_huggingface
from vitcli.weights.jax import from_official, is_official

FORMATS = {".safetensors": "safetensors", ".npz": "official npz", ".pth": "pth", ".pt": "pth", ".bin": "pth"}
MAX_EXPANSION = 100  # trained weights hardly compress; an archive that grows more than this is a bomb
NESTED = (
    "state_dict_ema",
    "model_ema",
    "state_dict",
    "model",
)  # the average before the raw weights, as timm does
WRAPPERS = ("module.", "_orig_mod.")  # of DistributedDataParallel and torch.compile


class StoredTensors(NamedTuple):
    """What a file holds, as it stands there: its own names, shapes and dtypes.

    Attributes:
        tensors: arrays, where the file is an npz.
        spelling: whose names they have: "timm", "official" or "huggingface".
        vit: our metadata, or {}.
    """

    tensors: dict[str, Tensor] | dict[str, np.ndarray]
    spelling: str
    vit: dict


class WeightsContent(NamedTuple):
    """What a file holds, in our words.

    Attributes:
        state: tensors in timm's naming.
        spelling: whose names they had: "timm", "official" or "huggingface".
        heads: of the attention, if the file tells.
        vit: our metadata, or {}.
        unused: tensors that no classifier has a use for, such as the pooler of Hugging Face's ViTModel.
    """

    state: dict[str, Tensor]
    spelling: str
    heads: int | None
    vit: dict
    unused: tuple[str, ...] = ()


@contextmanager
def attribute_errors_to(source: str) -> Iterator[None]:
    """Whatever is wrong in here is wrong with `source`."""
    try:
        yield
    except VitError as error:
        where = source if error.where in ("", source) else f"{source}: {error.where}"
        kind = type(error) if isinstance(error, MachineError) else WeightsError
        raise kind(error.message, where=where, fix=error.fix) from error


def broken(message: str) -> WeightsError:
    """A file that cannot be what it should be; `blaming` adds which."""
    return WeightsError(message, where="", fix="fetch or write the file again")


def read_file(path: Path) -> WeightsContent:
    """The tensors of one file in timm's naming, float32 where they are numbers with a point."""
    return in_timms_naming(read_stored(path))


def read_stored(path: Path) -> StoredTensors:
    """The tensors of one file; WeightsError for one that cannot be read, or holds no weights."""
    readers = {"safetensors": _read_safetensors, "official npz": _read_npz, "pth": _read_pth}
    return readers[FORMATS[path.suffix]](path)


def in_timms_naming(stored: StoredTensors) -> WeightsContent:
    """The same in timm's naming; WeightsError where a name that another spelling needs is not there."""
    state, heads, unused = stored.tensors, None, ()
    if stored.spelling == "official":
        state, heads = from_official(state)
    elif stored.spelling == "huggingface":
        state, unused = from_huggingface(state)
    state = {name: t.float() if t.is_floating_point() else t for name, t in state.items()}
    return WeightsContent(state, stored.spelling, heads, stored.vit, unused)


def write_safetensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors and metadata; the same ones always give the same bytes.

    safetensors 0.8 writes metadata in an order of the moment, which would give equal runs unequal files.
    """
    save_file(tensors, path, metadata=metadata)
    with open(path, "r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        ordered = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        assert len(ordered) <= length, "reordering does not lengthen the header"
        file.seek(8)
        file.write(ordered.ljust(length))  # spaces at the end are the format's own padding


def write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write arrays as numpy.savez does, the same ones always to the same bytes: without the time of day."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


@contextmanager
def as_weights_error(what: str) -> Iterator[None]:
    """Anything a parser raises on a stranger's bytes means that the bytes are no good."""
    try:
        yield
    except VitError:
        raise
    except PermissionError as error:
        raise MachineError(f"{what} may not be read", where="", fix="ask for the right to read it") from error
    except Exception as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise broken(f"{what} cannot be read: {reason}") from error


def _read_safetensors(path: Path) -> StoredTensors:
    with as_weights_error("the safetensors file"):
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(path.stat().st_size, 100_000_000):
                raise broken("the header is longer than the file or than 100 MB")
            json.loads(file.read(length), object_pairs_hook=no_repeated_keys)
        with safe_open(path, framework="pt") as opened:
            stored = json.loads(
                (opened.metadata() or {}).get("vit", "{}"), object_pairs_hook=no_repeated_keys
            )
            state = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  not a mapping
    if not isinstance(stored, dict):
        raise broken("the metadata named vit is no object")
    return StoredTensors(state, _spelling(state), stored)


def _read_npz(path: Path) -> StoredTensors:
    with as_weights_error("the npz file"):
        _check_archive(path)
        with np.load(path, allow_pickle=False) as archive:
            if not is_official(archive.files):
                raise broken("the array names are not those of the authors' code")
            arrays = {name: archive[name] for name in archive.files}
    return StoredTensors(arrays, "official", {})


def _read_pth(path: Path) -> StoredTensors:
    with as_weights_error("the file"):
        if zipfile.is_zipfile(path):
            _check_growth(path, sum(member.file_size for member in zipfile.ZipFile(path).infolist()))
        try:
            with warnings.catch_warnings(action="ignore"):  # torch thinks aloud about files it then refuses
                loaded = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            raise WeightsError(
                "the file is broken, or holds more than tensors and so could run code; nothing in it was run",
                where="",
                fix="ask its author for a .safetensors file, or save the bare state dict with torch.save",
            ) from error
    nested = (loaded[key] for key in NESTED if isinstance(loaded, dict) and isinstance(loaded.get(key), dict))
    state = next(nested, loaded)
    if not isinstance(state, dict) or not state or not all(isinstance(t, Tensor) for t in state.values()):
        raise broken("the file holds no state dict")
    state = _unwrapped(state)
    return StoredTensors(state, _spelling(state), {})


def _spelling(state: dict[str, Tensor]) -> str:
    return "huggingface" if is_huggingface(state) else "timm"


def _unwrapped(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors without the names that wrappers put before theirs."""
    unwrapped = {}
    for name, tensor in state.items():
        bare = str(name)
        while wrapper := next((w for w in WRAPPERS if bare.startswith(w)), None):
            bare = bare.removeprefix(wrapper)
        if bare in unwrapped:
            raise broken(f"the tensor {bare} is there twice, once inside a wrapper")
        unwrapped[bare] = tensor
    return unwrapped


def _check_archive(path: Path) -> None:
    """Refuse, before any array is made, objects in an npz and arrays that are not as large as they say."""
    total = 0
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                version = np.lib.format.read_magic(file)
                read_header = {(1, 0): np.lib.format.read_array_header_1_0}.get(
                    version, np.lib.format.read_array_header_2_0
                )
                shape, _, dtype = read_header(file)
                if dtype.hasobject:
                    raise broken(f"the array {member.filename} holds Python objects, which could run code")
                if math.prod(shape) * dtype.itemsize != member.file_size - file.tell():
                    raise broken(f"the array {member.filename} is not as large as its header says")
            total += member.file_size
    _check_growth(path, total)


def _check_growth(path: Path, num_bytes: int) -> None:
    if num_bytes > MAX_EXPANSION * path.stat().st_size:
        raise broken(f"{path.stat().st_size} bytes would unpack to {num_bytes}")


def no_repeated_keys(pairs: list[tuple]) -> dict:
    if len(dict(pairs)) < len(pairs):
        raise broken("a JSON key is there twice")
    return dict(pairs)
