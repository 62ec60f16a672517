"""Finite weights whose outputs overflow: no command gives a class, an accuracy or a feature of them."""

import json

import pytest
import torch

from tests.conftest import run
from vitcli.data.transforms import Preprocessing
from vitcli.models.build import architecture, build
from vitcli.weights.describe import WeightsInfo
from vitcli.weights.io import write_weights


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory):
    """A network whose last norm and head multiply by the largest number there is, nearly."""
    folder = tmp_path_factory.mktemp("overflowing")
    arch = architecture("ViT-demo/8", image_size=(16, 16), num_classes=2)
    state = build(arch, dropout=0.0).state_dict()
    state |= {name: torch.full_like(state[name], 3e38) for name in ("norm.weight", "head.weight")}
    pixels = Preprocessing((16, 16), "square", 1.0, "bilinear", False, (0.5,) * 3, (0.5,) * 3)
    described = {"preprocessing": pixels.as_dict(), "class_names": ("green", "red"), "metadata": {}}
    write_weights(folder, state, WeightsInfo(arch, **described))
    return folder


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("evaluate --dataset {photos}", 4),
        ("evaluate --dataset {photos} --save-predictions {out}/p.parquet --out {out}/evaluated", 4),
        ("predict {photos}/test --out {out}/p.jsonl", 4),
        ("fewshot --dataset {photos} --shots 2", 4),
        ("fewshot --dataset {photos} --shots 2 --classifier knn", 4),
        ("fewshot --dataset {photos} --shots 2 --classifier ncm --out {out}/few", 4),
        ("embed --dataset {photos} --out {out}/f.safetensors", 4),
        ("inspect --images {photos}/test --out {out}/inspected", 4),
        ("finetune --keep-head --dataset {photos} --steps 3 --lr 0.01 --res 16 --out {out}/run", 6),
        (
            "finetune --recipe finetune/default --dataset {photos} --steps 3 --res 16 --out {out}/run",
            6,
        ),
    ],
)
def test_outputs_that_are_not_finite_are_an_error_of_every_command(
    overflowing, photos, tmp_path, command, code
):
    out = tmp_path / "out"
    out.mkdir()
    words = command.format(photos=photos, out=out).split()

    ended = run(*words, "--ckpt", overflowing, "--json", "-q")

    assert ended.code == code, ended.out + ended.err
    assert "finite" in json.loads(ended.out)["error"]["message"]
    written = [file.name for file in out.rglob("*") if file.is_file() and not file.name.startswith(".")]
    assert not {"summary.json", "evaluation.json", "p.parquet", "p.jsonl", "model.safetensors"} & {*written}
