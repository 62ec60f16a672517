"""The digest of a profile, from tables made by hand, and the profiler around a loop."""

import json
from itertools import count, islice, pairwise
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType

from tests.conftest import run
from tests.training.test_finetune import SMALL, TRICKY, fingerprint
from vitcli.output import profile
from vitcli.output.profile import advice, as_lines, digest, marked


def row(key: str, total_ms: float, own_ms: float = 0.0, gpu_ms: float = 0.0, **more) -> SimpleNamespace:
    """A line of torch's table: the time of all calls, their own part, and that of the kernels in them."""
    times = {"cpu_time_total": 1000 * total_ms, "self_cpu_time_total": 1000 * own_ms}
    times |= {"device_time_total": 1000 * gpu_ms, "self_device_time_total": 0.0}
    about = {"device_type": DeviceType.CPU, "is_user_annotation": key.startswith(("vit: ", "Optimizer."))}
    return SimpleNamespace(key=key, **times | about | more)


def kernel(key: str, ms: float, **more) -> SimpleNamespace:
    times = {"device_time_total": 1000 * ms, "self_device_time_total": 1000 * ms}
    return row(key, 0.0, device_type=DeviceType.CUDA, **times | more)


# 100 ms: 10 data, 5 copy, 30 forward, 40 backward, 6 optimizer, 9 of other things.
STEP = [
    row("vit: data", 10, 10),
    row("vit: copy", 5),
    row("aten::to", 5, 5),
    row("vit: forward", 30, 10),
    row("aten::linear", 20, 2),
    row("aten::addmm", 18, 18),
    row("autograd::engine::evaluate_function: A", 16, 2),
    row("autograd::engine::evaluate_function: B", 24, 24),
    row("aten::mm", 12, 12),
    row("Optimizer.step#SGD.step", 6, 6),
]


def test_a_step_is_divided_among_its_phases_and_they_add_up():
    found = digest([*STEP, *STEP], num_steps=2, elapsed_s=0.2)

    assert found.step_s == pytest.approx(0.1)
    expected = {"data wait": 0.10, "copy": 0.05, "forward": 0.30, "backward": 0.40, "optimizer": 0.06}
    assert found.phases == pytest.approx(expected | {"teacher": 0.0, "everything else": 0.09})
    assert found.device_busy is None and found.device_phases == {}


def test_operators_come_by_their_own_time():
    found = digest(STEP, num_steps=1, elapsed_s=0.1)

    # 2 ms of the linear layer are not its product.
    assert found.operators == pytest.approx(
        {"aten::addmm": 0.18, "aten::mm": 0.12, "aten::to": 0.05, "aten::linear": 0.02}
    )


def test_work_of_a_gpu_belongs_to_the_phase_that_launched_it():
    rows = [
        *(each for each in STEP if each.key not in ("vit: forward", STEP[6].key)),
        # Of its 50 ms on the device 20 are its own mark's on the time line of the GPU, and no kernel's.
        row("vit: forward", 30, gpu_ms=50, self_device_time_total=20_000.0),
        row(STEP[6].key, 16, gpu_ms=15),
        kernel("vit: forward", 20, is_user_annotation=True),
        kernel("gemm", 45),
        kernel("Memcpy HtoD", 10),
    ]
    found = digest(rows, num_steps=1, elapsed_s=0.1)

    assert found.device_busy == pytest.approx(0.55)
    expected = {"data wait": 0, "copy": 0, "forward": 0.30, "backward": 0.15, "optimizer": 0}
    assert found.device_phases == pytest.approx(expected | {"teacher": 0.0, "everything else": 0.10})
    assert found.operators == pytest.approx({"gemm": 0.45, "Memcpy HtoD": 0.10})
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
    lines = as_lines(digest(STEP, num_steps=1, elapsed_s=0.1), precision="bf16")

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

    assert seen == list(range(num_batches)) and profile._tracing is None
    assert profiler.num_steps == min(3, num_batches // 2)
    lines = profiler.lines(precision="fp32", folder=tmp_path)
    names = [event["name"] for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]]
    assert names.count("vit: forward") == 2 * profiler.num_steps
    assert (tmp_path / "profile.txt").read_text().splitlines() == lines


def test_a_loop_that_ends_early_or_has_too_few_batches_leaves_nothing_on():
    profiler = profile.StepProfiler()
    assert list(islice(profiler.watch(count()), 5)) == [0, 1, 2, 3, 4]
    assert profile._tracing is None and profiler.num_steps == 1

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
    shown = {line[:16].strip(): float(line[16:21]) for line in lines[1:7]}
    assert list(shown) == [each for each in profile.PHASES if each != "teacher"] and all(shown.values())
    # The trace itself says as much.
    events = json.loads((tmp_path / "traced/trace.json").read_text())["traceEvents"]
    for name in ("data wait", "copy", "forward"):
        mark = profile.ANNOTATIONS[name]
        marks = [event for event in events if event["name"] == mark and event["cat"] == "user_annotation"]
        ms_of_step = sum(event["dur"] for event in marks) / 3000
        line = next(line for line in lines if line.startswith(name))
        assert len(marks) >= 3 * 2 and f" {ms_of_step:,.1f} ms" in line
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


def test_a_copy_ends_where_the_next_thing_begins(tmp_path):
    """A batch that no forward pass takes, such as the last one of a loop that ends, leaves no mark open.

    The forward pass of a teacher, before the copy of its student's batch, is the teacher's.
    """
    profiler = profile.StepProfiler(total_steps=3)
    teach = marked(marked(lambda: torch.eye(4) @ torch.eye(4)), profile.teacher)
    for number in profiler.watch(iter(range(3))):
        if number == 0:
            teach()
        if number == 1:
            with profile.forward():
                torch.eye(4) @ torch.eye(4)
    profiler.lines(precision="fp32", folder=tmp_path)

    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    marks = {
        name: [(e["ts"], e["ts"] + e["dur"]) for e in events if e["name"] == mark]
        for name, mark in profile.ANNOTATIONS.items()
    }
    assert {name: len(marks[name]) for name in ("teacher", "copy", "forward")} == {
        "teacher": 1, "copy": 4, "forward": 1,
    }  # fmt: skip
    every = sorted(marks["data wait"] + marks["teacher"] + marks["copy"] + marks["forward"])
    assert all(end <= start for (_, end), (start, _) in pairwise(every))
