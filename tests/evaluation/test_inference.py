"""Passes over a split: every row counts once, in evaluation mode, and no number is made up."""

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from tests.data.test_loader import noise
from tests.evaluation.test_masked_patch import PREPROCESSING
from vitcli.data.loader import eval_batches
from vitcli.distributed import runtime
from vitcli.errors import DataError, WeightsError
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


class Says(nn.Module):
    """A network whose logits are a function of the batch, behind a dropout that would change them."""

    def __init__(self, logits_of):
        super().__init__()
        self.logits_of, self.dropout = logits_of, nn.Dropout(0.5)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.logits_of(images_BCHW)) * self.scale


def class_1(images_BCHW: torch.Tensor) -> torch.Tensor:
    return torch.tensor([0.0, 9.0, 1.0]).expand(len(images_BCHW), 3)


def settings(on_bad_image: str = "skip", batch_size: int = 4) -> inference.EvalSettings:
    return inference.EvalSettings(runtime.start("fp32"), batch_size, on_bad_image, 2, Progress(quiet=True))


def in_both_passes(model: nn.Module, split) -> tuple:
    """The metrics of a run, and the predictions of an evaluation."""
    scored, _ = inference.evaluate(model, split, PREPROCESSING, settings())
    predictions, _ = inference.predict_split(
        model, split, PREPROCESSING, settings(), num_classes=3, project=None
    )
    return scored, predictions


@pytest.mark.parametrize("is_training", [False, True])
def test_the_decoded_rows_count_once_each_and_without_dropout(is_training):
    model = Says(class_1).train(is_training)
    scored, predictions = in_both_passes(model, noise(count=11, bad=(1, 4, 9)))  # row % 3 is the label

    assert (scored.num_examples, scored.top1) == (8, 2 / 8)  # of rows 1, 4, 7 and 10 are two left
    assert predictions.rows_N.tolist() == [0, 2, 3, 5, 6, 7, 8, 10]
    assert predictions.labels.tolist() == [row % 3 for row in predictions.rows_N]
    assert predictions.is_right_N.tolist() == [row % 3 == 1 for row in predictions.rows_N]
    # The loss by hand: of three classes with the logits 0, 9 and 1.
    log_sum = np.log(np.exp([0.0, 9.0, 1.0]).sum())
    assert scored.loss == pytest.approx(
        log_sum - np.mean([[0.0, 9.0, 1.0][row % 3] for row in predictions.rows_N])
    )
    assert predictions.scores_NK == pytest.approx(np.tile([0.0, 9.0, 1.0], (8, 1)) - log_sum)
    assert model.training == is_training


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_outputs_that_are_no_numbers_are_an_error_and_no_class(value):
    def one_is_none(images_BCHW: torch.Tensor) -> torch.Tensor:
        logits_BK = class_1(images_BCHW).clone()
        logits_BK[-1] = value
        return logits_BK

    for a_pass in (inference.evaluate, predicted):
        with pytest.raises(WeightsError, match="not finite"):
            a_pass(Says(one_is_none), noise(count=8), PREPROCESSING, settings())


def predicted(*arguments):
    return inference.predict_split(*arguments, num_classes=3, project=None)


@pytest.mark.parametrize("wrong", [lambda all_: [*all_, all_[0]], lambda all_: all_[:-1]])
def test_a_row_that_is_seen_twice_or_never_is_noticed(wrong, monkeypatch):
    def batches(*arguments, **options):
        return iter(wrong(list(eval_batches(*arguments, **options))))

    monkeypatch.setattr(inference, "eval_batches", batches)
    for a_pass in (inference.evaluate, predicted):
        with pytest.raises(AssertionError, match="not counted once"):
            a_pass(Says(class_1), noise(count=8), PREPROCESSING, settings())


def test_a_split_of_which_nothing_can_be_decoded_is_an_error_and_not_0_percent():
    for a_pass in (inference.evaluate, predicted):
        with pytest.raises(DataError, match="no image of noise can be decoded"):
            a_pass(Says(class_1), noise(count=3, bad=(0, 1, 2)), PREPROCESSING, settings())


class MeanColour(nn.Module):
    """A network whose features are the mean colour of an image."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward_features(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        return self.scale * images_BCHW.mean(dim=(2, 3))

    def forward_head(self, encoded: torch.Tensor, pre_logits: bool) -> torch.Tensor:
        return encoded


def test_features_are_those_of_the_rows_that_can_be_decoded_where_the_others_are_to_be_left_out():
    of_all = inference.features_and_logits(MeanColour(), noise(count=6), PREPROCESSING, settings())
    rows = inference.features_and_logits(MeanColour(), noise(count=6, bad=(0, 3)), PREPROCESSING, settings())

    assert rows.rows_N.tolist() == [1, 2, 4, 5] and len(rows.skipped) == 2
    assert torch.equal(rows.features_ND, of_all.features_ND[rows.rows_N])
    assert rows.logits_NK.shape == (4, 0)
    assert rows.labels_N.tolist() == noise(count=6).read_labels()[rows.rows_N.numpy()].tolist()
    with pytest.raises(DataError, match="cannot be decoded"):
        inference.features_and_logits(
            MeanColour(), noise(count=6, bad=(3,)), PREPROCESSING, settings("error")
        )


def test_of_an_image_and_its_mirror_image_probabilities_are_averaged():
    one_BK, other_BK = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    other_BK += 7  # logits are known up to a number of each image

    mean_BK = inference.mean_of_classes(one_BK, other_BK).softmax(dim=1)
    torch.testing.assert_close(mean_BK, (one_BK.softmax(dim=1) + other_BK.softmax(dim=1)) / 2)


@pytest.mark.parametrize(
    ("rows", "world_size", "asked"), [(7, 2, 3), (8, 2, 4), (7, 1, 7), (2, 3, 0), (0, 2, 0)]
)
def test_processes_ask_whether_to_stop_as_often_as_the_one_with_the_fewest_batches(rows, world_size, asked):
    """Or one would wait for an answer that no other process gives."""
    for rank in range(world_size):
        questions = []
        joined = SimpleNamespace(rank=rank, world_size=world_size, any=questions.append)
        of_one = replace(settings(batch_size=1), runtime=joined, is_stopping=lambda: False)

        batches = list(of_one.batches(noise(count=rows), PREPROCESSING))

        assert [int(batch.rows_B[0]) for batch in batches] == list(range(rank, rows, world_size))
        assert questions == [False] * asked


def test_a_pass_ends_before_the_next_batch_once_any_process_stops():
    answers = iter([False, True])
    joined = SimpleNamespace(rank=0, world_size=1, any=lambda is_stopping: next(answers))
    batches = replace(settings(batch_size=1), runtime=joined, is_stopping=lambda: False).batches(
        noise(count=4), PREPROCESSING
    )

    assert next(batches).rows_B.tolist() == [0]
    with pytest.raises(inference.Interrupted):
        next(batches)


def test_a_network_sees_whole_fours_of_images_of_which_the_last_may_be_blank():
    """Matrix products of fewer rows sum in another order, so bits would depend on the batch size."""
    seen, model = [], Says(class_1)

    def network(rows_B: torch.Tensor, images_BCHW: torch.Tensor) -> torch.Tensor:
        seen.append((len(images_BCHW), rows_B.tolist(), model.training))
        return model(images_BCHW)

    for count, was_training in ((1, True), (4, False), (5, True)):
        model.train(was_training)
        batches = settings(batch_size=count).batches(noise(count=count), PREPROCESSING)
        how = PREPROCESSING, torch.device("cpu"), "fp32"
        ((batch, outputs),) = inference.forward_batches(model, network, batches, *how)
        assert len(batch.rows_B) == count and len(outputs) == seen[-1][0]
        assert model.training == was_training  # as it was
    assert [(size, not is_training) for size, _, is_training in seen] == [(4, True), (4, True), (8, True)]
    assert seen[2][1] == [0, 1, 2, 3, 4, 0, 0, 0]


@pytest.mark.parametrize(("all_rows", "done"), [(False, [8, 10, 10]), (True, [4, 7, 10])])
def test_progress_counts_undecodable_images_and_those_of_the_other_processes(all_rows, done):
    told = []

    @contextmanager
    def bar(*what):
        told.append(what)
        yield
        told.append("end")

    progress = SimpleNamespace(bar=bar, update=lambda count, text: told.append(count))
    joined = replace(settings(), runtime=SimpleNamespace(world_size=2), progress=progress)
    counts = ((4, 0), (1, 2), (3, 0))  # decoded, and not
    batches = [(SimpleNamespace(rows_B=[0] * rows, skipped=("",) * bad), None) for rows, bad in counts]

    outputs = inference.report_progress(iter(batches), joined, "x", 10, all_rows=all_rows)
    assert len(list(outputs)) == 3 and told == [("x", 10), *done, "end"]
