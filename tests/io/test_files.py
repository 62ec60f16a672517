"""Files of anyone: pipes are not waited for, endless and huge ones not read."""

import os
import tracemalloc

import pytest

from vitcli.io.files import MOST_BYTES, MOST_VALUES, open_regular, parse_json, read_regular


@pytest.fixture(params=["pipe", "endless", "folder", "huge", "itself", "nothing"])
def odd(request, tmp_path):
    path = tmp_path / "file"
    match request.param:
        case "pipe":
            os.mkfifo(path)
        case "endless":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case "huge":
            with path.open("wb") as file:
                file.truncate(2**40)
        case "itself":
            path.symlink_to(path)
        case "nothing":
            path.symlink_to(tmp_path / "elsewhere")
    return path


def test_what_is_no_readable_file_is_an_error_of_the_disk(odd):
    with pytest.raises(OSError) as raised:
        read_regular(odd)
    assert raised.value.strerror


def test_a_file_is_read_whole_also_by_a_link_and_when_it_does_not_say_its_size(tmp_path):
    (tmp_path / "file").write_bytes(b"words")
    (tmp_path / "link").symlink_to("file")

    assert [read_regular(tmp_path / name, 5) for name in ("file", "link")] == [b"words"] * 2
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_regular(tmp_path / "file", 4)
    if os.path.exists("/proc/version"):
        assert b"Linux" in read_regular("/proc/version")
        with pytest.raises(OSError, match="more than 3 bytes"):
            read_regular("/proc/version", 3)
    with open_regular(tmp_path / "file") as file:
        assert file.read() == b"words"


def test_a_small_file_is_read_with_little_memory(tmp_path):
    """1 GiB was asked for to read each image, which a limited address space does not have."""
    (tmp_path / "x").write_bytes(b"image")
    tracemalloc.start()
    try:
        assert read_regular(tmp_path / "x", MOST_BYTES) == b"image"
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_json_of_more_values_than_any_file_of_settings_is_refused_unparsed(monkeypatch):
    monkeypatch.setattr("json.loads", lambda *_, **__: pytest.fail("parsed"))
    for unit, marks in (("[[]],", 3), ('{"":{}},', 3), ("-9,", 1)):
        text = f"[{unit * (MOST_VALUES // marks + 1)}0]"

        for spelled in (text, text.encode()):
            with pytest.raises(ValueError, match="more than 2,000,000 values"):
                parse_json(spelled)


def test_json_is_parsed_as_json_does_and_too_deep_is_no_bug():
    assert parse_json(b'{"a": [1, 2.5, "x"]}') == {"a": [1, 2.5, "x"]}
    assert parse_json("[1]", parse_int=str) == ["1"]
    for wrong in ("[" * 100_000, b"{", ""):
        with pytest.raises(ValueError):
            parse_json(wrong)
