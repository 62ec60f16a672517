"""Every kind of image file: the pixels a viewer shows, or a `DataError`, and nothing else."""

import io
import os
import random
import struct
import subprocess
import sys
import time
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps, PngImagePlugin

from vitcli.data import decoding
from vitcli.errors import DataError

WHITE = [255, 255, 255]
pytestmark = pytest.mark.filterwarnings("ignore::Warning:PIL")  # of damaged metadata; pytest lifts our filter


def decode(data: bytes) -> np.ndarray:
    return decoding.decode(data, where=lambda row: f"row {row}", row=7)


@cache
def picture(height: int = 37, width: int = 52) -> Image.Image:
    """Smooth colours under noise, not square, no two corners alike."""
    y, x = np.mgrid[:height, :width]
    colours = np.stack([255 * y / height, 255 * x / width, 128 + 90 * np.sin(x / 5)], axis=-1)
    noise = np.random.default_rng(0).normal(0, 12, colours.shape)
    return Image.fromarray(np.clip(colours + noise, 0, 255).astype(np.uint8))


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def by_pillow(data: bytes) -> np.ndarray:
    return np.array(Image.open(io.BytesIO(data)).convert("RGB"))


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, *, bits: int, colour: int, lines: bytes, extra: bytes = b"") -> bytes:
    """A PNG file from its raw lines, for what Pillow does not write."""
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    body = chunk(b"IHDR", header) + extra + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def png16(values_HW: np.ndarray, extra: bytes = b"") -> bytes:
    lines = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values_HW)
    return png(values_HW.shape[1], values_HW.shape[0], bits=16, colour=0, lines=lines, extra=extra)


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_a_jpeg_has_the_pixels_of_pillow_bit_for_bit(mode, progressive, subsampling):
    options = dict(quality=85, progressive=progressive, subsampling=subsampling)
    data = encoded(picture().convert(mode), "JPEG", **options)

    assert np.array_equal(decode(data), by_pillow(data))
    assert decode(data).shape == (37, 52, 3) and decode(data).dtype == np.uint8


def test_real_photographs_have_the_pixels_of_pillow_bit_for_bit(shared):
    import pyarrow.parquet

    file = shared / "data" / "imagenet_sample" / "validation-00000-of-00001.parquet"
    table = pyarrow.parquet.ParquetFile(file)
    images = next(table.iter_batches(12, columns=["image"])).to_pylist()

    for image in images:
        data = image["image"]["bytes"]
        upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
        assert np.array_equal(decode(data), np.array(upright)), image["image"]["path"]


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "WEBP"])
def test_lossless_formats_give_back_what_went_in(kind):
    options = {"lossless": True} if kind == "WEBP" else {}

    assert np.array_equal(decode(encoded(picture(), kind, **options)), np.array(picture()))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_a_image_is_upright_whatever_its_exif_orientation(kind, orientation):
    # How the rows and columns of the stored picture lie in the upright one, by the EXIF standard.
    turn_back = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.swapaxes(0, 1),
        6: lambda a: np.rot90(a, 1),  # shown after a quarter turn clockwise, so stored a quarter turn back
        7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
        8: lambda a: np.rot90(a, -1),
    }[orientation]
    upright = np.array(picture())
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"JPEG": {"quality": 95, "subsampling": 0}, "WEBP": {"lossless": True}}.get(kind, {})
    stored = Image.fromarray(np.ascontiguousarray(turn_back(upright)))
    result = decode(encoded(stored, kind, exif=exif, **options))

    assert result.shape == upright.shape
    assert np.abs(result.astype(int) - upright).mean() < (6 if kind == "JPEG" else 1e-9)


@pytest.mark.parametrize("orientation", [0, 9, 600])
def test_an_exif_orientation_that_does_not_exist_is_passed_over(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(picture(), "JPEG", exif=exif)

    assert np.array_equal(decode(data), by_pillow(data))


def test_broken_exif_does_not_hide_the_image():
    data = encoded(picture(), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")

    assert np.array_equal(decode(data), by_pillow(data))


def test_cmyk_becomes_rgb():
    data = encoded(Image.new("CMYK", (8, 5), (0, 255, 255, 0)), "JPEG", quality=100)  # no red ink is missing

    assert decode(data).shape == (5, 8, 3)
    assert np.abs(decode(data).astype(int) - [255, 0, 0]).max() <= 3


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bit_grey_becomes_the_value_over_257(kind):
    values = np.arange(65_536, dtype=np.uint16).reshape(256, 256)
    data = png16(values) if kind == "PNG" else encoded(Image.fromarray(values), "TIFF")
    result = decode(data)

    assert np.abs(result - (values / 257)[..., None]).max() <= 0.5
    assert (result[..., 0] == result[..., 1]).all() and (result[..., 0] == result[..., 2]).all()


def test_sixteen_bit_colour_is_within_one_level_of_the_value_over_257():
    values = np.random.default_rng(0).integers(0, 65_536, (6, 9, 3))
    lines = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)

    assert np.abs(decode(png(9, 6, bits=16, colour=2, lines=lines)) - values / 257).max() <= 1


def test_the_transparent_value_of_a_sixteen_bit_png_is_white_and_the_others_keep_their_grey():
    values = np.array([[0, 30_000, 65_535], [30_001, 257, 25_700]], dtype=np.uint16)
    result = decode(png16(values, extra=chunk(b"tRNS", struct.pack(">H", 30_000))))

    assert result[..., 0].tolist() == [[0, 255, 255], [117, 1, 100]]


def test_a_palette_is_looked_up():
    image = picture().quantize(16)

    assert np.array_equal(decode(encoded(image, "PNG")), np.array(image.convert("RGB")))


def test_a_transparent_palette_entry_is_white():
    image = Image.new("P", (3, 1))
    image.putpalette([10, 20, 30, 200, 0, 0, 0, 200, 0])
    image.putdata([0, 1, 2])

    expected = [[[10, 20, 30], WHITE, [0, 200, 0]]]
    assert decode(encoded(image, "PNG", transparency=1)).tolist() == expected
    assert decode(encoded(image, "GIF", transparency=1)).tolist() == expected


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_half_transparent_pixels_are_laid_over_white(kind):
    pixels = np.array([[[0, 0, 0, 0], [0, 0, 0, 255], [100, 50, 0, 128], [255, 0, 0, 64]]], dtype=np.uint8)
    image = Image.fromarray(np.repeat(pixels, 3, axis=0))
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    alpha = pixels[..., 3:] / 255

    expected = pixels[..., :3] * alpha + 255 * (1 - alpha)
    assert np.abs(decode(encoded(image, kind, **options)) - expected).max() <= 1


def test_grey_with_alpha_is_laid_over_white():
    pixels = np.array([[[0, 0], [0, 255], [100, 128]]], dtype=np.uint8)
    result = decode(encoded(Image.fromarray(pixels, "LA"), "PNG"))

    assert result[..., 0].tolist() == [[255, 0, 177]]  # 100 * 128/255 + 255 * 127/255
    assert (result == result[..., :1]).all()


def test_the_transparent_colour_of_a_png_without_alpha_is_white():
    colours = Image.fromarray(np.array([[[9, 8, 7], [9, 8, 6], [0, 0, 0]]], dtype=np.uint8))
    greys = Image.fromarray(np.array([[5, 6, 0]], dtype=np.uint8))

    expected = [[WHITE, [9, 8, 6], [0, 0, 0]]]
    assert decode(encoded(colours, "PNG", transparency=(9, 8, 7))).tolist() == expected
    assert decode(encoded(greys, "PNG", transparency=6))[0, :, 0].tolist() == [5, 255, 0]


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_of_several_frames_the_first_is_taken(kind):
    frames = [Image.new("RGB", (6, 4), colour) for colour in ("red", "lime", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)

    assert Image.open(io.BytesIO(data)).n_frames == 3
    assert (decode(data) == [255, 0, 0]).all()


def test_of_a_multi_image_jpeg_the_first_is_taken():
    other = Image.new("RGB", (52, 37), "blue")
    data = encoded(picture(), "MPO", save_all=True, append_images=[other])

    assert Image.open(io.BytesIO(data)).format == "MPO"
    assert np.array_equal(decode(data), by_pillow(data))


@pytest.mark.parametrize("size", [(1, 1), (1, 2_000), (2_000, 1)])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_images_of_one_pixel_or_one_line_are_read(kind, size):
    result = decode(encoded(Image.new("RGB", size, (255, 0, 0)), kind))

    assert result.shape == (size[1], size[0], 3)
    assert np.abs(result.astype(int) - [255, 0, 0]).max() <= 3


@pytest.mark.parametrize("size", [(60_000, 60_000), (10_000, 10_000), (9_500, 9_500)])
def test_more_pixels_than_the_limit_are_refused_by_their_header(size):
    data = png(*size, bits=8, colour=2, lines=b"")

    with pytest.raises(DataError, match="pixels"):
        decode(data)


def test_an_image_with_a_side_longer_than_that_of_any_jpeg_is_refused():
    assert decode(encoded(Image.new("1", (65_535, 1)), "PNG")).shape == (1, 65_535, 3)
    with pytest.raises(DataError, match="a side of 65,536 pixels"):
        decode(encoded(Image.new("1", (1, 65_536)), "PNG"))


@pytest.mark.parametrize("lost", [1, 2, 3, 40, 500])
def test_a_truncated_jpeg_is_refused_even_when_only_its_end_mark_is_gone(lost):
    with pytest.raises(DataError, match="cannot be decoded"):
        decode(encoded(picture(), "JPEG")[:-lost])


@pytest.mark.parametrize("lost", [40, 200])
@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
def test_files_of_the_other_formats_that_have_lost_pixels_are_refused(kind, lost):
    with pytest.raises(DataError, match="cannot be decoded"):
        decode(encoded(picture(), kind)[:-lost])


@pytest.mark.parametrize(("kind", "end_mark"), [("PNG", 12), ("GIF", 1)])
def test_a_png_or_gif_without_its_end_mark_still_has_all_its_pixels(kind, end_mark):
    data = encoded(picture(), kind)

    assert np.array_equal(decode(data[:-end_mark]), decode(data))


def test_without_simplejpeg_the_pixels_are_the_same(monkeypatch):
    data = encoded(picture(), "JPEG", quality=90)
    fast = decode(data)
    monkeypatch.setattr(decoding, "simplejpeg", None)

    assert np.array_equal(decode(data), fast)


def test_stray_bytes_that_every_viewer_passes_over_do_not_make_a_jpeg_bad():
    data = encoded(picture(), "JPEG")
    stray = data[:-2] + b"\x01" * 50 + data[-2:]

    assert np.array_equal(decode(stray), by_pillow(data))
    assert np.array_equal(decode(data + b"trailing rubbish"), by_pillow(data))


@pytest.mark.parametrize("data", [b"", b"\0" * 500, b"these are words, not pixels", bytes(range(256)) * 4])
def test_what_is_no_image_is_refused_in_words(data):
    with pytest.raises(DataError, match=f"not a JPEG, .* or {decoding.FORMATS[-1]} file") as caught:
        decode(data)

    assert caught.value.where == "row 7"
    assert "--skip-bad" in caught.value.fix
    assert caught.value.exit_code == 3


def test_postscript_is_not_opened_and_ghostscript_not_started(monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **kwargs: pytest.fail("a program was started"))
    data = encoded(picture(), "EPS")

    with pytest.raises(DataError, match="not a JPEG"):
        decode(data)


@pytest.mark.parametrize("kind", ["ICO", "PCX", "TGA", "SGI", "PDF", "JPEG2000"])
def test_other_formats_that_pillow_knows_are_not_read(kind):
    with pytest.raises(DataError, match="not a JPEG"):
        decode(encoded(picture(), kind))


@pytest.mark.parametrize(
    "values", [np.ones((4, 4), np.float32), np.full((4, 4), 70_000, np.int32), np.full((4, 4), -1, np.int32)]
)
def test_values_without_a_scale_are_refused_and_not_shown_black_or_white(values):
    with pytest.raises(DataError, match="without a known range"):
        decode(encoded(Image.fromarray(values), "TIFF"))


def test_a_text_block_that_unpacks_to_thirty_megabytes_is_refused():
    info = PngImagePlugin.PngInfo()
    info.add_text("bomb", "x" * 30_000_000, zip=True)
    data = encoded(Image.new("RGB", (2, 2)), "PNG", pnginfo=info)

    assert len(data) < 50_000
    with pytest.raises(DataError):
        decode(data)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A few bytes changed, mostly near the front, where headers are; sometimes a piece gone or doubled."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        reach = rng.choice([24, 80, len(changed)])
        changed[rng.randrange(min(reach, len(changed)))] = rng.choice([0, 255, rng.randrange(256)])
    cut = rng.randrange(len(changed))
    match rng.randrange(6):
        case 0:
            del changed[cut:]
        case 1:
            del changed[cut : cut + rng.randrange(30)]
        case 2:
            changed[cut:cut] = changed[cut : cut + 30]
    return bytes(changed)


def seeds() -> dict[str, bytes]:
    small, grey = picture(11, 14), np.arange(154, dtype=np.uint16).reshape(11, 14)
    exif = Image.Exif()
    exif[0x0112] = 6
    kinds = {kind: encoded(small, kind) for kind in ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")}
    return kinds | {
        "JPEG upside down": encoded(small, "JPEG", exif=exif),
        "JPEG progressive": encoded(small, "JPEG", progressive=True),
        "JPEG CMYK": encoded(small.convert("CMYK"), "JPEG"),
        "PNG palette": encoded(small.quantize(9), "PNG", transparency=1),
        "PNG 16 bit": png16(grey),
        "PNG alpha": encoded(small.convert("RGBA"), "PNG", exif=exif),
        "PNG frames": encoded(small, "PNG", save_all=True, append_images=[small.rotate(9)]),
        "TIFF deflate": encoded(small, "TIFF", compression="tiff_adobe_deflate"),
        "TIFF 16 bit": encoded(Image.fromarray(grey), "TIFF"),
        "WEBP frames": encoded(small, "WEBP", save_all=True, append_images=[small.rotate(9)]),
        "PNM plain": b"P2 14 11 255 " + b" ".join(b"%d" % n for n in range(154)),
    }


@pytest.mark.parametrize("kind", seeds())
def test_nothing_but_a_data_error_leaves_the_decoder_whatever_the_bytes(kind, capfd):
    rng, data, refused = random.Random(kind), seeds()[kind], 0
    assert decode(data).dtype == np.uint8

    for _ in range(170):
        try:
            result = decode(mutated(data, rng))
            assert result.dtype == np.uint8 and result.ndim == 3 and result.shape[2] == 3
        except DataError:
            refused += 1
    assert refused > 10  # the changes do reach what counts
    if sys.platform == "linux":
        assert capfd.readouterr().err == ""  # of the libraries in C


@pytest.mark.slow
def test_many_mutated_images_leave_the_decoder_as_images_or_data_errors_in_time():
    """VIT_MUTATIONS of them; each ends within 2 s, and the check before the first step says the same."""
    rng, kinds, count = (
        random.Random(1),
        list(seeds().values()),
        int(os.environ.get("VIT_MUTATIONS", "20000")),
    )
    num_refused, slowest_s = 0, 0.0
    for number in range(count):
        data, began_at = mutated(kinds[number % len(kinds)], rng), time.process_time()
        is_whole = is_accepted(lambda data, **place: decoding.decode(data, **place), data)
        slowest_s = max(slowest_s, time.process_time() - began_at)
        assert is_accepted(decoding.check, data) == is_whole, data
        num_refused += not is_whole
    print(f"{count:,} mutated images: {num_refused:,} refused, the slowest in {slowest_s:.2f} s")
    assert slowest_s < 2 and count // 20 < num_refused < count


def test_of_every_damaged_jpeg_the_pixels_are_those_of_pillow_or_it_is_refused():
    rng, data = random.Random(0), encoded(picture(), "JPEG")
    verdicts = []
    for _ in range(200):
        damaged = mutated(data, rng)
        try:
            expected = np.array(Image.open(io.BytesIO(damaged), formats=["JPEG"]).convert("RGB"))
        except Exception:
            expected = None
        try:
            result = decode(damaged)
        except DataError:
            result = None
        if result is not None:
            assert np.array_equal(result, expected)
        assert is_accepted(decoding.check, damaged) == (result is not None)
        verdicts.append(result is not None)
    assert 20 < sum(verdicts) < 180


def is_accepted(function, data: bytes) -> bool:
    try:
        function(data, where=str, row=0)
    except DataError:
        return False
    return True


@pytest.mark.skipif(decoding.simplejpeg is None, reason="Pillow does not tell of missing data")
@pytest.mark.parametrize("kind", ["plain", "grey", "progressive", "turned", "cmyk"])
def test_a_jpeg_that_lacks_data_is_refused_by_check_and_decoder_whatever_follows(kind):
    """Pillow fills what is missing with grey."""
    exif = Image.Exif()
    exif[0x0112] = 6
    options = {"progressive": {"progressive": True}, "turned": {"exif": exif}}.get(kind, {})
    modes = {"grey": "L", "cmyk": "CMYK"}
    data = encoded(picture(160, 120).convert(modes.get(kind, "RGB")), "JPEG", quality=90, **options)
    begin = data.index(b"\xff\xda") + 40

    for function in (decoding.check, decoding.decode):
        assert is_accepted(function, data)
        for at in range(begin, len(data) - 200, max(1, (len(data) - begin) // 25)):
            assert not is_accepted(function, data[:at] + decoding.JPEG_END), at


def test_a_name_ending_does_not_make_a_image(tmp_path):
    file = Path(tmp_path, "cat.jpg")
    file.write_text("no cat here")

    with pytest.raises(DataError, match=r"cat\.jpg"):
        decoding.decode(file.read_bytes(), where=lambda row: str(file), row=0)


def test_a_jpeg_of_scans_without_end_is_refused_at_once():
    """A third of a megabyte of empty scans would be decoded for twenty seconds."""
    data = encoded(Image.new("L", (9_000, 9_000)), "JPEG", progressive=True)
    begin = data.rindex(b"\xff\xda")
    scan = data[begin : data.rindex(decoding.JPEG_END)]
    many = data[:begin] + scan * 40 + decoding.JPEG_END

    for function in (decoding.check, decoding.decode):
        with pytest.raises(DataError, match="scans exceeds the decode limit"):
            function(many, where=str, row=0)


@pytest.mark.parametrize("kind", seeds())
def test_a_large_image_is_converted_in_strips_to_the_same_pixels(kind, monkeypatch):
    """Whole, 88 megapixels of one bit would take 950 MB."""
    whole = decode(seeds()[kind])
    monkeypatch.setattr(decoding, "STRIP_PIXELS", 3 * whole.shape[1])

    assert np.array_equal(decode(seeds()[kind]), whole)
