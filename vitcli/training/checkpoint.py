"""Resumable checkpoints: a folder that is whole or not there, and is checked byte by byte before it is used.

Nothing in it is code or a pickle: tensors are safetensors, the rest is JSON. Of a sharded model it has a
file of slices from each process, which any number of processes can read. It is written under a temporary
name, each file is forced to disk, a manifest of sizes and hashes is added, and one rename makes it exist;
only then is an older one deleted. So whatever interrupts a save, the newest acknowledged checkpoint survives.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vitcli.distributed import fsdp
from vitcli.distributed.runtime import Runtime
from vitcli.errors import MachineError, NotFiniteError, WeightsError
from vitcli.output.atomic import TEMPORARY, sync

Tensors = dict[str, dict[str, Tensor]]  # "model", "optimizer" and perhaps "average"


def copied(model: nn.Module, optimizer: torch.optim.Optimizer, average: dict[str, Tensor] | None) -> Tensors:
    """What this process has of a step's tensors, copied to main memory: the run may go on meanwhile."""
    tensors = {"model": model.state_dict(), "optimizer": optimizer_tensors(model, optimizer)}
    if average is not None:
        tensors["average"] = average
    return {
        kind: {name: value.detach().to("cpu", copy=True).contiguous() for name, value in values.items()}
        for kind, values in tensors.items()
    }


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state by parameter name: "blocks.0.attn.qkv.weight/momentum_buffer"."""
    return {
        f"{name}/{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if value is not None
    }


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` took."""
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        name, _, slot = key.rpartition("/")
        parameter = parameters[name]
        # Adam's step counter stays on the CPU, everything else lives with its parameter.
        optimizer.state[parameter][slot] = value if slot == "step" else fsdp.sliced_like(value, parameter)


def place_in(model: nn.Module) -> fsdp.Place:
    """Where slices go that are read for a model: sliced as its own tensors are, or whole."""
    own = model.state_dict()

    def place(key: str, size: torch.Size, dtype: torch.dtype) -> Tensor:
        kind, _, name = key.partition("/")
        like = own.get(name.rpartition("/")[0] if kind == "optimizer" else name)
        is_alike = like is not None and like.shape == size
        return torch.empty_like(like, dtype=dtype) if is_alike else fsdp.whole_place(key, size, dtype)

    return place


def find_non_finite(tensors: Tensors) -> list[str]:
    """Names of those that are not finite, such as "model/head.bias".

    Finite norms, so finite tensors; what overflows a norm has left every use behind as well.
    """
    floats = {name: fsdp.local(value) for name, value in flat(tensors).items() if value.is_floating_point()}
    norms = torch._foreach_norm(list(floats.values())) if floats else []
    return [name for name, norm in zip(floats, norms, strict=True) if not torch.isfinite(norm)]


def check_finite(ruined: list[str], step: int) -> None:
    """NotFiniteError if there are any."""
    if ruined:
        kind, _, name = ruined[0].partition("/")
        raise NotFiniteError(
            f"the {kind} is no longer finite ({len(ruined)} tensors, such as {name})",
            where=f"step {step}",
            fix="lower --lr, or set optimizer.clip, in a new --out",
        )


def flat(tensors: Tensors) -> dict[str, Tensor]:
    """One dictionary: "model/head.bias"."""
    return {f"{kind}/{name}": value for kind, values in tensors.items() for name, value in values.items()}


def by_kind(tensors_by_key: dict[str, Tensor]) -> Tensors:
    """The inverse of `flat`."""
    tensors: Tensors = {}
    for key, value in tensors_by_key.items():
        kind, _, name = key.partition("/")
        tensors.setdefault(kind, {})[name] = value
    return tensors


MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds: all that step s + 1 needs besides the recipe."""

    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    average: dict[str, Tensor] | None
    state: dict[str, Any]


WHOLE = "model.safetensors"  # in the checkpoint of a model that is not sharded


def save(
    run_dir: Path,
    step: int,
    tensors: Tensors,
    *,
    state: dict[str, Any],
    keep: int,
    milestone_every: int,
    group: Any = None,
) -> None:
    """Write the checkpoint of `step` done steps, then delete all but the newest `keep` and the milestones.

    Args:
        tensors: as `copied` has made them.
        milestone_every: multiples of this many steps are kept for ever; 0 for none.
        group: of a sharded model, whose processes all call this with their slices, which `find_ruined` has
            found good; what follows the slices is the first one's.

    Raises:
        MachineError: the disk is full or cannot be written; what was there before is still there.
        NotFiniteError: a tensor is not finite; nothing is written.
    """
    folder = _home(run_dir)
    temporary = folder / f"{TEMPORARY}{step}-{'slices' if group else os.getpid()}"
    if group is None:
        check_finite(find_non_finite(tensors), step)
    try:
        if group is not None:
            fsdp.write_slices(temporary, flat(tensors), group)
            if dist.get_rank(group):
                return
        else:
            folder.mkdir(exist_ok=True)
            temporary.mkdir()
            for name, values in tensors.items():
                save_file(values, temporary / f"{name}.safetensors")
        (temporary / "state.json").write_text(json.dumps({"step": step, **state}))
        write_manifest(temporary)
        if (folder / _name(step)).exists():
            _delete(folder / _name(step))
        temporary.rename(folder / _name(step))
        sync(folder)
        for old in _folders(run_dir)[keep:]:
            if not milestone_every or _step(old) % milestone_every:
                _delete(old)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise _cannot_write(folder, error) from error


def find_newest(run_dir: Path) -> tuple[int | None, list[str]]:
    """Step of the newest intact checkpoint, if there is any, and a note for each damaged one passed over.

    Damaged ones are then put aside under another name, so that they do not count among those to keep.

    Raises:
        WeightsError: there are checkpoints, and none is intact; they are left as they are.
    """
    damaged: dict[Path, str] = {}
    for folder in _folders(run_dir):
        damage = find_damage(folder)
        if damage is None:
            for bad in damaged:
                bad.rename(bad.with_name(f"damaged_{bad.name}"))
            return _step(folder), [f"checkpoint {bad.name} is damaged ({damaged[bad]})" for bad in damaged]
        damaged[folder] = damage
    if damaged:
        told = "; ".join(f"{bad.name}: {damaged[bad]}" for bad in damaged)
        raise WeightsError(
            f"no intact checkpoint is left: {told}",
            where=str(_home(run_dir)),
            fix="restore one from a backup, or start again with --overwrite",
        )
    return None, []


def newest_step(run_dir: Path) -> int | None:
    """Step of the newest checkpoint, without looking inside."""
    return next((_step(folder) for folder in _folders(run_dir)), None)


def read(run_dir: Path, step: int, *, place: fsdp.Place = fsdp.whole_place, group: Any = None) -> Checkpoint:
    """The checkpoint of `step`, which `find_newest` has found intact.

    Args:
        place, group: of a sharded model, for slices: see `sharding.read_slices`. Whole tensors come whole.

    Raises:
        MachineError: this process cannot see it, so the run's processes share no file system.
    """
    folder = _home(run_dir) / _name(step)
    try:
        state = json.loads((folder / "state.json").read_text())
        if (folder / WHOLE).exists():
            files = (path for path in folder.iterdir() if path.suffix == ".safetensors")
            tensors = {path.stem: load_file(path) for path in files}
        else:
            tensors = by_kind(fsdp.read_slices(folder, place, group))
        return Checkpoint(
            step=state.pop("step"),
            model=tensors["model"],
            optimizer=tensors["optimizer"],
            average=tensors.get("average"),
            state=state,
        )
    except OSError as error:
        raise MachineError(
            f"the checkpoint of step {step} cannot be read here: {error.strerror or error}",
            where=str(folder),
            fix="put --out on a file system that all machines of the run share",
        ) from error


def clean(run_dir: Path) -> None:
    """Remove what an interrupted save has left, and nothing else. Call it under the run's lock."""
    for leftover in _home(run_dir).glob(f"{TEMPORARY}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def find_damage(folder: Path) -> str | None:
    """What differs from the manifest, or None if every byte is as it was written."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        files = {name: (said["bytes"], said["sha256"]) for name, said in manifest["files"].items()}
        belongs_to = manifest["checkpoint"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is missing or broken"
    if belongs_to != folder.name:
        return f"{MANIFEST} belongs to another checkpoint"
    strangers = {path.name for path in folder.iterdir()} - {*files, MANIFEST}
    if strangers:
        return f"{min(strangers)} does not belong here"
    for name, (num_bytes, sha256) in files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != num_bytes:
            return f"{name} is missing or has another size"
        if _sha256(path) != sha256:
            return f"{name} has changed"
    return None


def write_manifest(folder: Path) -> None:
    """Force every file of a temporary folder to disk and list it with size and SHA-256."""
    files = {}
    for path in sorted(folder.iterdir()):
        sync(path)
        files[path.name] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
    step = int(folder.name.removeprefix(TEMPORARY).split("-")[0])
    (folder / MANIFEST).write_text(json.dumps({"checkpoint": _name(step), "files": files}, indent=1))
    sync(folder / MANIFEST)
    sync(folder)


def _home(run_dir: Path) -> Path:
    return run_dir / "checkpoints"


def _name(step: int) -> str:
    return f"step_{step:07d}"


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix("step_"))


def _folders(run_dir: Path) -> list[Path]:
    """Checkpoints, newest first."""
    return sorted(_home(run_dir).glob("step_" + "[0-9]" * 7), reverse=True)


def _delete(folder: Path) -> None:
    """Take it out of sight in one rename, then delete it: no half-deleted checkpoint is ever seen."""
    dead = folder.with_name(f"{TEMPORARY}dead-{folder.name}-{os.getpid()}")
    folder.rename(dead)
    shutil.rmtree(dead, ignore_errors=True)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _cannot_write(folder: Path, error: Exception) -> MachineError:
    try:
        free = f"{shutil.disk_usage(folder.parent).free / 2**20:.0f} MiB free"
    except OSError:
        free = "gone"
    reason = getattr(error, "strerror", None) or str(error).strip().splitlines()[0]
    return MachineError(
        f"the checkpoint cannot be written: {reason[:120]}",
        where=f"{folder} ({free})",
        fix="make room or mend the permission; the same command then goes on from the last checkpoint",
    )


class Saver:
    """Writes one checkpoint at a time, in a thread.

    Args:
        take: copies what this process has of a checkpoint, on every process, if it is anything; the copy does
            not change any more.
        write: makes a checkpoint of such a copy; where several processes have one, all of them write.
        every_minutes: None for no saves by the clock.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        take: Callable[[], Any],
        write: Callable[[Any], None],
        every_minutes: float | None,
    ):
        self.runtime, self.take, self.write = runtime, take, write
        self.every_s = every_minutes * 60 if every_minutes else float("inf")
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="vit-save")
        self._writing: Future | None = None
        self._began_at = time.monotonic()

    def is_due(self) -> bool:
        """Whether this process's clock asks for a save, or one has failed and must be spoken of."""
        failed = self._writing is not None and self._writing.done() and self._writing.exception() is not None
        return failed or time.monotonic() - self._began_at > self.every_s

    def save(self, *, wait: bool) -> None:
        """Save the present state, on every process at the same step; with `wait`, be done when it returns.

        Raises:
            MachineError, NotFiniteError: on every process, what the last or, with `wait`, this save met.
        """
        self.finish()
        copied = self.take()
        if copied is not None:
            self._writing = self._pool.submit(self.write, copied)
        self._began_at = time.monotonic()
        if wait:
            self.finish()

    def finish(self) -> None:
        """Wait for the save that is under way."""
        writing, self._writing = self._writing, None
        error = writing.exception() if writing is not None else None

        def result() -> None:  # what another process met while writing, the first has met too
            if error is not None:
                raise error

        self.runtime.on_main(result)

    def close(self) -> None:
        """Let a save that is under way end, whatever has happened to the run; it says nothing more."""
        with suppress(Exception):
            if self._writing is not None:
                self._writing.result()
