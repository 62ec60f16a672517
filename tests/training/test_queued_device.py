"""A training step never makes the host wait for a device that works through a queue, such as CUDA's.

Counted without one: on torch's "meta" device, which computes nothing, every way back to main memory goes past
`QueuedDevice`. It answers with ones and notes what a real device would have been waited for.
"""

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.conftest import run, vit
from tests.training.test_finetune import SMALL, TRICKY, fingerprint, small_run, when_logged
from vitcli.data.loader import Batch
from vitcli.distributed import runtime as runtimes
from vitcli.distributed import transfer
from vitcli.errors import NotFiniteError
from vitcli.evaluation import inference
from vitcli.models import masked_patch
from vitcli.models.build import TransformerOptions, architecture, build
from vitcli.output.progress import Progress
from vitcli.output.run_folder import METRICS, RunFolder, newest_checkpoint_step
from vitcli.recipe.schema import Optimizer
from vitcli.training import loop, objective, optim
from vitcli.training.gradients import DdpSum, PairwiseSum
from vitcli.training.optim import WeightAverage, build_optimizer
from vitcli.training.schedule import Plan
from vitcli.training.state import TrainingState

META = torch.device("meta")
SETTINGS = loop.LoopSettings(
    plan=Plan(6, 0, 8, 4, 2, 1, 40, 40, None), lr_at=lambda step: 0.1, clip=1.0, mean=(0.5,) * 3,
    std=(0.5,) * 3, seed=0, log_every=2, save_every=0,
)  # fmt: skip
aten = torch.ops.aten


class QueuedDevice(TorchDispatchMode):
    """Note in `events` each copy that waits, and each event that is recorded or waited for."""

    def __init__(self):
        super().__init__()
        self.events: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function == aten._fused_sgd_.default:  # torch has none for meta, as it has for Adam
            return None
        if function == aten._local_scalar_dense.default and args[0].is_meta:
            self.events.append("item")
            return 1
        if function in (aten._to_copy.default, aten.copy_.default):
            source = args[-1] if function == aten.copy_.default else args[0]
            target = args[0].device if function == aten.copy_.default else kwargs.get("device", source.device)
            is_queued = kwargs.get("non_blocking", False)
            if {source.device.type, torch.device(target).type} == {"cpu", "meta"} and not is_queued:
                self.events.append(f"{function} from {source.device} to {target}")
            if source.is_meta and torch.device(target).type == "cpu":
                return torch.ones(source.shape, dtype=kwargs.get("dtype") or source.dtype)
        return function(*args, **kwargs)

    def module(self) -> SimpleNamespace:
        """Return what `torch.cuda` is to CUDA."""

        class Event:
            def __init__(event, *, blocking):
                event.number = sum(name.startswith("record") for name in self.events) + 1

            def record(event):
                self.events.append(f"record {event.number}")

            def synchronize(event):
                self.events.append(f"wait {event.number}")

        stream = SimpleNamespace(wait_stream=lambda other: None)
        return SimpleNamespace(
            Event=Event,
            Stream=lambda: stream,
            stream=lambda stream: nullcontext(),
            current_stream=lambda: stream,
            manual_seed=lambda seed: None,
        )


@pytest.fixture
def device(monkeypatch):
    queued = QueuedDevice()
    monkeypatch.setattr(torch, "meta", queued.module(), raising=False)
    torch.get_device_module.cache_clear()
    monkeypatch.setattr(transfer, "QUEUED", {"meta"})
    monkeypatch.setattr(Tensor, "is_pinned", lambda tensor: True)
    optimizer = sys.modules["torch.optim.optimizer"]
    monkeypatch.setattr(optimizer, "_get_fused_kernels_supported_devices", lambda: ["meta"])
    monkeypatch.setattr(loop, "autocast", lambda device, precision: nullcontext())  # there is none for meta
    monkeypatch.setattr(Tensor, "record_stream", lambda tensor, stream: None)
    return queued


def network(kind: str) -> torch.nn.Module:
    options = TransformerOptions(layers=1, hidden=32, mlp=32, heads=2)
    arch = architecture("ViT-demo/8", image_size=(16, 16), num_classes=3, options=options)
    model = build(arch, dropout=0.1, drop_path=0.0, init="paper")
    if kind == "patches":
        fractions = dict(corrupted=0.5, masked=0.5, replaced=0.5)
        model = masked_patch.MaskedPatchModel(
            model, target="mean_color", **fractions, mean=(0.5,) * 3, std=(0.5,) * 3
        )
    return model


def batches(count: int):
    for number in range(count):
        generator = torch.Generator().manual_seed(number)
        pixels = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8, generator=generator)
        yield Batch(pixels, torch.tensor([0, 1, 2, 0]), torch.arange(4), ())


def settings_of(name: str, *, weight_decay: float) -> Optimizer:
    return Optimizer.model_construct(
        name=name, momentum=0.9, betas=(0.9, 0.99), eps=1e-8, weight_decay=weight_decay, decay_on="matrices"
    )


def trained(queued: QueuedDevice, folder, kind: str, name: str, gradients) -> TrainingState:
    """Train a tiny network for six steps of two micro-batches, logging every second one."""
    model = network(kind).to(META)
    optimizer = build_optimizer(model, settings_of(name, weight_decay=0.1))
    with mock.patch.object(Accelerator, "device", META):
        runtime = runtimes.start("fp32")
        state = TrainingState(
            runtime, model, model, optimizer, gradients(model, runtime, parts=2),
            WeightAverage(model, factor=0.9),
        )  # fmt: skip
        loss = objective.supervised(
            objective.loss_fn("softmax", label_smoothing=0.0), mixup=0.2 if kind == "classes" else 0.0
        )
        if kind == "patches":
            loss = lambda model, images_BCHW, labels: masked_patch.loss(model(images_BCHW))  # noqa: E731
        with closing(RunFolder(folder)) as run_folder, queued:
            loop.train(
                state, SETTINGS, loss, batches(12), evaluation=None, saver=None, folder=run_folder,
                progress=Progress(quiet=True),
            )  # fmt: skip
    return state


@pytest.mark.parametrize(
    ("kind", "optimizer", "gradients"),
    [
        ("classes", "adam", DdpSum),
        pytest.param("classes", "sgd", PairwiseSum, marks=pytest.mark.slow),
        pytest.param("patches", "sgd", DdpSum, marks=pytest.mark.slow),
    ],
)
def test_no_step_waits_and_its_numbers_are_read_while_the_next_one_is_computed(
    device, kind, optimizer, gradients, tmp_path
):
    # Mean and std are copied once, before the first step.
    transfer.constant((0.5,) * 3, META), transfer.constant((0.5,) * 3, META, scale=255)

    state = trained(device, tmp_path / "run", kind, optimizer, gradients)

    expected = ["record 1"]
    for step in range(2, 7):
        expected += [f"record {step}", f"wait {step - 1}"]
    assert device.events == [*expected, "wait 6"]
    assert state.optimizer.param_groups[0]["fused"]
    records = [json.loads(line) for line in (tmp_path / "run" / METRICS).read_text().splitlines()]
    assert [record["step"] for record in records] == [1, 2, 4, 6]


@pytest.fixture
def reads_late(monkeypatch):
    """Read the numbers of a step, and the logits of a batch, during the next one on a CPU, too."""
    for module in (loop, inference):
        monkeypatch.setattr(module, "runs_ahead", lambda device: True)


def test_numbers_read_late_change_no_bit_of_a_run_also_of_one_that_is_stopped(
    photos, plain_run, tmp_path, reads_late
):
    small_run(photos, tmp_path / "late", *TRICKY)
    when_logged(tmp_path / "stopped", 5, lambda: signal.raise_signal(signal.SIGTERM))
    stopped = run(*SMALL, "--dataset", photos, "--out", tmp_path / "stopped", "--steps", 8, *TRICKY)

    assert fingerprint(tmp_path / "late") == fingerprint(plain_run)
    assert stopped.code == 143 and newest_checkpoint_step(tmp_path / "stopped") in range(4, 8)
    small_run(photos, tmp_path / "stopped", *TRICKY)
    assert fingerprint(tmp_path / "stopped") == fingerprint(plain_run)


def test_a_loss_that_is_not_finite_is_the_same_error_when_it_is_read_late(photos, tmp_path, monkeypatch):
    words = (*SMALL, "--dataset", photos, "--steps", 20, "--batch-size", 8, "--lr", "1e38",
             "--set", "optimizer.clip=0", "--set", "train.save_every=3")  # fmt: skip
    errors, weights = [], []
    for name, is_late in (("at_once", False), ("late", True)):
        monkeypatch.setattr(loop, "runs_ahead", lambda device, is_late=is_late: is_late)
        ended = run(*words, "--out", tmp_path / name)
        assert ended.code == 6
        errors.append(ended.out.replace(name, "NAME"))
        weights.append({path.name for path in (tmp_path / name / "checkpoints").glob("step_*")})

    assert errors[0] == errors[1] and weights[0] == weights[1]


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_a_step_that_is_not_finite_leaves_weights_and_optimizer_as_they_were(name):
    fused, plain = (linear(name, fused) for fused in (True, False))
    for model, optimizer in (fused, plain):
        for value in (float("inf"), 1.0, float("nan"), 2.0):  # also the first
            before = [value.clone() for value in tensors_of(model, optimizer)]
            model.weight.grad = torch.full_like(model.weight, value)
            optim.update_weights(optimizer, model.weight.grad.isfinite().all())
            after = tensors_of(model, optimizer)

            assert all(tensor.isfinite().all() for tensor in after)
            if not torch.tensor(value).isfinite() and before[1:]:
                assert all(map(torch.equal, before, after))

    torch.testing.assert_close(fused[0].weight, plain[0].weight, rtol=1e-6, atol=0)


@pytest.mark.slow
def test_a_run_that_was_begun_without_a_fused_optimizer_goes_on_without(photos, tmp_path, monkeypatch):
    words = (*TRICKY, "--set", "optimizer.name=adam", "--set", "optimizer.betas=[0.9,0.99]",
             "--set", "optimizer.eps=1e-8")  # fmt: skip
    build_fused = optim.build_optimizer

    def build_plain(model, settings):
        optimizer = build_fused(model, settings)
        optim.unfuse(optimizer)
        return optimizer

    for name, builds in (("plain", (build_plain, build_plain)), ("mixed", (build_plain, build_fused))):
        monkeypatch.setattr("vitcli.training.state.build_optimizer", builds[0])
        when_logged(tmp_path / name, 5, lambda: signal.raise_signal(signal.SIGTERM))
        assert run(*SMALL, "--dataset", photos, "--out", tmp_path / name, "--steps", 8, *words).code == 143
        monkeypatch.setattr("vitcli.training.state.build_optimizer", builds[1])
        small_run(photos, tmp_path / name, *words)

    assert fingerprint(tmp_path / "mixed") == fingerprint(tmp_path / "plain")


@pytest.mark.parametrize(("is_late", "clip"), [(False, 0.0), (True, 0.0), (False, 4.0)])
def test_a_gradient_that_overflows_in_fp16_is_skipped_as_by_torchs_scaler(
    is_late, clip, tmp_path, monkeypatch
):
    monkeypatch.setattr(loop, "runs_ahead", lambda device: is_late)
    monkeypatch.setattr(loop, "autocast", lambda device, precision: nullcontext())
    (mine, optimizer), (theirs, their_optimizer) = linear("sgd", False), linear("sgd", False)
    scaler, their_scaler = (torch.amp.GradScaler("cpu", init_scale=2.0**16) for _ in range(2))
    factors = [1.0, 1e35, 2.0, 3.0]  # 1e35 times 2^16 is infinite, and half of that is not

    train_in_fp16(tmp_path / "run", mine, optimizer, factors, clip=clip, scaler=scaler)
    for factor in factors:
        their_scaler.scale(loss_of(theirs, factor)).backward()
        if clip:
            their_scaler.unscale_(their_optimizer)
            optim.clip_by_global_norm(theirs.parameters(), clip)
        their_scaler.step(their_optimizer)
        their_scaler.update()
        their_optimizer.zero_grad()

    assert torch.equal(mine.weight, theirs.weight)
    assert scaler.get_scale() == their_scaler.get_scale() == 2.0**15
    records = [json.loads(line) for line in (tmp_path / "run" / METRICS).read_text().splitlines()]
    assert [record["grad_norm"] is None for record in records] == [False, True, False, False]


def test_a_loss_that_is_not_finite_ends_a_run_in_fp16_too(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "autocast", lambda device, precision: nullcontext())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)

    with pytest.raises(NotFiniteError, match="the loss is not a finite number"):
        train_in_fp16(
            tmp_path / "run", *linear("sgd", False), [1.0, math.nan, 1.0, 1.0], clip=1.0, scaler=scaler
        )


def loss_of(model: torch.nn.Module, factor: float) -> Tensor:
    return (model(torch.ones(1, 5)) * factor).mean()


def train_in_fp16(folder, model, optimizer, factors: list[float], *, clip: float, scaler) -> None:
    """Train for four steps, of which each loss has a factor."""
    remaining = iter(factors)
    runtime = replace(runtimes.start("fp32"), precision="fp16", scaler=scaler)
    state = TrainingState(runtime, model, model, optimizer, DdpSum(model, runtime, parts=1))
    with closing(RunFolder(folder)) as run_folder:
        loop.train(
            state,
            replace(SETTINGS, plan=Plan(4, 0, 4, 4, 1, 1, 40, 40, None), clip=clip, log_every=1),
            lambda model, images_BCHW, labels: loss_of(model, next(remaining)),
            batches(4),
            evaluation=None,
            saver=None,
            folder=run_folder,
            progress=Progress(quiet=True),
        )


def linear(name: str, fused: bool) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(5, 3, bias=False)
    torch.nn.init.ones_(model.weight)
    settings = settings_of(name, weight_decay=0.0)
    with mock.patch.object(optim, "runs_ahead", lambda device: fused):
        optimizer = build_optimizer(model, settings)
    if not fused:
        optim.unfuse(optimizer)
    optimizer.param_groups[0]["lr"] = 0.1
    return model, optimizer


def tensors_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    state = optimizer.state.get(model.weight, {})
    return [model.weight.detach(), *(value for value in state.values() if isinstance(value, Tensor))]


@pytest.mark.slow
def test_processes_that_read_late_stop_after_the_same_step_and_end_with_the_same_bits(photos, tmp_path):
    words = ("--dataset", photos, "--batch-size", 8, "--per-device-batch", 4, "--steps", 60, "--precision",
             "fp32", "--set", "train.log_every=1", "--set", "optimizer.average=0.9")  # fmt: skip
    small = vit(*SMALL, *words, "--out", tmp_path / "at_once", "--num-processes", 2)
    assert small.returncode == 0, small.stderr

    def stop_one_of_them(processes):
        metrics = tmp_path / "late" / METRICS
        while not metrics.exists() or metrics.read_bytes().count(b'"loss"') < 4:
            time.sleep(0.01)
        processes[1].terminate()

    assert two_processes(*words, "--out", tmp_path / "late", on_start=stop_one_of_them) == [143, 143]
    assert not (tmp_path / "late" / "summary.json").exists()
    assert two_processes(*words, "--out", tmp_path / "late") == [0, 0]
    assert fingerprint(tmp_path / "late") == fingerprint(tmp_path / "at_once")


def two_processes(*words: object, late=("loop",), on_start=lambda processes: None) -> list[int]:
    """Train on two processes that read numbers late, in these modules; return their exit codes."""
    code = (
        "import sys; from vitcli.training import loop, optim; "
        f"{' = '.join(f'{module}.runs_ahead' for module in late)} = lambda device: True; "
        "from vitcli.cli import app; app.main(sys.argv[1:])"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in ("0", "1"):
        group = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}  # fmt: skip
        command = [sys.executable, "-c", code, *map(str, (*SMALL, *words))]
        processes.append(subprocess.Popen(command, env=os.environ | group, stdout=subprocess.DEVNULL))
    on_start(processes)
    return [process.wait(120) for process in processes]


def test_a_computation_waits_for_its_batch_whose_memory_stays_until_the_computation_is_done(monkeypatch):
    events = []
    computing = SimpleNamespace(wait_stream=lambda stream: events.append(f"waits for {stream}"))
    copy = SimpleNamespace(record_stream=lambda stream: events.append(stream is computing))
    monkeypatch.setattr(transfer, "to_device", lambda tensor, device: events.append(f"copy {tensor}") or copy)
    uploads = transfer.Uploads(torch.device("cpu"))
    uploads._stream = "copies"
    uploads._module = SimpleNamespace(stream=lambda stream: nullcontext(), current_stream=lambda: computing)

    assert uploads("images", "labels") == [copy, copy]
    assert events == ["copy images", "copy labels", "waits for copies", True, True]


@pytest.mark.parametrize("scale", [1.0, 255])
def test_a_constant_is_a_float32_product_of_float32_numbers(scale):
    """0.224 is of those whose product differs in its last bit if it is rounded once, afterwards."""
    values = (0.485, 0.456, 0.406, 0.229, 0.224, 0.225, 0.4082)

    found = transfer.constant(values, torch.device("cpu"), scale=scale)

    expected = np.array(values, np.float32) * np.float32(scale)
    assert found.dtype == torch.float32 and found.tolist() == expected.tolist()
    assert (expected != (np.array(values) * scale).astype(np.float32)).any() == (scale == 255)


def test_a_compiled_network_does_not_copy_a_constant_in_each_pass():
    graphs = []

    def times(values):
        return values * transfer.constant((0.5, 0.25), values.device, scale=2)

    def keep(graph, _):
        graphs.append(graph)
        return graph

    transfer.mark_constants()
    found = torch.compile(times, backend=keep, fullgraph=True)(torch.ones(2))

    assert found.tolist() == [1.0, 0.5]
    assert [node.op for node in graphs[0].graph.nodes if node.op.startswith("call")] == ["call_function"]


@pytest.mark.parametrize(
    ("kind", "is_pinned", "sent"),
    [
        ("mps", True, "float32"),  # Apple's GPUs have no float64
        ("xpu", False, "float64"),
        ("cuda", False, "float64, pinned, not waited for"),
        ("cuda", True, "float64, not waited for"),
    ],
)
def test_a_copy_that_is_not_waited_for_reads_pinned_memory(kind, is_pinned, sent):
    class Stand(SimpleNamespace):
        """A tensor as far as a copy of it goes."""

        text, dtype = "float64", torch.float64

        def is_pinned(self) -> bool:
            return is_pinned

        def float(self) -> "Stand":
            return Stand(text="float32")

        def pin_memory(self) -> "Stand":
            return Stand(text=f"{self.text}, pinned")

        def to(self, device: object, *, non_blocking: bool = False) -> str:
            return f"{self.text}, not waited for" if non_blocking else self.text

    assert transfer.to_device(Stand(), SimpleNamespace(type=kind)) == sent
