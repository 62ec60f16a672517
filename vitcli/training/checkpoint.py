"""Resumable checkpoints: the tensors of a step, and the folder that stores them whole or not at all.

A checkpoint holds no code and no pickle: tensors are safetensors, the rest is JSON. A sharded model has one
file of slices per process, which any number of processes can read. The folder is written under a temporary
name, each file is synced to disk, a manifest of sizes and SHA-256 hashes is added, and a rename publishes it;
only then are older ones deleted. So whatever interrupts a save, the newest saved checkpoint survives. Before
it is used, every byte is compared with the manifest.
"""

import json
import math
import os
import shutil
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from vitcli.distributed import fsdp, peers
from vitcli.distributed.transfer import Download
from vitcli.errors import MachineError, NotFiniteError, WeightsError, reason_of
from vitcli.output.atomic import TEMPORARY, digest_of_file, load_json, room_at, sync
from vitcli.output.leases import Superseded, fence
from vitcli.output.run_folder import CHECKPOINTS, checkpoint_folders, step_of_checkpoint
from vitcli.output.text import bytes_text, first_few
from vitcli.training.optim import is_fused
from vitcli.weights.files import write_safetensors

# "model", "optimizer" and, if weights are averaged, "average"; of a run with a probe head that as "start".
Tensors = dict[str, dict[str, Tensor]]

MANIFEST = "manifest.json"
WHOLE = "model.safetensors"  # present unless the model is sharded
SLOTS = {torch.optim.SGD: {"momentum_buffer"}, torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"}}
FORMAT = 1  # of checkpoints: what is in their state.json and their tensors
# Keys that every state.json has, and whether a value is one that is written.
STATE = {
    "fingerprint": lambda value: isinstance(value, dict) and {"train_data", "eval_data"} <= value.keys(),
    "metrics_bytes": lambda value: type(value) is int and value >= 0,
    "elapsed_s": lambda value: type(value) in (int, float) and math.isfinite(value) and value >= 0,
    "skipped": lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
    "scaler": lambda value: isinstance(value, dict),
    "fused": lambda value: type(value) is bool,
    "evaluation_due": lambda value: type(value) is bool,
}


@dataclass(frozen=True)
class Checkpoint:
    """All that step s + 1 needs besides the recipe.

    Attributes:
        state: counters, loss scaler, fingerprint and length of the metrics file, as JSON.
    """

    step: int
    tensors: Tensors
    state: dict[str, Any]


def copy_tensors(
    model: nn.Module, optimizer: torch.optim.Optimizer, average: dict[str, Tensor] | None
) -> Tensors:
    """Copy this process's tensors to main memory, so that training can continue while they are saved."""
    tensors = {"model": model.state_dict(), "optimizer": optimizer_tensors(model, optimizer)}
    if average is not None:
        tensors["average"] = average
    # All copies are queued before the first is waited for.
    values = [value.detach().contiguous() for value in flat(tensors).values()]
    copies = iter(Download(values).read())
    return {kind: {name: next(copies) for name in values} for kind, values in tensors.items()}


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state by parameter name: "blocks.0.attn.qkv.weight/momentum_buffer"."""
    return {
        f"{name}/{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if value is not None
    }


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Load the tensors of `optimizer_tensors`."""
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        name, _, slot = key.rpartition("/")
        parameter = parameters[name]
        # Everything lives with its parameter, but for Adam's step counter, which only a fused kernel reads.
        if slot == "step":
            value = value.to(parameter.device) if is_fused(optimizer) else value
        else:
            value = fsdp.sliced_like(value, parameter)
        optimizer.state[parameter][slot] = value


def place_in(model: nn.Module) -> fsdp.Place:
    """Return a function that allocates each stored tensor: sliced as the model's own are, or whole."""
    current = model.state_dict()

    def place(key: str, size: torch.Size, dtype: torch.dtype) -> Tensor:
        kind, _, name = key.partition("/")
        like = current.get(name.rpartition("/")[0] if kind == "optimizer" else name)
        is_alike = like is not None and like.shape == size
        return torch.empty_like(like, dtype=dtype) if is_alike else fsdp.whole_place(key, size, dtype)

    return place


def find_non_finite(tensors: Tensors) -> list[str]:
    """Return the names of tensors with non-finite values, such as "model/head.bias".

    A norm is finite only if all values are; values so large that their norm overflows count as non-finite.
    """
    floats = {name: fsdp.local(value) for name, value in flat(tensors).items() if value.is_floating_point()}
    norms = {name: torch.linalg.vector_norm(value) for name, value in floats.items()}
    return [name for name, norm in norms.items() if not torch.isfinite(norm)]


def check_finite(non_finite: list[str], step: int) -> None:
    """Raise NotFiniteError if `find_non_finite` named any tensor."""
    if non_finite:
        kind, _, name = non_finite[0].partition("/")
        raise NotFiniteError(
            f"the {kind} is no longer finite ({len(non_finite)} tensors, such as {name})",
            where=f"step {step}",
            fix="lower --lr, or set optimizer.clip, in a new --out",
        )


def flat(tensors: Tensors) -> dict[str, Tensor]:
    """Return one dictionary with keys such as "model/head.bias"."""
    return {f"{kind}/{name}": value for kind, values in tensors.items() for name, value in values.items()}


def by_kind(tensors_by_key: dict[str, Tensor]) -> Tensors:
    """Return the inverse of `flat`."""
    tensors: Tensors = {}
    for key, value in tensors_by_key.items():
        kind, _, name = key.partition("/")
        tensors.setdefault(kind, {})[name] = value
    return tensors


@peers.finishing()
def save(
    run_dir: Path, checkpoint: Checkpoint, *, keep: int, milestone_every: int, group: Any = None
) -> list[Path]:
    """Write a checkpoint, then delete all but the newest `keep` and the milestones.

    Args:
        milestone_every: multiples of this many steps are never deleted; 0 for none.
        group: of a sharded model, whose processes all call this with their slices, already checked to be
            finite; the first process writes everything else.

    Returns:
        Those that could not be deleted.

    Raises:
        MachineError: the disk is full or not writable; earlier checkpoints are kept.
        NotFiniteError: a tensor is not finite; nothing is written.
    """
    step, folder = checkpoint.step, _home(run_dir)
    temporary = folder / f"{TEMPORARY}{step}-{'slices' if group else os.getpid()}"
    if group is None:
        check_finite(find_non_finite(checkpoint.tensors), step)
    try:
        if group is not None:
            fsdp.write_slices(temporary, flat(checkpoint.tensors), group)
            if dist.get_rank(group):
                return []
        else:
            folder.mkdir(exist_ok=True)
            sync(run_dir)  # the name of the folder that has just been made
            temporary.mkdir()
            for name, values in checkpoint.tensors.items():
                write_safetensors(temporary / f"{name}.safetensors", values)

        # Publish the folder by a rename, once every byte is on disk.
        (temporary / "state.json").write_text(
            json.dumps({"format": FORMAT, "step": step, **checkpoint.state})
        )
        write_manifest(temporary)
        saved, retired = folder / _name(step), []
        fence(saved)
        if saved.exists():
            retired = [saved.rename(_retired(saved))]
        temporary.rename(saved)
        sync(folder)
    except (OSError, SafetensorError, Superseded) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, Superseded):
            raise
        num_bytes = sum(fsdp.local(value).nbytes for value in flat(checkpoint.tensors).values())
        raise _cannot_write(folder, error, num_bytes) from error

    # Delete older checkpoints. The new one is safe: those that cannot be deleted do not fail the save.
    left = []
    for old in checkpoint_folders(run_dir)[keep:]:
        if not milestone_every or step_of_checkpoint(old) % milestone_every:
            try:  # first the name: an interrupted deletion never looks like a checkpoint
                retired.append(old.rename(_retired(old)))
            except OSError:
                left.append(old)
    for _ in range(2):  # what a network file system does not delete at first it may the next time
        for old in filter(Path.exists, retired):
            shutil.rmtree(old, ignore_errors=True)
    return left + [old for old in retired if old.exists()]


def find_newest(run_dir: Path) -> tuple[int | None, list[str]]:
    """Return the step of the newest intact checkpoint, if any, and a note for each damaged newer one.

    The damaged ones are renamed, so that they do not count among the checkpoints to keep.

    Raises:
        WeightsError: there are checkpoints, but none is intact; they are not touched.
    """
    damaged: dict[Path, str] = {}
    for folder in checkpoint_folders(run_dir):
        damage = find_damage(folder)
        if damage is None:
            for bad in damaged:
                fence(bad)
                bad.rename(_free_name(bad.with_name(f"damaged_{bad.name}")))
            notes = [f"checkpoint {bad.name} is damaged ({damaged[bad]})" for bad in damaged]
            return step_of_checkpoint(folder), notes
        damaged[folder] = damage
    if damaged:
        damages = "; ".join(f"{bad.name}: {damage}" for bad, damage in damaged.items())
        raise WeightsError(
            f"no intact checkpoint is left: {damages}",
            where=str(_home(run_dir)),
            fix="restore one from a backup, or start again with --overwrite",
        )
    return None, []


def read(run_dir: Path, step: int, *, place: fsdp.Place = fsdp.whole_place, group: Any = None) -> Checkpoint:
    """Read the checkpoint of `step`, which `find_newest` has checked.

    Args:
        place, group: for the slices of a sharded model, see `fsdp.read_slices`.

    Raises:
        MachineError: this process cannot read it: the run's processes share no file system.
        WeightsError: its files are of another kind. What is in them, `check_contents` looks at.
    """
    folder = _home(run_dir) / _name(step)
    try:
        state = load_json(folder / "state.json")
        if (folder / WHOLE).exists():
            files = (path for path in folder.iterdir() if path.suffix == ".safetensors")
            tensors = {path.stem: load_file(path) for path in files}
        else:
            tensors = by_kind(fsdp.read_slices(folder, place, group))
        state = state if isinstance(state, dict) else {}
        if (format := state.pop("format", FORMAT)) != FORMAT:
            raise ValueError(f"it has the format {format!r:.20}, this version reads {FORMAT}")
        return Checkpoint(state.pop("step", None), tensors, state)
    except (SafetensorError, ValueError) as error:
        raise WeightsError(
            f"the checkpoint of step {step} is not one of vit: {reason_of(error)}",
            where=str(folder),
            fix="move it out of checkpoints/, or start again with --overwrite",
        ) from error
    except OSError as error:
        raise MachineError(
            f"the checkpoint of step {step} cannot be read here: {error.strerror or error}",
            where=str(folder),
            fix="put --out on a file system that all machines of the run share",
        ) from error


def check_contents(
    saved: Checkpoint,
    model_tensors: dict[str, Tensor],
    optimizer: torch.optim.Optimizer,
    *,
    step: int,
    total_steps: int,
    is_averaged: bool,
    may_have_skipped: bool,
    of_methods: Tensors,
) -> None:
    """Refuse a checkpoint that this run cannot have written.

    Args:
        step: of its name.
        may_have_skipped: all updates so far may have been left out, as those of fp16 that overflow.
        of_methods: tensors like those that the methods of the run store, see `Method.tensors`.

    Raises:
        WeightsError: a value or a tensor is missing, of another type or shape, or not finite.
    """
    averaged = {"average": model_tensors} if is_averaged else {}
    expected = {"model": model_tensors, **averaged, **of_methods}
    problem = (
        _wrong_state(saved.state, saved.step, step, total_steps)
        or _wrong_weights(saved.tensors, expected)
        or _wrong_optimizer(saved.tensors.get("optimizer", {}), model_tensors, optimizer, may_have_skipped)
    )
    if not problem and (names := find_non_finite(saved.tensors)):
        problem = f"{first_few(names)} is not finite"
    if problem:
        raise WeightsError(
            f"the checkpoint is not one of this run: {problem}",
            where=f"step_{step:07d}",
            fix="move it out of checkpoints/, or start again with --overwrite",
        )


def _wrong_state(state: dict[str, Any], stored_step: object, step: int, total_steps: int) -> str | None:
    if type(stored_step) is not int or stored_step != step or not 0 < step <= total_steps:
        return f"it is of step {stored_step!r} of {total_steps}"[:80]
    for key, is_right in STATE.items():
        if key not in state or not is_right(state[key]):
            return f"{key} in state.json is missing or wrong"
    if type(state.get("frozen_head", {})) is not dict:
        return "frozen_head in state.json is not an object"
    return None


def _wrong_weights(tensors: Tensors, expected: Tensors) -> str | None:
    for kind, of_kind in expected.items():
        found = tensors.get(kind, {})
        if different := sorted(found.keys() ^ of_kind.keys()):
            return f"{kind} lacks or has too many of {first_few(different)}"
        for name, value in of_kind.items():
            if (found[name].shape, found[name].dtype) != (value.shape, value.dtype):
                return f"{kind}/{name} has another shape or type"
    return None


def _wrong_optimizer(
    found: dict[str, Tensor],
    weights: dict[str, Tensor],
    optimizer: torch.optim.Optimizer,
    may_have_skipped: bool,
) -> str | None:
    (slots,) = (slots for kind, slots in SLOTS.items() if isinstance(optimizer, kind))
    has_state = not isinstance(optimizer, torch.optim.SGD) or optimizer.param_groups[0]["momentum"] > 0
    if has_state and not found and not may_have_skipped:
        return "the optimizer's state is empty"
    slots_of: dict[str, set[str]] = {}
    for key, value in found.items():
        name, _, slot = key.rpartition("/")
        slots_of.setdefault(name, set()).add(slot)
        if name not in weights or slot not in slots:
            return f"optimizer/{key} belongs to no parameter"
        if slot != "step" and (value.shape, value.dtype) != (weights[name].shape, weights[name].dtype):
            return f"optimizer/{key} has another shape or type"
        if slot == "step" and value.numel() != 1:
            return f"optimizer/{key} is not a number"
    wrong = [name for name, there in slots_of.items() if there != slots]
    return f"the optimizer's state of {wrong[0]} is not whole" if wrong else None


def clean(run_dir: Path) -> None:
    """Remove the temporary folders of interrupted saves. Call it under the run's lock."""
    fence(run_dir)
    for leftover in _home(run_dir).glob(f"{TEMPORARY}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def find_damage(folder: Path) -> str | None:
    """Return what differs from the manifest, or None if every byte is as it was written."""
    try:
        manifest = load_json(folder / MANIFEST)
        files = {name: (file["bytes"], file["sha256"]) for name, file in manifest["files"].items()}
        checkpoint_name = manifest["checkpoint"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is missing or broken"
    if checkpoint_name != folder.name:
        return f"{MANIFEST} belongs to another checkpoint"
    unlisted = {path.name for path in folder.iterdir()} - {*files, MANIFEST}
    if unlisted:
        return f"{min(unlisted)} does not belong here"
    for name, (num_bytes, sha256) in files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != num_bytes:
            return f"{name} is missing or has another size"
        if digest_of_file(path).hex() != sha256:
            return f"{name} has changed"
    return None


def write_manifest(folder: Path) -> None:
    """Sync every file of a temporary folder to disk and list it with its size and SHA-256."""
    files = {}
    for path in sorted(folder.iterdir()):
        sync(path)
        files[path.name] = {"bytes": path.stat().st_size, "sha256": digest_of_file(path).hex()}
    step = int(folder.name.removeprefix(TEMPORARY).split("-")[0])
    (folder / MANIFEST).write_text(json.dumps({"checkpoint": _name(step), "files": files}, indent=1))
    sync(folder / MANIFEST)
    sync(folder)


def _home(run_dir: Path) -> Path:
    return run_dir / CHECKPOINTS


def _name(step: int) -> str:
    return f"step_{step:07d}"


def _retired(folder: Path) -> Path:
    """Return the name under which a checkpoint is deleted; `clean` deletes it after an interruption."""
    return _free_name(folder.with_name(f"{TEMPORARY}dead-{folder.name}-{os.getpid()}"))


def _free_name(path: Path) -> Path:
    """Return the path, with a number after it if something has that name."""
    names = chain([path.name], (f"{path.name}-{number}" for number in count(2)))
    return next(path.with_name(name) for name in names if not os.path.lexists(path.with_name(name)))


def _cannot_write(folder: Path, error: Exception, num_bytes: int) -> MachineError:
    reason = getattr(error, "strerror", None) or reason_of(error)
    return MachineError(
        f"the checkpoint cannot be written: {reason[:120]}",
        where=f"{folder} ({bytes_text(num_bytes)} needed, {room_at(folder)})",
        fix="free disk space or correct the permissions; the same command resumes from the last checkpoint",
    )
