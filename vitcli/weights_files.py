"""Where weights lie and what the bytes hold: a --ckpt string to a file, a file to tensors, tensors to a file.

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

from vitcli.conversion import from_official, is_official, num_heads
from vitcli.errors import MachineError, VitError, WeightsError, nearest

DEMO_FOLDER = Path(__file__).parent / "demo_weights"
FORMS = "a run folder, a .safetensors, .npz or .pth file, timm/NAME.TAG, hf-hub:OWNER/NAME, or demo"
WEIGHTS_FILES = ("model.safetensors", "pytorch_model.bin")
FORMATS = {".safetensors": "safetensors", ".npz": "official npz", ".pth": "pth", ".pt": "pth", ".bin": "pth"}
MAX_EXPANSION = 100  # trained weights hardly compress; an archive that grows more than this is a bomb
NESTED = (
    "state_dict_ema",
    "model_ema",
    "state_dict",
    "model",
)  # the average before the raw weights, as timm does
WRAPPERS = ("module.", "_orig_mod.")  # of DistributedDataParallel and torch.compile


class Place(NamedTuple):
    """Where the weights lie: the file, timm's config.json with it (or {}), its format, its tag (or "")."""

    file: Path
    config: dict
    format: str
    tag: str


class Content(NamedTuple):
    """What a file holds: tensors in timm's naming, the number of heads if it tells, our metadata (or {})."""

    state: dict[str, Tensor]
    heads: int | None
    vit: dict


@contextmanager
def blaming(source: str) -> Iterator[None]:
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


def locate(ckpt: str) -> Place:
    """The file behind any form of --ckpt, fetched from the hub if it lies there."""
    if ckpt == "demo":
        if not DEMO_FOLDER.is_dir():
            raise WeightsError(
                "this installation has no demo weights", where="", fix="install the released package"
            )
        return _in_folder(DEMO_FOLDER, format="demo", tag="")
    path = Path(ckpt)
    if ckpt.startswith("hf-hub:") or (ckpt.startswith("timm/") and not path.exists()):
        repository, _, revision = ckpt.removeprefix("hf-hub:").partition("@")
        tag = repository.partition(".")[2] if repository.startswith("timm/") else ""
        return _in_folder(_download(repository, revision or None), format="hub repository", tag=tag)
    if path.is_dir():
        return _in_folder(path, format="timm folder", tag="")
    if not path.exists():
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        hint = nearest(path.name, siblings)
        raise WeightsError(f"there is no {ckpt}{hint}", where="", fix=f"--ckpt takes {FORMS}")
    if path.suffix not in FORMATS:
        raise WeightsError(
            f"{path.name} is no weights file by its name", where="", fix=f"--ckpt takes {FORMS}"
        )
    config = _config(path.with_name("config.json")) if path.suffix == ".safetensors" else {}
    return Place(path, config, FORMATS[path.suffix], "")


def read_file(path: Path) -> Content:
    """The tensors of one file, float32 where they are numbers with a point."""
    readers = {"safetensors": _read_safetensors, "official npz": _read_npz, "pth": _read_pth}
    content = readers[FORMATS[path.suffix]](path)
    state = {name: t.float() if t.is_floating_point() else t for name, t in content.state.items()}
    return content._replace(state=state)


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


@contextmanager
def parsing(what: str) -> Iterator[None]:
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


def _in_folder(folder: Path, *, format: str, tag: str) -> Place:
    file = next((folder / name for name in WEIGHTS_FILES if (folder / name).is_file()), None)
    if file is None:
        raise WeightsError(
            f"the folder holds no {' and no '.join(WEIGHTS_FILES)}",
            where="",
            fix="let the run finish first; its resumable checkpoints are for resuming",
        )
    return Place(file, _config(folder / "config.json"), format, tag)


def _config(path: Path) -> dict:
    """A config.json of timm's kind; {} if there is none or it is some other tool's."""
    if not path.is_file():
        return {}
    with parsing("config.json"):
        config = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_no_repeated_keys)
    return config if isinstance(config, dict) and isinstance(config.get("architecture"), str) else {}


def _download(repository: str, revision: str | None) -> Path:
    """The repository's config and weights in the hub's cache; the folder both lie in."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        config = hf_hub_download(repository, "config.json", revision=revision)
        try:
            hf_hub_download(repository, "model.safetensors", revision=revision)
        except EntryNotFoundError:  # offline it also means: not in the cache
            hf_hub_download(repository, "pytorch_model.bin", revision=revision)
    except Exception as error:  # the hub's own, the connection's, a name that is none
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise WeightsError(
            f"the weights could not be had from the hub: {reason}",
            where="",
            fix="check the name and the connection; offline, only what is in the hub's cache can be used",
        ) from error
    return Path(config).parent


def _read_safetensors(path: Path) -> Content:
    with parsing("the safetensors file"):
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(path.stat().st_size, 100_000_000):
                raise broken("the header is longer than the file or than 100 MB")
            json.loads(file.read(length), object_pairs_hook=_no_repeated_keys)
        with safe_open(path, framework="pt") as opened:
            stored = json.loads(
                (opened.metadata() or {}).get("vit", "{}"), object_pairs_hook=_no_repeated_keys
            )
            state = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  not a mapping
    if not isinstance(stored, dict):
        raise broken("the metadata named vit is no object")
    return Content(state, None, stored)


def _read_npz(path: Path) -> Content:
    with parsing("the npz file"):
        _check_archive(path)
        with np.load(path, allow_pickle=False) as archive:
            if not is_official(archive.files):
                raise broken("the array names are not those of the authors' code")
            arrays = {name: archive[name] for name in archive.files}
    return Content(from_official(arrays), num_heads(arrays), {})


def _read_pth(path: Path) -> Content:
    with parsing("the file"):
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
    for wrapper in WRAPPERS:
        state = {str(name).removeprefix(wrapper): tensor for name, tensor in state.items()}
    return Content(state, None, {})


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


def _no_repeated_keys(pairs: list[tuple]) -> dict:
    if len(dict(pairs)) < len(pairs):
        raise broken("a JSON key is there twice")
    return dict(pairs)
