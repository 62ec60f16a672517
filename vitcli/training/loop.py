"""The one training loop, shared by every command that trains: step s is a function of s alone."""

import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from vitcli.data import sampler
from vitcli.data.loader import Batch
from vitcli.data.transforms import to_model_range
from vitcli.distributed.runtime import Runtime, autocast, peak_memory_gib
from vitcli.errors import NotFiniteError, Stopped
from vitcli.output.progress import Progress
from vitcli.output.run_folder import RunFolder
from vitcli.output.text import count_of, duration
from vitcli.training.objective import Objective
from vitcli.training.optim import clip_by_global_norm
from vitcli.training.schedule import Plan
from vitcli.training.state import Saver, TrainingState
from vitcli.training.validation import PeriodicEvaluation

MIN_LOSS_SCALE = 2.0**-10  # of fp16: gradients that overflow at a smaller scale are truly infinite

ESTIMATED_AFTER = 5  # steps, of which the first is slow
WORTH_A_NOTE_S = 60


@dataclass(frozen=True)
class LoopSettings:
    """The numbers of a recipe and its plan that the loop uses.

    Attributes:
        lr_at: the learning rate of the update that turns step s into step s + 1.
        clip: largest global gradient norm; 0 turns clipping off.
        mean, std: pixel normalisation, one number per channel in [0, 1].
        log_every, save_every: in steps; `save_every` 0 saves at the end only.
    """

    plan: Plan
    lr_at: Callable[[int], float]
    clip: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    seed: int
    log_every: int
    save_every: int


def train(
    state: TrainingState,
    settings: LoopSettings,
    objective: Objective,
    batches: Iterator[Batch],
    *,
    evaluation: PeriodicEvaluation | None,
    saver: Saver | None,
    folder: RunFolder | None,
    progress: Progress,
) -> None:
    """Train from `state.step` to the end of the plan.

    Args:
        objective: (model, images_BCHW, labels) to the mean loss of a micro-batch.
        batches: this process's micro-batches of all remaining steps, in order.
        evaluation: runs after every step at which it is due, except the last.
        folder: of the metrics; None on all processes but the first.

    Raises:
        NotFiniteError: the loss or the gradient is not finite; the weights are those before the step.
        Stopped: a signal arrived, and the last finished step has been saved.
        DataError: an image cannot be read.
    """
    runtime, model, optimizer = state.runtime, state.wrapped, state.optimizer
    plan, parts = settings.plan, settings.plan.accumulation_steps
    meter = Meter(plan, progress, state)
    model.train()
    with StopRequest() as stop:
        for step in range(state.step, plan.total_steps):
            # Set the learning rate of this update.
            lr = settings.lr_at(step)
            for group in optimizer.param_groups:
                group["lr"] = lr

            # Forward and backward, one micro-batch at a time.
            part_losses = []
            for part in range(parts):
                with meter.waiting_for_data(), runtime.local_errors():
                    batch = next(batches)
                state.skipped.update(batch.skipped)
                images_BCHW = batch.images_BCHW.to(runtime.device, non_blocking=True)
                labels = batch.labels_B.to(runtime.device, non_blocking=True)
                # Dropout and mixup depend on the place in the global step, not on the process.
                global_part = runtime.rank * parts + part
                torch.manual_seed(sampler.derive_seed(settings.seed, "model", step, global_part))
                with state.gradients.part(is_last=part == parts - 1):
                    with autocast(runtime.device, runtime.precision):
                        images_BCHW = to_model_range(images_BCHW, mean=settings.mean, std=settings.std)
                        loss = objective(model, images_BCHW, labels)
                    runtime.accelerator.backward(runtime.scaler.scale(loss / state.gradients.num_losses))
                state.gradients.add()
                part_losses.append(loss.detach())
            state.gradients.finish()

            # Clip, agree with the other processes, and update the weights.
            runtime.scaler.unscale_(optimizer)
            grad_norm = float(clip_by_global_norm(model.parameters(), settings.clip))
            loss, stop_signal, is_due = _agree(runtime, part_losses, stop.signal, saver)
            # An overflowing fp16 gradient is normal: the scaler skips the update and halves its scale.
            may_overflow = runtime.precision == "fp16" and runtime.scaler.get_scale() > MIN_LOSS_SCALE
            _check_finite(loss, 0.0 if may_overflow else grad_norm, step=step, lr=lr, clip=settings.clip)
            runtime.scaler.step(optimizer)
            runtime.scaler.update()
            optimizer.zero_grad()
            state.step = step + 1
            if state.average:
                state.average.update(state.model, num_updates=state.step)

            # Log.
            is_end = state.step == plan.total_steps
            rates = meter.step_done(loss=loss, lr=lr)
            if folder and (is_end or state.step == 1 or state.step % settings.log_every == 0):
                grad_norm = grad_norm if math.isfinite(grad_norm) else None  # JSON has no infinity
                folder.log({"step": state.step, "loss": loss, "lr": lr, "grad_norm": grad_norm})
                folder.log_timing({"step": state.step, **rates, "memory_gib": peak_memory_gib()})

            # Evaluate; a signal that arrives meanwhile counts as well.
            for record, line in evaluation.due_after(state.step) if evaluation and not is_end else ():
                if folder:
                    folder.log({"step": state.step, **record})
                progress.note(f"step {state.step}: {line}")
                _, stop_signal, _ = _agree(runtime, part_losses, stop.signal, None)

            # Save, and stop if a signal asked for it.
            is_due |= settings.save_every > 0 and state.step % settings.save_every == 0
            if saver and (is_end or stop_signal or is_due):
                saver.save(wait=is_end or stop_signal > 0)
            meter.next_step()
            if stop_signal:
                raise Stopped(stop_signal, f"stopped after step {state.step}")


class StopRequest:
    """A signal (Ctrl-C, SIGTERM, SIGUSR1), kept until the step is done; a second Ctrl-C exits at once."""

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
        # The launcher forwards a second Ctrl-C as SIGTERM.
        if self.signal == signal.SIGINT and number in (signal.SIGINT, signal.SIGTERM):
            os.write(2, b"stopped at once; earlier checkpoints are kept\n")
            os._exit(130)
        self.signal = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM


class Meter:
    """Speed and data wait of the steps, for the progress line and timing.jsonl; no result depends on it."""

    def __init__(self, plan: Plan, progress: Progress, state: TrainingState):
        self.plan, self.progress, self.state = plan, progress, state
        self._waited_s = self._waited_before_s = self._measured_s = 0.0
        self._num_steps = 0
        self._is_estimated = False
        self.next_step()

    def next_step(self) -> None:
        """Restart the clock: evaluation and saving after a step do not count as part of the next one."""
        self._step_began_at = time.perf_counter()
        if self.progress.title != "train":
            self.progress.begin("train", self.plan.total_steps, self.state.step)

    @contextmanager
    def waiting_for_data(self) -> Iterator[None]:
        """Count the time spent inside as waiting for the loader."""
        began_at = time.perf_counter()
        yield
        self._waited_s += time.perf_counter() - began_at

    def step_done(self, *, loss: float, lr: float) -> dict[str, float]:
        """Update the progress line; return duration, throughput and data wait of the step."""
        step_s = time.perf_counter() - self._step_began_at
        self.state.elapsed_s += step_s
        self._measured_s += step_s
        self._num_steps += 1
        waited_s, self._waited_before_s = self._waited_s - self._waited_before_s, self._waited_s
        images_per_s = self._num_steps * self.plan.batch_size / self._measured_s
        wait = f"data wait {self._waited_s / self._measured_s:.0%}"
        self.progress.update(
            self.state.step, f"loss {loss:.4f}", f"{images_per_s:.0f} img/s", f"lr {lr:.2e}", wait
        )
        self._estimate_once()
        return {"step_s": step_s, "images_per_s": self.plan.batch_size / step_s, "data_wait_s": waited_s}

    def _estimate_once(self) -> None:
        """Say how long a run of minutes will take, once its first steps are measured."""
        if self._is_estimated or self._num_steps < ESTIMATED_AFTER:
            return
        self._is_estimated = True
        num_left = self.plan.total_steps - self.state.step
        left_s = num_left * self._measured_s / self._num_steps
        if left_s >= WORTH_A_NOTE_S:
            self.progress.note(f"about {duration(left_s)} for {count_of(num_left, 'more step')}")


def _agree(
    runtime: Runtime, part_losses: list[Tensor], stop_signal: int, saver: Saver | None
) -> tuple[float, int, bool]:
    """Return the mean loss of the step, and the processes' joint decision to stop or to save after it.

    `fsum` is exact before it rounds, so the mean does not depend on which process computed which part.
    """
    is_due = saver is not None and saver.is_due()
    requests = torch.tensor([stop_signal == signal.SIGINT, stop_signal == signal.SIGTERM, is_due]).double()
    all_PN = runtime.gather(torch.cat([torch.stack(part_losses).cpu().double(), requests]))
    losses, (interrupted, terminated, due) = all_PN[:, :-3].flatten().tolist(), all_PN[:, -3:].any(dim=0)
    stop_signal = signal.SIGINT if interrupted else signal.SIGTERM if terminated else 0
    return math.fsum(losses) / len(losses), stop_signal, bool(due)


def _check_finite(loss: float, grad_norm: float, *, step: int, lr: float, clip: float) -> None:
    if math.isfinite(loss) and math.isfinite(grad_norm):
        return
    raise NotFiniteError(
        f"the {'gradient' if math.isfinite(loss) else 'loss'} is not a finite number",
        where=f"step {step + 1}, learning rate {lr:.3g}, loss {loss:.4g}, gradient norm {grad_norm:.4g}",
        fix=f"lower --lr{'' if clip else ', or set optimizer.clip,'} in a new --out",
    )
