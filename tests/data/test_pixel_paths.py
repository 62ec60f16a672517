"""Every short cut to the pixels of a batch, against the long way: Pillow, torchvision's resize and numpy."""

import io
from collections.abc import Callable
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2.functional import resize_image

from vitcli import recipe
from vitcli.data import decoding, transforms
from vitcli.data.augmentations.randaugment import randaugment
from vitcli.data.augmentations.random_erasing import erase
from vitcli.data.augmentations.trivialaugment import trivialaugment
from vitcli.data.loader import eval_batches, train_batches
from vitcli.data.sampler import TrainSampler, derive_seed
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing, TrainTransform
from vitcli.errors import WeightsError
from vitcli.recipe.listing import list_recipes

SEED = 5


def picture(height: int, width: int) -> Image.Image:
    y, x = np.mgrid[:height, :width]
    colours = np.stack([255 * y / height, 255 * x / width, 128 + 90 * np.sin(x / 5)], axis=-1)
    noise = np.random.default_rng(height * 1000 + width).normal(0, 30, colours.shape)
    return Image.fromarray(np.clip(colours + noise, 0, 255).astype(np.uint8))


def file_of(image: Image.Image, kind: str = "JPEG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


FILES = [
    file_of(picture(57, 80), quality=85),
    file_of(picture(91, 44), quality=60, subsampling="4:4:4"),
    file_of(picture(240, 33), quality=90, progressive=True),
    file_of(picture(120, 161), quality=75, restart_marker_rows=1),
    file_of(picture(70, 70).convert("L"), quality=85),
    file_of(picture(39, 55), quality=85, exif=turned()),
    file_of(picture(64, 48).convert("CMYK"), quality=85),
    file_of(picture(24, 24), quality=85),  # as large as the result
    file_of(picture(1, 60), quality=85),
    file_of(picture(9, 7), "PNG"),
    file_of(picture(60, 50).convert("RGBA").rotate(20), "PNG"),
    file_of(picture(80, 81).convert("L"), "PNG"),
    file_of(picture(50, 90), quality=85) + b"stray",
]


def files(images: list[bytes | np.ndarray] = FILES) -> Split:
    return Split(
        name="files",
        num_examples=len(images),
        class_names=None,
        num_classes=len(images),
        read_row=lambda row: (images[row], row),
        read_labels=lambda: np.arange(len(images)),
        where_is=str,
    )


def shipped(kind: Callable) -> list:
    """Every augmentation or preprocessing of the shipped recipes once, at a size that is quickly computed."""
    results = {}
    for entry in (entry for entry in list_recipes() if not entry["base"]):
        data = recipe.load(entry["name"], (), {}, training=False).data
        numbers = {"image_size": (24, 24), "interpolation": "bicubic", "mean": (0.5,) * 3, "std": (0.5,) * 3}
        numbers |= {"eval_resize": "short_side", "eval_crop_fraction": 0.9}
        changes = {name: numbers[name] for name in transforms.keys_of_weights(data)}
        changes |= {"image_size": (24, 24), "resize": data.resize and 28}
        results[kind(data.model_copy(update=changes))] = entry["name"]
    return list(results)


TRAINING, EVALUATION = shipped(transforms.train_transform_of), shipped(transforms.preprocessing_of)


def plainly_resized(image_HWC: np.ndarray, size: tuple[int, int], interpolation: str, antialias: bool):
    image_CHW = torch.from_numpy(image_HWC).permute(2, 0, 1)
    mode = InterpolationMode(interpolation)
    return resize_image(image_CHW, list(size), mode, antialias=antialias).permute(1, 2, 0).numpy()


def plainly_augmented(data: bytes, transform: TrainTransform, rng: Random) -> np.ndarray:
    image = decoding.to_rgb(Image.open(io.BytesIO(data)))
    size = transform.image_size
    if transform.crop == "inception":
        top, left, height, width = transforms.inception_crop(
            *image.shape[:2], area=transform.crop_area, aspect=transform.crop_aspect, rng=rng
        )
        image = image[top : top + height, left : left + width]
    elif transform.crop == "random":
        size = (transform.resize, transform.resize)
    image = plainly_resized(image, size, transform.interpolation, transform.antialias)
    if transform.crop == "random":
        top, left = (rng.randint(0, transform.resize - side) for side in transform.image_size)
        image = image[top : top + transform.image_size[0], left : left + transform.image_size[1]]
    if transform.flip and rng.random() < 0.5:
        image = image[:, ::-1]
    if transform.randaugment is not None:
        num_layers, magnitude = transform.randaugment
        image = randaugment(image, num_layers=num_layers, magnitude=magnitude, rng=rng)
    if transform.trivialaugment:
        image = trivialaugment(image, rng=rng)
    image = image.copy()
    erase(image, probability=transform.random_erasing, mean=transform.mean, rng=rng)
    return image


def trained_on(split: Split, transform: TrainTransform, *, batch_size: int = 26, rank: int = 0, **options):
    options = dict(per_device_batch=batch_size, on_bad_image="error", num_threads=2) | options
    world_size = options.pop("world_size", 1)
    sampler = TrainSampler(len(split), None, 64, batch_size, SEED, rank, world_size)
    return train_batches(split, transform, sampler, **{"steps": range(2)} | options)


@pytest.mark.parametrize("transform", TRAINING, ids=lambda t: f"{t.crop}-{t.interpolation}-{t.randaugment}")
def test_every_example_of_a_batch_has_the_pixels_of_the_long_way(transform):
    batches = list(trained_on(files(), transform))

    images = torch.cat([batch.images_BCHW for batch in batches]).permute(0, 2, 3, 1).numpy()
    rows = torch.cat([batch.rows_B for batch in batches]).tolist()
    assert sorted(rows) == sorted([*range(len(FILES))] * 4)
    for position, (row, image) in enumerate(zip(rows, images, strict=True)):
        rng = Random(derive_seed(SEED, "augment", position))
        assert np.array_equal(image, plainly_augmented(FILES[row], transform, rng)), (row, position)


@pytest.mark.parametrize("preprocessing", EVALUATION, ids=Preprocessing.summary)
def test_every_evaluated_image_has_the_pixels_of_the_long_way(preprocessing):
    batches = eval_batches(
        files(), preprocessing, batch_size=5, rank=0, world_size=1, on_bad_image="error", num_threads=2
    )

    images = torch.cat([batch.images_BCHW for batch in batches]).permute(0, 2, 3, 1).numpy()
    for data, image in zip(FILES, images, strict=True):
        pixels = decoding.to_rgb(Image.open(io.BytesIO(data)))
        resize = preprocessing.resize
        size = (
            preprocessing.whole_size
            if resize == "square"
            else preprocessing._size_in_shape(*pixels.shape[:2])
        )
        pixels = plainly_resized(pixels, size, preprocessing.interpolation, preprocessing.antialias)
        top, left = (round((side - 24) / 2) for side in size)
        assert np.array_equal(image, pixels[top : top + 24, left : left + 24])


@pytest.mark.parametrize("transform", TRAINING, ids=lambda t: f"{t.crop}-{t.interpolation}-{t.randaugment}")
def test_batches_processes_and_restarts_change_no_pixel(transform):
    whole = torch.cat([batch.images_BCHW for batch in trained_on(files(), transform, batch_size=12)])

    smaller = trained_on(files(), transform, batch_size=12, per_device_batch=3, num_threads=3)
    assert torch.equal(torch.cat([batch.images_BCHW for batch in smaller]), whole)
    ranks = [
        trained_on(files(), transform, batch_size=12, per_device_batch=4, rank=rank, world_size=3)
        for rank in range(3)
    ]
    together = [batch.images_BCHW for step in zip(*ranks, strict=True) for batch in step]
    assert torch.equal(torch.cat(together), whole)
    (second,) = trained_on(files(), transform, batch_size=12, steps=range(1, 2))
    assert torch.equal(second.images_BCHW, whole[12:])


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", "4:1:1"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_rows": 1}])
def test_the_upper_part_of_a_jpeg_is_that_of_the_whole(subsampling, options):
    for mode in ("RGB", "L"):
        data = file_of(picture(201, 35).convert(mode), quality=80, subsampling=subsampling, **options)
        jpeg = decoding.open_image(data, where=str, row=0)
        whole = np.array(Image.open(io.BytesIO(data)).convert("RGB"))
        assert np.array_equal(jpeg.decode(), whole)
        for num_rows in (1, 7, 8, 16, 63, 100, 150, 201):
            upper = jpeg.decode_rows(num_rows)
            assert np.array_equal(upper[:num_rows], whole[:num_rows]), (mode, num_rows)
            assert num_rows > 120 or len(upper) < 201  # the rest was not decoded


def test_a_jpeg_without_its_end_is_refused_whatever_part_of_it_is_needed():
    data = file_of(picture(201, 35), quality=80)
    for length in (len(data) - 1, len(data) * 3 // 4, len(data) // 2):
        jpeg = decoding.open_image(data[:length], where=lambda row: f"row {row}", row=7)
        if length < len(data) - 1:
            with pytest.raises(decoding.DataError, match="cannot be decoded"):
                jpeg.decode_rows(10)


@pytest.mark.parametrize("data", FILES[5:7], ids=["turned", "CMYK"])
def test_what_a_viewer_would_change_is_left_to_pillow(data):
    assert isinstance(decoding.open_image(data, where=str, row=0), np.ndarray)


def test_an_image_may_be_written_to_its_place_or_not():
    image = np.array(picture(60, 70))
    for transform in TRAINING:
        place = np.empty((24, 24, 3), dtype=np.uint8)
        result = transform(image, Random(3))
        assert transform(image, Random(3), place) is place and np.array_equal(place, result)
    for preprocessing in EVALUATION:
        place = np.empty((24, 24, 3), dtype=np.uint8)
        preprocessing(image, place)
        assert np.array_equal(place, preprocessing(image))


@pytest.mark.parametrize("antialias", [False, True])
def test_processors_without_a_kernel_for_bytes_resize_in_float_as_torchvision_does(monkeypatch, antialias):
    monkeypatch.setattr(transforms, "IS_FAST_ON_BYTES", False)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    monkeypatch.setattr("platform.machine", lambda: "ppc64le")
    (preprocessing,) = {replace(EVALUATION[0], resize="square", crop_fraction=1.0, interpolation="bilinear")}
    image = np.array(picture(60, 70))

    result = replace(preprocessing, antialias=antialias)(image)
    assert np.array_equal(result, plainly_resized(image, (24, 24), "bilinear", antialias))


def fast(transform):
    return replace(transform, decode="fast")


LARGE = file_of(picture(400, 600).filter(ImageFilter.GaussianBlur(4)), quality=95, subsampling="4:4:4")
CROPS = next(t for t in TRAINING if t.crop == "inception" and t.randaugment is None)
CROPS = replace(CROPS, interpolation="bilinear", antialias=True)


def test_fast_decoding_changes_no_image_that_is_smaller_than_twice_what_is_needed():
    image = decoding.open_image(file_of(picture(45, 47)), where=str, row=0)
    for transform in TRAINING:
        assert np.array_equal(fast(transform)(image, Random(1)), transform(image, Random(1)))
    short_side = replace(EVALUATION[0], resize="short_side", crop_fraction=1.0)
    assert np.array_equal(fast(short_side)(image), short_side(image))


def test_fast_decoding_shows_the_same_part_of_a_large_image():
    image = decoding.open_image(LARGE, where=str, row=0)
    sizes = [image.decode(width).shape[:2] for width in (0, 600, 301, 300, 151, 150, 70, 1)]
    assert sizes == [(400, 600)] * 3 + [(200, 300), (150, 225), (100, 150), (50, 75), (50, 75)]
    differs = 0
    for seed in range(40):
        exact, other = (t(image, Random(seed)).astype(int) for t in (CROPS, fast(CROPS)))
        # Edges are rounded to shrunk pixels; another crop differs by 37.
        assert np.abs(exact - other).mean() < 15, seed
        differs += not np.array_equal(exact, other)
    assert differs > 30
    for preprocessing in EVALUATION:
        if preprocessing.resize != "none" and preprocessing.antialias:
            exact, other = (p(image).astype(int) for p in (preprocessing, fast(preprocessing)))
            assert 0 < np.abs(exact - other).mean() < 4


def test_fast_decoding_passes_over_images_that_are_kept():
    kept = SimpleNamespace(read=lambda split, row, *make: (np.zeros((400, 600, 3), np.uint8), row))
    split = files([LARGE] * 3)
    cached = replace(split, cache=SimpleNamespace(decoded=kept, prepared={}))
    preprocessing = fast(replace(EVALUATION[0], resize="short_side", crop_fraction=1.0))

    for transform, is_kept in ((CROPS, True), (fast(CROPS), False)):
        (batch,) = trained_on(cached, transform, batch_size=3, steps=range(1))
        assert (not batch.images_BCHW.any()) == is_kept
    options = dict(batch_size=3, rank=0, world_size=1, on_bad_image="error", num_threads=1)
    one, other = (next(eval_batches(rows, preprocessing, **options)) for rows in (split, cached))
    assert torch.equal(one.images_BCHW, other.images_BCHW)


def test_how_images_are_decoded_is_stored_with_the_weights_unless_it_is_exact():
    exact = EVALUATION[0]
    assert "decode" not in exact.as_dict() and Preprocessing.from_dict(exact.as_dict()) == exact
    assert Preprocessing.from_dict(fast(exact).as_dict()) == fast(exact)
    assert [
        text.count("shrunk as they are decoded") for text in (exact.summary(), fast(exact).summary())
    ] == [0, 1]
    assert fast(exact).geometry != exact.geometry
    assert transforms.as_data_keys(fast(exact))["decode"] == "fast"
    with pytest.raises(WeightsError, match="decode slow"):
        Preprocessing.from_dict(exact.as_dict() | {"decode": "slow"})
