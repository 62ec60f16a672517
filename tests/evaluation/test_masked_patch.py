"""The evaluation of masked patch prediction against a loop over single images."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.data.test_loader import noise, pixels_of
from tests.models.test_masked_patch import HALF, model_of, ranged
from vitcli.data.sampler import derive_seed
from vitcli.data.transforms import Preprocessing
from vitcli.distributed import runtime
from vitcli.errors import DataError
from vitcli.evaluation.inference import EvalSettings
from vitcli.evaluation.masked_patch import evaluate_patches
from vitcli.output.progress import Progress

PREPROCESSING = Preprocessing((32, 48), "square", 1.0, "bilinear", True, HALF, HALF)


def evaluated(model, split, *, batch_size=4, on_bad_image="skip"):
    settings = EvalSettings(runtime.start("fp32"), batch_size, on_bad_image, 2, Progress(quiet=True))
    return evaluate_patches(model, split, PREPROCESSING, settings)


@pytest.mark.parametrize("target", ["mean_color", "pixels"])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_scores_are_those_of_the_images_one_by_one(target, batch_size):
    bad = (2, 9)
    model, split = model_of(target=target), noise(count=11, bad=bad)
    losses, right, colors = [], 0, []
    for row in set(range(len(split))) - set(bad):
        picture_HWC = PREPROCESSING(pixels_of(row))
        corruption = model.draw_alone([derive_seed(0, "patches", row)])
        with torch.no_grad():
            said, there, _ = model.eval()(
                ranged(torch.from_numpy(picture_HWC).permute(2, 0, 1)[None]), corruption
            )
        if target == "pixels":
            losses.append(float(((said - there) ** 2).mean()))
            continue
        losses.append(float(F.cross_entropy(said[0, :, 0], there[0, :, 0])))
        right += int((said[0, :, 0].argmax(-1) == there[0, :, 0]).sum())
        colors += there.flatten().tolist()

    scores, skipped = evaluated(model.train(), split, batch_size=batch_size)

    assert (scores.num_examples, sorted(skipped)) == (9, sorted(split.where_is(row) for row in bad))
    assert scores.loss == pytest.approx(np.mean(losses), rel=1e-5)
    if target == "mean_color":
        assert scores.patch_accuracy == right / len(colors)
        assert scores.most_frequent_color == max(map(colors.count, colors)) / len(colors)
    else:
        assert scores.patch_accuracy is None and scores.most_frequent_color is None
    assert model.training


def test_a_bad_image_stops_the_evaluation_and_nothing_but_bad_ones_is_no_score():
    with pytest.raises(DataError, match="row 3"):
        evaluated(model_of(), noise(count=5, bad=(3,)), on_bad_image="error")
    with pytest.raises(DataError, match="no image of noise can be decoded"):
        evaluated(model_of(), noise(count=3, bad=(0, 1, 2)))
