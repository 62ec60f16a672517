"""Every n-th frame of video files as an unlabelled split, decoded in order; PyAV is an optional package."""

import glob
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from vitcli.data.decoding import MAX_PIXELS
from vitcli.data.sources.folders import suffix_of
from vitcli.data.split import Split
from vitcli.errors import DataError, MachineError, pip_install, reason_of
from vitcli.io.files import open_regular
from vitcli.output.text import first_few

VIDEO_SUFFIXES = frozenset((".mp4", ".m4v", ".mov", ".mkv", ".avi", ".webm", ".mpg", ".mpeg", ".wmv", ".3gp"))
EVERY = 30  # about a second
# FFmpeg reads the given bytes: a playlist that calls itself a video opens no other file or address.
OPTIONS = {"protocol_whitelist": "none"}
DECODER_OPTIONS = {"max_pixels": str(MAX_PIXELS)}  # each frame may have a size of its own
MOST_PASSED = 64  # frames that were decoded before others that are asked for
CUT = 0.9  # of the frames that a video claims; a video without its end has fewer


def videos_of(names: Sequence[str]) -> list[str]:
    """Return the videos that names and globs stand for, each once; none if none of them does.

    Raises:
        DataError: there are other files, too.
    """
    globs = (name if Path(name).exists() else glob.glob(name, recursive=True) for name in names)
    files = [file for found in globs for file in ([found] if isinstance(found, str) else sorted(found))]
    videos = [file for file in dict.fromkeys(files) if suffix_of(file) in VIDEO_SUFFIXES]
    others = [file for file in files if file not in videos]
    if videos and others:
        raise DataError(
            f"videos and other files together: {first_few(videos)}; {first_few(others)}",
            where="IMAGES",
            fix="name videos alone, then the images in a command of their own",
        )
    return videos


@dataclass
class Video:
    """A video file, read from its beginning on; several threads may ask for frames.

    Attributes:
        every: which frames are read: 0, `every`, 2 `every`, ...
        num_frames: of these.
        rate: all frames in a second, 0.0 if the file does not tell.
        note: on a video that lacks its end; None for a whole one.
    """

    file: str
    every: int
    num_frames: int
    rate: float
    note: str | None = None
    _lock: Lock = field(default_factory=Lock)
    _frames: Iterator[np.ndarray] | None = None
    _next: int = 0
    _passed: dict[int, np.ndarray] = field(default_factory=dict)
    _end: str = ""  # why there is no frame from `_next` on

    def frame(self, number: int) -> np.ndarray:
        """Return frame `number` of those that are read, (H, W, 3) uint8.

        Raises:
            DataError: the file is damaged there, or ends before.
        """
        with self._lock:
            if number not in self._passed and number < self._next:  # asked for again
                self._frames, self._next = None, 0
            if self._frames is None:
                self._frames, self._passed = self._decoded(), {}
            while number not in self._passed:
                frame = next(self._frames, None)
                if frame is None:
                    raise _damaged(self.where_is(number), self._end)
                self._passed[self._next] = frame
                self._next += 1
                if len(self._passed) > MOST_PASSED:
                    del self._passed[min(self._passed)]
            return self._passed.pop(number)

    def where_is(self, number: int) -> str:
        index = number * self.every
        seconds = f" at {index / self.rate:.1f} s" if self.rate else ""
        return f"{self.file}, frame {index}{seconds}"

    def _decoded(self) -> Iterator[np.ndarray]:
        """Yield the frames up to the first that cannot be decoded."""
        av, self._end = _av(), "the video ends before this frame"
        try:
            with open_regular(self.file) as file, av.open(file, options=OPTIONS) as container:
                container.streams.video[0].codec_context.options = DECODER_OPTIONS
                for index, frame in enumerate(container.decode(video=0)):
                    if index % self.every == 0:  # as a player shows it: phones store how they were held
                        pixels_HWC = frame.to_ndarray(format="rgb24")
                        quarters = round(frame.rotation / 90)  # counterclockwise
                        yield np.ascontiguousarray(np.rot90(pixels_HWC, quarters))
        except (av.FFmpegError, OSError, ValueError) as error:
            refused = f"frame {self._next * self.every} is refused ({reason_of(error)})"
            self._end = f"{refused}: it is damaged, or has more than {MAX_PIXELS:,} pixels"


def open_video(file: str, *, every: int) -> Video:
    """Count the frames of a video without decoding them.

    Raises:
        MachineError: PyAV is not installed.
        DataError: it is not a video, or has no frames.
    """
    av = _av()
    try:
        with open_regular(file) as stream_of_bytes, av.open(stream_of_bytes, options=OPTIONS) as container:
            if not container.streams.video:
                raise _damaged(file, "it has no video stream, perhaps sound alone")
            stream = container.streams.video[0]
            if stream.width * stream.height > MAX_PIXELS:
                raise _damaged(file, f"its frames have {stream.width} x {stream.height} pixels")
            rate = float(stream.average_rate or 0)
            claimed = stream.frames or (container.duration or 0) / av.time_base * rate
            count = sum(1 for packet in container.demux(stream) if packet.size)
    except (av.FFmpegError, ValueError) as error:
        raise _damaged(file, reason_of(error)) from error
    except OSError as error:
        raise DataError(
            f"a video cannot be opened: {error.strerror}", where=file, fix="name a file that can be read"
        ) from error
    if not count:
        raise _damaged(file, "it has no frame")
    note = None
    if count < CUT * claimed:
        note = f"{file} lacks its end: {count:,} of about {round(claimed):,} frames are there"
    return Video(file, every, math.ceil(count / every), rate, note)


def frames_of(files: Sequence[str], *, every: int) -> Split:
    """Return every `every`-th frame of all videos as a split without labels.

    Raises:
        MachineError, DataError: see `open_video`.
    """
    videos = [open_video(file, every=every) for file in files]
    ends_V = np.cumsum([video.num_frames for video in videos])

    def place(row: int) -> tuple[Video, int]:
        which = int(np.searchsorted(ends_V, row, side="right"))
        return videos[which], row - int(ends_V[which]) + videos[which].num_frames

    def read_row(row: int) -> tuple[np.ndarray, int]:
        video, number = place(row)
        return video.frame(number), 0

    def where_is(row: int) -> str:
        video, number = place(row)
        return video.where_is(number)

    return Split(
        name="the frames of the given videos",
        num_examples=int(ends_V[-1]),
        class_names=None,
        num_classes=1,
        read_row=read_row,
        read_labels=lambda: np.zeros(int(ends_V[-1]), dtype=np.int64),
        where_is=where_is,
        has_labels=False,
        notes=tuple(video.note for video in videos if video.note),
    )


def _av() -> Any:
    try:
        import av
    except ImportError as error:
        fix = f"{pip_install('vitcli[video]')}, or extract the frames as images"
        raise MachineError(
            "videos are read by PyAV, which is not installed", where="IMAGES", fix=fix
        ) from error
    return av


def _damaged(where: str, reason: str) -> DataError:
    fix = "check that it plays; ffmpeg -i IN -c copy OUT.mp4 often repairs it"
    return DataError(f"a video cannot be read: {reason}", where=where, fix=fix)
