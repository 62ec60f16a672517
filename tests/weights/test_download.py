"""Downloads: whole, once, resumed and checked, or refused with nothing left behind."""

import base64
import errno
import hashlib
import json
import os
import threading
import time

import huggingface_hub
import pytest
import torch

from tests.http_server import Answer, Files, serving
from tests.weights.servers import COMMIT, network, npz_of, timm_files
from vitcli.errors import MachineError, WeightsError
from vitcli.output.progress import Progress
from vitcli.weights import download, names
from vitcli.weights.download import cached_path, fetch_address
from vitcli.weights.io import read_description, read_weights
from vitcli.weights.names import resolve


def test_offline_a_file_in_the_cache_is_read_and_no_other_is_fetched(server, monkeypatch):
    server.bucket |= {"b/x.npz": b"weights", "b/y.npz": b"others"}
    kept = fetch_address(f"{server.address}/b/x.npz", Progress(quiet=True))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    server.requests.clear()

    assert fetch_address(f"{server.address}/b/x.npz", Progress(quiet=True)) == kept
    with pytest.raises(WeightsError, match=r"y\.npz is not in the cache, and HF_HUB_OFFLINE is set"):
        fetch_address(f"{server.address}/b/y.npz", Progress(quiet=True))
    assert not server.requests


def test_a_download_that_stops_is_resumed_where_it_stopped(server):
    data = os.urandom(300_000)
    server.bucket["b/x.npz"] = data
    server.cut = [100_000, 50_000]

    assert fetch_address(f"{server.address}/b/x.npz", Progress(quiet=True)).read_bytes() == data
    assert server.gets("x.npz") == [None, "bytes=100000-", "bytes=150000-"]
    # Also by another command, after the first has given up
    server.bucket["b/y.npz"], server.cut = data, [70_000, 0, 0]
    with pytest.raises(MachineError, match="cannot be reached: the connection ended after 70,000 of 300,000"):
        fetch_address(f"{server.address}/b/y.npz", Progress(quiet=True))
    assert not cached_path(f"{server.address}/b/y.npz").exists()
    assert fetch_address(f"{server.address}/b/y.npz", Progress(quiet=True)).read_bytes() == data
    assert server.gets("y.npz")[-1] == "bytes=70000-"


def test_a_file_is_on_disk_before_it_takes_its_name_for_nobody_compares_it_again(server, monkeypatch):
    server.bucket["b/x.npz"], synced, replace = os.urandom(9_000), [], os.replace

    def replaced(source, target):
        assert synced == [source]
        replace(source, target)

    monkeypatch.setattr(download, "sync", synced.append)
    monkeypatch.setattr(os, "replace", replaced)
    assert fetch_address(f"{server.address}/b/x.npz", Progress(quiet=True)).is_file()
    assert synced


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.ESTALE])
def test_a_disk_that_fails_is_no_server_that_cannot_be_reached(server, monkeypatch, number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    server.bucket["b/x.npz"] = os.urandom(9_000)
    monkeypatch.setattr(download._Download, "_copy", fail)
    with pytest.raises(MachineError, match=f"x.npz cannot be saved: .*{os.strerror(number)}"):
        fetch_address(f"{server.address}/b/x.npz", Progress(quiet=True))


def test_a_file_that_changed_meanwhile_is_downloaded_from_its_beginning(server):
    address, data = f"{server.address}/b/x.npz", os.urandom(9_000)
    path = cached_path(address)
    path.parent.mkdir(parents=True)
    path.with_name("x.npz.partial").write_bytes(b"of before")
    about = {"etag": '"another"', "headers": {"content-length": "9"}}
    path.with_name("x.npz.partial.json").write_text(json.dumps(about))
    server.bucket["b/x.npz"] = data

    assert fetch_address(address, Progress(quiet=True)).read_bytes() == data


def test_a_part_that_is_not_the_missing_one_is_never_appended(server):
    server.bucket["b/x.npz"] = os.urandom(9_000)
    server.cut, server.shift = [5_000], 1_000

    file = fetch_address(f"{server.address}/b/x.npz", Progress(quiet=True))
    assert file.read_bytes() == server.bucket["b/x.npz"]
    assert server.gets("x.npz") == [None, "bytes=5000-", None]


@pytest.mark.parametrize(
    ("statuses", "error", "message"),
    [
        ([400], WeightsError, r"does not send it \(status 400\)"),
        ([403], WeightsError, "refuses access to it"),
        ([404], WeightsError, r"has no such file \(status 404\)"),
        ([416] * 3, WeightsError, r"does not send it \(status 416\)"),
        ([429, 500, 503], MachineError, "answers with status 503"),
    ],
)
def test_a_server_that_refuses_is_quoted_and_leaves_nothing_behind(server, statuses, error, message):
    server.bucket["b/x.npz"], address = b"weights", f"{server.address}/b/x.npz"
    server.statuses = statuses

    with pytest.raises(error, match=message):
        fetch_address(address, Progress(quiet=True))
    assert not server.statuses and fetch_address(address, Progress(quiet=True)).read_bytes() == b"weights"


@pytest.mark.parametrize(
    ("status", "headers", "error", "message"),
    [
        (200, {"Content-Length": "abc"}, MachineError, "'abc'"),
        (200, {"Content-Length": "9" * 30}, MachineError, "the disk has"),
        (302, {"Location": "http://[::1", "Content-Length": "0"}, MachineError, "Invalid IPv6 URL"),
        (302, {"Location": f"http://{'a' * 99}/", "Content-Length": "0"}, MachineError, "idna"),
        (302, {"Location": "http://\xe4.\xff../", "Content-Length": "0"}, MachineError, "can't encode"),
        (302, {"Location": "file:///etc/passwd", "Content-Length": "0"}, WeightsError, "does not send it"),
    ],
)
def test_headers_that_are_none_are_an_answer_and_no_bug(server, status, headers, error, message):
    class Odd(Answer):
        def do_GET(self) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.end_headers()
            self.close_connection = True

    with serving(Files(), Odd) as odd, pytest.raises(error, match=message):
        fetch_address(f"{odd.address}/x.npz", Progress(quiet=True))


def test_an_entity_tag_that_is_a_path_is_not_written_to(server, tmp_path):
    """The Hub's client calls the files of its cache by their entity tags."""
    server.repositories["ann/vit-small"] = timm_files(network()[1])
    for server.tag in (f"{tmp_path}/evil", "../../../../evil"):
        with pytest.raises(MachineError, match="is a path"):
            read_weights("ann/vit-small")
    assert not list(tmp_path.rglob("*evil*"))


def test_a_web_page_is_not_kept_as_weights(server):
    server.bucket["b/x.npz"], server.page = b"<html>", True

    with pytest.raises(WeightsError, match="answers with a web page, not with a file"):
        fetch_address(f"{server.address}/b/x.npz", Progress(quiet=True))
    assert not download.is_here(resolve("gs://b/x.npz"))


def test_a_page_or_an_answer_without_encryption_is_refused_and_no_signature_is_shown(tmp_path):
    address = "https://example.org/x.npz?token=abc"
    waiting = download._Download(address, tmp_path / "x.npz", Progress(quiet=True))

    for url, stated, message in (
        ("http://example.org/x.npz", {}, "redirects to an address without encryption"),
        (address, {"content-type": "text/html; charset=utf-8"}, "answers with a web page"),
    ):
        with pytest.raises(WeightsError, match=message) as refusal:
            waiting._check_answer(url, stated)
        assert refusal.value.where == "https://example.org/x.npz"
    waiting._check_answer(address, {"content-type": "application/octet-stream"})


@pytest.mark.parametrize(
    ("place", "etag", "continues"),
    [("bytes 7-9/10", '"a"', True), ("bytes 7-9/10", '"b"', False), ("bytes 6-9/10", '"a"', False)],
)
def test_a_part_continues_the_same_version_where_the_received_one_ends(place, etag, continues):
    assert download._continues({"content-range": place, "etag": etag}, '"a"', 7) == continues


def test_an_error_in_a_downloaded_file_names_its_place_in_the_cache(server):
    server.bucket["b/x.npz"] = b"no archive"

    for read in (read_weights, read_description):
        with pytest.raises(WeightsError, match="the npz file cannot be read") as refusal:
            read("gs://b/x.npz")
        assert refusal.value.where == f"gs://b/x.npz: {cached_path(f'{server.address}/b/x.npz')}"


@pytest.mark.parametrize("place", ["bucket", "hub"])
def test_a_file_with_another_checksum_is_refused_and_not_kept(server, place):
    _, state = network()
    server.repositories["ann/vit-small"] = timm_files(state)
    server.bucket["b/x.npz"] = npz_of(state)
    server.damaged, ckpt = True, "ann/vit-small" if place == "hub" else "gs://b/x.npz"

    with pytest.raises(WeightsError, match="arrived damaged: its checksum is not the one that the"):
        read_weights(ckpt)
    server.damaged = False
    if place == "hub":
        assert read_weights(ckpt).state.keys() == state.keys()
    else:
        assert resolve(ckpt) and fetch_address(resolve(ckpt).place, Progress(quiet=True)).is_file()


@pytest.mark.parametrize("arrived", [b"weight", b"weights and more"])
def test_a_file_of_another_length_is_refused_and_not_kept(tmp_path, arrived):
    arriving = download._Download("https://x.y/x.npz", tmp_path / "x.npz", Progress(quiet=True))
    arriving.partial.write_bytes(arrived)
    with pytest.raises(WeightsError, match="arrived damaged: its size is not the one that the server states"):
        arriving._check({"content-length": "7"})
    assert not arriving.partial.exists()
    arriving.partial.write_bytes(b"weights")
    arriving._check({"content-length": "7"})
    assert arriving.partial.exists()


def test_processes_that_need_the_same_file_download_it_once(server):
    server.bucket["b/x.npz"] = os.urandom(2_000_000)
    address, paths = f"{server.address}/b/x.npz", []
    threads = [
        threading.Thread(target=lambda: paths.append(fetch_address(address, Progress(quiet=True))))
        for _ in range(4)
    ]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]

    assert len(paths) == 4 and len(set(paths)) == 1 and server.gets("x.npz") == [None]


def test_a_download_shows_its_progress_unless_it_is_quiet(server, capsys, monkeypatch):
    monkeypatch.setattr("vitcli.output.progress.PLAIN_EVERY_S", 0.0)
    _, state = network()
    server.bucket["b/x.npz"] = server.bucket["b/y.npz"] = os.urandom(3_000_000)
    large = timm_files(state | {"head.weight": torch.randn(3, 400_000)})
    server.repositories |= {"ann/a": large, "ann/b": large}

    fetch_address(f"{server.address}/b/x.npz", Progress(quiet=False))
    with pytest.raises(WeightsError):
        read_weights("ann/a")
    printed = capsys.readouterr().err
    assert "download x.npz, MB 3/3" in printed and "download model.safetensors, MB 6/6" in printed
    fetch_address(f"{server.address}/b/y.npz", Progress(quiet=True))
    with pytest.raises(WeightsError):
        read_weights("ann/b", quiet=True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "ckpt", ["ann/vit-small", "timm/vit_tiny_patch16_224.augreg_in21k", "ViT-B/16@in21k"]
)
def test_without_a_network_a_download_fails_at_once(server, monkeypatch, ckpt):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody answers there
    monkeypatch.setattr(names, "STORAGE", "http://127.0.0.1:9")
    began_at = time.monotonic()

    with pytest.raises(MachineError, match="cannot be reached") as refusal:
        read_weights(ckpt)
    assert time.monotonic() - began_at < 2 and "check the connection" in refusal.value.fix
    assert ("timm has the same weights: timm/vit_base_patch16_224.orig_in21k" in refusal.value.fix) == (
        "@" in ckpt
    )


@pytest.mark.parametrize("ckpt", ["ann/vit-small", "hf://ann/vit-small/part/x.safetensors"])
def test_without_a_network_the_cache_is_read_and_that_is_noted(server, monkeypatch, capsys, ckpt):
    files = timm_files(network()[1])
    in_folder = {"part/config.json": files["config.json"], "part/x.safetensors": files["model.safetensors"]}
    server.repositories["ann/vit-small"] = files | in_folder
    names_online = read_weights(ckpt).state.keys()
    assert server.requests[-1][1].split("/")[3] == COMMIT  # of the first file, should the branch move on
    server.status = 503
    assert read_weights(ckpt).state.keys() == names_online
    note = "ann/vit-small is read from the Hub's cache: the Hub answers with status 503"
    assert note in capsys.readouterr().err
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    server.requests.clear()
    assert read_weights(ckpt).state.keys() == names_online and not server.requests


def test_a_hub_that_fails_in_the_middle_is_never_taken_to_lack_the_file(server, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda wait_s: None)  # of the Hub's client
    server.repositories["ann/vit-small"] = timm_files(network()[1])
    server.statuses = [0] + [503] * 12  # for config.json, after the first question

    with pytest.raises(MachineError, match=r"could not download ann/vit-small from the Hub: .*503"):
        read_weights("ann/vit-small")


def test_the_checksums_of_servers_are_understood():
    data = b"weights"
    md5, sha = hashlib.md5(data).digest(), hashlib.sha256(data).digest()
    md5_text, sha_text = (base64.b64encode(digest).decode() for digest in (md5, sha))
    for headers, checksums in (
        ({"x-goog-hash": f"crc32c=AAAA, md5={md5_text}"}, {"md5": md5}),
        ({"x-goog-hash": "crc32c=AAAA"}, {}),
        ({"content-md5": md5_text}, {"md5": md5}),
        ({"repr-digest": f"sha-256=:{sha_text}:"}, {"sha256": sha}),
        ({"digest": f"SHA-256={sha_text}"}, {"sha256": sha}),
        # Of other lengths, no base64, or whatever a server likes
        ({"digest": f"sha-256={sha.hex()}", "content-md5": "abcde"}, {}),
        ({"etag": f'"{sha.hex()}"'}, {}),
    ):
        assert download._checksums(headers) == checksums
