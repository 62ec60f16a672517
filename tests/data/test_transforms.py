"""Pixels of evaluation and training, against Pillow, torch, timm and the official code's distributions."""

import io
import math
import re
from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import timm.data
import torch
from PIL import Image
from torch.nn import functional as F

from vitcli.data.augmentations.randaugment import randaugment
from vitcli.data.transforms import Preprocessing, TrainTransform, inception_crop, to_model_range
from vitcli.errors import WeightsError

EVAL = Preprocessing(
    image_size=(24, 24),
    resize="square",
    crop_fraction=1.0,
    interpolation="bilinear",
    antialias=True,
    mean=(0.5,) * 3,
    std=(0.5,) * 3,
)
TRAIN = TrainTransform(
    image_size=(24, 24),
    crop="none",
    crop_area=(0.05, 1.0),
    crop_aspect=(3 / 4, 4 / 3),
    resize=None,
    flip=False,
    interpolation="bilinear",
    antialias=False,
    randaugment=None,
)
PILLOW = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def picture(height: int, width: int) -> np.ndarray:
    """Edges, a gradient and noise; nothing in it is symmetric."""
    y, x = np.mgrid[:height, :width]
    colours = np.stack([255 * y / height, 255 * x / width, 255.0 * ((x // 7 + y // 5) % 2)], axis=-1)
    noise = np.random.default_rng(height * 10_000 + width).normal(0, 15, colours.shape)
    return np.clip(colours + noise, 0, 255).astype(np.uint8)


def places(height: int, width: int) -> np.ndarray:
    """A picture whose pixels say where they are: red the row, green the column."""
    y, x = np.mgrid[:height, :width]
    return np.stack([y, x, 0 * x], axis=-1).astype(np.uint8)


def levels_apart(one: np.ndarray, other: np.ndarray) -> int:
    assert one.shape == other.shape
    return int(np.abs(one.astype(int) - other.astype(int)).max())


@pytest.mark.parametrize("size", [(24, 24), (40, 17), (90, 110), (60, 80)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_a_square_resize_is_pillow_s_within_one_level(interpolation, size):
    image = picture(60, 80)
    expected = Image.fromarray(image).resize(size[::-1], PILLOW[interpolation])

    result = replace(EVAL, image_size=size, interpolation=interpolation)(image)
    assert levels_apart(result, np.array(expected)) <= 1


@pytest.mark.parametrize("size", [(24, 24), (40, 17), (90, 110)])
def test_bilinear_without_antialias_is_tensorflow_s_plain_interpolation_within_one_level(size):
    image = picture(60, 80)
    floats = torch.from_numpy(image).permute(2, 0, 1)[None].float()
    expected = F.interpolate(floats, size=size, mode="bilinear", align_corners=False)

    result = replace(EVAL, image_size=size, antialias=False)(image)
    assert levels_apart(result, expected[0].permute(1, 2, 0).round().byte().numpy()) <= 1


def cubic_weights(side: int, size: int) -> np.ndarray:
    """(size, side) weights of the cubic kernel with a = -0.75, half-pixel centres, edges repeated."""
    weights = np.zeros((size, side))
    for place in range(size):
        centre = (place + 0.5) * side / size - 0.5
        for source in range(math.floor(centre) - 1, math.floor(centre) + 3):
            x = abs(centre - source)
            near, far = 1.25 * x**3 - 2.25 * x**2 + 1, -0.75 * (x**3 - 5 * x**2 + 8 * x - 4)
            weights[place, min(max(source, 0), side - 1)] += near if x < 1 else far
    return weights


@pytest.mark.parametrize("size", [(24, 24), (40, 17), (90, 110)])
def test_bicubic_without_antialias_is_torch_s_kernel_first_along_rows_then_along_columns(size):
    image = picture(60, 80)
    wide = np.einsum("xw,hwc->hxc", cubic_weights(80, size[1]), image).round().clip(0, 255)
    expected = np.einsum("yh,hxc->yxc", cubic_weights(60, size[0]), wide).round().clip(0, 255)

    result = replace(EVAL, image_size=size, interpolation="bicubic", antialias=False)(image)
    assert levels_apart(result, expected.astype(np.uint8)) <= 2


def test_antialias_makes_a_difference_when_shrinking():
    assert levels_apart(EVAL(picture(90, 90)), replace(EVAL, antialias=False)(picture(90, 90))) > 30


@pytest.mark.parametrize("sides", [(60, 80), (80, 60), (71, 71), (50, 333), (24, 25)])
@pytest.mark.parametrize("crop_fraction", [1.0, 0.9, 0.875])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_short_side_and_centre_are_timm_s_evaluation_within_one_level(interpolation, crop_fraction, sides):
    theirs = timm.data.create_transform(
        (3, 24, 24), interpolation=interpolation, crop_pct=crop_fraction, mean=(0,) * 3, std=(1,) * 3
    )
    ours = replace(EVAL, resize="short_side", crop_fraction=crop_fraction, interpolation=interpolation)
    image = picture(*sides)

    expected = theirs(Image.fromarray(image)).permute(1, 2, 0).mul(255).round().byte().numpy()
    assert levels_apart(ours(image), expected) <= 1


def test_real_photographs_look_to_the_model_as_timm_s_evaluation_shows_them(shared):
    import pyarrow.parquet

    theirs = timm.data.create_transform(
        (3, 224, 224), interpolation="bicubic", crop_pct=0.9, mean=(0.5,) * 3, std=(0.5,) * 3
    )
    ours = replace(
        EVAL, image_size=(224, 224), resize="short_side", crop_fraction=0.9, interpolation="bicubic"
    )
    file = shared / "data" / "imagenet_sample" / "validation-00000-of-00001.parquet"
    rows = next(pyarrow.parquet.ParquetFile(file).iter_batches(6, columns=["image"])).to_pylist()

    for row in rows:
        image = Image.open(io.BytesIO(row["image"]["bytes"])).convert("RGB")
        pixels = torch.from_numpy(ours(np.array(image)).copy()).permute(2, 0, 1)[None]
        levels = (to_model_range(pixels, mean=ours.mean, std=ours.std)[0] - theirs(image)).abs() * 127.5
        assert levels.max() < 2.01  # torch rounds its weights otherwise than Pillow
        assert (levels < 0.01).float().mean() > 0.98


@pytest.mark.parametrize(
    ("size", "fraction", "short_side"), [(224, 0.9, 248), (224, 0.875, 256), (384, 1.0, 384)]
)
def test_the_short_side_is_the_floor_of_size_over_fraction(size, fraction, short_side):
    ours = replace(EVAL, image_size=(size, size), resize="short_side", crop_fraction=fraction)

    assert ours.short_side == short_side
    assert f"short side {short_side}" in ours.summary()


@pytest.mark.parametrize("sides", [(60, 80), (71, 71), (50, 333), (24, 25), (9, 7)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_a_square_with_a_crop_is_timm_s_squash_within_one_level(interpolation, sides):
    theirs = timm.data.create_transform(
        (3, 28, 28),
        interpolation=interpolation,
        crop_pct=0.875,
        crop_mode="squash",
        mean=(0,) * 3,
        std=(1,) * 3,
    )
    ours = replace(EVAL, image_size=(28, 28), crop_fraction=0.875, interpolation=interpolation)
    image = picture(*sides)

    expected = theirs(Image.fromarray(image)).permute(1, 2, 0).mul(255).round().byte().numpy()
    assert levels_apart(ours(image), expected) <= 1


def test_the_evaluator_s_square_is_256_before_the_centre_of_224():
    """big_vision's "resize(256)|central_crop(224)": 16 pixels fall away on every side."""
    ours = replace(EVAL, image_size=(224, 224), crop_fraction=0.875, antialias=False)
    whole = replace(ours, image_size=(256, 256), crop_fraction=1.0)
    image = picture(300, 200)

    assert ours.whole_size == (256, 256)
    assert "resized to 256x256, centre crop" in ours.summary()
    assert np.array_equal(ours(image), whole(image)[16:240, 16:240])
    assert "resized to" not in whole.summary()


def test_none_takes_the_exact_centre():
    ours = replace(EVAL, image_size=(224, 224), resize="none")

    image = picture(227, 227)
    result = ours(image)
    assert np.array_equal(result, image[2:226, 2:226])  # round(1.5) is 2, as torchvision and timm have it
    assert np.array_equal(replace(ours, image_size=(20, 31))(image), image[104:124, 98:129])


@pytest.mark.parametrize("resize", ["none", "short_side", "square"])
@pytest.mark.parametrize("size", [(24, 24), (30, 18), (18, 30)])
def test_an_image_of_any_shape_comes_out_in_the_size_asked_for(resize, size):
    ours = replace(EVAL, image_size=size, resize=resize, crop_fraction=0.9)

    for sides in ((5, 7), (40, 10), (10, 40), (1, 1), (1, 200), (200, 1), (24, 24), (24, 23)):
        assert ours(picture(*sides)).shape == (*size, 3)
        assert ours(picture(*sides)).dtype == np.uint8


def test_a_image_smaller_than_the_centre_is_enlarged_until_it_fills_it():
    image = picture(12, 18)
    enlarged = np.array(Image.fromarray(image).resize((36, 24), Image.Resampling.BILINEAR))

    result = replace(EVAL, resize="none")(image)
    assert levels_apart(result, enlarged[:, 6:30]) <= 1


def test_the_shape_of_things_is_kept_by_short_side_and_not_by_square():
    image = np.zeros((40, 120, 3), dtype=np.uint8)
    image[10:30, 50:70] = 255  # a white square in the middle
    short_side, square = (
        replace(EVAL, resize=resize)(image)[..., 0] > 127 for resize in ("short_side", "square")
    )

    assert (short_side.any(axis=0).sum(), short_side.any(axis=1).sum()) == (12, 12)
    assert (square.any(axis=0).sum(), square.any(axis=1).sum()) == (4, 12)


def test_preprocessing_survives_being_stored_as_json_types():
    ours = replace(EVAL, image_size=(30, 18), crop_fraction=0.9)
    stored = ours.as_dict()

    assert stored["image_size"] == [30, 18]
    assert Preprocessing.from_dict(stored) == ours


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mean", [0.5]),
        ("mean", [0.5, 0.5, math.nan]),
        ("mean", "0.5"),
        ("std", [0.5, 0.5, 0.0]),
        ("std", ["a", "b", "c"]),
        ("image_size", [224]),
        ("image_size", [224, 0]),
        ("image_size", [224.0, 224.0]),
        ("crop_fraction", -1.0),
        ("crop_fraction", math.inf),
        ("interpolation", "lanczos"),
        ("resize", "border"),
        ("blur", True),
    ],
)
def test_a_stored_preprocessing_that_makes_no_image_is_refused_by_its_key_and_value(key, value):
    with pytest.raises(WeightsError, match=re.escape(f"({key} {value})")):
        Preprocessing.from_dict(EVAL.as_dict() | {key: value})


def test_a_crop_of_more_than_the_image_is_the_whole_image():
    """timm pads it with black: of VOLO's 512 px, 445 would be image."""
    padded = Preprocessing.from_dict(EVAL.as_dict() | {"crop_fraction": 1.15})

    assert padded == replace(EVAL, crop_fraction=1.0)


def test_text_of_the_statistics_is_short_where_the_channels_are_equal():
    imagenet = replace(EVAL, mean=(0.485, 0.456, 0.406), std=(0.26862954, 0.26130258, 0.27577711))

    assert replace(EVAL, std=(1.0,) * 3).summary().endswith(", mean 0.5, std 1")
    assert imagenet.statistics == "mean 0.485 0.456 0.406, std 0.2686 0.2613 0.2758"


def test_the_model_sees_minus_one_to_one():
    black_grey_white = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 1, 1, 3).expand(1, 3, 1, 3)
    values = to_model_range(black_grey_white, mean=(0.5,) * 3, std=(0.5,) * 3)

    assert values.dtype == torch.float32
    assert values[0, 2, 0].tolist() == [-1, pytest.approx(-0.6), 1]


def test_each_channel_has_its_own_mean_and_deviation():
    grey = torch.full((2, 3, 1, 1), 51, dtype=torch.uint8)
    values = to_model_range(grey, mean=(0.2, 0.1, 0.4), std=(0.5, 0.25, 0.1))

    assert values[1, :, 0, 0].tolist() == pytest.approx([0, 0.4, -2], abs=1e-6)


def crops(height: int, width: int, *, count: int, area=(0.05, 1.0), aspect=(3 / 4, 4 / 3)) -> np.ndarray:
    rng = Random(0)
    return np.array([inception_crop(height, width, area=area, aspect=aspect, rng=rng) for _ in range(count)])


@pytest.mark.parametrize("sides", [(300, 400), (400, 300), (64, 64), (31, 200)])
@pytest.mark.parametrize("area", [(0.05, 1.0), (0.08, 0.5), (0.9, 1.0)])
def test_inception_crops_lie_inside_and_keep_the_bounds_of_area_and_aspect(sides, area):
    found = crops(*sides, count=500, area=area)
    top, left, height, width = found.T
    whole = (height == sides[0]) & (width == sides[1])  # what is taken when nothing fits

    assert (top >= 0).all() and (left >= 0).all()
    assert (top + height <= sides[0]).all() and (left + width <= sides[1]).all()
    share = height * width / (sides[0] * sides[1])
    assert ((share >= area[0]) & (share <= area[1]) | whole).all()
    half_a_pixel = 0.5 / height
    ratio = width / height
    assert ((ratio >= 3 / 4 - half_a_pixel) & (ratio <= 4 / 3 + half_a_pixel) | whole).all()


def test_the_aspect_of_inception_crops_is_uniform_and_not_log_uniform():
    _, _, height, width = crops(2_000, 2_000, count=6_000, area=(0.05, 0.3), aspect=(0.5, 2.0)).T
    below_one = ((width / height) < 1).mean()

    assert below_one == pytest.approx(1 / 3, abs=0.025)  # log-uniform would give one half


def test_the_height_of_inception_crops_is_uniform_given_the_aspect():
    _, _, height, _ = crops(1_000, 1_000, count=6_000, area=(0.04, 0.64), aspect=(1.0, 1.0)).T

    shares, _ = np.histogram(height, bins=np.linspace(200, 800, 5))
    assert shares / 6_000 == pytest.approx([0.25] * 4, abs=0.025)  # a uniform area: 10, 20, 30 and 40 %
    assert height.min() >= 200 and height.max() <= 800


def test_inception_crops_are_anywhere_with_equal_chance_edges_included():
    found = crops(40, 40, count=8_000, area=(0.2, 0.25), aspect=(1.0, 1.0))
    of_19 = found[found[:, 2] == 19]

    for side in (0, 1):
        counts = Counter(of_19[:, side].tolist())
        assert set(counts) == set(range(22))
        assert max(counts.values()) < 1.5 * len(of_19) / 22


@pytest.mark.parametrize("sides", [(1, 2_000), (2_000, 1), (1, 1)])
def test_where_no_crop_fits_the_whole_image_is_taken(sides):
    for top, left, height, width in crops(*sides, count=20, area=(0.5, 0.9)):
        assert (top, left, height, width) == (0, 0, *sides)


def official_crop(height: int, width: int, area: tuple, aspect: tuple, draw) -> tuple[int, int] | None:
    """One try of TensorFlow's GenerateRandomCrop (core/kernels/image/sample_distorted_bounding_box_op.cc)."""
    least, most = area[0] * height * width, area[1] * height * width
    ratio = draw.uniform(*aspect)
    h, max_h = round(math.sqrt(least / ratio)), round(math.sqrt(most / ratio))
    if round(max_h * ratio) > width:
        max_h = int((width + 0.5 - 1e-7) / ratio)
    max_h = min(max_h, height)
    h = min(h, max_h)
    if h < max_h:
        h += draw.randint(0, max_h - h)
    w = round(h * ratio)
    if w * h < least:
        h += 1
        w = round(h * ratio)
    if w * h > most:
        h -= 1
        w = round(h * ratio)
    fits = least <= w * h <= most and 0 < w <= width and 0 < h <= height
    return (h, w) if fits else None


@pytest.mark.parametrize("sides", [(60, 80), (150, 40)])
def test_the_sizes_of_inception_crops_are_distributed_as_in_the_official_code(sides):
    found = crops(*sides, count=8_000)[:, 2:]
    draw, expected = Random(1), []
    while len(expected) < 8_000:
        if crop := official_crop(*sides, (0.05, 1.0), (3 / 4, 4 / 3), draw):
            expected.append(crop)

    for ours, theirs in zip(found.T, np.array(expected).T, strict=True):
        grid = np.arange(ours.max() + 1)
        share_ours, share_theirs = (
            np.searchsorted(np.sort(v), grid, "right") / 8_000 for v in (ours, theirs)
        )
        assert np.abs(share_ours - share_theirs).max() < 0.03  # Kolmogorov-Smirnov, far below p = 0.001


def test_an_inception_crop_is_cut_before_it_is_resized():
    image = picture(100, 120)
    transform = replace(TRAIN, crop="inception", antialias=True)
    top, left, height, width = inception_crop(
        100, 120, area=transform.crop_area, aspect=transform.crop_aspect, rng=Random(3)
    )
    piece = Image.fromarray(image[top : top + height, left : left + width])

    result = transform(image, Random(3))
    assert levels_apart(result, np.array(piece.resize((24, 24), Image.Resampling.BILINEAR))) <= 1


def test_a_random_window_shows_the_resized_image_at_every_place():
    transform = replace(TRAIN, crop="random", resize=28, image_size=(24, 26))
    rng, seen = Random(0), Counter()
    for _ in range(600):
        result = transform(places(28, 28), rng)
        top, left = result[0, 0, :2].tolist()
        assert np.array_equal(result, places(28, 28)[top : top + 24, left : left + 26])
        seen[top, left] += 1

    assert set(seen) == {(top, left) for top in range(5) for left in range(3)}
    assert max(seen.values()) < 70  # 40 are expected


def test_a_random_window_squashes_the_whole_image_first():
    image = picture(60, 80)
    whole = replace(EVAL, image_size=(24, 24), antialias=False)(image)

    assert np.array_equal(replace(TRAIN, crop="random", resize=24)(image, Random(0)), whole)


def test_no_crop_means_the_whole_image():
    image = picture(60, 80)

    expected = replace(EVAL, image_size=(24, 30), antialias=False)(image)
    assert np.array_equal(replace(TRAIN, image_size=(24, 30))(image, Random(0)), expected)


def test_with_flip_about_every_second_image_is_mirrored_left_to_right():
    image, transform, rng = picture(24, 24), replace(TRAIN, flip=True), Random(0)
    results = [transform(image, rng) for _ in range(1_000)]
    mirrored = sum(np.array_equal(result, image[:, ::-1]) for result in results)
    straight = sum(np.array_equal(result, image) for result in results)

    assert mirrored + straight == 1_000
    assert 440 < mirrored < 560


@pytest.mark.parametrize("crop", ["inception", "random", "none"])
def test_without_flip_no_image_is_ever_mirrored(crop):
    transform, rng = replace(TRAIN, crop=crop, resize=30), Random(0)

    for _ in range(200):
        columns = transform(places(40, 50), rng)[12, :, 1].astype(int)
        assert columns[0] < columns[-1]


@pytest.mark.parametrize("crop", ["inception", "random"])
def test_the_same_state_of_the_generator_gives_the_same_pixels_and_another_gives_others(crop):
    image, transform = picture(60, 80), replace(TRAIN, crop=crop, resize=30, flip=True)

    results = [transform(image, Random(seed)) for seed in (1, 1, 2, 3)]
    assert np.array_equal(results[0], results[1])
    assert not np.array_equal(results[0], results[2]) and not np.array_equal(results[2], results[3])


def test_randaugment_comes_after_crop_resize_and_flip_and_resumes_with_their_generator():
    image, mirrored = picture(60, 80), 0
    transform = replace(TRAIN, crop="inception", flip=True, image_size=(24, 30))
    for seed in range(40):
        rng = Random(seed)
        plain = transform(image, rng)
        expected = randaugment(plain, num_layers=2, magnitude=10.0, rng=rng)

        assert np.array_equal(replace(transform, randaugment=(2, 10.0))(image, Random(seed)), expected)
        mirrored += not np.array_equal(plain, replace(transform, flip=False)(image, Random(seed)))
    assert 10 < mirrored < 30


def test_layers_and_magnitude_of_randaugment_are_not_mixed_up():
    image, transform = picture(24, 24), replace(TRAIN, randaugment=(3, 7.5))
    for seed in range(20):
        expected = randaugment(image, num_layers=3, magnitude=7.5, rng=Random(seed))
        assert np.array_equal(transform(image, Random(seed)), expected)


def test_no_global_generator_is_touched():
    torch.manual_seed(0)
    np.random.seed(0)
    transform = replace(TRAIN, crop="inception", flip=True, randaugment=(2, 10.0))
    transform(picture(60, 80), Random(0))

    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(0)))
    assert np.random.random() == np.random.RandomState(0).random()


def test_the_image_that_came_in_is_left_as_it_was():
    image = picture(24, 24)
    before = image.copy()
    replace(TRAIN, crop="inception", flip=True)(image, Random(1))
    EVAL(image)

    assert np.array_equal(image, before)
