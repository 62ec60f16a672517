"""Resampling of position embeddings, against the authors' numbers and values worked out by hand."""

import json
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from vitcli.errors import VitError
from vitcli.posemb import resample_posemb

GOLDEN = Path(os.environ.get("VIT_TEST_DATA", Path(__file__).parents[2] / "shared")) / "golden"


def ramp(height: int, width: int) -> torch.Tensor:
    """(1, 1 + H*W, 2): a class row of -1, then each patch's row and column number."""
    rows_HW, columns_HW = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    grid_1N2 = torch.stack([rows_HW, columns_HW], dim=-1).reshape(1, -1, 2).float()
    return torch.cat([torch.full((1, 1, 2), -1.0), grid_1N2], dim=1)


@pytest.mark.skipif(not GOLDEN.is_dir(), reason="the golden data (VIT_TEST_DATA) is not here")
def test_every_embedding_of_the_authors_comes_out_as_theirs():
    arrays = np.load(GOLDEN / "posembed.npz")
    cases = json.loads((GOLDEN / "posembed.json").read_text())["cases"]

    for case in cases:
        resample = partial(resample_posemb, num_prefix=int(case["class_token"]))
        before = torch.from_numpy(arrays[f"{case['name']}/in"])
        after = resample(before, tuple(case["old"]), tuple(case["new"]))

        np.testing.assert_allclose(
            after, arrays[f"{case['name']}/out"], atol=1e-5, rtol=0, err_msg=case["name"]
        )
    assert len(cases) >= 20


def test_each_row_moves_to_its_place_in_the_image_with_the_corners_fixed():
    resampled = resample_posemb(ramp(14, 14), (14, 14), (24, 24))[0, 1:].unflatten(0, (24, 24))

    assert resampled[1, 0, 0] == pytest.approx(13 / 23)  # 0.5652; half-pixel centres would give 0.375
    assert resampled[0, 2, 1] == pytest.approx(2 * 13 / 23)
    assert resampled[-1, -1].tolist() == pytest.approx([13, 13])


def test_height_and_width_are_not_confused():
    resampled = resample_posemb(ramp(3, 5), (3, 5), (5, 9))[0, 1:].unflatten(0, (5, 9))

    assert resampled[:, 0, 0].tolist() == pytest.approx([0, 0.5, 1, 1.5, 2])
    assert resampled[0, :, 1].tolist() == pytest.approx([0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4])


def test_the_class_row_stays_as_it_is():
    assert resample_posemb(ramp(4, 4), (4, 4), (7, 5))[0, 0].tolist() == [-1, -1]


def test_a_grid_of_the_same_number_of_patches_but_another_shape_changes():
    before = ramp(2, 8)
    after = resample_posemb(before, (2, 8), (4, 4))

    assert after.shape == before.shape
    assert after[0, 1:, 0].unflatten(0, (4, 4))[:, 0].tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])


def test_the_same_grid_changes_nothing():
    assert torch.equal(resample_posemb(ramp(4, 6), (4, 6), (4, 6)), ramp(4, 6))


def test_half_precision_is_computed_in_float32_and_given_back_in_half():
    embedding = torch.randn(1, 50, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    resampled = resample_posemb(embedding, (7, 7), (12, 12))

    assert resampled.dtype == torch.bfloat16
    assert torch.equal(resampled, resample_posemb(embedding.float(), (7, 7), (12, 12)).bfloat16())


@pytest.mark.parametrize("grid", [(4, 5), (2, 8), (17, 1)])
def test_a_grid_that_is_not_the_embeddings_is_refused(grid):
    with pytest.raises(VitError, match="19 rows"):
        resample_posemb(ramp(3, 6), grid, (8, 8))
