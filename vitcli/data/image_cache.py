"""Decoded images that are kept: whole ones for training, prepared ones for evaluation, in memory or on disk.

It changes no pixel: what is kept is what decoding gave, under a key of the data, the decoders and, of
prepared images, the preprocessing. An image is decoded again as soon as its file has changed.
"""

import json
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

from vitcli.cache import row_store, user_cache
from vitcli.cache.row_store import RowStore
from vitcli.data import decoding, transforms
from vitcli.data.split import Label, Split
from vitcli.data.transforms import Preprocessing
from vitcli.distributed import launch
from vitcli.errors import DataError
from vitcli.output.text import bytes_text

MEMORY_FRACTION = 0.25  # of the free memory; beyond it even a file would be read from the disk each time
SAMPLED_ROWS = 32  # whose headers tell the size of all
MARGIN = 1.3  # on that estimate, for what may be stored
SLOW_S = 2.0  # seconds that writing may be behind decoding before it pauses
UNCHANGED = 1  # the stamp of images in memory whose source has none
NOT_TABLES = "streamed or too many"


class MemoryStore:
    """Decoded (H, W, 3) uint8 images by row in the memory of this process, for any number of threads.

    Attributes:
        is_full: whether an image had no room.
        problem: None; see `RowStore`.
    """

    problem: OSError | None = None
    is_full = False

    def __init__(self, limit_bytes: float):
        self.limit_bytes, self.added_bytes = limit_bytes, 0
        self._images: dict[int, tuple[int, np.ndarray]] = {}
        self._mutex = threading.Lock()

    @property
    def num_added(self) -> int:
        return len(self._images)

    def get(self, row: int, stamp: int) -> np.ndarray | None:
        """Return the image of a row, to be read only; None if it is not there with this stamp."""
        stored, pixels_HWC = self._images.get(row, (None, None))
        return pixels_HWC if stored == stamp else None

    def add(self, row: int, stamp: int, pixels_HWC: np.ndarray) -> bool:
        """Store the image of a row; return whether there was room."""
        with self._mutex:
            if self.added_bytes + pixels_HWC.nbytes > self.limit_bytes:
                self.is_full = True
                return False
            self.added_bytes += pixels_HWC.nbytes
        # A part of a larger array would keep all of it in memory.
        self._images[row] = stamp, pixels_HWC if pixels_HWC.base is None else pixels_HWC.copy()
        return True

    def close(self) -> None:
        """Do nothing; see `RowStore`."""


Store = RowStore | MemoryStore


class CachedRows:
    """The images of a split in a store.

    Args:
        rows_N: rows of the whole split, by which the store counts; None where they are the same.
        stamp_of: see `Split.stamp_of`.
    """

    def __init__(self, store: Store, rows_N: np.ndarray | None, stamp_of: Callable[[int], int | None]):
        self.store, self.rows_N, self.stamp_of = store, rows_N, stamp_of
        self._mutex = threading.Lock()
        self._behind_s = 0.0  # how much longer writing has taken than decoding

    def read(
        self,
        split: Split,
        row: int,
        make: Callable[[], tuple[np.ndarray, Label]],
        make_otherwise: Callable[[], tuple[Any, Label]] | None = None,
    ) -> tuple[Any, Label]:
        """Return the image and the label of a row; `make` makes both where the image is not kept yet.

        Args:
            make_otherwise: used in place of `make` where the image will not be kept.
        """
        source = row if self.rows_N is None else int(self.rows_N[row])
        stamp = self.stamp_of(source)  # before its file is read: a change meanwhile is then noticed
        image_HWC = None if stamp is None else self.store.get(source, stamp)
        if image_HWC is not None:
            return image_HWC, split.label_of(row)
        # On a disk that takes longer to write an image than to decode it again, only some are kept.
        will_be_kept = stamp is not None and not self.store.is_full and self._behind_s < SLOW_S
        began_at = time.perf_counter()
        image_HWC, label = make() if will_be_kept or make_otherwise is None else make_otherwise()
        made_at = time.perf_counter()
        if will_be_kept and stamp is not None:
            self.store.add(source, stamp, image_HWC)
        with self._mutex:
            self._behind_s = max(0.0, self._behind_s + time.perf_counter() - 2 * made_at + began_at)
        return image_HWC, label


@dataclass(frozen=True)
class SplitCache:
    """What is kept of a split's images.

    Attributes:
        decoded: whole images; None if they are not kept.
        prepared: by `Preprocessing.geometry`, images after it.
    """

    decoded: CachedRows | None = None
    prepared: dict[tuple, CachedRows] = field(default_factory=dict)


@dataclass(frozen=True)
class CachePlacement:
    """Where the images of a split are kept, and why not.

    Attributes:
        place: "memory", "disk" or "off".
        num_bytes: of all of them, an estimate.
        room_bytes: how much of them may be kept.
        reason: for people, if they are not kept.
    """

    place: str
    num_bytes: int = 0
    room_bytes: int = 0
    reason: str = ""

    def __str__(self) -> str:
        if self.place == "off":
            return f"not kept ({self.reason})"
        size = bytes_text(self.num_bytes)
        part = f"{bytes_text(self.room_bytes)} of {size}" if self.room_bytes < self.num_bytes else size
        return f"kept {PLACES[self.place]} ({part})"


PLACES = {"memory": "in memory", "disk": "on disk"}


class ImageCache:
    """The images that one command keeps, and the room they have.

    Args:
        mode: the recipe's data.cache.
        processes_here: processes of this command on this machine.
        has_siblings: whether processes that may not share memory read the same images.
        num_runs: how often the command repeats what it does with a split.
    """

    def __init__(self, mode: str, *, processes_here: int = 1, has_siblings: bool = False, num_runs: int = 1):
        self.mode, self.has_siblings, self.num_runs = mode, has_siblings or processes_here > 1, num_runs
        self.free_bytes = 0.0 if mode == "off" else launch.free_bytes() * MEMORY_FRACTION
        self.memory_left = self.free_bytes / processes_here
        self.placements: dict[str, CachePlacement] = {}  # by the name of a split
        self._stores: dict[str, tuple[Store, CachePlacement]] = {}
        if mode != "off":
            user_cache.asked_limit()  # refuses a limit that is none

    def attach(self, split: Split, *, visits: float, preprocessing: Preprocessing | None = None) -> Split:
        """Return the same split, whose images are kept once they are decoded, as far as that is worth it.

        Args:
            visits: how often each image is read in a run.
            preprocessing: keep images after it, for passes without augmentation.
        """
        if self.mode == "off" or not len(split):
            return split
        if split.is_large:
            self.placements.setdefault(split.name, CachePlacement("off", reason=NOT_TABLES))
            return split
        whole, rows_of = split.whole or (split, None)
        about = _about(whole, preprocessing)
        name = row_store.name_of(about)
        if name not in self._stores:
            store, placement = self._open(split, whole, about, visits=visits * self.num_runs)
            if store is None:
                self.placements.setdefault(split.name, placement)
                return split
            self._stores[name] = store, placement
        store, self.placements[split.name] = self._stores[name]
        rows_N = rows_of(np.arange(len(split))) if rows_of else None
        rows = CachedRows(store, rows_N, whole.stamp_of or (lambda row: UNCHANGED))
        before = split.cache or SplitCache()
        if preprocessing is None:
            return replace(split, cache=replace(before, decoded=rows))
        return replace(
            split, cache=replace(before, prepared={**before.prepared, preprocessing.geometry: rows})
        )

    def line(self) -> str | None:
        """Return one line on all splits, None if there is nothing to say."""
        if not self.placements or all(placement.reason == ONCE for placement in self.placements.values()):
            return None
        # Of "photos, split train" the split will do.
        lines = [f"{name.partition(', split ')[2] or name} {each}" for name, each in self.placements.items()]
        return f"decoded images (data.cache): {'; '.join(lines)}"

    def record(self) -> dict[str, Any]:
        """Return what is kept, for timing.jsonl."""
        return {name: asdict(placement) for name, placement in self.placements.items()}

    def num_added(self) -> int:
        """Return how many images this process has decoded and kept."""
        return sum(store.num_added for store, _ in self._stores.values())

    def problems(self) -> list[str]:
        """Return a line for each store that the disk ended."""
        errors = [store.problem for store, _ in self._stores.values() if store.problem]
        end = "the images that are not kept are decoded each time"
        return [f"decoded images are no longer kept, {error.strerror or error}; {end}" for error in errors]

    def close(self) -> None:
        """Unlock the stores; splits that were attached stay valid."""
        for store, _ in self._stores.values():
            store.close()

    def _open(
        self, split: Split, whole: Split, about: dict[str, Any], *, visits: float
    ) -> tuple[Store | None, CachePlacement]:
        """Open the store for a split in the first of the places that `_places` names."""
        bytes_each = _bytes_of_one(split, about)
        if bytes_each is None:
            return None, CachePlacement("off", reason="no image of the first ones can be read")
        need, of_whole = int(bytes_each * len(split)), bytes_each * len(whole) * MARGIN
        places, reason = self._places(whole, about, need, visits)
        store: row_store.RowStore | MemoryStore
        for place in places:
            try:
                if place == "disk":
                    room = int(min(user_cache.room_for_more(), of_whole))
                    store = row_store.open_cached("decoded", about, len(whole), limit_bytes=room)
                else:
                    room = int(min(self.memory_left, of_whole))
                    store = MemoryStore(room)
                    self.memory_left = max(0.0, self.memory_left - need)
                return store, CachePlacement(place, need, room)
            except OSError as error:
                reason = error.strerror or str(error)
        return None, CachePlacement("off", need, reason=reason)

    def _places(self, whole: Split, about: dict[str, Any], need: int, visits: float) -> tuple[list[str], str]:
        """Return the places to try in this order, and the reason if there is none."""
        has_stamps = whole.stamp_of is not None
        if self.mode == "ram":
            return ["memory"], ""
        if self.mode == "disk":
            return (["disk"], "") if has_stamps else ([], "its source does not say when it changes")
        if has_stamps and row_store.is_stored("decoded", about):
            return ["disk"], ""
        if visits < 2:
            return [], ONCE
        if need > self.free_bytes:
            return [], f"{bytes_text(need)} are more than {MEMORY_FRACTION:.0%} of the free memory"
        fits_memory = need <= self.memory_left
        fits_disk = has_stamps and need <= user_cache.room_for_more()
        if self.has_siblings:  # who share a file, and not their memory
            places = ["disk"] * fits_disk + ["memory"] * fits_memory
        else:
            places = ["memory"] * fits_memory
        return places, "no room"


ONCE = "read once"


def _about(whole: Split, preprocessing: Preprocessing | None) -> dict[str, Any]:
    """Return the key of a store: all that its pixels depend on."""
    decoders = {"rules": decoding.RULES, "pillow": version("pillow"), "jpeg": decoding.jpeg_version()}
    about = {"rows": len(whole), "fingerprint": whole.fingerprint, "decoders": decoders}
    if preprocessing is None:
        return {"name": f"{whole.name}, whole images", **about}
    height, width = preprocessing.image_size
    # Resizing may round differently in another version, or with other instructions of the processor.
    about["geometry"] = {
        "rules": transforms.RULES,
        "values": json.loads(json.dumps(preprocessing.geometry)),
        "torch": torch.__version__,
        "torchvision": version("torchvision"),
        "processor": [platform.machine(), torch.backends.cpu.get_cpu_capability()],
    }
    return {"name": f"{whole.name}, prepared to {height}x{width}", **about}


def _bytes_of_one(split: Split, about: dict[str, Any]) -> float | None:
    """Return the mean bytes of an image, estimated from the headers of some; None if none can be read."""
    if "geometry" in about:
        height, width = about["geometry"]["values"][0]
        return height * width * 3
    sizes = []
    for row in np.linspace(0, len(split) - 1, min(SAMPLED_ROWS, len(split))).astype(int):
        try:
            image = split.image_of(int(row))
            sizes.append(decoding.decoded_bytes(image) if isinstance(image, bytes) else image.nbytes)
        except (DataError, ValueError):
            continue
    return float(np.mean(sizes)) if sizes else None
