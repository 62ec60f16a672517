"""`--per-device-batch auto`: the largest part that fits, on every process, and the model as it was."""

import weakref
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.conftest import run
from tests.fake_device import report_gpus
from tests.training.test_finetune import SMALL, of_layers
from vitcli import recipe as recipes
from vitcli.errors import MachineError
from vitcli.models.build import architecture
from vitcli.models.variants import VARIANTS
from vitcli.training import auto_batch_size, setup
from vitcli.weights.io import read_weights

ADAM = ("optimizer.name=adam",)
META = torch.device("meta")


@dataclass
class Machine:
    """A device that runs out of memory above `most` images, beside another of `other`."""

    most: int
    other: int = 10**6
    device: torch.device = META
    precision: str = "fp32"
    processes_here: int = 1

    def gather(self, mine):
        return torch.stack([mine, torch.tensor(self.other)])


def fitting_size(runtime: Machine, monkeypatch, sizes=(1, 2, 4, 8, 16)) -> tuple[int, nn.Module, list[int]]:
    tried = []
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2), nn.BatchNorm1d(2))
    monkeypatch.setattr(model, "to", lambda device: model)

    def fits(model, objective, size, image_size, runtime, held_bytes):
        tried.append(size)
        model[2].running_mean += 1.0
        return size <= runtime.most

    monkeypatch.setattr(auto_batch_size, "_fits", fits)
    found = auto_batch_size.find_max_batch_size(
        model, None, sizes, image_size=(2, 2), runtime=runtime, bytes_at=lambda size: size, held_bytes=0
    )
    return found, model, tried


def test_sizes_are_tried_from_the_smallest_up(monkeypatch):
    found, model, tried = fitting_size(Machine(most=5), monkeypatch)

    assert (found, tried) == (4, [1, 2, 4, 8])
    assert not model[2].running_mean.any()  # what the trial passes left is taken back


def test_every_process_uses_what_fits_on_the_smallest_device(monkeypatch):
    assert fitting_size(Machine(most=16, other=2), monkeypatch)[0] == 2


def test_a_device_on_which_nothing_fits_is_an_error(monkeypatch):
    with pytest.raises(MachineError, match="not even 1 images"):
        fitting_size(Machine(most=0), monkeypatch)


def test_running_out_of_memory_is_no_error_and_leaves_no_gradient(monkeypatch):
    runtime = Machine(most=0, device=torch.device("cpu"))
    model = nn.Linear(4, 2)

    def objective(model, images_BCHW, labels):
        if len(images_BCHW) > 3:
            raise torch.OutOfMemoryError("as a GPU says it")
        return model(images_BCHW[:, 0].flatten(1)).sum()

    fits = partial(auto_batch_size._fits, model, objective, image_size=(2, 2), runtime=runtime)
    assert fits(3, held_bytes=8) and not fits(4, held_bytes=8)
    assert model.weight.grad is None
    # What optimizer and average hold may itself be too much, and some memory must stay free.
    with monkeypatch.context() as patched:
        patched.setattr(auto_batch_size, "_spare_fraction", lambda device: 0.04)
        assert not fits(3, held_bytes=8)
    assert not fits(3, held_bytes=2**60) and model.weight.grad is None


class Allocator:
    """torch's allocator of a GPU of 110 bytes, ten of them weights: it gives back in `empty_cache` alone."""

    def __init__(self, monkeypatch, others: int = 0):
        self.free = 110 - others  # other programs have taken the rest
        self.allocated = self.peak = self.reserved = 10
        self.graphs: list[weakref.ref] = []
        for name, function in {
            "mem_get_info": lambda device: (self.free - self.reserved, 110),
            "memory_reserved": lambda device: self.reserved,
            "max_memory_allocated": lambda device: self.peak,
        }.items():
            monkeypatch.setattr(torch.cuda, name, function)
        monkeypatch.setattr(auto_batch_size, "reset_peak_memory", self.reset)
        monkeypatch.setattr("vitcli.distributed.runtime.free_memory", self.empty_cache)

    def reset(self) -> None:
        self.peak = self.allocated

    def take(self, num_bytes: int) -> None:
        self.allocated += num_bytes
        self.peak = max(self.peak, self.allocated)
        # Blocks in other sizes stay beside those that are used, unless there is no room for them.
        self.reserved = min(self.free, self.reserved + num_bytes + 6)
        if self.allocated > self.free:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def empty_cache(self) -> None:
        assert not any(reference() is not None for reference in self.graphs), "a trial's graph is alive"
        self.allocated = self.reserved = 10


@pytest.mark.parametrize(("others", "expected"), [(0, 8), (12, 8), (16, 4)])
def test_memory_that_the_allocator_could_give_back_is_free(others, expected, monkeypatch):
    """Ten bytes an image, of which the last are taken in the backward pass: of 16, too many; of 8, 80."""
    gpu = Allocator(monkeypatch, others)

    class Activations(torch.autograd.Function):
        @staticmethod
        def forward(context, values):
            gpu.take(5 * len(values))
            context.kept = lambda: None  # lives as long as the graph
            gpu.graphs.append(weakref.ref(context.kept))
            return values * 2

        @staticmethod
        def backward(context, gradient):
            gpu.take(5 * len(gradient))
            return gradient

    def objective(model, images_BCHW, labels):
        return Activations.apply(model(images_BCHW.flatten(1))).sum()

    runtime = Machine(most=0, device=torch.device("cpu"))
    spare_fraction = auto_batch_size._spare_fraction
    monkeypatch.setattr(auto_batch_size, "_spare_fraction", lambda _: spare_fraction(torch.device("cuda")))
    fits = partial(auto_batch_size._fits, nn.Linear(12, 2), objective, image_size=(2, 2), runtime=runtime)

    assert [size for size in (1, 2, 4, 8, 16, 8) if fits(size, held_bytes=0)][-1] == expected


def test_the_peak_of_the_trials_is_not_that_of_the_run(monkeypatch):
    resets = []
    monkeypatch.setattr(auto_batch_size, "reset_peak_memory", lambda: resets.append(True))
    fitting_size(Machine(most=5), monkeypatch)

    assert resets == [True]


def test_the_default_part_on_a_gpu_takes_half_of_its_memory_at_most():
    with report_gpus("H200"):  # 141 GiB
        sizes = [auto_batch_size.max_part_on_gpu(gib * 2**30, torch.device("cuda")) for gib in (0.1, 1, 500)]

    assert sizes == [512, 70, 1]


def test_the_trial_recomputes_activations_where_the_run_does(photos, monkeypatch):
    recomputing, bytes_of = [], {}

    def largest(model, objective, sizes, *, bytes_at, held_bytes, **_):
        recomputing.append(model.grad_checkpointing)
        bytes_of[model.grad_checkpointing] = held_bytes, bytes_at(0), bytes_at(3) - bytes_at(0)
        return 4

    monkeypatch.setattr(setup, "find_max_batch_size", largest)
    layers = VARIANTS["ViT-demo/8"].layers
    words = (*of_layers(SMALL, None), "--dataset", photos, "--batch-size", 12, "--per-device-batch", "auto")
    words += ("--steps", 3, "--precision", "fp32")
    estimates = [
        run(*words, "--dry-run", "--set", f"model.grad_checkpointing={value}").json
        for value in ("true", "false")
    ]

    assert recomputing == [True, False]
    less, more = (plan["estimated_peak_memory_gib"] for plan in estimates)
    assert less < more
    # SGD's moment and the gradients of earlier micro-batches are held; weights and gradients are besides.
    params, values = estimates[0]["params"], (2 * 2 + 1) * 96  # of a layer's output, for 16 x 16 pixels
    assert bytes_of[False] == (8 * params, 16 * params, 3 * 17 * 4 * values * layers)
    assert bytes_of[True] == (8 * params, 16 * params, 3 * (17 * 4 + 4 * layers) * values)

    # The weights of a teacher are held, too.
    taught = ("--set", "distill.teacher=demo", "--set", "distill.compare=false")
    assert run(*words, "--dry-run", *taught).code == 0
    of_teacher = 4 * sum(tensor.numel() for tensor in read_weights("demo").state.values())
    assert bytes_of[False][:2] == (8 * params + of_teacher, 16 * params + of_teacher)


@pytest.mark.parametrize(
    ("keys", "processes", "tensors"),
    [
        ((), 1, 3),  # weights, gradients and a moment
        (ADAM, 1, 4),
        ((*ADAM, "optimizer.average=0.9"), 1, 5),
        (("optimizer.average=0.9",), 4, 1),  # a quarter of four
    ],
)
def test_the_memory_of_a_run_is_that_of_its_tensors_and_of_a_micro_batch(keys, processes, tensors):
    arch = architecture("ViT-B/16", image_size=(224, 224), num_classes=1000)
    job = SimpleNamespace(
        start=SimpleNamespace(arch=arch),
        runtime=SimpleNamespace(world_size=processes, precision="bf16", device=torch.device("cuda")),
        options=SimpleNamespace(shard=processes > 1),
        recipe=recipes.load("finetune/default", ["data.dataset=demo", *keys]),
        plan=SimpleNamespace(per_device_batch=32),
    )

    weights, activations = 86_567_656 * 4, 32 * 17 * 2 * 197 * 768 * 12  # as timm counts the weights
    assert setup._estimated_memory_gib(job) * 2**30 == pytest.approx(tensors * weights + activations)


def test_a_cpu_compares_with_the_memory_that_is_free(monkeypatch):
    runtime = Machine(most=0, device=torch.device("cpu"), processes_here=2)
    monkeypatch.setattr("vitcli.distributed.launch.free_bytes", lambda: 20.0)
    found = auto_batch_size.find_max_batch_size(
        nn.Identity(),
        None,
        (1, 2, 4, 8, 16),
        image_size=(2, 2),
        runtime=runtime,
        bytes_at=lambda size: size,
        held_bytes=0,
    )

    assert found == 8


@pytest.mark.slow
def test_auto_is_kept_when_a_run_resumes(photos, tmp_path):
    words = (*SMALL, "--dataset", photos, "--batch-size", 12, "--per-device-batch", "auto")
    plan = run(*words, "--dry-run", "--steps", 3).json
    assert (plan["per_device_batch"], plan["accumulation_steps"]) == (12, 1)

    assert run(*words, "--steps", 3, "--out", tmp_path / "run").code == 0
    assert run(*words, "--per-device-batch", "many", "--steps", 3).code == 2
