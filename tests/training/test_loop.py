"""The training loop against the authors' own: losses, gradient norms and final weights of their runs."""

import json
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import SHARED
from vitcli.data.loader import Batch
from vitcli.distributed.runtime import start as start_runtime
from vitcli.models.build import build
from vitcli.output import run_folder
from vitcli.output.atomic import read_jsonl
from vitcli.output.progress import Progress
from vitcli.recipe.schema import Optimizer
from vitcli.training import objective, optim
from vitcli.training.gradients import DdpSum, PairwiseSum
from vitcli.training.loop import LoopSettings, train
from vitcli.training.schedule import Plan, lr_at_step
from vitcli.training.state import TrainingState
from vitcli.weights.io import read_weights
from vitcli.weights.jax import from_official
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
