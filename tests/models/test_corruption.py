"""Which patches are corrupted and by what: exact counts, and draws that follow from the seed alone."""

import pytest
import torch

from vitcli.errors import VitError
from vitcli.models.masked_patch import Corruption, Counts, corrupt, corruption_counts, draw, draw_alone

PAPER = dict(corrupted=0.5, masked=0.8, replaced=0.1)
DRAWS = 4_000


def replaced_of(corruption: Corruption, counts: Counts) -> tuple[torch.Tensor, torch.Tensor]:
    """Place among all patches of all pictures of each replaced patch, and of the one in its stead."""
    num_images, num_patches = len(corruption.places_BM), 16
    own_BM = corruption.places_BM + num_patches * torch.arange(num_images)[:, None]
    replaced = slice(counts.masked, counts.masked + counts.replaced)
    return own_BM[:, replaced], corruption.sources_BM[:, replaced]


@pytest.mark.parametrize(
    ("num_patches", "shares", "counts"),
    [
        (16, PAPER, (8, 6, 1)),  # 6.4 masked; 7.2 masked or replaced; 1 stays
        (196, PAPER, (98, 78, 10)),  # 78.4; 88.2; 10 stay
        (49, PAPER, (25, 20, 3)),  # 24.5; 20; 22.5: halves go up; 2 stay
        (100, PAPER | {"corrupted": 0.15}, (15, 12, 2)),  # the 15 % of section B.1.2
        (10, dict(corrupted=1.0, masked=0.5, replaced=0.5), (10, 5, 5)),
        (5, dict(corrupted=1.0, masked=0.5, replaced=0.5), (5, 3, 2)),  # not 3 and 3
        (16, dict(corrupted=1.0, masked=1.0, replaced=0.0), (16, 16, 0)),
        (16, dict(corrupted=1.0, masked=0.0, replaced=1.0), (16, 0, 16)),
        (16, dict(corrupted=0.5, masked=0.0, replaced=0.0), (8, 0, 0)),
        (1, dict(corrupted=0.5, masked=1.0, replaced=0.0), (1, 1, 0)),
    ],
)
def test_shares_become_exact_counts(num_patches, shares, counts):
    assert corruption_counts(num_patches, **shares) == counts


@pytest.mark.parametrize(
    ("num_patches", "changed"),
    [
        (16, {"corrupted": 0.0}),
        (16, {"corrupted": 0.03}),  # rounds to none
        (16, {"corrupted": 1.1}),
        (16, {"masked": 0.95}),
        (16, {"replaced": -0.1}),
        (1, {"masked": 0.0, "replaced": 1.0}),  # there is no other patch
    ],
)
def test_shares_that_are_impossible_or_leave_nothing_to_predict_are_refused(num_patches, changed):
    with pytest.raises(VitError, match=f"of {num_patches} patches") as refusal:
        corruption_counts(num_patches, **PAPER | changed)

    assert "0.5, 0.8 and 0.1" in refusal.value.fix


def test_every_picture_has_the_counts_and_only_replaced_patches_come_from_elsewhere():
    counts = Counts(8, 6, 1)
    places_BM, sources_BM, is_masked_BM = draw(5, 16, counts)
    own_BM = places_BM + 16 * torch.arange(5)[:, None]

    assert all(len(set(places)) == 8 and set(places) <= set(range(16)) for places in places_BM.tolist())
    assert is_masked_BM.sum(dim=1).tolist() == [6] * 5
    assert ((sources_BM != own_BM).sum(dim=1) == 1).all()
    assert not ((sources_BM != own_BM) & is_masked_BM).any()


def test_a_replaced_patch_is_any_other_of_the_forward_pass_each_equally_likely_and_none_twice():
    torch.manual_seed(0)
    counts, steps_between = Counts(16, 0, 16), torch.zeros(32)
    for _ in range(DRAWS // 8):
        own_BR, source_BR = replaced_of(draw(2, 16, counts), counts)
        assert sorted(source_BR.flatten().tolist()) == list(range(32))
        steps_between += ((source_BR - own_BR) % 32).flatten().bincount(minlength=32)

    assert steps_between[0] == 0
    expected = DRAWS // 8 * 32 / 31
    assert (steps_between[1:] / expected - 1).abs().max() < 0.2  # a deviation is 0.044


def test_every_place_is_corrupted_masked_and_replaced_equally_often():
    torch.manual_seed(0)
    counts = Counts(8, 6, 1)
    corruption = draw(DRAWS, 16, counts)
    own_BR, _ = replaced_of(corruption, counts)
    masked = corruption.places_BM[corruption.is_masked_BM]

    for places, share in ((corruption.places_BM, 1 / 2), (masked, 6 / 16), (own_BR % 16, 1 / 16)):
        deviation = (share * (1 - share) / DRAWS) ** 0.5
        assert (places.flatten().bincount(minlength=16) / DRAWS - share).abs().max() < 4 * deviation


def test_the_seed_alone_decides():
    draws = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        draws.append(draw(4, 16, Counts(8, 6, 1)))

    assert all(map(torch.equal, draws[0], draws[1]))
    assert not torch.equal(draws[0].places_BM, draws[2].places_BM)


def test_drawn_alone_a_picture_has_one_corruption_in_every_batch_and_leaves_the_global_generator():
    counts = Counts(8, 4, 4)
    torch.manual_seed(0)
    together = draw_alone([11, 12, 13], 16, counts)
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(0)))

    for i, seed in enumerate([11, 12, 13]):
        alone = draw_alone([seed], 16, counts)
        assert torch.equal(together.places_BM[i], alone.places_BM[0])
        assert torch.equal(together.is_masked_BM[i], alone.is_masked_BM[0])
        assert torch.equal(together.sources_BM[i] - 16 * i, alone.sources_BM[0])
        assert set(alone.sources_BM[0].tolist()) <= set(range(16))
        of_seed = draw(1, 16, counts, torch.Generator().manual_seed(seed))
        assert all(map(torch.equal, alone, of_seed))
    assert len({tuple(places) for places in together.places_BM.tolist()}) == 3


def test_embeddings_become_the_mask_the_other_patch_or_themselves():
    embeddings_BND = torch.arange(2 * 4 * 3.0).reshape(2, 4, 3)
    mask = torch.full((1, 1, 3), -1.0)
    corruption = (
        Corruption(  # of picture 0: patch 2 masked, patch 0 replaced; of picture 1: 0 masked, 3 as it was
            torch.tensor([[2, 0], [0, 3]]),
            torch.tensor([[2, 5], [4, 7]]),
            torch.tensor([[True, False], [True, False]]),
        )
    )
    expected = embeddings_BND.clone()
    expected[0, 2] = expected[1, 0] = -1
    expected[0, 0] = embeddings_BND[1, 1]

    assert torch.equal(corrupt(embeddings_BND, corruption, mask), expected)


def test_gradients_reach_the_mask_and_the_patches_that_are_still_seen():
    embeddings_BND = torch.randn(1, 4, 3, requires_grad=True)
    mask = torch.zeros(1, 1, 3, requires_grad=True)
    corruption = Corruption(  # patch 0 is masked, patch 1 is exchanged for patch 3
        torch.tensor([[0, 1]]), torch.tensor([[0, 3]]), torch.tensor([[True, False]])
    )
    corrupt(embeddings_BND, corruption, mask).sum().backward()

    assert embeddings_BND.grad[0, :, 0].tolist() == [0, 0, 1, 2]
    assert mask.grad.flatten().tolist() == [1, 1, 1]
