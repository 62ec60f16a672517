"""The key of cached features: everything that they depend on, so that no others are ever taken."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tests.data.test_loader import EVAL, noise
from vitcli.evaluation.setup import LoadedNetwork
from vitcli.features.extract import FeatureExtractor
from vitcli.features.feature_store import name_of
from vitcli.models.build import architecture


def extractor(
    *, weight=0.0, layer="token", precision="fp32", device="cpu", method="paper", side=32, pixels=EVAL
) -> FeatureExtractor:
    recipe = SimpleNamespace(
        data=SimpleNamespace(dataset="photos"),
        model=SimpleNamespace(posemb_resample=method),
        eval=SimpleNamespace(layer=layer),
    )
    settings = SimpleNamespace(precision=precision, device=torch.device(device))
    weights = SimpleNamespace(state={"head.weight": torch.full((2, 3), weight)})
    arch = architecture("ViT-demo/8", image_size=(side, side), num_classes=2)
    return FeatureExtractor(recipe, LoadedNetwork(weights, arch, None, pixels, "", settings))


def key(split=None, *, with_logits=False, **changes) -> str:
    return name_of(extractor(**changes).about(split or noise(), with_logits=with_logits))


@pytest.mark.parametrize(
    "change",
    [
        {"weight": 1e-7}, {"layer": "gap"}, {"precision": "bf16"}, {"device": "meta"}, {"method": "timm"},
        {"side": 40}, {"pixels": replace(EVAL, crop_fraction=0.9)}, {"pixels": replace(EVAL, std=(0.2,) * 3)},
        {"with_logits": True}, {"split": noise(count=22)}, {"split": noise(bad=(3,))},
        {"split": replace(noise(), name="noise, split test")},
    ],
)  # fmt: skip
def test_whatever_changes_the_features_changes_their_key(change):
    assert key() == key() != key(**change)
