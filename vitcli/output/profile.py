"""`--profile`: a trace of a few steps, and a digest of where their time goes. Loads torch only to record.

A phase of a step is an annotation in the trace: those below, the optimizer's own, and autograd's functions
for the backward pass. Between data and forward pass is the copy to the device, with the normalisation.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitcli.output.atomic import replace_file, write_text
from vitcli.output.text import count_of

TRACE, DIGEST = "trace.json", "profile.txt"
FILES = (TRACE, DIGEST)
SKIPPED, TRACED = 3, 3  # steps before the trace, which are slower, and steps in it
# By phase, how the names of its annotations begin.
ANNOTATIONS = {
    "data wait": "vit: data",
    "teacher": "vit: teacher",
    "copy": "vit: copy",
    "forward": "vit: forward",
    "backward": "autograd::engine::evaluate_function",
    "optimizer": "Optimizer.",
}
REST = "everything else"
PHASES = (*ANNOTATIONS, REST)
RARE = ("teacher",)  # named where there is one
NUM_OPERATORS = 5
# Fractions of a step above which a phase is worth a sentence.
MUCH = {"data wait": 0.10, "copy": 0.10, "optimizer": 0.15, REST: 0.10}
BUSY = 0.8  # fraction of the time that a GPU should compute
COMPUTES = 0.5  # fraction in matrix products from which their precision matters
MATRIX_PRODUCTS = ("mm", "linear", "matmul", "convolution", "gemm", "cutlass", "xmma")
_tracing: "StepProfiler | None" = None  # at most one at a time


class StepProfiler:
    """A trace of TRACED steps of a loop, begun and ended by when it asks for its batches.

    Args:
        parts: batches of a step.
        total_steps: those to come, so that a short run has a trace too; None where it is unknown.
    """

    def __init__(self, *, parts: int = 1, total_steps: int | None = None):
        self.parts = parts
        self.first = SKIPPED if total_steps is None else min(SKIPPED, max(0, total_steps - TRACED))
        self.num_steps = 0
        self._profiler: Any = None
        self._copy: AbstractContextManager | None = None
        self.is_at_teacher = False
        self._began_at = self._elapsed_s = 0.0

    def watch(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches; nothing is recorded but in the steps of the trace, and only once."""
        number = 0
        try:
            while True:
                step, place = divmod(number, self.parts)
                if place == 0 and step == self.first and not self.num_steps:
                    self._start()
                elif place == 0 and _tracing is self and step == self.first + TRACED:
                    self._stop(step)
                batch = self._traced(batches) if _tracing is self else next(batches, None)
                if batch is None:
                    return
                yield batch
                number += 1
        finally:
            if _tracing is self:
                self._stop(number // self.parts)

    def _traced(self, batches: Iterator[Any]) -> Any:
        """Return the next batch, with marks of the wait for it and of its way to the device."""
        self.end_copy()
        with _mark("data wait"):
            batch = next(batches, None)
        self.begin_copy()
        return batch

    def begin_copy(self) -> None:
        """Begin the mark of a batch's way to the device."""
        self._copy = _mark("copy")
        self._copy.__enter__()

    def end_copy(self) -> None:
        """End the mark of the last batch's way to the device, if it has not ended."""
        if self._copy:
            self._copy.__exit__(None, None, None)
            self._copy = None

    def _start(self) -> None:
        global _tracing
        import torch
        from torch.profiler import ProfilerActivity, profile

        gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
        self._profiler = profile(activities=[ProfilerActivity.CPU, *gpu])
        self._profiler.start()
        _tracing, self._began_at = self, time.perf_counter()

    def _stop(self, step: int) -> None:
        global _tracing
        import torch

        self.end_copy()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._elapsed_s = time.perf_counter() - self._began_at
        self._profiler.stop()
        _tracing, self.num_steps = None, max(1, step - self.first)

    def lines(self, *, precision: str, folder: Path | None) -> list[str]:
        """Return the digest of the trace, or a line that there is none; write both to a folder, if given."""
        if not self.num_steps:
            return [f"no profile: there were fewer than {count_of(self.first + 1, 'batch', 'batches')}"]
        averages = self._profiler.key_averages()
        result = digest(averages, num_steps=self.num_steps, elapsed_s=self._elapsed_s)
        lines = as_lines(result, precision=precision)
        if folder:
            lines.append(f"trace           {folder / TRACE}, for ui.perfetto.dev or chrome://tracing")
            replace_file(folder / TRACE, lambda path: self._profiler.export_chrome_trace(str(path)))
            write_text(folder / DIGEST, "".join(f"{line}\n" for line in lines))
        return lines


def _mark(phase: str) -> AbstractContextManager:
    from torch.profiler import record_function

    return record_function(ANNOTATIONS[phase])


@contextmanager
def forward() -> Iterator[None]:
    """Name what happens inside as the forward pass for a trace; do nothing without one, or in a teacher's."""
    if not _tracing or _tracing.is_at_teacher:
        yield
        return
    _tracing.end_copy()
    with _mark("forward"):
        yield


@contextmanager
def teacher() -> Iterator[None]:
    """Name what happens inside as the predictions of a teacher for the batch; without a trace do nothing."""
    if not (tracing := _tracing):
        yield
        return
    tracing.end_copy()
    tracing.is_at_teacher = True
    with _mark("teacher"):
        yield
    tracing.is_at_teacher = False
    tracing.begin_copy()


def marked(function: Callable, phase: Callable[[], AbstractContextManager] = forward) -> Callable:
    """Return the same function, named as the forward pass in the trace, or as another phase."""

    def named(*arguments: Any, **options: Any) -> Any:
        with phase():
            return function(*arguments, **options)

    return named


@dataclass(frozen=True)
class Digest:
    """Where the time of a step goes.

    Attributes:
        num_steps: in the trace.
        step_s: seconds of one.
        phases: fraction of the step by phase of PHASES, as the thread of the loop has it; they add up to 1.
        operators: fraction of the step by operator, its own time without what it calls; on a GPU by kernel.
        device_busy: fraction of the time that a GPU's kernels take, at most 1; None without one.
        device_phases: fraction of the step in kernels by the phase that launched them; {} without a GPU.
    """

    num_steps: int
    step_s: float
    phases: dict[str, float]
    operators: dict[str, float]
    device_busy: float | None
    device_phases: dict[str, float]


def digest(averages: Sequence[Any], *, num_steps: int, elapsed_s: float) -> Digest:
    """Return the digest of torch's table of a trace, `key_averages()`; times in it are microseconds."""
    length_us = 1e6 * elapsed_s
    on_host = [row for row in averages if row.device_type.name == "CPU"]
    phases, device_phases = dict.fromkeys(PHASES, 0.0), dict.fromkeys(PHASES, 0.0)
    for phase, beginning in ANNOTATIONS.items():
        for row in on_host:
            if row.key.startswith(beginning):
                phases[phase] += row.cpu_time_total / length_us
                # A GPU repeats annotations on its own time line: those are not kernels.
                repeated_us = row.self_device_time_total if row.is_user_annotation else 0
                device_phases[phase] += (row.device_time_total - repeated_us) / length_us
    phases[REST] = max(0.0, 1 - sum(phases.values()))

    # On a GPU the operators are its kernels.
    kernels = [row for row in averages if row.device_type.name != "CPU" and not row.is_user_annotation]
    if kernels:
        times = {row.key: row.self_device_time_total / length_us for row in kernels}
        device_phases[REST] = max(0.0, sum(times.values()) - sum(device_phases.values()))
    else:
        operators = [row for row in on_host if not row.key.startswith(tuple(ANNOTATIONS.values()))]
        times = {row.key: row.self_cpu_time_total / length_us for row in operators}
    most = sorted(times, key=times.__getitem__, reverse=True)[:NUM_OPERATORS]
    return Digest(
        num_steps=num_steps,
        step_s=elapsed_s / num_steps,
        phases=phases,
        operators={name: times[name] for name in most},
        device_busy=min(1.0, sum(times.values())) if kernels else None,
        device_phases=device_phases if kernels else {},
    )


def as_lines(result: Digest, *, precision: str) -> list[str]:
    """Return a digest as lines of text: the step, its phases, its operators, and what to try."""
    step_ms = 1e3 * result.step_s
    lines = [f"profile         {count_of(result.num_steps, 'step')} of {step_ms:,.1f} ms"]
    for name in PHASES:
        fraction = result.phases[name]
        if not fraction and name in RARE:
            continue
        line = f"{name:<16}{fraction:>6.1%}  {fraction * step_ms:>9,.1f} ms"
        if result.device_busy is not None:
            line += f"   its kernels {result.device_phases.get(name, 0.0):.1%}"
        lines.append(line)
    if result.device_busy is not None:
        lines.append(f"GPU busy        {result.device_busy:>6.1%}")
    each = ", ".join(f"{_short(name)} {fraction:.0%}" for name, fraction in result.operators.items())
    lines.append(f"top operators   {each or '-'}")
    return [*lines, f"to try          {'; '.join(advice(result, precision=precision))}"]


def _short(name: str) -> str:
    name = name.removeprefix("aten::").partition("<")[0].removeprefix("void ")
    return name if len(name) <= 40 else f"{name[:37]}..."


def advice(result: Digest, *, precision: str) -> list[str]:
    """Return what to try, as sentences chosen by the fractions of a step."""
    sentences = {
        "data wait": "the network waits for images: keep them decoded (data.cache), use more --workers; vit "
        "bench data measures the loader alone",
        "copy": "the copy to the device takes long: a larger --per-device-batch makes fewer of them",
        "optimizer": "the update takes long for so few images: a larger --batch-size has fewer updates",
        REST: "high overhead between passes: a larger --per-device-batch, and larger "
        "train.log_every, train.save_every and eval.every make it rarer",
    }
    advised = [sentences[name] for name, limit in MUCH.items() if result.phases[name] > limit]
    products = sum(
        fraction
        for name, fraction in result.operators.items()
        if any(word in name.lower() for word in MATRIX_PRODUCTS)
    )
    if precision == "fp32" and products > COMPUTES:
        advised.append(
            f"{products:.0%} are matrix products in fp32: --precision bf16, if the hardware computes it"
        )
    if result.device_busy is not None and result.device_busy < BUSY and not advised:
        idle = f"{1 - result.device_busy:.0%}"
        advised.append(f"the GPU is idle {idle} of the time: a larger --per-device-batch, --compile")
    computing = result.phases["forward"] + result.phases["backward"]
    return advised or [f"nothing stands out: {computing:.0%} are forward and backward passes"]
