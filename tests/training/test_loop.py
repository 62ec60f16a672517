"""The training loop against the authors' own runs, against its definition, and how it stops."""

import json
import math
import signal
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from tests.conftest import SHARED
from vitcli.data.loader import Batch
from vitcli.distributed.runtime import start as start_runtime
from vitcli.errors import NotFiniteError, Stopped
from vitcli.models.build import build
from vitcli.output import run_folder
from vitcli.output.atomic import read_jsonl
from vitcli.output.progress import Progress
from vitcli.recipe.schema import Optimizer
from vitcli.training import loop, objective, optim
from vitcli.training.gradients import DdpSum, PairwiseSum
from vitcli.training.loop import LoopSettings, train
from vitcli.training.optim import WeightAverage
from vitcli.training.schedule import Plan, lr_at_step
from vitcli.training.state import TrainingState
from vitcli.weights.authors_npz import from_official
from vitcli.weights.io import read_weights
from vitcli.weights.load import load_into

HOME = SHARED / "golden/trajectories"
RUNS = json.loads((HOME / "trajectories.json").read_text())["runs"] if HOME.is_dir() else {}
# Runs that keep their momentum in bfloat16 are another algorithm.
FLOAT32 = [name for name in RUNS if not name.endswith("_bf16")]
TOLERANCES = {"finetune": (1e-4, 1e-3, 1e-5), "pretrain": (3e-4, 2e-3, 5e-5)}


@pytest.mark.skipif(not RUNS, reason="the golden trajectories are not here; VIT_TEST_DATA names their folder")
@pytest.mark.parametrize(
    ("name", "gradients"),
    [
        *((name, DdpSum) for name in FLOAT32 or ["none"]),
        *(
            pytest.param(name, PairwiseSum, marks=pytest.mark.slow)
            for name in FLOAT32
            if "accum4" in name or name == "pretrain_sigmoid"
        ),
    ],
)
def test_the_loop_follows_the_authors_trajectory(name, gradients, tmp_path):
    golden_run, golden = RUNS[name], np.load(HOME / f"{name}.npz")
    for_loss, for_norm, for_weights = TOLERANCES[golden_run["kind"]]

    model, records = trained(golden_run, tmp_path, gradients)

    np.testing.assert_allclose([record["loss"] for record in records], golden["loss"], atol=for_loss, rtol=0)
    np.testing.assert_allclose(
        [record["grad_norm"] for record in records], golden["grad_norm"], rtol=for_norm
    )
    np.testing.assert_allclose([record["lr"] for record in records], golden["lr"], atol=1e-6, rtol=0)
    state = model.state_dict()
    for key, value in final_weights(golden).items():
        ours = state[key]
        if golden_run["kind"] == "pretrain" and key.endswith("attn.qkv.bias"):
            # The gradient of a key's bias is zero; Adam makes steps of rounding errors there.
            query, _, values = ours.chunk(3)
            theirs_query, _, theirs_values = value.chunk(3)
            ours, value = torch.cat([query, values]), torch.cat([theirs_query, theirs_values])
        torch.testing.assert_close(ours, value, atol=for_weights, rtol=0)


def trained(golden_run: dict, folder: Path, gradients) -> tuple[torch.nn.Module, list[dict]]:
    """Our loop on the run's weights, data and settings; the model after it, and what was logged."""
    weights = read_weights(str(HOME / "init.npz"))
    model = build(weights.architecture, dropout=0.0)
    load_into(model, weights.architecture, weights, new_head=golden_run.get("reset_head", False))
    if "head_bias" in golden_run:
        torch.nn.init.constant_(model.head.bias, golden_run["head_bias"])
    is_adam = golden_run["optimizer"] == "Adam"
    optimizer_settings = Optimizer.model_construct(
        name=golden_run["optimizer"].lower(),
        momentum=golden_run.get("momentum"),
        betas=(golden_run["b1"], golden_run["b2"]) if is_adam else None,
        eps=golden_run.get("eps"),
        weight_decay=golden_run.get("weight_decay_in_paper_units", 0.0),
        decay_on="matrices",
    )
    optimizer = optim.build_optimizer(model, optimizer_settings)
    data = np.load(HOME / "data.npz")
    parts = golden_run.get("accum_steps", 1)
    batch_size = data["images"].shape[1]
    plan = Plan(
        total_steps=len(data["stream"]),
        warmup_steps=golden_run["warmup_steps"],
        batch_size=batch_size,
        per_device_batch=batch_size // parts,
        accumulation_steps=parts,
        world_size=1,
        num_examples=40,
        images_seen=160,
        exaflops=None,
    )
    runtime = start_runtime("fp32")
    settings = LoopSettings(
        plan=plan,
        lr_at=partial(
            lr_at_step,
            base_lr=golden_run["lr"] if is_adam else golden_run["base_lr"],
            total_steps=plan.total_steps,
            warmup_steps=plan.warmup_steps,
            decay=golden_run["decay"],
            end_lr=0.0 if is_adam or golden_run["decay"] == "cosine" else 1e-5,
        ),
        clip=golden_run["clip"] or 0.0,
        mean=(0.0,) * 3,  # the images are in [-1, 1] already: leave them
        std=(1 / 255,) * 3,
        seed=0,
        log_every=1,
        save_every=0,
    )
    loss = objective.loss_fn(golden_run["loss_name"].removesuffix("_xent"), label_smoothing=0.0)
    with closing(run_folder.RunFolder(folder / "run")) as run:
        train(
            TrainingState(runtime, model, model, optimizer, gradients(model, runtime, parts=parts)),
            settings,
            objective.supervised(loss, mixup=0.0),
            batches(data, parts),
            evaluation=None,
            saver=None,
            folder=run,
            progress=Progress(quiet=True),
        )
    return model, read_jsonl(folder / "run" / run_folder.METRICS)


def batches(data, parts: int):
    for number in data["stream"]:
        images = torch.from_numpy(data["images"][number]).permute(0, 3, 1, 2)
        labels = torch.from_numpy(data["labels"][number])
        for part_images, part_labels in zip(images.chunk(parts), labels.chunk(parts), strict=True):
            yield Batch(part_images, part_labels, torch.arange(len(part_labels)), ())


def final_weights(golden) -> dict[str, torch.Tensor]:
    """The weights after the last step, in timm's names."""
    after = f"params_after_{len(golden['loss'])}/"
    arrays = {key.removeprefix(after): golden[key] for key in golden if key.startswith(after)}
    return from_official(arrays).state


PARTS, PART_SIZE, CLASSES = 2, 3, 4
RATES, MOMENTUM, CLIP, FACTOR = (0.5, 0.1, 0.3, 0.2, 0.4), 0.9, 1.5, 0.5
MEAN, STD = 0.5, 0.25


def random_batches(num_steps: int = len(RATES)) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    return [
        Batch(
            torch.randint(0, 256, (PART_SIZE, 3, 2, 2), dtype=torch.uint8, generator=generator),
            torch.randint(0, CLASSES, (PART_SIZE,), generator=generator),
            torch.arange(PART_SIZE),
            (),
        )
        for _ in range(num_steps * PARTS)
    ]


def linear_state() -> TrainingState:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, CLASSES))
    optimizer = optim.build_optimizer(
        model, Optimizer.model_construct(name="sgd", momentum=MOMENTUM, weight_decay=0.0, decay_on="all")
    )
    runtime = start_runtime("fp32")
    gradients = DdpSum(model, runtime, parts=PARTS)
    average = WeightAverage(model, factor=FACTOR)
    return TrainingState(runtime, model, model, optimizer, gradients, average)


def follow(state: TrainingState, folder: Path | None, loss: Callable, **more) -> None:
    """Train for as many steps as there are rates, in two micro-batches of three images."""
    steps, settings = len(RATES), {"seed": 0, "save_every": 0} | more
    saver = settings.pop("saver", None)
    plan = Plan(steps, 0, PARTS * PART_SIZE, PART_SIZE, PARTS, 1, 40, 40, None)
    numbers = dict(clip=CLIP, mean=(MEAN,) * 3, std=(STD,) * 3, log_every=1)
    with closing(run_folder.RunFolder(folder)) as run:
        train(
            state,
            LoopSettings(plan=plan, lr_at=RATES.__getitem__, **numbers, **settings),
            loss,
            iter(random_batches()[state.step * PARTS :]),
            evaluation=None,
            saver=saver,
            folder=run,
            progress=Progress(quiet=True),
        )


def cross_entropy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(images), labels)


def test_every_step_is_that_of_its_definition(tmp_path):
    """The truth is NumPy: the softmax's gradient over all six images, clipped, with heavy-ball momentum."""
    state, batches = linear_state(), random_batches()
    weights_KD, bias_K = (value.detach().double().numpy() for value in state.model.parameters())
    velocity, history, records = [0.0, 0.0], [], []
    for step, rate in enumerate(RATES):
        both = batches[PARTS * step : PARTS * (step + 1)]
        pixels = np.concatenate([batch.images_BCHW.numpy() for batch in both]).reshape(-1, 12)
        labels = np.concatenate([batch.labels_B.numpy() for batch in both])
        inputs_BD = (pixels / 255 - MEAN) / STD
        exps_BK = np.exp(inputs_BD @ weights_KD.T + bias_K)
        probabilities_BK = exps_BK / exps_BK.sum(axis=1, keepdims=True)
        errors_BK = (probabilities_BK - np.eye(CLASSES)[labels]) / len(labels)
        gradients = [errors_BK.T @ inputs_BD, errors_BK.sum(axis=0)]
        norm = math.sqrt(sum(np.square(gradient).sum() for gradient in gradients))
        loss = -np.log(probabilities_BK[np.arange(len(labels)), labels]).mean()
        records.append((loss, rate, norm))
        velocity = [MOMENTUM * v + min(1, CLIP / norm) * g for v, g in zip(velocity, gradients, strict=True)]
        weights_KD, bias_K = weights_KD - rate * velocity[0], bias_K - rate * velocity[1]
        history.append(weights_KD)
    norms = [norm for _, _, norm in records]
    assert min(norms) < CLIP < max(norms), "some steps are clipped and others are not"

    follow(state, tmp_path / "run", cross_entropy)

    logged = [[record[key] for key in ("loss", "lr", "grad_norm")] for record in metrics_in(tmp_path)]
    np.testing.assert_allclose(logged, records, rtol=1e-4)
    np.testing.assert_allclose(state.model[1].weight.detach(), weights_KD, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(state.model[1].bias.detach(), bias_K, rtol=1e-4, atol=1e-6)
    of_each = FACTOR ** np.arange(len(RATES))[::-1]
    average_KD = sum(w * of for w, of in zip(history, of_each, strict=True)) / of_each.sum()
    np.testing.assert_allclose(state.average.tensors["1.weight"], average_KD, rtol=1e-4, atol=1e-6)


def metrics_in(folder: Path) -> list[dict]:
    return read_jsonl(folder / "run" / run_folder.METRICS)


def _with_a_loss_of_nan(model, images, labels):
    return cross_entropy(model, images, labels) * math.nan


def _with_a_gradient_of_nan(model, images, labels):
    zero = model[1].weight.sum() - model[1].weight.sum()
    return cross_entropy(model, images, labels) + zero.sqrt()  # of zero: its slope is infinite


@pytest.mark.at_once  # read late, they end it in the next step
@pytest.mark.parametrize(
    ("what", "third"), [("loss", _with_a_loss_of_nan), ("gradient", _with_a_gradient_of_nan)]
)
def test_a_loss_or_gradient_that_is_not_finite_ends_the_run_before_its_step(what, third, tmp_path):
    state, before = linear_state(), []

    def loss(model, images, labels):
        before.append(model[1].weight.detach().clone())
        return (third if len(before) == 2 * PARTS + 1 else cross_entropy)(model, images, labels)

    with pytest.raises(NotFiniteError, match=f"the {what} is not a finite number") as ended:
        follow(state, tmp_path / "run", loss)

    assert ended.value.where.startswith("step 3,") and len(metrics_in(tmp_path)) == state.step == 2
    assert torch.equal(state.model[1].weight, before[-1]) and torch.isfinite(before[-1]).all()


def test_dropout_is_another_in_every_micro_batch_and_the_same_after_a_resume(tmp_path):
    def draws(name: str, *, seed: int, first_step: int = 0) -> list[float]:
        state, drawn = linear_state(), []
        state.step = first_step

        def loss(model, images, labels):
            drawn.append(float(torch.rand(())))
            return cross_entropy(model, images, labels)

        follow(state, tmp_path / name, loss, seed=seed)
        return drawn

    unbroken = draws("unbroken", seed=0)

    assert len(set(unbroken)) == len(RATES) * PARTS
    assert draws("resumed", seed=0, first_step=2) == unbroken[2 * PARTS :]
    assert not set(draws("other", seed=1)) & set(unbroken)


@pytest.mark.at_once  # read late, after a step that has been saved, it is obeyed a step later
@pytest.mark.parametrize(
    ("number", "code", "saves"),
    [
        (None, None, [(2, False), (4, False), (5, True)]),
        (signal.SIGTERM, 143, [(2, False), (3, True)]),
        (signal.SIGUSR1, 143, [(2, False), (3, True)]),
        (signal.SIGINT, 130, [(2, False), (3, True)]),
    ],
)
def test_a_signal_is_obeyed_once_its_step_is_on_disk(number, code, saves, tmp_path):
    state, called, losses = linear_state(), [], []
    saver = SimpleNamespace(is_due=lambda: False, save=lambda *, wait: called.append((state.step, wait)))

    def loss(model, images, labels):
        losses.append(None)
        if number and len(losses) == 2 * PARTS + 1:
            signal.raise_signal(number)
        return cross_entropy(model, images, labels)

    handlers = [signal.getsignal(each) for each in loop.StopRequest.SIGNALS]
    if number is None:
        follow(state, tmp_path / "run", loss, saver=saver, save_every=2)
    else:
        with pytest.raises(Stopped, match="stopped after step 3") as stopped:
            follow(state, tmp_path / "run", loss, saver=saver, save_every=2)
        assert stopped.value.exit_code == code

    assert called == saves
    assert [signal.getsignal(each) for each in loop.StopRequest.SIGNALS] == handlers


def test_a_save_is_made_as_soon_as_the_clock_asks_for_one(tmp_path):
    state, called = linear_state(), []
    saver = SimpleNamespace(is_due=lambda: state.step == 1, save=lambda *, wait: called.append(state.step))

    follow(state, tmp_path / "run", cross_entropy, saver=saver)

    assert called == [2, 5]


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])  # the launcher forwards it as SIGTERM
def test_a_second_ctrl_c_ends_at_once(second, monkeypatch, capfd):
    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(loop.os, "_exit", leave)
    with loop.StopRequest() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)  # schedulers repeat it
        assert stop.signal == signal.SIGTERM
    with loop.StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.signal == signal.SIGINT
        with pytest.raises(SystemExit, match="130"):
            signal.raise_signal(second)

    assert "stopped at once; earlier checkpoints are kept" in capfd.readouterr().err
