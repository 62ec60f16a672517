"""Features of an image, by their definition: which tokens are read, and after which layer."""

import pytest
import torch

from vitcli.models import features
from vitcli.models.build import TransformerOptions, architecture, build


@pytest.mark.parametrize("pre_logits", [False, True])
def test_features_are_the_token_the_mean_of_the_patches_and_the_input_of_the_last_layer(pre_logits):
    options = TransformerOptions(layers=1, hidden=32, mlp=32, heads=2, pre_logits=pre_logits)
    arch = architecture("ViT-demo/8", image_size=(16, 24), num_classes=3, options=options)
    torch.manual_seed(0)
    model = build(arch, dropout=0.0).eval()
    images_BCHW = torch.randn(2, 3, 16, 24)
    with torch.no_grad():
        for value in model.state_dict().values():
            torch.nn.init.normal_(value, std=0.2)
        tokens_BTD = model.forward_features(images_BCHW)
        found = {
            layer: features.outputs(model, images_BCHW, layer=layer, with_logits=True)
            for layer in ("token", "gap", "pre_logits")
        }
        logits_BK = model(images_BCHW)
    before_head_BD = tokens_BTD[:, 0]
    if pre_logits:
        layer = model.head.pre_logits
        before_head_BD = torch.tanh(before_head_BD @ layer.weight.T + layer.bias)
    last = model.head.head if pre_logits else model.head

    assert tokens_BTD.shape == (2, 1 + 2 * 3, 32)
    expected = {"token": tokens_BTD[:, 0], "gap": tokens_BTD[:, 1:].mean(dim=1), "pre_logits": before_head_BD}
    for name, outputs_BO in found.items():
        torch.testing.assert_close(outputs_BO[:, :-3], expected[name])
        torch.testing.assert_close(outputs_BO[:, -3:], logits_BK)
    torch.testing.assert_close(found["pre_logits"][:, :-3] @ last.weight.T + last.bias, logits_BK)
