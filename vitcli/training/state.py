"""What a run has come to, in tensors and counters: made for a job, saved, and taken up again.

Shared by the commands that train; no command of its own.
"""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitcli import __version__
from vitcli.distributed import fsdp
from vitcli.errors import VitError
from vitcli.output import run_folder
from vitcli.training import checkpoint, optim
from vitcli.training.gradients import DdpSum, PairwiseSum, ShardedSum
from vitcli.training.loop import RunCounters
from vitcli.training.setup import TrainingJob

Copied = tuple[int, checkpoint.Tensors, dict[str, Any]]  # step, tensors, and the rest as JSON


class TrainingState:
    """Model, optimizer, average and counters of a run.

    Attributes:
        model: the bare network, on its device.
        wrapped: the same as Accelerate prepared it, which is what is trained.
        gradients: how those of a step's parts become one.
        average: Polyak's, or None.
        progress: steps and time so far.
    """

    def __init__(self, job: TrainingJob):
        self.job = job
        self.recipe, self.runtime = job.recipe, job.runtime
        self.counters = RunCounters()
        self.model = job.start.model
        if self.recipe.model.grad_checkpointing:
            self.model.set_grad_checkpointing(True)
        self.group = None  # in which the slices of a sharded model are saved
        if job.options.shard and self.runtime.world_size > 1:
            self.group = fsdp.shard(self.model, self.runtime)
        else:
            self.model.to(self.runtime.device)
        wanted = self.recipe.optimizer
        optimizer = optim.build_optimizer(
            self.model,
            name=wanted.name,
            momentum=wanted.momentum,
            betas=wanted.betas,
            eps=wanted.eps,
            weight_decay=wanted.weight_decay,
            decay_on=wanted.decay_on,
        )
        if job.options.compile and self.model._compiled_call_impl is None:  # one network, compiled once
            self.model.compile()
        parts = job.plan.accumulation_steps
        if job.options.exact:
            self.wrapped, self.optimizer = self.model, optimizer
            self.gradients = PairwiseSum(self.model, self.runtime, parts=parts)
        elif self.group is not None:
            self.wrapped, self.optimizer = self.model, optimizer
            self.gradients = ShardedSum(self.model, self.runtime, parts=parts)
        else:
            self.wrapped, self.optimizer = self.runtime.accelerator.prepare(self.model, optimizer)
            self.gradients = DdpSum(self.wrapped, self.runtime, parts=parts)
        self.average = optim.WeightAverage(self.model, factor=wanted.average) if wanted.average else None

    def resume(self, path: Path, folder: run_folder.RunFolder | None) -> None:
        """Go on from the run folder's newest intact checkpoint, if there is one; metrics go back to it."""
        step, notes = self.runtime.on_main(lambda: checkpoint.find_newest(path))
        for note in notes:
            self.job.progress.note(f"{note}, using the one before it")
        found = None
        if step is not None:
            place = checkpoint.place_in(self.model)
            with self.runtime.local_errors():
                found = checkpoint.read(path, step, place=place, group=self.group)
            self._compare_fingerprints(found.state["fingerprint"])
            own = self.model.state_dict()
            self.model.load_state_dict(fsdp.all_sliced_like(found.model, own))
            checkpoint.restore_optimizer(self.model, self.optimizer, found.optimizer)
            if self.average:
                self.average.restore(fsdp.all_sliced_like(found.average, own))
            self.runtime.scaler.load_state_dict(found.state["scaler"])
            self.counters = RunCounters(found.step, found.state["elapsed_s"], set(found.state["skipped"]))
            self.job.progress.note(f"going on from step {found.step}")
        if folder:
            folder.rewind_metrics(found.state["metrics_bytes"] if found else 0)

    def share_buffers(self) -> None:
        """Give every process the first one's running statistics, which are those that are saved."""
        names = {name for name, _ in self.model.named_buffers()}
        states = [self.model.state_dict(), self.average.tensors if self.average else {}]
        self.runtime.broadcast(state[name] for state in states for name in sorted(names & state.keys()))

    def final_weights(self) -> dict[str, Tensor]:
        """What the run would leave behind now, whole, on the first process; every process takes part.

        The averaged weights where there are any.
        """
        tensors = self.average.tensors if self.average else self.model.state_dict()
        return fsdp.whole(tensors, keep=self.runtime.is_main)

    def _compare_fingerprints(self, before: dict[str, Any]) -> None:
        now = self._fingerprint()
        for key in ("train_data", "eval_data"):
            if before[key] != now[key]:
                raise VitError(
                    "the data set has changed since this run began",
                    where=f"{self.recipe.data.dataset}, {key.replace('_', ' ')}",
                    fix="restore the data set, or start a new run in another folder",
                )
        # With --exact the number of processes changes no bit.
        decisive = [key for key in now if not (self.job.options.exact and key == "num_processes")]
        changed = [
            f"{key} {before.get(key)} -> {now[key]}" for key in decisive if before.get(key) != now[key]
        ]
        if changed:
            self.job.progress.note(f"no longer bit-exact with the start of the run: {', '.join(changed)}")

    def _fingerprint(self) -> dict[str, Any]:
        """What besides the recipe decides about the bits of a run."""
        return {
            "train_data": self.job.train_split.fingerprint,
            "eval_data": self.job.eval_split.fingerprint,
            "per_device_batch": self.job.plan.per_device_batch,
            "num_processes": self.runtime.world_size,
            "sharded": self.group is not None,
            "exact": self.job.options.exact,
            "compile": self.job.options.compile,
            "precision": self.runtime.precision,
            "device": self.runtime.device.type,
            "threads": torch.get_num_threads(),
            **{name: version(name) for name in run_folder.LIBRARIES},
            "vit": __version__,
        }

    def copied(self, folder: run_folder.RunFolder | None) -> Copied | None:
        """What this process has of a checkpoint of this step, as it is now; None if it is nothing."""
        state = {
            "fingerprint": self._fingerprint(),
            "metrics_bytes": folder.metrics_bytes() if folder else None,
            "elapsed_s": self.counters.elapsed_s,
            "skipped": sorted(self.runtime.union(self.counters.skipped)),
            "scaler": self.runtime.scaler.state_dict(),
        }
        if self.group is None and not self.runtime.is_main:
            return None
        average = self.average.tensors if self.average else None
        tensors = checkpoint.copied(self.model, self.optimizer, average)
        if self.group is not None:  # each process knows its own slices only, and all must agree to write
            ruined = self.runtime.union(set(checkpoint.find_non_finite(tensors)))
            checkpoint.check_finite(sorted(ruined), self.counters.step)
        return self.counters.step, tensors, state

    def write(self, path: Path, copied: Copied) -> None:
        """Make a checkpoint of such copies."""
        step, tensors, state = copied
        kept = self.recipe.train
        checkpoint.save(
            path,
            step,
            tensors,
            state=state,
            keep=kept.keep_checkpoints,
            milestone_every=kept.milestone_every,
            group=self.group,
        )
