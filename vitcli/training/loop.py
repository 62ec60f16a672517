"""The one training loop, shared by every command that trains: step s is a function of s alone."""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from vitcli.data import sampler
from vitcli.data.loader import Batch
from vitcli.data.transforms import to_model_range
from vitcli.distributed import launch
from vitcli.distributed.runtime import autocast, peak_memory_gib, reserved_memory_gib
from vitcli.distributed.transfer import Download, Uploads, runs_ahead, seed_generators
from vitcli.errors import NotFiniteError, Stopped
from vitcli.evaluation.inference import Interrupted
from vitcli.output.progress import Progress
from vitcli.output.run_folder import RunFolder
from vitcli.output.text import count_of, duration
from vitcli.training.objective import Objective, Targets
from vitcli.training.optim import clip_by_global_norm, update_weights
from vitcli.training.schedule import Plan
from vitcli.training.state import Saver, TrainingState
from vitcli.training.validation import PeriodicEvaluation

MIN_LOSS_SCALE = 2.0**-10  # of fp16: gradients that overflow at a smaller scale are truly infinite

ESTIMATED_AFTER = 5  # steps, of which the first is slow
WORTH_A_NOTE_S = 60


@dataclass(frozen=True)
class LoopSettings:
    """What the loop uses of a recipe, its plan and its methods.

    Attributes:
        lr_at: the learning rate of the update that turns step s into step s + 1.
        clip: largest global gradient norm; 0 turns clipping off.
        mean, std: pixel normalisation, one number per channel in [0, 1].
        log_every, save_every: in steps; `save_every` 0 saves at the end only.
        until: the step after which the plan changes; None if that is its end.
        targets: compute what the objective takes besides labels; their time does not count as data wait.
    """

    plan: Plan
    lr_at: Callable[[int], float]
    clip: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    seed: int
    log_every: int
    save_every: int
    until: int | None = None
    targets: tuple[Targets, ...] = ()


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
    """Train from `state.step` to the end of the plan, or until another plan is needed or recorded.

    Args:
        objective: (model, images_BCHW, labels, *targets) to the mean loss of a micro-batch.
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
    parameters, upload = list(model.parameters()), Uploads(runtime.device)
    model.train()
    with StopRequest() as stop:
        journal = Journal(state, settings, Meter(plan, progress, state), stop, saver, folder)
        if evaluation and state.is_evaluation_due:  # in which the run was stopped
            journal.evaluate(evaluation, progress)
            if journal.stop_signal:
                raise Stopped(journal.stop_signal, f"stopped in the evaluation after step {state.step}")
        for step in journal.steps():
            # Set the learning rate of this update.
            launch.enter(f"step {step + 1}")
            lr = settings.lr_at(step)
            for group in optimizer.param_groups:
                group["lr"] = lr * group.get("lr_scale", 1.0)

            # Forward and backward, one micro-batch at a time.
            part_losses = []
            for part in range(parts):
                with runtime.local_errors():
                    batch = journal.meter.next_of(batches)
                    targets = [each(batch, step, part) for each in settings.targets]
                state.skipped.update(batch.skipped)
                images_BCHW, labels, *targets = upload(batch.images_BCHW, batch.labels_B, *targets)
                # Dropout and mixup depend on the place in the global step, not on the process.
                part_seed = sampler.seed_of_part(settings.seed, step, runtime.rank * parts + part)
                seed_generators(part_seed, runtime.device)
                with state.gradients.part(is_last=part == parts - 1):
                    with autocast(runtime.device, runtime.precision):
                        images_BCHW = to_model_range(images_BCHW, mean=settings.mean, std=settings.std)
                        loss = objective(model, images_BCHW, labels, *targets)
                    runtime.accelerator.backward(runtime.scaler.scale(loss / state.gradients.num_losses))
                state.gradients.add()
                part_losses.append(loss.detach())
            state.gradients.finish()

            # Clip, and update the weights if every number is finite.
            loss_scale = runtime.scaler.scale(torch.ones_like(part_losses[0]))
            runtime.scaler.unscale_(optimizer)
            grad_norm = clip_by_global_norm(parameters, settings.clip)
            numbers = StepNumbers(step, lr, part_losses, grad_norm, loss_scale)
            journal.add(numbers)
            update_weights(optimizer, numbers.is_finite)
            runtime.scaler.update()
            optimizer.zero_grad()
            state.step = step + 1
            if state.average:
                state.average.update(num_updates=state.step)

            # Log, at once if the weights of this step are to be used.
            is_end = state.step == plan.total_steps
            is_evaluated = evaluation is not None and not is_end and evaluation.is_due(state.step)
            is_saved = settings.save_every > 0 and state.step % settings.save_every == 0
            journal.finish_step(at_once=is_evaluated or is_saved)

            # Evaluate; a signal that arrives meanwhile ends it.
            if is_evaluated:
                journal.evaluate(evaluation, progress)

            # Save, and stop if a signal asked for it.
            stop_signal = journal.stop_signal
            if saver and (is_end or stop_signal or is_saved or journal.is_save_due):
                saver.save(wait=is_end or stop_signal > 0)
            journal.next_step()
            if stop_signal:
                raise Stopped(stop_signal, f"stopped after step {state.step}")


class StepNumbers:
    """Losses and gradient norm of a step, on their way from the device.

    Attributes:
        is_finite: a bool on the device; of this process, so the norm tells of the others' gradients.
    """

    def __init__(
        self, step: int, lr: float, part_losses: list[Tensor], grad_norm: Tensor, loss_scale: Tensor
    ):
        self.step, self.lr = step, lr
        values = torch.stack([*part_losses, grad_norm])
        self.is_finite = values.isfinite().all()
        self._download = Download([values, loss_scale])

    def read(self) -> tuple[list[float], float, float]:
        """Return the losses, the gradient norm and the scale of the losses; wait for them if need be."""
        values, loss_scale = self._download.read()
        *losses, grad_norm = values.tolist()
        return losses, grad_norm, float(loss_scale)


class Journal:
    """The numbers of the steps: read, agreed on with the other processes, checked and logged.

    On a device that the host runs ahead of, the numbers of a step are read while the device computes the next
    one, before that changes the weights. So the device never waits for the host. Before the weights of a step
    are saved or evaluated, its numbers have been checked.

    Attributes:
        stop_signal: the signal that asks all processes to stop after the current step; 0 for none.
        is_save_due: whether the clock of any process asks for a save.
        is_plan_due: whether the run would miss its time limit with its plan.
    """

    def __init__(
        self,
        state: TrainingState,
        settings: LoopSettings,
        meter: "Meter",
        stop: "StopRequest",
        saver: Saver | None,
        folder: RunFolder | None,
    ):
        self.state, self.settings, self.meter, self.folder = state, settings, meter, folder
        self.stop, self.saver = stop, saver
        self.runs_ahead = runs_ahead(state.runtime.device)
        self.until = settings.until or settings.plan.total_steps
        self._has_last_plan = self.until == settings.plan.total_steps
        self.stop_signal, self.is_save_due, self.is_plan_due = 0, False, False
        self._waiting: StepNumbers | None = None  # of the last step, until they are logged
        self._loss = self._grad_norm = math.nan

    def steps(self) -> Iterator[int]:
        """Yield the steps to make with the plan, until it ends or another one is due."""
        while self.state.step < self.until and not self.is_plan_due:
            yield self.state.step

    def add(self, numbers: StepNumbers) -> None:
        """Take the numbers of the current step, before its update.

        Raises:
            NotFiniteError: one of them is not finite or, on a device that runs ahead, one of the step before.
        """
        if self.runs_ahead and self._waiting:
            self._check()
            self._log()
        self._waiting = numbers
        if not self.runs_ahead:
            self._check()

    def finish_step(self, *, at_once: bool) -> None:
        """Log the current step, after its update; if the host runs ahead, only `at_once` or the last one."""
        if self.runs_ahead:
            is_last = self.stop_signal or self.is_plan_due or self.state.step == self.until
            if not (at_once or is_last or self.is_save_due):
                return
            self._check()
        self._log()

    def next_step(self) -> None:
        """Do not count what happened since the last step was logged, as a save, as part of the next one."""
        self.is_save_due = False
        if self._waiting is None:
            self.meter.next_step()

    def evaluate(self, evaluation: PeriodicEvaluation, progress: Progress) -> None:
        """Run what is due after the current step; what a signal interrupts is due again after a resume."""
        step, self.state.is_evaluation_due = self.state.step, True
        launch.enter(f"the evaluation after step {step}")
        began_at = time.perf_counter()
        with suppress(Interrupted), evaluation.while_not(lambda: self.stop.signal > 0):
            for record, line in list(evaluation.due_after(step)):  # all or none is logged
                if self.folder:
                    self.folder.log({"step": step, **record})
                progress.note(f"step {step}: {line}")
            self.state.is_evaluation_due = False
            if self.state.limit:
                self.state.limit.scored(time.perf_counter() - began_at)
        self.agree([])

    def agree(self, losses: list[float]) -> list[float]:
        """Return the losses of all processes, and let them decide together to stop, save or plan again."""
        runtime, saver = self.state.runtime, self.saver
        is_due = self.is_save_due or (saver is not None and saver.is_due())
        requests = [self.stop.signal == signal.SIGINT, self.stop.signal == signal.SIGTERM, is_due]
        is_over = self.state.reason_to_end != ""
        requests.append(self.is_plan_due or (is_over and self._has_last_plan))
        if runtime.world_size > 1:
            all_PN = runtime.gather(torch.tensor([*losses, *requests], dtype=torch.float64))
            losses, requests = all_PN[:, :-4].flatten().tolist(), all_PN[:, -4:].any(dim=0).tolist()
        interrupted, terminated, self.is_save_due, self.is_plan_due = requests
        self.stop_signal = signal.SIGINT if interrupted else signal.SIGTERM if terminated else 0
        return losses

    def _check(self) -> None:
        """Read the numbers that wait to be logged, and raise NotFiniteError if one is not finite."""
        numbers = self._waiting
        losses, self._grad_norm, loss_scale = numbers.read()
        # The clock is asked once per step, until it wants another plan: asked again, it would measure anew.
        if self.state.limit and self._has_last_plan and not self.is_plan_due:
            self.is_plan_due = self.state.limit.misses(self.state.step, self.settings.plan.total_steps)
        losses = self.agree(losses)
        # `fsum` is exact before it rounds, so the mean does not depend on which process computed which part.
        self._loss = math.fsum(losses) / len(losses)
        # An overflowing fp16 gradient is normal: the update is skipped and the scale of the losses halved.
        may_overflow = self.state.runtime.precision == "fp16" and loss_scale > MIN_LOSS_SCALE
        if math.isfinite(self._loss) and (may_overflow or math.isfinite(self._grad_norm)):
            return
        raise NotFiniteError(
            f"the {'gradient' if math.isfinite(self._loss) else 'loss'} is not a finite number",
            where=f"step {numbers.step + 1}, learning rate {numbers.lr:.3g}, loss {self._loss:.4g}, "
            f"gradient norm {self._grad_norm:.4g}",
            fix=f"lower --lr{'' if self.settings.clip else ', or set optimizer.clip,'} in a new --out",
        )

    def _log(self) -> None:
        """Log the numbers that have been checked."""
        numbers, self._waiting = self._waiting, None
        step, total_steps = numbers.step + 1, self.settings.plan.total_steps
        rates = self.meter.step_done(step, loss=self._loss, lr=numbers.lr)
        if self.folder and (step in (1, total_steps) or step % self.settings.log_every == 0):
            grad_norm = self._grad_norm if math.isfinite(self._grad_norm) else None  # JSON has no infinity
            self.folder.log({"step": step, "loss": self._loss, "lr": numbers.lr, "grad_norm": grad_norm})
            memory = {"memory_gib": peak_memory_gib(), **reserved_memory_gib()}
            self.folder.log_timing({"step": step, **rates, **memory})


class StopRequest:
    """A signal (Ctrl-C, SIGTERM, SIGUSR1), kept until the step is done; a second Ctrl-C exits at once."""

    SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, launch.TIME_LIMIT})

    def __init__(self):
        self.signal = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():  # the only one that Python tells of signals
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
        self._is_estimated = state.limit is not None  # which says more
        self.progress.begin("train", self.plan.total_steps, self.state.step)
        self.next_step()

    def next_step(self) -> None:
        """Restart the clock: evaluation and saving after a step do not count as part of the next one."""
        self._step_began_at = time.perf_counter()
        if self.progress.title != "train":
            self.progress.begin("train", self.plan.total_steps, self.state.step)

    def next_of(self, batches: Iterator[Batch]) -> Batch:
        """Take a micro-batch, and count the time as waiting for the loader."""
        began_at = time.perf_counter()
        batch = next(batches)
        self._waited_s += time.perf_counter() - began_at
        return batch

    def step_done(self, step: int, *, loss: float, lr: float) -> dict[str, float]:
        """Update the progress line; return duration, throughput and data wait of the step."""
        now = time.perf_counter()
        step_s, self._step_began_at = now - self._step_began_at, now
        self.state.elapsed_s += step_s
        self._measured_s += step_s
        self._num_steps += 1
        waited_s, self._waited_before_s = self._waited_s - self._waited_before_s, self._waited_s
        images_per_s = self._num_steps * self.plan.batch_size / self._measured_s
        wait = f"data wait {self._waited_s / self._measured_s:.0%}"
        self.progress.update(step, f"loss {loss:.4f}", f"{images_per_s:.0f} img/s", f"lr {lr:.2e}", wait)
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
