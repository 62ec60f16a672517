"""The perceptual hash against a slow one written out, against changed copies, and pairs against a loop."""

import io
import math

import numpy as np
import pytest
from PIL import Image

from vitcli.data.decoding import decode
from vitcli.data.parts.image_hashes import FLAT, hash_images, near_pairs, perceptual_hash
from vitcli.data.split import Split


def scene(seed: int, height: int = 96, width: int = 128) -> np.ndarray:
    """Coloured blobs with something in each of the frequencies that are looked at."""
    small = np.random.default_rng(seed).integers(30, 220, (14, 18, 3)).astype(np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


def distance(one: np.ndarray, other: np.ndarray) -> int:
    return (perceptual_hash(one) ^ perceptual_hash(other)).bit_count()


def as_jpeg(image: np.ndarray, quality: int) -> np.ndarray:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    return decode(file.getvalue(), where=str, row=0)


def resized(image: np.ndarray, width: int, height: int) -> np.ndarray:
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))


def test_it_is_the_cosine_transform_written_out():
    image = scene(3, 32, 32)
    grey = np.asarray(Image.fromarray(image).convert("L"), dtype=float)

    def frequency(u: int, v: int) -> float:
        scale = (math.sqrt(0.5) if u == 0 else 1.0) * (math.sqrt(0.5) if v == 0 else 1.0)
        turns = [[math.cos(math.pi * k * (2 * x + 1) / 64) for x in range(32)] for k in (u, v)]
        return scale * sum(grey[y, x] * turns[0][y] * turns[1][x] for y in range(32) for x in range(32))

    places = sorted((u + v, u, v) for u in range(12) for v in range(12))[1:65]
    values = [frequency(u, v) for _, u, v in places]
    middle = sum(sorted(values)[31:33]) / 2
    bits = "".join(str(int(value > middle)) for value in values)

    assert perceptual_hash(image) == int(bits, 2)


@pytest.mark.parametrize("seed", range(5))
def test_changed_copies_are_near(seed):
    image = scene(seed)
    brighter = np.clip(image.astype(int) + 20, 0, 255).astype(np.uint8)
    duller = (128 + (image.astype(float) - 128) * 0.6).astype(np.uint8)
    for copy in (
        image,
        as_jpeg(image, 30),
        resized(image, 64, 48),
        resized(image, 200, 200),
        brighter,
        duller,
        np.asarray(Image.fromarray(image).convert("L").convert("RGB")),
    ):
        assert distance(image, copy) <= 6


def test_others_are_far():
    hashes = np.array([perceptual_hash(scene(seed)) for seed in range(60)], dtype=np.uint64)

    assert not list(near_pairs(hashes, hashes, distance=6, within=True))
    assert distance(scene(0), scene(0)[:, ::-1]) > 6  # a mirror image is another picture: said in the docs


def test_a_plain_surface_has_no_look():
    noise = np.random.default_rng(0).normal(0, 1, (64, 64, 3))

    assert perceptual_hash(np.full((20, 30, 3), 77, np.uint8)) is None
    assert perceptual_hash((128 + noise).astype(np.uint8)) is None
    assert perceptual_hash(np.array([[[0, 0, 0], [255, 255, 255]]], np.uint8)) is not None
    assert FLAT < 5


def test_the_same_bytes_in_another_shape_are_other_pixels():
    pixels = np.random.default_rng(0).integers(0, 256, 36).astype(np.uint8)
    images = [pixels.reshape(height, width, 3) for height, width in ((2, 6), (6, 2), (2, 6))]
    split = Split("drawn", 3, None, 1, lambda row: (images[row], 0), lambda: np.zeros(3, int), str)
    done = []

    hashes = hash_images(split, num_threads=1, progress=done.append)

    wide, high, copy = hashes.pixels_N
    assert wide == copy != high and done == [3]
    assert hashes.sides_N2.tolist() == [[2, 6], [6, 2], [2, 6]] and hashes.rows_N.tolist() == [0, 1, 2]


@pytest.mark.parametrize("block", [1, 7, 10_000])
def test_pairs_are_those_of_a_loop_whatever_the_block(monkeypatch, block):
    from vitcli.data.parts import image_hashes

    monkeypatch.setattr(image_hashes, "BLOCK", block)
    rng = np.random.default_rng(1)
    few = rng.integers(0, 2**63, 4).astype(np.uint64)
    flips = (np.uint64(1) << rng.integers(0, 64, (2, 40)).astype(np.uint64)).astype(np.uint64)
    many = few[rng.integers(0, 4, 40)] ^ flips[0] ^ flips[1]
    for limit in (0, 2, 3, 64):
        found = {
            (int(i), int(j)): int(d)
            for block_of in near_pairs(few, many, distance=limit)
            for i, j, d in zip(*block_of, strict=True)
        }
        by_loop = {
            (i, j): (int(a) ^ int(b)).bit_count() for i, a in enumerate(few) for j, b in enumerate(many)
        }
        assert found == {pair: bits for pair, bits in by_loop.items() if bits <= limit}
    inside = [
        (int(i), int(j))
        for b in near_pairs(many, many, distance=64, within=True)
        for i, j, _ in zip(*b, strict=True)
    ]
    assert inside == [(i, j) for i in range(40) for j in range(i + 1, 40)]
