"""What a run's README.md says of loading: only what works."""

import pytest

from vitcli.export_formats import unsaid_in
from vitcli.model import architecture
from vitcli.model_card import model_card

SUMMARY = {
    "model": "ViT-demo/8", "dataset": "demo", "resolution": 64, "exaflops": None, "ckpt": None, "top1": 0.5,
    "top5": 0.75, "loss": 1.25, "num_eval_examples": 8, "eval_split": "test", "steps": 3, "batch_size": 4,
    "lr": 0.01, "precision": "fp32", "num_classes": 4, "preprocessing": "as it is", "elapsed_s": 2.0,
    "num_processes": 1, "run_dir": "runs/this",
}  # fmt: skip


@pytest.mark.parametrize(
    ("choice", "unsaid"),
    [({}, None), ({"pre_logits": True}, "representation layer"), ({"posemb": "2d"}, "position embeddings")],
)
def test_timm_is_named_where_timm_can_load_it(choice, unsaid):
    arch = architecture("ViT-demo/8", image_size=(64, 64), num_classes=4, **choice)

    card = model_card(SUMMARY, 'x = "{}"\n', unsaid_in_timm=unsaid_in("timm", arch))

    assert ('timm.create_model("local-dir:runs/this"' in card) == (unsaid is None)
    assert ('load_model("runs/this")' in card) == (unsaid is not None)
    assert unsaid is None or unsaid in card
    assert 'x = "{}"' in card and "**50.00% top-1**" in card
