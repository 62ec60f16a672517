"""Weights of classes: hand values and the mean of 1."""

import numpy as np
import pytest

from vitcli.data.balance import POWERS, class_weights


def test_weights_of_four_images_and_one_by_hand():
    assert class_weights([4, 1, 0], "none").tolist() == [1, 1, 0]
    # 1/4 each for four images, and 1 for one: the sum is 2 where it should be 5.
    np.testing.assert_allclose(class_weights([4, 1, 0], "full"), [0.625, 2.5, 0], rtol=1e-15)
    # 1/2 each for four images, and 1 for one: the sum is 3.
    np.testing.assert_allclose(class_weights([4, 1, 0], "sqrt"), [5 / 6, 5 / 3, 0], rtol=1e-15)


@pytest.mark.parametrize("balance", POWERS)
def test_the_mean_over_images_is_1(balance):
    counts = np.random.default_rng(0).integers(0, 500, 1000)

    assert counts @ class_weights(counts, balance) == pytest.approx(counts.sum(), rel=1e-12)
