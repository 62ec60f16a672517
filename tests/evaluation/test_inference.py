"""Passes over a split with batches of undecodable images."""

import pytest
import torch

from tests.data.test_loader import noise
from tests.evaluation.test_masked_patch import PREPROCESSING
from vitcli.distributed import runtime
from vitcli.evaluation import inference
from vitcli.models.build import TransformerOptions, architecture, build
from vitcli.output.progress import Progress


@pytest.mark.parametrize("posemb", ["1d", "none", "relative"])
def test_a_batch_of_nothing_but_bad_images_is_left_out(posemb):
    torch.manual_seed(0)
    arch = architecture(
        "ViT-demo/8", image_size=(32, 48), num_classes=3, options=TransformerOptions(posemb=posemb, layers=1)
    )
    model = build(arch, dropout=0.0)
    torch.nn.init.normal_(model.head.weight)
    told = [
        inference.evaluate(
            model, noise(count=5, bad=(1, 2)), PREPROCESSING,
            inference.EvalSettings(runtime.start("fp32"), batch_size, "skip", 2, Progress(quiet=True)),
        )
        for batch_size in (1, 5)
    ]  # fmt: skip

    assert told[0][0].num_examples == 3 and len(told[0][1]) == 2
    assert told[0][0].loss == pytest.approx(told[1][0].loss, rel=1e-5)
