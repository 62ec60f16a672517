"""Predictions in bf16 on a CPU against those in fp32 and those of torch's own kernels under autocast."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.conftest import data_section
from vitcli import recipe as recipes
from vitcli.data import dataset
from vitcli.data.transforms import Preprocessing
from vitcli.distributed import runtime
from vitcli.evaluation import inference, setup
from vitcli.models import kernels
from vitcli.output.progress import Progress
from vitcli.weights.io import read_weights
from vitcli.weights.load import load

HALF = (0.5, 0.5, 0.5)


@pytest.mark.parametrize("device, precision", [("cuda", "fp32"), ("cuda", "bf16"), ("cpu", "fp32")])
def test_evaluation_in_fp32_on_a_gpu_says_what_is_faster(device, precision, monkeypatch, capsys):
    there = SimpleNamespace(
        device=torch.device(device), precision=precision, notes=(), is_main=True, cores=2, world_size=1
    )
    monkeypatch.setattr(setup, "start_runtime", lambda asked: there)

    setup.eval_settings(
        recipes.load("finetune/default", ["precision.compute=auto"], {"data.dataset": "demo"}),
        setup.RunSettings(),
    )

    assert ("--precision bf16" in capsys.readouterr().err) == (device == "cuda" and precision == "fp32")


@pytest.mark.slow
@pytest.mark.parametrize("name, count", [("imagenet_sample", 270), ("imagenet_val_227", 1_000)])
def test_real_photographs_keep_their_classes_and_logits_in_bf16(name, count, shared, monkeypatch):
    model, _, _ = load(read_weights(str(shared / "data/checkpoints/vit_ti16_augreg_in1k.npz")))
    split = dataset.open_eval(data_section(shared / "data" / name), "auto")
    preprocessing = Preprocessing((224, 224), "square", 1.0, "bicubic", True, HALF, HALF)

    def logits(precision: str) -> torch.Tensor:
        runtime_of = runtime.start(precision)
        settings = inference.EvalSettings(runtime_of, 40, "error", 2, Progress(quiet=True), precision)
        batches = settings.batches(split, preprocessing)
        outputs = inference.outputs_of(model, batches, preprocessing, settings.device, precision)
        return torch.cat([logits_BK for _, logits_BK in outputs])

    exact, ours = logits("fp32"), logits("bf16")
    monkeypatch.setattr(kernels, "HAS_BF16", False)
    torchs = logits("bf16")

    # As near to fp32 as torch's kernels are; a changed class is one of two that are about as likely.
    assert len(exact) == count
    errors = [((x - exact).norm() / exact.norm()).item() for x in (ours, torchs)]
    assert errors[0] < max(0.015, 1.25 * errors[1])
    changed = [(x.argmax(dim=1) != exact.argmax(dim=1)).sum().item() for x in (ours, torchs)]
    assert changed[0] <= 0.015 * count, changed
    top_two = exact.softmax(dim=1).topk(2).values[ours.argmax(dim=1) != exact.argmax(dim=1)]
    assert np.all((top_two[:, 0] - top_two[:, 1]).numpy() < 0.1)
    print(f"{name}: relative error {errors}, changed classes {changed}")
