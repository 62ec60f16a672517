"""`--profile`: a trace of a few steps, and a digest of where their time goes. Loads torch only to record.

A phase of a step is an annotation in the trace: those below, the optimizer's own, and autograd's for the
backward pass. Between the data and the forward pass is the copy to the device, with the normalisation.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vitcli.output.atomic import replace_file, write_text
from vitcli.output.text import count_of

TRACE, DIGEST = "trace.json", "profile.txt"
FILES = (TRACE, DIGEST)
SKIPPED, TRACED = 3, 3  # steps before the trace, which are slower, and steps in it
DATA, FORWARD = "vit: data", "vit: forward"
BEGIN, END = "vit: begin", "vit: end"
OPTIMIZER, AUTOGRAD = "Optimizer.", "autograd::engine::evaluate_function"
PHASES = ("data wait", "copy", "forward", "backward", "optimizer", "everything else")
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver")
NUM_OPERATORS = 5
# Fractions of a step above which a phase is worth a sentence.
MUCH = {"data wait": 0.10, "copy": 0.10, "optimizer": 0.15, "everything else": 0.10}
BUSY = 0.8  # fraction of the time that a GPU should compute
COMPUTES = 0.5  # fraction in matrix products from which their precision matters
MATRIX_PRODUCTS = ("mm", "linear", "matmul", "convolution", "gemm", "cutlass", "xmma")
_is_tracing = False

Interval = tuple[float, float]


def phase(name: str) -> AbstractContextManager:
    """Return a context that names what happens inside for a trace; without one it does nothing."""
    if not _is_tracing:
        return nullcontext()
    from torch.profiler import record_function

    return record_function(name)


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
        self._trace = b""
        self._profiler: Any = None

    def watch(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches; nothing is recorded but in the steps of the trace, and only once."""
        number = 0
        try:
            while True:
                step, place = divmod(number, self.parts)
                if place == 0 and step == self.first and not self.num_steps:
                    self._start()
                elif place == 0 and self._profiler and step == self.first + TRACED:
                    self._stop(step)
                with phase(DATA):
                    batch = next(batches, None)
                if batch is None:
                    return
                yield batch
                number += 1
        finally:
            if self._profiler:
                self._stop(number // self.parts)

    def _start(self) -> None:
        global _is_tracing
        import torch
        from torch.profiler import ProfilerActivity, profile

        gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
        self._profiler = profile(activities=[ProfilerActivity.CPU, *gpu])
        self._profiler.start()
        _is_tracing = True
        with phase(BEGIN):
            pass

    def _stop(self, step: int) -> None:
        global _is_tracing
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        with phase(END):
            pass
        _is_tracing = False
        self._profiler.stop()
        with TemporaryDirectory() as folder:
            self._profiler.export_chrome_trace(str(path := Path(folder, TRACE)))
            self._trace = path.read_bytes()
        self._profiler, self.num_steps = None, max(1, step - self.first)

    def lines(self, *, precision: str, folder: Path | None) -> list[str]:
        """Return the digest of the trace, or a line that there is none; write both to a folder, if given."""
        if not self.num_steps:
            return [f"no profile: there were fewer than {count_of(self.first + 1, 'batch', 'batches')}"]
        events = json.loads(self._trace)["traceEvents"]
        lines = as_lines(digest(events, num_steps=self.num_steps), precision=precision)
        if folder:
            lines.append(f"trace           {folder / TRACE}, for ui.perfetto.dev or chrome://tracing")
            replace_file(folder / TRACE, lambda path: path.write_bytes(self._trace))
            write_text(folder / DIGEST, "".join(f"{line}\n" for line in lines))
        return lines


def marked(function: Callable) -> Callable:
    """Return the same function, named as the forward pass in the trace."""

    def forward(*arguments: Any, **named: Any) -> Any:
        with phase(FORWARD):
            return function(*arguments, **named)

    return forward


@dataclass(frozen=True)
class Digest:
    """Where the time of a step goes.

    Attributes:
        num_steps: in the trace.
        step_s: seconds of one.
        phases: fraction of the step by phase of PHASES, as the thread of the loop has it; they add up to 1.
        operators: fraction of the step by operator, its own time without what it calls; on a GPU by kernel.
        device_busy: fraction of the time in which a GPU computed; None without one.
        device_phases: fraction of the step in kernels by the phase that launched them; {} without a GPU.
    """

    num_steps: int
    step_s: float
    phases: dict[str, float]
    operators: dict[str, float]
    device_busy: float | None
    device_phases: dict[str, float]


def digest(events: Sequence[dict[str, Any]], *, num_steps: int) -> Digest:
    """Return the digest of a trace in Chrome's format; times in it are microseconds."""
    spans = [event for event in events if event.get("ph") == "X" and "dur" in event]
    notes = [event for event in spans if event.get("cat") == "user_annotation"]
    begin = next(event for event in notes if event["name"] == BEGIN)
    window = (begin["ts"], max(event["ts"] for event in notes if event["name"] == END))
    inside = [event for event in spans if event["ts"] < window[1] and _end(event) > window[0]]
    intervals = _phases_of(inside, begin["tid"], window)
    length = window[1] - window[0]

    # On a GPU: when it computed, and for which phase.
    kernels = [event for event in inside if event.get("cat") in ON_DEVICE]
    launched_at = {
        event["args"]["correlation"]: event["ts"]
        for event in inside
        if event.get("cat") in LAUNCHES and "correlation" in event.get("args", {})
    }
    of_phases: Counter[str] = Counter()
    for kernel in kernels:
        at = launched_at.get(kernel.get("args", {}).get("correlation"), kernel["ts"])
        of_phases[_phase_at(intervals, at)] += kernel["dur"] / length
    times = _kernel_times(kernels) if kernels else _self_times(inside)
    return Digest(
        num_steps=num_steps,
        step_s=length / num_steps / 1e6,
        phases=_fractions(intervals, length),
        operators={name: us / length for name, us in times.most_common(NUM_OPERATORS)},
        device_busy=_covered(map(_interval, kernels), window) / length if kernels else None,
        device_phases=dict(of_phases),
    )


def _end(event: dict[str, Any]) -> float:
    return event["ts"] + event["dur"]


def _interval(event: dict[str, Any]) -> Interval:
    return event["ts"], _end(event)


def _phases_of(events: Sequence[dict[str, Any]], thread: Any, window: Interval) -> dict[str, list[Interval]]:
    """Return the intervals of each phase but the rest, in the order of time."""

    def of(prefix: str) -> list[Interval]:
        # A GPU repeats annotations on its own time line.
        named = [e for e in events if e["name"].startswith(prefix) and e["tid"] == thread]
        return sorted(_interval(event) for event in named if event.get("cat") == "user_annotation")

    data, forward, optimizer = of(DATA), of(FORWARD), of(OPTIMIZER)
    backward = sorted(_interval(event) for event in events if event["name"].startswith(AUTOGRAD))
    starts = sorted(start for start, _ in (*data, *forward, *optimizer, (window[1], 0.0)))
    phases: dict[str, list[Interval]] = {"data wait": data, "forward": forward, "optimizer": optimizer}

    # Autograd is one interval from its first to its last function after each forward pass.
    phases["backward"], phases["copy"] = [], []
    for start, end in forward:
        following = next((at for at in starts if at >= end), window[1])
        calls = [(a, b) for a, b in backward if end <= a < following]
        if calls:
            phases["backward"].append((calls[0][0], max(b for _, b in calls)))
        before = max((b for _, b in (*data, *optimizer) if b <= start), default=None)
        if before is not None and any(b == before for _, b in data):
            phases["copy"].append((before, start))
    return phases


def _fractions(phases: dict[str, list[Interval]], length: float) -> dict[str, float]:
    fractions = {name: sum(end - start for start, end in phases.get(name, ())) / length for name in PHASES}
    fractions["everything else"] = max(0.0, 1 - sum(fractions.values()))
    return fractions


def _phase_at(phases: dict[str, list[Interval]], time: float) -> str:
    return next(
        (name for name, each in phases.items() if any(a <= time < b for a, b in each)), "everything else"
    )


def _covered(intervals: Iterable[Interval], window: Interval) -> float:
    """Return how much of the window lies in any of the intervals."""
    covered, reached = 0.0, window[0]
    for start, end in sorted(intervals):
        start, end = max(start, reached), min(end, window[1])
        if end > start:
            covered, reached = covered + end - start, end
    return covered


def _kernel_times(kernels: Iterable[dict[str, Any]]) -> Counter[str]:
    times: Counter[str] = Counter()
    for kernel in kernels:
        times[kernel["name"]] += kernel["dur"]
    return times


def _self_times(events: Iterable[dict[str, Any]]) -> Counter[str]:
    """Return the time of each operator without that of the operators that it calls."""
    times: Counter[str] = Counter()
    operators = [event for event in events if event.get("cat") == "cpu_op" and AUTOGRAD not in event["name"]]
    open_calls: dict[Any, list[dict[str, Any]]] = {}
    for event in sorted(operators, key=lambda event: (event["ts"], -event["dur"])):
        stack = open_calls.setdefault(event["tid"], [])
        while stack and _end(stack[-1]) <= event["ts"]:
            stack.pop()
        if stack:
            times[stack[-1]["name"]] -= event["dur"]
        times[event["name"]] += event["dur"]
        stack.append(event)
    return times


def as_lines(result: Digest, *, precision: str) -> list[str]:
    """Return a digest as lines of text: the step, its phases, its operators, and what to try."""
    step_ms = 1e3 * result.step_s
    lines = [f"profile         {count_of(result.num_steps, 'step')} of {step_ms:,.1f} ms"]
    for name in PHASES:
        fraction = result.phases[name]
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
        "everything else": "much is done between the passes: a larger --per-device-batch, and larger "
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
