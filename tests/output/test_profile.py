"""The digest of a profile, from traces made by hand, and the profiler around a loop."""

import json
from itertools import count, islice

import pytest
import torch

from tests.conftest import run
from tests.training.test_finetune import SMALL, TRICKY, fingerprint
from vitcli.output import profile
from vitcli.output.profile import advice, as_lines, digest, marked


def span(
    name: str, start_ms: float, end_ms: float, cat: str = "user_annotation", tid: int = 1, **args
) -> dict:
    times = {"ts": 1000 * start_ms, "dur": 1000 * (end_ms - start_ms)}
    return {"ph": "X", "name": name, "cat": cat, "pid": 1, "tid": tid, "args": args, **times}


def step(at: float, *, tid_of_backward: int = 1) -> list[dict]:
    """100 ms: 10 data, 5 copy, 30 forward, 40 backward after 1 of nothing, 6 optimizer, 8 of other things."""
    return [
        span("vit: data", at, at + 10),
        span("aten::to", at + 10, at + 15, "cpu_op"),
        span("vit: forward", at + 15, at + 45),
        span("aten::linear", at + 15, at + 35, "cpu_op"),
        span("aten::addmm", at + 16, at + 34, "cpu_op"),
        span("autograd::engine::evaluate_function: A", at + 46, at + 60, "cpu_op", tid_of_backward),
        span("aten::mm", at + 47, at + 59, "cpu_op", tid_of_backward),
        span("autograd::engine::evaluate_function: B", at + 62, at + 86, "cpu_op", tid_of_backward),
        span("Optimizer.step#SGD.step", at + 86, at + 92),
    ]


def trace(*steps: list[dict], length_ms: float) -> list[dict]:
    ends = [span("vit: begin", 0, 0), span("vit: end", length_ms, length_ms)]
    return [{"ph": "M", "name": "process_name"}, *ends, *(event for each in steps for event in each)]


def test_a_step_is_divided_among_its_phases_and_they_add_up():
    found = digest(trace(step(0), step(100), length_ms=200), num_steps=2)

    assert found.step_s == pytest.approx(0.1)
    expected = {"data wait": 0.10, "copy": 0.05, "forward": 0.30, "backward": 0.40, "optimizer": 0.06}
    assert found.phases == pytest.approx(expected | {"everything else": 0.09})
    # Operators by their own time: 2 ms of the linear layer are not its product.
    own = {"aten::addmm": 0.18, "aten::mm": 0.12, "aten::to": 0.05, "aten::linear": 0.02}
    assert found.operators == pytest.approx(own)
    assert found.device_busy is None


def test_work_of_a_gpu_belongs_to_the_phase_that_launched_it():
    kernels = [
        span("launch", 20, 21, "cuda_runtime", correlation=1),
        span("launch", 50, 51, "cuda_runtime", tid=7, correlation=2),
        span("gemm", 40, 70, "kernel", tid=99, correlation=1),
        span("gemm", 70, 90, "kernel", tid=99, correlation=2),
        span("gemm", 80, 95, "kernel", tid=98, correlation=2),
        span("vit: forward", 40, 70, "gpu_user_annotation", tid=99),
    ]
    found = digest(trace(step(0, tid_of_backward=7), kernels, length_ms=100), num_steps=1)

    assert found.device_busy == pytest.approx(0.55)
    assert found.device_phases == pytest.approx({"forward": 0.30, "backward": 0.35})
    assert found.operators == pytest.approx({"gemm": 0.65})
    assert found.phases["backward"] == pytest.approx(0.40)
    assert "GPU busy         55.0%" in as_lines(found, precision="bf16")
    assert any("the GPU is idle 45%" in sentence for sentence in advice(found, precision="bf16"))


@pytest.mark.parametrize(
    ("phases", "operators", "precision", "word"),
    [
        ({"data wait": 0.3, "forward": 0.7}, {}, "bf16", "waits for images"),
        ({"optimizer": 0.3, "forward": 0.7}, {}, "bf16", "larger --batch-size"),
        ({"everything else": 0.3, "forward": 0.7}, {}, "bf16", "train.log_every"),
        ({"forward": 0.4, "backward": 0.6}, {"aten::addmm": 0.6}, "fp32", "--precision bf16"),
        ({"forward": 0.4, "backward": 0.6}, {"aten::addmm": 0.6}, "bf16", "nothing stands out: 100%"),
        ({"forward": 0.4, "backward": 0.6}, {"aten::add": 0.6}, "fp32", "nothing stands out"),
    ],
)
def test_what_to_try_follows_from_the_fractions(phases, operators, precision, word):
    whole = dict.fromkeys(profile.PHASES, 0.0) | phases
    found = profile.Digest(3, 0.1, whole, operators, None, {})

    (sentence,) = advice(found, precision=precision)
    assert word in sentence


def test_the_digest_is_ten_lines_or_less():
    lines = as_lines(digest(trace(step(0), length_ms=100), num_steps=1), precision="bf16")

    assert len(lines) <= 10
    assert lines[0] == "profile         1 step of 100.0 ms"
    assert lines[1].split() == ["data", "wait", "10.0%", "10.0", "ms"]
    assert "addmm 18%, mm 12%" in lines[7]


@pytest.mark.parametrize(("num_batches", "traced"), [(40, 3), (8, 1), (2, 1)])
def test_three_steps_after_three_are_traced_once(tmp_path, num_batches, traced):
    profiler = profile.StepProfiler(parts=2, total_steps=num_batches // 2)
    forward = marked(lambda x: x @ x)
    seen = [
        number for number in profiler.watch(iter(range(num_batches))) if forward(torch.eye(4)) is not None
    ]

    assert seen == list(range(num_batches)) and not profile._is_tracing
    assert profiler.num_steps == min(3, num_batches // 2)
    lines = profiler.lines(precision="fp32", folder=tmp_path)
    names = [event["name"] for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]]
    assert names.count("vit: forward") == 2 * profiler.num_steps
    assert (tmp_path / "profile.txt").read_text().splitlines() == lines


def test_a_loop_that_ends_early_or_has_too_few_batches_leaves_nothing_on():
    profiler = profile.StepProfiler()
    assert list(islice(profiler.watch(count()), 5)) == [0, 1, 2, 3, 4]
    assert not profile._is_tracing and profiler.num_steps == 1

    short = profile.StepProfiler()
    assert list(short.watch(iter([1, 2]))) == [1, 2]
    assert short.lines(precision="fp32", folder=None) == ["no profile: there were fewer than 4 batches"]


def test_a_profile_changes_no_bit_of_a_run_and_names_its_phases(photos, tmp_path):
    words = [*SMALL, "--dataset", photos, "--steps", 7, *TRICKY]
    words.remove("--quiet")
    plain = run(*words, "--out", tmp_path / "plain")
    traced = run(*words, "--out", tmp_path / "traced", "--profile")

    assert (plain.code, traced.code) == (0, 0), plain.err + traced.err
    assert fingerprint(tmp_path / "plain") == fingerprint(tmp_path / "traced")
    lines = (tmp_path / "traced" / "profile.txt").read_text().splitlines()
    assert lines[0].startswith("profile         3 steps of") and all(
        line in traced.err for line in lines[:-1]
    )
    found = digest(json.loads((tmp_path / "traced/trace.json").read_text())["traceEvents"], num_steps=3)
    assert all(found.phases[name] > 0 for name in profile.PHASES)
    assert not (tmp_path / "plain" / "trace.json").exists()

    # The same for an evaluation, whose trace belongs to its folder.
    words = ["evaluate", "--ckpt", tmp_path / "plain", "--batch-size", 2, "--json"]
    plain, traced = run(*words), run(*words, "--profile", "--out", tmp_path / "evaluation")
    assert plain.json["loss"] == traced.json["loss"] and "forward" in traced.err
    assert run(*words, "--profile", "--out", tmp_path / "evaluation").code == 0
    assert (tmp_path / "evaluation" / "trace.json").exists()


def test_a_dry_run_has_nothing_to_trace(photos):
    shown = run("finetune", "--dataset", photos, "--ckpt", "demo", "--profile", "--dry-run")

    assert shown.code == 2 and "no steps to trace" in shown.err


def test_the_intervals_of_phases_are_those_of_their_first_beginnings_and_last_ends():
    """A function of autograd encloses another; behind an optimizer there is no batch to copy."""
    function = "autograd::engine::evaluate_function: "
    events = [
        span("vit: data", 0, 10),
        span("vit: forward", 12, 20),
        span(function + "A", 22, 40, "cpu_op", 2),
        span(function + "B", 25, 30, "cpu_op", 2),
        span("Optimizer.step#SGD.step", 45, 50),
        span("vit: forward", 55, 60),
        span(function + "A", 61, 70, "cpu_op", 2),
        span("vit: data", 0, 90, tid=7),  # of a GPU's own time line
    ]

    phases = profile._phases_of(events, 1, (0.0, 80_000.0))

    assert phases == {
        "data wait": [(0, 10_000)],
        "forward": [(12_000, 20_000), (55_000, 60_000)],
        "optimizer": [(45_000, 50_000)],
        "backward": [(22_000, 40_000), (61_000, 70_000)],
        "copy": [(10_000, 12_000)],
    }
