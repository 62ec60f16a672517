"""Resampling of position embeddings and patch kernels: the authors' numbers, timm's, and values by hand."""

import json
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from timm.layers import resample_patch_embed
from timm.models.vision_transformer import VisionTransformer

from tests.conftest import SHARED
from vitcli.errors import VitError
from vitcli.models.pos_embed import resample_patch_embedding, resample_posemb, similarity_at_landmarks

GOLDEN = SHARED / "golden"


def ramp(height: int, width: int) -> torch.Tensor:
    """(1, 1 + H*W, 2): a class row of -1, then each patch's row and column number."""
    rows_HW, columns_HW = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    grid_1N2 = torch.stack([rows_HW, columns_HW], dim=-1).reshape(1, -1, 2).float()
    return torch.cat([torch.full((1, 1, 2), -1.0), grid_1N2], dim=1)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def bilinear_matrix(old: int, new: int) -> np.ndarray:
    """(new^2, old^2): a square image to another size, half-pixel centres, the outermost pixels held."""
    one_axis = np.zeros((new, old))
    for i in range(new):
        place = min(max((i + 0.5) * old / new - 0.5, 0), old - 1)
        left = min(int(place), old - 2)
        one_axis[i, left] += 1 - (place - left)
        one_axis[i, left + 1] += place - left
    return np.kron(one_axis, one_axis)


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


@pytest.mark.parametrize("grids", [((2, 3), (4, 9)), ((4, 6), (3, 3))])
def test_timms_method_gives_what_timm_gives_for_another_image_size(grids):
    (height, width), (new_height, new_width) = grids
    model = VisionTransformer(
        img_size=(4 * height, 4 * width), patch_size=4, embed_dim=8, num_heads=2, depth=1, num_classes=0
    )
    before = model.pos_embed.data.clone()
    model.set_input_size(img_size=(4 * new_height, 4 * new_width))

    after = resample_posemb(before, *grids, method="timm")
    assert torch.equal(after, model.pos_embed)
    assert not torch.allclose(after, resample_posemb(before, *grids), atol=1e-3)


def test_timms_method_changes_a_grid_of_the_same_number_of_patches():
    # timm 1.0.29's own set_input_size would leave it as it is (its PR #2737), so the truth is torch's here
    after = resample_posemb(ramp(2, 8), (2, 8), (4, 4), method="timm")

    grid_12HW = ramp(2, 8)[:, 1:].mT.unflatten(2, (2, 8))
    by_torch = F.interpolate(grid_12HW, size=(4, 4), mode="bicubic", antialias=True)
    torch.testing.assert_close(after[:, 1:], by_torch.flatten(2).mT)


def test_timms_method_is_cubic_with_half_pixel_centres():
    # Keys' cubic at a = -0.5, which torch takes with antialias; without it is -0.75.
    step = torch.cat([torch.zeros(1, 1, 1), torch.tensor([0.0, 0, 0, 1, 1, 1]).reshape(1, 6, 1)], dim=1)
    wider = resample_posemb(step, (1, 6), (1, 12), method="timm")[0, 1:, 0]

    near, far = (
        0.75,
        1.75,
    )  # distances of output 5, at 2.25, to pixels 3 and 4; those of 6, at 2.75, mirror them
    share_near = 1.5 * near**3 - 2.5 * near**2 + 1
    share_far = -0.5 * far**3 + 2.5 * far**2 - 4 * far + 2
    assert wider[5].item() == pytest.approx(share_near + share_far, abs=1e-6)
    assert wider[6].item() == pytest.approx(1 - share_near - share_far, abs=1e-6)


@pytest.mark.parametrize("method", ["paper", "timm"])
def test_both_methods_keep_prefix_rows_and_the_same_grid(method):
    before = torch.cat([torch.full((1, 1, 2), 5.0), ramp(2, 8)], dim=1)

    after = resample_posemb(before, (2, 8), (4, 4), num_prefix=2, method=method)
    assert torch.equal(after[:, :2], before[:, :2])
    assert not torch.allclose(after, before)
    assert torch.equal(resample_posemb(before, (2, 8), (2, 8), num_prefix=2, method=method), before)
    with pytest.raises(VitError, match="18 rows"):
        resample_posemb(before, (2, 8), (4, 4), num_prefix=1, method=method)


def test_an_unknown_method_is_refused_with_the_nearest():
    for resample in (
        partial(resample_posemb, ramp(2, 2), (2, 2), (3, 3)),
        partial(resample_patch_embedding, noise(1, 1, 4, 4), 8),
    ):
        with pytest.raises(VitError, match="did you mean 'paper'"):
            resample(method="papers")


@pytest.mark.parametrize(("method", "interpolation"), [("paper", "bilinear"), ("timm", "bicubic")])
@pytest.mark.parametrize("sizes", [(8, 16), (7, 14), (14, 16), (16, 32)])
def test_an_enlarged_patch_answers_the_enlarged_kernel_as_before(method, interpolation, sizes):
    old, new = sizes
    patches_BCPP, kernel_DCPP = noise(5, 3, old, old), noise(6, 3, old, old, seed=1)
    larger = F.interpolate(patches_BCPP, size=(new, new), mode=interpolation, antialias=method == "timm")

    answers = F.conv2d(larger, resample_patch_embedding(kernel_DCPP, new, method=method))

    torch.testing.assert_close(answers, F.conv2d(patches_BCPP, kernel_DCPP), atol=2e-3, rtol=1e-4)


@pytest.mark.parametrize("sizes", [(8, 16), (16, 8), (16, 14), (32, 12)])
def test_the_papers_kernel_is_the_pseudo_inverse_of_bilinear_resizing(sizes):
    old, new = sizes
    kernel = noise(4, 3, old, old)
    inverse = np.linalg.pinv(bilinear_matrix(old, new).T)

    by_hand = (inverse @ kernel.double().flatten(2).numpy()[..., None])[..., 0].reshape(4, 3, new, new)

    resampled = resample_patch_embedding(kernel, new, method="paper")
    np.testing.assert_allclose(resampled, by_hand, atol=2e-4)


def test_a_kernel_shrunk_by_two_sums_its_pixels_and_by_four_sees_a_quarter_of_them():
    kernel = noise(2, 3, 16, 16)

    halved = resample_patch_embedding(kernel, 8, method="paper")
    torch.testing.assert_close(halved, 4 * F.avg_pool2d(kernel, 2), atol=1e-5, rtol=1e-5)
    quartered = resample_patch_embedding(kernel, 4, method="paper")
    inner = kernel.unfold(2, 4, 4).unfold(3, 4, 4)[..., 1:3, 1:3].sum((-1, -2))
    torch.testing.assert_close(quartered, inner, atol=1e-5, rtol=1e-5)


def test_timms_kernel_is_timms_and_the_same_size_stays_as_it_is():
    kernel = noise(4, 3, 16, 16)

    assert torch.equal(
        resample_patch_embedding(kernel, 12, method="timm"), resample_patch_embed(kernel, [12, 12])
    )
    assert torch.equal(resample_patch_embedding(kernel, 16, method="paper"), kernel)
    assert resample_patch_embedding(kernel.bfloat16(), 8, method="paper").dtype == torch.bfloat16
    with pytest.raises(VitError, match="0 pixels"):
        resample_patch_embedding(kernel, 0, method="paper")


def test_the_same_embedding_is_alike_everywhere():
    posemb = noise(1, 13, 8)

    alike = similarity_at_landmarks(posemb, (3, 4), posemb, (3, 4), num_prefix=1)
    assert alike == pytest.approx({"corners": 1, "midpoints": 1})


def test_the_papers_resampling_keeps_the_corners_and_timms_does_not():
    old = noise(1, 1 + 15, 32)
    papers, timms = (resample_posemb(old, (3, 5), (7, 9), method=method) for method in ("paper", "timm"))

    of_papers = similarity_at_landmarks(old, (3, 5), papers, (7, 9), num_prefix=1)
    assert of_papers == pytest.approx({"corners": 1, "midpoints": 1}, abs=1e-6)  # odd sides have a middle
    even = resample_posemb(old, (3, 5), (4, 6))
    of_even = similarity_at_landmarks(old, (3, 5), even, (4, 6), num_prefix=1)
    assert of_even["corners"] == pytest.approx(1, abs=1e-6)
    assert of_even["midpoints"] < 0.99
    assert similarity_at_landmarks(old, (3, 5), timms, (7, 9), num_prefix=1)["corners"] < 0.999


@pytest.mark.parametrize("row", range(3))
@pytest.mark.parametrize("column", range(3))
def test_each_landmark_counts_where_it_belongs_and_no_other_patch_does(row, column):
    old = torch.zeros(1, 2 + 5 * 9, 2)
    old[..., 0] = 1
    new = old.clone()
    new[0, :2] = torch.tensor([0.0, 1.0])  # prefix rows do not count
    new[0, 2:].unflatten(0, (5, 9))[2 * row, 4 * column] = torch.tensor([0.6, 0.8])  # cosine 0.6

    found = similarity_at_landmarks(old, (5, 9), new, (5, 9), num_prefix=2)

    changed = "corners" if row != 1 and column != 1 else "midpoints"
    assert found == pytest.approx({"corners": 1, "midpoints": 1} | {changed: 0.6})


def test_the_middle_of_an_even_side_lies_between_two_patches():
    old = torch.tensor([[[1.0, 1.0], [1.0, 1.0]]])
    new = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])  # 45 degrees off at either end, none halfway

    found = similarity_at_landmarks(old, (1, 2), new, (1, 2), num_prefix=0)
    assert found["corners"] == pytest.approx(0.5**0.5)
    assert found["midpoints"] == pytest.approx(0.5**0.5)  # the left and the right edge are corners here too
    tall = similarity_at_landmarks(
        old.repeat(1, 2, 1), (2, 2), torch.cat([new, new.flip(1)], dim=1), (2, 2), num_prefix=0
    )
    assert tall == pytest.approx({"corners": 0.5**0.5, "midpoints": 1})
