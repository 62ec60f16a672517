"""Frames of videos, against the pixels that were encoded."""

import builtins
import io
import os
import struct
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import run
from vitcli.data import video as video_module
from vitcli.data.decoding import MAX_PIXELS
from vitcli.data.video import frames_of, open_video, videos_of
from vitcli.errors import VitError

av = pytest.importorskip("av")


def write(path: Path, *, num_frames: int = 20, rate: int = 10) -> Path:
    """Write frames whose grey tells their number: 10, 20, ..."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(num_frames):
            pixels = np.full((48, 64, 3), 10 * (number + 1), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return path


@pytest.fixture(scope="module")
def video(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("video") / "a.mp4")


@pytest.mark.parametrize("every", [1, 3, 7, 19, 20, 50])
def test_every_nth_frame_has_its_pixels_in_any_order(video, every):
    split = frames_of([str(video), str(video)], every=every)
    numbers = [*range(0, 20, every)] * 2
    assert len(split) == len(numbers)
    order = np.random.default_rng(every).permutation(len(split))
    for row in [*range(len(split)), *order[:4]]:
        pixels, _ = split.read_row(int(row))
        assert pixels.shape == (48, 64, 3)
        assert pixels.dtype == np.uint8
        assert abs(pixels.mean() - 10 * (numbers[row] + 1)) < 5  # of ten between frames
    assert split.where_is(1) == f"{video}, frame {numbers[1]} at {numbers[1] / 10:.1f} s"


def write_jpegs(path: Path, *sizes: tuple[int, int]) -> Path:
    """Write a Matroska file of JPEGs, of which each may have a size of its own."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=10)
        stream.width, stream.height, stream.pix_fmt = *sizes[0], "yuvj420p"
        for number, size in enumerate(sizes):
            buffer = io.BytesIO()
            Image.new("RGB", size, (10 * number, 0, 0)).save(buffer, "JPEG")
            packet = av.Packet(buffer.getvalue())
            packet.stream, packet.pts, packet.dts, packet.time_base = stream, number, number, Fraction(1, 10)
            container.mux(packet)
    return path


def test_a_frame_larger_than_an_image_may_be_is_refused_undecoded(tmp_path, monkeypatch):
    assert video_module.DECODER_OPTIONS["max_pixels"] == str(MAX_PIXELS)
    monkeypatch.setitem(video_module.DECODER_OPTIONS, "max_pixels", "20000")
    file = write_jpegs(tmp_path / "a.mkv", (64, 48), (128, 128), (192, 128))
    split = frames_of([str(file)], every=1)

    assert [split.read_row(row)[0].shape for row in (0, 1)] == [(48, 64, 3), (128, 128, 3)]
    with pytest.raises(VitError, match="a video cannot be read") as refused:
        split.read_row(2)
    assert refused.value.where == f"{file}, frame 2 at 0.2 s"
    reason = "frame 2 is refused .*: it is damaged, or has more than 89,478,485 pixels"
    with pytest.raises(VitError, match=reason):  # also when the row is read again
        split.read_row(2)


def test_a_video_that_lacks_its_end_is_read_with_a_note(tmp_path):
    file = write_jpegs(tmp_path / "a.mkv", *[(64, 48)] * 200)
    assert frames_of([str(file)], every=1).lines == []
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])

    split = frames_of([str(file)], every=1)
    assert split.lines == [f"note: {file} lacks its end: {len(split)} of about 200 frames are there"]
    assert 80 < len(split) < 110


def test_of_frames_that_nobody_asks_for_few_are_kept(video, monkeypatch):
    monkeypatch.setattr("vitcli.data.video.MOST_PASSED", 4)
    opened = open_video(str(video), every=1)
    shown = [opened.frame(number).mean() for number in (19, 17, 2)]

    assert shown == pytest.approx([200, 180, 30], abs=5)
    assert len(opened._passed) <= 4


# The matrix of a track (QuickTime File Format, "tkhd"): a, b and c, d turn the axes. A phone held upright
# writes "clockwise".
TURNS = {"as it is": (1, 0, 0, 1), "clockwise": (0, 1, -1, 0), "over": (-1, 0, 0, -1), "back": (0, -1, 1, 0)}


@pytest.mark.parametrize(("turn", "quarters"), zip(TURNS, (0, -1, 2, 1), strict=True))
def test_a_video_of_a_phone_is_shown_upright(tmp_path, turn, quarters):
    pixels = np.zeros((48, 64, 3), np.uint8)
    pixels[:24, :32] = 250  # the corner of the sensor
    file = tmp_path / "a.mp4"
    with av.open(str(file), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    content = bytearray(file.read_bytes())
    at = content.index(b"tkhd") + 4 + 40  # after version, times, volume
    a, b, c, d = (number << 16 for number in TURNS[turn])
    struct.pack_into(">9i", content, at, a, b, 0, c, d, 0, 0, 0, 1 << 30)
    file.write_bytes(content)

    (shown, _) = frames_of([str(file)], every=1).read_row(0)

    expected = np.rot90(pixels, quarters)
    assert shown.shape == expected.shape and np.abs(shown.astype(int) - expected).mean() < 8


def test_a_playlist_that_calls_itself_a_video_opens_no_other_file(video):
    playlist = video.with_name("list.mp4")
    playlist.write_text(f"ffconcat version 1.0\nfile {video.name}\n")
    with pytest.raises(VitError, match="a video cannot be read"):
        frames_of([str(playlist)], every=1)


def damaged(kind: str, video: Path, folder: Path) -> list[object]:
    """Return the arguments of vit predict for a kind of bad input."""
    file = folder / "bad.mp4"
    match kind:
        case "empty":
            file.write_bytes(b"")
        case "text":
            file.write_text("no video")
        case "cut":
            file.write_bytes(video.read_bytes()[:600])
        case "image":
            file.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64))
        case "sound alone":
            with av.open(str(file), "w") as container:
                stream = container.add_stream("aac", rate=8000)
                frame = av.AudioFrame.from_ndarray(
                    np.zeros((1, 1024), np.float32), format="fltp", layout="mono"
                )
                frame.rate = 8000
                container.mux(stream.encode(frame))
                container.mux(stream.encode())
        case "no frame":
            write(file, num_frames=0)
        case "folder":
            file.mkdir()
        case "missing":
            pass
        case "pipe":
            os.mkfifo(file)
        case "with an image":
            (folder / "1.png").touch()
            return [video, folder / "1.png"]
        case "every of no video":
            (folder / "1.png").touch()
            return [folder / "1.png", "--every", 3]
        case "every 0":
            return [video, "--every", 0]
        case "sorted":
            return [video, "--sort-into", folder / "out"]
        case "threshold":
            return [video, "--threshold", 1.5]
    return [file]


KINDS = ["empty", "text", "cut", "image", "sound alone", "no frame", "folder", "missing", "pipe",
         "with an image", "every of no video", "every 0", "sorted", "threshold"]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_bad_input_is_refused_in_three_lines(video, tmp_path, kind):
    outcome = run("predict", "--ckpt", "demo", *damaged(kind, video, tmp_path), "--quiet")
    assert outcome.code in (2, 3), outcome
    assert "Traceback" not in outcome.err
    assert "where:" in outcome.err or "Usage" in outcome.err or "--" in outcome.err
    assert not (tmp_path / "out").exists()


def test_without_its_package_the_error_names_the_extra(video, monkeypatch):
    import_module = builtins.__import__

    def without_av(name, *arguments):
        if name == "av":
            raise ImportError(name)
        return import_module(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without_av)
    with pytest.raises(VitError, match="PyAV, which is not installed") as refused:
        frames_of([str(video)], every=1)
    assert "pip install 'vitcli[video]'" in refused.value.fix


def test_globs_name_videos_and_nothing_is_named_twice(video):
    assert videos_of([str(video.parent / "*a.mp4"), str(video)]) == [str(video)]
    assert videos_of(["*.png", "photos/"]) == []
