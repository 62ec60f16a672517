"""A network sees each image once: what one method has computed of it serves the others."""

from collections import Counter

import numpy as np
import pytest
import torch

from tests.data.test_loader import noise
from tests.evaluation.test_inference import settings
from tests.evaluation.test_masked_patch import PREPROCESSING
from tests.training.methods.test_calibrate import colours, finished, words  # noqa: F401 - a fixture
from tests.training.test_finetune import fingerprint
from vitcli.data.loader import Batch
from vitcli.evaluation import inference
from vitcli.models.build import architecture, build
from vitcli.training.methods import refit
from vitcli.training.methods.initial_head import head_names
from vitcli.training.methods.outputs import Outputs, of_rows
from vitcli.training.validation import PeriodicEvaluation

REFIT = ("--set", "model.head=refit", "--set", "model.head_layers=2")
PROBE = ("--set", "model.head=probe", "--set", "data.dev_fraction=0.25")
DESTROYED = (*PROBE, "--lr", 1e4)  # which delivers the probe
OWN = ("--set", "data.train_split=train", "--set", "data.eval_split=validation")  # which calibrates, too
FOLD = ("--set", "data.train_split=train", "--set", "data.eval_split=fold 1 of 3")


def trained(colours, ckpt, out, *how: object) -> dict:  # noqa: F811
    lr = how[how.index("--lr") + 1] if "--lr" in how else 0.02
    more = [word for word in how if word not in ("--lr", lr)]
    return finished(*(lr if word == 0.02 else word for word in words(colours, ckpt, out, "-q", *more)))


@pytest.fixture
def seen(monkeypatch):
    """How often each backbone has seen each image outside the steps."""
    counts, forward = Counter(), inference.forward_batches

    def watched(model, network, batches, *about, **more):
        heads = head_names(model)
        body = tuple(float(v.double().sum()) for name, v in model.state_dict().items() if name not in heads)

        def counted():
            for batch in batches:
                assert isinstance(batch, Batch)
                counts.update((body, image.numpy().tobytes()) for image in batch.images_BCHW)
                yield batch

        return forward(model, network, counted(), *about, **more)

    monkeypatch.setattr(inference, "forward_batches", watched)
    return counts


@pytest.mark.parametrize(
    ("how", "passes"),
    [
        # Of 72 training images and 66 to report on: before and after the steps, once each.
        ((*OWN, *REFIT), 72 + 72 + 66),
        (OWN, 72 + 66),
        # 18 of the training images choose between five networks, of which the first has seen them before.
        ((*OWN, *PROBE), 72 + 4 * 18 + 66),  # it is delivered
        ((*OWN, *PROBE, "--lr", 1e-6), 72 + 4 * 18 + 54 + 66),  # of equals the last: its features are new
        # A third is scored, calibrates the network and is kept for that of all images.
        (FOLD, 48 + 24),
    ],
)
def test_each_network_of_a_run_sees_each_image_once(how, passes, colours, ckpt, tmp_path, seen):  # noqa: F811
    trained(colours, ckpt, tmp_path / "run", *how)

    assert set(seen.values()) == {1} and seen.total() == passes


@pytest.mark.parametrize("how", [(*OWN, *REFIT), (*OWN, *DESTROYED), (*OWN, *PROBE), FOLD])
def test_what_is_kept_is_what_another_pass_would_give(how, colours, ckpt, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(refit, "AHEAD", -1.0)  # a head on two layers, of which one calibrates
    kept = trained(colours, ckpt, tmp_path / "kept", *how)
    monkeypatch.setattr(PeriodicEvaluation, "keep", lambda self, split, outputs: None)
    again = trained(colours, ckpt, tmp_path / "again", *how)

    assert kept["belief"] == again["belief"] and (kept["belief"] or how == FOLD)
    assert fingerprint(tmp_path / "kept") == fingerprint(tmp_path / "again")
    names = [path.name for path in (tmp_path / "kept").glob("*.safetensors")]
    assert all((tmp_path / "kept" / n).read_bytes() == (tmp_path / "again" / n).read_bytes() for n in names)


def test_what_is_between_is_calibrated_by_a_head_that_has_not_seen_the_dev_split(colours, ckpt, tmp_path):  # noqa: F811
    """The head of the start that is delivered was fitted to these images: it would be too sure of them."""
    how = ("--set", "model.head=probe", "--set", "data.dev_fraction=0.75", "--lr", 2e-4)
    summary = trained(colours, ckpt, tmp_path / "run", *OWN, *how)

    of_all = summary["belief"]["thresholds"][0]
    assert summary["delivered_alpha"] == 0.25 and of_all["answered"] == 54
    assert of_all["right"] / 54 == summary["interpolation"]["0.25"] > summary["interpolation"]["0.5"]


def test_rows_of_two_splits_keep_their_groups_and_places():
    def rows(count: int, prefix: str, *, logits: int) -> Outputs:
        features_ND = np.arange(2 * count, dtype=np.float32).reshape(count, 2)
        logits_NK = np.zeros((count, logits), np.float32)
        places = [f"{prefix}{row}" for row in range(count)]
        return Outputs(features_ND, logits_NK, np.arange(count), np.arange(count) // 2, places.__getitem__)

    both = rows(3, "a", logits=0) + rows(2, "b", logits=4)

    assert [both.place_of(row) for row in range(5)] == ["a0", "a1", "a2", "b0", "b1"]
    assert both.labels_N.tolist() == [0, 1, 2, 0, 1] and both.groups_N.tolist() == [0, 0, 1, 0, 0]
    assert both.features_ND[3:].tolist() == [[0, 1], [2, 3]] and both.logits_NK.shape == (5, 0)


def test_the_predictions_of_a_pass_with_features_are_those_of_a_pass_without():
    torch.manual_seed(0)
    model = build(architecture("ViT-demo/8", image_size=(32, 48), num_classes=3), dropout=0.0).eval()
    torch.nn.init.normal_(model.head.weight)
    split = noise(count=12, bad=(5,))
    how = (split, PREPROCESSING, settings())
    expected, skipped = inference.predict_split(model, *how, num_classes=3, project=None)
    rows = inference.features_and_logits(model, *how, layer="one_layer", num_logits=3)
    found = inference.predictions_of_rows(rows)

    assert rows.skipped == skipped and len(skipped) == 1
    for name, values in vars(expected).items():
        np.testing.assert_equal(vars(found)[name], values, err_msg=name)
    with torch.no_grad():
        of_head = model.head(rows.features_ND)
    torch.testing.assert_close(of_head, rows.logits_NK)
    assert of_rows(rows, split).place_of(5).endswith("row 6, file 6.png")
