"""Filters, positions, attention distance and roll-out, against the authors' maps, hand values and numpy."""

import json
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.conftest import SHARED
from vitcli.inspection import analysis, collect

GOLDEN = SHARED / "golden"
CASES = json.loads((GOLDEN / "attention.json").read_text()) if GOLDEN.is_dir() else {}
DTYPES = [
    (torch.float64, 1e-6, 1e-6),
    (torch.float32, 1e-3, 1e-5),
]  # pixels and shares, as golden/README has them


@cache
def arrays() -> dict[str, np.ndarray]:
    return dict(np.load(GOLDEN / "attention.npz"))


@cache
def golden(case: str, key: str) -> np.ndarray | None:
    return arrays().get(f"{case}/{key}")


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def distance_of(weights_NN: torch.Tensor, grid: tuple[int, int], patch_size: int) -> float:
    """Of attention over patches alone, one head of one image."""
    distances = analysis.patch_distances(grid, patch_size)
    (found,) = analysis.attention_distance(
        weights_NN[None, None], distances, num_prefix=0, renormalise=True
    ).flatten()
    return float(found)


@pytest.mark.skipif(not CASES, reason="golden vectors are not here; VIT_TEST_DATA names their folder")
def test_the_golden_cases_have_several_heads_layers_images_and_a_grid_that_is_not_square():
    sizes = CASES.values()

    assert any(one["grid"][0] != one["grid"][1] for one in sizes)
    assert all(max(one[key] for one in sizes) > 1 for key in ("heads", "layers", "images"))
    assert {one["class_tokens"] for one in sizes} == {0, 1}


@pytest.mark.parametrize(("dtype", "pixels", "_"), DTYPES)
@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_attention_distance_is_that_of_the_golden_maps(case, renormalise, dtype, pixels, _):
    about, ending = CASES[case], "" if renormalise else "_not_renormalised"
    distances = analysis.patch_distances(tuple(about["grid"]), about["patch_size"]).to(dtype)

    found_LBA = torch.stack(
        [
            analysis.attention_distance(
                torch.from_numpy(layer).to(dtype),
                distances,
                num_prefix=about["class_tokens"],
                renormalise=renormalise,
            )
            for layer in golden(case, "attention")
        ]
    )

    expected_LA = golden(case, f"attention_distance{ending}")
    np.testing.assert_allclose(found_LBA.mean(dim=1), expected_LA, rtol=0, atol=pixels)
    if renormalise:
        expected = golden(case, "attention_distance_per_image")
        np.testing.assert_allclose(found_LBA, expected, rtol=0, atol=pixels)


@pytest.mark.parametrize(("dtype", "_", "shares"), DTYPES)
@pytest.mark.parametrize("kind", ["residual", "plain"])
@pytest.mark.parametrize("case", CASES)
def test_rollout_is_that_of_the_golden_maps(case, kind, dtype, _, shares):
    rollout_BTT = None
    for layer in golden(case, "attention"):
        weights = torch.from_numpy(layer).to(dtype)
        rollout_BTT = analysis.rollout_layer(rollout_BTT, weights, residual=kind == "residual")

    np.testing.assert_allclose(rollout_BTT, golden(case, f"rollout_{kind}"), rtol=0, atol=shares)
    to_patches = golden(case, f"rollout_{kind}_class_to_patches")
    if CASES[case]["class_tokens"]:
        seen_BN = analysis.output_attention(rollout_BTT, num_prefix=1, reads_token=True)
        seen = seen_BN.unflatten(1, CASES[case]["grid"])
        np.testing.assert_allclose(seen, to_patches, rtol=0, atol=shares)


@pytest.mark.parametrize(
    ("grid", "patch_size", "pixels"), [((14, 14), 16, 116.49), ((7, 7), 32, 115.50), ((1, 2), 10, 5.0)]
)
def test_uniform_attention_looks_as_far_as_two_patches_are_apart_on_average(grid, patch_size, pixels):
    num_patches = grid[0] * grid[1]
    uniform = torch.full((num_patches, num_patches), 1 / num_patches, dtype=torch.float64)

    assert distance_of(uniform, grid, patch_size) == pytest.approx(pixels, abs=0.005)


def test_attention_of_each_patch_to_itself_looks_nowhere():
    assert distance_of(torch.eye(15, dtype=torch.float64), (3, 5), 16) == 0


def test_distances_are_between_centres_row_by_row():
    """On 2x3 patches of 10 px the first is 20 px from the third and sqrt(500) from the last."""
    distances = analysis.patch_distances((2, 3), 10)

    assert distances[0].tolist() == pytest.approx([0, 10, 20, 10, 200**0.5, 500**0.5])
    assert torch.equal(distances, distances.T)


def test_attention_to_prefix_tokens_is_left_out_and_the_rest_made_whole_or_not():
    """Two patches 8 px apart and two prefix tokens, which get half of what each patch gives."""
    weights = torch.tensor(
        [[1, 0, 0, 0], [0, 1, 0, 0], [0.25, 0.25, 0.1, 0.4], [0.5, 0, 0.3, 0.2]], dtype=torch.float64
    )[None, None]
    distances = analysis.patch_distances((1, 2), 8)
    found = [
        float(analysis.attention_distance(weights, distances, num_prefix=2, renormalise=renormalise))
        for renormalise in (True, False)
    ]

    assert found == pytest.approx([8 * (0.8 + 0.6) / 2, 8 * (0.4 + 0.3) / 2])


def test_a_query_that_looks_at_the_class_token_alone_looks_no_pixels_far():
    weights = torch.tensor([[[[1.0, 0, 0], [1, 0, 0], [0, 1, 0]]]])
    distances = analysis.patch_distances((1, 2), 8).float()

    assert float(analysis.attention_distance(weights, distances, num_prefix=1, renormalise=True)) == 4


def test_the_output_reads_the_class_token_or_the_mean_of_the_patches():
    weights = torch.arange(16.0).reshape(1, 4, 4)

    token = analysis.output_attention(weights, num_prefix=2, reads_token=True)
    patches = analysis.output_attention(weights, num_prefix=2, reads_token=False)

    assert token.tolist() == [[2, 3]]
    assert patches.tolist() == [[12, 13]]  # of rows 10, 11 and 14, 15


@pytest.mark.parametrize("shape", [(40, 3, 2, 3), (10, 3, 4, 4)])  # more filters than numbers, and fewer
def test_components_are_those_of_a_singular_value_decomposition(shape):
    filters = draw(*shape)
    flat = filters.flatten(1).numpy()
    _, values, directions = np.linalg.svd(flat - flat.mean(axis=0), full_matrices=False)
    shares = values**2 / (values**2).sum()

    components, found = analysis.filter_components(filters, 7)

    np.testing.assert_allclose(found, shares[:7], rtol=1e-9)
    cosines = (components.flatten(1).numpy() * directions[:7]).sum(axis=1)
    np.testing.assert_allclose(np.abs(cosines), 1, rtol=1e-9)
    largest = components.flatten(1).gather(1, components.flatten(1).abs().argmax(dim=1, keepdim=True))
    assert (largest > 0).all()


def test_filters_of_few_dimensions_have_few_components():
    along = draw(2, 12)
    filters = (draw(30, 2, seed=1) @ along).reshape(30, 3, 2, 2)

    assert len(analysis.filter_components(filters, 28)[0]) == 2
    assert len(analysis.filter_components(filters[:1].repeat(9, 1, 1, 1), 28)[0]) == 0


def test_position_similarity_is_the_cosine_and_zero_of_nothing():
    embeddings = torch.tensor([[1.0, 0], [3, 0], [1, 1], [0, 0]])

    found = analysis.position_similarity(embeddings)

    half = 0.5**0.5
    expected = [[1, 1, half, 0], [1, 1, half, 0], [half, half, 1, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(found, expected, atol=1e-7)


def test_similarity_by_place_tells_rows_from_columns():
    """Embeddings that know their row alone, on 2 rows of 3: alike in a row, unlike in a column."""
    rows = torch.eye(2).repeat_interleave(3, dim=0)
    columns = torch.eye(3).repeat(2, 1)

    of_rows = analysis.similarity_by_offset(analysis.position_similarity(rows), (2, 3))
    of_columns = analysis.similarity_by_offset(analysis.position_similarity(columns), (2, 3))

    assert of_rows == {"same_row": 1, "same_column": 0, "elsewhere": 0}
    assert of_columns == {"same_row": 0, "same_column": 1, "elsewhere": 0}
    one_row = analysis.similarity_by_offset(analysis.position_similarity(columns[:3]), (1, 3))
    assert one_row == {"same_row": 0, "same_column": None, "elsewhere": None}


def test_patches_of_like_features_have_like_colours():
    kinds = draw(2, 16)
    features = kinds[torch.tensor([[0, 0, 1], [1, 0, 1]])] + 1e-3 * draw(2, 3, 16, seed=1)

    colours, shares = analysis.feature_colours(features)

    first, second = colours[0, 0], colours[0, 2]
    assert abs(first[0] - second[0]) > 0.9  # the first component tells the two kinds apart
    assert torch.allclose(colours[1, 1, 0], first[0], atol=0.05)
    assert torch.allclose(colours[1, 2, 0], second[0], atol=0.05)
    assert shares[0] > 0.99
    assert colours.min() >= 0 and colours.max() <= 1


def test_colours_are_stretched_from_the_first_to_the_99th_hundredth():
    """Features along one line, 101 of them evenly: the first and the last two are cut off."""
    features = torch.arange(101.0)[None, :, None] * torch.tensor([1.0, 2.0])

    colours, shares = analysis.feature_colours(features)

    red = colours[0, :, 0].tolist()
    assert red[50] == pytest.approx(0.5) and red[25] == pytest.approx(24 / 98)
    assert red[:2] == [0, 0] and red[99:] == [1, 1] and 0 < red[2] < red[98] < 1
    assert shares[0] == pytest.approx(1) and (colours[0, :, 1:] == 0.5).all()


def test_features_that_are_all_alike_are_grey():
    colours, shares = analysis.feature_colours(torch.ones(1, 4, 8))

    assert (colours == 0.5).all()
    assert shares.tolist() == [0, 0, 0]


def test_a_picture_is_lit_by_its_map():
    images = torch.full((1, 4, 8, 3), 200, dtype=torch.uint8)
    left_half = torch.tensor([[[0.02, 0.02, 0.01, 0.01], [0.02, 0.02, 0.01, 0.01]]])

    lit = analysis.attention_overlay(images, left_half, full_at=1.0)

    assert (lit[0, :, :3] == 200).all()
    assert (lit[0, :, -3:] == 100).all()
    assert lit[0, 0, 3:5, 0].tolist() == [175, 125]  # a quarter and three quarters of the way between


def test_one_patch_that_draws_all_attention_darkens_the_rest_unless_told_otherwise():
    images = torch.full((1, 8, 8, 3), 255, dtype=torch.uint8)
    corner = torch.full((1, 8, 8), 0.01)
    corner[0, 0, 0] = 1.0

    assert analysis.attention_overlay(images, corner, full_at=1.0)[0, 4, 4, 0] == 3  # 255 * 0.01, rounded
    assert (analysis.attention_overlay(images, corner, full_at=0.9) == 255).all()  # nor is any brighter


def test_a_map_of_nothing_lights_nothing():
    images = torch.full((1, 4, 4, 3), 255, dtype=torch.uint8)

    assert (analysis.attention_overlay(images, torch.zeros(1, 2, 2), full_at=1.0) == 0).all()


def test_maps_correlate_with_themselves_at_another_resolution_and_not_with_their_opposite():
    slope = torch.linspace(0, 1, 6).expand(1, 6, 6)
    coarse = torch.linspace(0, 1, 3).expand(1, 3, 3)

    assert float(analysis.map_correlation(slope, slope)) == pytest.approx(1)
    assert float(analysis.map_correlation(slope, -slope)) == pytest.approx(-1)
    assert float(analysis.map_correlation(slope, coarse)) > 0.97
    assert float(analysis.map_correlation(slope, coarse.mT)) == pytest.approx(0, abs=1e-6)


def test_each_image_is_lit_by_its_own_map():
    images_BHWC = torch.full((2, 4, 4, 3), 200, dtype=torch.uint8)
    map_hw = torch.tensor([[0.0, 1.0], [2.0, 4.0]])

    both = analysis.attention_overlay(images_BHWC, torch.stack([map_hw, 50 * map_hw]), full_at=1.0)

    assert torch.equal(both[0], both[1]) and both[0].max() == 200


def test_maps_are_compared_at_the_size_of_the_larger():
    small_HW = np.array([[1.0, 3.0], [2.0, 9.0]])
    rows = np.array([[1, 0], [0.75, 0.25], [0.25, 0.75], [0, 1]])  # bilinear, from 2 to 4 by hand
    large_HW = rows @ small_HW @ rows.T
    detail_HW = large_HW + 4 * (-1) ** np.add.outer(np.arange(4), np.arange(4))  # unseen in 2 x 2

    maps = [torch.from_numpy(map_HW)[None] for map_HW in (detail_HW, small_HW)]
    expected = np.corrcoef(detail_HW.ravel(), large_HW.ravel())[0, 1]
    for pair in (maps, maps[::-1]):
        assert float(analysis.map_correlation(*pair)) == pytest.approx(expected) != pytest.approx(1)


def test_a_rollout_goes_from_the_last_layer_to_the_first():
    first, second = torch.rand(2, 1, 2, 3, 3, generator=torch.Generator().manual_seed(0)).softmax(dim=-1)

    rolled = analysis.rollout_layer(
        analysis.rollout_layer(None, first, residual=False), second, residual=False
    )

    # What token i has of token k goes through each token j of the layer between.
    by_hand = torch.einsum("ij,jk->ik", second[0].mean(dim=0), first[0].mean(dim=0))
    torch.testing.assert_close(rolled[0], by_hand)


@pytest.mark.parametrize(("num_prefix", "renormalise"), [(1, False), (5, False), (0, False), (5, True)])
def test_uniform_attention_is_given_to_every_token_and_looks_nowhere_at_those_before_the_patches(
    num_prefix, renormalise
):
    """Such as a class token and four registers, which have no place in the image."""
    grid, patch_size = (2, 3), 4
    layout = SimpleNamespace(grid=grid, patch_size=patch_size, num_prefix=num_prefix, has_class_token=True)
    distance_nLA = torch.rand(3, 2, 4, dtype=torch.float64)

    numbers, arrays = collect._distance(
        SimpleNamespace(distance_nLA=distance_nLA), layout, SimpleNamespace(renormalise=renormalise)
    )

    places = np.array([(4 * row, 4 * column) for row in range(2) for column in range(3)], dtype=float)
    mean = np.linalg.norm(places[:, None] - places, axis=-1).mean()
    assert numbers["uniform"] == pytest.approx(mean if renormalise else mean * 6 / (6 + num_prefix))
    np.testing.assert_allclose(numbers["mean"], distance_nLA.numpy().mean(axis=0))
    np.testing.assert_allclose(numbers["by_layer"], distance_nLA.numpy().mean(axis=(0, 2)))
    np.testing.assert_allclose(numbers["std_over_images"], distance_nLA.numpy().std(axis=0, ddof=1))
    assert numbers["prefix_tokens"] == num_prefix and arrays["attention_distance"] is distance_nLA
