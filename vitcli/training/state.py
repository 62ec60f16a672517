"""The state that training changes: built for a job, resumed from and saved to checkpoints."""

import math
import signal
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitcli import __version__
from vitcli.distributed import fsdp, launch
from vitcli.distributed.runtime import Runtime, reset_peak_memory
from vitcli.distributed.transfer import mark_constants, select_device, single_core_pool
from vitcli.errors import VitError
from vitcli.output.run_folder import RunFolder, library_versions
from vitcli.output.text import duration
from vitcli.training import checkpoint
from vitcli.training.checkpoint import Checkpoint
from vitcli.training.gradients import DdpSum, PairwiseSum, ShardedSum
from vitcli.training.methods.method import Method
from vitcli.training.methods.time_limit import TimeLimit
from vitcli.training.optim import WeightAverage, build_optimizer, is_fused, unfuse
from vitcli.training.setup import TrainingJob
from vitcli.weights import adapters


@dataclass
class TrainingState:
    """Model, optimizer, weight average and counters of a run.

    Attributes:
        model: the bare network, on its device.
        wrapped: what is trained: the network in DDP's wrapper, or the bare network.
        gradients: sums the gradients of a step's micro-batches over all processes.
        average: Polyak average of the weights, if the recipe asks for one.
        group: process group in which the slices of a sharded model are saved; None for whole models.
        methods: what they have stored is in each checkpoint.
        step: optimizer steps done.
        elapsed_s: time spent in steps, including those before a resume.
        skipped: names of the undecodable images that this process left out.
        is_evaluation_due: whether the evaluation after the current step has been interrupted.
        limit: the clock of a run with a time limit.
    """

    runtime: Runtime
    model: nn.Module
    wrapped: nn.Module
    optimizer: torch.optim.Optimizer
    gradients: DdpSum | PairwiseSum
    average: WeightAverage | None = None
    group: Any = None
    methods: tuple[Method, ...] = ()
    step: int = 0
    elapsed_s: float = 0.0
    skipped: set[str] = field(default_factory=set)
    is_evaluation_due: bool = False
    limit: TimeLimit | None = None

    def broadcast_buffers(self) -> None:
        """Copy the first process's running statistics to all processes, since those are what is saved."""
        names = {name for name, _ in self.model.named_buffers()}
        states = [self.model.state_dict(), self.average.tensors if self.average else {}]
        self.runtime.broadcast(state[name] for state in states for name in sorted(names & state.keys()))

    @property
    def reason_to_end(self) -> str:
        """Why a method ends the run after the current step; "" where none does."""
        return next(filter(None, (method.reason_to_end for method in self.methods)), "")

    @property
    def weights(self) -> dict[str, Tensor]:
        """The weights to evaluate and publish: averaged, if the recipe asks for that."""
        return self.average.tensors if self.average else self.model.state_dict()

    def final_weights(self) -> dict[str, Tensor]:
        """Return the weights to publish, averaged if enabled, on the first process; all processes call it.

        Adapters are added to the weights that they adapt.
        """
        return fsdp.whole(adapters.merged(self.weights), keep=self.runtime.is_main)

    def deliver(self, weights: dict[str, Tensor]) -> None:
        """Make these the weights of the network, also in the place of an average."""
        self.model.load_state_dict(fsdp.all_sliced_like(weights, self.model.state_dict()))
        self.average = None

    def snapshot(self, fingerprint: dict[str, Any], folder: RunFolder | None) -> Checkpoint | None:
        """Copy what this process has to save of the current step; None if nothing. All processes call it."""
        state = {
            "fingerprint": fingerprint,
            "metrics_bytes": folder.metrics_bytes() if folder else None,
            "elapsed_s": self.elapsed_s,
            "skipped": sorted(self.runtime.union(self.skipped)),
            "scaler": self.runtime.scaler.state_dict(),
            "fused": is_fused(self.optimizer),
            "evaluation_due": self.is_evaluation_due,
            **({"used_s": self.limit.used_s()} if self.limit else {}),
        }
        for method in self.methods:
            state |= method.state()
        if self.group is None and not self.runtime.is_main:
            return None
        average = self.average.tensors if self.average else None
        tensors = checkpoint.copy_tensors(self.model, self.optimizer, average)
        for method in self.methods:
            tensors |= method.tensors()
        # Each process sees its own slices only, and all must agree to write.
        if self.group is not None:
            non_finite = self.runtime.union(set(checkpoint.find_non_finite(tensors)))
            checkpoint.check_finite(sorted(non_finite), self.step)
        return Checkpoint(self.step, tensors, state)


def build_state(job: TrainingJob) -> TrainingState:
    """Put the network on its device, and build optimizer, gradient sum and weight average for it."""
    runtime, model, options = job.runtime, job.start.model, job.options
    reset_peak_memory()
    settings, parts = job.recipe.optimizer, job.plan.accumulation_steps
    if job.recipe.model.grad_checkpointing:
        model.set_grad_checkpointing(True)

    # The optimizer takes the parameters as they are after sharding.
    for method in job.methods:
        method.take(model)
    group = None
    if options.shard and runtime.world_size > 1:
        group = fsdp.shard(model, runtime)
    else:
        model.to(runtime.device)
    for method in job.methods:
        method.place(model)
    optimizer = build_optimizer(model, settings)
    if not options.compile:
        model._compiled_call_impl = None  # of another run of a sweep, which shares the network
    elif model._compiled_call_impl is None:
        mark_constants()
        model.compile()

    # DDP sums gradients by itself; the exact and the sharded sum work on the bare network.
    wrapped = model
    if options.exact:
        gradients = PairwiseSum(model, runtime, parts=parts)
    elif group is not None:
        gradients = ShardedSum(model, runtime, parts=parts)
    else:
        # It is in its place; to put it there, Accelerate would load DTensor, half a second.
        wrapped = runtime.accelerator.prepare(model, device_placement=[False])
        gradients = DdpSum(wrapped, runtime, parts=parts)
    average = WeightAverage(model, factor=settings.average) if settings.average else None
    return TrainingState(runtime, model, wrapped, optimizer, gradients, average, group, job.methods)


def resume(state: TrainingState, job: TrainingJob, path: Path, folder: RunFolder | None) -> None:
    """Load the newest intact checkpoint of the run folder, if any, and truncate the metrics to it.

    Raises:
        WeightsError: there are checkpoints, and none is intact, or the newest is not one of this run.
        VitError: the run began with other data.
    """
    # Find it on the first process, which names the damaged ones.
    step, notes = state.runtime.on_main(lambda: checkpoint.find_newest(path))
    for note in notes:
        job.progress.note(f"{note}, using the one before it")
    if step is None:
        if folder:
            if folder.metrics_bytes():
                job.progress.note("nothing was saved yet: starting from step 0")
            folder.rewind_metrics(0)
        return

    # Load it on every process, in slices if the model is sharded.
    place = checkpoint.place_in(state.model)
    with state.runtime.local_errors():
        saved = checkpoint.read(path, step, place=place, group=state.group)
        current = state.model.state_dict()
        checkpoint.check_contents(
            saved,
            current,
            state.optimizer,
            step=step,
            total_steps=job.plan.total_steps,
            is_averaged=state.average is not None,
            may_have_skipped=state.runtime.precision == "fp16",
            of_methods={kind: x for method in state.methods for kind, x in method.tensors().items()},
        )
    _compare_fingerprints(saved.state["fingerprint"], job)
    state.model.load_state_dict(fsdp.all_sliced_like(saved.tensors["model"], current))
    for method in state.methods:
        method.restore(saved)
    if not saved.state["fused"]:  # begun without, on another device
        unfuse(state.optimizer)
    checkpoint.restore_optimizer(state.model, state.optimizer, saved.tensors["optimizer"])
    if state.average:
        state.average.restore(fsdp.all_sliced_like(saved.tensors["average"], current))
    state.runtime.scaler.load_state_dict(saved.state["scaler"])
    state.step, state.elapsed_s = saved.step, saved.state["elapsed_s"]
    state.skipped = set(saved.state["skipped"])
    state.is_evaluation_due = saved.state["evaluation_due"]
    if state.limit:
        state.limit.used_before_s = saved.state.get("used_s", state.elapsed_s)
    job.progress.note(_resuming(state, job))
    if folder:
        folder.rewind_metrics(saved.state["metrics_bytes"])


def _resuming(state: TrainingState, job: TrainingJob) -> str:
    """Say from which step a run resumes, and how long the others will take at its speed so far."""
    total = job.plan.total_steps
    left_s = state.elapsed_s / state.step * (total - state.step)
    left = f", about {duration(left_s)} left" if left_s else ""
    return f"resuming from step {state.step} of {total}{left}"


# Keys of a fingerprint. A file that was written again may be the same, a changed image is not.
IMAGES, FILES = ("train_images", "eval_images"), ("train_files", "eval_files")


def _compare_fingerprints(before: dict[str, Any], job: TrainingJob) -> None:
    """Refuse other data; note other versions or hardware, which may change the last bits."""
    now = fingerprint(job)
    for key in ("train_data", "eval_data", "choice_data", *IMAGES):
        if _have_changed(before, now, key):
            raise VitError(
                "the data set has changed since this run began",
                where=f"{job.recipe.data.dataset}, {key.replace('_', ' ')}",
                fix="restore the data set, or start a new run in another folder",
            )
    if any(_have_changed(before, now, key) for key in FILES):
        job.progress.note(
            f"files of {job.recipe.data.dataset} have been written again since this run began; "
            "their number, sizes and labels are the same"
        )
    # With --exact the number of processes changes no bit.
    ignored = {"num_processes", "gpus_per_machine"} if job.options.exact else set()
    ignored |= {*IMAGES, *FILES}
    relevant = [key for key in now if key not in ignored]
    changed = [f"{key} {before.get(key)} -> {now[key]}" for key in relevant if before.get(key) != now[key]]
    if changed:
        job.progress.note(f"no longer bit-exact with the start of the run: {', '.join(changed)}")


def _have_changed(before: dict[str, Any], now: dict[str, Any], key: str) -> bool:
    """Compare what is known of the data; some kinds of data sets say less."""
    return None not in (before.get(key), now.get(key)) and before[key] != now[key]


def fingerprint(job: TrainingJob) -> dict[str, Any]:
    """Return what determines the bits of a run besides its recipe."""
    return {
        "train_data": job.splits.train.fingerprint,
        "eval_data": job.splits.eval.fingerprint,
        **({"choice_data": job.splits.choice.fingerprint} if job.splits.choice else {}),
        "train_images": job.contents[0].images,
        "eval_images": job.contents[1].images,
        "train_files": job.contents[0].files,
        "eval_files": job.contents[1].files,
        "per_device_batch": job.plan.per_device_batch,
        "num_processes": job.runtime.world_size,
        "sharded": job.options.shard and job.runtime.world_size > 1,
        "exact": job.options.exact,
        "compile": job.options.compile,
        "precision": job.runtime.precision,
        "device": job.runtime.device.type,
        **job.runtime.hardware,
        "threads": torch.get_num_threads(),
        **library_versions(),
        "vit": __version__,
    }


FIRST_SAVE_S = 60.0  # so that a run that is killed early does not start again; the time changes no result


class Saver:
    """A background thread that writes the checkpoints of a run, one at a time; it ends with the block.

    Args:
        path: the run folder.
        folder: the same, open for metrics; None on all processes but the first.
    """

    def __init__(self, state: TrainingState, job: TrainingJob, path: Path, folder: RunFolder | None):
        self.state, self.job, self.path, self.folder = state, job, path, folder
        self.settings = job.recipe.train
        minutes = self.settings.save_minutes
        self.every_s = minutes * 60 if minutes else math.inf
        if state.limit:
            self.every_s = min(self.every_s, state.limit.save_every_s)
        is_first = state.step == 0 and (minutes or self.settings.save_every)
        self._due_s = min(FIRST_SAVE_S, self.every_s) if is_first else self.every_s
        self._pool = single_core_pool(1, "vit-save")
        self._pool.submit(select_device, state.runtime.device).result()
        self._writing: Future | None = None
        self._left: set[Path] = set()  # old checkpoints that cannot be deleted, named once
        self._began_at = time.monotonic()

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, *_) -> None:
        # Let a save in progress end, also when the launcher stops this process because another one failed:
        # SIGKILL follows where it does not wait so long. After a run an error of this save is not the news.
        if self._writing is not None:
            with launch.handling({signal.SIGTERM: signal.SIG_IGN}), suppress(Exception):
                self._writing.result()

    def is_due(self) -> bool:
        """Return True if this process's clock asks for a save, or if an error of the last save is pending."""
        failed = self._writing is not None and self._writing.done() and self._writing.exception() is not None
        return failed or time.monotonic() - self._began_at > self._due_s

    def save(self, *, wait: bool) -> None:
        """Save the current step; every process calls it at the same step.

        Args:
            wait: return once the checkpoint is on disk.

        Raises:
            MachineError, NotFiniteError: of the previous save or, with `wait`, of this one; on every process.
        """
        launch.enter(f"saving step {self.state.step}")
        self._finish()
        snapshot = self.state.snapshot(fingerprint(self.job), self.folder)
        if snapshot is not None:
            self._writing = self._pool.submit(
                checkpoint.save,
                self.path,
                snapshot,
                keep=self.settings.keep_checkpoints,
                milestone_every=self.settings.milestone_every,
                group=self.state.group,
            )
        self._began_at, self._due_s = time.monotonic(), self.every_s
        if wait:
            self._finish()

    def _finish(self) -> None:
        """Wait for the save in progress; raise its error on every process."""
        writing, self._writing = self._writing, None
        error = writing.exception() if writing is not None else None

        def raise_error() -> None:  # what another process met while writing, the first has met too
            if error is not None:
                raise error

        self.state.runtime.on_main(raise_error)
        for left in writing.result() if writing is not None else ():
            if left not in self._left:
                self._left.add(left)
                self.job.progress.note(f"{left} is no longer needed and cannot be deleted")
