"""Decoding of image files to RGB pixels, as a viewer shows them; files are untrusted.

Pillow is the reference and reads every format; simplejpeg gives the same JPEG pixels (libjpeg-turbo on both
sides) in about four fifths of the time. A plain JPEG can be opened without being decoded, so that a crop is
drawn before its pixels are made.
"""

import ctypes
import io
import struct
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, features

from vitcli.errors import DataError, is_out_of_memory, reason_of

try:
    import simplejpeg
except ImportError:  # no wheel for this platform or Python: slower, the same pixels
    simplejpeg = None

RULES = 1  # to be raised when `decode` gives other pixels for any file: part of the key of cached ones
# Never EPS (it starts Ghostscript), FITS or PDF-like formats.
FORMATS: tuple[str, ...] = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
JPEG_SUFFIXES = {".jpg", ".jpeg", ".jpe", ".jfif"}
IMAGE_SUFFIXES = JPEG_SUFFIXES | {".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
HEIC_SUFFIXES = {".heic", ".heif"}
PHOTOGRAPH_SUFFIXES = HEIC_SUFFIXES | {
    ".avif"
}  # not read everywhere; phones and messengers name JPEGs so, too
HEIC_ADVICE = "HEIC: install pillow-heif, or convert"
HEIC_BRANDS = (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1")  # in bytes 8 to 12 of a file
STRIP_PIXELS = 2**22  # that are converted at a time
MAX_PIXELS = 2**30 // 4 // 3  # about 89 million, as of Pillow, which only warns up to twice that
MAX_SIDE = 65_535  # a JPEG's; a damaged header may claim millions by eleven, which take seconds
JPEG_BEGIN, JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
BEGINNINGS = (JPEG_BEGIN, b"\x89PNG", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"RIFF")  # of FORMATS; WebP is RIFF
SEGMENT, FRAME = struct.Struct(">HH"), struct.Struct(">BHHB")  # marker and length; bits, sides, components
SCAN, SCAN_BEGIN = 0xFFDA, b"\xff\xda"
MOST_SCANNED_PIXELS = 2**31  # over all scans of a JPEG
# Frames, and how many rows further down they are looked at: the next sample of a colour, which stands for up
# to four rows; in a progressive image that lacks its last scans also the next two blocks.
REACH = {0xFFC0: 8, 0xFFC1: 8, 0xFFC2: 72}
# Tables, comments, JFIF and Adobe headers: segments that say nothing on how a plain JPEG is to be shown.
PLAIN_SEGMENTS = frozenset((0xFFC4, 0xFFDB, 0xFFDD, 0xFFE0, 0xFFEC, 0xFFED, 0xFFEE, 0xFFFE))
COLOUR_PROFILE, COLOUR_PROFILE_NAME = 0xFFE2, b"ICC_PROFILE\0"
# Of libjpeg's warnings those of missing or broken data, which decoders fill with grey. Stray bytes, odd
# parameters of a scan and unknown colour transforms are harmless, and viewers show such images.
DAMAGE = ("premature end", "bad huffman code", "bad arithmetic code", "instead of rst",
          "inconsistent progression")  # fmt: skip
LEAST_SHRINKING = 2  # the decoder takes longer for less
WORTH_A_CUT = 0.95  # of the height; above it the copy of the file costs as much as it saves
TRANSPOSED = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

Image.init()  # once, before threads do
if features.check("avif"):
    FORMATS, IMAGE_SUFFIXES = (*FORMATS, "AVIF"), IMAGE_SUFFIXES | {".avif"}
with suppress(ImportError):  # photographs of iPhones, where it is installed
    import pillow_heif

    pillow_heif.register_heif_opener()
    FORMATS, IMAGE_SUFFIXES = (*FORMATS, "HEIF"), IMAGE_SUFFIXES | HEIC_SUFFIXES
with suppress(OSError, AttributeError):  # libtiff prints what is broken; silenced on Linux
    maps = Path("/proc/self/maps").read_text().splitlines()
    for place in {line.split()[-1] for line in maps if "libtiff" in line}:
        ctypes.CDLL(place).TIFFSetErrorHandler(None)
        ctypes.CDLL(place).TIFFSetWarningHandler(None)
warnings.filterwarnings("ignore", module=r"PIL\.")  # about odd metadata; what cannot be decoded raises


@dataclass(frozen=True, slots=True)
class Jpeg:
    """A JPEG whose header is read: its size is known, and its pixels are decoded when they are needed.

    Attributes:
        shape: height, width and 3, as of the array that `decode` returns.
        height_at: where the header says the height.
        reach: rows below a row whose samples may count in its pixels.
        where, row: as of `decode`.
    """

    data: bytes
    shape: tuple[int, int, int]
    height_at: int
    reach: int
    where: Callable[[int], str]
    row: int

    def decode(self, least_width: int = 0) -> np.ndarray:
        """Return (H, W, 3) uint8 RGB; DataError as `decode`.

        Args:
            least_width: let the decoder shrink the image, to half its sides or less and at least this width;
                it transforms fewer frequencies, and so gives other pixels than a resize. 0 for none of that.
        """
        try:
            return simplejpeg.decode_jpeg(self.data, "RGB", min_width=least_width, min_factor=LEAST_SHRINKING)
        except Exception:  # of damage, or of what viewers ignore
            return _decode_checked(self.data, where=self.where, row=self.row)

    def decode_rows(self, num_rows: int, least_width: int = 0) -> np.ndarray:
        """Return the first `num_rows` rows at least, the same pixels as `decode`; DataError likewise.

        A JPEG is stored from the top, so what lies below a crop need not be decoded: in a copy of the header
        the image ends some rows below the crop, beyond the reach of the interpolation of the colours. The
        decoder then finds more data than it expects and warns, as it does of damage; an image without its
        end is decoded whole, and so refused.
        """
        height = num_rows + self.reach
        if height >= WORTH_A_CUT * self.shape[0] or not self.data.endswith(JPEG_END):
            return self.decode(least_width)
        data, at = self.data, self.height_at
        shorter = data[:at] + height.to_bytes(2, "big") + data[at + 2 :]
        try:
            return simplejpeg.decode_jpeg(
                shorter, "RGB", min_width=least_width, min_factor=LEAST_SHRINKING, strict=False
            )
        except Exception:
            return self.decode(least_width)


def open_image(data: bytes, *, where: Callable[[int], str], row: int) -> Jpeg | np.ndarray:
    """Return a plain JPEG undecoded, any other image decoded; arguments and errors as of `decode`."""
    if simplejpeg and (frame := _plain_frame(data)):
        shape, height_at, reach = frame
        return Jpeg(data, shape, height_at, reach, where, row)
    return _decode_checked(data, where=where, row=row)


def _plain_frame(data: bytes) -> tuple[tuple[int, int, int], int, int] | None:
    """Return `shape`, `height_at` and `reach` of a `Jpeg`, if it is shown as it is stored.

    It is of 8-bit grey or colour and has no metadata; None means that Pillow has to look, at an orientation,
    several images in one file, CMYK, damage. Reading the few segments before the image takes a tenth of the
    time that Pillow needs to open it.
    """
    if not data.startswith(JPEG_BEGIN):
        return None
    frame, at = None, 2
    try:
        while True:
            marker, length = SEGMENT.unpack_from(data, at)
            if marker == SCAN:
                return frame
            if marker in REACH and frame is None:
                bits, height, width, components = FRAME.unpack_from(data, at + 4)
                if bits != 8 or components not in (1, 3) or not 0 < height * width <= MAX_PIXELS:
                    return None
                if REACH[marker] == 72 and _takes_too_long(data, height * width):
                    return None
                frame = (height, width, 3), at + 5, REACH[marker]
            elif marker not in PLAIN_SEGMENTS and not (
                marker == COLOUR_PROFILE and data.startswith(COLOUR_PROFILE_NAME, at + 4)
            ):
                return None
            at += 2 + length
    except struct.error:  # cut off
        return None


def decode(data: bytes, *, where: Callable[[int], str], row: int) -> np.ndarray:
    """Decode one image to (H, W, 3) uint8 RGB.

    The EXIF orientation is applied, transparency is composited on white, 16-bit grey becomes value / 257, of
    an animation the first frame is taken, and CMYK becomes RGB. Colour profiles are not applied.

    Args:
        data: the file's bytes.
        where, row: `where(row)` names the image in an error.

    Raises:
        DataError: the bytes are not a whole image of a known format, or it is larger than 89 million pixels,
            or than 65,535 on a side.
    """
    image = open_image(data, where=where, row=row)
    return image.decode() if isinstance(image, Jpeg) else image


def _decode_checked(data: bytes, *, where: Callable[[int], str], row: int) -> np.ndarray:
    """Decode with Pillow as the judge; see `decode`."""
    try:
        return _decode(data)
    except Exception as error:  # decoders raise seven families of exceptions
        if is_out_of_memory(error):  # a whole image must not be left out for that
            raise
        reason = reason_of(error)
        if "cannot identify image file" in reason:
            reason = f"not a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file"
            reason = HEIC_ADVICE if data[8:12] in HEIC_BRANDS else reason
        raise DataError(
            f"an image cannot be decoded: {reason[:120]}",
            where=where(row),
            fix="replace or remove it, or leave such images out with --skip-bad",
        ) from error


def check(data: bytes, *, where: Callable[[int], str], row: int) -> None:
    """Refuse what `decode` would refuse, for JPEGs at about half of its cost."""
    if simplejpeg and _plain_frame(data):
        with suppress(Exception):
            _read_all_bits(data, "RGB")
            return
    decode(data, where=where, row=row)


def _read_all_bits(data: bytes, colours: str) -> None:
    """Raise what simplejpeg says of damage, in less time than decoding: few frequencies are transformed."""
    simplejpeg.decode_jpeg(data, colours, min_width=1, min_height=1, min_factor=8)


def decoded_bytes(data: bytes) -> int:
    """Return the bytes that an image takes once it is decoded, by its header.

    Raises:
        ValueError: it has no readable header, or is too large.
    """
    try:
        image = _open(data)
    except Exception as error:  # of seven families, as of `decode`
        raise ValueError(reason_of(error)) from error
    return image.width * image.height * 3


def jpeg_version() -> str:
    """Return the names and versions of the JPEG decoders."""
    pillows = features.version("libjpeg_turbo") or features.version("jpg")
    return f"Pillow's {pillows}" + (f", simplejpeg {simplejpeg.__version__}" if simplejpeg else "")


def _open(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data), formats=FORMATS)
    num_pixels = image.width * image.height
    if num_pixels > MAX_PIXELS:
        raise ValueError(f"{image.width}x{image.height} pixels are more than {MAX_PIXELS:,}")
    if max(image.size) > MAX_SIDE:
        raise ValueError(f"a side of {max(image.size):,} pixels is more than {MAX_SIDE:,}")
    if image.format in ("JPEG", "MPO") and _takes_too_long(data, num_pixels):
        raise ValueError(f"progressive JPEG with {data.count(SCAN_BEGIN)} scans exceeds the decode limit")
    return image


def _takes_too_long(data: bytes, num_pixels: int) -> bool:
    """Return True for a progressive JPEG whose scans, of usually ten, would take more than some seconds."""
    return data.count(SCAN_BEGIN) * num_pixels > MOST_SCANNED_PIXELS


def _decode(data: bytes) -> np.ndarray:
    image = _open(data)
    if simplejpeg and image.format in ("JPEG", "MPO"):
        is_shown_as_stored = image.mode in ("RGB", "L") and _orientation(image) == 1
        colours = "CMYK" if image.mode == "CMYK" else "RGB"
        try:
            if is_shown_as_stored:
                return simplejpeg.decode_jpeg(data, colours)
            _read_all_bits(data, colours)
        except ValueError as error:
            if any(words in str(error).lower() for words in DAMAGE):
                raise
    return to_rgb(image)


def to_rgb(image: Image.Image) -> np.ndarray:
    """Convert an image opened by Pillow to (H, W, 3) uint8; ValueError if its values have no known range."""
    image.load()
    if (orientation := _orientation(image)) != 1:  # after loading, for Pillow rotates a TIFF itself
        image = image.transpose(TRANSPOSED[orientation])
    width, height = image.size
    pixels_HWC = np.empty((height, width, 3), np.uint8)
    num_rows = max(1, STRIP_PIXELS // width)  # a large image would be in memory three times
    for top in range(0, height, num_rows):
        bottom = min(top + num_rows, height)
        strip = image if num_rows >= height else image.crop((0, top, width, bottom))
        pixels_HWC[top:bottom] = np.asarray(_as_rgb(strip))
    return pixels_HWC


def _orientation(image: Image.Image) -> int:
    try:
        orientation = image.getexif().get(0x0112, 1)
    except MemoryError:
        raise
    except Exception:  # broken metadata does not keep a viewer from showing the image
        return 1
    return orientation if orientation in TRANSPOSED else 1


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        return _from_16_bits(image)
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    if image.mode == "F":
        raise ValueError("floating-point values without a known range")
    return image.convert("RGB")


def _from_16_bits(image: Image.Image) -> Image.Image:
    values_HW = np.asarray(image).astype(np.int64)
    if values_HW.min() < 0 or values_HW.max() > 65535:
        raise ValueError("32-bit values without a known range")
    if "transparency" in image.info:  # a PNG may name one transparent value
        values_HW[values_HW == image.info["transparency"]] = 65535
    return Image.fromarray(((values_HW + 128) // 257).astype(np.uint8)).convert("RGB")
