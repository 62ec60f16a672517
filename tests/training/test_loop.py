"""The training loop against the authors' own: losses, gradient norms and final weights of their runs."""

import json
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
from vitcli.training import objective, optim
from vitcli.training.checkpoint import Saver
from vitcli.training.gradients import DdpSum, PairwiseSum
from vitcli.training.loop import RunCounters, train
from vitcli.training.schedule import Plan, lr_at_step
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
    said, golden = RUNS[name], np.load(HOME / f"{name}.npz")
    for_loss, for_norm, for_weights = TOLERANCES[said["kind"]]

    model, records = trained(said, tmp_path, gradients)

    np.testing.assert_allclose([record["loss"] for record in records], golden["loss"], atol=for_loss, rtol=0)
    np.testing.assert_allclose(
        [record["grad_norm"] for record in records], golden["grad_norm"], rtol=for_norm
    )
    np.testing.assert_allclose([record["lr"] for record in records], golden["lr"], atol=1e-6, rtol=0)
    state = model.state_dict()
    for key, value in final_weights(golden).items():
        ours = state[key]
        if said["kind"] == "pretrain" and key.endswith("attn.qkv.bias"):
            # The gradient of a key's bias is zero; Adam makes steps of rounding errors there.
            query, _, values = ours.chunk(3)
            theirs_query, _, theirs_values = value.chunk(3)
            ours, value = torch.cat([query, values]), torch.cat([theirs_query, theirs_values])
        torch.testing.assert_close(ours, value, atol=for_weights, rtol=0)


def trained(said: dict, folder: Path, gradients) -> tuple[torch.nn.Module, list[dict]]:
    """Our loop on the run's weights, data and settings; the model after it, and what was logged."""
    weights = read_weights(str(HOME / "init.npz"))
    model = build(weights.architecture, dropout=0.0)
    load_into(model, weights.architecture, weights, new_head=said.get("reset_head", False))
    if "head_bias" in said:
        torch.nn.init.constant_(model.head.bias, said["head_bias"])
    is_adam = said["optimizer"] == "Adam"
    optimizer = optim.build_optimizer(
        model,
        name=said["optimizer"].lower(),
        momentum=said.get("momentum"),
        betas=(said["b1"], said["b2"]) if is_adam else None,
        eps=said.get("eps"),
        weight_decay=said.get("weight_decay_in_paper_units", 0.0),
        decay_on="matrices",
    )
    data = np.load(HOME / "data.npz")
    parts = said.get("accum_steps", 1)
    batch_size = data["images"].shape[1]
    plan = Plan(
        len(data["stream"]), said["warmup_steps"], batch_size, batch_size // parts, parts, 1, 40, 160, None
    )
    runtime = start_runtime("fp32")
    with run_folder.RunFolder(folder / "run") as run:
        train(
            runtime=runtime,
            model=model,
            optimizer=optimizer,
            average=None,
            batches=batches(data, parts),
            objective=objective.supervised(
                objective.loss_fn(said["loss_name"].removesuffix("_xent"), label_smoothing=0.0), mixup=0.0
            ),
            mean=(0.0,) * 3,  # the images are in [-1, 1] already: leave them
            std=(1 / 255,) * 3,
            plan=plan,
            gradients=gradients(model, runtime, parts=parts),
            lr_at=partial(
                lr_at_step,
                base_lr=said["lr"] if is_adam else said["base_lr"],
                total_steps=plan.total_steps,
                warmup_steps=plan.warmup_steps,
                decay=said["decay"],
                end_lr=0.0 if is_adam or said["decay"] == "cosine" else 1e-5,
            ),
            seed=0,
            clip=said["clip"] or 0.0,
            log_every=1,
            save_every=0,
            watch=lambda step: (),
            saver=Saver(runtime, take=lambda: None, write=lambda _: None, every_minutes=None),
            folder=run,
            progress=Progress(quiet=True),
            counters=RunCounters(),
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
