"""Whatever vit writes of an image, found by its bytes in the folder of a classifier and in the user's cache.

    file        two pieces of the encoded file
    pixels      a piece of the decoded image, and of what the network is given
    features    a piece of its features, as float32 and as the integers of the closed form
    digest      of its content: as a number, in base64 as weights keep it
    thumbnail   of a page, a contact sheet or a golden file, in base64
    name        of the file, in the folder of the classifier alone

A piece is long enough that no other image has it by chance. It is taken from the last quarter, since files of
one kind begin with the same tables, where its bytes differ most: a white border does not count. All pieces of
all images are looked for in one pass over a file: two bytes of each choose the places at which eight are
compared, and then all.
"""

import base64
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitcli.cache import user_cache
from vitcli.conversion.golden import png_of, shrunk
from vitcli.data import loader
from vitcli.data.seen_images import DIGEST_BYTES, digests_of
from vitcli.data.split import Split
from vitcli.evaluation.contact_sheet import SIDE
from vitcli.features.statistics import quantised
from vitcli.io.files import open_regular
from vitcli.output.html import thumbnail

PIECE, LEAST_PIECE = 48, 8  # bytes
CHUNK = 2**24  # bytes of a file that are searched at once
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".svg", ".pdf")  # drawn from images; no piece of them is known
CACHES = ("decoded", "features", "shards")


@dataclass(frozen=True, order=True)
class Trace:
    """Bytes of an image in a file."""

    image: str
    kind: str
    path: str


@dataclass(frozen=True)
class Found:
    """What a search has found.

    Attributes:
        traces: each once.
        unsearched: what may show an image and cannot be searched: figures, and images of too few colours.
    """

    traces: tuple[Trace, ...]
    unsearched: tuple[str, ...]
    num_files: int
    num_bytes: int


class Pieces:
    """The pieces of some images, and a search for all of them.

    Args:
        pieces: of each kind and image: (image, kind, bytes).

    Attributes:
        left_out: image and kind of those that are too short to be distinguished from other bytes.
    """

    def __init__(self, pieces: Sequence[tuple[str, str, bytes]]):
        self.pieces = [piece for piece in pieces if len(piece[2]) >= LEAST_PIECE]
        self.left_out = [f"{kind} of {image}" for image, kind, piece in pieces if len(piece) < LEAST_PIECE]
        # Of each the eight bytes to compare first, from the place whose first two are not zeros.
        self._starts = [_start_of(content) for _, _, content in self.pieces]
        keys = [content[at : at + 8] for at, (*_, content) in zip(self._starts, self.pieces, strict=True)]
        self._keys = np.frombuffer(b"".join(keys), dtype="<u8")
        self._is_first = np.zeros(2**16, dtype=bool)
        self._is_first[self._keys & 0xFFFF] = True

    def found_in(self, path: Path, *, names: bool) -> set[tuple[str, str]]:
        """Return image and kind of the pieces in a file; of names only if they count."""
        found: set[tuple[str, str]] = set()
        longest = max((len(content) for *_, content in self.pieces), default=0)
        with open_regular(path) as file:
            kept = b""
            while chunk := file.read(CHUNK):
                content = kept + chunk
                for number in self._matches(content):
                    image, kind, _ = self.pieces[number]
                    if names or kind != "name":
                        found.add((image, kind))
                kept = content[-longest:]
        return found

    def _matches(self, content: bytes) -> Iterator[int]:
        """Yield the numbers of the pieces in a chunk."""
        bytes_N = np.frombuffer(content, dtype=np.uint8)
        if len(bytes_N) < 8 or not bytes_N.any():  # a hole
            return
        pairs_N = bytes_N[:-7].astype(np.uint16) | bytes_N[1:-6].astype(np.uint16) << 8
        places = np.flatnonzero(self._is_first[pairs_N])
        eight_M8 = bytes_N[places[:, None] + np.arange(8)]
        hits = np.flatnonzero(np.isin(eight_M8.view("<u8")[:, 0], self._keys))
        for place in places[hits].tolist():
            for number in np.flatnonzero(self._keys == int.from_bytes(content[place : place + 8], "little")):
                start, piece = place - self._starts[number], self.pieces[number][2]
                if start >= 0 and content[start : start + len(piece)] == piece:
                    yield int(number)


def pieces_of(split: Split, taught: Any) -> Pieces:
    """Return the pieces of the images of a split.

    Args:
        taught: the `Taught` whose network and preprocessing count.
    """
    rows_N, features_ND, skipped = taught.features(split, "the images", np.arange(len(split)))
    preprocessing = taught.extractor.network.preprocessing
    pieces: list[tuple[str, str, bytes]] = []
    for row, digest, features_D in zip(rows_N.tolist(), digests_of(split, rows_N), features_ND, strict=True):
        image, encoded = split.where_is(row), split.image_of(row)
        whole_HWC = np.ascontiguousarray(loader.read_example(split, row)[0])
        given_HWC = np.ascontiguousarray(preprocessing(whole_HWC))
        number = int(digest).to_bytes(8, "little")
        texts = [thumbnail(whole_HWC), thumbnail(given_HWC), thumbnail(given_HWC, side=SIDE)]
        texts += [png_of(shrunk(whole_HWC)), png_of(given_HWC)]
        contents = {
            "file": [_telling(bytes(encoded))],
            "pixels": [_telling(whole_HWC.tobytes()), _telling(given_HWC.tobytes())],
            "features": [_telling(features_D.tobytes()), _telling(quantised(features_D[None]).tobytes())],
            "digest": [number, base64.b64encode(number[:DIGEST_BYTES])],
            "thumbnail": [_telling(text.encode()) for text in texts],
            "name": [_name_of(image)],
        }  # fmt: skip
        pieces += [(image, kind, piece) for kind, some in contents.items() for piece in some]
    return Pieces([*pieces, *((place, "everything", b"") for place in skipped)])


def search(pieces: Pieces, folder: Path) -> Found:
    """Look for pieces of images in a folder and in the user's cache."""
    traces, unsearched, num_files, num_bytes = set[Trace](), pieces.left_out.copy(), 0, 0
    for place in (folder, *map(user_cache.cache_folder, CACHES)):
        for path in _files_below(place):
            if place == folder and path.suffix.lower() in PICTURES:
                unsearched.append(str(path))
                continue
            found = pieces.found_in(path, names=place == folder)
            traces |= {Trace(image, kind, str(path)) for image, kind in found}
            num_files, num_bytes = num_files + 1, num_bytes + path.stat().st_size
    return Found(tuple(sorted(traces)), tuple(sorted(unsearched)), num_files, num_bytes)


def _files_below(folder: Path) -> Iterator[Path]:
    for inner, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(inner, name)
            if path.is_file() and not path.is_symlink() and path.suffix != ".lock":
                yield path


def _name_of(image: str) -> bytes:
    """Return the name of a file, with that of its folder where it is short."""
    path = Path(image)
    return (path.name if len(path.name) >= LEAST_PIECE else "/".join(path.parts[-2:])).encode()


def _telling(content: bytes) -> bytes:
    """Return the piece of the last quarter with the most different bytes; b"" where all have too few."""
    starts = np.linspace(len(content) * 3 // 4, max(0, len(content) - PIECE), 64).astype(int)
    pieces = [content[start : start + PIECE] for start in sorted({*starts.tolist()})]
    best = max(pieces, key=lambda piece: len({*piece}), default=b"")
    return best if len({*best}) >= LEAST_PIECE else b""


def _start_of(content: bytes) -> int:
    """Return the place in a piece of the eight bytes that are compared first."""
    places = range(len(content) - 7)
    return max(places, key=lambda at: (content[at : at + 2] != b"\0\0", len({*content[at : at + 8]})))
