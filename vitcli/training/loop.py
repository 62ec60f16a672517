"""The one training loop, for every command that trains: what happens at step s is a function of s."""

import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vitcli.data import sampler
from vitcli.data.loader import Batch
from vitcli.data.transforms import to_model_range
from vitcli.distributed.runtime import Runtime, autocast, peak_memory_gib, unwrap
from vitcli.errors import NotFiniteError, Stopped
from vitcli.output.progress import Progress
from vitcli.output.run_folder import RunFolder
from vitcli.training import optim
from vitcli.training.checkpoint import Saver
from vitcli.training.gradients import DdpSum, PairwiseSum
from vitcli.training.objective import Objective
from vitcli.training.schedule import Plan

SMALLEST_SCALE = 2.0**-10  # of an fp16 loss; below it the gradients overflow by themselves


@dataclass
class RunCounters:
    """What a run has come to; a checkpoint keeps it.

    Attributes:
        step: optimizer steps done.
        elapsed_s: time spent in steps, over all sittings.
        skipped: places of undecodable images that this process has left out.
    """

    step: int = 0
    elapsed_s: float = 0.0
    skipped: set[str] = field(default_factory=set)


class StopRequest:
    """Remembers Ctrl-C, SIGTERM or SIGUSR1 until the step is done; a second Ctrl-C ends it at once."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

    def __init__(self):
        self.signal = 0

    def __enter__(self) -> "StopRequest":
        self._before = {number: signal.signal(number, self._remember) for number in self.SIGNALS}
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _remember(self, number: int, _) -> None:
        # The launcher hands a second Ctrl-C on as SIGTERM.
        if self.signal == signal.SIGINT and number in (signal.SIGINT, signal.SIGTERM):
            os.write(2, b"stopped at once; what was saved before is still there\n")
            os._exit(130)
        self.signal = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM


def train(
    *,
    runtime: Runtime,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: optim.WeightAverage | None,
    batches: Iterator[Batch],
    objective: Objective,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    plan: Plan,
    gradients: DdpSum | PairwiseSum,
    lr_at: Callable[[int], float],
    seed: int,
    clip: float,
    log_every: int,
    save_every: int,
    watch: Callable[[int], Iterable[tuple[dict[str, Any], str]]],
    saver: Saver,
    folder: RunFolder | None,
    progress: Progress,
    counters: RunCounters,
) -> None:
    """Train from `progress.step` to the end of the plan.

    Args:
        model, optimizer: as Accelerate prepared them.
        average: takes in the weights after every step, where there is one.
        batches: this process's parts of every step from `progress.step` on, in order.
        objective: (model, images_BCHW, labels) to the mean loss of a part.
        gradients: how those of the parts and processes become one.
        lr_at: learning rate of the update that makes step s + 1 out of s.
        log_every, save_every: in steps; 0 for only at the end.
        watch: what is to be looked at after that many steps, as records for metrics.jsonl, each with a line
            for a person; nothing at most steps. It is not asked after the last one.
        saver: writes checkpoints of everything above at `progress.step`.
        folder: where metrics go; None on every process but the first.

    Raises:
        NotFiniteError: the loss or the gradient is not finite; the weights are those before the step.
        Stopped: a signal asked for it, and the last finished step has been saved.
        DataError: an image cannot be read.
    """
    model.train()
    parts = plan.accumulation_steps
    meter = Meter(plan, runtime, progress, counters)
    with StopRequest() as stop:
        for step in range(counters.step, plan.total_steps):
            lr = lr_at(step)
            for group in optimizer.param_groups:
                group["lr"] = lr
            part_losses = []
            for part in range(parts):
                with meter.waiting_for_data(), runtime.local_errors():
                    batch = next(batches)
                counters.skipped.update(batch.skipped)
                seed_model_draws(seed, step=step, part=runtime.rank * parts + part)
                images_BCHW = batch.images_BCHW.to(runtime.device, non_blocking=True)
                labels = batch.labels_B.to(runtime.device, non_blocking=True)
                with gradients.part(is_last=part == parts - 1):
                    with autocast(runtime.device, runtime.precision):
                        loss = objective(model, to_model_range(images_BCHW, mean=mean, std=std), labels)
                    scaled = runtime.scaler.scale(loss / gradients.num_losses)
                    runtime.accelerator.backward(scaled)
                gradients.add()
                part_losses.append(loss.detach())
            gradients.finish()

            runtime.scaler.unscale_(optimizer)
            grad_norm = float(optim.clip_by_global_norm(model.parameters(), clip))
            loss, stop_signal, is_due = _agree(runtime, part_losses, stop.signal, saver.is_due())
            # An overflowing fp16 gradient is ordinary: the scaler leaves the step out and halves its scale.
            may_overflow = runtime.precision == "fp16" and runtime.scaler.get_scale() > SMALLEST_SCALE
            _check_finite(loss, 0.0 if may_overflow else grad_norm, step=step, lr=lr)
            runtime.scaler.step(optimizer)
            runtime.scaler.update()
            optimizer.zero_grad()
            counters.step = step + 1
            if average:
                average.update(unwrap(model), num_updates=counters.step)

            is_end = counters.step == plan.total_steps
            rates = meter.step_done(loss=loss, lr=lr)
            if folder and (is_end or counters.step == 1 or counters.step % log_every == 0):
                norm = grad_norm if math.isfinite(grad_norm) else None  # JSON knows no infinity
                folder.log({"step": counters.step, "loss": loss, "lr": lr, "grad_norm": norm})
                folder.log_timing({"step": counters.step, **rates})
            for record, line in () if is_end else watch(counters.step):
                if folder:
                    folder.log({"step": counters.step, **record})
                progress.note(f"step {counters.step}: {line}")
                _, stop_signal, _ = _agree(runtime, part_losses, stop.signal, False)  # asked for meanwhile
            is_due |= save_every > 0 and counters.step % save_every == 0
            if is_end or stop_signal or is_due:
                saver.save(wait=is_end or stop_signal > 0)
            meter.next_step()
            if stop_signal:
                raise Stopped(stop_signal, f"stopped after step {counters.step}")
    progress.end()


class Meter:
    """Speed, waiting and what the progress line says; nothing a result depends on."""

    def __init__(self, plan: Plan, runtime: Runtime, progress: Progress, counters: RunCounters):
        self.plan, self.runtime, self.progress, self.counters = plan, runtime, progress, counters
        self._waited_s = self._waited_before_s = 0.0
        self._measured_s = 0.0
        self._num_steps = 0
        self.next_step()

    def next_step(self) -> None:
        """What came after the last step, an evaluation or a save, is not part of the next one's time."""
        self._step_began_at = time.perf_counter()
        if self.progress.title != "train":
            self.progress.begin("train", self.plan.total_steps, self.counters.step)

    def waiting_for_data(self):
        return _Stopwatch(self)

    def step_done(self, *, loss: float, lr: float) -> dict[str, float]:
        now = time.perf_counter()
        step_s = now - self._step_began_at
        self.counters.elapsed_s += step_s
        self._measured_s += step_s
        self._num_steps += 1
        waited_s, self._waited_before_s = self._waited_s - self._waited_before_s, self._waited_s
        images_per_s = self._num_steps * self.plan.batch_size / self._measured_s
        waited_share = self._waited_s / self._measured_s
        self.progress.update(
            self.counters.step,
            f"loss {loss:.4f}  lr {lr:.2e}  {images_per_s:.0f} img/s  data wait {waited_share:.0%}",
        )
        return {
            "step_s": step_s,
            "images_per_s": self.plan.batch_size / step_s,
            "data_wait_s": waited_s,
            "memory_gib": peak_memory_gib(),
        }

    def add_wait(self, seconds: float) -> None:
        self._waited_s += seconds


class _Stopwatch:
    def __init__(self, meter: Meter):
        self.meter = meter

    def __enter__(self) -> None:
        self._began_at = time.perf_counter()

    def __exit__(self, *_) -> None:
        self.meter.add_wait(time.perf_counter() - self._began_at)


def _agree(
    runtime: Runtime, part_losses: list[Tensor], stop_signal: int, is_due: bool
) -> tuple[float, int, bool]:
    """Mean loss of the step, and one decision of all processes whether to stop or save after it.

    The sum is exact before it is rounded, so it does not depend on how the parts lie on the processes.
    """
    asked = torch.tensor([stop_signal == signal.SIGINT, stop_signal == signal.SIGTERM, is_due]).double()
    all_PN = runtime.gather(torch.cat([torch.stack(part_losses).double().cpu(), asked]))
    losses, (interrupted, terminated, due) = all_PN[:, :-3].flatten().tolist(), all_PN[:, -3:].any(dim=0)
    stop_signal = signal.SIGINT if interrupted else signal.SIGTERM if terminated else 0
    return math.fsum(losses) / len(losses), stop_signal, bool(due)


def _check_finite(loss: float, grad_norm: float, *, step: int, lr: float) -> None:
    if math.isfinite(loss) and math.isfinite(grad_norm):
        return
    raise NotFiniteError(
        f"the {'gradient' if math.isfinite(loss) else 'loss'} is not a finite number",
        where=f"step {step + 1}, learning rate {lr:.3g}, loss {loss:.4g}, gradient norm {grad_norm:.4g}",
        fix="lower --lr, or set optimizer.clip, in a new --out",
    )


def seed_model_draws(seed: int, *, step: int, part: int) -> None:
    """Seed dropout for one micro-batch: a function of (seed, step, number of the micro-batch in the step)."""
    torch.manual_seed(sampler.derive_seed(seed, "model", step, part))
