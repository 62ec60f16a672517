"""Weights files: their tensors and metadata read with care, and written reproducibly.

Files are untrusted: never unpickle, bound decompression, reject duplicate JSON keys, and turn any parser
exception into a WeightsError. describe.py finds out what the tensors are.
"""

import io
import json
import math
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
import xxhash
from numpy.lib import format as npy
from safetensors import safe_open
from torch import Tensor

from vitcli.errors import MachineError, VitError, WeightsError, is_out_of_memory, reason_of
from vitcli.io.files import open_regular, parse_json
from vitcli.output.atomic import load_json
from vitcli.output.text import first_few
from vitcli.weights import adapters
from vitcli.weights.authors_npz import from_official, is_official
from vitcli.weights.download import shard_names
from vitcli.weights.huggingface import from_huggingface, is_huggingface
from vitcli.weights.names import FORMATS, INDEX

MAX_EXPANSION = 10  # trained weights hardly compress; an archive that grows more than this is a bomb
MOST_PICKLED_BYTES = 2**20  # names and shapes of 7,000 tensors; as objects they may take 60 times that
# Averaged weights first, as in timm; I-JEPA's are its "encoder"
NESTED = ("state_dict_ema", "model_ema", "state_dict", "model", "encoder")
MOST_TENSORS, MOST_KEYS = 10_000, 100_000  # of a network, and of an object in JSON
MOST_HEADER_BYTES = 2**25  # our metadata of images and features may take 20 MB
# Names of types in safetensors, in ascending order of its layout.
DTYPES = {torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.float16: "F16",
          torch.bfloat16: "BF16", torch.int32: "I32", torch.float32: "F32", torch.float64: "F64",
          torch.int64: "I64"}  # fmt: skip
STORED_AS = {dtype: (name, place) for place, (dtype, name) in enumerate(DTYPES.items())}
CHECKSUM = "checksum"  # of numbers and the metadata vit, in files that vit has written
WRAPPERS = ("module.", "_orig_mod.")  # of DistributedDataParallel and torch.compile


class StoredTensors(NamedTuple):
    """Contents of a file under its own names, shapes and dtypes.

    Attributes:
        spelling: of the names: "timm", "official" or "huggingface".
        vit: our metadata, or {}.
        has_values: whether the tensors hold numbers, and not only their shapes.
        arrays: the contents of an npz, in the place of tensors.
    """

    tensors: dict[str, Tensor]
    spelling: str
    vit: dict
    has_values: bool = True
    arrays: Mapping[str, np.ndarray] = MappingProxyType({})


class WeightsContent(NamedTuple):
    """`StoredTensors` in timm's naming.

    Attributes:
        state: float32 where they are floating-point.
        heads: number of attention heads, if the file shows it.
        unused: tensors that no classifier uses, such as the pooler of Hugging Face's ViTModel.
    """

    state: dict[str, Tensor]
    spelling: str
    heads: int | None
    vit: dict
    unused: tuple[str, ...] = ()


@contextmanager
def attribute_errors_to(source: str) -> Iterator[None]:
    """Turn errors into WeightsErrors that name `source` as their place; MachineErrors keep their type."""
    try:
        yield
    except VitError as error:
        where = source if error.where in ("", source) else f"{source}: {error.where}"
        kind = type(error) if isinstance(error, MachineError) else WeightsError
        raise kind(error.message, where=where, fix=error.fix) from error


def file_error(message: str, *, fix: str = "fetch or write the file again") -> WeightsError:
    """Return the error of a file, which `attribute_errors_to` names."""
    return WeightsError(message, where="", fix=fix)


def read_stored(path: Path, *, values: bool = True) -> StoredTensors:
    """Read the tensors of one file, or of a list of shards; WeightsError if it holds no readable weights.

    Args:
        values: read the numbers; otherwise the tensors have their shapes alone, on the meta device.
    """
    if path.name.endswith(INDEX):
        return _read_shards(path, values)._replace(has_values=values)
    with as_weights_error(path.name):
        open_regular(path).close()  # no pipe, which would be waited for
    readers = {"safetensors": _read_safetensors, "official npz": _read_npz, "pth": _read_pth}
    return readers[FORMATS[path.suffix]](path, values)._replace(has_values=values)


def stored_files(path: Path) -> list[Path]:
    """Return the files that hold the tensors: the file itself, or the shards of a list."""
    return [path.with_name(name) for name in shard_names(path)] if path.name.endswith(INDEX) else [path]


def _read_shards(index: Path, values: bool) -> StoredTensors:
    """Read the tensors of all shards; each must be in the shard that the list names, and in no other."""
    state: dict[str, Tensor] = {}
    listed = load_json(index)["weight_map"]
    for shard in stored_files(index):
        if not shard.is_file():
            fix = "fetch all of its shards"
            raise file_error(f"{index.name} names {shard.name}, which is missing", fix=fix)
        tensors = read_stored(shard, values=values).tensors
        if wrong := [name for name in tensors if listed.get(name) != shard.name]:
            raise file_error(f"{shard.name} holds {first_few(wrong)}, which {index.name} has elsewhere")
        state |= tensors
    if missing := [name for name in listed if name not in state]:
        raise file_error(f"the shards of {index.name} lack {first_few(missing)}")
    return StoredTensors(state, _spelling(state), {})


def in_timms_naming(stored: StoredTensors) -> WeightsContent:
    """Convert the tensors to timm's naming; WeightsError where an expected one is missing."""
    state, heads = stored.tensors, None
    unused: tuple[str, ...] = ()
    if stored.arrays:
        state, heads = from_official(stored.arrays, device="cpu" if stored.has_values else "meta")
    elif stored.spelling == "huggingface":
        state, unused = from_huggingface(state)
    else:
        with as_weights_error("the adapters"):
            state = adapters.merged(state)
    state = {name: t.float() if t.is_floating_point() else t for name, t in state.items()}
    return WeightsContent(state, stored.spelling, heads, stored.vit, unused)


def write_safetensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors and metadata, always to the same bytes, in the order of safetensors.

    safetensors 0.8 writes metadata in random order, leaves a file of a random name where it is killed, and
    does not hear of errors on closing, the only ones that some network file systems report.

    Raises:
        OSError: the disk is full, or fails.
    """
    ordered = sorted(tensors.items(), key=lambda item: (-STORED_AS[item[1].dtype][1], item[0]))
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    end = 0
    for name, tensor in ordered:
        first, end = end, end + tensor.numel() * tensor.element_size()
        dtype, _ = STORED_AS[tensor.dtype]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [first, end]}
    encoded = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    encoded = encoded.ljust(-(-len(encoded) // 8) * 8)  # tensors start at multiples of 8
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for _, tensor in ordered:
            file.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)


def write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write arrays as numpy.savez does but without timestamps, always to the same bytes."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                npy.write_array(member, array, allow_pickle=False)


@contextmanager
def as_weights_error(what: str) -> Iterator[None]:
    """Turn any parser exception into a WeightsError."""
    try:
        yield
    except VitError:
        raise
    except PermissionError as error:
        raise MachineError(f"no permission to read {what}", where="", fix="change its permissions") from error
    except Exception as error:
        if is_out_of_memory(error):  # of this machine, not of the file
            raise
        raise file_error(f"{what} cannot be read: {reason_of(error)}") from error


def _read_safetensors(path: Path, values: bool) -> StoredTensors:
    with as_weights_error("the safetensors file"):
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(path.stat().st_size, MOST_HEADER_BYTES):
                most = f"{MOST_HEADER_BYTES:,} bytes"
                raise file_error(f"the header is longer than the file or than {most}")
            header = file.read(length)
            # One brace for each tensor: to be counted before it is parsed
            if (count := header.count(b"{")) > MOST_TENSORS:
                raise file_error(f"the header names about {count:,} tensors, more than any network has")
            parse_json(header, object_pairs_hook=no_repeated_keys)
        with safe_open(path, framework="pt") as opened:
            metadata = opened.metadata() or {}
            text = metadata.get("vit", "{}")
            stored = parse_json(text, object_pairs_hook=no_repeated_keys)
            read = opened.get_tensor if values else lambda name: _empty(opened.get_slice(name))
            state = {name: read(name) for name in opened.keys()}  # noqa: SIM118  not a mapping
        if values and metadata.get(CHECKSUM, "") not in ("", checksum_of(state, text)):
            fix = f"take another copy; if you have changed it yourself, leave out the metadata {CHECKSUM!r}"
            raise file_error("checksum mismatch: the file was modified or damaged", fix=fix)
    if not isinstance(stored, dict):
        raise file_error("the metadata named vit is not an object")
    return StoredTensors(state, _spelling(state), stored)


def checksum_of(tensors: dict[str, Tensor], text: str) -> str:
    """Return a checksum of all numbers, names, shapes and types, and of a text."""
    digest = xxhash.xxh3_128(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _empty(stored: Any) -> Tensor:
    """Return a tensor on the meta device for a slice that safetensors has not read."""
    is_float = "F" in stored.get_dtype()  # F32, BF16, F8_E4M3; not I64, U8, BOOL
    dtype = torch.float32 if is_float else torch.int64
    return torch.empty(stored.get_shape(), dtype=dtype, device="meta")


def _read_npz(path: Path, values: bool) -> StoredTensors:
    with as_weights_error("the npz file"):
        shapes = _check_archive(path)
        with np.load(path, allow_pickle=False) as archive:
            if not is_official(archive.files):
                raise file_error("the array names are not those of the authors' code")
            arrays = {name: archive[name] if values else shapes[name] for name in archive.files}
    return StoredTensors({}, "official", {}, arrays=arrays)


def _read_pth(path: Path, values: bool) -> StoredTensors:
    with as_weights_error("the file"), _FewPickledBytes(io.FileIO(path)) as file:
        is_archive = zipfile.is_zipfile(path)
        num_bytes = _check_pth_archive(path) if is_archive else path.stat().st_size
        # A mapped file is read where its numbers are used; archives of torch < 1.6 cannot be mapped.
        source, is_mapped = (path, not values) if is_archive else (file, False)
        try:
            with warnings.catch_warnings(action="ignore"):  # torch warns about files that it then refuses
                loaded = torch.load(source, map_location="cpu", weights_only=True, mmap=is_mapped)
        except Exception as error:
            if isinstance(error, VitError) or is_out_of_memory(error):
                raise
            fix = "ask its author for a .safetensors file, or save the bare state dict with torch.save"
            message = "the file is broken, or holds more than tensors and so could run code; nothing was run"
            raise file_error(message, fix=fix) from error
    nested = (loaded[key] for key in NESTED if isinstance(loaded, dict) and isinstance(loaded.get(key), dict))
    state = next(nested, loaded)
    if not isinstance(state, dict) or not state or not all(isinstance(t, Tensor) for t in state.values()):
        raise file_error("the file holds no state dict")
    if odd := [str(name) for name, t in state.items() if t.layout != torch.strided or t.is_quantized]:
        raise file_error(f"{first_few(odd)} is not a dense tensor of plain numbers")
    # Strides of 0 make terabytes of one number, and many names may share one storage
    if (claimed := sum(tensor.numel() * tensor.element_size() for tensor in state.values())) > num_bytes:
        raise file_error(f"its tensors claim {claimed:,} bytes, more than the {num_bytes:,} that are stored")
    state = _unwrap(state if values else {name: tensor.to("meta") for name, tensor in state.items()})
    return StoredTensors(state, _spelling(state), {})


def _check_pth_archive(path: Path) -> int:
    """Return the bytes of all members of a .pth; refuse one that grows, or whose pickle is large."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    for member in members:
        if member.filename.lower().endswith("data.pkl") and member.file_size > MOST_PICKLED_BYTES:
            what = f"{member.filename} has {member.file_size:,} bytes"
            raise file_error(f"{what}, more than the names and shapes of any network")
    _check_growth(path, total := sum(member.file_size for member in members))
    return total


class _FewPickledBytes(io.BufferedReader):
    """A file of torch < 1.6, which begins with pickles: these may take memory 60 times their size.

    torch reads pickles by these two methods, and the numbers behind them by the file descriptor.
    """

    num_pickled = 0

    def read(self, size: int | None = -1) -> bytes:
        return self._counted(super().read(size))

    def readline(self, size: int | None = -1) -> bytes:
        return self._counted(super().readline(size))

    def _counted(self, content: bytes) -> bytes:
        self.num_pickled += len(content)
        if self.num_pickled > MOST_PICKLED_BYTES:
            raise file_error(f"it begins with more than {MOST_PICKLED_BYTES:,} bytes that are not numbers")
        return content


def _spelling(state: dict[str, Tensor]) -> str:
    return "huggingface" if is_huggingface(state) else "timm"


def _unwrap(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remove the prefixes of wrappers from the names."""
    unwrapped = {}
    for name, tensor in state.items():
        bare = str(name)
        while wrapper := next((w for w in WRAPPERS if bare.startswith(w)), None):
            bare = bare.removeprefix(wrapper)
        if bare in unwrapped:
            raise file_error(f"the tensor {bare} is stored twice, once inside a wrapper")
        unwrapped[bare] = tensor
    return unwrapped


def _check_archive(path: Path) -> dict[str, np.ndarray]:
    """Refuse Python objects in an npz, and arrays whose size is not that of their header, unread.

    Return arrays of these shapes and types, by name, that hold one zero each.
    """
    total, shapes = 0, {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                is_first_version = npy.read_magic(file) == (1, 0)
                read_header = npy.read_array_header_1_0 if is_first_version else npy.read_array_header_2_0
                shape, _, dtype = read_header(file)
                if dtype.hasobject:
                    raise file_error(
                        f"the array {member.filename} holds Python objects, which could run code"
                    )
                if math.prod(shape) * dtype.itemsize != member.file_size - file.tell():
                    raise file_error(f"{member.filename} does not have the size in its header")
            total += member.file_size
            shapes[member.filename.removesuffix(".npy")] = np.broadcast_to(np.zeros((), dtype), shape)
    _check_growth(path, total)
    return shapes


def _check_growth(path: Path, num_bytes: int) -> None:
    if num_bytes > MAX_EXPANSION * path.stat().st_size:
        raise file_error(f"{path.stat().st_size} bytes would unpack to {num_bytes}")


def no_repeated_keys(pairs: list[tuple]) -> dict:
    if len(pairs) > MOST_KEYS:
        raise file_error(f"a JSON object has {len(pairs):,} keys, more than {MOST_KEYS:,}")
    if len(dict(pairs)) < len(pairs):
        raise file_error("a JSON key is stored twice")
    return dict(pairs)
