"""RandAugment against values worked out by hand, invariants, and the authors' code run by TensorFlow."""

import hashlib
import math
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random

import numpy as np
import pytest
import torch

from vitcli.data.augmentations import randaugment as ra
from vitcli.data.augmentations.randaugment import OPERATIONS, operate, randaugment

MAGNITUDES = (0, 1, 2.5, 5, 7, 10, 12, 15, 20, 25, 30)
# Start of the SHA-256 of `every_result` by big_vision's pp/autoaugment.py (0127fb6), run by TensorFlow 2.15.1
# (TF_ENABLE_ONEDNN_OPTS=0), tensorflow_addons 0.23.0 and NumPy 1.23.5, its coin set to + and then to -.
BY_TENSORFLOW = {
    "autocontrast": "85679d0d11241ca0",
    "equalize": "d8854fdd1800a088",
    "invert": "3e42e66dd748f13b",
    "rotate": "293ea954a5113bff",
    "posterize": "7c3fae97a4c03de4",
    "solarize": "63f7ab1d031b336a",
    "color": "f6b07b4225d342f7",
    "contrast": "0accfbb8f06b3a3a",
    "brightness": "0041113ada3542e1",
    "sharpness": "9e5ab22863f9647e",
    "shear_x": "85dccf60fcb50751",
    "shear_y": "52905b295a9bfd20",
    "translate_x": "f0eb3613ca9df1ea",
    "translate_y": "130b0614a1c2608d",
    "solarize_add": "e16f77cbc221684c",
}


def picture(height: int, width: int) -> np.ndarray:
    """Waves of all levels and fields of few, other ones in each channel; nothing in it is symmetric."""
    y, x, c = np.indices((height, width, 3))
    waves = (y * y * 3 + x * x * 5 + x * y * (c + 1) * 7 + 40 * c) % 256
    fields = 60 + (waves // (c + 2)) % 120
    return np.where((x // 9 + y // 7) % 2 == 0, waves, fields).astype(np.uint8)


def grey(rows: list[list[int]]) -> np.ndarray:
    """(H, W, 3) of these levels, the same in each channel."""
    return np.repeat(np.array(rows, dtype=np.uint8)[..., None], 3, axis=-1)


def levels(image_HWC: np.ndarray) -> list[list[int]]:
    """The inverse of `grey`."""
    assert image_HWC.dtype == np.uint8 and (image_HWC == image_HWC[..., :1]).all()
    return image_HWC[..., 0].tolist()


class Coin(Random):
    """Always the same side up."""

    def __init__(self, sign: int):
        super().__init__(0)
        self.sign = sign

    def random(self) -> float:
        return 0.25 if self.sign > 0 else 0.75


def every_result(name: str) -> bytes:
    """Of three pictures at all magnitudes, either way."""
    images = [picture(64, 48), picture(17, 23), picture(120, 160)]
    results = [
        operate(name, image, magnitude=magnitude, rng=Coin(sign))
        for magnitude in MAGNITUDES
        for sign in (+1, -1)
        for image in images
    ]
    return b"".join(result.tobytes() for result in results)


@pytest.mark.parametrize("name", BY_TENSORFLOW)
def test_every_pixel_is_that_of_the_authors_code_in_tensorflow(name):
    assert hashlib.sha256(every_result(name)).hexdigest()[:16] == BY_TENSORFLOW[name]


def test_there_are_the_sixteen_operations_of_the_authors():
    assert len(OPERATIONS) == len(set(OPERATIONS)) == 16
    assert set(OPERATIONS) == {*BY_TENSORFLOW, "cutout"}


def test_autocontrast_stretches_each_channel_by_its_own_range():
    image = np.stack([[[10, 20, 61]], [[0, 10, 51]], [[7, 7, 7]]], axis=-1).astype(np.uint8)

    assert ra.autocontrast(image)[0].tolist() == [[0, 0, 7], [50, 50, 7], [255, 255, 7]]


def test_autocontrast_reaches_black_and_white_but_for_a_rounding_of_float32():
    for low in range(0, 255, 3):
        for high in range(low + 1, 256, 5):
            first, last = levels(ra.autocontrast(grey([[low, high]])))[0]
            assert first == 0 and last in (254, 255)


def test_autocontrast_of_a_full_range_is_the_identity():
    image = grey([list(range(256))])

    assert np.array_equal(ra.autocontrast(image), image)


def test_equalize_by_hand():
    image = grey([[0] * 300 + [10] * 300 + [20] * 210])
    # step (810 - 210) // 255 = 2; level 0: 1 // 2, level 10: (300 + 1) // 2, level 20: 601 // 2, which is cut

    assert Counter(levels(ra.equalize(image))[0]) == {0: 300, 150: 300, 255: 210}


def test_equalize_treats_each_channel_by_itself():
    image = np.stack([[[5] * 256 + [9] * 256]] * 3, axis=-1).astype(np.uint8)
    image[..., 1] = np.arange(512) // 2  # already flat
    image[..., 2] = 77

    result = ra.equalize(image)[0]
    assert result[:, 0].tolist() == [0] * 256 + [255] * 256
    assert np.array_equal(result[:, 1:], image[0, :, 1:])


def test_equalize_leaves_a_flat_histogram_and_a_small_image_as_they_are():
    for image in (grey([list(range(256))] * 4), picture(8, 9)):
        assert np.array_equal(ra.equalize(image), image)


def test_inverting_twice_is_the_identity():
    image = picture(9, 11)

    assert levels(ra.invert(grey([[0, 1, 200, 255]]))) == [[255, 254, 55, 0]]
    assert np.array_equal(ra.invert(ra.invert(image)), image)


@pytest.mark.parametrize(
    ("bits", "kept"),
    [(8, 0b11111111), (4, 0b11110000), (2, 0b11000000), (1, 0b10000000), (0, 0b10000000), (9, 0b10000000)],
)
def test_posterize_keeps_the_highest_bits_and_at_least_one(bits, kept):
    everything = list(range(256))

    assert levels(ra.posterize(grey([everything]), bits)) == [[level & kept for level in everything]]


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        (128, [0, 127, 127, 0]),
        (200, [0, 127, 128, 0]),
        (0, [255, 128, 127, 0]),
        (256, [255, 128, 127, 0]),  # 256 is 0 as uint8
        (384, [0, 127, 127, 0]),  # and 384 is 128
    ],
)
def test_solarize_inverts_from_the_threshold_on(threshold, expected):
    assert levels(ra.solarize(grey([[0, 127, 128, 255]]), threshold)) == [expected]


@pytest.mark.parametrize(
    ("addition", "expected"),
    [
        (0, [0, 100, 127, 128, 255]),
        (110, [110, 210, 237, 128, 255]),
        (150, [150, 250, 255, 128, 255]),
        (330, [255, 255, 255, 128, 255]),
    ],
)
def test_solarize_add_brightens_what_is_darker_than_128(addition, expected):
    assert levels(ra.solarize_add(grey([[0, 100, 127, 128, 255]]), addition)) == [expected]


@pytest.mark.parametrize(
    ("factor", "expected"),
    # grey: (0.2989 * 100 + 0.587 * 150 + 0.114 * 200) * 255.5 / 255 = 141.02, cut off to 141
    [(0, (141, 141, 141)), (0.1, (136, 141, 146)), (1, (100, 150, 200)), (1.9, (63, 158, 253)),
     (2.8, (26, 166, 255))],
)  # fmt: skip
def test_color_goes_away_from_grey(factor, expected):
    image = np.array([[(100, 150, 200), (90, 90, 90)]], dtype=np.uint8)

    assert ra.color(image, factor)[0].tolist() == [list(expected), [90] * 3]


@pytest.mark.parametrize(
    ("size", "level"), [((16, 16), 1), ((16, 48), 3), ((224, 224), 196), ((300, 300), 255)]
)
def test_contrast_goes_away_from_a_256th_of_the_number_of_pixels(size, level):
    image = np.full((*size, 3), 60, dtype=np.uint8)

    for factor in (0, 0.1, 1, 1.9):
        expected = min(max(level + factor * (60 - level), 0), 255)
        assert set(ra.contrast(image, factor).flat) == {math.floor(expected + 1e-4)}


@pytest.mark.parametrize(
    ("factor", "expected"), [(0, [0] * 4), (0.1, [0, 0, 10, 25]), (1.9, [0, 9, 190, 255])]
)
def test_brightness_goes_away_from_black(factor, expected):
    assert levels(ra.brightness(grey([[0, 5, 100, 255]]), factor)) == [expected]


def test_sharpness_goes_away_from_the_smoothed_image_inside_its_border():
    dot = np.zeros((5, 6), dtype=int)
    dot[1, 2] = 255
    smooth = np.zeros((5, 6), dtype=int)
    smooth[1:3, 1:4] = 19  # 255 / 13
    smooth[1, 2] = 98  # 5 * 255 / 13

    assert levels(ra.sharpness(grey(dot.tolist()), 0)) == smooth.tolist()
    halved = (smooth + (dot - smooth) / 2).astype(int)
    assert levels(ra.sharpness(grey(dot.tolist()), 0.5)) == halved.tolist()
    assert levels(ra.sharpness(grey([[9] * 3, [9, 131, 9], [9] * 3]), 2)) == [[9] * 3, [9, 207, 9], [9] * 3]


def test_channels_and_rows_do_not_mix_when_the_image_is_smoothed():
    image = np.zeros((6, 7, 3), dtype=np.uint8)
    image[2, 5, 1] = 255  # beside the right border
    smooth = ra.sharpness(image, 0)

    assert not smooth[..., [0, 2]].any()
    rows, columns = np.nonzero(smooth[..., 1])
    assert set(zip(rows.tolist(), columns.tolist(), strict=True)) == {
        (y, x) for y in (1, 2, 3) for x in (4, 5)
    }


def test_a_positive_rotation_is_counterclockwise_about_the_centre():
    square, oblong = picture(7, 7), picture(6, 9)

    assert np.array_equal(ra.rotate(square, 90), np.rot90(square))
    assert np.array_equal(ra.rotate(square, -90), np.rot90(square, -1))
    assert np.array_equal(ra.rotate(oblong, 180), oblong[::-1, ::-1])


@pytest.mark.parametrize("degrees", [30, -30, 7.5, 45])
def test_rotation_takes_the_nearest_pixel_and_grey_outside(degrees):
    image = picture(20, 31)
    result, cos, sin = (
        ra.rotate(image, degrees),
        math.cos(math.radians(degrees)),
        math.sin(math.radians(degrees)),
    )
    for y in range(20):
        for x in range(31):
            column = 15 + cos * (x - 15) - sin * (y - 9.5)
            row = 9.5 + sin * (x - 15) + cos * (y - 9.5)
            if min(abs(place % 1 - 0.5) for place in (row, column)) < 1e-4:
                continue  # half-way between two pixels
            inside = 0 <= round(row) < 20 and 0 <= round(column) < 31
            expected = image[round(row), round(column)].tolist() if inside else [128] * 3
            assert result[y, x].tolist() == expected


ROWS = [[11, 12, 13, 14], [21, 22, 23, 24], [31, 32, 33, 34]]
G = 128


@pytest.mark.parametrize(
    ("operation", "strength", "expected"),
    [
        (ra.shear_x, 1, [[11, 12, 13, 14], [22, 23, 24, G], [33, 34, G, G]]),
        (ra.shear_x, -1, [[11, 12, 13, 14], [G, 21, 22, 23], [G, G, 31, 32]]),
        (ra.shear_x, 0.3, [[11, 12, 13, 14], [21, 22, 23, 24], [32, 33, 34, G]]),
        (ra.shear_y, 1, [[11, 22, 33, G], [21, 32, G, G], [31, G, G, G]]),
        (ra.shear_y, -1, [[11, G, G, G], [21, 12, G, G], [31, 22, 13, G]]),
        (ra.shear_y, 0.3, [[11, 12, 23, 24], [21, 22, 33, 34], [31, 32, G, G]]),
        (partial(ra.translate, axis=1), 1, [[12, 13, 14, G], [22, 23, 24, G], [32, 33, 34, G]]),
        (partial(ra.translate, axis=1), -2, [[G, G, 11, 12], [G, G, 21, 22], [G, G, 31, 32]]),
        (partial(ra.translate, axis=0), 1, [[21, 22, 23, 24], [31, 32, 33, 34], [G] * 4]),
        (partial(ra.translate, axis=0), -2, [[G] * 4, [G] * 4, [11, 12, 13, 14]]),
        (partial(ra.translate, axis=0), 3, [[G] * 4] * 3),
        (partial(ra.translate, axis=1), -4, [[G] * 4] * 3),
        (partial(ra.translate, axis=1), 0.4, ROWS),
        (partial(ra.translate, axis=0), 0.49999997, [*ROWS[:1], ROWS[2], [G] * 4]),  # 1.49999997 is 1.5
        # halves go away from zero: 0.5 to 1, and -0.5 to -1, which is outside
        (partial(ra.translate, axis=1), 0.5, [[12, 13, 14, G], [22, 23, 24, G], [32, 33, 34, G]]),
        (partial(ra.translate, axis=1), -0.5, [[G, 12, 13, 14], [G, 22, 23, 24], [G, 32, 33, 34]]),
        (ra.shear_x, -0.5, [[11, 12, 13, 14], [G, 22, 23, 24], [G, 31, 32, 33]]),
    ],
)  # fmt: skip
def test_shears_and_translations_by_hand(operation, strength, expected):
    assert levels(operation(grey(ROWS), strength)) == expected


def test_cutout_is_a_grey_square_around_any_pixel_and_ends_at_the_edges():
    image, seen, centres = np.zeros((9, 14, 3), dtype=np.uint8), set(), Counter()
    rng = Random(0)
    for _ in range(4_000):
        rows, columns = np.nonzero(ra.cutout(image, 2, rng).all(axis=-1))
        seen.add((rows.min(), rows.max(), columns.min(), columns.max()))
        centres[int(rows.max()), int(columns.max())] += 1

    spans = [{(max(0, c - 2), min(side, c + 2) - 1) for c in range(side)} for side in (9, 14)]
    assert seen == {rows + columns for rows in spans[0] for columns in spans[1]}
    inner = [centres[row, column] for row in range(1, 7) for column in range(1, 12)]
    assert min(inner) > 5 and max(inner) < 70  # 4000 / (9 * 14) = 32 each


@pytest.mark.parametrize("magnitude", [2.5, 5, 10, 20])
def test_the_magnitude_becomes_the_strength_of_autoaugments_scale(magnitude):
    image, share = picture(40, 60), magnitude / 10
    strengths = {
        "posterize": (ra.posterize, int(4 * share)), "solarize": (ra.solarize, int(256 * share)),
        "solarize_add": (ra.solarize_add, int(110 * share)), "color": (ra.color, 0.1 + 1.8 * share),
        "contrast": (ra.contrast, 0.1 + 1.8 * share), "brightness": (ra.brightness, 0.1 + 1.8 * share),
        "sharpness": (ra.sharpness, 0.1 + 1.8 * share), "rotate": (ra.rotate, 30 * share),
        "shear_x": (ra.shear_x, 0.3 * share), "shear_y": (ra.shear_y, 0.3 * share),
        "translate_x": (partial(ra.translate, axis=1), 100 * share),
        "translate_y": (partial(ra.translate, axis=0), 100 * share),
    }  # fmt: skip
    for name, (operation, strength) in strengths.items():
        expected = operation(image, strength)
        assert np.array_equal(operate(name, image, magnitude=magnitude, rng=Coin(+1)), expected), name

    white = np.full((400, 300, 3), 255, dtype=np.uint8)
    cut = [operate("cutout", white, magnitude=magnitude, rng=Random(seed)) for seed in range(20)]
    assert max((image == G).all(axis=-1).sum() for image in cut) == int(2 * 40 * share) ** 2


@pytest.mark.parametrize("name", ["rotate", "shear_x", "shear_y", "translate_x", "translate_y"])
def test_what_moves_the_image_moves_it_either_way_equally_often(name):
    image, rng = picture(20, 24), Random(0)
    ways = [operate(name, image, magnitude=1, rng=Coin(sign)).tobytes() for sign in (+1, -1)]
    seen = Counter(operate(name, image, magnitude=1, rng=rng).tobytes() for _ in range(1_000))

    assert set(seen) == set(ways) and len(seen) == 2
    assert 440 < seen[ways[0]] < 560


@pytest.mark.parametrize(
    "unchanged",
    [
        partial(ra.rotate, degrees=0), partial(ra.shear_x, level=0), partial(ra.shear_y, level=0),
        partial(ra.translate, pixels=0, axis=0), partial(ra.translate, pixels=0, axis=1),
        partial(ra.posterize, bits=8), partial(ra.solarize_add, addition=0),
        partial(ra.color, factor=1), partial(ra.contrast, factor=1), partial(ra.brightness, factor=1),
        partial(ra.sharpness, factor=1), partial(ra.cutout, half_side=0, rng=Random(0)),
    ],
    ids=lambda operation: operation.func.__name__,
)  # fmt: skip
def test_an_operation_without_strength_is_the_identity(unchanged):
    assert np.array_equal(unchanged(picture(13, 17)), picture(13, 17))


def test_every_operation_is_drawn_equally_often():
    image, rng = picture(48, 60), Random(0)
    names = {
        operate(name, image, magnitude=4, rng=Coin(sign)).tobytes(): name
        for name in OPERATIONS
        for sign in (+1, -1)
        if name != "cutout"
    }
    results = [randaugment(image, num_layers=1, magnitude=4, rng=rng) for _ in range(4_800)]
    seen = Counter(names.get(result.tobytes(), "cutout") for result in results)

    assert set(names.values()) | {"cutout"} == set(seen) == set(OPERATIONS)
    assert min(seen.values()) > 240 and max(seen.values()) < 360  # 300 each


def test_layers_are_operations_one_after_the_other():
    image = picture(21, 34)
    for seed in range(30):
        rng = Random(seed)
        by_hand = image
        for _ in range(3):
            by_hand = randaugment(by_hand, num_layers=1, magnitude=10, rng=rng)

        assert np.array_equal(randaugment(image, num_layers=3, magnitude=10, rng=Random(seed)), by_hand)


def test_no_layers_are_the_identity():
    assert np.array_equal(
        randaugment(picture(6, 8), num_layers=0, magnitude=10, rng=Random(0)), picture(6, 8)
    )


def test_the_same_state_of_the_generator_gives_the_same_pixels_in_any_thread():
    images = [picture(30, 20 + i) for i in range(40)]

    def result(i: int) -> bytes:
        return randaugment(images[i], num_layers=2, magnitude=10, rng=Random(i)).tobytes()

    alone = [result(i) for i in range(40)]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(result, range(40))) == alone
    others = {randaugment(images[0], num_layers=2, magnitude=10, rng=Random(i)).tobytes() for i in range(40)}
    assert len(others) > 30


def test_no_global_generator_is_touched():
    def states() -> list:
        name, keys, *place = np.random.get_state()
        return [random.getstate(), name, keys.tolist(), place, torch.get_rng_state().tolist()]

    before = states()
    for seed in range(40):
        randaugment(picture(12, 15), num_layers=2, magnitude=10, rng=Random(seed))
    assert states() == before


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_image_of_any_shape_keeps_it_and_is_left_as_it_was(name):
    for size in ((1, 1), (1, 6), (6, 1), (2, 2), (3, 2), (2, 3), (3, 3), (31, 20)):
        image = picture(*size)
        for magnitude in (0, 0.5, 10, 30):
            result = operate(name, image, magnitude=magnitude, rng=Random(1))
            assert (result.shape, result.dtype) == (image.shape, np.uint8)
        assert np.array_equal(image, picture(*size))


def test_a_mirrored_view_of_a_image_is_taken_as_its_pixels():
    for seed in range(40):
        view = picture(16, 22)[:, ::-1]
        of_view = randaugment(view, num_layers=1, magnitude=5, rng=Random(seed))
        assert np.array_equal(of_view, randaugment(view.copy(), num_layers=1, magnitude=5, rng=Random(seed)))
